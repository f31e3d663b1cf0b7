# SPDX-License-Identifier: Apache-2.0
"""docs/coming-from-tensorflow.md: the rows about devices, processes and training jobs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.page import CPU, A, Checks, V, fails, options, quoted, there
from support.team import run_team

import ckptfmt
from ckptfmt import Checkpoint, Saver, SaveSpec
from ckptfmt.sharded import Layout, Mesh, SingleProcess
from ckptfmt.tf import TrainingState

CHECKS = Checks(
    "Sharding callbacks", "Meshes and many processes", "Parallel variables", "Training state"
)
row = CHECKS.row


# ---- sharding callbacks --------------------------------------------------------------------------


class Policy(ckptfmt.tf.ShardingCallback):
    description = "of the test"

    def __init__(self, function: Callable[[list[Any]], list[Any]]) -> None:
        self.function = function

    def __call__(self, tensors: Any) -> list[Any]:
        return self.function(list(tensors))


def _saved_by(function: Callable[[list[Any]], list[Any]]) -> dict[str, Any]:
    saver = Saver({None: {"x": V, "y": V * 2}})
    saver.save("ck", options(sharding_callback=Policy(function)))
    return ckptfmt.load("ck")


def _shardable(array: Any, key: str = "x", device: str = CPU) -> ckptfmt.tf.ShardableTensor:
    array = np.asarray(array)
    return ckptfmt.tf.ShardableTensor(None, array, array.dtype, device, key, array.shape, "", key)


def _cut(size: int, *arrays: Any) -> list[list[tuple[int, ...]]]:
    tensors = [_shardable(array, f"x{number}") for number, array in enumerate(arrays)]
    shards = ckptfmt.tf.MaxShardSizePolicy(size)(tensors)
    return [[part.shape for parts in shard.values() for part in parts.values()] for shard in shards]


@row("callbacks of TensorFlow's classes")
def _duck() -> None:
    class Theirs:
        """What tests/interop/tf_callbacks.py gives: not a class of ckptfmt."""

        description = "of another class"

        def __call__(self, tensors: Any) -> list[Any]:
            return [{tensor.checkpoint_key: {"": tensor.tensor}} for tensor in tensors]

    theirs: Any = Theirs()
    Saver({None: {"x": V, "y": V * 2}}).save("ck", options(sharding_callback=theirs))
    assert len(there("ck.data-")) == 2


@row("a callback that loses a tensor")
def _loses() -> None:
    error = fails(lambda: _saved_by(lambda _: []), "lost a tensor")
    assert isinstance(error, RuntimeError) and isinstance(error, ValueError)
    assert there() == []


@row("a callback that cuts tensors")
def _cuts() -> None:
    halves = _saved_by(
        lambda tensors: [
            {one.name: {f"2 {at},1": one.tensor[at : at + 1]} for one in tensors} for at in (0, 1)
        ]
    )
    assert halves["x"].tolist() == [1, 2] and halves["y"].tolist() == [2, 4]
    fails(lambda: _saved_by(lambda ts: [{t.name: {"2 0,1": t.tensor[:1]} for t in ts}]))


@row("a callback that exchanges two tensors")
def _exchanges() -> None:
    fails(
        lambda: _saved_by(lambda ts: [{"x": {"": ts[1].tensor}, "y": {"": ts[0].tensor}}]),
        "changed a tensor's values",
    )


@row("arguments of `validate_shards`")
def _validate_shards() -> None:
    validate: Any = ckptfmt.tf.validate_shards
    tensor = _shardable(V)
    sound, lost = [{"x": {"": tensor.tensor}}], [{}]
    policy = Policy(lambda _: [])
    validate(sound, [tensor], "of the test")
    validate(policy, [tensor], sound)
    fails(lambda: validate(lost, [tensor], "of the test"), "of the test", ckptfmt.InvalidError)
    fails(lambda: validate(policy, [tensor], lost), "of the test", ckptfmt.InvalidError)


@row("an empty tensor under MaxShardSizePolicy")
def _empty() -> None:
    assert _cut(16, np.zeros((0, 2), np.float32), V) == [[(0, 2), (2,)]]


@row("strings of rank two under MaxShardSizePolicy")
def _strings() -> None:
    strings = np.array([[b"ab", b"cd"], [b"e", b"f"]], object)
    assert _cut(4, strings) == [[(1, 2)], [(1, 2)]]


@row("a row larger than a shard")
def _long_row() -> None:
    # No row and no column of 3 x 4 fits; what is left of them is cut again.
    assert _cut(8, np.zeros((3, 4), np.float32))[-2:] == [[(3, 1)], [(1, 3)]]


@row("a negative `max_shard_size`, or a fraction")
def _wrong_size() -> None:
    for wrong in (-1, 1.5, "16"):
        fails(lambda wrong=wrong: ckptfmt.tf.MaxShardSizePolicy(wrong))  # type: ignore[misc]


@row("restoring a cut tensor of half precision")
def _half() -> None:
    halves = A.astype(np.float16)
    policy = ckptfmt.tf.MaxShardSizePolicy(8)
    prefix = Checkpoint(x=halves).write("ck", options(sharding_callback=policy, level="v2"))
    read = np.zeros_like(halves)
    Checkpoint(x=read).read(prefix).assert_consumed()
    assert read.tolist() == halves.tolist()
    assert len(there("ck.data-")) == 4


@row("tensors of two tasks for ShardByTaskPolicy")
def _two_tasks() -> None:
    tensors = [_shardable(V, f"x{task}", f"/job:worker/task:{task}") for task in (0, 1)]
    assert len(ckptfmt.tf.ShardByTaskPolicy()(tensors)) == 2


@row("what `max_shard_size` counts")
def _counted() -> None:
    tensors = {f"x{number:03}": np.ones(4, np.float32) for number in range(200)}
    for level, size in (("v2", 1024), ("v2+", 1024)):
        policy = ckptfmt.tf.MaxShardSizePolicy(size)
        Saver({None: tensors}).save(level, options(sharding_callback=policy, level=level))
        sizes = [os.path.getsize(name) for name in there(f"{level}.data-")]
        assert max(sizes) <= size
        assert len(sizes) == {"v2": 4, "v2+": 13}[level]  # 16 bytes each, or 64


@row("the save spec of a ShardableTensor")
def _save_spec() -> None:
    spec = SaveSpec(V, "", "x")
    tensor = ckptfmt.tf.ShardableTensor.from_spec(spec)
    assert tensor is not None and tensor.tensor_save_spec is tensor._tensor_save_spec is spec


@row("ShardableTensors with equal fields")
def _hashes() -> None:
    one, other = _shardable(V), _shardable(V)
    assert hash(one) == hash(other) != hash(_shardable(V, "y"))


@row("`repr` of a ShardableTensor")
def _repr() -> None:
    text = repr(_shardable(V))
    for name in ("tensor_save_spec", "tensor", "dtype", "device", "name", "shape", "slice_spec"):
        assert f"\n  {name}=" in text
    assert "\n  checkpoint_key='x'\n  trackable=None" in text


@row("`validate_shards` of None")
def _validate_none() -> None:
    validate: Any = ckptfmt.tf.validate_shards
    fails(lambda: validate(None, [], "a description"), "'a description' gave a NoneType")


@row("a callback that writes into a tensor's memory")
def _writes() -> None:
    def write(tensors: list[Any]) -> list[Any]:
        assert not tensors[0].tensor.flags.writeable
        tensors[0].tensor.base[...] = 9
        return [{one.name: {"": one.tensor} for one in tensors}]

    x = V.copy()
    saver, policy = Saver({None: {"x": x}}), Policy(write)
    call = functools.partial(saver.save, "ck", options(sharding_callback=policy))
    fails(call, "wrote into the memory of a tensor", ckptfmt.errors.ShardingError)
    assert there() == []


# ---- meshes --------------------------------------------------------------------------------------

ROWS_OF_4 = Layout(["x", None], Mesh({"x": 4}))


def _parts(array: Any, layout: Layout = ROWS_OF_4) -> dict[str, Any]:
    return {
        device: np.array(array[layout.slice_of(array.shape, device).slices])
        for device in layout.mesh.devices
    }


def _same(parts: dict[str, Any], array: Any, layout: Layout = ROWS_OF_4) -> None:
    for device, part in _parts(array, layout).items():
        assert parts[device].tolist() == part.tolist()


def _mesh(w: Any, layout: Any = ROWS_OF_4, **objects: Any) -> Checkpoint:
    coordinator = ckptfmt.sharded.SingleProcess()
    return Checkpoint(coordinator=coordinator, layouts={"w": layout}, w=w, **objects)


@row("layouts")
def _layouts() -> None:
    prefix = _mesh(_parts(A)).write("ck", options())
    assert len(ckptfmt.open(prefix)["w/.ATTRIBUTES/VARIABLE_VALUE"].slices) == 4
    fails(lambda: Checkpoint(layouts={"w": ROWS_OF_4}, w=A), "coordinator")


@row("texts of layouts")
def _texts() -> None:
    text = ROWS_OF_4.to_string()
    assert Layout.from_string(text) == ROWS_OF_4
    for given in (ROWS_OF_4, text):
        _mesh(_parts(A), given).write("ck", options())
        stored = ckptfmt.open("ck")["w/.ATTRIBUTES/VARIABLE_VALUE"]
        assert len(stored.slices) == 4
        ckptfmt.sharded.save(
            "named", {"w": _parts(A)}, {"w": given}, ckptfmt.sharded.SingleProcess()
        )
    fails(lambda: Layout.from_string("sharding_specs:x, mesh:|x=2|0,1|0|a"), "1 of 2 devices")


@row("`assert_consumed` of a checkpoint without `save_counter`")
def _no_save_counter() -> None:
    def rooted() -> Checkpoint:
        root, layouts = {"w": _parts(A)}, {"w": ROWS_OF_4}
        return Checkpoint(root, coordinator=ckptfmt.sharded.SingleProcess(), layouts=layouts)

    prefix = rooted().write("ck", options())
    rooted().restore(prefix).assert_consumed()
    assert "save_counter/.ATTRIBUTES/VARIABLE_VALUE" in ckptfmt.open(rooted().save("m", options()))
    for other in (_mesh(_parts(A)), Checkpoint(w=A.copy()), Checkpoint({"w": A.copy()})):
        fails(other.restore(prefix).assert_consumed, "save_counter", ckptfmt.errors.MatchError)


@row("restoring onto another mesh")
def _reshard() -> None:
    columns = Layout([None, "y"], Mesh({"y": 2}))
    parts = _parts(A * 0, columns)
    _mesh(parts, columns).restore(_mesh(_parts(A)).save("ck", options())).assert_consumed()
    _same(parts, A, columns)


@row("dimensions that a mesh does not divide")
def _uneven() -> None:
    prefix = _mesh(_parts(A[:6])).write("ck", options())
    stored = ckptfmt.open(prefix)["w/.ATTRIBUTES/VARIABLE_VALUE"]
    assert stored.read().tolist() == A[:6].tolist()
    assert [part.shape for part in stored.slices] == [(2, 2)] * 3


@row("replicas that differ")
def _replicas() -> None:
    layout = Layout([], Mesh({"x": 4}))
    parts = {device: np.float32(number) for number, device in enumerate(layout.mesh.devices)}
    fails(
        lambda: ckptfmt.sharded.save(
            "ck", {"t": parts}, {"t": layout}, ckptfmt.sharded.SingleProcess()
        ),
        f"'t': {layout.mesh.devices[0]} and {layout.mesh.devices[1]}",
    )
    assert there() == []
    rows = Layout(["x"], Mesh({"x": 2, "y": 2}))

    def save(size: int, check: bool) -> list[Any]:
        """The outcomes of four processes, of which the second has another element."""

        def one(member: Any) -> None:
            block = np.zeros(size, np.uint8)
            block[0] = member.rank == 1
            device = rows.mesh.devices[member.rank]
            given = {"t": {device: block}}, {"t": rows}, member
            ckptfmt.sharded.save("ck", *given, durability="none", check_replicas=check)

        return run_team(4, one)

    first, second, *_ = rows.mesh.devices
    for size, check in ((1 << 20, False), ((1 << 20) + 1, True)):
        for error in save(size, check):
            assert f"'t': {first} (process 0) and {second} (process 1)" in str(error)
    assert there() == []
    assert save((1 << 20) + 1, False) == [None] * 4


@row("a tensor on a mesh without a layout")
def _no_layout() -> None:
    checkpoint = Checkpoint(w=_parts(A), coordinator=ckptfmt.sharded.SingleProcess())
    error = fails(lambda: checkpoint.write("ck", options()), "'w'")
    assert "layouts=" in str(error)
    assert there() == []


@row("a checkpoint on a mesh inside another one")
def _inside() -> None:
    error = fails(lambda: Checkpoint(inner=_mesh(_parts(A))), "'inner'")
    assert "coordinator= and layouts=" in str(error)


@row("registered savers on a mesh")
def _registered_on_a_mesh() -> None:
    class Special:
        pass

    calls: list[str] = []
    ckptfmt.tf.register_checkpoint_saver(
        package="page",
        name="Special",
        predicate=lambda one: isinstance(one, Special),
        save_fn=lambda trackables, file_prefix: calls.append("save"),
        restore_fn=lambda trackables, merged_prefix: calls.append("restore"),
    )
    try:
        checkpoint = _mesh(_parts(A), special=Special())
        checkpoint.restore(checkpoint.save("ck", options())).assert_consumed()
    finally:
        ckptfmt.tf.unregister_checkpoint_saver("page.Special")
    assert calls == ["save", "restore"]


@row("a checkpoint without an object graph on a mesh")
def _by_names() -> None:
    ckptfmt.save("ck", {"w": A}, durability="none")
    parts = _parts(A * 0)
    _mesh(parts).restore("ck").assert_consumed()
    _same(parts, A)


@row("data files")
def _data_files() -> None:
    _mesh(_parts(A)).write("ck", options())
    assert len(there("ck.data-")) == 1
    _mesh(_parts(A)).write("cut", options(sharding_callback=ckptfmt.tf.BalancedPolicy(3)))
    assert len(there("cut.data-")) >= 3


@row("a wrong shape on a mesh")
def _wrong_shape_on_a_mesh() -> None:
    prefix = _mesh(_parts(A), a=V).write("ck", options())
    a = np.zeros(2, np.float32)
    fails(lambda: _mesh(_parts(A[:4]), a=a).read(prefix), "object at 'w'")
    assert a.tolist() == [0, 0]


@row("`io_device` on a mesh")
def _io_device_on_a_mesh() -> None:
    with_device = options(experimental_io_device="/job:localhost")
    checkpoint = _mesh(_parts(A))
    prefix = checkpoint.write("ck", options())
    for call in (checkpoint.write, checkpoint.read):
        error = fails(functools.partial(call, prefix, with_device), "io_device")
        assert isinstance(error, ValueError)


# ---- parallel variables --------------------------------------------------------------------------


def _parallel(*values: Any) -> ckptfmt.tf.ParallelVariable:
    return ckptfmt.tf.ParallelVariable([np.array(value, np.float32) for value in values])


def _components(variable: ckptfmt.tf.ParallelVariable) -> list[Any]:
    return [component.tolist() for component in variable.components]


@row("keys of components")
def _component_keys() -> None:
    Checkpoint(v=_parallel([1], [2])).write("ck", options())
    names = [name for name in ckptfmt.open("ck") if name.startswith("v/")]
    endings = [*quoted(CHECKS.rows["keys of components"].second)]
    assert names == [f"v/.ATTRIBUTES/{ending}" for ending in endings]


@row("an ordinary checkpoint into a parallel variable")
def _ordinary() -> None:
    prefix = Checkpoint(v=V).write("ck", options())
    variable = _parallel([0, 0], [7, 7])
    Checkpoint(v=variable).read(prefix).assert_consumed()
    assert _components(variable) == [[1, 2], [1, 2]]


@row("a parallel checkpoint into an ordinary variable")
def _into_ordinary() -> None:
    prefix = Checkpoint(v=_parallel([1, 2], [3, 4])).write("ck", options())
    ordinary = np.zeros(2, np.float32)
    Checkpoint(v=ordinary).read(prefix).assert_consumed()
    assert ordinary.tolist() == [1, 2]


@row("a variable created inside `independent_buffers`")
def _created_inside() -> None:
    with ckptfmt.tf.independent_buffers(["/device:GPU:0", "/device:GPU:1"]) as devices:
        variable = ckptfmt.tf.ParallelVariable(V)
    assert _components(variable) == [[1, 2], [1, 2]]
    assert variable.devices == devices


@row("a device scope inside `independent_buffers`")
def _inner_scope() -> None:
    tasks = [f"/job:worker/task:{task}" for task in (0, 1)]
    with ckptfmt.tf.independent_buffers(tasks), ckptfmt.tf.independent_buffers(["/device:GPU:0"]):
        devices = ckptfmt.tf.ParallelVariable(V).devices
    assert [device.lower() for device in devices] == [f"{task}/device:gpu:0" for task in tasks]


@row("assigning")
def _assign() -> None:
    variable = _parallel([1, 2], [3, 4])
    variable.assign(V * 3)
    assert _components(variable) == [[3, 6], [3, 6]]
    for value, expected in ((7, [7, 7]), (np.float64(1.5), [1.5, 1.5]), ([[1, 2]][0], [1, 2])):
        variable.assign(value)
        assert _components(variable) == [expected] * 2
    fails(lambda: variable.assign(np.zeros(3)), "does not fit a component")


@row("arithmetic, indexing, `name` and `numpy()` of a parallel variable")
def _not_a_variable() -> None:
    variable: Any = _parallel([1, 2])
    for name in ("assign_add", "__add__", "__getitem__", "name", "numpy"):
        assert not hasattr(variable, name)


@row("the components")
def _kinds_of_components() -> None:
    view: Any = memoryview(V)
    fails(lambda: ckptfmt.tf.ParallelVariable([view]), "a numpy array")


@row("a parallel variable as an array")
def _as_array() -> None:
    variable = _parallel([1, 2], [3, 4])
    assert np.asarray(variable).tolist() == [1, 2]
    assert (variable.shape, variable.dtype) == ((2,), np.float32)


@row("a component of another shape")
def _component_shape() -> None:
    prefix = Checkpoint(v=_parallel([1, 2], [3, 4])).write("ck", options())
    fails(lambda: Checkpoint(v=_parallel([0], [0])).read(prefix))


@row("components beyond those of the variable")
def _more_components() -> None:
    prefix = Checkpoint(v=_parallel([1], [2], [3])).write("ck", options())
    variable = _parallel([0], [0])
    status = Checkpoint(v=variable).read(prefix).expect_partial()
    assert _components(variable) == [[1], [2]]
    fails(status.assert_consumed, "parallel_component_2", ckptfmt.errors.MatchError)


# ---- training state ------------------------------------------------------------------------------


def _state(**more: Any) -> TrainingState:
    return TrainingState({"w": np.zeros(2, np.float32)}, "backups", options=options(), **more)


@row("the result of `back_up`")
def _back_up() -> None:
    assert _state().back_up(0) == os.path.join("backups", "chief", "ckpt-1")
    assert _state(task_id=1).back_up(0) is None


@row("the result of `restore`")
def _restore() -> None:
    assert _state().restore() is False
    _state().back_up(0)
    assert _state().restore() is True


@row("a backup within an epoch")
def _within() -> None:
    _state().back_up(3, 5)
    state = _state()
    state.restore()
    assert state.maybe_load_initial_counters_from_ckpt(10, 0, "train") == (3, 6)
    assert state.maybe_load_initial_epoch_from_ckpt(0, "train") == 3


@row("which worker this is")
def _which() -> None:
    assert _state(coordinator=ckptfmt.sharded.SingleProcess()).back_up(0) is not None
    assert _state(task_id=1).back_up(0) is None
    assert _state(task_id=1, is_chief=True).back_up(0) is not None


@row("a model on a mesh")
def _on_a_mesh() -> None:
    def state(model: Any, member: Any = SingleProcess()) -> TrainingState:  # noqa: B008
        rows = {"w": ROWS_OF_4}
        return TrainingState(model, "b", coordinator=member, layouts=rows, options=options())

    state({"w": _parts(A)}).back_up(0)
    assert ckptfmt.load("b/chief/ckpt-1")["model/w/.ATTRIBUTES/VARIABLE_VALUE"].tolist() == (
        A.tolist()
    )

    def restore(member: Any) -> None:
        devices = ROWS_OF_4.mesh.local_devices(member.rank, 2)
        every = _parts(A)
        found = {device: every[device] * 0 for device in devices}
        assert state({"w": found}, member).restore()
        assert all(found[device].tolist() == every[device].tolist() for device in devices)

    assert run_team(2, restore) == [None, None]


@row("a backup that lacks an object of the model")
def _lacks() -> None:
    _state().back_up(0)
    more = {"w": np.zeros(2, np.float32), "more": V}
    state = TrainingState(more, "backups", options=options())
    fails(state.restore, "'model/more'", ckptfmt.errors.MatchError)


@row("a mode that is not a str")
def _mode() -> None:
    state = _state()
    state.back_up(3)
    assert state.maybe_load_initial_epoch_from_ckpt(7, None) == 7
    wrong: Any = 1
    fails(lambda: state.maybe_load_initial_epoch_from_ckpt(7, wrong), "mode")


@row("an epoch that is negative or a fraction")
def _wrong_epoch() -> None:
    for wrong in (-1, 1.5):
        fails(lambda wrong=wrong: _state().back_up(wrong))  # type: ignore[misc]
    assert there() == []


@row("what `delete_backup` removes")
def _delete_backup() -> None:
    state = _state()
    state.back_up(0)
    Path("backups/chief/mine").write_text("")
    state.delete_backup()
    assert os.listdir("backups/chief") == ["mine"]
    os.unlink("backups/chief/mine")
    state.back_up(1)
    state.delete_backup()
    assert os.listdir("backups") == []


@row("a `back_up` that fails")
def _failed_back_up() -> None:
    state = _state()
    state.back_up(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state.write_checkpoint_manager, "save", lambda **_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            state.back_up(5)
    assert state.maybe_load_initial_epoch_from_ckpt(0, "train") == 2


@row("a damaged backup")
def _damaged_backup() -> None:
    _state().back_up(0)
    data = Path("backups/chief/ckpt-1.data-00000-of-00001")
    data.write_bytes(b"?" * data.stat().st_size)
    with pytest.warns(ckptfmt.CkptfmtWarning, match="not restored"):
        fails(lambda: _state().restore(), "", ckptfmt.CorruptError)


@row("a state file that names a missing backup")
def _missing_backup() -> None:
    _state().back_up(0)
    for name in os.listdir("backups/chief"):
        if name != "checkpoint":
            os.unlink(f"backups/chief/{name}")
    with pytest.warns(ckptfmt.CkptfmtWarning, match="no checkpoint is complete"):
        assert _state().restore() is False


@row("the directory of another worker")
def _worker_directory() -> None:
    state = _state(task_id=1)
    assert not os.path.exists("backups/workertemp_1")
    assert state.write_checkpoint_manager.directory == os.path.join("backups", "workertemp_1")
    state.back_up(0)
    assert not os.path.exists("backups/workertemp_1")


# ---- all of them ---------------------------------------------------------------------------------


def test_every_row_is_checked() -> None:
    assert sorted(CHECKS) == sorted(CHECKS.rows)


@pytest.mark.parametrize("title", CHECKS)
def test_rows(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CHECKS[title]()
