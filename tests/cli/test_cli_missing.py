# SPDX-License-Identifier: Apache-2.0
"""Commands on a checkpoint whose object graph has tensors that are not stored: none passes on the
loss silently, and those that would have to rewrite the graph refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.files import contents

import ckptfmt
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from cli.commands import Command

KEY = "b/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a checkpoint, and one that lacks a tensor of its graph."""
    monkeypatch.chdir(tmp_path)
    ckptfmt.save_tree("whole", {"a": np.arange(3.0), "b": np.ones(2), "c": np.zeros(4)})
    tensors = ckptfmt.load("whole")
    graph = ckptfmt.load("whole", [OBJECT_GRAPH_KEY])
    del tensors[KEY]
    ckptfmt.save("model", {**tensors, **graph})
    return tmp_path


# Those that say it, and whether the result has the graph.
SAID: dict[str, tuple[list[str], bool]] = {
    "average": (["average", "model", "model", "out"], True),
    "average -n": (["average", "-n", "model", "model", "out"], True),
    "convert level": (["convert", "model", "out", "--level", "v2"], True),
    "compress": (["convert", "model", "out", "--level", "ckptfmt"], True),
    "in place": (["convert", "model", "model", "--overwrite"], True),
    "npz": (["convert", "model", "out.npz"], False),
    "safetensors": (["convert", "model", "out.safetensors"], False),
    "metadata": (["edit", "model", "out", "--set-metadata", "a=1"], True),
    "metadata -n": (["edit", "-n", "model", "out", "--set-metadata", "a=1"], True),
}
REFUSED: dict[str, list[str]] = {
    "rename": ["--rename", "a/*=d/*"],
    "drop": ["--drop", "a/*", "--drop-weights"],
    "cast": ["--cast", "float32"],
    "metadata too": ["--cast", "float32", "--set-metadata", "a=1"],
}


@pytest.mark.parametrize("case", SAID)
def test_a_missing_tensor_is_passed_on_aloud(case: str, place: Path, command: Command) -> None:
    words, _ = SAID[case]
    ran = command(*words)
    assert ran.status == 0, ran.err
    assert "ckptfmt: warning: the object graph refers to 1 tensor that" in ran.err
    assert "\n  b\n" in ran.err and "--drop-missing" in ran.err
    again = command(*words, *([] if words[0] == "convert" else ["--json"]), "--overwrite")
    if words[0] != "convert":
        assert json.loads(again.out)["missing"] == [KEY]
        assert again.err == ""


@pytest.mark.parametrize("case", SAID)
def test_nothing_is_said_of_a_whole_one(case: str, place: Path, command: Command) -> None:
    words = ["whole" if word == "model" else word for word in SAID[case][0]]
    ran = command(*words)
    assert ran.status == 0 and "refers to" not in ran.err


@pytest.mark.parametrize("case", [case for case in SAID if "-n" not in case])
def test_the_result_has_the_same_problem(case: str, place: Path, command: Command) -> None:
    words, has_graph = SAID[case]
    assert command(*words).status == 0
    if has_graph:
        report = ckptfmt.verify(words[2] if case == "in place" else "out")
        assert [(one.failure, one.tensor) for one in report.problems] == [("MISSING_TENSOR", KEY)]


def test_the_functions_say_it(place: Path) -> None:
    assert ckptfmt.editing.average(["model", "model"], "m").missing == (KEY,)
    assert ckptfmt.convert("model", "c", level="v2").missing == (KEY,)
    with pytest.raises(ckptfmt.InvalidError):
        ckptfmt.convert("model", "r", rename=[("^a/.*", "a")])
    assert ckptfmt.convert("model", "c.npz").missing == (KEY,)
    assert ckptfmt.editing.edit("model", "e", metadata={"a": 1}).missing == (KEY,)
    assert ckptfmt.editing.edit("model", "d", drop_missing=True).missing == (KEY,)
    assert ckptfmt.verify("d").ok and not ckptfmt.verify("e").ok
    for whole in (
        ckptfmt.editing.average(["whole", "whole"], "m"),
        ckptfmt.convert("whole", "c.npz"),
    ):
        assert whole.missing == ()


@pytest.mark.parametrize("case", REFUSED)
def test_edits_of_tensors_are_refused(case: str, place: Path, command: Command) -> None:
    before = contents(place)
    ran = command("edit", "model", "out", *REFUSED[case])
    assert (ran.status, ran.out) == (2, "") and "--drop-missing" in ran.err and KEY in ran.err
    assert contents(place) == before
    ran = command("edit", "model", "out", *REFUSED[case], "--drop-missing")
    assert (ran.status, ran.err) == (0, "")
    assert ckptfmt.verify("out").ok
