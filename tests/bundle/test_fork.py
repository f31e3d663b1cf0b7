# SPDX-License-Identifier: Apache-2.0
"""What a forked child may do with what its parent opened: read, and leave writers alone."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forking import in_child
from support.process import open_files

import ckptfmt
from ckptfmt._core import reading


def test_reader_reopens_in_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a relative path after a change of directory, and for handles of the parent."""
    ckptfmt.save(tmp_path / "ck", {"x": np.arange(10), "y": np.ones((3, 2))})
    monkeypatch.chdir(tmp_path)
    with ckptfmt.open("ck") as reader:
        handle, names = reader["x"], list(reader)

        def child() -> None:
            os.chdir("/")
            before = open_files()
            with ThreadPoolExecutor(4) as pool:
                assert all(pool.map(lambda _: handle.read()[9] == 9, range(20)))
            assert handle[1:3].tolist() == [1, 2]
            assert list(reader) == names and reader.read("y").shape == (3, 2)
            assert handle.map()[3] == 3
            reader.close()
            assert open_files() == before
            with pytest.raises(ckptfmt.InvalidError, match="closed"):
                handle.read()

        assert in_child(child) == 0
        assert handle.read().tolist() == list(range(10))


def test_reader_of_a_replaced_checkpoint_does_not_reopen(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"x": np.arange(10)})
    with ckptfmt.open(tmp_path / "ck") as reader:
        handle = reader["x"]
        ckptfmt.save(tmp_path / "ck", {"x": np.arange(20)})

        def child() -> None:
            for use in (
                handle.read,
                lambda: handle[1:2],
                lambda: reader["x"],
                lambda: list(reader),
            ):
                with pytest.raises(ckptfmt.errors.GenerationGoneError):
                    use()

        assert in_child(child) == 0
        assert handle.read().tolist() == list(range(10))


def test_writer_of_the_parent_is_left_alone(tmp_path: Path) -> None:
    writer = ckptfmt.Writer(tmp_path / "ck")
    writer.add("x", np.arange(3))

    def child() -> None:
        try:
            writer.add("y", np.arange(3))
        except ckptfmt.InvalidError:
            pass
        else:
            raise AssertionError("the child used the parent's writer")
        writer.abandon()  # frees nothing of the parent's, removes no file

    assert in_child(child) == 0
    writer.commit()
    assert ckptfmt.load(tmp_path / "ck")["x"].tolist() == [0, 1, 2]


IMPORTING = """
import os, threading
def come():
    import ckptfmt.files.temporary
os.register_at_fork(before=come)
pid = os.fork()
from ckptfmt.files.temporary import OwnDescriptor
def work():
    OwnDescriptor(lambda: os.open("/", os.O_RDONLY)).close()
thread = threading.Thread(target=work, daemon=True)
thread.start()
thread.join(600)
if pid == 0:
    os._exit(int(thread.is_alive()))
assert os.waitpid(pid, 0)[1] == 0 and not thread.is_alive()
"""


def test_an_import_while_another_thread_forks() -> None:
    """The module's function for after a fork is called then, and that for before it was not."""
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_what_is_remembered_needs_no_thread_of_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one object, which another thread was just working out, and the child asks of another."""
    ckptfmt.save(tmp_path / "ck", {"x": np.arange(10)})
    taken, over, array_at = threading.Event(), threading.Event(), reading.array_at

    def slow(*arguments: Any) -> Any:
        if threading.current_thread() is thread:
            taken.set()
            over.wait(600)
        return array_at(*arguments)

    def child() -> None:
        signal.alarm(600)
        assert ckptfmt.load(tmp_path / "ck")["x"][9] == 9

    monkeypatch.setattr(reading, "array_at", slow)
    thread = threading.Thread(target=ckptfmt.load, args=(tmp_path / "ck",))
    thread.start()
    assert taken.wait(600)
    try:
        assert in_child(child) == 0
    finally:
        over.set()
        thread.join()


def test_a_child_keeps_no_lock_of_a_killed_parent(tmp_path: Path) -> None:
    """A child forked while the parent saves outlives it. The parent's files can be swept."""
    ready, said = os.pipe()
    stop, stopper = os.pipe()

    def parent() -> None:
        writer = ckptfmt.Writer(tmp_path / "ck")
        writer.add("x", np.zeros(1000))
        child = os.fork()
        if child == 0:
            links = [
                os.readlink(f"/proc/self/fd/{fd}")
                for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")
            ]
            os.write(said, b"kept" if any(str(tmp_path) in link for link in links) else b"none")
            os.close(stopper)
            os.read(stop, 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(parent) == -signal.SIGKILL
    try:
        assert os.read(ready, 4) == b"none"
        (orphan,) = tmp_path.iterdir()
        with orphan.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # what a sweep of the directory takes
        ckptfmt.save(tmp_path / "ck", {"x": np.ones(3)})
        assert ckptfmt.load(tmp_path / "ck")["x"].tolist() == [1, 1, 1]
    finally:
        for fd in (ready, said, stop, stopper):
            os.close(fd)
