# SPDX-License-Identifier: Apache-2.0
"""Changes of a checkpoint's structure, with checksums that fit what is changed.

A mutant is a sound checkpoint with one or a few fields, rows, blocks, handles, values or files
changed. Numbers take telling values: powers of two and their neighbours, file sizes, other fields.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from support import index as ix

from border.samples import Sample

NUMBERS = [0, 1, 2, 3, 127, 128, 129, 255, 256, 4095, 4096, 16383, 16384, (1 << 20) + 1]
NUMBERS += [(1 << bits) + more for bits in (31, 32, 40, 53, 63) for more in (-1, 0, 1)]
NUMBERS += [(1 << 64) - 1, (1 << 64) - 2, (1 << 64) - 8, (1 << 62) // 3]

# Known messages: field number of a nested message, and its own.
Schema = dict[int, Any]
HEADER: Schema = {3: {}}
ENTRY: Schema = {2: {2: {}}, 7: {1: {}}, 100: {}}
GRAPH: Schema = {1: {1: {}, 2: {}, 3: {}, 4: {}, 5: {}}}

GRAPH_KEY, METADATA_KEY = b"_CHECKPOINTABLE_OBJECT_GRAPH", b"_CKPTFMT_METADATA"
STRING, VARIANT = 7, 21

METADATA = [
    b"{}", b"[]", b"", b"null", b"3", b'"text"', b"{", b'{"a":NaN}', b'{"a":1e999}',
    b'{"a":1,"a":2}', b'{"\xff":1}', b"\xef\xbb\xbf{}", b'{"a":' + b"9" * 5000 + b"}",
    b'{"a":' * 3000 + b"1" + b"}" * 3000, b"[" * 100_000, b'{"\\ud800":"\\udfff"}',
    b'{"a":"\x00"}', b' {"a" : -0.0 } ', b'{"a":1}x', b'{"a":Infinity}', b'{"":{}}',
]  # fmt: skip


@dataclass
class Field:
    """A field of a message: a number, bytes, or fields of a known message.

    size: what its length claims to be; width: least bytes of its number or length.
    """

    tag: int
    wire: int
    value: Any
    size: int | None = None
    width: int = 0


def fields_of(content: bytes, schema: Schema) -> list[Field]:
    """The fields of a message; bytes that make no sense end it."""
    out: list[Field] = []
    pos = 0
    with contextlib.suppress(IndexError):
        while pos < len(content):
            tag, pos = ix.read_varint(content, pos)
            number, wire = tag >> 3, tag & 7
            value: Any = 0
            if wire == 0:
                value, pos = ix.read_varint(content, pos)
            elif wire in (1, 5):
                size = 8 if wire == 1 else 4
                value = int.from_bytes(content[pos : pos + size], "little")
                pos += size
            elif wire == 2:
                size, pos = ix.read_varint(content, pos)
                value = content[pos : pos + size]
                pos += size
                if number in schema:
                    value = fields_of(value, schema[number])
            out.append(Field(number, wire, value))
    return out


def encoded(fields: list[Field]) -> bytes:
    out = bytearray()
    for one in fields:
        out += ix.varint(one.tag << 3 | one.wire)
        if one.wire == 0:
            out += ix.varint(one.value, one.width)
        elif one.wire in (1, 5):
            size = 8 if one.wire == 1 else 4
            out += (one.value & (1 << 8 * size) - 1).to_bytes(size, "little")
        elif one.wire == 2:
            content = encoded(one.value) if isinstance(one.value, list) else one.value
            out += ix.varint(len(content) if one.size is None else one.size, one.width) + content
    return bytes(out)


def number_of(fields: list[Field], tag: int) -> int:
    """The number of a field; 0 if it is missing."""
    found = [one.value for one in fields if one.tag == tag and isinstance(one.value, int)]
    value = found[-1] if found else 0
    return value - (1 << 64) if value >> 63 else value


def set_number(fields: list[Field], tag: int, value: int, wire: int = 0) -> None:
    fields[:] = [one for one in fields if one.tag != tag]
    place = next((at for at, one in enumerate(fields) if one.tag > tag), len(fields))
    if value:
        fields.insert(place, Field(tag, wire, value))


def lists_of(fields: list[Field]) -> list[list[Field]]:
    """The fields of a message and of each message in it."""
    found = [fields]
    for one in fields:
        if isinstance(one.value, list):
            found += lists_of(one.value)
    return found


@dataclass
class Row:
    key: bytes
    fields: list[Field]

    @property
    def dims(self) -> list[int]:
        shapes = [one.value for one in self.fields if one.tag == 2 and isinstance(one.value, list)]
        dims = [dim.value for shape in shapes for dim in shape if dim.tag == 2]
        return [number_of(dim, 1) for dim in dims if isinstance(dim, list)]

    @property
    def place(self) -> tuple[int, int, int]:
        """Shard, offset and size."""
        shard, offset, size = (number_of(self.fields, tag) for tag in (3, 4, 5))
        return shard, offset, size


@dataclass
class Mutant:
    """A sample that is being changed; `write` puts it into a directory."""

    sample: Sample
    chance: Random
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [
            Row(key, fields_of(value, ENTRY if key else HEADER)) for key, value in self.sample.rows
        ]
        self.data = {number: bytearray(one) for number, one in self.sample.data.items()}
        self.num_shards = self.sample.num_shards
        self.sorted = True
        # Changes of blocks and of the file, made while it is put together.
        self.of_block: list[Callable[[dict[str, Any]], None]] = []
        self.of_index: list[Callable[[ix.Index, int], None]] = []
        self.of_file: list[Callable[[bytearray], bytearray]] = []

    # ---- telling values

    def number(self, old: int = 0) -> int:
        """A telling value to take the place of another."""
        chance = self.chance
        kind = chance.randrange(8)
        if kind == 0:
            return old + chance.choice((-1, 1))
        if kind == 1:
            sizes = [len(one) for one in self.data.values()] or [0]
            return chance.choice(sizes) + chance.randint(-5, 5)
        if kind == 2:
            numbers = [
                one.value
                for fields in lists_of(chance.choice(self.rows).fields)
                for one in fields
                if isinstance(one.value, int)
            ]
            return chance.choice(numbers or [0])
        if kind == 3:
            return chance.choice((-old, old * 2, old // 2, old ^ 1 << chance.randrange(32)))
        return chance.choice(NUMBERS)

    def row(self, wanted: Callable[[Row], Any] = lambda _: True) -> Row | None:
        found = [one for one in self.rows if wanted(one)]
        return self.chance.choice(found) if found else None

    # ---- values

    def stored(self, row: Row) -> bytes:
        shard, offset, size = row.place
        return bytes(self.data.get(shard, b"")[max(offset, 0) : max(offset + size, 0)])

    def store(self, row: Row, content: bytes, masked_crc: int) -> None:
        """Gives a row other bytes, at the end of its data file."""
        shard = row.place[0]
        data = self.data.setdefault(shard, bytearray())
        set_number(row.fields, 4, len(data))
        set_number(row.fields, 5, len(content))
        set_number(row.fields, 6, masked_crc, 5)
        data += content

    def repair(self, row: Row) -> None:
        """Makes the checksums of a row fit the bytes it has."""
        content = self.stored(row)
        extensions = [one.value for one in row.fields if one.tag == 100]
        extension = extensions[-1] if extensions and isinstance(extensions[-1], list) else []
        sizes = [number_of(extension, 2)] * (len(content) // max(number_of(extension, 2), 1) + 1)
        if number_of(extension, 1) & 1:
            packed = b"".join(x.value for x in extension if x.tag == 4 and type(x.value) is bytes)
            sizes, pos = [], 0
            with contextlib.suppress(IndexError):
                while pos < len(packed) and len(sizes) < 1000:
                    size, pos = ix.read_varint(packed, pos)
                    sizes.append(size)
        crcs, pos = b"", 0
        for size in sizes:
            if pos < len(content):
                crcs += ix.u32(ix.crc32c(content[pos : pos + size]))
            pos += size
        for one in extension:
            if one.tag == 3 and one.wire == 2:
                one.value = crcs
        if number_of(row.fields, 1) not in (STRING, VARIANT) or extension:
            set_number(row.fields, 6, ix.mask(ix.crc32c(content)), 5)

    # ---- changes; each is one method whose name says what it changes

    def change_number(self) -> None:
        row = self.row()
        self._change_number(row.fields if row else [])

    def _change_number(self, fields: list[Field]) -> None:
        found = [one for some in lists_of(fields) for one in some if isinstance(one.value, int)]
        if found:
            one = self.chance.choice(found)
            one.value = self.number(one.value) & (1 << 64) - 1

    def change_fields(self) -> None:
        row = self.row()
        self._change_fields(row.fields if row else [])

    def _change_fields(self, fields: list[Field]) -> None:
        """Drops, repeats, exchanges or adds a field, or lies about one."""
        chance = self.chance
        some = chance.choice(lists_of(fields))
        kind = chance.randrange(8)
        if kind == 0 or not some:
            tag, wire = chance.choice((1, 2, 3, 4, 5, 6, 7, 8, 100)), chance.choice((0, 2, 5, 1))
            value: Any = self.number() & (1 << 64) - 1
            value = chance.randbytes(chance.randrange(6)) if wire == 2 else value
            some.insert(chance.randint(0, len(some)), Field(tag, wire, value))
            return
        at, other = chance.randrange(len(some)), chance.randrange(len(some))
        if kind == 1:
            del some[at]
        elif kind == 2:
            some.insert(other, some[at])
        elif kind == 3:
            some[at], some[other] = some[other], some[at]
        elif kind == 4:
            some[at].tag = chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 100, (1 << 29) - 1))
        elif kind == 5:
            some[at].wire = chance.randrange(8)
            if some[at].wire in (0, 1, 5) and not isinstance(some[at].value, int):
                some[at].value = self.number()
            if some[at].wire == 2 and isinstance(some[at].value, int):
                some[at].value = ix.varint(some[at].value)
        elif kind == 6:
            some[at].size = self.number(3)
        else:
            some[at].width = chance.choice((2, 5, 10, 11))

    def change_bytes_field(self) -> None:
        """Packed checksums and sizes, names and texts inside a message."""
        row = self.row()
        self._change_bytes(row.fields if row else [])

    def _change_bytes(self, fields: list[Field]) -> None:
        chance = self.chance
        found = [one for some in lists_of(fields) for one in some if type(one.value) is bytes]
        if not found:
            return
        one = chance.choice(found)
        kind, old = chance.randrange(6), one.value
        at = chance.randint(0, len(old))
        if kind == 0:
            one.value = old[:at]
        elif kind == 1:
            one.value = old[:at] + old[at + 1 :]
        elif kind == 2:
            one.value = old[:at] + ix.varint(self.number()) + old[at:]
        elif kind == 3:
            one.value = old[:at] + ix.u32(self.number() & 0xFFFFFFFF) + old[at + 4 :]
        elif kind == 4:
            one.value = old[:at] + b"\xff\xc0\x80"[: chance.randint(1, 3)] + old[at + 1 :]
        else:
            one.value = chance.choice(found).value

    def change_dims(self) -> None:
        """Dimensions that keep the product, or multiply to something telling."""
        row = self.row(lambda one: one.key)
        if row is None:
            return
        chance, dims = self.chance, row.dims
        kind = chance.randrange(4)
        if kind == 0:
            dims = [*dims, 1] if len(dims) < 5 else dims[::-1]
        elif kind == 1:
            dims = [1 << 32, 1 << 32, *dims]
        elif kind == 2:
            dims = [*dims, 0, self.number()]
        else:
            dims = [1] * chance.choice((64, 65, 254, 255)) + dims
        row.fields[:] = [one for one in row.fields if one.tag != 2]
        row.fields.insert(1, Field(2, 2, fields_of(ix.shape(dims), ENTRY[2])))

    def change_slices(self) -> None:
        """An extent, in the list of the tensor and in the key of the slice, or in one of them."""
        chance = self.chance
        row = self.row(lambda one: any(x.tag == 7 and type(x.value) is list for x in one.fields))
        if row is None:
            return
        one = chance.choice([x for x in row.fields if x.tag == 7 and type(x.value) is list])
        before = self._extents(one)
        extents = list(before)
        if extents:
            at = chance.randrange(len(extents))
            pair = list(extents[at])
            pair[chance.randrange(2)] = chance.choice((self.number(pair[0]), chance.randint(-2, 6)))
            extents[at] = (pair[0], pair[1])
        if chance.randrange(8) == 0:
            extents = [*extents, (0, -1)] if chance.random() < 0.5 else extents[:-1]
        which = chance.randrange(4)
        if which:
            extents = [(signed(start), signed(length)) for start, length in extents]
            one.value = fields_of(ix.slice_message(extents), ENTRY[7])
        if which != 1:
            old = ix.slice_key(row.key, before)
            for other in self.rows:
                if other.key == old:
                    other.key = ix.slice_key(row.key, [(signed(a), signed(b)) for a, b in extents])

    @staticmethod
    def _extents(one: Field) -> list[ix.Extent]:
        found = []
        for extent in one.value:
            if extent.tag == 1 and isinstance(extent.value, list):
                length = number_of(extent.value, 2)
                given = any(x.tag == 2 for x in extent.value)
                found.append((signed(number_of(extent.value, 1)), length if given else -1))
        return found

    def change_key(self) -> None:
        chance, row = self.chance, self.row()
        if row is None:
            return
        kind, key = chance.randrange(6), row.key
        at = chance.randint(0, len(key))
        if kind == 0:
            row.key = key[:at] + chance.choice((b"\0", b"\xff", b"\x80", b"\n")) + key[at + 1 :]
        elif kind == 1:
            row.key = key[:at]
        elif kind == 2:
            row.key = key + chance.choice((b"\0", b"\0\1", b"a", b"\xff" * 300))
        elif kind == 3:
            row.key = chance.choice(self.rows).key
        elif kind == 4:
            row.key = ix.slice_key(key, [(0, 1)] * chance.randint(0, 3))
        else:
            row.key = chance.choice((GRAPH_KEY, METADATA_KEY, b"_CKPTFMT_SHARD_0", b"", key * 2))

    def change_rows(self) -> None:
        chance, rows = self.chance, self.rows
        at, other = chance.randrange(len(rows)), chance.randrange(len(rows))
        kind = chance.randrange(4)
        if kind == 0 and len(rows) > 1:
            del rows[at]
        elif kind == 1:
            name = rows[at].key + b"'" * chance.randrange(2)
            rows.append(Row(name, fields_of(encoded(rows[at].fields), ENTRY)))
        elif kind == 2:
            rows[at].fields, rows[other].fields = rows[other].fields, rows[at].fields
        else:
            rows[at], rows[other] = rows[other], rows[at]
            self.sorted = False

    def change_block(self) -> None:
        """Restarts, sharing, bytes between, and the numbers of an entry."""
        chance = self.chance
        name, value = chance.choice(
            (
                ("interval", chance.choice((1, 2, 3, 1000))),
                ("restart_count", self.number(1) & 0xFFFFFFFF),
                ("restarts", [self.number() & 0xFFFFFFFF for _ in range(chance.randint(0, 3))]),
                ("share", False),
                ("tail", chance.randbytes(chance.randint(1, 4))),
                ("tail", ix.raw_entry(*(self.number() & 0xFFFFFFFF for _ in "abc"), b"abc")),
            )
        )
        self.of_block.append(lambda options: options.__setitem__(name, value))

    def change_index(self) -> None:
        """Handles, separators, block types, gaps and the footer."""
        chance, one, two = self.chance, self.number(), self.number(9)
        kind, small = chance.randrange(10), chance.randint(-5, 5)

        def change(index: ix.Index, place: int) -> None:
            sound = index.build()
            start = index.offsets[place]
            size = len(index.blocks[place].contents)
            telling = ix.handle(*chance.choice(((one, size), (start, two), (start + small, size))))
            if kind in (0, 1):
                index.handles = {place: telling}
            elif kind == 2:
                near = (index.index_offset, len(index.index_block.contents) + small)
                index.index_handle = ix.handle(*chance.choice((near, (one, two), (start, size))))
            elif kind == 3:
                index.metaindex_handle = telling
            elif kind == 4:
                keys = list(index.last_keys)
                keys[place] = chance.choice(
                    (keys[place][:-1], keys[place] + b"\0", b"", b"\xff", keys[0])
                )
                index.separators = keys
            elif kind == 5:
                index.kinds = {place: chance.choice((1, 2, 255))}
            elif kind == 6:
                index.gap_before = bytes(chance.randint(1, 9))
            elif kind == 7:
                index.footer_padding = 1
            elif kind == 8:
                at = chance.randrange(8)
                index.magic = ix.MAGIC[:at] + bytes([ix.MAGIC[at] ^ 1 << chance.randrange(8)])
                index.magic += ix.MAGIC[at + 1 :]
            else:
                index.handle_tail = sound[:small] if small > 0 else b"\0"

        self.of_index.append(change)

    def change_index_bytes(self) -> None:
        """Cuts, lengthens or overwrites the file as it is."""
        chance = self.chance
        kind, more = chance.randrange(4), chance.randbytes(chance.randint(1, 8))

        def change(content: bytearray) -> bytearray:
            at = chance.randint(0, len(content))
            if kind == 0:
                return content[:at]
            if kind == 1:
                return content + more
            if kind == 2:
                return content[:at] + more + content[at + len(more) :]
            return content[:at] + content[at + len(more) :]

        self.of_file.append(change)

    def change_data_bytes(self) -> None:
        """Bits of a value, its checksums repaired or not."""
        chance = self.chance
        row = self.row(lambda one: one.place[2] > 0)
        if row is None:
            return
        shard, offset, size = row.place
        data = self.data.get(shard, bytearray())
        for _ in range(chance.randint(1, 3)):
            at = offset + chance.randrange(min(size, 1 << 20))
            if chance.random() < 0.5:
                at = offset + min(chance.randrange(24), size - 1)  # frames and sizes begin there
            if 0 <= at < len(data):
                data[at] = chance.choice((data[at] ^ 1 << chance.randrange(8), 0, 255, 1))
        if chance.random() < 0.8:
            self.repair(row)

    def change_data_files(self) -> None:
        chance = self.chance
        if not self.data:
            self.data[0] = bytearray(b"more")
            return
        number = chance.choice(list(self.data))
        data, kind = self.data[number], chance.randrange(6)
        if kind == 0:
            del data[chance.randint(0, len(data)) :]
        elif kind == 1:
            data += chance.randbytes(chance.randint(1, 9))
        elif kind == 2:
            del self.data[number]
        elif kind == 3:
            self.data[number + 1] = self.data.pop(number)
        elif kind == 4:
            other = chance.choice(list(self.data))
            self.data[number], self.data[other] = self.data[other], data
        else:
            self.num_shards = max(self.num_shards + chance.choice((-1, 1)), 1)

    def change_strings(self) -> None:
        """Elements of a string tensor, or the sizes that it claims for them."""
        chance = self.chance
        row = self.row(lambda one: number_of(one.fields, 1) == STRING and not self._compressed(one))
        if row is None:
            return
        content, sizes, pos = self.stored(row), [], 0
        with contextlib.suppress(IndexError):
            for _ in range(min(max(product(row.dims), 0), 1000)):
                size, pos = ix.read_varint(content, pos)
                sizes.append(size)
        pos += 4
        elements = []
        for size in sizes:
            elements.append(content[pos : pos + min(size, 1 << 20)])
            pos += size
        if not elements:
            elements = [b"more"]
        at, kind = chance.randrange(len(elements)), chance.randrange(4)
        claimed = {}
        if kind == 0:
            elements[at] = chance.randbytes(chance.choice((0, 1, 127, 128, 300)))
        elif kind == 1:
            elements.append(b"one more")
        elif kind == 2:
            del elements[at]
        else:
            claimed[at] = self.number(len(elements[at])) & (1 << 64) - 1
        self.store(row, *string_value(elements, claimed))

    @staticmethod
    def _compressed(row: Row) -> bool:
        return any(x.tag == 100 and type(x.value) is list for x in row.fields)

    def _text_row(self, key: bytes) -> Row:
        """The row of a scalar string, which is made if it is missing."""
        row = self.row(lambda one: one.key == key)
        if row is None:
            row = Row(key, fields_of(ix.entry(STRING, []), ENTRY))
            self.rows.append(row)
        return row

    def change_metadata(self) -> None:
        text = self.chance.choice(METADATA)
        if self.chance.random() < 0.3:
            text = json.dumps({"n": self.number(), "s": "\ud800", "f": 1e300 * 1e300}).encode()
        self.store(self._text_row(METADATA_KEY), *string_value([text]))

    def change_graph(self) -> None:
        """The object graph: any of its fields, cycles, depth and counts."""
        chance = self.chance
        row = self._text_row(GRAPH_KEY)
        content = self.stored(row)
        size = content[0] if content else 0
        pos = 5
        if size > 127:
            with contextlib.suppress(IndexError):
                size, pos = ix.read_varint(content, 0)
                pos += 4
        graph = fields_of(content[pos : pos + size], GRAPH)
        if not graph:
            graph = fields_of(chain(chance.randint(1, 5)), GRAPH)
        kind = chance.randrange(8)
        if kind in (0, 1):
            self._change_number(graph)
        elif kind == 2:
            self._change_fields(graph)
        elif kind == 3:
            self._change_bytes(graph)
        elif kind == 4:
            children = [
                x
                for node in graph
                if isinstance(node.value, list)
                for x in node.value
                if x.tag == 1 and isinstance(x.value, list)
            ]
            for child in children:
                set_number(child.value, 1, chance.randrange(len(graph)))
        elif kind == 5:
            depth = 3000 if chance.randrange(20) == 0 else chance.randint(2, 40)
            graph = fields_of(chain(depth), GRAPH)
        elif kind == 6:
            loop = chain(chance.randint(1, 9), back=chance.randrange(3))
            graph = fields_of(loop, GRAPH)
        else:
            graph = graph * chance.randint(2, 30)
        self.store(row, *string_value([encoded(graph)]))

    # ---- putting it together

    def index_bytes(self) -> bytes:
        rows = [(one.key, encoded(one.fields)) for one in self.rows]
        if self.sorted:
            rows.sort(key=lambda one: one[0])
        cut = self.chance.randrange(len(rows)) if self.chance.randrange(6) == 0 and rows else 0
        groups = [one for one in (rows[:cut], rows[cut:]) if one]
        options: dict[str, Any] = {}
        for change in self.of_block:
            change(options)
        hurt = self.chance.randrange(len(groups))
        blocks = [
            ix.block(group, **(options if place == hurt else {}))
            for place, group in enumerate(groups)
        ]
        index = ix.Index(blocks, last_keys=[group[-1][0] for group in groups])
        for apply in self.of_index:
            apply(index, hurt)
        content = bytearray(index.build())
        for cut_up in self.of_file:
            content = cut_up(content)
        return bytes(content)

    def write(self, directory: Path, name: str) -> None:
        files = {f"{name}.index": self.index_bytes()}
        for number, data in self.data.items():
            files[f"{name}.data-{number:05d}-of-{self.num_shards:05d}"] = data
        for path, content in files.items():
            with open(directory / path, "wb", 0) as stream:
                stream.write(content)


CHANGES: list[tuple[Callable[[Mutant], None], int]] = [
    (Mutant.change_number, 12),
    (Mutant.change_fields, 6),
    (Mutant.change_bytes_field, 4),
    (Mutant.change_dims, 2),
    (Mutant.change_slices, 5),
    (Mutant.change_key, 3),
    (Mutant.change_rows, 2),
    (Mutant.change_block, 4),
    (Mutant.change_index, 4),
    (Mutant.change_index_bytes, 1),
    (Mutant.change_data_bytes, 6),
    (Mutant.change_data_files, 2),
    (Mutant.change_strings, 5),
    (Mutant.change_metadata, 2),
    (Mutant.change_graph, 4),
]


def mutant(sample: Sample, chance: Random) -> Mutant:
    """A sample with one to three changes."""
    made = Mutant(sample, chance)
    changes, weights = zip(*CHANGES, strict=True)
    for change in chance.choices(changes, weights, k=chance.choice((1, 1, 1, 2, 3))):
        change(made)
        made.done.append(change.__name__)
    return made


def signed(number: int) -> int:
    """The number as 64 bits hold it."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def product(numbers: list[int]) -> int:
    out = 1
    for one in numbers:
        out *= one
    return out


def string_value(elements: list[bytes], claimed: dict[int, int] | None = None) -> tuple[bytes, int]:
    """The bytes of a string value and its masked checksum; `claimed` sizes by element."""
    sizes = [len(one) for one in elements]
    for at, size in (claimed or {}).items():
        sizes[at] = size
    raw = b"".join(one.to_bytes(4 if one < 1 << 32 else 8, "little") for one in sizes)
    crc = ix.crc32c(raw)
    stored, body = ix.u32(ix.mask(crc)), b"".join(elements)
    masked = ix.mask(ix.crc32c(body, ix.crc32c(stored, crc)))
    return b"".join(map(ix.varint, sizes)) + stored + body, masked


def chain(depth: int, back: int | None = None) -> bytes:
    """A graph whose nodes are each the child of the one before; `back` is a child of the last."""
    nodes = []
    for number in range(depth):
        last = number + 1 == depth
        child = back if last else number + 1
        nodes.append(
            b""
            if child is None
            else ix.nested(1, ix.number(1, min(child, depth - 1)) + ix.nested(2, b"c"))
        )
    return b"".join(ix.nested(1, one) for one in nodes)
