# SPDX-License-Identifier: Apache-2.0
"""Paths as users give them, names of a checkpoint's files, and names of tensors."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ckptfmt._base import foreign
from ckptfmt._base.arguments import invalid, wrong
from ckptfmt.errors import VALUE_SUFFIX as VALUE_SUFFIX  # noqa: PLC0414 (exported)
from ckptfmt.errors import InvalidError, UnsupportedError

Path = str | bytes | os.PathLike[Any]

# Names of tensors that belong to the format itself: the metadata, and the tensors of zero elements
# that keep an otherwise empty shard referenced.
RESERVED = "_CKPTFMT_"
# The end of the name of a merge's intent, after the prefix.
INTENT = ".merge-intent"
_RESERVED = RESERVED.encode()
METADATA = "_CKPTFMT_METADATA"
# The name of the tensor that holds such a graph.
OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
SHARD_STAND_IN = "_CKPTFMT_SHARD_"

# The part of one process or shard, in the temporary directory of a save.
PART = re.compile(r"part-[0-9]{5,10}-of-[0-9]{5,10}")
# Numbers have at least five digits, and no more zeros in front than that takes.
_NUMBER = "([0-9]{5}|[1-9][0-9]{5,9})"
_DATA_NAME = re.compile(rf"(?s)(.*)\.data-{_NUMBER}-of-{_NUMBER}")


_DIGITS = re.compile(r"([0-9]+)")
_SHORT = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SQUEEZED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")
_IN_ARCHIVE = re.compile(r"(?s)(.*?\.(?:zip|tar|tgz|tar\.\w+))!(/.*)?$")
_FILE_URL = re.compile(r"file://(localhost)?(?=/)")


def is_url(path: str) -> bool:
    """Return whether a path is a URL, such as "s3://bucket/run/model": what `ckptfmt.stores`
    reads."""
    return _URL.match(path) is not None


def path_text(path: Path, argument: str | None = None, *, urls: bool = False) -> str:
    """Return a path as str, with bytes that are not UTF-8 as surrogate escapes.

    A `file:///directory/name` or `file://localhost/directory/name` URL becomes its path, as in
    TensorFlow (no percent decoding).

    Raises:
        InvalidError: not a path, or one with a NUL byte.
        UnsupportedError: another URL, unless the caller takes `urls`; or "models.zip!/run/model",
            a member of an archive.
    """
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise wrong("a path", "str, bytes or os.PathLike", path, argument) from None
    if "\0" in text:
        raise _bad("a path cannot contain a NUL byte", argument)
    if not isinstance(path, (str, bytes)) and _SQUEEZED.match(text):
        raise _bad(
            f"{text[:200]!r} seems to be a URL that was made a pathlib.Path, which drops a slash: "
            "pass URLs as str",
            argument,
        )
    packed = _IN_ARCHIVE.match(text)
    kind = None if packed is None else foreign.by_name(packed[1])
    if kind is not None:
        raise UnsupportedError(
            f"{text[:200]!r} is a member of {kind[0].what}: {kind[0].reading}", argument=argument
        )
    url = _FILE_URL.match(text)
    if url:
        return text[url.end() :]
    if is_url(text) and (not urls or text.startswith("file:")):
        raise UnsupportedError(
            f"{text[:200]!r} is a URL, and this works on paths and file:/// URLs only. Download "
            "what is there first; write ./ before a path that looks like a URL",
            argument=argument,
        )
    return text


def _bad(message: str, argument: str | None) -> InvalidError:
    return invalid(argument, message, failure="BAD_PATH")


def prefix_text(prefix: Path, argument: str = "prefix", *, urls: bool = False) -> str:
    """Return a path that is to become a checkpoint's prefix, as `path_text`.

    Raises:
        InvalidError: `path_text` refuses it, or it has no file name, or it ends like one of the
            checkpoint's own files or like a file of another format.
    """
    text = path_text(prefix, argument, urls=urls)
    name = os.path.basename(text)
    if text and not name:
        example = os.path.join(text, "model")
        raise _bad(
            f"prefix {text!r} ends with '/': add a file name, for example {example!r}", argument
        )
    if name in ("", ".", ".."):
        raise _bad(f"prefix {text!r} has no file name", argument)
    data = parse_data_name(text)
    base = text.removesuffix(".index") if data is None else data.prefix
    if base != text:
        suggested = f", {base!r}" if _can_be_prefix(base) else ""
        raise _bad(
            f"prefix {text!r} is the name of a checkpoint's file: pass the prefix alone{suggested}",
            argument,
        )
    check_extension(text, argument)
    return text


def _can_be_prefix(text: str) -> bool:
    """Return whether `prefix_text` takes this text, which is the beginning of a path."""
    if os.path.basename(text) in ("", ".", "..") or text.endswith(".index"):
        return False
    return parse_data_name(text) is None and foreign.by_name(text) is None


def check_extension(prefix: str, argument: str) -> None:
    """Check that a prefix is not the name of a file of another format.

    Raises:
        InvalidError: it is; the message says what writes such a file.
    """
    named = foreign.by_name(prefix)
    if named is not None:
        kind, extension = named
        elsewhere = ", on paths: upload what that writes" if is_url(prefix) else ""
        base = prefix.removesuffix(extension)
        suggested = f", for example {base!r}" if _can_be_prefix(base) else ""
        raise _bad(
            f"prefix {prefix!r} is the name of {kind.what}: {kind.writing}{elsewhere}. A "
            f"checkpoint needs a prefix without that extension{suggested}",
            argument,
        )


def absolute(path: str) -> str:
    """Return the path joined to the current working directory, so that it stays valid if the
    program changes directory."""
    return path if _URL.match(path) else os.path.join(os.getcwd(), path)


class DataName(NamedTuple):
    """The parts of a data file's name."""

    prefix: str
    shard: int
    num_shards: int


def sharded_filename(basename: Path, shard: int, num_shards: int) -> str:
    """Return `basename-SSSSS-of-NNNNN`, as TensorFlow's ShardedFilename op.

    Each number has at least five characters. As in TensorFlow its range is not checked.

    >>> ckptfmt.sharded_filename("part", 1, 3)
    'part-00001-of-00003'

    Args:
        basename: the beginning of the name: str, bytes or os.PathLike.
        shard: the number of the file, from 0.
        num_shards: how many files there are.

    Raises:
        InvalidError: `basename` is not a path, or a number is not an integer.
    """
    try:
        basename = os.fsdecode(basename)
    except TypeError:
        raise wrong("basename", "str, bytes or os.PathLike", basename) from None
    numbers = []
    for what, number in (("shard", shard), ("num_shards", num_shards)):
        try:
            numbers.append(operator.index(number))
        except TypeError:
            raise wrong(what, "an integer", number) from None
    return f"{basename}-{numbers[0]:05d}-of-{numbers[1]:05d}"


def index_name(prefix: str) -> str:
    """Return the path of the index file of the checkpoint at `prefix`."""
    return f"{prefix}.index"


def data_name(prefix: str, shard: int, num_shards: int) -> str:
    """Return the path of one data file of the checkpoint at `prefix`."""
    return sharded_filename(f"{prefix}.data", shard, num_shards)


def parse_data_name(path: str) -> DataName | None:
    """Return the parts of a data file's path; None for any other path."""
    match = _DATA_NAME.fullmatch(path)
    return None if match is None else DataName(match[1], int(match[2]), int(match[3]))


def tensor_bytes(name: str | bytes, argument: str | None = None) -> bytes:
    """Return a tensor name as the format stores it: UTF-8, with surrogate escapes as the bytes that
    they stand for."""
    if isinstance(name, str):
        try:
            return name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise invalid(
                argument, f"tensor name {name!r} cannot be encoded: {error.reason}"
            ) from None
    if isinstance(name, bytes):
        return name
    raise wrong("a tensor name", "str or bytes", name, argument)


def tensor_text(name: str | bytes) -> str:
    """Return a tensor name as plain str, not of a derived class; the inverse of `tensor_bytes`."""
    if isinstance(name, str):
        return str.__str__(name)
    return name.decode("utf-8", "surrogateescape")


def tensor_name(name: str | bytes, argument: str | None = None) -> str:
    """Return a tensor name as plain str.

    Raises:
        InvalidError: not a name.
    """
    if type(name) is str and name.isascii():
        return name
    return tensor_text(tensor_bytes(name, argument))


def user_name(name: str | bytes, argument: str | None = None) -> bytes:
    """Return a name that a caller gives a tensor, as `tensor_bytes`.

    Raises:
        InvalidError: not a name, or reserved for the format itself.
    """
    raw = tensor_bytes(name, argument)
    if raw.startswith(_RESERVED):
        raise _reserved(tensor_text(raw), argument)
    return raw


def saved_name(name: str | bytes) -> str:
    """Return a name that a caller gives a tensor as str.

    Raises:
        InvalidError: as `user_name`, or the name is empty.
    """
    text = tensor_name(name)
    if text.startswith(RESERVED):
        raise _reserved(text, None)
    if not text:
        raise InvalidError("TAB-12: a tensor's name is empty", tensor="")
    return text


def check_saved(given: Iterable[str | None]) -> None:
    """Refuse names as `saved_name`, many at once; skip None."""
    for name in given:
        if name is not None and (not name or name.startswith(RESERVED)):
            saved_name(name)


def _reserved(name: str, argument: str | None) -> InvalidError:
    return invalid(argument, f"names beginning with {RESERVED} are reserved", tensor=name)


def natural_key(name: str) -> list[Any]:
    """Return a key for the order in which people count: 2 before 10."""
    parts: list[Any] = _DIGITS.split(name)
    for odd in range(1, len(parts), 2):
        digits = parts[odd].lstrip("0")
        parts[odd] = len(digits), digits
    return parts


def in_order(names: Sequence[str]) -> list[int]:
    """Return the positions of names in the order in which people count."""
    return sorted(range(len(names)), key=lambda at: natural_key(names[at]))


def printable(text: str) -> str:
    r"""Return the text with every unprintable character escaped, as `repr` would.

    `\xNN` is a byte: a control character, or a byte that is not UTF-8 (a surrogate escape).
    `\uNNNN` and `\UNNNNNNNN` are characters. A backslash is doubled.
    """
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    point = ord(character)
    if point < 0x80:
        return f"\\x{point:02x}"
    if 0xDC80 <= point <= 0xDCFF:
        return f"\\x{point - 0xDC00:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
