# SPDX-License-Identifier: Apache-2.0
"""Write a checkpoint again with changes: the values are read, changed and written one after the
other, in bounded memory."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes
from ckptfmt._base.arrays import Slice, Sources
from ckptfmt._base.save_options import SaveOptions, of_part
from ckptfmt._core import ERROR_BY_STATUS
from ckptfmt.bundle.staging import staged
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.bundle.verify import verify_prefix
from ckptfmt.bundle.writer import Writer
from ckptfmt.errors import CkptfmtError, CorruptError, StorageError
from ckptfmt.files.folder import split

# Bytes of arrays that are collected before they are written.
BATCH_BYTES = 64 << 20
# Memory of a string beside its bytes, of which the writer gets a copy: an object, two references to
# it, and its row in a table.
STRING_BYTES = 64
# Larger values go through a temporary file, which the system can page out.
HELD_MAX = 256 << 20
# Bytes that are compared at once.
STEP_BYTES = 4 << 20


class Value(NamedTuple):
    """A tensor, or one of its slices, that is to be written.

    Attributes:
        name: of the tensor in the result.
        nbytes: of the array; of strings an estimate.
        read: returns the array; called when there is room for it.
        code: its dtype, if the array does not say it.
        part: the slice.
    """

    name: bytes
    nbytes: int
    read: Callable[[], NDArray[Any]]
    code: int | None = None
    part: Slice | None = None


class Piece(NamedTuple):
    """A stored value: a tensor, or one of its slices, as a box to read and a slice to write."""

    handle: TensorHandle
    shape: tuple[int, ...]
    box: NDArray[np.int64] | None
    part: Slice | None

    @property
    def nbytes(self) -> int:
        """Bytes of the array; of strings an estimate."""
        info = dtypes.info_of(self.handle.dtype_code)
        if info is not None and info.size:
            return math.prod(self.shape) * info.size
        return -(-self.handle.nbytes // max(len(self.handle.slices), 1))

    def read(self, folder: str | None) -> NDArray[Any]:
        """Return the value, a large one in an unnamed temporary file in `folder`."""
        handle, dtype = self.handle, self.handle.dtype
        if dtype is None or dtype.hasobject or self.nbytes <= HELD_MAX:
            return handle._read_box(self.box, self.shape, "full")
        handle._reader._handle.check_one(handle._selection, handle._row, None)
        array = mapped_array(handle.name, self.shape, dtype, folder)
        handle._fetch(self.box, array, "full")
        return array

    def value(self, read: Callable[[], NDArray[Any]]) -> Value:
        """Return the same part of the tensor, with what `read` returns, to be written."""
        return Value(self.handle.raw_name, self.nbytes, read, self.handle.dtype_code, self.part)


def pieces_of(handle: TensorHandle) -> Iterator[Piece]:
    """Yield the stored values of a tensor, in the order in which it lists its slices."""
    if not handle.partitioned:
        yield Piece(handle, handle.shape, None, None)
        return
    rank = len(handle.shape)
    extents = [numbers for numbers, _ in handle._selection.slices(handle._row)]
    for numbers, part in zip(extents, handle.slices, strict=True):
        box = np.array([*part.start, *part.shape, 0], np.int64)
        slice_ = (handle.shape, numbers[:rank], numbers[rank:])
        yield Piece(handle, part.shape, box, slice_)


def rewrite(
    writer: Writer, values: Iterable[Value], report: Callable[[int], object] | None = None
) -> None:
    """Read and write values, at most `BATCH_BYTES` of arrays at a time, or one larger value;
    `report` is called with the bytes of each."""
    sources, held = Sources(), 0
    for value in values:
        if held and held + value.nbytes > BATCH_BYTES:
            writer._add(sources)
            sources, held = Sources(), 0
        sources.add(value.name, value.read(), value.code, value.part)
        held += _held_by_last(sources)
        if report is not None:
            report(value.nbytes)
    if len(sources):
        writer._add(sources)


def _held_by_last(sources: Sources) -> int:
    """Return the memory that the last row takes until it is written. Only what was read says how
    long strings are."""
    size, elements = sources.sizes[-1], sources.elements.get(len(sources) - 1)
    return size if elements is None else 2 * size + STRING_BYTES * len(elements)


def scratch_of(prefix: str) -> str | None:
    """Return the folder for the temporary files of a result; None for the system's own."""
    return split(prefix)[0].scratch


def new_array(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], folder: str | None
) -> NDArray[Any]:
    """Return an array; a large one as `mapped_array`, unless it is of strings."""
    if dtype.hasobject or math.prod(shape) * dtype.itemsize <= HELD_MAX:
        return np.empty(shape, dtype)
    return mapped_array(name, shape, dtype, folder)


def mapped_array(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], folder: str | None
) -> NDArray[Any]:
    """Return an array in an unnamed temporary file, for the tensor of this name.

    Raises:
        StorageError: there is no room for the file.
    """
    size = math.prod(shape) * dtype.itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # Writing to the mapping on a full disk would kill the process.
            if hasattr(os, "posix_fallocate"):  # not Darwin
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                for at in range(0, size, 1 << 20):
                    file.write(bytes(min(size - at, 1 << 20)))
                file.flush()
            mapped = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise StorageError(
            f"cannot make a file of {size} bytes for the value: {error.strerror}",
            path=folder,
            tensor=name,
            errno=error.errno,
        ) from None
    return np.ndarray(shape, dtype, mapped)


# ---- results that are checked --------------------------------------------------------------------


class Result(NamedTuple):
    """A checkpoint to be written; as in `ckptfmt.convert`."""

    prefix: str
    options: SaveOptions
    limits: Mapping[str, int] | None
    shards: int = 1


def build(
    result: Result,
    metadata: bytes | None,
    fill: Callable[[Writer, str | None], None],
    check: Callable[[str, str | None], None] | None,
) -> None:
    """Write a checkpoint that is not visible until it has been checked.

    Args:
        result: what is written.
        metadata: as `metadata_json` returned them.
        fill: adds the tensors to a writer; also gets a folder for temporary files, None for the
            system's own.
        check: gets the prefix of the finished result, which is sound, and the folder; raises if it
            is not right. None: the result is not read back.

    Raises:
        CorruptError: it was not written right.
        CkptfmtError: it cannot be read back, such as LimitError.
        StorageError, BusyError, DurabilityUnknownError: as in Writer and `merge`.
    """
    with staged(result.prefix, result.options.durability) as staging:
        part = staging.part()
        folder = scratch_of(part)
        with Writer._of(part, of_part(result.options), metadata, result.shards) as writer:
            fill(writer, folder)
        if check is not None:
            _check_sound(part, result.limits)
            check(part, folder)
        staging.merge([part], limits=result.limits)


def _check_sound(part: str, limits: Mapping[str, int] | None) -> None:
    for finding in verify_prefix(part, limits=limits).problems:
        kind = ERROR_BY_STATUS.get(finding.status, CkptfmtError)
        what = "was not written right" if kind is CorruptError else "cannot be read back"
        raise finding.error(kind, f"the result {what}: ")


def other_values(name: str | None) -> CorruptError:
    """Return the error for a result that differs from its source."""
    return CorruptError(
        "the result does not hold what the source does", failure="CHECKSUM", tensor=name
    )


def equal_values(one: NDArray[Any], other: NDArray[Any], used_bits: int = 0xFF) -> bool:
    """Return whether two arrays of one dtype have the same strings, or the same of these bits in
    every byte."""
    if one.dtype == np.dtype(object):
        return bool(one.reshape(-1).tolist() == other.reshape(-1).tolist())
    left, right = (np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (one, other))
    return len(left) == len(right) and not any(
        ((left[at : at + STEP_BYTES] ^ right[at : at + STEP_BYTES]) & np.uint8(used_bits)).any()
        for at in range(0, len(left), STEP_BYTES)
    )
