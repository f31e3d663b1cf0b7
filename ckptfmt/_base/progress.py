# SPDX-License-Identifier: Apache-2.0
"""Progress of a call, reported to the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Called with the bytes done and the total.
Progress = Callable[[int, int], object]


@dataclass(slots=True)
class Meter:
    """Counts bytes and reports them, at most `total`."""

    progress: Progress | None
    total: int
    done: int = 0

    def add(self, size: int) -> None:
        """Add bytes that are done."""
        self.done += size
        if self.progress is not None:
            self.progress(min(self.done, self.total), self.total)


def part_of(progress: Progress | None, before: int, after: int) -> Progress | None:
    """Return a progress of one part, for that of the whole with so many bytes before and after."""
    if progress is None or not before + after:
        return progress
    whole = progress
    return lambda done, total: whole(before + done, before + total + after)
