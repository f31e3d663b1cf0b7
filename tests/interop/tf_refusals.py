# SPDX-License-Identifier: Apache-2.0
"""Opens a checkpoint with everything in TensorFlow that reads one, for test_compression.py.

Run as `tf_refusals.py PREFIX`, of a checkpoint with a matrix of 600 by 500 floats, `weights`. The
answer is, for each way in, the class and text of what it raised, or null.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf  # noqa: E402

NAME, SHAPE = "weights", [600, 500]

v1 = tf.compat.v1


def checkpoint() -> tf.train.Checkpoint:
    return tf.train.Checkpoint(weights=tf.Variable(tf.zeros(SHAPE)))


def saver_restore(prefix: str) -> None:
    with tf.Graph().as_default():
        saver = v1.train.Saver([v1.get_variable(NAME, SHAPE)])
        with v1.Session() as session:
            saver.restore(session, prefix)


def init_from_checkpoint(prefix: str) -> None:
    with tf.Graph().as_default():
        v1.get_variable(NAME, SHAPE)
        v1.train.init_from_checkpoint(prefix, {"/": "/"})


WAYS: dict[str, Callable[[str], Any]] = {
    "Checkpoint.restore": lambda prefix: checkpoint().restore(prefix),
    "Checkpoint.read": lambda prefix: checkpoint().read(prefix),
    "load_checkpoint": tf.train.load_checkpoint,
    "list_variables": tf.train.list_variables,
    "load_variable": lambda prefix: tf.train.load_variable(prefix, NAME),
    "NewCheckpointReader": v1.train.NewCheckpointReader,
    "Saver.restore": saver_restore,
    "init_from_checkpoint": init_from_checkpoint,
    "RestoreV2": lambda prefix: tf.raw_ops.RestoreV2(
        prefix=prefix, tensor_names=[NAME], shape_and_slices=[""], dtypes=[tf.float32]
    ),
}


def outcome(way: Callable[[str], Any], prefix: str) -> list[str] | None:
    try:
        way(prefix)
    except Exception as error:  # the answer, whatever it is
        return [type(error).__name__, str(error)]
    return None


def main() -> None:
    json.dump({name: outcome(way, sys.argv[1]) for name, way in WAYS.items()}, sys.stdout)


if __name__ == "__main__":
    main()
