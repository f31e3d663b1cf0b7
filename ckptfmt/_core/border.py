# SPDX-License-Identifier: Apache-2.0
"""What every crossing needs: constants, texts, errors and paths."""

from __future__ import annotations

import os
from typing import Any

from ckptfmt import errors
from ckptfmt._ckptfmt import ffi, lib

# The most dimensions that numpy has.
NUMPY_RANK_MAX = 64
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


def new_error() -> Any:
    """Room for an error."""
    return ffi.new("ckptfmt_error *")


def path_bytes(path: str) -> bytes:
    """A path as the operating system takes it (NAM-1)."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise errors.InvalidError(f"no path: {error.reason}", failure="BAD_PATH") from None
    if b"\0" in raw:
        raise errors.InvalidError("a path cannot hold a NUL byte", failure="BAD_PATH")
    return raw
