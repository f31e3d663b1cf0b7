# SPDX-License-Identifier: Apache-2.0
"""Saves with ckptfmt under TensorFlow's sharding callbacks, for test_policies.py: the one program
of this folder that imports both.

Run as `tf_callbacks.py FOLDER DEVICE...`. Prints one JSON document: for each callback of TensorFlow
the tensors of its shards and of ours, what was refused, and how `Saver(sharded=True)` orders
variables on these devices.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow.python.training import saver as saver_v1  # noqa: E402
from tensorflow.python.training.saving import saveable_object_util  # noqa: E402

import ckptfmt  # noqa: E402

experimental = tf.train.experimental
TASK = "/job:worker/task:1/device:GPU:0"
ARRAYS: dict[str, Any] = {
    "float": np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::-1],
    "swapped": np.arange(9, dtype=">i4"),
    "bool": np.array([True, False]),
    "bfloat16": np.arange(5).astype(ml_dtypes.bfloat16),
    "quantized": np.arange(9, dtype=np.int8).view([("qint8", np.int8)]),
    "scalar": np.array(2.5),
    "strings": np.array([b"a\0", "\xe4", b"", b"bcd"], object),
    "text": np.array("text", object),
}


class BySize(experimental.ShardingCallback):
    """Uses what only TensorFlow's objects have."""

    @property
    def description(self) -> str:
        return "large and small"

    def __call__(self, shardable_tensors: Any) -> Any:
        shards: list[Any] = [{}, {}]
        for one in shardable_tensors:
            size = one.shape.num_elements() * one.dtype.size
            assert one.device.device_type in ("GPU", None)
            tensor = tf.identity(one._tensor_save_spec.tensor)
            shards[size > 20].setdefault(one.checkpoint_key, {})[one.slice_spec] = tensor
        return shards


class Changed(BySize):
    """Multiplies by 0."""

    def __call__(self, shardable_tensors: Any) -> Any:
        shards = super().__call__(shardable_tensors)
        shards[1]["float"][""] *= 0
        return shards


def saver() -> ckptfmt.Saver:
    specs = {
        name: ckptfmt.SaveSpec(array, "", name, device=TASK if name < "f" else "")
        for name, array in ARRAYS.items()
    }
    piece = {"4 3 1,2:0,3": np.ones((2, 3))}
    return ckptfmt.Saver({"all": {**specs, "slice": piece}})


def saved(folder: str, name: str, callback: Any) -> list[list[Any]]:
    """What is in each data file."""
    options = ckptfmt.tf.CheckpointOptions(experimental_sharding_callback=callback, level="v2")
    prefix = saver().save(os.path.join(folder, name), options)
    with ckptfmt.open(prefix) as reader:
        for key, array in ARRAYS.items():
            found, wanted = reader[key].read(), array
            if key == "strings":
                wanted = np.array([b"a\0", "\xe4".encode(), b"", b"bcd"], object)
            if key == "text":
                wanted = np.array(b"text", object)
            assert (
                found.dtype == wanted.dtype.newbyteorder("=") and found.tolist() == wanted.tolist()
            )
        files: list[list[Any]] = [[] for _ in range(reader.header.num_shards)]
        for handle in reader.values():
            for part in handle.slices or [handle]:
                files[part.shard].append([part.offset, handle.name, part.crc32c])
    return [sorted(file) for file in files]


def refused(folder: str) -> str:
    try:
        saved(folder, "refused", Changed())
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def grouped(devices: list[str]) -> list[list[str]]:
    """The names of the variables on these devices by data file, as TensorFlow groups them."""
    with tf.Graph().as_default():
        for number, device in enumerate(devices):
            with tf.device(device):
                tf.compat.v1.Variable(0.0, name=f"v{number:02}", use_resource=False)
        variables = saveable_object_util.op_list_to_dict(tf.compat.v1.global_variables())
        saveables = saveable_object_util.validate_and_slice_inputs(variables)
        groups = saver_v1.BulkSaverBuilder()._GroupByDevices(saveables)
        return [[one.name for one in group] for _, group in groups]


def main() -> None:
    folder, *devices = sys.argv[1:]
    answer: dict[str, Any] = {"shards": {}}
    for name, theirs, ours in (
        ("task", experimental.ShardByTaskPolicy(), ckptfmt.tf.ShardByTaskPolicy()),
        ("size", experimental.MaxShardSizePolicy(40), ckptfmt.tf.MaxShardSizePolicy(40)),
        ("own", BySize(), None),
    ):
        found = saved(folder, f"theirs-{name}", theirs)
        answer["shards"][name] = [found, saved(folder, f"ours-{name}", ours)]
    json.dump({**answer, "refused": refused(folder), "grouped": grouped(devices)}, sys.stdout)


if __name__ == "__main__":
    main()
