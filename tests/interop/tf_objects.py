# SPDX-License-Identifier: Apache-2.0
"""Objects of TensorFlow that are no variables, for test_trees.py and test_objects.py: a table, a
generator of random numbers, an iterator over a dataset, Python state, and a registered saver.

Run as `tf_objects.py COMMAND FOLDER`. `write` saves `FOLDER/objects`, `FOLDER/registered` and the
SavedModel `FOLDER/model`; `read` restores `FOLDER/ours` into new objects and prints what they do;
`read_registered` and `read_parallel` restore `FOLDER/ours` into an object with that saver and into
variables, and print what these got and the assertions that hold.
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
from tensorflow.python.saved_model import registration  # noqa: E402


class Words(tf.train.experimental.PythonState):
    """State of Python's own, kept as text."""

    def __init__(self) -> None:
        self.text = ""

    def serialize(self) -> str:
        return self.text

    def deserialize(self, string_value: Any) -> None:
        self.text = tf.compat.as_text(string_value)


class Registered(tf.Module):
    """Saved by a saver of its own."""

    def __init__(self, value: list[float]) -> None:
        super().__init__()
        self.value = value


def save_registered(trackables: Any, file_prefix: Any) -> Any:
    tf.raw_ops.SaveV2(
        prefix=file_prefix,
        tensor_names=[f"own/{name}" for name in trackables],
        shape_and_slices=[""] * len(trackables),
        tensors=[tf.constant(one.value) for one in trackables.values()],
    )
    return file_prefix


def restore_registered(trackables: Any, merged_prefix: Any) -> None:
    for name, one in trackables.items():
        (found,) = tf.raw_ops.RestoreV2(
            prefix=merged_prefix,
            tensor_names=[f"own/{name}"],
            shape_and_slices=[""],
            dtypes=[tf.float32],
        )
        one.value = found.numpy().tolist()


def register() -> None:
    registration.register_checkpoint_saver(
        package="tests",
        name="own",
        predicate=lambda one: isinstance(one, Registered),
        save_fn=save_registered,
        restore_fn=restore_registered,
    )


def outcomes(status: Any) -> list[str]:
    """The assertions that hold."""
    found = []
    for name in ("assert_consumed", "assert_existing_objects_matched", "assert_nontrivial_match"):
        try:
            getattr(status, name)()
            found.append(name)
        except AssertionError:
            pass
    return found


def read_registered(path: str) -> Any:
    register()
    own, variable = Registered([]), tf.Variable(0.0)
    status = tf.train.Checkpoint(own=own, v=variable).read(path)
    return [own.value, float(variable.numpy()), outcomes(status)]


def read_parallel(path: str) -> Any:
    first, second = tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])
    status = tf.train.Checkpoint(p=first, d={"q": second}).read(path)
    return [first.numpy().tolist(), second.numpy().tolist(), outcomes(status)]


def objects() -> dict[str, Any]:
    return {
        "table": tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1),
        "random": tf.random.Generator.from_seed(7),
        "data": iter(tf.data.Dataset.range(10)),
        "words": Words(),
    }


def told(found: dict[str, Any]) -> dict[str, Any]:
    """What the objects do next."""
    return {
        "table": found["table"].lookup(tf.constant(["one", "two", "three"])).numpy().tolist(),
        "random": found["random"].uniform((3,)).numpy().tolist(),
        "data": next(found["data"]).numpy().tolist(),
        "words": found["words"].text,
    }


def main() -> None:
    command, folder = sys.argv[1:]
    readers = {"read_registered": read_registered, "read_parallel": read_parallel}
    if command in readers:
        print(json.dumps(readers[command](os.path.join(folder, "ours"))))
        return
    found = objects()
    if command == "write":
        found["table"].insert(tf.constant(["one", "two"]), tf.constant([1, 2], tf.int64))
        found["random"].uniform((5,))
        found["words"].text = "für"
        for _ in range(4):
            next(found["data"])
        tf.train.Checkpoint(**found).write(os.path.join(folder, "objects"))
        register()
        tf.train.Checkpoint(own=Registered([1.0, 1.0]), v=tf.Variable(3.0)).write(
            os.path.join(folder, "registered")
        )
        model = tf.Module()
        model.v = tf.Variable([1.0, 2.0])
        tf.saved_model.save(model, os.path.join(folder, "model"))
    else:
        status = tf.train.Checkpoint(**found).read(os.path.join(folder, "ours"))
        status.assert_consumed()
    print(json.dumps(told(found)))


if __name__ == "__main__":
    main()
