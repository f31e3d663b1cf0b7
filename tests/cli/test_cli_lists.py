# SPDX-License-Identifier: Apache-2.0
"""What commands list: at most ten lines of a kind and a count of the rest; what was done on
standard output, and what was lost on standard error, whatever the options say."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from cli.commands import Command

COUNT = 30
# Lines of a long list: its title, the first ten, and how many more there are.
LIST = 12


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints `a` and `b`; `lacks` with an object graph, 30 of whose tensors are missing; and a
    file of a dtype that checkpoints lack."""
    monkeypatch.chdir(tmp_path)
    for prefix, step in (("a", 1), ("b", 2)):
        tensors = {"keep": np.ones(2), "keep/Adam": np.ones(2)}
        for number in range(COUNT):
            tensors[f"large{number:02}"] = np.full(2, 1e30)
            tensors[f"small{number:02}"] = np.full(2, 1e-30)
            tensors[f"step{number:02}"] = np.int64(step)
            tensors[f"rate{number:02}"] = np.float64(0.5)
            tensors[f"opt_state/{number:02}"] = np.ones(2)
        ckptfmt.save(prefix, tensors)
    ckptfmt.save_tree("tree", {f"x{number:02}": np.ones(2) for number in range(COUNT + 1)})
    graph = ckptfmt.load("tree", [OBJECT_GRAPH_KEY])
    name, kept = next(iter(ckptfmt.load("tree", filter="x30/*").items()))
    ckptfmt.save("lacks", {name: kept, **graph})
    bits = {f"s{number:02}": np.ones(2, ml_dtypes.float8_e8m0fnu) for number in range(COUNT)}
    ckptfmt.safetensors.save_file(bits, "bits.safetensors")


# The words, the lists and further lines on standard output, and those on standard error.
CASES: dict[str, tuple[str, tuple[int, int], tuple[int, int]]] = {
    "rename": ("edit a o --rename step*=n*", (1, 1), (0, 0)),
    "drop": ("edit a o --drop large* --drop-weights", (1, 4), (0, 0)),
    "both": ("edit a o --drop small* --drop-weights --rename large*=l*", (2, 4), (0, 0)),
    "dry": ("edit a o -n --drop large* --drop-weights", (1, 4), (0, 0)),
    "cast": ("edit a o --cast step*=int8", (1, 1), (0, 0)),
    "changed": ("edit a o --cast large*=half --allow-loss", (1, 1), (1, 0)),
    "zeros": ("edit a o --cast small*=half", (1, 1), (1, 0)),
    "without a dimension": ("edit a o --cast float32", (1, 1), (1, 0)),
    "undecided": ("edit a o --strip-optimizer", (0, 6), (1, 0)),
    "missing": ("edit lacks o --set-metadata e=1", (0, 1), (1, 0)),
    "drop missing": ("edit lacks o --drop-missing", (1, 1), (0, 0)),
    "average": ("average a b o", (1, 1), (0, 0)),
    "average -n": ("average -n a b o", (1, 1), (0, 0)),
    "average of what lacks": ("average lacks lacks o", (0, 1), (1, 0)),
    "convert": ("convert a o", (0, 1), (0, 0)),
    "convert cast": ("convert a o.npz --cast step*=int8", (1, 1), (0, 0)),
    "convert changed": ("convert a o.npz --cast large*=half --allow-loss", (1, 1), (1, 0)),
    "convert zeros": ("convert a o.npz --no-verify --cast small*=half", (1, 1), (1, 0)),
    "convert without a dimension": ("convert a o.npz --cast float32", (1, 1), (1, 0)),
    "convert bits": ("convert bits.safetensors o", (1, 1), (0, 0)),
    "convert graph": ("convert tree o.npz", (0, 1), (0, 2)),
    "convert what lacks": ("convert lacks o", (0, 1), (1, 0)),
}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("case", CASES)
def test_lists(case: str, command: Command) -> None:
    words, *expected = CASES[case]
    ran = command(*words.split())
    assert ran.status == 0, ran.err
    for printed, (lists, further) in zip((ran.out, ran.err), expected, strict=True):
        assert len(re.findall(r"^  and \d+ more$", printed, re.MULTILINE)) == lists, printed
        assert printed.count("\n") == lists * LIST + further, printed
    quiet = command(*words.split(), "-q", "--overwrite")
    assert (quiet.status, quiet.out) == (0, "")
    assert quiet.err == ran.err


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("words", ["edit a o", "convert a o.npz", "convert in.npz o"])
def test_what_casts_lose(words: str, command: Command) -> None:
    """Of each tensor, in one line."""
    np.savez("in.npz", h=[1e9, 1e-30, 1.0], k=np.ones(2), u=[300, -1, 3])
    assert command("convert", "in.npz", "a", "--overwrite").status == 0
    casts = ["--cast", "u=uint8", "--cast", "h=half", "--cast", "k=float32", "--allow-loss"]
    ran = command(*words.split(), *casts[:-1])
    assert (ran.status, ran.out) == (2, "") and "--allow-loss" in ran.err
    ran = command(*words.split(), *casts)
    assert "cast 3 tensors\n  " in ran.out
    assert sorted(ran.err.splitlines()[1:]) == [
        "  h from float64 to float16: 1 element changed by more than rounding, 1 element became 0",
        "  u from int64 to uint8: 2 elements changed by more than rounding",
    ]
