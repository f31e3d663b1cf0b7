# SPDX-License-Identifier: Apache-2.0
"""A writer of index files by spec/format.md alone, sound and malformed ones alike.

It shares no code with the package: checksums are crcmod's, messages are put together by hand. The
result holds all positions, so that a test can say at which offset an error must point.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import crcmod.predefined

MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER_SIZE = 48
TRAILER_SIZE = 5

FLOAT, UINT8, STRING, VARIANT = 1, 4, 7, 21

Extent = tuple[int, int]  # start and length; a length of -1 is the full dimension

_crc = crcmod.predefined.mkCrcFun("crc-32c")


# ---- checksums and numbers


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C of the bytes, continuing `crc`."""
    return int(_crc(data, crc))


def mask(crc: int) -> int:
    """The stored form of a checksum."""
    return ((((crc >> 15) | (crc << 17)) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def varint(value: int, size: int = 0) -> bytes:
    """A varint of at least `size` bytes; longer than it need be where `size` says so."""
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80 or len(out) + 1 < size:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# ---- messages


def number(tag: int, value: int, size: int = 0) -> bytes:
    """A field of wire type 0."""
    return varint(tag << 3) + varint(value, size)


def fixed32(tag: int, value: int) -> bytes:
    """A field of wire type 5."""
    return varint(tag << 3 | 5) + u32(value)


def nested(tag: int, content: bytes) -> bytes:
    """A field of wire type 2."""
    return varint(tag << 3 | 2) + varint(len(content)) + content


def header(
    num_shards: int = 1,
    *,
    endianness: int = 0,
    version: bytes | None = None,
    extra: bytes = b"",
) -> bytes:
    """The value of key ""; `version` is the content of that message."""
    return (
        (number(1, num_shards) if num_shards else b"")
        + (number(2, endianness) if endianness else b"")
        + nested(3, number(1, 1) if version is None else version)
        + extra
    )


def shape(dims: Sequence[int]) -> bytes:
    """The content of a shape message."""
    return b"".join(nested(2, number(1, dim) if dim else b"") for dim in dims)


def slice_message(extents: Iterable[Extent]) -> bytes:
    """The content of a slice message."""
    return b"".join(
        nested(
            1, (number(1, start) if start else b"") + (number(2, length) if length != -1 else b"")
        )
        for start, length in extents
    )


def entry(
    dtype: int = FLOAT,
    dims: Sequence[int] = (),
    *,
    shard: int = 0,
    offset: int = 0,
    size: int = 0,
    masked_crc: int = 0,
    slices: Iterable[bytes] = (),
    shape_content: bytes | None = None,
    extra: bytes = b"",
) -> bytes:
    """The value of a tensor's key."""
    return (
        (number(1, dtype) if dtype else b"")
        + nested(2, shape(dims) if shape_content is None else shape_content)
        + (number(3, shard) if shard else b"")
        + (number(4, offset) if offset else b"")
        + (number(5, size) if size else b"")
        + (fixed32(6, masked_crc) if masked_crc else b"")
        + b"".join(nested(7, content) for content in slices)
        + extra
    )


def stored_entry(
    dtype: int, dims: Sequence[int], data: bytes, offset: int = 0, **more: object
) -> bytes:
    """The entry of a value whose bytes are `data`, with its checksum."""
    options: dict = {"size": len(data), "masked_crc": mask(crc32c(data)), **more}
    return entry(dtype, dims, offset=offset, **options)


def extension(chunk_size: int, chunk_crcs: Iterable[int], flags: int = 0) -> bytes:
    """Field 100 of an entry."""
    packed = b"".join(map(u32, chunk_crcs))
    content = (
        (number(1, flags) if flags else b"")
        + (number(2, chunk_size) if chunk_size else b"")
        + (nested(3, packed) if packed else b"")
    )
    return nested(100, content)


# ---- slice keys

_SIGNED_HEAD = {1: b"\x80", 2: b"\xc0", 3: b"\xe0", 4: b"\xf0", 5: b"\xf8", 6: b"\xfc", 7: b"\xfe"}
_SIGNED_HEAD |= {8: b"\xff", 9: b"\xff\x80", 10: b"\xff\xc0"}


def key_number(value: int) -> bytes:
    """KEY-2."""
    raw = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(raw)]) + raw


def key_text(text: bytes) -> bytes:
    """KEY-3."""
    out = b"".join({0: b"\0\xff", 255: b"\xff\0"}.get(one, bytes([one])) for one in text)
    return out + b"\0\1"


def key_signed(value: int) -> bytes:
    """KEY-4."""
    bits = (value if value >= 0 else ~value).bit_length()
    size = 1 + bits // 7
    raw = bytearray((value & (1 << 8 * size) - 1).to_bytes(size, "big"))
    for place, one in enumerate(_SIGNED_HEAD[size]):
        raw[place] ^= one
    return bytes(raw)


def slice_key(name: bytes, extents: Sequence[Extent]) -> bytes:
    """KEY-1."""
    numbers = b"".join(key_signed(start) + key_signed(length) for start, length in extents)
    return key_number(0) + key_text(name) + key_number(len(extents)) + numbers


# ---- string and variant values


def string_value(elements: Sequence[bytes]) -> tuple[bytes, int]:
    """The bytes of a string value, and its masked checksum."""
    sizes = b"".join(struct.pack("<I" if len(e) < 2**32 else "<Q", len(e)) for e in elements)
    sizes_crc = crc32c(sizes)
    stored = u32(mask(sizes_crc))
    body = b"".join(elements)
    crc = crc32c(body, crc32c(stored, sizes_crc))
    return b"".join(varint(len(e)) for e in elements) + stored + body, mask(crc)


def variant_value(payloads: Sequence[bytes]) -> tuple[bytes, int]:
    """The bytes of a variant value, and its masked checksum."""
    out, crc = b"", 0
    for payload in payloads:
        crc = crc32c(payload, crc32c(struct.pack("<Q", len(payload)), crc))
        stored = u32(mask(crc))
        out += varint(len(payload)) + payload + stored
        crc = crc32c(stored, crc)
    return out, mask(crc)


# ---- blocks and the file

Row = tuple[bytes, bytes]


@dataclass
class Block:
    """The contents of a block, and where in them its entries and their values begin."""

    contents: bytes
    entries: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    entries_end: int = 0


def block(
    rows: Sequence[Row],
    *,
    interval: int = 16,
    share: bool = True,
    restarts: Sequence[int] | None = None,
    restart_count: int | None = None,
    tail: bytes = b"",
) -> Block:
    """A block of these rows. `restarts` and `restart_count` replace what they ought to be; `tail`
    comes between the last entry and the restarts."""
    made, out, starts, last = Block(b""), bytearray(), [0], b""
    for position, (key, value) in enumerate(rows):
        shared = 0
        if position % interval == 0:
            if position:
                starts.append(len(out))
        elif share:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        made.entries.append(len(out))
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:]
        made.values.append(len(out))
        out += value
        last = key
    out += tail
    made.entries_end = len(out)
    given = starts if restarts is None else list(restarts)
    count = len(given) if restart_count is None else restart_count
    made.contents = bytes(out) + b"".join(map(u32, given)) + u32(count)
    return made


def raw_entry(shared: int, unshared: int, value_size: int, content: bytes) -> bytes:
    """An entry of a block whose three numbers may be false."""
    return varint(shared) + varint(unshared) + varint(value_size) + content


def with_trailer(stored: bytes, kind: int = 0) -> bytes:
    """A block with its trailer, as in the file."""
    body = stored + bytes([kind])
    return body + u32(mask(crc32c(body)))


def handle(offset: int, size: int) -> bytes:
    return varint(offset) + varint(size)


def footer(metaindex: bytes, index: bytes, *, padding: int = 0, magic: bytes = MAGIC) -> bytes:
    """A footer of these two handles."""
    handles = metaindex + index
    return handles + bytes([padding]) * (40 - len(handles)) + magic


EMPTY_BLOCK = block([]).contents


@dataclass
class Index:
    """An index file in pieces that can be exchanged before `build` puts them together.

    After `build`: `offsets` of the data blocks, `metaindex_offset`, `index_offset`,
    `footer_offset`, and `index_block` with the positions of its entries.
    """

    blocks: list[Block]
    kinds: Mapping[int, int] = field(default_factory=dict)
    separators: Sequence[bytes] | None = None
    handles: Mapping[int, bytes] = field(default_factory=dict)
    handle_tail: bytes = b""
    index_contents: bytes | None = None
    index_handle: bytes | None = None
    metaindex_handle: bytes | None = None
    metaindex: bytes = EMPTY_BLOCK
    gap_before: bytes = b""
    footer_padding: int = 0
    magic: bytes = MAGIC
    last_keys: Sequence[bytes] = ()
    offsets: list[int] = field(default_factory=list)
    metaindex_offset: int = 0
    index_offset: int = 0
    footer_offset: int = 0
    index_block: Block = field(default_factory=lambda: Block(b""))

    def build(self) -> bytes:
        out = bytearray(self.gap_before)
        self.offsets, rows = [], []
        for number_, one in enumerate(self.blocks):
            self.offsets.append(len(out))
            place = self.handles.get(number_, handle(len(out), len(one.contents)))
            keys = self.separators if self.separators is not None else self.last_keys
            rows.append((keys[number_], place + self.handle_tail))
            out += with_trailer(one.contents, self.kinds.get(number_, 0))
        self.metaindex_offset = len(out)
        out += with_trailer(self.metaindex)
        self.index_offset = len(out)
        self.index_block = block(rows, interval=1)
        contents = self.index_block.contents if self.index_contents is None else self.index_contents
        out += with_trailer(contents)
        self.footer_offset = len(out)
        metaindex = self.metaindex_handle or handle(self.metaindex_offset, len(self.metaindex))
        index = self.index_handle or handle(self.index_offset, len(contents))
        out += footer(metaindex, index, padding=self.footer_padding, magic=self.magic)
        return bytes(out)


def index_of(*groups: Sequence[Row], **options: object) -> Index:
    """An index whose data blocks hold these rows, a group a block."""
    made: dict = {"last_keys": [group[-1][0] if group else b"" for group in groups], **options}
    return Index([block(group) for group in groups], **made)


def raw_index(contents: bytes, last_key: bytes = b"\xff", **options: object) -> Index:
    """An index with one data block of these contents, whatever they are."""
    made: dict = {"last_keys": [last_key], **options}
    return Index([Block(contents)], **made)


def data_name(prefix: Path, shard: int, num_shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}")


def write(
    prefix: Path, index: Index | bytes, data: Mapping[int, bytes] | bytes = b"", num_shards: int = 1
) -> Path:
    """Writes the files of a bundle; `data` by shard, or of the only one."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    content = index if isinstance(index, bytes) else index.build()
    prefix.with_name(prefix.name + ".index").write_bytes(content)
    for shard, piece in ({0: data} if isinstance(data, bytes) else data).items():
        data_name(prefix, shard, num_shards).write_bytes(piece)
    return prefix


# ---- taking a sound file apart


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        one = data[position]
        value |= (one & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if one < 0x80:
            return value, position


def block_rows(contents: bytes) -> list[tuple[int, bytes, int, bytes]]:
    """Position of each entry, its key, position of its value, its value."""
    (count,) = struct.unpack("<I", contents[-4:])
    end, position, key, found = len(contents) - 4 - 4 * count, 0, b"", []
    while position < end:
        start = position
        shared, position = read_varint(contents, position)
        unshared, position = read_varint(contents, position)
        size, position = read_varint(contents, position)
        key = key[:shared] + contents[position : position + unshared]
        position += unshared
        found.append((start, key, position, contents[position : position + size]))
        position += size
    return found


@dataclass(frozen=True)
class Regions:
    """Where the parts of a sound index file lie: (offset, size) without trailers."""

    data_blocks: list[tuple[int, int]]
    metaindex: tuple[int, int]
    index: tuple[int, int]
    footer: int
    handles_end: int


def regions(content: bytes) -> Regions:
    """The parts of a sound index file of raw blocks."""
    start = len(content) - FOOTER_SIZE
    numbers, position = [], start
    for _ in range(4):
        value, position = read_varint(content, position)
        numbers.append(value)
    index = (numbers[2], numbers[3])
    blocks = []
    for _, _, _, value in block_rows(content[index[0] : index[0] + index[1]]):
        offset, after = read_varint(value, 0)
        blocks.append((offset, read_varint(value, after)[0]))
    return Regions(blocks, (numbers[0], numbers[1]), index, start, position)
