# SPDX-License-Identifier: Apache-2.0
"""Saves and restores trees of TensorFlow's objects, for test_graph.py and test_trees.py.

Run as `tf_trees.py COMMAND FOLDER`; `FOLDER/trees.json` holds the trees by name. A tree is a list
of nodes, the first the root: {"variable": values}, with a "dtype" where the values do not tell it,
or {"list", "tuple", "dict" or "module": children}, where a child is the number of a node, of dicts
and modules [name, number]; a module may have "slots", of [variable, name, slot]. Values are text
for strings. Only variables and modules are shared, and only modules lie in cycles: TensorFlow
wraps other containers anew wherever they are assigned.

`write` saves each as `FOLDER/NAME`. `read` restores `FOLDER/NAME` into variables of other values
and prints, by name, what stopped it, or the values by the numbers of the nodes.
"""

from __future__ import annotations

import json
import os
import sys

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from typing import Any  # noqa: E402

import tensorflow as tf  # noqa: E402

DTYPES = {str: tf.string, bool: tf.bool, int: tf.int64, float: tf.float32}


class Slots(tf.Module):
    """Keeps slot variables as optimizers of TensorFlow 1 do."""

    def __init__(self) -> None:
        super().__init__()
        # Not an attribute that TensorFlow sees.
        object.__setattr__(self, "_found", {})

    def get_slot_names(self) -> list[str]:
        return sorted({name for _, name in self._found})

    def get_slot(self, variable: Any, name: str) -> Any:
        return self._found.get((id(variable), name))

    def _create_or_restore_slot_variable(
        self, slot_variable_position: Any, slot_name: str, variable: Any
    ) -> Any:
        return self.get_slot(variable, slot_name)

    def add_slot(self, variable: Any, name: str, value: Any) -> None:
        self._found[id(variable), name] = value


class Builder:
    """The objects of one tree."""

    def __init__(self, nodes: list[dict[str, Any]], *, blank: bool) -> None:
        self.nodes, self.blank = nodes, blank
        self.made: dict[int, Any] = {}

    def variable(self, value: Any, dtype: Any = None) -> Any:
        first = value
        while isinstance(first, list):
            first = first[0]
        tensor = tf.constant(value, dtype or DTYPES[type(first)])
        if self.blank:
            tensor = tf.zeros_like(tensor) if type(first) is not str else tf.fill(tensor.shape, "")
        return tf.Variable(tensor)

    def object(self, number: int) -> Any:
        if number in self.made:
            return self.made[number]
        kind, content = next(iter(self.nodes[number].items()))
        if kind == "variable":
            self.made[number] = self.variable(content, self.nodes[number].get("dtype"))
            return self.made[number]
        if kind == "list":
            return [self.object(child) for child in content]
        if kind == "tuple":
            return tuple(self.object(child) for child in content)
        if kind == "dict":
            return {name: self.object(child) for name, child in content}
        module = self.made[number] = Slots()
        for name, child in content:
            setattr(module, name, self.object(child))
        for original, name, value in self.nodes[number].get("slots", ()):
            module.add_slot(self.object(original), name, self.object(value))
        return module

    def checkpoint(self) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(
            **{name: self.object(child) for name, child in self.nodes[0]["dict"]}
        )


def plain(variable: Any) -> Any:
    found = variable.numpy()
    if isinstance(found, bytes):
        return found.decode()
    found = found.tolist()
    return [one.decode() for one in found] if variable.dtype == tf.string else found


def read(prefix: str, nodes: list[dict[str, Any]]) -> Any:
    builder = Builder(nodes, blank=True)
    checkpoint = builder.checkpoint()
    try:
        checkpoint.read(prefix).assert_consumed()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        return f"{type(error).__name__}: {error}"
    variables = {n: one for n, one in builder.made.items() if isinstance(one, tf.Variable)}
    return {number: plain(variable) for number, variable in variables.items()}


def main() -> None:
    command, folder = sys.argv[1:]
    with open(os.path.join(folder, "trees.json"), encoding="utf-8") as stream:
        trees = json.load(stream)
    found = {}
    for name, nodes in trees.items():
        prefix = os.path.join(folder, name)
        if command == "write":
            Builder(nodes, blank=False).checkpoint().write(prefix)
        else:
            found[name] = read(prefix, nodes)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
