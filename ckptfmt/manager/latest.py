# SPDX-License-Identifier: Apache-2.0
"""The newest checkpoint of a directory, and waiting for newer ones.

The state file is believed as far as it can be: what it names as the newest is taken if that lies in
the directory and is complete. Otherwise the newest complete one is looked for, in this order:

    1. what the state file does not name and is plainly newer than it: of a larger number than all
       that it names of this base name, and written after it (a crash came between the two);
    2. what else the state file names, newest first;
    3. the rest of the directory.

Within 1 and 3, checkpoints `<base>-<number>` of one base name go by their number, and all others by
the time of their index. Timestamps in the state file are not looked at: clocks lie.
"""

from __future__ import annotations

import heapq
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ckptfmt import names
from ckptfmt.arguments import wrong
from ckptfmt.bundle.checkpoint_state import CheckpointState
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.state_file import read_state_file, state_path
from ckptfmt.errors import CkptfmtError, CkptfmtWarning, InvalidError
from ckptfmt.names import path_text

__all__ = ["checkpoints_iterator", "latest_checkpoint", "why_incomplete"]

Path = str | bytes | os.PathLike[Any]

# Seconds between two looks for a new checkpoint, as TensorFlow's.
PAUSE = 1.0
# A directory changed less than this many seconds ago may change again without a new time.
RECENT = 5.0
# How often a checkpoint is looked at that is replaced meanwhile; a directory whose state file is.
LOOKS_MAX = 3
STATES_MAX = 100

_NUMBERED = re.compile(r"(.*)-([0-9]+)", re.DOTALL)


def latest_checkpoint(directory: Path, latest_filename: Path | None = None) -> str | None:
    """The prefix of a directory's newest complete checkpoint.

    Complete is a checkpoint whose index is sound and whose data files are all there and long
    enough; the tensors in them are not read. Where the state file does not lead to one, another is
    looked for, and a CkptfmtWarning tells why. Nothing outside the directory is looked at.

    Args:
        directory: where the checkpoints are.
        latest_filename: name of the state file in it; default "checkpoint".

    Returns:
        `directory` and the name in it (or the path as the state file has it, if that is absolute);
        None if there is no complete checkpoint.

    Raises:
        InvalidError: no usable path.
    """
    look = _look(path_text(directory), latest_filename)
    if look.problem is not None:
        warnings.warn(look.problem, CkptfmtWarning, stacklevel=2)
    return look.prefix


# ---- one checkpoint ------------------------------------------------------------------------------


def why_incomplete(prefix: str) -> str | None:
    """What is wrong with the files of a checkpoint, as a text; None for a complete one.

    The whole index is read, and of the data files no more than their sizes.
    """
    index = names.index_name(prefix)
    for _ in range(LOOKS_MAX):
        before = _identity(index)
        if before is None:
            return "it has no index"
        found = _missing_data(prefix)
        if found is None or _identity(index) == before:
            return found
    return "it is being replaced"


def _identity(path: str) -> tuple[int, int, int, int] | None:
    """What changes when another file takes the place of this one."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size


def _missing_data(prefix: str) -> str | None:
    try:
        with Reader(prefix) as reader:
            selection, num_shards = reader._handle.list_all(), reader.header.num_shards
    except CkptfmtError as error:
        return str(error)
    rows = selection.rows
    stored = np.concatenate(
        [rows["stored"][rows["slice_count"] == 0], selection.slice_rows["stored"]]
    )
    ends = stored["offset"] + stored["size"]
    ends[ends < stored["offset"]] = np.iinfo(ends.dtype).max
    for shard in np.unique(stored["shard"]).tolist():
        path = names.data_name(prefix, shard, num_shards)
        needed = int(ends[stored["shard"] == shard].max())
        try:
            size = os.stat(path).st_size
        except OSError as error:
            return f"{path}: {error.strerror}"
        if size < needed:
            return f"{path} has {size} bytes of {needed}"
    return None


# ---- a directory ---------------------------------------------------------------------------------


@dataclass
class _Look:
    """What one look at a directory found.

    `settled` means that as long as neither the state file nor the directory changes, another look
    finds the same.
    """

    prefix: str | None = None
    problem: str | None = None
    settled: bool = True


@dataclass(frozen=True)
class _Found:
    """A checkpoint in a listing: its name, split into base and number, and its index's time."""

    name: str
    base: str
    number: int | None
    mtime_ns: int


@dataclass
class _Recorded:
    """What the state file names, newest first; those that lead outside left out."""

    newest: str | None = None
    older: list[str] = field(default_factory=list)
    problem: str | None = None
    mtime_ns: int | None = None


def _look(directory: str, latest_filename: Path | None) -> _Look:
    path = state_path(directory, latest_filename)
    for _ in range(STATES_MAX):
        before = _identity(path)
        look = _look_once(directory, path)
        # What the state file named may have gone for a newer one, which that names now.
        if look.problem is None or _identity(path) == before:
            break
    return look


def _look_once(directory: str, path: str) -> _Look:
    recorded = _recorded(directory, path)
    look = _Look()
    if recorded.newest is not None:
        why = _judged(look, directory, recorded.newest)
        if why is None:
            look.prefix = recorded.newest
            return look
        recorded.problem = f"'{recorded.newest}', the newest it names, is not complete: {why}"
    skipped = ""
    for prefix in _candidates(directory, recorded):
        why = _judged(look, directory, prefix)
        if why is None:
            look.prefix = prefix
            break
        skipped = skipped or f"; '{prefix}' is not complete: {why}"
    if recorded.problem is None and (look.prefix or skipped):
        recorded.problem = "there is no state file"
    if recorded.problem is not None:
        end = f"'{look.prefix}' is taken" if look.prefix else "no complete checkpoint is there"
        look.problem = f"{path}: {recorded.problem}{skipped}; {end}"
    return look


def _judged(look: _Look, directory: str, prefix: str) -> str | None:
    why = why_incomplete(prefix)
    # Files may grow, and other directories change, without a new time of this one.
    in_place = os.path.dirname(prefix) == directory.rstrip("/") or "/" not in prefix
    look.settled &= in_place and (why is None or why == "it has no index")
    return why


def _recorded(directory: str, path: str) -> _Recorded:
    if not os.path.lexists(path):
        return _Recorded()
    found = _Recorded()
    try:
        found.mtime_ns = os.stat(path).st_mtime_ns
        state = read_state_file(path)
    except CkptfmtError as error:
        found.problem = error.message
        return found
    except OSError as error:
        found.problem = error.strerror
        return found
    if not state.model_checkpoint_path:
        found.problem = "it names no model_checkpoint_path"
        return found
    _sort_out(found, directory, state)
    return found


def _sort_out(found: _Recorded, directory: str, state: CheckpointState) -> None:
    inside = _Inside(directory)
    newest = state.model_checkpoint_path
    if inside(newest):
        found.newest = os.path.join(directory, newest)
    else:
        found.problem = f"model_checkpoint_path '{newest}' leads outside the directory"
    begin = os.path.join(directory, "")
    targets = dict.fromkeys(
        named if named.startswith("/") else begin + named
        for named in reversed(state.all_model_checkpoint_paths)
        if named != newest and inside(named)
    )
    found.older = list(targets)


class _Inside:
    """Whether a path that a state file names lies in the directory, links followed."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._root = os.path.realpath(directory)
        self._known: dict[str, bool] = {"": True}

    def __call__(self, named: str) -> bool:
        parent, name = os.path.split(named) if "/" in named else ("", named)
        if "\0" in named or name in ("", ".", ".."):
            return False
        known = self._known.get(parent)
        if known is None:
            target = os.path.realpath(os.path.join(self._directory, parent))
            known = os.path.commonpath([self._root, target]) == self._root
            self._known[parent] = known
        return known


def _candidates(directory: str, recorded: _Recorded) -> Iterator[str]:
    """The prefixes to try after the newest recorded one, each once, in order."""
    listed = _listed(directory)
    by_path = {os.path.join(directory, found.name): found for found in listed}
    known = dict.fromkeys([*([recorded.newest] if recorded.newest else []), *recorded.older])
    highest: dict[str, int] = {}
    for prefix in known:
        match = _NUMBERED.fullmatch(prefix.rpartition("/")[2])
        if match is not None:
            highest[match[1]] = max(highest.get(match[1], -1), int(match[2]))
    rest = [found for path, found in by_path.items() if path not in known]
    newer = [found for found in rest if _is_newer(found, highest, recorded.mtime_ns)]
    for found in _ordered(newer):
        yield os.path.join(directory, found.name)
    begin = os.path.join(directory, "")
    for prefix in recorded.older:
        # What the listing does not have is not there, and there may be a million of these.
        if prefix in by_path or (
            (not prefix.startswith(begin) or "/" in prefix[len(begin) :])
            and os.path.isfile(names.index_name(prefix))
        ):
            yield prefix
    tried = set(newer)
    for found in _ordered(found for found in rest if found not in tried):
        yield os.path.join(directory, found.name)


def _listed(directory: str) -> list[_Found]:
    listed = []
    try:
        with os.scandir(directory or ".") as entries:
            for entry in entries:
                name = entry.name.removesuffix(".index")
                if name and name != entry.name and entry.is_file():
                    match = _NUMBERED.fullmatch(name)
                    base, number = (match[1], int(match[2])) if match else (name, None)
                    listed.append(_Found(name, base, number, entry.stat().st_mtime_ns))
    except OSError:
        pass  # what can be listed is judged; a directory that is not there holds nothing
    return listed


def _is_newer(found: _Found, highest: dict[str, int], state_mtime_ns: int | None) -> bool:
    return (
        found.number is not None
        and state_mtime_ns is not None
        and found.mtime_ns >= state_mtime_ns
        and found.number > highest.get(found.base, found.number)
    )


def _ordered(listed: Iterable[_Found]) -> Iterator[_Found]:
    """Newest first: the numbers of a base name by number, and these and all others by time."""
    groups: dict[tuple[str, bool], list[_Found]] = {}
    for found in listed:
        groups.setdefault((found.base, found.number is None), []).append(found)
    heap: list[tuple[int, str, list[_Found]]] = []
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
    """Gives the newest checkpoint of a directory, then each newer one when it is there.

    It looks only when the next one is asked for: checkpoints that come and are followed by others
    meanwhile are passed over. The directory need not exist yet.

    Args:
        checkpoint_dir: the directory.
        min_interval_secs: seconds at least between two that are given.
        timeout: seconds to wait for one; None waits without end.
        timeout_fn: called after each one given and after each timeout; a true answer ends the
            iterator. Without it a timeout does.

    Raises:
        InvalidError: no usable path, or an argument of another type. While waiting, nothing but
            warnings as from `ckptfmt.latest_checkpoint`.
    """
    check_waiting(min_interval_secs, timeout, timeout_fn)
    watch = _Watch(path_text(checkpoint_dir))
    return iterate(watch.newest, min_interval_secs, timeout, timeout_fn)


def check_waiting(interval: object, timeout: object, timeout_fn: object) -> None:
    """Refuses arguments of an iterator over checkpoints that would fail while it waits."""
    for what, seconds in (("min_interval_secs", interval), ("timeout", timeout)):
        if seconds is None and what == "timeout":
            continue
        if not isinstance(seconds, (int, float, np.number)) or np.isnan(seconds):
            raise InvalidError(f"{what} is a number of seconds, not {seconds!r}")
    if timeout_fn is not None and not callable(timeout_fn):
        raise wrong("timeout_fn", "a function", timeout_fn)


def iterate(
    newest: Callable[[], str | None],
    interval: float,
    timeout: float | None,
    timeout_fn: Callable[[], object] | None,
) -> Iterator[str]:
    """Gives what `newest` answers whenever that is another checkpoint than before."""
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


class _Watch:
    """`latest_checkpoint` again and again: where nothing has changed, at the cost of two stats."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._seen: tuple[object, object] | None = None
        self._look = _Look()

    def newest(self) -> str | None:
        seen = (_identity(state_path(self._directory, None)), _identity(self._directory or "."))
        if seen != self._seen:
            told = self._look.problem
            self._look = _look(self._directory, None)
            if self._look.problem not in (None, told):
                warnings.warn(str(self._look.problem), CkptfmtWarning, stacklevel=2)
            self._seen = seen if self._look.settled and _old(seen) else None
        return self._look.prefix


def _old(identities: Iterable[tuple[int, int, int, int] | None]) -> bool:
    """Whether a change from now on would be seen in the time."""
    now = time.time_ns()
    return all(found is None or found[2] < now - RECENT * 1e9 for found in identities)
