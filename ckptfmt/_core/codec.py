# SPDX-License-Identifier: Apache-2.0
"""Codecs written in Python. C calls them with whole batches, from any thread."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.callbacks import Callbacks
from ckptfmt._core.columns import CODEC_ITEM

EFFORT_FAST = lib.CKPTFMT_EFFORT_FAST
EFFORT_FULL = lib.CKPTFMT_EFFORT_FULL


class Coder(Protocol):
    """Encodes and decodes zstd frames, in any number of threads at once.

    Both methods get an array of CODEC_ITEM and set its `size`, as `ckptfmt_codec` says. The memory
    that it points to is `memory_at`; `copy_to` writes to it.
    """

    def encode(self, items: NDArray[Any]) -> None: ...

    def decode(self, items: NDArray[Any]) -> None: ...


class Codec(Callbacks):
    """A `ckptfmt_codec` that calls a Coder. It must outlive its users.

    Attributes:
        pointer: the struct.
    """

    def __init__(self, coder: Coder) -> None:
        super().__init__()
        self.coder = coder
        self._self = ffi.new_handle(self)
        self.pointer = ffi.new("ckptfmt_codec *")
        self.pointer.struct_size = ffi.sizeof("ckptfmt_codec")
        self.pointer.context = self._self
        self.pointer.encode, self.pointer.decode = lib.cf_codec_encode, lib.cf_codec_decode
        self.pointer.flags = lib.CKPTFMT_CODEC_THREADS


def _failed(_kind: Any, error: BaseException, traceback: TracebackType | None) -> int:
    """Called by cffi for an exception that leaves one of the functions below, Ctrl-C included."""
    if isinstance(error, MemoryError):
        return int(lib.CKPTFMT_NO_MEMORY)
    if traceback is not None:
        codec: Codec = ffi.from_handle(traceback.tb_frame.f_locals["context"])
        codec.failed(error)
    return int(lib.CKPTFMT_INVALID)


def _encode(context: Any, items: Any, count: int) -> int:
    ffi.from_handle(context).coder.encode(_table(items, count))
    return int(lib.CKPTFMT_OK)


def _decode(context: Any, items: Any, count: int) -> int:
    ffi.from_handle(context).coder.decode(_table(items, count))
    return int(lib.CKPTFMT_OK)


ffi.def_extern(name="cf_codec_encode", onerror=_failed, error=lib.CKPTFMT_NO_MEMORY)(_encode)
ffi.def_extern(name="cf_codec_decode", onerror=_failed, error=lib.CKPTFMT_NO_MEMORY)(_decode)


def _table(items: Any, count: int) -> NDArray[Any]:
    return np.frombuffer(ffi.buffer(items, count * CODEC_ITEM.itemsize), CODEC_ITEM)


def memory_at(address: int, size: int) -> memoryview:
    """Return a view of C memory, valid during the call that passed its address."""
    return memoryview(ffi.buffer(ffi.cast("uint8_t *", address), size))


def copy_to(address: int, data: Any, size: int) -> None:
    """Copy bytes of a buffer to C memory."""
    ffi.memmove(ffi.cast("uint8_t *", address), data, size)
