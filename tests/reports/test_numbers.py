# SPDX-License-Identifier: Apache-2.0
"""The numbers of a report, recomputed from the values that `ckptfmt.load` returns."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from support.reports import measured
from support.strategies import property_test

import ckptfmt
from ckptfmt.report.measuring import PIECE_BYTES, Budget, sample_boxes

Array = np.ndarray[Any, np.dtype[Any]]
DTYPES = ["f4", "f8", "f2", ml_dtypes.bfloat16, "c8", "i1", "i8", "u8", "?"]
SMALL: list[tuple[int, ...]] = [
    (),
    (7,),
    (40,),
    (5, 3),
    (20, 33),
    (2, 3, 4),
    (300, 5),
    (0, 2),
    (1, 1),
]
# Of most dtypes larger than a piece of 1 MiB; of one, a row is as well.
LARGE: list[tuple[int, ...]] = [((1 << 18) + 77,), (3, (1 << 18) + 5), (700, 5, 100)]
WARNINGS = ("nan", "infinite", "rows", "columns", "outlier", "zero")


@st.composite
def tensors(draw: st.DrawFn) -> Array:
    """Numbers of any scale and sign, with zeros, NaN and infinities in drawn places."""
    dtype, shape = (
        np.dtype(draw(st.sampled_from(DTYPES))),
        draw(st.sampled_from([*6 * SMALL, *LARGE])),
    )
    random = np.random.default_rng(draw(st.integers(0, 99)))
    spread, sign = draw(st.sampled_from([0.5, 4])), draw(st.sampled_from([-1, 0, 1]))
    values = np.exp(spread * random.standard_normal(shape)) * (
        sign or random.choice([-1, 1], shape)
    )
    values = np.asarray(values.clip(-120, 120) if dtype.kind in "iu?" else values.clip(-6e4, 6e4))
    values = abs(values) if dtype.kind in "u?" else values
    array = np.asarray(values.astype(dtype))
    flat = array.reshape(-1)
    for special in draw(st.lists(st.sampled_from([0, np.nan, np.inf, -np.inf]), max_size=4)):
        if flat.size and (special == 0 or dtype.kind not in "iu?"):
            flat[draw(st.integers(0, flat.size - 1)) :: draw(st.integers(1, 2000))] = special
    if array.ndim > 1 and array.size and draw(st.booleans()):
        array[..., draw(st.integers(0, array.shape[-1] - 1))] = 0
    if array.ndim and array.size and draw(st.booleans()):
        array[draw(st.integers(0, len(array) - 1))] = 0
    return array


def numbers(array: Array) -> Array:
    with np.errstate(over="ignore"):
        wide = abs(array) if array.dtype.kind == "c" else array
    return wide.reshape(-1).astype(np.float64)


def read_first(array: Array) -> Array:
    """The numbers that the first look reads."""
    if array.nbytes <= PIECE_BYTES:
        return numbers(array)
    boxes: Any = sample_boxes(array, PIECE_BYTES)  # type: ignore[arg-type]
    return np.concatenate([numbers(array[box]) for box in boxes])


def grid_of(array: Array, marked: Array) -> list[list[int]]:
    height = len(array) if array.ndim > 1 else 1
    width = array.size // height
    rows, columns = min(height, 16), min(width, 16)
    counts = np.zeros((rows, columns), int)
    for place in np.flatnonzero(marked):
        row, column = divmod(int(place), width)
        counts[row * rows // height, column * columns // width] += 1
    found: list[list[int]] = counts.tolist()
    return found


def near(value: Any) -> Any:
    return None if np.isnan(value) else pytest.approx(float(value), rel=1e-6, abs=1e-300)


def check_histogram(found: dict[str, Any], finite: Array) -> None:
    one_sign = finite.min() >= 0 or finite.max() <= 0
    sizes = abs(finite[finite != 0])
    is_log = one_sign and np.percentile(sizes, 95) > 100 * np.percentile(sizes, 5)
    assert found["scale"] == ("log" if is_log else "linear")
    values = finite
    if is_log:
        values = np.log(sizes)
        assert (found["low"], found["high"]) == (near(sizes.min()), near(sizes.max()))
        assert found["zeros"] == finite.size - sizes.size
        assert found["negative"] == bool(finite.max() <= 0)
    else:
        assert (found["low"], found["high"]) == (near(finite.min()), near(finite.max()))
    assert sum(found["after"]) == values.size
    counts, edges = np.histogram(values, bins=16)
    # A value may be an edge but for the last digit.
    close = np.isclose(values[:, None], edges[1:-1], rtol=1e-9).sum() if values.size < 1e5 else 64
    assert abs(counts - found["after"]).sum() <= 2 * close


def check_tensor(found: dict[str, Any], array: Array) -> None:
    flat, stats = numbers(array), found["stats"]
    finite, is_finite = flat[np.isfinite(flat)], np.isfinite(flat)
    assert not found["sampled"] and stats["count"] == flat.size
    assert stats["zeros"] == (flat == 0).sum() and stats["nans"] == np.isnan(flat).sum()
    assert stats["infinite"] == np.isinf(flat).sum()
    if finite.size:
        for name, value in (("low", finite.min()), ("high", finite.max())):
            assert float(stats[name]) == near(value)
        assert float(stats["mean"]) == pytest.approx(finite.mean(), rel=1e-6, abs=1e-9)
        assert stats["deviation"] == pytest.approx(finite.std(), rel=1e-6, abs=1e-9)
        assert stats["norm"] == near(np.linalg.norm(finite))
    else:
        assert stats["norm"] is None and stats["mean"] is None
    first = read_first(array)
    first = first[np.isfinite(first)]
    assert ("percentiles" in found) == (first.size > 0)
    if first.size:
        expected = np.percentile(first, [1, 5, 25, 50, 75, 95, 99])
        assert found["percentiles"] == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-300)
        assert ("histogram" in found) == (first.min() != first.max())
    if "histogram" in found:
        check_histogram(found["histogram"], first)
    grids = {"nans": grid_of(array, ~is_finite)} if not is_finite.all() else {}
    if 0.01 * flat.size <= (flat == 0).sum() < flat.size and (flat == 0).any():
        grids["zeros"] = grid_of(array, flat == 0)
    places = {name: one for name, one in found.get("places", {}).items() if name in grids}
    assert places == grids and ("places" in found) == bool(grids)
    is_nan = np.isnan(flat)
    marked = {"nan": is_nan, "infinite": ~is_finite & ~is_nan}
    bad = {kind: np.argwhere(one.reshape(array.shape)) for kind, one in marked.items()}
    assert found.get("first", {}) == {k: one[0].tolist() for k, one in bad.items() if len(one)}
    warnings = []
    if np.isnan(flat).any():
        warnings.append(f"{np.isnan(flat).sum():,} NaN")
    if np.isinf(flat).any():
        warnings.append(f"{np.isinf(flat).sum():,} infinite")
    if flat.size > 1 and not flat.any():
        warnings.append("all zero")
    elif array.ndim > 1 and array.size:
        rows = (array.reshape(len(array), -1) == 0).all(axis=1)
        columns = (array.reshape(-1, array.shape[-1]) == 0).all(axis=0)
        for what, dead in (("rows", rows), ("columns", columns)):
            if dead.any() and array.size > 1:
                warnings.append(f"{dead.sum():,} of {len(dead):,} {what} are zero")
    assert [one for one in found.get("warnings", []) if "peers" not in one] == warnings


def check_layer(found: dict[str, Any], arrays: list[Array]) -> None:
    assert found["tensors"] == len(arrays) and found["bytes"] == sum(one.nbytes for one in arrays)
    assert found["elements"] == sum(one.size for one in arrays) == sum(found["dtypes"].values())
    exact = [np.dtype(one).kind for one in ("i1", "u8", "?")]
    flat = [numbers(one) for one in arrays if one.dtype.kind not in exact]
    every = np.concatenate([np.empty(0), *flat])
    finite = every[np.isfinite(every)]
    counts = every.size, (every == 0).sum(), np.isnan(every).sum(), np.isinf(every).sum()
    assert tuple(found[name] for name in ("count", "zeros", "nans", "infinite")) == counts
    if not finite.size:
        assert found["norm"] is None
        return
    assert found["norm"] == near(np.linalg.norm(finite))
    assert found["rms"] == near(np.sqrt(np.mean(finite**2)))
    assert found["mean"] == pytest.approx(finite.mean(), rel=1e-6, abs=1e-9)
    assert found["deviation"] == pytest.approx(finite.std(), rel=1e-6, abs=1e-9)
    assert (found["low"], found["high"]) == (near(finite.min()), near(finite.max()))


def check_health(data: dict[str, Any], arrays: dict[str, Array]) -> None:
    health, rows = data["health"], {one["name"]: one for one in data["tensors"]}
    words = dict(zip(("NaN", "infinite", "rows", "columns", "peers", "all"), WARNINGS, strict=True))
    expected = [
        (kind, name, text)
        for word, kind in words.items()
        for name in sorted(rows, key=lambda name: (int(name.split("/")[0]), name))
        for text in rows[name].get("warnings", [])
        if word in text and not (kind == "zero" and name.endswith("/Adam"))
    ]
    assert [(one["kind"], one["name"], one["text"]) for one in health["items"]] == expected
    kinds = [kind for kind, _, _ in expected]
    assert health["kinds"] == [[kind, kinds.count(kind)] for kind in WARNINGS if kind in kinds]
    for one in health["items"]:
        assert one["place"] == rows[one["name"]].get("first", {}).get(one["kind"])
    zero = [one for name, one in rows.items() if "all zero" in one.get("warnings", [])]
    assert health["zero_slots"] == sum(one["role"] == "optimizer" for one in zero)
    roots = {}
    for name, array in arrays.items():
        flat = numbers(array)
        flat = flat[np.isfinite(flat)]
        if flat.size and array.dtype.kind not in "iu?b" and rows[name]["role"] == "weight":
            roots[name] = float(np.sqrt(np.mean(flat**2)))
    for name, root in roots.items():
        alike = [other for other in roots if other[-1] == name[-1]]
        peers = [roots[one] for one in alike if arrays[one].ndim == arrays[name].ndim]
        is_tall = len(peers) >= 4 and root > 100 * np.median(peers) > 0
        assert any("peers" in text for text in rows[name].get("warnings", [])) == is_tall


@property_test(40, 2000, drawn=st.lists(tensors(), min_size=1, max_size=12), slots=st.booleans())
def test_numbers_of_a_report(drawn: list[Array], slots: bool) -> None:
    arrays = {f"{number // 2}/{'wb'[number % 2]}": one for number, one in enumerate(drawn)}
    if slots:
        arrays |= {f"{name}/Adam": np.zeros(3, "f4") for name in list(arrays)}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "m")
        ckptfmt.save(path, arrays)
        data = measured(path, Budget(None))
        loaded = ckptfmt.load(path)
    layers: list[list[Array]] = [[] for _ in data["layers"]]
    for one in data["tensors"]:
        check_tensor(one, loaded[one["name"]])
        layers[one["layer"]].append(loaded[one["name"]])
    for layer, members in zip(data["layers"], layers, strict=True):
        check_layer(layer, members)
    check_health(data, loaded)


def test_an_outlier_is_far_above_its_peers(tmp_path: Path) -> None:
    for times, text in ((90, []), (110, ["norm is 110 times the median of its peers"])):
        for peers in (2, 3):
            arrays = {f"{number}/w": np.ones((2, 2), "f4") for number in range(peers)}
            arrays |= {"9/w": np.full((2, 2), times, "f4"), "9/b": np.full(4, 1000, "f4")}
            ckptfmt.save(tmp_path / "m", arrays)
            found = [
                one["text"] for one in measured(tmp_path / "m", Budget(None))["health"]["items"]
            ]
            assert found == (text if peers == 3 else [])
