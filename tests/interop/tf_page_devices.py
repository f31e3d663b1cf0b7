# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's side of docs/coming-from-tensorflow.md, for test_page.py: meshes, training state."""

from __future__ import annotations

import functools
import os
import sys
from types import SimpleNamespace
from typing import Any

from tf_rows import fails, row, run

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from absl import logging  # noqa: E402
from tensorflow.experimental import dtensor  # noqa: E402
from tensorflow.python.keras.distribute import worker_training_state  # noqa: E402
from tensorflow.python.saved_model import registration  # noqa: E402

import ckptfmt  # noqa: E402

errors = tf.errors


# ---- meshes --------------------------------------------------------------------------------------


@functools.cache
def rows_of_four() -> Any:
    mesh = dtensor.create_mesh([("x", 4)], device_type="CPU")
    return dtensor.Layout(["x", dtensor.UNSHARDED], mesh)


def on_mesh(value: Any, layout: Any) -> Any:
    rank = len(value.shape)
    whole = dtensor.copy_to_mesh(value, dtensor.Layout.replicated(layout.mesh, rank=rank))
    return dtensor.DVariable(dtensor.relayout(whole, layout))


def matrix(rows: int = 8) -> Any:
    return tf.reshape(tf.range(2.0 * rows), (rows, 2))


def meshed(value: Any, layout: Any, **objects: Any) -> tuple[Any, Any]:
    made = on_mesh(value, layout)
    return dtensor.DTensorCheckpoint(layout.mesh, w=made, **objects), made


def parts(made: Any) -> list[Any]:
    return [part.numpy().tolist() for part in dtensor.unpack(made.read_value())]


@row("layouts")
def _layouts() -> None:
    rows = rows_of_four()
    checkpoint, made = meshed(matrix(), rows)
    assert made.layout == rows
    assert tf.train.list_variables(checkpoint.write("layouts"))[1] == (
        "w/.ATTRIBUTES/VARIABLE_VALUE",
        [8, 2],
    )


@row("texts of layouts")
def _texts() -> None:
    rows = rows_of_four()
    scalar = dtensor.Layout.replicated(rows.mesh, rank=0)
    for theirs in (rows, scalar):
        ours = ckptfmt.sharded.Layout.of(theirs)
        assert ours.to_string() == theirs.to_string()
        assert dtensor.Layout.from_string(ours.to_string()) == theirs
        assert ckptfmt.sharded.Layout.from_string(theirs.to_string()) == ours
        assert ckptfmt.sharded.Mesh.of(theirs.mesh).devices == tuple(theirs.mesh.local_devices())
    array = matrix().numpy()
    blocks = {
        device: array[2 * at : 2 * at + 2] for at, device in enumerate(rows.mesh.local_devices())
    }
    one = ckptfmt.sharded.SingleProcess()
    device = rows.mesh.local_devices()[1]
    spec = ckptfmt.tf.DSaveSpec(blocks[device], "", "w", (8, 2), rows, device=device)
    assert spec.slice_spec == "8 2 2,2:-"
    ckptfmt.Checkpoint(w=blocks, coordinator=one, layouts={"w": rows}).write("ours")
    assert tf.train.load_variable("ours", "w/.ATTRIBUTES/VARIABLE_VALUE").tolist() == array.tolist()
    ckptfmt.sharded.save("named", {"w": blocks}, {"w": rows}, one)
    checkpoint, made = meshed(matrix() * 0, rows)
    checkpoint.read("ours").assert_consumed()
    assert parts(made) == [block.tolist() for block in blocks.values()]


@row("`assert_consumed` of a checkpoint without `save_counter`")
def _no_save_counter() -> None:
    prefix = meshed(matrix(), rows_of_four())[0].write("uncounted")
    model = tf.Module()
    model.w = on_mesh(matrix(), rows_of_four())
    rooted = dtensor.DTensorCheckpoint(rows_of_four().mesh, root=model)
    saved = rooted.save("rooted")
    assert not any("save_counter" in name for name, _ in tf.train.list_variables(saved))
    rooted.restore(saved).assert_consumed()
    plain = tf.train.Checkpoint(w=tf.Variable(matrix()))
    for other in (plain, meshed(matrix(), rows_of_four())[0]):
        fails(AssertionError, other.restore(prefix).assert_consumed)
    blocks = {
        device: np.zeros((2, 2), np.float32) for device in rows_of_four().mesh.local_devices()
    }
    ours = ckptfmt.Checkpoint(
        {"w": blocks}, coordinator=ckptfmt.sharded.SingleProcess(), layouts={"w": rows_of_four()}
    )
    ours.restore(saved).assert_consumed()


@row("restoring onto another mesh")
def _reshard() -> None:
    prefix = meshed(matrix(), rows_of_four())[0].write("reshard")
    mesh = dtensor.create_mesh([("x", 2), ("y", 2)], device_type="CPU")
    checkpoint, made = meshed(matrix() * 0, dtensor.Layout([dtensor.UNSHARDED, "y"], mesh))
    checkpoint.read(prefix).assert_consumed()
    assert parts(made)[1] == matrix()[:, 1:].numpy().tolist()


@row("replicas that differ")
def _replicas() -> None:
    mesh = rows_of_four().mesh
    packed = dtensor.pack(
        [tf.constant(float(number)) for number in range(4)], dtensor.Layout.replicated(mesh, rank=0)
    )
    dtensor.name_based_save(mesh, "replicas", {"t": packed})
    assert tf.train.load_variable("replicas", "t") == 0


@row("a tensor on a mesh without a layout")
def _no_layout() -> None:
    mesh = rows_of_four().mesh
    assert on_mesh(matrix(), dtensor.Layout.replicated(mesh, rank=2)).layout.mesh == mesh


@row("a checkpoint on a mesh inside another one")
def _inside() -> None:
    inner, made = meshed(matrix(), rows_of_four())
    outer = dtensor.DTensorCheckpoint(made.layout.mesh, inner=inner)
    prefix = outer.write("inside")
    assert tf.train.load_variable(prefix, "inner/w/.ATTRIBUTES/VARIABLE_VALUE").shape == (8, 2)


@row("registered savers on a mesh")
def _registered_on_a_mesh() -> None:
    class Special(tf.Module):
        pass

    calls: list[str] = []
    registration.register_checkpoint_saver(
        package="page",
        name="Special",
        predicate=lambda one: isinstance(one, Special),
        save_fn=lambda trackables, file_prefix: calls.append("save"),
        restore_fn=lambda trackables, merged_prefix: calls.append("restore"),
    )
    checkpoint, _ = meshed(matrix(), rows_of_four(), special=Special())
    checkpoint.read(checkpoint.write("special"))
    assert calls == []


@row("a checkpoint without an object graph on a mesh")
def _by_names() -> None:
    tf.raw_ops.SaveV2(prefix="plain", tensor_names=["w"], shape_and_slices=[""], tensors=[matrix()])
    fails(AttributeError, lambda: meshed(matrix(), rows_of_four())[0].restore("plain"))


@row("data files")
def _data_files() -> None:
    meshed(matrix(), rows_of_four())[0].write("files")
    assert sum(name.startswith("files.data-") for name in os.listdir()) == 4


@row("`io_device` on a mesh")
def _io_device_on_a_mesh() -> None:
    checkpoint, _ = meshed(matrix(), rows_of_four())
    options = tf.train.CheckpointOptions(experimental_io_device="/job:localhost")
    prefix = checkpoint.write("place")
    fails(ValueError, lambda: checkpoint.write(prefix, options))
    fails(ValueError, lambda: checkpoint.read(prefix, options))


# ---- training state ------------------------------------------------------------------------------


def state(place: str, task: int = 0, **more: Any) -> Any:
    model = tf.Module()
    model.w = tf.Variable([0.0, 0.0])
    for name, value in more.items():
        setattr(model, name, value)
    extended = SimpleNamespace(
        should_checkpoint=task == 0, _in_multi_worker_mode=lambda: True, _task_id=task
    )
    model.distribute_strategy = model._no_dependency(SimpleNamespace(extended=extended))
    return worker_training_state.WorkerTrainingState(model, place)


def epoch_of(one: Any) -> int:
    return int(one.maybe_load_initial_epoch_from_ckpt(0, "train"))


@row("the result of `back_up`")
def _back_up() -> None:
    assert state("t1").back_up(0) is None


@row("the result of `restore`")
def _restore_result() -> None:
    state("t2").back_up(3)
    one = state("t2")
    assert one.restore() is None and epoch_of(one) == 4


@row("a backup within an epoch")
def _within() -> None:
    fails(TypeError, lambda: state("t3").back_up(3, 5))


@row("which worker this is")
def _which() -> None:
    state("t10").back_up(0)
    state("t10", 1).back_up(0)
    assert os.listdir("t10") == ["chief"]


@row("a model on a mesh")
def _on_a_mesh() -> None:
    state("t11", x=on_mesh(matrix(), rows_of_four())).back_up(0)
    name = "model/x/.ATTRIBUTES/VARIABLE_VALUE"
    assert tf.train.load_variable("t11/chief", name).tolist() == matrix().numpy().tolist()
    made = on_mesh(matrix() * 0, rows_of_four())
    state("t11", x=made).restore()
    assert parts(made)[1] == matrix()[2:4].numpy().tolist()


@row("a backup that lacks an object of the model")
def _lacks() -> None:
    state("t12").back_up(3)
    more = tf.Variable([5.0])
    one = state("t12", more=more)
    one.restore()
    assert more.numpy() == [5.0] and epoch_of(one) == 4


@row("a mode that is not a str")
def _mode() -> None:
    one = state("t13")
    one.back_up(3)
    for mode in (None, 1):
        assert int(one.maybe_load_initial_epoch_from_ckpt(7, mode)) == 7


@row("an epoch that is negative or a fraction")
def _wrong_epoch() -> None:
    one = state("t4")
    one.back_up(1.5)
    assert epoch_of(one) == 2
    one.back_up(-1)
    assert epoch_of(one) == 0


@row("what `delete_backup` removes")
def _delete_backup() -> None:
    one = state("t5")
    one.back_up(0)
    with open("t5/chief/mine", "w"):
        pass
    one.delete_backup()
    assert os.listdir("t5") == []


@row("a `back_up` that fails")
def _failed_back_up() -> None:
    one = state("t6")
    one.write_checkpoint_manager.save = lambda: 1 / 0
    fails(ZeroDivisionError, lambda: one.back_up(5))
    assert epoch_of(one) == 6


@row("a damaged backup")
def _damaged_backup() -> None:
    state("t7").back_up(0)
    name = "t7/chief/ckpt-1.data-00000-of-00001"
    size = os.path.getsize(name)
    with open(name, "wb") as file:
        file.write(b"?" * size)
    fails(errors.OpError, lambda: state("t7").restore())


@row("a state file that names a missing backup")
def _missing_backup() -> None:
    state("t8").back_up(0)
    for name in os.listdir("t8/chief"):
        if name != "checkpoint":
            os.unlink(f"t8/chief/{name}")
    fails(errors.NotFoundError, lambda: state("t8").restore())


@row("the directory of another worker")
def _worker_directory() -> None:
    state("t9", 1)
    assert os.listdir("t9") == ["workertemp_1"]


# These leave operations of the process in a bad state.


@row("dimensions that a mesh does not divide")
def _uneven() -> None:
    fails(errors.OpError, lambda: meshed(matrix(6), rows_of_four()), "divisible")


@row("a wrong shape on a mesh")
def _wrong_shape() -> None:
    prefix = meshed(matrix(), rows_of_four())[0].write("mismatch")
    checkpoint, _ = meshed(matrix(4), rows_of_four())
    fails(errors.OpError, lambda: checkpoint.read(prefix))


if __name__ == "__main__":
    logging.set_verbosity(logging.ERROR)
    (cpu,) = tf.config.list_physical_devices("CPU")
    four = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(cpu, four)
    dtensor.initialize_accelerator_system("CPU")
    run()
