# SPDX-License-Identifier: Apache-2.0
"""Checkpoint and CheckpointCallback: a model that a CheckpointManager saves and restores, by a
training loop or by `fit`."""

from __future__ import annotations

from typing import Any, Literal

import keras

from ckptfmt._base.arguments import check_switch, invalid, is_positive, wrong
from ckptfmt.bundle import reader as reading
from ckptfmt.errors import InvalidError, warn
from ckptfmt.keras.model import OPTIMIZER
from ckptfmt.keras.optimizers import CLASS
from ckptfmt.keras.weights import content_of, load_from
from ckptfmt.manager.adapted import AdapterCheckpoint
from ckptfmt.manager.manager import CheckpointManager
from ckptfmt.recipe.changes import Changes
from ckptfmt.recipe.load import MatchReport
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.shards import Save

# Names in the metadata: how many epochs and batches are done.
EPOCH, BATCHES = "epoch", "batches"


class Checkpoint(AdapterCheckpoint):
    """A model that a CheckpointManager saves and restores, with its optimizer and the states of
    random generators.

    A checkpoint is what `ckptfmt.keras.save_weights` writes, with the object graph; a restore is a
    strict `load_weights`.

    Args:
        model: the model. It must be built when it is saved or restored; `fit` builds it.
        seeds: whether to save the states of random generators, as in `save_weights`.
        options: how a save is made that gets no options of its own.

    Attributes:
        model: as given.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it. It is saved with
            the model, and replaced by a restore.

    Raises:
        InvalidError: an argument of another type; an option that has no meaning here.
    """

    def __init__(
        self, model: Any, *, seeds: bool = True, options: CheckpointOptions | None = None
    ) -> None:
        if not isinstance(model, keras.Model):
            raise wrong("model", "a keras.Model", model)
        check_switch("seeds", seeds)
        super().__init__(options)
        self.model = model
        self.metadata: dict[str, Any] = {}
        self._seeds = seeds

    def _save(self, path: str, options: CheckpointOptions) -> Save:
        model, given = self.model, self.metadata or None
        optimizer = getattr(model, OPTIMIZER, None)
        if model.built and optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)  # as a restore does
        sources, text = content_of(model, "graph", True, self._seeds, given, options.level)
        return Save(lambda *_: ([], [sources]), path, options, self._ckptfmt_queue, metadata=text)

    def _load(self, path: str) -> MatchReport:
        with reading.open(path) as reader:
            report = load_from(reader, None, self.model, True, Changes(strict=True))
            self.metadata = {name: one for name, one in reader.metadata.items() if name != CLASS}
        return report


Checkpoint.__module__ = "ckptfmt.keras"


class CheckpointCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback of `fit` that saves with a CheckpointManager in the background, and continues from
    its newest checkpoint.

    `fit` begins with the epoch after the last that was saved. A training that was interrupted
    within an epoch begins that epoch again, with the weights that were saved last.

    Example:
        manager = ckptfmt.CheckpointManager(ckptfmt.keras.Checkpoint(model), "run", 3)
        model.fit(x, y, epochs=10, callbacks=[ckptfmt.keras.CheckpointCallback(manager)])

    Args:
        manager: of a `ckptfmt.keras.Checkpoint` of the model that is trained. A `keep_best` of it
            compares the logs of Keras, such as "val_loss"; what is saved without a validation
            is not compared by that.
        monitor: the metric that the manager's `keep_best` compares, to be sure of it.
        save_freq: "epoch" saves after each epoch, under its number; an integer N every N batches,
            under the number of batches.

    Raises:
        InvalidError: an argument of another type or value; the manager keeps the best by another
            metric than `monitor`, or not at all.
    """

    def __init__(
        self,
        manager: CheckpointManager,
        *,
        monitor: str | None = None,
        save_freq: Literal["epoch"] | int = "epoch",
    ) -> None:
        super().__init__()
        if not isinstance(manager, CheckpointManager):
            raise wrong("manager", "a CheckpointManager", manager)
        if not isinstance(manager.checkpoint, Checkpoint):
            raise invalid("manager", "the manager must be one of a ckptfmt.keras.Checkpoint(model)")
        best = None if manager.keep_best is None else manager.keep_best.metric
        if monitor is not None and monitor != best:
            raise invalid(
                "monitor",
                f"monitor={monitor!r}, but the manager keeps the best by {best!r}: pass "
                f"keep_best=KeepBest({monitor!r}, mode=...) to the manager",
            )
        if save_freq != "epoch" and not is_positive(save_freq):
            raise wrong("save_freq", "'epoch' or a positive number of batches", save_freq)
        self._manager, self._best = manager, best
        self._is_compared: bool | None = None  # None before the first save
        self._every = None if save_freq == "epoch" else int(save_freq)
        self._epoch = self._batch = self._batches = self._saved = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the newest checkpoint, if there is one. A CkptfmtWarning says that no epoch is
        left.

        Raises:
            InvalidError: the model is not that of the manager.
            What `CheckpointManager.restore_or_initialize` raises.
        """
        model, checkpoint = self.model, self._manager.checkpoint
        if checkpoint.model is not model:
            raise InvalidError("the model that is trained is not that of the manager's Checkpoint")
        path = self._manager.restore_or_initialize()
        if path is None:
            return
        epoch, batches = (checkpoint.metadata.get(name) for name in (EPOCH, BATCHES))
        if not isinstance(epoch, int) or not isinstance(batches, int):
            warn(
                f"{path} does not say after how many epochs it was saved: fit counts from the first"
            )
            return
        epochs = (self.params or {}).get("epochs")
        if isinstance(epochs, int) and epoch >= epochs:
            warn(f"{path} was saved after {epoch} of {epochs} epochs: none is left")
        model._initial_epoch = epoch  # as keras.callbacks.BackupAndRestore does
        self._batches = self._saved = batches

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count."""
        self.model._initial_epoch = None  # a later fit begins with its own
        self._epoch, self._batch = epoch, -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save, if it is time."""
        # With steps_per_execution, not every batch ends here.
        self._batches += batch - self._batch
        self._batch = batch
        # After the last batch `fit` draws numbers, on torch for the order of the next epoch.
        if self._is_due and batch + 1 != (self.params or {}).get("steps"):
            self._save(self._batches, self._epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save, if it is time."""
        # Of data of unknown length, the last batch may have been saved as one within the epoch.
        if self._every is None or self._is_due or self._saved == self._batches:
            self._save(self._batches if self._every else epoch + 1, epoch + 1, logs)

    @property
    def _is_due(self) -> bool:
        return self._every is not None and self._batches - self._saved >= self._every

    def on_train_end(self, logs: Any = None) -> None:
        """Wait for the last save."""
        self.model._initial_epoch = None  # after no epoch
        self._manager.sync()
        if self._is_compared is False:
            warn(f"no checkpoint can be the best: fit never logged {self._best!r}")

    def _save(self, number: int, epochs: int, logs: Any) -> None:
        self._saved = self._batches
        self.model  # noqa: B018 (on JAX it brings the model up to date)
        self._manager.checkpoint.metadata |= {EPOCH: epochs, BATCHES: self._batches}
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        waits = isinstance(self._best, str) and self._best.startswith("val_")
        if waits and not any(name.startswith("val_") for name in metrics):
            metrics = {}  # validation runs after the epoch, and not after each
            self._is_compared = self._is_compared or False
        else:
            self._is_compared = True
        self._manager.save_async(number, metrics=metrics or None)


CheckpointCallback.__module__ = "ckptfmt.keras"
