# SPDX-License-Identifier: Apache-2.0
"""How far a call is, told to whoever watches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Called with the bytes that are done, and all.
Progress = Callable[[int, int], object]


@dataclass(slots=True)
class Meter:
    """Counts what is done."""

    progress: Progress | None
    total: int
    done: int = 0

    def add(self, size: int) -> None:
        """So many bytes more are done."""
        self.done += size
        if self.progress is not None:
            self.progress(self.done, self.total)
