# SPDX-License-Identifier: Apache-2.0
"""Sharing work among threads of its own: a pool of the standard library takes no work while the
interpreter exits, which is when a background save may still be writing."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

__all__ = ["Stop", "StoppedError", "share", "thread_count"]


class StoppedError(Exception):
    """What work raises that has noticed that other work failed."""


class Stop:
    """Whether work that is shared should end. No Event: Ctrl-C can leave the lock of one taken.

    Attributes:
        asked: set to True, by anybody, at any time.
    """

    asked = False


def thread_count(most: int) -> int:
    """As many threads as there are processors for this process, up to `most`."""
    return min(len(os.sched_getaffinity(0)), most)


def share(count: int, work: Callable[[int], None], threads_max: int, name: str, stop: Stop) -> None:
    """Calls `work` with each row, 0 to `count - 1`, in some threads at once, of which this is one,
    and returns when none works any more.

    Args:
        count: how many there are.
        work: what is called; in the order of rows, as far as threads have an order.
        threads_max: the most threads, this one included.
        name: of the other threads.
        stop: called after a failure: rows not yet started are skipped, and work
            that takes long may look at it and raise StoppedError.

    Raises:
        What `work` raised, that of the first row of those that failed; Ctrl-C before all else.
    """
    rows, lock = iter(range(count)), threading.RLock()
    # What is held is the lock: the condition as such is entered by a function of Python, which
    # Ctrl-C can leave with the lock taken.
    changed = threading.Condition(lock)
    errors: dict[int, BaseException] = {}
    running: set[int] = set()

    def take() -> None:
        while not stop.asked:
            with lock:
                row = next(rows, None)
            if row is None:
                return
            try:
                work(row)
            except BaseException as error:
                errors[row] = error
                stop.asked = True

    def run() -> None:
        with lock:
            if stop.asked:
                return
            running.add(threading.get_ident())
        try:
            take()
        finally:
            with lock:
                running.discard(threading.get_ident())
                changed.notify_all()

    threads: list[threading.Thread] = []
    interrupt: BaseException | None = None
    try:
        for _ in range(min(count, threads_max) - 1):
            thread = threading.Thread(target=run, name=name)
            with contextlib.suppress(RuntimeError):  # the system has no more
                thread.start()
                threads.append(thread)
        take()
    except BaseException as raised:
        interrupt = raised
        stop.asked = True
    # Interrupted or not: what the others work on is not the caller's before they are done.
    while (error := _waited(running, threads, lock, changed)) is not None:
        interrupt = interrupt or error
        stop.asked = True
    if interrupt is not None:
        raise interrupt
    found = [errors[row] for row in sorted(errors)]
    # Ctrl-C was no fault of a row.
    for error in sorted(found, key=lambda one: isinstance(one, Exception)):
        if not isinstance(error, StoppedError):
            raise error


def _waited(
    running: set[int],
    threads: list[threading.Thread],
    lock: threading.RLock,
    changed: threading.Condition,
) -> BaseException | None:
    """Wait until all threads are done; return the exception that interrupted the wait, if any."""
    try:
        with lock:
            while running:
                changed.wait()
        for thread in threads:
            thread.join()
    except BaseException as error:
        return error
    return None
