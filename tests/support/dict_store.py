# SPDX-License-Identifier: Apache-2.0
"""A store in a dict, which counts and can fail: what `ckptfmt._core.Store` asks for, at its
plainest."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Sequence

from ckptfmt._core import Adopted, ObjectInfo, Read


class Object:
    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.data = bytearray()
        self.finished = False

    def info(self) -> ObjectInfo:
        return ObjectInfo(len(self.data), self.identity)


class DictStore:
    """Attributes:
    objects: by path.
    calls: how often each method was called.
    failing: exceptions by method, raised by its next calls.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.calls = collections.Counter[str]()
        self.failing: dict[str, list[BaseException]] = collections.defaultdict(list)
        self._numbers = itertools.count(1)

    def _called(self, method: str) -> None:
        self.calls[method] += 1
        if self.failing[method]:
            raise self.failing[method].pop(0)

    def info(self, path: str) -> ObjectInfo | None:
        self._called("info")
        return self.objects[path].info() if path in self.objects else None

    def list(self, directory: str) -> Iterable[str]:
        self._called("list")
        start = f"{directory}/" if directory else ""
        return [
            path.removeprefix(start)
            for path in self.objects
            if path.startswith(start) and "/" not in path.removeprefix(start)
        ]

    def open(self, path: str) -> tuple[Object, ObjectInfo] | None:
        self._called("open")
        found = self.objects.get(path)
        return None if found is None else (found, found.info())

    def read_batch(self, reads: Sequence[Read]) -> Sequence[int]:
        self._called("read_batch")
        sizes = []
        for read in reads:
            part = read.object.data[read.offset : read.offset + len(read.memory)]
            read.memory[: len(part)] = part
            sizes.append(len(part))
        return sizes

    def create(self, path: str) -> Object | None:
        self._called("create")
        if path in self.objects:
            return None
        self.objects[path] = Object(f"etag-{next(self._numbers)}")
        return self.objects[path]

    def append(self, opened: Object, data: memoryview) -> None:
        self._called("append")
        opened.data += data

    def finish(self, opened: Object) -> None:
        self._called("finish")
        opened.finished = True

    def object_info(self, opened: Object) -> ObjectInfo:
        self._called("object_info")
        return opened.info()

    def close(self, opened: Object) -> None:
        self._called("close")
        if not opened.finished:
            for path in [path for path, there in self.objects.items() if there is opened]:
                del self.objects[path]

    def adopt(self, source: str, target: str) -> Adopted:
        self._called("adopt")
        if source not in self.objects:
            return "no source"
        if target in self.objects:
            return "exists"
        self.objects[target] = self.objects[source]
        return "done"

    def publish(self, source: str, target: str, replaces: bool) -> bool:
        self._called("publish")
        if target in self.objects and not replaces:
            return False
        self.objects[target] = self.objects.pop(source)
        return True

    def remove(self, path: str) -> None:
        self._called("remove")
        self.objects.pop(path, None)
