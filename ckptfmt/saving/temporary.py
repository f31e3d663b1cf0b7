# SPDX-License-Identifier: Apache-2.0
"""The temporary directory of a save, `<prefix>_temp_<16 hex digits>`, and the lock that says that
its save is still at work (CMT-15)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil

from ckptfmt.errors import StorageError

__all__ = ["LOCK_NAME", "TemporaryDirectory"]

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
        token: the random part.
        path: of the directory.
    """

    def __init__(self, prefix: str, token: str | None = None) -> None:
        self.token = token or secrets.token_hex(8)
        self.path = f"{prefix}_temp_{self.token}"
        self._lock: int | None = None

    def make(self) -> None:
        """Makes it, and the directories above it that are missing.

        Raises:
            StorageError: it cannot be made.
        """
        path = os.path.join(self.path, LOCK_NAME)
        try:
            for _ in range(TRIES):
                os.makedirs(self.path, exist_ok=True)
                # Somebody who cleans up may just have taken an empty directory for a dead one.
                with contextlib.suppress(FileNotFoundError, BlockingIOError):
                    self._lock = _locked(path)
                    return
        except OSError as error:
            raise StorageError(
                f"cannot make the temporary directory of the save: {error.strerror}",
                path=self.path,
                errno=error.errno,
            ) from None
        raise StorageError("the temporary directory of the save is removed again", path=self.path)

    def remove(self) -> None:
        """Removes it with everything in it. What cannot be removed stays."""
        with contextlib.suppress(OSError):
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
            os.rmdir(self.path)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _locked(path: str) -> int:
    """Makes the file and locks it; an OSError of FileNotFoundError or BlockingIOError if somebody
    removes it just now. Where the file system has no locks it is only made."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            return fd
        if not os.path.samestat(os.fstat(fd), os.stat(path)):
            raise FileNotFoundError
    except BaseException:
        os.close(fd)
        raise
    return fd
