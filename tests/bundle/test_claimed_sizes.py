# SPDX-License-Identifier: Apache-2.0
"""A small file that claims a tensor of any size ends in a typed error, whichever call reads it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index as ix

import ckptfmt
from ckptfmt._ckptfmt import ffi, lib

UNKNOWN = 60  # a dtype code that nothing uses
SIZES = [1 << 30, 1 << 62, (1 << 63) - 1, -1]


def claimed(tmp_path: Path, size: int) -> Path:
    """A tensor of an unknown dtype whose entry claims `size` bytes of a file of 16."""
    rows = [(b"", ix.header()), (b"x", ix.entry(UNKNOWN, [4], size=size & ((1 << 64) - 1)))]
    return ix.write(tmp_path / "ck", ix.index_of(rows), bytes(16))


def in_slices(tmp_path: Path, size: int) -> Path:
    """The same in two slices."""
    extents = [[(0, 2)], [(2, 2)]]
    whole = ix.entry(UNKNOWN, [4], slices=[ix.slice_message(one) for one in extents])
    part = ix.entry(UNKNOWN, [2], size=size & ((1 << 64) - 1))
    keys = sorted((ix.slice_key(b"x", one), part) for one in extents)
    rows = [(b"", ix.header()), *keys, (b"x", whole)]
    return ix.write(tmp_path / "ck", ix.index_of(rows), bytes(16))


USES: dict[str, Callable[[Path], Any]] = {
    "load": ckptfmt.load,
    "read": lambda path: ckptfmt.open(path)["x"].read(),
    "reader.read": lambda path: ckptfmt.open(path).read("x"),
    "[...]": lambda path: ckptfmt.open(path)["x"][...],
    "map": lambda path: ckptfmt.open(path)["x"].map(),
}


@pytest.mark.parametrize(
    ("make", "size", "use"), list(itertools.product([claimed, in_slices], SIZES, USES))
)
def test_read(make: Callable[[Path, int], Path], size: int, use: str, tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.CkptfmtError):
        USES[use](make(tmp_path, size))


@pytest.mark.parametrize(("make", "size"), list(itertools.product([claimed, in_slices], SIZES)))
def test_listed(make: Callable[[Path, int], Path], size: int, tmp_path: Path) -> None:
    with ckptfmt.open(make(tmp_path, size)) as reader:
        table = reader.table()
        assert table["name"].tolist() == ["x"]
        wanted = (size & ((1 << 64) - 1)) * (1 if make is claimed else 2)
        assert int(table["nbytes"][0]) == min(wanted, (1 << 64) - 1)


def located(handle: Any) -> dict[str, Any]:
    """The fields of `ckptfmt_location`, by the C function, which has no other door in Python."""
    place = ffi.new("ckptfmt_location *")
    reader = handle._reader._handle
    whole = handle._selection.pointer, handle._row, lib.CKPTFMT_WHOLE
    reader.call(lib.ckptfmt_reader_locate, *whole, place)
    fields = {name: getattr(place, name) for name, _ in ffi.typeof(place[0]).fields}
    return fields | {"path": os.fsdecode(ffi.string(place.path))}


def test_located(tmp_path: Path) -> None:
    value = np.arange(5, dtype=np.int32)
    ckptfmt.save(tmp_path / "ck", {"a": value, "b": value + 1})
    with ckptfmt.open(tmp_path / "ck") as reader:
        handle = reader["b"]
        place = located(handle)
        stored = Path(place["path"]).read_bytes()[place["offset"] :][: place["size"]]
        assert stored == (value + 1).tobytes()
        assert (place["offset"], place["crc32c"]) == (handle.offset, handle.crc32c)
    Path(place["path"]).write_bytes(b"")
    with (
        ckptfmt.open(tmp_path / "ck") as reader,
        pytest.raises(ckptfmt.CorruptError, match="DAT-2"),
    ):
        located(reader["b"])
