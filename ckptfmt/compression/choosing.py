# SPDX-License-Identifier: Apache-2.0
"""How to compress a value, found by compressing samples of it in the ways there are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt.compression import coding
from ckptfmt.compression.settings import CHUNK_SIZE

__all__ = ["RAW", "Choice", "choose", "efforts_of"]

# Instead of an effort: nothing is gained.
RAW = -1
# A plane must lose this part of itself to be worth the decoding.
GAIN = 0.05
# Bytes of a sample, of which there are several, spread evenly; and of all of them.
SAMPLE_BYTES = 16 << 10
SAMPLES_MAX = 4
# The samples of a small value are this part of it, but no less than the bytes.
SAMPLED_PART = 16
SAMPLED_MIN = 4 << 10
# Entropies of a byte in 256ths of a bit, as C gives them: above, what occurs tells nothing; below,
# runs are likely.
DENSE = int(7.88 * 256)
SPARSE = 256
# Splitting to planes must be better than this part of not splitting, which decodes in one go.
PLANES_ADVANTAGE = 0.98


class Choice(NamedTuple):
    """How to compress a value.

    Attributes:
        method: of its chunks.
        efforts: of zstd for each plane, RAW for those that gain nothing.
    """

    method: int
    efforts: tuple[int, ...]


def choose(
    raw: NDArray[np.uint8],
    info: _core.PackInfo,
    effort: int,
    dense: NDArray[np.bool_] | None = None,
) -> Choice | None:
    """The best way for a value of which `raw` is a stretch or all; None: none gains anything.

    Args:
        raw: bytes in whole units.
        info: what they are.
        effort: of zstd for what repeats itself.
        dense: chunks of CHUNK_SIZE of them that are left as they are; no sample is taken of these.
    """
    if dense is not None and dense.all():
        return None
    sample = _sample(raw) if dense is None or not dense.any() else _sample_of(raw, ~dense)
    whole = _sizes(sample, np.array([[0, len(sample)]], np.uint64), (0, effort))[0]
    best: Choice | None = None
    candidate, least = _cheapest(whole, len(sample))
    if candidate != RAW:
        best = Choice(_core.CHUNK_ZSTD, (candidate,))
    if info.unit > 1:
        method = _core.CHUNK_ROTATED_PLANES if info.rotates else _core.CHUNK_PLANES
        planes = np.empty_like(sample)
        _core.chunks_split(sample, _rounded(len(sample)), info.unit, method, planes)
        count = len(sample) // info.unit
        pieces = np.array([[p * count, count] for p in range(info.unit)], np.uint64)
        found = [_cheapest(row, count) for row in _sizes(planes, pieces, (0, effort))]
        efforts = tuple(number for number, _ in found)
        total = sum(each for _, each in found)
        if total < len(sample) and (best is None or total < least * PLANES_ADVANTAGE):
            best = Choice(method, efforts)
    return best


def _sample(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Some of the bytes, in pieces of whole units of whatever kind."""
    size = min(max(len(raw) // SAMPLED_PART, SAMPLED_MIN), SAMPLES_MAX * SAMPLE_BYTES)
    if len(raw) <= size:
        return raw
    count = -(-size // SAMPLE_BYTES)
    piece = size // count // 16 * 16
    starts = np.linspace(0, len(raw) - piece, count).astype(np.int64) // 16 * 16
    return np.concatenate([raw[start : start + piece] for start in starts.tolist()])


def _sample_of(raw: NDArray[np.uint8], chosen: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Some of the bytes of the chosen chunks, of which there is one, as `_sample` takes them."""
    numbers = np.flatnonzero(chosen)
    picks = np.unique(np.linspace(0, len(numbers) - 1, SAMPLES_MAX).round().astype(np.int64))
    pieces = []
    for number in numbers[picks].tolist():
        chunk = raw[number * CHUNK_SIZE : (number + 1) * CHUNK_SIZE]
        piece = min(SAMPLES_MAX * SAMPLE_BYTES // len(picks) // 16 * 16, len(chunk))
        start = (len(chunk) - piece) // 32 * 16
        pieces.append(chunk[start : start + piece])
    return np.concatenate(pieces)


def _rounded(size: int) -> int:
    """A chunk size that takes this many bytes as one."""
    return max(-(-size // 16) * 16, 4096)


def _sizes(
    data: NDArray[np.uint8], pieces: NDArray[np.uint64], efforts: tuple[int, ...]
) -> list[dict[int, int]]:
    """For each piece the size of its frame by effort."""
    tried = {effort: coding.compress(data, pieces, effort) for effort in efforts}
    return [
        {effort: len(frames[number]) for effort, frames in tried.items()}
        for number in range(len(pieces))
    ]


def _cheapest(sizes: dict[int, int], size: int) -> tuple[int, int]:
    """The effort that gains most, and the size; RAW where none gains enough. Effort 0 is much
    faster, so the others must be better by a hundredth."""
    effort = min(sizes, key=lambda number: sizes[number] * (1.0 if number == 0 else 1.01))
    return (effort, sizes[effort]) if sizes[effort] <= size * (1 - GAIN) else (RAW, size)


def efforts_of(choice: Choice, entropies: NDArray[np.uint32], effort: int) -> NDArray[np.int64]:
    """The effort for each plane of each chunk (RAW: not worth trying), by the entropy of a sample
    of it where that differs from what the value as a whole let expect."""
    efforts = np.broadcast_to(np.array(choice.efforts, np.int64), entropies.shape).copy()
    efforts[(efforts == 0) & (entropies > DENSE)] = RAW
    efforts[(efforts == RAW) & (entropies < DENSE * (1 - GAIN))] = 0
    efforts[entropies < SPARSE] = effort
    return efforts
