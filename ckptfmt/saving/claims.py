# SPDX-License-Identifier: Apache-2.0
"""Claims on the names to which registered savers write, which are the same for every save to one
prefix."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator

from ckptfmt.errors import BusyError, StorageError

__all__ = ["claimed"]

_open: set[int] = set()  # descriptors of the claims of this process


def _close_in_child() -> None:
    """Close the copies of a forked child, which would keep the locks after the parent's death."""
    for fd in _open:
        os.close(fd)
    _open.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def claimed(prefix: str, savers: Iterable[str]) -> Iterator[None]:
    """Claim the names `<prefix>-<name>` of registered savers against other threads and processes.

    A claim is an advisory lock on a file `<prefix>-<name>.claim` (the merge locks the directory).
    The file is removed before the lock is released. The lock ends with the process: a forked child
    closes its copy.

    Raises:
        BusyError: another thread or process has claimed one; it names the prefix and the saver.
        StorageError: the file cannot be created or locked.
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
            f"another save to '{prefix}' is running the registered saver '{saver}'",
            path=path,
        ) from None
    except OSError as error:
        raise StorageError(
            f"cannot claim the files of the registered saver '{saver}': {error.strerror}",
            path=path,
            errno=error.errno,
        ) from None
    owner = os.getpid()
    _open.add(fd)
    try:
        yield
    finally:
        if os.getpid() == owner:  # not in a child that was forked inside
            with contextlib.suppress(OSError):
                os.unlink(path)
            _open.discard(fd)
            os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    """Lock the file without waiting. If its previous owner removed it since it was opened, close it
    and return False."""
    is_same = False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            is_same = os.path.samestat(os.fstat(fd), os.stat(path))
    finally:
        if not is_same:
            os.close(fd)
    return is_same
