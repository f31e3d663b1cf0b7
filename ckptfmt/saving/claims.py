# SPDX-License-Identifier: Apache-2.0
"""Claims on the names that registered savers write to: the same for every save to one prefix."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator

from ckptfmt.errors import BusyError, StorageError

__all__ = ["claimed"]


@contextlib.contextmanager
def claimed(prefix: str, savers: Iterable[str]) -> Iterator[None]:
    """Holds the names `<prefix>-<name>` of registered savers, against other threads and processes.

    A lock on a file beside them, not on their directory, which the merge locks. The file is removed
    while the lock is held.

    Raises:
        BusyError: another thread or process holds one of them. It names the prefix and the saver.
        StorageError: the file cannot be made or locked.
    """
    with contextlib.ExitStack() as stack:
        for name in sorted(savers):
            stack.enter_context(_claim(prefix, name))
        yield


@contextlib.contextmanager
def _claim(prefix: str, saver: str) -> Iterator[None]:
    path = f"{prefix}-{saver}.claim"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        while not _is_at(fd := os.open(path, os.O_RDWR | os.O_CREAT, 0o666), path):
            pass
    except BlockingIOError:
        raise BusyError(
            f"another save to '{prefix}' runs the registered saver '{saver}' at this moment",
            path=path,
        ) from None
    except OSError as error:
        raise StorageError(
            f"cannot claim the files of the registered saver '{saver}': {error.strerror}",
            path=path,
            errno=error.errno,
        ) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    """Locks the file, without waiting. False, and the file closed, if whoever held the lock before
    has removed the file since it was opened."""
    kept = False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            kept = os.path.samestat(os.fstat(fd), os.stat(path))
    finally:
        if not kept:
            os.close(fd)
    return kept
