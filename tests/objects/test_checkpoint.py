# SPDX-License-Identifier: Apache-2.0
"""Checkpoint as it saves: names, order, counting, the state file, protocols, and what is
refused."""

from __future__ import annotations

import array
import copy
import os
import pickle
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.background import PATIENCE, Gate
from support.objects import Module, Optimizer, State

import ckptfmt
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY, ObjectGraph, decode_graph
from ckptfmt.saving import registration
from ckptfmt.saving.parallel import ParallelVariable
from ckptfmt.saving.specs import SaveSpec

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class Table:
    """An object with tensors of its own."""

    def __init__(self, **tensors: Any) -> None:
        self.tensors = tensors
        self.restored: Mapping[str, Any] | None = None

    def serialize_to_tensors(self) -> dict[str, Any]:
        return self.tensors

    def restore_from_tensors(self, tensors: Mapping[str, Any]) -> None:
        self.restored = tensors


def in_order(path: str) -> list[str]:
    """The tensors in the order in which they lie in the data file."""
    with ckptfmt.open(path) as reader:
        return sorted(reader, key=lambda name: (reader[name].shard, reader[name].offset))


def graph_of(path: str) -> ObjectGraph:
    with ckptfmt.open(path) as reader:
        content: Any = reader[OBJECT_GRAPH_KEY].read()
    return decode_graph(content[()])


# ---- names of tensors ----------------------------------------------------------------------------


def test_keys_order_and_graph(tmp_path: Path) -> None:
    shared = np.ones(2)
    checkpoint = ckptfmt.Checkpoint(
        z=shared, model=Module(w=shared, deep={"x/y": np.zeros(1), "k.1": (5, State("s"))})
    )
    path = checkpoint.save(tmp_path / "ck")
    assert in_order(path) == [
        f"z{VALUE}",
        f"save_counter{VALUE}",
        f"model/deep/x.Sy{VALUE}",
        f"model/deep/k..1/0{VALUE}",
        "model/deep/k..1/1/.ATTRIBUTES/py_state",
        OBJECT_GRAPH_KEY,
    ]
    nodes = graph_of(path).nodes
    assert [node.children for node in nodes] == [
        [("model", 1), ("z", 2), ("save_counter", 3)],
        [("w", 2), ("deep", 4)],
        [],
        [],
        [("x/y", 5), ("k.1", 6)],
        [],
        [("0", 7), ("1", 8)],
        [],
        [],
    ]
    assert [node.kind for node in nodes] == [None] * 4 + ["dict", None, "tuple", "int", None]
    assert [[attribute.full_name for attribute in node.attributes] for node in nodes] == [
        *([], [], ["z"], ["save_counter"], [], ["model/deep/x/y"], [], ["model/deep/k.1/0"], [""])
    ]
    assert all(node.has_checkpoint_values for node in nodes)


def test_scalars_as_they_are_stored(tmp_path: Path) -> None:
    given = {"i": -3, "f": 0.1, "b": True, "s": "ä\udcff", "y": b"\0\xff", "n": np.uint16(9)}
    given.update(u=2**64 - 1, c=1j, d=np.float64(0.2), t=np.bytes_(b"\xff\0"))
    path = ckptfmt.Checkpoint(**given).write(tmp_path / "ck")
    loaded = ckptfmt.load(path)
    found = {name: loaded[name + VALUE] for name in given}
    assert {name: (array.shape, array.dtype.name) for name, array in found.items()} == {
        "i": ((), "int64"),
        "f": ((), "float64"),
        "b": ((), "bool"),
        "s": ((), "object"),
        "y": ((), "object"),
        "n": ((), "uint16"),
        "u": ((), "uint64"),
        "c": ((), "complex128"),
        "d": ((), "float64"),
        "t": ((), "object"),
    }
    assert found["s"][()] == b"\xc3\xa4\xff" and found["y"][()] == b"\0\xff"
    assert found["t"][()] == b"\xff\0"
    assert [found[name][()] for name in "ifbnucd"] == [-3, 0.1, True, 9, 2**64 - 1, 1j, 0.2]


@pytest.mark.parametrize(("value", "words"), [(2**64, "an int must fit"), ("\ud800", "encoded")])
def test_scalars_that_cannot_be_stored(tmp_path: Path, value: Any, words: str) -> None:
    with pytest.raises(ckptfmt.InvalidError, match=words) as caught:
        ckptfmt.Checkpoint(d={"n": value}).save(tmp_path / "ck")
    assert caught.value.tensor == f"d/n{VALUE}"
    assert list(tmp_path.iterdir()) == []


def test_a_root_with_objects_beside_it(tmp_path: Path) -> None:
    root = Module(w=np.zeros(1), k=np.zeros(2))
    checkpoint = ckptfmt.Checkpoint(root, extra=np.ones(3), w=root.w)
    checkpoint.later = np.ones(1)
    path = checkpoint.save(tmp_path / "ck")
    children = [("w", 1), ("k", 2), ("extra", 3), ("root", 0), ("later", 4), ("save_counter", 5)]
    assert graph_of(path).nodes[0].children == children
    nested = ckptfmt.Checkpoint(inner=checkpoint).write(tmp_path / "nested")
    assert graph_of(nested).nodes[1].children == [
        *(("extra", 2), ("root", 3), ("w", 4), ("later", 5), ("save_counter", 6))
    ]


def test_a_root_may_be_weak(tmp_path: Path) -> None:
    root = Module(w=np.full(1, 5.0))
    checkpoint = ckptfmt.Checkpoint(weakref.ref(root), b=np.zeros(1))
    path = checkpoint.write(tmp_path / "ck")
    assert in_order(path)[0] == f"w{VALUE}"
    root.w[0] = 0
    checkpoint.read(path).assert_consumed()
    assert root.w[0] == 5.0
    del root
    with pytest.raises(ckptfmt.InvalidError, match=r"the root object .* no longer exists"):
        checkpoint.write(tmp_path / "ck")


def test_a_root_of_any_kind(tmp_path: Path) -> None:
    array = np.full(2, 3.0)
    path = ckptfmt.Checkpoint(array).write(tmp_path / "ck")
    assert in_order(path) == [VALUE, OBJECT_GRAPH_KEY]
    target = np.zeros(2)
    ckptfmt.Checkpoint(target).read(path).assert_consumed()
    assert target.tolist() == [3.0, 3.0]
    ckptfmt.Checkpoint(root={"a": [array]}).read(path, partial=True)


def test_names_that_two_objects_want() -> None:
    root = Module(w=np.zeros(1))
    with pytest.raises(ckptfmt.InvalidError, match="have different objects named 'w'"):
        ckptfmt.Checkpoint(root, w=np.zeros(1))
    checkpoint = ckptfmt.Checkpoint(root)
    checkpoint.v = np.zeros(1)
    with pytest.raises(ckptfmt.InvalidError, match="different objects named 'w'"):
        checkpoint.w = np.zeros(1)
    root.v = np.ones(1)
    with pytest.raises(ckptfmt.InvalidError, match="different objects named 'v'"):
        checkpoint.write("nowhere")


@pytest.mark.parametrize("value", [None, object(), len, {1, 2}, ckptfmt.tf.CheckpointOptions()])
def test_objects_that_cannot_be_saved_are_refused_at_once(value: Any) -> None:
    with pytest.raises(ckptfmt.InvalidError, match=r"object (at )?'a' is "):
        ckptfmt.Checkpoint(a=value)


def test_options_are_no_objects(tmp_path: Path) -> None:
    options = ckptfmt.tf.CheckpointOptions()
    with pytest.raises(ckptfmt.InvalidError, match=r"object at 'a/0' is .*pass it to write"):
        ckptfmt.Checkpoint(a=[options]).write(tmp_path / "ck")
    with pytest.raises(ckptfmt.InvalidError, match="object at 'options' is"):
        ckptfmt.save_tree(tmp_path / "ck", {"options": options})
    ckptfmt.Checkpoint(options=np.ones(2)).write(tmp_path / "ck")


@pytest.mark.parametrize("name", ["save", "write", "restore", "read", "sync", "untracked"])
def test_names_of_methods_are_refused(name: str) -> None:
    with pytest.raises(ckptfmt.InvalidError, match=f"cannot be named '{name}'"):
        ckptfmt.Checkpoint(**{name: np.zeros(1)})


@pytest.mark.parametrize("how", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_have_objects_of_their_own(tmp_path: Path, how: Any) -> None:
    path = ckptfmt.Checkpoint({"w": np.full(1, 5.0)}, n=3, x=1).save(tmp_path / "ck")
    checkpoint = ckptfmt.Checkpoint({"w": np.zeros(1)}, n=0)
    checkpoint.restore(path, partial=True)
    copied = how(checkpoint)
    copied.root["w"][...] = 1
    assert (checkpoint.root["w"][0], copied.n, copied.save_counter[()]) == (5.0, 3, 1)
    copied.restore(path, partial=True)
    assert copied.root["w"][0] == 5.0 and copied.save(tmp_path / "ck").endswith("ck-2")
    copied.x = 0
    assert copied.x == 1 and checkpoint.save_counter[()] == 1


# ---- counting and the state file -----------------------------------------------------------------


def test_save_counts_and_names_the_newest(tmp_path: Path) -> None:
    checkpoint = ckptfmt.Checkpoint(w=np.zeros(1))
    first = checkpoint.save(tmp_path / "new" / "ck")
    assert first == str(tmp_path / "new" / "ck-1")
    assert checkpoint.save(tmp_path / "new" / "ck") == str(tmp_path / "new" / "ck-2")
    assert (tmp_path / "new" / "checkpoint").read_text() == (
        'model_checkpoint_path: "ck-2"\nall_model_checkpoint_paths: "ck-2"\n'
    )
    counter = checkpoint.save_counter
    assert (counter.dtype, counter.shape, counter[()]) == (np.dtype(np.int64), (), 2)
    assert ckptfmt.load(first)[f"save_counter{VALUE}"][()] == 1
    checkpoint.save_counter[...] += 5
    assert checkpoint.save(tmp_path / "ck").endswith("ck-8")
    checkpoint.save_counter = 1
    assert checkpoint.save_counter is counter and counter[()] == 1


def test_write_neither_counts_nor_names(tmp_path: Path) -> None:
    checkpoint = ckptfmt.Checkpoint(w=np.zeros(1))
    assert checkpoint.write(tmp_path / "ck") == str(tmp_path / "ck")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("ck.data-00000-of-00001", "ck.index")
    ]
    assert in_order(str(tmp_path / "ck")) == [f"w{VALUE}", OBJECT_GRAPH_KEY]


def test_the_counter_of_the_root_is_the_counter(tmp_path: Path) -> None:
    inner = ckptfmt.Checkpoint(w=np.zeros(1))
    assert inner.save_counter[()] == 0
    outer = ckptfmt.Checkpoint(inner)
    assert outer.save(tmp_path / "ck").endswith("ck-1")
    assert outer.save_counter is inner.save_counter and inner.save_counter[()] == 1
    odd = ckptfmt.Checkpoint({"save_counter": "text"})
    with pytest.raises(ckptfmt.InvalidError, match="'save_counter' must be a writable 0-d array"):
        odd.save(tmp_path / "ck")


def test_nothing_is_counted_where_nothing_can_be_saved(tmp_path: Path) -> None:
    holder: dict[str, Any] = {"f": len}
    checkpoint = ckptfmt.Checkpoint(d=holder)
    with pytest.raises(ckptfmt.InvalidError, match="the object at 'd/f' is of type builtin"):
        checkpoint.save(tmp_path / "ck")
    holder["f"] = 1
    assert checkpoint.save(tmp_path / "ck").endswith("ck-1")


def test_callbacks_and_options(tmp_path: Path) -> None:
    seen: list[Any] = []
    state = tmp_path / "checkpoint"

    class Watched(State):
        def serialize(self) -> Any:
            seen.append("asked")
            return super().serialize()

    options = ckptfmt.tf.CheckpointOptions(
        experimental_write_callbacks=[lambda path: seen.append((path, state.exists()))],
        experimental_sharding_callback=ckptfmt.tf.MaxShardSizePolicy(8),
        level="v2",
    )
    checkpoint = ckptfmt.Checkpoint(s=Watched("text"), w=np.zeros(4))
    path = checkpoint.save(tmp_path / "ck", options)
    assert seen == ["asked", (path, False)]
    assert state.exists() and len(options.experimental_write_callbacks) == 1
    with ckptfmt.open(path) as reader:
        assert reader.header.num_shards > 2
    for method in (checkpoint.save, checkpoint.write, checkpoint.restore, checkpoint.read):
        with pytest.raises(ckptfmt.InvalidError, match="options must be a"):
            method(tmp_path / "ck", {})


def test_a_relative_prefix_is_of_the_directory_at_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    options = ckptfmt.tf.CheckpointOptions(experimental_write_callbacks=[lambda: os.chdir(other)])
    checkpoint = ckptfmt.Checkpoint(w=np.zeros(1))
    assert checkpoint.save("ck", options) == "ck-1"
    assert b'model_checkpoint_path: "ck-1"' in (tmp_path / "checkpoint").read_bytes()
    assert list(other.iterdir()) == []
    os.chdir(tmp_path)
    assert checkpoint.save("sub/ck") == "sub/ck-2"
    assert b'model_checkpoint_path: "ck-2"' in (tmp_path / "sub" / "checkpoint").read_bytes()


def test_a_save_in_the_background_names_the_newest_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    target = np.ones(1)
    checkpoint = ckptfmt.Checkpoint(w=target)
    future = checkpoint.save_async(tmp_path / "ck")
    assert isinstance(future, ckptfmt.types.SaveFuture)
    assert future.prefix == str(tmp_path / "ck-1")
    assert not future.done() and list(tmp_path.glob("checkpoint")) == []
    target[...] = 0
    gate.open()
    assert future.result(PATIENCE) == str(tmp_path / "ck-1")
    assert (tmp_path / "checkpoint").exists()
    checkpoint.restore(future).assert_consumed()
    assert target[0] == 1
    checkpoint.sync()


@pytest.mark.parametrize("next_call", ["save", "write", "sync"])
def test_what_ended_a_save_in_the_background_is_raised_by_the_next_call(
    tmp_path: Path, next_call: str
) -> None:
    def fails(path: str) -> None:
        raise ckptfmt.errors.BusyError("busy")

    checkpoint = ckptfmt.Checkpoint(w=np.ones(1))
    options = ckptfmt.tf.CheckpointOptions(enable_async=True, experimental_write_callbacks=[fails])
    # As in TensorFlow the prefix is returned at once.
    arguments = [] if next_call == "sync" else [tmp_path / "ck"]
    assert checkpoint.write(tmp_path / "ck", options) == str(tmp_path / "ck")
    checkpoint.read(tmp_path / "ck")  # a restore waits for the save, and does not raise its error
    checkpoint.restore(tmp_path / "ck")
    with pytest.raises(ckptfmt.errors.BusyError, match="busy"):
        getattr(checkpoint, next_call)(*arguments)
    getattr(checkpoint, next_call)(*arguments)
    # Once the future was asked, the next call does not raise the error.
    future = checkpoint.write_async(tmp_path / "ck", options)
    assert isinstance(future, ckptfmt.types.SaveFuture)
    with pytest.raises(ckptfmt.errors.BusyError, match="busy"):
        future.result(PATIENCE)
    getattr(checkpoint, next_call)(*arguments)


# ---- protocols -----------------------------------------------------------------------------------


def test_objects_with_tensors_of_their_own(tmp_path: Path) -> None:
    slices = {"4 0,2": np.array([1.0, 2.0]), "4 2,2": SaveSpec(np.array([3.0, 4.0]), "4 2,2", "x")}
    table = Table(
        **{
            "a.b/c": np.ones(2),
            "part": slices,
            "late": SaveSpec(
                lambda: np.arange(3), "", "other", np.dtype(np.int64), "/job:w/task:1"
            ),
        }
    )
    path = ckptfmt.Checkpoint(t=table).write(tmp_path / "ck")
    assert sorted(ckptfmt.load(path)) == [
        OBJECT_GRAPH_KEY,
        "t/.ATTRIBUTES/a....b..Sc",
        "t/.ATTRIBUTES/late",
        "t/.ATTRIBUTES/part",
    ]
    attributes = graph_of(path).nodes[1].attributes
    assert [attribute.name for attribute in attributes] == ["a..b.Sc", "part", "late"]
    ckptfmt.Checkpoint(t=table).read(path).assert_consumed()
    assert table.restored is not None
    assert table.restored["a.b/c"].tolist() == [1.0, 1.0]
    assert table.restored["late"].tolist() == [0, 1, 2]
    found = {text: array.tolist() for text, array in table.restored["part"].items()}
    assert found == {"4 0,2": [1.0, 2.0], "4 2,2": [3.0, 4.0]}


@pytest.mark.parametrize("tensors", [[1], {1: np.ones(1)}, {"": np.ones(1)}])
def test_tensors_that_are_none(tmp_path: Path, tensors: Any) -> None:
    table = Table()
    table.tensors = tensors
    with pytest.raises(ckptfmt.InvalidError, match=r"^serialize_to_tensors.* at 't'"):
        ckptfmt.Checkpoint(t=table).write(tmp_path / "ck")


def test_a_state_is_a_text(tmp_path: Path) -> None:
    path = ckptfmt.Checkpoint(a=State("ä"), b=State("\0")).write(tmp_path / "ck")
    first, second = State(""), State("")
    ckptfmt.Checkpoint(a=first, b=second).read(path).assert_consumed()
    assert (first.text, second.text) == ("ä", "\0")
    with pytest.raises(ckptfmt.InvalidError, match=r"^serialize\(\) .* at 'a' must be"):
        ckptfmt.Checkpoint(a=State(3)).write(tmp_path / "ck")


def test_parallel_variables(tmp_path: Path) -> None:
    variable = ParallelVariable([np.full(2, 1.0), np.full(2, 2.0)])
    path = ckptfmt.Checkpoint(v=variable).write(tmp_path / "ck")
    assert f"v{VALUE}" in in_order(path)
    assert "v/.ATTRIBUTES/parallel_component_1" in in_order(path)
    assert [one.full_name for one in graph_of(path).nodes[1].attributes] == ["v", ""]
    target = ParallelVariable([np.zeros(2), np.zeros(2), np.zeros(2)])
    ckptfmt.Checkpoint(v=target).read(path).assert_consumed()
    assert [component[0] for component in target.components] == [1.0, 2.0, 1.0]
    plain = np.zeros(2)
    ckptfmt.Checkpoint(v=plain).read(path).assert_consumed()
    assert plain[0] == 1.0
    one = ParallelVariable([np.zeros(2)])
    status = ckptfmt.Checkpoint(v=one).read(path, partial=True)
    status.assert_existing_objects_matched()
    with pytest.raises(ckptfmt.errors.MatchError, match=r"no object took .*/parallel_comp"):
        status.assert_consumed()


def test_slot_variables(tmp_path: Path) -> None:
    v, w = np.zeros(1), np.zeros(2)
    slots = (w, "momentum", np.ones(2)), (v, "momentum", np.ones(1)), (v, "x/y", np.ones(3))
    optimizer = Optimizer(*slots)
    path = ckptfmt.Checkpoint(o=optimizer, m={"w": w}, v=v).write(tmp_path / "ck")
    assert in_order(path) == [
        f"v{VALUE}",
        f"m/w{VALUE}",
        f"v/.OPTIMIZER_SLOT/o/momentum{VALUE}",
        f"m/w/.OPTIMIZER_SLOT/o/momentum{VALUE}",
        f"v/.OPTIMIZER_SLOT/o/x.Sy{VALUE}",
        OBJECT_GRAPH_KEY,
    ]
    slots = graph_of(path).nodes[2].slot_variables
    found = [(s.slot_name, s.original_variable_node_id, s.slot_variable_node_id) for s in slots]
    assert found == [("momentum", 3, 5), ("momentum", 4, 6), ("x/y", 3, 7)]


@pytest.mark.parametrize(
    ("slot", "words"),
    [("itself", "also an object"), (3, "is of type int"), ({}, "is of type dict")],
)
def test_slot_variables_that_cannot_be(tmp_path: Path, slot: Any, words: str) -> None:
    v = np.zeros(1)
    optimizer = Optimizer((v, "m", v if slot == "itself" else slot))
    with pytest.raises(ckptfmt.InvalidError, match=words) as caught:
        ckptfmt.Checkpoint(o=optimizer, v=v).write(tmp_path / "ck")
    assert "the slot variable 'm' of the object at 'v'" in caught.value.message


@pytest.fixture
def registered(tmp_path: Path) -> Iterator[list[Any]]:
    """A registered saver of Module; gives what was restored with it."""
    restored: list[Any] = []

    def save_fn(trackables: Mapping[str, Any], file_prefix: str) -> str:
        ckptfmt.save(file_prefix, {f"own/{name}": one.w for name, one in trackables.items()})
        return file_prefix

    def restore_fn(trackables: Mapping[str, Any], merged_prefix: str) -> None:
        loaded = ckptfmt.load(merged_prefix)
        restored.extend((name, loaded[f"own/{name}"].tolist()) for name in trackables)

    registration.register_checkpoint_saver(
        "Tests",
        tmp_path.name,
        predicate=lambda one: isinstance(one, Module) and hasattr(one, "is_registered"),
        save_fn=save_fn,
        restore_fn=restore_fn,
    )
    yield restored
    registration.unregister_checkpoint_saver(f"Tests.{tmp_path.name}")


def test_registered_savers(tmp_path: Path, registered: list[Any]) -> None:
    class Registered(Module):
        is_registered = True

    path = ckptfmt.Checkpoint(m=Registered(w=np.ones(2)), v=np.ones(1)).write(tmp_path / "ck")
    assert in_order(path) == [*("own/m", f"v{VALUE}", f"m/w{VALUE}", OBJECT_GRAPH_KEY)]
    assert graph_of(path).nodes[1].registered_saver == (f"Tests.{tmp_path.name}", "m")
    target = ckptfmt.Checkpoint(m=Registered(w=np.zeros(2)), v=np.zeros(1))
    target.read(path).assert_existing_objects_matched()
    assert registered == [("m", [1.0, 1.0])]
    with pytest.raises(ckptfmt.InvalidError, match="whose predicate is false for it"):
        ckptfmt.Checkpoint(m=Module()).read(path)


class Only:
    """An object that is an array by its `__array__` alone."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.ones(2)


def test_every_leaf_that_save_takes(tmp_path: Path) -> None:
    buffer, doubles = bytearray(b"abc"), array.array("d", [1.0, 2.0])
    leaves = {
        "buffer": buffer,
        "doubles": doubles,
        "view": memoryview(b"xy"),
        "range": range(3),
        "only": Only(),
    }
    path = ckptfmt.Checkpoint(**leaves).write(tmp_path / "ck")
    ckptfmt.save(tmp_path / "plain", leaves)
    plain = ckptfmt.load(tmp_path / "plain")
    stored = ckptfmt.load(path)
    for name, found in plain.items():
        np.testing.assert_array_equal(stored[name + VALUE], found)
    del leaves["only"]
    buffer[:], doubles[0] = b"\0\0\0", 0.0
    leaves |= {"view": memoryview(b"\0\0"), "range": range(5, 8)}
    checkpoint = ckptfmt.Checkpoint(**leaves)
    checkpoint.read(path, partial=True).assert_existing_objects_matched()
    assert (buffer, doubles) == (bytearray(b"abc"), array.array("d", [1.0, 2.0]))
    assert (checkpoint.view.tolist(), checkpoint.range.tolist()) == ([120, 121], [0, 1, 2])
    with pytest.raises(ckptfmt.InvalidError, match="cannot read into"):
        ckptfmt.Checkpoint(only=Only()).read(path)
