# SPDX-License-Identifier: Apache-2.0
"""Write a checkpoint again with other names, without some tensors, or with some values changed.

Data files whose bytes stay are linked, so that an index and the changed values are all that is
written.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base import names
from ckptfmt._base.casting import Losses
from ckptfmt._base.casting import cast as cast_values
from ckptfmt._base.progress import Meter, Progress
from ckptfmt._base.save_options import SaveOptions, at_level
from ckptfmt.bundle.comparing import pieces
from ckptfmt.bundle.completeness import check_covered
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.bundle.writer import Writer, metadata_json, shard_count
from ckptfmt.recipe import values as rewriting
from ckptfmt.recipe.values import Piece, Value, new_array, pieces_of, scratch_of

# A data file is linked if at most this share of the bytes of its tensors is dropped; otherwise the
# tensors that stay are copied, so that the space of the others is free.
DEAD_SHARE_MAX = 0.1


@dataclass(frozen=True)
class Rewrite:
    """What to write.

    Attributes:
        renamed: stored name to new name of every tensor that stays, in the order of the stored
            names.
        casts: dtypes by stored name.
        allow_loss: whether casts may change values by more than rounding.
        texts: new values of string scalars, by stored name.
        metadata: new metadata; None keeps what is stored, and empty removes it.
        compact: True links no data file of which a tensor is dropped.
        options: of writing, but for the level.
    """

    renamed: Mapping[str, str]
    casts: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    texts: Mapping[str, bytes] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    compact: bool = False
    options: SaveOptions = field(default_factory=SaveOptions)
    allow_loss: bool = False


@dataclass(frozen=True)
class Rewritten:
    """What was done.

    Attributes:
        copied_nbytes: bytes of arrays that were copied or changed, and not linked.
        losses: by stored name, what casts lost.
    """

    copied_nbytes: int
    losses: Mapping[str, Losses]


def rewrite(reader: Reader, target: str, plan: Rewrite, progress: Progress | None) -> Rewritten:
    """Write a checkpoint again, all or nothing. It may replace the source.

    Args:
        reader: the source.
        target: prefix of the result.
        plan: what to write.
        progress: called as `progress(bytes_done, bytes_total)` with bytes of arrays.

    Raises:
        InvalidError: two tensors with the same new name, or a name that cannot be stored.
        CorruptError, LimitError, UnsupportedError: a tensor that is copied cannot be read.
        StorageError, BusyError, DurabilityUnknownError: as Writer.
    """
    check_covered(reader, plan.renamed)
    listing = reader._listing()
    selection = listing.selection
    stored, new_names = listing.names, dict(plan.renamed)
    own = [name for name in stored if name.startswith(names.RESERVED)]
    level = reader.level
    if plan.metadata is not None and level == "v2":
        level = "v2+"
    for name in own:
        replaced = name == names.METADATA and plan.metadata is not None
        if not replaced and not name.startswith(names.SHARD_STAND_IN):
            new_names[name] = name
    stays = _rows(stored, new_names)
    # Of a text or metadata that is replaced few bytes are lost.
    dead = ~stays & ~_rows(stored, set(own)) | _rows(stored, plan.casts)
    files = _in_dead_files(selection, dead, 0.0 if plan.compact else DEAD_SHARE_MAX)
    linked = np.flatnonzero(stays & ~dead & ~_rows(stored, plan.texts) & ~files)
    sizes = selection.rows["stored"]["raw_size"][stays].astype(np.int64)
    options = at_level(plan.options, level)
    metadata = metadata_json(plan.metadata, options.level) if plan.metadata else None
    shards = 1 if len(linked) else shard_count(np.append(sizes, 1))
    with Writer._of(target, options, metadata, shards) as writer:
        kept = _link(reader, writer, linked, [new_names[stored[row]] for row in linked.tolist()])
        stays[linked[kept]] = False
        rest = [
            TensorHandle(reader, selection, row, stored[row])
            for row in np.flatnonzero(stays).tolist()
        ]
        return _copy(writer, rest, new_names, plan, progress)


def _rows(stored: Sequence[str], chosen: Container[str]) -> NDArray[np.bool_]:
    """Return which of the names are chosen."""
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
    reader: Reader, writer: Writer, rows: NDArray[np.intp], new_names: list[str]
) -> NDArray[np.bool_]:
    raw = [names.tensor_bytes(name) for name in new_names]
    handle = writer._open_handle()
    selection = reader._listing().selection
    return handle.keep(reader._handle, selection, rows.astype(np.uint64), raw)


def cast_losses(
    reader: Reader, casts: Mapping[str, np.dtype[Any]], *, allow_loss: bool
) -> dict[str, Losses]:
    """Return by name what casts of stored tensors would lose; large ones go through temporary
    files that have no names.

    Raises:
        InvalidError: not `allow_loss`, and one loses something.
        CorruptError, LimitError, UnsupportedError: a tensor cannot be read.
    """
    losses: dict[str, Losses] = {}
    for name, dtype in casts.items():
        for piece in pieces_of(reader[name]):
            for _ in _cast(piece, dtype, allow_loss, None, losses):
                pass
    return losses


def _cast(
    piece: Piece,
    dtype: np.dtype[Any],
    allow_loss: bool,
    folder: str | None,
    losses: dict[str, Losses],
) -> Iterator[tuple[tuple[slice, ...], NDArray[Any]]]:
    """Yield the boxes of a piece of a tensor with another dtype, and add to what that loses."""
    name, array = piece.handle.name, piece.read(folder)
    origin = [0] * array.ndim if piece.box is None else piece.box[: array.ndim].tolist()
    for box in pieces(piece.shape, array.itemsize, rewriting.STEP_BYTES):
        firsts = itertools.chain((side.start for side in box), itertools.repeat(0))
        start = tuple(map(operator.add, origin, firsts))
        part, lost = cast_values(
            array[box],
            dtype,
            tensor=name,
            allow_loss=allow_loss,
            start=start if box or piece.box is not None else None,
        )
        if lost is not None:
            losses[name] = losses.get(name, Losses()) + lost
        yield box, part


def _copy(
    writer: Writer,
    rest: list[TensorHandle],
    new_names: Mapping[str, str],
    plan: Rewrite,
    progress: Progress | None,
) -> Rewritten:
    """Add the tensors that are not linked."""
    folder = scratch_of(writer.prefix)
    losses: dict[str, Losses] = {}

    def cast(piece: Piece, dtype: np.dtype[Any]) -> NDArray[Any]:
        result = new_array(piece.handle.name, piece.shape, dtype, folder)
        for box, part in _cast(piece, dtype, plan.allow_loss, folder, losses):
            result[box] = part
        return result

    def values() -> Iterator[Value]:
        for handle in rest:
            raw = names.tensor_bytes(new_names[handle.name])
            text, dtype = plan.texts.get(handle.name), plan.casts.get(handle.name)
            if text is not None:
                yield Value(raw, 0, partial(np.array, text, object), handle.dtype_code)
                continue
            for piece in pieces_of(handle):
                value = piece.value(partial(piece.read, folder))
                if dtype is not None:
                    value = piece.value(partial(cast, piece, dtype))._replace(code=None)
                yield value._replace(name=raw)

    metadata = [handle for handle in rest if handle.name == names.METADATA]
    rest = [handle for handle in rest if handle.name != names.METADATA]
    total = sum(handle.nbytes for handle in rest if handle.name not in plan.texts)
    rewriting.rewrite(writer, values(), Meter(progress, total).add)
    for handle in metadata:
        writer._open_handle().add_metadata(handle.read().item())
    return Rewritten(total, losses)
