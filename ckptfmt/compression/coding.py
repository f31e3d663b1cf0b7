# SPDX-License-Identifier: Apache-2.0
"""zstd itself: many frames at a time, without the interpreter's lock where the library allows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

__all__ = ["THREADS_MAX", "compress", "decompress"]

# More threads than this wait for memory rather than work.
THREADS_MAX = 16
# Windows that hold a whole chunk as this library writes it.
WINDOW_LOG = 18

_MANY = {"buffer_types", "multi_compress_to_buffer", "multi_decompress_to_buffer"} <= set(
    zstandard.backend_features
)
# Coders belong to one thread at a time.
_mine = threading.local()


def _parameters(effort: int) -> zstandard.ZstdCompressionParameters:
    """Effort 0 codes bytes by how often they occur and hardly looks for repetitions: those that
    chance brings about in the exponents of numbers cost more than they save, in bytes and time."""
    common: dict[str, Any] = {"write_content_size": True, "write_checksum": False}
    if effort:
        return zstandard.ZstdCompressionParameters.from_level(
            effort, window_log=WINDOW_LOG, **common
        )
    return zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_FAST,
        min_match=7,
        hash_log=6,
        window_log=WINDOW_LOG,
        **common,
    )


def _compressor(effort: int) -> zstandard.ZstdCompressor:
    coders: dict[int, zstandard.ZstdCompressor] = _mine.__dict__.setdefault("compressors", {})
    if effort not in coders:
        coders[effort] = zstandard.ZstdCompressor(compression_params=_parameters(effort))
    return coders[effort]


def _decompressor() -> zstandard.ZstdDecompressor:
    coder: zstandard.ZstdDecompressor | None = getattr(_mine, "decompressor", None)
    if coder is None:
        coder = _mine.decompressor = zstandard.ZstdDecompressor()
    return coder


def compress(data: NDArray[np.uint8], pieces: NDArray[np.uint64], effort: int) -> Sequence[Any]:
    """A frame for each piece (offset and size) of the data, as buffers."""
    coder = _compressor(effort)
    if _MANY:
        segments = zstandard.BufferWithSegments(data.data, np.ascontiguousarray(pieces).tobytes())
        made: Any = coder.multi_compress_to_buffer(segments, threads=0)
        return [made[number] for number in range(len(pieces))]
    return [coder.compress(data[at : at + size].data) for at, size in pieces.tolist()]


def decompress(
    stored: NDArray[np.uint8], pieces: NDArray[np.uint64], sizes: Sequence[int]
) -> Sequence[Any] | int:
    """What the frames (offset and size) in the stored bytes decode to, as buffers of these sizes;
    the number of the first that does not. Their structure has been checked."""
    coder = _decompressor()
    if _MANY:
        try:
            pairs = np.ascontiguousarray(pieces).tobytes()
            segments = zstandard.BufferWithSegments(stored.data, pairs)
            made: Any = coder.multi_decompress_to_buffer(segments, threads=0)
            contents = [made[number] for number in range(len(pieces))]
            if list(map(len, contents)) == list(sizes):
                return contents
        except zstandard.ZstdError:
            pass
    found = []
    for number, (at, size) in enumerate(pieces.tolist()):
        try:
            content = coder.decompress(stored[at : at + size].data, max_output_size=sizes[number])
        except zstandard.ZstdError:
            return number
        if len(content) != sizes[number]:
            return number
        found.append(content)
    return found
