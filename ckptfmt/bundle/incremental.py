# SPDX-License-Identifier: Apache-2.0
"""Saving upon an earlier checkpoint: which tensors have not changed, and which of its data files
are worth a link.

A tensor has changed if its dtype, its shape or one of its bytes has; nothing is decided by times.
The earlier checkpoint (the base) is only read. What is linked has a name of its own in the new
checkpoint, which therefore needs the base no longer. A data file is linked as it is, with the bytes
that no tensor of the new checkpoint names; where these are too many, its tensors are written anew.
"""

from __future__ import annotations

import itertools
import operator
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt.arguments import wrong
from ckptfmt.arrays import Columns, batches
from ckptfmt.bundle import reader as reading
from ckptfmt.errors import InvalidError, StorageError
from ckptfmt.threads import Stop, share, thread_count

__all__ = ["CompactionLimits"]

Path = str | bytes | os.PathLike[Any]

# Bytes of arrays that one thread compares in one crossing into C.
BATCH_BYTES = 32 << 20
# As names.tensor_text, for many.
_TEXT = operator.methodcaller("decode", "utf-8", "surrogateescape")
# More threads than this wait for memory rather than work.
THREADS_MAX = 8


@dataclass(frozen=True)
class CompactionLimits:
    """When the tensors of a base's data file are written anew though they have not changed.

    Attributes:
        dead_share: the largest share of a linked data file that may be bytes which no tensor of the
            new checkpoint names, 0 to 1.
        data_files: the most data files of the new checkpoint, linked ones and its own, at least 1.
            Where there would be more, the largest are linked, half as many as may be, so that it
            takes many saves until there are too many again.

    Raises:
        InvalidError: numbers out of range.
    """

    dead_share: float = 0.5
    data_files: int = 64

    def __post_init__(self) -> None:
        try:
            good = 0 <= self.dead_share <= 1 and operator.index(self.data_files) >= 1
        except TypeError:
            good = False
        if not good:
            raise InvalidError(
                f"dead_share {self.dead_share!r} is a share, 0 to 1, and data_files "
                f"{self.data_files!r} a number of at least 1"
            )


def check_limits(limits: CompactionLimits | None) -> CompactionLimits:
    """The limits given, or the usual ones."""
    if limits is None:
        return CompactionLimits()
    if not isinstance(limits, CompactionLimits):
        raise wrong("compaction", "a CompactionLimits", limits)
    return limits


class Base:
    """An earlier checkpoint, open, beside the tensors that are to be saved. A context manager.

    Args:
        path: whatever `ckptfmt.open` takes.
        sources: what is to be saved.

    Attributes:
        table: the sources as an array of SOURCE, valid as long as this object lives.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
        CorruptError, UnsupportedError, LimitError, StorageError: its index cannot be read.
    """

    def __init__(self, path: Path, sources: Columns) -> None:
        self._reader = reading.open(path)
        self._sources = sources
        self.table, self._owners = sources.table()
        try:
            self._selection = self._reader._handle.list_all()
        except BaseException:
            self._reader.close()
            raise
        self._none = np.empty(0, np.int64)
        self._positions, self._rows = self._none, self._none

    def __enter__(self) -> Base:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._reader.close()

    def compare(self, *, plain: bool, tell: Callable[[int], None]) -> NDArray[np.bool_]:
        """Finds out which of the sources the base holds already.

        Args:
            plain: True counts what has an extension field as changed (level "v2" has none).
            tell: called with bytes of arrays that were found unchanged, from this thread.

        Returns:
            True for each source that has not changed. What cannot be compared, because it is
            partitioned, damaged or stored in another byte order, counts as changed.
        """
        positions, rows = self._counterparts(plain)
        stored = self._selection.rows["stored"][rows]
        order = np.lexsort((stored["offset"], stored["shard"]))
        positions, rows = positions[order], rows[order]
        same = np.zeros(len(positions), np.bool_)
        sizes = np.array(self._sources.sizes, np.int64)[positions]
        work = batches(sizes, BATCH_BYTES)
        # By batch: numpy must not select by an array that another thread writes to meanwhile.
        found = [0] * len(work)
        told, caller = 0, threading.current_thread()

        def compare(number: int) -> None:
            nonlocal told
            batch = work[number]
            table, chosen = self.table[positions[batch]], rows[batch].astype(np.uint64)
            mine = self._reader._handle.compare(self._selection, table, chosen)
            same[batch] = mine
            found[number] = int(sizes[batch][mine].sum())
            if threading.current_thread() is caller:
                told = self._tell(tell, sum(found), told)

        share(len(work), compare, thread_count(THREADS_MAX), "ckptfmt-compare", Stop())
        self._tell(tell, sum(found), told)
        self._positions, self._rows = positions[same], rows[same]
        return self._of_sources(self._positions)

    @staticmethod
    def _tell(tell: Callable[[int], None], done: int, told: int) -> int:
        if done > told:
            tell(done - told)
        return done

    def keep(
        self, writer: _core.WriterHandle, alignment: int, limits: CompactionLimits
    ) -> NDArray[np.bool_]:
        """Takes over what `compare` found unchanged, as far as that is possible and within the
        limits.

        Args:
            writer: takes the links; nothing was added to it yet.
            alignment: that of the new checkpoint.
            limits: what is more than these is left to be written.

        Returns:
            True for each source that is in the checkpoint now.
        """
        chosen = self._worth_a_link(alignment, limits)
        positions, rows = self._positions[chosen], self._rows[chosen].astype(np.uint64)
        if not len(rows):
            return self._of_sources(self._none)
        return self._of_sources(positions[writer.keep(self._reader._handle, self._selection, rows)])

    def _of_sources(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        marked = np.zeros(len(self.table), np.bool_)
        marked[positions] = True
        return marked

    def _counterparts(self, plain: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The sources for which the base has a tensor stored whole, and its rows of these."""
        held = self._selection.names()
        of_name = dict(zip(held, range(len(held)), strict=True))
        wanted = map(_TEXT, self._sources.names)
        rows = np.fromiter(map(of_name.get, wanted, itertools.repeat(-1)), np.int64)
        rows[self.table["slice"] != 0] = -1
        positions = np.flatnonzero(rows >= 0)
        rows = rows[positions]
        columns = self._selection.rows[rows]
        whole = columns["slice_count"] == 0
        if plain:
            whole &= columns["stored"]["chunk_size"] == 0
        return positions[whole], rows[whole]

    def _worth_a_link(self, alignment: int, limits: CompactionLimits) -> NDArray[np.bool_]:
        """Which of the unchanged tensors lie in data files that are worth a link.

        A data file is as live as writing its unchanged tensors anew would cost, padding included.
        """
        stored = self._selection.rows["stored"][self._rows]
        shards, file_of = np.unique(stored["shard"], return_inverse=True)
        needed = -(-stored["size"].astype(np.int64) // alignment) * alignment
        live = np.zeros(len(shards), np.int64)
        np.add.at(live, file_of, needed)
        sizes = np.array([self._data_size(shard) for shard in shards.tolist()], np.int64)
        linked = (live > 0) & (sizes >= 0) & (sizes - live <= limits.dead_share * sizes)
        most = limits.data_files - 1  # and one for what is written
        if np.count_nonzero(linked) > most:
            largest = np.argsort(np.where(linked, -live, 1), kind="stable")
            linked[largest[min(most, limits.data_files // 2) :]] = False
        return linked[file_of]

    def _data_size(self, shard: int) -> int:
        """Bytes of a data file; -1 where it is gone, so that it cannot be linked either."""
        try:
            return self._reader._handle.data_size(shard)
        except StorageError:
            return -1
