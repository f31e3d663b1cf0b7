# SPDX-License-Identifier: Apache-2.0
"""tf.train.Checkpoint does the jobs of test_checkpoint.py.

Run as `tf_checkpoint.py FOLDER`: reads a list of jobs in JSON from standard input, and prints the
list of their results. Without the folder, which they write to, it takes a request {"jobs": [...]} a
line and answers {"results": [...]} or {"error": text}. Objects are described as in
support/graphs.py.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

ASSERTIONS = ("assert_consumed", "assert_existing_objects_matched", "assert_nontrivial_match")


class State(tf.train.experimental.PythonState):
    """A Python object with a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def serialize(self) -> str:
        return self.text

    def deserialize(self, string_value: bytes) -> None:
        self.text = string_value.decode()


class Optimizer(tf.Module):
    """Keeps a slot variable of each name for each of its variables."""

    def __init__(self) -> None:
        super().__init__()
        self._slots: dict[tuple[int, str], tf.Variable] = {}
        self._names: list[str] = []

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        children = super()._trackable_children(save_type, **kwargs)
        return {name: child for name, child in children.items() if not name.startswith("_")}

    def add(self, variable: tf.Variable, name: str, slot: tf.Variable) -> None:
        if name not in self._names:
            self._names = [*self._names, name]
        vars(self)["_slots"][id(variable), name] = slot

    def get_slot_names(self) -> list[str]:
        return list(self._names)

    def get_slot(self, variable: tf.Variable, name: str) -> tf.Variable:
        return vars(self)["_slots"].get((id(variable), name))

    def _create_or_restore_slot_variable(
        self, slot_variable_position: Any, slot_name: str, variable: tf.Variable
    ) -> tf.Variable:
        return self.get_slot(variable, slot_name)


class Holder(tf.Module):
    """Wraps lists and dicts as attributes are, so that they can be shared and filled later."""

    def wrapped(self, value: Any) -> Any:
        self.value = value
        return self.value


EMPTY: dict[str, Any] = {
    "list": lambda: Holder().wrapped([]),
    "dict": lambda: Holder().wrapped({}),
    "module": tf.Module,
    "checkpoint": tf.train.Checkpoint,
    "optimizer": Optimizer,
}


class Builder:
    """Makes the objects of descriptions."""

    def __init__(self) -> None:
        self.shared: dict[int, Any] = {}

    def build(self, tree: dict[str, Any]) -> Any:
        number = tree.get("is")
        if number in self.shared:
            return self.shared[number]
        made = self.begun(tree)
        if number is not None:
            self.shared[number] = made
        self.fill(made, tree)
        return made

    def begun(self, tree: dict[str, Any]) -> Any:
        """The object, without its items except for those of a tuple."""
        kind = tree["kind"]
        if kind == "variable":
            return tf.Variable(value_of(tree), name=tree.get("name"))
        if kind == "state":
            return State(tree["text"])
        if kind == "tuple":
            return tuple(self.build(item) for item in tree["items"])
        return EMPTY[kind]()

    def fill(self, made: Any, tree: dict[str, Any]) -> None:
        if tree["kind"] == "list":
            made.extend(self.build(item) for item in tree["items"])
        elif tree["kind"] != "tuple":
            for name, item in tree.get("items", {}).items():
                attach(made, name, self.build(item))
        for variable, name, slot in tree.get("slots", ()):
            made.add(self.build(variable), name, self.build(slot))

    def checkpoint(self, job: dict[str, Any]) -> tf.train.Checkpoint:
        nodes = job.get("nodes", [])
        for node in nodes:
            if node["kind"] != "tuple":
                self.shared[node["is"]] = self.begun(node)
        for node in reversed(nodes):
            self.build(node)
        for node in nodes:
            self.fill(self.shared[node["is"]], node)
        root = job.get("root")
        objects = {name: self.build(tree) for name, tree in job["objects"].items()}
        if root is None:
            return tf.train.Checkpoint(**objects)
        return tf.train.Checkpoint(self.build(root), **objects)


def value_of(tree: dict[str, Any]) -> Any:
    if tree["dtype"] == "string":
        flat = [text.encode("latin-1") for text in tree["data"]]
        return tf.reshape(tf.constant(flat, tf.string), tree["shape"])
    dtype = tf.dtypes.as_dtype(tree["dtype"]).as_numpy_dtype
    return np.frombuffer(bytes.fromhex(tree["data"]), dtype).reshape(tree["shape"])


def described(variable: tf.Variable) -> Any:
    array = variable.numpy()
    if variable.dtype == tf.string:
        return [text.decode("latin-1") for text in np.asarray(array, object).ravel().tolist()]
    return np.asarray(array).tobytes().hex()


def outcome(status: Any, assertion: str) -> str:
    try:
        getattr(status, assertion)()
    except AssertionError:
        return "AssertionError"
    return "ok"


def reached(start: Any, path: list[str]) -> Any:
    for name in path:
        start = (
            start[int(name)]
            if isinstance(start, (list, tuple))
            else (
                start[name]
                if isinstance(start, dict) or hasattr(start, "keys")
                else getattr(start, name)
            )
        )
    return start


def attach(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, list):
        holder.append(value)
    elif hasattr(holder, "keys"):
        holder[name] = value
    else:
        setattr(holder, name, value)


def save(job: dict[str, Any]) -> Any:
    checkpoint = Builder().checkpoint(job)
    return (checkpoint.write if job.get("write") else checkpoint.save)(job["path"])


def restore(job: dict[str, Any]) -> Any:
    """Restores, attaches what comes later, and tells what it came to."""
    builder = Builder()
    checkpoint = builder.checkpoint(job)
    options = tf.train.CheckpointOptions(
        experimental_skip_slot_variables=job.get("skip_slots", False)
    )
    try:
        status = (checkpoint.read if job.get("read") else checkpoint.restore)(job["path"], options)
    except (ValueError, tf.errors.OpError) as error:
        return {"error": type(error).__name__}
    for path, tree in job.get("later", ()):
        attach(reached(checkpoint, path[:-1]), path[-1], builder.build(tree))
    result = {
        "values": {
            "/".join(path): described(reached(checkpoint, path)) for path in job.get("wanted", ())
        },
        "shared": {
            str(number): value.text if isinstance(value, State) else described(value)
            for number, value in builder.shared.items()
            if isinstance(value, (State, tf.Variable))
        },
    }
    result["outcomes"] = [outcome(status, assertion) for assertion in ASSERTIONS]
    if hasattr(status, "expect_partial"):
        status.expect_partial()
    return result


def names(job: dict[str, Any]) -> Any:
    """A checkpoint of names, as TensorFlow 1 writes."""
    tensors = {name: value_of(tree) for name, tree in job["tensors"].items()}
    tf.raw_ops.SaveV2(
        prefix=job["path"],
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(tensor) for tensor in tensors.values()],
    )
    return None


def keras_model() -> tf.keras.Model:
    tf.keras.utils.set_random_seed(7)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Input((4,)), layers.Dense(3), layers.BatchNormalization(), layers.Dense(2)]
    )
    model.compile(optimizer=tf.keras.optimizers.Adam(0.1), loss="mse")
    model.fit(np.ones((2, 4)), np.ones((2, 2)), verbose=0)
    return model


def keras_save(job: dict[str, Any]) -> Any:
    model = keras_model()
    tf.train.Checkpoint(model=model).write(job["path"])
    return [np.asarray(weight).tobytes().hex() for weight in model.get_weights()]


def keras_restore(job: dict[str, Any]) -> Any:
    model = keras_model()
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    tf.train.Checkpoint(model=model).read(job["path"]).assert_consumed()
    return [np.asarray(weight).tobytes().hex() for weight in model.get_weights()]


JOBS = {
    "save": save,
    "restore": restore,
    "names": names,
    "keras_save": keras_save,
    "keras_restore": keras_restore,
}


def serve() -> None:
    for line in sys.stdin:
        try:
            answer = {"results": [JOBS[job["do"]](job) for job in json.loads(line)["jobs"]]}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


def main() -> None:
    if len(sys.argv) == 1:
        serve()
    else:
        print(json.dumps([JOBS[job["do"]](job) for job in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
