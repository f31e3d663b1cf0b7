# SPDX-License-Identifier: Apache-2.0
"""Write a checkpoint again with other names, without some tensors, or with some values changed.

Data files whose bytes stay are linked, so that an index and the changed values are all that is
written.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base import dtypes, names
from ckptfmt._base.progress import Meter, Progress
from ckptfmt._base.renaming import CastFirst, Transform, transformed, transformed_kind
from ckptfmt._base.save_options import SaveOptions, at_level
from ckptfmt.bundle.comparing import pieces
from ckptfmt.bundle.meanings import E8M0, FP4
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.bundle.writer import Writer, metadata_json, shard_count
from ckptfmt.errors import CorruptError, InvalidError
from ckptfmt.formats import safetensors
from ckptfmt.formats.tensors import Box, Kind, Tensor
from ckptfmt.naming.roles import OPTIMIZER_STATES
from ckptfmt.recipe import values
from ckptfmt.recipe.changes import Changes
from ckptfmt.recipe.export import compare, kinds_of
from ckptfmt.recipe.sources import Handle, Taken
from ckptfmt.recipe.values import (
    Piece,
    Result,
    Value,
    build,
    equal_values,
    mapped_array,
    new_array,
    other_values,
    pieces_of,
    scratch_of,
)

# A data file is linked if at most this share of the bytes of its tensors is dropped; otherwise the
# tensors that stay are copied, so that the space of the others is free.
DEAD_SHARE_MAX = 0.1


class Rewrite(NamedTuple):
    """What to write.

    Attributes:
        names: the new name of every tensor, None of those that are dropped.
        casts: dtypes by stored name, of tensors without a transform.
        transforms: by stored name.
        changes: casts values, and counts what that loses.
        texts: new values of string scalars, by stored name.
        metadata: new metadata; None keeps what is stored, and empty removes it.
        compact: True links no data file of which a tensor is dropped.
        options: of writing, but for the level.
        level: of the result; None for that of the source.
        is_fresh: whether all is copied, because the options are not those of the source.
        read: returns the value of a tensor or slice; large ones are in a folder, None for the
            system's own.
    """

    names: Sequence[str | None]
    casts: Mapping[str, np.dtype[Any]]
    transforms: Mapping[str, Transform | CastFirst]
    changes: Changes
    texts: Mapping[str, bytes]
    metadata: Mapping[str, Any] | None
    compact: bool
    options: SaveOptions
    level: str | None
    is_fresh: bool
    read: Callable[[Piece, str | None], NDArray[Any]] = lambda piece, folder: piece.read(folder)


def rewrite(reader: Reader, target: str, plan: Rewrite, progress: Progress | None) -> int:
    """Write a checkpoint again, all or nothing. It may replace the source.

    Args:
        reader: the source.
        target: prefix of the result.
        plan: what to write.
        progress: called as `progress(bytes_done, bytes_total)` with bytes of arrays.

    Returns:
        The bytes of arrays that were copied or changed, and not linked.

    Raises:
        InvalidError: two tensors with the same new name, or a name that cannot be stored.
        CorruptError, LimitError, UnsupportedError: a tensor that is copied cannot be read.
        StorageError, BusyError, DurabilityUnknownError: as Writer.
    """
    listing = reader._listing()
    selection, stored, visible = listing.selection, listing.names, listing.visible_rows
    level = plan.level or reader.level
    if level == "v2" and plan.metadata is not None and plan.level is None:
        level = "v2+"
    new_names, own = list(plan.names), np.zeros(len(stored), np.bool_)
    if not isinstance(visible, range):
        own[:] = True
        own[visible] = False
        new_names = [None] * len(stored)
        for row, new in zip(visible.tolist(), plan.names, strict=True):
            new_names[row] = new
    for row in np.flatnonzero(own).tolist():
        name = stored[row]
        replaced = name == names.METADATA and plan.metadata is not None
        if not replaced and not name.startswith(names.SHARD_STAND_IN):
            new_names[row] = name
    stays = np.fromiter((new is not None for new in new_names), np.bool_, len(stored))
    # Of a text or metadata that is replaced few bytes are lost.
    dead = ~stays & ~own | _rows(stored, {*plan.casts, *plan.transforms})
    files = _in_dead_files(selection, dead, 0.0 if plan.compact else DEAD_SHARE_MAX)
    linked = np.flatnonzero(stays & ~dead & ~_rows(stored, plan.texts) & ~files)
    linked = linked[: 0 if plan.is_fresh else None]
    sizes = selection.rows["stored"]["raw_size"][stays].astype(np.int64)
    options = at_level(plan.options, level)
    metadata = metadata_json(plan.metadata, options.level) if plan.metadata else None
    shards = 1 if len(linked) else shard_count(np.append(sizes, 1))
    with Writer._of(target, options, metadata, shards) as writer:
        kept = _link(reader, writer, linked, [new_names[row] for row in linked.tolist()])
        stays[linked[kept]] = False
        rest = [
            (new_names[row], TensorHandle(reader, selection, row, stored[row]))
            for row in np.flatnonzero(stays).tolist()
        ]
        return _copy(writer, rest, plan, progress)


def _rows(stored: Sequence[str], chosen: Collection[str]) -> NDArray[np.bool_]:
    """Return which of the names are chosen."""
    if not chosen:
        return np.zeros(len(stored), np.bool_)
    return np.fromiter((name in chosen for name in stored), np.bool_, len(stored))


def _in_dead_files(
    selection: _core.Selection, dead: NDArray[np.bool_], share: float
) -> NDArray[np.bool_]:
    """Return which tensors have bytes in a data file of which more than this share is dead."""
    rows = np.arange(len(selection.rows))
    whole = selection.rows["slice_count"] == 0
    partitioned = np.flatnonzero(~whole).tolist()
    parts = {row: selection.stored_values(row) for row in partitioned}
    owners = np.concatenate(
        [rows[whole], *(np.full(len(found), row) for row, found in parts.items())]
    ).astype(np.intp)
    more = [value for found in parts.values() for value in found]
    stored = selection.rows["stored"][whole]
    shards = np.append(stored["shard"], [value["shard"] for value in more]).astype(np.int64)
    sizes = np.append(stored["size"], [value["size"] for value in more]).astype(np.float64)
    _, files = np.unique(shards, return_inverse=True)
    total = np.bincount(files, sizes)
    lost = np.bincount(files, np.where(dead[owners], sizes, 0))
    found = np.zeros(len(rows), np.bool_)
    found[owners[(lost > share * total)[files]]] = True
    return found


def _link(
    reader: Reader, writer: Writer, rows: NDArray[np.intp], new_names: list[Any]
) -> NDArray[np.bool_]:
    raw = list(map(names.tensor_bytes, new_names))
    handle = writer._open_handle()
    selection = reader._listing().selection
    return handle.keep(reader._handle, selection, rows.astype(np.uint64), raw)


def rebuild(
    made: Result,
    check_result: bool,
    reader: Reader,
    _target: str,
    plan: Rewrite,
    progress: Progress | None,
) -> int:
    """As `rewrite`, but copy everything, and make the result visible when it has been checked.

    Raises:
        InvalidError: metadata that cannot be written; a tensor that can be read, but not written.
        CorruptError: also if the source has more than can be copied, or the result differs.
    """
    _check_source(reader)
    try:
        metadata = reader.metadata if plan.metadata is None else plan.metadata
        text = metadata_json(metadata, made.options.level) if metadata else None
    except InvalidError as error:
        error.path, error.argument = error.path or reader.prefix, "drop_metadata"
        error.hint(" (drop_metadata=True leaves the metadata out)")
        raise
    rest = [
        (new, handle)
        for new, handle in zip(plan.names, reader.values(), strict=True)
        if new is not None
    ]
    copied = 0

    def fill(writer: Writer, _: str | None) -> None:
        nonlocal copied
        copied = _copy(writer, rest, plan, progress)

    def check(part: str, folder: str | None) -> None:
        with Reader(part, limits=made.limits) as result:
            _compare(rest, result, plan, folder)

    build(made, text, fill, check if check_result else None)
    return copied


def _check_source(reader: Reader) -> None:
    """Refuse a source that can be read, but not written again."""
    listing = reader._listing()
    rows = listing.selection.rows
    unknown = [code for code in _core.distinct(rows["dtype"]) if dtypes.numpy_dtype(code) is None]
    odd = np.isin(rows["dtype"], unknown) | (rows["rank"] > _core.NUMPY_RANK_MAX)
    for row, name in enumerate(listing.names):
        is_reserved = name.startswith(names.RESERVED) and name != names.METADATA
        if not is_reserved and not odd[row]:
            continue
        handle = TensorHandle(reader, listing.selection, row, name)
        if is_reserved and not _stands_in(handle):
            raise InvalidError(
                f"EXT-8: names beginning with {names.RESERVED} are reserved: the tensor can be "
                "read, but not written under its name",
                path=reader.prefix,
                tensor=name,
            )
        handle._check_rank()
        if handle.dtype is None:
            raise handle._unsupported(f"the elements of {handle.dtype_name} are not known")
    if not any(name.startswith("\0") for name in listing.names):
        return
    # Slices without a tensor would be lost; only verification reports them.
    for finding in reader.verify().problems:
        if finding.error().rule == "KEY-7":
            raise finding.error(CorruptError)


_STAND_IN = re.compile(re.escape(names.SHARD_STAND_IN) + "[0-9]+")


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


def _compare(
    rest: list[tuple[str, TensorHandle]], result: Reader, plan: Rewrite, folder: str | None
) -> None:
    """Compare the values of the result with what they are to be."""
    if sorted(new for new, _ in rest) != sorted(result):
        raise other_values(None)
    for new, handle in rest:
        after = result[new]
        text = plan.texts.get(handle.name)
        if text is not None:
            is_same = after.read().item() == text
        elif handle.name in plan.transforms:
            is_same = equal_values(_transformed(handle, plan, folder), after.read())
        else:
            is_same = _is_same(handle, after, plan, folder)
        if not is_same:
            raise other_values(new)


def _is_same(before: TensorHandle, after: TensorHandle, plan: Rewrite, folder: str | None) -> bool:
    """Return whether a tensor has the slices of another, and its values, cast if they are to be,
    but for unused bits."""
    dtype = plan.casts.get(before.name)
    code = before.dtype_code if dtype is None else dtypes.code_of(dtype)
    if (code, before.shape) != (after.dtype_code, after.shape):
        return False
    if dtype is None and _sums(before) == _sums(after):
        return True
    pieces, written = list(pieces_of(before)), list(pieces_of(after))
    # Equal values can have other checksums: the other byte order, or a normalised form.
    info = dtypes.info_of(before.dtype_code)
    used_bits = 0xFF if info is None else (1 << min(info.used_bits, 8)) - 1
    if [one.shape for one in pieces] != [one.shape for one in written]:
        return False
    for piece, other in zip(pieces, written, strict=True):
        found = other.read(folder)
        if dtype is None and not equal_values(piece.read(folder), found, used_bits):
            return False
        for box, part in _cast(piece, plan, folder) if dtype is not None else ():
            if not equal_values(part, found[box]):
                return False
    return True


def _sums(handle: TensorHandle) -> list[tuple[int, int]]:
    """Return sizes and checksums of the raw values of a tensor."""
    found = handle._selection.stored_values(handle._row)
    return [(int(stored["raw_size"]), int(stored["raw_crc32c"])) for stored in found]


def count_losses(reader: Reader, _target: str, plan: Rewrite, _progress: Progress | None) -> int:
    """As `rewrite`, but write nothing: count what the casts would lose. Large values go through
    temporary files without names.

    Raises:
        InvalidError: losses are not allowed, and one loses something.
        CorruptError, LimitError, UnsupportedError: a tensor cannot be read.
    """
    for name in plan.transforms:
        _transformed(reader[name], plan, None)
    for name in plan.casts:
        for piece in pieces_of(reader[name]):
            for _ in _cast(piece, plan, None):
                pass
    return 0


def _cast(
    piece: Piece, plan: Rewrite, folder: str | None
) -> Iterator[tuple[tuple[slice, ...], NDArray[Any]]]:
    """Yield the boxes of a piece of a tensor that is cast."""
    array, dtype = plan.read(piece, folder), plan.casts[piece.handle.name]
    origin = [0] * array.ndim if piece.box is None else piece.box[: array.ndim].tolist()
    for box in pieces(piece.shape, array.itemsize, values.STEP_BYTES):
        firsts = itertools.chain((side.start for side in box), itertools.repeat(0))
        start = tuple(map(operator.add, origin, firsts))
        is_part = bool(box) or piece.box is not None
        yield (
            box,
            plan.changes.converted(
                array[box], dtype, piece.handle.name, start, start if is_part else None
            ),
        )


def _transformed(handle: TensorHandle, plan: Rewrite, folder: str | None) -> NDArray[Any]:
    transform = plan.transforms[handle.name]
    array = plan.read(Piece(handle, handle.shape, None, None), folder)
    dtype, shape = transformed_kind(handle.name, array.dtype, array.shape, transform)
    return transformed(handle.name, array, transform, shape, dtype)


def _copy(
    writer: Writer,
    rest: list[tuple[Any, TensorHandle]],
    plan: Rewrite,
    progress: Progress | None,
) -> int:
    """Add the tensors that are not linked, under their new names. Return the bytes of their
    arrays."""
    folder = scratch_of(writer.prefix)

    def cast(piece: Piece, dtype: np.dtype[Any]) -> NDArray[Any]:
        result = new_array(piece.handle.name, piece.shape, dtype, folder)
        for box, part in _cast(piece, plan, folder):
            result[box] = part
        return result

    def made() -> Iterator[Value]:
        for new, handle in rest:
            raw = names.tensor_bytes(new)
            text, dtype = plan.texts.get(handle.name), plan.casts.get(handle.name)
            if text is not None:
                yield Value(raw, 0, partial(np.array, text, object), handle.dtype_code)
                continue
            if handle.name in plan.transforms:
                result = partial(_transformed, handle, plan, folder)
                yield Value(raw, handle.nbytes, result)
                continue
            for piece in pieces_of(handle):
                value = piece.value(partial(plan.read, piece, folder))
                if dtype is not None:
                    value = piece.value(partial(cast, piece, dtype))._replace(code=None)
                yield value._replace(name=raw)

    for _, handle in rest:
        if handle.name == names.METADATA:
            writer._metadata = handle.read().item()
    rest = [one for one in rest if one[1].name != names.METADATA]
    total = sum(handle.nbytes for _, handle in rest if handle.name not in plan.texts)
    values.rewrite(writer, made(), Meter(progress, total).add)
    return total


# ---- made anew -----------------------------------------------------------------------------------


def check_taken(taken: Taken, most: int) -> list[Kind]:
    """Return what tensors become in a checkpoint, as `kinds_of`."""
    kinds = kinds_of(taken, _holds, "a TensorFlow checkpoint", most)
    names.check_saved(taken.tensors)
    return kinds


def write_checkpoint(
    taken: Taken,
    made: Result,
    check_result: bool,
    progress: Progress | None,
    optimizer_paths: Callable[[Mapping[str, Any]], list[str]] | None,
    most: int,
) -> tuple[list[Kind], dict[str, str]]:
    """Write what is taken of a source to a checkpoint. Return what the tensors have become, and the
    dtypes of torch whose bits are stored, by name.

    Args:
        optimizer_paths: returns the paths that only the state of optimizers is below.
        most: bytes that all arrays may have.
    """
    tensors = taken.tensors
    level = made.options.level
    bits = _take_bits(tensors, taken.casts) if level != "v2" else {}
    kinds = check_taken(taken, most)
    metadata = taken.described(bits)
    before = {name: getattr(one, "stored", one) for name, one in tensors.items()}
    paths = optimizer_paths(before) if optimizer_paths is not None else []
    metadata = {**metadata, **({OPTIMIZER_STATES: paths} if paths else {})}
    meter = Meter(progress, sum(kind.nbytes for kind in kinds))

    def value(kind: Kind, folder: str | None) -> NDArray[Any]:
        tensor = tensors[kind.name]
        if kind.nbytes <= values.HELD_MAX or kind.dtype.hasobject:
            return np.asarray(tensor.read())
        array = mapped_array(kind.name, kind.shape, kind.dtype, folder)
        for box in pieces(kind.shape, kind.dtype.itemsize):
            array[box] = tensor.read(box)
        return array

    def fill(writer: Writer, folder: str | None) -> None:
        raw = names.tensor_bytes
        found = (Value(raw(one.name), one.nbytes, partial(value, one, folder)) for one in kinds)
        values.rewrite(writer, found, meter.add)

    def check(part: str, _: str | None) -> None:
        with Reader(part, limits=made.limits) as result:
            compare(kinds, lambda name, box: np.asarray(result[name][(*box, ...)]), taken)

    text = metadata_json(metadata, level) if metadata and level != "v2" else None
    build(made, text, fill, check if check_result else None)
    return kinds, bits


class _Bits:
    """What a checkpoint stores of a tensor of a dtype of torch that it lacks."""

    dtype = np.dtype(np.uint8)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self.name, self.shape = tensor, tensor.name, tensor.shape
        self._is_packed = tensor.dtype.name != E8M0
        if self._is_packed:
            self.shape = (*tensor.shape[:-1], tensor.shape[-1] // 2)

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box as an array."""
        if not self._is_packed:
            return self._tensor.read(box).view(np.uint8)
        if len(box) == len(self.shape):
            box = (*box[:-1], slice(2 * box[-1].start, 2 * box[-1].stop))
        return dtypes.packed_fp4(self._tensor.read(box))


def _take_bits(tensors: dict[str, Any], casts: Mapping[str, Any]) -> dict[str, str]:
    """Replace tensors of dtypes of torch that a checkpoint lacks by their bits; return the dtypes.
    A checkpoint has FP4 as well, a value to a byte, which stays so."""
    found = {}
    for name, tensor in tensors.items():
        if tensor.dtype.name == E8M0:
            found[name] = E8M0
        elif (
            tensor.dtype.name == dtypes.FP4 and name not in casts and not isinstance(tensor, Handle)
        ):
            found |= {name: FP4} if safetensors.has_pairs(tensor.shape) else {}
    tensors.update({name: _Bits(tensors[name]) for name in found})
    return found


def _holds(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "O" or dtypes.code_of_array(dtype) is not None
