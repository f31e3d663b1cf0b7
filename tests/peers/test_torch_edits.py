# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt.editing.edit` of states that `ckptfmt.torch` saved: what is left loads as before."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ckptfmt
import ckptfmt.torch as ct
from ckptfmt import InvalidError


def trained(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    model, optimizer = trained(lr=torch.tensor(0.5), capturable=False, foreach=False)
    state = {"model": model, "optimizer": optimizer, "epoch": 3, "best": np.float64(0.25)}
    state["mean"] = np.arange(3.0)
    ct.save(state, tmp_path / "a")
    return tmp_path / "a"


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and bool((one == other).all())
    return bool(one == other) and type(one) is type(other)


def edited(prefix: Path, **options: Any) -> Any:
    target = prefix.with_name("b")
    ckptfmt.editing.edit(prefix, target, durability="none", **options)
    assert ckptfmt.verify(target).ok
    return ct.load(target)


def test_a_stripped_optimizer_is_removed(prefix: Path) -> None:
    expected = ct.load(prefix)
    del expected["optimizer"]
    assert same(edited(prefix, strip_optimizer=True), expected)
    assert not any(name.startswith("optimizer") for name in ckptfmt.load(prefix.with_name("b")))
    model, _ = trained()
    with torch.no_grad():
        model[0].weight.zero_()
    ct.load_into({"model": model}, prefix.with_name("b"), strict=False)
    assert torch.equal(model[0].weight, expected["model"]["0.weight"])


def test_optimizers_in_a_list(tmp_path: Path) -> None:
    model, optimizer = trained()
    ct.save({"model": model, "all": [optimizer, optimizer]}, tmp_path / "a")
    assert edited(tmp_path / "a", strip_optimizer=True)["all"] == []
    ct.save({"model": model, "all": [optimizer, {"w": torch.ones(2)}]}, tmp_path / "a")
    first, second = edited(tmp_path / "a", strip_optimizer=True)["all"]
    assert first is None and torch.equal(second["w"], torch.ones(2))


def test_a_weight_that_the_optimizer_has_stays(tmp_path: Path) -> None:
    model, optimizer = trained()
    parameter = next(model.parameters())
    optimizer.state[parameter]["slow"] = parameter  # stored once, at its place in the optimizer
    ct.save({"a": optimizer, "model": model}, tmp_path / "a")
    loaded = edited(tmp_path / "a", strip_optimizer=True)
    assert list(loaded) == ["model"] and same(loaded["model"], model.state_dict())


def test_the_key_is_renamed_with_the_tensor(prefix: Path) -> None:
    expected = ct.load(prefix)
    loaded = edited(prefix, rename=[(r"^model\.0\.", "model.first."), (r"exp_avg$", "m")])
    model = expected["model"]
    renamed = [
        (key.replace("0.", "first.", key.startswith("0.")), one) for key, one in model.items()
    ]
    expected["model"] = OrderedDict(renamed)
    for one in expected["optimizer"]["state"].values():
        one["m"] = one.pop("exp_avg")
        one["exp_avg_sq"] = one.pop("exp_avg_sq")
    assert same(loaded, expected)
    stored = ckptfmt.load(prefix.with_name("b"))
    assert "model.first.weight" in stored and "optimizer.state.0.m" in stored


def test_a_tensor_with_a_name_elsewhere_keeps_its_place(prefix: Path) -> None:
    loaded = edited(prefix, rename=[(r"^model\.", "net/"), (r"^optimizer\.", "o.")])
    assert same(loaded, ct.load(prefix))
    assert "net/0.weight" in ckptfmt.load(prefix.with_name("b"))
    assert same(
        edited(prefix.with_name("b"), strip_optimizer=True),
        {key: one for key, one in loaded.items() if key != "optimizer"},
    ), "the roles follow the names"


def test_a_swap(prefix: Path) -> None:
    one, other = "model.0.bias", "model.1.bias"
    loaded, before = edited(prefix, rename={one: other, other: one}), ct.load(prefix)
    assert torch.equal(loaded["model"]["0.bias"], before["model"]["1.bias"])
    assert torch.equal(loaded["model"]["1.bias"], before["model"]["0.bias"])
    one, other = "model.0.bias", "optimizer.state.1.exp_avg"
    loaded = edited(prefix, rename={one: other, other: one})
    assert same(loaded, before), "both stay at their places"
    assert ckptfmt.load(prefix.with_name("b"))[one].tolist() == (
        before["optimizer"]["state"][1]["exp_avg"].tolist()
    )


def test_tied_tensors_are_renamed_together(tmp_path: Path) -> None:
    one = torch.ones(3)
    ct.save({"a": {"w": one}, "b": {"w": one}}, tmp_path / "a")
    loaded = edited(tmp_path / "a", rename={"a.w": "a.v"})
    assert list(loaded["a"]) == ["v"] and loaded["a"]["v"] is loaded["b"]["w"]


def test_drop_and_keep(prefix: Path) -> None:
    expected = ct.load(prefix)
    del expected["model"]["0.bias"], expected["best"]
    for one in expected["optimizer"]["state"].values():
        del one["step"]
    dropping = {"drop": ["model.0.bias", "best", "*.step"], "drop_weights": True}
    assert same(edited(prefix, **dropping), expected)
    loaded = edited(prefix, keep=["model.0.*"], drop_weights=True)
    assert loaded["epoch"] == 3 and list(loaded["model"]) == ["0.weight", "0.bias"]
    assert "best" not in loaded and "optimizer" not in loaded


@pytest.mark.parametrize("to", ["bfloat16", "float64", "float8_e5m2"])
def test_casts(prefix: Path, to: str) -> None:
    before, after = ct.load(prefix), edited(prefix, cast=to)
    dtype = getattr(torch, to)
    for key, one in before["model"].items():
        assert same(after["model"][key], one.to(dtype) if one.is_floating_point() else one)
    for number, one in before["optimizer"]["state"].items():
        found = after["optimizer"]["state"][number]
        assert same(found["exp_avg"], one["exp_avg"].to(dtype)) and same(found["step"], one["step"])
    for key in ("best", "mean", "epoch"):
        assert same(before[key], after[key]), "NumPy's arrays keep their dtype"
    assert edited(prefix, cast={"mean": "float16"})["mean"].dtype == np.float16


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, :UserWarning")
def test_casts_that_would_not_load(tmp_path: Path) -> None:
    channels = torch.quantize_per_channel(
        torch.ones(2, 3), torch.tensor([0.1, 0.2]).double(), torch.tensor([1, 2]), 0, torch.qint8
    )
    state = {"w": torch.ones(3), "q": channels, "a": np.ones(2)}
    state["c"] = torch.ones(2, dtype=torch.complex32)
    ct.save(state, tmp_path / "a")
    loaded = edited(tmp_path / "a", cast="bfloat16")
    assert loaded["w"].dtype is torch.bfloat16 and loaded["a"].dtype == np.float64
    assert torch.equal(loaded["q"].dequantize(), channels.dequantize())
    assert loaded["c"].dtype is torch.complex32
    for name, to in (
        ("c", "float32"),
        ("q.scales", "float32"),
        ("a", "bfloat16"),
        ("w", "float8_e4m3b11fnuz"),
    ):
        with pytest.raises(InvalidError) as caught:
            edited(tmp_path / "a", cast={name: to})
        assert (caught.value.argument, caught.value.tensor) == ("cast", name)
    with pytest.raises(InvalidError, match="drop or keep both"):
        edited(tmp_path / "a", drop="q.scales", drop_weights=True)
    loaded = edited(tmp_path / "a", rename=[("^q", "p")])
    assert torch.equal(loaded["p"].dequantize(), channels.dequantize())
    assert "q" not in edited(tmp_path / "a", drop=["q", "q.*"], drop_weights=True)


def test_keys_of_any_type(tmp_path: Path) -> None:
    keys = [0, -1, True, None, 2.5, float("inf"), 1j, b"x", (1, "a"), ("n", (2, None)), "$k", ""]
    state = {"w": torch.zeros(2), "d": {key: torch.full((2,), n) for n, key in enumerate(keys)}}
    ct.save(state, tmp_path / "a")
    loaded = edited(tmp_path / "a", rename=[(r"^d\.", "e."), ("^w$", "v")])
    assert same(loaded["d"], ct.load(tmp_path / "a")["d"]) and "v" in loaded
    loaded = edited(tmp_path / "a", keep=["d.0", "w"], drop_weights=True)
    assert list(loaded["d"]) == [0]


def test_removed_metadata(prefix: Path) -> None:
    loaded = edited(prefix, metadata={}, rename=[(r"^model\.", "net.")])
    assert same(loaded, {name: loaded[name] for name in ckptfmt.load(prefix.with_name("b"))})


def test_tensors_that_the_state_does_not_name(tmp_path: Path) -> None:
    """A merge with an input that has no metadata."""
    ckptfmt.torch.save({"a": torch.zeros(3)}, tmp_path / "a")
    ckptfmt.save(tmp_path / "b", {"b": np.ones(3)})
    ckptfmt.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m", metadata_from=tmp_path / "a")
    with pytest.warns(ckptfmt.CkptfmtWarning, match="does not name: 'b'"):
        assert list(ckptfmt.torch.load(tmp_path / "m")) == ["a"]
