# SPDX-License-Identifier: Apache-2.0
"""Sources as raw bytes, and raw bytes as chunks: all of compressing but the coding of zstd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.border import check, new_error
from ckptfmt._core.columns import address, array_at


class PackInfo(NamedTuple):
    """`ckptfmt_pack_info`, but for the data."""

    raw_size: int
    raw_crc32c: int
    unit: int
    rotates: bool
    storage: int


class Packer:
    """`ckptfmt_packer`: the raw bytes of one source. Belongs to one thread at a time.

    Args:
        source: an array of one SOURCE; the caller keeps alive what its addresses point to for as
            long as the packer is used.

    Attributes:
        info: what they are.
        data: all of them, where they lie in memory as they are; else None.
    """

    __slots__ = ("_pointer", "data", "info")

    def __init__(self, source: NDArray[Any]) -> None:
        raw = ffi.cast("ckptfmt_source *", ffi.from_buffer("uint8_t[]", source))
        out, error = ffi.new("ckptfmt_packer **"), new_error()
        check(lib.ckptfmt_packer_open(raw, out, error), error)
        # Plain memory, as a selection.
        self._pointer = ffi.gc(out[0], lib.ckptfmt_packer_close)
        found = ffi.new("ckptfmt_pack_info *")
        lib.ckptfmt_packer_info(self._pointer, found)
        self.info = PackInfo(
            int(found.raw_size),
            int(found.raw_crc32c),
            int(found.unit),
            bool(found.rotates),
            int(found.storage),
        )
        self.data: NDArray[np.uint8] | None = None
        if found.data != ffi.NULL:
            size = self.info.raw_size
            self.data = array_at(found.data, size, np.dtype(np.uint8), self._pointer)

    def take(self, to: NDArray[np.uint8]) -> None:
        """The next bytes, as many as `to` has."""
        error = new_error()
        raw = ffi.from_buffer("uint8_t[]", to, require_writable=True)
        check(lib.ckptfmt_packer_take(self._pointer, raw, len(to), error), error)


def sources_dense(sources: NDArray[Any]) -> NDArray[np.uint8]:
    """`ckptfmt_sources_dense`: 1 for each of an array of SOURCE of which samples show nothing to
    gain."""
    dense = np.zeros(len(sources), np.uint8)
    raw = ffi.cast("ckptfmt_source *", ffi.from_buffer("uint8_t[]", sources))
    lib.ckptfmt_sources_dense(raw, len(sources), ffi.from_buffer("uint8_t[]", dense))
    return dense


def chunks_dense(
    raw: NDArray[np.uint8], chunk_size: int, unit: int, rotates: bool
) -> NDArray[np.bool_]:
    """`ckptfmt_chunks_dense`: of which chunks samples show nothing to gain."""
    dense, error = np.zeros(-(-len(raw) // chunk_size), np.bool_), new_error()
    status = lib.ckptfmt_chunks_dense(
        ffi.from_buffer("uint8_t[]", raw),
        len(raw),
        chunk_size,
        unit,
        rotates,
        ffi.cast("uint8_t *", address(dense)),
        error,
    )
    check(status, error)
    return dense


def chunks_split(
    raw: NDArray[np.uint8], chunk_size: int, unit: int, method: int, planes: NDArray[np.uint8]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """`ckptfmt_chunks_split`: the checksums of the chunks, and 256 times the entropies, chunk by
    plane. `planes` has as many bytes as `raw`; without planes it is not touched."""
    count = -(-len(raw) // chunk_size)
    columns = unit if method >= lib.CKPTFMT_CHUNK_PLANES else 1
    crcs, entropies = np.empty(count, np.uint32), np.empty((count, columns), np.uint32)
    error = new_error()
    status = lib.ckptfmt_chunks_split(
        ffi.from_buffer("uint8_t[]", raw),
        len(raw),
        chunk_size,
        unit,
        method,
        ffi.cast("uint8_t *", address(planes)),
        ffi.from_buffer("uint32_t[]", crcs),
        ffi.cast("uint32_t *", address(entropies)),
        error,
    )
    check(status, error)
    return crcs, entropies


def chunks_join(
    planes: Any, chunk_size: int, unit: int, method: int, raw: NDArray[np.uint8]
) -> None:
    """`ckptfmt_chunks_join`: what `chunks_split` gave, put together again."""
    error = new_error()
    to = ffi.from_buffer("uint8_t[]", raw, require_writable=True)
    cut = ffi.from_buffer("uint8_t[]", planes)
    check(lib.ckptfmt_chunks_join(cut, len(raw), chunk_size, unit, method, to, error), error)


def chunks_build(
    raw: NDArray[np.uint8],
    chunk_size: int,
    unit: int,
    method: int,
    planes: NDArray[np.uint8],
    frames: dict[int, Any],
) -> tuple[NDArray[np.uint8], NDArray[np.uint64], NDArray[np.uint32]]:
    """`ckptfmt_chunks_build`: the stored chunks, their sizes and checksums. `frames` holds buffers
    by number of the plane, counted over all chunks."""
    count = -(-len(raw) // chunk_size)
    columns = unit if method >= lib.CKPTFMT_CHUNK_PLANES else 1
    table = ffi.new("ckptfmt_bytes[]", count * columns)
    owners = []
    for number, frame in frames.items():
        owner = ffi.from_buffer("uint8_t[]", frame)
        owners.append(owner)
        table[number].data, table[number].size = owner, len(owner)
    to = np.empty(int(lib.ckptfmt_chunks_capacity(len(raw), chunk_size)), np.uint8)
    sizes, crcs, error = np.empty(count, np.uint64), np.empty(count, np.uint32), new_error()
    status = lib.ckptfmt_chunks_build(
        ffi.from_buffer("uint8_t[]", raw),
        len(raw),
        chunk_size,
        unit,
        method,
        ffi.cast("uint8_t *", address(planes)),
        table,
        ffi.from_buffer("uint8_t[]", to),
        len(to),
        ffi.from_buffer("uint64_t[]", sizes),
        ffi.from_buffer("uint32_t[]", crcs),
        error,
    )
    check(status, error)
    return to[: int(sizes.sum())], sizes, crcs


def combine(crcs: Sequence[int], sizes: Sequence[int]) -> int:
    """The CRC-32C of pieces one after the other, from those of the pieces and their sizes."""
    total = 0
    for crc, size in zip(crcs, sizes, strict=True):
        total = lib.ckptfmt_crc32c_combine(total, crc, size)
    return int(total)
