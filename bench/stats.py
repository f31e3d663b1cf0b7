# SPDX-License-Identifier: Apache-2.0
"""Medians, and how sure a ratio of two of them is."""

from __future__ import annotations

import random
import statistics
from typing import NamedTuple

DRAWS = 2000


class Ratio(NamedTuple):
    """A ratio of medians with its 95% interval; of one sample each the interval is the ratio."""

    value: float
    low: float
    high: float


def median(values: list[float]) -> float:
    return statistics.median(values)


def ratio(others: list[float], ours: list[float], seed: int) -> Ratio:
    """By how much ours is faster, with the interval of a bootstrap."""
    generator = random.Random(seed)
    found = sorted(
        median(generator.choices(others, k=len(others)))
        / max(median(generator.choices(ours, k=len(ours))), 1e-9)
        for _ in range(DRAWS)
    )
    value = median(others) / max(median(ours), 1e-9)
    return Ratio(value, found[DRAWS // 40], found[-DRAWS // 40 - 1])
