# SPDX-License-Identifier: Apache-2.0
"""Merges into destinations whose names are taken by files, links, directories or FIFOs: the result
has the values of the inputs, or the call fails and the inputs are whole."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckptfmt
from ckptfmt import CkptfmtError

INDEX = "dst/m.index"
FIRST = "dst/m.data-00000-of-00001"

MODES: dict[str, Callable[[list[Path], Path], None]] = {
    "keep": lambda sources, target: ckptfmt.merge(sources, target, durability="none"),
    "consume": lambda sources, target: ckptfmt.merge(
        sources, target, inputs="consume", durability="none"
    ),
    "v2": ckptfmt.merge_v2_checkpoints,
    "v2, without directories": lambda sources, target: ckptfmt.merge_v2_checkpoints(
        sources, target, delete_old_dirs=False
    ),
}


def symlink(path: Path, to: Path) -> None:
    path.symlink_to(os.path.relpath(to, path.parent))


# Each makes an entry at `path`. `source` is the file that the merge would put there; `other`
# the same of a checkpoint that takes no part; `own` has the bytes of an older file.
KINDS: dict[str, Callable[[Path, Path, Path, bytes], Any]] = {
    "absent": lambda path, source, other, own: None,
    "file": lambda path, source, other, own: path.write_bytes(own),
    "empty file": lambda path, source, other, own: path.write_bytes(b""),
    "symlink to the source": lambda path, source, other, own: symlink(path, source),
    "hard link to the source": lambda path, source, other, own: path.hardlink_to(source),
    "symlink to another": lambda path, source, other, own: symlink(path, other),
    "hard link to another": lambda path, source, other, own: path.hardlink_to(other),
    "dangling symlink": lambda path, source, other, own: path.symlink_to("nothing"),
    "directory": lambda path, source, other, own: path.mkdir(),
    "FIFO": lambda path, source, other, own: os.mkfifo(path),
}

# Those that are tried with each other at two data files.
PAIRED = ["absent", "file", "symlink to the source", "hard link to the source", "directory", "FIFO"]


def values(prefix: Path) -> dict[str, list[float]] | None:
    try:
        return {name: array.tolist() for name, array in ckptfmt.load(prefix).items()}
    except (CkptfmtError, OSError):
        return None


def save(prefix: Path, name: str, value: float) -> None:
    ckptfmt.save(prefix, {name: [value] * 5}, durability="none")


def stage(root: Path, count: int) -> list[Path]:
    """Make `count` inputs, the other checkpoint, and an empty directory for the destination."""
    shutil.rmtree(root, ignore_errors=True)
    sources = [root / f"src{number}" / "s" for number in range(count)]
    for number, source in enumerate(sources):
        save(source, f"x{number}", number)
    save(root / "other" / "o", "other", 7)
    save(root / "old" / "m", "old", 8)
    (root / "dst").mkdir()
    return sources


def place(root: Path, name: str, kind: str, source: Path) -> None:
    """Make the entry `name` of the destination."""
    end = "index" if name == INDEX else "data-00000-of-00001"
    own = (root / f"old/m.{end}").read_bytes()
    KINDS[kind](root / name, source.with_name(f"s.{end}"), root / f"other/o.{end}", own)


def check(root: Path, sources: list[Path], mode: str) -> bool:
    """Merge, check that no tensor is lost, and return whether the merge was done."""
    before = values(root / "dst/m")
    whole = {f"x{number}": [float(number)] * 5 for number in range(len(sources))}
    try:
        MODES[mode](sources, root / "dst" / "m")
        done = True
    except CkptfmtError:
        done = False
    if done:
        assert values(root / "dst/m") == whole
        assert ckptfmt.verify(root / "dst/m").ok
    else:
        assert values(root / "dst/m") == before
    if mode == "keep" or not done:
        for number, source in enumerate(sources):
            assert values(source) == {f"x{number}": [float(number)] * 5}
    else:
        assert not any(source.with_name("s.index").exists() for source in sources)
    assert values(root / "other/o") == {"other": [7.0] * 5}
    return done


def drawn(every: list[Any], count: int, *seed: object) -> list[Any]:
    return random.Random(str(seed)).sample(every, min(count, len(every)))


@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("index", KINDS)
def test_one_data_file(tmp_path: Path, seed: int, index: str, mode: str, count: int) -> None:
    for data in drawn(list(KINDS), count, seed, index, mode):
        sources = stage(tmp_path / "t", 1)
        place(tmp_path / "t", INDEX, index, sources[0])
        place(tmp_path / "t", FIRST, data, sources[0])
        done = check(tmp_path / "t", sources, mode)
        # An index that is a link to the input's makes the destination the input.
        assert done == (index not in ("directory", "symlink to the source")), data


@pytest.mark.parametrize("count", [9, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("old", [False, True])
def test_two_data_files(tmp_path: Path, seed: int, old: bool, mode: str, count: int) -> None:
    """With an older checkpoint of one data file the names may be those of a killed merge."""
    every = list(itertools.product(PAIRED, repeat=2))
    for kinds in drawn(every, count, seed, old, mode):
        sources = stage(tmp_path / "t", 2)
        if old:
            place(tmp_path / "t", INDEX, "file", sources[0])
            place(tmp_path / "t", FIRST, "file", sources[0])
        for number, kind in enumerate(kinds):
            name = f"dst/m.data-{number:05d}-of-00002"
            place(tmp_path / "t", name, kind, sources[number])
        assert check(tmp_path / "t", sources, mode), kinds


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_placeholder(tmp_path: Path, kind: str, mode: str) -> None:
    """One input replaces a checkpoint of one data file: the second data file is empty."""
    sources = stage(tmp_path / "t", 1)
    place(tmp_path / "t", INDEX, "file", sources[0])
    place(tmp_path / "t", FIRST, "file", sources[0])
    place(tmp_path / "t", "dst/m.data-00001-of-00002", kind, sources[0])
    assert check(tmp_path / "t", sources, mode)


@pytest.mark.parametrize("mode", MODES)
def test_links_from_the_source(tmp_path: Path, mode: str) -> None:
    """The input's data file may be a link to the destination's, or to a third file."""
    for where in (FIRST, "dst/elsewhere"):
        (source,) = stage(tmp_path / "t", 1)
        data = source.with_name("s.data-00000-of-00001")
        data.rename(tmp_path / "t" / where)
        symlink(data, tmp_path / "t" / where)
        assert check(tmp_path / "t", [source], mode)
