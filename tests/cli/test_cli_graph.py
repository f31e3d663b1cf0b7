# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt inspect --tree` shows the objects of the object graph, and names where it cannot."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files import flip

import ckptfmt
from ckptfmt.bundle.graph import (
    OBJECT_GRAPH_KEY,
    Attribute,
    Node,
    ObjectGraph,
    SlotVariable,
    encode_graph,
)
from ckptfmt.cli import main
from ckptfmt.objects.nodes import Slot, TreeNode
from ckptfmt.objects.trees import save_tree
from cli.commands import Command, Ran, data_file


@pytest.fixture
def command(command: Command) -> Command:
    """Runs `ckptfmt inspect --tree` in this process."""
    return functools.partial(command, "inspect", "--tree")


def tree_in(ran: Ran) -> list[str]:
    """The lines of the tree, without the header and the totals, its columns two blanks apart."""
    lines = ran.out.split("\n\n")[1].splitlines()
    return [re.sub(r"(?<=[^ │]) {2,}", "  ", line) for line in lines]


def model() -> dict[str, Any]:
    kernel = np.ones((8, 4), np.float32)
    optimizer = TreeNode(
        {"step": 3, "of": kernel},
        attributes={"py_state": np.array(b"{}", object)},
        slots=[Slot(kernel, "m/1", np.zeros((8, 4), np.float32))],
    )
    tree = {
        "kernel": kernel,
        "layers": [{"kernel": kernel, "b.s": np.zeros(4)}, ("x\n", None)],
        "optimizer": optimizer,
    }
    tree["layers"].append(tree)  # type: ignore[attr-defined]
    return tree


def test_objects(tmp_path: Path, command: Command) -> None:
    prefix = save_tree(tmp_path / "ckpt", model())
    with ckptfmt.open(prefix) as reader:
        size = reader[OBJECT_GRAPH_KEY].stored_nbytes
    ran = command("--all", prefix)
    assert (ran.status, ran.err) == (0, "")
    assert "without tensors" not in ran.out
    assert tree_in(ran) == [
        "name  tensors  elements  bytes  dtype  shape  kind",
        "├─ kernel  32  128 B  float32  [8, 4]",
        "├─ layers/  2  5  39 B  list",
        "│  ├─ 0/  1  4  32 B  dict",
        "│  │  ├─ kernel -> kernel",
        "│  │  └─ b..s  4  32 B  float64  [4]",
        "│  ├─ 1/  1  1  7 B  tuple",
        "│  │  ├─ 0  1  7 B  string  []  str",
        "│  │  └─ 1  0  0  0 B  none",
        "│  └─ 2 -> (root)",
        "├─ optimizer/  3  34  143 B",
        "│  ├─ .ATTRIBUTES/py_state  1  7 B  string  []",
        "│  ├─ step  1  8 B  int64  []  int",
        "│  ├─ of -> kernel",
        "│  └─ .OPTIMIZER_SLOT/m.S1 of kernel  32  128 B  float32  [8, 4]",
        f"└─ _CHECKPOINTABLE_OBJECT_GRAPH  1  {size} B  string  []",
    ]
    assert "\n7 tensors, " in ran.out


def test_objects_without_tensors_are_hidden(tmp_path: Path, command: Command) -> None:
    tree = {"w": np.ones(2), "empty": {"inside": []}, "l": [np.ones(3), None]}
    shown = command(save_tree(tmp_path / "ckpt", {**tree, "again": tree["empty"]}))
    assert tree_in(shown)[:4] == [
        "name  tensors  elements  bytes  dtype  shape  kind",
        "├─ w  2  16 B  float64  [2]",
        "├─ l/  1  3  24 B  list",
        "│  └─ 0  3  24 B  float64  [3]",
    ]
    assert "\n... and 3 objects without tensors (--all lists them)\n" in shown.out
    listed = command("--all", tmp_path / "ckpt").out
    for label in ("empty/", "inside/", "again -> empty", "1 "):
        assert f"─ {label}" in listed and f"─ {label}" not in shown.out
    assert "--all" not in command("--filter", "w/*", tmp_path / "ckpt").out


def test_no_column_without_kinds(tmp_path: Path, command: Command) -> None:
    nodes = [Node([("v", 1), ("metrics", 2)]), Node([], value("v")), Node([], kind="list")]
    prefix = write(tmp_path / "ckpt", ObjectGraph(nodes), v=np.ones(1))
    assert tree_in(command(prefix))[0] == "name  tensors  elements  bytes  dtype  shape"
    assert tree_in(command("--all", prefix))[0].endswith("  kind")


def test_filter_sort_and_limit(tmp_path: Path, command: Command) -> None:
    prefix = save_tree(tmp_path / "ckpt", model())
    assert tree_in(command("--filter", "*b..s*", prefix)) == [
        "name  tensors  elements  bytes  dtype  shape  kind",
        "└─ layers/  1  4  32 B  list",
        "   └─ 0/  1  4  32 B  dict",
        "      └─ b..s  4  32 B  float64  [4]",
    ]
    assert tree_in(command("--sort", "size", "--filter", "[!_]*", "--limit", "2", prefix))[1:] == [
        "├─ optimizer/  3  34  143 B",
        "│  ├─ .OPTIMIZER_SLOT/m.S1 of kernel  32  128 B  float32  [8, 4]",
        "│  ├─ step  1  8 B  int64  []  int",
        "... and 4 tensors more",
    ]


def write(prefix: Path, content: Any, **tensors: Any) -> Path:
    if isinstance(content, ObjectGraph):
        content = encode_graph(content)
    ckptfmt.save(prefix, {**tensors, OBJECT_GRAPH_KEY: content}, level="v2")
    return prefix


def value(key: str) -> list[Attribute]:
    return [Attribute("VARIABLE_VALUE", "", key)]


def test_foreign_graphs(tmp_path: Path, command: Command) -> None:
    nodes = [
        Node([("a", 1), ("a/b", 1), ("\x1b[31m", 2), ("saved", 4)]),
        Node([("up", 0)], value("v")),
        Node([], value("v"), kind="new\n"),
        Node([], [], [SlotVariable(3, "m", 3)]),
        Node([], [], [SlotVariable(3, "m", 5)], registered_saver=("my.saver", "x")),
        Node([], value("w")),
    ]
    prefix = write(tmp_path / "ckpt", ObjectGraph(nodes), v=np.ones(1), w=np.ones(1), z=np.ones(1))
    ran = command(prefix, "--color", "never")
    assert (ran.status, ran.err) == (0, "")
    with ckptfmt.open(prefix) as reader:
        size = reader[OBJECT_GRAPH_KEY].stored_nbytes
    assert tree_in(ran)[1:] == [
        "├─ a/  1  1  8 B",
        "│  ├─ .ATTRIBUTES/VARIABLE_VALUE  1  8 B  float64  [1]",
        "│  └─ up -> (root)",
        "├─ a.Sb -> a",
        "├─ \\x1b[31m  1  8 B  float64  [1]  new\\n",
        "├─ saved/  1  1  8 B  saved by my.saver",
        "│  └─ .OPTIMIZER_SLOT/m of (an object that the root does not reach)  1  8 B  float64  [1]",
        f"├─ _CHECKPOINTABLE_OBJECT_GRAPH  1  {size} B  string  []",
        "└─ z  1  8 B  float64  [1]",
    ]


def test_a_deep_graph_is_cut(tmp_path: Path, command: Command) -> None:
    nodes = [Node([("n", number + 1)]) for number in range(5_000)]
    prefix = write(tmp_path / "ckpt", ObjectGraph([*nodes, Node([], value("v"))]), v=np.ones(1))
    lines = tree_in(command(prefix))
    assert len(lines) == 1 + 41 + 2
    assert lines[-3].lstrip("│ ").startswith("└─ n/ ...")
    assert lines[-1] == "... and 1 tensor more"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x0a", "a truncated number, at byte 1 of the object graph"),
        (b"", "no nodes"),
        (np.array(3), "OBJ-1: the object graph is int64[], not one string"),
    ],
)
def test_names_where_the_graph_is_damaged(
    tmp_path: Path, command: Command, content: Any, problem: str
) -> None:
    ran = command(write(tmp_path / "ckpt", content, **{"a/b": np.ones(1)}))
    assert ran.status == 1
    assert ran.err.startswith("problem: ")
    assert problem in ran.err
    assert "├─ a/b" in ran.out or "└─ a/b" in ran.out


def test_damaged_bytes_of_the_graph(tmp_path: Path, command: Command) -> None:
    prefix = save_tree(tmp_path / "ckpt", {"a": np.ones(2)}, level="v2")
    flip(data_file(tmp_path / "ckpt"), 40)
    ran = command(prefix)
    assert ran.status == 1
    assert "problem: CHECKSUM" in ran.err
    assert "a/.ATTRIBUTES/VARIABLE_VALUE" in ran.out


def test_tensors_that_are_missing(tmp_path: Path, command: Command) -> None:
    nodes = [Node([(name, 1 + i) for i, name in enumerate("abc")])]
    nodes += [Node([], value(key)) for key in ("x", "v", "y")]
    ran = command(write(tmp_path / "ckpt", ObjectGraph(nodes), v=np.ones(1)))
    assert ran.status == 1
    assert "MISSING_TENSOR" in ran.err and "tensor 'x': 2 such tensors; the object graph" in ran.err
    assert tree_in(ran)[1:4] == ["├─ a  missing", "├─ b  1  8 B  float64  [1]", "├─ c  missing"]


def test_json_and_other_forms_stay_as_they_are(tmp_path: Path) -> None:
    prefix = write(tmp_path / "ckpt", b"\x0a", v=np.ones(1))
    for options in (["--json"], ["--tree", "--json"], []):
        assert main(["inspect", *options, str(prefix)]) == 0


def test_verify_finds_tensors_that_the_graph_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command with and without -r, and both functions. `edit` refuses, and repairs."""
    whole, lost = tmp_path / "whole", tmp_path / "lost"
    ckptfmt.save_tree(whole, {"a": np.zeros(3), "b": np.ones(2)})
    graph = ckptfmt.load(whole, ["_CHECKPOINTABLE_OBJECT_GRAPH"])
    ckptfmt.save(lost, graph)
    for prefix, names in ((whole, set()), (lost, {"a", "b"})):
        status = main(["verify", "--json", str(prefix)])
        report = json.loads(capsys.readouterr().out)
        assert report["ok"] is (not names) and status == bool(names)
        found = {one["tensor"].partition("/")[0] for one in report["findings"]}
        assert found == names
        assert {one["failure"] for one in report["findings"]} <= {"MISSING_TENSOR"}
        with ckptfmt.open(prefix) as reader:
            for result in (ckptfmt.verify(prefix), reader.verify()):
                assert result.ok is (not names) and len(result.problems) == len(names)
    assert main(["verify", "-r", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("MISSING_TENSOR") == 2
    with ckptfmt.Writer(tmp_path / "part") as writer:
        writer.add("a/.ATTRIBUTES/VARIABLE_VALUE", np.zeros(3))
        writer.add("_CHECKPOINTABLE_OBJECT_GRAPH", graph["_CHECKPOINTABLE_OBJECT_GRAPH"])
    with pytest.raises(ckptfmt.InvalidError, match="tensors that are missing: 'b/"):
        ckptfmt.editing.edit(tmp_path / "part", tmp_path / "c", rename=[("^a", "x")])
    done = ckptfmt.editing.edit(tmp_path / "part", tmp_path / "c", drop_missing=True)
    assert done.missing == ("b/.ATTRIBUTES/VARIABLE_VALUE",)
    assert ckptfmt.verify(tmp_path / "c").ok
    assert list(ckptfmt.load_tree(tmp_path / "c")) == ["a"]


def test_slots_with_equal_labels(tmp_path: Path, command: Command) -> None:
    """Two slots of one label to one object expand it once, not twice per level."""
    count = 20
    nodes = [Node() for _ in range(count + 2)]
    for i in range(count - 1):
        nodes[i].slot_variables = [SlotVariable(count + k, "m", i + 1) for k in range(2)]
    write(tmp_path / "m", ObjectGraph(nodes))
    assert len(tree_in(command(tmp_path / "m"))) < 10 * count


def test_one_group_in_many_nodes(tmp_path: Path, command: Command) -> None:
    """A key that stands for several tensors is shown in one node, whichever others name it."""
    count = 60
    nodes = [Node(attributes=[Attribute("VARIABLE_VALUE", "", "p/x")]) for _ in range(count)]
    nodes[0].children = [(str(i), i) for i in range(1, count)]
    tensors = {f"p/x{i}": np.zeros((), np.int8) for i in range(count)}
    write(tmp_path / "m", ObjectGraph(nodes), **tensors)
    assert len(tree_in(command(tmp_path / "m"))) < 4 * count
