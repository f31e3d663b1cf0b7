# SPDX-License-Identifier: Apache-2.0
"""Handles of writers, and `merge`."""

from __future__ import annotations

import _thread
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core import border
from ckptfmt._core.border import (
    CLOSED,
    DURABILITY,
    Handle,
    check_stored,
    held,
    limits_of,
    new_slot,
    path_bytes,
    stored,
)
from ckptfmt._core.codec import Codec, Coder
from ckptfmt._core.columns import BYTES, address
from ckptfmt._core.reading import ReaderHandle, Selection
from ckptfmt._core.storage import Store, storage_of
from ckptfmt._core.verifying import Watch
from ckptfmt.errors import InvalidError

# Raw bytes of a chunk: of checksums (EXT-3), and of compressed values (CMP-2).
CHUNK_SIZE = 256 << 10


class Options(Protocol):
    """What C needs of `ckptfmt._base.save_options.SaveOptions`."""

    @property
    def level(self) -> str:
        """The level of the format."""

    @property
    def padding(self) -> int | None:
        """The multiple of bytes at which tensors start."""

    @property
    def durability(self) -> str:
        """A key of DURABILITY."""


class WriterHandle(Handle):
    """`ckptfmt_writer`. Used by one thread at a time: calls, and closing, wait for each other.

    A call may run Python (a codec's), and with it a signal handler. A handler that closes the
    handle takes effect when the interrupted call returns; its other calls are refused.
    """

    __slots__ = ("_busy", "_lock", "_owned")

    def __init__(
        self,
        prefix: str,
        given: Options,
        *,
        data_size: int = 0,
        coder: Coder | None = None,
        shards: int = 1,
        store: Store | None = None,
    ) -> None:
        codec = None if coder is None else Codec(coder)
        storage = storage_of(store)
        raw = path_bytes(prefix)
        options = ffi.new("ckptfmt_write_options *")
        options.struct_size = ffi.sizeof("ckptfmt_write_options")
        options.alignment = given.padding or 1
        options.chunk_size = 0 if given.level == "v2" else CHUNK_SIZE
        options.durability = DURABILITY[given.durability]
        options.data_size, options.shards = data_size, shards
        options.codec = ffi.NULL if codec is None else codec.pointer
        options.storage = ffi.NULL if storage is None else storage.pointer
        slot = new_slot("cf_writer_slot *", lib.cf_writer_slot_free, storage)
        error = ffi.new("ckptfmt_error *")
        try:
            status = stored(storage, lib.cf_writer_slot_open, raw, options, slot, error)
            check_stored(storage, status, error, prefix)
            super().__init__(held(slot.writer, slot), "writer", prefix, codec, storage)
            self._owned, self._lock, self._busy = slot, _thread.RLock(), False
        except BaseException:
            # The traceback may keep the slot alive for long.
            self._pointer = CLOSED
            ffi.release(slot)
            raise

    def add(self, sources: NDArray[Any]) -> None:
        """Append an array of SOURCE; the caller keeps alive what its addresses point to."""
        raw = ffi.from_buffer("uint8_t[]", sources)
        array = ffi.cast("ckptfmt_source *", raw)
        self.call(lib.ckptfmt_writer_add, array, len(sources))

    def add_metadata(self, text: bytes) -> None:
        """Append the metadata, a JSON object."""
        self.call(lib.ckptfmt_writer_add_metadata, ffi.from_buffer("uint8_t[]", text), len(text))

    def keep(
        self,
        reader: ReaderHandle,
        selection: Selection,
        rows: NDArray[np.uint64],
        names: Sequence[bytes] | None = None,
    ) -> NDArray[np.bool_]:
        """Adopt tensors of another checkpoint by links to its data files, under new names (None:
        their own). Returns for each row whether that was possible."""
        kept = np.zeros(len(rows), np.bool_)
        answers = ffi.from_buffer("uint8_t[]", kept, require_writable=True)
        numbers, pointer = ffi.from_buffer("uint64_t[]", rows), selection.pointer
        given, texts = ffi.NULL, np.empty(0, np.uint8)
        if names is not None:
            texts = np.frombuffer(b"".join(names), np.uint8)
            table = np.empty(len(names), BYTES)
            sizes = table["size"] = np.fromiter(map(len, names), np.uint64, len(names))
            table["data"] = address(texts) + sizes.cumsum() - sizes
            given = ffi.cast("ckptfmt_bytes *", ffi.from_buffer("uint8_t[]", table))
        keep = lib.ckptfmt_writer_keep
        self.call(keep, reader.use(), pointer, numbers, len(rows), given, answers)
        del texts
        return kept

    def commit(self) -> None:
        """Make the checkpoint visible. The handle is closed in any case."""
        try:
            self.call(lambda _, error: lib.cf_writer_slot_commit(self._owned, error))
        finally:
            self.close()

    def call(self, function: Callable[..., int], *arguments: Any) -> None:
        """Call a C function that takes the handle first and an error last; raise that error."""
        # Before the lock is touched: a thread of the parent may have held it at the fork.
        if self._pid != border.process:
            raise InvalidError(
                f"{self._name} was opened before a fork: open it again in this process"
            )
        error = ffi.new("ckptfmt_error *")
        # Ctrl-C cannot separate the lock's own `with` from what is inside: a lock left behind
        # would block closing forever.
        with self._lock:
            if self._busy:
                raise InvalidError(f"{self._name} is in use by the interrupted call")
            try:
                self._busy = True
                status = stored(self.storage, function, self._usable(), *arguments, error)
            finally:
                self._busy = False
                if self._pointer is CLOSED:
                    self._release()
        del arguments  # the traceback of an error would keep alive what closing frees
        self._finish_call(status, error)

    def _release(self) -> None:
        owned, self._owned = self._owned, None
        if owned is not None:
            ffi.release(owned)

    def close(self) -> None:
        """Close when the running call returns. Does nothing when closed."""
        if self.foreign:
            self._pointer = CLOSED
            return
        with self._lock:
            self._pointer = CLOSED
            if not self._busy:
                self._release()


def merge(
    prefixes: Sequence[str],
    destination: str,
    *,
    consume: bool,
    allow_missing: bool,
    durability: str,
    limits: Mapping[str, int] | None,
    partial: bool = True,
    remove_directories: bool = False,
    metadata_from: int | None = None,
    store: Store | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """`ckptfmt_merge`."""
    owners = [ffi.from_buffer(path_bytes(prefix) + b"\0") for prefix in prefixes]
    array = ffi.new("char *[]", owners)
    values = limits_of(limits)
    options = ffi.new("ckptfmt_merge_options *", {"limits": values})
    options.struct_size = ffi.sizeof("ckptfmt_merge_options")
    options.consume, options.allow_missing = int(consume), int(allow_missing)
    options.durability = DURABILITY[durability]
    options.remove_directories = int(remove_directories)
    options.partial = int(partial)
    options.metadata_from = 0 if metadata_from is None else 1 + metadata_from
    storage = storage_of(store)
    options.storage = ffi.NULL if storage is None else storage.pointer
    watch = Watch(progress)
    handle = ffi.new_handle(watch)
    if progress is not None:
        options.progress.report, options.progress.context = lib.cf_progress_report, handle
    error, raw = ffi.new("ckptfmt_error *"), path_bytes(destination)
    status = stored(storage, lib.ckptfmt_merge, array, len(owners), raw, options, error)
    if storage is not None:
        storage.release()
    if (raised := watch.raised()) is not None:
        raise raised
    check_stored(storage, status, error, destination)
