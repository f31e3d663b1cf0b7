# SPDX-License-Identifier: Apache-2.0
"""Asks TensorFlow's checkpoint_management about state files; a process for test_state_file.py.

Reads one JSON document from standard input and writes one to standard output: a list of questions
and the list of their answers. Bytes are hexadecimal. An answer is {"value": ...}, or
{"error": CLASS} where TensorFlow raised.
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
from absl import logging  # noqa: E402
from google.protobuf import text_format  # noqa: E402
from tensorflow.python.checkpoint import checkpoint_management  # noqa: E402
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState  # noqa: E402

v1 = tf.compat.v1.train


def described(state: Any) -> Any:
    """As `described` in test_state_file.py."""
    if state is None:
        return None
    return [
        state.model_checkpoint_path.encode().hex(),
        [path.encode().hex() for path in state.all_model_checkpoint_paths],
        [value.hex() for value in state.all_model_checkpoint_timestamps],
        state.last_preserved_timestamp.hex(),
    ]


def parse(question: dict[str, Any]) -> Any:
    state = CheckpointState()
    # As read_file_to_string gives it.
    text_format.Merge(bytes.fromhex(question["content"]).decode(), state)
    return described(state)


def get(question: dict[str, Any]) -> Any:
    return described(tf.train.get_checkpoint_state(question["directory"]))


def update(question: dict[str, Any]) -> Any:
    """The bytes of the file that is written."""
    os.chdir(question["cwd"])
    checkpoint_management.update_checkpoint_state_internal(
        question["directory"],
        question["newest"],
        question["all"],
        save_relative_paths=question["relative"],
        all_model_checkpoint_timestamps=question["times"],
        last_preserved_timestamp=question["preserved"],
    )
    with open(os.path.join(question["directory"], "checkpoint"), "rb") as stream:
        return stream.read().hex()


def latest(question: dict[str, Any]) -> Any:
    return tf.train.latest_checkpoint(question["directory"])


def exists(question: dict[str, Any]) -> Any:
    return v1.checkpoint_exists(question["prefix"])


def mtimes(question: dict[str, Any]) -> Any:
    return v1.get_checkpoint_mtimes(question["prefixes"])


def remove(question: dict[str, Any]) -> Any:
    v1.remove_checkpoint(question["prefix"], *question["more"])
    return sorted(os.listdir(os.path.dirname(question["prefix"])))


QUESTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    function.__name__: function for function in (parse, get, update, latest, exists, mtimes, remove)
}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": QUESTIONS[question["ask"]](question)}
    except Exception as error:  # its answer, whatever it is
        return {"error": type(error).__name__}


def main() -> None:
    logging.set_verbosity(logging.FATAL)
    json.dump([answer(question) for question in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
