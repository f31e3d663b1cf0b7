# SPDX-License-Identifier: Apache-2.0
"""names, filter, rename and cast of `ckptfmt.torch` by kind of checkpoint and of target: what is
loaded, or the error and the call that works instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from torch import nn

import ckptfmt
import ckptfmt.torch as ct
from ckptfmt import InvalidError, TensorNotFoundError

OPTIONS = ("names", "filter", "rename")
HALF = torch.float16


def wrapped(kind: str, inner: nn.Module) -> nn.Module:
    outer = nn.Module()
    setattr(outer, kind, inner)
    return outer


def model(value: float, kind: str = "") -> nn.Module:
    made = nn.Linear(2, 2)
    for one in made.parameters():
        nn.init.constant_(one, value)
    return wrapped(kind, made) if kind else made


def run(value: float, kind: str = "", model_key: str = "model") -> dict[str, Any]:
    net = model(value, kind)
    optimizer = torch.optim.AdamW(net.parameters(), lr=value + 1)
    if value:
        for one in net.parameters():
            one.grad = torch.zeros_like(one)
        optimizer.step()
        with torch.no_grad():
            for one in net.parameters():
                one.fill_(value)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, int(value) + 2)
    more = {"list": [torch.full((1,), value), int(value)], "step": int(value)}
    return {model_key: net, "optimizer": optimizer, "scheduler": scheduler, **more}


def tied(value: float) -> nn.Module:
    made = nn.Module()
    made.a, made.b = model(value), model(value)
    made.b.weight = made.a.weight
    return made


NAMES = ("weight", "bias")
FLAT = {f"model.{name}": np.ones((2, 2)[: 2 - (name == "bias")], "f4") for name in NAMES}


def save(kind: str, path: Path) -> None:
    kind, _, wrapper = kind.partition(" ")
    if kind == "flat":
        ct.save(model(1, wrapper), path)
    elif kind == "run":
        ct.save(run(1, wrapper), path)
    elif kind == "tied":
        ct.save({"model": tied(1), "step": 1}, path)
    elif kind == "plain":  # as `convert` makes of a directory of DCP
        ckptfmt.save(path, {**FLAT, "list.0": np.ones(1, "f4")})
    else:
        objects = {name.partition(".")[2]: value for name, value in FLAT.items()}
        ckptfmt.save_tree(path, {"model": objects})


def only(state: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: state[key] for key in keys}


def flat(prefix: str = "") -> dict[str, Any]:
    return {prefix + name: one.detach() for name, one in model(0).state_dict().items()}


# What is loaded into, all of it 0.
TARGETS: dict[str, Any] = {
    "module": lambda: model(0),
    "module of _orig_mod": lambda: model(0, "_orig_mod"),
    "half": lambda: model(0).half(),
    "state dict": flat,
    "joined": lambda: flat("model."),
    "nested": lambda: {"model": flat()},
    "nested list": lambda: {"model": flat(), "list": [torch.zeros(1)]},
    "model": lambda: {"model": model(0)},
    "net": lambda: {"net": model(0)},
    "run": lambda: run(0),
    "run of _orig_mod": lambda: run(0, "_orig_mod"),
    "run of module": lambda: run(0, "module"),
    "run of net": lambda: run(0, "", "net"),
    "tied": lambda: {"model": tied(0), "step": 0},
    "tied module": lambda: tied(0),
    "optimizer": lambda: run(0)["optimizer"],
    "opt": lambda: {"opt": run(0)["optimizer"]},
    "model and optimizer": lambda: only(run(0), "model", "optimizer"),
    "model and step": lambda: only(run(0), "model", "step"),
    "lists": lambda: only(run(0), "list"),
}


def loaded(target: Any, path: str = "") -> list[str]:
    """The paths in a target whose values are no longer 0, objects as one."""
    if isinstance(target, nn.Module):
        target = target.state_dict()
    if isinstance(target, torch.Tensor):
        return [path] * bool((target != 0).all())
    if isinstance(target, torch.optim.Optimizer):
        return [path] * (target.param_groups[0]["lr"] == 2 and len(target.state) == 2)
    if isinstance(target, torch.optim.lr_scheduler.StepLR):
        return [path] * (target.step_size == 3)
    if isinstance(target, list):
        target = {str(key): one for key, one in enumerate(target)}
    if isinstance(target, dict):
        pairs = [(f"{path}.{key}".removeprefix("."), one) for key, one in target.items()]
        return [name for key, one in pairs for name in loaded(one, key)]
    return [path] * bool(target)


MODEL, WEIGHTS = "model.weight model.bias", "weight bias"
BELOW = {kind: f"model.{kind}.weight model.{kind}.bias" for kind in ("_orig_mod", "module")}
OUTER = BELOW["_orig_mod"].replace("model.", "")
STEP = f"{MODEL} step"
SHORT = [("^model[.]_orig_mod[.]", "")]
TIED = "a.weight a.bias b.weight b.bias"
TIED_STATE = "model.a.weight model.a.bias model.b.weight model.b.bias step"
REST = "optimizer scheduler list.0 list.1 step"
OUT: dict[str, Any] = {"filter": "model.*", "rename": [("^model[.]", "")]}
UNWRAP, WRAP = [("_orig_mod[.]", "")], [("^model[.]", "model._orig_mod.")]
OBJECTS: Any = [("/", "."), ("[.][.]ATTRIBUTES.*", "")]
MODULE = [("^model[.]", "model.module.")]
UNDER = {kind: f"{names} {REST}" for kind, names in BELOW.items()}
# Checkpoint, target, options, what is loaded or the argument that is refused.
INTO: list[tuple[str, str, dict[str, Any], str]] = [
    ("flat", "module", {}, WEIGHTS),
    ("flat", "module", {"names": ["bias"]}, "bias"),
    ("flat", "state dict", {"filter": "b*"}, "bias"),
    ("flat", "half", {"cast": HALF}, WEIGHTS),
    ("flat", "module of _orig_mod", {"rename": [("^", "_orig_mod.")]}, OUTER),
    ("flat", "model", {"rename": [("^", "model.")]}, MODEL),
    ("flat _orig_mod", "module", {"rename": UNWRAP}, WEIGHTS),
    ("flat module", "state dict", {"rename": [("^module[.]", "")]}, WEIGHTS),
    # The weights of a training state, and parts of it.
    ("run", "module", OUT, WEIGHTS),
    ("run", "state dict", OUT, WEIGHTS),
    ("run", "half", {**OUT, "cast": True}, WEIGHTS),
    ("run", "half", {**OUT, "cast": {"model.*": HALF}}, WEIGHTS),
    ("run", "module", {"names": ["model.bias"], "rename": [("^model.", "")]}, "bias"),
    ("run _orig_mod", "module", {"filter": "model.*", "rename": SHORT}, WEIGHTS),
    ("run", "joined", {"filter": "model.*"}, MODEL),
    ("run", "nested", {"filter": "model.*"}, MODEL),
    ("run", "model", {"filter": "model.*"}, MODEL),
    ("run", "model", {"names": ["model.bias"]}, "model.bias"),
    ("run", "net", {"filter": "model.*", "rename": [("^model", "net")]}, "net.weight net.bias"),
    ("run", "run", {"filter": "model.*"}, MODEL),
    ("run", "run", {"filter": "optimizer.*"}, "optimizer"),
    ("run", "run", {"filter": "step*"}, "TensorNotFoundError"),
    ("run", "run", {"filter": re.compile("^model|^step")}, STEP),
    ("run", "run", {"names": ["list.0"]}, "list.0 list.1"),
    ("run", "run", {"filter": "*"}, f"{MODEL} {REST}"),
    ("run", "run", {"cast": {"model.*": "float32"}}, f"{MODEL} {REST}"),
    ("run", "run", {"cast": "float32"}, f"{MODEL} {REST}"),
    ("run", "run", {"cast": HALF}, "dtype"),
    ("run", "model and optimizer", {"filter": "[mo]*"}, f"{MODEL} optimizer"),
    ("run", "model and step", {"filter": "/^model|^step/"}, STEP),
    ("run", "lists", {"filter": "list.*"}, "list.0 list.1"),
    # Wrappers, in one argument.
    ("run _orig_mod", "run", {"rename": UNWRAP}, f"{MODEL} {REST}"),
    ("run module", "run", {"rename": [("[.]module[.]", ".")]}, f"{MODEL} {REST}"),
    ("run", "run of _orig_mod", {"rename": WRAP}, UNDER["_orig_mod"]),
    ("run", "run of module", {"rename": MODULE}, UNDER["module"]),
    ("run _orig_mod", "run of module", {"rename": [("_orig_mod", "module")]}, UNDER["module"]),
    ("run", "run of net", {"rename": [("^model[.]", "net.")]}, f"net.weight net.bias {REST}"),
    ("run _orig_mod", "model and step", {"filter": "/^model|^step/", "rename": UNWRAP}, STEP),
    # An object is loaded as it was saved, or not at all.
    ("run", "run", {"filter": "*.exp_avg"}, "filter"),
    ("run", "run", {"rename": [("exp_avg$", "m")]}, "rename"),
    ("run", "run", {"rename": [("[.]0[.]", ".zero.")]}, "rename"),
    ("run", "opt", {"filter": "optimizer.*", "rename": [("^optimizer", "opt")]}, "rename"),
    ("run", "optimizer", {"filter": "optimizer.*", "rename": [("^optimizer[.]", "")]}, "rename"),
    ("run", "optimizer", {"filter": "optimizer.*"}, "filter"),
    ("run", "optimizer", {"cast": {"model.*": HALF}}, "target"),
    ("run", "run", {"filter": "/^model|^scheduler.last_epoch/"}, "filter"),
    ("run", "run", {"rename": [("^optimizer.*", None)]}, "missing"),
    # Tied tensors.
    ("tied", "tied", {"filter": "*"}, TIED_STATE),
    ("tied", "tied", {"names": ["model.a.weight"]}, "model.a.weight model.b.weight"),
    ("tied", "tied module", OUT, TIED),
    # Names joined by dots, without objects.
    ("plain", "joined", {"names": [*FLAT]}, MODEL),
    ("plain", "nested list", {}, f"{MODEL} list.0"),
    ("plain", "nested", {"filter": "model.*"}, MODEL),
    ("plain", "model", {"filter": "model.*"}, MODEL),
    ("plain", "module", OUT, WEIGHTS),
    ("plain", "model and step", {"filter": "model.*"}, "TensorNotFoundError"),
    ("run", "joined", {"names": ["model.weight", "model.bias"]}, MODEL),
    ("graph", "nested", {"rename": OBJECTS}, MODEL),
    ("graph", "model", {"rename": OBJECTS}, MODEL),
]  # fmt: skip


@pytest.mark.parametrize("row", INTO, ids=lambda row: f"{row[0]} > {row[1]} {row[2]}"[:70])
def test_load_into(tmp_path: Path, row: tuple[str, str, dict[str, Any], str]) -> None:
    kind, to, options, expected = row
    save(kind, tmp_path / "ck")
    target = TARGETS[to]()
    if expected in ("TensorNotFoundError", "missing", "dtype", "target", *OPTIONS):
        with pytest.raises((InvalidError, TensorNotFoundError)) as caught:
            ct.load_into(target, tmp_path / "ck", **options)
        assert loaded(target) == []
        error = caught.value
        if expected == "TensorNotFoundError":
            assert isinstance(error, TensorNotFoundError)
        elif expected == "dtype":
            assert error.report is not None and error.report.dtype_mismatch
        elif expected == "missing":
            assert error.report is not None and error.report.missing == ("optimizer",)
        else:
            assert error.argument == expected
            call = re.search(r"ckptfmt\.torch\.(load_into\(.*\))$", str(error))
            assert call is not None, str(error)
            state = run(0)
            eval(f"ct.{call[1]}", {"ct": ct, "PosixPath": Path, **state})
            assert {"optimizer", "scheduler"} & {*loaded(state)}
        return
    assert ct.load_into(target, tmp_path / "ck", **options)
    assert loaded(target) == expected.split()


def below(value: Any, path: str = "") -> list[str]:
    """The paths of what `load` returns, objects as one."""
    if isinstance(value, list):
        value = {str(key): one for key, one in enumerate(value) if one is not None}
    if isinstance(value, dict) and path not in ("optimizer", "scheduler"):
        pairs = [(f"{path}.{key}".removeprefix("."), one) for key, one in value.items()]
        return [name for key, one in pairs for name in below(one, key)]
    return [path]


# Checkpoint, options, what `load` returns or the argument that is refused.
LOAD: list[tuple[str, dict[str, Any], str]] = [
    ("flat", {"rename": [("^", "model.")]}, MODEL),
    ("flat _orig_mod", {"rename": UNWRAP}, WEIGHTS),
    ("run", {"filter": "model.*"}, MODEL),
    ("run", {"names": ["model.bias", "list.0"]}, "model.bias list.0"),
    ("run", {"filter": "optimizer.*"}, "optimizer"),
    ("run", {"filter": "/^model|^step/"}, STEP),
    ("run", {"filter": "*", "cast": {"model.*": HALF}}, f"{MODEL} {REST}"),
    ("run", {"filter": "scheduler.*"}, "filter"),  # it has no tensor
    ("run _orig_mod", {"rename": UNWRAP}, f"{MODEL} {REST}"),
    ("run module", {"rename": [("[.]module[.]", ".")], "filter": "model.*"}, MODEL),
    ("run", {"rename": WRAP, "filter": "/^model|^step/"}, f"{BELOW['_orig_mod']} step"),
    ("run", OUT, "rename"),
    ("run", {"rename": [("^model", "net")]}, "rename"),
    ("tied", {"names": ["model.b.weight"]}, "model.b.weight"),
    ("plain", {"filter": "model.*"}, MODEL),
    ("plain", OUT, WEIGHTS),
    ("graph", {"rename": OBJECTS, "filter": "model*"}, MODEL),
]


@pytest.mark.parametrize("row", LOAD, ids=lambda row: f"{row[0]} {row[1]}"[:70])
def test_load(tmp_path: Path, row: tuple[str, dict[str, Any], str]) -> None:
    kind, options, expected = row
    save(kind, tmp_path / "ck")
    if expected in OPTIONS:
        with pytest.raises((InvalidError, TensorNotFoundError)) as caught:
            ct.load(tmp_path / "ck", **options)
        assert caught.value.argument == expected
        if expected == "rename":
            call = re.search(r"call ckptfmt[.]torch[.](load.*)$", str(caught.value))
            assert call is not None
            found = eval(f"ct.{call[1]}", {"ct": ct, "path": tmp_path / "ck"})
            assert below(found) == WEIGHTS.split()
        return
    found = ct.load(tmp_path / "ck", **options)
    assert sorted(below(found)) == sorted(expected.split())
    if "cast" in options:
        assert found["model"]["bias"].dtype is HALF


def test_what_load_leaves_keeps_its_form(tmp_path: Path) -> None:
    """Lists have None in the place of what is left out, and what had only that is omitted."""
    state: Any = {
        "list": [torch.ones(1), torch.ones(2), 3],
        "deep": {"a": {"w": torch.ones(1), "n": 1}},
    }
    ct.save({**state, "model": model(1, "_orig_mod"), "none": {}}, tmp_path / "ck")
    found = ct.load(tmp_path / "ck", names=["list.1"])["list"]
    assert [None if one is None else one.tolist() for one in found] == [None, [1, 1], None]
    assert ct.load(tmp_path / "ck", filter="deep.*")["deep"]["a"] == state["deep"]["a"]
    loaded = ct.load(tmp_path / "ck", rename=UNWRAP)
    assert loaded["none"] == {} and loaded["list"][2] == 3
    target = model(0)
    target.load_state_dict(loaded["model"])
    assert target.bias.tolist() == [1, 1]


@pytest.mark.parametrize("to", ["model", "deep", "model.bias"])
def test_load_has_one_place_for_each(tmp_path: Path, to: str) -> None:
    ct.save({**run(1), "deep": {"n": 3}, "w": torch.ones(1)}, tmp_path / "ck")
    for name in ("list.0", "w"):
        with pytest.raises(InvalidError) as caught:
            ct.load(tmp_path / "ck", rename={name: to})
        assert caught.value.argument == "rename"


def test_an_optimizer_is_cast_with_its_model(tmp_path: Path) -> None:
    """Not read into with the stored bits."""
    ct.save(run(1), tmp_path / "ck")
    halved = {"model": model(0).half()}
    halved["optimizer"] = torch.optim.AdamW(halved["model"].parameters())
    for one in halved["model"].parameters():
        one.grad = torch.ones_like(one)
    halved["optimizer"].step()
    options: dict[str, Any] = {"filter": "[mo]*", "cast": {"*.step": None, "*": HALF}}
    assert ct.load_into(halved, tmp_path / "ck", **options)
    states = halved["optimizer"].state.values()
    assert [one["exp_avg"].dtype for one in states] == [HALF] * 2
    assert not any(one["exp_avg"].any() for one in states)


class Extra(nn.Linear):
    """Its extra state has a tensor."""

    def __init__(self, value: float) -> None:
        super().__init__(2, 2)
        self.more = {"sum": torch.full((2,), value)}

    def get_extra_state(self) -> dict[str, torch.Tensor]:
        return self.more

    def set_extra_state(self, state: dict[str, torch.Tensor]) -> None:
        self.more = state


def test_extra_state_by_name(tmp_path: Path) -> None:
    ct.save({"model": wrapped("_orig_mod", Extra(1)), "none": model(1)}, tmp_path / "ck")
    for target in ({"model": Extra(0)}, {"model": {"other": Extra(0)}}):
        with pytest.raises(ckptfmt.CkptfmtError) as caught:
            ct.load_into(target, tmp_path / "ck", filter="none.*", rename=[("^none", "model")])
        assert caught.value.report is not None
        assert any("_extra_state" in name for name in caught.value.report.missing)
    found = Extra(0)
    assert ct.load_into({"model": found}, tmp_path / "ck", filter="model.*", rename=UNWRAP)
    assert found.more["sum"].tolist() == [1, 1]
    assert ct.load(tmp_path / "ck", rename=UNWRAP)["model"]["_extra_state"]["sum"].sum() == 2


def test_lists_of_modules(tmp_path: Path) -> None:
    ct.save({"models": [model(1, "_orig_mod"), model(1)]}, tmp_path / "ck")
    target = {"models": [model(0), model(0)]}
    assert ct.load_into(target, tmp_path / "ck", rename=UNWRAP)
    assert len(loaded(target)) == 4
    for number in (1, 3):
        wrong = {"models": [model(0) for _ in range(number)]}
        with pytest.raises(ckptfmt.CkptfmtError) as caught:
            ct.load_into(wrong, tmp_path / "ck", rename=UNWRAP)
        assert caught.value.report is not None and not loaded(wrong)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_converted_directory_of_dcp(tmp_path: Path) -> None:
    state = {"model": model(1).state_dict(), "step": 3}
    torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    ckptfmt.convert(tmp_path / "dcp", tmp_path / "ck")
    target = {"model": model(0)}
    assert ct.load_into(target, tmp_path / "ck", filter="model.*")
    assert loaded(target) == MODEL.split()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.emb.weight


@pytest.mark.parametrize("assign", [False, True])
def test_tied_tensors_are_transformed_alike(tmp_path: Path, assign: bool) -> None:
    saved, module = Tied(), Tied()
    ct.save({"model": saved}, tmp_path / "ck")
    for rule in ("emb.weight$", "head.weight$"):
        with pytest.raises(InvalidError) as caught:
            rename = [(rule, rule[:-1], torch_negative)]
            ct.load_into({"model": module}, tmp_path / "ck", assign=assign, rename=rename)
        assert caught.value.tensor in ("model.emb.weight", "model.head.weight")
    rename = [("weight$", "weight", torch_negative)]
    assert ct.load_into({"model": module}, tmp_path / "ck", assign=assign, rename=rename)
    assert module.head.weight is module.emb.weight
    assert torch.equal(module.head.weight, -saved.emb.weight)


def torch_negative(array: Any) -> Any:
    return -array


def test_what_is_renamed_away_is_missing(tmp_path: Path) -> None:
    ct.save(nn.Sequential(nn.Linear(2, 2)), tmp_path / "ck")
    target = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    report = ct.load_into(target, tmp_path / "ck", rename=[("^0", "1")], strict=False)
    assert set(report.matched) == {"1.weight", "1.bias"}
    assert set(report.missing) == {"0.weight", "0.bias"}


def test_bits_are_not_transformed(tmp_path: Path) -> None:
    scales = torch.arange(120, 124, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    ct.save({"s": scales}, tmp_path / "ck")
    rename = [("s", "s", lambda array: array)]
    for load in (
        lambda: ct.load(tmp_path / "ck", rename=rename),
        lambda: ct.load_into({"s": torch.zeros(4)}, tmp_path / "ck", cast=True, rename=rename),
    ):
        with pytest.raises(InvalidError) as caught:
            load()
        assert (caught.value.argument, caught.value.tensor) == ("rename", "s")
