# SPDX-License-Identifier: Apache-2.0
"""The legacy Keras WorkerTrainingState, told what to do by test_training_state.py: a line of JSON
in, one out. Whatever a request does, the answer is the model and the saved epoch afterwards.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf  # noqa: E402
from tensorflow.python.keras.distribute import worker_training_state  # noqa: E402


class Model(tf.Module):
    """What the class asks of a Keras model: variables, and the strategy that they lie on."""

    def __init__(self, task: int) -> None:
        super().__init__()
        self.w = tf.Variable([0.0, 0.0, 0.0])
        self.layers = [tf.Variable(0, dtype=tf.int64)]
        # One worker of several, without a cluster.
        extended = SimpleNamespace(
            should_checkpoint=task == 0, _in_multi_worker_mode=lambda: True, _task_id=task
        )
        strategy = SimpleNamespace(extended=extended)
        self.distribute_strategy = self._no_dependency(strategy)


class Worker:
    """One worker, as it was made last."""

    def make(self, directory: str, task: int = 0) -> None:
        self.model = Model(task)
        self.state = worker_training_state.WorkerTrainingState(self.model, directory)

    def back_up(self, value: float, steps: int, epoch: int) -> None:
        self.model.w.assign([value] * 3)
        self.model.layers[0].assign(steps)
        self.state.back_up(epoch)

    def restore(self) -> None:
        self.state.restore()

    def delete_backup(self) -> None:
        self.state.delete_backup()

    def answer(self) -> dict[str, object]:
        return {
            "w": self.model.w.numpy().tolist(),
            "steps": int(self.model.layers[0]),
            "epoch": int(self.state.maybe_load_initial_epoch_from_ckpt(100, "train")),
            "test": int(self.state.maybe_load_initial_epoch_from_ckpt(100, "test")),
            "writes_to": self.state.write_checkpoint_manager.directory,
        }


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        getattr(worker, request.pop("op"))(**request)
        replies.write(json.dumps(worker.answer()) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
