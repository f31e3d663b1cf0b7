# SPDX-License-Identifier: Apache-2.0
"""Objects of TensorFlow that are no variables, for test_trees.py: a table, a generator of random
numbers, an iterator over a dataset, Python state, and a registered saver.

Run as `tf_objects.py COMMAND FOLDER`. `write` saves `FOLDER/objects`, `FOLDER/registered` and the
SavedModel `FOLDER/model`; `read` restores `FOLDER/ours` into new objects and prints what they do.
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


def save_registered(trackables: Any, file_prefix: Any) -> Any:
    tf.raw_ops.SaveV2(
        prefix=file_prefix, tensor_names=["own"], shape_and_slices=[""], tensors=[tf.ones(2)]
    )
    return file_prefix


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
    found = objects()
    if command == "write":
        found["table"].insert(tf.constant(["one", "two"]), tf.constant([1, 2], tf.int64))
        found["random"].uniform((5,))
        found["words"].text = "für"
        for _ in range(4):
            next(found["data"])
        tf.train.Checkpoint(**found).write(os.path.join(folder, "objects"))
        registration.register_checkpoint_saver(
            package="tests",
            name="own",
            predicate=lambda one: isinstance(one, Registered),
            save_fn=save_registered,
            restore_fn=lambda trackables, merged_prefix: None,
        )
        tf.train.Checkpoint(own=Registered(), v=tf.Variable(3.0)).write(
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
