# SPDX-License-Identifier: Apache-2.0
"""Records of a manager in its directory: the state file, which is TensorFlow's, and the metrics of
checkpoints with what is retained.

Both are in one small file beside the state file, `checkpoint.ckptfmt`, which TensorFlow ignores:
JSON, written before the state file that names the checkpoint. An entry counts only as long as the
checkpoint has the same index that it was written for, and is removed with it. Its score is what
keep_best compares, larger is better: only the manager that saves knows the function.

    {"ckptfmt_metrics": 1, "keep": {"best": 1, "every_n_steps": 100}, "checkpoints":
     {"ckpt-7": {"metrics": {"loss": 0.5}, "score": -0.5, "index": "9f..."}}}
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptfmt._base.arguments import Durability, wrong
from ckptfmt._base.names import index_name
from ckptfmt.bundle.completeness import proves_damage
from ckptfmt.errors import CkptfmtError, CorruptError, InvalidError, StorageError, warn
from ckptfmt.files.folder import Folder
from ckptfmt.files.orphans import INDEX, METRICS_NAME, number_of
from ckptfmt.files.state_file import (
    STATE_NAME,
    CheckpointState,
    format_state,
    parse_state,
)
from ckptfmt.files.state_paths import StatePaths
from ckptfmt.manager.retention import Policy, Queued, best_of, extremes, recover

INDEX_BYTES_MAX = 1 << 40
_HEAD, _VERSION = "ckptfmt_metrics", 1


class Records:
    """The records of a directory as a manager read or wrote them last.

    Args:
        path: path of the directory.

    Attributes:
        managed: timestamps of the managed checkpoints by name, oldest first.
        scored: metrics of checkpoints by name, managed or not.
        changed: the same of those that another program has replaced since, so that nothing says how
            good they are: they stay.
        policy: what managers of the directory retain besides the newest.
        problem: why the file of metrics cannot be read; None if it can, or is missing.
        timeless: whether the state file has no times, and checkpoints are managed by its order.
        last_preserved: when the last checkpoint was saved that is kept permanently.
        state: the state file; None if it is missing or damaged.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        # One second earlier, so that a manager created next manages what this one saves.
        self.last_preserved = time.time() - 1.0
        self.forget()

    def forget(self) -> None:
        """Forget everything, because the directory is missing or was replaced."""
        self.managed: dict[str, float] = {}
        self.scored: dict[str, Record] = {}
        self.changed: dict[str, Record] = {}
        self.policy = Policy()
        self.problem: str | None = None
        self.timeless = False
        self.state: CheckpointState | None = None
        self._content: bytes | None = None
        self._identity: tuple[int, int] | None = None

    def is_current(self, directory: Folder) -> bool:
        """Return whether the state file is as it was read or written last."""
        return directory.identity == self._identity and self._content == directory.read(STATE_NAME)

    def read(self, directory: Folder) -> None:
        """Take over what other managers recorded, and forget checkpoints that are gone.

        A damaged file causes a warning. Without the metrics, checkpoints that this object does not
        know are not managed, and so never removed.

        Raises:
            StorageError: a file exists and cannot be read now.
        """
        is_first = directory.identity != self._identity
        if is_first:
            self.forget()
            self._identity = directory.identity
        existing = set(directory.names())
        content = directory.read(STATE_NAME)
        if is_first or content != self._content:
            records = self.scored | self._read_metrics(directory)
            there = {n: one for n, one in records.items() if index_name(n) in existing}
            self.scored = {
                name: record
                for name, record in there.items()
                if _fingerprint(directory, name) == record.index
            }
            self.changed = {n: one for n, one in there.items() if n not in self.scored}
            self.timeless = False
            self.state, self._content = self._parse(content), content
            # A state without last_preserved_timestamp was not written by a manager. As in
            # TensorFlow, a running manager goes on with what it manages.
            if self.state is not None and (
                is_first or self.state.last_preserved_timestamp is not None
            ):
                behind = self._take_over(self.state, existing)
                if is_first and behind:
                    warn(
                        f"the clock is {behind:f} seconds behind the moment when a checkpoint of "
                        f"{self._path} was preserved last"
                    )
        for known in (self.managed, self.scored, self.changed):
            for name in [one for one in known if f"{one}{INDEX}" not in existing]:
                del known[name]

    def _parse(self, content: bytes | None) -> CheckpointState | None:
        if content is None:
            return None
        path = os.path.join(self._path, STATE_NAME)
        try:
            state = parse_state(content, path)
            if not state.model_checkpoint_path:
                raise CorruptError(
                    "model_checkpoint_path is missing", failure="BAD_PROTO", path=path
                )
        except CkptfmtError as error:
            warn(f"{error}; the state file is ignored")
            return None
        return state

    def _take_over(self, state: CheckpointState, existing: set[str]) -> float:
        """Manage the checkpoints that the state file names; return by how many seconds the clock is
        behind it."""
        timestamps = state.all_model_checkpoint_timestamps
        moments = {
            name: moment
            for name, moment in zip(self._names(state, existing), timestamps, strict=False)
            if name is not None
        }
        known = self.managed.keys() | self.scored.keys()
        if self.problem is not None:  # nothing says which of the others are the best
            moments = {name: moment for name, moment in moments.items() if name in known}
        self.managed, self.last_preserved, behind = recover(
            list(moments),
            list(moments.values()),
            state.last_preserved_timestamp,
            time.time(),
            known.__contains__,
        )
        return behind

    def manage_by_order(self, directory: Folder) -> None:
        """Manage the checkpoints of a state file without times, in its order."""
        assert self.state is not None
        names = self._names(self.state, set(directory.names()))
        self.managed = dict.fromkeys((name for name in names if name is not None), 0.0)
        self.timeless = True

    def queued(self, name: str) -> Queued:
        """Return a checkpoint as retention sees it."""
        record = self.scored.get(name)
        score = None if record is None else record.score
        step = number_of(name, name.rpartition("-")[0])
        return Queued(name, self.managed.get(name, 0.0), step, score)

    def best(self, broken: Collection[str] = ()) -> set[str]:
        """Return the best checkpoints, managed or not: by their scores as many as are retained;
        the extremes of those with metrics that nobody could compare; and those that were replaced
        since they got theirs."""
        kept = (name for name in self.scored if name not in self.managed)
        names = [n for n in (*kept, *self.managed) if n in self.scored and n not in broken]
        unscored = [name for name in names if self.scored[name].score is None]
        ends = extremes({name: self.scored[name].metrics for name in unscored})
        best = {one.name for one in best_of([*map(self.queued, names)], self.policy.best)}
        return best | ends | (self.changed.keys() - set(broken))

    @property
    def newest(self) -> str | None:
        """The checkpoint that the state file names as the newest, relative to the directory; None
        if it names none there."""
        if self.state is None:
            return None
        return StatePaths(self._path, self.state).name(self.state.model_checkpoint_path)

    def _names(self, state: CheckpointState, existing: set[str]) -> list[str | None]:
        """Return for each path of the state file the checkpoint right in the directory that it
        names; None for any other, and for one that may not be ours.

        One that is found by the last component of its path is managed, and so removed one day, only
        if our records have it or all paths are in one folder.
        """
        paths = StatePaths(self._path, state)
        there = {name.removesuffix(INDEX) for name in existing if name.endswith(INDEX)}

        def name_of(path: str) -> str | None:
            name = paths.name(path, there)
            ours = name in self.scored or paths.share_folder or not paths.is_moved(path)
            return name if ours and name in there else None

        # A million removed ones may be listed, most of them by their names alone.
        return [
            path if path in there else name_of(path) if "/" in path or "\\" in path else None
            for path in state.all_model_checkpoint_paths
        ]

    def add(self, directory: Folder, name: str, metrics: Mapping[str, float] | None) -> None:
        """Manage a checkpoint that was just saved, as the newest.

        Raises:
            StorageError: its index cannot be read.
        """
        self.managed.pop(name, None)
        self.managed[name] = time.time()
        self.scored.pop(name, None)
        self.changed.pop(name, None)
        if metrics is not None:
            self.scored[name] = Record(metrics, _fingerprint(directory, name))

    def write(self, directory: Folder, newest: str) -> None:
        """Write the state file, if it does not say this already.

        Raises:
            StorageError: it cannot be written.
        """
        names, timestamps = tuple(self.managed), tuple(self.managed.values())
        state = CheckpointState(newest, names, timestamps, self.last_preserved)
        if self.timeless:
            state = CheckpointState(newest, names)
        content = format_state(state)
        if content != self._content:
            directory.write_state(STATE_NAME, content)
            self.state, self._content = state, content

    def write_metrics(self, directory: Folder, durability: Durability | None = None) -> None:
        """Write the metrics and what is retained, if the file does not have them already. Without
        either no file is created.

        Raises:
            StorageError: the file cannot be written.
        """
        existing = directory.read(METRICS_NAME)
        keep = {name: value for name, value in vars(self.policy).items() if value}
        if existing is None and not self.scored and not keep:
            return
        checkpoints = {
            name: {key: value for key, value in vars(record).items() if value is not None}
            for name, record in (self.changed | self.scored).items()
        }
        document = {_HEAD: _VERSION, "keep": keep, "checkpoints": checkpoints}
        content = f"{json.dumps(document, indent=1)}\n".encode()
        if content != existing:
            directory.write_state(METRICS_NAME, content, durability)

    def _read_metrics(self, directory: Folder) -> dict[str, Record]:
        """Return the metrics of the file, and take over its policy."""
        try:
            content = directory.read(METRICS_NAME)
            policy, records = (Policy(), {}) if content is None else _parse(content)
        except (InvalidError, StorageError) as error:
            if isinstance(error, StorageError) and not proves_damage(error):
                raise
            path = os.path.join(self._path, METRICS_NAME)
            warn(f"{path}: {error}; no checkpoint that was saved before is removed")
            self.problem = str(error)
            return {}
        self.policy, self.problem = policy, None
        return records


# ---- metrics -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """The metrics of one checkpoint.

    Attributes:
        metrics: name to number.
        index: fingerprint of the index that they belong to.
        score: what keep_best compares, larger is better; None if nothing was compared.
    """

    metrics: Mapping[str, float]
    index: str
    score: float | None = None


def check_metrics(given: Any) -> dict[str, float] | None:
    """Check the argument `metrics` of a save; None if there are none.

    Raises:
        InvalidError: it is not a mapping of names to numbers.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise wrong("metrics", "a mapping from names to numbers", given)
    found = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise wrong("the name of a metric", "a str", name, "metrics")
        if isinstance(value, (str, bytes)):
            raise wrong(f"the metric '{name}'", "a number", value, "metrics")
        try:
            found[name] = float(np.asarray(value).item())
        except (TypeError, ValueError, OverflowError):
            raise wrong(f"the metric '{name}'", "a number", value, "metrics") from None
    return found


def _fingerprint(directory: Folder, name: str) -> str:
    """Return a hash that identifies the content of a checkpoint's index."""
    content = directory.read(index_name(name), INDEX_BYTES_MAX) or b""
    return hashlib.sha256(content).hexdigest()[:32]


def _parse(content: bytes) -> tuple[Policy, dict[str, Record]]:
    try:
        found = json.loads(content)
        version = found[_HEAD]
        keep = {name: _number(one) for name, one in found.get("keep", {}).items()}
        # Later versions may keep by other rules as well.
        policy = Policy(None, keep.get("every_n_hours"), keep.get("every_n_steps"))
        policy = dataclasses.replace(policy, best=int(keep.get("best", 0)))
        records = {name: _record(one) for name, one in found["checkpoints"].items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        raise InvalidError("it does not contain the metrics of checkpoints") from None
    if version != _VERSION:
        raise InvalidError(f"version {version!r} of the metrics is unknown")
    return policy, records


def _record(given: Any) -> Record:
    metrics = {name: float(_number(value)) for name, value in given["metrics"].items()}
    score = given.get("score")
    return Record(metrics, str(given["index"]), None if score is None else float(_number(score)))


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    float(value)  # OverflowError: an integer that no float can hold
    return value
