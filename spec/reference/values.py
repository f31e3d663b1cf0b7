# SPDX-License-Identifier: Apache-2.0
"""Sections 17 to 20: values of tensors, as they are and compressed."""

import contextlib
import itertools
import json
import struct

import numpy as np
import zstandard

from .entries import TYPES
from .rules import crc32c, mask, need, u32, u64, varint


def to_array(flat, code, shape):
    """A numpy array; flat where numpy has no such shape (it takes 64 dimensions at most)."""
    name, _, _, kind = TYPES.get(code, ("", 1, 1, np.uint8))
    if name in ("string", "variant"):
        array = np.empty(len(flat), object)
        array[:] = flat
    else:
        array = np.frombuffer(bytearray(flat), kind)  # DTY-3: ml_dtypes looks at the low bits only
    if not name:
        return array
    with contextlib.suppress(ValueError):
        return array.reshape(shape)
    return array


# --- 17. STR, VAR: string and variant tensors ---
def read_strings(value, n, checksum, big=False):
    """The elements of a string value; checksum is the entry's, masked."""
    end = len(value)
    if n == 0 and end == 0:  # STR-8
        need(checksum == mask(0), "ENT-8", "CHECKSUM", "size 0")
        return []
    order, pos, sizes, crc = ">" if big else "<", 0, [], 0
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


def read_variants(value, n, checksum):
    pos, end, crc, out = 0, len(value), 0, []
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


# --- 18. DAT: data files ---
def swap(value, unit):  # DAT-7
    return np.frombuffer(value, np.uint8).reshape(-1, unit)[:, ::-1].tobytes()


# --- 19. EXT: the extension ---
def check_extension(entry, big, consumer):
    """The checks of *Value* up to EXT-4, or CMP-1."""
    ext, code = entry.ext, entry.dtype
    unknown = ext.get("feature_flags", 0) & ~(1 if consumer >= 2 else 0)
    need(unknown == 0, "EXT-3", "UNSUPPORTED", f"feature_flags {unknown:#x}")
    size, crcs = ext.get("chunk_size", 0), ext.get("chunk_crcs", b"")
    if entry.compressed:
        raw = ext.get("raw_size", 0)
        need(not big, "CMP-9", "UNSUPPORTED", "compressed in a big-endian bundle")
        need(code in TYPES, "CMP-8", "UNSUPPORTED", f"compressed of data type {code}")
        need(size % 16 == 0 and 4096 <= size <= 1 << 24, "CMP-2", "BAD_ENTRY", f"chunk_size {size}")
        need(1 <= raw < 1 << 63, "CMP-3", "BAD_ENTRY", f"raw_size {raw}")
        need(len(crcs) % 4 == 0, "EXT-2", "BAD_ENTRY", "chunk_crcs")
        n = -(-raw // size)
        packed, pos, sizes = ext.get("chunk_sizes", b""), 0, []
        need(len(crcs) // 4 == n, "CMP-4", "BAD_ENTRY", f"{len(crcs) // 4} chunk_crcs for {n}")
        while pos < len(packed):
            number, pos = varint(packed, pos, len(packed), 64, "CMP-4", "BAD_ENTRY")
            sizes.append(number)
        need(len(sizes) == n, "CMP-4", "BAD_ENTRY", f"{len(sizes)} chunk_sizes for {n} chunks")
        for i, number in enumerate(sizes):
            good = 1 <= number <= min(size, raw - i * size) + 1
            need(good, "CMP-5", "BAD_ENTRY", f"chunk {i}: size {number}")
        need(sum(sizes) == entry.size, "CMP-1", "BAD_ENTRY", f"chunks of {sum(sizes)}")
        entry.ext["sizes"] = sizes
        return
    need(len(crcs) % 4 == 0, "EXT-2", "BAD_ENTRY", "chunk_crcs")
    if size or crcs:
        need(entry.size > size, "EXT-5", "BAD_ENTRY", f"chunks of {size} in {entry.size} bytes")
        need(1 <= size < 1 << 32, "EXT-4", "BAD_ENTRY", f"chunk_size {size}")
        n = -(-entry.size // size)
        need(len(crcs) // 4 == n, "EXT-4", "BAD_ENTRY", f"{len(crcs) // 4} chunk_crcs for {n}")


def parse_metadata(text):  # EXT-7

    def constant(name):
        raise ValueError(name)

    try:
        value = json.loads(text.decode("utf-8"), parse_constant=constant)
    except (ValueError, RecursionError):
        value = None
    need(isinstance(value, dict), "EXT-7", "BAD_ENTRY", "not a JSON object")
    return value


# --- 20. CMP: compressed values ---
def read_chunk(chunk, n, unit):
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
    planes = np.empty((size, unit), np.uint8)
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


def read_frame(frame, n):
    """The n bytes of one zstd frame (CMP-18); its header is read here, by RFC 8878."""

    def good(condition, what):
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
    decompress = zstandard.ZstdDecompressor().decompress
    try:
        out = decompress(frame, max_output_size=n, allow_extra_data=False)
    except zstandard.ZstdError as error:
        good(False, str(error))
        out = bytes(n)
    good(len(out) == n, f"{len(out)} bytes for {n}")
    return out
