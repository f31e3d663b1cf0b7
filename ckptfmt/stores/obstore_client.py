# SPDX-License-Identifier: Apache-2.0
"""Object stores through obstore."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

import obstore
import obstore.store
from obstore import exceptions

from ckptfmt._core import ObjectInfo
from ckptfmt.errors import CkptfmtError, InvalidError
from ckptfmt.stores import _aws, waiting
from ckptfmt.stores.client import Body, BodyError

# Bytes of one part, of which S3 takes 10,000, and how many are under way for one object.
PART_BYTES, PARTS_UNDER_WAY = 16 << 20, 4
_PROCESS = os.getpid()

T = TypeVar("T")


def client(store: Any) -> ObstoreClient:
    """Return a client over an obstore store."""
    return ObstoreClient(store)


def open_root(root: str) -> ObstoreClient:
    """Return a client of "s3://bucket" and the like, with credentials of the environment."""
    if root.startswith("memory://"):
        return ObstoreClient(obstore.store.MemoryStore())
    # The limit on silence is ours; obstore's own is one on a whole body.
    client_options: dict[str, Any] = {"timeout": timedelta(days=7)}
    options: dict[str, Any] = {
        "client_options": client_options,
        "retry_config": {"retry_timeout": timedelta(seconds=waiting.stall_seconds() / 2)},
    }
    if root.startswith("http://"):
        client_options["allow_http"] = True
    with _errors(root):
        if root.startswith(("http://", "https://")):
            return ObstoreClient(obstore.store.HTTPStore.from_url(root, **options))
        if root.startswith(("s3://", "s3a://")):
            options.update(_aws.options())
        if str(options.get("endpoint", "")).startswith("http://"):
            client_options["allow_http"] = True
        return ObstoreClient(obstore.store.from_url(root, **options))


def _check_process(key: str) -> None:
    if os.getpid() != _PROCESS:
        # Its threads do not exist here, and a call would wait for them forever.
        raise InvalidError(
            "obstore was used before this process was forked, and cannot be used here: start the "
            'process with "spawn" or "forkserver"',
            path=key,
        )


@contextlib.contextmanager
def _errors(key: str) -> Iterator[None]:
    """Raise obstore's exceptions as OSErrors."""
    try:
        yield
    except exceptions.BaseError as error:
        raise _os_error(error, key) from None
    except FileNotFoundError as error:
        raise _os_error(error, key) from None
    except (OSError, CkptfmtError):
        raise
    except Exception as error:  # a panic of its Rust code among them
        text = _one_line(str(error)) or type(error).__name__
        raise OSError(errno.EIO, f"obstore: {text}", key) from None


_NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    exceptions.AlreadyExistsError: errno.EEXIST,
    exceptions.PreconditionError: errno.EEXIST,
    exceptions.PermissionDeniedError: errno.EACCES,
    exceptions.UnauthenticatedError: errno.EACCES,
    exceptions.NotSupportedError: errno.ENOTSUP,
}
# What servers say in XML (S3, Azure) and JSON (Google).
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>|\"(?:reason|status)\": *\"([^\"]{1,100})\"")
_MESSAGE = re.compile(r"<Message>([^<]{1,500})|\"message\": *\"([^\"]{1,500})\"")
# Where machines of clouds ask for their credentials.
_METADATA_SERVERS = re.compile(r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google\.internal")


def _os_error(error: Exception, key: str) -> OSError:
    """Return obstore's error as an OSError, which says what the server said."""
    text = str(error)
    number = next((n for kind, n in _NUMBERS.items() if isinstance(error, kind)), errno.EIO)
    code, message = (
        next((group for group in match.groups() if group), "") if match else ""
        for match in (_CODE.search(text), _MESSAGE.search(text))
    )
    if code in ("NoSuchBucket", "ContainerNotFound"):
        number = errno.ENXIO  # that is not "no such object"
    if _METADATA_SERVERS.search(text):
        hint = f" {_aws.CREDENTIALS}" if "Generic S3" in text else ""
        return PermissionError(
            errno.EACCES, f"no credentials were found.{hint} ({_one_line(text)})", key
        )
    said = f"{code}: {message}".strip(": ")
    return OSError(number, f"{said} ({_one_line(text)})" if said else _one_line(text), key)


def _one_line(text: str) -> str:
    """Return obstore's text without the server's answer and its own structures."""
    return text.partition("\n")[0].partition("<?xml")[0].rstrip(" :{")


def _etag(text: str) -> str:
    # Listings of some stores leave out the quotes that headers have.
    return text.removeprefix("W/").strip('"')


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["size"], _etag(meta["e_tag"] or f"{meta['last_modified']}"))


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


async def _body(begin: Callable[[], Awaitable[Any]], most: int, key: str) -> Body:
    """Return the body of an answer, of which no more than `most` bytes are wanted."""
    chunks: list[Any] = []
    size, info = 0, None
    problem: BodyError | None = None
    stall = waiting.stall_seconds()
    try:
        with _errors(key):
            async with asyncio.timeout(stall) as limit:
                result = await begin()
                info = _info(result.meta)
                async for chunk in result.stream(min_chunk_size=1):
                    limit.reschedule(asyncio.get_running_loop().time() + stall)
                    chunks.append(chunk)
                    size += len(chunk)
                    if size >= min(most, info.size):
                        break  # what a server sends beyond is not waited for
    except TimeoutError:
        problem = waiting.StallError(stall)
    except OSError as error:
        if info is None:
            raise
        problem = BodyError(errno.EIO, error.strerror, key)
    if info is None:
        assert problem is not None
        raise problem
    return Body(chunks, info, problem)


class ObstoreClient:
    """A Client over an obstore store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._under = waiting.BytesUnderWay()

    def key(self, rest: str) -> str:
        return rest.strip("/")

    def call(self, key: str, begin: Callable[[], Awaitable[T]], size: int = 0) -> T:
        """Return what obstore returns, or raise an OSError."""

        async def request() -> T:
            with _errors(key):
                return await self._under.limited(begin(), size)

        _check_process(key)
        return waiting.call(request())

    def head(self, key: str) -> ObjectInfo:
        return _info(self.call(key, lambda: obstore.head_async(self._store, key)))

    def _get(self, key: str, wanted: Any, most: int) -> Coroutine[Any, Any, Body]:
        async def request() -> Body:
            options: Any = {"range": wanted}
            return await _body(
                lambda: obstore.get_async(self._store, key, options=options), most, key
            )

        _check_process(key)
        return request()

    def get_async(self, key: str, start: int, end: int) -> Future[Body]:
        return waiting.begin(self._get(key, (start, end), end - start))

    def tail(self, key: str, size: int) -> Body:
        try:
            return waiting.call(self._get(key, {"suffix": size}, size))
        except (FileNotFoundError, PermissionError, BodyError):
            raise
        except OSError:
            # Azure and some servers have no suffix ranges; others refuse those of empty objects.
            info = self.head(key)
        if info.size == 0:
            return Body([], info)
        start = max(info.size - size, 0)
        return waiting.call(self._get(key, (start, info.size), info.size - start))

    def _check_listing(self, directory: str) -> None:
        # obstore would ask for a listing of WebDAV, again and again where it is refused.
        if isinstance(self._store, obstore.store.HTTPStore):
            raise OSError(errno.ENOTSUP, "a web server does not list its files", directory)

    def list(self, directory: str) -> tuple[dict[str, float | None], list[str]]:
        self._check_listing(directory)
        found = self.call(
            directory, lambda: obstore.list_with_delimiter_async(self._store, directory or None)
        )
        files = {_last_part(m["path"]): m["last_modified"].timestamp() for m in found["objects"]}
        return files, [_last_part(path) for path in found["common_prefixes"]]

    def list_after(self, directory: str, after: str) -> Iterator[tuple[str, ObjectInfo]]:
        self._check_listing(directory)
        _check_process(directory)
        with _errors(directory):
            pages = obstore.list(self._store, directory or None, offset=after, chunk_size=1000)
        while True:
            metas = self.call(directory, lambda: _page(pages))
            if metas is None:
                return
            yield from ((meta["path"], _info(meta)) for meta in metas)

    def put(self, key: str, data: bytes, replaces: str | None) -> str:
        mode: Any = "create"
        if replaces is not None:
            mode = {"e_tag": f'"{replaces}"'}
            if isinstance(self._store, obstore.store.GCSStore):
                # Google compares generations, which listings do not have.
                meta = self.call(key, lambda: obstore.head_async(self._store, key))
                if _info(meta).identity != replaces:
                    raise FileExistsError(errno.EEXIST, "the object was replaced", key)
                mode["version"] = meta["version"]
        put = self.call(
            key,
            lambda: obstore.put_async(self._store, key, data, mode=mode, use_multipart=False),
            len(data),
        )
        return _etag(put["e_tag"]) if put["e_tag"] else self.head(key).identity

    def upload(self, key: str) -> ObstoreUpload:
        return ObstoreUpload(self, self._store, key)

    def copy(self, source: str, target: str) -> None:
        self.call(source, lambda: obstore.copy_async(self._store, source, target))

    def remove(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.call(key, lambda: obstore.delete_async(self._store, key))


async def _page(pages: Any) -> Any | None:
    return await anext(pages, None)


class ObstoreUpload:
    """A multipart upload."""

    def __init__(self, client: ObstoreClient, store: Any, key: str) -> None:
        self._client, self._key = client, key
        self._file = obstore.open_writer_async(
            store, key, buffer_size=PART_BYTES, max_concurrency=PARTS_UNDER_WAY
        )
        self._parts = 0

    def _call(self, begin: Callable[[], Awaitable[Any]], more: int = 0) -> None:
        self._parts = min(self._parts + more, PART_BYTES * PARTS_UNDER_WAY)
        self._client.call(self._key, begin, self._parts)

    def write(self, data: bytes) -> None:
        self._call(lambda: self._file.write(data), len(data))

    def close(self) -> None:
        self._call(self._file.close)

    def abort(self) -> None:
        self._client.call(self._key, self._abort)

    async def _abort(self) -> None:
        if not await self._file.closed():
            await self._file.__aexit__(OSError, OSError("aborted"), None)
