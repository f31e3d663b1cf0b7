# SPDX-License-Identifier: Apache-2.0
"""Files by path or by URL: `_at` is the one place that asks which of the two a path is, with
`folder_of` for whole directories. `ckptfmt.stores` is imported by the first URL."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ckptfmt import _core
from ckptfmt._base.names import is_url
from ckptfmt._base.untrusted import open_regular
from ckptfmt.errors import GenerationGoneError, UnsupportedError, storage_errors

# The SHA-256 of a file that was opened; None if another has replaced it.
Digest = Callable[[], bytes | None]

# A file with such a name cannot be there.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
# Errors of a file that is missing or cannot be a file of a checkpoint. Others, such as EMFILE, EIO
# and ESTALE, may be transient.
MISSING = frozenset([*_ABSENT, errno.EISDIR, errno.EINVAL, errno.ENXIO])


def store_of(path: str) -> Any | None:
    """Return a store for one handle on this URL, for the core; None for a path of the file system.

    Raises:
        StorageError: there is no store for this URL.
    """
    return _at(path).store


def is_file(path: str) -> bool:
    """Return whether there is a file or object of this name.

    Raises:
        StorageError: it cannot be looked up now: that says nothing about whether it is there.
    """
    with storage_errors(path):
        return _at(path).is_file(path)


def is_directory(path: str) -> bool:
    """Return whether this is a directory; in a store, whether objects are below it.

    Raises:
        StorageError: as is_file.
    """
    with storage_errors(path):
        return _at(path).is_directory(path)


def is_there(path: str) -> bool:
    """Return whether there is anything of this name: a link to nothing, too.

    Raises:
        StorageError: as is_file.
    """
    with storage_errors(path):
        return _at(path).is_there(path)


def file_size(path: str) -> int:
    """Return the size of a file in bytes.

    Raises:
        OSError: FileNotFoundError if there is none.
    """
    return _at(path).size(path)


def modified(path: str) -> int:
    """Return when a file was written, in whole seconds since 1970.

    Raises:
        OSError: FileNotFoundError if there is none.
        UnsupportedError: its store does not say.
    """
    return _at(path).modified(path)


def identity(path: str) -> Any:
    """Return what changes when another file replaces this one; None if the file is missing.

    Raises:
        StorageError: the file cannot be examined.
    """
    with storage_errors(path):
        return _at(path).identity(path)


def names_in(directory: str) -> list[str]:
    """Return the sorted names in a directory; none if it cannot be listed."""
    try:
        return sorted(_at(directory).names(directory))
    except OSError:
        return []


def entries(directory: str) -> tuple[list[str], list[str]]:
    """Return the names of the files in a directory, and of the directories in it, without those
    that are symbolic links.

    Raises:
        StorageError: it cannot be listed.
    """
    with storage_errors(directory):
        return _at(directory).entries(directory)


def read_file(path: str, limit: int) -> bytes:
    """Return the first bytes of a file, at most so many.

    Raises:
        OSError.
    """
    return b"".join(pieces_of(path, 0, limit, limit))


def read_ends(path: str, first: int, last: int) -> tuple[bytes, bytes]:
    """Return the first bytes of a file and the last ones, fewer of a smaller file.

    Raises:
        OSError.
    """
    size = file_size(path)
    tail = max(size - last, 0)
    return read_file(path, first), b"".join(pieces_of(path, tail, size, last))


def pieces_of(path: str, first: int, end: int, size: int) -> Iterator[bytes]:
    """Yield bytes [first, end) of a file, as far as it has them, in pieces of at most `size`.

    Raises:
        OSError.
    """
    return _at(path).pieces(path, first, end, size)


@contextlib.contextmanager
def opened(path: str) -> Iterator[Callable[[], bytes]]:
    """Open a file as it is now. Yields a function that returns the SHA-256 of its bytes.

    Raises (the function; the block only StorageError):
        GenerationGoneError: it could not be opened, or another one has replaced it since.
        StorageError: it cannot be read now.
    """

    def replaced() -> bytes:
        with storage_errors(path), contextlib.suppress(FileNotFoundError):
            found = digest()
            if found is not None:
                return found
        raise GenerationGoneError(
            "it was replaced while it was being opened; restore it again", path=path
        )

    with contextlib.ExitStack() as stack:
        with storage_errors(path):
            digest = stack.enter_context(_at(path).digester(path))
        yield replaced


def canonical(path: str) -> str:
    """Return what is the same for all spellings of a path whose last component is no link."""
    return _at(path).canonical(path)


def elsewhere(path: str, others: Iterable[str]) -> str | None:
    """Return the first of the others that is a URL where `path` is none, or the reverse: no bytes
    are linked or moved between the two. None if there is no such one."""
    here = is_url(path)
    return next((other for other in others if is_url(other) != here), None)


class _Disk:
    """Files of the file system."""

    store = None

    def is_file(self, path: str) -> bool:
        return stat.S_ISREG(_mode(path))

    def is_there(self, path: str) -> bool:
        try:
            os.lstat(path)
        except OSError as error:
            if error.errno not in MISSING:
                raise
            return False
        return True

    def is_directory(self, path: str) -> bool:
        return stat.S_ISDIR(_mode(path))

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 10**9

    def identity(self, path: str) -> Any:
        try:
            info = os.stat(path)
        except OSError as error:
            if error.errno in MISSING:
                return None
            raise
        return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size

    def names(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def entries(self, directory: str) -> tuple[list[str], list[str]]:
        with os.scandir(directory) as found:
            every = [(entry.name, entry.is_dir(), entry.is_symlink()) for entry in found]
        return (
            [name for name, is_dir, _ in every if not is_dir],
            [name for name, is_dir, is_link in every if is_dir and not is_link],
        )

    def pieces(self, path: str, first: int, end: int, size: int) -> Iterator[bytes]:
        with open(open_regular(path), "rb") as stream:
            stream.seek(first)
            while first < end and (piece := stream.read(min(end - first, size))):
                yield piece
                first += len(piece)

    @contextlib.contextmanager
    def digester(self, path: str) -> Iterator[Digest]:
        import hashlib  # noqa: PLC0415 (only processes that restore together need it)

        with contextlib.ExitStack() as stack:
            file: io.BufferedReader | None = None
            with contextlib.suppress(OSError):  # the reader of the checkpoint reports why
                file = stack.enter_context(open(open_regular(path), "rb"))

            def digest() -> bytes | None:
                if file is None or not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    return None
                return hashlib.file_digest(file, "sha256").digest()

            yield digest

    def canonical(self, path: str) -> str:
        directory, base = os.path.split(path)
        return os.path.join(os.path.realpath(directory), base)


def _mode(path: str) -> int:
    """Return the mode of a file or directory; 0 if there is none."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise
    except ValueError:  # a name that no file can have
        return 0


class _Objects:
    """Objects of a store, by URL."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def is_file(self, url: str) -> bool:
        return self.store.info(url) is not None

    def is_there(self, url: str) -> bool:
        return self.is_file(url) or self.is_directory(url)

    def is_directory(self, url: str) -> bool:
        try:
            return bool(self.names(url))
        except OSError as error:
            if error.errno == errno.ENOTSUP:  # over HTTP
                return False
            raise

    def size(self, url: str) -> int:
        with storage_errors(url):
            found = self.store.info(url)
        return int(_found(found, url).size)

    def modified(self, url: str) -> int:
        directory, _, name = url.rpartition("/")
        with storage_errors(url):
            files, _ = self.store.listing(f"{directory}/")
        if name in files and files[name] is None:
            raise UnsupportedError("the store does not say when this was written", path=url)
        return math.floor(float(_found(files.get(name), url)))

    def identity(self, url: str) -> Any:
        return self.store.info(url)

    def names(self, url: str) -> list[str]:
        files, directories = self.store.entries(url)
        return [*files, *directories]

    def entries(self, url: str) -> tuple[list[str], list[str]]:
        files, directories = self.store.entries(url)
        return files, directories

    def pieces(self, url: str, first: int, end: int, size: int) -> Iterator[bytes]:
        with storage_errors(url):
            found = self.store.open(url)
        opened, info = _found(found, url)
        with storage_errors(url):
            for start in range(first, min(end, info.size), size):
                content = bytearray(min(size, info.size - start, end - start))
                self.store.read_batch([_core.Read(opened, start, memoryview(content))])
                yield bytes(content)

    @contextlib.contextmanager
    def digester(self, url: str) -> Iterator[Digest]:
        import hashlib  # noqa: PLC0415

        opened = self.store.open(url)

        def digest() -> bytes | None:
            now = self.store.info(url)
            if opened is None or now != opened[1]:
                return None
            content = bytearray(now.size)
            self.store.read_batch([_core.Read(opened[0], 0, memoryview(content))])
            return hashlib.sha256(content).digest()

        yield digest

    def canonical(self, url: str) -> str:
        return url


def _found(answer: Any, url: str) -> Any:
    if answer is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
    return answer


_DISK = _Disk()


def _at(path: str) -> _Disk | _Objects:
    if not is_url(path):
        return _DISK
    from ckptfmt import stores  # noqa: PLC0415 (only a URL needs it)

    return _Objects(stores.store_for(path))
