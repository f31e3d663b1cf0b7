# SPDX-License-Identifier: Apache-2.0
"""The border to C for memory: of copies (`ckptfmt_memory_take`, `ckptfmt_copy`) and of large arrays
that are read into."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.border import check, new_error
from ckptfmt._core.columns import address, array_at
from ckptfmt._core.handles import own

__all__ = ["Memory", "copy_size", "new_array", "release_memory"]

LARGE_BYTES = int(lib.CF_ARRAYS_LARGE)
# Data read past the page cache goes straight to an array that begins in its page where it does in
# the file, as long as the array is still as well aligned as any.
BLOCK_BYTES = 4096
ALIGNMENT = 64


class Memory:
    """Memory for copies, all of it there. It is given back when the last view of it dies.

    Attributes:
        size: bytes.
        bytes: all of it, read-only: only `copy` writes there.
    """

    def __init__(self, size: int, threads: int) -> None:
        out, error = ffi.new("uint8_t **"), new_error()
        check(lib.ckptfmt_memory_take(size, threads, out, error), error)
        self.size = size
        # A forked child does not have this memory: there, nothing is given back.
        pointer = own(out[0], lambda data: lib.ckptfmt_memory_give(data, size))
        self._pointer = pointer
        self.bytes = array_at(pointer, size, np.dtype(np.uint8), pointer)

    @property
    def address(self) -> int:
        """Where it begins."""
        return address(self.bytes)

    def copy(self, sources: NDArray[Any], threads: int) -> None:
        """Copies the data of an array of SOURCE here, and changes it to point to the copies; the
        caller keeps alive what its addresses point to."""
        error = new_error()
        with ffi.from_buffer("uint8_t[]", sources, require_writable=True) as raw:
            array = ffi.cast("ckptfmt_source *", raw)
            status = lib.ckptfmt_copy(array, len(sources), self._pointer, self.size, threads, error)
        check(status, error)


def copy_size(sources: NDArray[Any]) -> int:
    """Bytes that `Memory.copy` needs for an array of SOURCE, all of which is checked."""
    out, error = ffi.new("uint64_t *"), new_error()
    with ffi.from_buffer("uint8_t[]", sources) as raw:
        array = ffi.cast("ckptfmt_source *", raw)
        check(lib.ckptfmt_copy_size(array, len(sources), out, error), error)
    return int(out[0])


def new_array(
    shape: tuple[int, ...], dtype: np.dtype[Any], offset: int | None = None
) -> NDArray[Any]:
    """As `np.empty`; the memory of a large array is kept when its last view dies, for the next.

    Args:
        shape: its shape.
        dtype: its dtype.
        offset: where in a file stands what will be read into it.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE_BYTES or dtype.hasobject:
        return np.empty(shape, dtype)
    start = 0 if offset is None or offset % ALIGNMENT else offset % BLOCK_BYTES
    out, error = ffi.new("uint8_t **"), new_error()
    if size > 1 << 62:
        raise MemoryError(f"no array can have {size} bytes")
    check(lib.cf_arrays_take(start + size, out, error), error)

    def give(
        data: Any,
        size: int = start + size,
        free: Callable[[Any, int], None] = lib.cf_arrays_give,
    ) -> None:
        """The arguments are there also while the interpreter exits and forgets its modules."""
        free(data, size)

    held = ffi.gc(out[0], give)
    return np.ndarray(shape, dtype, ffi.buffer(held, start + size), start)


def release_memory() -> int:
    """Gives back all that is kept; its bytes."""
    return int(lib.cf_arrays_release())
