# SPDX-License-Identifier: Apache-2.0
"""Entries and headers that are sound but spelled as no writer spells them.

Each field of a message is a list of occurrences that keep their order; the lists are shuffled into
one another. Every number, tag and size may take more bytes than it needs.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

from support import index as ix

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
NUMBERS = (8, 15, 16, 99, 101, 2047, 2048, 2**29 - 1)
INT32 = (0, 1, 127, 128, 2**31 - 1, -1, -(2**31))
INT64 = (*INT32, 2**32, 2**62, 2**63 - 1, -(2**63))

# The wire types with which a field is known, by its number.
ENTRY = {1: {VARINT}, 2: {BYTES}, 3: {VARINT}, 4: {VARINT}, 5: {VARINT}, 6: {FIXED32}, 7: {BYTES}}
ENTRY |= {100: {BYTES}}  # the extension, which is read though it is kept as an unknown field
SHAPE = {2: {BYTES}, 3: {VARINT}}
DIM = {1: {VARINT}, 2: {BYTES}}
SLICE = {1: {BYTES}}
EXTENT = {1: {VARINT}, 2: {VARINT}}
HEADER = {1: {VARINT}, 2: {VARINT}, 3: {BYTES}}
VERSION = {1: {VARINT}, 2: {VARINT}, 3: {VARINT, BYTES}}

Schema = dict[int, set[int]]
Occurrences = list[bytes]


class Speller:
    """Spells messages; `oddness` is how much of it is odd, `features` counts what was."""

    def __init__(self, rng: random.Random, oddness: float, features: Counter[str]) -> None:
        self.rng = rng
        self.oddness = oddness
        self.features = features

    def odd(self, feature: str) -> bool:
        """Whether to be odd here, counted under that name."""
        chosen = self.rng.random() < self.oddness
        self.features[feature] += chosen
        return chosen

    def varint(self, value: int, size_max: int) -> bytes:
        shortest = len(ix.varint(value))
        if shortest < size_max and self.odd("overlong varint"):
            return ix.varint(value, self.rng.randint(shortest + 1, size_max))
        return ix.varint(value)

    def tag(self, number: int, wire: int) -> bytes:
        return self.varint(number << 3 | wire, 5)

    def number(self, number: int, value: int) -> bytes:
        return self.tag(number, VARINT) + self.varint(value, 10)

    def fixed32(self, number: int, value: int) -> bytes:
        return self.tag(number, FIXED32) + ix.u32(value)

    def nested(self, number: int, content: bytes) -> bytes:
        return self.tag(number, BYTES) + self.varint(len(content), 5) + content

    def shuffled(self, *fields: Occurrences) -> bytes:
        """The fields in their order, or shuffled into one another."""
        if not self.odd("shuffled fields"):
            return b"".join(b"".join(field) for field in fields)
        queues = [list(field) for field in fields if field]
        out = b""
        while queues:
            queue = self.rng.choice(queues)
            out += queue.pop(0)
            queues = [left for left in queues if left]
        return out

    def scalar(self, number: int, value: int, others: Sequence[int] = INT32) -> Occurrences:
        """Perhaps other values before, and perhaps 0 where a writer writes nothing."""
        values = []
        if self.odd("repeated scalar"):
            values = self.rng.choices(others, k=self.rng.randint(1, 2))
        if value or values or self.odd("written default"):
            values.append(value)
        self.features["negative number"] += value < 0
        return [self.number(number, one) for one in values]

    def text(self, number: int, value: bytes) -> Occurrences:
        values = [b"other"] if self.odd("repeated text") else []
        if value or values or self.odd("written default"):
            values.append(value)
        return [self.nested(number, one) for one in values]

    def unknown_field(self, known: Schema, depth: int = 0) -> bytes:
        wrong_wire = depth == 0 and self.rng.random() < 0.3
        number = self.rng.choice(sorted(known) if wrong_wire else NUMBERS)
        wires = {VARINT, FIXED64, BYTES, FIXED32} | ({GROUP} if depth < 4 else set())
        wire = self.rng.choice(sorted(wires - known.get(number, set()) if depth == 0 else wires))
        self.features["known number, other wire type" if wrong_wire else "unknown number"] += 1
        self.features[f"unknown field of wire type {wire}"] += 1
        tag = self.tag(number, wire)
        if wire == VARINT:
            return tag + self.varint(self.rng.choice(INT64), 10)
        if wire == GROUP:
            inner = [self.unknown_field({}, depth + 1) for _ in range(self.rng.randint(0, 3))]
            return tag + b"".join(inner) + self.tag(number, GROUP_END)
        if wire == BYTES:
            content = self.rng.randbytes(self.rng.choice((0, 1, 3, 200)))
            return tag + self.varint(len(content), 5) + content
        return tag + self.rng.randbytes(8 if wire == FIXED64 else 4)

    def unknown(self, known: Schema, where: str) -> Occurrences:
        if not self.odd(f"unknown fields in {where}"):
            return []
        return [self.unknown_field(known) for _ in range(self.rng.randint(1, 3))]

    def parted(self, number: int, parts: Sequence[bytes], where: str) -> Occurrences:
        self.features[f"{where} given twice"] += len(parts) > 1
        return [self.nested(number, part) for part in parts]

    # ---- entries

    def dim(self, size: int) -> bytes:
        name = b""
        if self.odd("dimension name"):
            name = self.rng.choice((b"x", b"batch", "größe".encode(), b"n" * 200))
        return self.shuffled(
            self.scalar(1, size, INT64), self.text(2, name), self.unknown(DIM, "dim")
        )

    def shape_part(self, dims: Sequence[int]) -> bytes:
        rank = []
        if self.odd("unknown_rank"):
            rank = [self.number(3, self.rng.choice((0, 1, 2, -1))) for _ in range(2)]
        return self.shuffled(
            [self.nested(2, self.dim(size)) for size in dims], rank, self.unknown(SHAPE, "shape")
        )

    def shape(self, dims: Sequence[int]) -> Occurrences:
        if not dims and self.odd("no shape"):
            return []
        cuts = [0, len(dims)]
        if self.odd("cut shape"):
            cuts += [self.rng.randint(0, len(dims)) for _ in range(self.rng.randint(1, 2))]
        cuts.sort()
        parts = [self.shape_part(dims[start:end]) for start, end in itertools.pairwise(cuts)]
        return self.parted(2, parts, "shape")

    def extent(self, start: int, length: int) -> bytes:
        if length == -1:
            return self.shuffled(self.scalar(1, 0, INT64), self.unknown(EXTENT, "extent"))
        lengths = [self.number(2, length)]
        if self.odd("repeated length"):
            lengths.insert(0, self.number(2, self.rng.choice(INT64)))
        return self.shuffled(self.scalar(1, start, INT64), lengths, self.unknown(EXTENT, "extent"))

    def slice(self, extents: Sequence[ix.Extent]) -> bytes:
        return self.shuffled(
            [self.nested(1, self.extent(*extent)) for extent in extents],
            self.unknown(SLICE, "slice"),
        )

    def extension(self) -> Occurrences:
        if not self.odd("extension"):
            return []
        extra = [self.unknown_field({1: {VARINT}, 2: {VARINT}, 3: {BYTES}})]
        crcs = [self.nested(3, self.rng.randbytes(8))]
        return [self.nested(100, self.shuffled([self.number(2, 8)], crcs, extra))]

    def entry(
        self,
        dtype: int,
        dims: Sequence[int],
        *,
        offset: int = 0,
        size: int = 0,
        masked_crc: int = 0,
        slices: Sequence[Sequence[ix.Extent]] = (),
    ) -> bytes:
        crcs = [masked_crc] if masked_crc or self.odd("written default") else []
        if crcs and self.odd("repeated scalar"):
            crcs.insert(0, self.rng.getrandbits(32))
        self.features["slices"] += bool(slices)
        return self.shuffled(
            self.scalar(1, dtype),
            self.shape(dims),
            self.scalar(3, 0),
            self.scalar(4, offset, INT64),
            self.scalar(5, size, INT64),
            [self.fixed32(6, crc) for crc in crcs],
            [self.nested(7, self.slice(extents)) for extents in slices],
            self.unknown(ENTRY, "entry"),
            self.extension(),
        )

    # ---- headers

    def bad_consumers(self, values: Sequence[int]) -> Occurrences:
        out = []
        left = list(values)
        while left:
            count = self.rng.randint(1, len(left))
            if count == 1 and self.odd("bad consumer, not packed"):
                out.append(self.number(3, left[0]))
            else:
                packed = b"".join(self.varint(value, 10) for value in left[:count])
                out.append(self.nested(3, packed))
            left = left[count:]
        if self.odd("empty packed field"):
            out.append(self.nested(3, b""))
        return out

    def version(self, producer: int, bad: Sequence[int], unknown: Occurrences) -> Occurrences:
        """The version message in one or more parts; none if it is empty."""
        producers = self.scalar(1, producer, (0, 1, 2, 2**31 - 1))
        minimum = self.scalar(2, 0, (0, 1))
        consumers = self.bad_consumers(bad)
        fields = [field for field in (producers, minimum, consumers, unknown) if field]
        if not fields and self.rng.random() < 0.5:
            self.features["no version"] += 1
            return []
        if len(fields) > 1 and self.odd("cut version"):
            at = self.rng.randint(1, len(fields) - 1)
            parts = [self.shuffled(*fields[:at]), self.shuffled(*fields[at:])]
            return self.parted(3, parts, "version")
        return [self.nested(3, self.shuffled(*fields))]

    def header(self, producer: int, bad: Sequence[int], unknown: Occurrences) -> bytes:
        return self.shuffled(
            self.scalar(1, 1),
            self.scalar(2, 0, (0, 1)),
            self.version(producer, bad, unknown),
            self.unknown(HEADER, "header"),
        )
