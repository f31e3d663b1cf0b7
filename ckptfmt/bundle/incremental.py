# SPDX-License-Identifier: Apache-2.0
"""Incremental saves: which tensors are the same in an earlier checkpoint (the base), and which of
its data files are worth a link.

A tensor has changed if its dtype, its shape or one of its bytes has; times do not matter. The base
is only read. A linked data file gets its own name in the new checkpoint, which therefore does not
need the base later.
"""

from __future__ import annotations

import itertools
import operator
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base.arrays import Columns, batches
from ckptfmt._base.names import path_text
from ckptfmt._base.threads import Stop, share, thread_count
from ckptfmt.bundle import reader as reading
from ckptfmt.errors import StorageError

Path = str | bytes | os.PathLike[Any]

# A data file of the base is linked only if at most this share of it is dead: bytes that no tensor
# of the new checkpoint names. Otherwise its unchanged tensors are written again.
DEAD_SHARE_MAX = 0.5
# The most data files of a new checkpoint, linked and written. Where there would be more, only the
# largest are linked, half as many, so that it takes many saves until there are too many again.
DATA_FILES_MAX = 64
# Bytes of arrays that one thread compares in one crossing into C.
BATCH_BYTES = 32 << 20
# As names.tensor_text, for many.
_TEXT = operator.methodcaller("decode", "utf-8", "surrogateescape")
# More threads than this wait for memory rather than work.
THREADS_MAX = 8


class Base:
    """The base, open for reading, and the tensors to save. A context manager.

    Args:
        path: any path that `ckptfmt.open` takes.
        sources: the tensors to save.

    Attributes:
        table: the sources as an array of SOURCE, valid as long as this object lives.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
        CorruptError, UnsupportedError, LimitError, StorageError: its index cannot be read.
    """

    def __init__(self, path: Path, sources: Columns) -> None:
        self._reader = reading.open(path_text(path, "base", urls=True))
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

    def compare(self, *, plain: bool, report: Callable[[int], None]) -> NDArray[np.bool_]:
        """Compare the sources with the tensors of the base.

        Args:
            plain: True counts tensors with extension fields as changed (level "v2" has none).
            report: called from this thread with the bytes of arrays found unchanged.

        Returns:
            True for each source that has not changed. Tensors that cannot be compared count as
            changed: partitioned, damaged or stored in the other byte order.
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
        reported, caller = 0, threading.current_thread()

        def compare(number: int) -> None:
            nonlocal reported
            batch = work[number]
            table, chosen = self.table[positions[batch]], rows[batch].astype(np.uint64)
            mine = self._reader._handle.compare(self._selection, table, chosen)
            same[batch] = mine
            found[number] = int(sizes[batch][mine].sum())
            if threading.current_thread() is caller:
                reported = self._report(report, sum(found), reported)

        share(len(work), compare, thread_count(THREADS_MAX), "ckptfmt-compare", Stop())
        self._report(report, sum(found), reported)
        self._positions, self._rows = positions[same], rows[same]
        return self._of_sources(self._positions)

    @staticmethod
    def _report(report: Callable[[int], None], done: int, reported: int) -> int:
        if done > reported:
            report(done - reported)
        return done

    def keep(self, writer: _core.WriterHandle, alignment: int) -> NDArray[np.bool_]:
        """Link the data files of the tensors that `compare` found unchanged, if they are worth it.

        Args:
            writer: takes the links; nothing was added to it yet.
            alignment: alignment of the new checkpoint.

        Returns:
            True for each source that the new checkpoint has now.
        """
        chosen = self._worth_a_link(alignment)
        positions, rows = self._positions[chosen], self._rows[chosen].astype(np.uint64)
        if not len(rows):
            return self._of_sources(self._none)
        return self._of_sources(positions[writer.keep(self._reader._handle, self._selection, rows)])

    def _of_sources(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        marked = np.zeros(len(self.table), np.bool_)
        marked[positions] = True
        return marked

    def _counterparts(self, plain: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sources for which the base has a tensor stored whole, and its rows there."""
        stored = self._selection.names()
        of_name = dict(zip(stored, range(len(stored)), strict=True))
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

    def _worth_a_link(self, alignment: int) -> NDArray[np.bool_]:
        """Return which of the unchanged tensors are in data files that are worth a link.

        The live bytes of a data file are those of its unchanged tensors, padding included.
        """
        stored = self._selection.rows["stored"][self._rows]
        shards, file_of = np.unique(stored["shard"], return_inverse=True)
        needed = -(-stored["size"].astype(np.int64) // alignment) * alignment
        live = np.zeros(len(shards), np.int64)
        np.add.at(live, file_of, needed)
        sizes = np.array([self._data_size(shard) for shard in shards.tolist()], np.int64)
        linked = (live > 0) & (sizes >= 0) & (sizes - live <= DEAD_SHARE_MAX * sizes)
        most = DATA_FILES_MAX - 1  # one more is written
        if np.count_nonzero(linked) > most:
            largest = np.argsort(np.where(linked, -live, 1), kind="stable")
            linked[largest[min(most, DATA_FILES_MAX // 2) :]] = False
        return linked[file_of]

    def _data_size(self, shard: int) -> int:
        """Return the bytes of a data file; -1 if it is missing and cannot be linked."""
        try:
            return self._reader._handle.data_size(shard)
        except StorageError:
            return -1
