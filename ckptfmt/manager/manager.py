# SPDX-License-Identifier: Apache-2.0
"""CheckpointManager: save checkpoints under numbered names and remove old ones, as
`tf.train.CheckpointManager`.

After a checkpoint is in place, under the directory's lock:

    1  the state file is read again, because other managers may have saved meanwhile
    2  the metrics are written, then the state file, with the new checkpoint; both are synced
    3  what retention decides is removed: all indexes first, then the data files
    4  the state file is written again, without what was removed
    5  orphaned files of killed writers are swept

Killed at any moment, the state file names a checkpoint that exists. What was to be removed and
still exists is removed after the next save.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptfmt._base.adapters import adapter_for, named_type
from ckptfmt._base.arguments import check_number, check_switch, invalid, is_positive, whole, wrong
from ckptfmt._base.background import SaveQueue
from ckptfmt._base.names import index_name, path_text
from ckptfmt.bundle.completeness import proves_damage
from ckptfmt.errors import (
    CheckpointNotFoundError,
    StorageError,
    warn,
)
from ckptfmt.files.folder import Folder, folder_of
from ckptfmt.files.orphans import INDEX, number_of, of_managed
from ckptfmt.files.places import is_file
from ckptfmt.files.state_file import STATE_NAME
from ckptfmt.manager.latest import candidates, newest_complete
from ckptfmt.manager.records import Records, check_metrics
from ckptfmt.manager.restoring import (
    Decisions,
    Restored,
    restore_newest,
)
from ckptfmt.manager.retention import KeepBest, Policy, decide
from ckptfmt.saving.options import CheckpointOptions

Path = str | bytes | os.PathLike[Any]


@dataclass
class _Save:
    """One save: where to, and what is recorded once it is in place. The program may have another
    working directory by then: `folder` is absolute."""

    folder: Folder
    name: str
    prefix: str
    metrics: Mapping[str, float] | None
    recorded: bool = False


def _check_checkpoint(given: Any, *methods: str) -> None:
    """Refuse an object that has none of these methods, with what to pass instead."""
    is_class, found = isinstance(given, type), named_type(given)
    has_method = any(callable(getattr(given, name, None)) for name in methods)
    if has_method and not is_class and not found.startswith("tensorflow."):
        return
    message = (
        "checkpoint must be a ckptfmt.Checkpoint, or an object with the methods write(prefix, "
        "options=None) and restore(path, options=None), not "
        + (f"the class {given.__qualname__}" if is_class else found)
    )
    calls = adapter_for(given)
    adapter = re.search(r"with (ckptfmt\.\w+)\.save", calls or "")
    if adapter is not None:
        message += f": wrap it, as in {adapter[1]}.Checkpoint(...)"
    elif calls is not None:
        message += f": {calls}, or pass an object whose write and restore make these calls"
    elif isinstance(given, (Mapping, list, tuple, np.ndarray)):
        message += ": wrap it, as in ckptfmt.Checkpoint(state=state)"
    elif isinstance(given, (str, bytes, os.PathLike)):
        message += ". Are the arguments swapped?"
    raise invalid("checkpoint", message)


class CheckpointManager:
    """Save checkpoints to a directory, retain some and remove others, by the rules of
    `tf.train.CheckpointManager` and more.

    The directory's state file is TensorFlow's: a manager continues what one of TensorFlow began,
    and the reverse. Several managers of any processes may work in one directory: each sees in the
    state file what the others did. TensorFlow's managers must be alone.

    `keep_best`, `keep_every_n_steps` and the hours are recorded in the directory for `prune`, the
    first two also for managers without such an option; of several managers, those of the last that
    saved hold.

    Only checkpoints that managers saved are removed, and only files of exactly their names. One
    that cannot be removed stays in the list, with a warning, and is tried again after the next
    save. Orphaned files are removed by a save if they provably belong to a killed writer.

    A manager warns before it replaces a checkpoint that it did not save. One that restored nothing
    warns before it removes a checkpoint of an earlier run with a larger number. Where
    `checkpoint.ckptfmt`, the records, is damaged, nothing that was saved before is removed.

    A manager takes no lock and changes nothing in the directory until it saves.

    Where the checkpoint has a coordinator, every process of it has a manager of the same arguments,
    and all call the same methods in the same order. Process 0 chooses what is restored, and records
    and removes checkpoints.

    >>> state = {"step": 0}
    >>> manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(state), "run", max_to_keep=2)
    >>> for state["step"] in range(3):
    ...     path = manager.save()
    >>> path, manager.all_steps()
    ('run/ckpt-3', [2, 3])
    >>> state["step"] = 0
    >>> manager.restore_latest().path, state["step"]
    ('run/ckpt-3', 2)

    Args:
        checkpoint: what to save and restore: an object with `write(prefix, options=None)` and
            `restore(path, options=None)`, and for background saves `write_async(prefix,
            options=None)`, which returns a future and calls the
            `experimental_write_callbacks` of the options. If it has a `save_counter`
            (an array of one integer), that is incremented and numbers the checkpoints.
        directory: where: str, bytes or os.PathLike, or a URL. The first save creates it.
        max_to_keep: how many of the newest checkpoints are retained, of all that managers of this
            directory save; None retains all.
        keep_checkpoint_every_n_hours: keep a checkpoint permanently if at least this many hours
            have passed since the last permanent one.
        checkpoint_name: checkpoints are named `<checkpoint_name>-<number>`.
        step_counter: the step for `checkpoint_interval`: a number, an array of one, or a function
            that returns one.
        checkpoint_interval: minimum number of steps between two checkpoints, an int; requires
            `step_counter`.
        init_fn: called by `restore_or_initialize` if there is no checkpoint.
        last_checkpoint_step: the step of the last checkpoint, for `checkpoint_interval`.
        keep_best: also retain the best checkpoints, for example `KeepBest("loss", mode="min")`.
        keep_every_n_steps: keep a checkpoint permanently if its number is a multiple of this.
        options: how checkpoints are saved that get no options of their own, `tf.CheckpointOptions`;
            None: those of the `checkpoint` of an adapter, else the defaults. Its `durability` is
            also that of the state file and of removals.

    Raises:
        InvalidError: an argument of another type or value. For a model, an optimizer or a pytree of
            a framework the message says which calls save and load it.
        StorageError: the directory or the state file cannot be read.
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
        keep_best: KeepBest | None = None,
        keep_every_n_steps: int | None = None,
        options: CheckpointOptions | None = None,
    ) -> None:
        if max_to_keep is not None and not is_positive(max_to_keep):
            raise invalid(
                "max_to_keep",
                f"Expected a positive integer or `None` for `max_to_keep`, got {max_to_keep!r}.",
            )
        if keep_every_n_steps is not None and not is_positive(keep_every_n_steps):
            raise invalid(
                "keep_every_n_steps",
                f"keep_every_n_steps must be a positive integer, not {keep_every_n_steps!r}",
            )
        if keep_checkpoint_every_n_hours is not None:
            check_number("keep_checkpoint_every_n_hours", keep_checkpoint_every_n_hours)
        if checkpoint_interval is not None:
            check_number("checkpoint_interval", checkpoint_interval)
        if last_checkpoint_step is not None:
            last_checkpoint_step = whole("last_checkpoint_step", last_checkpoint_step)
        if init_fn is not None and not callable(init_fn):
            raise wrong("init_fn", "a function", init_fn)
        if checkpoint_interval is not None and step_counter is None:
            raise invalid(
                "step_counter",
                "`step_counter` should be passed if `checkpoint_interval` is not None.",
            )
        if not isinstance(checkpoint_name, str) or not checkpoint_name or "/" in checkpoint_name:
            raise invalid(
                "checkpoint_name",
                "checkpoint_name must be the beginning of a file name, without '/', "
                f"not {checkpoint_name!r}",
                failure="BAD_PATH",
            )
        if keep_best is not None and not isinstance(keep_best, KeepBest):
            raise invalid(
                "keep_best",
                f"keep_best must be a KeepBest, not {keep_best!r}: "
                'for example KeepBest("loss", mode="min")',
            )
        if step_counter is not None and not callable(step_counter):
            whole("step_counter", step_counter)
        own = getattr(checkpoint, "_ckptfmt_options", None)
        self._options = CheckpointOptions.of(own if options is None else options)
        # One that is only saved or only restored needs only that method.
        _check_checkpoint(checkpoint, "write", "restore")
        self._checkpoint = checkpoint
        self._decisions = Decisions(getattr(checkpoint, "coordinator", None))
        self._directory = path_text(directory, "directory", urls=True)
        self._name = checkpoint_name
        self._init_fn = init_fn
        self._step_counter = step_counter
        self._checkpoint_interval = checkpoint_interval
        self._last_checkpoint_step = last_checkpoint_step
        self._best = keep_best
        self._policy = Policy(
            max_to_keep,
            None if keep_checkpoint_every_n_hours is None else float(keep_checkpoint_every_n_hours),
            None if keep_every_n_steps is None else int(keep_every_n_steps),
            0 if keep_best is None else keep_best.number,
        )
        self._folder = folder_of(self._directory, durability=self._options.durability)
        self._threads = threading.RLock()  # background saves record from their threads
        self._counter = 0  # the largest number so far, for a checkpoint without a save_counter
        self._records = Records(self._directory)
        self._latest: str | None = None
        self._earlier: set[str] = set()  # managed checkpoints of an earlier run, until a restore
        self._saved: frozenset[str] = frozenset()
        # The last problem that was reported of the directory ("") and of each checkpoint.
        self._reported: dict[str, str] = {}
        self._look()
        self._earlier.update(self._records.managed)

    # ---- properties ----------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Any:
        """The object that is saved and restored."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """The directory."""
        return self._directory

    @property
    def checkpoint_interval(self) -> int | None:
        """Minimum number of steps between two checkpoints."""
        return self._checkpoint_interval

    @property
    def keep_best(self) -> KeepBest | None:
        """Which checkpoints are the best, as given."""
        return self._best

    @property
    def staging_bytes(self) -> int:
        """Size of the memory that the `Checkpoint` keeps for its next background save; it is freed
        with the Checkpoint. 0 of another object."""
        queue = getattr(self._checkpoint, "_ckptfmt_queue", None)
        return queue.staging_bytes if isinstance(queue, SaveQueue) else 0

    @property
    def latest_checkpoint(self) -> str | None:
        """Prefix of the newest checkpoint when this manager was made, or saved or restored last;
        None if there was no complete checkpoint."""
        return self._latest

    @property
    def checkpoints(self) -> list[str]:
        """Prefixes of all managed checkpoints, oldest first. Those kept permanently are not among
        them."""
        with self._threads:
            self._refresh()
            return [self._path(name) for name in self._records.managed]

    @property
    def best_checkpoint(self) -> str | None:
        """Prefix of the best checkpoint by `keep_best`, managed or kept permanently; None if none
        has the metric."""
        with self._threads:
            self._refresh()
            scored = [
                (score, self._records.managed.get(name, float("-inf")), name)
                for name in self._records.scored
                if (score := self._score(name)) is not None
            ]
            return self._path(max(scored)[2]) if scored else None

    def all_steps(self) -> list[int]:
        """Return the numbers of all checkpoints in the directory now, ascending: managed ones and
        those kept permanently.

        Raises:
            StorageError: the directory cannot be listed.
        """
        place = self._open()
        if place is None:
            return []
        with place:
            stems = [name.removesuffix(INDEX) for name in place.names() if name.endswith(INDEX)]
        numbers = [number_of(stem, self._name) for stem in stems]
        return sorted(number for number in numbers if number is not None)

    def latest_step(self) -> int | None:
        """Return the number of the newest complete checkpoint now; None if no checkpoint is
        complete, or if its name has no number.

        Raises:
            StorageError: the directory or a checkpoint cannot be read.
        """
        latest = self._look()
        return None if latest is None else number_of(os.path.basename(latest), self._name)

    # ---- saving --------------------------------------------------------------------------------

    def save(
        self,
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Save a checkpoint, record it, and remove those that are not retained.

        Args:
            checkpoint_number: its number, an int; None: the checkpoint's `save_counter`, which is
                incremented in any case. Without a `save_counter`, one more than the largest number
                so far.
            check_interval: False ignores `checkpoint_interval`, but never saves the same step
                twice.
            options: how to save, `tf.CheckpointOptions`; None: those of the manager. With
                `enable_async` the checkpoint is written in the background, as in TensorFlow, and
                the next save or `sync` raises its error.
            metrics: name to number, for `keep_best`; stored with the checkpoint.

        Returns:
            The prefix; None if `checkpoint_interval` steps have not passed since the last
            checkpoint that was saved.

        Raises:
            InvalidError: an argument of another type or value; metrics without the one that
                `keep_best` compares.
            StorageError: the checkpoint could not be written; or the state file could not: the
                checkpoint is in place, and nothing was removed.
            BusyError: another process held the lock of the directory.
            DurabilityUnknownError: it is in place, but a power cut may bring the older state back.
            Exception: what `checkpoint.write` raises. If that was one of the
                `experimental_write_callbacks`, the checkpoint is in place, and is neither recorded
                nor ever removed.
        """
        begun = self._begin(checkpoint_number, check_interval, options, metrics)
        return None if begun is None else begun[0]

    def save_async(
        self,
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
    ) -> Future[Any] | None:
        """Save a checkpoint as `save` does, in the background.

        Args:
            checkpoint_number: its number, an int; None: the checkpoint's `save_counter`, which is
                incremented in any case. Without a `save_counter`, one more than the largest number
                so far.
            check_interval: False ignores `checkpoint_interval`, but never saves the same step
                twice.
            options: how to save, `tf.CheckpointOptions`; None: those of the manager.
            metrics: name to number, for `keep_best`; stored with the checkpoint.

        Returns:
            A future, once all values are copied; its result is the prefix, once the checkpoint is
            in place and recorded, and old ones are removed. None if no checkpoint is due.

        Raises:
            InvalidError, MemoryError: an argument or an object that cannot be saved, or not copied.
                Errors of writing and recording are raised by the future.
        """
        begun = self._begin(checkpoint_number, check_interval, options, metrics, is_async=True)
        if begun is None:
            return None
        prefix, future = begun
        if future is None:
            future = Future()
            future.set_result(prefix)
        return future

    def sync(self) -> None:
        """Wait for background saves, if the checkpoint has a method `sync`, and raise their
        errors."""
        if hasattr(self._checkpoint, "sync"):
            self._checkpoint.sync()

    def _begin(
        self,
        checkpoint_number: Any,
        check_interval: bool,
        options: CheckpointOptions | None,
        metrics: Mapping[str, Any] | None,
        *,
        is_async: bool = False,
    ) -> tuple[str, Future[Any] | None] | None:
        """Save, or begin to: the prefix, and its future if it is saved in the background. None if
        no checkpoint is due."""
        before = step = self._last_checkpoint_step
        chosen = self._options
        given: Mapping[str, float] | None = None

        def choose() -> str | None:
            nonlocal chosen, given, step
            if not self._decisions.is_alone:
                self.sync()  # a background save that failed leaves the coordinator unusable
            _check_checkpoint(self._checkpoint, "write")
            if options is not None:
                chosen = CheckpointOptions.of(options)
            if is_async:
                chosen = dataclasses.replace(chosen, enable_async=True)
            given = check_metrics(metrics)
            if self._best is not None:
                self._best.check(given)
            if not self._is_due(check_interval):
                return None
            step = self._last_checkpoint_step
            self._folder.make()
            return f"{self._name}-{self._next_number(checkpoint_number)}"

        def check(done: Future[Any]) -> None:
            """Do not count a failed save as the last one."""
            # Future.exception, because SaveFuture's own would count as asking for the error.
            failed = done.cancelled() or Future.exception(done) is not None
            if failed and self._last_checkpoint_step == step:
                self._last_checkpoint_step = before

        try:
            name = self._decisions.same(choose)
            if name is None:
                return None
            if not self._decisions.is_alone:
                counter = getattr(self._checkpoint, "save_counter", None)
                if counter is not None:
                    counter[...] = counter + 1
            save = _Save(self._folder.absolute(), name, self._path(name), given)
            self._warn_of_others(name)
            if self._decisions.is_first:
                # First, because the disk may be full of what killed saves of other numbers left.
                self._folder.sweep_before_save(self._name, numbered=True)
            future = self._write(save, chosen)
        except BaseException:
            self._last_checkpoint_step = before
            raise
        if future is not None:
            future.add_done_callback(check)
        return save.prefix, future

    def _write(self, save: _Save, options: CheckpointOptions) -> Future[Any] | None:
        if options.enable_async or not self._decisions.is_alone:
            note = self._record if self._decisions.is_first else self._follow
            record: Callable[..., object] = functools.partial(note, save)
            called = (*(options.experimental_write_callbacks or ()), record)
            options = dataclasses.replace(options, experimental_write_callbacks=called)
        write_async = getattr(self._checkpoint, "write_async", None)
        write = write_async if options.enable_async and write_async else self._checkpoint.write
        written = write(save.prefix, options=options)
        if isinstance(written, Future):
            return written
        if self._decisions.is_alone:
            self._record(save)
        return None

    def _is_due(self, check_interval: bool) -> bool:
        check_switch("check_interval", check_interval)
        if self._checkpoint_interval is None:
            return True
        step, last = self._step(), self._last_checkpoint_step
        if last is not None and (
            step == last or (check_interval and step < last + self._checkpoint_interval)
        ):
            return False
        self._last_checkpoint_step = step
        return True

    def _step(self) -> int:
        counter = self._step_counter() if callable(self._step_counter) else self._step_counter
        return whole("step_counter", counter)

    def _next_number(self, given: Any) -> int:
        number = None if given is None else whole("checkpoint_number", given)
        with self._threads:
            counter = getattr(self._checkpoint, "save_counter", None)
            if counter is not None:
                count = whole("save_counter", counter) + 1
                try:
                    if self._decisions.is_alone:  # else once all processes agree
                        counter[...] = count
                except TypeError:
                    raise wrong("save_counter", "an array of one whole number", counter) from None
                return count if number is None else number
            # Other managers save as well, or are saving just now.
            place = self._open()
            with contextlib.nullcontext() if place is None else place:
                names = [] if place is None else place.names()
            numbers = [number_of(name, self._name) for name in of_managed(names, self._name)]
            count = max(self._counter, *(one for one in numbers if one is not None), 0) + 1
            number = count if number is None else number
            self._counter = max(count, number)
            return number

    # ---- recording -----------------------------------------------------------------------------

    def _follow(self, save: _Save) -> None:
        """Note a save that process 0 records."""
        self._latest = save.prefix

    def _record(self, save: _Save) -> None:
        """Do steps 1 to 5 of a save."""
        with (
            self._threads,
            save.folder.opened() as place,
            place.lock(),
        ):
            if save.recorded:
                return
            if not place.exists(save.name):
                raise StorageError(
                    "the checkpoint was saved, but it is not in the directory, which must have "
                    "been moved or replaced meanwhile",
                    path=save.prefix,
                )
            self._records.read(place)
            self._records.add(place, save.name, save.metrics)
            self._rate()
            self._latest = save.prefix
            self._records.write_metrics(place)
            self._records.write(place, save.name)
            save.recorded = True
            if self._remove_old(place):
                self._records.write(place, save.name)
            known = self._records.scored | self._records.changed
            gone = [name for name in known if not place.exists(name)]
            for name in gone:
                self._records.scored.pop(name, None)
                self._records.changed.pop(name, None)
            # Best effort: the next save does it as well.
            if gone:
                with contextlib.suppress(StorageError):
                    self._records.write_metrics(place, "rename")

    def _remove_old(self, place: Folder) -> bool:
        """Remove what is not retained; return whether any checkpoint left the queue."""
        managed = self._records.managed
        queue = [self._records.queued(name) for name in managed]
        policy = dataclasses.replace(self._records.policy, max_to_keep=self._policy.max_to_keep)
        best = self._records.best() if policy.best else set[str]()
        decided = decide(queue, self._records.last_preserved, policy, best)
        self._records.last_preserved = decided.last_preserved
        for one in decided.preserved:
            del managed[one.name]
        if not decided.deleted:
            return bool(decided.preserved)
        saved = queue[-1]
        for one in decided.deleted:
            ours = one.name in self._earlier and self._is_named(one.name)
            if ours and (one.step or 0) >= (saved.step or 0):
                self._warn(
                    self._directory,
                    f"'{self._path(one.name)}' of an earlier run is removed: this run restored "
                    f"nothing, and saved '{saved.name}'",
                )
                self._earlier.clear()
        failed = place.remove_all([one.name for one in decided.deleted])
        for one in decided.deleted:
            # Once the index is removed, the sweep removes the rest.
            if one.name not in failed or not place.exists(one.name):
                del managed[one.name]
        for name, error in failed.items():
            warn(f"{error}; the checkpoint '{name}' is removed after a later save")
        return True

    def _warn_of_others(self, name: str) -> None:
        """Warn before the checkpoint of an earlier run or of another manager is replaced."""
        prefix = self._path(name)
        saved, self._saved = name in self._saved, self._saved | {name}
        if not saved and (name in self._records.managed or is_file(index_name(prefix))):
            self._earlier.clear()
            self._warn(
                name,
                f"'{prefix}' is replaced, and this manager did not save it: restore first, "
                "or give each manager a directory of its own",
            )

    def _rate(self) -> None:
        """Record what this manager retains besides the newest. What it does not say of the best and
        of steps holds as other managers of the directory recorded it; the hours do not, as in
        TensorFlow."""
        records = self._records
        own = {name: value for name, value in vars(self._policy).items() if value}
        own |= {"max_to_keep": None, "every_n_hours": self._policy.every_n_hours}
        records.policy = dataclasses.replace(records.policy, **own)
        if self._best is not None:
            for name, record in records.scored.items():
                records.scored[name] = dataclasses.replace(record, score=self._score(name))

    def _score(self, name: str) -> float | None:
        record = self._records.scored.get(name)
        if self._best is None or record is None:
            return None
        try:
            return self._best.score(record.metrics)
        except Exception as error:
            # Metrics of other programs that the user's function cannot handle must not stop
            # removals.
            self._warn(name, f"the checkpoint '{name}' cannot be compared by keep_best: {error!r}")
            return None

    def _warn(self, what: str, problem: str) -> None:
        """Warn of a problem of the directory or of a checkpoint, unless it is the last one."""
        if self._reported.get(what) != problem:
            self._reported[what] = problem
            warn(problem)

    # ---- reading the directory -----------------------------------------------------------------

    def _open(self) -> Folder | None:
        """Return the directory, or None if it does not exist."""
        try:
            return self._folder.opened()
        except StorageError as error:
            if not proves_damage(error):
                raise
            return None

    def _look(self) -> str | None:
        """Read what other managers recorded; return the newest complete checkpoint."""
        with self._threads:
            while True:
                place = self._open()
                if place is None:
                    self._records.forget()
                    self._latest = None
                    return None
                with place:
                    self._records.read(place)
                    found, problem = newest_complete(
                        self._directory, self._records.state, self._is_named
                    )
                    # What the state file named may have been removed for a newer one.
                    if problem is None or self._records.is_current(place):
                        break
            if problem is not None and self._records.state is not None:
                end = f"'{found}' is taken" if found else "no checkpoint is complete"
                self._warn("", f"{self._path(STATE_NAME)}: {problem}; {end}")
            else:
                self._reported.pop("", None)
            self._latest = found
            return found

    def _refresh(self) -> None:
        """Read what process 0 recorded, if that is another process."""
        if not self._decisions.is_first:
            self._look()

    def _is_named(self, name: str) -> bool:
        """Return whether a checkpoint is named as this manager names its own."""
        return number_of(name, self._name) is not None

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    # ---- restoring -----------------------------------------------------------------------------

    def restore_or_initialize(self) -> str | None:
        """Restore the newest checkpoint, or call `init_fn` if there is none.

        Returns:
            The prefix that was restored; None if there was no checkpoint.

        Raises:
            CheckpointNotFoundError: the state file names checkpoints, and none is complete.
            StorageError: the directory or a checkpoint cannot be read.
            Exception: what `checkpoint.restore` raises of a sound checkpoint.
        """
        path = self._decisions.agreed(self._look)
        while path is not None:
            before = self._decisions.identity(path)
            try:
                _check_checkpoint(self._checkpoint, "restore")
                self._checkpoint.restore(path)
            except StorageError as error:
                if not proves_damage(error):
                    raise
                # Another manager may have replaced it, or removed it for a newer one.
                newest = self._decisions.agreed(self._look)
                if newest == path and self._decisions.identity(path) == before:
                    raise
                path = newest
            else:
                self._after_restore()
                return path
        self._decisions.agreed(self._refuse_lost)
        if self._init_fn is not None:
            self._init_fn()
        return None

    def _refuse_lost(self) -> None:
        """Raise CheckpointNotFoundError if there were checkpoints: a new start would hide that
        every one is lost."""
        if self._records.state is not None:
            raise CheckpointNotFoundError(
                f"the state file names '{self._records.state.model_checkpoint_path}', and no "
                "checkpoint is complete; remove the state file to start again",
                path=self._directory,
            )

    def restore_latest(self, *, check_first: bool = True) -> Restored:
        """Restore the newest sound checkpoint.

        A checkpoint is rejected only if its bytes are wrong or a file is missing. Errors that may
        be transient, such as too many open files, are raised.

        Args:
            check_first: True verifies a checkpoint before anything of it is restored;
                False leaves it to the checks that restoring makes: a damaged checkpoint may then be
                restored in part before an older one is.

        Returns:
            What was restored, and what is wrong with the newer checkpoints. Without any checkpoint
            nothing is restored.

        Raises:
            CorruptError: there are checkpoints, and all are damaged; its notes say how.
            StorageError: the directory or a checkpoint cannot be read.
            InvalidError: `check_first` is not a bool.
            Exception: what `checkpoint.restore` raises of a sound checkpoint.
        """
        check_switch("check_first", check_first)
        _check_checkpoint(self._checkpoint, "restore")
        found = restore_newest(
            self._checkpoint, self._directory, self._next_candidate, self._decisions, check_first
        )
        if found:
            self._after_restore()
        return found

    def _next_candidate(self, tried: set[str]) -> str | None:
        """Return the prefix of the newest checkpoint that was not tried yet, as the directory is
        now."""
        latest = self._look()
        if latest is not None and latest not in tried:
            return latest
        found = candidates(self._directory, self._records.state, self._is_named)
        return next((one for one in found if one not in tried), None)

    def _after_restore(self) -> None:
        self._earlier.clear()
        self._refresh()
        if self._checkpoint_interval is not None:
            self._last_checkpoint_step = self._step()


CheckpointManager.__module__ = "ckptfmt"
