# SPDX-License-Identifier: Apache-2.0
"""Waiting for the requests of a store: with a limit on silence, and never so that Ctrl-C waits too.

Requests run on one event loop in a thread of its own. The caller's thread waits for them with the
GIL released, and leaves at once when it is interrupted; a request that is left behind has memory of
its own, and touches nothing of the caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent import futures
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from ckptfmt.errors import InvalidError
from ckptfmt.stores.client import BodyError

T = TypeVar("T")

STALL_VARIABLE, STALL_SECONDS, STALL_MAX = "CKPTFMT_STALL_SECONDS", 60.0, 1e9
# Of uploads, and of file systems that return an answer whole, no byte is seen before the last: a
# second more for each of these under way.
SLOWEST = 256 << 10
# So many tries may bring nothing, with pauses of up to so many seconds; PROGRESS bytes begin the
# count again. No try begins later than two limits after the last progress, nor after STALLS stalls.
TRIES, STALLS, PAUSE, PROGRESS = 4, 2, 0.2, 64 << 10
# Removing what a failed save left is not waited for longer than this after Ctrl-C or a stall.
CLEANUP_SECONDS = 0.5
# At exit, requests under way have so long to end, and the store's threads to notice that they did.
_EXIT_SECONDS, _SETTLING_SECONDS = 0.3, 0.05


class StallError(BodyError):
    """A server that has not answered, or has moved no byte, for too long."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            errno.ETIMEDOUT,
            f"the server has not answered or moved a byte for {seconds:.3g} s ({STALL_VARIABLE} "
            "sets another limit)",
        )


def stall_seconds() -> float:
    """Return the limit: after how many seconds without a byte a request is cancelled."""
    text = os.environ.get(STALL_VARIABLE)
    if text is None:
        return STALL_SECONDS
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= STALL_MAX:
            return float(text)
    raise InvalidError(
        f"{STALL_VARIABLE} must be a number of seconds above 0 and at most {STALL_MAX:.0f}, "
        f"not {text!r}"
    )


class Budget:
    """The tries of one request."""

    def __init__(self) -> None:
        self._stalls = 0
        self._restart()

    def _restart(self) -> None:
        self._since, self._left, self._moved = time.monotonic(), TRIES, 0

    def again(self, problem: OSError, moved: int = 0) -> None:
        """Pause before another try, after one that brought `moved` bytes.

        Raises `problem` if there is no other.
        """
        self._stalls += isinstance(problem, StallError)
        self._moved += moved
        if self._moved >= PROGRESS:
            self._restart()
        self._left -= 1
        late = time.monotonic() - self._since >= 2 * stall_seconds()
        if not self._left or late or self._stalls >= STALLS:
            if isinstance(problem, StallError):
                _current.group.stalled = problem
            raise problem
        if not moved:
            time.sleep(PAUSE * random.random() * (TRIES - self._left))


class BytesUnderWay:
    """Bytes of one store that are under way and not seen."""

    def __init__(self) -> None:
        self._bytes = 0

    async def limited(self, request: Awaitable[T], size: int = 0) -> T:
        """Return the answer to a request of `size` bytes.

        Raises StallError when it takes too long.
        """
        stall, began = stall_seconds(), time.monotonic()
        self._bytes += size
        task = asyncio.ensure_future(request)
        task.add_done_callback(_seen)
        try:
            while True:
                limit = stall + self._bytes / SLOWEST
                left = began + limit - time.monotonic()
                if left <= 0:
                    raise StallError(limit)
                await asyncio.wait({task}, timeout=left)
                if task.done():
                    return task.result()
        finally:
            self._bytes -= size
            task.cancel()


def _seen(task: asyncio.Future[Any]) -> None:
    """Take the exception of a task that may have been left behind."""
    if not task.cancelled():
        task.exception()


async def in_thread(function: Callable[[], T]) -> T:
    """Return the result of a call that blocks. Its thread keeps no interpreter from exiting."""
    future = Future[T]()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)
        except BaseException as error:  # one of these would end the loop
            future.set_exception(BodyError(errno.EIO, f"{type(error).__name__}: {error}"))

    threading.Thread(target=run, name="ckptfmt-request", daemon=True).start()
    return await asyncio.wrap_future(future)


# ---- the loop ------------------------------------------------------------------------------------


class _Loop:
    """The event loop of this process, from the first request on."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread()
        self._ended = False

    def start(self, request: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._ended:
                request.close()
                raise OSError(errno.ECANCELED, "the interpreter is exiting")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="ckptfmt-requests", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(request, self._loop)

    def end(self) -> None:
        with self._lock:
            loop, self._loop, self._ended = self._loop, None, True
        if loop is None:
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), loop).result(2 * _EXIT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(_EXIT_SECONDS)
        if not self._thread.is_alive():
            loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=_EXIT_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The loop hears of an answer before obstore's thread has left Python.
        await asyncio.sleep(_SETTLING_SECONDS)


_loop = _Loop()
os.register_at_fork(after_in_child=_loop.reset)


def end() -> None:
    """End all requests, when the interpreter exits: a thread of the store must not find an
    interpreter that is gone."""
    _loop.end()


# ---- requests ------------------------------------------------------------------------------------


class Group:
    """The requests of one handle. Several threads may wait for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[Future[Any]] = set()
        self._is_cancelled = False
        # When the last request stalled or was cancelled; None if it did not.
        self._trouble: float | None = None
        # What the first request that has no try left came to: others of the call fail at once.
        self.stalled: StallError | None = None

    def begin(self, request: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a request."""
        with self._lock:
            if not _current.tidying and (self._is_cancelled or self.stalled is not None):
                request.close()
                raise _cancelled() if self.stalled is None else StallError(stall_seconds())
            future = _loop.start(request)
            self._under_way.add(future)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: Future[Any]) -> None:
        with self._lock:
            self._under_way.discard(future)

    def wait(self, future: Future[T]) -> T:
        """Return the answer to a request. An exception in the waiting thread, such as
        KeyboardInterrupt, leaves it at once and cancels the request."""
        left = None
        if _current.tidying and self._trouble is not None:
            left = max(self._trouble + CLEANUP_SECONDS - time.monotonic(), 0)
        try:
            if left is not None and not futures.wait([future], left).done:
                raise OSError(errno.ECANCELED, "the server's answer was not waited for")
            answer = future.result()
        except CancelledError:
            raise _cancelled() from None
        except StallError:
            self._trouble = time.monotonic()
            raise
        except Exception:
            raise
        except BaseException:
            self._trouble = time.monotonic()
            cancel(future)
            raise
        if not self._is_cancelled:
            self._trouble = None
        return answer

    def cancel(self) -> None:
        """End all waits with an OSError, and refuse further requests, until `resume`."""
        with self._lock:
            self._is_cancelled, self._trouble = True, time.monotonic()
            under_way = list(self._under_way)
        for future in under_way:
            cancel(future)

    def resume(self) -> None:
        """Take requests again, of another call."""
        self._is_cancelled, self.stalled = False, None


def _cancelled() -> OSError:
    return OSError(errno.ECANCELED, "the call was interrupted")


class _Current(threading.local):
    """The group to which the requests of this thread belong, and whether they only tidy up."""

    group = Group()
    tidying = False


_current = _Current()


def use(group: Group) -> None:
    """Let the requests of this thread belong to a group from now on."""
    _current.group = group


def begin(request: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a request of the current group."""
    return _current.group.begin(request)


def call(request: Coroutine[Any, Any, T]) -> T:
    """Return the answer to a request of the current group."""
    group = _current.group
    return group.wait(group.begin(request))


def cancel(future: Future[Any]) -> None:
    """Cancel a request; no thread waits for it."""
    future.cancel()


@contextlib.contextmanager
def cleanup() -> Iterator[None]:
    """Requests inside remove what a failed call left: they are sent, and waited for only briefly
    after the call was interrupted or a request of it stalled."""
    _current.tidying = True
    try:
        yield
    finally:
        _current.tidying = False
