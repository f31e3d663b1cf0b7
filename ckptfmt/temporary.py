# SPDX-License-Identifier: Apache-2.0
"""What is there only while something is written, and the lock that says that its writer is still at
work (CMT-15): temporary files, and the directory `<prefix>_temp_<16 hex digits>` of a save."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil

from ckptfmt.errors import StorageError

__all__ = ["LOCK_NAME", "TemporaryDirectory", "make_file"]

# The file in the directory whose lock is held. It is made first and removed last.
LOCK_NAME = "writer.lock"
TRIES = 16


class TemporaryDirectory:
    """A directory beside a checkpoint for the shards of one save.

    Whoever cleans up after dead writers leaves it alone as long as this object holds its lock,
    which goes with the process at the latest.

    Args:
        prefix: of the checkpoint that is saved.
        token: the random part of its name, if somebody else has drawn it.

    Attributes:
        token: the random part, for certain once it was made.
        path: of the directory.
    """

    def __init__(self, prefix: str, token: str | None = None) -> None:
        self._prefix = prefix
        self._lock: int | None = None
        self._name(token or secrets.token_hex(8))

    def _name(self, token: str) -> None:
        self.token, self.path = token, f"{self._prefix}_temp_{token}"

    def make(self) -> None:
        """Makes it, and the directories above it that are missing.

        Raises:
            StorageError: it cannot be made.
        """
        try:
            for _ in range(TRIES):
                os.makedirs(self.path, exist_ok=True)
                path = os.path.join(self.path, LOCK_NAME)
                # Somebody who cleans up may take an empty directory for a dead one: another, then.
                with contextlib.suppress(FileNotFoundError):
                    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
                    if _hold(fd, path, fcntl.LOCK_EX):
                        self._lock = fd
                        return
                    os.close(fd)
                self._name(secrets.token_hex(8))
        except OSError as error:
            raise StorageError(
                f"cannot make the temporary directory of the save: {error.strerror}",
                path=self.path,
                errno=error.errno,
            ) from None
        raise StorageError("the temporary directory of the save is removed again", path=self.path)

    def remove(self) -> None:
        """Removes it with everything in it. What cannot be removed stays."""
        try:
            with contextlib.suppress(OSError):
                self._clear()
                os.rmdir(self.path)
        finally:
            # After Ctrl-C too: what is left is a dead writer's then.
            lock, self._lock = self._lock, None
            if lock is not None:
                os.close(lock)

    def _clear(self) -> None:
        for entry in os.scandir(self.path):
            if entry.name == LOCK_NAME:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, LOCK_NAME))


def make_file(name: str, directory_fd: int) -> tuple[str, int]:
    """Makes a file that will become `name` in this directory: its temporary name and a descriptor,
    which holds its lock.

    Raises:
        OSError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    for _ in range(TRIES):
        # The first digit is a letter: TensorFlow's names are decimal.
        temporary = f"{name}.tempstate{secrets.choice('abcdef')}{secrets.token_hex(8)[1:]}"
        fd = os.open(temporary, flags, 0o666, dir_fd=directory_fd)
        if _hold(fd, temporary, fcntl.LOCK_SH, directory_fd):
            return temporary, fd
        os.close(fd)
    raise FileExistsError(errno.EEXIST, "cannot find a free temporary name")


def _hold(fd: int, name: str, kind: int, directory_fd: int | None = None) -> bool:
    """Takes the lock of a file that was made; False if somebody takes it for one of a dead writer,
    and removes it just now. Where the file system has no locks there is none to take."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    try:
        return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=directory_fd))
    except FileNotFoundError:
        return False
