# SPDX-License-Identifier: Apache-2.0
"""The forms of `rename` and `filter` in `load_into`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt

NAMES = ["a/bias", "a/kernel", "b/kernel", "step"]
Selected = dict[str, str]
NOT_A_RULE = (
    "rename: expected a list of pairs (regular expression, replacement), or of these and a "
    "transform of the array; "
)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    tensors = {name: np.array(NAMES.index(name)) for name in NAMES}
    ckptfmt.save(tmp_path / "ck", tensors, durability="none")
    return tmp_path / "ck"


def select(prefix: Path, wanted: Iterable[str], **options: Any) -> Selected:
    """Load into arrays of these names, which must be all; name to stored name."""
    arrays = {name: np.array(-1) for name in wanted}
    assert ckptfmt.load_into(prefix, arrays, **options).missing == ()
    return {new: NAMES[int(array)] for new, array in arrays.items()}


def dropped(name: str) -> str | None:
    return None if name.startswith("a/") else name.upper()


@pytest.mark.parametrize(
    ("rename", "expected"),
    [
        (None, NAMES),
        ({}, NAMES),
        ({"step": "s", b"a/bias": "b"}, ["b", "a/kernel", "b/kernel", "s"]),
        ({"a/kernel": "b/kernel", "b/kernel": "a/kernel"}, ["a/bias", *NAMES[2:0:-1], "step"]),
        (str.upper, [name.upper() for name in NAMES]),
        (dropped, [None, None, "B/KERNEL", "STEP"]),
        (lambda _: None, [None] * 4),
        ([("/", ".")], ["a.bias", "a.kernel", "b.kernel", "step"]),
        ((("/", "."),), ["a.bias", "a.kernel", "b.kernel", "step"]),
        ([], NAMES),
        ([("^a/", "c/"), ("^c/(.*)", r"\1/d")], ["bias/d", "kernel/d", "b/kernel", "step"]),
        ([(re.compile("^[AB]/", re.I), "model/x/")], None),
        ([["^", "model/"]], [f"model/{name}" for name in NAMES]),
        ([(r"(?P<first>\w)/", r"\g<first>-")], ["a-bias", "a-kernel", "b-kernel", "step"]),
        ([("^a/", None), ("/", ".")], [None, None, "b.kernel", "step"]),
        ([("/", "."), ("x", None), ("[.]", "/", np.transpose)], NAMES),
    ],
)
def test_rename(prefix: Path, rename: Any, expected: list[str | None] | None) -> None:
    if expected is None:
        with pytest.raises(ckptfmt.InvalidError) as caught:
            select(prefix, ["model/x/kernel"], rename=rename)
        message = "rename gives the name 'model/x/kernel' to 'a/kernel' as well"
        assert (caught.value.message, caught.value.tensor) == (message, "b/kernel")
    else:
        wanted = {new: old for old, new in zip(NAMES, expected, strict=True) if new is not None}
        assert select(prefix, wanted, rename=rename) == wanted


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        (5, "rename must be a mapping from names to names, a function, or a list of pairs"),
        ("a", "rename must be a mapping from names to names, a function, or a list of pairs"),
        (
            b"ab",
            "rename must be a mapping from names to names, a function, or a list of pairs",
        ),
        (("a", "b"), f"{NOT_A_RULE}'a'"),
        ([("a",)], f"{NOT_A_RULE}('a',)"),
        ([("a", 5)], f"{NOT_A_RULE}('a', 5)"),
        ([("a", None, abs)], f"{NOT_A_RULE}('a', None, <built-in function abs>)"),
        ([("a", "b", "c")], f"{NOT_A_RULE}('a', 'b', 'c')"),
        ([("a", "b"), 5], f"{NOT_A_RULE}5"),
        ([("a", "b"), "ab"], f"{NOT_A_RULE}'ab'"),
        ([(b"a", b"b")], f"{NOT_A_RULE}(b'a', b'b')"),
        ([(re.compile(b"a"), "b")], "rename: re.compile(b'a') is for bytes: names are str"),
        (
            [("(", "b")],
            "rename: '(' is not a regular expression: missing ), unterminated",
        ),
        ([("a", r"\2")], r"rename: '\\2' cannot replace matches of 'a': invalid group reference 2"),
        (
            [("a", r"\g<x>")],
            r"rename: '\\g<x>' cannot replace matches of 'a': unknown group name 'x'",
        ),
        ({"step": 5}, "rename gave 5, which is not a valid name"),
        ({"step": ("s", 5)}, "rename gave ('s', 5), which is not a valid name"),
        ({"step": None}, "rename gave None, which is not a valid name"),
        (lambda _: b"x", "rename gave b'x', which is not a valid name"),
        ({5: "x"}, "a tensor name must be str or bytes, not int"),
    ],
)
def test_rename_that_is_none(prefix: Path, rename: Any, message: str) -> None:
    with pytest.raises(ckptfmt.InvalidError) as caught:
        ckptfmt.load_into(prefix, {}, rename=rename)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (None, NAMES),
        ("*", NAMES),
        ("a/*", ["a/bias", "a/kernel"]),
        ("*kernel", ["a/kernel", "b/kernel"]),
        ("[!a]*", ["b/kernel", "step"]),
        ("step", ["step"]),
        ("?/kernel", ["a/kernel", "b/kernel"]),
        ("/^a.(b|k)/", ["a/bias", "a/kernel"]),
        ("/kernel/", ["a/kernel", "b/kernel"]),  # anywhere in a name
        ("/s$/", ["a/bias"]),
        ("/.b/", ["a/bias"]),
        (re.compile("kernel"), ["a/kernel", "b/kernel"]),
        (re.compile("^B", re.I), ["b/kernel"]),
        (lambda name: len(name) == 8, ["a/kernel", "b/kernel"]),
    ],
)
def test_filter(prefix: Path, wish: Any, expected: list[str]) -> None:
    assert select(prefix, expected, filter=wish) == {name: name for name in expected}


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (5, "filter must be a glob pattern, /REGEX/, compiled regex or function, not int"),
        (b"a*", "filter must be a glob pattern, /REGEX/, compiled regex or function, not bytes"),
        (["a*"], "filter must be a glob pattern, /REGEX/, compiled regex or function, not list"),
        (re.compile(b"a"), "filter: re.compile(b'a') is for bytes: names are str"),
        (
            "/(/",
            "filter: '(' is not a regular expression: missing ), unterminated subpattern at "
            "position 0",
        ),
    ],
)
def test_filter_that_is_none(prefix: Path, wish: Any, message: str) -> None:
    with pytest.raises(ckptfmt.InvalidError) as caught:
        ckptfmt.load_into(prefix, {}, filter=wish)
    assert caught.value.message == message


def test_filter_goes_by_stored_names(prefix: Path) -> None:
    wanted = {"b/bias": "a/bias", "b/kernel": "a/kernel"}
    assert select(prefix, wanted, filter="a/*", rename=[("^./", "b/")]) == wanted


@pytest.mark.parametrize(
    "wish", ["kernel", "STEP", "ste", "a/k", "/", "/none$/", re.compile("none$"), lambda _: False]
)
def test_a_filter_that_matches_nothing(prefix: Path, wish: Any) -> None:
    """It is misspelt: an empty result would hide that."""
    before = np.array(7)
    with pytest.raises(ckptfmt.TensorNotFoundError, match=r"matches none of the [0-9]+ tensors"):
        ckptfmt.load_into(prefix, {"step": before}, filter=wish, strict=False)
    assert before == 7


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
