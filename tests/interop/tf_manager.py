# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's CheckpointManager, told what to do by test_manager.py: a line of JSON in, one out.

The clock is that of the requests. Whatever a request does, the answer is what there is afterwards.
"""

from __future__ import annotations

import json
import os
import sys
import time

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf  # noqa: E402


class Session:
    """One checkpoint of one variable, and the manager that the last request made."""

    def __init__(self) -> None:
        self.make_model()

    def make_model(self) -> None:
        self.v = tf.Variable(0.0, dtype=tf.float64)
        self.checkpoint = tf.train.Checkpoint(v=self.v)

    def manager(self, directory: str, **more: object) -> None:
        self.directory = directory
        self.made = tf.train.CheckpointManager(self.checkpoint, directory, **more)

    def save(self, value: float, number: int | None = None) -> None:
        self.v.assign(value)
        self.made.save(checkpoint_number=number)

    def foreign(self, name: str) -> None:
        self.checkpoint.save(os.path.join(self.directory, name))

    def restore(self) -> None:
        self.make_model()
        self.made._checkpoint = self.checkpoint
        self.made.restore_or_initialize()

    def answer(self) -> dict[str, object]:
        state = tf.train.get_checkpoint_state(self.directory)
        return {
            "checkpoints": self.made.checkpoints,
            "latest": self.made.latest_checkpoint,
            "value": float(self.v),
            "counter": int(self.checkpoint.save_counter),
            "state": None
            if state is None
            else [
                state.model_checkpoint_path,
                list(state.all_model_checkpoint_paths),
                list(state.all_model_checkpoint_timestamps),
                state.last_preserved_timestamp,
            ],
        }


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session, now = Session(), [0.0]
    time.time = lambda: now[0]
    for line in sys.stdin:
        request = json.loads(line)
        now[0] = request.pop("now")
        if request.pop("fresh", False):
            session.make_model()
        getattr(session, request.pop("op"))(**request)
        replies.write(json.dumps(session.answer()) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
