# SPDX-License-Identifier: Apache-2.0
"""TrainingState: what a training job needs to continue after a crash or a preemption, as the legacy
Keras `WorkerTrainingState`.

The state is a checkpoint of the model and of the position in the training. Only the newest is kept,
under `<checkpoint_dir>/chief`. Workers that a coordinator joins save and restore one checkpoint
together. Without a coordinator, workers other than the chief take part in every save, because
computing the values of a model may need all of them, and write to a directory that they throw away.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptfmt._base.arguments import check_switch, invalid, wrong
from ckptfmt._base.background import wait_for_saves
from ckptfmt._base.names import path_text
from ckptfmt.errors import CkptfmtError
from ckptfmt.files.folder import folder_of
from ckptfmt.files.orphans import METRICS_NAME, of_managed
from ckptfmt.files.places import is_directory
from ckptfmt.files.state_file import STATE_NAME
from ckptfmt.manager.manager import CheckpointManager
from ckptfmt.manager.restoring import Decisions
from ckptfmt.objects.checkpoint import SAVE_COUNTER, Checkpoint
from ckptfmt.objects.layouts import layouts_by_path
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.sharded.coordinator import whole

if TYPE_CHECKING:
    from ckptfmt.sharded.coordinator import Coordinator


Path = str | bytes | os.PathLike[Any]

TRAIN = "train"
CHIEF = "chief"
NAME = "ckpt"
UNUSED = -1
INT64_MAX = (1 << 63) - 1


class _Backup(Checkpoint):
    """The checkpoint of a TrainingState. A backup of the legacy class has no batch."""

    __slots__ = ()
    _ckptfmt_may_lack = ("ckpt_saved_batch", SAVE_COUNTER)


class TrainingState:
    """Back up a model and the position in its training, and restore them after a restart.

    A training loop makes one, calls `restore`, asks `maybe_load_initial_epoch_from_ckpt` (or
    `maybe_load_initial_counters_from_ckpt`) where to begin, calls `back_up` after each epoch, or
    more often, and `delete_backup` once the training is over. Every worker does all of that.

    The checkpoints contain `model`, `ckpt_saved_epoch` and `ckpt_saved_batch` (int64, -1 if
    missing), under TensorFlow's keys; those of the legacy Keras class are read as well.

    Args:
        model: any object that `Checkpoint` takes; a Checkpoint must not have a coordinator of its
            own.
        checkpoint_dir: the directory of the backups, the same for all workers. The backup is in
            `chief` below it. Without a coordinator, workers other than the chief write to
            `workertemp_<task_id>`, which is removed after each save.
        coordinator: joins the workers, which save and restore one backup together, as `Checkpoint`
            does; rank 0 is the chief. A later job may have another number of workers. None for a
            single worker, or workers that `task_id` and `is_chief` distinguish.
        layouts: with a coordinator, the layouts of the model's arrays on meshes: a mapping from
            their paths in the model ("kernel") to Layout or None, or a tree of these, as in
            `Checkpoint`. All other arrays of the model are equal in all workers.
        task_id: which worker this is, without a coordinator.
        is_chief: whether this worker's backup is the one that is kept, without a coordinator;
            default `task_id == 0`.
        options: how to save. With `enable_async` the chief saves in the background, and its next
            `back_up` raises what failed, as do all workers of a coordinator. Without a coordinator,
            other workers save synchronously, without syncing files.

    Attributes:
        read_checkpoint_manager: the manager of the chief's directory.
        write_checkpoint_manager: the same for the chief and with a coordinator; else that of the
            throw-away directory.

    Raises:
        InvalidError: an argument of another type; task_id beside a coordinator, layouts without
            one; a Checkpoint with a coordinator as the model.
        StorageError: the directory cannot be read.
    """

    def __init__(
        self,
        model: Any,
        checkpoint_dir: Path,
        *,
        coordinator: Coordinator | None = None,
        layouts: Any = None,
        task_id: int | None = None,
        is_chief: bool | None = None,
        options: CheckpointOptions | None = None,
    ) -> None:
        self._directory = path_text(checkpoint_dir, "checkpoint_dir", urls=True)
        task = 0 if task_id is None else _whole("task_id", task_id)
        if is_chief is not None:
            check_switch("is_chief", is_chief)
        self._options = CheckpointOptions.of(options)
        self._epoch, self._batch = np.array(UNUSED, np.int64), np.array(UNUSED, np.int64)
        if layouts is not None:
            by_path = layouts_by_path(layouts).items()
            layouts = {f"model/{path}".rstrip("/"): layout for path, layout in by_path}
        self._checkpoint = _Backup(
            coordinator=coordinator,
            layouts=layouts,
            model=model,
            ckpt_saved_epoch=self._epoch,
            ckpt_saved_batch=self._batch,
        )
        self._decisions = Decisions(coordinator)
        if coordinator is None:
            self._is_chief = task == 0 if is_chief is None else is_chief
        elif task_id is not None or is_chief is not None:
            raise invalid(
                "coordinator", "task_id and is_chief must not be given with a coordinator"
            )
        else:
            self._is_chief = self._decisions.is_first
        self._place = CHIEF
        self.read_checkpoint_manager = self.write_checkpoint_manager = self._manager_of(CHIEF)
        if coordinator is None and not self._is_chief:
            self._options = dataclasses.replace(
                self._options, durability="none", enable_async=False
            )
            self._place = f"workertemp_{task}"
            self._remove()  # files of a killed worker
            self.write_checkpoint_manager = self._manager_of(self._place)

    def _manager_of(self, name: str) -> CheckpointManager:
        return CheckpointManager(
            self._checkpoint,
            os.path.join(self._directory, name),
            1,
            checkpoint_name=NAME,
            options=self._options,
        )

    def back_up(self, epoch: int, batch: int | None = None) -> str | None:
        """Save the model and the position in the training, and remove the older backup.

        Args:
            epoch: the epoch that is over or, with `batch`, under way; from 0.
            batch: the batch of the epoch that was trained last, from 0; None at the end of the
                epoch.

        Returns:
            The prefix of the backup; None in workers other than the chief.

        Raises:
            InvalidError: a number that is negative or does not fit an int64; with a coordinator, in
                all workers, or that differs between them.
            Exception: what `CheckpointManager.save` raises; the older backup then still exists, and
                the position is the one before.
        """
        before = int(self._epoch), int(self._batch)
        now = before

        def position() -> str:
            nonlocal now
            now = _whole("epoch", epoch), UNUSED if batch is None else _whole("batch", batch)
            return f"epoch {now[0]}" + ("" if batch is None else f", batch {now[1]}")

        self._decisions.same(position)
        self._epoch[...], self._batch[...] = now
        try:
            saved = self.write_checkpoint_manager.save(options=self._options)
        except BaseException:
            self._epoch[...], self._batch[...] = before
            if self._place != CHIEF:
                with contextlib.suppress(CkptfmtError):
                    self._remove()
            raise
        if self._place != CHIEF:
            self._remove()
        if not self._is_chief or saved is None:
            return None
        with contextlib.suppress(CkptfmtError):  # the next backup tries again
            self._remove_unrecorded(saved)
        return saved

    def restore(self) -> bool:
        """Restore the newest sound backup, the chief's in every worker. With a coordinator all
        restore the same one, each its own part, and return when all have. A damaged backup may be
        restored in part before an older one is.

        Returns:
            Whether there was one. If not, the model is as it was, and no position is saved.

        Raises:
            MatchError: the backup has no value for an object of the model; nothing is restored.
            CorruptError: there are backups, and all are damaged.
            StorageError: the backups cannot be read now.
            Exception: what `Checkpoint.restore` raises. With a coordinator, in all workers.
        """
        self._epoch[...] = self._batch[...] = UNUSED
        try:
            # A background save removes the backup before it.
            wait_for_saves()
            return bool(self.read_checkpoint_manager.restore_latest(check_first=False))
        except BaseException:
            # The position may have been restored before the model failed.
            self._epoch[...] = self._batch[...] = UNUSED
            raise

    def maybe_load_initial_epoch_from_ckpt(self, initial_epoch: int, mode: str | None) -> int:
        """Return the epoch to begin with, after `restore`: in training mode, if a position was
        saved, the epoch after the saved one, or the saved one if it was not over; else
        `initial_epoch`.

        Args:
            initial_epoch: where the training would begin.
            mode: "train", or another of Keras's mode keys, or None.

        Raises:
            InvalidError: arguments of another type.
        """
        initial_epoch = _whole("initial_epoch", initial_epoch)
        epoch, batch = self._saved(mode)
        if epoch == UNUSED:
            return initial_epoch
        return epoch + 1 if batch == UNUSED else epoch

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: int, initial_epoch: int, mode: str | None
    ) -> tuple[int, int]:
        """Return the epoch and the batch in it to begin with, after `restore`: in training mode, if
        a position was saved, those that follow it; else `initial_epoch` and 0.

        Args:
            steps_per_epoch: the batches of an epoch.
            initial_epoch: where the training would begin.
            mode: "train", or another of Keras's mode keys, or None.

        Raises:
            InvalidError: arguments of another type.
        """
        steps = _whole("steps_per_epoch", steps_per_epoch)
        initial_epoch = _whole("initial_epoch", initial_epoch)
        epoch, batch = self._saved(mode)
        if epoch == UNUSED:
            return initial_epoch, 0
        if batch == UNUSED or batch + 1 >= steps:
            return epoch + 1, 0
        return epoch, batch + 1

    def delete_backup(self) -> None:
        """Remove the backups after a training that is over: the chief's checkpoints by their exact
        names, then its directory if that is empty. Without a coordinator, other workers remove what
        a killed worker left in their temporary directory. Waits for background saves.

        Raises:
            StorageError: a file could not be removed.
        """
        wait_for_saves()
        if self._is_chief or self._place != CHIEF:
            self._remove()

    def _remove(self) -> None:
        """Remove what the managers of this worker made in its directory, and the directory if it is
        empty then."""
        folder = folder_of(
            os.path.join(self._directory, self._place), durability=self._options.durability
        )
        if not is_directory(folder.path):
            return
        with folder.opened() as place, place.lock():
            for error in place.remove_all(of_managed(place.names(), NAME)).values():
                raise error
            for name in (STATE_NAME, METRICS_NAME):
                place.remove_file(name)
            place.sweep(NAME)
        folder.remove_if_empty()  # it may contain other files

    def _remove_unrecorded(self, saved: str) -> None:
        """Remove the backup of a process that was killed before it recorded it, once another one
        is recorded."""
        manager = self.read_checkpoint_manager
        recorded = set(map(os.path.basename, manager.checkpoints))
        kept = {*recorded, os.path.basename(saved)}
        folder = folder_of(manager.directory, durability=self._options.durability)
        with folder.opened() as place:
            found = of_managed(place.names(), NAME) - kept if recorded else ()
            if found:
                with place.lock():
                    place.remove_all(found)

    def _saved(self, mode: str | None) -> tuple[int, int]:
        """Return the saved epoch and batch if they apply in this mode, else UNUSED."""
        if mode is not None and not isinstance(mode, str):
            raise wrong("mode", "a str or None", mode)
        if mode != TRAIN or self._epoch < 0:
            return UNUSED, UNUSED
        return int(self._epoch), max(int(self._batch), UNUSED)


TrainingState.__module__ = "ckptfmt.tf"


def _whole(what: str, given: object) -> int:
    number = whole(what, given)
    if number < 0:
        raise invalid(what, f"{what} must not be negative, but is {number}")
    if number > INT64_MAX:
        raise invalid(what, f"{what} must fit an int64, but is {number}")
    return number
