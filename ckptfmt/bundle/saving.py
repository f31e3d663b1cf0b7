# SPDX-License-Identifier: Apache-2.0
"""save, save_async and save_v2: whole checkpoints in one call, over `ckptfmt.bundle.writer`.

The queue of background saves and its futures are in `ckptfmt.background`, the memory of the copies
in `ckptfmt.bundle.snapshot`.
"""

from __future__ import annotations

import copy
import itertools
import operator
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ckptfmt import _core, names, slices
from ckptfmt.arguments import Durability, Level, check_progress, check_sized, wrong
from ckptfmt.arrays import BATCH, Sources
from ckptfmt.background import Line, SaveFuture, Work, wait_for_saves
from ckptfmt.bundle import writer as writing
from ckptfmt.bundle.incremental import CompactionLimits, check_limits
from ckptfmt.bundle.snapshot import Snapshot
from ckptfmt.errors import InvalidError
from ckptfmt.progress import Progress

__all__ = ["save", "save_async", "save_v2"]

Path = str | bytes | os.PathLike[Any]

_NAME, _ARRAY = operator.itemgetter(0), operator.itemgetter(1)


def save(
    prefix: Path,
    tensors: Mapping[str, Any] | Mapping[bytes, Any] | Iterable[tuple[str | bytes, Any]],
    *,
    metadata: Mapping[str, Any] | None = None,
    level: Level = "v2+",
    alignment: int | None = None,
    durability: Durability = "full",
    base: Path | None = None,
    compaction: CompactionLimits | None = None,
    progress: Progress | None = None,
    compression: str | None = None,
    shards: int | None = None,
) -> None:
    """Save named arrays as one checkpoint, all or nothing, in the order given.

    With `base` only what has changed since that checkpoint is written, into one data file; the
    data files of the base that hold the rest get a second name (hard link) in the new
    checkpoint. It is complete, needs the base no longer, and holds what it would hold without
    `base`. What cannot be linked, as on another file system, is written. Changed means other bytes:
    all unchanged tensors are read from the base and compared.

    Waits first for a save that goes on in the background (`save_async`).

    Args:
        prefix, metadata, level, alignment, durability, compression: as in Writer.
        tensors: name to array; see `Writer.add` for what is an array.
        base: an earlier checkpoint to save upon, whatever `ckptfmt.open` takes; it may be the one
            at `prefix` that this one replaces. Tensors stay as the base stores them: upon one of
            level "v2" they have no checksums of chunks.
        compaction: when data files of the base are written anew rather than linked because of what
            is dead in them, or because they are too many.
        progress: called as `progress(bytes_done, bytes_total)` from this thread, with bytes of
            array data; unchanged ones are done once they have been compared.
        shards: the number of data files, as in Writer, each written by its own thread. None: one
            for each whole 64 MiB of array data, but at most 16, at most the processors that this
            process may use, and at most the total size divided by that of the largest array,
            rounded up; one with `compression` or `base`. A checkpoint that replaces another one can
            have one file more.

    Raises:
        InvalidError: a name or an array that cannot be stored; checked before anything is written.
        CheckpointNotFoundError: there is no base; CorruptError, UnsupportedError, LimitError: its
            index cannot be read. (Damaged tensors of the base count as changed.)
        StorageError: as in Writer.
    """
    check_progress(progress)
    check_order(prefix, tensors)
    wait_for_saves()
    writing.write_sources(
        names.prefix_text(prefix),
        collect(tensors),
        progress,
        metadata=metadata,
        level=level,
        alignment=alignment,
        durability=durability,
        base=base,
        compaction=compaction,
        compression=compression,
        shards=shards,
    )


def save_async(
    prefix: Path,
    tensors: Mapping[str, Any] | Mapping[bytes, Any] | Iterable[tuple[str | bytes, Any]],
    *,
    metadata: Mapping[str, Any] | None = None,
    level: Level = "v2+",
    alignment: int | None = None,
    durability: Durability = "full",
    base: Path | None = None,
    compaction: CompactionLimits | None = None,
    progress: Progress | None = None,
    compression: str | None = None,
    shards: int | None = None,
) -> SaveFuture:
    """Saves as `save`, with the same bytes, but returns when all arrays are copied: what becomes of
    them afterwards does not reach the checkpoint. It is written in the background.

    One save goes on in the background of a process at a time: a second one waits for it before
    anything is copied, as every other save does. The memory of the copies is freed when the save is
    over; a Saver with `enable_async` keeps its own for its next save, which is faster. An
    interpreter that exits waits for the save; after `os._exit` or a kill the older checkpoint is
    there, whole.

    Args:
        prefix, metadata, level, alignment, durability, compression: as in Writer. A relative prefix
            is one of the current directory of this call.
        tensors, compaction, shards: as in `save`.
        base: as in `save`; compared with in the background, and a relative path as `prefix`.
        progress: as in `save`, but called from the thread in the background.

    Returns:
        A future: its `result()` is the prefix, once the checkpoint is in place.

    Raises:
        InvalidError: as in `save`; nothing is written then.
        MemoryError: there is no memory for the copies; nothing is written then.
        Errors of the write itself are raised by the future.
    """
    check_progress(progress)
    check_order(prefix, tensors)
    writing.check_options(metadata, level, alignment, durability, compression, shards)
    target = names.prefix_text(prefix)
    place = names.absolute(target)
    _core.path_bytes(place)
    check_limits(compaction)
    earlier = None if base is None else names.absolute(names.path_text(base))
    wait_for_saves()
    sources = collect(tensors)
    options: dict[str, Any] = {
        "metadata": copy.deepcopy(metadata),
        "level": level,
        "alignment": alignment,
        "durability": durability,
        "base": earlier,
        "compaction": compaction,
        "compression": compression,
        "shards": shards,
    }

    def prepare() -> Work:
        snapshot = Snapshot([sources])

        def work() -> None:
            with snapshot:
                writing.write_sources(place, snapshot.copied[0], progress, **options)

        return work

    return Line().begin(target, prepare)


def save_v2(
    prefix: Path,
    tensor_names: Sequence[str | bytes],
    shape_and_slices: Sequence[str | bytes],
    tensors: Sequence[Any],
) -> None:
    """Saves as TensorFlow's SaveV2 op: the same arguments and, on a fresh prefix, the same bytes.

    Args:
        prefix: the checkpoint's prefix.
        tensor_names: one name a tensor. A name may repeat where its slices differ.
        shape_and_slices: one text a tensor: "" for a whole one, else "full shape, then slice" ("4 6
            0,2:-").
        tensors: one array a name, of the slice's shape.

    Raises:
        InvalidError: the three have different lengths or are empty, a text is malformed or does not
            fit its array, a name is empty or reserved.
        StorageError: writing failed.
    """
    slices.check_texts(tensor_names, shape_and_slices)
    check_sized("tensors", tensors, "arrays")
    if len(tensor_names) != len(tensors):
        raise InvalidError(f"Got {len(tensor_names)} tensor names but {len(tensors)} tensors.")
    if not len(tensors):
        raise InvalidError("save_v2 needs at least one tensor, as SaveV2 does")
    sources = Sources()
    for name, spec, tensor in zip(tensor_names, shape_and_slices, tensors, strict=True):
        sources.add(names.user_name(name), tensor)
        if spec:
            writing.set_spec(sources, spec)
    wait_for_saves()
    writing.write_sources(names.path_text(prefix), sources, None, level="v2", shards=1)


def check_order(prefix: object, tensors: object) -> None:
    """Refuse tensors that are not a mapping, with a hint if they come first."""
    is_text = isinstance(tensors, (str, bytes, os.PathLike))
    if is_text or isinstance(prefix, Mapping):
        hint = ". Are the arguments swapped?" if isinstance(prefix, Mapping) else ""
        raise InvalidError(
            "save(prefix, tensors): tensors must be a mapping of names to arrays, not "
            f"{type(tensors).__name__}{hint}"
        )


def collect(
    tensors: Mapping[str, Any] | Mapping[bytes, Any] | Iterable[tuple[str | bytes, Any]],
) -> Sources:
    """Named arrays as the writer takes them, all checked."""
    sources, names_differ = Sources(), False
    if type(tensors) is dict:
        # Names and arrays are taken apart: those of another thread's changes would not be paired.
        tensors = tensors.copy()
        texts_only = _take_in(sources, iter(tensors), iter(tensors.values()), len(tensors))
        names_differ = texts_only and "" not in tensors
    else:
        items = list(tensors.items() if isinstance(tensors, Mapping) else _pairs(tensors))
        _take_in(sources, map(_NAME, items), map(_ARRAY, items), len(items))
    if not names_differ:
        _check_names(sources.names)
    return sources


def _take_in(
    sources: Sources, given: Iterator[str | bytes], arrays: Iterator[Any], count: int
) -> bool:
    """Adds so many arrays; True if all names are texts, of which different ones stay different."""
    texts_only = True
    for start in range(0, count, BATCH):
        some, values = list(itertools.islice(given, BATCH)), list(itertools.islice(arrays, BATCH))
        found = _plain_names(some)
        texts_only = texts_only and found is not None
        if found is None:
            try:
                found = list(map(names.user_name, some))
            except InvalidError:
                # An array before that name may be wrong, too.
                for name, value in zip(some, values, strict=True):
                    sources.add(names.user_name(name), value)
                raise
        sources.extend(found, values, count - start - len(some))
    return texts_only


def _plain_names(given: list[Any]) -> list[Any] | None:
    """Return `names.user_name` of each, or the names themselves if all are ASCII; None if they must
    be checked one by one."""
    try:
        joined = "".join(given)
    except TypeError:
        return None
    # At worst it is made of the end of one and the start of the next.
    if names.RESERVED in joined:
        return None
    if joined.isascii():
        return given
    try:
        return list(map(str.encode, given))
    except UnicodeEncodeError:
        return None


def _pairs(tensors: Iterable[tuple[str | bytes, Any]]) -> Iterator[tuple[str | bytes, Any]]:
    wanted = "a mapping of names to arrays, or pairs of these"
    if not hasattr(tensors, "__iter__"):
        raise wrong("tensors", wanted, tensors)
    for pair in tensors:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidError(f"tensors is {wanted}; this {type(pair).__name__} is no pair")
        yield pair[0], pair[1]


def _check_names(given: list[bytes]) -> None:
    """What the C library would find only once earlier tensors are written."""
    different = set(given)
    if b"" in different:
        raise InvalidError("TAB-12: a tensor's name is empty", tensor="")
    if len(different) != len(given):
        twice = max(different, key=Counter(given).__getitem__)
        raise InvalidError("the name is added twice", tensor=names.tensor_text(twice))
