# SPDX-License-Identifier: Apache-2.0
"""A progress bar in one line of standard error; nothing if that is not a terminal."""

from __future__ import annotations

import contextlib
import sys
import time

from ckptfmt.cli import text
from ckptfmt.errors import masked

DELAY_SECONDS = 0.3  # shorter work shows no bar
REDRAW_SECONDS = 0.1
BAR_CELLS = 30


class Progress:
    """A context manager whose `update` is a progress callback; erases the bar at the end."""

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._what = masked(what)
        self._began = time.monotonic()
        self._drawn: float | None = None
        self._wanted = not quiet and sys.stderr is not None and sys.stderr.isatty()

    def update(self, done: int, total: int) -> None:
        """Show how many bytes of `total` are done."""
        now = time.monotonic()
        if not self._wanted or now - self._began < DELAY_SECONDS:
            return
        if self._drawn is not None and now - self._drawn < REDRAW_SECONDS and done < total:
            return
        self._drawn = now
        part = min(done / total, 1.0) if total else 1.0
        seconds = now - self._began
        filled = int(part * BAR_CELLS)
        bar = "#" * filled + "-" * (BAR_CELLS - filled)
        rate = text.size(int(done / seconds)) if seconds > 0 else "-"
        _write(
            f"\r{self._what} [{bar}] {part:4.0%} {text.size(done)} of {text.size(total)}, "
            f"{rate}/s\x1b[K"
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._drawn is not None:
            _write("\r\x1b[K")


def _write(line: str) -> None:
    # Without a terminal, which may be gone, the work goes on.
    with contextlib.suppress(OSError):
        sys.stderr.write(line)
        sys.stderr.flush()
