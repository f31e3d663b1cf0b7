# SPDX-License-Identifier: Apache-2.0
"""Sharing work among threads. The standard library's pools accept no work while the interpreter
exits, when a background save may still be writing."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable


class StoppedError(Exception):
    """Raised by work that stops because other work failed."""


class Stop:
    """A request to stop shared work. Not an Event: Ctrl-C can leave an Event's lock taken.

    Attributes:
        asked: set to True by any thread, at any time.
    """

    asked = False


def thread_count(most: int) -> int:
    """Return the number of processors available to this process, at most `most`."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return min(len(os.sched_getaffinity(0)), most)
    return min(os.cpu_count() or 1, most)


def share(count: int, work: Callable[[int], None], threads_max: int, name: str, stop: Stop) -> None:
    """Call `work(index)` for each index below `count`, in this thread and others.

    Args:
        count: number of calls.
        work: called in ascending order of its index.
        threads_max: maximum number of threads, this one included.
        name: name of the other threads.
        stop: set after a failure: indices not yet started are skipped. Long work may check it and
            raise StoppedError.

    Raises:
        The exception of the lowest index that failed; Ctrl-C takes precedence.
    """
    rows, lock = iter(range(count)), threading.RLock()
    # Take the lock itself: entering a Condition runs Python code, which Ctrl-C can leave with the
    # lock taken.
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
    # Even after an interrupt: the caller's memory is in use until the other threads are done.
    while (error := _waited(running, threads, lock, changed)) is not None:
        interrupt = interrupt or error
        stop.asked = True
    if interrupt is not None:
        raise interrupt
    found = [errors[row] for row in sorted(errors)]
    # Ctrl-C first.
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
