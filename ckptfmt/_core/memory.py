# SPDX-License-Identifier: Apache-2.0
"""Memory of copies (`ckptfmt_memory_take`, `ckptfmt_copy`) and of arrays that are read into."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.border import check, own
from ckptfmt._core.columns import address, array_at

# From this size on numpy requests large pages.
LARGE_BYTES = 4 << 20
# O_DIRECT reads go straight into an array whose address and file offset agree modulo this, if the
# array is aligned as well.
BLOCK_BYTES = 4096
ALIGNMENT = 64


class Memory:
    """Populated memory for copies. It is freed when the last view of it dies.

    Attributes:
        size: bytes.
        pid: the process that owns it; a forked child does not have it.
        bytes: all of it, read-only: only `copy` writes there.
    """

    def __init__(self, size: int, threads: int) -> None:
        out, error = ffi.new("uint8_t **"), ffi.new("ckptfmt_error *")
        check(lib.ckptfmt_memory_take(size, threads, out, error), error)
        self.size, self.pid = size, os.getpid()
        # A forked child does not have this memory and frees nothing.
        pointer = own(out[0], lambda data: lib.ckptfmt_memory_give(data, size))
        self._pointer = pointer
        self.bytes = array_at(pointer, size, np.dtype(np.uint8), pointer)

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return address(self.bytes)

    def copy(self, sources: NDArray[Any], threads: int) -> None:
        """Copy the data of an array of SOURCE here and make the sources point to the copies. The
        caller keeps the original data alive."""
        error = ffi.new("ckptfmt_error *")
        with ffi.from_buffer("uint8_t[]", sources, require_writable=True) as raw:
            array = ffi.cast("ckptfmt_source *", raw)
            status = lib.ckptfmt_copy(array, len(sources), self._pointer, self.size, threads, error)
        check(status, error)


def copy_size(sources: NDArray[Any]) -> int:
    """Check an array of SOURCE; return the bytes that `Memory.copy` needs for it."""
    out, error = ffi.new("uint64_t *"), ffi.new("ckptfmt_error *")
    with ffi.from_buffer("uint8_t[]", sources) as raw:
        array = ffi.cast("ckptfmt_source *", raw)
        check(lib.ckptfmt_copy_size(array, len(sources), out, error), error)
    return int(out[0])


def new_array(
    shape: tuple[int, ...], dtype: np.dtype[Any], offset: int | None = None
) -> NDArray[Any]:
    """Like `np.empty`, but give a large array the same offset in its page as its data in the file.

    Args:
        shape: its shape.
        dtype: its dtype.
        offset: the position in a file of the data that will be read into it.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE_BYTES or dtype.hasobject:
        return np.empty(shape, dtype)
    start = 0 if offset is None or offset % ALIGNMENT else offset % BLOCK_BYTES
    if size > 1 << 62:
        raise MemoryError(f"an array of {size} bytes is too large")
    memory = np.empty(size + BLOCK_BYTES, np.uint8)
    return np.ndarray(shape, dtype, memory, (start - address(memory)) % BLOCK_BYTES)
