# SPDX-License-Identifier: Apache-2.0
"""ckptfmt.keras.Checkpoint and CheckpointCallback: trainings with a CheckpointManager."""

from __future__ import annotations

import mmap
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from support.resuming import QUICK, check_commands, killed_and_resumed, managed, metrics

import ckptfmt
from ckptfmt.keras import Checkpoint, CheckpointCallback, load_weights, save_weights

X, Y = np.random.default_rng(1).random((2, 8, 4), np.float32)


def model_of() -> Any:
    """A model with random numbers, from its own generator and from Keras's."""
    drops = [layers.Dropout(0.5), layers.Dropout(0.5, seed=3)]
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8), *drops, layers.Dense(4)])
    model.compile("adam", "mse")
    return model


def loop(directory: Path, steps: int, shared: mmap.mmap) -> None:
    """A loop of one's own, which saves at once."""
    keras.utils.set_random_seed(1)
    model = model_of()
    manager = managed(Checkpoint(model, options=QUICK), directory)
    manager.restore_or_initialize()
    for step in range(int(model.optimizer.iterations) + 1, steps + 1):
        model.train_on_batch(X, Y)
        manager.save(step, metrics=metrics(step))
        shared[0] = step


class Distance(keras.callbacks.Callback):
    """Another callback, before that of the checkpoints."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs |= metrics(epoch + 1)


class Shared(keras.callbacks.Callback):
    def __init__(self, shared: mmap.mmap) -> None:
        super().__init__()
        self.shared = shared

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.shared[0] = epoch + 1


def fit(save_freq: Any, directory: Path, steps: int, shared: mmap.mmap) -> None:
    keras.utils.set_random_seed(1)
    model = model_of()
    saves = CheckpointCallback(managed(Checkpoint(model, options=QUICK), directory))
    model.fit(
        X,
        Y,
        batch_size=4,
        epochs=steps,
        shuffle=False,
        verbose=0,
        callbacks=[Distance(), saves, Shared(shared)],
    )


@pytest.mark.parametrize("train", [loop, partial(fit, "epoch")], ids=["loop", "fit"])
@pytest.mark.parametrize("kills", [10, pytest.param(30, marks=pytest.mark.slow)])
def test_a_killed_training_ends_bit_equal(
    tmp_path: Path, seed: int, train: Any, kills: int, capsys: Any
) -> None:
    with mmap.mmap(-1, 1) as shared:
        train(tmp_path / "first", 1, shared)  # Keras imports more then: once for all children
    killed = killed_and_resumed(train, tmp_path, kills, seed)
    check_commands(killed, capsys)


def test_batches_continue_at_the_epoch(tmp_path: Path) -> None:
    """Saved every two of three batches, and stopped: the epoch within which that was begins again.
    What `fit` logs is the metric; everything is what `save_weights` writes."""
    model = model_of()
    best = ckptfmt.KeepBest("loss", mode="min")
    manager = ckptfmt.CheckpointManager(Checkpoint(model), tmp_path, 9, keep_best=best)
    saves = CheckpointCallback(manager, monitor="loss", save_freq=2)
    model.fit(X[:6], Y[:6], batch_size=2, epochs=3, shuffle=False, verbose=0, callbacks=[saves])
    assert manager.all_steps() == [2, 4, 6, 8] and manager.best_checkpoint is not None
    other = model_of()
    checkpoint = Checkpoint(other)
    (tmp_path / "ckpt-8.index").unlink()  # 6 batches are 2 epochs
    with pytest.warns(ckptfmt.CkptfmtWarning, match="not complete"):
        manager = ckptfmt.CheckpointManager(checkpoint, tmp_path, 9)
    again = CheckpointCallback(manager, save_freq=2)
    done = other.fit(
        X[:6], Y[:6], batch_size=2, epochs=3, shuffle=False, verbose=0, callbacks=[again]
    )
    assert done.epoch == [2] and int(other.optimizer.iterations) == 9
    assert checkpoint.metadata == {"epoch": 2, "batches": 8}
    assert load_weights(model, tmp_path / "ckpt-8")
    with pytest.warns(ckptfmt.CkptfmtWarning, match="none is left"):
        done = other.fit(X[:6], Y[:6], epochs=2, verbose=0, callbacks=[again])
    assert done.epoch == []


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_last_batch_ends_the_epoch(tmp_path: Path) -> None:
    """Also of data whose length Keras does not know."""
    checkpoint = Checkpoint(model_of())
    saves = CheckpointCallback(ckptfmt.CheckpointManager(checkpoint, tmp_path, 9), save_freq=1)
    data = ((X[:2], Y[:2]) for _ in range(3))
    checkpoint.model.fit(data, shuffle=False, verbose=0, callbacks=[saves])
    assert ckptfmt.open(tmp_path / "ckpt-3").metadata.items() >= {"epoch": 1, "batches": 3}.items()


def test_what_a_callback_refuses(tmp_path: Path) -> None:
    model = model_of()
    with pytest.raises(ckptfmt.InvalidError) as caught:
        Checkpoint({})
    assert caught.value.argument == "model"
    manager = ckptfmt.CheckpointManager(Checkpoint(model), tmp_path, 3)
    other = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(), tmp_path, 3)
    for argument, call in {
        "manager": lambda: CheckpointCallback(other),
        "monitor": lambda: CheckpointCallback(manager, monitor="loss"),
        "save_freq": lambda: CheckpointCallback(manager, save_freq=True),
    }.items():
        with pytest.raises(ckptfmt.InvalidError) as caught:
            call()
        assert caught.value.argument == argument
    with pytest.raises(ckptfmt.InvalidError, match="not that of the manager"):
        model_of().fit(X, Y, shuffle=False, verbose=0, callbacks=[CheckpointCallback(manager)])


def test_urls() -> None:
    store_url = "memory://keras/run"
    model = model_of()
    prefix = f"{store_url}/weights"
    assert save_weights(model, prefix, optimizer=False) == prefix
    assert load_weights(model_of(), prefix)
    manager = ckptfmt.CheckpointManager(Checkpoint(model), store_url, 3)
    untrained = manager.checkpoint.write(f"{store_url}/untrained")
    assert Checkpoint(model_of()).restore(untrained)  # with the variables of the optimizer
    for epochs in (1, 2):
        saves = CheckpointCallback(manager)
        model.fit(X, Y, epochs=epochs, shuffle=False, verbose=0, callbacks=[saves])
    assert manager.latest_step() == 2
    for call in (save_weights, load_weights):
        with pytest.raises(ckptfmt.UnsupportedError):
            call(model, f"{store_url}/x.weights.h5")


def test_batches_that_end_an_epoch_continue_bit_equal(tmp_path: Path) -> None:
    """Such a save is made after the epoch: on torch `fit` draws in between."""
    weights = []
    for epochs, name in ((4, "whole"), (2, "parts"), (4, "parts")):
        keras.utils.set_random_seed(1)
        model = model_of()
        manager = ckptfmt.CheckpointManager(Checkpoint(model), tmp_path / name, 3)
        saves = CheckpointCallback(manager, save_freq=2)
        model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=[saves])
        weights.append(model.get_weights())
    assert all(map(np.array_equal, weights[0], weights[2]))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras on torch
def test_validation_of_some_epochs(tmp_path: Path) -> None:
    """What is saved without a validation is not compared. A later `fit` without the callback begins
    with its own first epoch."""
    model = model_of()
    train = partial(model.fit, X, Y, batch_size=4, shuffle=False, verbose=0)
    best = ckptfmt.KeepBest("val_loss", mode="min")
    manager = ckptfmt.CheckpointManager(Checkpoint(model), tmp_path, 9, keep_best=best)
    with pytest.warns(ckptfmt.CkptfmtWarning, match="val_loss"):
        train(epochs=1, callbacks=[CheckpointCallback(manager)])
    saves = CheckpointCallback(manager, monitor="val_loss")
    data = {"validation_data": (X, Y), "validation_freq": 2}
    assert train(epochs=3, callbacks=[saves], **data).epoch == [1, 2]
    assert manager.all_steps() == [1, 2, 3] and manager.best_checkpoint == str(tmp_path / "ckpt-2")
    with pytest.warns(ckptfmt.CkptfmtWarning, match="none is left"):
        assert train(epochs=3, callbacks=[saves]).epoch == []
    assert train(epochs=2).epoch == [0, 1]
