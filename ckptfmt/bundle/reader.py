# SPDX-License-Identifier: Apache-2.0
"""Reading checkpoints: `open` and the Reader. Loading many tensors at once is in `load.py`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base import dtypes, hints, names, patterns
from ckptfmt._base.arguments import Verify, check_choice, check_limits, check_progress, check_switch
from ckptfmt._base.progress import Meter, Progress
from ckptfmt._core import cached_property
from ckptfmt.bundle.codec import Zstd
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import (
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    InvalidError,
    ShardMissingError,
    TensorNotFoundError,
    UnsupportedError,
    masked,
)
from ckptfmt.files.locate import explained, located
from ckptfmt.files.places import store_of

if TYPE_CHECKING:
    from ckptfmt.bundle.verify import Report


Path = str | bytes | os.PathLike[Any]

RESERVED = names.RESERVED.encode()
# Slices of a damaged index can claim more than this in all.
SIZE_MAX = 2**64 - 1
ROWS_SHOWN = 50  # in a notebook
LISTED_FOR_A_HINT_MAX = 1 << 20  # bytes of an index
_PART = re.compile(r"(.*)/part_([0-9]{1,9})", re.S)
TABLE_DTYPE = np.dtype(
    [
        ("name", "O"),
        ("dtype", "U18"),
        ("shape", "O"),
        ("nbytes", "u8"),
        ("shard", "i4"),
        ("offset", "u8"),
        ("stored_nbytes", "u8"),
        ("crc32c", "u4"),
        ("chunk_size", "u4"),
        ("slices", "u4"),
        ("dtype_code", "i4"),
    ]
)


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a checkpoint.

    Attributes:
        num_shards: number of data files.
        big_endian: the byte order of the numbers in the data files.
        producer: version that wrote it.
        min_consumer: oldest version that may read it.
        index_size: bytes of the index file.
        block_count: number of its data blocks.
    """

    num_shards: int
    big_endian: bool
    producer: int
    min_consumer: int
    index_size: int
    block_count: int


Header.__module__ = "ckptfmt.types"


def open(  # noqa: A001 (as gzip.open and its like: used with the name of the module)
    path: Path,
    *,
    verify: Verify = "auto",
    limits: Mapping[str, int] | None = None,
    follow_symlinks: bool = True,
) -> Reader:
    """Open a checkpoint as `ckptfmt.open`, by its stored names alone."""
    return Reader._at(path, verify, limits, follow_symlinks)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class Reader(Mapping[str, TensorHandle]):
    """A `ckptfmt.Reader` that finds tensors by their stored names alone."""

    # Bytes to read instead of those of the index file.
    _index: bytes | None = None

    def __init__(
        self,
        prefix: str,
        *,
        verify: Verify = "auto",
        limits: Mapping[str, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        check_limits(limits)
        check_switch("follow_symlinks", follow_symlinks)
        self.prefix = prefix = names.path_text(prefix, "prefix", urls=True)
        self._absolute = names.absolute(prefix)
        self._verify = verify
        self._limits = dict(limits) if limits else None
        self._follow_symlinks = follow_symlinks
        check_choice("verify", verify, _core.VERIFY)
        self._default_mode = int(_core.VERIFY[verify])
        self._listed: _Listing | None = None
        # Damaged metadata, a damaged object graph: what is read as if it were not there.
        self._forgotten: set[str] = set()
        self._named: list[str] | None = None
        try:
            self._handle = _core.ReaderHandle(
                prefix,
                limits,
                follow_symlinks,
                Zstd(),
                store_of(prefix),
                index=self._index,
            )
        except CorruptError as error:
            raise explained(error, prefix) from None
        fields = self._handle.header()
        self.header = Header(big_endian=bool(fields.pop("big_endian")), **fields)

    @classmethod
    def _at(
        cls, path: Path, verify: Verify, limits: Mapping[str, int] | None, follow_symlinks: bool
    ) -> Self:
        """Open what is at a path, as `ckptfmt.open`."""
        open_prefix = functools.partial(
            cls, verify=verify, limits=limits, follow_symlinks=follow_symlinks
        )
        text = names.path_text(path, "path", urls=True)
        if names.is_url(text):
            # Most are prefixes; to look first would take another request.
            with contextlib.suppress(CheckpointNotFoundError):
                return open_prefix(text.removesuffix(".index"))
        return open_prefix(located(text))

    # ---- mapping

    def __getitem__(self, name: str | bytes) -> TensorHandle:
        """Return the handle of a tensor; reads the index only. Raises TensorNotFoundError."""
        try:
            selection = self._handle.select_one(names.tensor_bytes(name, "name"))
        except TensorNotFoundError as error:
            return self[self._otherwise(name, error)]
        return TensorHandle(self, selection, 0, names.tensor_text(name))

    def read(self, name: str | bytes, *, verify: Verify | None = None) -> NDArray[Any]:
        """Return the whole tensor `name` as a new array: `reader[name].read()` without the handle.

        Args:
            name: the tensor's name, str or bytes.
            verify: "auto", "full" or "off"; None: as the reader was opened.

        Raises:
            TensorNotFoundError: the checkpoint has no such tensor.
            CorruptError: the data is damaged, or its slices do not cover it.
            UnsupportedError: more than 64 dimensions, the limit of numpy.
            StorageError, LimitError: a data file cannot be read; the tensor exceeds a limit of the
                reader.
        """
        mode = self._default_mode if verify is None else self._verify_mode(verify)
        try:
            array = self._handle.read_small(name, mode, dtypes.NUMPY)
        except TensorNotFoundError as error:
            return self.read(self._otherwise(name, error), verify=verify)
        return self[name].read(verify=verify) if array is None else array

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, (str, bytes)):
            return False
        try:
            return self._handle.contains(names.tensor_bytes(name))
        except InvalidError:
            if self._handle.closed or self._handle.foreign:
                raise
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def keys(
        self,
        *,
        prefix: str | bytes | None = None,
        glob: str | None = None,
        regex: str | re.Pattern[str] | None = None,
    ) -> KeysView[str]:
        """Return the names that meet all given conditions, in key order.

        Args:
            prefix: the beginning of the name, str or bytes.
            glob: shell pattern for the whole name, str; `*` matches slashes as well.
            regex: regular expression, str or compiled, found anywhere in the name.

        Raises:
            InvalidError: `glob` or `regex` is not a valid pattern.
        """
        if prefix is None and glob is None and regex is None:
            return KeysView(self)
        start, tests = patterns.name_tests(prefix, glob, regex)
        selection, rows = self._rows_from(start)
        found = selection.names(*_without_reserved(selection, rows))
        for test in tests:
            found = list(filter(test, found))
        return _Names(found)

    def items(self) -> ItemsView[str, TensorHandle]:
        """Return the (name, handle) pairs in key order."""
        return _Items(self)

    def values(self) -> ValuesView[TensorHandle]:
        """Return the handles in key order."""
        return _Values(self)

    def get(self, name: str | bytes, default: Any = None) -> Any:
        """Return the handle of a tensor, or `default` if the checkpoint has none of this name.

        Args:
            name: the tensor's name, str or bytes.
            default: what to return if the checkpoint has no such tensor.
        """
        # Without the search for near names that a failed lookup makes.
        return self[name] if name in self else default  # noqa: SIM401 (this is `get`)

    def _otherwise(self, _name: str | bytes, error: TensorNotFoundError) -> str:
        """Return the stored name of a tensor that is not stored under this one, or raise."""
        raise self._with_near_names(error) from None

    def _by_stored_names(self) -> Reader:
        """Return a reader of the same files that finds tensors by their stored names alone."""
        return self

    def _with_near_names(self, error: TensorNotFoundError) -> TensorNotFoundError:
        """Add the names that are most similar to the missing one to the message."""
        # A large index is not listed only for this.
        if error.tensor is not None and self.header.index_size <= LISTED_FOR_A_HINT_MAX:
            with contextlib.suppress(CkptfmtError):  # damage elsewhere in the index
                error.hint(self._part_hint(error.tensor) or hints.near(error.tensor, self._names()))
        return error

    def _part_hint(self, name: str) -> str:
        """Return a hint for a missing name that TensorFlow gives a part of a partitioned variable,
        for the end of a message; "" for another name."""
        match = _PART.fullmatch(name)
        if match is None or match[1] not in self:
            return ""
        whole = match[1]
        slices = self[whole].slices[int(match[2]) :][:1]
        sides = (
            f"{start}:{start + n}" if n < most else ":"
            for part in slices
            for start, n, most in zip(part.start, part.shape, self[whole].shape, strict=True)
        )
        one = f": this one is '{whole}[{', '.join(sides)}]'" if slices else ""
        return f"; '{whole}' is stored in {len(self[whole].slices)} slices{one}"

    def _rows_from(self, start: bytes) -> tuple[_core.Selection, range]:
        """Return a listing and its rows whose names begin with `start`."""
        if self._listed is None and start and start[0]:
            selection = self._handle.list_prefix(start)
            return selection, range(len(selection.rows))
        selection = self._listing().selection
        return selection, selection.rows_with_prefix(start)

    def _handles(self) -> Iterator[TensorHandle]:
        listing = self._listing()
        for row, name in zip(listing.visible_rows, self._names(), strict=True):
            yield TensorHandle(self, listing.selection, int(row), name)

    def _listing(self) -> _Listing:
        """Return all tensors; listed when first needed. Threads that need it at once may each
        list."""
        self._handle.use()  # refuses a closed reader
        if self._listed is None:
            self._listed = _Listing(self._handle.list_all())
        return self._listed

    def _names(self) -> list[str]:
        """Return the names that do not belong to the format; listed without the rest where nothing
        else was needed yet."""
        self._handle.use()  # refuses a closed reader
        if self._named is None:
            self._named = self._handle.names() if self._listed is None else self._listed.visible()
        return self._named

    # ---- the whole

    def table(self, *, reserved: bool = False) -> NDArray[Any]:
        """Return all tensors as one structured array, in key order.

        Fields: name (str), dtype (its name), shape (tuple), nbytes (of the array; of
        strings as stored), shard (-1 for a partitioned tensor), offset and stored_nbytes (bytes in
        the data file), crc32c (unmasked), chunk_size (bytes, 0 for none), slices (0 for a tensor
        stored whole), dtype_code.

        >>> ckptfmt.save("model", {"w": np.ones((2, 3), "float32")})
        >>> table = ckptfmt.open("model").table()
        >>> table["name"][0], table["shape"][0], int(table["nbytes"].sum())
        ('w', (2, 3), 24)

        Args:
            reserved: True includes the names that belong to the format.
        """
        check_switch("reserved", reserved)
        listing = self._listing()
        selection = listing.selection
        rows: range | NDArray[np.intp] = range(len(selection.rows))
        if reserved:
            found = listing.names
        else:
            rows, found = listing.visible_rows, self._names()
        chosen: Any = slice(None) if isinstance(rows, range) else rows
        records, (kinds, firsts) = selection.rows[chosen], selection.kinds
        codes, stored = records["dtype"], records["stored"]
        table = np.empty(len(rows), TABLE_DTYPE)
        table["name"] = found
        shapes = np.empty(len(firsts), np.object_)
        for kind, shape in enumerate(selection.shapes_of(firsts.tolist())):
            shapes[kind] = shape
        table["shape"] = shapes[kinds[chosen]]
        for code in _core.distinct(selection.rows["dtype"][firsts]):
            info = dtypes.info_of(code)
            alike: Any = codes == code
            alike = slice(None) if alike.all() else alike
            table["dtype"][alike] = dtypes.name_of(code)
            table["nbytes"][alike] = (
                records["element_count"][alike] * info.size
                if info and info.size
                else stored["raw_size"][alike]
            )
        whole = records["slice_count"] == 0
        table["shard"] = np.where(whole, stored["shard"], -1)
        table["offset"], table["stored_nbytes"] = stored["offset"], stored["size"]
        table["crc32c"], table["chunk_size"] = stored["crc32c"], stored["chunk_size"]
        table["slices"], table["dtype_code"] = records["slice_count"], codes
        for position in np.flatnonzero(~whole).tolist():
            handle = TensorHandle(self, selection, int(rows[position]), found[position])
            table["stored_nbytes"][position] = min(handle.stored_nbytes, SIZE_MAX)
            table["nbytes"][position] = min(handle.nbytes, SIZE_MAX)
        return table

    @property
    def metadata(self) -> dict[str, Any]:
        """The JSON object stored with the checkpoint; empty if it has none. Raises
        CorruptError if it is not a JSON object."""
        if names.METADATA in self._forgotten or names.METADATA not in self:
            return {}
        import json  # noqa: PLC0415 (most readers need none)

        handle = self[names.METADATA]
        value = None
        if handle.dtype_name == dtypes.STRING and not handle.shape:
            text = handle.read().item()
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(text.decode(), parse_constant=_no_number)
        if not isinstance(value, dict):
            raise CorruptError(
                "EXT-7: the metadata is not a JSON object",
                failure="BAD_ENTRY",
                path=self.prefix,
                tensor=names.METADATA,
            )
        return value

    def _settle_metadata(self, *, replaced: bool, way_out: str) -> bool:
        """Read the metadata before tensors are written anew. Damaged ones that are replaced count
        as none from then on; return whether they do.

        Raises:
            CorruptError, ShardMissingError: they are damaged and needed; `way_out` is in the hint,
                unless it is empty.
        """
        try:
            _ = self.metadata
        except (CorruptError, ShardMissingError) as error:
            if not replaced:
                if way_out:
                    error.hint(f" ({way_out} leaves the metadata out)")
                    error.argument = way_out.partition("=")[0]
                raise
            self._forgotten.add(names.METADATA)
            self.__dict__.pop("_noted", None)
        return names.METADATA in self._forgotten

    @property
    def _notes(self) -> dict[str, dict[str, Any]]:
        """What tensors were whose stored elements are the bits of another dtype, by name."""
        if isinstance(self._noted, CkptfmtError):
            raise self._noted.with_traceback(None)
        return self._noted

    @cached_property
    def _noted(self) -> dict[str, dict[str, Any]] | CkptfmtError:
        if names.METADATA not in self:
            return {}
        from ckptfmt.bundle.meanings import notes_of  # noqa: PLC0415 (torch states only)

        try:
            return notes_of(self.metadata, self.prefix)
        except (CorruptError, UnsupportedError) as error:
            return error  # parsed once

    @property
    def level(self) -> str:
        """The level of the format that it needs or uses: "ckptfmt", "v2+" or "v2".

        "v2+" is recognised by metadata or chunk checksums; without these the two hold the same.
        """
        if self.header.min_consumer >= 2:
            return "ckptfmt"
        selection = self._listing().selection
        rows, slices = selection.rows, selection.slice_rows
        chunked = rows["stored"]["chunk_size"].any() or slices["stored"]["chunk_size"].any()
        return "v2+" if chunked or names.METADATA in self else "v2"

    def regions(self) -> NDArray[Any]:
        """Return all regions of the index file in file order: offset, size, entry_count, kind,
        compression, crc32c, crc_good (as `ckptfmt_region` in `ckptfmt.h`)."""
        return self._handle.regions()

    def verify(self, *, strict: bool = False, progress: Progress | None = None) -> Report:
        """Check every index block, every entry and every byte of every tensor, with the limits of
        this reader. Damage is in the report, not raised.

        Args:
            strict: True: notes of what a canonical writer does not write make `ok` False as well.
            progress: called as `progress(done, total)` with two ints, of bytes of the files.

        Raises:
            CheckpointNotFoundError: the checkpoint was removed.
            StorageError: a file exists and cannot be read.
        """
        from ckptfmt.bundle.verify import verify_all  # noqa: PLC0415 (most readers never check)

        return verify_all(
            self._absolute,
            strict=strict,
            progress=progress,
            limits=self._limits,
            follow_symlinks=self._follow_symlinks,
        )

    def digest(self, *, progress: Progress | None = None) -> str:
        """SHA-256 of the contents, as hex: the same for the same tensors and metadata, however they
        are stored.

        Hashed are the line "ckptfmt digest 1" and then, for each tensor in byte order of the names
        (with that of the metadata, without the placeholders of empty shards): size of the name
        (u64), name, dtype code (i32), rank (u32), dims (i64), and its elements row-major, strings
        and variants each as size (u64) and bytes. All numbers are little-endian. Every byte is
        verified on the way; memory is that of the largest tensor.

        Args:
            progress: called as `progress(done, total)` with two ints, of bytes of the arrays.

        Raises:
            CorruptError, UnsupportedError, LimitError, StorageError: a tensor is damaged, of an
                unknown dtype, beyond the limits of this reader, or cannot be read now.
        """
        import hashlib  # noqa: PLC0415 (it loads a library of a megabyte)

        total = hashlib.sha256(b"ckptfmt digest 1\n")
        listing = self._listing()
        check_progress(progress)
        table = self.table(reserved=True) if progress is not None else None
        meter = Meter(progress, 0 if table is None else int(table["nbytes"].sum()))
        for row, name in enumerate(listing.names):
            if name.startswith(names.SHARD_STAND_IN):
                continue
            handle = TensorHandle(self, listing.selection, row, name)
            raw = handle.raw_name
            dims = np.array(handle.shape, "<i8").tobytes()
            total.update(len(raw).to_bytes(8, "little") + raw)
            total.update(
                handle.dtype_code.to_bytes(4, "little", signed=True)
                + len(handle.shape).to_bytes(4, "little")
            )
            total.update(dims)
            array = handle.read(verify="full")
            if array.dtype == np.dtype(object):
                for element in array.reshape(-1).tolist():
                    total.update(len(element).to_bytes(8, "little") + element)
            else:
                total.update(dtypes.little_endian(array, handle.dtype_code).data)
            meter.add(handle.nbytes)
        return total.hexdigest()

    def _verify_mode(self, verify: Verify | None) -> int:
        if verify is None:
            return self._default_mode
        check_choice("verify", verify, _core.VERIFY)
        return int(_core.VERIFY[verify])

    # ---- life

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._handle.closed

    def close(self) -> None:
        """Close the files. Arrays already read, and mappings, stay; handles can no longer read."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        how = (self._verify, self._limits, self._follow_symlinks)
        return _reopen, (type(self), self._absolute, *how)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<ckptfmt.Reader {masked(self.prefix)!r}{' closed' if self.closed else ''}>"

    def _repr_html_(self) -> str:
        """Show the first tensors in a notebook."""
        from ckptfmt.bundle.notebook import table  # noqa: PLC0415 (notebooks only)

        if self.closed:
            return table(repr(self), [], [])
        handles = [self[name] for name in itertools.islice(self, ROWS_SHOWN)]
        rows = [(one.name, one.dtype_name, list(one.shape), f"{one.nbytes:,}") for one in handles]
        more = f" (the first {ROWS_SHOWN})" if len(self) > ROWS_SHOWN else ""
        caption = f"{masked(self.prefix)}: {len(self):,} tensors{more}"
        return table(caption, ["name", "dtype", "shape", "bytes"], rows)


def _reopen(
    kind: type[Reader],
    prefix: str,
    verify: Verify,
    limits: Mapping[str, int] | None,
    follow_symlinks: bool,
) -> Reader:
    return kind(prefix, verify=verify, limits=limits, follow_symlinks=follow_symlinks)


def _without_reserved(selection: _core.Selection, rows: range) -> tuple[range, range]:
    """These rows of a listing but for the names that belong to the format, which stand together."""
    reserved = selection.rows_with_prefix(RESERVED)
    return (
        range(rows.start, max(rows.start, min(rows.stop, reserved.start))),
        range(min(rows.stop, max(rows.start, reserved.stop)), rows.stop),
    )


class _Listing:
    """All tensors of a checkpoint.

    Attributes:
        visible_rows: those whose names do not belong to the format.
    """

    def __init__(self, selection: _core.Selection) -> None:
        self.selection = selection
        everything = range(len(selection.rows))
        self._parts = _without_reserved(selection, everything)
        whole = len(self._parts[0]) + len(self._parts[1]) == len(everything)
        self.visible_rows: range | NDArray[np.intp] = (
            everything
            if whole
            else np.concatenate([np.arange(p.start, p.stop) for p in self._parts])
        )

    @cached_property
    def names(self) -> list[str]:
        """All names."""
        return self.selection.names()

    def visible(self) -> list[str]:
        """Return the names of the visible rows."""
        whole = isinstance(self.visible_rows, range)
        return self.names if whole else self.selection.names(*self._parts)


class _Names(KeysView[str]):
    """Some names of a reader."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(dict.fromkeys(found))


class _Items(ItemsView[str, TensorHandle]):
    """Items from one listing instead of a lookup each."""

    _mapping: Reader

    def __iter__(self) -> Iterator[tuple[str, TensorHandle]]:
        return ((handle.name, handle) for handle in self._mapping._handles())


class _Values(ValuesView[TensorHandle]):
    """Values from one listing instead of a lookup each."""

    _mapping: Reader

    def __iter__(self) -> Iterator[TensorHandle]:
        return self._mapping._handles()


def missing(name: str | bytes, path: str | None) -> TensorNotFoundError:
    """Return the error for a tensor that a checkpoint does not have."""
    return TensorNotFoundError("not found in checkpoint", path=path, tensor=names.tensor_text(name))
