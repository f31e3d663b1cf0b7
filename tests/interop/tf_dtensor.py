# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's DTensorCheckpoint on a mesh of four CPU devices, and the legacy WorkerTrainingState
of a model there, told what to do by test_dtensor.py and test_training_state.py: a line of JSON in,
one out."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow.experimental import dtensor  # noqa: E402
from tensorflow.python.keras.distribute import worker_training_state  # noqa: E402

import ckptfmt  # noqa: E402

DEVICES = 4
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * DEVICES
)
MESH = dtensor.create_mesh([("x", DEVICES)], devices=[f"CPU:{i}" for i in range(DEVICES)])


def variable(value: np.ndarray, specs: list[str | None]) -> dtensor.DVariable:
    layout = dtensor.Layout([spec or dtensor.UNSHARDED for spec in specs], MESH)
    whole = dtensor.Layout.replicated(MESH, value.ndim)
    return dtensor.DVariable(dtensor.relayout(dtensor.copy_to_mesh(value, whole), layout))


def whole(found: dtensor.DVariable) -> list[object]:
    replicated = dtensor.Layout.replicated(MESH, len(found.shape))
    value = dtensor.relayout(found.read_value(), replicated)
    return np.asarray(dtensor.unpack(value)[0]).tolist()


class Model(tf.Module):
    """What WorkerTrainingState asks of a Keras model, with its variables on the mesh."""

    def __init__(self, kernel: dtensor.DVariable, bias: dtensor.DVariable) -> None:
        super().__init__()
        self.kernel, self.bias = kernel, bias
        extended = SimpleNamespace(
            should_checkpoint=True, _in_multi_worker_mode=lambda: False, _task_id=0
        )
        self.distribute_strategy = self._no_dependency(SimpleNamespace(extended=extended))


class Worker:
    """A model on the mesh, as it was made last."""

    epoch = None

    def make(self, specs: list[str | None], factor: float) -> None:
        self.kernel = variable(np.arange(96.0).reshape(8, 12) * factor, specs)
        self.bias = variable(np.arange(12.0) * factor, [None])
        model = tf.train.Checkpoint(kernel=self.kernel, bias=self.bias)
        self.checkpoint = dtensor.DTensorCheckpoint(mesh=MESH, model=model)

    def make_state(self, directory: str, specs: list[str | None], factor: float) -> None:
        self.make(specs, factor)
        model = Model(self.kernel, self.bias)
        self.state = worker_training_state.WorkerTrainingState(model, directory)

    def back_up(self, epoch: int) -> None:
        self.state.back_up(epoch)

    def restore_state(self) -> None:
        self.state.restore()
        self.epoch = int(self.state.maybe_load_initial_epoch_from_ckpt(100, "train"))

    def save(self, prefix: str) -> None:
        self.path = self.checkpoint.save(prefix)

    def restore(self, path: str) -> None:
        self.checkpoint.restore(path).assert_consumed()

    def layouts(self, prefix: str) -> None:
        """TensorFlow's layouts are taken where ckptfmt's are, and have the same text."""
        rows = dtensor.Layout(["x", dtensor.UNSHARDED], MESH)
        for theirs in (rows, dtensor.Layout.replicated(MESH, rank=0)):
            ours = ckptfmt.sharded.Layout.of(theirs)
            assert ours.to_string() == theirs.to_string()
            assert dtensor.Layout.from_string(ours.to_string()) == theirs
            assert ckptfmt.sharded.Layout.from_string(theirs.to_string()) == ours
            assert ckptfmt.sharded.Mesh.of(MESH).devices == tuple(MESH.local_devices())
        value = np.arange(96.0).reshape(8, 12)
        blocks = dict(zip(MESH.local_devices(), np.split(value, DEVICES), strict=True))
        (_, device, *_), one = blocks, ckptfmt.sharded.SingleProcess()
        spec = ckptfmt.tf.DSaveSpec(blocks[device], "", "w", value.shape, rows, device=device)
        assert spec.slice_spec == "8 12 2,2:-"
        ckptfmt.sharded.save(prefix, {"w": blocks}, {"w": rows}, one)
        assert tf.train.load_variable(prefix, "w").tolist() == value.tolist()
        # DTensorCheckpoint of a root stores no save_counter; ours then asks for none.
        root = tf.Module()
        root.w = variable(value, ["x", None])
        saved = dtensor.DTensorCheckpoint(MESH, root=root).save(f"{prefix}-root")
        zeros = {name: np.zeros_like(block) for name, block in blocks.items()}
        ours = ckptfmt.Checkpoint({"w": zeros}, coordinator=one, layouts={"w": rows})
        ours.restore(saved).assert_consumed()
        assert all((zeros[name] == block).all() for name, block in blocks.items())

    def answer(self) -> dict[str, object]:
        return {
            "path": getattr(self, "path", None),
            "epoch": self.epoch,
            "kernel": whole(self.kernel),
            "bias": whole(self.bias),
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
