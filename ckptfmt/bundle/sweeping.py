# SPDX-License-Identifier: Apache-2.0
"""Removing what killed writers leave: files and temporary directories whose locks nobody holds
(CMT-15). A writer holds the lock of each of its files until it commits, and that of its temporary
directory until it removes it; a lock ends with its process.

Nothing is removed on a file system without locks, nor on a network file system, where a lock may be
visible to one machine only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Sequence
from functools import partial

from ckptfmt.bundle.mounts import is_remote
from ckptfmt.bundle.orphans import is_part, temporary_directories
from ckptfmt.bundle.temporary import DIRECTORY_FLAGS, LOCK_NAME, OwnDescriptor

_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def sweep_directories(prefix: str) -> None:
    """Remove the temporary directories that killed saves of this prefix left. Raises nothing; what
    cannot be removed stays for the next save: all, if another process has the directory's lock, or
    in an object store, which has no locks."""
    parent, name = os.path.split(prefix)
    with contextlib.suppress(OSError):
        found = temporary_directories(os.listdir(parent or "."), name)
        if not found:
            return
        place = OwnDescriptor(partial(os.open, parent or ".", DIRECTORY_FLAGS))
        try:
            fcntl.flock(place.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # CMT-14
            if not is_remote(place.fd):
                for directory in found:
                    remove_directory(place.fd, directory)
        finally:
            place.close()


def remove_directory(where: int, name: str, *, dry_run: bool = False) -> bool:
    """Remove a temporary directory whose save was killed.

    Args:
        where: descriptor of the directory that it is in.
        name: its name.
        dry_run: whether it is only examined.

    Returns:
        Whether it was removed, or would be.
    """
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        flags = DIRECTORY_FLAGS | os.O_NOFOLLOW
        place = OwnDescriptor(partial(os.open, name, flags, dir_fd=where))
        stack.callback(place.close)
        lock = _locked(place.fd, LOCK_NAME)
        if lock is not None:
            stack.callback(lock.close)
        # Listed under the lock: no process creates a file there any more.
        inside = os.listdir(place.fd)
        if inside:
            if lock is None:
                return False
            parts = [file for file in inside if file != LOCK_NAME]
            if not all(map(is_part, parts)):
                return False
            if sorted(remove_dead(place.fd, parts, dry_run=dry_run)) != sorted(parts):
                return False
        if not dry_run:
            if inside:
                os.unlink(LOCK_NAME, dir_fd=place.fd)
            os.rmdir(name, dir_fd=where)
        return True
    return False


def remove_dead(where: int, names: Sequence[str], *, dry_run: bool = False) -> list[str]:
    """Remove these files, if none of them is locked; return the names of those removed.

    A live writer releases a lock only with its file or after its commit, which needs the
    directory's lock: checking one after the other is enough.

    Args:
        where: descriptor of the directory.
        names: of files in it.
        dry_run: whether they are only examined.
    """
    if any(is_held(where, name) for name in names):
        return []
    return list(names) if dry_run else [name for name in names if _unlinked(where, name)]


def is_held(where: int, name: str) -> bool:
    """Return whether the exclusive lock of a file cannot be taken."""
    file = _locked(where, name)
    if file is not None:
        file.close()
    return file is None


def _locked(where: int, name: str) -> OwnDescriptor | None:
    """Open the regular file `name` and take its exclusive lock; None if that is not possible: its
    writer is alive, it is not a regular file, another file has taken its name meanwhile, or the
    system reports an error."""
    try:
        file = OwnDescriptor(partial(os.open, name, _FILE_FLAGS, dir_fd=where))
    except OSError:
        return None
    try:
        opened = os.fstat(file.fd)
        if stat.S_ISREG(opened.st_mode):
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(opened, os.stat(name, dir_fd=where, follow_symlinks=False)):
                return file
    except OSError:
        pass
    file.close()
    return None


def _unlinked(where: int, name: str) -> bool:
    """Remove a file if its exclusive lock can be taken; whether it was removed."""
    file = _locked(where, name)
    if file is None:
        return False
    try:
        os.unlink(name, dir_fd=where)
    except OSError:
        return False
    finally:
        file.close()
    return True
