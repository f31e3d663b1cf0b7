# SPDX-License-Identifier: Apache-2.0
"""Standard output: a terminal, a file, a pipe without a reader, or closed."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any, TextIO

# Of all JSON documents. Keys may be added within a schema.
SCHEMA = 2

COLORS = ("auto", "always", "never")
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class OutputError(Exception):
    """The output could not be written, for example to a full disk."""


def complain(line: str = "") -> None:
    """Print a line to standard error, or only what is buffered. If that cannot be written, nothing
    more is: the exit status still says what a script needs."""
    if sys.stderr is not None:
        try:
            print(line, end="\n" if line else "", file=sys.stderr, flush=True)
        except OSError:
            silence(sys.stderr)


def colored(stream: TextIO | None, color: str) -> bool:
    """Return whether output to `stream` is coloured."""
    if color != "auto":
        return color == "always"
    return (
        stream is not None
        and stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


class Output:
    """The standard output of a command.

    Output to a closed pipe (`| head`) is dropped: the exit status of a command does not depend on
    its reader.

    Attributes:
        gone: True when nothing reads the output any more; a command may stop printing.
        width: cells of a line of the terminal; None if the output is not one.
    """

    def __init__(self, color: str = "auto") -> None:
        self._stream: TextIO | None = sys.stdout
        self.gone = self._stream is None
        self._colored = colored(self._stream, color)
        self.width: int | None = None
        if self._stream is not None and self._stream.isatty():
            self.width = shutil.get_terminal_size().columns
        reconfigure = getattr(self._stream, "reconfigure", None)
        if reconfigure is not None:
            try:
                # A character that the terminal lacks is shown as an escape.
                reconfigure(errors="backslashreplace")
            except OSError as error:  # reconfigure() flushes the buffer
                self._failed(error)

    def write(self, text: str) -> None:
        """Print `text` without a newline."""
        if self.gone or self._stream is None:
            return
        try:
            self._stream.write(text)
        except OSError as error:
            self._failed(error)

    def write_bytes(self, data: bytes) -> None:
        """Write bytes as they are."""
        if self.gone or self._stream is None:
            return
        try:
            self._stream.flush()
            self._stream.buffer.write(data)
        except OSError as error:
            self._failed(error)

    def line(self, text: str = "") -> None:
        """Print one line."""
        self.write(text + "\n")

    def table(self, lines: Iterator[str]) -> None:
        """Print what `text.table` gives, its titles in bold; stop when nothing reads it."""
        self.write(self.paint(next(lines).rstrip("\n"), "bold") + "\n")
        for some in lines:
            if self.gone:
                return
            self.write(some)

    def document(self, document: dict[str, Any]) -> None:
        """Print one JSON document, with its schema, on one line, ASCII only. Numbers that JSON
        lacks are "NaN", "Infinity" or "-Infinity"."""
        self.line(json_text({"schema": SCHEMA, **document}))

    def flush(self) -> None:
        """Flush the stream."""
        if self.gone or self._stream is None:
            return
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error)

    def paint(self, text: str, style: str) -> str:
        """Return `text` in a style (a key of _CODES) if output is coloured."""
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self._colored and text else text

    def fits(self, characters: str) -> bool:
        """Return whether the encoding of the stream has these characters."""
        try:
            characters.encode(getattr(self._stream, "encoding", None) or "ascii")
        except UnicodeEncodeError:
            return False
        return True

    def _failed(self, error: OSError) -> None:
        self.gone = True
        silence(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"cannot write the output: {error.strerror}") from None


def json_text(document: dict[str, Any]) -> str:
    """Return a JSON document on one line, ASCII only."""
    try:
        return json.dumps(document, allow_nan=False)
    except ValueError:  # a number that JSON lacks
        return json.dumps(_named(document))


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _named(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_named(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def silence(stream: TextIO | None) -> None:
    """Send what is buffered and later output of a standard stream to the null device: the
    interpreter would fail to write it at its end."""
    try:
        descriptor = stream.fileno()  # type: ignore[union-attr]
        nowhere = os.open(os.devnull, os.O_WRONLY)
    except (AttributeError, OSError, ValueError):
        return
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
