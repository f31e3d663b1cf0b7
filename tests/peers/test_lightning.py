# SPDX-License-Identifier: Apache-2.0
"""Lightning with our CheckpointIO: checkpoints, resuming, the checkpoints kept and removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.callbacks import ModelCheckpoint

import ckptfmt.torch
from ckptfmt.torch.lightning import CheckpointIO

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Module(lightning.LightningModule):
    def __init__(self, width: int = 5, rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(3, width)
        self.losses: list[float] = []

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        loss: torch.Tensor = (self.net(batch[0]) ** 2).sum()
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["rate"])
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def fit(where: Path, module: Module, epochs: int, path: str | None = None) -> Any:
    data = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(4, 3) / 12)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=where,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        # Named, because Lightning asks an installed mpi4py otherwise, which fails without libmpi.
        plugins=[CheckpointIO(compression="zstd"), LightningEnvironment()],
        callbacks=[ModelCheckpoint(where, monitor="loss", save_top_k=2, save_last=True)],
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=2), ckpt_path=path)
    return trainer


def test_training_resumes_bit_equal(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = Module(width=4)
    start = {key: value.clone() for key, value in first.state_dict().items()}
    trainer = fit(tmp_path / "all", first, 4)
    # The two best and the last are kept; each is a checkpoint of ckptfmt.
    kept = sorted(path.name for path in (tmp_path / "all").iterdir())
    assert len(kept) == 3 and kept[-1] == "last.ckpt"
    for name in kept:
        assert ckptfmt.verify(tmp_path / "all" / name).ok
    found = ckptfmt.torch.load(tmp_path / "all" / "last.ckpt")
    assert found["global_step"] == 8 and found["hyper_parameters"] == {"width": 4, "rate": 0.1}
    assert torch.equal(found["state_dict"]["net.weight"], first.net.weight)

    half = Module(width=4)
    half.load_state_dict(start)
    fit(tmp_path / "half", half, 2)
    rest = Module(width=4)
    trainer = fit(tmp_path / "half", rest, 4, str(tmp_path / "half" / "last.ckpt"))
    assert half.losses + rest.losses == first.losses
    assert trainer.global_step == 8
    assert torch.equal(rest.net.weight, first.net.weight)


def test_refused_values_and_devices(tmp_path: Path) -> None:
    io = CheckpointIO()
    for value in (object(), torch.nn.Linear(1, 1), torch.nn.ReLU, torch.nn.ReLU()):
        with pytest.raises(ckptfmt.InvalidError, match=r"^hyper_parameters\.odd: "):
            io.save_checkpoint({"hyper_parameters": {"odd": value}}, tmp_path / "x.ckpt")
    assert not list(tmp_path.iterdir())
    for odd in (torch.nn.ReLU, torch.nn.ReLU()):
        CheckpointIO(default=repr).save_checkpoint({"odd": odd}, tmp_path / "x.ckpt")
        assert io.load_checkpoint(tmp_path / "x.ckpt") == {"odd": repr(odd)}
    io.save_checkpoint({"a": torch.ones(2)}, tmp_path / "x.ckpt", {"metadata": {"run": 1}})
    for location in ("cpu", torch.device("cpu"), None, lambda storage, _: storage, {"cuda": "cpu"}):
        assert io.load_checkpoint(tmp_path / "x.ckpt", location)["a"].tolist() == [1, 1]
    assert io.load_checkpoint(tmp_path / "x.ckpt", "meta")["a"].is_meta
    with ckptfmt.open(tmp_path / "x.ckpt") as reader:
        assert reader.metadata["run"] == 1
    io.save_checkpoint({"a": torch.ones(2)}, "memory://lightning/x.ckpt")
    for path in (tmp_path / "x.ckpt", "memory://lightning/x.ckpt"):
        assert io.load_checkpoint(path)["a"].tolist() == [1, 1]
        io.remove_checkpoint(path)
        io.remove_checkpoint(path)
        with pytest.raises(FileNotFoundError):
            io.load_checkpoint(path)
    assert not list(tmp_path.iterdir())
