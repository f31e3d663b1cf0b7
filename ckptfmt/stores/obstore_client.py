# SPDX-License-Identifier: Apache-2.0
"""Object stores through obstore."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

import obstore
import obstore.store
from obstore import exceptions

from ckptfmt._core import ObjectInfo
from ckptfmt.errors import InvalidError
from ckptfmt.stores.client import BodyError

__all__ = ["client", "open_root"]

# Bytes of one part, of which S3 takes 10,000, and how many are under way for one object.
PART_BYTES, PARTS_UNDER_WAY = 16 << 20, 4
_PROCESS = os.getpid()


def client(store: Any) -> ObstoreClient:
    """Return a client over an obstore store."""
    return ObstoreClient(store)


def open_root(root: str) -> ObstoreClient:
    """Return a client of "s3://bucket" and the like, with credentials of the environment."""
    if root.startswith("memory://"):
        return ObstoreClient(obstore.store.MemoryStore())
    options: dict[str, Any] = {"client_options": {"allow_http": root.startswith("http://")}}
    with _errors(root):
        if root.startswith(("http://", "https://")):
            return ObstoreClient(obstore.store.HTTPStore.from_url(root, **options))
        return ObstoreClient(obstore.store.from_url(root))


@contextlib.contextmanager
def _errors(key: str) -> Iterator[None]:
    """Raise obstore's exceptions as OSErrors with one line of text."""
    if os.getpid() != _PROCESS:
        # Its threads do not exist here, and a call would wait for them forever.
        raise InvalidError(
            "obstore was used before this process was forked, and cannot be used here: start the "
            'process with "spawn" or "forkserver"',
            path=key,
        )
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, _line(error), key) from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise FileExistsError(errno.EEXIST, _line(error), key) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise PermissionError(errno.EACCES, _line(error), key) from None
    except (exceptions.NotSupportedError, NotImplementedError) as error:
        raise OSError(errno.ENOTSUP, _line(error), key) from None
    except (exceptions.BaseError, ValueError) as error:
        raise OSError(errno.EIO, _line(error), key) from None


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _etag(text: str) -> str:
    # Listings of some stores leave out the quotes that headers have.
    return text.removeprefix("W/").strip('"')


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["size"], _etag(meta["e_tag"] or f"{meta['last_modified']}"))


def _last_parts(paths: list[str]) -> list[str]:
    return [path.rstrip("/").rpartition("/")[2] for path in paths]


def _body(result: Any, key: str) -> tuple[Any, ObjectInfo]:
    try:
        return result.bytes(), _info(result.meta)
    except exceptions.BaseError as error:
        raise BodyError(errno.EIO, _line(error), key) from None


class ObstoreClient:
    """A Client over an obstore store."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def key(self, rest: str) -> str:
        return rest.strip("/")

    def head(self, key: str) -> ObjectInfo:
        with _errors(key):
            return _info(obstore.head(self._store, key))

    def get(self, key: str, start: int, end: int) -> tuple[Any, ObjectInfo]:
        with _errors(key):
            return _body(obstore.get(self._store, key, options={"range": (start, end)}), key)

    def tail(self, key: str, size: int) -> tuple[Any, ObjectInfo]:
        with _errors(key):
            try:
                result = obstore.get(self._store, key, options={"range": {"suffix": size}})
                return _body(result, key)
            except exceptions.BaseError:
                # Azure and some servers have no suffix ranges; others refuse those of empty
                # objects.
                info = _info(obstore.head(self._store, key))
        if info.size == 0:
            return b"", info
        return self.get(key, max(info.size - size, 0), info.size)

    def _check_listing(self, directory: str) -> None:
        # obstore would ask for a listing of WebDAV, again and again where it is refused.
        if isinstance(self._store, obstore.store.HTTPStore):
            raise OSError(errno.ENOTSUP, "a web server does not list its files", directory)

    def list(self, directory: str) -> tuple[list[str], list[str]]:
        self._check_listing(directory)
        with _errors(directory):
            found = obstore.list_with_delimiter(self._store, directory or None)
        paths = [meta["path"] for meta in found["objects"]]
        return _last_parts(paths), _last_parts(found["common_prefixes"])

    def list_after(self, directory: str, after: str) -> Iterator[tuple[str, ObjectInfo]]:
        self._check_listing(directory)
        with _errors(directory):
            for metas in obstore.list(
                self._store, directory or None, offset=after, chunk_size=1000
            ):
                yield from ((meta["path"], _info(meta)) for meta in metas)

    def put(self, key: str, data: bytes, replaces: str | None) -> str:
        mode: Any = "create"
        if replaces is not None:
            mode = {"e_tag": f'"{replaces}"'}
        with _errors(key):
            put = obstore.put(self._store, key, data, mode=mode, use_multipart=False)
        return _etag(put["e_tag"]) if put["e_tag"] else self.head(key).identity

    def upload(self, key: str) -> ObstoreUpload:
        with _errors(key):
            return ObstoreUpload(self._store, key)

    def copy(self, source: str, target: str) -> None:
        with _errors(source):
            obstore.copy(self._store, source, target)

    def remove(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError), _errors(key):
            obstore.delete(self._store, key)


class ObstoreUpload:
    """A multipart upload."""

    def __init__(self, store: Any, key: str) -> None:
        self._key = key
        self._file = obstore.open_writer(
            store, key, buffer_size=PART_BYTES, max_concurrency=PARTS_UNDER_WAY
        )

    def write(self, data: bytes) -> None:
        with _errors(self._key):
            self._file.write(data)

    def close(self) -> None:
        with _errors(self._key):
            self._file.close()

    def abort(self) -> None:
        if not self._file.closed():
            with _errors(self._key):
                self._file.__exit__(OSError, OSError("aborted"), None)
