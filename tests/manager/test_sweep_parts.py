# SPDX-License-Identifier: Apache-2.0
"""The parts of a sharded save, of which one process is alive: all parts stay until it has ended."""

from __future__ import annotations

from pathlib import Path

import ckptfmt
from ckptfmt.files.local_folder import LocalFolder
from ckptfmt.files.temporary import LOCK_NAME


def test_parts_of_others_stay_while_one_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ckpt-1_temp_a123456789abcdef"
    path.mkdir()
    (path / LOCK_NAME).touch()
    ckptfmt.save(path / "part-00000-of-00003", {"x": [1]}, durability="none")
    with LocalFolder(str(tmp_path), durability="none").opened() as directory:
        with ckptfmt.Writer(path / "part-00001-of-00003", durability="none") as writer:
            writer.add("y", [2])
            # Whether a directory lists its oldest or its latest file first, one comes before this.
            ckptfmt.save(path / "part-00002-of-00003", {"z": [3]}, durability="none")
            before = sorted(one.name for one in path.iterdir())
            assert len(before) > 3
            assert directory.sweep() == []
            assert sorted(one.name for one in path.iterdir()) == before
        assert directory.sweep() == [path.name]
    assert not path.exists()
