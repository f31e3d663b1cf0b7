# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in the middle of a save: the temporary files are removed, the old checkpoint stays, and no
lock is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from support.forking import in_child

import ckptfmt
from ckptfmt import _core

# However late the signal comes, it meets a writer that is open, and no disk gets full.
PROGRAM = """
import sys, time, numpy as np, ckptfmt
value = np.zeros(1 << 20, np.uint8)
with ckptfmt.Writer(sys.argv[1], durability="none") as writer:
    for i in range(400):
        writer.add(f"t{i}", value)
        if i == 3:
            print("writing", flush=True)
    while True:
        time.sleep(0.01)
"""


def interrupted(prefix: Path, number: int) -> int:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(prefix)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"writing\n"
        time.sleep(0.05)
        child.send_signal(number)
        return child.wait(600)


@pytest.mark.parametrize("old", [False, True])
def test_interrupt(tmp_path: Path, old: bool) -> None:
    prefix = tmp_path / "ck"
    if old:
        ckptfmt.save(prefix, {"x": np.arange(3)})
    before = sorted(path.name for path in tmp_path.iterdir())
    assert interrupted(prefix, signal.SIGINT) == -signal.SIGINT
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    if old:
        assert ckptfmt.load(prefix)["x"].tolist() == [0, 1, 2]


def test_kill_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    prefix = tmp_path / "ck"
    ckptfmt.save(prefix, {"x": np.arange(3)})
    assert interrupted(prefix, signal.SIGKILL) == -signal.SIGKILL
    assert ckptfmt.load(prefix)["x"].tolist() == [0, 1, 2]
    report = ckptfmt.verify(prefix)
    assert report.ok and any("tempstate" in str(finding.path) for finding in report.notes)
    ckptfmt.save(prefix, {"x": np.arange(4)})
    assert ckptfmt.load(prefix)["x"].tolist() == [0, 1, 2, 3]
    assert not ckptfmt.verify(prefix).notes


class Interrupt(BaseException):
    """What Ctrl-C raises, but at a place of our choice."""


def interrupt_at(number: int, work: Any) -> bool:
    """Run `work`, interrupted where a signal may arrive: at the number-th function that the Python
    layer over C enters, or that returns to it. Return whether it was interrupted. The garbage of
    earlier tests is not collected meanwhile: its finalizers would be interrupted instead."""
    border, count = os.path.dirname(_core.__file__), 0

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        ours = frame.f_code.co_filename.startswith(border)
        count += ours and event in ("call", "c_return")
        if ours and count == number:
            sys.setprofile(None)
            raise Interrupt

    gc.disable()
    sys.setprofile(look)
    try:
        work()
    except Interrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


def test_interrupted_while_opening_nothing_is_left(tmp_path: Path) -> None:
    """No temporary file, with the lock and the descriptor that belong to it."""
    ckptfmt.Writer(tmp_path / "ck").abandon()  # loads what it needs
    number, interrupted = 0, True
    descriptors = os.listdir("/proc/self/fd")
    opened: list[ckptfmt.Writer] = []
    while interrupted:
        number += 1
        interrupted = interrupt_at(number, lambda: opened.append(ckptfmt.Writer(tmp_path / "ck")))
        while opened:
            opened.pop().abandon()
        assert not os.listdir(tmp_path), number
        assert os.listdir("/proc/self/fd") == descriptors, number
    assert number > 5


def test_what_progress_raises_ends_verify(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"x": np.zeros(4 << 20, np.uint8)}, durability="none")
    reports: list[int] = []

    def progress(done: int, _total: int) -> None:
        reports.append(done)
        if done > 2 << 20:
            raise Interrupt

    with pytest.raises(Interrupt):
        ckptfmt.verify(tmp_path / "ck", progress=progress)
    assert 2 << 20 < reports[-1] < 4 << 20
    assert ckptfmt.verify(tmp_path / "ck").bytes_checked > 4 << 20


def test_interrupted_anywhere_nothing_stays_locked(tmp_path: Path) -> None:
    array, number, interrupted = np.arange(3), 0, True
    while interrupted:
        number += 1
        writer = ckptfmt.Writer(tmp_path / "ck", durability="none")
        handle = writer._open_handle()
        interrupted = interrupt_at(number, lambda to=writer: to.add("x", array))
        assert not handle._lock._is_owned()
        writer.abandon()
        assert handle.closed
    assert number > 5


@pytest.mark.parametrize("method", ["abandon", "commit"])
def test_a_handler_ends_a_writer_in_the_middle_of_a_call(tmp_path: Path, method: str) -> None:
    """A codec runs Python in the middle of an add, and with it signal handlers."""

    def child() -> None:
        writer = ckptfmt.Writer(tmp_path / "ck", level="ckptfmt", compression="zstd")

        def handler(_number: int, _frame: FrameType | None) -> None:
            with contextlib.suppress(ckptfmt.CkptfmtError):
                getattr(writer, method)()

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        value = np.arange(1 << 22, dtype=np.int32)
        with contextlib.suppress(ckptfmt.CkptfmtError):
            for number in range(50):
                writer.add(f"t{number}", value)
        signal.setitimer(signal.ITIMER_REAL, 0)
        writer.abandon()

    # In a child: freeing a writer that C is using ends the process.
    assert in_child(child) == 0
