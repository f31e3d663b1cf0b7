# SPDX-License-Identifier: Apache-2.0
"""Sharing work among threads: order, errors, and interrupts at bad moments."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
from support.background import PATIENCE

from ckptfmt._base import background
from ckptfmt._base.threads import Stop, StoppedError, share


def test_every_row_once() -> None:
    done: list[int] = []
    share(100, done.append, 4, "some", Stop())
    assert sorted(done) == list(range(100))
    assert not [one for one in threading.enumerate() if one.name == "some"]


def test_the_first_error_by_row() -> None:
    both = threading.Barrier(2)

    def work(row: int) -> None:
        if row < 2:
            both.wait(PATIENCE)
            raise ValueError(row)
        raise AssertionError

    stop = Stop()
    with pytest.raises(ValueError, match=r"^0$"):
        share(2, work, 2, "some", stop)
    assert stop.asked

    def stopped(_row: int) -> None:
        raise StoppedError

    share(1, stopped, 2, "some", Stop())


def test_interrupts_wait_for_the_others() -> None:
    """Ctrl-C repeatedly: worker threads may still use what the interrupted caller releases."""
    at_work, returned, stop = threading.Event(), threading.Event(), Stop()
    interrupted = threading.Event()
    caller = threading.current_thread()
    left: list[int] = []

    def work(row: int) -> None:
        if threading.current_thread() is caller:
            assert at_work.wait(PATIENCE)
            interrupted.set()
            signal.raise_signal(signal.SIGINT)
        at_work.set()
        assert interrupted.wait(PATIENCE)
        for _ in range(3):
            signal.pthread_kill(caller.ident or 0, signal.SIGINT)
        assert not returned.wait(0.2)
        left.append(row)

    with pytest.raises(KeyboardInterrupt):
        share(2, work, 2, "some", stop)
    returned.set()
    assert len(left) == 1
    share(1, lambda _row: None, 2, "some", Stop())


def test_an_interrupt_while_a_thread_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    real, rows = threading.Thread.start, list[int]()
    started: list[threading.Thread] = []
    never = threading.Event()

    def start(self: threading.Thread) -> None:
        real(self)
        started.append(self)
        raise KeyboardInterrupt

    def work(row: int) -> None:
        never.wait(0.2)  # who does not wait for this has returned then
        rows.append(row)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            share(5, work, 2, "some", Stop())
    seen = list(rows)
    started[0].join(PATIENCE)
    assert rows == seen


def test_ctrl_c_leaves_no_lock_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition is entered by a function of Python: an interrupt at its end comes with the lock
    taken. (Of what the standard library does with its own there is nothing to be said here.)"""
    real, own = threading.Condition.__enter__, threading.Condition
    made: list[threading.Condition] = []

    class Watched(own):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

        def __enter__(self) -> bool:
            entered.append(self)
            return real(self)

    entered: list[threading.Condition] = []
    future = background.SaveFuture("x")
    monkeypatch.setattr(threading, "Condition", Watched)
    share(3, lambda _row: None, 1, "some", Stop())
    queue = background._Queue()
    queue.wait()
    queue.enter(future)
    queue.hand_over(threading.get_ident())
    assert queue.take_over(future)
    queue.leave()
    assert len(made) >= 2
    assert not entered
