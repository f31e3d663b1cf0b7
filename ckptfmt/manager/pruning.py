# SPDX-License-Identifier: Apache-2.0
"""Remove old checkpoints of a directory without its manager."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ckptfmt._base.arguments import check_progress, invalid
from ckptfmt._base.names import index_name, parse_data_name
from ckptfmt.bundle.completeness import LOOKS_MAX, why_incomplete, why_unsound
from ckptfmt.errors import BusyError, CheckpointNotFoundError, CorruptError, StorageError, warn
from ckptfmt.files.folder import Folder, folder_of
from ckptfmt.files.orphans import METRICS_NAME
from ckptfmt.files.places import identity
from ckptfmt.manager.records import Records
from ckptfmt.manager.retention import decide


@dataclass(frozen=True, slots=True)
class Pruned:
    """What `prune` did, by prefixes, each list oldest first.

    Attributes:
        removed: the checkpoints that were removed; those that would be, in a dry run.
        kept: the sound ones that stay.
        damaged: those that are not sound, which stay as well, with the first problem of each.
        linked: those that stay because a symbolic link that stays leads to one of their files, with
            that link.
        failed: errors of those that could not be removed, or not completely.
    """

    removed: list[str]
    kept: list[str]
    damaged: dict[str, str]
    linked: dict[str, str] = field(default_factory=dict)
    failed: dict[str, StorageError] = field(default_factory=dict)


def prune(
    directory: str,
    keep: int,
    *,
    verify: bool = True,
    by_order: bool = False,
    dry_run: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Pruned:
    """Remove the oldest checkpoints of a directory so that the newest `keep` sound ones stay.

    Only checkpoints that the state file names with their times are managed; those that a manager
    preserves permanently, and those that were saved without one, are not. From the newest on, each
    is checked until `keep` sound ones are found; older ones are removed without being read. Of
    these, what the manager that saved last retains by its options stays: the best, and one of so
    many steps or hours, permanently. Where metrics were saved without `keep_best`, those with the
    smallest and the largest value of each stay.
    Damaged ones among the newer are left as they are and do not count. The one that the state file
    names as the newest stays in any case, and so does one whose files are the targets of symbolic
    links in the directory, unless these links are removed as well. If the newest has no index, a
    CkptfmtWarning names it. The directory is locked to remove checkpoints, not while they are read.

    Args:
        directory: a directory with a `checkpoint` state file, or a URL of one.
        keep: how many sound ones stay, at least 1.
        by_order: whether checkpoints are managed by the order of a state file without times, such
            as `tf.train.Saver` and `tf.train.Checkpoint.save` write.
        verify: True verifies a checkpoint. False checks only its index and the sizes of its data
            files.
        dry_run: whether to remove nothing.
        progress: called as `progress(bytes_done, bytes_total)` for each checkpoint that is checked.

    Raises:
        InvalidError: `keep` is not positive, or the state file has no times, without `by_order`.
        CheckpointNotFoundError: there is no state file.
        BusyError: another process holds the directory's lock, or keeps replacing checkpoints.
        StorageError: a checkpoint cannot be read now, and nothing was removed.
        CorruptError: what managers retain cannot be read; nothing was removed.
        UnsupportedError: a checkpoint cannot be checked by this release; nothing was removed.
    """
    if keep < 1:
        raise invalid("keep", f"keep must be at least 1, got {keep}")
    check_progress(progress)
    records = Records(directory)
    judged: dict[str, _Verdict] = {}
    failed: dict[str, StorageError] = {}
    looks = 0
    with folder_of(directory).opened() as place:
        while True:
            with place.lock():
                records.read(place)
                if records.problem is not None:
                    raise CorruptError(
                        f"{records.problem}, so that nothing says which checkpoints are the best; "
                        "remove the file if none has to stay",
                        failure="BAD_PROTO",
                        path=os.path.join(directory, METRICS_NAME),
                    )
                if records.state is not None and not records.state.all_model_checkpoint_timestamps:
                    if not by_order:
                        raise invalid(
                            "by_order",
                            "the `checkpoint` file has no times, so that nothing says which "
                            "checkpoints a manager may remove; by_order=True goes by its order",
                        )
                    records.manage_by_order(place)
                plan = _plan(records, directory, keep, judged)
                if plan.unknown is None:
                    linked = _linked(place, plan.going)
                    plan.going[:] = [name for name in plan.going if name not in linked]
                    if plan.going and not dry_run:
                        records.last_preserved = plan.last_preserved
                        for name in plan.preserved:
                            del records.managed[name]
                        failed = _remove(place, records, plan.going)
                    break
            looks += 1
            if looks > len(records.managed) + LOOKS_MAX:
                raise BusyError("another process keeps replacing checkpoints", path=directory)
            # The file is identified first, so that one that is replaced meanwhile is read again.
            name = plan.unknown
            prefix = os.path.join(directory, name)
            found = identity(index_name(prefix))
            why = why_unsound(prefix, progress=progress) if verify else why_incomplete(prefix)
            judged[name] = _Verdict(found, why)
    assert records.state is not None
    newest = records.newest
    if newest is not None and newest not in records.managed:
        why = why_incomplete(os.path.join(directory, newest))
        if why is not None:
            warn(f"'{os.path.join(directory, newest)}' is not complete: {why}")
    return Pruned(
        [os.path.join(directory, name) for name in plan.going if name not in failed],
        [os.path.join(directory, name) for name in plan.sound],
        {os.path.join(directory, name): why for name, why in plan.damaged.items()},
        {os.path.join(directory, name): os.path.join(directory, linked[name]) for name in linked},
        {os.path.join(directory, name): error for name, error in failed.items()},
    )


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Why the checkpoint with an index of this identity is not sound; None if it is."""

    index: Any
    why: str | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """The names of managed checkpoints, oldest first: those that stay and those that go.

    Attributes:
        preserved: those that stay permanently from now on.
        unknown: a checkpoint that has to be checked first; None if the others are complete.
    """

    going: list[str]
    sound: list[str]
    damaged: dict[str, str]
    preserved: list[str] = field(default_factory=list)
    last_preserved: float = 0.0
    unknown: str | None = None


def _plan(records: Records, directory: str, keep: int, judged: dict[str, _Verdict]) -> _Plan:
    """Decide what stays, by what was found so far."""
    if records.state is None:
        raise CheckpointNotFoundError(
            "there is no sound `checkpoint` file, which says what a manager saved and when: "
            "remove checkpoints by name with `ckptfmt rm`",
            path=directory,
        )
    newest = records.newest
    sound: list[str] = []
    broken: dict[str, str] = {}
    covered = 0

    def judge(name: str) -> bool:
        """Note whether a checkpoint is sound; False if that has to be found out first."""
        verdict = judged.get(name)
        if verdict is None or verdict.index != identity(index_name(os.path.join(directory, name))):
            return False
        if verdict.why is not None:
            broken[name] = verdict.why
        return True

    for name in reversed(records.managed):
        if len(sound) >= keep and name != newest:
            continue
        if not judge(name):
            return _Plan([], [], {}, unknown=name)
        covered += len(sound) < keep
        if name not in broken:
            sound.append(name)
    # A damaged one is not among the best: the next one is.
    while best := records.best(broken) - {newest, *sound, *broken}:
        for name in sorted(best):
            if not judge(name):
                return _Plan([], [], {}, unknown=name)
        if not best & broken.keys():
            break
    queue = [*map(records.queued, records.managed)]
    policy = dataclasses.replace(records.policy, max_to_keep=covered)
    stay = {newest or "", *records.best(broken), *broken}
    decided = decide(queue, records.last_preserved, policy, stay=stay)
    place = {name: at for at, name in enumerate(records.managed)}
    return _Plan(
        [one.name for one in decided.deleted],
        sound[::-1],
        dict(sorted(broken.items(), key=lambda item: place.get(item[0], -1))),
        [one.name for one in decided.preserved],
        decided.last_preserved,
    )


def _linked(place: Folder, going: Iterable[str]) -> dict[str, str]:
    """Return the checkpoints that must not go, in their order: a symbolic link in the directory
    that stays leads to one of their files. The values are these links."""
    leads = [(name, _owner(name), set(map(_owner, found))) for name, found in place.links()]
    rest, found = list(going), dict[str, str]()
    while True:
        left = set(rest).difference(found)
        more = {
            one: name
            for name, owner, owners in reversed(leads)
            if owner not in left
            for one in owners
            if one in left
        }
        if not more:
            return {name: found[name] for name in rest if name in found}
        found |= more


def _owner(name: str) -> str | None:
    """Return the checkpoint to which a file with this name belongs."""
    data = parse_data_name(name)
    if data is not None:
        return data.prefix
    return name.removesuffix(".index") if name.endswith(".index") else None


def _remove(place: Folder, records: Records, going: list[str]) -> dict[str, StorageError]:
    assert records.state is not None
    failed = place.remove_all(going)
    for name in going:
        if name not in failed or not place.exists(name):
            records.managed.pop(name, None)
            records.scored.pop(name, None)
            records.changed.pop(name, None)
    records.write(place, records.newest or records.state.model_checkpoint_path)
    records.write_metrics(place)
    return failed
