# SPDX-License-Identifier: Apache-2.0
"""The writer: canonical tables, values at each level, the commit of a fresh prefix."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from .bundle import Path
from .entries import STRING, TYPES, VARIANT
from .index import EMPTY_BLOCK, MAGIC, common, data_name, separator, successor
from .messages import put_field
from .rules import LIMITS, crc32c, mask, need, put_varint, u32, u64
from .slices import (
    Extents,
    Shape,
    check_overlaps,
    parse_slice_text,
    put_slice,
    slice_box,
    slice_key,
)
from .values import Array

Maker = Callable[[str], None]  # writes the file of that name


# --- messages, header, entries ---
def put(number: int, value: int) -> bytes:
    """A field of wire type 0, left out if 0 (MSG-15)."""
    return put_varint(number << 3) + put_varint(value) if value else b""


def put_header(num_shards: int, version: bytes, endianness: int = 0) -> bytes:  # HDR
    return put(1, num_shards) + put(2, endianness) + put_field(3, version)


def put_entry(
    code: int,
    shape: Shape,
    offset: int = 0,
    size: int = 0,
    crc: int = 0,
    slices: Sequence[Extents] = (),
    extension: bytes = b"",
) -> bytes:  # ENT, SHP, SLC-13
    dims = b"".join(put_field(2, put(1, n)) for n in shape)
    out = put(1, code) + put_field(2, dims) + put(4, offset) + put(5, size)
    out += b"\x35" + u32.pack(crc) if crc else b""
    out += b"".join(put_field(7, put_slice(extents)) for extents in slices)
    return out + (put_field(100, extension) if extension else b"")


# --- TAB: a canonical table ---
class Block:
    """A block under construction (BLK-11, BLK-12)."""

    def __init__(self, interval: int) -> None:
        self.interval, self.count, self.last = interval, 0, b""
        self.contents = bytearray()
        self.restarts: list[int] = []

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self.count % self.interval == 0:
            self.restarts.append(len(self.contents))
        else:
            shared = common(self.last, key)
        self.contents += put_varint(shared) + put_varint(len(key) - shared) + put_varint(len(value))
        self.contents += key[shared:] + value
        self.count, self.last = self.count + 1, key

    def size(self) -> int:
        return len(self.contents) + 4 * len(self.restarts) + 4

    def stored(self) -> bytes:
        """The contents with the trailer."""
        restarts = self.restarts or [0]  # BLK-13
        raw = bytes(self.contents) + b"".join(map(u32.pack, [*restarts, len(restarts)])) + b"\0"
        return raw + u32.pack(mask(crc32c(raw)))


def put_table(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The index file of entries in key order, the header first."""
    out, block, index = bytearray(), Block(16), Block(1)
    pending: tuple[bytes, bytes] | None = None

    def end() -> tuple[bytes, bytes]:
        nonlocal block
        stored = block.stored()
        place = put_varint(len(out)) + put_varint(len(stored) - 5)
        out.extend(stored)
        last, block = block.last, Block(16)
        return last, place

    for key, value in entries:
        if block.count and len(key) + len(value) >= 524288:
            pending = end()
        if pending:
            index.add(separator(pending[0], key), pending[1])
            pending = None
        block.add(key, value)
        if block.size() >= 262144:
            pending = end()
    last, place = pending or end()
    index.add(successor(last), place)
    handles = put_varint(len(out)) + put_varint(8)
    out += EMPTY_BLOCK
    stored = index.stored()
    handles += put_varint(len(out)) + put_varint(len(stored) - 5)
    return bytes(out + stored + handles.ljust(40, b"\0") + u64.pack(MAGIC))


# --- values ---
BITS = {29: 4, 30: 4, 31: 2, 32: 2, 33: 4}  # DTY-3
CODES = {
    np.dtype(kind): code for code, (_, _, _, kind) in reversed(TYPES.items()) if kind is not object
}


@dataclass
class Piece:
    """A slice, by its text (TXT), or an array of a type that numpy has not (quantized, variant)."""

    array: Any
    text: str = ""
    dtype: int = 0


def put_strings(items: list[bytes]) -> tuple[bytes, int]:  # STR
    crc = 0
    for item in items:
        crc = crc32c(u32.pack(len(item)) if len(item) < 1 << 32 else u64.pack(len(item)), crc)
    stored = u32.pack(mask(crc))
    crc = crc32c(stored, crc)
    for item in items:
        crc = crc32c(item, crc)
    return b"".join(put_varint(len(item)) for item in items) + stored + b"".join(items), crc


def put_variants(items: list[bytes]) -> tuple[bytes, int]:  # VAR
    out, crc = bytearray(), 0
    for item in items:
        crc = crc32c(item, crc32c(u64.pack(len(item)), crc))
        stored = u32.pack(mask(crc))
        crc = crc32c(stored, crc)
        out += put_varint(len(item)) + item + stored
    return bytes(out), crc


def put_value(array: Array, code: int) -> tuple[bytes, int]:
    """The raw value and its checksum, not masked."""
    if code in (STRING, VARIANT):
        items = [
            item.encode() if isinstance(item, str) else bytes(item) for item in array.reshape(-1)
        ]
        return put_strings(items) if code == STRING else put_variants(items)
    raw = np.ascontiguousarray(array).tobytes()
    if code in BITS:  # DTY-3
        raw = (np.frombuffer(raw, np.uint8) & ((1 << BITS[code]) - 1)).tobytes()
    return raw, crc32c(raw)


def put_extension(
    size: int,
    crcs: Iterable[int],
    flags: int = 0,
    sizes: Iterable[int] = (),
    raw_size: int = 0,
    raw_crc: int = 0,
) -> bytes:
    packed = b"".join(map(put_varint, sizes))
    out = put(1, flags) + put(2, size) + put_field(3, b"".join(map(u32.pack, crcs)))
    out += put_field(4, packed) if packed else b""
    return out + put(5, raw_size) + (b"\x35" + u32.pack(raw_crc) if raw_crc else b"")


def chunks_of(value: bytes, size: int) -> list[bytes]:
    return [value[i : i + size] for i in range(0, len(value), size)]


def put_chunk(raw: bytes, unit: int) -> bytes:
    """The smallest of the forms of a chunk (CMP-12)."""
    frame = zstandard.ZstdCompressor(level=3).compress
    forms = [b"\x00" + raw, b"\x01" + frame(raw)]
    for method in (2, 3) if unit > 1 else ():
        units: Array = np.frombuffer(raw, f"<u{unit}")
        if method == 3:
            units = (units << 1) | (units >> (8 * unit - 1))
        numbers, body = b"", b""
        for plane in units.view(np.uint8).reshape(-1, unit).T:
            stored = plane.tobytes()
            small = frame(stored)
            numbers += put_varint(2 * min(len(stored), len(small)) + (len(small) < len(stored)))
            body += min(stored, small, key=len)
        forms.append(bytes([method]) + numbers + body)
    return min(forms, key=len)


def stored_value(
    raw: bytes, crc: int, code: int, level: str, chunk_size: int
) -> tuple[bytes, int, bytes]:
    """Stored bytes, their checksum and the extension of a value, by its level (EXT-10, CMP-10)."""
    fixed, unit = code not in (STRING, VARIANT), TYPES[code][2]
    extension = b""
    if level != "v2" and fixed and len(raw) > chunk_size:
        extension = put_extension(chunk_size, map(crc32c, chunks_of(raw, chunk_size)))
    need(len(raw) <= 15 * 2**20 * chunk_size or level == "v2", "EXT-10", "LIMIT", "too many chunks")
    if level == "ckptfmt" and raw:
        chunks = [put_chunk(chunk, unit) for chunk in chunks_of(raw, chunk_size)]
        stored = b"".join(chunks)
        sizes = [len(chunk) for chunk in chunks]
        packed = put_extension(chunk_size, map(crc32c, chunks), 1, sizes, len(raw), crc)
        if len(stored) + len(packed) < len(raw) + len(extension):
            return stored, crc32c(stored), packed
    return raw, crc, extension


# --- the writer ---
def put_metadata(value: Any) -> bytes:
    """The JSON of metadata (EXT-12), with nothing that a reader may refuse (EXT-7)."""

    def good(item: Any, depth: int) -> bool:
        if isinstance(item, str):
            return not re.search("[\ud800-\udfff]", item)
        if isinstance(item, float):
            return math.isfinite(item)
        if isinstance(item, list | tuple):
            return depth < 100 and all(good(inner, depth + 1) for inner in item)
        return isinstance(item, int) and abs(item) < 10**4300

    sound = isinstance(value, dict) and all(
        isinstance(name, str) and good(name, 1) and good(item, 1) for name, item in value.items()
    )
    need(sound, "EXT-12", "ARGUMENT", "metadata")
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def write(
    prefix: Path,
    tensors: Iterable[tuple[bytes | str, Any]],
    *,
    level: str = "v2",
    alignment: int | None = None,
    metadata: Any = None,
    chunk_size: int = 262144,
) -> None:
    """Writes a checkpoint of one shard under a prefix that has no files.

    tensors are pairs of a name (bytes or str) and an array or Piece, in the order of their values.
    """
    prefix = os.fspath(prefix)
    need(level in ("v2", "v2+", "ckptfmt"), "EXT-10", "ARGUMENT", f"level {level}")
    need(metadata is None or level != "v2", "EXT-12", "ARGUMENT", "level v2 has no metadata")
    most = 1 << 24 if level == "ckptfmt" else (1 << 32) - 1
    good = chunk_size % 16 == 0 and 4096 <= chunk_size <= most
    need(good, "EXT-10", "ARGUMENT", f"chunk_size {chunk_size}")
    alignment = alignment or (1 if level == "v2" else 64)
    items = [(name.encode() if isinstance(name, str) else name, value) for name, value in tensors]
    for name, _ in items:
        need(name, "TAB-12", "ARGUMENT", "a tensor without name")
        need(not name.startswith(b"_CKPTFMT_"), "EXT-8", "ARGUMENT", f"{name!r} is reserved")
        need(len(name) <= LIMITS["key"], "TAB-13", "LIMIT", "name")
    if metadata is not None:
        items.insert(0, (b"_CKPTFMT_METADATA", np.array(put_metadata(metadata), object)))
    table: dict[bytes, bytes] = {}
    partitioned: dict[bytes, tuple[int, Shape, list[Extents]]] = {}
    data, compressed = bytearray(), False
    for name, value in items:
        piece = value if isinstance(value, Piece) else Piece(value)
        array = np.asarray(piece.array)
        code = piece.dtype or (STRING if array.dtype.kind in "OSU" else CODES.get(array.dtype, 0))
        need(code in TYPES, "DTY-7", "ARGUMENT", f"{name!r} of {array.dtype}")
        need(array.ndim <= 254, "SHP-3", "ARGUMENT", "rank")
        key = name
        shape, extents = parse_slice_text(piece.text) or (list(array.shape), [])
        box = slice_box(extents, shape) if extents else [(0, n) for n in shape]
        good = [n for _, n in box] == list(array.shape)
        need(good, "TXT-9", "ARGUMENT", f"{piece.text} of {array.shape}")
        if box != [(0, n) for n in shape]:  # SLC-12
            full = partitioned.setdefault(name, (code, shape, []))
            need(full[:2] == (code, shape) and name not in table, "SLC-14", "ARGUMENT", f"{name!r}")
            full[2].append(extents)
            key = slice_key(name, extents)
            need(len(key) <= LIMITS["key"], "TAB-13", "LIMIT", "slice key")
        good = key not in table and (key != name or name not in partitioned)
        need(good, "SLC-14", "ARGUMENT", f"{name!r} twice")
        raw, crc = put_value(array, code)
        own = "v2" if name == b"_CKPTFMT_METADATA" else level
        stored, crc, extension = stored_value(raw, crc, code, own, chunk_size)
        compressed |= extension[:2] == b"\x08\x01"
        table[key] = put_entry(code, array.shape, len(data), len(stored), mask(crc), (), extension)
        data += stored
        data += bytes(-len(data) % alignment)  # DAT-5
    for name, (code, shape, slices) in partitioned.items():
        check_overlaps(slices, "SLC-6", "ARGUMENT")
        table[name] = put_entry(code, shape, slices=slices)
    table[b""] = put_header(1, b"\x08\x02\x10\x02" if compressed else b"\x08\x01")  # HDR-10, HDR-11
    commit(prefix, [lambda path: put_file(path, bytes(data))], put_table(sorted(table.items())))


def put_file(path: str, contents: bytes) -> None:
    with open(path, "xb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())


def commit(prefix: str, makers: Sequence[Maker], index: bytes) -> None:
    """CMT for a prefix without files: the one case here."""
    names = [data_name(prefix, i, len(makers)) for i in range(len(makers))] + [prefix + ".index"]
    makers = [*makers, lambda path: put_file(path, index)]
    need(not any(map(os.path.lexists, names)), "CMT-5", "ARGUMENT", f"{prefix} has files")
    made: list[str] = []
    try:
        for name, make in zip(names, makers, strict=True):
            made.append(f"{name}.tempstate{'a' + os.urandom(8).hex()[1:]}")  # CMT-2
            make(made[-1])
        for name, temporary in zip(names, made, strict=True):
            os.rename(temporary, name)  # CMT-9: the index is the last
    finally:
        for path in filter(os.path.lexists, made):
            os.unlink(path)
    parent = os.open(os.path.dirname(prefix) or ".", os.O_RDONLY)
    os.fsync(parent)  # CMT-10
    os.close(parent)
