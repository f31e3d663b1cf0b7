# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt.editing.rescue`: what is sound of a damaged checkpoint."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base import names
from ckptfmt._base.arguments import Durability, Level, check_progress, check_switch, invalid
from ckptfmt._base.background import wait_for_saves
from ckptfmt._base.hints import some
from ckptfmt._base.names import OBJECT_GRAPH_KEY, path_text, prefix_text
from ckptfmt._base.progress import Meter, Progress
from ckptfmt._base.save_options import SaveOptions
from ckptfmt.bundle.comparing import pieces
from ckptfmt.bundle.completeness import proves_damage
from ckptfmt.bundle.graph_keys import graph_of
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.state_tree import KEY
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.bundle.writer import Writer, metadata_json
from ckptfmt.errors import (
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    InvalidError,
    UnsupportedError,
    masked_repr,
)
from ckptfmt.files.folder import split
from ckptfmt.files.locate import locate
from ckptfmt.files.places import canonical
from ckptfmt.formats.tensors import UNNAMED
from ckptfmt.naming.metadata import NamedInMetadata
from ckptfmt.recipe.changes import Changes
from ckptfmt.recipe.checkpoint import rewrite, write_checkpoint
from ckptfmt.recipe.convert import most_of
from ckptfmt.recipe.edit import edited
from ckptfmt.recipe.sources import Format, format_of, module_of, opened
from ckptfmt.recipe.values import HELD_MAX, Result, mapped_array, pieces_of, scratch_of

Path = str | bytes | os.PathLike[Any]
# The prefix of what is not proven is that of the result and this.
UNPROVEN = "-unproven"
_HEADER_LOST = (
    "header: lost; the number of data files is that of their names, the byte order little-endian"
)
# As the default of `limits={"index_bytes_max": N}`.
_INDEX_BYTES_MAX = 4 << 30
# Bytes that are read at once to see which rows are sound: about a chunk.
_STEP_BYTES = 256 << 10


@dataclass(frozen=True)
class Rescue:
    """What `rescue` gave back.

    Attributes:
        path: prefix of the result; None if nothing was sound, and nothing was written.
        kept: stored names of the tensors in it.
        lost: by stored name, why a tensor is not in it: of one with chunk checksums or slices also
            which rows are sound. Names that only the object graph or the structure of a state has
            are here too; "..." stands for names that are lost themselves.
        index: what was wrong with the index, and what became of it.
        unproven: by name, why a tensor at `DESTINATION-unproven` is not proven.
        structure: of the object graph, or of the state that `ckptfmt.torch` saved: "whole", "cut"
            (without what is lost), "lost", or "none" was stored.
        metadata: "whole" (but for what they say of lost tensors), "lost", or "none".
    """

    path: str | None
    kept: tuple[str, ...]
    lost: dict[str, str] = field(default_factory=dict)
    index: tuple[str, ...] = ()
    unproven: dict[str, str] = field(default_factory=dict)
    structure: str = "none"
    metadata: str = "none"

    __repr__ = masked_repr


Rescue.__module__ = "ckptfmt.types"


def rescue(
    source: Path,
    destination: Path,
    *,
    unproven: bool = False,
    level: Level = "v2+",
    compression: str | None = None,
    alignment: int | None = None,
    durability: Durability = "full",
    progress: Progress | None = None,
) -> Rescue:
    """Write what is sound of a damaged checkpoint as a new one. The source is not changed.

    What has its own name in the result is proven: the checksum of its block of the index holds, and
    that of its values. A block of the index with one flipped bit is repaired: no other bit makes
    its checksum hold. If the end of the index is lost, its blocks are found by their checksums; if
    the header is, the number of data files is that of their names, and the byte order
    little-endian. Every tensor is read; one that is lost is removed from the object graph, or from
    the structure of the state, with what only it needs.

    A safetensors, npz or HDF5 file or a DCP directory with its `.metadata` becomes a checkpoint of
    what is left of it. Of these only npz has checksums.

    >>> ckptfmt.save("model", {"a": np.ones(3), "b": np.zeros(3)})
    >>> with open("model.data-00000-of-00001", "r+b") as file:
    ...     _ = file.write(b"?")
    >>> done = ckptfmt.editing.rescue("model", "saved")
    >>> done.kept, list(done.lost)
    (('b',), ['a'])

    Args:
        source: a checkpoint (a prefix, an `.index` or data file, a directory, a SavedModel), or a
            file or directory of another format.
        destination: prefix of the result, not that of the source: str, bytes or os.PathLike.
        unproven: True also writes `DESTINATION-unproven`, with values whose checksum does not hold,
            as they are, and with tensors of blocks of the index that are damaged: of these also
            name, shape and dtype may be wrong. Of checkpoints only.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        progress: called as `progress(done, total)` with two ints, of bytes of the arrays. Every
            tensor counts twice, when it is checked and when it is written.

    Raises:
        CheckpointNotFoundError: there is no index, or no `.metadata` of DCP: bytes have no names.
        CorruptError: nothing is sound, and `unproven` is False; or the index has nothing that can
            be read.
        InvalidError: metadata at level "v2"; the destination is the source; `unproven` of a file
            of another format.
        StorageError: a file that exists cannot be read now; writing failed.
        UnsupportedError, LimitError: an index of an unknown version; more than the default limits
            allow.
    """
    check_progress(progress)
    check_switch("unproven", unproven)
    options = SaveOptions(
        level=level, compression=compression, alignment=alignment, durability=durability
    )
    path = path_text(source, "source", urls=True)
    target = prefix_text(destination, "destination", urls=True)
    wait_for_saves()
    kind = format_of(path, exists=True)
    try:
        if kind != "tensorflow":
            if unproven:
                raise invalid(
                    "unproven", "of a file of another format only what is proven is given"
                )
            return _of_file(kind, path, Result(target, options, None), progress)
        prefix = locate(path)
        written = [target, f"{target}{UNPROVEN}"] if unproven else [target]
        if canonical(prefix) in map(canonical, written):
            raise invalid(
                "destination", "the destination is the source, which rescue leaves as it is"
            )
        found = _salvaged(prefix)
        with contextlib.ExitStack() as stack:
            reader, other = stack.enter_context(_Salvaged(prefix, found.sound)), None
            if found.doubtful is not None:
                other = stack.enter_context(_Salvaged(prefix, found.doubtful))
            return _of_checkpoint(reader, other, found, target, options, unproven, progress)
    except CkptfmtError as error:
        vars(error).pop("__notes__", None)  # which leads to what has failed
        raise


# ---- checkpoints ---------------------------------------------------------------------------------


class _Salvaged(Reader):
    """A reader of the data files of a checkpoint by another index."""

    def __init__(self, prefix: str, index: bytes) -> None:
        self._index = index
        super().__init__(prefix)


def _salvaged(prefix: str) -> _core.Salvage:
    """Return what is sound of an index."""
    folder, name = split(prefix)
    with folder.opened() as place:
        content = place.read(names.index_name(name), limit=_INDEX_BYTES_MAX)
        parsed = map(names.parse_data_name, place.names())
        counts = {one.num_shards for one in parsed if one is not None and one.prefix == name}
    if content is None:
        raise CheckpointNotFoundError(
            "there is no index, without which the bytes of the data files have no names",
            path=names.index_name(prefix),
        )
    try:
        return _core.salvage_index(content, counts.pop() if len(counts) == 1 else 0)
    except CkptfmtError as error:
        error.path = names.index_name(prefix)
        raise


def _of_checkpoint(
    reader: Reader,
    other: Reader | None,
    found: _core.Salvage,
    target: str,
    options: SaveOptions,
    unproven: bool,
    progress: Progress | None,
) -> Rescue:
    sizes = reader.table()["nbytes"].tolist()
    total, folder = sum(sizes), scratch_of(target)
    errors = _read_all(reader, sizes, Meter(progress, 2 * total), folder)
    lost = {name: _reason(error) + _sound_rows(reader[name]) for name, error in errors.items()}
    lost |= _of_doubtful_repairs(reader, found, errors)
    blocks = {one.outcome for one in found.damages if one.kind == _core.REGION_DATA}
    # Slices of tensors whose own entries are lost.
    damaged = blocks - {_core.SALVAGE_REPAIRED}
    orphans = frozenset(filter(_is_slice_key, reader) if damaged else ())
    lost = {name: why for name, why in lost.items() if name not in orphans}
    if _core.SALVAGE_LOST in blocks:
        lost[UNNAMED] = "names in damaged blocks of the index"
    if OBJECT_GRAPH_KEY in lost:
        reader._forgotten.add(OBJECT_GRAPH_KEY)
    metadata, said = _metadata(reader, lost)
    if options.level == "v2" and said == "whole":
        raise invalid("level", "level 'v2' has no place for the metadata, which are sound")
    kept = tuple(name for name in reader if name not in lost and name not in orphans)
    # The metadata may be all there is.
    writes = bool(kept) or not (lost or damaged or said == "lost")
    if writes:
        done = edited(
            reader,
            target,
            Changes(),
            rewrite,
            options,
            metadata=metadata,
            drop_weights=True,
            drop_missing=True,
            damaged=lost.keys() | orphans,
            level=options.level,
            is_fresh=True,
            progress=progress and (lambda at, _: progress(total + at, 2 * total)),
        )
        gone = "what describes the objects or the state names it, and the index does not"
        lost |= {name: gone for name in done.missing if name not in lost}
    if other is not None and names.METADATA in other and said == "none":
        said = "lost"
    doubtful = _unproven(reader, other, lost, f"{target}{UNPROVEN}" if unproven else None, options)
    if not kept and not doubtful and lost:
        raise _nothing_sound(lost, reader.prefix)
    return Rescue(
        target if writes else None,
        kept,
        lost,
        (*map(_of_index, found.damages), *([_HEADER_LOST] if found.header_lost else [])),
        doubtful,
        _structure(reader, lost, said),
        said,
    )


def _is_slice_key(name: str) -> bool:
    return name.startswith("\0")


def _read_all(
    reader: Reader, sizes: list[int], meter: Meter, folder: str | None
) -> dict[str, CkptfmtError]:
    """Read every tensor; return the errors of those that are damaged, or cannot be written.

    Raises:
        StorageError: a file cannot be read now.
    """
    found: dict[str, CkptfmtError] = {}
    for name, nbytes in zip(reader, sizes, strict=True):
        try:
            if nbytes <= HELD_MAX:
                reader.read(name, verify="full")
            else:
                for piece in pieces_of(reader[name]):
                    piece.read(folder)
        except CkptfmtError as error:
            if not proves_damage(error) and not isinstance(error, UnsupportedError):
                raise
            found[name] = error.with_traceback(None)
        meter.add(nbytes)
    try:
        _ = OBJECT_GRAPH_KEY in found or graph_of(reader)
    except CorruptError as error:
        found[OBJECT_GRAPH_KEY] = error
    return found


def _nothing_sound(lost: Mapping[str, str], path: str) -> CorruptError:
    (name, why), count = next(iter(lost.items())), len(lost)
    message = f"nothing is sound of {count} tensors; {name!r}: {why}"
    return CorruptError(message, failure="CHECKSUM", path=path)


def _reason(error: CkptfmtError) -> str:
    error.tensor = None
    return str(error)


def _sound_rows(handle: TensorHandle) -> str:
    """Return in words which rows of a damaged tensor can be read and are proven."""
    dtype, in_parts = handle.dtype, handle.partial_reads_verified
    if dtype is None or dtype.hasobject or not handle.shape or not (in_parts or handle.partitioned):
        return ""
    found: list[list[int]] = []
    bad = -1
    for box in _steps(handle, dtype.itemsize, _STEP_BYTES if in_parts else handle.nbytes):
        first, last = box[0].start, box[0].stop
        try:
            if in_parts:
                handle[(*box, ...)]
            else:  # one row of its slices verifies them whole
                shape = (1, *handle.shape[1:])
                corner = np.array([first, *[0] * len(shape[1:]), *shape, 0], np.int64)
                handle._read_box(corner, shape, "full")
        except CkptfmtError as error:
            if not proves_damage(error):
                raise
            bad = first
        if bad == first:
            if found and found[-1][1] > first:
                found[-1][1] = first
        elif found and found[-1][1] >= first:
            found[-1][1] = last
        else:
            found.append([first, last])
    runs = [f"{first}:{last}" for first, last in found if first < last]
    return f"; its rows {some(runs, quote='')} are sound" if runs else ""


def _steps(handle: TensorHandle, itemsize: int, most: int) -> Iterator[tuple[slice, ...]]:
    """Divide a tensor into boxes of `most` bytes, in order, each in rows of the same slices."""
    rows = {0, handle.shape[0]}
    for one in handle.slices:
        rows |= {one.start[0], one.start[0] + one.shape[0]}
    for first, last in itertools.pairwise(sorted(rows)):
        for box in pieces((last - first, *handle.shape[1:]), itemsize, most):
            inside = box[0] if box else slice(0, last - first)
            yield slice(first + inside.start, first + inside.stop), *box[1:]


def _of_doubtful_repairs(
    reader: Reader, found: _core.Salvage, errors: Mapping[str, CkptfmtError]
) -> dict[str, str]:
    """Return the tensors of blocks of the index that were repaired, and have a tensor whose
    checksum does not hold: then the repair may be wrong."""
    lost: dict[str, str] = {}
    repaired = [
        one
        for one in found.damages
        if (one.kind, one.outcome) == (_core.REGION_DATA, _core.SALVAGE_REPAIRED)
    ]
    listing = reader._listing()
    offsets = listing.selection.rows["entry_offset"]
    failed = {name for name, error in errors.items() if error.failure != "SHARD_MISSING"}
    for block in repaired:
        inside = (offsets >= block.offset) & (offsets < block.offset + block.size)
        members = [listing.names[row] for row in inside.nonzero()[0].tolist()]
        wrong = sorted(failed.intersection(members))
        if wrong:
            why = f"the repair of its block of the index may be wrong: {wrong[0]!r} is damaged"
            lost |= {name: why for name in members if name not in errors}
    return lost


def _metadata(reader: Reader, lost: dict[str, str]) -> tuple[dict[str, Any] | None, str]:
    """Return the metadata that the result has, None for those that are stored, and what became of
    them. What goes with a tensor that is lost is added to these."""
    try:
        metadata = reader.metadata
    except CkptfmtError as error:
        if not proves_damage(error):
            raise
        return {}, "lost"
    if not metadata:
        return None, "none"
    try:
        described = NamedInMetadata(reader, metadata, reader.prefix)
    except (InvalidError, UnsupportedError):
        return {name: one for name, one in metadata.items() if name != KEY}, "whole"
    _lose_with_parts(described, lost)
    return None, "whole"


def _lose_with_parts(described: NamedInMetadata, lost: dict[str, str]) -> None:
    """Add the other tensors of values that are stored in several, one of which is lost."""
    missing = frozenset(described.missing)
    for whole in described.parts:
        if wrong := [name for name in whole if name in lost or name in missing]:
            why = f"it is stored in several tensors, and {wrong[0]!r} is lost"
            lost |= {name: why for name in whole if name not in lost and name not in missing}


def _structure(reader: Reader, lost: Mapping[str, str], metadata: str) -> str:
    """Return what became of the object graph, or of the structure of a state."""
    after = "cut" if lost else "whole"
    if OBJECT_GRAPH_KEY in reader:
        return "lost" if OBJECT_GRAPH_KEY in lost else after
    if metadata != "whole":
        return metadata
    return after if KEY in reader.metadata else "none"


def _of_index(damage: _core.Damage) -> str:
    """Return in words what was damaged, and what became of it."""
    what = {_core.REGION_DATA: "block", _core.REGION_INDEX: "list of blocks"}
    where = f"{what.get(damage.kind, 'footer')}, {damage.size} bytes at {damage.offset}: "
    if damage.outcome == _core.SALVAGE_REPAIRED:
        return where + f"repaired, one bit of byte {damage.changed} was flipped"
    if damage.kind != _core.REGION_DATA:
        return where + "damaged, the blocks were found by their checksums"
    likely = f", perhaps in byte {damage.changed} alone" if damage.changed else ""
    return where + f"damaged{likely}; it seems to have {damage.entry_count} entries"


# ---- files of other formats ----------------------------------------------------------------------


def _of_file(kind: Format, path: str, made: Result, progress: Progress | None) -> Rescue:
    lost: dict[str, str] = {}
    index: list[str] = []

    def sift(tensors: dict[str, Any]) -> None:
        if error := getattr(tensors, "index_error", None):
            index.append(f"{_reason(error)}; the files were read without it")
        for name, tensor in tensors.items():
            try:
                for box in pieces(tensor.shape, tensor.dtype.itemsize):
                    tensor.read(box)
            except CkptfmtError as error:
                if not proves_damage(error) and not isinstance(error, UnsupportedError):
                    raise
                lost[name] = _reason(error)
        for name in lost:
            del tensors[name]

    most, states = most_of(kind, path, None), getattr(module_of(kind), "optimizer_paths", None)
    with opened(kind, path, None, keeps=True, as_state=True, sift=sift) as taken:
        structure = "none"
        if KEY in taken.metadata:
            described = NamedInMetadata(taken.tensors, taken.metadata, path)
            gone = dict.fromkeys(described.missing, "")
            _lose_with_parts(described, gone)
            names_after = {name: None if name in gone else name for name in [*taken.tensors, *gone]}
            edited_metadata = described.edited(names_after, cut=False)
            structure = "whole" if not lost else "cut"
            taken.metadata = taken.metadata if edited_metadata is None else edited_metadata
            lost |= {name: why for name, why in gone.items() if name not in lost}
            taken.tensors = {name: one for name, one in taken.tensors.items() if name not in gone}
        if made.options.level == "v2" and taken.metadata:
            raise invalid("level", "level 'v2' has no place for the metadata, which are sound")
        if lost and not taken.tensors:
            raise _nothing_sound(lost, path)
        kept = tuple(taken.tensors)
        write_checkpoint(taken, made, False, progress, states, most)
        metadata = "whole" if taken.metadata else "none"
    return Rescue(made.prefix, kept, lost, tuple(index), {}, structure, metadata)


# ---- what is not proven --------------------------------------------------------------------------


def _unproven(
    reader: Reader,
    other: Reader | None,
    lost: dict[str, str],
    target: str | None,
    options: SaveOptions,
) -> dict[str, str]:
    """Write what can be read of the tensors that are lost, unless `target` is None. The names in
    damaged blocks of the index are added to what is lost."""
    handles = {name: reader[name] for name in lost if name in reader}
    text = None
    if other is not None:
        for name in itertools.filterfalse(_is_slice_key, _readable_names(other)):
            if name not in reader:
                handles[name], lost[name] = other[name], "its block of the index is damaged"
        if names.METADATA not in reader and names.METADATA in other:
            with contextlib.suppress(CorruptError, InvalidError):
                text = metadata_json(other.metadata, options.level)
    if target is None:
        return {}
    given: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        writer = None
        for name, handle in handles.items():
            value = _value(handle, scratch_of(target))
            if value is None or name.startswith(names.RESERVED):
                continue
            array, is_sound = value
            writer = writer or stack.enter_context(Writer._of(target, options, text))
            writer.add(name, array, handle.dtype_name)
            holds = "holds" if is_sound else "does not hold"
            given[name] = f"{lost[name]}; the checksum of its values {holds}"
    return given


def _readable_names(reader: Reader) -> list[str]:
    try:
        return list(reader)
    except CorruptError:
        return []


def _value(handle: TensorHandle, folder: str | None) -> tuple[NDArray[Any], bool] | None:
    """Return the values of a tensor as they are, and whether their checksum holds; None if they
    cannot be read."""
    for verify in ("full", "off"):
        try:
            if handle.dtype is None:
                return None
            if handle.dtype.hasobject or handle.nbytes <= HELD_MAX:
                return handle.read(verify=verify), verify == "full"
            array = mapped_array(handle.name, handle.shape, handle.dtype, folder)
            handle.read_into(array, verify=verify)
            return array, verify == "full"
        except CkptfmtError as error:
            if not proves_damage(error) and not isinstance(error, UnsupportedError):
                raise
    return None
