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
from concurrent.futures import Future
from typing import Any, TypeVar

from ckptfmt.errors import InvalidError
from ckptfmt.stores.client import BodyError

__all__ = [
    "Budget",
    "StallError",
    "Under",
    "abandon",
    "begin",
    "call",
    "cleanup",
    "end",
    "in_thread",
    "stall_seconds",
]

T = TypeVar("T")

STALL_VARIABLE, STALL_SECONDS = "CKPTFMT_STALL_SECONDS", 60.0
# Of uploads, and of file systems that return an answer whole, no byte is seen before the last: a
# second more for each of these under way.
SLOWEST = 256 << 10
# So many tries may bring nothing, with pauses of up to so many seconds; PROGRESS bytes begin the
# count again. No try begins later than two stalls after the last progress.
TRIES, PAUSE, PROGRESS = 4, 0.2, 64 << 10
# Removing what a failed save left is not waited for longer than this after Ctrl-C or a stall.
CLEANUP_SECONDS = 0.5
_TROUBLE_SECONDS = 60.0
# At exit, requests under way have so long to end, and the store's threads to notice that they did.
_EXIT_SECONDS, _SETTLING_SECONDS = 0.3, 0.05


class StallError(BodyError):
    """A server that has moved no byte for too long."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            errno.ETIMEDOUT,
            f"the server has not sent or taken a byte for {seconds:.3g} s ({STALL_VARIABLE} sets "
            "another limit)",
        )


def stall_seconds() -> float:
    """Return after how many seconds without a byte a request is given up."""
    text = os.environ.get(STALL_VARIABLE)
    if text is None:
        return STALL_SECONDS
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise InvalidError(f"{STALL_VARIABLE} must be a number of seconds above 0, not {text!r}")


class Budget:
    """The tries of one request."""

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._since, self._left, self._moved = time.monotonic(), TRIES, 0

    def again(self, problem: OSError, moved: int = 0) -> None:
        """Pause before another try, after one that brought `moved` bytes.

        Raises `problem` if there is no other.
        """
        self._moved += moved
        if self._moved >= PROGRESS:
            self._restart()
        self._left -= 1
        if not self._left or time.monotonic() - self._since >= 2 * stall_seconds():
            raise problem
        time.sleep(PAUSE * random.random() * (TRIES - self._left))


class Under:
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
        try:
            while True:
                left = began + stall + self._bytes / SLOWEST - time.monotonic()
                if left <= 0:
                    raise StallError(time.monotonic() - began)
                await asyncio.wait({task}, timeout=left)
                if task.done():
                    return task.result()
        finally:
            self._bytes -= size
            task.cancel()


async def in_thread(function: Callable[[], T]) -> T:
    """Return the result of a call that blocks. Its thread keeps no interpreter from exiting."""
    future = Future[T]()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

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
        self.abandoned = False

    def running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="ckptfmt-requests", daemon=True
                )
                self._thread.start()
            return self._loop

    def end(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), loop).result(2 * _EXIT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(_EXIT_SECONDS)

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=_EXIT_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks or self.abandoned:
            await asyncio.sleep(_SETTLING_SECONDS)  # no answer says that obstore's threads did


_loop = _Loop()
os.register_at_fork(after_in_child=_loop.reset)


def end() -> None:
    """End all requests, when the interpreter exits: a thread of the store must not find an
    interpreter that is gone."""
    _loop.end()


class _Trouble(threading.local):
    """When this thread was interrupted or gave a request up, and how long it may tidy up."""

    since = float("-inf")
    tidying = False


_trouble = _Trouble()


def begin(request: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a request."""
    return asyncio.run_coroutine_threadsafe(request, _loop.running())


def abandon(future: Future[Any]) -> None:
    """Give up a request; nothing waits for it."""
    _loop.abandoned |= future.cancel()


def call(request: Coroutine[Any, Any, T]) -> T:
    """Return the answer to a request. An exception in the waiting thread, such as
    KeyboardInterrupt, leaves it at once and cancels the request."""
    future = begin(request)
    left = None
    if _trouble.tidying:
        left = max(_trouble.since + CLEANUP_SECONDS - time.monotonic(), 0)
    try:
        return future.result(left)
    except TimeoutError as error:
        if left is None or future.done():
            raise
        raise StallError(left) from error  # it goes on without us
    except BaseException as error:
        if isinstance(error, StallError) or not isinstance(error, Exception):
            _trouble.since = time.monotonic()
        abandon(future)
        raise


@contextlib.contextmanager
def cleanup() -> Iterator[None]:
    """Requests inside remove what nobody needs: they are sent, and waited for only briefly if this
    thread was just interrupted or has given a request up."""
    _trouble.tidying = time.monotonic() - _trouble.since < _TROUBLE_SECONDS
    try:
        yield
    finally:
        _trouble.tidying = False
