# SPDX-License-Identifier: Apache-2.0
"""Rescue of training states of PyTorch: what is left of the state loads, and is what was saved."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import ckptfmt
import ckptfmt.torch as ct
from ckptfmt.editing import rescue


def state_of(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 20))
    model[1].weight = torch.nn.Parameter(torch.randn(20, 40))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 30)).sum().backward()
    optimizer.step()
    state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    tied = torch.randn(50)
    state |= {
        "step": 7,
        "list": [torch.ones(3), 2, torch.zeros(400)],
        "tied": {"a": tied, "b": tied},
    }
    return state


def leaves(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """The tensors and values of a state by their paths."""
    if isinstance(value, (dict, list, tuple)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return {
            name: one for key, item in pairs for name, one in leaves(item, (*path, key)).items()
        }
    return {path: value}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other) and type(one) is type(other)


def check(before: dict[str, Any], after: dict[str, Any], lost: set[str]) -> None:
    """Compare what was rescued with the state; None stands for a lost element of a list."""
    whole, found = leaves(before), leaves(after)
    for path, value in found.items():
        assert value is None or same(value, whole[path]), path
    gone = {".".join(map(str, path)) for path in whole if path not in found or found[path] is None}
    names = {name for name in gone if isinstance(whole[tuple(path_of(whole, name))], torch.Tensor)}
    assert names <= lost | {"tied.b"} or lost & {"..."}


def path_of(whole: dict[tuple[Any, ...], Any], name: str) -> tuple[Any, ...]:
    return next(path for path in whole if ".".join(map(str, path)) == name)


@pytest.mark.filterwarnings("ignore::ckptfmt.CkptfmtWarning")
@pytest.mark.parametrize("seed", range(20))
def test_a_state(seed: int, tmp_path: Path) -> None:
    chance, state = random.Random(seed), state_of(seed)
    path = tmp_path / "run"
    ct.save(state, path, shards=chance.randint(1, 3))
    data = chance.choice(sorted(tmp_path.glob("run.data*")))
    size = data.stat().st_size
    if seed % 3:
        os.truncate(data, chance.randrange(4096, size))  # after the metadata
    else:
        content = bytearray(data.read_bytes())
        content[chance.randrange(4096, size)] ^= 4
        data.write_bytes(content)
    done = rescue(path, tmp_path / "out")
    assert done.metadata == "whole" and done.structure == ("cut" if done.lost else "whole")
    assert ckptfmt.verify(tmp_path / "out").ok
    check(state, ct.load(tmp_path / "out"), {*done.lost})


@pytest.mark.filterwarnings("ignore::ckptfmt.CkptfmtWarning")
def test_a_quantized_tensor_goes_with_its_scales(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scales = torch.rand(3, dtype=torch.float64) + 0.1
        per_channel = torch.quantize_per_channel(
            torch.randn(3, 4), scales, torch.zeros(3, dtype=torch.int64), 0, torch.qint8
        )
    ct.save({"q": per_channel, "w": torch.ones(2)}, tmp_path / "run")
    with ckptfmt.open(tmp_path / "run") as reader:
        names = [name for name in reader if name != "w"]
        assert len(names) > 1
        offset = int(reader[names[-1]].offset or 0)
    with open(tmp_path / "run.data-00000-of-00001", "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    done = rescue(tmp_path / "run", tmp_path / "out")
    assert {*done.lost} == {*names} and done.kept == ("w",)
    assert list(ct.load(tmp_path / "out")) == ["w"]


@pytest.mark.filterwarnings("ignore::ckptfmt.CkptfmtWarning")
@pytest.mark.parametrize("seed", range(20))
def test_a_directory_of_dcp(seed: int, tmp_path: Path) -> None:
    chance, state = random.Random(seed), state_of(seed)
    state["tied"] = {"a": state["tied"]["a"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=tmp_path / "whole", no_dist=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "dcp")
    data = tmp_path / "dcp" / "__0_0.distcp"
    os.truncate(data, chance.randrange(data.stat().st_size // 2, data.stat().st_size))
    if seed % 5 == 0:
        data.unlink()
        with pytest.raises(ckptfmt.CorruptError, match="nothing is sound"):
            rescue(tmp_path / "dcp", tmp_path / "out")
        return
    done = rescue(tmp_path / "dcp", tmp_path / "out")
    assert done.lost and done.kept
    check(state, ct.load(tmp_path / "out"), {*done.lost})
    (tmp_path / "dcp" / ".metadata").unlink()
    with pytest.raises(ckptfmt.CheckpointNotFoundError):
        rescue(tmp_path / "dcp", tmp_path / "again")


def test_the_bits_of_what_numpy_lacks_stay_bits(tmp_path: Path) -> None:
    """Of a dtype that only the metadata name."""
    raw = torch.arange(8, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    ct.save({"scale": raw, "w": torch.ones(3000)}, tmp_path / "run")
    data = tmp_path / "run.data-00000-of-00001"
    os.truncate(data, data.stat().st_size - 100)
    done = rescue(tmp_path / "run", tmp_path / "out")
    assert done.kept == ("scale",)
    loaded = ct.load(tmp_path / "out")["scale"]
    assert loaded.dtype == raw.dtype
    assert np.array_equal(loaded.view(torch.uint8).numpy(), np.arange(8, dtype=np.uint8))
