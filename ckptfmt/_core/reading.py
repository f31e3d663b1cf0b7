# SPDX-License-Identifier: Apache-2.0
"""Readers, and the tensors that they list or select."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core import border
from ckptfmt._core.border import (
    CLOSED,
    STORED_COMPRESSED,
    Handle,
    check,
    check_stored,
    fields_of,
    held,
    limits_of,
    new_slot,
    open_options,
    path_bytes,
    stored,
)
from ckptfmt._core.codec import Codec, Coder
from ckptfmt._core.columns import LENDS_OBJECTS, REGION, ROW, SLICE_ROW, array_at, distinct
from ckptfmt._core.remembering import cached_property
from ckptfmt._core.storage import Store, storage_of
from ckptfmt.errors import InvalidError


class Stored(NamedTuple):
    """`ckptfmt_stored`: where the bytes of one value are stored."""

    shard: int
    offset: int
    size: int
    crc32c: int
    chunk_size: int
    flags: int
    raw_size: int
    raw_crc32c: int


class Record(NamedTuple):
    """`ckptfmt_row`: what the index says of one tensor."""

    dtype: int
    shape: tuple[int, ...]
    element_count: int
    slice_count: int
    stored: Stored


def _read_small() -> Any:
    """Return the function of `csrc/python/reading.h`, or one that leaves all to the general
    path."""
    functions: list[Any] = []
    if LENDS_OBJECTS:
        lib.cf_reading_functions(id(functions))
    return functions[0] if functions else lambda *_: None


read_small = _read_small()

# Parsed once: parsing the C type by each call would take longer than the call.
_REQUEST = ffi.typeof("ckptfmt_request *")
_SLOT = ffi.typeof("cf_reader_slot *")
_STRINGS = ffi.typeof("ckptfmt_strings **")
_SELECTIONS = ffi.typeof("ckptfmt_selection **")
_COLUMNS = ffi.typeof("ckptfmt_columns *")
_ERROR = ffi.typeof("ckptfmt_error *")
_SIZE = ffi.typeof("uint64_t *")
_BYTES = ffi.typeof("uint8_t[]")
_GIVEN = ffi.typeof("ckptfmt_bytes *")
_SIZES = ffi.typeof("uint64_t[]")
_NUMBERS = ffi.typeof("int64_t[]")


def _stored(raw: Any) -> Stored:
    return Stored(
        raw.shard,
        raw.offset,
        raw.size,
        raw.crc32c,
        raw.chunk_size,
        raw.flags,
        raw.raw_size,
        raw.raw_crc32c,
    )


def _record(raw: Any, dims: Any) -> Record:
    shape = tuple(ffi.unpack(dims, raw.rank)) if raw.rank else ()
    return Record(raw.dtype, shape, raw.element_count, raw.slice_count, _stored(raw.stored))


def _fill_texts(found: list[Any], part: range, raw: Any, offsets: Any, gap: int) -> None:
    """Set a part of a list to the texts between `offsets` in `raw`, each followed by `gap` other
    bytes."""
    count = len(part)
    if LENDS_OBJECTS:
        if not lib.cf_text_list(raw, offsets, gap, count, id(found), part.start):
            raise MemoryError
        return
    ends = itertools.pairwise(ffi.unpack(offsets, count + 1))
    for at, (start, end) in zip(part, ends, strict=True):
        found[at] = str(ffi.buffer(raw + start, end - gap - start), "utf-8", "surrogateescape")


class Selection:
    """Tensors picked from an index, one by one or as columns. It needs no open reader.

    The arrays of columns keep the C object alive, as the selection itself does.
    """

    def __init__(self, pointer: Any) -> None:
        # Plain memory: freeing it in a forked child is harmless, so it needs no pid.
        self.pointer = ffi.gc(pointer, lib.ckptfmt_selection_free)
        self._columns = ffi.new(_COLUMNS)
        lib.ckptfmt_selection_columns(pointer, self._columns)

    def record(self, row: int) -> Record:
        """One tensor."""
        raw = self._raw_row(row)
        return _record(raw, self._columns.dims + raw.dims_first if raw.rank else ffi.NULL)

    def _raw_row(self, row: int) -> Any:
        # cffi does not know how many there are.
        if not 0 <= row < self._columns.row_count:
            raise InvalidError(f"row {row} of {self._columns.row_count}")
        return self._columns.rows[row]

    def slices(self, row: int) -> list[tuple[list[int], Stored]]:
        """Return the stored slices of one tensor: extents (starts, then lengths), and where they
        are stored."""
        columns, raw = self._columns, self._raw_row(row)
        found = []
        for number in range(raw.slices_first, raw.slices_first + raw.slice_count):
            part = columns.slices[number]
            extents = (
                ffi.unpack(columns.dims + part.extents_first, 2 * raw.rank) if raw.rank else []
            )
            found.append((extents, _stored(part.stored)))
        return found

    def stored_values(self, row: int) -> list[Any]:
        """Return the stored values of one tensor, as the columns have them."""
        self._raw_row(row)
        record = self.rows[row]
        if not record["slice_count"]:
            return [record["stored"]]
        first = int(record["slices_first"])
        return list(self.slice_rows[first : first + int(record["slice_count"])]["stored"])

    def is_compressed(self, row: int) -> bool:
        """Return whether a stored value of this tensor is compressed."""
        return any(int(value["flags"]) & STORED_COMPRESSED for value in self.stored_values(row))

    @cached_property
    def rows(self) -> NDArray[Any]:
        """All tensors, as an array of ROW."""
        return array_at(self._columns.rows, self._columns.row_count, ROW, self.pointer)

    @cached_property
    def slice_rows(self) -> NDArray[Any]:
        """All slices of all tensors, as an array of SLICE_ROW."""
        return array_at(self._columns.slices, self._columns.slice_count, SLICE_ROW, self.pointer)

    def dims(self, first: int, count: int) -> NDArray[np.int64]:
        """Some of the sizes and extents, which rows and slices name by their first."""
        return self._dims[first : first + count]

    @cached_property
    def _dims(self) -> NDArray[np.int64]:
        return array_at(
            self._columns.dims, self._columns.dims_count, np.dtype(np.int64), self.pointer
        )

    def name(self, row: int) -> str:
        """Return the name of one tensor."""
        return str(self.raw_name(row), "utf-8", "surrogateescape")

    def raw_name(self, row: int) -> bytes:
        """Return the same as it is stored."""
        raw = self._columns.rows[row]
        return bytes(ffi.buffer(self._columns.names + raw.name_offset, raw.name_size))

    def names(self, *parts: range) -> list[str]:
        """Return the names of the tensors of these rows, by default of all; bytes that are not
        UTF-8 as surrogate escapes."""
        parts = parts or (range(self._columns.row_count),)
        found: list[Any] = [None] * sum(map(len, parts))
        at = 0
        for part in filter(None, parts):
            # Names are stored in the order of the rows, each followed by a zero byte.
            last = self._columns.rows[part.stop - 1]
            starts = self.rows["name_offset"][part.start : part.stop]
            offsets = np.append(starts, np.uint64(last.name_offset + last.name_size + 1))
            to, at = range(at, at + len(part)), at + len(part)
            _fill_texts(found, to, self._columns.names, ffi.from_buffer(_SIZES, offsets), 1)
        return found

    def rows_with_prefix(self, prefix: bytes) -> range:
        """Return the rows whose names begin so; of a listing, which has them in key order."""
        everything = range(self._columns.row_count)
        size = len(prefix)
        first = bisect.bisect_left(everything, prefix, key=self.raw_name)
        end = bisect.bisect_right(
            everything, prefix, lo=first, key=lambda row: self.raw_name(row)[:size]
        )
        return range(first, end)

    @cached_property
    def kinds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each tensor a number that identifies its dtype and shape, and for each number the
        first row that has it."""
        ranks, codes, places = (self.rows[field] for field in ("rank", "dtype", "dims_first"))
        kinds = np.empty(len(ranks), np.int64)
        firsts = [np.empty(0, np.int64)]
        count = 0
        for rank in distinct(ranks):
            rows = np.flatnonzero(ranks == rank)
            columns = [codes[rows], *(self._dims[places[rows] + axis] for axis in range(rank))]
            order = np.lexsort(columns)
            begins = np.zeros(len(rows), np.bool_)
            begins[0] = True
            for column in columns:
                ordered = column[order]
                begins[1:] |= ordered[1:] != ordered[:-1]
            kinds[rows[order]] = count + np.cumsum(begins) - 1
            firsts.append(rows[order[begins]])
            count += len(firsts[-1])
        return kinds, np.concatenate(firsts)

    def shapes_of(self, rows: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the shapes of some tensors."""
        columns, unpack = self._columns, ffi.unpack
        found = []
        for row in rows:
            raw = columns.rows[row]
            dims = unpack(columns.dims + raw.dims_first, raw.rank) if raw.rank else ()
            found.append(tuple(dims))
        return found

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of all tensors."""
        kinds, firsts = self.kinds
        return list(map(self.shapes_of(firsts.tolist()).__getitem__, kinds.tolist()))


def _corner(box: NDArray[np.int64] | None) -> Any:
    """Starts, then lengths; NULL for all."""
    return ffi.NULL if box is None else ffi.from_buffer(_NUMBERS, box)


def _texts(out: Any) -> list[str]:
    """Return the texts of `ckptfmt_strings`, which are freed."""
    strings = ffi.gc(out[0], lib.ckptfmt_strings_free)
    view = ffi.new("ckptfmt_strings_view *")
    lib.ckptfmt_strings_get(strings, view)
    found: list[Any] = [None] * view.count
    _fill_texts(found, range(view.count), view.bytes, view.offsets, 0)
    ffi.release(strings)
    return found


def index_count(path: str, store: Store | None = None) -> int:
    """`ckptfmt_index_count`."""
    out, error = ffi.new("int32_t *"), ffi.new("ckptfmt_error *")
    storage = storage_of(store)
    pointer = ffi.NULL if storage is None else storage.pointer
    status = stored(storage, lib.ckptfmt_index_count, pointer, path_bytes(path), out, error)
    if storage is not None:
        storage.release()
    check_stored(storage, status, error, path)
    return int(out[0])


def is_local(fd: int) -> bool:
    """`ckptfmt_file_system_is_local`."""
    return bool(lib.ckptfmt_file_system_is_local(fd))


def sweep_before_save(prefix: str, *, numbered: bool = False) -> None:
    """`ckptfmt_sweep_before_save` of this prefix or file, or of the checkpoints `<prefix>-<n>`."""
    scope = lib.CKPTFMT_SWEEP_NUMBERED if numbered else lib.CKPTFMT_SWEEP_ONE
    lib.ckptfmt_sweep_before_save(path_bytes(prefix), scope)


def sweep(fd: int, path: str, name: str | None, *, dry_run: bool, sync: bool) -> list[str]:
    """`ckptfmt_sweep` of the checkpoints `<name>-<n>`, of all for None."""
    out, error = ffi.new(_STRINGS), ffi.new("ckptfmt_error *")
    scope = lib.CKPTFMT_SWEEP_ALL if name is None else lib.CKPTFMT_SWEEP_NUMBERED
    raw = path_bytes(name or "")
    status = lib.ckptfmt_sweep(fd, path_bytes(path), raw, scope, dry_run, sync, out, error)
    check_stored(None, status, error, path)
    return _texts(out)


class ReaderHandle(Handle):
    """`ckptfmt_reader`, used by many threads at once. The last call out frees a closed one.

    A call holds a reference to the pointer. Taking one needs no lock, so a fork leaves nothing
    locked; dropping the last one frees the object. Do not keep a reference in a variable while an
    error is raised: the traceback would keep the object alive.
    """

    __slots__ = ("_absolute", "_address", "_index")

    def __init__(
        self,
        prefix: str,
        limits: Mapping[str, int] | None,
        follow_symlinks: bool,
        coder: Coder | None = None,
        store: Store | None = None,
        *,
        index: Any = None,
    ) -> None:
        # Bytes to read instead of the index file. C has a pointer to them.
        raw_index: Any = None if index is None else ffi.from_buffer(_BYTES, index)
        given = None if index is None else ffi.new(_GIVEN, (raw_index, len(raw_index)))
        self._index = raw_index
        codec = None if coder is None else Codec(coder)
        storage = storage_of(store)
        raw, values = path_bytes(prefix), limits_of(limits)
        options = open_options(values, follow_symlinks, codec, storage, given)
        slot = new_slot(_SLOT, lib.cf_reader_slot_free, storage)
        error = ffi.new("ckptfmt_error *")
        try:
            status = stored(storage, lib.cf_reader_slot_open, raw, options, slot, error)
            check_stored(storage, status, error, prefix)
            pointer = held(slot.reader, (slot, self._index))
            super().__init__(pointer, "checkpoint", prefix, codec, storage)
            self._absolute = path_bytes(os.path.join(os.getcwd(), prefix))
            self._address = int(ffi.cast("uintptr_t", slot.reader))
        except BaseException:
            # The traceback may keep the slot alive for long.
            self._pointer = CLOSED
            ffi.release(slot)
            raise

    def use(self) -> Any:
        """Return the pointer, to be passed to one call."""
        pointer = self._pointer
        if pointer is CLOSED or self._pid != border.process:
            self._usable()
            if self.storage is not None:
                raise InvalidError(
                    f"{self._name} was opened before a fork: open it again in this process"
                )
            self._reopen()
            pointer = self._usable()
        return pointer

    def call(self, function: Callable[..., int], *arguments: Any) -> None:
        """Call a C function that takes the reader first and an error last; raise that error."""
        error = ffi.new(_ERROR)
        status = stored(self.storage, function, self.use(), *arguments, error)
        del arguments  # the traceback of an error would keep alive what closing frees
        if status != lib.CKPTFMT_OK or self.storage is not None:
            self._finish_call(status, error)

    def close(self) -> None:
        """Close, at once or when the last running call returns. Does nothing when closed."""
        self._pointer = CLOSED

    def _reopen(self) -> None:
        """Open the checkpoint again in a forked child."""
        with border.entering:
            if not self.foreign:
                return
            slot = new_slot(_SLOT, lib.cf_reader_slot_free)
            error = ffi.new("ckptfmt_error *")
            status = lib.cf_reader_slot_reopen(self._pointer, self._absolute, slot, error)
            check(status, error, self.path)
            self._pointer = held(slot.reader, (slot, self._index))
            self._address = int(ffi.cast("uintptr_t", slot.reader))
            self._pid = os.getpid()

    def header(self) -> dict[str, int]:
        """Return the fields of `ckptfmt_header`."""
        header = ffi.new("ckptfmt_header *")
        lib.ckptfmt_reader_header(self.use(), header)
        return fields_of(header)

    def list_all(self) -> Selection:
        """Every tensor, in key order."""
        out = ffi.new("ckptfmt_selection **")
        self.call(lib.ckptfmt_reader_list_all, out)
        return Selection(out[0])

    def names(self) -> list[str]:
        """Return the names of all tensors in key order, except those that belong to the format."""
        out = ffi.new(_STRINGS)
        self.call(lib.ckptfmt_reader_names, out)
        return _texts(out)

    def list_prefix(self, prefix: bytes) -> Selection:
        """Every tensor whose name begins so, in key order; of the index just that part is read. The
        prefix must not be empty or begin with a zero byte."""
        out = ffi.new("ckptfmt_selection **")
        self.call(lib.ckptfmt_reader_list_prefix, prefix, len(prefix), out)
        return Selection(out[0])

    def select_one(self, name: bytes) -> Selection:
        """Return the tensor of this name."""
        out = ffi.new(_SELECTIONS)
        self.call(lib.ckptfmt_reader_select, name, ffi.new(_SIZE, len(name)), 1, out)
        return Selection(out[0])

    def select(self, names: Sequence[bytes]) -> Selection:
        """Return the named tensors, in this order."""
        out = ffi.new(_SELECTIONS)
        joined = ffi.from_buffer(_BYTES, b"".join(names))
        sizes = np.fromiter(map(len, names), np.uint64, len(names))
        counts = ffi.from_buffer(_SIZES, sizes)
        self.call(lib.ckptfmt_reader_select, joined, counts, len(names), out)
        return Selection(out[0])

    def contains(self, name: bytes) -> bool:
        """Return whether there is a tensor of this name."""
        found = ffi.new("int32_t *")
        self.call(lib.ckptfmt_reader_contains, name, len(name), found)
        return bool(found[0])

    def read(self, selection: Selection, requests: NDArray[Any], verify: int) -> None:
        """Serve an array of REQUEST; the caller keeps alive what its addresses point to."""
        raw = ffi.from_buffer("uint8_t[]", requests, require_writable=True)
        array = ffi.cast("ckptfmt_request *", raw)
        self.call(lib.ckptfmt_reader_read, selection.pointer, array, len(requests), verify)

    def read_small(self, name: str | bytes, verify: int, codes: Any) -> NDArray[Any] | None:
        """Return all of a small tensor, in the dtype that `codes` has for its code; None if it
        needs the general path."""
        found = read_small(self.use(), self._address, name, verify, np.empty, codes)
        if type(found) is bytes:
            error = ffi.from_buffer(_ERROR, found)
            self._finish_call(error.status, error)
        array: NDArray[Any] | None = found
        return array

    def read_one(
        self,
        selection: Selection,
        row: int,
        box: NDArray[np.int64] | None,
        array: NDArray[Any],
        verify: int,
    ) -> None:
        """Read one tensor, or a box of it, into a C-contiguous array."""
        to, corner = ffi.from_buffer(_BYTES, array), _corner(box)
        request = ffi.new(_REQUEST)
        request.row, request.box = row, corner
        request.destination, request.destination_size = to, array.nbytes
        self.call(lib.ckptfmt_reader_read, selection.pointer, request, 1, verify)

    def check_one(self, selection: Selection, row: int, box: NDArray[np.int64] | None) -> None:
        """Checks, before there is memory for one tensor or a box of it, that the data files hold
        it: slices that leave gaps can claim a tensor of any size."""
        corner, request = _corner(box), ffi.new(_REQUEST)
        request.row, request.box = row, corner
        self.call(lib.ckptfmt_reader_read, selection.pointer, request, 1, lib.CKPTFMT_VERIFY_AUTO)

    def compare(
        self, selection: Selection, sources: NDArray[Any], rows: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Return whether each of these rows holds just what the SOURCE beside it would be stored
        as; the caller keeps alive what the addresses of the sources point to."""
        raw = ffi.from_buffer("uint8_t[]", sources)
        array, numbers = ffi.cast("ckptfmt_source *", raw), ffi.from_buffer("uint64_t[]", rows)
        same = np.zeros(len(rows), np.bool_)
        answers = ffi.from_buffer("uint8_t[]", same, require_writable=True)
        pointer = selection.pointer
        self.call(lib.ckptfmt_reader_compare, pointer, array, numbers, len(rows), answers)
        return same

    def data_size(self, shard: int) -> int:
        """Return the size of a data file in bytes."""
        size = ffi.new("uint64_t *")
        self.call(lib.ckptfmt_reader_data_size, shard, size)
        return int(size[0])

    def read_strings(
        self,
        selection: Selection,
        row: int,
        box: NDArray[np.int64] | None,
        verify: int,
    ) -> list[bytes]:
        """Return the elements of a string or variant tensor, or of a box of it (starts, then
        lengths), row-major."""
        out = ffi.new(_STRINGS)
        corner = _corner(box)
        self.call(lib.ckptfmt_reader_read_strings, selection.pointer, row, corner, verify, out)
        strings = ffi.gc(out[0], lib.ckptfmt_strings_free)
        view = ffi.new("ckptfmt_strings_view *")
        lib.ckptfmt_strings_get(strings, view)
        if not view.count:
            return []
        offsets = np.frombuffer(ffi.buffer(view.offsets, 8 * (view.count + 1)), np.uint64).tolist()
        blob = ffi.buffer(view.bytes, offsets[-1])[:] if offsets[-1] else b""
        return [blob[start:end] for start, end in itertools.pairwise(offsets)]

    def map(self, selection: Selection, row: int, verify: int) -> NDArray[np.uint8]:
        """Return the stored bytes of a tensor, mapped read-only; unmapped when the last view of
        them dies."""
        out = ffi.new("ckptfmt_mapping **")
        self.call(lib.ckptfmt_reader_map, selection.pointer, row, verify, out)
        mapping = ffi.gc(out[0], lib.ckptfmt_mapping_close)
        size = ffi.new("uint64_t *")
        data = lib.ckptfmt_mapping_data(mapping, size)
        return array_at(data, size[0], np.dtype(np.uint8), mapping)

    def regions(self) -> NDArray[Any]:
        """Return all regions of the index file, in file order, as an array of REGION."""
        count = ffi.new("uint64_t *")
        self.call(lib.ckptfmt_reader_regions, ffi.NULL, 0, count)
        regions = np.zeros(count[0], REGION)
        raw = ffi.cast("ckptfmt_region *", ffi.from_buffer(regions))
        self.call(lib.ckptfmt_reader_regions, raw, len(regions), count)
        return regions
