# SPDX-License-Identifier: Apache-2.0
"""The line that saves stand in: one at a time is written in the background of a process, and those
that are not wait for it.

A background save has a thread of its own that ends with it. It is no daemon: an interpreter that
exits, also by an exception or `sys.exit`, waits for it. A forked child has neither the thread nor
the save.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from ckptfmt._core import Memory
from ckptfmt.errors import InvalidError

__all__ = ["Line", "SaveFuture", "wait_for_saves"]

Work = Callable[[], None]

# A handler of signals that waits may run between a look at whose turn it is and the wait that
# follows, and hear what was meant for that one.
RECHECK_SECONDS = 0.5


class SaveFuture(Future[str]):
    """A save that goes on in the background. `result()` is the prefix, once the checkpoint is in
    place; a save cannot be cancelled.

    If no caller asks for the error by `result` or `exception`, the next save of the same saver
    raises it too; without such a save it is logged. It never affects a restore or another save.

    Attributes:
        prefix: of the checkpoint, known at once; `os.fspath` gives it too.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._heard = False  # somebody knows of the error
        self._asking = 0  # how many wait to hear of it
        self._unwanted = False
        self.set_running_or_notify_cancel()

    def __fspath__(self) -> str:
        return self.prefix

    def result(self, timeout: float | None = None) -> str:
        """The prefix, once the checkpoint is in place; raises what ended the save.

        Raises:
            TimeoutError: it was not over after so many seconds.
            InvalidError: this is a callback of the save, or a forked child, and the save was not
                over before.
        """
        with self._hearing():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What ended the save, once it is over; None if the checkpoint is in place.

        Raises:
            TimeoutError, InvalidError: as `result`.
        """
        with self._hearing():
            return super().exception(timeout)

    def know(self) -> None:
        """Whoever began the save knows of its error already."""
        self._heard = True

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        if _turn.current is self and _turn.is_mine and not self.done():
            raise InvalidError("the save itself waits for this callback", path=self.prefix)
        if self._foreign and self._state == "RUNNING":
            raise InvalidError(
                "the save was begun before a fork: only the process that began it hears of its end",
                path=self.prefix,
            )
        self._count_asking(1)
        try:
            yield
            self._heard = True
        except BaseException as error:
            # Or the waiting has ended, and not the save.
            self._heard = self._heard or error is self._exception
            raise
        finally:
            self._count_asking(-1)

    def _count_asking(self, more: int) -> None:
        with self._lock:
            self._asking += more

    @property
    def _foreign(self) -> bool:
        return self._pid != os.getpid()

    def _unheard(self) -> BaseException | None:
        """What ended the save, if nobody has heard of it. From now on somebody has."""
        if self._heard or self._asking or self._foreign or not self.done():
            return None
        return self.exception()

    def __del__(self) -> None:
        if getattr(self, "_heard", True):
            return
        error = self._unheard()
        if error is not None:
            logging.getLogger("ckptfmt").error(
                "the save of %s failed, and nobody asked: %r", self.prefix, error
            )


class _Turn:
    """Who is at work; all of a process share one.

    What is held is the lock, never the condition as such: that is entered by a function of Python,
    which Ctrl-C can leave with the lock taken.
    """

    lock: threading.RLock
    changed: threading.Condition
    preparing: threading.RLock
    current: SaveFuture | None
    writer: int  # the thread that writes it

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Nobody is, as in a forked child."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.preparing = threading.RLock()
        self.current, self.writer = None, 0

    @property
    def is_mine(self) -> bool:
        """Whether this thread writes a save in the background: it is in a callback of it."""
        return self.current is not None and self.writer == threading.get_ident()

    def wait(self) -> None:
        """Waits until nobody is; in a callback not at all."""
        with self.lock:
            # A handler of signals waits here, perhaps, in the middle of `take`.
            self.changed.notify_all()
            while self.current is not None and not self.is_mine:
                self.changed.wait(RECHECK_SECONDS)

    def take(self, future: SaveFuture) -> None:
        """Waits until nobody is at work, and lets the thread of this save begin."""
        with self.lock:
            while True:
                # A handler of signals that saves may run between any two calls; here is none.
                if self.current is None:
                    self.current = future
                    break
                self.changed.wait(RECHECK_SECONDS)
            self.changed.notify_all()

    def wait_for_start(self, future: SaveFuture) -> bool:
        """Waits until it is this save's turn, in its thread. False if the save is not wanted."""
        with self.lock:
            while self.current is not future:
                if future._unwanted:
                    return False
                self.changed.wait(RECHECK_SECONDS)
            self.writer = threading.get_ident()
            return True

    def dismiss(self, future: SaveFuture) -> None:
        """The call that wanted this save has failed: it is not begun, unless it has been."""
        with self.lock:
            future._unwanted = True
            self.changed.notify_all()

    def give(self) -> None:
        """The save is over."""
        with self.lock:
            self.current, self.writer = None, 0
            self.changed.notify_all()


_turn = _Turn()
os.register_at_fork(after_in_child=_turn.reset)

# Those that ended with an error.
_failed: weakref.WeakSet[SaveFuture] = weakref.WeakSet()


def end() -> None:
    """What the package does when the interpreter exits: logs the errors that nobody has asked for.

    A handler of exits that was the first to load this, and `threading` with it, may have begun a
    save that nothing else waits for.
    """
    wait_for_saves()
    for future in list(_failed):
        future.__del__()


def wait_for_saves() -> None:
    """Waits until no save is written in the background. Its errors are not raised.

    In a callback of such a save it does not wait: that save is all but over.
    """
    _turn.wait()


class Line:
    """The saves of one owner. Whatever their owners are, saves wait for one that is written in the
    background; its error is for its own.

    Attributes:
        staging: memory that the copies of the last background save leave for the next one of this
            owner. It is freed with the owner.
    """

    def __init__(self) -> None:
        self._failed: SaveFuture | None = None
        self.staging: Memory | None = None

    @property
    def staging_bytes(self) -> int:
        """Size of the staging memory; 0 while a save uses it, and in a forked child."""
        memory = self.staging
        return 0 if memory is None or memory.pid != os.getpid() else memory.size

    def settle(self) -> None:
        """Waits for the save that is written in the background, and raises what ended the last one
        of this owner, unless somebody has heard of it."""
        wait_for_saves()
        failed, self._failed = self._failed, None
        error = None if failed is None else failed._unheard()
        if error is not None:
            raise error

    def begin(self, prefix: str, prepare: Callable[[], Work]) -> SaveFuture:
        """Begins a save in the background.

        Args:
            prefix: of the checkpoint, for the future.
            prepare: called here once no save is written in the background; copies what is saved and
                gives what is to be done in the background.
        """
        if _turn.is_mine:
            # Whoever prepares waits for this thread: nothing is taken here.
            return self._write(SaveFuture(prefix), prepare())
        with _turn.preparing:
            wait_for_saves()
            work = prepare()
            future = SaveFuture(prefix)
            started = self._started(future, work)
        return future if started else self._write(future, work)

    def _started(self, future: SaveFuture, work: Work) -> bool:
        """False where this thread must do the work: while the interpreter exits, or if the system
        has no more threads."""
        if not threading.main_thread().is_alive():
            return False
        thread = threading.Thread(
            target=self._write_in_turn, args=(future, work), name="ckptfmt-background"
        )
        # There first, and then in turn: a handler of signals that waits for the save, in this very
        # thread, must not wait for what only this thread can begin.
        try:
            thread.start()
            _turn.take(future)
        except BaseException as error:
            _turn.dismiss(future)
            if isinstance(error, RuntimeError) and thread.ident is None:
                return False
            raise
        return True

    def _write_in_turn(self, future: SaveFuture, work: Work) -> None:
        if not _turn.wait_for_start(future):
            return
        try:
            self._write(future, work)
        finally:
            _turn.give()

    def _write(self, future: SaveFuture, work: Work) -> SaveFuture:
        error = _outcome(work)
        if error is None:
            future.set_result(future.prefix)
        else:
            self._failed = future
            _failed.add(future)
            future.set_exception(error)
        return future


def _outcome(work: Work) -> BaseException | None:
    try:
        work()
    except BaseException as error:
        return error
    finally:
        del work  # what is raised keeps this frame
    return None
