# SPDX-License-Identifier: Apache-2.0
"""Standard output, which may be a terminal, a pipe that nobody reads any more, or closed."""

from __future__ import annotations

import os
import sys
from typing import TextIO

__all__ = ["Output", "OutputError", "colored", "silence"]

COLORS = ("auto", "always", "never")
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class OutputError(Exception):
    """What was printed could not be written: a full disk, and the like."""


def colored(stream: TextIO | None, color: str) -> bool:
    """Whether to colour what goes to this stream."""
    if color != "auto":
        return color == "always"
    return (
        stream is not None
        and stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


class Output:
    """Where a command prints.

    When the reader goes away (`| head`), or where there never was one, printing goes on without
    effect: what a command found out, its exit status, does not depend on who listens.

    Attributes:
        gone: nobody reads any more; there is no need to go on printing.
    """

    def __init__(self, color: str = "auto") -> None:
        self._stream: TextIO | None = sys.stdout
        self.gone = self._stream is None
        self._colored = colored(self._stream, color)
        reconfigure = getattr(self._stream, "reconfigure", None)
        if reconfigure is not None:
            try:
                # Names hold any character there is; a terminal that lacks it shows its number.
                reconfigure(errors="backslashreplace")
            except OSError as error:  # it writes what argparse has left in the buffer
                self._failed(error)

    def write(self, text: str) -> None:
        """Prints the text as it is."""
        if self.gone or self._stream is None:
            return
        try:
            self._stream.write(text)
        except OSError as error:
            self._failed(error)

    def line(self, text: str = "") -> None:
        """Prints one line."""
        self.write(text + "\n")

    def flush(self) -> None:
        """Hands on what was printed so far."""
        if self.gone or self._stream is None:
            return
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error)

    def paint(self, text: str, style: str) -> str:
        """The text in a colour ("bold", "dim", "red", "green", "yellow"), if there are any."""
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self._colored and text else text

    def fits(self, characters: str) -> bool:
        """Whether the stream can show these characters."""
        try:
            characters.encode(getattr(self._stream, "encoding", None) or "ascii")
        except UnicodeEncodeError:
            return False
        return True

    def _failed(self, error: OSError) -> None:
        self.gone = True
        silence()
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"the output cannot be written: {error.strerror}") from None


def silence() -> None:
    """Lets whatever is still buffered for standard output go nowhere, now and when we exit."""
    try:
        descriptor = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
    except (AttributeError, OSError, ValueError):
        return
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
