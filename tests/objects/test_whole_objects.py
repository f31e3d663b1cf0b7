# SPDX-License-Identifier: Apache-2.0
"""An object with several tensors is restored whole or not at all: a choice of names means all of
its tensors, and an object that needs a tensor which is not there is an error before anything is
written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt import TensorNotFoundError


class Own:
    """Gives and takes tensors of these names."""

    def __init__(self, value: float, names: str = "ab") -> None:
        self.values = {name: np.full(2, value + row) for row, name in enumerate(names)}

    def serialize_to_tensors(self) -> dict[str, Any]:
        return self.values

    def restore_from_tensors(self, tensors: Mapping[str, Any]) -> None:
        self.values = {**self.values, **tensors}


class Newer(Own):
    """May be restored from a checkpoint that has no `b`."""

    def may_be_missing(self, key: str) -> bool:
        return key.endswith("/b")


def parallel(value: float, count: int = 3) -> Any:
    return ckptfmt.tf.ParallelVariable([np.full(2, value + row) for row in range(count)])


def state(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all objects by path."""
    found: dict[str, Any] = {}
    for name, one in tree.items():
        parts = one.values.items() if isinstance(one, Own) else enumerate([one])
        if isinstance(one, ckptfmt.tf.ParallelVariable):
            parts = enumerate(one.components)
        found[name] = {part: array.tolist() for part, array in parts}
    return found


def by_checkpoint(path: str, tree: Any, **given: Any) -> Any:
    return ckptfmt.Checkpoint(**tree).restore(path, **given).expect_partial().report


def by_tree(path: str, tree: Any, **given: Any) -> Any:
    return ckptfmt.load_tree_into(path, tree, **given)


DOORS = [by_checkpoint, by_tree]
# A choice, and the objects that get the values of those stored as `v`, `w` and `r`.
CHOICES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {"v": "v", "w": "w", "r": "r"}),
    ({"names": ["v"]}, {"v": "v"}),
    ({"names": ["w"]}, {"w": "w"}),
    ({"filter": "v"}, {"v": "v"}),
    ({"filter": "r/*"}, {"r": "r"}),
    ({"filter": "/^[vw]$/"}, {"v": "v", "w": "w"}),
    ({"filter": "v", "rename": {"v": "x"}}, {"v": "x"}),
    ({"names": ["v"], "rename": [("^v", "x")]}, {"v": "x"}),
    ({"names": ["v"], "rename": lambda name: "x" if name == "v" else name}, {"v": "x"}),
]


@pytest.mark.parametrize("door", DOORS)
def test_a_choice_means_whole_objects(door: Callable[..., Any], tmp_path: Path) -> None:
    stored = {"v": parallel(1), "w": np.zeros(2), "r": Own(5)}
    path = ckptfmt.Checkpoint(**stored).save(tmp_path / "ck")
    for (given, taken), strict in itertools.product(CHOICES, (True, False)):
        target = {"v": parallel(10), "w": np.full(2, 20.0), "r": Own(30), "x": parallel(40)}
        if given.get("rename") is None:
            del target["x"]
        expected = state(target) | {to: state(stored)[name] for name, to in taken.items()}
        door(path, target, strict=None if strict and door is by_checkpoint else False, **given)
        assert state(target) == expected, given


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("lacking", ["stored", "chosen"])
def test_nothing_is_restored_in_part(
    door: Callable[..., Any], lacking: str, tmp_path: Path
) -> None:
    given = {"names": ["r/.ATTRIBUTES/a", "w"]} if lacking == "chosen" else {}
    stored = {"r": Own(5, "ab" if given else "a"), "w": np.zeros(2)}
    path = ckptfmt.Checkpoint(**stored).save(tmp_path / "ck")
    for strict in (True, None) if door is by_checkpoint else (True,):
        target = {"r": Own(30), "w": np.full(2, 20.0)}
        before = state(target)
        with pytest.raises(TensorNotFoundError, match="'r'") as caught:
            door(path, target, strict=strict, **given)
        assert caught.value.tensor == "r/.ATTRIBUTES/b"
        assert state(target) == before
    report = door(path, target, strict=False, **given)
    left = report.filtered if given else report.missing
    assert "r" in left and "r" not in report.matched
    assert state(target) == before | {"w": state(stored)["w"]}
    target["r"] = Newer(30)
    assert "r" in door(path, target, strict=False, **given).matched
    assert state(target)["r"] == {"a": [5, 5], "b": [31, 31]}


def test_a_backup_without_a_tensor_is_not_restored(tmp_path: Path) -> None:
    ckptfmt.tf.TrainingState({"r": Own(5, "a")}, tmp_path).back_up(3)
    target = Own(30)
    with pytest.raises(TensorNotFoundError):
        ckptfmt.tf.TrainingState({"r": target}, tmp_path).restore()
    assert state({"r": target}) == state({"r": Own(30)})


def test_a_tree_has_whole_variables(tmp_path: Path) -> None:
    path = ckptfmt.Checkpoint(v=parallel(1), w=np.zeros(2)).save(tmp_path / "ck")
    ckptfmt.save_tree(tmp_path / "again", ckptfmt.load_tree(path, names=["v"]))
    target = {"v": parallel(10)}
    ckptfmt.load_tree_into(tmp_path / "again", target)
    assert state(target) == state({"v": parallel(1)})
