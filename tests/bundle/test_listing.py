# SPDX-License-Identifier: Apache-2.0
"""Listings and what is picked from them in bulk: names of every kind, `keys` by prefix and glob,
and arrays of one shape that are made together."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from support.arrays import assert_same
from support.files import flip

import ckptfmt

MANY = 9001
ONE = np.zeros(1, np.int8)


def text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def saved(tmp_path: Path, raw_names: Iterable[bytes], **options: Any) -> ckptfmt.Reader:
    """A reader of a checkpoint with these names."""
    prefix = tmp_path / "p"
    with ckptfmt.Writer(prefix, durability="none", **options) as writer:
        for raw in raw_names:
            writer.add(raw, ONE)
    return ckptfmt.open(prefix)


def expected(raw_names: Iterable[bytes], prefix: bytes = b"", glob: str = "*") -> list[str]:
    """What `keys` says, the plain way."""
    texts = [text_of(raw) for raw in sorted(raw_names) if not raw.startswith(b"_CKPTFMT_")]
    test = re.compile(fnmatch.translate(glob)).match
    return [text for text in texts if text.startswith(text_of(prefix)) and test(text)]


ODD = [
    b"\0first",
    b"\0",
    b"A",
    b"_",
    b"_CKPTFMT",
    b"_CKPTFMT`",
    b"_CKPTFM",
    b"a",
    b"a/b\0c",
    b"a/b\0",
    b"a/b",
    b"a\xc3",
    "aé".encode(),
    b"a\xc3\xa9\xa9",
    b"a\xe2\x82",
    b"a\xe2\x82\0\xac",
    "a€".encode(),
    b"a\xed\xa0\x80",
    b"a\xf0\x9f\x98",
    "a😀b".encode(),
    b"a\xf4\x90\x80\x80",
    b"a\xc0\x80",
    b"a\n",
    b"a]",
    b"a[b",
    b"z",
    b"\xff",
    b"\xff\xff",
    b"\xff\xff\xff",
]


def test_odd_names(tmp_path: Path) -> None:
    with saved(tmp_path, ODD) as opened:
        assert list(opened) == list(map(text_of, sorted(ODD)))
        assert opened.table()["name"].tolist() == list(opened)
        assert [handle.name for handle in opened.values()] == list(opened)
        assert list(ckptfmt.load(tmp_path / "p")) == list(opened)


@pytest.mark.parametrize("zero", [False, True])
def test_names_beside_slices(tmp_path: Path, zero: bool) -> None:
    """Of a partitioned tensor, whose slices have keys of their own, and of one named like them."""
    with ckptfmt.Writer(tmp_path / "p", durability="none") as writer:
        writer.add("a", ONE)
        if zero:
            writer.add(b"\0z", ONE)
        else:
            writer.add_slice("m", np.ones((1, 2)), (2, 2), (0, 0))
            writer.add_slice("m", np.ones((1, 2)), (2, 2), (1, 0))
        writer.add("z", ONE)
    with ckptfmt.open(tmp_path / "p") as opened:
        assert list(opened) == (["\0z", "a", "z"] if zero else ["a", "m", "z"])


@pytest.mark.parametrize("listed", [False, True])
def test_prefixes(tmp_path: Path, listed: bool) -> None:
    with saved(tmp_path, ODD) as opened:
        if listed:
            assert len(list(opened.items())) == len(ODD)
        starts = {raw[:size] for raw in ODD for size in range(len(raw) + 1)}
        for prefix in sorted(starts | {b"b", b"zz", b"\xfe", b"_CKPTFMT_", b"\xff" * 4}):
            with ckptfmt.open(tmp_path / "p") as fresh:
                found = (opened if listed else fresh).keys(prefix=prefix)
                assert list(found) == expected(ODD, prefix), prefix


# A glob is narrowed to the names that begin with its literal start.
GLOBS = [
    *("*", "", "a*", "*a", "a?", "a*b", "[a-y]*", "a[!b]*", "a[b", "*\n", "_CKPTFMT_*", "a/b\0*"),
    *("a[é€]", "a[\udcc3]*", "a\udcc3*", "a\udcc3\udca9", "a\ud800", "\ud800*", "\udcff?", "*😀*"),
]


def test_globs(tmp_path: Path) -> None:
    with saved(tmp_path, ODD) as opened:
        for glob, prefix in itertools.product(GLOBS, [b"", b"a", b"a\xc3", b"_", b"a/b"]):
            found = list(opened.keys(glob=glob, prefix=prefix))
            assert found == expected(ODD, prefix, glob), (glob, prefix)


@pytest.mark.parametrize("odd", [b"", b"77\n", b"a\0b77", b"\xc3\xa977", b"\xc377"])
def test_regexes(odd: bytes, tmp_path: Path) -> None:
    raw_names = [b"n%05d%s" % (i, odd if i == MANY // 2 else b"") for i in range(MANY)]
    with saved(tmp_path, raw_names) as opened:
        for regex in ("77$", "^n.*[^7]77", "\xe9", "[^\\w]", "5|(?<=7)7"):
            found = [name for name in opened if re.search(regex, name)]
            assert list(opened.keys(regex=regex)) == found


@pytest.mark.parametrize("neighbours", [[], [b"A"], [b"a"], [b"A", b"_", b"_CKPTFMT`", b"a"]])
def test_reserved_names(tmp_path: Path, neighbours: list[bytes]) -> None:
    """The names of the format are left out wherever they stand in the order."""
    with saved(tmp_path, neighbours, metadata={"k": 1}) as opened:
        assert "_CKPTFMT_METADATA" in opened
        wanted = list(map(text_of, sorted(neighbours)))
        assert list(opened) == list(opened.keys(prefix="")) == list(opened.keys(glob="*")) == wanted
        assert list(opened.keys(prefix="_CKPTFMT")) == [n for n in wanted if n[:8] == "_CKPTFMT"]
        assert list(opened.keys(prefix="_CKPTFMT_")) == list(opened.keys(glob="*META*")) == []
        assert len(opened) == len(opened.values()) == len(wanted)
        assert [name for name, _ in opened.items()] == opened.table()["name"].tolist() == wanted
        assert opened.table(reserved=True)["name"].tolist() == sorted(
            [*wanted, "_CKPTFMT_METADATA"]
        )
    assert list(ckptfmt.load(tmp_path / "p")) == wanted


def test_prefix_reads_a_part(tmp_path: Path) -> None:
    """A listing by prefix reads only the blocks that hold the names."""
    raw_names = [b"%05d" % i + b"x" * 200 for i in range(5000)]
    with saved(tmp_path, raw_names) as opened:
        regions = opened.regions()
        last = int(regions["offset"][opened.header.block_count - 1])
        assert opened.header.block_count >= 3
    flip(tmp_path / "p.index", last + 100)
    with ckptfmt.open(tmp_path / "p") as opened:
        for start in ("000", "0100", "02"):
            assert list(opened.keys(prefix=start)) == expected(raw_names, start.encode())
        assert list(opened.keys(glob="00?7x*")) == expected(raw_names, glob="00?7x*")
        for missing in ("04", ""):
            with pytest.raises(ckptfmt.CorruptError, match="checksum"):
                opened.keys(prefix=missing)
        with pytest.raises(ckptfmt.CorruptError, match="checksum"):
            len(opened)


# ---- arrays of one shape -------------------------------------------------------------------------

SHAPES: list[tuple[int, ...]] = [(3,), (), (0,), (5, 0), (64,), (2, 3), (2, 3, 1), (1,) * 8]
DTYPES = [np.float32, np.bool_, ml_dtypes.bfloat16, np.dtype([("qint8", np.int8)]), np.complex128]


def many(count: int) -> dict[str, NDArray[Any]]:
    """Tensors of all kinds, in an order in which no two of a kind stand together."""
    kinds = list(itertools.product(SHAPES, DTYPES))
    tensors = {}
    for number in range(count * len(kinds)):
        shape, dtype = kinds[number % len(kinds)]
        raw = np.random.default_rng(number).integers(0, 2, shape, np.int8)
        tensors[f"{number:05d}"] = raw.astype(dtype)
    return tensors


@pytest.mark.parametrize("count", [1, 7, 8, 30])
def test_kinds_that_take_turns(tmp_path: Path, count: int) -> None:
    tensors = many(count)
    ckptfmt.save(tmp_path / "p", tensors, durability="none")
    found = ckptfmt.load(tmp_path / "p")
    assert list(found) == list(tensors)
    for name, array in found.items():
        assert_same(array, tensors[name])
        assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned
    # What is written to one shows in no other.
    for array in found.values():
        array[...] = np.zeros(array.shape, array.dtype)
    again = ckptfmt.load(tmp_path / "p", list(reversed(tensors)))
    assert list(again) == list(reversed(tensors))
    target = np.ones(3, np.float32)
    ckptfmt.load_into(tmp_path / "p", {"00000": target}, strict=False)
    assert_same(target, again["00000"])
    for name, array in again.items():
        assert_same(array, tensors[name])


def test_many_shapes(tmp_path: Path) -> None:
    shapes = [(i % 90, 1 + i // 90) for i in range(9000)] * 2
    tensors = {f"{i:05d}": np.full(shape, i % 100, np.int8) for i, shape in enumerate(shapes)}
    ckptfmt.save(tmp_path / "p", tensors, durability="none")
    with ckptfmt.open(tmp_path / "p") as opened:
        kinds, firsts = opened._listing().selection.kinds
        assert len(firsts) == 9000 and int(kinds.max()) == 8999
        assert opened._listing().selection.shapes() == shapes
        assert opened.table()["shape"].tolist() == shapes
    for name, array in ckptfmt.load(tmp_path / "p").items():
        assert_same(array, tensors[name])


def test_boxes_beside_wholes(tmp_path: Path) -> None:
    """Slices of one shape of tensors of one shape, mixed with whole ones."""
    tensors = {f"{i:02d}": np.arange(i, i + 24, dtype=np.int32).reshape(4, 6) for i in range(40)}
    ckptfmt.save(tmp_path / "p", tensors, durability="none")
    specs = ["", "4 6 0,2:-", "4 6 -:1,3", "4 6 2,2:-"] * 10
    boxes = [np.s_[:], np.s_[:2], np.s_[:, 1:4], np.s_[2:]] * 10
    found = ckptfmt.restore_v2(tmp_path / "p", list(tensors), specs)
    for array, value, box in zip(found, tensors.values(), boxes, strict=True):
        assert_same(array, np.ascontiguousarray(value[box]))
