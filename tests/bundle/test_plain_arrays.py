# SPDX-License-Identifier: Apache-2.0
"""Plain arrays described by the batch: what is taken so, what is not, and what that must not
change."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt import _core
from ckptfmt._base import arrays as taken
from ckptfmt._base import dtypes
from ckptfmt._base.arrays import Sources
from ckptfmt._base.save_options import SaveOptions
from ckptfmt._core import PlainArrays
from ckptfmt.bundle import saving, writer


def of_rank(rank: int) -> np.ndarray[Any, Any]:
    return np.ones((1,) * (rank - 1) + (3,), np.int16)


PLAIN: list[np.ndarray[Any, Any]] = [
    np.array(7.5),
    np.arange(12, dtype=np.uint8).reshape(3, 4)[::2, ::-1],
    np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    np.zeros((3, 0, 2), np.complex64),
    np.broadcast_to(np.float32(1), (4, 5)),
    np.ones(3, ml_dtypes.bfloat16),
    np.frombuffer(b"read only bytes."),
    of_rank(_core.NUMPY_RANK_MAX),
    of_rank(_core.NUMPY_RANK_MAX)[..., ::2],
    np.zeros(2, [("qint8", np.int8)]),
]


def numbers_at(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address)) if count else []


def test_the_table_says_what_numpy_does(seed: int) -> None:
    """For more dims and strides than there is room for at once."""
    chance = np.random.default_rng(seed)
    arrays: list[Any] = []
    for _ in range(3000):
        shape = chance.integers(0, 3, chance.integers(0, 40))
        one = np.broadcast_to(np.int8(1), shape)
        arrays.append(one if chance.integers(2) else np.ones(min(one.size, 3), np.float16))
    plain = PlainArrays(len(arrays), dtypes.CODES)
    assert plain.take([f"{n}" for n in range(len(arrays))], arrays) == len(arrays)
    for row, array in zip(plain.table, arrays, strict=True):
        rank = array.ndim
        assert (row["rank"], row["slice"], row["swapped"]) == (rank, 0, 0)
        assert numbers_at(int(row["dims"]), rank) == list(array.shape)
        assert (row["strides"] == 0) == array.flags.c_contiguous
        if row["strides"]:
            assert numbers_at(int(row["strides"]), rank) == list(array.strides)
    assert plain.sizes.tolist() == [array.nbytes for array in arrays]


def test_objects_are_lent_where_the_gil_protects_them() -> None:
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    assert (sys.implementation.name == "cpython" and gil) == _core.columns.LENDS_OBJECTS


def test_other_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {f"{n}": array for n, array in enumerate(PLAIN)}
    wanted = saving.collect(given)
    monkeypatch.setattr(_core.columns, "LENDS_OBJECTS", False)
    monkeypatch.setattr(_core.columns, "id", lambda _: 1, raising=False)
    found = saving.collect(given)
    assert (found.names, found.codes, found.sizes) == (wanted.names, wanted.codes, wanted.sizes)


def test_a_dict_that_changes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may put other tensors into it at any moment: a name keeps its array."""
    given = {f"t{n}": np.array(n) for n in range(5)}
    real = itertools.islice

    def islice(*arguments: Any) -> list[Any]:
        found = list(real(*arguments))
        if given.pop("t0", None) is not None:
            given["t9"] = np.array(9)
        return found

    monkeypatch.setattr(itertools, "islice", islice)
    sources = saving.collect(given)
    monkeypatch.undo()
    assert "t9" in given
    assert sources.names == [b"t%d" % n for n in range(5)]
    assert [int(array) for array in sources.arrays] == list(range(5))


@pytest.mark.parametrize("batch", [1, 3, taken.BATCH])
def test_slices_of_arrays_that_came_together(batch: int, tmp_path: Path) -> None:
    sources = Sources()
    sources.extend(["a", "b"], [np.arange(4), np.arange(4)])
    sources.slices[1] = ([8], [4], [4])
    for start in range(0, 2, batch):
        table, _owners = sources.table(start, min(start + batch, 2))
        assert (table["slice"] != 0).tolist() == [n == 1 for n in range(start, start + len(table))]
    writer.write_sources(str(tmp_path / "ck"), sources, None, SaveOptions())
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert reader["b"].shape == (8,)


def test_nothing_is_held_afterwards(tmp_path: Path) -> None:
    given = {f"{n}": np.full(3, n) for n in range(2 * taken.BATCH + 1)}
    objects = [*given, *given.values(), np.dtype(np.int64), dtypes.CODES]
    gc.collect()  # what other tests left has dtypes too
    before = [sys.getrefcount(one) for one in objects]
    ckptfmt.save(tmp_path / "ck", given, durability="none")
    ckptfmt.save(tmp_path / "ck", {**given, "0": 5, "x": [1]}, durability="none")
    assert [sys.getrefcount(one) for one in objects] == before


def test_names_that_hold_a_reserved_one_across_their_border(tmp_path: Path) -> None:
    """Joined they look as if one were reserved."""
    half = len(ckptfmt._base.names.RESERVED) // 2
    given = [ckptfmt._base.names.RESERVED[:half], ckptfmt._base.names.RESERVED[half:] + "x"]
    ckptfmt.save(tmp_path / "ck", dict.fromkeys(given, np.ones(1)))
    assert sorted(ckptfmt.load(tmp_path / "ck")) == sorted(given)


@pytest.mark.parametrize("count", [3, 40_000])
@pytest.mark.parametrize("order", ["up", "down", "one late", "in turns"])
def test_names_in_any_order(order: str, count: int, tmp_path: Path) -> None:
    """A repeated name is found whatever the order of the others."""
    given = [f"n{number:06d}" for number in range(count)]
    if order == "down":
        given.reverse()
    elif order == "one late":
        given.append("a")
    elif order == "in turns":
        given = given[::2] + given[1::2]
    array = np.ones(1, np.int8)
    sources = Sources()
    sources.extend(given, [array] * len(given))
    half = len(given) // 2
    with ckptfmt.Writer(tmp_path / "ck", level="v2", durability="none") as one:
        one._add(sources, 0, half)
        one._add(sources, half, len(given))
        one.add("new", array)
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert list(reader) == sorted([*given, "new"])
    for repeated in (given[0], given[-1]):
        writer = ckptfmt.Writer(tmp_path / "other", level="v2", durability="none")
        writer._add(sources, 0, len(given))
        again = Sources()
        again.extend(["new", repeated], [array] * 2)
        with pytest.raises(ckptfmt.errors.InvalidError, match="the name is added twice") as caught:
            writer._add(again)
        assert caught.value.tensor == repeated
        writer.abandon()
