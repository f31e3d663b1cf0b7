# SPDX-License-Identifier: Apache-2.0
"""Checkpoint as it restores: what is written where, what is checked before, what waits, and
checkpoints that are damaged or of other kinds."""

from __future__ import annotations

import gc
import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files import flip
from support.objects import Module, Optimizer, State

import ckptfmt
from ckptfmt.bundle.graph import (
    OBJECT_GRAPH_KEY,
    Attribute,
    Node,
    ObjectGraph,
    SlotVariable,
    encode_graph,
)
from ckptfmt.errors import MatchError
from ckptfmt.objects.matching import Restoration
from ckptfmt.objects.nodes import Slot, TreeNode
from ckptfmt.saving.parallel import ParallelVariable

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def written(tmp_path: Path, **objects: Any) -> str:
    path: str = ckptfmt.Checkpoint(**objects).write(tmp_path / "ck")
    return path


def forged(tmp_path: Path, nodes: list[Node], **tensors: Any) -> str:
    """A checkpoint with this object graph."""
    graph = {OBJECT_GRAPH_KEY: np.array(encode_graph(ObjectGraph(nodes)), object)}
    ckptfmt.save(tmp_path / "forged", {**tensors, **graph})
    return str(tmp_path / "forged")


def leaf(key: str, name: str = "VARIABLE_VALUE") -> Node:
    return Node(attributes=[Attribute(name, "", key)])


# ---- into what is there --------------------------------------------------------------------------


def test_arrays_are_restored_in_place(tmp_path: Path) -> None:
    strings = np.array([b"a", b""], object)
    path = written(tmp_path, plain=np.arange(6.0).reshape(2, 3), big=np.arange(3.0), s=strings)
    base = np.zeros((3, 2))
    target = {"plain": base.T, "big": np.zeros(3, ">f8"), "s": np.array([None, None], object)}
    arrays = dict(target)
    ckptfmt.Checkpoint(**target).read(path).assert_consumed()
    assert all(target[name] is arrays[name] for name in target)
    assert base.T.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert arrays["big"].tolist() == [0.0, 1.0, 2.0] and arrays["s"].tolist() == [b"a", b""]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (np.zeros((2, 1)), r"shape \[2, 1\] does not match the shape .*: \[2\]$"),
        (np.zeros(2, np.float32), "expected dtype float32 does not equal .* float64.*; cast=True"),
        (np.zeros(2, object), "expected dtype object does not equal original dtype float64"),
        (5.0, r"shape \[\] does not match .*: \[2\]"),
        (ParallelVariable([np.zeros(3)]), r"shape \[3\] does not match .*: \[2\]"),
    ],
)
def test_nothing_is_written_where_one_thing_does_not_fit(
    tmp_path: Path, target: Any, words: str
) -> None:
    path = written(tmp_path, a=np.ones(2), d={"b": np.ones(2)}, s=State("old"), n=1)
    first, state = np.zeros(2), State("new")
    checkpoint = ckptfmt.Checkpoint(a=first, d={"b": target}, s=state, n=0)
    with pytest.raises(ckptfmt.InvalidError, match=f"the object at 'd/b': {words}") as caught:
        checkpoint.read(path)
    assert (caught.value.tensor, caught.value.path) == (f"d/b{VALUE}", path)
    assert (first.tolist(), state.text, checkpoint.n) == ([0.0, 0.0], "new", 0)


@pytest.mark.parametrize(
    ("stored", "target", "expected"),
    [
        (np.int32(7), 0, 7),
        (np.uint8(7), 0, 7),
        (np.float32(0.5), 0.0, 0.5),
        (np.complex64(1j), 0j, 1j),
        (b"\xc3\xa4", "", "ä"),
        ("text", b"", b"text"),
    ],
)
def test_scalars_take_any_width(tmp_path: Path, stored: Any, target: Any, expected: Any) -> None:
    path = written(tmp_path, x=stored)
    checkpoint = ckptfmt.Checkpoint(x=target)
    checkpoint.read(path).assert_consumed()
    assert checkpoint.x == expected and type(checkpoint.x) is type(expected)


@pytest.mark.parametrize(
    ("stored", "target"), [(1.5, 0), (1, 0.0), (1, False), (1.0, ""), ("t", 0), (1, np.int32(0))]
)
def test_scalars_of_another_kind_are_refused(tmp_path: Path, stored: Any, target: Any) -> None:
    path = written(tmp_path, x=stored)
    checkpoint = ckptfmt.Checkpoint(x=target)
    with pytest.raises(ckptfmt.InvalidError, match="the object at 'x': "):
        checkpoint.read(path)
    assert checkpoint.x is target


def test_cast_converts_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, a=np.array([1.5, 2.0]), n=3, h=np.float16(0.5), r=2.0, s="t")
    target = {"a": np.zeros(2, np.int16), "n": 0.0, "h": np.float64(0), "r": 0, "s": ""}
    checkpoint = ckptfmt.Checkpoint(**target)
    with pytest.raises(ckptfmt.InvalidError, match=r"'a': .* changes 1 element .* 1\.5"):
        checkpoint.read(path, cast=True)
    status = checkpoint.read(path, cast=True, allow_loss=True).assert_consumed()
    assert status.report.losses == {"a": 1}
    assert target["a"].tolist() == [1, 2] and target["a"].dtype == np.int16
    found = [checkpoint.n, checkpoint.h, checkpoint.r]
    assert found == [3.0, 0.5, 2] and [type(x) for x in found] == [float, np.float64, int]
    with pytest.raises(ckptfmt.InvalidError, match="the object at 's': "):
        ckptfmt.Checkpoint(s=0).read(path, cast=True)
    with pytest.raises(ckptfmt.InvalidError, match="'yes' is not a dtype"):
        checkpoint.read(path, cast="yes")


def test_two_objects_here_that_are_one_there(tmp_path: Path) -> None:
    one = np.full(1, 5.0)
    path = written(tmp_path, a=one, d={"b": one})
    first, second = np.zeros(1), np.zeros(1)
    words = "the object at 'a' and the object at 'd/b' are one object in"
    with pytest.warns(ckptfmt.CkptfmtWarning, match=words):
        status = ckptfmt.Checkpoint(a=first, d={"b": second}).read(path)
    assert (first[0], second[0]) == (5.0, 0.0)
    with pytest.raises(MatchError, match="got no value from the checkpoint: 'd/b'"):
        status.assert_consumed()  # and no second warning


def test_two_objects_that_come_later_and_are_one_there(tmp_path: Path) -> None:
    one = np.full(1, 5.0)
    path = written(tmp_path, a=one, b=one)
    checkpoint = ckptfmt.Checkpoint(a=np.zeros(1))
    status = checkpoint.read(path)
    checkpoint.b = np.zeros(1)  # nothing waits: the value has its object
    assert checkpoint.b[0] == 0.0
    with pytest.warns(ckptfmt.CkptfmtWarning, match="the object at 'a' and the object at 'b' are"):
        status.retry()
    checkpoint = ckptfmt.Checkpoint()
    checkpoint.read(path)
    checkpoint.b = np.zeros(1)
    with pytest.warns(ckptfmt.CkptfmtWarning, match="another object and the object at 'a' are one"):
        checkpoint.a = np.zeros(1)
    assert (checkpoint.a[0], checkpoint.b[0]) == (0.0, 5.0)


def test_the_edge_back_to_the_root_is_no_contradiction(tmp_path: Path) -> None:
    path = ckptfmt.Checkpoint(Module(w=np.ones(1)), a=np.ones(1)).write(tmp_path / "ck")
    inner = ckptfmt.Checkpoint(Module(w=np.zeros(1)), a=np.zeros(1))
    ckptfmt.Checkpoint(inner).read(path, partial=True)
    assert inner.a[0] == 1.0 and inner.root.w[0] == 0.0


def test_values_that_are_two_here_and_one_there_both_get_it(tmp_path: Path) -> None:
    one = np.array(5)
    path = written(tmp_path, a=one, d={"b": one})
    target = {"b": 0}
    checkpoint = ckptfmt.Checkpoint(a=0, d=target)
    checkpoint.read(path).assert_consumed()
    assert (checkpoint.a, target) == (5, {"b": 5})


# ---- what waits ----------------------------------------------------------------------------------


def test_attributes_get_their_values_when_they_are_set(tmp_path: Path) -> None:
    path = ckptfmt.Checkpoint(m=Module(w=np.ones(2), n=3, deep=Module(t=("x", np.ones(1))))).save(
        tmp_path / "ck"
    )
    checkpoint = ckptfmt.Checkpoint()
    status = checkpoint.restore(path)
    module = Module(n=0)
    checkpoint.m = module
    assert module.n == 3
    module.w = weight = np.zeros(2)
    assert module.w is weight and weight.tolist() == [1.0, 1.0]
    module.deep = Module(t=("", np.zeros(1)))
    assert module.deep.t[0] == "x" and module.deep.t[1][0] == 1.0
    status.assert_consumed()
    module.w = np.zeros(2)
    assert module.w.tolist() == [0.0, 0.0]  # it came too late
    assert checkpoint.save(tmp_path / "ck").endswith("ck-2")


def test_beside_a_root_attributes_get_their_values_too(tmp_path: Path) -> None:
    path = ckptfmt.Checkpoint(Module(w=np.ones(1)), a=np.ones(1), b=1).save(tmp_path / "ck")
    root = Module()
    checkpoint = ckptfmt.Checkpoint(root)
    status = checkpoint.restore(path)
    checkpoint.a = np.zeros(1)
    checkpoint.b = 0
    root.w = np.zeros(1)
    assert (checkpoint.a[0], checkpoint.b, root.w[0], checkpoint.save_counter[()]) == (1, 1, 1, 1)
    status.assert_consumed()


def test_elements_get_their_values_by_retry(tmp_path: Path) -> None:
    path = written(tmp_path, d={"x": np.ones(1), "l": [np.ones(1), 5]}, n=1)
    target: dict[str, Any] = {}
    status = ckptfmt.Checkpoint(d=target, n=0).read(path, partial=True)
    target["l"] = [np.zeros(1)]
    assert status.retry() is status
    target["x"] = np.zeros(1)
    target["l"].append(0)
    assert (target["l"][0][0], target["x"][0]) == (1.0, 0.0)
    target["l"][0][...] = 7
    status.assert_consumed()
    assert (target["x"][0], target["l"][1]) == (1.0, 5)
    assert target["l"][0][0] == 7.0  # had its value before


def test_what_waits_is_of_the_checkpoint_that_was_restored(tmp_path: Path) -> None:
    source = np.full(3, 1.0)
    path = written(tmp_path, w=source)
    checkpoint = ckptfmt.Checkpoint()
    checkpoint.read(path)
    source[...] = 2.0
    written(tmp_path, w=source)
    for file in tmp_path.iterdir():
        file.unlink()
    checkpoint.w = np.zeros(3)
    assert checkpoint.w.tolist() == [1.0] * 3


def open_files(folder: Path) -> int:
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith(str(folder))
        except FileNotFoundError:
            continue
    return found


def test_files_are_open_no_longer_than_values_wait(tmp_path: Path) -> None:
    path = written(tmp_path, a=np.ones(1), b=np.ones(1))
    status = ckptfmt.Checkpoint(a=np.zeros(1), b=np.zeros(1)).read(path)
    assert open_files(tmp_path) == 0
    status.assert_consumed()
    checkpoint = ckptfmt.Checkpoint(a=np.zeros(1))
    status = checkpoint.read(path, partial=True)
    assert open_files(tmp_path) > 0
    status.close()
    assert open_files(tmp_path) == 0
    checkpoint.b = np.zeros(1)
    assert checkpoint.b[0] == 0.0
    with pytest.raises(ckptfmt.InvalidError):
        ckptfmt.Checkpoint(a=np.zeros(2)).read(path)
    assert open_files(tmp_path) == 0


@pytest.mark.parametrize("newest", [1, 2])
@pytest.mark.parametrize("first_set", [1, 2])
def test_of_two_restores_the_later_one_counts(tmp_path: Path, newest: int, first_set: int) -> None:
    paths = {
        number: ckptfmt.Checkpoint(m=Module(dep=Module(w=np.full(1, float(number))))).write(
            tmp_path / f"ck{number}"
        )
        for number in (1, 2)
    }
    roots = {1: Module(), 2: Module()}
    checkpoints = {number: ckptfmt.Checkpoint(m=root) for number, root in roots.items()}
    for number in (3 - newest, newest):
        checkpoints[number].read(paths[number], partial=True)
    dep = Module(w=np.zeros(1))
    roots[first_set].dep = dep
    roots[3 - first_set].dep = dep
    assert dep.w[0] == newest


@pytest.mark.parametrize("newest", [1, 2])
@pytest.mark.parametrize("first_set", [1, 2])
def test_of_two_that_wait_for_one_attribute_the_later_one_counts(
    tmp_path: Path, newest: int, first_set: int
) -> None:
    roots = {1: Module(), 2: Module()}
    checkpoints = {number: ckptfmt.Checkpoint(m=root) for number, root in roots.items()}
    for number in (3 - newest, newest):
        saved = ckptfmt.Checkpoint(m=Module(dep=Module(n=number)))
        checkpoints[number].read(saved.write(tmp_path / f"ck{number}"))
    dep = Module()
    roots[first_set].dep = dep
    roots[3 - first_set].dep = dep
    dep.n = 0
    assert dep.n == newest
    for checkpoint in checkpoints.values():
        assert isinstance(checkpoint._ckptfmt_last, Restoration)
        checkpoint._ckptfmt_last.expect_partial = True


def test_a_later_restore_is_not_undone_by_an_older_status(tmp_path: Path) -> None:
    old = ckptfmt.Checkpoint(d={"w": np.full(1, 1.0)}, x=1).write(tmp_path / "old")
    new = ckptfmt.Checkpoint(d={"w": np.full(1, 2.0)}, x=1).write(tmp_path / "new")
    target: dict[str, Any] = {}
    checkpoint = ckptfmt.Checkpoint(d=target, x=0)
    older = checkpoint.read(old, partial=True)
    target["w"] = np.zeros(1)
    checkpoint.read(new).assert_consumed()
    older.assert_consumed()
    assert target["w"][0] == 2.0


def test_slot_variables_wait_for_both_ends(tmp_path: Path) -> None:
    v = np.zeros(1)
    path = written(tmp_path, o=Optimizer((v, "m", np.full(1, 5.0))), v=v)
    for order in (("v", "o"), ("o", "v")):
        variable, slot = np.zeros(1), np.zeros(1)
        checkpoint = ckptfmt.Checkpoint()
        status = checkpoint.read(path)
        given = {"v": variable, "o": Optimizer((variable, "m", slot))}
        for name in order:
            setattr(checkpoint, name, given[name])
        assert slot[0] == 5.0
        status.assert_consumed()
    variable, optimizer = np.zeros(1), Optimizer()
    status = ckptfmt.Checkpoint(v=variable, o=optimizer).read(path, partial=True)
    optimizer.slots.append((variable, "m", np.zeros(1)))
    status.assert_consumed()
    assert optimizer.slots[0][2][0] == 5.0
    options = ckptfmt.tf.CheckpointOptions(experimental_skip_slot_variables=True)
    optimizer.slots[0][2][...] = 0
    status = ckptfmt.Checkpoint(v=variable, o=optimizer).read(path, options)
    status.assert_consumed()
    assert optimizer.slots[0][2][0] == 0.0


# ---- other checkpoints ---------------------------------------------------------------------------


def test_names_find_their_objects(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "tf1", {"dense/kernel": np.ones(2), "step": np.int64(7), "x": 1.0})
    target = {"kernel": np.zeros(2)}
    checkpoint = ckptfmt.Checkpoint(dense=target, step=0)
    status = checkpoint.restore(tmp_path / "tf1")
    assert target["kernel"].tolist() == [1.0, 1.0] and checkpoint.step == 7
    status.assert_consumed().assert_existing_objects_matched().assert_nontrivial_match()
    assert status.report.unexpected == ("x",)
    checkpoint.x = 0.0
    assert checkpoint.x == 1.0
    checkpoint.other = np.zeros(1)
    with pytest.raises(MatchError, match=r"got no value .*: 'other'"):
        status.assert_nontrivial_match()
    status.close()


def test_paths_that_mean_a_checkpoint(tmp_path: Path) -> None:
    path = ckptfmt.Checkpoint(w=np.ones(1)).save(tmp_path / "some" / "ck")
    for given in (path, path.encode(), Path(path), tmp_path / "some"):
        target = np.zeros(1)
        ckptfmt.Checkpoint(w=target).restore(given).assert_consumed()
        assert target[0] == 1.0
    with pytest.raises(ckptfmt.CheckpointNotFoundError):
        ckptfmt.Checkpoint(w=np.zeros(1)).restore(tmp_path / "none")


@pytest.mark.parametrize("content", [b"\xff", b"", b"\x0a\x04\x0a\x02\x08\x05"])
def test_a_graph_that_is_none(tmp_path: Path, content: bytes) -> None:
    ckptfmt.save(tmp_path / "ck", {OBJECT_GRAPH_KEY: np.array(content, object)})
    with pytest.raises(ckptfmt.CorruptError) as caught:
        ckptfmt.Checkpoint(w=np.zeros(1)).restore(tmp_path / "ck")
    assert (caught.value.tensor, caught.value.failure) == (OBJECT_GRAPH_KEY, "BAD_PROTO")


Forge = Callable[[], list[Node]]


@pytest.mark.parametrize(
    "forge",
    [
        lambda: [
            Node(children=[("a", 0), ("d", 1), ("n", 2)]),
            Node(children=[("x", 0)]),
            leaf("k"),
        ],
        lambda: [Node(children=[("a", 1), ("d", 1)]), Node(children=[("x", 1), ("y", 1)])],
        lambda: [
            Node(children=[("o", 1), ("a", 2)]),
            Node(slot_variables=[SlotVariable(1, "m", 1)]),
            leaf("k"),
        ],
        lambda: [
            Node(children=[("o", 1), ("a", 2)]),
            Node(slot_variables=[SlotVariable(2, "m", 0)]),
            leaf("k"),
        ],
        lambda: [leaf("k"), leaf("k")],
        lambda: [Node(children=[("a", 1), ("n", 1)]), leaf("k", "no such attribute")],
    ],
)
def test_graphs_that_make_no_sense_end(tmp_path: Path, forge: Forge) -> None:
    path = forged(tmp_path, forge(), k=5.0)
    holder: dict[str, Any] = {"x": np.zeros(())}
    holder["y"] = holder
    array = np.zeros(())
    checkpoint = ckptfmt.Checkpoint(
        a=array, d=holder, n=0.0, o=Optimizer((array, "m", np.zeros(())))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
        status = checkpoint.read(path, partial=True)
    with pytest.raises(MatchError):
        status.assert_consumed()


def random_nodes(rng: random.Random) -> list[Node]:
    count = rng.randint(1, 6)
    nodes = []
    for _ in range(count):
        names = rng.sample(["a", "d", "n", "o", "s", "t", "x", "y", "0", "1"], rng.randint(0, 6))
        kinds = rng.sample(["VARIABLE_VALUE", "py_state", "parallel_component_1", "q"], 2)
        attributes = [
            Attribute(kind, "", rng.choice(["f", "v", "s", "i", OBJECT_GRAPH_KEY, "gone"]))
            for kind in kinds[: rng.choice((0, 1, 1, 2))]
        ]
        slots = [SlotVariable(rng.randrange(count), "m", rng.randrange(count))]
        nodes.append(
            Node(
                [(name, rng.randrange(count)) for name in names],
                attributes,
                slots if rng.random() < 0.2 else [],
                ("Nobody.knows", "a") if rng.random() < 0.03 else None,
                rng.choice((None, True, False)),
            )
        )
    return nodes


def test_whatever_a_graph_says_there_is_an_answer(tmp_path: Path, seed: int) -> None:
    class Noted(State):
        def deserialize(self, value: bytes) -> None:
            assert isinstance(value, bytes)

    tensors = {"f": np.float64(2), "v": np.ones(2), "s": b"text", "i": np.int64(3)}
    outcomes: set[str] = set()
    for number in range(100):
        path = forged(tmp_path, random_nodes(random.Random(f"graph {seed} {number}")), **tensors)
        holder: dict[str, Any] = {"x": np.zeros(()), "0": 0}
        holder["y"] = holder
        array = np.zeros(2)
        checkpoint = ckptfmt.Checkpoint(
            a=array,
            d=holder,
            n=0,
            o=Optimizer((array, "m", np.zeros(()))),
            s=Noted(""),
            t=(0.0, [array], ParallelVariable([np.zeros(2), np.zeros(2)])),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
            try:
                status = checkpoint.read(path, partial=True)
                checkpoint.x = Module(y=np.zeros(()))
                status.assert_consumed()
                outcomes.add("consumed")
            except ckptfmt.CkptfmtError as error:
                outcomes.add(type(error).__name__)
            del checkpoint
            gc.collect() if number % 50 == 0 else None
    assert outcomes >= {"MatchError", "InvalidError", "TensorNotFoundError"}


def test_values_of_other_kinds_than_their_objects(tmp_path: Path) -> None:
    path, state = (
        forged(tmp_path, [Node(children=[("s", 1)]), leaf("k", "py_state")], k=1.0),
        State(""),
    )
    with pytest.raises(ckptfmt.InvalidError, match="the object at 's': ") as caught:
        ckptfmt.Checkpoint(s=state).read(path)
    assert caught.value.tensor == "k" and state.text == ""


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("kind", ["object", "node"])
def test_slots_of_a_checkpoint_without_a_graph(tmp_path: Path, kind: str, is_late: bool) -> None:
    """They have the name of their variable, also if the optimizer comes later than it."""
    ckptfmt.save(tmp_path / "ck", {"d/w": np.ones(2), "d/w/m": np.full(2, 2.0)})
    variable, slot = np.zeros(2), np.zeros(2)
    one: Any = Optimizer((variable, "m", slot))
    if kind == "node":
        one = TreeNode(slots=[Slot(variable, "m", slot)])
    checkpoint = ckptfmt.Checkpoint(d={"w": variable}, **({} if is_late else {"o": one}))
    status = checkpoint.read(tmp_path / "ck")
    if is_late:
        checkpoint.o = one
    status.assert_consumed()
    assert (variable.tolist(), slot.tolist()) == ([1.0, 1.0], [2.0, 2.0])
    assert status.report.unexpected == ()


class Table(Module):
    """Its registered saver writes nothing."""


def test_a_registered_saver_that_is_not_here(tmp_path: Path) -> None:
    """The rest is restored if values may be left, else nothing, and the error names the path."""
    ckptfmt.tf.register_checkpoint_saver(
        package="Gone",
        name=tmp_path.name,
        predicate=lambda one: isinstance(one, Table),
        save_fn=lambda **_: None,
        restore_fn=lambda **_: None,
    )

    def made(value: float) -> dict[str, Any]:
        rows = {str(row): np.full(1, value) for row in range(1000)}
        return {"model": {"o": Table(**rows)}, "w": np.full(2, value)}

    path = ckptfmt.Checkpoint(**made(1)).write(tmp_path / "ck")
    ckptfmt.tf.unregister_checkpoint_saver(f"Gone.{tmp_path.name}")
    for call in (
        lambda tree: ckptfmt.Checkpoint(**tree).read(path),
        lambda tree: ckptfmt.Checkpoint(**tree).read(path, strict=True),
        lambda tree: ckptfmt.Checkpoint(**tree).read(path, strict=True, partial=True),
    ):
        tree = made(0)
        with pytest.raises(ckptfmt.InvalidError, match=r": the object at 'model/o' was") as caught:
            call(tree)
        assert len(str(caught.value)) < 500 and not np.any(tree["w"])
    for given in ({"strict": False}, {"partial": True}):
        tree = made(0)
        status = ckptfmt.Checkpoint(**tree).read(path, **given).expect_partial()
        assert status.report.unexpected == ("model/o",) and tree["w"].tolist() == [1, 1]
        with pytest.raises(MatchError, match="no object took 'model/o'"):
            status.assert_consumed()
    tree = made(0)
    assert ckptfmt.load_tree_into(path, tree, strict=False).unexpected == ("model/o",)
    assert tree["w"].tolist() == [1, 1]


def test_damaged_data_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, w=np.ones(100))
    flip(Path(path + ".data-00000-of-00001"), 100)
    with pytest.raises(ckptfmt.CorruptError):
        ckptfmt.Checkpoint(w=np.zeros(100)).read(path)
    assert open_files(tmp_path) == 0
