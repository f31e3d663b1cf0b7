# SPDX-License-Identifier: Apache-2.0
"""Snapshots: copies of what is to be written, after which the arrays may change.

The memory is kept for the next save. To have it from the system costs as much as the copying.
"""

from __future__ import annotations

import contextlib
import operator
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core, dtypes
from ckptfmt._core import SOURCE, Memory
from ckptfmt.arguments import wrong
from ckptfmt.arrays import Sources
from ckptfmt.errors import InvalidError
from ckptfmt.threads import thread_count

__all__ = ["Copied", "Snapshot", "arena_size", "limit_arena", "release_arena"]

# Memory is asked for in multiples of large pages.
UNIT = 2 << 20
# More threads than this only wait for the memory.
THREADS_MAX = 8


class _Arena:
    """The memory that is kept: that of the largest save so far. A save takes it and gives it back
    when it is written; one that finds it taken gets its own."""

    def __init__(self) -> None:
        self.limit: int | None = None
        self.reset()

    def reset(self) -> None:
        """Nothing is kept, as in a forked child, which does not have the memory of its parent."""
        self._lock = threading.RLock()  # a handler of signals may save as well
        self._kept: Memory | None = None

    def release(self) -> None:
        """Gives back what is kept."""
        with self._lock:
            self._kept = None

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        with self._lock:
            return 0 if self._kept is None else self._kept.size

    def take(self, size: int) -> Memory:
        """Memory of at least this size. Raises MemoryError."""
        if self.limit is not None and size > self.limit:
            raise MemoryError(
                f"a copy of {size} bytes is more than the limit of {self.limit} (see limit_arena)"
            )
        with self._lock:
            found, self._kept = self._kept, None
        if found is not None and found.size >= size:
            return found
        del found  # before there is more: never both at once
        size = -(-size // UNIT) * UNIT
        available = _available()
        if available is not None and size > available:
            raise MemoryError(
                f"a copy of {size} bytes does not fit the memory: {available} is left"
            )
        try:
            return Memory(size, thread_count(THREADS_MAX))
        except MemoryError:
            raise MemoryError(f"there is no memory for a copy of {size} bytes") from None

    def keep(self, memory: Memory) -> None:
        """Takes back memory that nobody uses any more."""
        with self._lock:
            if self.limit is not None and memory.size > self.limit:
                return
            if self._kept is None or self._kept.size < memory.size:
                self._kept = memory


_arena = _Arena()
os.register_at_fork(after_in_child=_arena.reset)


def release_arena() -> None:
    """Gives the memory that background saves keep for the next one back to the system. That of a
    save under way stays, and is kept afterwards."""
    _arena.release()


def limit_arena(limit: int | None) -> None:
    """Sets how many bytes of copies a background save may make; one of more raises MemoryError
    before anything is written. None, as at first: whatever the system has. Memory beyond the limit
    is not kept."""
    if limit is not None:
        try:
            limit = operator.index(limit)
        except TypeError:
            raise wrong("the limit", "a number of bytes, or None", limit) from None
        if limit < 0:
            raise InvalidError(f"the limit {limit} is negative")
    _arena.limit = limit
    if limit is not None and _arena.size > limit:
        _arena.release()


def arena_size() -> int:
    """The bytes that are kept for the next background save."""
    return _arena.size


class Copied:
    """Some sources with data of their own: as a Sources to whoever writes them."""

    def __init__(self, sources: Sources, table: NDArray[Any], owners: list[Any]) -> None:
        self.names, self.sizes = sources.names, sources.sizes
        self._table, self._owners = table, owners

    def table(self, first: int = 0, last: int | None = None) -> tuple[NDArray[Any], list[Any]]:
        """As that of Sources."""
        return self._table[first:last], self._owners


class Snapshot:
    """Copies of the data of some Sources, made in one go. A context manager: at its end the memory
    is kept for the next snapshot, and the copies must not be looked at any more.

    Raises:
        InvalidError: data that cannot be stored.
        MemoryError: there is not enough memory, or the limit is below it.
    """

    def __init__(self, shards: Sequence[Sources]) -> None:
        described = [sources.described() for sources in shards]
        whole = np.concatenate([np.empty(0, SOURCE), *(table for table, _, _ in described)])
        size = _core.copy_size(whole) if len(whole) else 0
        self._memory = _arena.take(size) if size else None
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
        if memory is not None:
            _arena.keep(memory)

    def arrays(self, sources: Sources) -> list[NDArray[Any]]:
        """The copies as arrays, if these are the only sources; strings as objects of bytes."""
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
    """Bytes that programs can still have without swapping; None where the system does not say."""
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open("/proc/meminfo", "rb") as stream,
    ):
        for line in stream:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) << 10
    return None
