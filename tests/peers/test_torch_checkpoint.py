# SPDX-License-Identifier: Apache-2.0
"""ckptfmt.torch.Checkpoint: trainings with a CheckpointManager."""

from __future__ import annotations

import mmap
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.resuming import QUICK, check_commands, killed_and_resumed, managed, metrics
from torch import nn

import ckptfmt
from ckptfmt.torch import Checkpoint, RandomState


def state_of() -> dict[str, Any]:
    """A state with random numbers, and Python values at two depths."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return {**objects, "random": RandomState(), "position": {"epoch": 0}, "step": 0}


def step(state: dict[str, Any]) -> None:
    state["step"] += 1
    state["optimizer"].zero_grad()
    state["model"](torch.randn(4, 4)).square().sum().backward()
    state["optimizer"].step()
    state["scheduler"].step()
    state["position"]["epoch"] = state["step"] // 4


def train(is_async: bool, directory: Path, steps: int, shared: mmap.mmap) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    state = state_of()
    manager = managed(Checkpoint(state, options=QUICK), directory)
    manager.restore_or_initialize()
    save = manager.save_async if is_async else manager.save
    while state["step"] < steps:
        step(state)
        save(state["step"], metrics=metrics(state["step"]))
        shared[0] = state["step"]
    manager.sync()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kills", [10, pytest.param(30, marks=pytest.mark.slow)])
def test_a_killed_training_ends_bit_equal(
    tmp_path: Path, seed: int, is_async: bool, kills: int, capsys: Any
) -> None:
    first = state_of()
    first["optimizer"].step()  # torch imports more then: once for all children
    killed = killed_and_resumed(partial(train, is_async), tmp_path, kills, seed)
    check_commands(killed, capsys)


def test_a_checkpoint_is_what_save_writes(tmp_path: Path) -> None:
    """The state alone, with the options of the checkpoint unless the manager has its own; a restore
    changes all of it or nothing."""
    state = state_of()
    state["step"] = 2
    step(state)
    options = ckptfmt.tf.CheckpointOptions(durability="none", compression="zstd")
    manager = ckptfmt.CheckpointManager(Checkpoint(state, options=options), tmp_path, 3)
    path = manager.save()
    with ckptfmt.open(path) as reader:
        assert reader.header.min_consumer == 2
        assert all(name.startswith(("model.", "optimizer.", "random.")) for name in reader)
    other = state_of()
    assert ckptfmt.torch.load_into(other, path) and other["step"] == 3
    fresh = Checkpoint(state_of())
    assert ckptfmt.CheckpointManager(fresh, tmp_path, 3).restore_latest().status
    assert (fresh.state["step"], fresh.state["position"]) == (3, {"epoch": 0})
    assert torch.equal(fresh.state["model"][0].weight, state["model"][0].weight)
    changed = Checkpoint(state_of() | {"more": torch.ones(2)})
    before = changed.state["model"][0].weight.clone()
    with pytest.raises(ckptfmt.TensorNotFoundError):
        changed.restore(path)
    assert torch.equal(changed.state["model"][0].weight, before) and changed.state["step"] == 0
    module = Checkpoint(state["model"])
    assert list(ckptfmt.torch.load(module.write(tmp_path / "module"))) == list(
        module.state.state_dict()
    )


def test_callbacks_and_errors_of_the_background(tmp_path: Path) -> None:
    called: list[str] = []
    options = ckptfmt.tf.CheckpointOptions(experimental_write_callbacks=[called.append])
    checkpoint = Checkpoint({"x": torch.ones(2)})
    prefix = str(tmp_path / "a")
    future = checkpoint.write_async(prefix, options)
    checkpoint.state["x"].zero_()
    assert future.result() == prefix and called == [prefix]
    assert ckptfmt.load(prefix)["x"].tolist() == [1, 1]
    assert checkpoint.write(tmp_path / "b", options) == called[-1] == str(tmp_path / "b")

    def fail() -> None:
        raise OSError("of the callback")

    checkpoint.write_async(
        prefix, ckptfmt.tf.CheckpointOptions(experimental_write_callbacks=[fail])
    )
    with pytest.raises(OSError, match="of the callback"):
        checkpoint.sync()
    checkpoint.sync()


@pytest.mark.parametrize(
    "option",
    [
        {"check_replicas": True},
        {"experimental_io_device": "/cpu:0"},
        {"experimental_sharding_callback": ckptfmt.tf.ShardByTaskPolicy()},
        {"experimental_skip_slot_variables": True},
    ],
)
def test_options_without_a_meaning_are_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    options = ckptfmt.tf.CheckpointOptions(**option)
    checkpoint = Checkpoint({"x": torch.ones(2)})
    for call in (
        lambda: Checkpoint(checkpoint.state, options=options),
        lambda: checkpoint.write(tmp_path / "a", options),
        lambda: checkpoint.write_async(tmp_path / "a", options),
        lambda: checkpoint.restore(tmp_path / "a", options),
    ):
        with pytest.raises(ckptfmt.InvalidError) as caught:
            call()
        assert caught.value.argument == "options"
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_restored_is_refused() -> None:
    with pytest.raises(ckptfmt.InvalidError) as caught:
        Checkpoint([torch.ones(2)])
    assert caught.value.argument == "state"
    several: Any = object()
    with pytest.raises(ckptfmt.InvalidError) as caught:
        Checkpoint({"x": torch.ones(2)}, coordinator=several)
    assert caught.value.argument == "coordinator"
