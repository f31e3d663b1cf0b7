# SPDX-License-Identifier: Apache-2.0
"""`inspect` and `show` print a state of `ckptfmt.torch` as values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt.bundle.state_tree import KEY
from ckptfmt.cli import text
from cli.commands import Command

TENSOR = {"$tensor": True}
NAMES = ["model.w", "optimizer.state.0.exp_avg", "rng.torch"]
STATE: dict[str, Any] = {
    "model": {"$state_dict": [["w", TENSOR]], "versions": {}},
    "optimizer": {
        "state": {"$dict": [[0, {"exp_avg": TENSOR}]]},
        "param_groups": [{"lr": 1e-3, "betas": {"$tuple": [0.9, 0.999]}, "params": [0]}],
    },
    "rng": {"torch": TENSOR, "python": {"$tuple": [3, {"$tuple": [*range(625)]}, None]}},
    "steps": [*range(20)],
    "step\n": 5,
    "random_seed": 42,
    "args": {"cuda": True},
    "loss": {"$float": "nan"},
}
PARAMETERS = {"optimizer": [[["model.w"]]]}
# What `show` prints of each value.
VALUES = {
    "step\n": "5",
    "random_seed": "42",
    "args.cuda": "True",
    "loss": "nan",
    "steps": "list of 20 elements",
    "optimizer.param_groups.0.lr": "0.001",
    "optimizer.param_groups.0.betas": "(0.9, 0.999)",
}


def saved(prefix: Path, **whole: Any) -> Path:
    metadata = {KEY: json.dumps({"version": 1, "state": STATE, **whole}), "epoch": 3}
    ckptfmt.save(prefix, {name: np.zeros(4, "f4") for name in NAMES}, metadata=metadata)
    return prefix


def test_values(tmp_path: Path, command: Command) -> None:
    prefix = saved(tmp_path / "run", parameters=PARAMETERS)
    rows = [line.split() for line in command("inspect", prefix).out.splitlines()]
    for name, value in VALUES.items():
        assert [*name.encode("unicode_escape").decode().split(), *value.split()] in rows
        assert command("show", prefix, name).out == f"{value}\n"
        assert command("show", prefix, text.printable(name)).out == f"{value}\n"
        assert text.printable(name) in command("show", prefix).out.splitlines()
    assert ["epoch", "3"] in rows and not any(row[:1] == ["optimizer.state.0.step"] for row in rows)
    assert sum("rng" in line for line in rows) == 1, "random states are apart"
    assert [row[-1] for row in rows if row[:1] == NAMES[1:2]] == ["model.w"]
    assert command("show", "--all", prefix, "steps").out == f"{STATE['steps']}\n"
    ran = command("show", prefix, "optimizer.param_groups.0.[lb]*")
    assert [line.split("  ")[1] for line in ran.out.splitlines()] == ["0.001", "(0.9, 0.999)"]
    hints = {"los": "'loss'", "optimizer.param_groups.0.lrs": "param_groups.0.lr'"}
    hints |= {"param_groups.0.lr": "'optimizer.param_groups.0.lr'", "rng": "'rng.torch'"}
    for wrong, name in hints.items():
        assert name in command("show", prefix, wrong).err
    for words in (["--json", prefix, "loss"], [prefix, "rng.python.0"], [prefix, "model"]):
        assert command("show", *words).status == 2


def test_changed_values(tmp_path: Path, command: Command) -> None:
    one, other = saved(tmp_path / "a"), saved(tmp_path / "b", state=STATE | {"loss": 1.5, "new": 2})
    ran = command("diff", one, other)
    assert ran.status == 1 and "value loss: nan -> 1.5\n" in ran.out and "new" not in ran.out
    document = json.loads(command("diff", "--json", one, other).out)
    assert document["values"] == {"loss": ["nan", "1.5"]} and not document["equal"]


@pytest.mark.parametrize(
    "whole",
    [
        *({"version": 2}, {"state": {"$new": 1}}, {"state": {"$tuple": 5}}),
        *({"parameters": 5}, {"parameters": {"optimizer": [[[]]]}}),
        *({"state": {"$float": 10**400}}, {"state": {"$deque": [], "maxlen": 10**30}}),
        {"state": {"k" * 10**5: dict.fromkeys(map(str, range(3000)), 0)}},
    ],
    ids=lambda whole: str(whole)[:40],
)
def test_what_cannot_be_read_is_printed_as_it_is(
    tmp_path: Path, command: Command, whole: dict[str, Any]
) -> None:
    ran = command("inspect", saved(tmp_path / "run", **whole))
    assert ran.status == 0 and f"\n    {KEY}  " in ran.out and "model.w" in ran.out
