# SPDX-License-Identifier: Apache-2.0
"""Every call that copies a checkpoint looks whether the slices of its tensors cover them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt.cli import main

W = np.arange(12, dtype=np.float32).reshape(4, 3)
# By case, the slices of the tensor in each part, and the rows that are missing.
CASES: dict[str, tuple[list[tuple[int, int]], str]] = {
    "complete": ([(0, 2), (2, 4)], ""),
    "one slice missing": ([(0, 2)], "2:4"),
    "middle rows missing": ([(0, 1), (3, 4)], "1:3"),
    "first row missing": ([(1, 3), (3, 4)], "0:1"),
}


def parts(folder: Path, slices: Iterable[tuple[int, int]]) -> list[str]:
    made = []
    for number, (first, end) in enumerate(slices):
        made.append(str(folder / f"part-{number}"))
        with ckptfmt.Writer(made[-1]) as writer:
            writer.add(f"own{number}", np.ones(2))
            for name in ("v", "w"):
                writer.add_slice(name, W[first:end], W.shape, (first, 0))
    return made


Door = Callable[[list[str], str, str], Any]
# What refuses: called with parts, the checkpoint that they make, and a destination.
REFUSING: dict[str, Door] = {
    "merge": lambda parts, _, out: ckptfmt.merge(parts, out),
    "merge consume": lambda parts, _, out: ckptfmt.merge(parts, out, inputs="consume"),
    "edit": lambda _, whole, out: ckptfmt.editing.edit(whole, out, rename={"own0": "x"}),
    "edit, dry": lambda _, whole, out: ckptfmt.editing.edit(
        whole, out, rename={"own0": "x"}, dry_run=True
    ),
    "edit metadata": lambda _, whole, out: ckptfmt.editing.edit(whole, out, metadata={"a": 1}),
    "edit cast": lambda _, whole, out: ckptfmt.editing.edit(whole, out, cast={"w": "float64"}),
    "convert": lambda _, whole, out: ckptfmt.convert(whole, out, to="tensorflow"),
    "convert to npz": lambda _, whole, out: ckptfmt.convert(whole, out + ".npz"),
    "average": lambda _, whole, out: ckptfmt.editing.average([whole, whole], out),
    "average, dry": lambda _, whole, out: ckptfmt.editing.average(
        [whole, whole], out, dry_run=True
    ),
    "load": lambda _, whole, out: ckptfmt.load(whole),
}
COMMANDS: dict[str, tuple[list[str], int]] = {
    "merge": (["merge", "PARTS", "OUT"], 1),
    "merge --partial": (["merge", "--partial", "PARTS", "OUT"], 0),
    "edit": (["edit", "WHOLE", "OUT", "--rename", "own0=x"], 1),
    "convert": (["convert", "WHOLE", "OUT"], 1),
    "average": (["average", "WHOLE", "WHOLE", "OUT"], 1),
    "cp": (["cp", "WHOLE", "OUT"], 0),
    "mv": (["mv", "WHOLE", "OUT"], 0),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("door", REFUSING)
def test_who_copies_looks(case: str, door: str, tmp_path: Path) -> None:
    slices, missing = CASES[case]
    made, whole = parts(tmp_path, slices), str(tmp_path / "whole")
    ckptfmt.merge(made, whole, partial=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "out").mkdir()
    if not missing:
        REFUSING[door](made, whole, str(tmp_path / "out/x"))
        return
    with pytest.raises(ckptfmt.CorruptError, match="another part was not merged") as caught:
        REFUSING[door](made, whole, str(tmp_path / "out/x"))
    assert (caught.value.failure, caught.value.tensor) == ("BAD_SLICE", "v")
    assert f"of the 12 elements are missing, the first in [{missing}]" in str(caught.value)
    # No result of a merge exists that `rescue` could read.
    assert bool(caught.value.__notes__) != door.startswith("merge")
    assert door in ("load", "convert to npz") or "1 more tensor" in str(caught.value)
    assert not os.listdir(tmp_path / "out")
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert after == before


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", COMMANDS)
def test_commands(case: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slices, missing = CASES[case]
    made, whole, out = parts(tmp_path, slices), str(tmp_path / "whole"), str(tmp_path / "out")
    ckptfmt.merge(made, whole, partial=True)
    given = {"PARTS": made, "WHOLE": [whole], "OUT": [out]}
    words, status = COMMANDS[name]
    arguments = [one for word in words for one in given.get(word, [word])]
    assert main(arguments) == (status if missing else 0)
    said = capsys.readouterr().err
    assert ("elements are missing" in said) == (bool(missing) and (status == 1 or name == "cp"))
    assert Path(f"{out}.index").exists() == (not missing or status == 0)


def test_what_is_exempt(tmp_path: Path) -> None:
    """TensorFlow's merge, and edits that drop the tensors."""
    made = parts(tmp_path, [(0, 2)])
    ckptfmt.merge(made, tmp_path / "whole", partial=True)
    ckptfmt.editing.edit(tmp_path / "whole", tmp_path / "a", drop=["v", "w"], drop_weights=True)
    assert list(ckptfmt.load(tmp_path / "a")) == ["own0"]
    ckptfmt.merge_v2_checkpoints(made, tmp_path / "b")
    with ckptfmt.open(tmp_path / "b") as reader:
        assert np.array_equal(reader["w"][:2], W[:2])
