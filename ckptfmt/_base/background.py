# SPDX-License-Identifier: Apache-2.0
"""Queue of background saves: a process writes one at a time, and later saves wait for it.

Each background save has its own thread, which ends with the save. The thread is not a daemon: an
interpreter that exits waits for it. A forked child has neither the thread nor the save.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future

from ckptfmt._core import Memory
from ckptfmt.errors import InvalidError, masked

Work = Callable[[], None]


class SaveFuture(Future[str]):
    """Future of a background save. `result()` is the prefix, once the checkpoint is in place. A
    save cannot be cancelled.

    If the caller does not ask for the error by `result` or `exception`, the next save of the same
    saver raises it; without such a save it is logged. It never affects a restore or another save.

    Attributes:
        prefix: prefix of the checkpoint, also given by `os.fspath`.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        self._pid = os.getpid()
        self._heard = False  # the caller knows the error
        self.set_running_or_notify_cancel()

    def __fspath__(self) -> str:
        return self.prefix

    def result(self, timeout: float | None = None) -> str:
        """Return the prefix, once the checkpoint is in place.

        Raises:
            TimeoutError: the save takes longer than `timeout` seconds.
            InvalidError: the call would wait for ever: it is in a callback of this save, or in a
                forked child.
            Exception: the error of the save.
        """
        self._check_can_wait()
        try:
            prefix = super().result(timeout)
        except BaseException as error:
            # The timeout may end the wait in the moment when the save fails.
            self._heard = self._heard or error is self._exception
            raise
        self._heard = True
        return prefix

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the save, or None, once it has ended.

        Raises:
            TimeoutError, InvalidError: as `result`.
        """
        self._check_can_wait()
        error = super().exception(timeout)
        self._heard = True
        return error

    def mark_heard(self) -> None:
        """Record that the caller learns of the error in another way."""
        self._heard = True

    def _check_can_wait(self) -> None:
        if _queue.current is self and _queue.is_mine and not self.done():
            raise InvalidError("the save itself waits for this callback", path=self.prefix)
        if self._foreign and self._state == "RUNNING":
            raise InvalidError(
                "the save was begun before a fork: only the process that began it can wait for it",
                path=self.prefix,
            )

    @property
    def _foreign(self) -> bool:
        return self._pid != os.getpid()

    def _unheard(self) -> BaseException | None:
        """Return the error of a save that has ended if the caller does not know it, and mark it as
        known."""
        if self._heard or self._foreign or not self.done():
            return None
        return self.exception()

    def __del__(self) -> None:
        if getattr(self, "_heard", True):
            return
        error = self._unheard()
        if error is not None:
            logging.getLogger("ckptfmt").error(
                "the background save of %s failed and its error was never asked for: %r",
                masked(self.prefix),
                error,
            )


SaveFuture.__module__ = "ckptfmt.types"


class _Queue:
    """The background save of the process.

    Attributes:
        current: its future; None if there is none.
        owner: the thread that prepares it, then the one that writes it.
    """

    lock: threading.Lock
    changed: threading.Condition
    current: SaveFuture | None
    owner: int

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start without a save, as in a forked child."""
        # The lock is taken directly: Ctrl-C can leave the condition's `with` with the lock taken.
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.current, self.owner = None, 0

    @property
    def is_mine(self) -> bool:
        """Whether this thread prepares or writes the current save, as a callback of it does."""
        return self.current is not None and self.owner == threading.get_ident()

    def wait(self) -> None:
        """Wait until there is no save; a callback of the save does not wait."""
        with self.lock:
            while self.current is not None and not self.is_mine:
                self.changed.wait()

    def enter(self, future: SaveFuture) -> None:
        """Wait until there is no save, then begin this one in this thread."""
        with self.lock:
            while self.current is not None:
                self.changed.wait()
            self.current, self.owner = future, threading.get_ident()

    def hand_over(self, thread: int) -> None:
        """Make the thread of the save its owner."""
        with self.lock:
            self.owner = thread
            self.changed.notify_all()

    def take_over(self, future: SaveFuture) -> bool:
        """Wait until this thread owns the save; False if the save has left the queue."""
        with self.lock:
            while self.current is future and not self.is_mine:
                self.changed.wait()
            return self.current is future

    def leave(self) -> None:
        """End the save if this thread owns it."""
        with self.lock:
            if self.is_mine:
                self.current = None
                self.changed.notify_all()

    def remove(self, future: SaveFuture) -> None:
        """End this save, whichever thread owns it."""
        with self.lock:
            if self.current is future:
                self.current = None
                self.changed.notify_all()


_queue = _Queue()
os.register_at_fork(after_in_child=_queue.reset)

# Futures of failed saves.
_failed: weakref.WeakSet[SaveFuture] = weakref.WeakSet()


def end() -> None:
    """Wait for the save and log the errors that no caller asked for, when the interpreter exits.

    The interpreter waits for the thread of a save, but not if an exit handler began it.
    """
    wait_for_saves()
    for future in list(_failed):
        future.__del__()


def wait_for_saves() -> None:
    """Wait until no save is written in the background. Its error is not raised.

    A callback of the save does not wait.
    """
    _queue.wait()


class SaveQueue:
    """The background saves of one owner, such as a Saver.

    Saves of all owners share one queue; the error of a save is raised only to its owner.

    Attributes:
        staging: staging memory that the last background save leaves for the next one of this owner.
            It is freed with the owner.
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
        """Wait for the background save, and raise the error of this owner's last one unless the
        caller knows it."""
        wait_for_saves()
        failed, self._failed = self._failed, None
        error = None if failed is None else failed._unheard()
        if error is not None:
            raise error

    def begin(self, prefix: str, prepare: Callable[[], Work]) -> SaveFuture:
        """Begin a background save.

        Args:
            prefix: prefix of the checkpoint, for the future.
            prepare: called here once no other save is written in the background; copies what is
                saved and returns the function to call in the background.
        """
        future = SaveFuture(prefix)
        if _queue.is_mine:
            # In a callback of a save, which would wait for this thread.
            return self._write(future, prepare())
        try:
            _queue.enter(future)
            work = prepare()
            if not self._started(future, work):
                self._write(future, work)
        finally:
            _queue.leave()  # unless the thread owns it by now
        return future

    def _started(self, future: SaveFuture, work: Work) -> bool:
        """Start the thread of a save. Return False while the interpreter exits, and if the system
        has no more threads."""
        if not threading.main_thread().is_alive():
            return False

        def write() -> None:
            try:
                if _queue.take_over(future):  # else Ctrl-C has ended the call that started it
                    self._write(future, work)
            except BaseException as error:  # of the wait, or raised here by another thread
                self._fail(future, error)
            finally:
                _queue.remove(future)

        thread = threading.Thread(target=write, name="ckptfmt-background")
        try:
            thread.start()
        except RuntimeError:
            if thread.ident is None:
                return False
            raise
        _queue.hand_over(thread.ident or 0)
        return True

    def _write(self, future: SaveFuture, work: Work) -> SaveFuture:
        error = _outcome(work)
        if error is None:
            future.set_result(future.prefix)
        else:
            self._fail(future, error)
        return future

    def _fail(self, future: SaveFuture, error: BaseException) -> None:
        if not future.done():
            self._failed = future
            _failed.add(future)
            future.set_exception(error)


def _outcome(work: Work) -> BaseException | None:
    """Call `work` and return its error."""
    try:
        work()
    except BaseException as error:
        return error
    finally:
        del work  # the error's traceback keeps this frame
    return None
