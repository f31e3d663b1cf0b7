# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt.editing.edit` of checkpoints with an object graph."""

from __future__ import annotations

import contextlib
import copy
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files import contents
from support.graphs import Builder, blank
from support.strategies import object_graphs, property_test

import ckptfmt
from ckptfmt import InvalidError
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY, Attribute, Node, ObjectGraph, encode_graph
from ckptfmt.bundle.graph_keys import graph_of, key_groups, missing_keys
from ckptfmt.editing import edit
from ckptfmt.naming.graphs import edited_graph

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
OPTIONS = ckptfmt.tf.CheckpointOptions(durability="none")


def graph_at(prefix: Path) -> ObjectGraph:
    with ckptfmt.open(prefix) as reader:
        graph = graph_of(reader)
        assert graph is not None and missing_keys(reader, graph) == []
    return graph


def tree() -> dict[str, Any]:
    return {
        "model": {"dense": {"w": np.ones((3, 2)), "b": np.zeros(2)}, "out": {"w": np.ones(2)}},
        "step": 7,
        "list": [np.ones(1), np.ones(2)],
    }


@property_test(40, 4_000, object_graphs())
def test_new_keys_restore_the_same_objects(tmp_path: Path, case: dict[str, Any]) -> None:
    first, second = Builder(), Builder()
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        one, other = Path(folder) / "one" / "ck", Path(folder) / "other" / "ck"
        first.checkpoint(case).write(one, OPTIONS)
        try:
            edit(one, other, rename=lambda name: f"k/{name}", durability="none")
        except ckptfmt.TensorNotFoundError:
            return  # no tensors
        except InvalidError as error:
            assert "no tensor is left" in str(error)
            return
        status = second.checkpoint(blank(case)).read(other)
        status.assert_consumed().assert_existing_objects_matched()
        assert second.values() == first.values()


def test_objects_are_renamed_with_their_tensors(tmp_path: Path) -> None:
    ckptfmt.save_tree(tmp_path / "a", tree())
    done = edit(tmp_path / "a", tmp_path / "b", rename=[("^model/dense", "model/hid")])
    assert done.renamed == {
        f"model/dense/{name}{VALUE}": f"model/hid/{name}{VALUE}" for name in "wb"
    }
    assert set(ckptfmt.load_tree(tmp_path / "b")["model"]) == {"hid", "out"}


def test_moving_all_of_an_object(tmp_path: Path) -> None:
    ckptfmt.save_tree(tmp_path / "a", tree())
    edit(tmp_path / "a", tmp_path / "b", rename=[("^model/", "net/"), ("/dense/", "/a.Sb/")])
    loaded = ckptfmt.load_tree(tmp_path / "b")
    assert set(loaded) == {"net", "step", "list"} and set(loaded["net"]) == {"a/b", "out"}
    assert np.array_equal(loaded["net"]["a/b"]["w"], np.ones((3, 2)))
    # Two objects change places.
    swapped = {"dense": "out", "out": "dense"}
    edit(
        tmp_path / "a",
        tmp_path / "c",
        rename=lambda name: "/".join(swapped.get(part, part) for part in name.split("/")),
    )
    assert ckptfmt.load_tree(tmp_path / "c")["model"]["out"]["b"].shape == (2,)


def test_half_of_an_object_cannot_move(tmp_path: Path) -> None:
    ckptfmt.save_tree(tmp_path / "a", tree())
    before = contents(tmp_path)
    with pytest.raises(InvalidError, match=r"object 'dense' .* different places: .* alike"):
        edit(
            tmp_path / "a",
            tmp_path / "b",
            rename={f"model/dense/w{VALUE}": f"model/hidden/w{VALUE}"},
        )
    # An element of a list stays as None.
    given: dict[str, Any] = {"rename": [("^list/1/", "list/0/")], "drop": "list/0/*"}
    with pytest.raises(InvalidError, match="two objects of the object graph the path '0'"):
        edit(tmp_path / "a", tmp_path / "b", **given, drop_weights=True)
    assert contents(tmp_path) == before
    given = {"rename": [("/dense/", "/out/")], "drop": "*/out/*", "drop_weights": True}
    edit(tmp_path / "a", tmp_path / "b", **given)
    assert np.array_equal(ckptfmt.load_tree(tmp_path / "b")["model"]["out"]["w"], np.ones((3, 2)))


def test_other_names_are_keys_only(tmp_path: Path) -> None:
    ckptfmt.save_tree(tmp_path / "a", tree())
    edit(tmp_path / "a", tmp_path / "b", rename=[(f"model/(.*){VALUE}", r"weights.\1")])
    assert "weights.dense/w" in ckptfmt.load(tmp_path / "b")
    loaded = ckptfmt.load_tree(tmp_path / "b")
    assert np.array_equal(loaded["model"]["dense"]["w"], np.ones((3, 2)))


def test_dropped_objects(tmp_path: Path) -> None:
    ckptfmt.save_tree(tmp_path / "a", tree())
    edit(tmp_path / "a", tmp_path / "b", drop=["model/dense/*", "list/0/*"], drop_weights=True)
    loaded = ckptfmt.load_tree(tmp_path / "b")
    assert set(loaded["model"]) == {"out"} and loaded["step"] == 7
    assert loaded["list"][0] is None and loaded["list"][1].shape == (2,)
    assert len(graph_at(tmp_path / "b").nodes) == len(graph_at(tmp_path / "a").nodes) - 3
    edit(tmp_path / "a", tmp_path / "c", keep="step/*", drop_weights=True)
    assert ckptfmt.load_tree(tmp_path / "c")["step"] == 7


def test_the_graph_is_dropped_by_its_name_only(tmp_path: Path) -> None:
    ckptfmt.save_tree(tmp_path / "a", tree())
    edit(tmp_path / "a", tmp_path / "b", keep="/./", drop="list/0/*", drop_weights=True)
    assert OBJECT_GRAPH_KEY in ckptfmt.load(tmp_path / "b")
    edit(tmp_path / "a", tmp_path / "c", drop=OBJECT_GRAPH_KEY)
    assert graph_at(tmp_path / "b") and OBJECT_GRAPH_KEY not in ckptfmt.load(tmp_path / "c")
    with pytest.raises(InvalidError, match="graph cannot be renamed"):
        edit(tmp_path / "a", tmp_path / "d", rename={OBJECT_GRAPH_KEY: "g"})
    with pytest.raises(InvalidError, match="no tensor is left"):
        edit(tmp_path / "a", tmp_path / "d", drop="*")


def test_saved_models(tmp_path: Path) -> None:
    """`saved_model.pb` refers to the objects of the checkpoint beside it."""
    prefix = tmp_path / "model" / "variables" / "variables"
    ckptfmt.save_tree(prefix, tree())
    edit(prefix, prefix, drop="step/*")  # without a saved_model.pb
    (tmp_path / "model" / "saved_model.pb").touch()
    for options in (
        {"drop": "list/0/*", "drop_weights": True},
        {"cast": "float16"},
        {"rename": [("^model/", "net/")]},
    ):
        with pytest.raises(InvalidError, match="belongs to a SavedModel"):
            edit(prefix, prefix, **options)  # type: ignore[arg-type]
        with contextlib.chdir(prefix.parent), pytest.raises(InvalidError, match="SavedModel"):
            edit("variables", "variables", **options)  # type: ignore[arg-type]
        edit(prefix, tmp_path / "a", **options)  # type: ignore[arg-type]
    edit(prefix, prefix, rename=[("^model/", "the/model/")], metadata={"by": "me"})
    assert "model" in ckptfmt.load_tree(tmp_path / "model")


def keras_3() -> ObjectGraph:
    """An optimizer that lists the variables of the model, whose keys are paths of the optimizer."""

    def variable(path: str) -> Node:
        return Node(attributes=[Attribute("VARIABLE_VALUE", "", path + VALUE)])

    root = Node(children=[("model", 1), ("optimizer", 2)])
    model = Node(children=[("a.b", 4), ("c", 5)])
    optimizer = Node(children=[("_trainable_variables", 3), ("_iterations", 6), ("_variables", 7)])
    listed = Node(children=[("0", 4), ("1", 5)])
    paths = [f"optimizer/_trainable_variables/{number}" for number in range(2)]
    leaves = map(variable, (*paths, "optimizer/_iterations"))
    return ObjectGraph([root, model, optimizer, listed, *leaves, Node(children=[("0", 6)])])


def test_variables_at_paths_of_a_stripped_optimizer(tmp_path: Path) -> None:
    graph = np.array(encode_graph(keras_3()), object)
    keys = [one.checkpoint_key for node in keras_3().nodes for one in node.attributes]
    values = {key: np.full(3, number) for number, key in enumerate(keys)}
    ckptfmt.save(tmp_path / "a", {**values, OBJECT_GRAPH_KEY: graph})
    done = edit(tmp_path / "a", tmp_path / "b", strip_optimizer=True)
    assert done.renamed == {keys[0]: f"model/a..b{VALUE}", keys[1]: f"model/c{VALUE}"}
    assert done.dropped == (keys[2],)
    loaded = ckptfmt.load_tree(tmp_path / "b")
    assert {name: array[0] for name, array in loaded["model"].items()} == {"a.b": 0, "c": 1}
    assert set(loaded) == {"model"}
    variables = tmp_path / "model" / "variables" / "variables"
    ckptfmt.save(variables, {**values, OBJECT_GRAPH_KEY: graph})
    (tmp_path / "model" / "saved_model.pb").touch()
    with pytest.warns(ckptfmt.CkptfmtWarning, match="cannot replace the variables"):
        edit(variables, tmp_path / "b", strip_optimizer=True)
    with pytest.raises(InvalidError, match="belongs to a SavedModel"):
        edit(tmp_path / "a", variables, strip_optimizer=True)
    # A tensor that is found through the optimizer alone: nothing is cut.
    other = keras_3()
    other.nodes[1].children.pop()
    graph[()] = encode_graph(other)
    ckptfmt.save(tmp_path / "a", {**values, OBJECT_GRAPH_KEY: graph})
    done = edit(tmp_path / "a", tmp_path / "b", strip_optimizer=True)
    assert (done.renamed, done.dropped) == ({}, (keys[2],))
    assert set(ckptfmt.load_tree(tmp_path / "b")) == {"model", "optimizer"}


def test_tables_at_paths_of_a_stripped_optimizer(tmp_path: Path) -> None:
    """A key that stands for several tensors stays."""
    graph = keras_3()
    table = "optimizer/_trainable_variables/0/.ATTRIBUTES/table"
    graph.nodes[4].attributes = [Attribute("table", "", table)]
    text = np.array(encode_graph(graph), object)
    keys = [one.checkpoint_key for node in graph.nodes[5:] for one in node.attributes]
    names = [f"{table}-keys", f"{table}-values", *keys]
    ckptfmt.save(tmp_path / "a", {**dict.fromkeys(names, np.ones(3)), OBJECT_GRAPH_KEY: text})
    done = edit(tmp_path / "a", tmp_path / "b", strip_optimizer=True)
    assert done.renamed == {keys[0]: f"model/c{VALUE}"}
    assert len(graph_at(tmp_path / "b").nodes) == 4


def table_graph() -> ObjectGraph:
    """An object that is stored as two tensors, under one key."""
    root = Node(children=[("t", 1), ("v", 2)])
    table = Node(attributes=[Attribute("table", "", "t/.ATTRIBUTES/table")])
    variable = Node(attributes=[Attribute("VARIABLE_VALUE", "v", f"v{VALUE}")])
    return ObjectGraph([root, table, variable])


def test_objects_of_several_tensors() -> None:
    graph = table_graph()
    kept = copy.deepcopy(graph)
    keys, values = "t/.ATTRIBUTES/table-keys", "t/.ATTRIBUTES/table-values"
    names: dict[str, str | None] = {keys: keys, values: values, f"v{VALUE}": f"v{VALUE}"}
    renamed = edited_graph(graph, {**names, keys: "s/x-keys", values: "s/x-values"})
    assert renamed.nodes[1].attributes[0].checkpoint_key == "s/x"
    dropped = edited_graph(graph, {**names, keys: None, values: None})
    assert [node.children for node in dropped.nodes] == [[("v", 1)], []]
    for half in ({keys: None}, {keys: "x-keys"}, {keys: "x", values: "y"}):
        with pytest.raises(InvalidError, match="common beginning"):
            edited_graph(graph, {**names, **half})
    assert graph == kept


def test_tensors_below_the_key_of_an_attribute(tmp_path: Path) -> None:
    """Savers of older versions name the tensors of an object `KEY/...`. Slot variables, whose names
    begin with the path of their variable, are not among these."""
    key = "o/.ATTRIBUTES/OBJECT"
    nodes = [Node([("o", 1), ("w", 2)]), Node(attributes=[Attribute("OBJECT", "", key)])]
    nodes.append(Node(attributes=[Attribute("VARIABLE_VALUE", "", f"w{VALUE}")]))
    text = np.array(encode_graph(ObjectGraph(nodes)), object)
    names = [f"{key}/a", f"{key}/b/c", f"w/.OPTIMIZER_SLOT/o/m{VALUE}", f"w{VALUE}2/a"]
    assert key_groups([key, f"w{VALUE}"], names) == {key: names[:2]}
    values = dict.fromkeys(names, np.ones(2))
    ckptfmt.save(tmp_path / "a", {**values, OBJECT_GRAPH_KEY: text})
    with ckptfmt.open(tmp_path / "a") as reader:
        graph = graph_of(reader)
        assert graph is not None and missing_keys(reader, graph) == [f"w{VALUE}"]
    long = f"{key}{'/x' * 1000}"
    assert key_groups([key], [long, f"{key}/{'x' * 200}"]) == {key: [f"{key}/{'x' * 200}"]}


def test_hostile_graphs_take_linear_time() -> None:
    """A node with many children that go, a cycle, and a chain."""
    count, began = 12_000, time.process_time()
    root = Node(children=[(str(number), number + 1) for number in range(count)])
    leaves = [Node(attributes=[Attribute("a", "", f"k{number}")]) for number in range(count)]
    names: dict[str, str | None] = {f"k{number}": None for number in range(count - 1)}
    names[f"k{count - 1}"] = "x"
    result = edited_graph(ObjectGraph([root, *leaves]), names)
    assert [node.children for node in result.nodes] == [[(str(count - 1), 1)], []]
    chain = [Node(children=[("c", number + 1)]) for number in range(count)]
    end = Node(attributes=[Attribute("a", "", "k0"), Attribute("b", "", "k1")])
    end.children.append(("back", 0))
    result = edited_graph(ObjectGraph([*chain, end]), {"k0": None, "k1": "k1"})
    assert len(result.nodes) == count + 1
    assert time.process_time() - began < 6


def test_random_drops_leave_a_sound_graph(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    values = {f"l{number}": {"w": np.ones(2), "m": [np.ones(1)] * 3} for number in range(8)}
    ckptfmt.save_tree(tmp_path / "a", values)
    with ckptfmt.open(tmp_path / "a") as reader:
        names = [name for name in reader if name != OBJECT_GRAPH_KEY]
    for _ in range(20):
        dropped = chance.sample(names, chance.randrange(1, len(names)))
        edit(
            tmp_path / "a",
            tmp_path / "b",
            drop=[name.__eq__ for name in dropped],
            drop_weights=True,
        )
        graph_at(tmp_path / "b")
        ckptfmt.load_tree(tmp_path / "b")
