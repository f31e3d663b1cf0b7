# SPDX-License-Identifier: Apache-2.0
"""The border to C: the only module that touches `ffi` and `lib`. No policy, no names of dtypes.

Three kinds of things cross:

- **Handles** (`ReaderHandle`, `WriterHandle`, `VerifierHandle`) are wrapped in the line that
  creates them. A handle may be closed while other threads are inside a call: the last one out
  frees it. It remembers its process: in a forked child every use raises, and closing touches
  nothing, because the files belong to the parent.
- **Columns** are arrays of C structs seen as numpy structured arrays, whose fields come from the
  parsed header. A batch of any size is one crossing.
- **Views** (`Selection`, mappings) are memory of C that Python sees. Each view's base chain ends in
  an object that owns the memory, which is therefore freed when the last view dies, never before.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt import errors
from ckptfmt._ckptfmt import ffi, lib

# The most dimensions that numpy has.
NUMPY_RANK_MAX = 64
NO_OFFSET = 2**64 - 1

VERIFY = {
    "auto": lib.CKPTFMT_VERIFY_AUTO,
    "full": lib.CKPTFMT_VERIFY_FULL,
    "off": lib.CKPTFMT_VERIFY_OFF,
}
DURABILITY = {
    "full": lib.CKPTFMT_DURABILITY_FULL,
    "rename": lib.CKPTFMT_DURABILITY_RENAME,
    "none": lib.CKPTFMT_DURABILITY_NONE,
}
STORAGE_FIXED = lib.CKPTFMT_STORAGE_FIXED
STORAGE_STRING = lib.CKPTFMT_STORAGE_STRING
STORAGE_VARIANT = lib.CKPTFMT_STORAGE_VARIANT
STORAGE_NONE = lib.CKPTFMT_STORAGE_NONE
STORED_MISSING = lib.CKPTFMT_STORED_MISSING
SEVERITY_NOTE = lib.CKPTFMT_SEVERITY_NOTE
RANK_MAX = lib.CKPTFMT_RANK_MAX


def text(pointer: Any) -> str:
    """A NUL-terminated string of C; bytes that are not UTF-8 become surrogate escapes."""
    return str(ffi.string(pointer), "utf-8", "surrogateescape")


def version() -> str:
    """Version of the C library."""
    return text(lib.ckptfmt_version())


# ---- errors --------------------------------------------------------------------------------------

ERROR_BY_FAILURE, ERROR_BY_STATUS = errors.classes()


def error_of(record: Any, path: str | None = None) -> Exception:
    """The exception that a `ckptfmt_error` describes; `path` stands in where the record has
    none."""
    failure = text(lib.ckptfmt_failure_name(record.failure))
    status = text(lib.ckptfmt_status_name(record.status))
    message = str(ffi.string(record.message), "utf-8", "replace")
    if status == "NO_MEMORY":
        return MemoryError(message)
    kind = ERROR_BY_FAILURE.get(failure) or ERROR_BY_STATUS.get(status, errors.CkptfmtError)
    return kind(
        message,
        failure=failure,
        path=os.fsdecode(ffi.string(record.path)) or path,
        offset=None if record.offset == NO_OFFSET else int(record.offset),
        tensor=tensor_text(record) or None,
        errno=int(record.os_errno) or None,
    )


def tensor_text(record: Any) -> str:
    """The tensor name in a `ckptfmt_error`."""
    return str(ffi.buffer(record.tensor)[: record.tensor_size], "utf-8", "surrogateescape")


def check(status: int, record: Any, path: str | None = None) -> None:
    """Raises what the C call reported; the only place where a status becomes an exception."""
    if status != lib.CKPTFMT_OK:
        raise error_of(record, path)


def new_error() -> Any:
    return ffi.new("ckptfmt_error *")


# ---- structs as numpy columns --------------------------------------------------------------------

_SCALARS = {
    "int32_t": np.dtype(np.int32),
    "uint32_t": np.dtype(np.uint32),
    "int64_t": np.dtype(np.int64),
    "uint64_t": np.dtype(np.uint64),
}


def _column_dtype(ctype: Any) -> Any:
    """The numpy dtype that has exactly the layout of a C type, from what cffi knows of it."""
    if ctype.kind == "struct":
        fields = dict(ctype.fields)
        return np.dtype(
            {
                "names": list(fields),
                "formats": [_column_dtype(field.type) for field in fields.values()],
                "offsets": [field.offset for field in fields.values()],
                "itemsize": ffi.sizeof(ctype),
            }
        )
    if ctype.kind == "pointer":
        return np.dtype(np.uintp)
    return _SCALARS[ctype.cname]


ROW = _column_dtype(ffi.typeof("ckptfmt_row"))
SLICE_ROW = _column_dtype(ffi.typeof("ckptfmt_slice_row"))
REQUEST = _column_dtype(ffi.typeof("ckptfmt_request"))
SOURCE = _column_dtype(ffi.typeof("ckptfmt_source"))
BYTES = _column_dtype(ffi.typeof("ckptfmt_bytes"))
REGION = _column_dtype(ffi.typeof("ckptfmt_region"))


def address(array: NDArray[Any]) -> int:
    """Address of the first element; the caller keeps the array alive."""
    return int(array.__array_interface__["data"][0])


def addresses(
    arrays: Sequence[NDArray[Any]], dense: Sequence[bool]
) -> tuple[NDArray[np.uint64], list[Any]]:
    """Addresses of the first elements of many arrays, and what keeps them valid.

    An array of pointers does not keep its targets alive: the list does. Borrowing the buffer is
    several times faster than asking numpy for the address (measured), but only `dense`
    (C-contiguous) arrays lend theirs.
    """
    borrow, nothing = ffi.from_buffer, ffi.NULL
    owners = [borrow(array) if d else nothing for array, d in zip(arrays, dense, strict=True)]
    if not owners:
        return np.empty(0, np.uint64), owners
    pointers = ffi.new("char *[]", owners)
    column = np.frombuffer(ffi.buffer(pointers), np.uint64, len(arrays)).copy()
    for row in [row for row, d in enumerate(dense) if not d]:
        column[row] = address(arrays[row])
    return column, owners


def _view(pointer: Any, count: int, dtype: np.dtype[Any], owner: Any) -> NDArray[Any]:
    """A read-only array over memory of C, which `owner` keeps alive for as long as any view of it
    lives."""
    if not count:
        nothing = np.empty(0, dtype)
        nothing.setflags(write=False)
        return nothing

    def keep(_pointer: Any, _owner: Any = owner) -> None:
        """Runs when the last view is gone; until then its default argument holds the owner."""

    held = ffi.gc(pointer, keep)
    return np.frombuffer(memoryview(ffi.buffer(held, count * dtype.itemsize)).toreadonly(), dtype)


# ---- limits, dtypes, checksums, counters ---------------------------------------------------------


class DtypeInfo(NamedTuple):
    """One row of the dtype table: sizes in bytes an element."""

    name: str
    code: int
    storage: int
    size: int
    swap_size: int
    used_bits: int


def dtype_table() -> list[DtypeInfo]:
    """The dtypes that this version knows, in ascending code."""
    table: list[DtypeInfo] = []
    while (info := lib.ckptfmt_dtype_at(len(table))) != ffi.NULL:
        sizes = (info.size, info.swap_size, info.used_bits)
        table.append(DtypeInfo(text(info.name), info.code, info.storage, *sizes))
    return table


def _numbers(struct: Any) -> dict[str, int]:
    """The fields of a struct of numbers."""
    fields = [name for name, _ in ffi.typeof(struct[0]).fields if name != "reserved"]
    return {name: int(getattr(struct, name)) for name in fields}


def _limits(values: Mapping[str, int] | None) -> Any:
    """A `ckptfmt_limits` with the defaults, but for `values`; NULL for no values."""
    if not values:
        return ffi.NULL
    limits = ffi.new("ckptfmt_limits *")
    lib.ckptfmt_limits_default(limits)
    known = _numbers(limits)
    for name, value in values.items():
        if name not in known:
            raise errors.InvalidError(f"no limit is called {name!r}; there are {', '.join(known)}")
        try:
            setattr(limits, name, value)
        except (OverflowError, TypeError) as error:
            raise errors.InvalidError(f"limit {name!r}: {error}") from None
    return limits


def default_limits() -> dict[str, int]:
    """The limits in force unless others are given, in the units of their names."""
    limits = ffi.new("ckptfmt_limits *")
    lib.ckptfmt_limits_default(limits)
    return _numbers(limits)


def crc32c(data: Any, crc: int = 0) -> int:
    """CRC-32C of the bytes of a contiguous buffer, continuing `crc`."""
    with ffi.from_buffer("uint8_t[]", data) as pointer:
        return int(lib.ckptfmt_crc32c(crc, pointer, len(pointer)))


def counters() -> dict[str, int]:
    """What this process asked of the operating system so far."""
    values = ffi.new("ckptfmt_counters *")
    lib.ckptfmt_counters_get(values)
    return _numbers(values)


def parse_spec(spec: bytes) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Dims, starts and lengths (-1: a full dimension) of a shape_and_slice text; None for the whole
    tensor."""
    rank = ffi.new("int32_t *")
    numbers = ffi.new("int64_t[]", 3 * RANK_MAX)
    dims, starts, lengths = numbers, numbers + RANK_MAX, numbers + 2 * RANK_MAX
    error = new_error()
    with ffi.from_buffer("uint8_t[]", spec) as pointer:
        check(lib.ckptfmt_spec_parse(pointer, len(spec), rank, dims, starts, lengths, error), error)
    if rank[0] < 0:
        return None
    return (
        tuple(ffi.unpack(dims, rank[0])),
        tuple(ffi.unpack(starts, rank[0])),
        tuple(ffi.unpack(lengths, rank[0])),
    )


# ---- handles -------------------------------------------------------------------------------------


class _Closed:
    """Stands for a closed handle. Not None: cffi on PyPy would pass that on as NULL."""


_CLOSED = _Closed()


class _Handle:
    """A C object that can be closed, in the process that made it."""

    __slots__ = ("__weakref__", "_lock", "_name", "_owned", "_pid", "_pointer")

    def __init__(self, pointer: Any, name: str) -> None:
        self._owned = self._pointer = pointer
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        return self._pointer is _CLOSED

    @property
    def foreign(self) -> bool:
        """True in a process forked after the handle was made."""
        return self._pid != os.getpid()

    def _usable(self) -> Any:
        if self._pointer is _CLOSED:
            raise errors.InvalidError(f"{self._name} is closed")
        return self._pointer

    def _refuse_after_fork(self) -> None:
        # Before any lock is touched: a thread of the parent may have held it when the child was
        # made.
        if self.foreign:
            raise errors.InvalidError(
                f"{self._name} was opened before a fork: open it again in this process"
            )


class _SharedHandle(_Handle):
    """Used by many threads at once. `with handle as pointer:` marks a call; the last one out frees
    a closed handle."""

    __slots__ = ("_calls",)

    def __init__(self, pointer: Any, name: str) -> None:
        super().__init__(pointer, name)
        self._calls = 0

    def __enter__(self) -> Any:
        self._refuse_after_fork()
        with self._lock:
            pointer = self._usable()
            self._calls += 1
        return pointer

    def __exit__(self, *_exc: object) -> None:
        with self._lock:
            self._calls -= 1
            last = self._pointer is _CLOSED and not self._calls
        if last:
            ffi.release(self._owned)

    def close(self) -> None:
        """Closes, at once or when the last call under way returns. Harmless when closed already."""
        if self.foreign:
            self._pointer = _CLOSED
            return
        with self._lock:
            idle = self._pointer is not _CLOSED and not self._calls
            self._pointer = _CLOSED
        if idle:
            ffi.release(self._owned)


class _ExclusiveHandle(_Handle):
    """Used by one thread at a time: calls, and closing, wait for each other."""

    __slots__ = ()

    def __enter__(self) -> Any:
        self._refuse_after_fork()
        self._lock.acquire()
        try:
            return self._usable()
        except BaseException:  # Ctrl-C too
            self._lock.release()
            raise

    def __exit__(self, *_exc: object) -> None:
        self._lock.release()

    def close(self) -> None:
        """Closes when the call under way returns. Harmless when closed already."""
        if self.foreign:
            self._pointer = _CLOSED
            return
        with self._lock:
            if self._pointer is not _CLOSED:
                self._pointer = _CLOSED
                ffi.release(self._owned)


def _call(handle: Any, function: Callable[..., int], *arguments: Any) -> None:
    """Calls a function of C that takes the handle first and an error last, and raises that."""
    error = new_error()
    with handle as pointer:
        status = function(pointer, *arguments, error)
    check(status, error, handle.path)


def _own(pointer: Any, free: Callable[[Any], None]) -> Any:
    """Wraps a pointer so that `free` runs once, and only in the process that made it."""

    def free_here(raw: Any, pid: int = os.getpid(), getpid: Callable[[], int] = os.getpid) -> None:
        if getpid() == pid:
            free(raw)

    return ffi.gc(pointer, free_here)


def path_bytes(path: str) -> bytes:
    """A path as the operating system takes it (NAM-1)."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise errors.InvalidError(f"no path: {error.reason}", failure="BAD_PATH") from None
    if b"\0" in raw:
        raise errors.InvalidError("a path cannot hold a NUL byte", failure="BAD_PATH")
    return raw


def _open_options(limits: Mapping[str, int] | None, follow_symlinks: bool) -> tuple[Any, Any]:
    """The options, and the limits that they point to."""
    values = _limits(limits)
    return ffi.new(
        "ckptfmt_open_options *", {"limits": values, "follow_symlinks": bool(follow_symlinks)}
    ), values


class Stored(NamedTuple):
    """`ckptfmt_stored`: where the bytes of one value lie."""

    shard: int
    offset: int
    size: int
    crc32c: int
    chunk_size: int
    flags: int


class Record(NamedTuple):
    """`ckptfmt_row`: what the index says of one tensor."""

    dtype: int
    shape: tuple[int, ...]
    element_count: int
    slice_count: int
    stored: Stored


def _stored(raw: Any) -> Stored:
    return Stored(raw.shard, raw.offset, raw.size, raw.crc32c, raw.chunk_size, raw.flags)


class Selection:
    """Tensors picked from an index, one by one or as columns. It needs no open reader.

    The arrays of columns keep the C object alive, as the selection itself does.
    """

    def __init__(self, pointer: Any) -> None:
        # Plain memory: freeing it in a forked child is harmless, so it needs no pid.
        self.pointer = ffi.gc(pointer, lib.ckptfmt_selection_free)
        self._columns = ffi.new("ckptfmt_columns *")
        lib.ckptfmt_selection_columns(pointer, self._columns)

    def record(self, row: int) -> Record:
        """One tensor."""
        raw = self._columns.rows[row]
        dims = ffi.unpack(self._columns.dims + raw.dims_first, raw.rank) if raw.rank else ()
        return Record(
            raw.dtype, tuple(dims), raw.element_count, raw.slice_count, _stored(raw.stored)
        )

    def slices(self, row: int) -> list[tuple[list[int], Stored]]:
        """The stored slices of one tensor: extents (starts, then lengths), and where they lie."""
        columns, raw = self._columns, self._columns.rows[row]
        found = []
        for number in range(raw.slices_first, raw.slices_first + raw.slice_count):
            part = columns.slices[number]
            extents = (
                ffi.unpack(columns.dims + part.extents_first, 2 * raw.rank) if raw.rank else []
            )
            found.append((extents, _stored(part.stored)))
        return found

    @cached_property
    def rows(self) -> NDArray[Any]:
        """All tensors, as an array of ROW."""
        return _view(self._columns.rows, self._columns.row_count, ROW, self.pointer)

    @cached_property
    def slice_rows(self) -> NDArray[Any]:
        """All slices of all tensors, as an array of SLICE_ROW."""
        return _view(self._columns.slices, self._columns.slice_count, SLICE_ROW, self.pointer)

    def names(self) -> list[str]:
        """The names of all tensors; bytes that are not UTF-8 as surrogate escapes."""
        blob = ffi.buffer(self._columns.names, self._columns.names_size)[:]
        starts = self.rows["name_offset"].tolist()
        ends = (self.rows["name_offset"] + self.rows["name_size"]).tolist()
        if blob.isascii():  # then the bytes count as the characters do
            joined = blob.decode()
            return [joined[start:end] for start, end in zip(starts, ends, strict=True)]
        return [
            str(blob[start:end], "utf-8", "surrogateescape")
            for start, end in zip(starts, ends, strict=True)
        ]

    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all tensors."""
        count = self._columns.dims_count
        dims = ffi.unpack(self._columns.dims, count) if count else []
        firsts = self.rows["dims_first"]
        ends = (firsts + self.rows["rank"].astype(np.uint64)).tolist()
        return [tuple(dims[a:b]) for a, b in zip(firsts.tolist(), ends, strict=True)]


class ReaderHandle(_SharedHandle):
    """`ckptfmt_reader`."""

    __slots__ = ("path",)

    def __init__(
        self, prefix: str, limits: Mapping[str, int] | None, follow_symlinks: bool
    ) -> None:
        raw = path_bytes(prefix)
        options, _owned = _open_options(limits, follow_symlinks)
        out, error = ffi.new("ckptfmt_reader **"), new_error()
        check(lib.ckptfmt_reader_open(raw, options, out, error), error, prefix)
        super().__init__(_own(out[0], lib.ckptfmt_reader_close), "checkpoint")
        self.path = prefix

    def header(self) -> dict[str, int]:
        """The fields of `ckptfmt_header`."""
        header = ffi.new("ckptfmt_header *")
        with self as reader:
            lib.ckptfmt_reader_header(reader, header)
        return _numbers(header)

    def list_all(self) -> Selection:
        """Every tensor, in key order."""
        out = ffi.new("ckptfmt_selection **")
        _call(self, lib.ckptfmt_reader_list, out)
        return Selection(out[0])

    def select(self, names: Sequence[bytes]) -> Selection:
        """The named tensors, in this order."""
        out = ffi.new("ckptfmt_selection **")
        joined = ffi.from_buffer("uint8_t[]", b"".join(names))
        sizes = np.fromiter(map(len, names), np.uint64, len(names))
        counts = ffi.from_buffer("uint64_t[]", sizes)
        _call(self, lib.ckptfmt_reader_select, joined, counts, len(names), out)
        return Selection(out[0])

    def contains(self, name: bytes) -> bool:
        """True if there is a tensor of this name."""
        found = ffi.new("int32_t *")
        _call(self, lib.ckptfmt_reader_contains, name, len(name), found)
        return bool(found[0])

    def read(self, selection: Selection, requests: NDArray[Any], verify: int) -> None:
        """Serves an array of REQUEST; the caller keeps alive what its addresses point to."""
        raw = ffi.from_buffer("uint8_t[]", requests, require_writable=True)
        array = ffi.cast("ckptfmt_request *", raw)
        _call(self, lib.ckptfmt_reader_read, selection.pointer, array, len(requests), verify)

    def compare(
        self, selection: Selection, sources: NDArray[Any], rows: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Whether each of these rows holds just what the SOURCE beside it would be stored as; the
        caller keeps alive what the addresses of the sources point to."""
        raw = ffi.from_buffer("uint8_t[]", sources)
        array, numbers = ffi.cast("ckptfmt_source *", raw), ffi.from_buffer("uint64_t[]", rows)
        same = np.zeros(len(rows), np.bool_)
        answers = ffi.from_buffer("uint8_t[]", same, require_writable=True)
        pointer = selection.pointer
        _call(self, lib.ckptfmt_reader_compare, pointer, array, numbers, len(rows), answers)
        return same

    def data_size(self, shard: int) -> int:
        """Bytes of a data file."""
        size = ffi.new("uint64_t *")
        _call(self, lib.ckptfmt_reader_data_size, shard, size)
        return int(size[0])

    def read_strings(
        self, selection: Selection, row: int, box: NDArray[np.int64] | None, verify: int
    ) -> list[bytes]:
        """The elements of a string or variant tensor, or of a box of it (starts, then lengths),
        row-major."""
        out = ffi.new("ckptfmt_strings **")
        corner = ffi.NULL if box is None else ffi.from_buffer("int64_t[]", box)
        _call(self, lib.ckptfmt_reader_read_strings, selection.pointer, row, corner, verify, out)
        strings = ffi.gc(out[0], lib.ckptfmt_strings_free)
        view = ffi.new("ckptfmt_strings_view *")
        lib.ckptfmt_strings_get(strings, view)
        if not view.count:
            return []
        offsets = np.frombuffer(ffi.buffer(view.offsets, 8 * (view.count + 1)), np.uint64).tolist()
        blob = ffi.buffer(view.bytes, offsets[-1])[:] if offsets[-1] else b""
        return [blob[start:end] for start, end in itertools.pairwise(offsets)]

    def map(self, selection: Selection, row: int, verify: int) -> NDArray[np.uint8]:
        """The stored bytes of a tensor, mapped read-only; unmapped when the last view of them
        dies."""
        out = ffi.new("ckptfmt_mapping **")
        _call(self, lib.ckptfmt_reader_map, selection.pointer, row, verify, out)
        mapping = ffi.gc(out[0], lib.ckptfmt_mapping_close)
        size = ffi.new("uint64_t *")
        data = lib.ckptfmt_mapping_data(mapping, size)
        return _view(data, size[0], np.dtype(np.uint8), mapping)

    def regions(self) -> NDArray[Any]:
        """All regions of the index file, in file order, as an array of REGION."""
        count = ffi.new("uint64_t *")
        _call(self, lib.ckptfmt_reader_regions, ffi.NULL, 0, count)
        regions = np.zeros(count[0], REGION)
        raw = ffi.cast("ckptfmt_region *", ffi.from_buffer(regions))
        _call(self, lib.ckptfmt_reader_regions, raw, len(regions), count)
        return regions


class WriterHandle(_ExclusiveHandle):
    """`ckptfmt_writer`. Belongs to one thread at a time: calls queue up."""

    __slots__ = ("path",)

    def __init__(self, prefix: str, alignment: int, chunk_size: int, durability: int) -> None:
        raw = path_bytes(prefix)
        options = ffi.new("ckptfmt_write_options *")
        lib.ckptfmt_write_options_default(options)
        options.alignment, options.chunk_size = alignment, chunk_size
        options.durability = durability
        out, error = ffi.new("ckptfmt_writer **"), new_error()
        check(lib.ckptfmt_writer_open(raw, options, out, error), error, prefix)
        super().__init__(_own(out[0], lib.ckptfmt_writer_abandon), "writer")
        self.path = prefix

    def add(self, sources: NDArray[Any]) -> None:
        """Appends an array of SOURCE; the caller keeps alive what its addresses point to."""
        raw = ffi.from_buffer("uint8_t[]", sources)
        array = ffi.cast("ckptfmt_source *", raw)
        _call(self, lib.ckptfmt_writer_add, array, len(sources))

    def keep(
        self, reader: ReaderHandle, selection: Selection, rows: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Takes rows of another checkpoint over by links to its data files; False where that cannot
        be done."""
        kept = np.zeros(len(rows), np.bool_)
        answers = ffi.from_buffer("uint8_t[]", kept, require_writable=True)
        numbers, pointer = ffi.from_buffer("uint64_t[]", rows), selection.pointer
        with reader as other:
            _call(self, lib.ckptfmt_writer_keep, other, pointer, numbers, len(rows), answers)
        return kept

    def commit(self) -> None:
        """Makes the checkpoint visible. The handle is closed afterwards, whatever happened."""
        error = new_error()
        with self as writer:
            self._pointer = _CLOSED
            ffi.gc(writer, None)  # C frees it, whatever it returns
            check(lib.ckptfmt_writer_commit(writer, error), error, self.path)


def merge(
    prefixes: Sequence[str],
    destination: str,
    *,
    consume: bool,
    allow_missing: bool,
    durability: int,
    limits: Mapping[str, int] | None,
) -> None:
    """`ckptfmt_merge`."""
    owners = [ffi.from_buffer(path_bytes(prefix) + b"\0") for prefix in prefixes]
    array = ffi.new("char *[]", owners)
    values = _limits(limits)
    options = ffi.new("ckptfmt_merge_options *", {"limits": values})
    options.consume, options.allow_missing = int(consume), int(allow_missing)
    options.durability = durability
    error, raw = new_error(), path_bytes(destination)
    check(lib.ckptfmt_merge(array, len(owners), raw, options, error), error, destination)


class Finding(NamedTuple):
    """One finding of a verifier, and the exception it would be."""

    severity: int
    error: Exception


class VerifierHandle(_ExclusiveHandle):
    """`ckptfmt_verifier`. Belongs to one thread at a time: calls queue up."""

    __slots__ = ("path",)

    def __init__(
        self, prefix: str, limits: Mapping[str, int] | None, follow_symlinks: bool
    ) -> None:
        raw = path_bytes(prefix)
        options, _owned = _open_options(limits, follow_symlinks)
        out, error = ffi.new("ckptfmt_verifier **"), new_error()
        check(lib.ckptfmt_verifier_open(raw, options, out, error), error, prefix)
        super().__init__(_own(out[0], lib.ckptfmt_verifier_close), "verifier")
        self.path = prefix

    def step(self, byte_budget: int) -> dict[str, int]:
        """Works on for about this many bytes; the fields of `ckptfmt_progress`."""
        progress = ffi.new("ckptfmt_progress *")
        _call(self, lib.ckptfmt_verifier_step, byte_budget, progress)
        return _numbers(progress)

    def findings(self, first: int = 0) -> Iterator[Finding]:
        """The findings so far, from number `first` on."""
        found: list[Finding] = []
        with self as verifier:
            look = lib.ckptfmt_verifier_finding
            while (finding := look(verifier, first + len(found))) != ffi.NULL:
                found.append(Finding(int(finding.severity), error_of(finding.error, self.path)))
        return iter(found)
