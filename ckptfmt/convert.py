# SPDX-License-Identifier: Apache-2.0
"""From one level of the format to another."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt import dtypes, names
from ckptfmt.arguments import check_choice, check_progress
from ckptfmt.arrays import Slice, Sources
from ckptfmt.compression.fetching import stored_values
from ckptfmt.errors import CorruptError, InvalidError
from ckptfmt.line import MODULE_LINE
from ckptfmt.locate import locate, path_text
from ckptfmt.merge import merge
from ckptfmt.progress import Progress
from ckptfmt.reader import Reader
from ckptfmt.saving.temporary import TemporaryDirectory
from ckptfmt.tensor import TensorHandle
from ckptfmt.verify import verify_prefix
from ckptfmt.writer import Writer, check_options

__all__ = ["convert"]

Path = str | bytes | os.PathLike[Any]

# Bytes of arrays that are held before they are written.
BATCH_BYTES = 64 << 20
# Values above go through a file: the system may write it out and read it again.
HELD_MAX = 256 << 20


class _Piece(NamedTuple):
    """A stored value: a tensor, or one of its slices (the box for reading, the slice for
    writing)."""

    handle: TensorHandle
    shape: tuple[int, ...]
    box: NDArray[np.int64] | None
    part: Slice | None


def convert(
    source: Path,
    destination: Path,
    *,
    level: str = "v2+",
    compression: str | None = None,
    drop_metadata: bool = False,
    alignment: int | None = None,
    durability: str = "full",
    verify: str = "full",
    progress: Progress | None = None,
    limits: Mapping[str, int] | None = None,
) -> None:
    """Writes a checkpoint anew at another level, all or nothing, with the same tensors in the order
    of their names. The slices of partitioned tensors stay as they are.

    Memory is bounded but for string tensors: values above 256 MiB go through an unnamed temporary
    file beside the destination. A result of level "v2" has the bytes that `save_v2` of the same
    tensors in this order has.

    Args:
        source: whatever `ckptfmt.open` takes.
        destination: prefix of the result. It may be that of the source, which is then replaced in
            one step once the result is complete.
        level, compression, alignment, durability: as in Writer.
        drop_metadata: True leaves out metadata that the level has no place for, or that others
            wrote in a form that is only read (nested objects, null).
        verify: "full" reads all of the result back before it appears and compares the checksums of
            all values with those of the source; "off" does not. The source is always checked.
        progress: called as `progress(bytes_done, bytes_total)` from this thread, with bytes of
            arrays.
        limits: as in `ckptfmt.open`.

    Raises:
        InvalidError: the source has metadata that cannot be written (drop_metadata); an argument.
        CheckpointNotFoundError, CorruptError, LimitError: of the source.
        UnsupportedError: a tensor of a dtype that is not known, or of more than 64 dimensions.
        CorruptError: the result is not what was written.
        StorageError, BusyError, DurabilityUnknownError: as in Writer and `merge`.
    """
    check_progress(progress)
    check_choice("verify", verify, ("full", "off"))
    check_options(None, level, alignment, durability, compression)
    target = path_text(destination)
    MODULE_LINE.settle()
    directory = TemporaryDirectory(target)
    with Reader(locate(source), verify="full", limits=limits) as reader:
        metadata: dict[str, Any] | None = reader.metadata if names.METADATA in reader else None
        if metadata is not None and level == "v2":
            if not drop_metadata:
                raise InvalidError(
                    "level 'v2' has no place for the metadata of the source (drop_metadata)",
                    path=reader.prefix,
                )
            metadata = None
        try:
            check_options(metadata, level, alignment, durability, compression)
        except InvalidError as error:
            if not drop_metadata:
                raise InvalidError(f"{error.message} (drop_metadata)", path=reader.prefix) from None
            metadata = None
        try:
            directory.make()
            part = os.path.join(directory.path, "part")
            with Writer(
                part,
                metadata=metadata,
                level=level,
                alignment=alignment,
                durability="none" if durability == "none" else "rename",
                compression=compression,
            ) as writer:
                _write(reader, writer, directory.path, progress)
            if verify == "full":
                _check(reader, part, limits)
            merge([part], target, inputs="consume", durability=durability, limits=limits)
        finally:
            directory.remove()


def _write(reader: Reader, writer: Writer, folder: str, progress: Progress | None) -> None:
    total = sum(handle.nbytes for handle in reader.values())
    done = held = 0
    sources = Sources()
    for piece in _pieces(reader):
        size = _size(piece)
        if held and held + size > BATCH_BYTES:
            writer._add(sources)
            sources, held = Sources(), 0
        _take(sources, piece, folder)
        held += size
        done += size
        if size > HELD_MAX:
            writer._add(sources)
            sources, held = Sources(), 0
        if progress is not None:
            progress(min(done, total), total)
    if len(sources):
        writer._add(sources)


def _pieces(reader: Reader) -> Iterator[_Piece]:
    """All stored values in the order of the names, those of a tensor in the order in which it lists
    them."""
    for handle in reader.values():
        handle.check_rank()
        if handle.dtype is None:
            raise handle.unsupported(f"the elements of {handle.dtype_name} are not known")
        if not handle.partitioned:
            yield _Piece(handle, handle.shape, None, None)
            continue
        rank = len(handle.shape)
        extents = [numbers for numbers, _ in handle._selection.slices(handle._row)]
        for numbers, part in zip(extents, handle.slices, strict=True):
            box = np.array([*part.start, *part.shape, 0], np.int64)
            slice_ = (handle.shape, numbers[:rank], numbers[rank:])
            yield _Piece(handle, part.shape, box, slice_)


def _size(piece: _Piece) -> int:
    info = dtypes.info_of(piece.handle.dtype_code)
    if info is not None and info.size:
        return math.prod(piece.shape) * info.size
    return piece.handle.nbytes // max(len(piece.handle.slices), 1)


def _take(sources: Sources, piece: _Piece, folder: str) -> None:
    """Reads a stored value and makes it the next to be written."""
    handle = piece.handle
    name, code = handle.raw_name, handle.dtype_code
    size = _size(piece)
    if size > HELD_MAX and handle.dtype != np.dtype(object):
        array = _spooled(piece, size, folder)
    else:
        array = handle.read_box(piece.box, piece.shape, "full")
    sources.add(name, array, code, piece.part)


def _spooled(piece: _Piece, size: int, folder: str) -> NDArray[Any]:
    """The value in a file without a name, mapped."""
    handle = piece.handle
    handle.probe()
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        mapped = mmap.mmap(file.fileno(), size)
    array: NDArray[Any] = np.ndarray(piece.shape, handle.dtype, mapped)
    handle._fetch(piece.box, array, "full")
    return array


def _check(reader: Reader, part: str, limits: Mapping[str, int] | None) -> None:
    """Reads the result back, and compares the checksums of its values with those of the source."""
    report = verify_prefix(part, limits=limits)
    for finding in report.problems:
        raise CorruptError(
            f"the result was not written right: {finding.message}",
            failure=finding.failure,
            path=finding.path,
            offset=finding.offset,
            tensor=finding.tensor,
        )
    with Reader(part, limits=limits) as result:
        # Of the other byte order the checksums are others as well.
        if not reader.header.big_endian and _sums(reader) != _sums(result):
            raise CorruptError("the result does not hold what the source does", failure="CHECKSUM")


def _sums(reader: Reader) -> list[tuple[str, list[tuple[int, int]]]]:
    """The size and checksum of the raw bytes of all values, by name."""
    selection = reader._listing().selection
    numbers = selection.names()
    return [
        (
            numbers[row],
            [
                (int(stored["raw_size"]), int(stored["raw_crc32c"]))
                for stored in stored_values(selection, row)
            ],
        )
        for row in reader._listing().visible_rows
    ]
