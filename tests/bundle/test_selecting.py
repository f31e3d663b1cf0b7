# SPDX-License-Identifier: Apache-2.0
"""Forms of `rename` and `filter` that no property draws, and those that are refused."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt

NAMES = ["a/bias", "a/kernel", "b/kernel", "step"]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    tensors = {name: np.full(3, NAMES.index(name), np.float32) for name in NAMES}
    ckptfmt.save(tmp_path / "ck", tensors, durability="none")
    return tmp_path / "ck"


@pytest.mark.parametrize(
    ("rename", "expected"),
    [
        ([("^a/", "c/"), ("^c/(.*)", r"\1/d")], ["bias/d", "kernel/d", "b/kernel", "step"]),
        ([(re.compile("^[A]/", re.I), "x/")], ["x/bias", "x/kernel", "b/kernel", "step"]),
        ((["^", "model/"],), [f"model/{name}" for name in NAMES]),
        ([(r"(?P<first>\w)/", r"\g<first>-")], ["a-bias", "a-kernel", "b-kernel", "step"]),
        ([("/", "."), ("x", None), ("[.]", "/", np.transpose)], NAMES),
        ({}, NAMES),
        ([], NAMES),
    ],
)
def test_rename(prefix: Path, rename: Any, expected: list[str]) -> None:
    loaded = ckptfmt.load(prefix, rename=rename)
    assert {name: array[0] for name, array in loaded.items()} == {
        name: number for number, name in enumerate(expected)
    }


def of_values(array: Any) -> Any:
    """A transform whose shape depends on the values."""
    return array[: int(array.sum())]


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        *[("rename", one) for one in (5, "a", b"ab", ("a", "b"), {5: "x"}, lambda _: b"x")],
        *[("rename", [one]) for one in (5, "ab", ("a",), ("a", 5), ("a", "b", "c"), (b"a", b"b"))],
        *[("rename", [("a", None, abs)]), ("rename", [(re.compile(b"a"), "b")])],
        *[("rename", [one]) for one in (("(", "b"), ("a", r"\2"), ("a", r"\g<x>"))],
        *[("rename", {"step": one}) for one in (5, ("s", 5), None)],
        *[("rename", {"step": ("x", one)}) for one in (np.ndarray.tolist, of_values, float)],
        *[("filter", one) for one in (5, b"a*", ["a*"], re.compile(b"a"), "/(/")],
    ],
)
def test_wrong_forms(prefix: Path, argument: str, given: Any) -> None:
    targets = {"x": np.zeros(0, np.float32)}
    with pytest.raises(ckptfmt.InvalidError) as caught:
        ckptfmt.load_into(prefix, targets, strict=False, **{argument: given})
    assert caught.value.argument == argument
    if isinstance(given, dict) and "step" in given:
        assert caught.value.tensor == "step"


def test_a_slice_cannot_be_transformed(tmp_path: Path) -> None:
    class Half:
        def serialize_to_tensors(self) -> Any:
            return {"VARIABLE_VALUE": {"2 3 0,1:-": np.zeros((1, 3), np.float32)}}

        def restore_from_tensors(self, tensors: Any) -> None:
            raise AssertionError

    ckptfmt.save_tree(tmp_path / "ck", {"a": np.ones((2, 3), np.float32)})
    rename = {"a": ("a", np.transpose)}
    with pytest.raises(ckptfmt.InvalidError, match="a transform takes whole tensors"):
        ckptfmt.Checkpoint(a=Half()).read(tmp_path / "ck", rename=rename)


def test_a_missing_name_among_many_is_found_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers may ask for many missing names: few are compared in full, and none by `get`."""
    compared: list[int] = []
    match = difflib.get_close_matches

    def noted(name: str, present: list[str]) -> list[str]:
        compared.append(len(present))
        return match(name, present)

    monkeypatch.setattr(difflib, "get_close_matches", noted)
    tensors = {f"model/layers_{index}/attention/kernel": np.ones(1) for index in range(2000)}
    ckptfmt.save(tmp_path / "ck", tensors)
    with ckptfmt.open(tmp_path / "ck") as reader:
        with pytest.raises(KeyError, match=r"nearest are .*'model/layers_77/attention/kernel'"):
            reader["model/layers_77/atention/kernel"]
        assert len(compared) == 1 and compared[0] < 100
        assert reader.get("model/layers_77/atention/kernel") is None
        assert reader.get("model/layers_77/attention/kernel") is not None
        assert len(compared) == 1
