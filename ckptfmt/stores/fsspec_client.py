# SPDX-License-Identifier: Apache-2.0
"""Other stores through fsspec. Its file systems have no conditional writes in common: two writers
of one prefix at a time are not kept apart."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from datetime import datetime
from typing import Any, TypeVar

import fsspec

from ckptfmt._core import ObjectInfo
from ckptfmt.errors import InvalidError
from ckptfmt.stores import waiting
from ckptfmt.stores.client import Body, BodyError

T = TypeVar("T")

PART_BYTES = 16 << 20
# What file systems say of a file that another content changes; "uid" is its owner.
_IDENTITY = (
    *("ETag", "etag", "e_tag", "md5Hash", "md5", "generation", "sha256", "oid", "blob_id"),
    *("xet_hash", "sha"),
)
_TIMES = ("LastModified", "last_modified", "mtime", "modified", "created")


def client(file_system: Any) -> FsspecClient:
    """Return a client over an fsspec file system."""
    return FsspecClient(file_system, None)


def open_root(root: str) -> FsspecClient:
    """Return a client of a URL's scheme and host."""
    try:
        file_system, _ = fsspec.core.url_to_fs(f"{root}/")
    except (ValueError, TypeError, ImportError, AttributeError) as error:  # by URLs without a part
        raise InvalidError(f"{root}: {error}") from None
    return FsspecClient(file_system, root)


@contextlib.contextmanager
def _errors(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.strerror:
            raise
        # OSError makes the right subclass from the number.
        known = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}
        number = known.get(type(error), error.errno or errno.EIO)
        raise OSError(number, str(error) or type(error).__name__, key) from None
    except NotImplementedError as error:
        raise OSError(errno.ENOTSUP, str(error) or "not supported", key) from None
    except Exception as error:
        raise BodyError(errno.EIO, f"{type(error).__name__}: {error}", key) from error


class FsspecClient:
    """A Client over an fsspec file system."""

    def __init__(self, file_system: Any, root: str | None) -> None:
        self._files, self._root = file_system, root
        self._under = waiting.BytesUnderWay()

    def key(self, rest: str) -> str:
        if self._root is None:
            return rest.rstrip("/")
        return str(self._files._strip_protocol(self._root + rest))

    def _request(
        self, key: str, function: Callable[[], T], size: int = 0
    ) -> Coroutine[Any, Any, T]:
        def run() -> T:
            with _errors(key):
                return function()

        async def request() -> T:
            return await self._under.limited(waiting.in_thread(run), size)

        return request()

    def call(self, key: str, function: Callable[[], T], size: int = 0) -> T:
        """Return what the file system returns, or raise an OSError."""
        return waiting.call(self._request(key, function, size))

    def head(self, key: str) -> ObjectInfo:
        return self.call(key, lambda: self._head(key))

    def _head(self, key: str) -> ObjectInfo:
        self._files.invalidate_cache(key)
        return _info(self._files.info(key), key)

    def get_async(self, key: str, start: int, end: int) -> Future[Body]:
        def get() -> Body:
            # Its answer does not say which object the bytes are from.
            data = self._files.cat_file(key, start=start, end=end)
            return Body([data], self._head(key))

        return waiting.begin(self._request(key, get, end - start))

    def tail(self, key: str, size: int) -> Body:
        def get() -> Body:
            info = self._head(key)
            data = self._files.cat_file(key, start=max(info.size - size, 0), end=info.size)
            return Body([data], self._head(key))

        return self.call(key, get, size)

    def list(self, directory: str) -> tuple[dict[str, float | None], list[str]]:
        files: dict[str, float | None] = {}
        directories: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            for entry in self.call(
                directory, lambda: list(self._files.ls(directory, detail=True, refresh=True))
            ):
                name = entry["name"].rstrip("/").rpartition("/")[2]
                if entry["type"] == "directory":
                    directories.append(name)
                else:  # others, as symbolic links, are files here if they can be opened
                    files[name] = _written_at(entry)
        return files, directories

    def list_after(self, directory: str, after: str) -> Iterator[tuple[str, ObjectInfo]]:
        raise OSError(errno.ENOTSUP, f"no listing of {directory} after {after}")

    def put(self, key: str, data: bytes, replaces: str | None) -> str:
        try:
            there: str | None = self.head(key).identity
        except FileNotFoundError:
            there = None
        if there != replaces:
            raise FileExistsError(errno.EEXIST, "the object exists, or is another", key)

        def put() -> str:
            self._files.makedirs(self._files._parent(key), exist_ok=True)
            self._files.pipe_file(key, data)
            return self._head(key).identity

        return self.call(key, put, len(data))

    def upload(self, key: str) -> FsspecUpload:
        file = self.call(key, lambda: self._files.open(key, "wb", block_size=PART_BYTES))
        return FsspecUpload(self, file, key)

    def copy(self, source: str, target: str) -> None:
        self.call(source, lambda: self._files.cp_file(source, target))

    def remove(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.call(key, lambda: self._files.rm_file(key))


def _info(found: dict[str, Any], key: str) -> ObjectInfo:
    if found.get("type") not in (None, "file"):
        raise FileNotFoundError(errno.ENOENT, "not a file", key)
    identity = next((found[name] for name in _IDENTITY if found.get(name)), None)
    if identity is None:
        # A rename brings another inode, perhaps within the resolution of the time. Other times, as
        # "created" of local files, change with links to the file.
        time = next((found[name] for name in _TIMES if found.get(name)), "")
        identity = f"{time} {found.get('ino', '')}" if time else ""
    return ObjectInfo(int(found["size"]), f"{identity}".strip('"'))


def _written_at(found: dict[str, Any]) -> float | None:
    """Return the latest time of a file: a copy may keep its mtime, and not when it was created."""
    times = [found[name] for name in _TIMES if found.get(name)]
    return max(
        [float(time) for time in times if isinstance(time, (int, float))]
        # Without a time zone it may be of any.
        + [time.timestamp() for time in times if isinstance(time, datetime) and time.tzinfo],
        default=None,
    )


class FsspecUpload:
    """A file that is being written."""

    def __init__(self, client: FsspecClient, file: Any, key: str) -> None:
        self._client, self._file, self._key = client, file, key

    def write(self, data: bytes) -> None:
        self._client.call(self._key, lambda: self._file.write(data), PART_BYTES + len(data))

    def close(self) -> None:
        self._client.call(self._key, self._file.close, PART_BYTES)

    def abort(self) -> None:
        if self._file.closed:
            return
        with contextlib.suppress(Exception):
            self._client.call(self._key, self._file.discard)
        self._file.closed = True
