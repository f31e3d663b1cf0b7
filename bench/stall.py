# SPDX-License-Identifier: Apache-2.0
"""What a save costs a training loop.

The loop is Python and small products of numpy. It is timed on its own; then a save begins, all
arrays are updated in place once, as a training step does it (libraries that share memory with the
model pay there), and the loop goes on until the checkpoint is in place. "Blocked" is the time until
the call returned; "lost" is the delay of the loop against a run without the save, blocked time
included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

LEFT = np.ones((96, 96), np.float32)


def _iterate() -> Any:
    total = 0
    for i in range(300):
        total += i
    return LEFT @ LEFT


def _rate(seconds: float) -> float:
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        _iterate()
        steps += 1
    return steps / (time.perf_counter() - began)


def _time(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(
    update: Callable[[], None],
    save: Callable[[], Any],
    in_place: Callable[[Any], bool],
    finish: Callable[[Any], Any],
    usual_seconds: float,
) -> dict[str, float]:
    """Seconds blocked, lost, and until the checkpoint was in place."""
    update()
    usual, usual_update = _rate(usual_seconds), min(_time(update) for _ in range(3))
    began, steps = time.perf_counter(), 0
    result = save()
    blocked = time.perf_counter() - began
    update()
    while not in_place(result):
        _iterate()
        steps += 1
    wall = time.perf_counter() - began
    finish(result)
    return {
        "seconds": blocked,
        "lost": max(wall - usual_update - steps / usual, 0.0),
        "in_place": wall,
    }
