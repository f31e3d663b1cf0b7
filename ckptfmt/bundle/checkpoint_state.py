# SPDX-License-Identifier: Apache-2.0
"""CheckpointState, the content of a directory's `checkpoint` file: bytes in protobuf's text format.

Read is what protobuf reads for TensorFlow: comments, both kinds of quotes, adjacent strings, lists,
the last value of a field given twice. What it writes is what TensorFlow writes, byte for byte.

A path that is no UTF-8, which protobuf cannot hold, is written with octal escapes and read back
from them; TensorFlow refuses a state file with such a path.

    state  = { name ":" value [ "," | ";" ] }
    value  = string+ | number | "[" [ value { "," value } ] "]"      (a list: repeated fields only)
    string = quote { character | escape } quote                      (on one line)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ckptfmt.errors import CorruptError, InvalidError, LimitError

__all__ = ["CheckpointState", "format_state", "parse_state"]

STATE_NAME = "checkpoint"
STATE_BYTES_MAX = 64 << 20
# Values and backslashes in one file: far more than any directory needs, and an end to the time that
# a file of the largest size can cost.
PARTS_MAX = 4 << 20


@dataclass(frozen=True)
class CheckpointState:
    """Which checkpoints a directory has.

    Attributes:
        model_checkpoint_path: the newest one's prefix; empty if none is named.
        all_model_checkpoint_paths: those not yet deleted, oldest first.
        all_model_checkpoint_timestamps: when each was made, seconds since 1970; may be empty.
        last_preserved_timestamp: when the last one that is kept forever was made; None if that is
            not told.
    """

    model_checkpoint_path: str = ""
    all_model_checkpoint_paths: tuple[str, ...] = ()
    all_model_checkpoint_timestamps: tuple[float, ...] = ()
    last_preserved_timestamp: float | None = None


# ---- reading -------------------------------------------------------------------------------------

# Whatever is no token of protobuf's is one of a single character. At the end it is empty.
_TOKEN = re.compile(
    r"(?:\s++|#[^\n]*+)*+("
    r"[a-zA-Z_][0-9a-zA-Z_+-]*+"
    r"|(?:[0-9+-]|\.[0-9])[0-9a-zA-Z_.+-]*+"
    r'|"[^"\n\\]*+(?:\\.[^"\n\\]*+)*+"'
    r"|'[^'\n\\]*+(?:\\.[^'\n\\]*+)*+'"
    r"|\S|\Z)"
)
_OCTAL = re.compile(r"-?0[0-9]")
_PATHS, _NUMBERS = "all_model_checkpoint_paths", "all_model_checkpoint_timestamps"
_PATH, _NUMBER = "model_checkpoint_path", "last_preserved_timestamp"


def parse_state(content: bytes, path: str | None = None) -> CheckpointState:
    """The CheckpointState that a state file's bytes are.

    Args:
        content: the bytes.
        path: the file, for errors.

    Raises:
        CorruptError: they are none: not UTF-8, no such text, a field that TensorFlow does not know.
        LimitError: more than `STATE_BYTES_MAX` bytes, or `PARTS_MAX` values and backslashes.
    """
    if len(content) > STATE_BYTES_MAX:
        raise LimitError(f"more than {STATE_BYTES_MAX} bytes", path=path)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise _damaged("no UTF-8", path, error.start) from None
    try:
        return _Parser(text).state()
    except _TextError as error:
        raise _damaged(error.message, path, len(text[: error.position].encode())) from None
    except _TooManyError:
        raise LimitError(f"more than {PARTS_MAX} values and backslashes", path=path) from None


def _damaged(message: str, path: str | None, offset: int) -> CorruptError:
    return CorruptError(message, failure="BAD_PROTO", path=path, offset=offset)


class _TextError(Exception):
    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.message, self.position = message, position


class _TooManyError(Exception):
    pass


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """The tokens and where they stand; then, without end, an empty one."""
    for match in _TOKEN.finditer(text):
        yield match[1], match.start(1)
    while True:
        yield "", len(text)


class _Parser:
    """One token ahead: `token`, at `position`."""

    def __init__(self, text: str) -> None:
        self._rest = _tokens(text)
        self._left = PARTS_MAX
        self.token, self.position = next(self._rest)

    def state(self) -> CheckpointState:
        paths: list[str] = []
        numbers: list[float] = []
        newest, preserved = "", None
        while self.token:
            name = self.token
            if name not in (_PATH, _PATHS, _NUMBERS, _NUMBER):
                raise self._error("no field of a CheckpointState")
            self._next()
            if not self._took(":"):
                raise self._error("a field without a colon")
            if name == _PATHS:
                self._values(paths, self._string)
            elif name == _NUMBERS:
                self._values(numbers, self._float)
            elif name == _PATH:
                newest = self._string()
            else:
                preserved = self._float()
            if not self._took(","):
                self._took(";")
        return CheckpointState(newest, tuple(paths), tuple(numbers), preserved)

    def _next(self) -> None:
        self.token, self.position = next(self._rest)

    def _took(self, token: str) -> bool:
        if self.token != token:
            return False
        self._next()
        return True

    def _error(self, message: str) -> _TextError:
        return _TextError(message, self.position)

    def _values(self, found: list[Any], take: Callable[[], Any]) -> None:
        if not self._took("["):
            found.append(take())
            return
        if self._took("]"):
            return
        while True:
            found.append(take())
            if self._took("]"):
                return
            if not self._took(","):
                raise self._error("a list without its end")

    def _spend(self, parts: int) -> None:
        self._left -= parts
        if self._left < 0:
            raise _TooManyError

    def _float(self) -> float:
        token = self.token
        self._spend(1)
        if _OCTAL.match(token):
            raise self._error("a number that begins with 0")
        try:
            value = float(token)
        except ValueError:
            value = self._odd_float(token)
        self._next()
        return value

    def _odd_float(self, token: str) -> float:
        """What C takes for a float and Python does not."""
        if token.lower() in ("inff", "-inff"):
            return float(token[:-1])
        try:
            return float(token.rstrip("fF"))
        except ValueError:
            raise self._error("a field without its value") from None

    def _string(self) -> str:
        """Adjacent strings are one; their bytes are joined before they are characters."""
        first = self._piece()
        if self.token[:1] not in ("'", '"'):
            return first if isinstance(first, str) else str(first, "utf-8", "surrogateescape")
        pieces = [first]
        while self.token[:1] in ("'", '"'):
            pieces.append(self._piece())
        raw = b"".join(p.encode() if isinstance(p, str) else p for p in pieces)
        return str(raw, "utf-8", "surrogateescape")

    def _piece(self) -> str | bytes:
        token = self.token
        if len(token) < 2 or token[0] not in "'\"":
            raise self._error("a field without its value")
        self._spend(1 + token.count("\\"))
        piece: str | bytes = token[1:-1]
        if "\\" in token:
            try:
                piece = _unescaped(token[1:-1])
            except ValueError:
                raise self._error("a string with an escape that is none") from None
        self._next()
        return piece


# ---- escapes -------------------------------------------------------------------------------------

_CODE_POINT = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-f]{2})|(.?))", re.DOTALL)
_ESCAPED = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
    b"\\": b"\\",
    b"'": b"'",
    b'"': b'"',
}
# Escapes that are cut short, or (\N) give a character by its name, which no state file needs.
_NO_ESCAPES = (b"", b"x", b"u", b"U", b"N")


def _unescaped(text: str) -> bytes:
    """The bytes that a string means. Raises ValueError for what protobuf refuses.

    As protobuf in Python does it, code points come first: what they give may begin an escape. An
    escape that is none stays as it is.
    """
    return _ESCAPE.sub(_byte, _CODE_POINT.sub(_code_point, text).encode())


def _code_point(match: re.Match[str]) -> str:
    hexadecimal, short, long, other = match.groups()
    if hexadecimal is not None:
        return f"\\x{int(hexadecimal, 16):02x}"
    if other is None:
        return chr(int(short or long, 16))
    if other > "\xff":  # it has become \u... when protobuf looks for code points
        point = ord(other)
        return rf"\\u{point:04x}" if point < 0x10000 else rf"\\U{point:08x}"
    return match[0]


def _byte(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, other = match.groups()
    if octal is not None:
        return bytes([int(octal, 8)])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    if other in _NO_ESCAPES:
        raise ValueError
    return _ESCAPED.get(other, match[0])


# ---- writing -------------------------------------------------------------------------------------

_TO_ESCAPES = {
    **{code: f"\\{code:03o}" for code in (*range(32), 127)},
    **{code: f"\\{letter}" for code, letter in zip(b"\t\n\r\"'\\", "tnr\"'\\", strict=True)},
    # Bytes that are no UTF-8, as Python keeps them in a str.
    **{0xDC00 + byte: f"\\{byte:03o}" for byte in range(128, 256)},
}
_PLAIN = re.compile(r"[\w./ -]*+", re.ASCII)


def format_state(state: CheckpointState) -> bytes:
    """The bytes of a state file, as TensorFlow writes them.

    Raises:
        InvalidError: a path with half of a surrogate pair, which no file can have.
        LimitError: more than `STATE_BYTES_MAX` bytes, which nobody could read back.
    """
    lines = [_path_line(_PATH, state.model_checkpoint_path)] if state.model_checkpoint_path else []
    lines += [_path_line(_PATHS, path) for path in state.all_model_checkpoint_paths]
    lines += [f"{_NUMBERS}: {float(value)!r}\n" for value in state.all_model_checkpoint_timestamps]
    preserved = state.last_preserved_timestamp
    # A field of value 0 is one that is not there; -0.0 is another value.
    if preserved is not None and str(float(preserved)) != "0.0":
        lines.append(f"{_NUMBER}: {float(preserved)!r}\n")
    try:
        content = "".join(lines).encode()
    except UnicodeEncodeError as error:
        raise InvalidError(
            f"a path with {error.object[error.start]!r}, which is no character", failure="BAD_PATH"
        ) from None
    if len(content) > STATE_BYTES_MAX:
        raise LimitError(f"more than {STATE_BYTES_MAX} bytes")
    return content


def _path_line(name: str, path: str) -> str:
    text = path if _PLAIN.fullmatch(path) else path.translate(_TO_ESCAPES)
    return f'{name}: "{text}"\n'
