# SPDX-License-Identifier: Apache-2.0
"""Convert a checkpoint to another level of the format."""

from __future__ import annotations

import math
import mmap
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base import dtypes, names
from ckptfmt._base.arguments import Durability, Level, check_limits
from ckptfmt._base.arrays import Slice, Sources
from ckptfmt._base.background import wait_for_saves
from ckptfmt._base.progress import Meter, Progress
from ckptfmt.bundle.locate import locate
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.staging import part_durability, staged
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.bundle.verify import verify_prefix
from ckptfmt.bundle.writer import Writer, check_options
from ckptfmt.errors import CorruptError, InvalidError, StorageError

Path = str | bytes | os.PathLike[Any]

# Bytes of arrays that are collected before they are written.
BATCH_BYTES = 64 << 20
# Larger values go through a temporary file, which the system can page out.
HELD_MAX = 256 << 20
# Bytes that are compared at once.
STEP_BYTES = 4 << 20
# Hint in errors about metadata that cannot be written.
DROPPING = " (drop_metadata=True leaves the metadata out)"

_STAND_IN = re.compile(re.escape(names.SHARD_STAND_IN) + "[0-9]+")


class Piece(NamedTuple):
    """A stored value: a tensor, or one of its slices, as a box to read and a slice to write."""

    handle: TensorHandle
    shape: tuple[int, ...]
    box: NDArray[np.int64] | None
    part: Slice | None


class Batch:
    """Values that a writer gets together: at most `BATCH_BYTES` of arrays, or one larger value.

    Attributes:
        sources: the values so far.
    """

    def __init__(self, writer: Writer) -> None:
        self.sources = Sources()
        self._writer, self._held = writer, 0

    def make_room(self, size: int) -> None:
        """Write the values so far if `size` more bytes would be too many; the next value is of this
        size."""
        if self._held and self._held + size > BATCH_BYTES:
            self.write()
        self._held += size

    def write(self) -> None:
        """Write the values so far."""
        if len(self.sources):
            self._writer._add(self.sources)
        self.sources, self._held = Sources(), 0


class Options(NamedTuple):
    """How a result is written; as in `convert`."""

    level: Level
    compression: str | None
    alignment: int | None
    durability: Durability
    limits: Mapping[str, int] | None
    shards: int = 1


def convert(
    source: str,
    target: str,
    options: Options,
    *,
    drop_metadata: bool,
    check_result: bool,
    progress: Progress | None,
) -> None:
    """Write a checkpoint again at another level; see `ckptfmt.convert`. Partitioned tensors keep
    their slices. The unused bits of narrow types, and the sizes in string and variant values, are
    normalised."""
    check_options(
        None,
        options.level,
        options.alignment,
        options.durability,
        options.compression,
        options.shards,
    )
    wait_for_saves()
    with Reader(locate(source), verify="full", limits=options.limits) as reader:
        _check_source(reader)
        metadata = _metadata(reader, options.level, drop_metadata)
        build(
            target,
            options,
            metadata,
            lambda writer, folder: _write(reader, writer, folder, progress),
            lambda part, folder: (
                _check(reader, part, folder, options.limits) if check_result else None
            ),
        )


def build(
    target: str,
    options: Options,
    metadata: Mapping[str, Any] | None,
    fill: Callable[[Writer, str | None], None],
    check: Callable[[str, str | None], None],
) -> None:
    """Write a checkpoint that is not visible until it has been checked.

    Args:
        target: its prefix.
        options, metadata: of the result.
        fill: adds the tensors to a writer; also gets a folder for temporary files, None for the
            system's own.
        check: gets the prefix of the finished result, and the folder; raises if it is not right.

    Raises:
        StorageError, BusyError, DurabilityUnknownError: as in Writer and `merge`.
    """
    check_limits(options.limits)
    with staged(target, options.durability) as staging:
        folder, part = None if names.is_url(target) else staging.path, staging.part()
        with Writer(
            part,
            metadata=metadata,
            level=options.level,
            alignment=options.alignment,
            durability=part_durability(options.durability),
            compression=options.compression,
            shards=options.shards,
        ) as writer:
            fill(writer, folder)
        check(part, folder)
        staging.merge([part], options.durability, limits=options.limits)


def _check_source(reader: Reader) -> None:
    """Refuse a source that can be read, but not written again."""
    listing = reader._listing()
    selection = listing.selection
    rows = selection.rows
    unknown = [code for code in _core.distinct(rows["dtype"]) if dtypes.numpy_dtype(code) is None]
    odd = np.isin(rows["dtype"], unknown) | (rows["rank"] > _core.NUMPY_RANK_MAX)
    for row, name in enumerate(listing.names):
        reserved = name.startswith(names.RESERVED)
        if not (reserved or odd[row]) or name == names.METADATA:
            continue
        handle = TensorHandle(reader, selection, row, name)
        if reserved and not _stands_in(handle):
            raise InvalidError(
                f"EXT-8: names beginning with {names.RESERVED} are reserved: the tensor can be "
                "read, but not written under its name",
                path=reader.prefix,
                tensor=name,
            )
        handle._check_rank()
        if handle.dtype is None:
            raise handle._unsupported(f"the elements of {handle.dtype_name} are not known")
    # Do the slices of each partitioned tensor cover it?
    for row in np.flatnonzero(selection.rows["slice_count"]).tolist():
        reader._handle.check_one(selection, row, None)
    if not any(name.startswith("\0") for name in listing.names):
        return
    # Slices without a tensor would be lost; only verification reports them.
    for finding in reader.verify().problems:
        if finding.error().rule == "KEY-7":
            raise finding.error(CorruptError)


def _stands_in(handle: TensorHandle) -> bool:
    """Return whether a tensor only keeps a data file referenced (EXT-8). The writer creates its
    own."""
    return (
        _STAND_IN.fullmatch(handle.name) is not None
        and handle.dtype == np.dtype(np.float32)
        and handle.shape == (0,)
        and not handle.partitioned
        and handle.stored_nbytes == 0
    )


def _metadata(reader: Reader, level: Level, drop: bool) -> dict[str, Any] | None:
    """Return the metadata of the result, or None."""
    if names.METADATA not in reader:
        return None
    try:
        metadata = reader.metadata
    except CorruptError as error:
        if error.rule != "EXT-7":
            raise
        if not drop:
            error.hint(DROPPING)
            error.argument = "drop_metadata"
            raise
        return None
    try:
        if level == "v2":
            raise InvalidError("level 'v2' has no place for the metadata of the source")
        check_options(metadata, level, None, "none")
    except InvalidError as error:
        if not drop:
            error.hint(DROPPING)
            error.argument, error.path = "drop_metadata", reader.prefix
            raise
        return None
    return metadata


def _write(reader: Reader, writer: Writer, folder: str | None, progress: Progress | None) -> None:
    total = sum(handle.nbytes for handle in reader.values())
    meter, batch = Meter(progress, total), Batch(writer)
    for handle in reader.values():
        for piece in pieces_of(handle):
            size = piece_size(piece)
            batch.make_room(size)
            _take(batch.sources, piece, folder)
            if size > HELD_MAX:
                batch.write()
            meter.add(size)
    batch.write()


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


def piece_size(piece: Piece) -> int:
    """Return the bytes of a stored value; of strings an estimate."""
    info = dtypes.info_of(piece.handle.dtype_code)
    if info is not None and info.size:
        return math.prod(piece.shape) * info.size
    return piece.handle.nbytes // max(len(piece.handle.slices), 1)


def _take(sources: Sources, piece: Piece, folder: str | None) -> None:
    """Read a stored value and add it to the sources."""
    handle = piece.handle
    sources.add(handle.raw_name, piece_value(piece, folder), handle.dtype_code, piece.part)


def piece_value(piece: Piece, folder: str | None) -> NDArray[Any]:
    """Return a stored value, a large one in an unnamed temporary file in `folder`."""
    handle, size = piece.handle, piece_size(piece)
    if size > HELD_MAX and handle.dtype != np.dtype(object):
        return _spooled(piece, folder)
    return handle._read_box(piece.box, piece.shape, "full")


def _spooled(piece: Piece, folder: str | None) -> NDArray[Any]:
    """Return a value in a mapped, unnamed temporary file."""
    handle = piece.handle
    handle._reader._handle.check_one(handle._selection, handle._row, None)
    assert handle.dtype is not None
    array = mapped_array(handle.name, piece.shape, handle.dtype, folder)
    handle._fetch(piece.box, array, "full")
    return array


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
            os.posix_fallocate(file.fileno(), 0, size)
            mapped = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise StorageError(
            f"cannot make a file of {size} bytes for the value: {error.strerror}",
            path=folder,
            tensor=name,
            errno=error.errno,
        ) from None
    return np.ndarray(shape, dtype, mapped)


def _check(reader: Reader, part: str, folder: str | None, limits: Mapping[str, int] | None) -> None:
    """Verify the result, and compare its checksums, or where these differ its values, with the
    source."""
    check_result(part, limits)
    with Reader(part, limits=limits) as result:
        ours, theirs = _sums(result), _sums(reader)
        if ours.keys() != theirs.keys():
            raise other_values(None)
        # Equal values can have other checksums: the other byte order, or a normalised form.
        for name in (name for name, sums in theirs.items() if ours[name] != sums):
            before, after = reader[name], result[name]
            if (before.dtype_code, before.shape) != (after.dtype_code, after.shape):
                raise other_values(name)
            pieces, written = list(pieces_of(before)), list(pieces_of(after))
            if [piece.shape for piece in pieces] != [piece.shape for piece in written]:
                raise other_values(name)
            for one, other in zip(pieces, written, strict=True):
                if not _same(one, other, folder):
                    raise other_values(name)


def check_result(part: str, limits: Mapping[str, int] | None) -> None:
    """Verify a checkpoint that was written.

    Raises:
        CorruptError: it was not written right.
        StorageError: it cannot be read.
    """
    for finding in verify_prefix(part, limits=limits).problems:
        is_transient = finding.status == "IO"
        kind = StorageError if is_transient else CorruptError
        what = "cannot be read back" if is_transient else "was not written right"
        raise finding.error(kind, f"the result {what}: ")


def other_values(name: str | None) -> CorruptError:
    """Return the error for a result that differs from its source."""
    return CorruptError(
        "the result does not hold what the source does", failure="CHECKSUM", tensor=name
    )


def equal_values(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays of one dtype have the same bytes, or strings."""
    left, right = one.reshape(-1), other.reshape(-1)
    if one.dtype == np.dtype(object):
        return bool(left.tolist() == right.tolist())
    step = STEP_BYTES // max(one.itemsize, 1)
    return len(left) == len(right) and all(
        left[at : at + step].tobytes() == right[at : at + step].tobytes()
        for at in range(0, len(left), step)
    )


_Sums = tuple[int, tuple[int, ...], list[tuple[int, int]]]


def _sums(reader: Reader) -> dict[str, _Sums]:
    """Return dtype and shape of all tensors, and sizes and checksums of their raw values."""
    listing = reader._listing()
    selection = listing.selection
    codes, shapes = selection.rows["dtype"].tolist(), selection.shapes()
    return {
        listing.names[row]: (
            codes[row],
            shapes[row],
            [
                (int(stored["raw_size"]), int(stored["raw_crc32c"]))
                for stored in selection.stored_values(row)
            ],
        )
        for row in listing.visible_rows
    }


def _same(piece: Piece, other: Piece, folder: str | None) -> bool:
    """Return whether two values of one dtype and shape are equal, without unused bits."""
    one, two = piece_value(piece, folder), piece_value(other, folder)
    if one.dtype == np.dtype(object):
        return equal_values(one, two)
    code = piece.handle.dtype_code
    info = dtypes.info_of(code)
    assert info is not None
    used = (1 << min(info.used_bits, 8)) - 1
    left, right = dtypes.little_endian(one, code), dtypes.little_endian(two, code)
    return not any(
        ((left[at : at + STEP_BYTES] ^ right[at : at + STEP_BYTES]) & np.uint8(used)).any()
        for at in range(0, len(left), STEP_BYTES)
    )
