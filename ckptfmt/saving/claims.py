# SPDX-License-Identifier: Apache-2.0
"""Claims on the names to which registered savers write, which are the same for every save to one
prefix."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from functools import partial

from ckptfmt._base.names import is_url
from ckptfmt.bundle.temporary import OwnDescriptor, make_directory
from ckptfmt.errors import BusyError, StorageError


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
        # Object stores have no locks.
        for name in () if is_url(prefix) else sorted(savers):
            stack.enter_context(_claim(prefix, name))
        yield


@contextlib.contextmanager
def _claim(prefix: str, saver: str) -> Iterator[None]:
    path = f"{prefix}-{saver}.claim"
    try:
        make_directory(os.path.dirname(path), "full")
        while (lock := _locked(path)) is None:
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
    try:
        yield
    finally:
        if lock.fd >= 0:  # not in a child that was forked inside
            with contextlib.suppress(OSError):
                os.unlink(path)
            lock.close()


def _locked(path: str) -> OwnDescriptor | None:
    """Lock the file without waiting; None if its previous owner removed it since it was opened."""
    lock = OwnDescriptor(partial(os.open, path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    try:
        fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fd), os.stat(path)):
                return lock
    except BaseException:
        lock.close()
        raise
    lock.close()
    return None
