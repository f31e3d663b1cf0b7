# SPDX-License-Identifier: Apache-2.0
"""Convert a checkpoint to another level of the format."""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from ckptfmt import _core
from ckptfmt._base import dtypes, names
from ckptfmt._base.arguments import Level
from ckptfmt._base.progress import Meter, Progress
from ckptfmt.bundle.completeness import check_covered
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.bundle.writer import Writer, metadata_json
from ckptfmt.errors import CorruptError, InvalidError
from ckptfmt.files.locate import locate
from ckptfmt.formats import torch_state
from ckptfmt.recipe.values import (
    Result,
    build,
    equal_values,
    other_values,
    pieces_of,
    rewrite,
)

# Hint in errors about metadata that cannot be written.
DROPPING = " (drop_metadata=True leaves the metadata out)"

_STAND_IN = re.compile(re.escape(names.SHARD_STAND_IN) + "[0-9]+")


def convert(
    source: str,
    result: Result,
    *,
    drop_metadata: bool,
    check_result: bool,
    progress: Progress | None,
) -> list[str]:
    """Write a checkpoint again at another level; see `ckptfmt.convert`. Partitioned tensors keep
    their slices. The unused bits of narrow types, and the sizes in string and variant values, are
    normalised. Return in words what the result lacks."""
    with Reader(locate(source), verify="full", limits=result.limits) as reader:
        _check_source(reader)
        metadata, dropped = _metadata(reader, result.options.level, drop_metadata)
        meter = Meter(progress, sum(handle.nbytes for handle in reader.values()))

        def fill(writer: Writer, folder: str | None) -> None:
            pieces = (piece for handle in reader.values() for piece in pieces_of(handle))
            values = (piece.value(partial(piece.read, folder)) for piece in pieces)
            rewrite(writer, values, meter.add)

        def check(part: str, folder: str | None) -> None:
            with Reader(part, limits=result.limits) as written:
                _compare(reader, written, folder)

        build(result, metadata, fill, check if check_result else None)
    return dropped


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
    check_covered(reader)
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


def _metadata(reader: Reader, level: Level, drop: bool) -> tuple[bytes | None, list[str]]:
    """Return the metadata of the result as it is stored, or None, and in words what it lacks."""
    if names.METADATA not in reader:
        return None, []
    try:
        metadata = reader.metadata
    except CorruptError as error:
        if error.rule != "EXT-7":
            raise
        if not drop:
            error.hint(DROPPING)
            error.argument = "drop_metadata"
            raise
        return None, ["the metadata"]
    try:
        if level == "v2":
            raise InvalidError("level 'v2' has no place for the metadata of the source")
        return metadata_json(metadata, level), []
    except InvalidError as error:
        if not drop:
            error.hint(DROPPING)
            error.argument, error.path = "drop_metadata", reader.prefix
            raise
        for handle in reader.values():
            if handle.meaning is not None:
                raise handle._unsupported(
                    f"without the metadata its elements are no longer bits of {handle.meaning}: "
                    "ckptfmt.torch.load returns it, to be saved as another dtype"
                ) from None
        return None, torch_state.left_out(reader, metadata)


def _compare(reader: Reader, result: Reader, folder: str | None) -> None:
    """Compare the checksums, or where these differ the values, of the result with the source."""
    ours, theirs = _sums(result), _sums(reader)
    if ours.keys() != theirs.keys():
        raise other_values(None)
    # Equal values can have other checksums: the other byte order, or a normalised form.
    for name in (name for name, sums in theirs.items() if ours[name] != sums):
        if not _same(reader[name], result[name], folder):
            raise other_values(name)


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


def _same(before: TensorHandle, after: TensorHandle, folder: str | None) -> bool:
    """Return whether two tensors have the same slices with equal values, without unused bits."""
    if (before.dtype_code, before.shape) != (after.dtype_code, after.shape):
        return False
    pieces, written = list(pieces_of(before)), list(pieces_of(after))
    info = dtypes.info_of(before.dtype_code)
    used_bits = 0xFF if info is None else (1 << min(info.used_bits, 8)) - 1
    return [one.shape for one in pieces] == [one.shape for one in written] and all(
        equal_values(one.read(folder), other.read(folder), used_bits)
        for one, other in zip(pieces, written, strict=True)
    )
