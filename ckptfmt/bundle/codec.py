# SPDX-License-Identifier: Apache-2.0
"""Compressed values (level "ckptfmt" of the format): the codec over the zstandard package. The
C core does all else."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt.errors import StorageError

# A window that holds a whole chunk of the default size.
WINDOW_LOG = 18


class Zstd:
    """A Coder over the zstandard package, which works without the interpreter's lock.

    Args:
        level: of zstd, for what repeats itself: text, indices, zeros. The exponents of numbers gain
            nothing by more than 1.
    """

    def __init__(self, level: int = 1) -> None:
        self._level = level
        # Coders belong to one thread at a time.
        self._compressors: dict[int, list[Any]] = {_core.EFFORT_FAST: [], _core.EFFORT_FULL: []}
        self._decompressors: list[Any] = []

    def encode(self, items: NDArray[Any]) -> None:
        """Set the size of each item to that of its frame, 0 if that does not fit."""
        for effort in _core.distinct(items["effort"]):
            rows = np.flatnonzero(items["effort"] == effort)
            chosen = items[rows]
            frames = self._compress(chosen, effort)
            sizes = np.fromiter(map(len, frames), np.uint64, len(frames))
            sizes[sizes > chosen["capacity"]] = 0
            for frame, size, address in zip(
                frames, sizes.tolist(), chosen["destination"].tolist(), strict=True
            ):
                _core.copy_to(address, frame, size)
            items["size"][rows] = sizes

    def decode(self, items: NDArray[Any]) -> None:
        """Set the size of each item to that of its content, 0 if it is not a frame of its
        capacity."""
        contents = self._decompress(items)
        for row, (content, capacity, address) in enumerate(
            zip(contents, items["capacity"].tolist(), items["destination"].tolist(), strict=True)
        ):
            if len(content) == capacity:
                _core.copy_to(address, content, capacity)
                items["size"][row] = capacity

    def _compress(self, items: NDArray[Any], effort: int) -> list[bytes]:
        pool = self._compressors[effort]
        coder = pool.pop() if pool else self._compressor(effort)
        try:
            found = [coder.compress(data) for data in _sources(items)]
        except _zstandard().ZstdError as error:
            raise _no_memory(error) or error from None
        pool.append(coder)
        return found

    def _decompress(self, items: NDArray[Any]) -> list[bytes]:
        """Return the contents of the frames; no bytes for a damaged frame."""
        pool, zstandard = self._decompressors, _zstandard()
        coder = pool.pop() if pool else zstandard.ZstdDecompressor()
        found = []
        for data, capacity in zip(_sources(items), items["capacity"].tolist(), strict=True):
            try:
                found.append(coder.decompress(data, max_output_size=capacity))
            except zstandard.ZstdError as error:
                if short := _no_memory(error):
                    raise short from None
                found.append(b"")
        pool.append(coder)
        return found

    def _compressor(self, effort: int) -> Any:
        """Effort FAST encodes bytes by how often they occur and hardly looks for repetitions: those
        that occur at random in the exponents of numbers cost more than they save, in bytes and
        time."""
        zstandard = _zstandard()
        common: dict[str, Any] = {
            "window_log": WINDOW_LOG,
            "write_content_size": True,
            "write_checksum": False,
        }
        kind = zstandard.ZstdCompressionParameters
        if effort == _core.EFFORT_FULL:
            parameters = kind.from_level(self._level, **common)
        else:
            fast = zstandard.STRATEGY_FAST
            parameters = kind(strategy=fast, min_match=7, hash_log=6, **common)
        return zstandard.ZstdCompressor(compression_params=parameters)


def _sources(items: NDArray[Any]) -> Iterator[memoryview]:
    for address, size in zip(items["source"].tolist(), items["source_size"].tolist(), strict=True):
        yield _core.memory_at(address, size)


def _no_memory(error: Exception) -> MemoryError | None:
    """Return a MemoryError, if that is what zstd reports."""
    return MemoryError(str(error)) if "not enough memory" in str(error) else None


@functools.cache
def _zstandard() -> ModuleType:
    """Return the package, loaded when something is compressed: most checkpoints need none."""
    try:
        import zstandard  # noqa: PLC0415
    except OSError as error:
        message = f"cannot load the zstandard package: {error.strerror}"
        raise StorageError(message, errno=error.errno) from None
    except ImportError as error:
        if "failed to map segment" in str(error):  # of the dynamic linker
            raise MemoryError(str(error)) from None
        raise
    return zstandard
