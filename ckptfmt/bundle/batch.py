# SPDX-License-Identifier: Apache-2.0
"""Read many tensors in one batch, in file order. Every function that loads more than one tensor
uses it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base import dtypes, names, slices
from ckptfmt._base.arrays import batches
from ckptfmt._base.progress import Meter, Progress, part_of
from ckptfmt._base.targets import Target, check_overlaps
from ckptfmt._core import cached_property
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import CARRIERS, TensorHandle
from ckptfmt.errors import InvalidError, TensorNotFoundError, about

if TYPE_CHECKING:
    from ckptfmt.bundle.meanings import Meant

OBJECT = np.dtype(object)
# Arrays up to this size share blocks of about BLOCK_BYTES, so that a small tensor costs no
# allocation and keeps at most one block alive.
SMALL_BYTES = 16 << 10
BLOCK_BYTES = 64 << 10
ALIGNMENT = 64
# At least this many arrays of one shape are created by one call.
BULK_MIN = 8
# Bytes of one crossing into C; fewer with a progress callback.
BATCH_BYTES = 1 << 30
WATCHED_BATCH_BYTES = 32 << 20
# Bytes that are read at a time of arrays that become others, or one of these.
PART_BYTES = 4 << 20


# ---- the batch -----------------------------------------------------------------------------------


def whole_batch(reader: Reader) -> Batch:
    """Return all tensors."""
    listing = reader._listing()
    return Batch(reader, listing.selection, listing.visible_rows, reader._names())


def select_batch(reader: Reader, raw_names: Sequence[bytes]) -> Batch:
    """Return the tensors of these names. One lookup.

    Raises:
        TensorNotFoundError: one is missing; the message offers the nearest names.
    """
    try:
        selection = reader._handle.select(raw_names)
    except TensorNotFoundError as error:
        raise reader._with_near_names(error) from None
    return Batch(reader, selection, range(len(raw_names)), list(map(names.tensor_text, raw_names)))


@dataclass
class Batch:
    """Tensors of one selection to be read together, in columns: there may be a million.

    Attributes:
        rows: an array of indices, or a range of all rows.
        boxes: the box to read (starts, then lengths), by position; default the whole tensor.
        targets: the caller's memory to read into, by position; default new arrays.
    """

    reader: Reader
    selection: _core.Selection
    rows: Sequence[int] | NDArray[np.intp]
    names: list[str]
    boxes: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    targets: dict[int, Target] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.rows, range) and len(self.rows) == len(self.selection.rows):
            self._chosen: Any = slice(None)
        else:
            self.rows = self._chosen = np.asarray(self.rows, np.intp)

    def _rows_at(self, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        # np.asarray of a range makes a Python int for each element.
        return positions if isinstance(self.rows, range) else np.asarray(self.rows)[positions]

    def _column(self, *names: str) -> NDArray[Any]:
        """Return a field of the index entries, by position."""
        column: Any = self.selection.rows
        for name in names:
            column = column[name]
        chosen: NDArray[Any] = column[self._chosen]
        return chosen

    @cached_property
    def codes(self) -> list[int]:
        """Codes of the dtypes, by position."""
        codes: list[int] = self._column("dtype").tolist()
        return codes

    @cached_property
    def dtypes(self) -> list[np.dtype[Any] | None]:
        """Dtypes by position; None for those that numpy does not have."""
        return list(map(dtypes.numpy_dtype, self.codes))

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the full shapes of the tensors, by position."""
        return self.selection.shapes_of(np.asarray(self.rows).tolist())

    @cached_property
    def meant(self) -> dict[int, Meant]:
        """Tensors whose stored elements are the bits of another dtype, by position."""
        places = np.flatnonzero(np.isin(self._column("dtype"), list(CARRIERS))).tolist()
        notes = self.reader._notes if places else {}
        if not notes:
            return {}
        from ckptfmt.bundle.meanings import Meant  # noqa: PLC0415 (torch states only)

        noted = ((place, notes.get(self.names[place])) for place in places)
        return {place: Meant(self.handle(place), note) for place, note in noted if note is not None}

    def refuse_meant(self) -> None:
        """Raise UnsupportedError if a tensor is the bits of another dtype: for what gives out the
        stored elements as values."""
        for one in self.meant.values():
            raise one.unread()

    def meant_dtypes(self) -> list[np.dtype[Any] | None]:
        """Return the dtypes of the values, by position; None for those that numpy does not have."""
        changed = {place: one.dtype for place, one in self.meant.items()}
        return [changed.get(place, one) for place, one in enumerate(self.dtypes)]

    def meant_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the values, by position."""
        shapes = self.shapes()
        for place, one in self.meant.items():
            shapes[place] = one.shape
        return shapes

    def only(self, positions: list[int]) -> Batch:
        """Return a batch of some of the tensors of this one."""
        rows = self._rows_at(np.asarray(positions, np.intp))
        return Batch(self.reader, self.selection, rows, [self.names[p] for p in positions])

    def handle(self, position: int) -> TensorHandle:
        """Return the handle of one tensor."""
        row = int(self.rows[position])
        return TensorHandle(self.reader, self.selection, row, self.names[position])

    def check_targets(
        self, converted: Mapping[int, Target], ways: Mapping[int, Hashable] | None = None
    ) -> None:
        """Refuse targets that share memory, but for the same elements that receive equal values.

        Args:
            converted: further targets by position, which are filled with converted elements.
            ways: how they are converted, apart from the dtypes of the targets, if not only so.
        """
        stored = self._column("stored")
        crcs, sizes = stored["raw_crc32c"], stored["raw_size"]
        whole = self._column("slice_count") == 0

        def content(position: int) -> Hashable:
            if position in self.boxes:
                return int(self.rows[position]), self.boxes[position].tobytes()
            if not whole[position]:
                return (int(self.rows[position]),)
            same = self.codes[position], int(sizes[position]), int(crcs[position])
            if position not in converted:
                return same
            return *same, converted[position].array.dtype.str, (ways or {}).get(position)

        check_overlaps(
            (self.names[position], target.array, content(position))
            for position, target in (*self.targets.items(), *converted.items())
        )

    def _kinds(self) -> _Kinds:
        """Return the dtypes and shapes of the arrays to read into."""
        for position in np.flatnonzero(self._column("rank") > _core.NUMPY_RANK_MAX).tolist():
            self.handle(position)._check_rank()
        kinds, firsts = self.selection.kinds
        rows = self.selection.rows[firsts]
        codes: list[int] = rows["dtype"].tolist()
        shapes = self.selection.shapes_of(firsts.tolist())
        elements: list[int] = rows["element_count"].tolist()
        of_position = kinds[self._chosen]
        if self.boxes:
            known: dict[tuple[int, tuple[int, ...]], int] = {}
            of_position = of_position.copy()
            for position, box in self.boxes.items():
                kind = int(of_position[position])
                rank = len(shapes[kind])
                shape = tuple(box[rank : 2 * rank].tolist())
                if (kind, shape) not in known:
                    known[kind, shape] = len(codes)
                    codes.append(codes[kind])
                    shapes.append(shape)
                    elements.append(math.prod(shape))
                of_position[position] = known[kind, shape]
        return _Kinds(of_position, list(map(dtypes.numpy_dtype, codes)), shapes, elements)

    def _sizes(self, kinds: _Kinds, progress: Progress | None) -> NDArray[np.int64]:
        """Return the bytes of the arrays; those of strings, as stored, for a progress only."""
        sizes: NDArray[np.int64] = kinds.sizes[kinds.of_position]
        if progress is not None:
            for position in np.flatnonzero(kinds.itemsizes[kinds.of_position] == 0).tolist():
                sizes[position] = min(self.handle(position).nbytes, 1 << 62)
        return sizes

    def read(self, progress: Progress | None) -> list[NDArray[Any]]:
        """Read everything, with few crossings into C for dtypes that C can read in place."""
        return list(self.read_each(progress))

    def read_each(self, progress: Progress | None) -> Iterable[NDArray[Any]]:
        """As `read`, but small arrays are created while the caller iterates, once, while their
        memory is still in the CPU cache."""
        kinds = self._kinds()
        count = len(kinds.of_position)
        itemsizes, sizes = kinds.itemsizes[kinds.of_position], self._sizes(kinds, progress)
        own = np.ones(count, np.bool_)
        own[list(self.targets)] = False
        direct = itemsizes > 0
        for position, target in self.targets.items():
            target.mark_written()
            direct[position] &= target.array.flags.c_contiguous
        destinations = np.zeros(count, np.int64)

        small = np.flatnonzero(direct & own & (sizes <= SMALL_BYTES))
        made, destinations[small] = self._small_arrays(kinds, small)
        if len(small) == count:
            meter = Meter(progress, int(sizes.sum()) if progress is not None else 0)
            self._read_direct(small, sizes, destinations, meter)
            return made
        arrays: list[Any] = [None] * count
        for position, array in zip(small.tolist(), made, strict=True):
            arrays[position] = array
        for position, target in self.targets.items():
            arrays[position] = target.array
        for position in np.flatnonzero(direct & (destinations == 0)).tolist():
            if arrays[position] is None:
                dtype, shape = kinds.of(position)
                arrays[position] = self.handle(position)._new_array(
                    shape, dtype or OBJECT, self.boxes.get(position)
                )
            destinations[position] = _core.address(arrays[position])

        others = np.flatnonzero(~direct).tolist()
        meter = Meter(progress, sum(sizes.tolist()) if progress is not None else 0)
        self._read_direct(np.flatnonzero(direct), sizes, destinations, meter)
        for position in others:
            shape = kinds.of(position)[1]
            array = self.handle(position)._read_box(self.boxes.get(position), shape, None)
            if arrays[position] is None:
                arrays[position] = array
            else:
                arrays[position][...] = array
            meter.add(int(sizes[position]))
        return arrays

    def read_in_parts(
        self, converted: Collection[int], progress: Progress | None
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Read everything; yield positions and arrays. Those that the caller converts and drops are
        read last and in parts, so that they are not in memory together with what they become."""
        sizes = self._sizes(self._kinds(), progress)
        later = np.array(sorted(converted), np.intp)
        parts = [[p for p in range(len(self.names)) if p not in converted]]
        parts += [later[run].tolist() for run in batches(sizes[later], PART_BYTES)]
        done, total = 0, int(sizes.sum())
        for part in filter(None, parts):
            batch, size = self.only(part), int(sizes[part].sum())
            batch.targets = {i: self.targets[p] for i, p in enumerate(part) if p in self.targets}
            report = part_of(progress, done, total - done - size)
            yield from zip(part, batch.read_each(report), strict=True)
            done += size

    def _small_arrays(
        self, kinds: _Kinds, positions: NDArray[np.intp]
    ) -> tuple[Iterable[Any], NDArray[np.int64]]:
        """Return arrays in shared blocks of memory for the tensors at these positions, and their
        addresses. Arrays of one kind are adjacent, so that numpy makes them from one array."""
        if not len(positions):
            return (), np.empty(0, np.int64)
        wanted = kinds.of_position[positions]
        order = None
        if (wanted[1:] < wanted[:-1]).any():
            order = np.argsort(wanted, kind="stable")
            wanted = wanted[order]
        sizes = kinds.sizes[wanted]
        padded = (sizes + (ALIGNMENT - 1)) & -ALIGNMENT
        starts = np.cumsum(padded) - padded
        block_of = starts // BLOCK_BYTES
        firsts = np.flatnonzero(np.diff(block_of, prepend=-1))
        ends = np.append(starts[firsts[1:]], starts[-1] + padded[-1])
        blocks = [_aligned(size) for size in (ends - starts[firsts]).tolist()]
        block_of = np.repeat(np.arange(len(blocks)), np.diff(firsts, append=len(starts)))
        starts = starts - starts[firsts][block_of]
        places = starts + np.array([_core.address(one) for one in blocks], np.int64)[block_of]
        if order is None:
            return self._views(kinds, wanted, blocks, block_of, starts, positions), places
        arrays = list(self._views(kinds, wanted, blocks, block_of, starts, positions[order]))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return list(map(arrays.__getitem__, back.tolist())), places[back]

    def _views(
        self,
        kinds: _Kinds,
        wanted: NDArray[np.int64],
        blocks: list[NDArray[np.uint8]],
        block_of: NDArray[np.intp],
        starts: NDArray[np.int64],
        positions: NDArray[np.intp],
    ) -> Iterator[Any]:
        """Yield arrays of these kinds at these offsets of their blocks; `positions` is for
        errors."""
        borders = np.flatnonzero((np.diff(wanted) != 0) | (np.diff(block_of) != 0)) + 1
        for first, end in itertools.pairwise([0, *borders.tolist(), len(wanted)]):
            kind = int(wanted[first])
            try:
                yield from kinds.views(kind, blocks[block_of[first]], starts[first:end])
            except ValueError as error:  # no elements, but sizes that numpy cannot hold
                shape, handle = kinds.shapes[kind], self.handle(int(positions[first]))
                raise handle._unsupported(f"{shape}: {error}") from None

    def _read_direct(
        self,
        positions: NDArray[np.int64],
        sizes: NDArray[np.int64],
        destinations: NDArray[np.int64],
        meter: Meter,
    ) -> None:
        requests = np.zeros(len(positions), _core.REQUEST)
        requests["row"] = self._rows_at(positions)
        requests["destination"] = destinations[positions]
        requests["destination_size"] = sizes[positions]
        if self.boxes:
            corners = np.zeros(len(self.rows), np.int64)
            for position, box in self.boxes.items():
                corners[position] = _core.address(box)
            requests["box"] = corners[positions]
        # Batches follow the files, so that each is one sweep.
        shards = self._column("stored", "shard")[positions]
        offsets = self._column("stored", "offset")[positions]
        if (shards[1:] != shards[:-1]).any() or (offsets[1:] < offsets[:-1]).any():
            requests = requests[np.lexsort((offsets, shards))]
        ends = np.cumsum(requests["destination_size"].astype(np.int64))
        limit = BATCH_BYTES if meter.progress is None else WATCHED_BATCH_BYTES
        first = done = 0
        while first < len(requests):
            last = max(int(np.searchsorted(ends, done + limit, "right")), first + 1)
            chosen, mode = requests[first:last], self.reader._default_mode
            self.reader._handle.read(self.selection, chosen, mode)
            meter.add(int(ends[last - 1]) - done)
            first, done = last, int(ends[last - 1])


class _Kinds:
    """The distinct pairs of dtype and shape among the arrays of a batch.

    Attributes:
        of_position: index of each tensor's kind.
        shapes, itemsizes, sizes: of each kind; sizes in bytes.
    """

    def __init__(
        self,
        of_position: NDArray[np.int64],
        kinds_dtypes: list[np.dtype[Any] | None],
        shapes: list[tuple[int, ...]],
        elements: list[int],
    ) -> None:
        self.of_position, self.shapes, self._dtypes = of_position, shapes, kinds_dtypes
        itemsizes = [
            0 if dtype is None or dtype == OBJECT else dtype.itemsize for dtype in kinds_dtypes
        ]
        # A size beyond 64 bits is clamped; the allocation refuses it.
        sizes = [
            count * size if count < 1 << 56 else 1 << 62
            for count, size in zip(elements, itemsizes, strict=True)
        ]
        self.itemsizes, self.sizes = np.array(itemsizes, np.int64), np.array(sizes, np.int64)

    def of(self, position: int) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
        """Return the dtype and the shape of a tensor."""
        kind = int(self.of_position[position])
        return self._dtypes[kind], self.shapes[kind]

    def views(
        self, kind: int, block: NDArray[np.uint8], starts: NDArray[np.int64]
    ) -> Iterable[NDArray[Any]]:
        """Return adjacent arrays of one kind at these offsets of the block."""
        shape, dtype, size = self.shapes[kind], self._dtypes[kind], int(self.sizes[kind])
        view, count = np.ndarray, len(starts)
        # Iterating over a one-dimensional array gives scalars, not zero-dimensional arrays.
        if count < BULK_MIN or not size or not 0 < len(shape) < _core.NUMPY_RANK_MAX:
            return [view(shape, dtype, block, start) for start in starts.tolist()]
        step = int(starts[1] - starts[0])
        whole: NDArray[Any] = view(shape, dtype, block)
        return view((count, *shape), dtype, block, int(starts[0]), (step, *whole.strides))


def _aligned(size: int) -> NDArray[np.uint8]:
    """Return aligned memory of at least one byte, so that it has an address."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -_core.address(raw) % ALIGNMENT
    return raw[start : start + max(size, 1)]


def check_dtypes(batch: Batch, expected: Sequence[Any]) -> None:
    """Refuse stored dtypes that differ from the expected ones; None expects any."""
    wrong: list[str] = []
    first = ""
    for name, stored, dtype in zip(batch.names, batch.codes, expected, strict=True):
        if dtype is None:
            continue
        with about(name):
            code = dtypes.code_of(dtype)
        if code != stored:
            first = first or name
            wrong.append(
                f"tensor_name = {name}; expected dtype {dtypes.name_of(code)} "
                f"does not equal original dtype {dtypes.name_of(stored)}"
            )
    if wrong:
        raise InvalidError("; ".join(wrong), tensor=first)


def box_of_text(handle: TensorHandle, spec: str | bytes) -> NDArray[np.int64]:
    """Return the box (starts, then lengths) of a shape_and_slice text.

    Raises:
        InvalidError: the text is malformed, or its full shape is not that of the tensor.
    """
    with about(handle.name):
        parsed = slices.parse_spec(spec)
    if parsed is None or parsed.full_shape != handle.shape:
        given = "" if parsed is None else ",".join(map(str, parsed.full_shape))
        raise InvalidError(
            f"tensor_name = {handle.name}; shape in shape_and_slice spec [{given}] does not match "
            f"the shape stored in checkpoint: [{','.join(map(str, handle.shape))}]",
            tensor=handle.name,
        )
    return np.array([*parsed.start, *parsed.shape, 0], np.int64)
