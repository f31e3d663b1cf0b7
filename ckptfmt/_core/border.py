# SPDX-License-Identifier: Apache-2.0
"""Common parts of all calls into C: constants, errors, paths, options, and handles."""

from __future__ import annotations

import _thread
import functools
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any

from ckptfmt import errors
from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.codec import Codec
from ckptfmt._core.storage import Storage

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
    """Return a NUL-terminated C string as str, with surrogate escapes for bytes not UTF-8."""
    return str(ffi.string(pointer), "utf-8", "surrogateescape")


def version() -> str:
    """Version of the C library."""
    return text(lib.ckptfmt_version())


ERROR_BY_FAILURE, ERROR_BY_STATUS = errors.classes()


def error_of(record: Any, path: str | None = None) -> Exception:
    """Return the exception for a `ckptfmt_error`; `path` is the default for its path."""
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
    """Return the tensor name of a `ckptfmt_error`."""
    return str(ffi.buffer(record.tensor)[: record.tensor_size], "utf-8", "surrogateescape")


def check(status: int, record: Any, path: str | None = None) -> None:
    """Raise the error that a C call reported, if any."""
    if status != lib.CKPTFMT_OK:
        raise error_of(record, path)


def check_stored(
    storage: Storage | None, status: int, record: Any, path: str | None = None
) -> None:
    """Raise what a storage recorded, or the error that the C call reported, if any."""
    raised = None if storage is None else storage.raised()
    if raised is not None:
        raise raised
    check(status, record, path)


def stored(storage: Storage | None, function: Callable[..., int], *arguments: Any) -> int:
    """Return the status of a C call that uses a storage, if any."""
    if storage is None:
        return function(*arguments)
    return storage.run(functools.partial(function, *arguments))


def path_bytes(path: str) -> bytes:
    """Return a path as bytes for the operating system (NAM-1)."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise errors.InvalidError(
            f"the path cannot be encoded: {error.reason}", failure="BAD_PATH"
        ) from None
    if b"\0" in raw:
        raise errors.InvalidError("a path cannot contain a NUL byte", failure="BAD_PATH")
    return raw


def fields_of(struct: Any) -> dict[str, int]:
    """Return the fields of a struct of numbers as a dict."""
    fields = [name for name, _ in ffi.typeof(struct[0]).fields]
    return {
        name: int(getattr(struct, name))
        for name in fields
        if name not in ("reserved", "struct_size")
    }


def limits_of(values: Mapping[str, int] | None) -> Any:
    """Return a `ckptfmt_limits` with these values (0 is the default), or NULL without values."""
    if not values:
        return ffi.NULL
    limits = ffi.new("ckptfmt_limits *")
    limits.struct_size = ffi.sizeof("ckptfmt_limits")
    known = fields_of(limits)
    for name, value in values.items():
        if name not in known:
            raise errors.InvalidError(
                f"unknown limit {name!r}; the limits are {', '.join(known)}", argument="limits"
            )
        try:
            setattr(limits, name, value)
        except (OverflowError, TypeError) as error:
            raise errors.InvalidError(f"limit {name!r}: {error}", argument="limits") from None
    return limits


# ---- handles ------------------------------------------------------------------------------------

# Id of this process; a system call each time would cost as much as a small read.
process = 0
# Held while a handle is reopened in a forked child. The child makes a new lock, because a thread of
# the parent may have held the old one.
entering = _thread.allocate_lock()


def _note_process() -> None:
    global process, entering
    process, entering = os.getpid(), _thread.allocate_lock()


_note_process()
os.register_at_fork(after_in_child=_note_process)


class _Closed:
    """The pointer of a closed handle. Not None: cffi on PyPy would pass NULL for it."""


CLOSED = _Closed()


class Handle:
    """A C object that can be closed in the process that made it."""

    __slots__ = ("__weakref__", "_name", "_pid", "_pointer", "codec", "path", "storage")

    def __init__(
        self, pointer: Any, name: str, path: str, codec: Codec | None, storage: Storage | None
    ) -> None:
        self._pointer = pointer
        self._name, self.path, self.codec, self.storage = name, path, codec, storage
        self._pid = process

    @property
    def closed(self) -> bool:
        return self._pointer is CLOSED

    @property
    def foreign(self) -> bool:
        """True in a process forked after the handle was made."""
        return self._pid != process

    def _usable(self) -> Any:
        if self._pointer is CLOSED:
            raise errors.InvalidError(f"{self._name} is closed")
        return self._pointer

    def _finish_call(self, status: int, error: Any) -> None:
        """Raise the exception of a call that returned this; of a storage also one that the call
        survived, such as Ctrl-C while it tidied up."""
        raised = None if self.storage is None else self.storage.raised()
        if raised is None and status != lib.CKPTFMT_OK:
            raised = None if self.codec is None else self.codec.raised()
            raised = error_of(error, self.path) if raised is None else raised
        if raised is not None:
            raise raised


def own(pointer: Any, free: Callable[[Any], None], storage: Storage | None = None) -> Any:
    """Wrap a pointer so that `free` runs once, and only in the process that made it. The storage is
    released after it."""

    def free_here(
        raw: Any,
        pid: int = os.getpid(),
        getpid: Callable[[], int] = os.getpid,
    ) -> None:
        if getpid() == pid:
            free(raw)
        if storage is not None:
            storage.release()

    return ffi.gc(pointer, free_here)


def new_slot(kind: Any, free: Callable[[Any], None], storage: Storage | None = None) -> Any:
    """Return an empty `cf_writer_slot` or `cf_reader_slot`, which owns what is opened into it. A C
    function destroys it, which a signal cannot interrupt. A storage is released after it."""
    slot = ffi.new(kind)
    return ffi.gc(slot, free) if storage is None else own(slot, free, storage)


def held(pointer: Any, owner: Any) -> Any:
    """Return a pointer that keeps its slot, or a tuple that the slot is in, alive."""
    return ffi.gc(pointer, functools.partial(operator.is_, owner))


def open_options(
    limits: Any,
    follow_symlinks: bool,
    codec: Codec | None,
    storage: Storage | None,
    index: Any = None,
) -> Any:
    """Return a `ckptfmt_open_options`; it does not own its limits, codec, storage and index."""
    return ffi.new(
        "ckptfmt_open_options *",
        {
            "struct_size": ffi.sizeof("ckptfmt_open_options"),
            "limits": limits,
            "follow_symlinks": bool(follow_symlinks),
            "codec": ffi.NULL if codec is None else codec.pointer,
            "storage": ffi.NULL if storage is None else storage.pointer,
            "index": ffi.NULL if index is None else index,
        },
    )
