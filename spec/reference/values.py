# SPDX-License-Identifier: Apache-2.0
"""Sections 18 to 21: values of tensors, as they are and compressed."""

from __future__ import annotations

import contextlib
import itertools
import json
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

from .entries import STRING, VARIANT, Entry, Type
from .rules import LIMITS, combine, crc32c, mask, need, u32, u64, varint

Array: TypeAlias = npt.NDArray[Any]
# Elements one after the other: bytes of a FIXED type, else a list of one bytes object each.
Flat: TypeAlias = bytes | list[bytes]


def to_array(flat: Flat, type_: Type, shape: Sequence[int]) -> Array:
    """A numpy array; flat where numpy has no such shape (it takes 64 dimensions at most)."""
    array: Array
    if isinstance(flat, list):
        array = np.empty(len(flat), object)
        array[:] = flat
    else:
        # DTY-3: ml_dtypes looks at the low bits only
        array = np.frombuffer(bytearray(flat), type_.kind)
    if type_.name:
        with contextlib.suppress(ValueError):
            return array.reshape(shape)
    return array


def check_value(entry: Entry, shards: int, big: bool, consumer: int) -> None:
    """The checks of *Value* in the entry alone, up to CMP-20."""
    check_extension(entry, big, consumer)
    check_place(entry, shards)
    check_raw_size(entry)


def check_raw_size(entry: Entry) -> None:
    raw, size = entry.raw_size, entry.type.size
    if size:
        need(raw == entry.count * size, "ENT-5", "BAD_ENTRY", f"{raw} for {entry.shape}")
    if entry.compressed:
        most = LIMITS["expansion"] * (entry.size + entry.at.stop - entry.at.start)
        good = raw <= most and raw <= LIMITS["value"]
        need(good, "CMP-20", "LIMIT", f"{raw} bytes from {entry.size}")


def check_place(entry: Entry, shards: int, own_bytes: bool = True) -> None:
    need(0 <= entry.shard_id < shards, "ENT-3", "BAD_ENTRY", f"shard_id {entry.shard_id}")
    good = entry.offset >= 0 and entry.size >= 0 and entry.offset + entry.size < 1 << 63
    need(good or not own_bytes, "ENT-4", "BAD_ENTRY", f"offset {entry.offset}, size {entry.size}")


def check_elements(entry: Entry) -> None:
    """STR-2 and VAR-2, before anything is allocated for elements."""
    raw, n = entry.raw_size, entry.count
    if entry.dtype == STRING:
        need(raw >= n + 4 or n == raw == 0, "STR-2", "BAD_ENTRY", f"{raw} bytes")
    elif entry.dtype == VARIANT:
        need(raw >= 5 * n, "VAR-2", "BAD_ENTRY", f"{raw} bytes")


def take_value(entry: Entry, value: bytes, big: bool) -> Flat:
    """The elements of a raw value, compared with its checksum."""
    checksum = mask(entry.ext.get("raw_crc32c", 0)) if entry.compressed else entry.crc32c
    if entry.dtype == STRING:
        return read_strings(value, entry.count, checksum, big)
    if entry.dtype == VARIANT:
        return read_variants(value, entry.count, checksum)
    rule = "CMP-19" if entry.compressed else "DAT-6" if entry.size else "ENT-8"
    need(mask(crc32c(value)) == checksum, rule, "CHECKSUM", "value")
    return swap(value, entry.type.unit) if big else value


# --- STR, VAR: string and variant tensors ---
def read_strings(value: bytes, n: int, checksum: int, big: bool) -> list[bytes]:
    """The elements of a string value; checksum is the entry's, masked."""
    end = len(value)
    if n == 0 and end == 0:  # STR-8
        need(checksum == mask(0), "ENT-8", "CHECKSUM", "size 0")
        return []
    order, pos, crc = ">" if big else "<", 0, 0
    sizes: list[int] = []
    for _ in range(n):
        size, pos = varint(value, pos, end, 64, "STR-3", "BAD_ENTRY")
        sizes.append(size)
        crc = crc32c(struct.pack(order + ("I" if size < 1 << 32 else "Q"), size), crc)  # STR-5
    need(end - pos >= 4, "STR-3", "BAD_ENTRY", "the checksum of the sizes is cut off")
    stored = value[pos : pos + 4]
    need(stored == struct.pack(order + "I", mask(crc)), "STR-5", "CHECKSUM", "sizes")
    pos += 4
    need(pos + sum(sizes) == end, "STR-4", "BAD_ENTRY", f"{sum(sizes)} in {end - pos}")
    crc = crc32c(value[pos:], crc32c(stored, crc))
    need(checksum == mask(crc), "STR-6", "CHECKSUM", "elements")
    ends = list(itertools.accumulate(sizes, initial=pos))
    return [value[a:b] for a, b in itertools.pairwise(ends)]


def read_variants(value: bytes, n: int, checksum: int) -> list[bytes]:
    pos, end, crc = 0, len(value), 0
    out: list[bytes] = []
    if end == 0:
        need(checksum == mask(0), "ENT-8", "CHECKSUM", "size 0")
    for _ in range(n):
        size, pos = varint(value, pos, end, 64, "VAR-2", "BAD_ENTRY")
        need(size + 4 <= end - pos, "VAR-2", "BAD_ENTRY", f"payload of {size} at {pos}")
        payload, stored = value[pos : pos + size], value[pos + size : pos + size + 4]
        crc = crc32c(payload, crc32c(u64.pack(size), crc))
        need(stored == u32.pack(mask(crc)), "VAR-3", "CHECKSUM", f"payload at {pos}")
        crc = crc32c(stored, crc)
        out.append(payload)
        pos += size + 4
    need(pos == end, "VAR-2", "BAD_ENTRY", f"{end - pos} bytes left")
    need(checksum == mask(crc), "VAR-4", "CHECKSUM", "elements")
    return out


# --- DAT: data files ---
def swap(value: bytes, unit: int) -> bytes:  # DAT-7
    return np.frombuffer(value, np.uint8).reshape(-1, unit)[:, ::-1].tobytes()


# --- EXT: the extension ---
def check_flags(entry: Entry, consumer: int) -> None:
    unknown = entry.ext.get("feature_flags", 0) & ~(1 if consumer >= 2 else 0)
    need(unknown == 0, "EXT-3", "UNSUPPORTED", f"feature_flags {unknown:#x}")


def check_extension(entry: Entry, big: bool, consumer: int) -> None:
    """The checks of *Value* up to EXT-4, or CMP-1."""
    check_flags(entry, consumer)
    ext = entry.ext
    size, crcs = ext.get("chunk_size", 0), ext.get("chunk_crcs", b"")
    if entry.compressed:
        raw = ext.get("raw_size", 0)
        need(not big, "CMP-9", "UNSUPPORTED", "compressed in a big-endian bundle")
        need(size % 16 == 0 and 4096 <= size <= 1 << 24, "CMP-2", "BAD_ENTRY", f"chunk_size {size}")
        need(1 <= raw < 1 << 63, "CMP-3", "BAD_ENTRY", f"raw_size {raw}")
        need(len(crcs) % 4 == 0, "EXT-2", "BAD_ENTRY", "chunk_crcs")
        n = -(-raw // size)
        packed, pos = ext.get("chunk_sizes", b""), 0
        sizes: list[int] = []
        need(len(crcs) // 4 == n, "CMP-4", "BAD_ENTRY", f"{len(crcs) // 4} chunk_crcs for {n}")
        while pos < len(packed):
            number, pos = varint(packed, pos, len(packed), 64, "CMP-4", "BAD_ENTRY")
            sizes.append(number)
        need(len(sizes) == n, "CMP-4", "BAD_ENTRY", f"{len(sizes)} chunk_sizes for {n} chunks")
        for i, number in enumerate(sizes):
            good = 1 <= number <= min(size, raw - i * size) + 1
            need(good, "CMP-5", "BAD_ENTRY", f"chunk {i}: size {number}")
        need(sum(sizes) == entry.size, "CMP-1", "BAD_ENTRY", f"chunks of {sum(sizes)}")
        ext["sizes"] = sizes
        ext["starts"] = list(itertools.accumulate(sizes, initial=entry.offset))  # CMP-7
        return
    need(len(crcs) % 4 == 0, "EXT-2", "BAD_ENTRY", "chunk_crcs")
    if size or crcs:
        need(entry.size > size, "EXT-5", "BAD_ENTRY", f"chunks of {size} in {entry.size} bytes")
        need(1 <= size < 1 << 32, "EXT-4", "BAD_ENTRY", f"chunk_size {size}")
        n = -(-entry.size // size)
        need(len(crcs) // 4 == n, "EXT-4", "BAD_ENTRY", f"{len(crcs) // 4} chunk_crcs for {n}")


def chunk_place(entry: Entry, i: int) -> tuple[int, int]:
    """Offset and size of chunk i as it is stored."""
    if entry.compressed:
        return entry.ext["starts"][i], entry.ext["sizes"][i]
    start = i * entry.ext["chunk_size"]
    return entry.offset + start, min(entry.ext["chunk_size"], entry.size - start)


def check_combined(entry: Entry) -> None:
    """EXT-6, which reading leaves out."""
    crc, crcs = 0, entry.ext.get("chunk_crcs", b"")
    if crcs and (entry.compressed or entry.dtype not in (STRING, VARIANT)):
        for i in range(len(crcs) // 4):
            crc = combine(crc, u32.unpack_from(crcs, 4 * i)[0], chunk_place(entry, i)[1])
        need(mask(crc) == entry.crc32c, "EXT-6", "CHECKSUM", "chunk_crcs")


def parse_metadata(text: bytes) -> Any:  # EXT-7
    def constant(name: str) -> None:
        raise ValueError(name)

    try:
        value = json.loads(text.decode("utf-8"), parse_constant=constant)
    except (ValueError, RecursionError):
        value = None
    need(isinstance(value, dict), "EXT-7", "BAD_ENTRY", "not a JSON object")
    return value


# --- CMP: compressed values ---
def read_chunk(chunk: bytes, n: int, unit: int) -> bytes:
    """The n raw bytes of a stored chunk."""
    method, end = chunk[0], len(chunk)
    need(method <= 3, "CMP-12", "BAD_CHUNK", f"method {method}")
    if method == 0:
        need(end == n + 1, "CMP-13", "BAD_CHUNK", f"{end} bytes for {n}")
        return chunk[1:]
    if method == 1:
        return read_frame(chunk[1:], n)  # CMP-14
    numbers, pos, size = [], 1, n // unit
    for _ in range(unit):
        number, pos = varint(chunk, pos, end, 64, "CMP-15", "BAD_CHUNK")
        numbers.append(number)
    planes: Array = np.empty((size, unit), np.uint8)
    for p, number in enumerate(numbers):
        stored = chunk[pos : pos + (number >> 1)]
        need(len(stored) == number >> 1, "CMP-16", "BAD_CHUNK", f"plane {p} cut off")
        pos += number >> 1
        if number & 1:
            stored = read_frame(stored, size)
        need(len(stored) == size, "CMP-16", "BAD_CHUNK", f"plane {p}: {len(stored)} of {size}")
        planes[:, p] = np.frombuffer(stored, np.uint8)
    need(pos == end, "CMP-16", "BAD_CHUNK", f"{end - pos} bytes behind the planes")
    if method == 3:  # CMP-17
        r = planes.reshape(-1).view(f"<u{unit}")
        planes = (r >> 1) | (r << (8 * unit - 1))
    return planes.tobytes()


def read_frame(frame: bytes, n: int) -> bytes:
    """The n bytes of one zstd frame (CMP-18); its header is read here, by RFC 8878."""

    def good(condition: object, what: str) -> None:
        need(condition, "CMP-18", "BAD_CHUNK", what)

    good(frame[:4] == b"\x28\xb5\x2f\xfd" and len(frame) > 5, "no zstd frame")
    descriptor = frame[4]
    single = descriptor >> 5 & 1
    dictionary = (0, 1, 2, 4)[descriptor & 3]
    content = (single, 2, 4, 8)[descriptor >> 6]
    pos = 5 if single else 6
    good(len(frame) >= pos + dictionary + content, "frame header cut off")
    good(not any(frame[pos : pos + dictionary]), "frame with a dictionary")
    pos += dictionary
    good(content, "frame without content size")
    size = int.from_bytes(frame[pos : pos + content], "little") + (256 if content == 2 else 0)
    good(size == n, f"frame of {size} bytes for {n}")
    base = 1 << (10 + (frame[5] >> 3))
    window = size if single else base + base // 8 * (frame[5] & 7)
    good(window <= 1 << 24, f"window of {window}")
    pos += content
    last = False
    while not last:
        head = int.from_bytes(frame[pos : pos + 3], "little")
        last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        good(pos + 3 <= len(frame) and kind < 3, "no block")
        good(size <= min(window, 1 << 17), f"block of {size} with a window of {window}")
        if pos + 3 > len(frame):
            break
        pos += 3 + (1 if kind == 1 else size)
    decompress = zstandard.ZstdDecompressor().decompress
    try:
        out = decompress(frame, max_output_size=n, allow_extra_data=False)
    except zstandard.ZstdError as error:
        good(False, str(error))
        out = bytes(n)
    good(len(out) == n, f"{len(out)} bytes for {n}")
    return out
