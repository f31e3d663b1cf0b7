# SPDX-License-Identifier: Apache-2.0
"""A progress bar on standard error: rich's if it is installed, else one line; nothing if standard
error is not a terminal."""

from __future__ import annotations

import sys
import time
from typing import Any

from ckptfmt.cli import text
from ckptfmt.errors import masked

# Shorter work shows no bar, which saves the import of rich.
DELAY_SECONDS = 0.3
REDRAW_SECONDS = 0.1
BAR_CELLS = 30


class Progress:
    """A context manager whose `update` is a progress callback; erases the bar at the end."""

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._what = masked(what)
        self._began = self._drawn = time.monotonic()
        self._wanted = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._bar: _Plain | _Rich | None = None

    def update(self, done: int, total: int) -> None:
        """Show how many bytes of `total` are done."""
        if not self._wanted:
            return
        now = time.monotonic()
        if self._bar is None:
            if now - self._began < DELAY_SECONDS:
                return
            self._bar = _new_bar(self._what, self._began)
        elif now - self._drawn < REDRAW_SECONDS and done < total:
            return
        self._drawn = now
        self._bar.draw(done, total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._bar is not None:
            self._bar.erase()


def _new_bar(what: str, began: float) -> _Plain | _Rich:
    try:
        return _Rich(what)
    except ImportError:
        return _Plain(what, began)


class _Plain:
    def __init__(self, what: str, began: float) -> None:
        self._what, self._began = what, began

    def draw(self, done: int, total: int) -> None:
        part = min(done / total, 1.0) if total else 1.0
        seconds = time.monotonic() - self._began
        filled = int(part * BAR_CELLS)
        bar = "#" * filled + "-" * (BAR_CELLS - filled)
        rate = text.size(int(done / seconds)) if seconds > 0 else "-"
        self._write(
            f"\r{self._what} [{bar}] {part:4.0%} {text.size(done)} of {text.size(total)}, "
            f"{rate}/s\x1b[K"
        )

    def erase(self) -> None:
        self._write("\r\x1b[K")

    def _write(self, line: str) -> None:
        try:
            sys.stderr.write(line)
            sys.stderr.flush()
        except OSError:
            pass  # the terminal is gone; go on without a bar


class _Rich:
    def __init__(self, what: str) -> None:
        # Optional, and slow to import.
        from rich import progress  # noqa: PLC0415
        from rich.console import Console  # noqa: PLC0415

        self._bar: Any = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.DownloadColumn(binary_units=True),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(what, total=None)
        self._bar.start()

    def draw(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total, refresh=True)

    def erase(self) -> None:
        self._bar.stop()
