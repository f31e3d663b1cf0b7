# SPDX-License-Identifier: Apache-2.0
"""Docstrings that are read alone: every argument and error is described, and the examples run."""

from __future__ import annotations

import builtins
import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.options import CORE, calls, entries
from support.options import TEXTS as TEXTS_OF_OPTIONS

import ckptfmt

DOORS = ("", "sharded", "editing")
# The public names, each with an example, and their methods.
NAMES = {
    f"{door}.{name}".lstrip("."): getattr(
        importlib.import_module(f"ckptfmt.{door}".rstrip(".")), name
    )
    for door in DOORS
    for name in importlib.import_module(f"ckptfmt.{door}".rstrip(".")).__all__
} | {"types.TensorHandle": ckptfmt.types.TensorHandle}
CALLS = {
    name: call
    for name, call in calls((*DOORS, "types")).items()
    if name in NAMES or name.rpartition(".")[0] in NAMES
}
TEXTS = {name: inspect.getdoc(one) or "" for name, one in (NAMES | CALLS).items()}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_docstring_stands_alone(name: str) -> None:
    text = TEXTS[name]
    assert not re.search(r"\bas (in|for) (`|Writer)|^\s+As ", text, re.M), "it refers to another"
    if name in CALLS and name != "types.TensorHandle":  # which only readers make
        given = inspect.signature(CALLS[name]).parameters
        wanted = [one for one in given if one not in ("self", "args", "kwargs")]
        found = entries(text, "Args")
        assert {*found} == {*wanted}
        for one in ("path", "follow_symlinks"):  # options.py compares the others
            assert found.get(one, TEXTS_OF_OPTIONS[one]).startswith(TEXTS_OF_OPTIONS[one])
    check_raises(text)


def test_errors_are_classes() -> None:
    """What napoleon takes for a class, on the page that is made of the docstrings."""
    for call in calls(CORE).values():
        check_raises(inspect.getdoc(call) or "")


def check_raises(text: str) -> None:
    for classes, meaning in entries(text, "Raises").items():
        for one in classes.split(", "):
            kind = getattr(ckptfmt.errors, one, None) or getattr(builtins, one, None)
            assert isinstance(kind, type) and issubclass(kind, BaseException), classes
        assert meaning, classes


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {"np": np, "ckptfmt": ckptfmt}
    example = doctest.DocTestParser().get_doctest(TEXTS[name], known, name, None, None)
    assert example.examples or name not in NAMES
    monkeypatch.chdir(tmp_path)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(example, out=report.append).failed == 0, "".join(report)
