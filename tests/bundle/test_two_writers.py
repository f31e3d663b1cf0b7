# SPDX-License-Identifier: Apache-2.0
"""Writers beside other writers, and beside files that are not theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ckptfmt


def test_two_writers_over_an_index_without_data(tmp_path: Path) -> None:
    """The number of data files that an index claims is taken, even where they are missing: both
    writers must not come to use it, the one under the eyes of the index, the other in its place.
    """
    prefix = tmp_path / "m"
    ckptfmt.save(prefix, {"old": [1]})
    (tmp_path / "m.data-00000-of-00001").unlink()
    first, second = ckptfmt.Writer(prefix), ckptfmt.Writer(prefix)
    first.add("x", [1])
    second.add("x", [2])
    first.commit()
    assert ckptfmt.load(prefix)["x"] == [1]
    second.commit()
    assert ckptfmt.load(prefix)["x"] == [2]
    assert ckptfmt.verify(prefix).ok


def test_a_data_file_that_is_gone_at_commit(tmp_path: Path) -> None:
    """What was written is looked at once more before the old checkpoint is replaced."""
    ckptfmt.save(tmp_path / "m", {"x": [1]})
    program = """
import os, sys, threading, ckptfmt
prefix = sys.argv[1]
lock = os.open(os.path.dirname(prefix), os.O_RDONLY)
import fcntl
writer = ckptfmt.Writer(prefix)
writer.add("x", [2])
fcntl.flock(lock, fcntl.LOCK_EX)
failed = []
def commit():
    try:
        writer.commit()
    except ckptfmt.errors.BusyError as error:
        failed.append(str(error))
thread = threading.Thread(target=commit)
thread.start()
name = prefix + ".data-00000-of-00002"
while not os.path.exists(name):
    pass
os.unlink(name)
fcntl.flock(lock, fcntl.LOCK_UN)
thread.join()
assert len(failed) == 1 and "CMT-7" in failed[0], failed
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "m")], check=True)
    assert ckptfmt.load(tmp_path / "m")["x"] == [1]


def test_only_names_that_a_writer_gives_are_removed(tmp_path: Path) -> None:
    """Beside the data files of the old generation stand others that are spelled otherwise, or whose
    number is above their count. They belong to other writers."""
    prefix = tmp_path / "m"
    ckptfmt.save(prefix, {"x": [1]})
    foreign = ["m.data-00001-of-00001", "m.data-000000-of-00001", "m.data-00000-of-000001"]
    for name in foreign:
        (tmp_path / name).write_bytes(b"mine")
    ckptfmt.save(prefix, {"x": [2]})
    assert not (tmp_path / "m.data-00000-of-00001").exists()
    assert all((tmp_path / name).read_bytes() == b"mine" for name in foreign)
