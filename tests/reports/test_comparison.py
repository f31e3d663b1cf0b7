# SPDX-License-Identifier: Apache-2.0
"""What a report holds of two checkpoints."""

from __future__ import annotations

import math
import re
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.files import flip
from support.reports import reported

import ckptfmt
from ckptfmt._base.casting import kind_of
from ckptfmt.bundle import graph_keys, state_tree
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.report import comparison as comparing
from ckptfmt.report import measuring
from ckptfmt.report.layers import Layers

Array = np.ndarray[Any, Any]
DTYPES = ("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "complex64", "complex128")
DTYPES += ("int8", "int64", "uint8", "uint64", "bool", "object")
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (3,), (4, 6), (70, 80), (0, 2))
FATES = ("same", "step", "other", "nan", "retyped", "reshaped", "removed", "added", "damaged")
ORDER = ["unreadable", "removed", "added", "retyped", "changed"]


def drawn(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    to = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if dtype == "object":
        return np.asarray(rng.integers(0, 2, shape).astype("S1").astype(object))
    if kind_of(to) in ("b", "i"):
        low, high = (0, 2) if dtype == "bool" else (0 if dtype[0] == "u" else -100, 100)
        return np.asarray(rng.integers(low, high, shape)).astype(to)
    values = np.asarray(rng.standard_normal(shape))
    return (values + 1j * rng.standard_normal(shape) if to.kind == "c" else values).astype(to)


def changed(one: Array, dtype: str, fate: str, rng: np.random.Generator) -> Array:
    """Return what becomes of a tensor."""
    if fate == "retyped":
        return one.astype("float32" if dtype in ("bool", "object") else "bool")
    if fate == "reshaped":
        return one[None]
    other, half = one.copy().reshape(-1), -(-one.size // 2)
    if fate in ("step", "damaged"):
        other[:half] = drawn(dtype, (half,), rng)
    elif fate == "other":
        other = drawn(dtype, other.shape, rng)
    elif fate == "nan" and kind_of(one.dtype) in ("f", "c") and other.size:
        other[half - 1] = rng.choice([np.nan, np.inf])
    return other.reshape(one.shape)


@st.composite
def checkpoints(draw: st.DrawFn) -> tuple[dict[str, Array], dict[str, Array], set[str], list[Any]]:
    """Two checkpoints, which tensors of B are damaged, and which layers are exchanged."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    a, b, damaged = dict[str, Array](), dict[str, Array](), set[str]()
    kinds = st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.sampled_from(FATES))
    count = draw(st.integers(4, 9))
    for layer in range(count):
        for part, (dtype, shape, fate) in enumerate(draw(st.lists(kinds, min_size=1, max_size=4))):
            name = f"net.{layer}.p{part}"
            one = drawn(dtype, shape, rng)
            if fate != "added":
                a[name] = one
            if fate != "removed":
                b[name] = changed(one, dtype, fate, rng)
            if fate == "damaged" and one.nbytes:
                damaged.add(name)
    exchanged = []
    if draw(st.booleans()):
        for part, (dtype, shape) in enumerate((("float32", (70, 80)), ("float16", (4, 6)))):
            names = [f"net.{layer}.p{part}" for layer in (count, count + 1)]
            a |= {name: drawn(dtype, shape, rng) for name in names}
            b |= {names[at]: (a[names[1 - at]] * 1.01).astype(dtype) for at in (0, 1)}
        exchanged = [[f"net.{count}", f"net.{count + 1}"]]
    return a, b, damaged, exchanged


def exact(values: Array) -> Array:
    """Return the values in a dtype whose differences are exact."""
    kind = kind_of(values.dtype)
    return values.astype({"i": object, "f": np.float64, "c": np.complex128}[kind])


def norm(values: Array) -> float:
    """Return the L2 norm of the finite values."""
    numbers = np.asarray(np.abs(values)).astype(np.float64)
    return float(np.linalg.norm(numbers[np.isfinite(numbers)].astype(np.longdouble)))


def near(value: float | None) -> Any:
    """Return what equals a number of the report."""
    if value is None or math.isnan(value):
        return None
    return "Infinity" if math.isinf(value) else pytest.approx(value, rel=1e-6, abs=1e-300)


def expected_row(one: Array | None, other: Array | None, *, damaged: bool) -> dict[str, Any]:
    """Return the fields of a row that follow from the values; of tensors that are the same none
    but the norms."""
    if one is None or other is None:
        return {"change": "added" if one is None else "removed"}
    few = {}
    if max(one.size, other.size) <= 4:
        for side, values in (("old", one), ("new", other)):
            texts = [f"'{v.decode()}'" if isinstance(v, bytes) else str(v) for v in values.flat]
            few[side] = f"[{', '.join(texts)}]" if values.ndim else texts[0]
    if one.dtype != other.dtype or one.shape != other.shape:
        return {"change": "retyped", **few}
    bits = [x.tolist() if x.dtype == object else x.tobytes() for x in (one, other)]
    is_number = kind_of(one.dtype) in ("f", "c", "i")
    # Equal bytes of strings are read, others have equal checksums.
    if bits[0] == bits[1] and not (damaged and one.dtype == object):
        return {"change": "same", "norm": norm(exact(one)) if is_number else None, "norm_change": 0}
    if damaged:
        return {"change": "unreadable"}
    row: dict[str, Any] = {"change": "changed", **few}
    row["elements"] = sum(x != y for x, y in zip(*(_bits(x) for x in (one, other)), strict=True))
    numbers: dict[str, Any] = dict.fromkeys(("norm", "norm_change", "ratio", "largest"))
    row |= {"nans": [0, 0], "infinite": [0, 0]}
    if is_number:
        apart = exact(other) - exact(one)
        sizes = np.asarray(np.abs(apart)).astype(np.float64)
        largest = float(np.nanmax(sizes)) if not np.isnan(sizes).all() else 0.0
        numbers = {"norm": norm(exact(one)), "norm_change": norm(apart), "largest": largest}
        ratio = [numbers["norm_change"], numbers["norm"]]
        numbers["ratio"] = ratio[0] / ratio[1] if ratio[1] else math.inf if ratio[0] else 0.0
        if kind_of(one.dtype) != "i":
            row["nans"] = [int(np.isnan(x).sum()) for x in (one, other)]
            row["infinite"] = [int(np.isinf(x).sum()) for x in (one, other)]
            if not all(np.isfinite(x).any() for x in (one, other)):
                numbers["norm_change"] = numbers["ratio"] = None
    return row | numbers


def _bits(values: Array) -> list[Any]:
    flat = values.reshape(-1)
    return flat.tolist() if values.dtype == object else [one.tobytes() for one in flat]


@settings(max_examples=60, deadline=None)
@given(checkpoints())
def test_numbers_are_those_of_the_values(
    given: tuple[dict[str, Array], dict[str, Array], set[str], list[Any]],
) -> None:
    a, b, damaged, exchanged = given
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory, name) for name in "ab"]
        for path, tensors in zip(paths, (a, b), strict=True):
            ckptfmt.save(path, tensors)
        a, b = map(ckptfmt.load, paths)
        with ckptfmt.open(paths[1]) as reader:
            for name in damaged:
                flip(Path(f"{paths[1]}.data-00000-of-00001"), reader[name].offset or 0)
        found = reported(paths[1], before=paths[0], seconds=None)["comparison"]
    names = sorted({*a, *b})
    rows = {name: expected_row(a.get(name), b.get(name), damaged=name in damaged) for name in names}
    differ = [name for name in names if rows[name]["change"] != "same"]

    def rank(name: str) -> tuple[int, float]:
        ratio = rows[name].get("ratio")
        return ORDER.index(rows[name]["change"]), 1.0 if ratio is None else -ratio

    # Ratios that differ by rounding may have another order.
    ranks = [rank(row["name"]) for row in found["rows"]]
    assert all(one <= (other[0], other[1] + 1e-9) for one, other in pairwise(ranks))
    assert [row["name"] for row in found["rows"] if row["change"] != "changed"] == [
        name for kind in ORDER[:4] for name in differ if rows[name]["change"] == kind
    ]
    assert {row["name"] for row in found["rows"]} == {*differ}
    for row in found["rows"]:
        name, own = row["name"], rows[row["name"]]
        there = b.get(name, a.get(name))
        assert there is not None
        fields = ("norm", "norm_change", "ratio", "largest")
        assert {key: row.get(key) for key in own} == own | {
            key: near(own[key]) for key in fields if key in own
        }
        assert ("error" in row) == (own["change"] == "unreadable")
        assert ("old" in row) == ("old" in own)
        has_histogram = own.get("norm") is not None and there.size > 0
        _check_histogram(row.get("histogram"), a.get(name), b.get(name), has=has_histogram)
    _check_layers(found, rows, a, b)
    assert found["exchanged"] == exchanged


def _check_histogram(found: Any, one: Array | None, other: Array | None, *, has: bool) -> None:
    """The sizes of whole tensors are those of their elements."""
    if not has or one is None or other is None:
        assert found is None
        return
    both = [np.abs(x) if kind_of(x.dtype) == "c" else x for x in (one, other)]
    both = [x.reshape(-1).astype(np.float64) for x in both]
    sides = [x[np.isfinite(x)] for x in both]
    every = np.concatenate(sides)
    if not every.size or every.min() == every.max():
        assert found is None
        return
    if found["scale"] == "log":
        sides = [np.abs(x[x != 0]) for x in sides]
        every = np.concatenate(sides)
    if one.size <= comparing.SAMPLE_MAX:
        assert (found["low"], found["high"]) == (every.min(), every.max())
        assert [sum(found[side]) for side in ("before", "after")] == [x.size for x in sides]
    else:
        assert every.min() <= found["low"] < found["high"] <= every.max()
        assert max(sum(found["before"]), sum(found["after"])) <= comparing.SAMPLE_MAX


def in_numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]+", name)]


def _check_layers(
    found: Any, rows: dict[str, Any], a: dict[str, Array], b: dict[str, Array]
) -> None:
    """The layers are those of B, as a report of it alone has them; then others of A."""
    tensors, layers = {**a, **b}, dict[tuple[str, str], list[str]]()
    for name in sorted(rows, key=lambda name: (tensors[name].dtype == object, *in_numbers(name))):
        role = "unknown" if tensors[name].dtype == object else "weight"
        layers.setdefault((role, name.rpartition(".")[0]), []).append(name)
    order = sorted(layers, key=lambda layer: not any(name in b for name in layers[layer]))
    assert [(one["role"], one["name"]) for one in found["layers"]] == order
    still, moved, count = list[str](), 0, 0
    for data in found["layers"]:
        names = layers[data["role"], data["name"]]
        kinds = [rows[name]["change"] for name in names]
        assert data["changed"] == len(kinds) - kinds.count("same") - kinds.count("unreadable")
        floats = [
            rows[name]
            for name in names
            if kind_of(tensors[name].dtype) in ("f", "c") and tensors[name].shape
            if rows[name]["change"] not in ("added", "removed")
        ]
        parts = [(one.get("norm"), one.get("norm_change")) for one in floats]
        ratio = None
        if parts and not any(None in part for part in parts):
            norm_a, change = (math.hypot(*side) for side in zip(*parts, strict=True))
            ratio = change / norm_a if norm_a else math.inf if change else 0.0
        assert data["ratio"] == near(ratio)
        count += bool(floats)
        moved += bool(floats) and data["changed"] > 0
        if floats and {*kinds} == {"same"}:
            still.append(data["name"])
    assert found["still"] == (still if 2 * moved >= count else [])


def test_what_was_not_compared_is_counted(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "a", {"x": np.ones(9), "y": np.ones(3)})
    ckptfmt.save(tmp_path / "b", {"x": np.zeros(9), "y": np.ones(3), "z": np.ones(1)})
    comparison = reported(tmp_path / "b", before=tmp_path / "a", seconds=0)["comparison"]
    # Equal checksums are compared without reading.
    assert comparison["counts"] == {"not compared": 1, "same": 1, "added": 1}


def test_byte_order_is_part_of_the_values(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "big_endian" / "ckpt"
    with ckptfmt.open(golden) as reader:
        tensors = {name: one.read() for name, one in reader.items() if one.dtype_name == "float32"}
        # Stored as the same bytes.
        ckptfmt.save(tmp_path / "m", {name: one.byteswap() for name, one in tensors.items()})
        with ckptfmt.open(tmp_path / "m") as other:
            name = next(name for name in tensors if tensors[name].any())
            assert other[name].crc32c == reader[name].crc32c
            layers = Layers(TensorNames(other))
            found = comparing.comparison_data(reader, layers, measuring.Budget(None))
    assert name in [row["name"] for row in found["rows"] if row["change"] == "changed"]


def test_no_piece_is_read_beyond_the_limit_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckptfmt.save(tmp_path / "a", {"x": np.ones(1 << 17), "y": np.ones(9)})
    ckptfmt.save(tmp_path / "b", {"x": np.zeros(1 << 17), "y": np.zeros(9)})
    read = set()
    whole = ckptfmt.types.TensorHandle.read

    def noted(one: ckptfmt.types.TensorHandle) -> Any:
        read.add(one.name)
        return whole(one)

    monkeypatch.setattr(ckptfmt.types.TensorHandle, "read", noted)
    with ckptfmt.open(tmp_path / "a") as one, ckptfmt.open(tmp_path / "b") as other:
        layers = Layers(TensorNames(other))
        found = comparing.comparison_data(one, layers, measuring.Budget(None, 1 << 20))
    assert found["counts"] == {"changed": 1, "not compared": 1} and read == {"y"}


def test_each_kind_of_change_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "ROWS_MAX", 40)
    for name, other in (("old", "a"), ("new", "b")):
        tensors = {f"{name}{number}": np.ones(1) for number in range(30)}
        ckptfmt.save(tmp_path / other, tensors | {"same": np.ones(1)})
    comparison = reported(tmp_path / "b", before=tmp_path / "a")["comparison"]
    assert comparison["counts"] == {"removed": 30, "added": 30, "same": 1}
    assert comparison["unread"] == 1 and len(comparison["rows"]) == 60


def test_credentials_of_a_url_are_masked(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "a", {"x": np.ones(9)})
    secret = f"file://{tmp_path}/a"
    data = reported(tmp_path / "a", before=secret)
    assert data["comparison"]["counts"] == {"same": 1}


def test_values_of_states_and_metadata(tmp_path: Path) -> None:
    states = {
        "a": {"step": 1, "old": [1, 2], "same": 3, "w": {"$tensor": True}},
        "b": {"step": 2, "lr": 0.5, "same": 3, "w": {"$tensor": True}},
    }
    members = {"a": {"epoch": 1, "same": 0, "ckptfmt.x": "{}"}, "b": {"epoch": 2, "same": 0}}
    for name, state in states.items():
        metadata = {**members[name], state_tree.KEY: state_tree.text_of(state=state)}
        ckptfmt.save(tmp_path / name, {"w": np.ones(3)}, metadata=metadata)
    found = reported(tmp_path / "b", before=tmp_path / "a")["comparison"]
    assert found["values"] == [["step", "1", "2"], ["lr", None, "0.5"], ["old", "[1, 2]", None]]
    assert found["metadata"] == [["ckptfmt.x", None, None], ["epoch", "1", "2"]]
    # Of a structure that differs, though no value does, its name is shown.
    state = {key: states["b"][key] for key in reversed(states["b"])}
    metadata = {**members["b"], state_tree.KEY: state_tree.text_of(state=state)}
    ckptfmt.save(tmp_path / "c", {"w": np.ones(3)}, metadata=metadata)
    found = reported(tmp_path / "c", before=tmp_path / "b")["comparison"]
    assert found["values"] == [] and found["metadata"] == [[state_tree.KEY, None, None]]


def test_object_graphs_are_compared_as_graphs(tmp_path: Path) -> None:
    parts = {"w": np.ones(3), "v": np.ones(2)}
    for name, children in (("a", parts), ("b", dict(reversed(parts.items())))):
        ckptfmt.Checkpoint(net=children).write(tmp_path / name)
    ckptfmt.Checkpoint(net=parts, more={"u": np.ones(2)}).write(tmp_path / "c")
    with ckptfmt.open(tmp_path / "a") as a, ckptfmt.open(tmp_path / "b") as b:
        assert graph_keys.read_graph_bytes(a) != graph_keys.read_graph_bytes(b)
    found = reported(tmp_path / "b", before=tmp_path / "a")["comparison"]
    same = found["counts"]["same"]
    assert (found["graph"], found["counts"], found["rows"]) == (None, {"same": same}, [])
    found = reported(tmp_path / "c", before=tmp_path / "a")["comparison"]
    assert found["graph"] == comparing.GRAPHS_DIFFER
    assert found["counts"] == {"same": same, "added": 1}
    assert [row["name"] for row in found["rows"]] == ["more/u"]


def test_exchanges_among_tensors_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a layer of which another tensor changed, the tensors are named. A tensor that is read in
    pieces has the same sample."""
    rng = np.random.default_rng(1)
    names = [f"net.{layer}.{part}" for layer in range(5) for part in ("kernel", "bias")]
    a = {name: rng.standard_normal((300, 40)).astype(np.float32) for name in names}
    b = {name: one + rng.standard_normal(one.shape) * 1e-3 for name, one in a.items()}
    b = {name: one.astype(np.float32) for name, one in b.items()}
    a["net.2.bias"][:] = 0  # as it was initialised
    b["net.2.kernel"], b["net.4.kernel"] = b["net.4.kernel"], b["net.2.kernel"]
    for name, tensors in (("a", a), ("b", b)):
        ckptfmt.save(tmp_path / name, tensors)
    whole = reported(tmp_path / "b", before=tmp_path / "a")["comparison"]
    assert whole["exchanged"] == [["net.2.kernel", "net.4.kernel"]]
    monkeypatch.setattr("ckptfmt.bundle.comparing.PIECE_BYTES", 10_000)
    parts = reported(tmp_path / "b", before=tmp_path / "a")["comparison"]
    assert parts["exchanged"] == whole["exchanged"]
    of_parts, of_whole = (
        {row["name"]: row["histogram"] for row in one["rows"]} for one in (parts, whole)
    )
    assert of_parts == of_whole


def test_the_largest_ratios_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "ROWS_MAX", 5)
    monkeypatch.setattr(comparing, "HISTOGRAMS_MAX", 3)
    changes = np.random.default_rng(1).permutation(60)
    for name, scale in (("a", 0.0), ("b", 0.01)):
        tensors = {
            f"t{i:02}": np.array([1, 1 + scale * change]) for i, change in enumerate(changes)
        }
        ckptfmt.save(tmp_path / name, tensors)
    found = reported(tmp_path / "b", before=tmp_path / "a")["comparison"]
    assert found["counts"] == {"changed": 59, "same": 1}
    largest = [f"t{i:02}" for i in np.argsort(-changes)[:5]]
    assert [row["name"] for row in found["rows"]] == largest
    assert ["histogram" in row for row in found["rows"]] == [True] * 3 + [False] * 2


@pytest.mark.parametrize("case", ["copied", "scaled", "noisy", "few", "moments"])
def test_what_was_not_exchanged_and_is_not_still(case: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    one, other = a = [rng.standard_normal(5000) for _ in range(2)]
    b = [other, one]
    if case == "copied":
        b[1] = rng.standard_normal(5000)
    elif case == "scaled":  # all were alike before
        a, b = [one, one + 0.01 * other], [2 * one, 2 * one + 0.01 * other]
    elif case == "noisy":
        b = [x + 0.5 * rng.standard_normal(5000) for x in b]
    elif case == "few":
        a, b = ([x * (np.arange(5000) < 5) for x in y] for y in (a, b))
    elif case == "moments":
        b = [one + 1, other + 1]
    moment = np.ones(3)
    for name, tensors in (("a", a), ("b", b)):
        state = {"x/w/Adam": moment, "y/w/Adam": moment + (name == "b")}
        ckptfmt.save(tmp_path / name, dict(zip(("x/w", "y/w"), tensors, strict=True)) | state)
    found = reported(tmp_path / "b", before=tmp_path / "a")["comparison"]
    assert found["exchanged"] == [] and found["still"] == []
    assert {row["role"] for row in found["rows"]} == {"weight", "optimizer"}
