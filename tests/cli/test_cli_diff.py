# SPDX-License-Identifier: Apache-2.0
"""Options of `ckptfmt diff`: tolerances, filters, new names, checksums, other formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
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
    decode_graph,
    encode_graph,
)
from cli.commands import Command, data_file

INF, NAN = np.inf, np.nan
VALUES = {
    "bert/kernel": np.array([1.0, 2.0, 0.0, NAN, 1.0], np.float32),
    "bert/bias": np.array([1, 2, 3]),
}


def two(directory: Path, **changed: np.ndarray) -> tuple[Path, Path]:
    a, b = directory / "a", directory / "b"
    ckptfmt.save(a, VALUES)
    ckptfmt.save(b, {**VALUES, **{f"bert/{name}": value for name, value in changed.items()}})
    return a, b


W = "values: bert/kernel  float32 [5]: "
# Options, and what is printed of kernels 1, 2, 0, NaN, 1 and 1.001, 2, 0.0005, NaN, Infinity.
TOLERANCES = {
    "": f"{W}3 of 5 elements, largest difference inf, norm of the change 0.00111808 (relative "
    "0.000456), 1 NaN in A and 1 in B, 0 infinite in A and 1 in B",
    "--rtol 0.01": f"{W}2 of 5 elements, 1 more within the tolerance, largest difference inf, "
    "norm of the change 0.00111808 (relative 0.000456), 1 NaN in A and 1 in B, 0 infinite in A and "
    "1 in B",
    "--rtol inf": f"{W}1 of 5 elements, 2 more within",
    "--rtol 0.01 --atol 0.001 --filter bert/bias": "equal: 1 tensor equal",
}


@pytest.mark.parametrize("options", TOLERANCES)
def test_what_is_left_out_of_a_tolerance(options: str, command: Command, tmp_path: Path) -> None:
    a, b = two(tmp_path, kernel=np.array([1.001, 2.0, 0.0005, NAN, INF], np.float32))
    ran = command("diff", *options.split(), a, b)
    assert ran.out.startswith(TOLERANCES[options])
    assert ran.status == (not ran.out.startswith("equal"))


def test_tolerances(command: Command, tmp_path: Path) -> None:
    a, b = two(tmp_path, kernel=np.array([1.001, 2.0, 0.0005, NAN, 1.0], np.float32))
    near = "norm of the change 0.00111808 (relative 0.000456)"
    for options in (["--rtol", "0.01", "--atol", "0.001"], ["--atol", "0.002"]):
        ran = command("diff", *options, a, b)
        text = (
            f"equal: 2 tensors equal, 1 of them within the tolerance (2 elements differ); {near}\n"
        )
        assert (ran.status, ran.out) == (0, text)
    (found,) = json.loads(command("diff", "--json", *options, a, b).out)["differences"]
    assert (found["elements"], found["elements_within_tolerance"]) == (0, 2)
    _, b = two(tmp_path, kernel=np.array([1.0, 2.0, -0.0, -NAN, 1.0], np.float32))
    assert command("diff", a, b).status == 1, "other bits"
    assert command("diff", "--rtol", "0", a, b).out == "equal: 2 tensors equal\n"
    _, b = two(tmp_path, bias=np.array([1, 2, 4]))
    assert command("diff", "--atol", "10", a, b).status == 1, "integers are exact"


def test_filter_and_rename(command: Command, tmp_path: Path) -> None:
    a, b = two(tmp_path, bias=np.array([9, 9, 9]))
    assert command("diff", "--filter", "*/kernel", a, b).out == "equal: 1 tensor equal\n"
    assert command("diff", "--filter", "/b.as$/", a, b).status == 1
    ckptfmt.save(b, {name.replace("bert", "enc"): value for name, value in VALUES.items()})
    assert command("diff", a, b).status == 1
    assert command("diff", "--rename", "bert/*=enc/*", a, b).status == 0
    assert command("diff", "--rename", "/^bert/=enc", a, b).status == 0
    ran = command("diff", "--rename", "/^.+$/=one", a, b)
    assert ran.status == 2 and "are both named 'one'" in ran.err
    assert command("diff", "--rename", "nothing=x", a, b).status == 2


def test_summary(command: Command, tmp_path: Path) -> None:
    a, b = two(tmp_path, bias=np.array([9, 9, 9]))
    ran = command("diff", "--summary", a, b)
    assert (ran.status, ran.out) == (1, "different: 1 with other values, 1 tensor equal\n")
    _, b = two(tmp_path, kernel=np.zeros(5, np.float32))
    text = "different: 1 with other values, 1 tensor equal; norm of the change 2.44949 (relative 1)"
    assert command("diff", "--summary", a, b).out == f"{text}\n"


def test_checksums(command: Command, tmp_path: Path) -> None:
    a, b = two(tmp_path)
    flip(data_file(b), 2)
    assert command("diff", a, b).status == 1, "damage is noticed"
    assert command("diff", "--checksums", a, b).status == 0
    a, b = two(tmp_path, bias=np.array([9, 9, 9]))
    ran = command("diff", "--checksums", "--json", a, b)
    assert [one["name"] for one in json.loads(ran.out)["differences"]] == ["bert/bias"]


@pytest.mark.parametrize("name", ["b.safetensors", "b.npz"])
def test_other_formats(name: str, command: Command, tmp_path: Path) -> None:
    a, b = two(tmp_path, bias=np.array([9, 9, 9]))
    other = tmp_path / name
    ckptfmt.convert(a, other)
    assert command("diff", a, other).status == 0
    assert command("diff", other, a).status == 0
    ran = command("diff", other, b)
    assert ran.status == 1 and "bert/bias" in ran.out
    assert command("diff", tmp_path / "nothing.npz", b).status == 2


# ---- casts, and other formats

FLOATS = ["f8", "f4", "f2", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, "c8", "c16"]


@pytest.mark.parametrize(
    ("dtype", "other"), [("f4", "f4"), *zip(FLOATS, FLOATS[1:] + FLOATS[:1], strict=True)]
)
def test_other_dtypes_within_a_tolerance(
    dtype: Any, other: Any, command: Command, tmp_path: Path
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    values = np.linspace(0.5, 1, 100)
    ckptfmt.save(a, {"w": values.astype(dtype)})
    ckptfmt.save(b, {"w": values.astype(other)})
    ran = command("diff", "--rtol", "0.1", a, b)
    assert ran.status == 0, ran.out
    if dtype != other:
        first, last = ran.out.splitlines()
        assert " in B: equal within the tolerance (" in first
        assert last.startswith("equal: 0 tensors equal, 1 of another dtype equal within the tol")
        assert command("diff", a, b).status == 1, "without a tolerance"
        assert command("diff", "--quiet", "--rtol", "0.1", a, b).status == 0
        document = json.loads(command("diff", "--json", "--rtol", "0.1", a, b).out)
        (found,) = document["differences"]
        assert document["equal"] and (found["kind"], found["elements"]) == ("dtype", 0)
        assert (document["norm_a"], document["norm_change"]) == (
            found["norm_a"],
            found["norm_change"],
        )
    ckptfmt.save(b, {"w": (values + (values > 0.9)).astype(other)})
    ran = command("diff", "--rtol", "0.1", a, b)
    assert ran.status == 1
    assert ran.out.splitlines()[-1].startswith("different: 1 ")
    assert "20 of 100 elements, " in ran.out
    assert command("diff", "--quiet", "--rtol", "0.1", a, b).status == 1


@pytest.mark.parametrize("option", ["--rtol", "--atol"])
def test_a_tolerance_of_0_compares_other_dtypes(
    option: str, command: Command, tmp_path: Path
) -> None:
    ckptfmt.save(tmp_path / "a", {"w": np.arange(9, dtype=np.float32)})
    ckptfmt.save(tmp_path / "b", {"w": np.arange(9, dtype=np.float16)})
    assert command("diff", tmp_path / "a", tmp_path / "b").status == 1
    assert command("diff", option, "0", tmp_path / "a", tmp_path / "b").status == 0


def test_other_dtypes_that_are_not_compared(command: Command, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    ckptfmt.save(a, {"i": np.arange(3, dtype=np.int32), "s": np.array(["a"]), "n": np.ones(1)})
    ckptfmt.save(b, {"i": np.arange(3, dtype=np.int64), "s": np.ones(1), "n": np.array([True])})
    ran = command("diff", "--rtol", "1", a, b)
    assert ran.status == 1
    assert [line.split(":")[0] for line in ran.out.splitlines()] == ["dtype"] * 3 + ["different"]


@pytest.mark.parametrize("name", ["b.safetensors", "b.npz"])
def test_a_format_without_graphs_and_metadata(name: str, command: Command, tmp_path: Path) -> None:
    a, other = tmp_path / "a", tmp_path / name
    values = {"w": np.ones(3), "step": np.array(7)}
    ckptfmt.Checkpoint(**values).write(a)
    ckptfmt.convert(a, other)
    for pair in ((a, other), (other, a)):
        assert command("diff", *pair).out == "equal: 2 tensors equal\n"
    ckptfmt.save(tmp_path / "c", {"w": np.ones(3)}, metadata={"step": 1})
    ckptfmt.convert(tmp_path / "c", other)
    assert command("diff", tmp_path / "c", other).status == 0
    ckptfmt.save(tmp_path / "d", {"w": np.ones(3)})
    ran = command("diff", tmp_path / "c", tmp_path / "d")
    assert ran.status == 1 and "metadata" in ran.out, "two of a format"
    assert "_CHECKPOINTABLE_OBJECT_GRAPH" in command("diff", a, tmp_path / "d").out


def test_the_structure_of_a_state(command: Command, tmp_path: Path) -> None:
    """It is not printed."""
    for name, value in (("a", "{}"), ("b", "[]")):
        ckptfmt.save(tmp_path / name, {"w": np.ones(3)}, metadata={"ckptfmt.other": value})
    ran = command("diff", tmp_path / "a", tmp_path / "b")
    assert ran.status == 1 and "{" not in ran.out and "ckptfmt.other: the structure" in ran.out


# ---- object graphs


def test_a_renamed_graph(command: Command, tmp_path: Path) -> None:
    a, b, back = (tmp_path / name for name in ("a", "b", "back"))
    ckptfmt.Checkpoint(net={"w": np.ones(3), "v": np.ones(2)}, step=np.array(7)).write(a)
    assert command("edit", "-q", a, b, "--rename", "net/*=model/*").status == 0
    ran = command("diff", a, b, "--rename", "net/*=model/*")
    assert (ran.status, ran.out) == (0, f"equal: {len(ckptfmt.load(a))} tensors equal\n")
    ran = command("diff", a, b)
    assert f"values: {OBJECT_GRAPH_KEY}  string []: other objects or keys\n" in ran.out
    ran = command("diff", b, b, "--rename", "model/w=model/u")
    assert ran.status == 1 and "other objects or keys" in ran.out
    assert command("edit", "-q", b, back, "--rename", "model/*=net/*").status == 0
    assert command("diff", a, back).status == 0


@pytest.mark.parametrize("bad", [False, True])
def test_another_serialisation_of_a_graph(bad: bool, command: Command, tmp_path: Path) -> None:
    a = tmp_path / "a"
    ckptfmt.Checkpoint(net={"w": np.ones(3), "v": [np.ones(2)]}, step=np.array(7)).write(a)
    tensors = ckptfmt.load(a)
    graph = decode_graph(tensors[OBJECT_GRAPH_KEY].item())
    slots = [Node(attributes=[Attribute("VARIABLE_VALUE", "", f"slot{at}")]) for at in range(2)]
    graph.nodes[0].slot_variables = [
        SlotVariable(1 + at, "m", len(graph.nodes) + at) for at in range(2)
    ]
    graph.nodes += slots
    tensors[OBJECT_GRAPH_KEY] = np.array(encode_graph(graph), object)
    ckptfmt.save(a, tensors, level="v2")
    order = [0, *range(len(graph.nodes) - 1, 0, -1)]
    nodes = [graph.nodes[number] for number in order]
    for node in nodes:
        node.children = [(name, order.index(child)) for name, child in reversed(node.children)]
        node.attributes.reverse()
        for slot in node.slot_variables:
            slot.original_variable_node_id = order.index(slot.original_variable_node_id)
            slot.slot_variable_node_id = order.index(slot.slot_variable_node_id)
        node.slot_variables.reverse()
    if bad:
        (name, child), *rest = nodes[0].children
        nodes[0].children = [(f"{name}x", child), *rest]
    tensors[OBJECT_GRAPH_KEY] = np.array(encode_graph(ObjectGraph(nodes)), object)
    ckptfmt.save(tmp_path / "b", tensors, level="v2")
    assert command("diff", a, tmp_path / "b").status == bad
    tensors[OBJECT_GRAPH_KEY] = np.array(b"\xff", object)
    ckptfmt.save(tmp_path / "b", tensors, level="v2")
    assert command("diff", a, tmp_path / "b").status == 1, "damaged"
    assert command("diff", tmp_path / "b", tmp_path / "b").status == 0
