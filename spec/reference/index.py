# SPDX-License-Identifier: Apache-2.0
"""Sections 6 to 10: the index file, from its name to the keys in its blocks."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterator
from typing import NamedTuple

from .rules import LIMITS, Note, Violation, crc32c, mask, need, silent, u32, u64, varint


# --- NAM: file names and prefix ---
def data_name(prefix: str, shard: int, shards: int) -> str:  # NAM-3, NAM-4
    return f"{prefix}.data-{shard:05d}-of-{shards:05d}"


def open_regular(path: str) -> int | None:
    """A descriptor of a regular file, or None where nothing has the name (NAM-6)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        need(False, "NAM-6", "OS", f"{path}: {error.strerror}")
        return None
    regular = stat.S_ISREG(os.fstat(fd).st_mode)
    if not regular:
        os.close(fd)
    need(regular, "NAM-6", "OS", f"{path} is no regular file")
    return fd if regular else None


def read_at(fd: int, offset: int, size: int) -> bytes:
    """The bytes of a data file, which was seen to have them."""
    out = bytearray()
    while len(out) < size:
        piece = os.pread(fd, min(size - len(out), 1 << 30), offset + len(out))
        need(piece, "DAT-2", "TRUNCATED", "the file shrank")
        if not piece:
            break
        out += piece
    return bytes(out)


# --- FTR: footer and handles ---
MAGIC = 0xDB4775248B80FB57
ROCKSDB = (0x88E241B785F4CFF7, 0x8242229663BF9564, 0x4F3418EB7A8F13B8)


def handle(data: bytes, pos: int, end: int, rule: str, note: Note) -> tuple[int, int, int]:
    """Offset, size and the position after it."""
    offset, pos = varint(data, pos, end, 64, rule, "BAD_BLOCK", note)
    size, pos = varint(data, pos, end, 64, rule, "BAD_BLOCK", note)
    return offset, size, pos


def footer(data: bytes, note: Note) -> tuple[tuple[int, int], tuple[int, int]]:
    """The two handles of an index file."""
    need(len(data) >= 48, "FTR-1", "TRUNCATED", f"{len(data)} bytes")
    start = len(data) - 48
    magic = u64.unpack_from(data, start + 40)[0]
    need(magic not in ROCKSDB, "FTR-2", "UNSUPPORTED", "a table of RocksDB")
    need(magic == MAGIC, "FTR-2", "BAD_MAGIC", f"magic {magic:#x} at {start + 40}")
    meta_offset, meta_size, pos = handle(data, start, start + 40, "FTR-3", note)
    offset, size, pos = handle(data, pos, start + 40, "FTR-3", note)
    if any(data[pos : start + 40]):
        note("FOOTER_PADDING", pos)  # FTR-4
    return (meta_offset, meta_size), (offset, size)


def is_v1(prefix: str) -> bool:
    """Whether the prefix itself is a V1 checkpoint: a file with a readable footer (NAM-9)."""
    with contextlib.suppress(Violation, OSError):
        fd = None if prefix.endswith(".index") else open_regular(prefix)
        if fd is not None:
            with open(fd, "rb") as file:
                file.seek(max(os.fstat(fd).st_size - 48, 0))
                return bool(footer(file.read(48), silent))
    return False


def in_file(offset: int, size: int, data: bytes) -> None:
    need(offset + size + 5 <= len(data) - 48, "FTR-5", "TRUNCATED", f"block at {offset}, {size}")


# --- BLK: blocks ---
class Place(NamedTuple):
    """Where a value stands, and what takes the deviations in it."""

    contents: bytes
    start: int
    stop: int
    note: Note


def block_contents(data: bytes, offset: int, size: int, note: Note) -> tuple[bytes, Note]:
    """Checks the trailer; returns the contents and a note for positions in them."""
    need(size <= LIMITS["block"], "BLK-14", "LIMIT", f"block of {size} bytes")
    stored, kind = data[offset : offset + size], data[offset + size]
    checksum = u32.unpack_from(data, offset + size + 1)[0]
    need(checksum == mask(crc32c(data[offset : offset + size + 1])), "BLK-2", "CHECKSUM", "block")
    need(kind in (0, 1), "BLK-3", "BAD_BLOCK", f"type {kind} at {offset + size}")
    if kind != 1:
        return stored, lambda deviation, pos: note(deviation, offset + pos)
    note("SNAPPY", offset)
    return snappy(stored), lambda deviation, _: note(deviation, offset)


def block_entries(
    contents: bytes, index: bool, note: Note
) -> Iterator[tuple[bytes, int, int, int, int]]:
    """Yields key, start and end of value, offset, and number of restarts before it, of each entry.

    The checks are those of section 4, in its order.
    """
    s = len(contents)
    need(s >= 4, "BLK-4", "BAD_BLOCK", f"{s} bytes")
    r = u32.unpack_from(contents, s - 4)[0]
    need(r <= (s - 4) // 4, "BLK-4", "BAD_BLOCK", f"{r} restarts in {s} bytes")
    if r == 0:  # BLK-5
        note("NO_RESTARTS", s - 4)
        return
    end = s - 4 - 4 * r
    restarts = struct.unpack_from(f"<{r}I", contents, end)
    need(restarts[0] == 0, "BLK-9", "BAD_BLOCK", f"first restart {restarts[0]}")
    order, interval = ("TAB-6", 1) if index else ("TAB-1", 16)
    pos = used = count = 0
    last = b""
    while pos < end:
        start = pos
        need(used == r or restarts[used] >= start, "BLK-9", "BAD_BLOCK", f"restart before {start}")
        restart = used < r and restarts[used] == start
        shared, pos = varint(contents, pos, end, 32, "BLK-6", "BAD_BLOCK", note)
        unshared, pos = varint(contents, pos, end, 32, "BLK-6", "BAD_BLOCK", note)
        size, pos = varint(contents, pos, end, 32, "BLK-6", "BAD_BLOCK", note)
        need(unshared + size <= end - pos, "BLK-8", "BAD_BLOCK", f"entry at {start}")
        need(not restart or shared == 0, "BLK-10", "BAD_BLOCK", f"restart {start} shares")
        need(shared <= len(last), "BLK-7", "BAD_BLOCK", f"entry at {start} shares {shared}")
        need(shared + unshared <= LIMITS["key"], "TAB-13", "LIMIT", f"key at {start}")
        key = last[:shared] + contents[pos : pos + unshared]
        need(count == 0 or key > last, order, "BAD_ORDER", f"key {key[:80]!r} at {start}")
        if restart != (count % interval == 0):
            note("RESTARTS", start)  # BLK-11
        if not restart and unshared and shared < len(last) and last[shared] == contents[pos]:
            note("PREFIX", start)  # BLK-12
        pos += unshared
        yield key, pos, pos + size, start, used
        pos += size
        used += restart
        count += 1
        last = key
    need(used == r or (count == 0 and r == 1), "BLK-9", "BAD_BLOCK", "restarts that are no entries")


# --- SNP: Snappy ---
def snappy(stream: bytes) -> bytes:
    end = len(stream)
    size, pos = varint(stream, 0, end, 32, "SNP-2", "BAD_BLOCK")
    q, s = divmod(end - pos - 2, 3)
    most = 1 + 64 * q + (0, 1, 11)[s] if end - pos >= 2 else 0
    need(size <= most, "SNP-3", "BAD_BLOCK", f"decoded size {size} of {end - pos} bytes")
    need(size <= LIMITS["block"], "BLK-14", "LIMIT", f"decoded size {size}")
    out = bytearray()
    while pos < end:
        tag = stream[pos]
        pos += 1
        high, kind = tag >> 2, tag & 3
        extra = (max(high - 59, 0), 1, 2, 4)[kind]
        need(end - pos >= extra, "SNP-8", "BAD_BLOCK", f"element cut off at {pos}")
        number = int.from_bytes(stream[pos : pos + extra], "little")
        pos += extra
        if kind == 0:  # SNP-4
            n = number + 1 if extra else high + 1
            need(end - pos >= n, "SNP-8", "BAD_BLOCK", f"literal of {n} bytes cut off at {pos}")
            need(len(out) + n <= size, "SNP-9", "BAD_BLOCK", f"more than {size} bytes")
            out += stream[pos : pos + n]
            pos += n
            continue
        n = 4 + (high & 7) if kind == 1 else high + 1
        distance = ((tag >> 5) << 8) + number if kind == 1 else number
        need(1 <= distance <= len(out), "SNP-6", "BAD_BLOCK", f"distance {distance} at {pos}")
        need(len(out) + n <= size, "SNP-9", "BAD_BLOCK", f"more than {size} bytes")
        begin = max(len(out) - distance, 0)
        pattern = bytes(out[begin : begin + n]) or b"\0"
        out += (pattern * (n // len(pattern) + 1))[:n]  # SNP-5, SNP-7
    need(len(out) == size, "SNP-9", "BAD_BLOCK", f"{len(out)} bytes for {size}")
    return bytes(out)


# --- TAB: the table ---
def common(a: bytes, b: bytes) -> int:
    """The number of bytes that both begin with."""
    least = min(len(a), len(b))
    return next((i for i in range(least) if a[i] != b[i]), least)


def separator(last: bytes, following: bytes) -> bytes:  # TAB-7
    d = common(last, following)
    if d < len(last) and d < len(following) and last[d] < 255 and last[d] + 1 < following[d]:
        return last[:d] + bytes([last[d] + 1])
    return last


def successor(last: bytes) -> bytes:  # TAB-8
    for i, byte in enumerate(last):
        if byte != 255:
            return last[:i] + bytes([byte + 1])
    return last


EMPTY_BLOCK = bytes.fromhex("00000000 01000000 00 c0f2a1b0")  # BLK-13, with its trailer
