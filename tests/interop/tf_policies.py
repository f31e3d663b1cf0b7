# SPDX-License-Identifier: Apache-2.0
"""Asks TensorFlow's sharding policies and DeviceSpec; a process of its own, for test_policies.py.

Reads one JSON document from standard input and writes one to standard output. TensorFlow opens
shards without end where the smallest slab is larger than an empty shard. It says so when it finds
no cut in an empty shard: the next shard is as empty and the tensor is the same.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import values

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf  # noqa: E402
from absl import logging  # noqa: E402
from tensorflow.python.checkpoint.sharding import sharding_policies  # noqa: E402
from tensorflow.python.framework import device as device_lib  # noqa: E402
from tensorflow.python.training.saving import saveable_object_util  # noqa: E402

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


class EndlessError(Exception):
    """TensorFlow would not come back from this."""


class Watched(sharding_policies.MaxShardSizePolicy):
    """TensorFlow's policy, stopped where it would not end."""

    class MaxShardSizePartitioner(sharding_policies.MaxShardSizePolicy.MaxShardSizePartitioner):
        """TensorFlow's own, looked at."""

        def _get_next_partition(self) -> tuple[int, float]:
            axis, size = super()._get_next_partition()
            if size == 0 and self._shard_size_remaining == self.max_shard_size:
                raise EndlessError
            return axis, size


def shardable(case: dict[str, Any]) -> Any:
    value = values.Value(
        case["dtype"],
        tuple(case["shape"]),
        tuple(text.encode() for text in case["strings"])
        if case["dtype"] == values.STRING
        else bytes.fromhex(case["content"]),
    )
    with tf.device(DEVICE):
        dtype = tf.dtypes.as_dtype(value.code)
        if value.code == values.STRING:
            tensor = tf.reshape(tf.constant(list(value.content), dtype), value.shape)
        else:
            tensor = tf.constant(value.array(), dtype)
    return tf.train.experimental.ShardableTensor(
        _tensor_save_spec=None,
        tensor=tensor,
        dtype=tensor.dtype,
        device=device_lib.DeviceSpec.from_string(DEVICE),
        name=case["key"],
        shape=tensor.shape,
        slice_spec=case["spec"],
        checkpoint_key=case["key"],
        trackable=None,
    )


def described(shards: Any) -> list[Any]:
    """As `described` in test_policies.py."""
    return [
        [
            [key, spec, list(tensor.shape), digest(tensor)]
            for key, parts in shard.items()
            for spec, tensor in parts.items()
        ]
        for shard in shards
    ]


def digest(tensor: tf.Tensor) -> str:
    array, code = tensor.numpy(), tensor.dtype.as_datatype_enum
    if code == values.STRING and isinstance(array, bytes):
        return values.Value(code, (), (array,)).digest()
    return values.from_array(code, array).digest()


def partition(case: dict[str, Any]) -> dict[str, Any]:
    tensors = [shardable(tensor) for tensor in case["tensors"]]
    answer: dict[str, Any] = {"task": described(sharding_policies.ShardByTaskPolicy()(tensors))}
    try:
        answer["size"] = described(Watched(case["max_shard_size"])(tensors))
    except EndlessError:
        answer["endless"] = True
    except Exception as error:  # its answer, whatever it is
        answer["error"] = type(error).__name__
    return answer


def attempted(function: Callable[[], str]) -> str | None:
    try:
        return function()
    except ValueError:
        return None


def device(name: str) -> list[str | None]:
    return [
        attempted(lambda: device_lib.DeviceSpec.from_string(name).to_string()),
        attempted(lambda: saveable_object_util.set_cpu0(name)),
    ]


def main() -> None:
    logging.set_verbosity(logging.ERROR)
    request = json.load(sys.stdin)
    json.dump(
        {
            "partitions": [partition(case) for case in request["partitions"]],
            "devices": [device(name) for name in request["devices"]],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
