# SPDX-License-Identifier: Apache-2.0
"""Temporary files and directories (`<prefix>_temp_<16 hex digits>`), each with a lock that shows
that its writer is alive (CMT-15)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial

from ckptfmt import _core
from ckptfmt._base.names import index_name
from ckptfmt.errors import BusyError, DurabilityUnknownError, StorageError, storage_errors

# The lock file in a temporary directory. It is created first and removed last.
LOCK_NAME = "writer.lock"
TRIES = 16
DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class OwnDescriptor:
    """A descriptor whose lock must not outlive this process: a forked child closes its copy at
    once.

    Args:
        open_file: opens the file and returns the descriptor. No thread can fork between that and
            the moment when the descriptor is known here.

    Attributes:
        fd: the descriptor; -1 once it is closed, and in a forked child.
    """

    fd = -1

    def __init__(self, open_file: Callable[[], int]) -> None:
        with _forking:
            self.fd = open_file()
            _open.add(self)

    def close(self) -> None:
        """Close it, which releases its lock. An error is ignored: it is closed all the same."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        self.close()


_open: weakref.WeakSet[OwnDescriptor] = weakref.WeakSet()
# Held from before a file is opened until its descriptor is known, and during a fork. A child makes
# its own: if this module was imported during the fork, another thread may have held this one.
_forking = threading.RLock()


def _acquire_before() -> None:
    _forking.acquire()


def _release_in_parent() -> None:
    with contextlib.suppress(RuntimeError):  # this module was imported during the fork
        _forking.release()


def _close_in_child() -> None:
    global _open, _forking
    for descriptor in list(_open):
        descriptor.close()
    _open, _forking = weakref.WeakSet(), threading.RLock()


os.register_at_fork(
    before=_acquire_before, after_in_parent=_release_in_parent, after_in_child=_close_in_child
)


class TemporaryDirectory:
    """A directory beside a checkpoint for the shards of one save.

    Every process that writes there holds its lock, shared with the others; a lock ends with the
    process at the latest. While a process holds it, neither a sweep nor `leave` removes the
    directory, so that no process creates it again without a lock. Where locks do not work, or only
    one machine sees them, no sweep removes it; the process that has drawn its name does when it
    leaves, and the others never do.

    Args:
        prefix: of the checkpoint that is saved.
        token: the random part of the name, if another process (process 0) has drawn it.
        durability: of the save; see `make_directory`.

    Attributes:
        token: the random part of the name; `make` may change one that it has drawn.
        path: of the directory.
    """

    def __init__(self, prefix: str, token: str | None = None, *, durability: str = "full") -> None:
        self._prefix = prefix
        self._durability = durability
        self._joins = token is not None
        self._lock: OwnDescriptor | None = None
        # A descriptor of the directory, closed to free one for listing it.
        self._reserve: OwnDescriptor | None = None
        self._name(token or secrets.token_hex(8))

    def _name(self, token: str) -> None:
        self.token, self.path = token, f"{self._prefix}_temp_{token}"

    def make(self) -> None:
        """Create the directory and its missing parents, unless another process of the save has, and
        take its lock.

        Raises:
            StorageError: it cannot be created.
            BusyError: process 0, which has drawn its name, has left it (failure "PEERS_MISSING").
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        make_directory(os.path.dirname(self.path), self._durability)
        old = permissions(index_name(self._prefix))
        try:
            for _ in range(TRIES):
                with contextlib.suppress(FileExistsError):
                    # Who may not read the old checkpoint may not read the new one's parts.
                    mode = 0o777 if old is None else 0o700 | old | (old & 0o444) >> 2
                    os.mkdir(self.path, mode)
                path = os.path.join(self.path, LOCK_NAME)
                # Another process may sweep the directory before this one has its lock: try another
                # name. One that process 0 has drawn cannot change: it merges from there.
                with contextlib.suppress(FileNotFoundError):
                    self._reserve = OwnDescriptor(partial(os.open, self.path, DIRECTORY_FLAGS))
                    lock = OwnDescriptor(partial(os.open, path, flags, 0o666))
                    if _hold(lock.fd, path, fcntl.LOCK_SH):
                        self._lock = lock
                        return
                    lock.close()
                if self._joins:
                    break
                self._name(secrets.token_hex(8))
        except OSError as error:
            self._reserve = None
            with contextlib.suppress(OSError):
                os.rmdir(self.path)  # only if it is empty
            raise StorageError(
                f"cannot create the temporary directory of the save: {error.strerror}",
                path=self.path,
                errno=error.errno,
            ) from None
        if self._joins:
            # While process 0 holds the lock, nobody removes the directory.
            raise BusyError(
                "another process ended: process 0 has left the temporary directory of the save",
                failure="PEERS_MISSING",
            )
        raise StorageError(
            "another process keeps removing the temporary directory of the save", path=self.path
        )

    def release(self) -> None:
        """Release the lock: this process writes nothing more there."""
        lock, self._lock = self._lock, None
        if lock is not None and lock.fd >= 0:  # not in a forked child
            with contextlib.suppress(OSError):
                # Closing alone releases it later if a program that is being started has a copy.
                fcntl.flock(lock.fd, fcntl.LOCK_UN)
            lock.close()

    def leave(self) -> None:
        """Release the lock, and remove the directory as `remove` does if no other process holds it.
        The last process to leave removes it, or the next sweep. Where no lock shows whether others
        write there, the process that has drawn the name removes it at once."""
        self.release()
        path = os.path.join(self.path, LOCK_NAME)
        with contextlib.suppress(OSError):
            lock = OwnDescriptor(partial(os.open, path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
            try:
                # On a network file system other machines may not see the lock.
                is_last = not self._joins
                if _core.is_local(lock.fd):
                    is_last = _hold(lock.fd, path, fcntl.LOCK_EX, without_locks=is_last)
                if is_last:
                    self._remove(lock)
            finally:
                lock.close()
        self._reserve = None

    def remove(self) -> None:
        """Remove the directory, in which no process writes any more, with its content, as far as
        that is possible. Raises nothing."""
        # First: there may be no other descriptor to list the directory with. What stays, after
        # Ctrl-C too, can be swept.
        self.release()
        with contextlib.suppress(OSError):
            self._remove()

    def _remove(self, lock: OwnDescriptor | None = None) -> None:
        self._reserve = None
        for entry in os.scandir(self.path):
            if entry.name == LOCK_NAME:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
        # A directory with files and without a lock would stay for good.
        if set(os.listdir(self.path)) <= {LOCK_NAME}:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, LOCK_NAME))
            if lock is not None:
                lock.close()  # NFS keeps an open file in the directory, under another name
            os.rmdir(self.path)


def temporary_name(name: str) -> str:
    """Return a new temporary name of a file."""
    # The first digit is a letter: TensorFlow's names are decimal.
    return f"{name}.tempstate{secrets.randbits(64) | 0xA << 60:016x}"


def permissions(path: str, directory_fd: int | None = None) -> int | None:
    """Return the permission bits of a file that is to be replaced; None if there is none."""
    try:
        return os.stat(path, dir_fd=directory_fd).st_mode & 0o777
    except (OSError, ValueError):
        return None


def make_file(name: str, directory_fd: int, like: str | None = None) -> tuple[str, OwnDescriptor]:
    """Create a file that is to be renamed to `name`, with the permissions of the one that it
    replaces, else of `like`. Returns its temporary name and a descriptor, which holds its lock.

    Raises:
        OSError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    old = permissions(name, directory_fd)
    if old is None and like is not None:
        old = permissions(like, directory_fd)
    for _ in range(TRIES):
        temporary = temporary_name(name)
        mode = 0o666 if old is None else old
        lock = OwnDescriptor(partial(os.open, temporary, flags, mode, dir_fd=directory_fd))
        if old is not None:
            with contextlib.suppress(OSError):  # of a file system without permissions
                os.fchmod(lock.fd, old)
        if _hold(lock.fd, temporary, fcntl.LOCK_SH, directory_fd):
            return temporary, lock
        lock.close()
    raise FileExistsError(errno.EEXIST, "cannot find a free temporary name")


def _hold(
    fd: int, name: str, kind: int, directory_fd: int | None = None, *, without_locks: bool = True
) -> bool:
    """Take the lock of a file. Returns whether this process has it and the file its name: no other
    process is removing it. Returns `without_locks` on a file system without locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return without_locks
    try:
        return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=directory_fd))
    except FileNotFoundError:
        return False


# ---- small files ---------------------------------------------------------------------------------


def make_directory(path: str, durability: str) -> None:
    """Create a directory ("" is the working directory) and those above it. Unless `durability` is
    "none", sync the parent of each that is created: a later durable save relies on the directory.

    Raises:
        StorageError: it cannot be created.
    """
    missing = []
    level = os.path.abspath(path)
    with storage_errors(path):
        while True:
            try:
                os.stat(level)  # os.path.isdir would take any error for a missing directory
                break
            except FileNotFoundError:
                missing.append(level)
                level = os.path.dirname(level)
        if missing:
            os.makedirs(missing[0], exist_ok=True)
        for created in missing if durability != "none" else ():
            with open_directory(os.path.dirname(created)) as parent:
                sync_descriptor(parent)


@contextlib.contextmanager
def open_directory(directory: str) -> Iterator[int]:
    """Open a directory ("" is the working directory) for the time of a `with` block."""
    with storage_errors(directory or "."):
        descriptor = os.open(directory or ".", DIRECTORY_FLAGS)
    try:
        yield descriptor
    finally:
        with contextlib.suppress(OSError):  # the descriptor is closed even so
            os.close(descriptor)


def sync_descriptor(fd: int) -> None:
    """Write a file or directory to its device."""
    os.fsync(fd)
    if sys.platform == "darwin":  # where fsync leaves it in the cache of the drive
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)


def replace_file(directory_fd: int, path: str, content: bytes, durability: str) -> None:
    """Replace a small file by rename: other processes see the old content or the new one.

    Args and errors are those of `replacing_file`; `content` is the new content.
    """
    with _replacing(directory_fd, path, durability) as (_, fd):
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]


@contextlib.contextmanager
def replacing_file(
    directory_fd: int, path: str, durability: str, like: str | None = None
) -> Iterator[tuple[str, int]]:
    """Replace a file by rename when the `with` block ends; an exception leaves the old one. First,
    what killed saves to this path left is removed.

    Args:
        directory_fd: descriptor of the directory.
        path: of the file; only the last component is opened, the rest is for errors.
        durability: as in `update_checkpoint_state`.
        like: name of the file in the directory whose permissions a new file gets.

    Yields:
        The path of the new file, and its descriptor.

    Raises:
        StorageError: the new file is not in place.
        DurabilityUnknownError: it is, but a power cut may bring the old one back.
    """
    _core.sweep_before_save(path)
    with _replacing(directory_fd, path, durability, like) as new:
        yield new


@contextlib.contextmanager
def _replacing(
    directory_fd: int, path: str, durability: str, like: str | None = None
) -> Iterator[tuple[str, int]]:
    directory, name = os.path.split(path)
    with storage_errors(path):
        temporary, lock = make_file(name, directory_fd, like)
        try:
            yield os.path.join(directory, temporary), lock.fd
            if durability == "full":
                sync_descriptor(lock.fd)
            os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory_fd)
            raise
        finally:
            lock.close()
    if durability == "full":
        try:
            sync_descriptor(directory_fd)
        except OSError as error:
            raise DurabilityUnknownError(
                "the new file is in place, but a power cut may still bring the old one back: "
                f"{error.strerror}",
                path=path,
                errno=error.errno,
            ) from None
