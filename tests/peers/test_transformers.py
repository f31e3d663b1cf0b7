# SPDX-License-Identifier: Apache-2.0
"""The Trainer of transformers with our callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerState, TrainingArguments

import ckptfmt.torch
from ckptfmt.torch.transformers import CheckpointCallback

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(3, 4)
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = torch.nn.functional.dropout(self.net(x), 0.5, self.training).square().sum()
        self.losses.append(loss.item())
        return {"loss": loss}


def train(
    where: Path,
    steps: int,
    resume: bool | str = False,
    callback: bool = True,
    only_model: bool = True,
) -> Net:
    torch.manual_seed(0)
    net = Net()
    arguments = TrainingArguments(
        str(where),
        max_steps=steps,
        save_steps=2,
        save_only_model=only_model,
        per_device_train_batch_size=2,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    data: Any = [{"x": torch.full((3,), number / 8)} for number in range(8)]
    callbacks = [CheckpointCallback()] if callback else []
    trainer = Trainer(net, arguments, train_dataset=data, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return net


def test_training_resumes_bit_equal(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 6)
    for steps in (2, 4):  # within an epoch, and at the end of one
        half = train(tmp_path / f"{steps}", steps)
        rest = train(tmp_path / f"{steps}", 6, resume=True)
        assert half.losses == whole.losses[:steps]
        assert rest.losses == whole.losses[steps:]
        assert torch.equal(rest.net.weight, whole.net.weight)
    found = ckptfmt.torch.load(tmp_path / "4" / "checkpoint-6" / "training")
    assert found["step"] == 6
    assert torch.equal(found["model"]["net.weight"], rest.net.weight)
    assert not list(tmp_path.glob("*/*/optimizer*"))


MISSING = (
    r"resumes at step 2, but training\.index with the optimizer.* is missing there.*start without"
)


@pytest.mark.parametrize(
    ("callback", "only_model", "elsewhere", "error"),
    [
        (True, True, False, ""),
        (False, True, False, MISSING),
        (False, False, False, ""),  # the Trainer's own optimizer
        (True, True, True, MISSING),  # the callback knows only output_dir
        (False, False, True, ""),
    ],
)
def test_a_training_part_that_is_missing(
    tmp_path: Path, callback: bool, only_model: bool, elsewhere: bool, error: str
) -> None:
    """Is an error, and the optimizer never starts anew."""
    whole = train(tmp_path / "whole", 4)
    train(tmp_path / "a", 2, callback=callback, only_model=only_model)
    path = str(tmp_path / "a" / "checkpoint-2")
    where = tmp_path / ("b" if elsewhere else "a")
    if error:
        with pytest.raises(ckptfmt.CheckpointNotFoundError, match=error):
            train(where, 4, resume=path)
        assert not (where / "checkpoint-4").exists()
    else:
        assert train(where, 4, resume=path).losses == whole.losses[2:]


def test_an_optimizer_that_does_not_fit(tmp_path: Path) -> None:
    """Is refused, and the model stays as it is."""

    def parts(optimizer: Any, net: Net) -> dict[str, Any]:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        return {"model": net, "optimizer": optimizer, "lr_scheduler": scheduler}

    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    state, callback = TrainerState(global_step=2, is_world_process_zero=True), CheckpointCallback()
    first, second = Net(), Net()
    callback.on_save(arguments, state, None, **parts(torch.optim.SGD(first.parameters()), first))
    weight = second.net.weight.clone()
    other = torch.optim.SGD([second.net.weight])
    with pytest.raises(ckptfmt.InvalidError, match="'optimizer' is 2 parameters"):
        callback.on_train_begin(arguments, state, None, **parts(other, second))
    assert torch.equal(second.net.weight, weight)
    fitting = parts(torch.optim.SGD(second.parameters()), second)
    callback.on_train_begin(arguments, state, None, **fitting)
    assert torch.equal(second.net.weight, first.net.weight)
    arguments.enable_jit_checkpoint = arguments.save_only_model = True
    with pytest.raises(ckptfmt.InvalidError, match="save_only_model=False"):
        callback.on_train_begin(arguments, state, None, **fitting)
