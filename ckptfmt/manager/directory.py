# SPDX-License-Identifier: Apache-2.0
"""CheckpointDirectory: every operation of a manager on the files of its directory.

All operations go through one descriptor of the directory: if another directory takes its place
meanwhile, nothing there is listed, written or removed. Names are names of files in it, without a
slash, taken literally. Symbolic links are removed themselves, never their targets. Directories are
not removed, except the temporary ones of killed saves.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Self

from ckptfmt import _core
from ckptfmt._base.arguments import Durability
from ckptfmt._base.names import INTENT, index_name, parse_data_name
from ckptfmt._base.untrusted import open_regular
from ckptfmt.errors import BusyError, InvalidError, StorageError
from ckptfmt.files.orphans import DATA
from ckptfmt.files.temporary import (
    DIRECTORY_FLAGS,
    OwnDescriptor,
    replace_file,
    temporary_name,
)

LOCK_SECONDS = 300.0
PAUSE_MIN, PAUSE_MAX = 0.001, 0.05
SMALL_BYTES_MAX = 64 << 20


class CheckpointDirectory:
    """An open directory of checkpoints, used by one thread. A context manager.

    Its lock excludes other processes, and other objects of this class in this process.

    Args:
        path: the directory, for messages as well.
        durability: "full" syncs what is written and removed.

    Raises:
        StorageError: it cannot be opened.
    """

    _fd = -1  # closed

    def __init__(self, path: str, *, durability: Durability = "full") -> None:
        self.path = path
        self._full = durability == "full"
        self._durability = durability
        self._lock: OwnDescriptor | None = None
        self._has_locks = False
        try:
            self._fd = os.open(self.path or ".", DIRECTORY_FLAGS)
        except OSError as error:
            raise self._failed("the directory cannot be opened", error) from None

    def close(self) -> None:
        """Close the descriptor; the object cannot be used any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # it is closed all the same
                os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # ---- lock ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self, timeout: float = LOCK_SECONDS) -> Iterator[None]:
        """Hold the directory's lock (CMT-14) in the block.

        May be nested. Never save into the directory meanwhile: a commit waits for this lock. On a
        file system without locks nothing is excluded.

        Args:
            timeout: seconds to wait for another owner.

        Raises:
            BusyError: another owner held it for that long.
            StorageError: the directory cannot be opened for its lock.
        """
        if self._lock is not None and self._lock.fd >= 0:
            yield
            return
        here = self._descriptor()
        try:
            # A descriptor of its own: a lock belongs to the open file, and a forked child closes
            # this one.
            lock = OwnDescriptor(partial(os.open, ".", DIRECTORY_FLAGS, dir_fd=here))
        except OSError as error:
            raise self._failed("the directory cannot be locked", error) from None
        try:
            self._has_locks = self._acquire(lock.fd, timeout)
            self._lock = lock
            yield
        finally:
            self._lock = None
            lock.close()

    def _acquire(self, fd: int, timeout: float) -> bool:
        """Wait for the lock; False if the file system has none."""
        end, pause = time.monotonic() + timeout, PAUSE_MIN
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise BusyError(
                        f"another process or thread has held the directory's lock for {timeout:g} "
                        "seconds",
                        path=self.path,
                    ) from None
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX)
            except OSError:
                return False
            else:
                return True

    # ---- files ---------------------------------------------------------------------------------

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the directory that was opened."""
        try:
            info = os.fstat(self._descriptor())
        except OSError as error:
            raise self._failed("the directory cannot be examined", error) from None
        return info.st_dev, info.st_ino

    def names(self) -> list[str]:
        """Return all names in the directory, in no order."""
        try:
            return os.listdir(self._descriptor())
        except OSError as error:
            raise self._failed("the directory cannot be listed", error) from None

    def exists(self, name: str) -> bool:
        """Return whether this checkpoint has an index; True also if that cannot be determined."""
        try:
            return stat.S_ISREG(
                os.stat(_checked(index_name(name)), dir_fd=self._descriptor()).st_mode
            )
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR)

    def read(self, name: str, limit: int = SMALL_BYTES_MAX) -> bytes | None:
        """Return the content of a small file, at most `limit` bytes and one; None if it does not
        exist.

        Raises:
            StorageError: it cannot be read, or is not a regular file.
        """
        try:
            fd = open_regular(_checked(name), directory=self._descriptor())
            with open(fd, "rb") as stream:
                return stream.read(min(os.fstat(fd).st_size, limit) + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed("the file cannot be read", error, name) from None

    def write_state(self, name: str, content: bytes, durability: Durability | None = None) -> None:
        """Replace a small file by atomic rename.

        Args:
            name: its name.
            content: its new content.
            durability: default that of the directory.

        Raises:
            StorageError: it could not be written; the old one is unchanged.
            DurabilityUnknownError: it is in place, but a power cut may bring the old one back.
        """
        path = os.path.join(self.path, _checked(name))
        replace_file(self._descriptor(), path, content, durability or self._durability)

    # ---- removing ------------------------------------------------------------------------------

    def remove_all(self, names: Iterable[str]) -> dict[str, StorageError]:
        """Remove checkpoints: all indexes, then the data files whose names are exactly those of
        these checkpoints, then the intent files of merges. A missing file is not an error.

        Meanwhile an index has a temporary name, by which `sweep` finishes a removal that was
        interrupted or could not remove everything. If an index cannot be removed, nothing of its
        checkpoint is.

        Args:
            names: the checkpoints.

        Returns:
            The first error of each checkpoint that could not be removed completely.

        Raises:
            StorageError: the directory cannot be listed or synced.
            BusyError: as in `lock`.
        """
        going = {_checked(name): [f"{name}{INTENT}"] for name in names}
        failed: dict[str, StorageError] = {}
        aside: dict[str, str | None] = {}
        with self.lock():
            for name in list(going):
                try:
                    aside[name] = self._put_aside(index_name(name))
                except StorageError as error:
                    failed[name] = error
                    del going[name]
            # A power cut must not bring back an index whose data files are gone.
            self.sync()
            for file in self.names() if going else ():
                owner = file.rpartition(DATA)[0]
                if owner in going and parse_data_name(file) is not None:
                    going[owner].append(file)
            for name, files in going.items():
                # Shard 0 last: while it exists, writers see the number as taken.
                for file in sorted(files, reverse=True):
                    try:
                        self.remove_file(file)
                    except StorageError as error:
                        failed.setdefault(name, error)
                if name not in failed and (index := aside[name]) is not None:
                    try:
                        self.remove_file(index)
                    except StorageError as error:
                        failed[name] = error
        return failed

    def remove_file(self, name: str) -> None:
        """Remove a file or a symbolic link. A missing file is not an error; a directory stays.

        Raises:
            StorageError: it could not be removed.
        """
        try:
            info = os.stat(name, dir_fd=self._descriptor(), follow_symlinks=False)
            if not stat.S_ISDIR(info.st_mode):
                os.unlink(name, dir_fd=self._descriptor())
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._failed("the file cannot be removed", error, name) from None

    def sync(self) -> None:
        """Sync the directory, if it was opened with durability "full"."""
        if self._full:
            try:
                os.fsync(self._descriptor())
            except OSError as error:
                raise self._failed("the directory cannot be synced", error) from None

    def sweep(self, checkpoint_name: str | None = "ckpt", *, dry_run: bool = False) -> list[str]:
        """Remove orphaned files of checkpoints named `<checkpoint_name>-<n>`, of all checkpoints
        and exports for None, by the rule CMT-15: nothing of a live writer, nothing that may belong
        to another program. With `dry_run` nothing is removed.

        Data files are removed only if an index that names them is beside them under a temporary
        name, which killed writers and removals leave.

        What cannot be removed stays for another time. Nothing is removed on a file system without
        locks, nor on a network file system, where a lock may be visible to one machine only.

        Returns:
            The names of the files and directories that were removed, or would be.

        Raises:
            StorageError: the directory cannot be listed or synced.
            BusyError: as in `lock`.
        """
        with self.lock():
            if not self.can_sweep():
                return []
            return _core.sweep(
                self._descriptor(), self.path, checkpoint_name, dry_run=dry_run, sync=self._full
            )

    def can_sweep(self) -> bool:
        """Return whether locks show which writers are alive. The caller holds the directory's
        lock."""
        return self._has_locks and _core.is_local(self._descriptor())

    # ---- the system ----------------------------------------------------------------------------

    def _descriptor(self) -> int:
        if self._fd < 0:
            raise InvalidError("the directory is closed", path=self.path)
        return self._fd

    def _stat(self, name: str) -> os.stat_result | None:
        """Return the status of a file, links not followed; None if the system reports an error."""
        try:
            return os.stat(name, dir_fd=self._descriptor(), follow_symlinks=False)
        except OSError:
            return None

    def _put_aside(self, index: str) -> str | None:
        """Rename an index to a temporary name, and return that; None if it was removed instead."""
        info = self._stat(index)
        if info is not None and stat.S_ISREG(info.st_mode):
            aside, fd = temporary_name(index), self._fd
            with contextlib.suppress(OSError):
                os.rename(index, aside, src_dir_fd=fd, dst_dir_fd=fd)
                return aside
        self.remove_file(index)
        return None

    def _failed(self, message: str, error: OSError, name: str = "") -> StorageError:
        """Return the error of an operation on the directory, or on the file `name` in it."""
        path = os.path.join(self.path, name) if name else self.path
        return StorageError(f"{message}: {error.strerror}", path=path, errno=error.errno)


def _checked(name: str) -> str:
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise InvalidError(f"{name!r} is not the name of a file in a directory", failure="BAD_PATH")
    return name
