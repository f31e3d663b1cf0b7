# SPDX-License-Identifier: Apache-2.0
"""The contents of a checkpoint as `inspect` shows them. Nothing is printed here.

A damaged checkpoint is read as far as possible; each failure becomes a problem in a list.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt import CkptfmtError, CorruptError, UnsupportedError
from ckptfmt._base.dtypes import code_of_array, name_of
from ckptfmt._base.names import data_name, index_name, parse_data_name
from ckptfmt._core import cached_property
from ckptfmt.bundle.reader import Header, Reader
from ckptfmt.bundle.verify import finding_of
from ckptfmt.files.places import file_size, names_in
from ckptfmt.formats.tensors import FileTensor, Unreadable
from ckptfmt.naming.states import State, state_of
from ckptfmt.recipe.opening import files_of, open_tensors
from ckptfmt.recipe.sources import Format
from ckptfmt.types import Finding, StoredSlice, TensorHandle

# Name prefix of the tensors of the format itself.
RESERVED = "_CKPTFMT_"
# With more data files than this, only those that hold a tensor are listed.
FILES_MAX = 4096
WHOLE = -1
# Of the table of a reader; its dtypes are here as well.
COLUMNS = ("name", "shape", "nbytes", "shard", "offset", "stored_nbytes", "crc32c", "slices")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file. If its size is not known, `problem` says why."""

    shard: int
    path: str
    size: int | None
    problem: Finding | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of some tensors."""

    tensors: int
    elements: int
    nbytes: int


class Value(NamedTuple):
    """Location of a stored value; `row` is its tensor, `part` the slice index, or WHOLE."""

    shard: int
    offset: int
    size: int
    row: int
    part: int


def _listed(name: str) -> cached_property[list[Any]]:
    """Return an attribute of `Tensors`: a column as a list."""
    return cached_property(lambda tensors: tensors.column(name).tolist())


class Tensors:
    """Some tensors of a checkpoint, as columns. Of a million tensors each list takes many MB: it is
    made when it is needed.

    Args:
        reader: of the checkpoint; None: the tensors are those of a file of another format.
        columns: those of `_columns`.
        rows: their rows, in order; None for all.
    """

    def __init__(
        self, reader: Reader | None, columns: dict[str, Any], rows: NDArray[np.intp] | None = None
    ) -> None:
        self._reader = reader
        self._columns = columns
        self._rows = rows

    @property
    def in_checkpoint(self) -> bool:
        """Whether data files, offsets and checksums are known."""
        return self._reader is not None

    def __len__(self) -> int:
        return len(self._columns["name"] if self._rows is None else self._rows)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of the reader's table as an array."""
        values: NDArray[Any] = self._columns[name]
        return values if self._rows is None else values[self._rows]

    # Names, bytes that are not UTF-8 as surrogate escapes; TensorFlow's names of the dtypes.
    names: cached_property[list[str]] = _listed("name")
    dtypes: cached_property[list[str]] = _listed("dtype")
    shapes: cached_property[list[tuple[int, ...]]] = _listed("shape")
    # Bytes of the arrays, of strings those in uncompressed data files; bytes in the data files.
    nbytes: cached_property[list[int]] = _listed("nbytes")
    stored_nbytes: cached_property[list[int]] = _listed("stored_nbytes")
    # Number of the data file, -1 for a partitioned tensor; the first byte there.
    shards: cached_property[list[int]] = _listed("shard")
    offsets: cached_property[list[int]] = _listed("offset")
    # Checksums, unmasked; number of slices, 0 for a tensor stored whole.
    crcs: cached_property[list[int]] = _listed("crc32c")
    slice_counts: cached_property[list[int]] = _listed("slices")

    @cached_property
    def partitioned(self) -> list[int]:
        """The rows of those stored in slices."""
        rows: list[int] = np.flatnonzero(self.column("slices")).tolist()
        return rows

    @cached_property
    def elements(self) -> list[int]:
        """Number of elements."""
        known = {dims: math.prod(dims) for dims in set(self.shapes)}
        return [known[dims] for dims in self.shapes]

    def pick(self, rows: Sequence[int] | NDArray[np.intp]) -> Tensors:
        """Return some of these, in another order."""
        if isinstance(rows, range) and rows == range(len(self)):
            return self
        chosen = np.asarray(rows, np.intp)
        return Tensors(
            self._reader, self._columns, chosen if self._rows is None else self._rows[chosen]
        )

    @cached_property
    def _handles(self) -> dict[str, TensorHandle]:
        """Handles of the partitioned tensors; each caches its slices."""
        reader = self._reader
        assert reader is not None
        return {self.names[row]: reader[self.names[row]] for row in self.partitioned}

    def slices(self, row: int) -> tuple[StoredSlice, ...]:
        """Return the stored slices of a partitioned one."""
        return self._handles[self.names[row]].slices

    def values(self) -> list[Value]:
        """Return locations of all stored values; slices missing from the index are left out."""
        columns = zip(self.shards, self.offsets, self.stored_nbytes, self.slice_counts, strict=True)
        found = [
            Value(shard, offset, size, row, WHOLE)
            for row, (shard, offset, size, slice_count) in enumerate(columns)
            if not slice_count
        ]
        for row in self.partitioned:
            found += [
                Value(part.shard, part.offset, part.nbytes, row, number)
                for number, part in enumerate(self.slices(row))
                if not part.missing
            ]
        return found

    def ends(self) -> dict[int, int]:
        """End offset of the last value of each data file."""
        sizes = self.column("stored_nbytes")
        rows = np.flatnonzero((sizes > 0) & (self.column("slices") == 0))
        offsets = self.column("offset")[rows]
        # An offset of a damaged index may be too large for the sum.
        last = np.minimum(sizes[rows], np.iinfo(np.uint64).max - offsets) + offsets
        shards, each = np.unique(self.column("shard")[rows], return_inverse=True)
        found = np.zeros(len(shards), np.uint64)
        np.maximum.at(found, each, last)
        ends: dict[int, int] = dict(zip(shards.tolist(), found.tolist(), strict=True))
        for part in (part for row in self.partitioned for part in self.slices(row)):
            if part.nbytes and not part.missing:
                ends[part.shard] = max(ends.get(part.shard, 0), part.offset + part.nbytes)
        return ends

    def totals(self) -> tuple[Totals, dict[str, Totals]]:
        """Return totals of all tensors, and of each dtype, most bytes first."""
        sums: dict[str, list[int]] = {}
        for dtype, elements, nbytes in zip(self.dtypes, self.elements, self.nbytes, strict=True):
            one = sums.setdefault(dtype, [0, 0, 0])
            one[0] += 1
            one[1] += elements
            one[2] += nbytes
        ordered = sorted(sums.items(), key=lambda item: (-item[1][2], item[0]))
        by_dtype = {dtype: Totals(*total) for dtype, total in ordered}
        columns = zip((0, 0, 0), *sums.values(), strict=True)
        return Totals(*map(sum, columns)), by_dtype


@dataclass
class Contents:
    """A checkpoint, as far as it can be read.

    Attributes:
        prefix: its prefix.
        header: None if the index cannot be opened.
        index_size: size of the index in bytes; None if unknown.
        level: None if the tensors cannot be listed.
        metadata: the JSON object stored with it; empty if missing.
        tensors: in key order, the format's own included; None if they cannot be listed.
        files: the data files.
        problems: what is wrong, in the form that `verify` gives it.
        format: the format; of another one than "tensorflow", `prefix` is the path of the file.
    """

    prefix: str
    header: Header | None = None
    index_size: int | None = None
    level: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: Tensors | None = None
    files: list[DataFile] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)
    format: Format = "tensorflow"

    @cached_property
    def state(self) -> State | None:
        """The state of `ckptfmt.torch` that the metadata describe."""
        return state_of(self.metadata)

    @property
    def index_path(self) -> str:
        """The index file."""
        return index_name(self.prefix)


def gather(reader: Reader) -> Contents:
    """Read the index, the metadata, and the sizes of the data files."""
    contents = Contents(reader.prefix, reader.header, reader.header.index_size)
    try:
        contents.tensors = Tensors(reader, _columns(reader))
        contents.level = reader.level
    except CkptfmtError as error:
        contents.problems.append(finding_of(error))
    contents.files = list(_files(reader, contents.tensors))
    if contents.tensors is not None:
        contents.problems += _file_problems(contents, contents.tensors)
        contents.problems += _slice_problems(contents, contents.tensors)
    if not contents.problems:
        try:
            contents.metadata = reader.metadata
        except CkptfmtError as error:
            contents.problems.append(finding_of(error))
    return contents


def _columns(reader: Reader) -> dict[str, NDArray[Any]]:
    """Return the columns of the table of all tensors; the names of the dtypes are shared texts,
    which take a ninth of the memory."""
    table = reader.table(reserved=True)
    dtypes, codes = np.empty(len(table), object), table["dtype_code"]
    for code in np.unique(codes):
        alike = codes == code
        dtypes[alike] = str(table["dtype"][np.argmax(alike)])
    return {"dtype": dtypes} | {name: table[name].copy() for name in COLUMNS}


def gather_file(kind: Format, path: str) -> Contents:
    """Read what a file of another format says of its tensors, not their values. The bytes of
    strings are not known before they are read: those of HDF5 count as none.

    Raises:
        CkptfmtError: it cannot be opened, or is damaged.
    """
    contents = Contents(path, format=kind)
    with open_tensors(kind, path) as (tensors, metadata):
        stored = sorted(tensors, key=lambda name: name.encode("utf-8", "surrogatepass"))
        columns = {name: np.zeros(len(stored), np.uint64) for name in COLUMNS}
        for name in ("name", "shape", "dtype"):
            columns[name] = np.empty(len(stored), object)
        places = {name: place for place, name in enumerate(tensors)}
        for row, name in enumerate(stored):
            tensor = tensors[name]
            try:
                dtype = _dtype_name(tensor)
            except CorruptError as error:  # of a value in a pickle, which is read for its dtype
                tensor = Unreadable(name, error)
                dtype = tensor.code
            is_sized = kind != "hdf5" or dtype != "string"
            if isinstance(tensor, Unreadable):
                is_damaged = not isinstance(tensor.error, UnsupportedError)
                severity = "problem" if is_damaged else "note"
                contents.problems.append(finding_of(tensor.error, severity))
            columns["name"][row], columns["dtype"][row] = name, dtype
            columns["shape"][row] = tensor.shape
            columns["nbytes"][row] = tensor.nbytes if is_sized else 0
            columns["offset"][row] = places[name]  # the order in the file
        contents.tensors, contents.metadata = Tensors(None, columns), dict(metadata)
        contents.files = [_data_file(0, name) for name in files_of(kind, path)]
    return contents


def _dtype_name(tensor: FileTensor) -> str:
    """Return the name of a dtype, or the file's own if it has none."""
    if isinstance(tensor, Unreadable):
        return tensor.code
    try:
        dtype = tensor.dtype
    except UnsupportedError:
        return str(getattr(tensor, "code", "unknown"))
    code = code_of_array(dtype)
    return "string" if dtype.kind == "O" else dtype.name if code is None else name_of(code[0])


def gather_unopened(prefix: str, problem: Finding) -> Contents:
    """Return the files of a checkpoint whose index cannot be opened: all data files of the prefix,
    even with different counts in their names."""
    directory, stem = os.path.split(prefix)
    found = []
    for entry in names_in(directory or "."):
        data = parse_data_name(entry)
        if data is not None and data.prefix == stem:
            path = os.path.join(directory, entry)
            found.append((data.num_shards, data.shard, path))
    files = [_data_file(shard, path) for _, shard, path in sorted(found)]
    index_size = None
    with contextlib.suppress(OSError):
        index_size = file_size(index_name(prefix))
    return Contents(prefix, index_size=index_size, files=files, problems=[problem])


def _data_file(shard: int, path: str) -> DataFile:
    try:
        return DataFile(shard, path, file_size(path))
    except FileNotFoundError:
        failure, message = "SHARD_MISSING", "the data file is missing"
    except OSError as error:
        failure, message = "OS", f"cannot look up the file: {error.strerror}"
    return DataFile(shard, path, None, Finding("problem", "IO", failure, message, path))


def _files(reader: Reader, tensors: Tensors | None) -> Iterator[DataFile]:
    count = reader.header.num_shards
    shards: Iterable[int] = range(count)
    if count > FILES_MAX:
        shards = sorted(tensors.ends()) if tensors is not None else ()
    for shard in shards:
        yield _data_file(shard, data_name(reader.prefix, shard, count))


def _file_problems(contents: Contents, tensors: Tensors) -> Iterator[Finding]:
    """Yield findings about data files that are missing or too short."""
    ends = tensors.ends()
    needed = [file for file in contents.files if file.shard in ends]
    short = {
        file.shard: file.size
        for file in needed
        if file.size is not None and file.size < ends[file.shard]
    }
    cut = _first_cut(tensors, short) if short else {}
    for file in needed:
        if file.problem is not None:
            yield file.problem
        elif file.shard in cut:
            value = cut[file.shard]
            message = f"DAT-2: the data file ends at {file.size}, before this value does"
            where = file.path, value.offset, tensors.names[value.row]
            yield Finding("problem", "CORRUPT", "TRUNCATED", message, *where)


def _first_cut(tensors: Tensors, sizes: dict[int, int]) -> dict[int, Value]:
    """Return the first value of each data file that extends past the end of the file."""
    first: dict[int, Value] = {}
    for value in tensors.values():
        limit = sizes.get(value.shard)
        if limit is not None and value.size and value.offset + value.size > limit:
            first[value.shard] = min(first.get(value.shard, value), value)
    return first


def _slice_problems(contents: Contents, tensors: Tensors) -> Iterator[Finding]:
    """Yield findings about slices that a tensor lists and the index does not hold."""
    for row in tensors.partitioned:
        missing = sum(part.missing for part in tensors.slices(row))
        if missing:
            count = tensors.slice_counts[row]
            message = f"SLC-7: {missing} of its {count} slices are not in the index"
            where = contents.index_path, None, tensors.names[row]
            yield Finding("problem", "CORRUPT", "BAD_SLICE", message, *where)
