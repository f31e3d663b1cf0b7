# SPDX-License-Identifier: Apache-2.0
"""Files that users copy, move and rename in a directory while managers save there and sweep it:
none is lost (CMT-15)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.manager import Checkpoint, files

import ckptfmt
from ckptfmt.manager.manager import CheckpointManager

Move = Callable[[Path, Path], object]
MOVES: dict[str, Move] = {"copy": shutil.copyfile, "preserve": shutil.copy2, "move": os.rename}


@pytest.fixture
def manager(tmp_path: Path) -> CheckpointManager:
    """One that has saved checkpoints."""
    manager = CheckpointManager(
        Checkpoint(), tmp_path / "d", 2, options=ckptfmt.tf.CheckpointOptions(durability="none")
    )
    for _ in range(3):
        manager.save()
    return manager


def elsewhere(tmp_path: Path, name: str, shards: int) -> list[Path]:
    """The files of a checkpoint of the user's, data first, index last."""
    for _ in range(shards):  # each generation has another number of data files
        ckptfmt.save(tmp_path / "far" / name, {"x": [7], "y": [8]}, durability="none")
    return sorted((tmp_path / "far").iterdir())


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("how", MOVES)
@pytest.mark.parametrize("name", ["ckpt-1", "ckpt-3", "ckpt-900"])
def test_a_checkpoint_that_comes_file_by_file(
    tmp_path: Path, manager: CheckpointManager, name: str, how: str, shards: int
) -> None:
    """One that was removed, one that is there, and a new one; with saves between the files."""
    place = tmp_path / "d"
    for source in elsewhere(tmp_path, name, shards):
        content = source.read_bytes()
        MOVES[how](source, place / source.name)
        for _ in range(2):
            manager.save()
            manager.save(4)  # one in the place of another, and of the one before
        # Of its own checkpoints the manager removes what it has to, under their names.
        if name != "ckpt-3":
            assert (place / source.name).read_bytes() == content
    if name != "ckpt-3":
        assert ckptfmt.load(place / name)["x"] == [7]


@pytest.mark.parametrize("how", MOVES)
def test_a_checkpoint_that_is_replaced_file_by_file(
    tmp_path: Path, manager: CheckpointManager, how: str
) -> None:
    """One with as many data files as that which it replaces, and one with another number."""
    place = tmp_path / "d"
    for shards in (1, 2):
        ckptfmt.save(place / "ckpt-900", {"x": [1], "y": [2]}, durability="none")
        for source in elsewhere(tmp_path, "ckpt-900", shards):
            MOVES[how](source, place / source.name)
            manager.save()
        assert ckptfmt.load(place / "ckpt-900")["x"] == [7]
        shutil.rmtree(tmp_path / "far")


def test_an_index_that_is_away_for_a_moment(tmp_path: Path) -> None:
    place = tmp_path / "d"
    manager = CheckpointManager(
        Checkpoint(), place, None, options=ckptfmt.tf.CheckpointOptions(durability="none")
    )
    for _ in range(3):
        manager.save()
    ckptfmt.save(place / "ckpt-900", {"x": [1]}, durability="none")
    for name in ("ckpt-900", "ckpt-3"):
        index, away = place / f"{name}.index", place / f"{name}.bak"
        before = [one for one in files(place) if one.startswith(f"{name}.data")]
        assert before != []
        index.rename(away)
        for _ in range(3):
            manager.save()
        CheckpointManager(
            Checkpoint(), place, None, options=ckptfmt.tf.CheckpointOptions(durability="none")
        ).save(10**6)
        assert set(before) <= set(files(place))
        away.rename(index)
        assert ckptfmt.verify(place / name).ok


def test_data_files_that_lie_there(tmp_path: Path, manager: CheckpointManager) -> None:
    """Regardless of their age and names."""
    place = tmp_path / "d"
    mine = [f"ckpt-{n}.data-00000-of-0000{n}" for n in (1, 7, 9)]
    mine += ["ckpt-8.merge-intent"]
    for name in mine:
        (place / name).touch()
        os.utime(place / name, (0, 0))
    ckptfmt.save(place / "ckpt-7", {"x": [1]}, durability="none")
    for _ in range(3):
        manager.save()
    assert set(mine) <= set(files(place))
