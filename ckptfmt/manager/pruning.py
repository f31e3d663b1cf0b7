# SPDX-License-Identifier: Apache-2.0
"""Remove old checkpoints of a directory without its manager."""

from __future__ import annotations

import os

from ckptfmt.bundle.completeness import why_incomplete
from ckptfmt.errors import CheckpointNotFoundError, CkptfmtError, InvalidError
from ckptfmt.manager.directory import CheckpointDirectory
from ckptfmt.manager.records import Records
from ckptfmt.manager.retention import Policy, Queued, decide
from ckptfmt.manager.store_directory import Directory, StoreDirectory
from ckptfmt.names import is_url

__all__ = ["prune"]


def prune(directory: str, keep: int, *, dry_run: bool = False) -> list[str]:
    """Remove the oldest checkpoints of a directory, as its manager would with `max_to_keep=keep`.

    Removed are checkpoints that the state file names with their times; the newest stays. Those
    that a manager preserves permanently, and those that were saved without one, are not in it.

    Args:
        directory: a directory with a `checkpoint` state file, or a URL of one.
        keep: how many of the newest stay, at least 1.
        dry_run: whether to remove nothing.

    Returns:
        The prefixes that were removed, oldest first.

    Raises:
        InvalidError: `keep` is not positive, or none of those that would stay is complete.
        CheckpointNotFoundError: there is no state file.
        BusyError: another process holds the directory's lock.
        StorageError: a checkpoint could not be removed; the others were.
    """
    if keep < 1:
        raise InvalidError(f"keep must be at least 1, got {keep}")
    opened: Directory = (
        StoreDirectory(directory) if is_url(directory) else CheckpointDirectory(directory)
    )
    with opened as place, place.lock():
        records = Records(directory)
        records.read(place)
        if records.state is None:
            raise CheckpointNotFoundError(
                "there is no sound `checkpoint` file, which says what a manager saved and when",
                path=directory,
            )
        newest = records.state.model_checkpoint_path
        queue = [Queued(name, moment) for name, moment in records.managed.items()]
        decided = decide(queue, records.last_preserved, Policy(max_to_keep=keep))
        going = [one.name for one in decided.deleted if one.name != os.path.basename(newest)]
        staying = [one.name for one in reversed(queue) if one.name not in going]
        if going and all(_is_incomplete(directory, name) for name in staying):
            raise InvalidError(
                "none of the checkpoints that would stay is complete", path=directory
            )
        if not dry_run and going:
            _remove(place, records, going, newest)
    return [os.path.join(directory, name) for name in going]


def _is_incomplete(directory: str, name: str) -> bool:
    return why_incomplete(os.path.join(directory, name)) is not None


def _remove(place: Directory, records: Records, going: list[str], newest: str) -> None:
    failed: dict[str, CkptfmtError] = {**place.remove_all(going)}
    for name in going:
        if name not in failed or not place.exists(name):
            records.managed.pop(name, None)
            records.scored.pop(name, None)
    records.write(place, newest)
    records.write_metrics(place)
    for error in failed.values():
        raise error
