# SPDX-License-Identifier: Apache-2.0
"""save, save_async and save_v2: whole checkpoints in one call, over `ckptfmt.bundle.writer`.

The queue of background saves and its futures are in `ckptfmt._base.background`, the memory of the
copies in `ckptfmt.bundle.snapshot`.
"""

from __future__ import annotations

import itertools
import operator
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ckptfmt import _core
from ckptfmt._base import names, slices
from ckptfmt._base.adapters import refused
from ckptfmt._base.arguments import (
    Durability,
    Level,
    check_order,
    check_progress,
    check_sized,
    invalid,
)
from ckptfmt._base.arrays import BATCH, Sources
from ckptfmt._base.background import SaveFuture, SaveQueue, Work, wait_for_saves
from ckptfmt._base.progress import Progress
from ckptfmt._base.save_options import SaveOptions
from ckptfmt.bundle import writer as writing
from ckptfmt.bundle.snapshot import Snapshot
from ckptfmt.errors import InvalidError

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
    progress: Progress | None = None,
    compression: str | None = None,
    shards: int | None = None,
) -> None:
    """Save named arrays as one checkpoint, all or nothing, in the order given.

    With `base`, only tensors whose bytes have changed since that checkpoint are written, into one
    data file. All others are read from the base and compared; their data files get a second name
    (hard link) in the new checkpoint, which is complete without the base. Tensors are written again
    if the base stores them compressed or in slices, if their data file cannot be linked (another
    file system), if more than half of it is dead, or if there would be more than 64 data files.

    Waits first for a background save (`save_async`). An array that another thread changes meanwhile
    may be stored torn, partly old and partly new; the checkpoint can be loaded all the same.

    >>> ckptfmt.save("model", {"layer/kernel": np.ones((2, 3)), "step": 7}, metadata={"epoch": 1})
    >>> ckptfmt.load("model")["layer/kernel"].shape
    (2, 3)

    Args:
        prefix: path without extension: str, bytes, os.PathLike or URL; directories are made.
        tensors: names (str or bytes) to arrays of any shape, or pairs of these: NumPy arrays,
            arrays of any framework in CPU memory (DLPack), buffers, or what `np.asarray` takes; str
            is stored as UTF-8.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        base: an earlier checkpoint (a prefix, a directory, a SavedModel or a URL); it may be the
            one at `prefix`, which the new one replaces. Linked tensors stay as the base stores
            them: those of a base of level "v2" have no chunk checksums.
        progress: called as `progress(done, total)` with two ints, of bytes of the arrays. Unchanged
            tensors are done once they have been compared.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        shards: the number of data files, 1 to 1024, each written by its own thread. None: one for
            each whole 64 MiB of array data, but at most 16, the processors that this process may
            use, and the total size divided by that of the largest array, rounded up; one with
            `compression` or `base`. A checkpoint that replaces another one can have one more.

    Raises:
        InvalidError: a name or an array that cannot be stored; checked before anything is written.
        CheckpointNotFoundError: there is no checkpoint at `base`.
        CorruptError, UnsupportedError, LimitError: the index of the base cannot be read. (Damaged
            tensors of the base count as changed.)
        StorageError: it could not be written; an older checkpoint there is unchanged.
        DurabilityUnknownError: it is in place, but a power cut may bring the older one back.
    """
    check_progress(progress)
    check_order("save(prefix, tensors)", "prefix", prefix, tensors)
    options = SaveOptions(
        level=level, alignment=alignment, durability=durability, compression=compression
    )
    text, count = writing.metadata_json(metadata, level), writing.check_shards(shards)
    wait_for_saves()
    target, sources = names.prefix_text(prefix, urls=True), collect(tensors)
    writing.write_sources(
        target, sources, progress, options, metadata=text, base=base, shards=count
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
    progress: Progress | None = None,
    compression: str | None = None,
    shards: int | None = None,
) -> SaveFuture:
    """Save named arrays as `save` does, with the same bytes, in the background. Return when all
    arrays are copied: later changes of them do not affect the checkpoint.

    A process writes one background save at a time: every other save waits for it before it copies
    anything. The memory of the copies is freed after the save; a Saver with `enable_async` keeps
    its own for its next save, which is faster. An interpreter that exits waits for the save; after
    `os._exit` or a kill the older checkpoint is unchanged.

    >>> future = ckptfmt.save_async("model", {"step": 7})
    >>> future.result()  # waits, and raises what failed
    'model'

    Args:
        prefix: path without extension: str, bytes, os.PathLike or URL; directories are made. A
            relative one is joined to the current directory now.
        tensors: names (str or bytes) to arrays of any shape, or pairs of these: NumPy arrays,
            arrays of any framework in CPU memory (DLPack), buffers, or what `np.asarray` takes; str
            is stored as UTF-8.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        base: an earlier checkpoint (a prefix, a directory, a SavedModel or a URL): tensors whose
            bytes have not changed since are linked, not written. Compared in the background.
        progress: called as `progress(done, total)` with two ints, of bytes of the arrays, from the
            background thread.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        shards: the number of data files, 1 to 1024, each written by its own thread; None: by the
            size of the arrays, one with `compression` or `base`.

    Returns:
        A future of the prefix.

    Raises:
        InvalidError: a name or an array that cannot be stored; nothing is written.
        MemoryError: not enough memory for the copies; nothing is written. Errors of the write
            itself are raised by the future.
    """
    check_order("save_async(prefix, tensors)", "prefix", prefix, tensors)
    options = SaveOptions(
        level=level, alignment=alignment, durability=durability, compression=compression
    )
    text, count = writing.metadata_json(metadata, level), writing.check_shards(shards)
    return save_sources_async(
        prefix,
        lambda: collect(tensors),
        progress,
        options,
        metadata=text,
        base=base,
        shards=count,
    )


def save_sources_async(
    prefix: Path,
    take: Callable[[], Sources],
    progress: Progress | None,
    options: SaveOptions,
    *,
    metadata: bytes | None,
    base: Path | None = None,
    shards: int | None = None,
) -> SaveFuture:
    """Save what `take` returns in the background; its arrays are copied before this returns.

    Raises:
        As `save_async`.
    """
    check_progress(progress)
    target = names.prefix_text(prefix, urls=True)
    place = names.absolute(target)
    _core.path_bytes(place)
    earlier = None if base is None else names.absolute(names.path_text(base, "base", urls=True))
    wait_for_saves()
    sources = take()

    def prepare() -> Work:
        snapshot = Snapshot([sources])

        def work() -> None:
            with snapshot:
                writing.write_sources(
                    place,
                    snapshot.copied[0],
                    progress,
                    options,
                    metadata=metadata,
                    base=earlier,
                    shards=shards,
                )

        return work

    return SaveQueue().begin(target, prepare)


def save_v2(
    prefix: Path,
    tensor_names: Sequence[str | bytes],
    shape_and_slices: Sequence[str | bytes],
    tensors: Sequence[Any],
) -> None:
    """Save as TensorFlow's SaveV2 op (`tf.raw_ops.SaveV2`): the same arguments and, on a fresh
    prefix, the same bytes.

    >>> ckptfmt.save_v2("model", ["w", "b"], ["4 2 0,3:-", ""], [np.zeros((3, 2)), np.ones(2)])
    >>> ckptfmt.restore_v2("model", ["w"], ["4 2 1,2:-"])[0].shape
    (2, 2)

    Args:
        prefix: path without extension: str, bytes, os.PathLike or URL; directories are made.
        tensor_names: str or bytes, one for each tensor. A name may repeat with different slices.
        shape_and_slices: str or bytes, one for each tensor: "" for a whole tensor, else its full
            shape and the slice: "4 6 0,2:-" is rows 0 and 1 of 4, all 6 columns.
        tensors: arrays, one for each name, with the slice's shape: of NumPy, of any framework in
            CPU memory, or what `np.asarray` takes.

    Raises:
        InvalidError: the three have different lengths or are empty, a text is malformed or does not
            fit its array, a name is empty or reserved.
        StorageError: it could not be written; an older checkpoint there is unchanged.
        DurabilityUnknownError: it is in place, but a power cut may bring the older one back.
    """
    slices.check_texts(tensor_names, shape_and_slices)
    check_sized("tensors", tensors, "arrays")
    if len(tensor_names) != len(tensors):
        raise invalid(
            "tensors", f"Got {len(tensor_names)} tensor names but {len(tensors)} tensors."
        )
    if not len(tensors):
        raise invalid("tensors", "save_v2 needs at least one tensor, as SaveV2 does")
    sources = Sources()
    for name, spec, tensor in zip(tensor_names, shape_and_slices, tensors, strict=True):
        sources.add(names.user_name(name, "tensor_names"), tensor)
        if spec:
            writing.set_spec(sources, spec)
    wait_for_saves()
    target = names.path_text(prefix, "prefix", urls=True)
    writing.write_sources(target, sources, None, SaveOptions(level="v2"), shards=1)


def collect(
    tensors: Mapping[str, Any] | Mapping[bytes, Any] | Iterable[tuple[str | bytes, Any]],
) -> Sources:
    """Return named arrays as the writer takes them, all checked."""
    sources, names_differ = Sources(), False
    if type(tensors) is dict:
        # Another thread may change the dict while names and arrays are read separately.
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
    """Add `count` arrays. Return whether all names are str: different ones then stay different
    when encoded."""
    texts_only = True
    for start in range(0, count, BATCH):
        some, values = list(itertools.islice(given, BATCH)), list(itertools.islice(arrays, BATCH))
        found = _plain_names(some)
        texts_only = texts_only and found is not None
        if found is None:
            try:
                found = list(map(names.user_name, some))
            except InvalidError:
                # An earlier array may be wrong, too, and is reported first.
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
    # At worst it spans two names, and they are checked one by one.
    if names.RESERVED in joined:
        return None
    if joined.isascii():
        return given
    try:
        return list(map(str.encode, given))
    except UnicodeEncodeError:
        return None


def _pairs(tensors: Iterable[tuple[str | bytes, Any]]) -> Iterator[tuple[str | bytes, Any]]:
    wanted = "tensors must be a mapping of names to arrays, or pairs of these"
    if isinstance(tensors, (str, bytes)) or not hasattr(tensors, "__iter__"):
        raise refused(wanted, tensors, "tensors")
    for pair in tensors:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise invalid("tensors", f"{wanted}, got {type(pair).__name__} as a pair")
        yield pair[0], pair[1]


def _check_names(given: list[bytes]) -> None:
    """Refuse empty and repeated names before anything is written."""
    different = set(given)
    if b"" in different:
        raise InvalidError("TAB-12: a tensor's name is empty", tensor="")
    if len(different) != len(given):
        twice = max(different, key=Counter(given).__getitem__)
        raise InvalidError("the name is added twice", tensor=names.tensor_text(twice))
