# SPDX-License-Identifier: Apache-2.0
"""What every call into C needs: constants, errors, paths, options, and the handles of C objects."""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Mapping
from typing import Any

from ckptfmt import errors
from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.codec import Codec

NO_OFFSET = 2**64 - 1

VERIFY = {
    "auto": lib.CKPTFMT_VERIFY_AUTO,
    "full": lib.CKPTFMT_VERIFY_FULL,
    "off": lib.CKPTFMT_VERIFY_OFF,
}
DURABILITY = {
    "full": lib.CKPTFMT_DURABILITY_FULL,
    "rename": lib.CKPTFMT_DURABILITY_RENAME,
    "none": lib.CKPTFMT_DURABILITY_NONE,
}
STORAGE_FIXED = lib.CKPTFMT_STORAGE_FIXED
STORAGE_STRING = lib.CKPTFMT_STORAGE_STRING
STORAGE_VARIANT = lib.CKPTFMT_STORAGE_VARIANT
STORAGE_NONE = lib.CKPTFMT_STORAGE_NONE
STORED_MISSING = lib.CKPTFMT_STORED_MISSING
STORED_COMPRESSED = lib.CKPTFMT_STORED_COMPRESSED
SEVERITY_NOTE = lib.CKPTFMT_SEVERITY_NOTE
RANK_MAX = lib.CKPTFMT_RANK_MAX


def text(pointer: Any) -> str:
    """A NUL-terminated string of C; bytes that are not UTF-8 become surrogate escapes."""
    return str(ffi.string(pointer), "utf-8", "surrogateescape")


def version() -> str:
    """Version of the C library."""
    return text(lib.ckptfmt_version())


ERROR_BY_FAILURE, ERROR_BY_STATUS = errors.classes()


def error_of(record: Any, path: str | None = None) -> Exception:
    """The exception that a `ckptfmt_error` describes; `path` stands in where the record has
    none."""
    failure = text(lib.ckptfmt_failure_name(record.failure))
    status = text(lib.ckptfmt_status_name(record.status))
    message = str(ffi.string(record.message), "utf-8", "replace")
    if status == "NO_MEMORY":
        return MemoryError(message)
    kind = ERROR_BY_FAILURE.get(failure) or ERROR_BY_STATUS.get(status, errors.CkptfmtError)
    return kind(
        message,
        failure=failure,
        path=os.fsdecode(ffi.string(record.path)) or path,
        offset=None if record.offset == NO_OFFSET else int(record.offset),
        tensor=tensor_text(record) or None,
        errno=int(record.os_errno) or None,
    )


def tensor_text(record: Any) -> str:
    """The tensor name in a `ckptfmt_error`."""
    return str(ffi.buffer(record.tensor)[: record.tensor_size], "utf-8", "surrogateescape")


def check(status: int, record: Any, path: str | None = None) -> None:
    """Raises what the C call reported; the only place where a status becomes an exception."""
    if status != lib.CKPTFMT_OK:
        raise error_of(record, path)


def path_bytes(path: str) -> bytes:
    """A path as the operating system takes it (NAM-1)."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise errors.InvalidError(f"no path: {error.reason}", failure="BAD_PATH") from None
    if b"\0" in raw:
        raise errors.InvalidError("a path cannot hold a NUL byte", failure="BAD_PATH")
    return raw


def fields_of(struct: Any) -> dict[str, int]:
    """The fields of a struct of numbers."""
    fields = [name for name, _ in ffi.typeof(struct[0]).fields]
    return {
        name: int(getattr(struct, name))
        for name in fields
        if name not in ("reserved", "struct_size")
    }


def limits_of(values: Mapping[str, int] | None) -> Any:
    """A `ckptfmt_limits` of these values, where 0 is the default; NULL for no values."""
    if not values:
        return ffi.NULL
    limits = ffi.new("ckptfmt_limits *")
    limits.struct_size = ffi.sizeof("ckptfmt_limits")
    known = fields_of(limits)
    for name, value in values.items():
        if name not in known:
            raise errors.InvalidError(f"no limit is called {name!r}; there are {', '.join(known)}")
        try:
            setattr(limits, name, value)
        except (OverflowError, TypeError) as error:
            raise errors.InvalidError(f"limit {name!r}: {error}") from None
    return limits


# ---- handles ------------------------------------------------------------------------------------

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

    A call holds a reference to the pointer. Taking one needs no lock, so a signal or a fork leaves
    nothing locked; dropping the last one frees the object. Do not keep a reference in a variable
    while an error is raised: the traceback would hold the object.
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
    """Used by one thread at a time: calls, and closing, wait for each other. A signal handler that
    interrupts a call cannot wait: it may close the handle, and nothing else."""

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
        """Whether a signal handler runs this in the middle of a call."""
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
    error = ffi.new("ckptfmt_error *")
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
    out, error = ffi.new(f"{kind} **"), ffi.new("ckptfmt_error *")
    opening, closing = functions
    check(opening(raw, options, out, error), error, prefix)
    return own(out[0], closing)
