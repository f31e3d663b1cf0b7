# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint is complete: its index is sound, and its data files have the sizes that it
needs; and whether it is sound: `verify` finds no problem."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable

import numpy as np

from ckptfmt import _core
from ckptfmt._base import names
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.verify import verify_all
from ckptfmt.errors import (
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    GenerationGoneError,
    LimitError,
    ShardMissingError,
    StorageError,
    UnsupportedError,
    masked,
    storage_errors,
)
from ckptfmt.files.places import MISSING, file_size, identity

# How often a checkpoint or directory is looked at again because another process replaced a file
# meanwhile.
LOOKS_MAX = 100


def proves_damage(error: CkptfmtError) -> bool:
    """Return whether the error proves that a checkpoint is damaged or incomplete: its bytes are
    wrong, or a file is missing."""
    if isinstance(error, StorageError):
        gone = (CheckpointNotFoundError, GenerationGoneError, ShardMissingError)
        return isinstance(error, gone) or error.errno in MISSING
    return isinstance(error, (CorruptError, LimitError))


def why_incomplete(prefix: str, tensors: Iterable[str] | None = None) -> str | None:
    """Return what is wrong with the files of a checkpoint; None if it is complete.

    Reads the whole index, and only the sizes of the data files. A checkpoint that is replaced
    meanwhile is looked at again. With `tensors`, the data files of only these count.

    Raises:
        StorageError: a file exists and cannot be read now.
    """
    index = names.index_name(prefix)
    for _ in range(LOOKS_MAX):
        before = identity(index)
        if before is None:
            return "it has no index"
        try:
            found = missing_data(prefix, tensors)
        except UnsupportedError:
            return None  # not damaged; opening it reports what this release lacks
        if found is None or identity(index) == before:
            return found
    return "it is being replaced"


def uncovered(reader: Reader, tensors: Container[str] | None = None) -> CorruptError | None:
    """Return the error about the first tensor that its slices do not cover, or whose slices are
    wrong, and how many more there are; None if all are covered. With `tensors`, only these count.

    Raises:
        UnsupportedError, LimitError, StorageError: a slice cannot be read.
    """
    listing = reader._listing()
    found: list[CorruptError] = []
    for row in np.flatnonzero(listing.selection.rows["slice_count"]).tolist():
        if tensors is None or listing.names[row] in tensors:
            try:
                reader._handle.check_one(listing.selection, row, None)
            except CorruptError as error:
                found.append(error)
    if len(found) > 1:
        found[0].hint(f" (and {len(found) - 1} more tensor{'s' * (len(found) > 2)})")
    return found[0] if found else None


def check_covered(reader: Reader, tensors: Container[str] | None = None) -> None:
    """Raise the error of `uncovered`, if there is one."""
    if error := uncovered(reader, tensors):
        raise error


def check_complete(prefix: str, tensors: Iterable[str] | None = None) -> None:
    """Raise CorruptError if a checkpoint, or what it has of these tensors, is not complete; other
    errors as `why_incomplete`."""
    why = why_incomplete(prefix, tensors)
    if why is not None:
        raise CorruptError(why, failure="TRUNCATED", path=prefix)


def why_unsound(prefix: str, *, progress: Callable[[int, int], object] | None = None) -> str | None:
    """Verify a checkpoint. Return the first problem, and how many there are; None if it is sound.

    Args:
        prefix: the checkpoint.
        progress: as in `verify`.

    Raises:
        StorageError: a file exists and cannot be read now.
        UnsupportedError: it needs a newer version.
        MemoryError.
    """
    try:
        report = verify_all(prefix, progress=progress)
    except CkptfmtError as error:
        if not proves_damage(error):
            raise
        return str(error)
    if report.ok:
        return None
    for problem in report.problems:
        if problem.failure == "OS":
            raise problem.error(StorageError)
        if problem.status == "UNSUPPORTED":
            raise problem.error(UnsupportedError)
        if problem.status == "NO_MEMORY":
            raise MemoryError(problem.message)
    more = f" and {len(report.problems) - 1} more" if len(report.problems) > 1 else ""
    return f"{report.problems[0]}{more}"


def missing_data(prefix: str, tensors: Iterable[str] | None = None) -> str | None:
    """Return what is wrong with the files of a checkpoint that no other process replaces; None if
    it is complete.

    Raises:
        StorageError: a file exists and cannot be read now.
        UnsupportedError: it needs a newer version.
    """
    try:
        with Reader(prefix) as reader:
            selection, num_shards = reader._handle.list_all(), reader.header.num_shards
            handles = None if tensors is None else [reader[name] for name in tensors]
    except UnsupportedError:
        raise
    except CkptfmtError as error:
        if not proves_damage(error):
            raise
        return str(error)
    rows = selection.rows
    stored = np.concatenate(
        [rows["stored"][rows["slice_count"] == 0], selection.slice_rows["stored"]]
    )
    if handles is not None:
        values = (one._selection.stored_values(one._row) for one in handles)
        stored = np.array(list(itertools.chain.from_iterable(values)), stored.dtype)
    ends = stored["offset"] + stored["size"]
    ends[ends < stored["offset"]] = np.iinfo(ends.dtype).max
    for shard in _core.distinct(stored["shard"]):
        path = names.data_name(prefix, shard, num_shards)
        needed = int(ends[stored["shard"] == shard].max())
        try:
            with storage_errors(path):
                size = file_size(path)
        except StorageError as error:
            if error.errno not in MISSING:
                raise
            return f"{masked(path)}: {error.message}"
        if size < needed:
            return f"{masked(path)} has {size} bytes of {needed}"
    return None
