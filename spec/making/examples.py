# SPDX-License-Identifier: Apache-2.0
"""Vectors that hold the hex examples of spec/format.md."""

from __future__ import annotations

import struct

from making import parts
from making.chunks import ONES, compressed
from making.joined import Merges
from making.parts import COMPRESSED_HEADER, Row, Table, header, literal, slice_, slice_key
from making.vectors import (
    FLOAT,
    FLOATS,
    VARIANT,
    Value,
    Vectors,
    boxes,
    files_of,
    store,
    strings,
    u8,
)

ROWS: list[tuple[int, int]] = [(0, 2), (0, -1)]
MORE_ROWS: list[tuple[int, int]] = [(2, 2), (0, -1)]


def floats(*numbers: float, dims: list[int]) -> Value:
    return Value(FLOAT, tuple(dims), struct.pack(f"<{len(numbers)}f", *numbers))


def entries(out: Vectors) -> None:
    tensors = {
        b"empty": Value(FLOAT, (0, 3)),
        b"int4": Value(29, (3,), b"\x0f\x08\x07"),
        b"int64": Value(9, (3,), struct.pack("<3q", 1, 2, 3)),
        b"none": strings(dims=[0]),
        b"one": floats(1, dims=[]),
    }
    offsets = {b"empty": 0, b"int4": 30, b"int64": 0, b"none": 24, b"one": 48}
    data = bytearray(52)
    for name, value in tensors.items():
        stored = value.stored()[0]
        data[offsets[name] : offsets[name] + len(stored)] = stored
    rows = [(name, value.entry(offsets[name])) for name, value in tensors.items()]
    rules = "ENT-1 ENT-4 ENT-5 ENT-8 DTY-3 STR-8 DAT-3"
    out.sound("example-entries", rules, files_of(parts.table(*rows), bytes(data)), tensors)
    three = {b"a": u8(1), b"b": u8(2), b"c": u8(3)}
    rows = [(name, value.entry(shard=n)) for n, (name, value) in enumerate(three.items())]
    shards = {n: value.raw for n, value in enumerate(three.values())}
    files = files_of(parts.table(*rows, head=header(3)), shards, 3)
    out.sound("example-three-shards", "HDR-3 NAM-3", files, three, head={"num_shards": 3})
    out.plain("example-string", "STR-1", {b"x": strings(b"hello", b"", b"wor\0ld")})
    payload = bytes.fromhex("0a16") + b"tensorflow::TensorList"
    payload += bytes.fromhex("120e0001ffffffffffffffffff011801")
    value = Value(VARIANT, (2,), elements=(payload, payload))
    out.plain("example-variant", "VAR-1 VAR-5", {b"x": value})
    chunk = b"\3\x15\x15" + parts.run_frame(0, 16) + parts.run_frame(0x7F, 16)
    message, data_of = compressed(ONES, [chunk], chunk_size=262144, offset=0)
    index = parts.table((b"x", message), head=COMPRESSED_HEADER)
    part = boxes(b"x", [(15, 1)], Value(ONES.code, (1,), b"\x80\x3f"))
    files = files_of(index, data_of)
    out.sound("example-compressed", "CMP-17", files, {b"x": ONES}, part, level="ckptfmt")


def blocks(out: Vectors) -> None:
    contents = parts.block([(b"", header()), (b"x", FLOATS.entry())])
    # A literal, three bytes from one back, a literal, one from one back, two from two back.
    stream = parts.varint(36) + literal(contents[:29]) + bytes.fromhex("0a0100")
    stream += literal(b"\1") + bytes.fromhex("020200") + bytes.fromhex("0701000000")
    index = Table([stream], keys=[b"y"], kinds={0: 1}).build()
    files = files_of(index, FLOATS.raw)
    out.sound("example-snappy", "SNP-4 SNP-5 SNP-7", files, {b"x": FLOATS}, deviations="SNAPPY")
    shared: list[Row] = [(b"a", b"1"), (b"abc", b"2"), (b"abd", b"3")]
    rows, data = store({b"x": FLOATS})
    index = parts.table(*rows, metaindex=parts.block(shared))
    files = files_of(index, data)
    out.sound("example-shared-keys", "TAB-10", files, {b"x": FLOATS}, deviations="METAINDEX")


def merge(out: Vectors) -> None:
    made = Merges(out)
    low, high = (floats(*range(n, n + 12), dims=[2, 6]) for n in (0, 12))
    a, b, c = (floats(number, dims=[]) for number in (3, 1, 2))
    dims = [4, 6]
    rows: list[Row] = [
        (slice_key(b"v", *ROWS), low.entry()),
        (b"b", b.entry(48)),
        (b"v", parts.partitioned(FLOAT, dims, slice_(*ROWS))),
    ]
    first = made.bundle("example-0", rows, low.raw + b.raw)
    rows = [
        (slice_key(b"v", *MORE_ROWS), high.entry(4)),
        (b"a", a.entry()),
        (b"c", c.entry(52)),
        (b"v", parts.partitioned(FLOAT, dims, slice_(*MORE_ROWS))),
    ]
    second = made.bundle("example-1", rows, a.raw + high.raw + c.raw)
    rows = [
        (slice_key(b"v", *ROWS), low.entry()),
        (slice_key(b"v", *MORE_ROWS), high.entry(4, shard=1)),
        (b"a", a.entry(shard=1)),
        (b"b", b.entry(48)),
        (b"c", c.entry(52, shard=1)),
        (b"v", parts.partitioned(FLOAT, dims, slice_(*ROWS), slice_(*MORE_ROWS))),
    ]
    result = made.index("example", rows, header(2))
    made.add("example", "MRG-4 MRG-6 MRG-8 MRG-13", [first, second], gives=result)
    out.merge_files |= made.files


def add(out: Vectors) -> None:
    entries(out)
    blocks(out)
    merge(out)
