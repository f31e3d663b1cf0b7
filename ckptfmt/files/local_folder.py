# SPDX-License-Identifier: Apache-2.0
"""LocalFolder: every operation on the files of a directory of checkpoints.

All operations of an open one go through one descriptor of the directory: if another directory takes
its place meanwhile, nothing there is listed, written or removed. Names are names of files in it,
without a slash, taken literally. Symbolic links are removed themselves, never their targets.
Directories are not removed, except the temporary ones of killed saves.
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
from typing import NoReturn, Self

from ckptfmt import _core
from ckptfmt._base.arguments import Durability
from ckptfmt._base.names import INTENT, index_name, is_url, parse_data_name
from ckptfmt._base.untrusted import open_regular
from ckptfmt.errors import BusyError, InvalidError, StorageError
from ckptfmt.files.orphans import DATA, INDEX
from ckptfmt.files.places import MISSING
from ckptfmt.files.temporary import (
    DIRECTORY_FLAGS,
    OwnDescriptor,
    TemporaryDirectory,
    make_directory,
    replace_file,
    sync_descriptor,
    temporary_name,
)

LOCK_SECONDS = 300.0
PAUSE_MIN, PAUSE_MAX = 0.001, 0.05
SMALL_BYTES_MAX = 64 << 20
# As many symbolic links are followed from one to the next.
LINKS_MAX = 40


class LocalFolder:
    """A directory of checkpoints in the file system. `opened` returns an open one, for one thread.

    Its lock excludes other processes, and other objects of this class in this process.

    Args:
        path: the directory, for messages as well.
        durability: "full" syncs what is written and removed.
    """

    why_no_sweep = (
        "nothing can be removed here: the file system has no locks, or a writer on another machine "
        "may be alive"
    )
    _fd = -1  # not open

    def __init__(self, path: str, *, durability: Durability = "full") -> None:
        self.path = os.path.dirname(path) if path.endswith("/") else path
        self._full = durability == "full"
        self._durability: Durability = durability
        self._lock: OwnDescriptor | None = None
        self._has_locks = False

    def opened(self) -> Self:
        """Return the same, open, as a context manager.

        Raises:
            StorageError: it cannot be opened.
        """
        folder = type(self)(self.path, durability=self._durability)
        try:
            folder._fd = os.open(self.path or ".", DIRECTORY_FLAGS)
        except OSError as error:
            raise self._failed("the directory cannot be opened", error) from None
        return folder

    def close(self) -> None:
        """Close the descriptor."""
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

    # ---- by path, without opening it -----------------------------------------------------------

    def absolute(self) -> Self:
        """Return the same, whatever becomes the working directory of the program."""
        return type(self)(os.path.join(os.getcwd(), self.path), durability=self._durability)

    def make(self) -> None:
        """Create the directory and those above it.

        Raises:
            StorageError: it cannot be created.
        """
        make_directory(self.path, self._durability)

    def remove_if_empty(self) -> None:
        """Remove the directory if nothing is in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def sweep_before_save(self, name: str, *, numbered: bool = False) -> None:
        """Remove what killed saves and removals of a checkpoint left; with `numbered` those of all
        checkpoints `<name>-<n>`."""
        _core.sweep_before_save(os.path.join(self.path, name), numbered=numbered)

    def temporary(self, name: str, token: str | None = None) -> TemporaryDirectory:
        """Return the temporary directory of a save of the checkpoint `name`."""
        path = os.path.join(self.path, name)
        return TemporaryDirectory(path, token, durability=self._durability)

    @property
    def scratch(self) -> str:
        """A directory for large temporary files."""
        return self.path or "."

    def local_files(self, name: str) -> Iterator[str]:
        """Yield the paths of the files of a checkpoint: its index and data files."""
        yield os.path.join(self.path, index_name(name))
        with contextlib.suppress(OSError):
            for file in sorted(os.listdir(self.path or ".")):
                data = parse_data_name(file)
                if data is not None and data.prefix == name:
                    yield os.path.join(self.path, file)

    def indexed(self) -> list[tuple[str, int]]:
        """Return the checkpoints in the directory, each with the time of its index in nanoseconds;
        none if there is no directory.

        Raises:
            StorageError: it cannot be listed now.
        """
        found = []
        try:
            with os.scandir(self.path or ".") as entries:
                for entry in entries:
                    name = entry.name.removesuffix(INDEX)
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        if name and name != entry.name and entry.is_file():
                            found.append((name, entry.stat().st_mtime_ns))
        except OSError as error:
            if error.errno not in MISSING:
                raise self._failed("the directory cannot be listed", error) from None
        return found

    def inside(self, folder: str) -> str | None:
        """Return where a folder ("", "a/b/") is, relative to this one, after symbolic links; None
        outside."""
        if is_url(folder):
            return None
        root = os.path.realpath(self.path)
        found = os.path.realpath(os.path.join(self.path, folder))
        inside = os.path.commonpath([root, found]) == root
        return os.path.relpath(found, root) if inside else None

    def leftovers(self, seconds: float, *, remove: bool) -> NoReturn:
        """Refuse to go by the age of files.

        Raises:
            InvalidError: always.
        """
        raise InvalidError(
            "it is for URLs. In a directory locks show which writers are dead: leave it out",
            argument="older_than",
        )

    @contextlib.contextmanager
    def claimed(self, name: str) -> Iterator[None]:
        """Hold the lock of a file of this name, which is removed before the lock is released. The
        lock ends with the process: a forked child closes its copy.

        Raises:
            BlockingIOError: another thread or process holds it.
            OSError: the file cannot be created or locked.
        """
        path = os.path.join(self.path, name)
        while (lock := _locked(path)) is None:
            pass
        try:
            yield
        finally:
            if lock.fd >= 0:  # not in a child that was forked inside
                with contextlib.suppress(OSError):
                    os.unlink(path)
                lock.close()

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

    def links(self) -> Iterator[tuple[str, list[str]]]:
        """Yield for each symbolic link in the directory its name and, one link at a time, the names
        in the directory that it leads to."""
        top = os.path.realpath(self.path)
        for name in sorted(self.names()):
            targets = [os.path.split(one) for one in _targets(os.path.join(top, name))]
            if here := [base for folder, base in targets if folder == top]:
                yield name, here

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
                sync_descriptor(self._descriptor())
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
            raise InvalidError("the directory is not open", path=self.path)
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


def _targets(path: str) -> Iterator[str]:
    """Yield the paths that a symbolic link leads to, one link at a time. Their directories are
    resolved."""
    for _ in range(LINKS_MAX):
        try:
            target = os.readlink(path)
        except OSError:
            return
        folder, base = os.path.split(os.path.join(os.path.dirname(path), target))
        path = os.path.join(os.path.realpath(folder), base)
        yield path


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
