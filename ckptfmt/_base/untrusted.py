# SPDX-License-Identifier: Apache-2.0
"""What Python opens and parses from outside: one way to open a file, and one each to bound JSON, a
shape, a compressed message and a pickle.

Nothing here waits for another process, and time and memory are in proportion to the bytes that are
read.
"""

from __future__ import annotations

import errno
import io
import itertools
import math
import os
import re
import reprlib
import stat
from collections.abc import Callable, Mapping
from typing import Any

from ckptfmt._core import NUMPY_RANK_MAX
from ckptfmt.errors import CkptfmtError, InvalidError

# Bytes of NumPy's arrays.
BYTES_MAX = (1 << 63) - 1
# Bytes of a message between processes once it is inflated.
MESSAGE_MAX = 1 << 30

# What a file of another format may take. Memory: one value, or a piece of it; for what describes
# values so many bytes, and so often its own. What values become, in all: so many bytes, or so often
# those of the file; zlib makes 1,032 bytes of one.
MEMORY_FLOOR, MEMORY_FACTOR = 64 << 20, 8
OUTPUT_FLOOR, EXPANSION_MAX = 1 << 30, 1100
# Bytes of Python's lists and dicts. A tensor of safetensors has two lists and a dict in at least 51
# bytes of JSON, which are as many as are allowed.
_LIST_BYTES, _OF_DICT_BYTES = 88, 232
# The parser recurses in C as deep as the program's recursion limit allows.
_DEPTH_MAX = 256
# What has no brackets outside of texts, and the brackets that follow it.
_TO_BRACKETS = re.compile(rb'(?s)(?:"(?:[^"\\]++|\\.)*+"?|[^][{}"]++)*+([][{}]*+)')

# Makes the error for a text.
Damaged = Callable[[str], CkptfmtError]


class Window(io.RawIOBase):
    """A file to be read that is not one of the system: its size and the position."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self._at = size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Change the position, which may be beyond the end."""
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "a position before the file")
        self._at = at
        return at


def open_regular(path: str, *, follow_symlinks: bool = True, directory: int | None = None) -> int:
    """Open a regular file for reading and return its descriptor. Never waits, as for a FIFO.

    Args:
        path: the file.
        follow_symlinks: False refuses a symbolic link.
        directory: descriptor of the directory that `path` is relative to.

    Raises:
        InvalidError: a symbolic link that is not to be followed (failure BAD_PATH).
        OSError: the file cannot be opened, or is not a regular file (EINVAL).
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    if not follow_symlinks:
        flags |= os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, dir_fd=directory)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error), path) from None
    except OSError as error:
        if error.errno == errno.ELOOP and not follow_symlinks:
            raise InvalidError("a symbolic link", failure="BAD_PATH", path=path) from None
        if error.errno == errno.ENXIO:  # a socket
            raise OSError(errno.EINVAL, "not a regular file", path) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def memory_most(size: int) -> int:
    """Return how many bytes of memory may be taken for what describes values in so many bytes."""
    return MEMORY_FLOOR + MEMORY_FACTOR * size


def output_most(stored: int, limits: Mapping[str, int] | None = None) -> int:
    """Return how many bytes may be made of a file of so many, with the limits of the caller."""
    return max(OUTPUT_FLOOR, (limits or {}).get("expansion_max", EXPANSION_MAX) * stored)


def parsed_json(text: bytes, damaged: Damaged, *, unique: bool = False) -> Any:
    """Return what a JSON text in UTF-8 holds. NaN and Infinity are refused; a number beyond
    float64, which is JSON, becomes infinite.

    Args:
        text: the text.
        damaged: makes the error.
        unique: whether an object that has a name twice is an error.
    """

    import json  # noqa: PLC0415 (most that is read needs none)

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(found)
        if len(made) != len(found):
            raise ValueError("duplicate name")
        return made

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        if _LIST_BYTES * text.count(b"[") + _OF_DICT_BYTES * text.count(b"{") > memory_most(
            len(text)
        ):
            raise ValueError("more lists than its bytes justify")
        brackets = itertools.chain.from_iterable(run[1] for run in _TO_BRACKETS.finditer(text))
        levels = itertools.accumulate(1 if one in b"[{" else -1 for one in brackets)
        if max(levels, default=0) > _DEPTH_MAX:
            raise ValueError(f"nested more than {_DEPTH_MAX} deep")
        return json.loads(
            text.decode(), parse_constant=refuse, object_pairs_hook=pairs if unique else None
        )
    except (ValueError, RecursionError) as error:  # also numbers of more than 4,300 digits
        raise damaged(f"not JSON: {error}") from None


def checked_shape(
    sizes: Any, damaged: Damaged, unsupported: Damaged, itemsize: int = 0
) -> tuple[int, ...]:
    """Return the sizes of a tensor's dimensions, which NumPy can have.

    Args:
        sizes: a list or tuple of what should be sizes.
        itemsize: bytes of an element; 0: the bytes of the whole are not limited.
        damaged: makes the error for what are not sizes.
        unsupported: makes the error for more dimensions or elements than arrays can have.
    """
    if not isinstance(sizes, (list, tuple)) or not all(
        type(one) is int and one >= 0 for one in sizes
    ):
        raise damaged(f"a shape must be sizes, not {reprlib.repr(sizes)}")
    if len(sizes) > NUMPY_RANK_MAX:
        raise unsupported(
            f"{len(sizes)} dimensions are more than the {NUMPY_RANK_MAX} of NumPy's arrays"
        )
    # NumPy multiplies the sizes other than 0, also of an array without elements.
    if max(sizes, default=0) > BYTES_MAX or math.prod(filter(None, sizes)) * itemsize > BYTES_MAX:
        raise unsupported(f"shape {reprlib.repr(sizes)} has more elements than an array can have")
    return tuple(sizes)


def inflated(data: bytes, damaged: Damaged, limit: int = MESSAGE_MAX) -> bytes:
    """Return what zlib compressed, at most so many bytes."""
    import zlib  # noqa: PLC0415

    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, limit)
    except zlib.error as error:
        raise damaged(f"not what zlib compresses: {error}") from None
    if not stream.eof or stream.unused_data:
        raise damaged("truncated, too long, or followed by other bytes")
    return found


# What a pickle may become, in parts for each of its bytes: honest ones have one part for a byte or
# two, and a memo index for two bytes or more.
PARTS_PER_BYTE, PARTS_FLOOR = 8, 1 << 18
# Bytes of memory for a byte of a pickle, and of the objects that its opcodes make.
PICKLE_FACTOR = 12
_OBJECT_BYTES, _REFERENCE_BYTES = 56, 8
_BYTES = {"EMPTY_LIST": 96, "EMPTY_DICT": 96, "DICT": 232, "EMPTY_SET": 216, "FROZENSET": 216}
_BYTES |= dict.fromkeys(("SETITEM", "SETITEMS"), 168)
_BYTES |= dict.fromkeys(
    ("NONE", "NEWTRUE", "NEWFALSE", "BININT1", "EMPTY_TUPLE", "MARK", "POP", "POP_MARK", "BUILD"),
    _REFERENCE_BYTES,
)
# Python's hashes of numbers are not random: from here on integers can be made to collide.
_KEY_MAX = 1 << 60


def check_pickle(data: bytes, damaged: Damaged) -> None:
    """Refuse a pickle that would take time or memory which its bytes do not justify: for an index
    of its memo beyond its end, for bytes that are not there, for keys that can be made to collide,
    for what contains one part many times, as tuples of tuples may, whose hash visits a part each
    time, or for more objects than its bytes justify."""
    import pickletools  # noqa: PLC0415

    memo: list[list[int] | None] = []
    # Of each object its weight, in parts, and whether it can be a key; one list for an object that
    # is in several places, and one for all constants. None: a mark.
    stack: list[list[int] | None] = []
    constants = [1, False], [1, True]
    most = max(PARTS_PER_BYTE * len(data), PARTS_FLOOR)
    left = MEMORY_FLOOR // 2 + PICKLE_FACTOR * len(data)
    try:
        for code, argument, _ in pickletools.genops(io.BytesIO(data)):
            name = code.name
            if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
                index = len(memo) if name == "MEMOIZE" else int(argument or 0)
                if index > len(data) // 2:
                    raise ValueError(f"memo index {index} in a pickle of {len(data)} bytes")
                memo += [None] * (index + 1 - len(memo))
                memo[index] = stack[-1]
            elif name in ("GET", "BINGET", "LONG_BINGET", "DUP"):
                found = stack[-1] if name == "DUP" else memo[int(argument or 0)]
                if found is None:
                    raise ValueError("nothing is there to get")
                stack.append(found)
                left -= _REFERENCE_BYTES
            else:
                left -= _BYTES.get(name, _OBJECT_BYTES)
                if not code.stack_before and not name.startswith("EMPTY") and name != "MARK":
                    is_number = isinstance(argument, (int, float)) and not isinstance(
                        argument, bool
                    )
                    is_small = isinstance(argument, int) and abs(argument) < _KEY_MAX
                    stack += [constants[is_small or not is_number]] * len(code.stack_after)
                else:
                    _run(code, stack, most, constants)
            if left < 0:
                raise ValueError("far more objects than its bytes justify")
    except MemoryError:
        raise
    except Exception as error:  # of all kinds, for a forged pickle
        raise damaged(f"the pickle cannot be read: {type(error).__name__}: {error}") from None


def _run(code: Any, stack: list[list[int] | None], most: int, constants: Any) -> None:
    """Do what an opcode does to the stack."""
    name, wanted = code.name, [one.name for one in code.stack_before]
    taken: list[list[int]] = []
    if "mark" in wanted:
        while (one := stack.pop()) is not None:
            taken.append(one)
        wanted = wanted[: wanted.index("mark")]
    into = None
    if name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"):
        into = stack[-len(wanted)]  # the object that is changed, and stays
    for _ in wanted[1:] if into is not None else wanted:
        one = stack.pop()
        taken += [] if one is None else [one]
    # The last one was taken first.
    keys = taken[1::2] if name in ("SETITEM", "SETITEMS", "DICT") else []
    keys = taken if name in ("ADDITEMS", "FROZENSET") else keys
    if not all(one[1] for one in keys):
        raise ValueError("a key that is not a text, an integer below 2^60 or a tuple of these")
    weight, can_be_key = sum(one[0] for one in taken), all(one[1] for one in taken)
    if into is not None:
        if any(into is one for one in constants):
            raise ValueError("a constant is changed")
        into[:] = into[0] + weight, into[1] and can_be_key
    else:
        after = [one.name == "mark" for one in code.stack_after]
        stack += [None if is_mark else [1 + weight, can_be_key] for is_mark in after]
    if weight > most:
        raise ValueError(f"an object of more than {most} parts")
