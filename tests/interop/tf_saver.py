# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints with tf.train.Checkpoint under sharding policies, for test_saver.py.

Run as `tf_saver.py FOLDER POLICY...`: `FOLDER/tensors.npz` holds the arrays; each policy ("task" or
a shard's largest number of bytes) gives a checkpoint of its name in the folder. It prints
the names.
"""

from __future__ import annotations

import json
import os
import sys

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def main() -> None:
    folder, *policies = sys.argv[1:]
    experimental = tf.train.experimental
    with np.load(os.path.join(folder, "tensors.npz")) as arrays:
        objects = {name: tf.Variable(arrays[name]) for name in arrays.files}
    # numpy would make texts of one length of these.
    objects["text"] = tf.Variable(tf.constant([b"a" * 40, b"", b"\0b\0", b"c" * 39]))
    checkpoint = tf.train.Checkpoint(**objects)
    for name in policies:
        policy = (
            experimental.ShardByTaskPolicy()
            if name == "task"
            else experimental.MaxShardSizePolicy(int(name))
        )
        options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
        checkpoint.write(os.path.join(folder, name), options=options)
    print(json.dumps(policies))


if __name__ == "__main__":
    main()
