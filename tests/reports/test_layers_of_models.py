# SPDX-License-Identifier: Apache-2.0
"""By which layers a report sums up tensors, and in which order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.reports import reported

import ckptfmt
from ckptfmt.bundle import state_tree
from ckptfmt.report import layers as layering


def layers_of(path: Path, role: str = "weight") -> list[str]:
    return [one["name"] for one in reported(path)["layers"] if one["role"] == role]


BLOCK = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "ln_1.weight")
NAMES = {
    "dots": (
        [f"h.{n}.{name}" for n in range(12) for name in BLOCK] + ["wte.weight"],
        [f"h.{n}{part}" for n in range(12) for part in ("", ".attn", ".mlp")] + ["wte"],
    ),
    "one root": (
        [f"model/{name}/kernel" for name in ("conv", "d10", "d2", "layer1/0/conv")],
        ["model/conv", "model/d2", "model/d10", "model/layer1/0"],
    ),
    "few": (["gan/g/0/w", "gan/g/2/w", "gan/d/0/w"], ["gan/d/0", "gan/g/0", "gan/g/2"]),
    "flat": (["w", "b"], ["b", "w"]),
    "slots": (["a/w", "a/w/Adam", "b/w", "b/w/Adam"], ["a", "b"]),
}


@pytest.mark.parametrize("case", NAMES)
def test_modules_are_in_natural_order(case: str, tmp_path: Path) -> None:
    names, expected = NAMES[case]
    ckptfmt.save(tmp_path / "m", {name: np.ones(2, np.float32) for name in names})
    assert layers_of(tmp_path / "m") == expected
    if case == "slots":
        assert layers_of(tmp_path / "m", "optimizer") == expected
        owners = [one.get("parameter") for one in reported(tmp_path / "m")["tensors"]]
        assert owners == [None, "a/w", None, "b/w"]


def test_a_state_of_torch_says_the_order(tmp_path: Path) -> None:
    state: dict[str, Any] = {"model": {}, "optimizer": {"state": {}, "param_groups": []}}
    tensors = {}
    names = [f"{name}.weight" for name in ("embed", "zeta", "alpha", "beta", "head")]
    for number, name in enumerate(names):
        state["model"][name] = {"$tensor": True}
        state["optimizer"]["state"][str(number)] = {"exp_avg": {"$tensor": True}}
        tensors |= {f"model.{name}": np.ones(3), f"optimizer.state.{number}.exp_avg": np.ones(3)}
    for recorded in ({"optimizer": [[[name, "x"] for name in names]]}, {}):
        group = {"params": [*range(5)]} | ({} if recorded else {"param_names": names})
        state["optimizer"]["param_groups"] = [group]
        metadata = {state_tree.KEY: state_tree.text_of(state=state, parameters=recorded)}
        ckptfmt.save(tmp_path / "m", tensors, metadata=metadata)
        expected = [f"model.{name.removesuffix('.weight')}" for name in names]
        assert layers_of(tmp_path / "m") == layers_of(tmp_path / "m", "optimizer") == expected
        owner = {one["name"]: one.get("parameter") for one in reported(tmp_path / "m")["tensors"]}
        assert owner["optimizer.state.2.exp_avg"] == "model.alpha.weight"


def test_keras_says_the_order(tmp_path: Path) -> None:
    layers = {name: {"w": np.ones(2)} for name in ("zeta", "beta", "alpha", "omega")}
    numbered = {f"layer-{number}": one for number, one in enumerate(layers.values())}
    ckptfmt.Checkpoint(model={**layers, **numbered}).write(tmp_path / "m")
    assert layers_of(tmp_path / "m") == [f"model/{name}" for name in layers]


@given(st.lists(st.text("ab/", max_size=9), max_size=40, unique=True), st.integers(1, 12))
def test_every_tensor_has_one_layer(names: list[str], most: int) -> None:
    reader = SimpleNamespace(metadata={})
    people: Any = SimpleNamespace(reader=reader, nodes=[], stored=names, shown=str)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layering, "LAYERS_MAX", most)
        patch.setattr(layering, "model_roles", lambda _: dict.fromkeys(names, "weight"))
        found = layering.Layers(people)
    assert {*found.of} == {*range(len(found.layers))} and len(found.of) == len(names)
    assert len(found.layers) <= most and max(Counter(found.layers).values(), default=1) == 1
