# SPDX-License-Identifier: Apache-2.0
"""Objects of a Checkpoint from a description, which tests/interop/tf_checkpoint.py builds with
TensorFlow as well.

A description is a tree of dicts:

    {"kind": "variable", "dtype": "float32", "shape": [2], "data": hexadecimal, "is": 3}
    {"kind": "state", "text": "..."}
    {"kind": "list" or "tuple", "items": [...]}
    {"kind": "dict", "module", "checkpoint" or "optimizer", "items": {...}}

Trees with the same number in "is" are one object; {"is": 3} alone is the object of another tree of
the job. An optimizer may have "slots": [variable, name, slot variable]. A job has "objects", the
attributes of its Checkpoint by name, and may have a "root" and "nodes", which are built first and
may refer to each other in cycles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

import ckptfmt

from .objects import Module, State

Tree = dict[str, Any]


class Optimizer(ckptfmt.Trackable):
    untracked = ("slots", "names")

    def __init__(self) -> None:
        self.slots: dict[tuple[int, str], Any] = {}
        self.names: list[str] = []

    def add(self, variable: Any, name: str, slot: Any) -> None:
        if name not in self.names:
            self.names.append(name)
        self.slots[id(variable), name] = slot

    def get_slot_names(self) -> list[str]:
        return self.names

    def get_slot(self, variable: Any, name: str) -> Any:
        return self.slots.get((id(variable), name))


EMPTY: dict[str, Any] = {
    "list": list,
    "dict": dict,
    "module": Module,
    "checkpoint": ckptfmt.Checkpoint,
    "optimizer": Optimizer,
}


class Builder:
    """Makes the objects of descriptions."""

    def __init__(self) -> None:
        self.shared: dict[int, Any] = {}

    def build(self, tree: Tree) -> Any:
        number = tree.get("is")
        if number in self.shared:
            return self.shared[number]
        made = self.begun(tree)
        if number is not None:
            self.shared[number] = made
        self.fill(made, tree)
        return made

    def begun(self, tree: Tree) -> Any:
        """The object, without its items except for those of a tuple."""
        kind = tree["kind"]
        if kind == "variable":
            return value_of(tree)
        if kind == "state":
            return State(tree["text"])
        if kind == "tuple":
            return tuple(self.build(item) for item in tree["items"])
        return EMPTY[kind]()

    def fill(self, made: Any, tree: Tree) -> None:
        if tree["kind"] == "list":
            made.extend(self.build(item) for item in tree["items"])
        elif tree["kind"] != "tuple":
            for name, item in tree.get("items", {}).items():
                attach(made, name, self.build(item))
        for variable, name, slot in tree.get("slots", ()):
            made.add(self.build(variable), name, self.build(slot))

    def build_nodes(self, nodes: list[Tree]) -> None:
        """Tuples refer to objects of other kinds and to later tuples."""
        for node in nodes:
            if node["kind"] != "tuple":
                self.shared[node["is"]] = self.begun(node)
        for node in reversed(nodes):
            self.build(node)
        for node in nodes:
            self.fill(self.shared[node["is"]], node)

    def checkpoint(self, job: Mapping[str, Any]) -> ckptfmt.Checkpoint:
        self.build_nodes(job.get("nodes", []))
        objects = {name: self.build(tree) for name, tree in job["objects"].items()}
        root = job.get("root")
        return ckptfmt.Checkpoint(None if root is None else self.build(root), **objects)

    def values(self) -> dict[str, Any]:
        return {
            str(number): value.text if isinstance(value, State) else described(value)
            for number, value in self.shared.items()
            if isinstance(value, (State, np.ndarray))
        }


def attach(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, list):
        holder.append(value)
    elif isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


def value_of(tree: Tree) -> np.ndarray[Any, Any]:
    if tree["dtype"] == "string":
        array = np.empty(len(tree["data"]), object)
        array[:] = [text.encode("latin-1") for text in tree["data"]]
        return array.reshape(tree["shape"])
    dtype = np.dtype(getattr(ml_dtypes, tree["dtype"], tree["dtype"]))
    return np.frombuffer(bytes.fromhex(tree["data"]), dtype).reshape(tree["shape"]).copy()


def described(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype == object:
        return [text.decode("latin-1") for text in array.ravel().tolist()]
    return array.tobytes().hex()


def blank(tree: Any) -> Any:
    """The same objects without their values."""
    if isinstance(tree, list):
        return [blank(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.get("kind") == "state":
        return {**tree, "text": ""}
    if tree.get("kind") == "variable":
        data = tree["data"]
        empty = [""] * len(data) if isinstance(data, list) else "00" * (len(data) // 2)
        return {**tree, "data": empty}
    return {name: blank(item) for name, item in tree.items()}
