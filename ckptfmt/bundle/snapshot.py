# SPDX-License-Identifier: Apache-2.0
"""Snapshots: copies of what is to be written, after which the arrays may change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base import dtypes
from ckptfmt._base.arrays import Sources
from ckptfmt._base.background import SaveQueue
from ckptfmt._base.threads import thread_count
from ckptfmt._core import SOURCE, Memory

# Memory is allocated in multiples of large pages.
UNIT = 2 << 20
# More threads than this only wait for the memory.
THREADS_MAX = 8


class Copied:
    """Copies of some sources, which a writer uses like a Sources."""

    def __init__(self, sources: Sources, table: NDArray[Any], owners: list[Any]) -> None:
        self.names, self.sizes = sources.names, sources.sizes
        self._table, self._owners = table, owners

    def size_column(self) -> NDArray[np.int64]:
        """Return `sizes` as an array."""
        return np.array(self.sizes, np.int64)

    def table(self, first: int = 0, last: int | None = None) -> tuple[NDArray[Any], list[Any]]:
        """As that of Sources."""
        return self._table[first:last], self._owners


class Snapshot:
    """Copies of the data of some Sources, made at once. A context manager: at its end the copies
    must not be used any more.

    Args:
        shards: what is copied.
        owner: the staging memory of its last save is used again if it is large enough, and this
            snapshot leaves its own for the next: getting memory from the system takes as long as
            copying into it. None: the memory is freed at the end.

    Raises:
        InvalidError: data that cannot be stored.
        MemoryError: there is not enough memory.
    """

    def __init__(self, shards: Sequence[Sources], owner: SaveQueue | None = None) -> None:
        self._owner = owner
        described = [sources.described() for sources in shards]
        whole = np.concatenate([np.empty(0, SOURCE), *(table for table, _, _ in described)])
        size = _core.copy_size(whole) if len(whole) else 0
        self._memory = self._take(size) if size else None
        if self._memory is not None:
            try:
                self._memory.copy(whole, thread_count(THREADS_MAX))
            except BaseException:
                self.__exit__()
                raise
        self.copied: list[Copied] = []
        first = 0
        # What keeps the arrays is let go; the columns that describe them stay.
        for sources, (table, _, owners) in zip(shards, described, strict=True):
            part = whole[first : first + len(table)]
            self.copied.append(Copied(sources, part, owners))
            first += len(table)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_exc: object) -> None:
        memory, self._memory = self._memory, None
        if memory is not None and self._owner is not None:
            self._owner.staging = memory

    def _take(self, size: int) -> Memory:
        """Memory of at least this size."""
        if self._owner is not None:
            found, self._owner.staging = self._owner.staging, None
            if found is not None and found.size >= size and found.pid == os.getpid():
                return found
            del found  # before more is taken: never both at once
        size = -(-size // UNIT) * UNIT
        available = _available()
        if available is not None and size > available:
            raise MemoryError(
                f"a copy of {size} bytes does not fit the memory: {available} is left"
            )
        try:
            return Memory(size, thread_count(THREADS_MAX))
        except MemoryError:
            raise MemoryError(f"not enough memory for a copy of {size} bytes") from None

    def arrays(self, sources: Sources) -> list[NDArray[Any]]:
        """Return the copies as arrays, if these are the only sources; strings as objects of
        bytes."""
        (copied,) = self.copied
        addresses = copied.table()[0]["data"].tolist()
        found: list[NDArray[Any]] = []
        for row, (array, code) in enumerate(zip(sources.arrays, sources.codes, strict=True)):
            if row in sources.elements:
                strings = np.empty(array.size, object)
                strings[:] = sources.elements[row]
                found.append(strings.reshape(array.shape))
                continue
            dtype = dtypes.numpy_dtype(code)
            assert dtype is not None
            dtype = dtype.newbyteorder() if row in sources.swapped else dtype
            if self._memory is None or not array.size:
                found.append(np.empty(array.shape, dtype))
            else:
                at = addresses[row] - self._memory.address
                found.append(np.ndarray(array.shape, dtype, self._memory.bytes, at))
        return found


def _available() -> int | None:
    """Return the bytes available without swapping, or None if unknown."""
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open("/proc/meminfo", "rb") as stream,
    ):
        for line in stream:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) << 10
    return None
