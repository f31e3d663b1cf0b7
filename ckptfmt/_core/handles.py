# SPDX-License-Identifier: Apache-2.0
"""Handles: objects of C that Python owns."""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Mapping
from typing import Any

from ckptfmt import errors
from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.border import check, new_error, path_bytes
from ckptfmt._core.codec import Codec
from ckptfmt._core.library import limits_of

# The process that runs this; asking the system each time would cost as much as a small read.
_process = 0
# Held while a handle enters a forked child; the child makes its own, because a thread of the parent
# may hold the parent's.
_entering = _thread.allocate_lock()


def _note_process() -> None:
    global _process, _entering
    _process, _entering = os.getpid(), _thread.allocate_lock()


_note_process()
os.register_at_fork(after_in_child=_note_process)


def entering() -> _thread.LockType:
    """The lock that is held while a handle enters a forked child."""
    return _entering


class _Closed:
    """Stands for a closed handle. Not None: cffi on PyPy would pass that on as NULL."""


CLOSED = _Closed()


class _Handle:
    """A C object that can be closed, in the process that made it."""

    __slots__ = ("__weakref__", "_name", "_pid", "_pointer")

    def __init__(self, pointer: Any, name: str) -> None:
        self._pointer = pointer
        self._name = name
        self._pid = _process

    @property
    def closed(self) -> bool:
        return self._pointer is CLOSED

    @property
    def foreign(self) -> bool:
        """True in a process forked after the handle was made."""
        return self._pid != os.getpid()

    def _usable(self) -> Any:
        if self._pointer is CLOSED:
            raise errors.InvalidError(f"{self._name} is closed")
        return self._pointer

    def _refuse_after_fork(self) -> None:
        # Before any lock is touched: a thread of the parent may have held it when the child was
        # made.
        if self.foreign:
            raise errors.InvalidError(
                f"{self._name} was opened before a fork: open it again in this process"
            )


class SharedHandle(_Handle):
    """Used by many threads at once. `with handle as pointer:` marks a call; the last one out frees
    a closed handle.

    A reference to the pointer is what marks a call: taking one needs no lock, so that nothing can
    be left locked by a signal or a fork, and the last one that goes frees the object. So nobody
    keeps one in a variable while an error is raised: its traceback would hold the object.
    """

    __slots__ = ()

    def use(self) -> Any:
        """The pointer, for the call in whose arguments this stands."""
        pointer = self._pointer
        if pointer is CLOSED or self._pid != _process:
            self._usable()
            self._enter_process()
            pointer = self._usable()
        return pointer

    def _enter_process(self) -> None:
        """Makes the handle usable in a forked child, or raises."""
        self._refuse_after_fork()

    def run(self, function: Callable[..., int], *arguments: Any) -> int:
        """Calls a function of C that takes the handle first."""
        return function(self.use(), *arguments)

    def __enter__(self) -> Any:
        return self.use()

    def __exit__(self, *_exc: object) -> None:
        """The variable of the `with` statement is what goes."""

    def close(self) -> None:
        """Closes, at once or when the last call under way returns. Harmless when closed already."""
        self._pointer = CLOSED


class ExclusiveHandle(_Handle):
    """Used by one thread at a time: calls, and closing, wait for each other. A handler of signals
    that interrupts a call cannot: it may close, and nothing else."""

    __slots__ = ("_lock", "_owned")

    def __init__(self, pointer: Any, name: str, owned: Any = None) -> None:
        super().__init__(pointer, name)
        self._owned = pointer if owned is None else owned
        self._lock = _thread.RLock()

    def turn(self) -> _thread.RLock:
        """The lock: `with handle.turn():` marks a call, in which `use` gives the pointer.

        It is the lock's own `with` that takes it and gives it back, which Ctrl-C cannot part from
        what is in between: a lock left behind would hold up closing for ever.
        """
        self._refuse_after_fork()
        if self._is_interrupted():
            raise errors.InvalidError(f"{self._name} is in the call that is interrupted just now")
        return self._lock

    def _is_interrupted(self) -> bool:
        """Whether this is a handler of signals in the middle of a call."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def use(self) -> Any:
        """The pointer."""
        return self._usable()

    def run(self, function: Callable[..., int], *arguments: Any) -> int:
        """Calls a function of C that takes the handle first."""
        with self.turn():
            return function(self._usable(), *arguments)

    def close(self) -> None:
        """Closes when the call under way returns. Harmless when closed already."""
        if self.foreign:
            self._pointer = CLOSED
            return
        # The call that is interrupted has the object, and frees it by its end.
        interrupts = self._is_interrupted()
        with self._lock:
            if self._pointer is not CLOSED:
                self._pointer = CLOSED
                owned, self._owned = self._owned, None
                if not interrupts:
                    ffi.release(owned)


def call(handle: Any, function: Callable[..., int], *arguments: Any) -> None:
    """Calls a function of C that takes the handle first and an error last, and raises that."""
    error = new_error()
    status = handle.run(function, *arguments, error)
    del arguments  # the traceback of an error would hold what closing is to free
    if status != lib.CKPTFMT_OK:
        raised = None if handle.codec is None else handle.codec.raised()
        if raised is not None:
            raise raised
        check(status, error, handle.path)


def own(pointer: Any, free: Callable[[Any], None]) -> Any:
    """Wraps a pointer so that `free` runs once, and only in the process that made it."""

    def free_here(raw: Any, pid: int = os.getpid(), getpid: Callable[[], int] = os.getpid) -> None:
        if getpid() == pid:
            free(raw)

    return ffi.gc(pointer, free_here)


def open_checkpoint(
    kind: str,
    functions: tuple[Callable[..., int], Callable[[Any], None]],
    prefix: str,
    limits: Mapping[str, int] | None,
    follow_symlinks: bool,
    codec: Codec | None,
) -> Any:
    """What the first of these functions opens, a `kind`, for the second to close."""
    raw, values = path_bytes(prefix), limits_of(limits)
    options = ffi.new(
        "ckptfmt_open_options *",
        {
            "struct_size": ffi.sizeof("ckptfmt_open_options"),
            "limits": values,
            "follow_symlinks": bool(follow_symlinks),
            "codec": ffi.NULL if codec is None else codec.pointer,
        },
    )
    out, error = ffi.new(f"{kind} **"), new_error()
    opening, closing = functions
    check(opening(raw, options, out, error), error, prefix)
    return own(out[0], closing)
