# SPDX-License-Identifier: Apache-2.0
"""The border to C for copies in memory: `ckptfmt_memory_take` and `ckptfmt_copy`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.border import check, new_error
from ckptfmt._core.columns import address, array_at
from ckptfmt._core.handles import own

__all__ = ["Memory", "copy_size"]


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
