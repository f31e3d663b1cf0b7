# SPDX-License-Identifier: Apache-2.0
"""Files by path or by URL. `ckptfmt.stores` is imported by the first URL."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Any

from ckptfmt import _core
from ckptfmt._base.names import is_url
from ckptfmt._base.untrusted import open_regular
from ckptfmt.errors import GenerationGoneError, StorageError

# A file with such a name cannot be there.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def store_of(path: str) -> Any | None:
    """Return a store for one handle on this URL; None for a path of the file system.

    Raises:
        StorageError: there is no store for this URL.
    """
    if not is_url(path):
        return None
    from ckptfmt import stores  # noqa: PLC0415 (only a URL needs it)

    return stores.store_for(path)


def _store_of_url(url: str) -> Any:
    store = store_of(url)
    assert store is not None
    return store


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(error.strerror or str(error), path=path, errno=error.errno) from None


def is_file(path: str) -> bool:
    """Return whether there is a file or object of this name.

    Raises:
        StorageError: it cannot be looked up now: that says nothing about whether it is there.
    """
    store = store_of(path)
    with _errors(path):
        if store is None:
            return stat.S_ISREG(_mode(path))
        return store.info(path) is not None


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


def is_directory(path: str) -> bool:
    """Return whether this is a directory; in a store, whether objects are below it.

    Raises:
        StorageError: as is_file, of the file system.
    """
    store = store_of(path)
    if store is None:
        with _errors(path):
            return stat.S_ISDIR(_mode(path))
    try:
        return bool(_listed(store, path))
    except StorageError as error:
        if error.errno == errno.ENOTSUP:  # over HTTP
            return False
        raise


def file_size(path: str) -> int:
    """Return the size of a file in bytes.

    Raises:
        OSError: FileNotFoundError if there is none.
    """
    store = store_of(path)
    if store is None:
        return os.stat(path).st_size
    with _errors(path):
        found = store.info(path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return int(found.size)


def object_identity(url: str) -> Any:
    """Return what changes when another object replaces this one; None if there is none.

    Raises:
        StorageError.
    """
    with _errors(url):
        return _store_of_url(url).info(url)


def names_in(directory: str) -> list[str]:
    """Return the sorted names in a directory; none if it cannot be listed."""
    store = store_of(directory)
    try:
        return sorted(os.listdir(directory) if store is None else _listed(store, directory))
    except OSError:
        return []


def _listed(store: Any, directory: str) -> list[str]:
    with _errors(directory):
        files, directories = store.entries(directory)
        return [*files, *directories]


def entries(directory: str) -> tuple[list[str], list[str]]:
    """Return the names of the files in a directory, and of the directories in it, without those
    that are symbolic links.

    Raises:
        StorageError: it cannot be listed.
    """
    store = store_of(directory)
    with _errors(directory):
        if store is not None:
            files, directories = store.entries(directory)
            return files, directories
        with os.scandir(directory) as found:
            every = [(entry.name, entry.is_dir(), entry.is_symlink()) for entry in found]
    return (
        [name for name, is_dir, _ in every if not is_dir],
        [name for name, is_dir, is_link in every if is_dir and not is_link],
    )


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
    store = store_of(path)
    if store is None:
        with open(open_regular(path), "rb") as stream:
            stream.seek(first)
            while first < end and (piece := stream.read(min(end - first, size))):
                yield piece
                first += len(piece)
        return
    with _errors(path):
        found = store.open(path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    with _errors(path):
        for start in range(first, min(end, found[1].size), size):
            content = bytearray(min(size, found[1].size - start, end - start))
            store.read_batch([_core.Read(found[0], start, memoryview(content))])
            yield bytes(content)


class OpenObject:
    """An object of a store as it was when this was made."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store = _store_of_url(url)
        with _errors(url):
            self._found = self._store.open(url)

    def read(self) -> bytes:
        """Return its bytes.

        Raises:
            GenerationGoneError: it has been replaced.
        """
        with _errors(self._url):
            now = self._store.info(self._url)
            if self._found is None or now != self._found[1]:
                raise GenerationGoneError(
                    "it was replaced while it was being opened; restore it again", path=self._url
                )
            content = bytearray(now.size)
            self._store.read_batch([_core.Read(self._found[0], 0, memoryview(content))])
        return bytes(content)


def write_object(url: str, content: bytes) -> None:
    """Replace a small object of a store.

    Raises:
        StorageError.
    """
    with _errors(url):
        _store_of_url(url).replace(url, content)


def read_object(url: str, limit: int) -> bytes | None:
    """Return the first bytes of an object, at most so many; None if it does not exist.

    Raises:
        StorageError.
    """
    try:
        return read_file(url, limit)
    except FileNotFoundError:
        return None


def list_objects(directory: str) -> list[str]:
    """Return the names of the objects right below a directory of a store.

    Raises:
        StorageError.
    """
    with _errors(directory):
        return list(_store_of_url(directory).list(directory))


def remove_object(url: str) -> None:
    """Remove an object; a missing one is not an error.

    Raises:
        StorageError.
    """
    with _errors(url):
        _store_of_url(url).remove(url)
