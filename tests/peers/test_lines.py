# SPDX-License-Identifier: Apache-2.0
"""The programs of bench/lines that keep the newest three checkpoints and the best."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import lightning
import numpy as np
import pytest
import torch
from support.bench import module

# Each step doubles the weight and changes its sign: 1, -2, 4, ...; the first loss is the best.
RATE = 1.5


def torch_run(manager: Any, steps: int, weight: float) -> float:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, weight)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.0)
    state = {"model": model, "optimizer": optimizer, "step": 0}

    def train_step(state: dict[str, Any], batch: torch.Tensor) -> float:
        state["optimizer"].zero_grad()
        loss = state["model"](batch).square().sum()
        loss.backward()
        state["optimizer"].step()
        state["step"] += 1
        return float(loss)

    manager(train_step, state, torch.ones(steps, 1))
    assert state["step"] == steps
    return model.weight.item()


def jax_run(manager: Any, steps: int, weight: float) -> float:
    import jax  # noqa: PLC0415 (which warns where it is imported before a fork)

    def train_step(state: dict[str, Any], batch: Any) -> tuple[dict[str, Any], float]:
        loss = float(state["weight"] ** 2)
        return {"weight": -2 * state["weight"] * batch, "step": state["step"] + 1}, loss

    state = {"weight": jax.numpy.full((), weight), "step": 0}
    state = manager(train_step, state, np.ones(steps, np.float32))
    assert state["step"] == steps
    return float(state["weight"])


def keras_run(manager: Any, steps: int, weight: float) -> float:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.full((1, 1), weight)])
    model.compile(keras.optimizers.SGD(RATE), "mse")
    manager(model, (np.ones((1, 1)), np.zeros((1, 1))), steps)
    return float(model.get_weights()[0].item())


class Module(lightning.LightningModule):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(self.net.weight, weight)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch).square().sum()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), RATE)


def lightning_run(manager: Any, steps: int, weight: float) -> float:
    model = Module(weight)
    manager(model, torch.utils.data.DataLoader(torch.ones(1, 1)), steps)
    return model.net.weight.item()


RUNS = {
    "ckptfmt_torch": torch_run,
    "torch_save": torch_run,
    "dcp": torch_run,
    "ckptfmt_jax": jax_run,
    "orbax": jax_run,
    "ckptfmt_keras": keras_run,
    "keras": keras_run,
    "lightning": lightning_run,
}


def kept() -> set[int]:
    """The numbers of the checkpoints in the working directory, of steps or epochs."""
    names = [str(path.relative_to("run")) for path in Path("run").rglob("*")]
    patterns = [r"ckpt-(\d+)\.index", r"(\d+)(?:_[\d.]+)?(?:\.pt|\.keras)?", r".*step=(\d+)\.ckpt"]
    found = [re.fullmatch(pattern, name) for pattern in patterns for name in names]
    return {int(one[1]) for one in found if one is not None}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("side", RUNS)
def test_manager(side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of three steps, and one that continues it to the sixth."""
    monkeypatch.chdir(tmp_path)
    manager = module(f"lines/with_{side}").manager
    assert RUNS[side](manager, 3, 1.0) == -8
    assert kept() == {1, 2, 3}
    assert RUNS[side](manager, 6, 5.0) == 64  # not of its own weight
    assert kept() == {1, 4, 5, 6}
