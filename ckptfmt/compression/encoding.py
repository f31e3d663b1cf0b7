# SPDX-License-Identifier: Apache-2.0
"""Writing compressed values: small ones many at a time, large ones a stretch after the other, in
threads; into the file in the order given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core, names
from ckptfmt.compression import coding
from ckptfmt.compression.choosing import RAW, Choice, choose, efforts_of
from ckptfmt.compression.settings import CHUNK_SIZE, Compression
from ckptfmt.threads import Stop, share, thread_count

__all__ = ["add"]

# Less is not worth the entry's extension.
VALUE_MIN = 4 << 10
# Raw bytes that one thread codes in one go.
JOB_BYTES = 2 << 20
# Raw bytes that are held, coded, before they are written.
STRETCH_BYTES = 32 << 20
# For chunks of which nothing is expected: planes are not cut, and what their bytes show decides.
NOTHING = Choice(_core.CHUNK_ZSTD, (RAW,))
# What the index says more of a chunk that is compressed: its checksum and size, the method.
CHUNK_COST = 9
ENTRY_COST = 32
_RESERVED = names.RESERVED.encode()

Tell = Callable[[int], None]

# New memory costs more than what is done with it: each thread keeps what it has.
_mine = threading.local()


class _Coded(NamedTuple):
    """Chunks one after the other as they are stored."""

    chunks: NDArray[np.uint8]
    sizes: NDArray[np.uint64]
    crcs: NDArray[np.uint32]
    raw_crcs: NDArray[np.uint32]
    raw_size: int


class _Value:
    """One value on its way: its row in the table of sources, its raw bytes, which chunks of them
    gain nothing, and how the others are coded."""

    __slots__ = ("choice", "coded", "dense", "packer", "row")

    def __init__(self, row: int, packer: _core.Packer) -> None:
        self.row = row
        self.packer = packer
        self.choice: Choice | None = None
        self.coded: list[_Coded | None] = []
        self.dense = np.empty(0, np.bool_)

    @property
    def size(self) -> int:
        return self.packer.info.raw_size


class _Parts:
    """What was written of a large value: its chunks, but for their bytes, raw bytes, and those of
    which the caller was told."""

    __slots__ = ("begun", "coded", "done", "told")

    def __init__(self) -> None:
        self.begun = False
        self.coded: list[_Coded] = []
        self.done = self.told = 0


def add(
    handle: _core.WriterHandle,
    table: NDArray[Any],
    raw_names: Sequence[bytes],
    sizes: Sequence[int],
    settings: Compression,
    tell: Tell | None = None,
) -> None:
    """Appends an array of SOURCE, compressed where that gains something.

    Args:
        handle: a writer with chunks of CHUNK_SIZE.
        table: what to write; the caller keeps alive what its addresses point to.
        raw_names, sizes: name and bytes of data of each.
        settings: how.
        tell: called from this thread with the bytes of data that were written, as they are.

    Raises:
        What the writer raises.
    """
    dense = _core.sources_dense(table).tolist()
    if all(dense):
        handle.add(table)
        if tell is not None:
            tell(sum(sizes))
        return
    adding = _Adding(handle, table, sizes, settings, tell)
    for row, (name, size) in enumerate(zip(raw_names, sizes, strict=True)):
        if size < VALUE_MIN or dense[row] or name.startswith(_RESERVED):
            adding.pass_by(row)
        else:
            adding.take(_Value(row, _core.Packer(table[row : row + 1])))
    adding.flush()


class _Adding:
    """The state of one call of `add`."""

    def __init__(
        self,
        handle: _core.WriterHandle,
        table: NDArray[Any],
        sizes: Sequence[int],
        settings: Compression,
        tell: Tell | None,
    ) -> None:
        self.handle, self.table, self.settings, self.tell = handle, table, settings, tell
        self.sizes = sizes
        self.waiting: list[_Value] = []
        self.held = 0
        self.first = self.last = 0  # rows that wait for those before them to be coded

    def pass_by(self, row: int) -> None:
        """A row that is written as it is."""
        self.last = row + 1

    def take(self, value: _Value) -> None:
        """A value that may be compressed."""
        self.last = value.row + 1
        if value.size > STRETCH_BYTES:
            self.last = value.row
            self.flush()
            self._add_large(value)
            return
        self.waiting.append(value)
        self.held += value.size
        if self.held >= STRETCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Codes and writes all that waits."""
        if not self.waiting:
            self._add_plain(self.last)
            return
        values, self.waiting, self.held = self.waiting, [], 0
        raws: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)] * len(values)

        def prepare(number: int) -> None:
            raws[number] = _raw_bytes(values[number])
            self._choose(values[number], raws[number])

        self._share(len(values), prepare)
        chosen = [number for number, value in enumerate(values) if value.choice is not None]
        self._code([(values[number], raws[number]) for number in chosen])
        for value in values:
            if value.choice is None or _saved(value) <= _cost(value.size):
                continue
            self._add_plain(value.row)
            self.handle.begin_value(self.table[value.row : value.row + 1])
            self._put(value)
            self._end(value, [part for part in value.coded if part is not None])
        self._add_plain(self.last)

    def _add_plain(self, until: int) -> None:
        """Writes the rows before this one that wait, as they are."""
        if self.first < until:
            self.handle.add(self.table[self.first : until])
            if self.tell is not None:
                self.tell(sum(self.sizes[self.first : until]))
        self.first = max(self.first, until)

    def _add_large(self, value: _Value) -> None:
        """Codes and writes a value stretch by stretch. Nothing else waits.

        It is begun once what is coded saves more than all its chunks cost (CMP-10). What came
        before that is not held, but coded again.
        """
        saved, choices, parts = 0, [], _Parts()
        for done, raw in self._stretches(value, value.size):
            self._choose(value, raw)
            choices.append(value.choice)
            if value.choice is not None:
                self._code([(value, raw)])
                saved += _saved(value)
            if not parts.begun and saved > _cost(value.size):
                parts.begun = True
                self.handle.begin_value(self.table[value.row : value.row + 1])
                again = _Value(value.row, _core.Packer(self.table[value.row : value.row + 1]))
                for number, (_, before) in enumerate(self._stretches(again, done)):
                    again.dense = _dense(again, before)
                    again.choice = choices[number] or NOTHING
                    self._code([(again, before)])
                    self._write(again, before, parts)
            if parts.begun:
                if value.choice is None:
                    value.choice = NOTHING
                    self._code([(value, raw)])
                self._write(value, raw, parts)
        if parts.begun:
            self._end(value, parts.coded, parts.told)
        else:
            self.last = value.row + 1

    @staticmethod
    def _stretches(value: _Value, until: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """The raw bytes of a value up to a place between two of them: where each begins, and the
        bytes, until the next are asked for."""
        data = value.packer.data
        staging = np.empty(min(STRETCH_BYTES, until) if data is None else 0, np.uint8)
        for done in range(0, until, STRETCH_BYTES):
            size = min(STRETCH_BYTES, until - done)
            raw = staging[:size]
            if data is None:
                value.packer.take(raw)
            else:
                raw = data[done : done + size]
            yield done, raw

    def _choose(self, value: _Value, raw: NDArray[np.uint8]) -> None:
        """Finds how to code these raw bytes of a value."""
        value.dense = _dense(value, raw)
        value.choice = choose(raw, value.packer.info, self.settings.effort, value.dense)
        # Samples may have missed a chunk that gains.
        if value.choice is None and len(value.dense) > 1 and not value.dense.all():
            value.choice = NOTHING

    def _write(self, value: _Value, raw: NDArray[np.uint8], parts: _Parts) -> None:
        """Writes what the raw bytes were coded to."""
        self._put(value)
        coded = [part for part in value.coded if part is not None]
        parts.coded += [part._replace(chunks=part.chunks[:0].copy()) for part in coded]
        parts.done += len(raw)
        if self.tell is not None and value.packer.info.storage == _core.STORAGE_FIXED:
            size = len(raw) if parts.done < value.size else 0
            parts.told += size
            self.tell(size)

    def _put(self, value: _Value) -> None:
        for part in value.coded:
            if part is not None:
                self.handle.put_chunks(part.chunks, part.sizes, part.crcs)

    def _end(self, value: _Value, parts: Sequence[_Coded], told: int = 0) -> None:
        """Ends the value, of which these parts were written; bytes of which were told already."""
        info = value.packer.info
        crc = info.raw_crc32c
        if info.storage == _core.STORAGE_FIXED:
            sizes = [CHUNK_SIZE] * (-(-value.size // CHUNK_SIZE))
            sizes[-1] = value.size - CHUNK_SIZE * (len(sizes) - 1)
            crcs = np.concatenate([part.raw_crcs for part in parts]).tolist()
            crc = _core.combine(crcs, sizes)
        self.handle.end_value(value.size, crc)
        self.first = value.row + 1
        self.last = max(self.last, self.first)
        if self.tell is not None:
            self.tell(self.sizes[value.row] - told)

    def _code(self, work: Sequence[tuple[_Value, NDArray[np.uint8]]]) -> None:
        """Codes the raw bytes of values, each of which is whole chunks or ends its value."""
        jobs = []
        for value, raw in work:
            value.coded = [None] * (-(-len(raw) // JOB_BYTES))
            jobs += [
                (value, number, raw[number * JOB_BYTES : (number + 1) * JOB_BYTES])
                for number in range(len(value.coded))
            ]

        def code(at: int) -> None:
            value, number, raw = jobs[at]
            assert value.choice is not None
            first, unit = number * JOB_BYTES // CHUNK_SIZE, value.packer.info.unit
            dense = value.dense[first : first + JOB_BYTES // CHUNK_SIZE]
            value.coded[number] = _coded(raw, unit, value.choice, self.settings.effort, dense)

        self._share(len(jobs), code)

    @staticmethod
    def _share(count: int, work: Callable[[int], None]) -> None:
        share(count, work, thread_count(coding.THREADS_MAX), "ckptfmt-encode", Stop())


def _raw_bytes(value: _Value) -> NDArray[np.uint8]:
    if value.packer.data is not None:
        return value.packer.data
    raw = np.empty(value.size, np.uint8)
    value.packer.take(raw)
    return raw


def _dense(value: _Value, raw: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which chunks of these raw bytes of a value gain nothing, as far as a glance tells."""
    info = value.packer.info
    return _core.chunks_dense(raw, CHUNK_SIZE, info.unit, info.rotates)


def _saved(value: _Value) -> int:
    """The bytes that what was coded last is smaller."""
    parts = [part for part in value.coded if part is not None]
    return sum(part.raw_size for part in parts) - sum(len(part.chunks) for part in parts)


def _cost(size: int) -> int:
    """What compressing a value of these raw bytes costs at least, chunks and index (CMP-10)."""
    return CHUNK_COST * -(-size // CHUNK_SIZE) + ENTRY_COST


def _staging(size: int) -> NDArray[np.uint8]:
    """Memory of this thread for the planes of a job, until the next call."""
    staging: NDArray[np.uint8] | None = getattr(_mine, "planes", None)
    if staging is None or len(staging) < size:
        staging = _mine.planes = np.empty(max(size, JOB_BYTES), np.uint8)
    return staging[:size]


def _coded(
    raw: NDArray[np.uint8],
    unit: int,
    choice: Choice,
    effort: int,
    dense: NDArray[np.bool_] | None = None,
) -> _Coded:
    """The stored chunks of raw bytes, the last of which may be shorter; those that are dense as
    they are."""
    if dense is not None and dense.all():
        choice = NOTHING
    whole = choice.method == _core.CHUNK_ZSTD
    planes = raw if whole else _staging(len(raw))
    raw_crcs, entropies = _core.chunks_split(raw, CHUNK_SIZE, unit, choice.method, planes)
    efforts = efforts_of(choice, entropies, effort)
    if dense is not None:
        efforts[dense] = RAW
    begins = np.arange(len(raw_crcs), dtype=np.int64) * CHUNK_SIZE
    ends = np.minimum(begins + CHUNK_SIZE, len(raw))
    columns = entropies.shape[1]
    sizes = np.broadcast_to(((ends - begins) // columns)[:, None], entropies.shape)
    offsets = begins[:, None] + sizes * np.arange(columns)
    frames: dict[int, Any] = {}
    for number in np.unique(efforts).tolist():
        if number == RAW:
            continue
        chosen = np.flatnonzero(efforts == number)
        pieces = np.column_stack((offsets.ravel()[chosen], sizes.ravel()[chosen]))
        made = coding.compress(planes, pieces.astype(np.uint64), number)
        frames.update(zip(chosen.tolist(), made, strict=True))
    chunks, stored, crcs = _core.chunks_build(raw, CHUNK_SIZE, unit, choice.method, planes, frames)
    return _Coded(chunks, stored, crcs, raw_crcs, len(raw))
