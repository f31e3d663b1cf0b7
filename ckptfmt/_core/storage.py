# SPDX-License-Identifier: Apache-2.0
"""Storages written in Python. C calls them from any thread."""

from __future__ import annotations

import errno
import itertools
import os
import zlib
from _thread import get_ident
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.callbacks import Callbacks
from ckptfmt.errors import CkptfmtError

_OK = int(lib.CKPTFMT_OK)
_ADOPTED = {
    "done": lib.CKPTFMT_ADOPT_DONE,
    "exists": lib.CKPTFMT_ADOPT_EXISTS,
    "no source": lib.CKPTFMT_ADOPT_NO_SOURCE,
    "impossible": lib.CKPTFMT_ADOPT_IMPOSSIBLE,
}
_FAILURES = {
    name.removeprefix("CKPTFMT_FAIL_"): number
    for number, name in ffi.typeof("ckptfmt_failure").elements.items()
}
Adopted = Literal["done", "exists", "no source", "impossible"]


class ObjectInfo(NamedTuple):
    """What a store knows of an object."""

    size: int
    identity: str  # an etag: differs where a path leads to another object than before


class Read(NamedTuple):
    """One range to read: as many bytes as `memory` has, from `offset` on."""

    object: Any
    offset: int
    memory: memoryview


class Store(Protocol):
    """Objects named by paths, as `ckptfmt_storage` says; any number of threads at once.

    A store that waits for a server has two methods more: `cancel` ends all its waits with an
    OSError, and `resume`, before each call, lets it wait again.

    An object is what `open` or `create` returned. Paths are those that the checkpoint was opened
    with, and what the format appends to them. A method that fails raises OSError: its errno and
    text become those of the StorageError; CkptfmtError keeps its failure. Other exceptions are bugs
    of the store, and leave the call that needed it as they are.
    """

    def info(self, path: str) -> ObjectInfo | None:
        """None: nothing has this path."""

    def list(self, directory: str) -> Iterable[str]:
        """The last parts of the paths `<directory>/<name>`."""

    def open(self, path: str) -> tuple[Any, ObjectInfo] | None:
        """Open an object for reading; None if it does not exist."""

    def read_batch(self, reads: Sequence[Read]) -> Sequence[int]:
        """Read all ranges into their memory, which is valid during the call. Return how many bytes
        of each were read: fewer than its memory has if the object ends before."""

    def create(self, path: str) -> Any | None:
        """Begin an object; None if the path is taken."""

    def append(self, opened: Any, data: memoryview) -> None:
        """Append bytes, which are valid during the call."""

    def finish(self, opened: Any) -> None:
        """The object is complete."""

    def object_info(self, opened: Any) -> ObjectInfo:
        """The object as it is, also one that is being written."""

    def close(self, opened: Any) -> None:
        """Close it; an object that was created and not finished is removed."""

    def adopt(self, source: str, target: str) -> Adopted:
        """Give a finished object another path beside its own."""

    def publish(self, source: str, target: str, replaces: bool) -> bool:
        """Move a finished object to `target`, atomically for readers. False, with nothing done, if
        the path is taken and `replaces` is false."""

    def remove(self, path: str) -> None:
        """Remove an object; a missing one is not an error."""


class Storage(Callbacks):
    """A `ckptfmt_storage` that calls a Store, until `release`.

    C holds numbers, never pointers to Python objects: a wrong one fails as a KeyError does.

    Attributes:
        pointer: the struct.
    """

    __slots__ = ("_number", "_objects", "pointer", "store", "unsent")

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self._objects: dict[int, Any] = {}
        # Paths to which an object was not published, because an exception came before.
        self.unsent: set[str] = set()
        # Not weak: the garbage collector clears weak references before it closes a reader.
        self._number = next(_numbers)
        _storages[self._number] = self
        self.pointer = ffi.new("ckptfmt_storage *")
        self.pointer.struct_size = ffi.sizeof("ckptfmt_storage")
        self.pointer.state = ffi.cast("void *", self._number)
        for name in _FUNCTIONS:
            setattr(self.pointer, name, getattr(lib, f"cf_storage_{name}"))

    def run(self, call: Callable[[], int]) -> int:
        """Return the status of a C call that uses the storage.

        Signal handlers run in the main thread alone, and C may have other threads wait for the
        store. So the main thread leaves a call that may wait to another thread, and when it is
        interrupted, cancels what that waits for.
        """
        cancel = getattr(self.store, "cancel", None)
        if cancel is None:
            return call()
        import threading  # noqa: PLC0415 (local files need no threads of Python)

        self.store.resume()  # type: ignore[attr-defined]
        if get_ident() != threading.main_thread().ident:
            return call()
        running: _Call | None = None
        raised: BaseException | None = None
        while running is None or not running.ended:
            try:
                if running is None:
                    running = _Call(call)
                    del call  # it keeps alive what closing a handle frees
                if raised is not None:
                    self.failed(raised)
                    raised = None
                    cancel()
                running.wait()
            except BaseException as error:
                raised = error
        return running.status()

    def release(self) -> None:
        """C no longer uses it."""
        _storages.pop(self._number, None)

    def keep(self, opened: Any) -> Any:
        """Return the number of an open object, as C holds it."""
        number = next(_numbers)
        self._objects[number] = opened
        return ffi.cast("void *", number)

    def object(self, pointer: Any) -> Any:
        """Return the open object of this number."""
        return self._objects[int(ffi.cast("uintptr_t", pointer))]

    def drop(self, pointer: Any) -> Any:
        """Return the object of this number, which C no longer holds."""
        return self._objects.pop(int(ffi.cast("uintptr_t", pointer)))


def storage_of(store: Store | None) -> Storage | None:
    """Return the storage that C uses for a store; None, for files, without one."""
    return None if store is None else Storage(store)


class _Call:
    """A C call in a thread of its own."""

    def __init__(self, call: Callable[[], int]) -> None:
        import threading  # noqa: PLC0415 (as above)

        self._done = threading.Event()
        self._status: int | BaseException = 0
        self._call: Callable[[], int] | None = call
        threading.Thread(target=self._run, name="ckptfmt-call", daemon=True).start()

    def _run(self) -> None:
        assert self._call is not None
        try:
            self._status = self._call()
        except BaseException as error:
            self._status = error
        self._call = None
        self._done.set()

    @property
    def ended(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        self._done.wait()

    def status(self) -> int:
        if isinstance(self._status, BaseException):
            raise self._status
        return self._status


_numbers = itertools.count(1)
_storages: dict[int, Storage] = {}


def _storage(state: Any, *, removes: bool = False) -> Storage:
    """Return the storage. After an exception such as KeyboardInterrupt, it only removes what is
    left until the C call returns."""
    storage = _storages[int(ffi.cast("uintptr_t", state))]
    if not removes and storage.is_failing():
        raise OSError(errno.ECANCELED, "an exception ended the call")
    return storage


def _path(raw: Any) -> str:
    return os.fsdecode(ffi.string(raw))


def _put_info(to: Any, info: ObjectInfo) -> None:
    raw = info.identity.encode("utf-8", "surrogateescape")
    if not 0 <= info.size < 1 << 63:
        raise OSError(errno.EIO, f"the store says that an object has {info.size} bytes")
    to.size = info.size
    to.identity = zlib.crc32(raw) << 32 | lib.ckptfmt_crc32c(0, raw, len(raw))


def _failed(_kind: Any, error: BaseException, traceback: TracebackType | None) -> int | None:
    """Called by cffi for an exception that leaves one of the functions below, Ctrl-C included."""
    values = {} if traceback is None else traceback.tb_frame.f_locals
    if "state" in values and not isinstance(error, (CkptfmtError, OSError, MemoryError)):
        storage = _storages.get(int(ffi.cast("uintptr_t", values["state"])))
        if storage is not None:
            storage.failed(error)
    if "err" not in values and traceback is not None:
        return None
    failure, number = lib.CKPTFMT_FAIL_OS, getattr(error, "errno", None) or 0
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, CkptfmtError):
        failure, message = _FAILURES.get(error.failure, failure), error.message
    elif isinstance(error, MemoryError):
        failure = lib.CKPTFMT_FAIL_NO_MEMORY
    elif isinstance(error, OSError) and error.strerror:
        message = error.strerror
    raw = message.encode("utf-8", "replace").replace(b"\0", b"?")
    path = values.get("path", values.get("target", ffi.NULL))
    return int(lib.ckptfmt_error_set(values.get("err", ffi.NULL), failure, number, path, raw))


_FUNCTIONS: list[str] = []


def _callback(function: Callable[..., Any]) -> None:
    name = function.__name__.removeprefix("_")
    _FUNCTIONS.append(name)
    ffi.def_extern(name=f"cf_storage_{name}", onerror=_failed)(function)


@_callback
def _info(state: Any, path: Any, info: Any, exists: Any, err: Any) -> int:
    storage = _storage(state, removes=True)
    if _path(path) in storage.unsent:
        exists[0] = 0  # a name that was not published is another object's, or nothing's
        return _OK
    found = _storage(state).store.info(_path(path))
    exists[0] = found is not None
    if found is not None:
        _put_info(info, found)
    return _OK


@_callback
def _list(state: Any, path: Any, each: Any, to: Any, err: Any) -> int:
    for name in _storage(state).store.list(_path(path)):
        each(to, os.fsencode(name))
    return _OK


@_callback
def _open(state: Any, path: Any, to: Any, info: Any, err: Any) -> int:
    to[0] = ffi.NULL
    storage = _storage(state)
    opened = storage.store.open(_path(path))
    if opened is not None:
        to[0] = storage.keep(opened[0])
        _put_info(info, opened[1])
    return _OK


@_callback
def _read_batch(state: Any, reads: Any, count: int, err: Any) -> int:
    storage = _storage(state)
    batch = [
        Read(
            storage.object(reads[i].object),
            int(reads[i].offset),
            memoryview(ffi.buffer(reads[i].destination, reads[i].size)).cast("B"),
        )
        for i in range(count)
    ]
    for i, got in enumerate(storage.store.read_batch(batch)):
        reads[i].got = got
    return _OK


@_callback
def _create(state: Any, path: Any, to: Any, exists: Any, err: Any) -> int:
    to[0] = ffi.NULL
    storage = _storage(state)
    created = storage.store.create(_path(path))
    exists[0] = created is None
    if created is not None:
        to[0] = storage.keep(created)
    return _OK


@_callback
def _append(state: Any, opened: Any, data: Any, size: int, err: Any) -> int:
    storage = _storage(state)
    storage.store.append(storage.object(opened), memoryview(ffi.buffer(data, size)).cast("B"))
    return _OK


@_callback
def _finish(state: Any, opened: Any, err: Any) -> int:
    storage = _storage(state)
    storage.store.finish(storage.object(opened))
    return _OK


@_callback
def _object_info(state: Any, opened: Any, info: Any, err: Any) -> int:
    storage = _storage(state)
    _put_info(info, storage.store.object_info(storage.object(opened)))
    return _OK


@_callback
def _close(state: Any, opened: Any) -> None:
    storage = _storage(state, removes=True)
    storage.store.close(storage.drop(opened))


@_callback
def _adopt(state: Any, source: Any, target: Any, result: Any, err: Any) -> int:
    result[0] = _ADOPTED[_storage(state).store.adopt(_path(source), _path(target))]
    return _OK


@_callback
def _publish(state: Any, source: Any, target: Any, replaces: int, exists: Any, err: Any) -> int:
    exists[0] = 0
    name = _path(target)
    _storage(state, removes=True).unsent.add(name)
    storage = _storage(state)
    storage.unsent.discard(name)
    moved = storage.store.publish(_path(source), name, bool(replaces))
    exists[0] = not moved
    return _OK


@_callback
def _remove(state: Any, path: Any, err: Any) -> int:
    _storage(state, removes=True).store.remove(_path(path))
    return _OK
