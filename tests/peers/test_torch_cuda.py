# SPDX-License-Identifier: Apache-2.0
"""ckptfmt.torch and its DCP storage with tensors on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import ckptfmt.torch as ct
from ckptfmt import InvalidError
from ckptfmt.torch import making
from ckptfmt.torch.dcp import StorageReader, StorageWriter

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT RUN: needs a GPU with CUDA"),
    pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
]

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def on_gpu(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor with random bits; 0 and 1 of a bool."""
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (*shape, dtype.itemsize), dtype=torch.uint8, device="cuda")
    return raw.view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().cpu().resolve_conj().contiguous().reshape(-1)
    return bytes(plain.view(torch.uint8).numpy())


def assert_same(found: Any, expected: dict[str, torch.Tensor], device: str) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].device.type == device, name
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(found[name]) == bits(tensor), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {"x": on_gpu(dtype, 4, 6), "scalar": on_gpu(dtype), "empty": on_gpu(dtype, 0, 3)}
    state["columns"] = on_gpu(dtype, 4, 6).t()
    state["part"] = on_gpu(dtype, 4, 6)[1:3, ::2]
    ct.save(state, tmp_path / "ck")
    assert_same(ct.load(tmp_path / "ck"), state, "cpu")
    assert_same(ct.load(tmp_path / "ck", device="cuda"), state, "cuda")
    targets = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    places = {name: tensor.data_ptr() for name, tensor in targets.items()}
    assert ct.load_into(targets, tmp_path / "ck")
    assert_same(targets, state, "cuda")
    assert places == {name: tensor.data_ptr() for name, tensor in targets.items()}


@pytest.mark.parametrize("staging", [1 << 12, 1 << 20, making.STAGING_BYTES])
def test_pinned_staging_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staging: int
) -> None:
    monkeypatch.setattr(making, "STAGING_BYTES", staging)
    state = {f"t{i}": torch.randn(1 + i * 997, device="cuda") for i in range(60)}
    ct.save(state, tmp_path / "ck")
    for _ in range(5):
        assert_same(ct.load(tmp_path / "ck", device="cuda"), state, "cuda")
        targets = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        assert ct.load_into(targets, tmp_path / "ck")
        assert_same(targets, state, "cuda")


def test_save_async_copies_before_it_returns(tmp_path: Path) -> None:
    state = {f"t{i}": torch.full((1 << 20,), float(i), device="cuda") for i in range(16)}
    expected = {name: tensor.clone() for name, tensor in state.items()}
    for turn in range(5):
        for name, tensor in state.items():
            tensor.copy_(expected[name])
        future = ct.save_async(state, tmp_path / f"ck-{turn}")
        for tensor in state.values():
            tensor.fill_(-1)
        future.result()
        assert_same(ct.load(tmp_path / f"ck-{turn}", device="cuda"), expected, "cuda")


def test_a_save_waits_for_the_work_under_way(tmp_path: Path) -> None:
    a = torch.randn(4096, 4096, device="cuda")
    for turn in range(5):
        product = a
        for _ in range(8):
            product = torch.tanh(product @ a)
        ct.save({"product": product}, tmp_path / f"ck-{turn}")
        assert_same(ct.load(tmp_path / f"ck-{turn}"), {"product": product}, "cpu")


def test_resume_is_bit_equal(tmp_path: Path) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)

    def parts() -> tuple[nn.Module, Any, Any, Any]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.5), nn.Linear(64, 1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        return model, optimizer, scheduler, torch.amp.GradScaler("cuda")

    def train(model: nn.Module, optimizer: Any, scheduler: Any, scaler: Any, steps: int) -> Any:
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                x = torch.randn(16, 32, device="cuda")
                loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            losses.append(loss.item())
        return losses

    names = ("model", "optimizer", "scheduler", "scaler")
    run = parts()
    train(*run, steps=5)
    ct.save(dict(zip(names, run, strict=True)) | {"rng": ct.RandomState()}, tmp_path / "ck")
    expected = train(*run, steps=5)
    again = parts()
    ct.load_into(dict(zip(names, again, strict=True)) | {"rng": ct.RandomState()}, tmp_path / "ck")
    assert train(*again, steps=5) == expected


@pytest.mark.parametrize("rename", [None, {"x": "x"}, {"x": ("x", lambda array: array + 0)}])
def test_targets_on_the_gpu(tmp_path: Path, rename: Any) -> None:
    """Refused before anything is written: expanded ones, and one for two tensors."""
    state = {"a": torch.ones(2), "x": torch.rand(4, 3), "y": torch.rand(4, 3)}
    ct.save(state, tmp_path / "ck")
    a, x = torch.zeros(2), torch.zeros(4, 3, device="cuda")
    expanded = torch.zeros(1, device="cuda").expand(4, 3)
    for wrong, message in (
        ({"a": a, "x": expanded, "y": x}, "expanded"),
        ({"a": a, "x": x, "y": x}, "shares memory"),
    ):
        with pytest.raises(InvalidError, match=message):
            ct.load_into(wrong, tmp_path / "ck", rename=rename)
        assert not a.any() and not x.any() and not expanded.any()
    target = {"a": a, "x": x, "y": torch.zeros(4, 3, device="cuda")}
    assert ct.load_into(target, tmp_path / "ck", rename=rename)
    assert_same({"x": x.cpu()}, {"x": state["x"]}, "cpu")


def test_state_of_optimizers_stays_where_it_is(tmp_path: Path) -> None:
    model = nn.Linear(4, 3, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    ct.save({"model": model, "opt": optimizer}, tmp_path / "ck")
    first = optimizer.state_dict()["state"][0]["exp_avg"]
    expected, place = first.clone(), first.data_ptr()
    optimizer.step()
    assert ct.load_into({"model": model, "opt": optimizer}, tmp_path / "ck")
    found = optimizer.state_dict()["state"][0]["exp_avg"]
    assert found.data_ptr() == place and torch.equal(found, expected)


def test_meta_model_straight_to_the_gpu(tmp_path: Path) -> None:
    model = nn.Linear(300, 200)
    ct.save(model, tmp_path / "ck")
    with torch.device("meta"):
        empty = nn.Linear(300, 200)
    loaded = ct.load(tmp_path / "ck", device="cuda")
    empty.load_state_dict(loaded, assign=True)
    assert empty.weight.device.type == "cuda"
    assert bits(empty.weight) == bits(model.weight)


def test_dcp(tmp_path: Path) -> None:
    state = {str(dtype): on_gpu(dtype, 16, 8) for dtype in DTYPES if dtype is not torch.complex32}
    dcp.save(state, checkpoint_id=tmp_path / "ck", storage_writer=StorageWriter())
    targets = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(targets, checkpoint_id=tmp_path / "ck", storage_reader=StorageReader())
    assert_same(targets, state, "cuda")
    pending = dcp.async_save(state, checkpoint_id=tmp_path / "b", storage_writer=StorageWriter())
    expected = {name: tensor.clone() for name, tensor in state.items()}
    pending.result()
    assert_same(ct.load(tmp_path / "b", device="cuda"), expected, "cuda")
