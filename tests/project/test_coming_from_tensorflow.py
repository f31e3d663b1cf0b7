# SPDX-License-Identifier: Apache-2.0
"""docs/coming-from-tensorflow.md: its names, and the rows about errors, paths and saving.

test_coming_from_tensorflow_devices.py has the others, tests/interop TensorFlow's side.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.page import CPU, NAMES, PAGE, Checks, V, fails, options, quoted, sections, there

import ckptfmt
from ckptfmt import Checkpoint, CheckpointManager, Saver, SaveSpec, _core
from ckptfmt.bundle.graph import decode_graph
from ckptfmt.tf import CheckpointOptions

CHECKS = Checks("Errors", "Paths", "Saving and restoring", "Managers")
row, words = CHECKS.row, CHECKS.words
save = functools.partial(ckptfmt.save, durability="none")
merge = ckptfmt.merge_v2_checkpoints
ONE = ckptfmt.sharded.SingleProcess()
CUT = ckptfmt.sharded.Layout(["x"], ckptfmt.sharded.Mesh({"x": 1}))


def _on_mesh(x: Any) -> Checkpoint:
    return Checkpoint(x={CUT.mesh.devices[0]: x}, coordinator=ONE, layouts={"x": CUT})


# ---- the page itself -----------------------------------------------------------------------------


def test_every_section_is_checked() -> None:
    here = Path(__file__).parent
    source = "".join(path.read_text() for path in here.glob("test_coming_from_tensorflow*.py"))
    for name in sections():
        assert f'"{name}"' in source or name == NAMES
    readme = PAGE.parents[1].joinpath("README.md").read_text(encoding="utf-8")
    assert "(docs/coming-from-tensorflow.md)" in readme


@pytest.mark.parametrize(
    "name", [name for names in sections()[NAMES] for name in quoted(names.second)]
)
def test_names(name: str) -> None:
    """The name is there, and takes what is in parentheses: `name` first, `name=` by keyword."""
    path, _, arguments = name.rstrip(")").partition("(")
    found: Any = ckptfmt
    assert path.split(".")[0] == "ckptfmt"
    for part in path.split(".")[1:]:
        assert part in dir(found)
        found = getattr(found, part)
    given = [text.strip() for text in arguments.split(",") if text]
    known = inspect.signature(found).parameters if given else {}
    for text in given:
        assert text.removesuffix("=") in known
    positional = [text for text in given if not text.endswith("=")]
    assert list(known)[: len(positional)] == positional


# ---- errors --------------------------------------------------------------------------------------


@row("a tensor is missing")
def _missing_tensor() -> None:
    save("ck", {"kernel": V})
    text = words("a tensor is missing")
    error: Any
    for call in (
        lambda: ckptfmt.restore_v2("ck", ["kernle"], [""]),
        lambda: ckptfmt.open("ck")["kernle"],
        lambda: ckptfmt.load("ck", ["kernle"]),
        lambda: ckptfmt.tf.load_variable("ck", "kernle"),
        lambda: ckptfmt.tf.load_checkpoint("ck").get_tensor("kernle"),
        lambda: ckptfmt.open("ck").read("kernle"),
        lambda: ckptfmt.sharded.restore("ck", {"kernle": CUT}, ONE),
        lambda: Saver({Holder(): {"kernle": V}}).restore("ck"),
    ):
        error = fails(call, text, ckptfmt.TensorNotFoundError)
        assert isinstance(error, KeyError)
        assert "the nearest are 'kernel'" in str(error)


@row("a checkpoint is missing")
def _missing_checkpoint() -> None:
    save("ck", {"x": V})
    text = words("a checkpoint is missing")
    for call in (
        lambda: ckptfmt.restore_v2("kc", ["x"], [""]),
        lambda: ckptfmt.open("kc"),
        lambda: ckptfmt.load("kc"),
        lambda: ckptfmt.tf.load_checkpoint("kc"),
        lambda: ckptfmt.tf.load_variable("kc", "x"),
        lambda: ckptfmt.tf.list_variables("kc"),
        lambda: Checkpoint(x=V.copy()).restore("kc"),
        lambda: Checkpoint(x=V.copy()).read("kc"),
        lambda: _on_mesh(V.copy()).restore("kc"),
        lambda: ckptfmt.sharded.restore("kc", {"x": CUT}, ONE),
        lambda: Saver({Holder(): {"x": V}}).restore("kc"),
    ):
        error = fails(call, text, ckptfmt.CheckpointNotFoundError)
        assert isinstance(error, FileNotFoundError)
        assert "the directory holds 'ck'" in str(error)


@row("a directory has no state file")
def _no_state_file() -> None:
    text = words("a directory has no state file")
    for call in (
        lambda: ckptfmt.tf.load_checkpoint("."),
        lambda: ckptfmt.tf.list_variables("."),
        lambda: ckptfmt.tf.load_variable(".", "x"),
    ):
        assert isinstance(fails(call, text), ValueError)


@row("the dtype differs")
def _dtype() -> None:
    save("ck", {"x": V})
    text = words("the dtype differs")
    fails(lambda: ckptfmt.restore_v2("ck", ["x"], [""], [np.int32]), text)
    fails(lambda: Saver({Holder(): {"x": np.array([1])}}).restore("ck"), text)
    prefix = Checkpoint(x=V).write("object", options())
    doubles = np.zeros(2)
    parallel = ckptfmt.tf.ParallelVariable([doubles])
    for path in (prefix, "ck"):
        fails(lambda path=path: Checkpoint(x=doubles).read(path), text)  # type: ignore[misc]
        fails(lambda path=path: Checkpoint(x=doubles).restore(path), text)  # type: ignore[misc]
        fails(lambda path=path: _on_mesh(doubles).read(path), text)  # type: ignore[misc]
    fails(lambda: Checkpoint(x=parallel).read(prefix), text)
    fails(lambda: Saver({parallel: parallel.serialize("x")}).restore(prefix), text)
    Checkpoint(x=doubles).read(prefix, cast=True)
    assert doubles.tolist() == [1, 2]


@row("the shape differs")
def _shape() -> None:
    save("ck", {"x": V})
    text = words("the shape differs")
    fails(lambda: ckptfmt.restore_v2("ck", ["x"], ["4 0,2"]), text)
    slices = {"x": SaveSpec(V, "4 0,2", "x")}
    fails(lambda: Saver({Holder(): slices}).restore("ck"), text)
    prefix = Checkpoint(x=V).write("object", options())
    four = np.zeros(4, V.dtype)
    parallel = ckptfmt.tf.ParallelVariable([four])
    for path in (prefix, "ck"):
        fails(lambda path=path: Checkpoint(x=four).read(path), text)  # type: ignore[misc]
        fails(lambda path=path: Checkpoint(x=four).restore(path), text)  # type: ignore[misc]
        fails(lambda path=path: _on_mesh(four).read(path), text)  # type: ignore[misc]
    fails(lambda: Checkpoint(x=parallel).read(prefix), text)
    fails(lambda: Saver({parallel: parallel.serialize("x")}).restore(prefix), text)


@row("the bytes are damaged")
def _damage() -> None:
    save("ck", {"x": V})
    prefix = Checkpoint(x=V).write("object", options())
    text = words("the bytes are damaged")
    for path in ("ck", "object"):
        with open(f"{path}.data-00000-of-00001", "r+b") as file:
            file.write(b"?" * V.nbytes)
    for call in (
        lambda: ckptfmt.load("ck"),
        ckptfmt.open("ck")["x"].read,
        lambda: ckptfmt.restore_v2("ck", ["x"], [""]),
        lambda: Saver({Holder(): {"x": V}}).restore("ck"),
        lambda: Checkpoint(x=V.copy()).read(prefix),
        lambda: _on_mesh(V.copy()).read(prefix),
        lambda: ckptfmt.open("ck").read("x"),
        lambda: ckptfmt.tf.load_variable("ck", "x"),
        lambda: ckptfmt.tf.load_checkpoint("ck").get_tensor("x"),
        lambda: ckptfmt.sharded.restore("ck", {"x": CUT}, ONE),
    ):
        error = fails(call, text, ckptfmt.CorruptError)
        assert error.tensor is not None and error.offset == 0 and ".data-00000-of" in error.path
        assert re.match(r"[A-Z]{3}-[0-9]+: ", error.message)


@row("two inputs of a merge have one tensor")
def _merge_twice() -> None:
    text = words("two inputs of a merge have one tensor")
    for name in ("a", "b"):
        save(name, {"x": V})
    for call in (merge, ckptfmt.merge):
        fails(functools.partial(call, ["a", "b"], "m"), text, ckptfmt.errors.MergeConflictError)


@row("an input of a merge is missing")
def _merge_missing() -> None:
    text = words("an input of a merge is missing")
    save("a", {"x": V})
    for call in (merge, ckptfmt.merge):
        fails(functools.partial(call, ["a", "gone"], "m"), text, ckptfmt.CheckpointNotFoundError)


@row("all inputs of a merge are missing")
def _merge_nothing() -> None:
    text = words("all inputs of a merge are missing")
    call = functools.partial(merge, ["gone", "too"], "m", allow_missing_files=True)
    fails(call, text, ckptfmt.CheckpointNotFoundError)


@row("a status assertion fails")
def _assertion() -> None:
    status = Checkpoint(x=V.copy()).read(Checkpoint(x=V, y=V.copy()).write("ck", options()))
    error = fails(status.expect_partial().assert_consumed, "", ckptfmt.errors.MatchError)
    assert isinstance(error, AssertionError) and isinstance(error, ValueError)
    assert status.report.matched == ("x",) and len(status.report.unexpected) == 1


@row("two tensors have one name")
def _one_name() -> None:
    assert isinstance(fails(lambda: Saver({Holder(): {"x": V}, None: {"x": V}})), ValueError)


@row("a registered saver is unknown")
def _unknown_saver() -> None:
    fails(lambda: Saver({None: {"x": V}}, {"package.unknown": {}}), "package.unknown")


@row("an argument has the wrong type")
def _wrong_type() -> None:
    wrong: Any = 3
    fails(lambda: Checkpoint(x=V).write("ck", wrong))
    fails(lambda: CheckpointOptions(experimental_write_callbacks=[wrong]))
    fails(lambda: SaveSpec(lambda: V, "", "x"))
    assert there() == []


@row("a SaveableObject that cannot be restored")
def _abstract() -> None:
    text = words("a SaveableObject that cannot be restored")
    saveable = ckptfmt.tf.SaveableObject(None, [SaveSpec(V, "", "x")], "x")
    error = fails(lambda: saveable.restore([V], None), text)
    assert isinstance(error, ValueError)
    saver = Saver.from_saveables([saveable])
    saver.save("ck", options())
    fails(lambda: saver.restore("ck"), text)


@row("the save path is that of the state file")
def _state_path() -> None:
    text = words("the save path is that of the state file")
    path = os.path.abspath("checkpoint")
    fails(lambda: ckptfmt.tf.update_checkpoint_state(os.getcwd(), path), text)


# ---- paths ---------------------------------------------------------------------------------------


def _named_checkpoint(prefix: str) -> str:
    checkpoint = Checkpoint(x=V.copy())
    saved = checkpoint.save(prefix, options())
    assert saved == f"{prefix}-1"
    data = ["checkpoint-1.data-00000-of-00001", "checkpoint-1.index"]
    assert there() == ["checkpoint", *data]
    assert Path("checkpoint").read_text().startswith('model_checkpoint_path: "checkpoint-1"\n')
    found = ckptfmt.tf.latest_checkpoint(os.path.dirname(prefix) or ".")
    assert found is not None
    checkpoint.restore(found).assert_consumed()
    return found


@row("a prefix named `checkpoint`, absolute")
def _absolute() -> None:
    prefix = os.path.abspath("checkpoint")
    assert _named_checkpoint(prefix) == f"{prefix}-1"
    assert Checkpoint(x=V).write(prefix, options()) == prefix
    assert ckptfmt.open(prefix).prefix == prefix


@row("a prefix named `checkpoint`, relative")
def _relative() -> None:
    assert _named_checkpoint("checkpoint") == "./checkpoint-1"


@row("`file://` URLs")
def _file_urls() -> None:
    here = os.getcwd()
    saved = Checkpoint(x=V).save(f"file://{here}/ck", options())
    assert saved == f"{here}/ck-1"
    for start in ("file://", "file://localhost"):
        assert ckptfmt.tf.latest_checkpoint(start + here) == saved
        assert len(ckptfmt.tf.list_variables(f"{start}{saved}")) == 3


@row("other URLs")
def _other_urls() -> None:
    fails(functools.partial(save, "file://host/ck", {"x": V}), "is a URL", ckptfmt.UnsupportedError)
    save("memory://bucket/ck", {"x": V})
    assert ckptfmt.load("memory://bucket/ck")["x"].tolist() == list(V)
    assert there() == []


@row("patterns")
def _patterns() -> None:
    save("ck-1", {"x": V})
    assert ckptfmt.tf.checkpoint_exists("ck-1") and not ckptfmt.tf.checkpoint_exists("ck*")


@row("a directory for a checkpoint")
def _directory() -> None:
    checkpoint = Checkpoint(x=V.copy())
    for _ in range(2):
        saved = checkpoint.save("ck", options())
    assert ckptfmt.open(".").prefix == f"./{saved}" == "./ck-2"
    checkpoint.restore(".").assert_consumed()


@row("a prefix that ends with `/` or `.index`")
def _prefix_ends() -> None:
    for call in (save, lambda prefix, tensors: Saver({None: tensors}).save(prefix)):
        fails(functools.partial(call, "d/", {"x": V}), "'d/model'")
        fails(functools.partial(call, "x.index", {"x": V}), "'x'")
    assert there() == []
    ckptfmt.save_v2("d/", ["x"], [""], [V])
    ckptfmt.save_v2("x.index", ["x"], [""], [V])
    assert os.path.exists("d/.index") and os.path.exists("x.index.index")


@row("a directory that does not exist")
def _no_directory() -> None:
    ckptfmt.save_v2("new/a/x", ["x"], [""], [V])
    Saver({None: {"x": V}}).save("new/b/x")
    assert os.path.exists("new/a/x.index") and os.path.exists("new/b/x.index")


@row("overwriting a prefix")
def _overwrite() -> None:
    save("ck", {"x": V})
    before = ckptfmt.open("ck")
    save("ck", {"y": V})
    assert before.read("x").tolist() == [1, 2]
    assert list(ckptfmt.open("ck")) == ["y"]
    names = [name for name, _ in ckptfmt.tf.list_variables("ck")]
    assert names == ["_CKPTFMT_SHARD_1", "y"]
    assert "ck.data-00000-of-00001" not in there()


@row("`debug_string`")
def _debug_string() -> None:
    with ckptfmt.Writer("ck", durability="none") as writer:
        writer.add("whole", V)
        writer.add_slice("parts", V, shape=(4,), offset=(0,))
        writer.add_slice("parts", V, shape=(4,), offset=(2,))
    assert ckptfmt.tf.load_checkpoint("ck").debug_string() == b"whole (DT_FLOAT) [2]\n"


# ---- saving and restoring ------------------------------------------------------------------------


class Holder:
    """Receives what a Saver restores."""

    got: Any = None

    def restore(self, tensors: Any) -> None:
        self.got = tensors


@row("the level of the files")
def _level() -> None:
    big = np.ones(1 << 19, np.float32)  # 2 MiB: reading a slice verifies chunks, if there are any
    Checkpoint(x=big).write("plus", options())
    Checkpoint(x=big).write("plain", options(level="v2"))
    key = "x/.ATTRIBUTES/VARIABLE_VALUE"
    verified = [ckptfmt.open(name)[key].partial_reads_verified for name in ("plus", "plain")]
    assert verified == [True, False]


@row("bytes of the object graph")
def _graph() -> None:
    Checkpoint(v=V, l=[V.copy()], n=3).write("ck", options(level="v2"))
    nodes = decode_graph(ckptfmt.load("ck")["_CHECKPOINTABLE_OBJECT_GRAPH"].item()).nodes
    assert [node.children for node in nodes] == [
        [("l", 1), ("n", 2), ("v", 3)],
        [("0", 4)],
        [],
        [],
        [],
    ]
    assert [node.kind for node in nodes] == [None, "list", "int", None, None]
    named = [(a.name, a.full_name, a.checkpoint_key) for a in nodes[4].attributes]
    assert named == [("VARIABLE_VALUE", "l/0", "l/0/.ATTRIBUTES/VARIABLE_VALUE")]


@row("`experimental_io_device`")
def _io_device() -> None:
    Checkpoint(x=V).write("ck", options(experimental_io_device="/job:nowhere"))
    assert there() == ["ck.data-00000-of-00001", "ck.index"]


@row("`experimental_write_callbacks`")
def _write_callbacks() -> None:
    seen: list[object] = []
    calls: list[Any] = [seen.append, lambda: seen.append("none")]
    Checkpoint(x=V).save("ck", options(experimental_write_callbacks=calls))
    assert seen == ["ck-1", "none"]


@row("options without their names")
def _positional_options() -> None:
    made: Any = CheckpointOptions
    with pytest.raises(TypeError):
        made("/cpu:0")


class TensorFlows:
    """What `tf.train.CheckpointOptions` has."""

    experimental_io_device = experimental_sharding_callback = experimental_write_callbacks = None
    experimental_skip_slot_variables = experimental_enable_async_checkpoint = enable_async = False


@row("options of `tf.train.CheckpointOptions`")
def _options_of_tensorflow() -> None:
    seen: list[object] = []
    given: Any = TensorFlows()
    given.experimental_write_callbacks = [seen.append]
    checkpoint, saver = Checkpoint(x=V.copy()), Saver({Holder(): {"x": V}})
    saved = [checkpoint.save("a", given), checkpoint.write("b", given), saver.save("c", given)]
    checkpoint.restore(saved[0], given).assert_consumed()
    checkpoint.read(saved[1], given).assert_consumed()
    saver.restore(saved[2], given)
    saved += [checkpoint.save_async("d", given).result()]
    saved += [CheckpointManager(checkpoint, "m", 1).save(options=given)]
    ckptfmt.tf.TrainingState({"x": V.copy()}, "t", options=given).back_up(0)
    assert seen == [*saved, os.path.join("t", "chief", "ckpt-1")]


@row("changing options")
def _changing_options() -> None:
    given: Any = options()
    with pytest.raises(dataclasses.FrozenInstanceError):
        given.io_device = "x"
    assert dataclasses.replace(given, io_device="x").experimental_io_device == "x"


def _shards(prefix: str) -> dict[str, int | None]:
    return {handle.name: handle.shard for handle in ckptfmt.open(prefix).values()}


@row("the order of shards")
def _order_of_tasks() -> None:
    tensors = {
        name: SaveSpec(V, "", name, device=f"/job:{job}/task:{task}/device:CPU:0")
        for name, job, task in (("x", "worker", 1), ("y", "ps", 0), ("z", "worker", 0))
    }
    Saver({None: tensors}).save("ck", options())
    assert _shards("ck") == {"x": 0, "y": 1, "z": 2}


@row("the order of devices")
def _order_of_devices() -> None:
    tensors = {
        name: SaveSpec(V, "", name, device=f"/device:CPU:{number}")
        for name, number in (("x", 1), ("y", 0))
    }
    for order, expected in (("sorted", {"x": 1, "y": 0}), ("first seen", {"x": 0, "y": 1})):
        policy: Any = ckptfmt.tf.ShardByDevicePolicy(order)  # type: ignore[arg-type]
        Saver({None: tensors}).save(order, options(sharding_callback=policy))
        assert _shards(order) == expected


@row("keys that `restore` of an object receives")
def _restore_keys() -> None:
    holder, key = Holder(), "model/.ATTRIBUTES/w"
    saver = Saver({holder: {key: V}})
    saver.save("ck", options())
    saver.restore("ck")
    assert list(holder.got) == [key]


@row("a SaveSpec under a key that is not its name")
def _other_name() -> None:
    fails(lambda: Saver({None: {"key": SaveSpec(V, "", "name")}}), "name")


@row("`initialize_or_restore` and `run_restore_ops` of a status")
def _graph_mode() -> None:
    x = np.zeros(2, V.dtype)
    status: Any = Checkpoint(x=x).read(Checkpoint(x=V).write("ck", options()))
    assert status.initialize_or_restore() is status.run_restore_ops(None) is None
    assert x.tolist() == V.tolist()
    nothing: Any = Checkpoint(x=x).read(None)
    assert nothing.initialize_or_restore() is None
    fails(nothing.run_restore_ops, "", ckptfmt.errors.MatchError)


@row("device names")
def _device_names() -> None:
    tensors = {
        name: SaveSpec(V, "", name, device=device)
        for name, device in (("x", "nonsense"), ("y", "nonsense too"), ("z", ""))
    }
    Saver({None: tensors}).save("ck", options())
    assert sorted(_shards("ck").items()) == [("x", 0), ("y", 1), ("z", 2)]


@row("what a registered saver returns")
def _returned() -> None:
    class Eager:
        def __init__(self, value: Any) -> None:
            self.value = value

        def numpy(self) -> Any:
            return self.value

    def save_fn(trackables: Any, file_prefix: str) -> Any:
        for number in range(3):
            save(f"{file_prefix}-{number}", {f"x{number}": V})
        first, *others = (f"{file_prefix}-{number}".encode() for number in range(3))
        return [Eager(first), Eager(np.array(others, object))]

    ckptfmt.tf.register_checkpoint_saver(
        package="page",
        name="eager",
        predicate=callable,
        save_fn=save_fn,
        restore_fn=lambda **_: None,
    )
    try:
        Saver({}, {"page.eager": {}}).save("ck", options())
    finally:
        ckptfmt.tf.unregister_checkpoint_saver("page.eager")
    assert list(ckptfmt.open("ck")) == ["x0", "x1", "x2"]


@row("temporary files")
def _temporary_files() -> None:
    seen: list[str] = []
    real = _core.merge

    def merge(prefixes: Any, *arguments: Any, **more: Any) -> Any:
        seen.extend(prefixes)
        return real(prefixes, *arguments, **more)

    two = {name: SaveSpec(V, "", name, device=f"/task:{at}") for at, name in enumerate("xy")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "merge", merge)
        Saver({None: two}).save("ck", options())
    assert all(re.fullmatch(r"ck_temp_[0-9a-f]{16}/part-0000.-of-00002", one) for one in seen)
    assert len(seen) == 2
    assert there() == ["ck.data-00000-of-00002", "ck.data-00001-of-00002", "ck.index"]


@row("graphs and `tf.function`")
def _graphs() -> None:
    assert not hasattr(Saver, "to_proto")


@row("metrics of saves")
def _metrics() -> None:
    seen: list[tuple[int, int]] = []
    save("ck", {"x": V}, progress=lambda *bytes_done: seen.append(bytes_done))
    assert seen[-1] == (V.nbytes, V.nbytes)
    ckptfmt.load("ck", progress=lambda *bytes_done: seen.append(bytes_done))
    assert seen[-1] == (V.nbytes, V.nbytes) and len(seen) > 1


@row("nothing to save")
def _nothing() -> None:
    nothing = SaveSpec(None, "", "x", dtype=np.float32, device=CPU)
    for prefix, tensors in (("a", {}), ("b", {None: {"x": nothing}})):
        Saver(tensors).save(prefix, options())
        assert list(ckptfmt.open(prefix)) == []


@row("`save_counter`")
def _save_counter() -> None:
    checkpoint: Any = Checkpoint(x=V)
    assert isinstance(checkpoint.save_counter, np.ndarray)
    checkpoint.save_counter = 3
    for wrong in (1.5, "x", 1 << 63):
        fails(lambda wrong=wrong: setattr(checkpoint, "save_counter", wrong))  # type: ignore[misc]
    assert checkpoint.save("ck", options()) == "ck-4"


@row("background saves")
def _background() -> None:
    checkpoint = Checkpoint(x=V)
    checkpoint.save("ck", options(experimental_enable_async_checkpoint=True))
    checkpoint.sync()
    assert os.path.exists("ck-1.index")
    assert checkpoint.save_async("ck", options()).result() == "ck-2"


@row("restoring an object from a checkpoint with another shape")
def _all_or_nothing() -> None:
    prefix = Checkpoint(a=V, b=V.copy()).write("ck", options())
    a = np.zeros(2, np.float32)
    fails(lambda: Checkpoint(a=a, b=np.zeros(3, np.float32)).read(prefix))
    assert a.tolist() == [0, 0]


# ---- managers ------------------------------------------------------------------------------------


def _manager(directory: str, **more: Any) -> CheckpointManager:
    return CheckpointManager(Checkpoint(x=V.copy()), directory, 3, durability="none", **more)


@row("numbers of checkpoints")
def _numbers() -> None:
    manager = _manager("m")
    saved = [manager.save(), manager.save(checkpoint_number=7), manager.save()]
    assert saved == manager.checkpoints == ["m/ckpt-1", "m/ckpt-7", "m/ckpt-3"]


@row("a `max_to_keep` of 0")
def _max_to_keep() -> None:
    text = words("a `max_to_keep` of 0")
    fails(lambda: CheckpointManager(Checkpoint(x=V), "m", 0), text)


@row("a manager whose `checkpoint_name` is `checkpoint`")
def _manager_of_checkpoint() -> None:
    _manager("m", checkpoint_name="checkpoint").save()
    manager = _manager("m", checkpoint_name="checkpoint")
    assert manager.latest_checkpoint == manager.restore_or_initialize() == "m/checkpoint-1"


@row("files of the newest checkpoint are gone")
def _newest_gone() -> None:
    manager = _manager("m")
    manager.save()
    manager.save()
    os.unlink("m/ckpt-2.index")
    with pytest.warns(ckptfmt.CkptfmtWarning, match="ckpt-2"):
        assert _manager("m").restore_or_initialize() == "m/ckpt-1"


@row("a directory that was moved")
def _moved() -> None:
    _manager(os.path.abspath("m")).save()
    os.rename("m", "moved")
    assert _manager("moved").restore_or_initialize() == "moved/ckpt-1"


# ---- all of them ---------------------------------------------------------------------------------


def test_every_row_is_checked() -> None:
    assert sorted(CHECKS) == sorted(CHECKS.rows)


@pytest.mark.parametrize("title", CHECKS)
def test_rows(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CHECKS[title]()
