# SPDX-License-Identifier: Apache-2.0
"""Exceptions of Python that C calls: recorded there, raised when the C call returns."""

from __future__ import annotations

import collections
from _thread import allocate_lock, get_ident

_TAKING = allocate_lock()


class Callbacks:
    """Functions of Python in a C struct. It must outlive the users of the struct."""

    __slots__ = ("__weakref__", "_errors")

    def __init__(self) -> None:
        self._errors = collections.deque[tuple[int, BaseException]]()

    def failed(self, error: BaseException) -> None:
        """Record an exception in this thread."""
        self._errors.append((get_ident(), error))

    def is_failing(self) -> bool:
        """Whether an exception waits for the C call to return."""
        return bool(self._errors)

    def raised(self) -> BaseException | None:
        """Return and clear the recorded exception, preferably this thread's. Of the main thread's,
        such as KeyboardInterrupt, only in that thread."""
        if not self._errors:
            return None
        import threading  # noqa: PLC0415 (local files need no threads of Python)

        me, main = get_ident(), threading.main_thread().ident
        with _TAKING:
            taken = [one for one in list(self._errors) if one[0] != main or me == main]
            for one in taken:
                self._errors.remove(one)
        mine = [error for thread, error in taken if thread == me]
        return next(iter(mine or [error for _, error in taken]), None)
