# SPDX-License-Identifier: Apache-2.0
"""Exceptions of Python that C calls: recorded there, raised when the C call returns."""

from __future__ import annotations

import collections
from _thread import get_ident


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
        """Return and clear the recorded exception, preferably this thread's."""
        errors = [self._errors.popleft() for _ in range(len(self._errors))]
        mine = [error for thread, error in errors if thread == get_ident()]
        return next(iter(mine or [error for _, error in errors]), None)
