# SPDX-License-Identifier: Apache-2.0
"""A client of an object store in a dict, with conditional writes, which counts its requests and can
fail."""

from __future__ import annotations

import collections
import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ckptfmt import stores
from ckptfmt._core import ObjectInfo
from ckptfmt.stores.client import Body
from ckptfmt.stores.objects import Objects


class DictClient:
    """Attributes:
    objects: content and etag by key.
    times: when each was written.
    requests: (method, key) of each, in order.
    received: bytes that `get` and `tail` returned.
    before: called as before(method, key) before each request; it may raise.
    answer: called with each body; what it returns is delivered.
    """

    def __init__(self, objects: MutableMapping[str, tuple[bytes, str]] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self.times: dict[str, float | None] = {}
        self.requests: list[tuple[str, str]] = []
        self.received = 0
        self.before: Callable[[str, str], object] = lambda method, key: None
        self.answer: Callable[[bytes], bytes] = lambda body: body
        self.uploads: list[DictUpload] = []
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    def count(self) -> collections.Counter[str]:
        return collections.Counter(method for method, _ in self.requests)

    def _begin(self, method: str, key: str) -> None:
        with self._lock:
            self.requests.append((method, key))
            self.before(method, key)

    def _find(self, key: str) -> tuple[bytes, ObjectInfo]:
        if key not in self.objects:
            raise FileNotFoundError(errno.ENOENT, "no such object", key)
        data, etag = self.objects[key]
        return data, ObjectInfo(len(data), etag)

    def set(self, key: str, data: bytes) -> None:
        self.objects[key] = data, f"etag{next(self._numbers)}"
        self.times[key] = time.time()

    def _time(self, key: str) -> float | None:
        if isinstance(self.objects, FileObjects):
            return self.objects.time(key)
        return self.times.get(key)

    # ---- Client

    def key(self, rest: str) -> str:
        return rest.strip("/")

    def head(self, key: str) -> ObjectInfo:
        self._begin("head", key)
        return self._find(key)[1]

    def _deliver(self, body: bytes) -> bytes:
        body = self.answer(body)
        self.received += len(body)
        return body

    def get(self, key: str, start: int, end: int) -> Body:
        self._begin("get", key)
        data, info = self._find(key)
        return Body([self._deliver(data[start:end])], info)

    def get_async(self, key: str, start: int, end: int) -> Future[Body]:
        future = Future[Body]()
        try:
            future.set_result(self.get(key, start, end))
        except BaseException as error:
            future.set_exception(error)
        return future

    def tail(self, key: str, size: int) -> Body:
        self._begin("get", key)
        data, info = self._find(key)
        return Body([self._deliver(data[max(len(data) - size, 0) :])], info)

    def list(self, directory: str) -> tuple[dict[str, float | None], list[str]]:
        self._begin("list", directory)
        start = f"{directory}/" if directory else ""
        rests = [key.removeprefix(start) for key in self.objects if key.startswith(start)]
        below = {rest.partition("/")[0] for rest in rests if "/" in rest}
        files = {rest: self._time(start + rest) for rest in rests if "/" not in rest}
        return files, sorted(below)

    def list_after(self, directory: str, after: str) -> Iterator[tuple[str, ObjectInfo]]:
        self._begin("list", directory)
        for key in sorted(self.objects):
            if key.startswith(f"{directory}/" if directory else "") and key > after:
                yield key, self._find(key)[1]

    def put(self, key: str, data: bytes, replaces: str | None) -> str:
        self._begin("put", key)
        with self._lock:
            if self.objects.get(key, (b"", None))[1] != replaces:
                raise FileExistsError(errno.EEXIST, "precondition failed", key)
            self.set(key, bytes(data))
            return self.objects[key][1]

    def upload(self, key: str) -> DictUpload:
        self._begin("upload", key)
        self.uploads.append(DictUpload(self, key))
        return self.uploads[-1]

    def copy(self, source: str, target: str) -> None:
        self._begin("copy", source)
        self.set(target, self._find(source)[0])

    def remove(self, key: str) -> None:
        self._begin("remove", key)
        self.objects.pop(key, None)


class FileObjects(MutableMapping[str, tuple[bytes, str]]):
    """The objects of a DictClient as files below a directory, which other processes see. An etag
    is that of the file: the one that is set does not count."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __getitem__(self, key: str) -> tuple[bytes, str]:
        try:
            with open(self._root / key, "rb") as file:
                info = os.fstat(file.fileno())
                return file.read(), f"{info.st_ino}-{info.st_mtime_ns}"
        except (FileNotFoundError, NotADirectoryError):
            raise KeyError(key) from None

    def time(self, key: str) -> float:
        return (self._root / key).stat().st_mtime

    def __setitem__(self, key: str, value: tuple[bytes, str]) -> None:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        new = self._root / f"new-{os.getpid()}-{threading.get_ident()}"
        new.write_bytes(value[0])
        new.replace(path)

    def __delitem__(self, key: str) -> None:
        try:
            (self._root / key).unlink()
        except FileNotFoundError:
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[str]:
        for directory, _, names in os.walk(self._root):
            for name in names:
                yield os.path.relpath(os.path.join(directory, name), self._root)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class DictUpload:
    def __init__(self, client: DictClient, key: str) -> None:
        self._client, self.key, self.parts = client, key, bytearray()
        self.state = "open"

    def write(self, data: bytes) -> None:
        self._client._begin("part", self.key)
        self.parts += data

    def close(self) -> None:
        self._client._begin("complete", self.key)
        self._client.set(self.key, bytes(self.parts))
        self.state = "closed"

    def abort(self) -> None:
        if self.state == "open":
            self.state = "aborted"


def mount(monkeypatch: Any, url: str = "dict://bucket") -> DictClient:
    """Make a new client reachable under this URL for the time of a test."""
    client = DictClient()
    monkeypatch.setitem(stores._mounted, url, client)
    return client


def objects(client: DictClient, url: str = "dict://bucket") -> Objects:
    return Objects(url, client)
