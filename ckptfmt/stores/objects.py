# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's files as objects of a store, for one handle: the storage seam over a Client.

An object is visible when it is complete, and never changes. What the core writes under a temporary
name is kept in memory while it is small, as an index mostly is, and put under its final name by one
conditional request. A larger object is uploaded to its final name at once, which an empty object
reserves first, so that no bytes are ever copied; no index names it yet.
"""

from __future__ import annotations

import bisect
import collections
import errno
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ckptfmt._core import Adopted, ObjectInfo, Read
from ckptfmt.errors import BusyError, GenerationGoneError, InvalidError
from ckptfmt.stores.client import Body, BodyError, Client, Upload
from ckptfmt.stores.waiting import Budget, Group, cancel, cleanup, use

T = TypeVar("T")

# Bytes of one request: of a longer range at least PART_BYTES, and less than twice that. Ranges that
# are closer than GAP_BYTES are one request.
PART_BYTES, GAP_BYTES = 8 << 20, 1 << 20
# Requests under way for one call; their bodies are in memory.
REQUESTS_MAX = 16
# Of an index so many bytes from its end are read by the first request.
TAIL_BYTES = 4 << 20
# An object of up to so many bytes is in memory until it is published.
SMALL_BYTES = 8 << 20
# The most that one request copies inside S3.
COPY_BYTES_MAX = 5 << 30

TEMPORARY = re.compile(r"(.*)\.tempstate[a-f][0-9a-f]{15}$", re.S)
_DATA = re.compile(r"(.*\.data-)\d{5,}(-of-\d{5,})$", re.S)
_numbers = itertools.count(1)


@dataclass
class _Opened:
    """An object that is read, by several threads."""

    key: str
    info: ObjectInfo
    shown: ObjectInfo | None = None  # to the core
    at_hand: tuple[int, Any] = (0, b"")  # bytes in memory, and where they begin
    end: int = -1  # of the last range read, and how far to read ahead of the next
    ahead: int = 0


@dataclass
class _Written:
    """An object under a temporary name. `key` is where its upload goes, if it has one."""

    target: str
    data: bytearray = field(default_factory=bytearray)
    size: int = 0
    key: str = ""
    upload: Upload | None = None
    finished: bool = False
    identity: str = field(default_factory=lambda: f"written-{next(_numbers)}")

    @property
    def info(self) -> ObjectInfo:
        return ObjectInfo(self.size, self.identity)


@dataclass
class _Part:
    """Bytes [start, end) of an object, the reads of them in the order of their offsets, and what
    has arrived."""

    opened: _Opened
    start: int
    end: int
    reads: list[Read]
    chunks: list[Any] = field(default_factory=list)
    at: int = 0
    budget: Budget | None = None

    def request(self, client: Client) -> Future[Body]:
        """Begin a request for what is missing."""
        if self.budget is None:
            self.at, self.budget = self.start, Budget()
        return client.get_async(self.opened.key, self.at, self.end)

    def take(self, requests: Group, answer: Future[Body]) -> bool:
        """Take what a request brought. Return whether it was the last.

        Raises the problem if there is no time for another.
        """
        problem, taken = None, 0
        try:
            body = requests.wait(answer)
        except FileNotFoundError:
            raise self._gone() from None
        except BodyError as error:
            problem = error
        else:
            if body.info != self.opened.info:
                raise self._gone()
            missing = self.end - self.at - body.size
            if missing >= 0:
                taken = body.size
                self.chunks.extend(body.chunks)
                self.at += taken
            if not missing:
                return True
            problem = body.problem or (_too_short(missing) if missing > 0 else _too_long(-missing))
        assert self.budget is not None
        # Of an answer that is too long nothing is taken: asking again brings the same.
        self.budget.again(problem, taken)
        return False

    def _gone(self) -> GenerationGoneError:
        return GenerationGoneError(
            "the object was replaced or removed after the checkpoint was opened",
            path=self.opened.key,
        )


def _too_short(missing: int) -> BodyError:
    return BodyError(errno.EIO, f"the answer lacks {missing} of its bytes")


def _too_long(more: int) -> BodyError:
    return BodyError(errno.EIO, f"the answer has {more} bytes more than were asked for")


class Objects:
    """A `_core.Store` over the client of a root, such as "s3://bucket"."""

    def __init__(self, root: str, client: Client) -> None:
        self.root, self._client, self._requests = root, client, Group()
        self._written: dict[str, _Written] = {}
        self._listed: dict[str, ObjectInfo] = {}
        self._listings: set[tuple[str, str]] = set()
        self._seen: dict[str, str | None] = {}
        self._same: dict[str, tuple[str, ObjectInfo]] = {}
        self._discarded: set[str] = set()
        self._taken: set[str] = set()  # keys that exist, also where a listing is late
        # Paths of puts that were sent and not answered: the server may carry them out yet.
        self._open_puts: set[str] = set()

    @property
    def client(self) -> Client:
        """The client; this thread's requests belong to this handle from now on."""
        use(self._requests)
        return self._client

    def cancel(self) -> None:
        """End all waits for the store with an OSError, until `resume`."""
        self._requests.cancel()

    def resume(self) -> None:
        """Wait for the store again."""
        self._requests.resume()

    def key(self, path: str) -> str:
        """Return the key of a path, which is a URL."""
        rest = path.removeprefix(self.root)
        if rest == path:
            # The core joins "memory:/" and a name.
            rest = path.removeprefix(self.root.removesuffix("/"))
        inside = not rest or rest.startswith("/") or self.root.endswith("/")
        # The core makes "s3:/bucket.index" of "s3://bucket".
        if path.startswith(f"{self.root.replace('://', ':/', 1)}."):
            raise InvalidError(
                f"{self.root} names a whole store: add the key of a checkpoint, such as "
                f"{self.root}/run/model, or '/' for the directory at its top",
                failure="BAD_PATH",
            )
        if rest == path or not inside:
            raise OSError(errno.EXDEV, f"not in the same store as {self.root}", path)
        return self.client.key(rest)

    # ---- what is there

    def info(self, path: str) -> ObjectInfo | None:
        if path in self._written:
            return self._written[path].info
        if path in self._open_puts:
            raise OSError(errno.EIO, "it is not known whether the server has put this object")
        key = self.key(path)
        try:
            return self._known(path, key, self._head(key))
        except FileNotFoundError:
            return None

    def _known(self, path: str, key: str, found: ObjectInfo) -> ObjectInfo:
        """Describe an object to the core: what this handle copied or put here as the object that it
        was before, for which it has another name, no more. Two objects of the same content are two,
        although their etags are equal."""
        etag, before = self._same.get(path, ("", found))
        return before if etag == found.identity else _distinct(key, found)

    def entries(self, directory: str) -> tuple[list[str], list[str]]:
        """Return the names of the objects right below a directory, and of the directories there."""
        files, directories = self.listing(directory)
        return list(files), directories

    def listing(self, directory: str) -> tuple[dict[str, float | None], list[str]]:
        """Return the same, with the times of the objects, as a Client's `list`."""
        key = self.key(directory)
        return self._retried(lambda: self.client.list(key))

    def list(self, directory: str) -> Iterable[str]:
        below = f"{self.key(directory)}/".lstrip("/")
        taken = {key.removeprefix(below) for key in self._taken if key.startswith(below)}
        # What is uploaded to its final key has only a temporary name until it is published.
        ours = {written.key.removeprefix(below) for written in self._written.values()}
        return {*self.entries(directory)[0], *taken} - ours

    # ---- reading

    def open(self, path: str) -> tuple[_Opened | _Written, ObjectInfo] | None:
        if path in self._written:
            return self._written[path], self._written[path].info
        key = self.key(path)
        try:
            opened = self._open(key)
        except FileNotFoundError:
            self._seen[path] = None
            return None
        self._seen[path] = opened.info.identity
        opened.shown = self._known(path, key, opened.info)
        return opened, opened.shown

    def _open(self, key: str) -> _Opened:
        data = _DATA.match(key)
        if data is None:
            tail, info = self._tail(key, TAIL_BYTES)
            return _Opened(key, info, at_hand=(info.size - len(tail), tail))
        if not data[2].endswith("-of-00001"):
            self._list_data(key, data[1], data[2])
        listed = self._listed.pop(key, None)
        return _Opened(key, self._head(key) if listed is None else listed)

    def _list_data(self, key: str, start: str, end: str) -> None:
        """Describe all data files of a checkpoint by one request, once and best effort: not every
        store can list, and a listing may be late."""
        if (start, end) in self._listings:
            return
        self._listings.add((start, end))
        try:
            for found, info in self.client.list_after(key.rpartition("/")[0], start):
                if not found.startswith(start):
                    return
                if found.endswith(end):
                    self._listed[found] = info
        except OSError:
            pass

    def read_batch(self, reads: Sequence[Read]) -> Sequence[int]:
        sizes = []
        by_object: dict[int, list[Read]] = {}
        for read in reads:
            size = read.object.info.size
            sizes.append(max(min(len(read.memory), size - read.offset), 0))
            clipped = Read(read.object, read.offset, read.memory[: sizes[-1]])
            if sizes[-1] and not self._copy_at_hand(clipped):
                by_object.setdefault(id(read.object), []).append(clipped)
        parts = [part for group in by_object.values() for part in _parts(group)]
        for part in parts:
            _read_ahead(part)
        for part in self._bodies(parts):
            _deliver(part)
        return sizes

    def _copy_at_hand(self, read: Read) -> bool:
        """Serve a range from memory, if it is there."""
        if isinstance(read.object, _Written):
            view = memoryview(read.object.data)
            read.memory[:] = view[read.offset : read.offset + len(read.memory)]
            return True
        opened: _Opened = read.object
        start, data = opened.at_hand
        at = read.offset - start
        if at < 0 or at + len(read.memory) > len(data):
            return False
        read.memory[:] = memoryview(data)[at : at + len(read.memory)]
        opened.end = read.offset + len(read.memory)
        return True

    def _bodies(self, parts: Iterable[_Part]) -> Iterator[_Part]:
        """Yield each part when its bytes have arrived. A body that ends early is continued by
        another request."""
        waiting = collections.deque(parts)
        under_way: dict[Future[Body], _Part] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < REQUESTS_MAX:
                    part = waiting.popleft()
                    under_way[part.request(self.client)] = part
                for future in futures.wait(under_way, return_when=futures.FIRST_COMPLETED).done:
                    part = under_way.pop(future)
                    if part.take(self._requests, future):
                        yield part
                    else:
                        waiting.appendleft(part)
        finally:
            for future in under_way:
                cancel(future)

    def _tail(self, key: str, size: int) -> tuple[Any, ObjectInfo]:
        """Return the last bytes of an object."""
        budget = Budget()
        while True:
            try:
                body = self.client.tail(key, size)
            except BodyError as error:
                budget.again(error)
                continue
            missing = min(size, body.info.size) - body.size
            if not missing:
                return b"".join(body.chunks), body.info
            if missing < 0:
                budget.again(_too_long(-missing))
                continue
            budget.again(body.problem or _too_short(missing), body.size)
            start = body.info.size - missing
            rest = _Part(_Opened(key, body.info), start, body.info.size, [], [], start, budget)
            try:
                (rest,) = self._bodies([rest])
            except GenerationGoneError:
                budget.again(BodyError(errno.EIO, "the object changed while it was read"))
            else:
                return b"".join([*body.chunks, *rest.chunks]), body.info

    def _head(self, key: str) -> ObjectInfo:
        return self._retried(lambda: self.client.head(key))

    def _retried(self, request: Callable[[], T]) -> T:
        """Return the answer to a request that can be repeated."""
        budget = Budget()
        while True:
            try:
                return request()
            except BodyError as error:
                budget.again(error)

    # ---- writing

    def create(self, path: str) -> _Written | None:
        match = TEMPORARY.match(path)
        if match is None:
            raise OSError(errno.ENOTSUP, "only temporary names are written to")
        written = self._written[path] = _Written(match[1])
        return written

    def append(self, opened: _Written, data: memoryview) -> None:
        use(self._requests)
        opened.size += len(data)
        if opened.upload is None:
            opened.data += data
            if opened.size > SMALL_BYTES:
                self._begin_upload(opened)
        else:
            opened.upload.write(bytes(data))  # which may keep it longer than this call

    def _begin_upload(self, written: _Written) -> None:
        if _DATA.match(written.target) is None:
            return  # an index is read back and put at once
        key = self.key(written.target)
        if self._reserve(key):
            written.key = key
        else:
            temporary = next(path for path, at in self._written.items() if at is written)
            written.key = self.key(temporary)
        written.upload = self.client.upload(written.key)
        written.upload.write(bytes(written.data))
        written.data = bytearray()

    def _reserve(self, key: str) -> bool:
        """Take a name that is free by an empty object."""
        try:
            self.client.put(key, b"", None)
        except FileExistsError:
            self._taken.add(key)
            return False
        return True

    def finish(self, opened: _Written) -> None:
        if opened.upload is not None:
            use(self._requests)
            opened.upload.close()
        opened.finished = True

    def object_info(self, opened: _Opened | _Written) -> ObjectInfo:
        return opened.info if isinstance(opened, _Written) else opened.shown or opened.info

    def close(self, opened: _Opened | _Written) -> None:
        if isinstance(opened, _Written) and not opened.finished:
            self._discard(opened)

    def _discard(self, written: _Written) -> None:
        for path in [path for path, at in self._written.items() if at is written]:
            del self._written[path]
            self._discarded.add(path)
        if written.key:
            use(self._requests)
            with cleanup():
                try:
                    if written.upload is not None:
                        written.upload.abort()
                finally:
                    self.client.remove(written.key)

    # ---- names

    def adopt(self, source: str, target: str) -> Adopted:
        if TEMPORARY.match(target) or source in self._written:
            return "impossible"
        try:
            info = self._known(source, self.key(source), self._head(self.key(source)))
        except FileNotFoundError:
            return "no source"
        if info.size > COPY_BYTES_MAX:
            return "impossible"
        key = self.key(target)
        if not self._reserve(key):
            return "exists"
        self._copy_to(self.key(source), key)
        self._same[target] = self._head(key).identity, info
        return "done"

    def _copy_to(self, source: str, reserved: str) -> None:
        try:
            self.client.copy(source, reserved)
        except BaseException:
            self.client.remove(reserved)
            raise

    def publish(self, source: str, target: str, replaces: bool) -> bool:
        written = self._written.get(source)
        key = self.key(target)
        if written is None:
            # It has a final name already, which another writer's number has made wrong.
            if not self._reserve(key):
                return False
            self._copy_to(self.key(source), key)
            self.client.remove(self.key(source))
            return True
        if written.upload is None:
            if not self._put(written, target, key, replaces):
                return False
        elif written.key != key:
            if not self._reserve(key):
                return False
            self._copy_to(written.key, key)
            self.client.remove(written.key)
        del self._written[source]
        return True

    def replace(self, path: str, content: bytes) -> None:
        """Replace a small object, whatever is there."""
        self.open(path)
        self._put(_Written(path, bytearray(content), len(content)), path, self.key(path), True)

    def _put(self, written: _Written, target: str, key: str, replaces: bool) -> bool:
        """Put a small object: the commit, if it is an index. It replaces the object that was seen
        there last, and no other."""
        expected = self._seen.get(target) if replaces else None
        data = bytes(written.data)
        if replaces:
            self._open_puts.add(target)
        try:
            self._same[target] = self.client.put(key, data, expected), written.info
            self._open_puts.discard(target)
        except OSError as error:
            # Also a request that was repeated, whose first answer was lost. Equal data may be
            # another writer's, which must not be taken for ours; an index names a number of data
            # files that is ours alone.
            if replaces and self._is_there(key, data):
                self._open_puts.discard(target)
                self._same[target] = self._head(key).identity, written.info
                return True
            if not isinstance(error, BodyError) or self._is_replaced(key, expected):
                self._open_puts.discard(target)
            if isinstance(error, FileNotFoundError) and expected is not None:
                raise BusyError(
                    "another process removed the object meanwhile", path=target
                ) from error
            if not isinstance(error, FileExistsError):
                raise
            if replaces:
                raise BusyError(
                    "another writer has replaced this object meanwhile; save again", path=target
                ) from None
            self._taken.add(key)
            return False
        return True

    def _is_replaced(self, key: str, expected: str | None) -> bool:
        """Return whether another object is there than the one that a put was to replace: then the
        server refuses the put, if it gets to it."""
        try:
            return self._head(key).identity != expected
        except FileNotFoundError:
            return expected is not None

    def _is_there(self, key: str, data: bytes) -> bool:
        if not data:
            return False
        try:
            found, _ = self._tail(key, len(data))
        except FileNotFoundError:
            return False
        return bytes(found) == data

    def remove(self, path: str) -> None:
        if path in self._discarded:
            return
        written = self._written.pop(path, None)
        with cleanup():
            if written is None:
                self.client.remove(self.key(path))
            elif written.key:
                self.client.remove(written.key)


def _distinct(key: str, info: ObjectInfo) -> ObjectInfo:
    return ObjectInfo(info.size, f"{info.identity} of {key}")


def _read_ahead(part: _Part) -> None:
    """Extend a range that continues the last one: others probably follow."""
    opened = part.opened
    opened.ahead = (
        min(2 * max(opened.ahead, part.end - part.start), PART_BYTES)
        if part.start == opened.end
        else 0
    )
    opened.end = part.end
    part.end = max(part.end, min(part.start + opened.ahead, opened.info.size))


def _reaches(read: Read, end: int) -> bool:
    return read.offset + len(read.memory) >= end


def _deliver(part: _Part) -> None:
    """Copy the bytes of a part to where they are wanted."""
    start, end = part.start, part.end
    if len(part.reads) == 1 and part.reads[0].offset <= start and _reaches(part.reads[0], end):
        # One read of all of it, as of a large tensor: without a copy of the whole.
        to = start - part.reads[0].offset
        for chunk in part.chunks:
            part.reads[0].memory[to : to + len(chunk)] = memoryview(chunk)
            to += len(chunk)
        return
    data = part.chunks[0] if len(part.chunks) == 1 else b"".join(part.chunks)
    view = memoryview(data)
    wanted = start
    for read in part.reads:
        first, last = max(read.offset, start), min(read.offset + len(read.memory), end)
        read.memory[first - read.offset : last - read.offset] = view[first - start : last - start]
        wanted = max(wanted, last)
    if end > wanted:
        part.opened.at_hand = start, data


def _parts(reads: list[Read]) -> list[_Part]:
    """Group the reads of one object into requests."""
    reads.sort(key=lambda read: read.offset)
    opened, parts = reads[0].object, []
    begin = 0
    while begin < len(reads):
        start, stop = reads[begin].offset, begin
        end = start
        while stop < len(reads) and reads[stop].offset <= end + GAP_BYTES:
            end = max(end, reads[stop].offset + len(reads[stop].memory))
            stop += 1
        group, begin = reads[begin:stop], stop
        firsts = [read.offset for read in group]
        longest = max(len(read.memory) for read in group)
        while start < end:
            last = start + PART_BYTES if end - start >= 2 * PART_BYTES else end
            near = slice(
                bisect.bisect_left(firsts, start - longest + 1), bisect.bisect_left(firsts, last)
            )
            wanted = [read for read in group[near] if read.offset + len(read.memory) > start]
            parts.append(_Part(opened, start, last, wanted))
            start = last
    return parts
