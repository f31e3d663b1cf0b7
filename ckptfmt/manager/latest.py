# SPDX-License-Identifier: Apache-2.0
"""Find the newest checkpoint of a directory, and wait for newer ones.

The checkpoint that the state file names as the newest is taken if it is in the directory and is
complete. Otherwise the newest complete one of these is taken:

    1. the other checkpoints that the state file names, newest first; before one of them those
       between it and the newest by the number of `<base>-<number>`, which are kept for good;
    2. the rest of the directory: `<base>-<number>` of one base name by number, all others by the
       time of their index.

Timestamps in the state file are ignored, because clocks are unreliable. Only what the bytes of a
checkpoint prove, or a missing file, rejects it; any other error of the storage is raised.
"""

from __future__ import annotations

import heapq
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptfmt._base import names
from ckptfmt._base.arguments import invalid, wrong
from ckptfmt._base.names import path_text
from ckptfmt._base.progress import Progress
from ckptfmt.bundle.completeness import (
    LOOKS_MAX,
    proves_damage,
    why_incomplete,
    why_unsound,
)
from ckptfmt.errors import CkptfmtError, StorageError, warn
from ckptfmt.files.folder import folder_of
from ckptfmt.files.places import identity, is_file, is_there
from ckptfmt.files.state_file import (
    CheckpointState,
    read_state_file,
    state_path,
)
from ckptfmt.files.state_paths import StatePaths

Path = str | bytes | os.PathLike[Any]

# Seconds between two polls for a new checkpoint, as in TensorFlow.
PAUSE = 1.0

_NUMBERED = re.compile(r"(.*)-([0-9]{1,255})", re.DOTALL)  # no file's name is longer


def latest_checkpoint(directory: Path, latest_filename: Path | None = None) -> str | None:
    """Return the prefix of a directory's newest complete checkpoint; as
    `tf.train.latest_checkpoint`, which does not look whether it is complete.

    A checkpoint is complete if its index is sound and all its data files exist and are long enough;
    tensors are not read. If the state file does not lead to a complete checkpoint, another one is
    searched for, with a CkptfmtWarning that states why; without one if the state file changes
    meanwhile and there is a later one of the same name. Nothing outside the directory is opened.

    >>> checkpoint = ckptfmt.Checkpoint(step=7)
    >>> checkpoint.save("run/ckpt"), checkpoint.save("run/ckpt")
    ('run/ckpt-1', 'run/ckpt-2')
    >>> ckptfmt.latest_checkpoint("run")
    'run/ckpt-2'

    Args:
        directory: where the checkpoints are: str, bytes or os.PathLike, or a URL.
        latest_filename: name of the state file in it; None: "checkpoint".

    Returns:
        `directory` joined with the name; None if there is no complete checkpoint.

    Raises:
        InvalidError: a path that cannot be used.
        StorageError: a file or the directory cannot be read now, although it exists.
    """
    prefix, problem = _look(path_text(directory, "directory", urls=True), latest_filename)
    if problem is not None:
        warn(problem)
    return prefix


def newest_sound(directory: str, progress: Progress | None = None) -> str | None:
    """Return the prefix of a directory's newest checkpoint in which `verify` finds no problem; None
    if there is none. Each one that is not sound causes a CkptfmtWarning.

    Raises:
        StorageError: a file or the directory cannot be read now, although it exists.
    """
    state, unreadable = _read_state(state_path(directory, None))
    if unreadable is not None:
        warn(f"{directory}: {unreadable}")
    for prefix in candidates(directory, state):
        why = why_unsound(prefix, progress=progress)
        if why is None:
            return prefix
        warn(f"'{prefix}' is not sound: {why}")
    return None


# ---- a directory ---------------------------------------------------------------------------------


def _look(directory: str, latest_filename: Path | None) -> tuple[str | None, str | None]:
    """Return the newest complete checkpoint, and why it is not the one that the state file names.

    If the state file changes meanwhile, what it named may be removed for a later one, which is
    taken; the search is repeated if that is removed as well.
    """
    path = state_path(directory, latest_filename)
    for _ in range(LOOKS_MAX):
        before = identity(path)
        state, unreadable = _read_state(path)
        prefix, problem = newest_complete(directory, state)
        if (unreadable is None and problem is None) or identity(path) == before:
            break
        if state is not None and (later := _later(directory, state)) is not None:
            return later, None
    problems = [one for one in (unreadable, problem) if one is not None]
    if state is None and unreadable is None and (prefix or problem):
        problems.insert(0, "there is no state file")
    if not problems:
        return prefix, None
    end = f"'{prefix}' is taken" if prefix else "no checkpoint is complete"
    return prefix, f"{path}: {'; '.join([*problems, end])}"


def _later(directory: str, state: CheckpointState) -> str | None:
    """Return the newest complete checkpoint of the base name of the newest that the state file
    names, with a higher number."""
    base, last = _split(StatePaths(directory, state).name(state.model_checkpoint_path) or "")

    def follows(name: str) -> bool:
        of, number = _split(name)
        return of == base and number is not None and last is not None and number > last

    begin = len(os.path.join(directory, ""))
    found = (one for one in candidates(directory, state, follows) if follows(one[begin:]))
    return next((one for one in found if why_incomplete(one) is None), None)


def _read_state(path: str) -> tuple[CheckpointState | None, str | None]:
    """Return the content of a state file, or what is wrong with it; neither if it is missing."""
    try:
        if not is_there(path):
            return None, None
        return read_state_file(path), None
    except CkptfmtError as error:
        if not proves_damage(error):
            raise
        return None, error.message


def newest_complete(
    directory: str,
    state: CheckpointState | None,
    wanted: Callable[[str], bool] = lambda _: True,
) -> tuple[str | None, str | None]:
    """Return the prefix of the newest complete checkpoint, and the problems that were found
    before it.

    Args:
        directory, state, wanted: as in `candidates`.

    Raises:
        StorageError: a file or the directory exists and cannot be read now.
    """
    problems: list[str] = []
    newest = None if state is None else state.model_checkpoint_path
    name = None
    if newest == "":
        problems.append("model_checkpoint_path is missing")
    elif state is not None and newest:
        paths = StatePaths(directory, state)
        name = paths.name(newest)
        if paths.is_moved(newest):
            problems.append(f"model_checkpoint_path '{newest}' leads outside the directory")
    named = name and os.path.join(directory, name)
    skipped = False
    for prefix in candidates(directory, state, wanted):
        why = why_incomplete(prefix)
        if why is None:
            return prefix, "; ".join(problems) or None
        if prefix == named:
            problems.append(f"'{prefix}', the newest it names, is not complete: {why}")
        elif not skipped:
            problems.append(f"'{prefix}' is not complete: {why}")
            skipped = True
    return None, "; ".join(problems) or None


def candidates(
    directory: str,
    state: CheckpointState | None,
    wanted: Callable[[str], bool] = lambda _: True,
) -> Iterator[str]:
    """Yield the prefixes that may be the newest checkpoint, each once, in the order to try them.

    Args:
        directory: where the checkpoints are.
        state: the content of its state file; None if it is missing or damaged.
        wanted: whether to yield a checkpoint that the state file does not name, by its name.

    Raises:
        StorageError: the directory exists and cannot be listed now.
    """
    begin = os.path.join(directory, "")
    state = CheckpointState() if state is None else state
    paths = StatePaths(directory, state)
    tried: set[str] = set()
    newest = paths.name(state.model_checkpoint_path)
    if newest is not None:
        tried.add(newest)
        yield begin + newest
    listed = {found.name: found for found in _listed(directory)}
    # There may be a million of these: those right in the directory are looked up in its listing.
    found = (paths.name(path, listed) for path in reversed(state.all_model_checkpoint_paths))
    named = dict.fromkeys(name for name in found if name is not None)
    between = _before(newest or "", [listed[name] for name in listed.keys() - named.keys()])
    for name in named:
        base, number = _split(name)
        while between and between[-1].base == base and (between[-1].number or 0) > (number or 0):
            one = between.pop()
            if wanted(one.name):
                tried.add(one.name)
                yield begin + one.name
        if name not in tried and (
            name in listed or ("/" in name and is_file(names.index_name(begin + name)))
        ):
            tried.add(name)
            yield begin + name
    for one in _ordered(listed.values()):
        if wanted(one.name) and one.name not in tried:
            yield begin + one.name


@dataclass(frozen=True)
class _Listed:
    """A checkpoint in a listing: its name, split into base and number, and its index's time."""

    name: str
    base: str
    number: int | None
    mtime_ns: int


def _listed(directory: str) -> list[_Listed]:
    return [_Listed(name, *_split(name), time) for name, time in folder_of(directory).indexed()]


def _split(name: str) -> tuple[str, int | None]:
    match = _NUMBERED.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)


def _before(newest: str, listed: Iterable[_Listed]) -> list[_Listed]:
    """Return those of the same base name and lower numbers than this name, lowest first."""
    base, end = _split(newest)
    found = [one for one in listed if one.base == base and one.number is not None]
    return sorted(
        (one for one in found if end is not None and (one.number or 0) < end),
        key=lambda one: one.number or 0,
    )


def _ordered(listed: Iterable[_Listed]) -> Iterator[_Listed]:
    """Newest first: the numbers of a base name by number, and these and all others by time."""
    groups: dict[tuple[str, bool], list[_Listed]] = {}
    for found in listed:
        groups.setdefault((found.base, found.number is None), []).append(found)
    heap: list[tuple[int, str, list[_Listed]]] = []
    for group in groups.values():
        group.sort(key=lambda found: (found.number or 0, found.mtime_ns, found.name))
        heap.append((-group[-1].mtime_ns, group[-1].name, group))
    heapq.heapify(heap)
    while heap:
        _, _, group = heapq.heappop(heap)
        yield group.pop()
        if group:
            heapq.heappush(heap, (-group[-1].mtime_ns, group[-1].name, group))


# ---- waiting -------------------------------------------------------------------------------------


def checkpoints_iterator(
    checkpoint_dir: Path,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], object] | None = None,
) -> Iterator[str]:
    """Yield the newest checkpoint of a directory, then each newer one once it is there.

    The directory is examined only when the next checkpoint is requested: checkpoints that another
    one followed meanwhile are skipped. The directory need not exist yet.

    Args:
        checkpoint_dir: the directory.
        min_interval_secs: seconds between two checkpoints at least.
        timeout: seconds to wait for a checkpoint; None waits without end.
        timeout_fn: called after each checkpoint and after each timeout; a true result ends the
            iterator. Without it a timeout does.

    Raises:
        InvalidError: an argument of a wrong type, or a path that cannot be used. While waiting,
            problems are warnings as in `ckptfmt.latest_checkpoint`, each once, and the next poll
            tries again.
    """
    check_waiting(min_interval_secs, timeout, timeout_fn)
    newest = _watched(path_text(checkpoint_dir, "checkpoint_dir", urls=True))
    return iterate(newest, min_interval_secs, timeout, timeout_fn)


def check_waiting(interval: object, timeout: object, timeout_fn: object) -> None:
    """Check the arguments of an iterator over checkpoints before it waits."""
    for what, seconds in (("min_interval_secs", interval), ("timeout", timeout)):
        if seconds is None and what == "timeout":
            continue
        if not isinstance(seconds, (int, float, np.number)) or np.isnan(seconds):
            raise invalid(what, f"{what} must be a number of seconds, not {seconds!r}")
    if timeout_fn is not None and not callable(timeout_fn):
        raise wrong("timeout_fn", "a function", timeout_fn)


def iterate(
    newest: Callable[[], str | None],
    interval: float,
    timeout: float | None,
    timeout_fn: Callable[[], object] | None,
) -> Iterator[str]:
    """Yield what `newest` returns whenever it is another checkpoint than before."""
    last: str | None = None
    while True:
        found = _wait(newest, last, timeout)
        if found is not None:
            last, begun = found, time.monotonic()
            yield found
            left = begun + interval - time.monotonic()
            if left > 0:
                time.sleep(left)
        elif timeout_fn is None:
            return
        if timeout_fn is not None and timeout_fn():
            return


def _wait(newest: Callable[[], str | None], last: str | None, timeout: float | None) -> str | None:
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        found = newest()
        if found is not None and found != last:
            return found
        if end is not None and time.monotonic() + PAUSE > end:
            return None
        time.sleep(PAUSE)


def _watched(directory: str) -> Callable[[], str | None]:
    """Return `latest_checkpoint` of a directory for a poller: it warns of each problem once."""
    known: str | None = None

    def newest() -> str | None:
        nonlocal known
        problem: str | None
        try:
            prefix, problem = _look(directory, None)
        except StorageError as error:
            prefix, problem = None, str(error)
        if problem is not None and problem != known:
            warn(problem)
        known = problem
        return prefix

    return newest
