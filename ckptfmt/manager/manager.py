# SPDX-License-Identifier: Apache-2.0
"""CheckpointManager: saves checkpoints under numbered names and removes old ones, as
`tf.train.CheckpointManager`.

After a checkpoint is in place, under the directory's lock:

    1  the state file is read again: others may have saved meanwhile
    2  metrics are written, then the state file, with the new checkpoint; both are synced
    3  what retention decides goes: all indexes first, then the data files
    4  the state file is written again, without what is gone
    5  what killed writers left is swept

Killed at any moment, the state file names a checkpoint that is there. What was to go and is still
there goes after the next save.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ckptfmt import _core
from ckptfmt.arguments import check_choice, check_number, is_positive, whole, wrong
from ckptfmt.background import Line
from ckptfmt.bundle.checkpoint_state import CheckpointState
from ckptfmt.bundle.verify import verify_prefix
from ckptfmt.errors import (
    BusyError,
    CkptfmtWarning,
    CorruptError,
    InvalidError,
    LimitError,
    StorageError,
)
from ckptfmt.manager.books import Books, mark
from ckptfmt.manager.directory import CheckpointDirectory
from ckptfmt.manager.latest import latest_checkpoint, why_incomplete
from ckptfmt.manager.leftovers import number_of, of_managed
from ckptfmt.manager.metrics import Record, check_metrics
from ckptfmt.manager.restored import Rejected, Restored
from ckptfmt.manager.retention import KeepBest, Policy, Queued, decide, recover
from ckptfmt.names import index_name, path_text
from ckptfmt.saving.options import CheckpointOptions

__all__ = ["CheckpointManager", "Rejected", "Restored"]

Path = str | bytes | os.PathLike[Any]
Metric = str | Callable[[Mapping[str, float]], float | None]


class _Unrecorded(NamedTuple):
    """A checkpoint that was saved and is not recorded because a callback raised."""

    moment: float
    seal: tuple[int, ...] | None  # of its index, as it was then
    metrics: Mapping[str, float] | None


class CheckpointManager:
    """Keeps some checkpoints of a directory and removes others, by TensorFlow's rules and more.

    The directory's state file is TensorFlow's, and managers of either kind go on where the other
    left off. Several managers of ckptfmt, of any processes, may work in one directory: each sees in
    the state file what the others did. TensorFlow's managers allow for no other beside them.

    Only checkpoints that managers saved are removed, and only files of exactly their names. One
    that cannot be removed stays in the list, with a warning, and is tried again after the next
    save. What killed writers left goes as well, where it is proved to be theirs.

    Args:
        checkpoint: what is saved and restored: anything with `write(prefix, options=None)` and
            `restore(path, options=None)`. With a `save_counter` (an array of one integer) that is
            counted up and numbers the checkpoints.
        directory: where. It is made by the first save.
        max_to_keep: how many of the newest stay, of all that managers of this directory save; None
            keeps all.
        keep_checkpoint_every_n_hours: of those older than that, one stays for good if it is so many
            hours younger than the last that did.
        checkpoint_name: checkpoints are named `<checkpoint_name>-<number>`.
        step_counter: the step that `checkpoint_interval` is about: a number, an array of one, or a
            function that gives it.
        checkpoint_interval: steps between two checkpoints at least.
        init_fn: what `restore_or_initialize` calls where there is no checkpoint.
        last_checkpoint_step: the step of the last checkpoint, for `checkpoint_interval`.
        keep_best: a KeepBest, or a metric as it takes: the best stay as well, as long as they are.
        keep_every_n_steps: of those older than the newest, the ones whose number is a multiple of
            this stay for good.
        durability: of the state file, of removals, and of checkpoints that are saved without
            options: "full", "rename" or "none".

    Raises:
        InvalidError: an argument of another type or value.
        StorageError: the directory cannot be opened or listed.
    """

    def __init__(
        self,
        checkpoint: Any,
        directory: Path,
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        last_checkpoint_step: int | None = None,
        *,
        keep_best: KeepBest | Metric | None = None,
        keep_every_n_steps: int | None = None,
        durability: str = "full",
    ) -> None:
        if max_to_keep is not None and not is_positive(max_to_keep):
            raise InvalidError(
                f"Expected a positive integer or `None` for `max_to_keep`, got {max_to_keep!r}."
            )
        if keep_every_n_steps is not None and not is_positive(keep_every_n_steps):
            raise InvalidError(f"keep_every_n_steps {keep_every_n_steps!r} is not positive")
        if keep_checkpoint_every_n_hours is not None:
            check_number("keep_checkpoint_every_n_hours", keep_checkpoint_every_n_hours)
        if checkpoint_interval is not None:
            check_number("checkpoint_interval", checkpoint_interval)
        if last_checkpoint_step is not None:
            last_checkpoint_step = whole("last_checkpoint_step", last_checkpoint_step)
        if init_fn is not None and not callable(init_fn):
            raise wrong("init_fn", "a function", init_fn)
        if checkpoint_interval is not None and step_counter is None:
            raise InvalidError(
                "`step_counter` should be passed if `checkpoint_interval` is not None."
            )
        if not isinstance(checkpoint_name, str) or not checkpoint_name or "/" in checkpoint_name:
            raise InvalidError(
                f"checkpoint_name {checkpoint_name!r} is no beginning of a file's name",
                failure="BAD_PATH",
            )
        check_choice("durability", durability, _core.DURABILITY)
        if keep_best is not None and not isinstance(keep_best, KeepBest):
            keep_best = KeepBest(keep_best)
        self._checkpoint = checkpoint
        self._directory = path_text(directory)
        self._name = checkpoint_name
        self._init_fn = init_fn
        self._step_counter = step_counter
        self._checkpoint_interval = checkpoint_interval
        self._last_checkpoint_step = last_checkpoint_step
        self._best = keep_best
        self._policy = Policy(
            max_to_keep,
            keep_checkpoint_every_n_hours,
            keep_every_n_steps,
            0 if keep_best is None else keep_best.number,
        )
        self._durability = durability
        self._threads = threading.RLock()  # saves in the background record there
        self._place: CheckpointDirectory | None = None
        self._managed: dict[str, float] = {}  # names to timestamps, oldest first
        self._records: dict[str, Record] = {}
        self._books = Books(self._directory)
        self._latest: str | None = None
        self._counter: int | None = None  # for checkpoints that have none
        self._recording = False
        self._unrecorded: dict[str, _Unrecorded] = {}
        # A save in the background, and the step before it, which counts again should it fail.
        self._begun: tuple[concurrent.futures.Future[Any], int | None] | None = None
        # Back a little, so that a manager made anew at once manages what this one saves.
        self._last_preserved = time.time() - 1.0
        if os.path.isdir(self._directory or "."):
            with self._open().lock():
                self._start()

    # ---- what there is -------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Any:
        """What is saved and restored."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """The directory."""
        return self._directory

    @property
    def staging_bytes(self) -> int:
        """Bytes of memory that background saves of this manager's Checkpoint keep for their copies;
        0 while a save uses it, and where `checkpoint` is of another class. It is freed with the
        Checkpoint."""
        line = getattr(self._checkpoint, "_ckptfmt_line", None)
        return line.staging_bytes if isinstance(line, Line) else 0

    @property
    def checkpoint_interval(self) -> int | None:
        """Steps between two checkpoints at least."""
        return self._checkpoint_interval

    @property
    def latest_checkpoint(self) -> str | None:
        """The prefix of the newest checkpoint, as the directory was when this manager was made,
        saved or restored last; None if there is none."""
        return self._latest

    @property
    def checkpoints(self) -> list[str]:
        """The prefixes of all managed checkpoints, oldest first. Those that are kept for good are
        not among them."""
        with self._threads:
            return [self._path(name) for name in self._managed]

    @property
    def best_checkpoint(self) -> str | None:
        """The prefix of the best checkpoint by `keep_best`, whether it is managed or kept for good;
        None without one that has the metric."""
        with self._threads:
            scored = [
                (score, self._managed.get(name, float("-inf")), name)
                for name in self._records
                if (score := self._score(name)) is not None
            ]
            return self._path(max(scored)[2]) if scored else None

    # ---- saving --------------------------------------------------------------------------------

    def save(
        self,
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
    ) -> Any:
        """Saves a checkpoint, records it, and removes those that need not stay.

        Args:
            checkpoint_number: its number; default the checkpoint's `save_counter`, which is counted
                up in any case. Without a `save_counter`, one more than the largest number so far.
            check_interval: False saves however few steps have passed since the last checkpoint, but
                for none.
            options: how to save. Old checkpoints are removed as soon as the new one is as durable
                as its `durability` says.
            metrics: name to number, for `keep_best`; they are kept with the checkpoint.

        Returns:
            The prefix; None if the interval says that nothing is to be saved, for which a save that
            failed does not count. If the options ask for a save in the background, and the
            checkpoint does that, its future: all but the copying is done there, removing as well.

        Raises:
            InvalidError: an argument of another type or value.
            StorageError: the state file could not be written (the checkpoint is in place then, and
                nothing was removed); the directory is not the one any more that it was.
            BusyError: as in `Writer.commit`; in a signal handler, that interrupted just this.
            What `checkpoint.write` raises. If that was one of the `write_callbacks`, the checkpoint
            is in place, and the next save records it as well.
        """
        if options is not None and not isinstance(options, CheckpointOptions):
            raise wrong("options", "a CheckpointOptions", options)
        given = check_metrics(metrics)
        if self._best is not None:
            self._best.score(given)  # what it raises is raised before anything is saved
        before = self._last_step()
        if not self._is_due(check_interval, before):
            return None
        try:
            written = self._write(checkpoint_number, options, given)
        except BaseException:
            self._last_checkpoint_step = before
            raise
        if isinstance(written, concurrent.futures.Future):
            self._begun = written, before
        return written

    def _write(
        self,
        checkpoint_number: Any,
        options: CheckpointOptions | None,
        metrics: Mapping[str, float] | None,
    ) -> Any:
        with self._threads:
            if self._recording:
                # Its commit would wait for the lock of the directory, which this thread has.
                raise BusyError(
                    "the manager is interrupted while it records a checkpoint that it has saved",
                    path=self._latest,
                )
            place = self._open(make=True)
            number = self._number(checkpoint_number)
        name = f"{self._name}-{number}"
        prefix = self._path(name)
        placed: _Unrecorded | None = None
        begun = recorded = False

        def note() -> None:
            nonlocal placed
            placed = _Unrecorded(time.time(), place.seal(name), metrics)

        def record() -> None:
            nonlocal begun, recorded
            with self._threads:
                if recorded:
                    return
                begun = self._recording = True
                try:
                    self._record(place, name, metrics)
                finally:
                    self._recording = False
                recorded = True

        def leave(_: object = None) -> None:
            with self._threads:
                if placed is not None and not begun:
                    self._unrecorded[name] = placed

        options = options or CheckpointOptions(durability=self._durability)
        callbacks = (note, *options.write_callbacks, record)
        options = dataclasses.replace(options, write_callbacks=callbacks)
        try:
            written = self._checkpoint.write(prefix, options=options)
            if not isinstance(written, concurrent.futures.Future):
                record()  # where `write` does not call callbacks
                return prefix
        except BaseException:
            leave()
            raise
        written.add_done_callback(leave)
        return written

    def _last_step(self) -> int | None:
        """The step of the last checkpoint, as far as is known now."""
        if self._begun is not None and self._begun[0].done():
            future, before = self._begun
            self._begun = None
            # To ask the future itself would be to have heard of its error.
            if future.cancelled() or concurrent.futures.Future.exception(future) is not None:
                self._last_checkpoint_step = before
        return self._last_checkpoint_step

    def _is_due(self, check_interval: bool, last: int | None) -> bool:
        if self._checkpoint_interval is None:
            return True
        step = self._step()
        if last is not None and (
            step == last or (check_interval and step < last + self._checkpoint_interval)
        ):
            return False
        self._last_checkpoint_step = step
        return True

    def _step(self) -> int:
        counter = self._step_counter() if callable(self._step_counter) else self._step_counter
        return whole("step_counter", counter)

    def _number(self, given: Any) -> int:
        counter = getattr(self._checkpoint, "save_counter", None)
        number = None if given is None else whole("checkpoint_number", given)
        if counter is not None:
            count = whole("save_counter", counter) + 1
            try:
                counter[...] = count
            except TypeError:
                raise wrong("save_counter", "an array of one whole number", counter) from None
            return count if number is None else number
        # Others save as well, or do so just now.
        numbers = [] if self._counter is None else [self._counter]
        names = of_managed(self._open().names(), self._name)
        numbers += [found for name in names if (found := number_of(name, self._name)) is not None]
        count = max(numbers, default=0) + 1
        number = count if number is None else number
        self._counter = max(count, number)
        return number

    # ---- recording -----------------------------------------------------------------------------

    def _record(
        self, place: CheckpointDirectory, name: str, metrics: Mapping[str, float] | None
    ) -> None:
        """Steps 1 to 5."""
        with place.lock():
            if not place.exists(name):
                raise StorageError(
                    "the checkpoint was saved, but it is not in the directory that was opened: "
                    "was that moved?",
                    path=self._path(name),
                )
            self._read_again(place)
            self._unrecorded.pop(name, None)
            self._take_up(place)
            self._managed.pop(name, None)
            self._managed[name] = time.time()
            self._latest = self._path(name)
            self._note_metrics(place, name, metrics)
            self._books.write_records(place, self._records)
            self._write_state(place, name)
            self._remove_old(place)
            self._write_state(place, name)
            for gone in [one for one in self._records if not place.exists(one)]:
                del self._records[gone]
            with contextlib.suppress(StorageError):
                self._books.write_records(place, self._records, "rename")
            with contextlib.suppress(StorageError):
                place.sweep(self._name)

    def _take_up(self, place: CheckpointDirectory) -> None:
        """Manages what callbacks kept from being recorded, where it is still the very one that was
        saved then."""
        left, self._unrecorded = self._unrecorded, {}
        for name, (moment, seal, metrics) in left.items():
            if name in self._managed or seal is None or place.seal(name) != seal:
                continue
            queue = list(self._managed.items())
            older = [row for row, (_, then) in enumerate(queue) if then <= moment]
            queue.insert(older[-1] + 1 if older else 0, (name, moment))
            self._managed = dict(queue)
            self._note_metrics(place, name, metrics)

    def _note_metrics(
        self, place: CheckpointDirectory, name: str, metrics: Mapping[str, float] | None
    ) -> None:
        self._records.pop(name, None)
        if metrics is not None:
            self._records[name] = Record(metrics, mark(place, name))

    def _remove_old(self, place: CheckpointDirectory) -> None:
        queue = [
            Queued(name, moment, number_of(name, self._name), self._score(name))
            for name, moment in self._managed.items()
        ]
        decided = decide(queue, self._last_preserved, self._policy)
        self._last_preserved = decided.last_preserved
        for one in decided.preserved:
            del self._managed[one.name]
        if not decided.deleted:
            return
        failed = place.remove_all(one.name for one in decided.deleted)
        for one in decided.deleted:
            # Of one that has lost its index the sweep takes the rest.
            if one.name not in failed or not place.exists(one.name):
                del self._managed[one.name]
        for name, error in failed.items():
            warnings.warn(
                f"{error}; the checkpoint '{name}' is removed after a later save",
                CkptfmtWarning,
                stacklevel=2,
            )

    def _score(self, name: str) -> float | None:
        record = self._records.get(name)
        if self._best is None or record is None:
            return None
        try:
            return self._best.score(record.metrics)
        except Exception as error:
            # A function that cannot do with metrics that others gave must not stop all removing.
            warnings.warn(
                f"the checkpoint '{name}' cannot be compared by keep_best: {error!r}",
                CkptfmtWarning,
                stacklevel=2,
            )
            return None

    # ---- what the directory says ---------------------------------------------------------------

    def _start(self) -> None:
        """Takes over what the state file says, as TensorFlow's manager."""
        place = self._open()
        self._records = self._books.read_records(place)
        state = self._books.read_state(place)
        if state is not None:
            self._take_over(place, state, warn=True)
            self._latest = latest_checkpoint(self._directory)
        else:
            self._latest = self._highest(place)
        with contextlib.suppress(StorageError):
            place.sweep(self._name)

    def _look_again(self) -> None:
        """Learns of what others saved and removed since."""
        with self._threads:
            if self._place is not None and self._place.info().st_nlink == 0:
                self._leave(self._place)
            if self._place is None:
                if os.path.isdir(self._directory or "."):
                    with self._open().lock():
                        self._start()
                return
            before = self._books.state
            state = self._read_again(self._place)
            if state is not None:
                self._latest = latest_checkpoint(self._directory)
            elif self._books.state != before and not (
                self._latest and self._place.exists(os.path.basename(self._latest))
            ):
                self._latest = self._highest(self._place)

    def _take_over(
        self, place: CheckpointDirectory, state: CheckpointState, *, warn: bool = False
    ) -> None:
        named = [self._books.name_of(path) for path in state.all_model_checkpoint_paths]
        here = {
            name: moment
            for name, moment in zip(named, state.all_model_checkpoint_timestamps, strict=False)
            if name is not None
        }
        self._managed, self._last_preserved, behind = recover(
            list(here),
            list(here.values()),
            state.last_preserved_timestamp,
            time.time(),
            lambda name: name in self._managed or name in self._records,
        )
        if warn and behind:
            warnings.warn(
                f"the clock is {behind:f} seconds behind the moment when a checkpoint of "
                f"{self._directory} was preserved last",
                CkptfmtWarning,
                stacklevel=4,
            )
        self._forget_missing(place)

    def _forget_missing(self, place: CheckpointDirectory) -> None:
        there = set(place.names())
        for name in [one for one in self._managed if index_name(one) not in there]:
            del self._managed[name]

    def _highest(self, place: CheckpointDirectory) -> str | None:
        """The complete checkpoint of this manager's name with the largest number."""
        prefixes = map(self._path, place.numbered(self._name))
        return next((one for one in prefixes if why_incomplete(one) is None), None)

    def _read_again(self, place: CheckpointDirectory) -> CheckpointState | None:
        """Takes over what others wrote since the state file was seen last, and gives it.

        A state without the moment of the last one kept for good is not by a manager, and changes
        nothing of what is managed, as for TensorFlow.
        """
        before = self._books.state
        state = self._books.read_state(place)
        if self._books.state == before or state is None or state.last_preserved_timestamp is None:
            self._forget_missing(place)
        else:
            self._records = {**self._books.read_records(place), **self._records}
            self._take_over(place, state)
        return state

    def _write_state(self, place: CheckpointDirectory, latest: str) -> None:
        names, timestamps = tuple(self._managed), tuple(self._managed.values())
        state = CheckpointState(latest, names, timestamps, self._last_preserved)
        self._books.write_state(place, state)

    # ---- restoring -----------------------------------------------------------------------------

    def restore_or_initialize(self) -> str | None:
        """Restores the newest checkpoint, or calls `init_fn` if there is none.

        Returns:
            The prefix that was restored; None if none was.
        """
        self._look_again()
        while (path := self._latest) is not None:
            try:
                self._checkpoint.restore(path)
            except StorageError:
                self._look_again()  # another manager may have removed it for a newer one
                if self._latest == path:
                    raise
            else:
                self._after_restore()
                return path
        if self._init_fn is not None:
            self._init_fn()
        return None

    def restore_latest(self, verify: str = "full") -> Restored:
        """Restores the newest checkpoint that is sound.

        Args:
            verify: "full" checks every byte of a checkpoint before anything of it is restored;
                "auto" leaves it to the checks that restoring makes, and a damaged one may then have
                been restored in part before an older one is.

        Returns:
            Which it is, and what is wrong with the newer ones. Without any checkpoint nothing is
            restored.

        Raises:
            CorruptError: there are checkpoints, and all are damaged; the notes tell how.
            InvalidError: another `verify`.
            What `checkpoint.restore` raises of a sound checkpoint.
        """
        check_choice("verify", verify, ("full", "auto"))
        rejected: list[Rejected] = []
        tried: set[str] = set()
        self._look_again()
        while (path := self._next_candidate(tried)) is not None:
            findings, known = [], self._books.state
            try:
                if verify == "full":
                    findings = verify_prefix(path).problems
                if not findings:
                    status = self._checkpoint.restore(path)
                    self._after_restore()
                    return Restored(path, status, rejected)
            except (CorruptError, LimitError, StorageError) as error:
                why = Rejected(path, error=error)
            else:
                why = Rejected(path, findings)
            self._look_again()
            if self._books.state != known and not os.path.exists(index_name(path)):
                continue  # another manager removed it for a newer one
            rejected.append(why)
            warnings.warn(f"not restored: {rejected[-1]}", CkptfmtWarning, stacklevel=2)
        if not rejected:
            return Restored(None)
        newest = rejected[0]
        damaged = CorruptError(
            f"none of the {len(rejected)} checkpoints can be restored",
            failure=newest.error.failure if newest.error else newest.findings[0].failure,
            path=self._directory,
        )
        for one in rejected:
            damaged.add_note(str(one))
        raise damaged

    def _next_candidate(self, tried: set[str]) -> str | None:
        """The prefix of the newest checkpoint that was not tried yet; it is then."""
        with self._threads:
            found = [] if self._latest is None else [self._latest]
            found += [self._path(name) for name in reversed(self._managed)]
            if self._place is not None:
                found += [self._path(name) for name in self._place.numbered(self._name)]
        path = next((one for one in found if one not in tried), None)
        tried.update([] if path is None else [path])
        return path

    def _after_restore(self) -> None:
        if self._checkpoint_interval is not None:
            self._last_checkpoint_step, self._begun = self._step(), None

    def sync(self) -> None:
        """Waits for saves in the background, where the checkpoint can."""
        if hasattr(self._checkpoint, "sync"):
            self._checkpoint.sync()

    # ---- the directory -------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _open(self, *, make: bool = False) -> CheckpointDirectory:
        """The directory, opened once.

        Raises:
            StorageError: another directory stands at its path now.
        """
        if self._place is not None and make:
            try:
                now = os.stat(self._directory or ".")
            except OSError:
                now = None
            mine = self._place.info()
            if mine.st_nlink == 0:  # removed: a new one will do
                self._leave(self._place)
            elif now is None or not os.path.samestat(now, mine):
                raise StorageError(
                    "the directory was moved or replaced since the manager opened it",
                    path=self._directory,
                )
        if self._place is None:
            self._place = CheckpointDirectory(
                self._directory, make=make, durability=self._durability
            )
        return self._place

    def _leave(self, place: CheckpointDirectory) -> None:
        """Forgets a directory that is no more."""
        place.close()
        self._place, self._managed, self._records, self._unrecorded = None, {}, {}, {}
        self._books, self._latest = Books(self._directory), None
