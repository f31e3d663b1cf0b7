# SPDX-License-Identifier: Apache-2.0
"""Commands mask the credentials of URLs in paths, and only there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt.cli import progress, text, verify
from cli.commands import Command

# Tensor names that look like URLs with credentials.
NAMES = ["hf://user@rev/w", "s3://b/m?sig=abc", "http://u:p@h/b"]
ARRAYS = {name: np.arange(at + 1.0) for at, name in enumerate(NAMES)}


def test_tensor_names_are_not_masked(tmp_path: Path, command: Command) -> None:
    prefix, other = str(tmp_path / "model"), str(tmp_path / "other")
    ckptfmt.save(prefix, ARRAYS, metadata={"from": NAMES[0]})
    ckptfmt.save(other, {name: array + 1 for name, array in ARRAYS.items()})
    for words in (["inspect"], ["inspect", "--slices"]):
        shown = command(*words, prefix).out
        assert all(name in shown for name in NAMES), words
        assert f'    from  "{NAMES[0]}"\n' in shown
    document = json.loads(command("inspect", "--json", prefix).out)
    assert [one["name"] for one in document["tensors"]] == sorted(NAMES)
    assert document["metadata"] == {"from": NAMES[0]}
    for name in NAMES:
        assert command("show", prefix, name).out.startswith(f"{name}  float64 [")
        assert json.loads(command("show", "--json", prefix, name).out)["name"] == name
        assert command("show", "--stats", prefix, name).out.startswith(f"{name}  ")
    shown = command("diff", prefix, other).out
    assert all(f"values: {name}  " in shown for name in NAMES)
    found = json.loads(command("diff", "--json", prefix, other).out)
    assert {one["name"] for one in found["differences"]} == set(NAMES)
    shown = command("edit", prefix, tmp_path / "edited", "--cast", "float32").out
    assert all(f"  {name} from " in shown for name in NAMES)


@pytest.fixture
def url() -> str:
    """A directory of checkpoints in an object store whose URL has a password."""
    found = "memory://user:SEC%40RET@masking"
    for step in range(3):
        ckptfmt.save(f"{found}/m-{step}", {"w": np.arange(3.0), "m/Adam": np.ones(2)})
    return found


def test_paths_are_masked(url: str, tmp_path: Path, command: Command) -> None:
    a, b, to = f"{url}/m-0", f"{url}/m-1", f"{url}/out"
    commands = [
        *(["inspect", a], ["inspect", "--slices", a], ["inspect", "--json", a]),
        *(["show", a, "w"], ["show", "--json", a, "w"], ["digest", a]),
        *(["verify", a], ["verify", "--json", a], ["verify", a, b], ["verify", "-r", url]),
        ["verify", "--json", a, f"{url}/nowhere"],
        *(["diff", a, b], ["diff", "--json", a, b]),
        *(["cp", a, to], ["mv", to, f"{to}2"], ["rm", f"{to}2"], ["merge", a, to]),
        ["edit", a, to, "--overwrite", "--drop", "m/*"],
        ["edit", a, to, "--overwrite", "--drop", "m/*", "--json"],
        *(["average", a, b, to, "--overwrite"], ["average", a, b, to, "--overwrite", "--json"]),
        *(["convert", a, to, "--overwrite"], ["convert", a, str(tmp_path / "x.npz")]),
        *(["rm", "-n", a], ["prune", "--keep", "1", "-n", url], ["latest", f"{url}/nowhere"]),
    ]
    for words in commands:
        ran = command(*words)
        assert ran.out + ran.err, words
        assert "SEC" not in ran.out + ran.err, words
        if words[0] not in ("show", "diff", "verify", "latest") or "--json" in words:
            assert "memory://***@masking" in ran.out + ran.err, words
    assert command("latest", url).out == f"{url}/m-2\n", "a path to open"


@pytest.mark.parametrize(
    "words",
    [
        ["export", "URL/m"],
        ["export", "--json", "URL/m"],
        ["latest", "URL/m", "URL/m"],
        ["prune", "--keep", "URL/m", "URL"],
    ],
)
def test_wrong_usage_is_masked(command: Command, words: list[str]) -> None:
    ran = command(*(word.replace("URL", "s3://user:SECRET@bucket") for word in words))
    assert ran.status == 2 and "SECRET" not in ran.out + ran.err
    assert "s3://***@bucket" in ran.err


def test_a_long_path_beside_the_progress_bar(
    url: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is shown, which may begin behind the "://" of the URL."""
    labels: list[str] = []

    class Progress(progress.Progress):
        def __init__(self, what: str, *, quiet: bool = False) -> None:
            super().__init__(what, quiet=quiet)
            labels.append(self._what)

    monkeypatch.setattr(verify, "Progress", Progress)
    for length in range(30):
        command("verify", f"{url}/m-0", f"{url}/m-1{'0' * length}")
    assert len(labels) == 60 and not any("RET" in label for label in labels), labels


def test_path_text() -> None:
    assert text.path("s3://key:word@b/m\n") == r"s3://***@b/m\n"
    assert text.path("runs/\x1b") == r"runs/\x1b"
