# SPDX-License-Identifier: Apache-2.0
"""Every command takes every name of a tensor, and prints the one that people know."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt._base.names import METADATA, VALUE_SUFFIX
from ckptfmt.bundle.graph import (
    OBJECT_GRAPH_KEY,
    Attribute,
    Node,
    ObjectGraph,
    SlotVariable,
    encode_graph,
    leaf_name,
)
from ckptfmt.naming.tensor_names import ObjectPaths, TensorNames
from cli.commands import Command

# What Keras 3 saves: the weight is in the model and in the optimizer, and stored under the latter.
STORED = f"optimizer/_trainable_variables/0{VALUE_SUFFIX}"
SHOWN = "model/dense/kernel"
NAMES = [STORED, "optimizer/_trainable_variables/0", SHOWN]
SLOT = f"net/w/.OPTIMIZER_SLOT/sgd/m{VALUE_SUFFIX}"
SLOT_NAMES = [
    SLOT,
    "net/w/.OPTIMIZER_SLOT/sgd/m",
    "sgd/.OPTIMIZER_SLOT/m of net/w",
    ".OPTIMIZER_SLOT/m of net/w",
]


def variable(key: str) -> Node:
    return Node(attributes=[Attribute("VARIABLE_VALUE", "", f"{key}{VALUE_SUFFIX}")])


def keras(prefix: Path) -> Path:
    nodes = [
        Node([("optimizer", 1), ("model", 2), ("net", 10), ("sgd", 12)]),
        Node([("_trainable_variables", 3), ("_variables", 4), ("_iterations", 5)]),
        Node([("dense", 6), ("layers", 7)]),
        Node([("0", 8)]),
        Node([("0", 5), ("1", 9)]),
        variable("optimizer/_iterations"),
        Node([("kernel", 8)]),
        Node([("0", 6)]),
        variable("optimizer/_trainable_variables/0"),
        variable("optimizer/_variables/1"),
        Node([("w", 11)]),
        variable("net/w"),
        Node(slot_variables=[SlotVariable(11, "m", 13)]),
        Node(attributes=[Attribute("VARIABLE_VALUE", "", SLOT)]),
    ]
    tensors = {
        one.checkpoint_key: np.full((2, 3), number, np.float32)
        for number, node in enumerate(nodes)
        for one in node.attributes
    }
    graph = np.array(encode_graph(ObjectGraph(nodes)), object)
    ckptfmt.save(prefix, tensors | {OBJECT_GRAPH_KEY: graph})
    return prefix


@pytest.mark.parametrize(
    ("name", "stored", "value"),
    [(one, STORED, 8) for one in NAMES] + [(one, SLOT, 13) for one in SLOT_NAMES],
)
def test_every_command_takes_every_name(
    name: str, stored: str, value: int, tmp_path: Path, command: Command
) -> None:
    prefix, out = keras(tmp_path / "m"), tmp_path / "out"
    with ckptfmt.open(prefix) as reader:
        assert name in reader and reader[name].name == stored
        assert reader.read(name)[0, 0] == reader.get(name.encode()).read()[0, 0] == value
    assert ckptfmt.load(prefix, [name]).keys() == {name}
    assert ckptfmt.load(prefix, filter=name).keys() == {stored}
    assert ckptfmt.load(prefix, cast={name: "float16"})[stored].dtype == np.float16
    target = np.zeros((2, 3), "f4")
    assert ckptfmt.load_into(prefix, {name: target}, names=[name]) and target[0, 0] == value
    ran = command("show", "--json", prefix, f"{name}[0, 0]")
    assert ran.status == 0 and f'"values": {value}.0' in ran.out
    ran = command("inspect", "--json", prefix, "--filter", name)
    assert ran.status == 0 and ran.out.count('"stored_nbytes"') == 1 and stored in ran.out
    ran = command("diff", prefix, prefix, "--filter", name)
    assert (ran.status, ran.out) == (0, "equal: 1 tensor equal\n")
    ran = command("edit", prefix, out, "--cast", f"{name}=float16")
    assert ran.status == 0
    with ckptfmt.open(out) as reader:
        assert reader[stored].dtype == np.float16
    ran = command("edit", prefix, out, "--drop", name, "--drop-weights", "--overwrite")
    with ckptfmt.open(out) as reader:
        assert ran.status == 0 and stored not in reader


def test_the_name_that_is_printed(tmp_path: Path, command: Command) -> None:
    prefix = keras(tmp_path / "m")
    listed = command("inspect", prefix).out
    assert f"\n{SHOWN} " in listed and "VARIABLE_VALUE" not in listed
    assert STORED in command("inspect", "--raw-names", prefix).out
    assert command("show", prefix, STORED).out.startswith(f"{SHOWN}  float32 [2, 3]\n")
    document = json.loads(command("inspect", "--json", prefix, "--filter", STORED).out)
    shown = json.loads(command("show", "--json", prefix, SHOWN).out)
    for one in (*document["tensors"], shown):
        assert (one["name"], one["display"]) == (STORED, SHOWN)
    tree = command("inspect", "--tree", prefix).out
    assert "_variables/" in tree and "_trainable_variables/" not in tree
    (model,) = (line for line in tree.splitlines() if "model/" in line and "->" not in line)
    assert model.split()[1:3] == ["model/", "1"], "weights are counted in the model"
    assert "elements: weights 12, optimizer 18" in listed


@pytest.mark.parametrize("path", ["model/layers/0/kernel", r"model/layers/0\x2fkernel"])
def test_show_takes_any_path_of_the_graph(path: str, tmp_path: Path, command: Command) -> None:
    ran = command("show", keras(tmp_path / "m"), path)
    assert ran.status == (0 if "\\" not in path else 2)
    assert ran.out.startswith(SHOWN if "\\" not in path else "")


def test_a_glob_means_the_model(tmp_path: Path, command: Command) -> None:
    prefix = keras(tmp_path / "m")
    ran = command("edit", prefix, tmp_path / "o", "--keep", "model/*", "--keep", "net/w")
    with ckptfmt.open(tmp_path / "o") as reader:
        assert ran.status == 0
        assert set(reader) >= {STORED, f"net/w{VALUE_SUFFIX}"}
    ran = command("edit", prefix, tmp_path / "o", "--drop", "model/*", "--overwrite")
    assert ran.status == 2 and "--drop-weights" in ran.err


@pytest.mark.parametrize("given", ["*/w", "*net/w", "/w$/", "/ of /", "sgd/*"])
def test_filters_do_not_take_slots_by_their_variable(
    given: str, tmp_path: Path, command: Command
) -> None:
    prefix = keras(tmp_path / "m")
    has_w = given in ("*/w", "*net/w", "/w$/")
    ran = command("edit", prefix, tmp_path / "o", "--cast", f"{given}=float16")
    assert ran.status == (0 if has_w else 2)
    if has_w:
        with ckptfmt.open(tmp_path / "o") as reader:
            found = {name for name in reader if reader[name].dtype == np.float16}
        assert found == {f"net/w{VALUE_SUFFIX}"}
    ran = command("edit", prefix, tmp_path / "p", "--drop", given, "--drop-weights", "--json")
    assert ran.status == (0 if has_w else 2)
    assert not has_w or json.loads(ran.out)["dropped"] == [f"net/w{VALUE_SUFFIX}"]
    ran = command("inspect", "--json", prefix, "--filter", given)
    assert SLOT not in ran.out
    ran = command("diff", prefix, prefix, "--filter", given)
    assert "1 tensor equal" in ran.out or not has_w


def test_a_name_of_two_tensors(tmp_path: Path, command: Command) -> None:
    nodes = [
        Node([("net", 1), ("a", 3), ("b", 4)]),
        Node([("w", 2)]),
        variable("net/w"),
        Node(slot_variables=[SlotVariable(2, "m", 5)]),
        Node(slot_variables=[SlotVariable(2, "m", 6)]),
        variable("net/w/.OPTIMIZER_SLOT/a/m"),
        variable("net/w/.OPTIMIZER_SLOT/b/m"),
    ]
    tensors = {one.checkpoint_key: np.ones(2) for node in nodes for one in node.attributes}
    graph = np.array(encode_graph(ObjectGraph(nodes)), object)
    ckptfmt.save(tmp_path / "m", tensors | {OBJECT_GRAPH_KEY: graph})
    ran = command("show", tmp_path / "m", ".OPTIMIZER_SLOT/m of net/w")
    assert ran.status == 2 and "2 tensors" in ran.err and "SLOT/a/m" in ran.err
    calls = [ckptfmt.Reader.read, ckptfmt.Reader.__getitem__, lambda one, name: one.get(name)]
    calls += [lambda one, name: ckptfmt.load(one.prefix, [name])]
    with ckptfmt.open(tmp_path / "m") as reader:
        for call in calls:
            with pytest.raises(ckptfmt.InvalidError):
                call(reader, ".OPTIMIZER_SLOT/m of net/w")
        with pytest.raises(ckptfmt.TensorNotFoundError):
            reader["of net/w"]
        assert "of net/w" not in reader and f"net/w{VALUE_SUFFIX}x" not in reader


def test_filters_of_loads_match_all_names(tmp_path: Path) -> None:
    prefix = keras(tmp_path / "m")
    found = ckptfmt.load(prefix, filter="/^(model|net)/")
    assert found.keys() == {STORED, SLOT, f"net/w{VALUE_SUFFIX}"}
    assert ckptfmt.load(prefix, filter="optimizer/_trainable_variables/*").keys() == {STORED}
    assert ckptfmt.load(prefix, filter="model/*").keys() == {STORED}
    assert ckptfmt.load(prefix, filter="/^model.*kernel$/").keys() == {STORED}
    with pytest.raises(ckptfmt.TensorNotFoundError):
        ckptfmt.load(prefix, filter=lambda name: name == SHOWN)
    with pytest.raises(ckptfmt.InvalidError):
        ckptfmt.load(prefix, [STORED, SHOWN])


def test_the_order_is_that_in_which_people_count(tmp_path: Path, command: Command) -> None:
    """In text: 2 before 10. JSON is in byte order."""
    names = ["w1", "w02", "w2", "w10", "x"]
    arrays = {name: np.ones(5) for name in names}
    ckptfmt.save(tmp_path / "a", arrays)
    ckptfmt.save(tmp_path / "b", {name: array + 1 for name, array in arrays.items()})
    np.savez(tmp_path / "a.npz", **arrays)
    for path in (tmp_path / "a", tmp_path / "a.npz"):
        rows = [line.split()[:1] for line in command("inspect", path).out.splitlines()]
        assert [row[0] for row in rows if row and row[0] in names] == names
        assert command("show", path).out.split() == names
        document = json.loads(command("inspect", "--json", path).out)
        assert [one["name"] for one in document["tensors"]] == sorted(names)
    lines = command("diff", tmp_path / "a", tmp_path / "b").out.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == names


CORPUS = os.environ.get("CKPTFMT_CORPUS", "")
CASES = sorted(Path(CORPUS).glob("*/expected.json")) if CORPUS else []


@pytest.mark.skipif(not CORPUS, reason="CKPTFMT_CORPUS is not set")
def test_the_corpus_has_the_names_that_are_printed(tmp_path: Path, command: Command) -> None:
    for path in CASES:
        prefix = path.parent.parent / json.loads(path.read_text(encoding="utf-8"))["prefix"]
        with ckptfmt.open(prefix) as reader:
            shown = {TensorNames(reader).shown(stored): stored for stored in reader}
            assert len(shown) == len(reader)
            assert {one: reader[one].name for one in shown} == shown, prefix
        last = max(shown)
        assert ckptfmt.load(prefix, [*shown]).keys() == shown.keys()
        assert command("show", prefix, last, "--json").status == 0, (prefix, last)
        assert command("diff", prefix, prefix, "--filter", last).out.startswith("equal: 1 tensor")
        words = ["edit", "-q", prefix, tmp_path / "o", "--overwrite", "--drop-weights"]
        assert command(*words, "--keep", last).status == 0, (prefix, last)


def test_a_stored_name_comes_first(tmp_path: Path, command: Command) -> None:
    """Two tensors are not shown under one name either."""
    ckptfmt.save(tmp_path / "m", {"a": np.zeros(1), f"a{VALUE_SUFFIX}": np.ones(1)})
    assert command("show", tmp_path / "m", "a").out.endswith("[0.]\n")
    listed = command("inspect", tmp_path / "m").out
    assert listed.count("\na ") == 1 and f"\na{VALUE_SUFFIX} " in listed


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("optimizer/_iteration", "optimizer/_iterations"),
        ("kernel", SHOWN),
        ("model/dens/kernel", SHOWN),
    ],
)
def test_near_names(typed: str, hint: str, tmp_path: Path, command: Command) -> None:
    ran = command("show", keras(tmp_path / "m"), typed)
    assert ran.status == 2 and f"the nearest are '{hint}'" in ran.err


@pytest.mark.parametrize(("old", "new"), [("net/w", "net/v"), (SHOWN, "k"), ("model/*", "*")])
def test_rename_takes_the_names_that_are_printed(
    old: str, new: str, tmp_path: Path, command: Command
) -> None:
    prefix, rule = keras(tmp_path / "m"), f"{old}={new}"
    ran = command("edit", prefix, tmp_path / "o", "--rename", rule)
    before = old.replace("model/*", SHOWN)
    after = new.replace("*", "dense/kernel")
    assert ran.out.startswith(f"renamed 1 tensor\n  {before} to {after}\n")
    with ckptfmt.open(tmp_path / "o") as reader:
        assert f"{after}{VALUE_SUFFIX}" in reader
    command("convert", "-q", prefix, tmp_path / "o.npz", "--keep", old, "--rename", rule)
    assert [leaf_name(name) for name in np.load(tmp_path / "o.npz")] == [after]
    assert command("diff", prefix, tmp_path / "o", "--rename", rule, "--filter", after).status == 0


def test_filters_take_names_as_they_are_printed(tmp_path: Path, command: Command) -> None:
    ckptfmt.save(tmp_path / "m", {name: np.zeros(1, "f4") for name in ("a\n", "b")})
    words = ["edit", "-q", tmp_path / "m", tmp_path / "o", "--drop-weights"]
    assert command(*words, "--drop", "a\\n").status == 0
    assert [*ckptfmt.load(tmp_path / "o")] == ["b"]


@pytest.mark.parametrize("optimizers", [set[int](), {1}, set(range(0, 300, 7))])
def test_paths_of_a_hostile_graph(optimizers: set[int]) -> None:
    long = "x" * 1000
    nodes = [Node([(long, (number * 7 + step) % 300) for step in (1, 2)]) for number in range(300)]
    paths = ObjectPaths(ObjectGraph(nodes), optimizers)
    assert sorted(paths.order) == list(range(300)) and paths.order[0] == 0
    places = {number: place for place, number in enumerate(paths.order)}
    assert all(places[paths.owners[one][0]] < places[one] for one in paths.order[1:])
    assert all(len(paths.whole_path(one) or "") <= 4096 for one in paths.order)


def test_paths_of_a_hostile_graph_take_bounded_memory(tmp_path: Path) -> None:
    children = [(str(number), 2) for number in range(50_000)]
    nodes = [Node([("long" * 1000, 1), ("w", 2)]), Node(children), variable("w")]
    graph = np.array(encode_graph(ObjectGraph(nodes)), object)
    ckptfmt.save(tmp_path / "m", {f"w{VALUE_SUFFIX}": np.ones(3), OBJECT_GRAPH_KEY: graph})
    with ckptfmt.open(tmp_path / "m") as reader:
        names = TensorNames(reader).aliases[f"w{VALUE_SUFFIX}"]
        assert names[0] == "w" and sum(map(len, names)) < 65 << 20


def test_filters_take_every_path_through_a_shared_object(tmp_path: Path, command: Command) -> None:
    shared = {"k": 5, "w": np.ones(2)}
    ckptfmt.save_tree(tmp_path / "tree", {"a": shared, "b": [shared, np.zeros(7)]})
    for path in ("a/w", "b/0/w"):
        ran = command("show", "--json", tmp_path / "tree", path)
        assert json.loads(ran.out)["name"].startswith("a/w/")
        ran = command("inspect", "--json", "--filter", path, tmp_path / "tree")
        assert len(json.loads(ran.out)["tensors"]) == 1
        ran = command(
            "edit", "-n", "--json", "--drop", path, "--drop-weights", tmp_path / "tree", "x"
        )
        assert ran.status == 0 and json.loads(ran.out)["dropped"] == [
            "a/w/.ATTRIBUTES/VARIABLE_VALUE"
        ]


def test_names_of_the_format_are_no_paths(tmp_path: Path) -> None:
    graph = np.array(encode_graph(ObjectGraph([Node([(METADATA, 1)]), variable("w")])), object)
    ckptfmt.save(tmp_path / "m", {f"w{VALUE_SUFFIX}": np.ones(3), OBJECT_GRAPH_KEY: graph})
    with ckptfmt.open(tmp_path / "m") as reader:
        assert METADATA not in reader and reader.metadata == {}
        with pytest.raises(ckptfmt.TensorNotFoundError):
            _ = reader["w/part_" + "9" * 5000]
