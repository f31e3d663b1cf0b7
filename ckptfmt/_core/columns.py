# SPDX-License-Identifier: Apache-2.0
"""C structs as numpy columns, and C memory as numpy arrays."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._ckptfmt import ffi, lib

# NumPy's maximum rank.
NUMPY_RANK_MAX = 64

_SCALARS = {
    "int32_t": np.dtype(np.int32),
    "uint32_t": np.dtype(np.uint32),
    "int64_t": np.dtype(np.int64),
    "uint64_t": np.dtype(np.uint64),
}

# Room for the dims and strides of one array of maximum rank, and of many arrays.
_NUMBERS_EACH, _NUMBERS_MAX = 2 * NUMPY_RANK_MAX, 1 << 16


def _has_gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


# Whether C may use Python objects by their id(): an address in CPython only, and safe only while
# the GIL protects the object.
LENDS_OBJECTS = sys.implementation.name == "cpython" and _has_gil()


def _column_dtype(ctype: Any) -> Any:
    """Return the numpy dtype with exactly the layout of a C type, from cffi's description."""
    if ctype.kind == "struct":
        fields = dict(ctype.fields)
        return np.dtype(
            {
                "names": list(fields),
                "formats": [_column_dtype(field.type) for field in fields.values()],
                "offsets": [field.offset for field in fields.values()],
                "itemsize": ffi.sizeof(ctype),
            }
        )
    if ctype.kind == "pointer":
        return np.dtype(np.uintp)
    return _SCALARS[ctype.cname]


def distinct(values: NDArray[Any]) -> list[int]:
    """Return the different values of a one-dimensional array of integers, in ascending order.

    `numpy.unique` imports `numpy.ma` when it is first called: a child forked meanwhile waits for
    that import forever. And it takes the GIL in a C++ function that must not be unwound: there
    Python before 3.12 ends the process with std::terminate if the caller is a daemon thread at
    exit.
    """
    ordered = np.sort(values)
    return [*ordered[:1].tolist(), *ordered[1:][ordered[1:] != ordered[:-1]].tolist()]


ROW = _column_dtype(ffi.typeof("ckptfmt_row"))
SLICE_ROW = _column_dtype(ffi.typeof("ckptfmt_slice_row"))
REQUEST = _column_dtype(ffi.typeof("ckptfmt_request"))
SOURCE = _column_dtype(ffi.typeof("ckptfmt_source"))
BYTES = _column_dtype(ffi.typeof("ckptfmt_bytes"))
REGION = _column_dtype(ffi.typeof("ckptfmt_region"))
CODEC_ITEM = _column_dtype(ffi.typeof("ckptfmt_codec_item"))


def address(array: NDArray[Any]) -> int:
    """Address of the first element; the caller keeps the array alive."""
    return int(array.__array_interface__["data"][0])


def addresses(
    arrays: Sequence[NDArray[Any]], dense: Sequence[bool]
) -> tuple[NDArray[np.uint64], list[Any]]:
    """Return the addresses of the first elements of many arrays, and the objects to keep alive.

    The array of addresses does not keep its targets alive: the list does. Borrowing the buffer is
    several times faster than asking numpy for the address (measured), but only `dense`
    (C-contiguous) arrays lend theirs.
    """
    borrow, nothing = ffi.from_buffer, ffi.NULL
    owners = [borrow(array) if d else nothing for array, d in zip(arrays, dense, strict=True)]
    if not owners:
        return np.empty(0, np.uint64), owners
    pointers = ffi.new("char *[]", owners)
    column = np.frombuffer(ffi.buffer(pointers), np.uint64, len(arrays)).copy()
    for row in [row for row, d in enumerate(dense) if not d]:
        column[row] = address(arrays[row])
    return column, owners


class PlainArrays:
    """Descriptions of numpy arrays of exactly that type, each examined once.

    Args:
        count: maximum number of arrays.
        codes: a dict with the code of each dtype that is stored as it is in memory.

    Attributes:
        count: number of arrays described so far.
        table: an array of SOURCE, valid up to `count`.
        sizes: bytes of data of each.

    This object keeps alive what `table` points to, except the data, which belongs to the arrays.
    """

    def __init__(self, count: int, codes: Mapping[np.dtype[Any], int]) -> None:
        self.table, self.sizes = np.empty(count, SOURCE), np.empty(count, np.int64)
        self.count = 0
        self._codes, self._owners = codes, list[Any]()
        self._names, self._ends = list[bytes](), list[int]()  # joined names and the row they end at
        self._taker = ffi.new("cf_arrays_taker *")
        self._taker.array_type, self._taker.codes = id(np.ndarray), id(codes)
        self._sources = ffi.cast("ckptfmt_source *", ffi.from_buffer("uint8_t[]", self.table))
        self._sizes = ffi.from_buffer("int64_t[]", self.sizes)

    def take(self, given: list[Any], arrays: list[Any]) -> int:
        """Describe arrays up to the first that is not plain (none in a Python other than CPython).

        Args:
            given: their names, bytes or ASCII str.

        Returns:
            the number of arrays described.
        """
        taker, first, done = self._taker, self.count, 0
        assert len(arrays) <= len(self.table) - first
        texts = bool(given) and isinstance(given[0], str)
        joined = "".join(given).encode() if texts else b"".join(given)
        taker.name = ffi.from_buffer("uint8_t[]", joined)
        self._names.append(joined)
        while LENDS_OBJECTS and done < len(arrays):
            if taker.numbers_left < _NUMBERS_EACH:
                self._make_room()
            sources, sizes = self._sources + first + done, self._sizes + first + done
            some = lib.cf_arrays_describe(taker, id(given), id(arrays), done, sources, sizes)
            done += some
            if not some:
                break
        self.count += done
        self._ends.append(self.count)
        return done

    def names(self) -> list[bytes]:
        """Return the names of the described arrays."""
        found, first = list[bytes](), 0
        for joined, end in zip(self._names, self._ends, strict=True):
            ends = list(itertools.accumulate(self.table["name_size"][first:end].tolist()))
            found += [joined[a:b] for a, b in zip([0, *ends], ends, strict=False)]
            first = end
        return found

    def _make_room(self) -> None:
        """Allocate room for the dims and strides of the remaining arrays, or some of them."""
        left = len(self.table) - self.count
        numbers = ffi.new("int64_t[]", min(4 * left, _NUMBERS_MAX) + _NUMBERS_EACH)
        self._owners.append(numbers)
        self._taker.numbers, self._taker.numbers_left = numbers, len(numbers)


def array_at(pointer: Any, count: int, dtype: np.dtype[Any], owner: Any) -> NDArray[Any]:
    """Return a read-only array over C memory. Its views keep `owner` of that memory alive."""
    if not count:
        nothing = np.empty(0, dtype)
        nothing.setflags(write=False)
        return nothing

    def keep(_pointer: Any, _owner: Any = owner) -> None:
        """Run when the last view is gone; until then its default argument holds the owner."""

    owned = ffi.gc(pointer, keep)
    return np.frombuffer(memoryview(ffi.buffer(owned, count * dtype.itemsize)).toreadonly(), dtype)
