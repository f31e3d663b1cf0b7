# SPDX-License-Identifier: Apache-2.0
"""Structs of C as numpy columns, and memory of C as numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._ckptfmt import ffi

_SCALARS = {
    "int32_t": np.dtype(np.int32),
    "uint32_t": np.dtype(np.uint32),
    "int64_t": np.dtype(np.int64),
    "uint64_t": np.dtype(np.uint64),
}


def _column_dtype(ctype: Any) -> Any:
    """The numpy dtype that has exactly the layout of a C type, from what cffi knows of it."""
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


ROW = _column_dtype(ffi.typeof("ckptfmt_row"))
SLICE_ROW = _column_dtype(ffi.typeof("ckptfmt_slice_row"))
REQUEST = _column_dtype(ffi.typeof("ckptfmt_request"))
SOURCE = _column_dtype(ffi.typeof("ckptfmt_source"))
BYTES = _column_dtype(ffi.typeof("ckptfmt_bytes"))
REGION = _column_dtype(ffi.typeof("ckptfmt_region"))
CHUNK_RUN = _column_dtype(ffi.typeof("ckptfmt_chunk_run"))
FRAME = _column_dtype(ffi.typeof("ckptfmt_frame"))


def address(array: NDArray[Any]) -> int:
    """Address of the first element; the caller keeps the array alive."""
    return int(array.__array_interface__["data"][0])


def addresses(
    arrays: Sequence[NDArray[Any]], dense: Sequence[bool]
) -> tuple[NDArray[np.uint64], list[Any]]:
    """Addresses of the first elements of many arrays, and what keeps them valid.

    An array of pointers does not keep its targets alive: the list does. Borrowing the buffer is
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


def numbers_at(place: int, count: int) -> NDArray[np.int64]:
    """int64 numbers at an address, which the caller keeps alive."""
    return np.frombuffer(ffi.buffer(ffi.cast("int64_t *", place), 8 * count), np.int64)


def array_at(pointer: Any, count: int, dtype: np.dtype[Any], owner: Any) -> NDArray[Any]:
    """A read-only array over memory of C, which `owner` keeps alive for as long as any view of it
    lives."""
    if not count:
        nothing = np.empty(0, dtype)
        nothing.setflags(write=False)
        return nothing

    def keep(_pointer: Any, _owner: Any = owner) -> None:
        """Runs when the last view is gone; until then its default argument holds the owner."""

    held = ffi.gc(pointer, keep)
    return np.frombuffer(memoryview(ffi.buffer(held, count * dtype.itemsize)).toreadonly(), dtype)
