# SPDX-License-Identifier: Apache-2.0
"""Vectors of messages: MSG, HDR, ENT, SHP and the codes of DTY."""

from __future__ import annotations

from typing import Any

from making import parts
from making.parts import Table, entry, fixed, header, msg, num, shape, varint
from making.vectors import (
    FLOAT,
    FLOATS,
    GOOD,
    STRING,
    Value,
    Vectors,
    boxes,
    files_of,
    lists,
    opens,
    reads,
    store,
    u8,
    verifies,
)

X = u8(5, 6, 7)
MESSAGE = X.entry(2)
DATA = b"\5\6\7"
CRC = parts.crc32c(DATA)


def with_dims(content: bytes) -> bytes:
    """X's entry with this content of its shape."""
    return entry(4, content, 3, CRC, offset=2)


def wire(out: Vectors) -> None:
    for name, tail, rule in (
        ("2-field-0", b"\0\1", "MSG-2"),
        ("2-cut", b"\x80", "MSG-2"),
        ("2-six-bytes", b"\x88\x80\x80\x80\x80\0\0", "MSG-2"),
        ("2-33-bits", b"\xf8\xff\xff\xff\x1f\0", "MSG-2"),
        ("3-cut", b"\x78\x80", "MSG-3"),
        ("3-eleven-bytes", b"\x78" + b"\xff" * 10 + b"\1", "MSG-3"),
        ("3-65-bits", b"\x78" + b"\xff" * 9 + b"\2", "MSG-3"),
        ("3-missing", b"\x78", "MSG-3"),
        ("4-four", b"\x7d\0\0\0", "MSG-4"),
        ("4-eight", b"\x79" + bytes(7), "MSG-4"),
        ("5-missing", b"\x7a", "MSG-5"),
        ("5-beyond", b"\x7a\5\0", "MSG-5"),
        ("5-largest", b"\x7a\xff\xff\xff\xff\x0f", "MSG-5"),
        ("5-33-bits", b"\x7a\xff\xff\xff\xff\x1f\0", "MSG-5"),
        ("6-six", b"\x7e", "MSG-6"),
        ("6-seven", b"\x7f\0", "MSG-6"),
        ("7-no-end", b"\x7b\x08\1", "MSG-7"),
        ("7-other-end", b"\x7b\x84\1", "MSG-7"),
        ("6-end-alone", b"\x7c", "MSG-6"),
        ("7-deep", b"\x7b" * 101 + b"\x7c" * 101, "MSG-7"),
        ("7-inside-3", b"\x7b\x78\x80", "MSG-7"),
        ("7-inside-5", b"\x7b\x7a\5\x7c", "MSG-7"),
    ):
        given = f"{rule} MSG-1"
        out.at_entry(f"msg-{name}", MESSAGE + tail, "BAD_PROTO", rule, data=DATA, rules=given)
    bad = parts.table(head=header() + b"\x7e")
    out.at_open("msg-6-header", bad, "BAD_PROTO", "MSG-6")
    bad = parts.table(head=header(version=b"\x08"))
    out.at_open("msg-3-version", bad, "BAD_PROTO", "MSG-3")
    out.at_entry("msg-5-shape", with_dims(b"\x12\5"), "BAD_PROTO", "MSG-5", data=DATA)
    out.at_entry("msg-3-dim", with_dims(b"\x12\1\x08"), "BAD_PROTO", "MSG-3", data=DATA)
    out.at_entry("msg-2-dim", with_dims(b"\x12\1\6"), "BAD_PROTO", "MSG-2", data=DATA)
    for name, number, value in (
        ("dtype", 1, 2**31),
        ("dtype-low", 1, -(2**31) - 1),
        ("shard", 3, 2**32),
        ("shard-low", 3, -(2**63)),
    ):
        message = MESSAGE + num(number, value)
        out.at_entry(f"msg-11-{name}", message, "BAD_PROTO", "MSG-11", data=DATA)
    bad = parts.table(head=num(1, 2**31) + msg(3, num(1, 1)))
    out.at_open("msg-11-num-shards", bad, "BAD_PROTO", "MSG-11")
    bad = parts.table(head=header(version=num(1, 2**31)))
    out.at_open("msg-11-producer", bad, "BAD_PROTO", "MSG-11")
    bad = parts.table(head=header(version=num(1, 1) + msg(3, varint(2**31))))
    out.at_open("msg-11-bad-consumers", bad, "BAD_PROTO", "MSG-11")
    bad = parts.table(head=header(version=num(1, 1) + msg(3, b"\7\x80")))
    out.at_open("msg-14-cut", bad, "BAD_PROTO", "MSG-14")
    for name, raw in (
        ("alone", b"\x80"),
        ("cut", b"\xe2\x82"),
        ("overlong", b"\xc0\xaf"),
        ("surrogate", b"\xed\xa0\x80"),
        ("beyond", b"\xf4\x90\x80\x80"),
    ):
        message = with_dims(msg(2, num(1, 3) + msg(2, raw)))
        out.at_entry(f"msg-16-{name}", message, "BAD_PROTO", "MSG-16", data=DATA)


def deviating_messages(out: Vectors) -> None:
    nested = b"\x7b" * 100 + b"\x7c" * 100
    group = b"\x7b\x08\1\x7a\2\xff\xff\x7d\0\0\0\0\x79" + bytes(8) + b"\x7c"
    unknown = [num(15, 1), msg(15, b"\xff"), fixed(15, 1), b"\x79" + bytes(8), group, nested]
    for number, tail in enumerate(unknown):
        out.beside(
            f"msg-8-{number}", "MSG-8 MSG-7", MESSAGE + tail, DATA, X, deviations="UNKNOWN_FIELD"
        )
    # A known number with another wire type than its own.
    tail = fixed(1, 9) + num(6, 9) + msg(5, b"\xff") + num(2, 1)
    deviations = "UNKNOWN_FIELD FIELD_ORDER"
    out.beside("msg-8-wire", "MSG-8", MESSAGE + tail, DATA, X, deviations=deviations)
    largest = varint((2**29 - 1) << 3) + b"\0"
    out.beside(
        "msg-2-largest", "MSG-2 MSG-8", MESSAGE + largest, DATA, X, deviations="UNKNOWN_FIELD"
    )
    twice = num(1, 1) + num(5, 99) + MESSAGE
    out.beside("msg-9", "MSG-9", twice, DATA, X, deviations="FIELD_ORDER")
    # Two shapes: dimensions [3] and then [1], together [3, 1].
    joined = num(1, 4) + msg(2, shape([3])) + msg(2, shape([1])) + MESSAGE[MESSAGE.index(b"\x20") :]
    out.beside("msg-10", "MSG-10", joined, DATA, u8(5, 6, 7, dims=[3, 1]), deviations="FIELD_ORDER")
    backwards = fixed(6, parts.mask(CRC)) + num(5, 3) + num(4, 2) + msg(2, shape([3])) + num(1, 4)
    out.beside("msg-15-order", "MSG-15", backwards, DATA, X, deviations="FIELD_ORDER")
    zero = num(1, 4) + msg(2, shape([3])) + num(3, 0) + MESSAGE[MESSAGE.index(b"\x20") :]
    out.beside("msg-15-zero", "MSG-15", zero, DATA, X, deviations="FIELD_ORDER")
    long = num(1, 4, 3) + MESSAGE[2:]
    out.beside("overlong-value", "MSG-3", long, DATA, X, deviations="OVERLONG_VARINT")
    long = varint(1 << 3, 2) + MESSAGE[1:]
    out.beside("overlong-tag", "MSG-2", long, DATA, X, deviations="OVERLONG_VARINT")
    long = num(1, 4, 10) + MESSAGE[2:]
    out.beside("overlong-ten-bytes", "MSG-3", long, DATA, X, deviations="OVERLONG_VARINT")
    rows = parts.one_entry(0, b"", header())
    rows += b"\x80\0\1" + varint(len(FLOATS.entry())) + b"x" + FLOATS.entry()
    contents = rows + parts.u32(0) + parts.u32(1)
    files = files_of(Table([contents], keys=[b"y"]).build(), FLOATS.raw)
    out.sound("overlong-block", "BLK-6", files, {b"x": FLOATS}, deviations="OVERLONG_VARINT")
    place = varint(0, 3) + varint(len(parts.block([(b"", header()), (b"a", GOOD.entry())])))
    files = files_of(parts.table((b"a", GOOD.entry()), handles={0: place}), b"\1\2")
    out.sound("overlong-handle", "TAB-2", files, {b"a": GOOD}, deviations="OVERLONG_VARINT")


def headers(out: Vectors) -> None:
    a = (b"a", GOOD.entry())

    def good(name: str, rules: str, head: bytes, given: dict[str, int], **more: Any) -> None:
        files = files_of(parts.table(a, head=head), b"\1\2", max(1, given.get("num_shards", 1)))
        out.sound(name, rules, files, {b"a": GOOD}, head=given, **more)

    def bad(name: str, head: bytes, failure: str, rule: str, **more: Any) -> None:
        out.at_open(name, parts.table(a, head=head), failure, rule, **more)

    none = Table([[a]]).build()
    out.at_open("hdr-1", none, "BAD_HEADER", "HDR-1")
    out.at_open("hdr-1-no-blocks", Table([]).build(), "BAD_HEADER", "HDR-1")
    empty = Table([parts.EMPTY_BLOCK], keys=[b""]).build()
    out.at_open("hdr-1-empty", empty, "BAD_HEADER", "HDR-1")
    bad("hdr-3", header(0), "BAD_HEADER", "HDR-3")
    bad("hdr-3-negative", header(-1), "BAD_HEADER", "HDR-3")
    bad("hdr-3-no-fields", b"", "BAD_HEADER", "HDR-3")
    bad("hdr-4", header(endianness=2), "BAD_HEADER", "HDR-4")
    bad("hdr-4-negative", header(endianness=-1), "BAD_HEADER", "HDR-4")
    bad("hdr-7", header(producer=-1), "UNSUPPORTED", "HDR-7")
    bad("hdr-8", header(min_consumer=3), "UNSUPPORTED", "HDR-8")
    bad("hdr-8-largest", header(min_consumer=2**31 - 1), "UNSUPPORTED", "HDR-8")
    bad("hdr-2-order", header(0, 7, min_consumer=3), "UNSUPPORTED", "HDR-8", level="ckptfmt")
    banned = header(version=num(1, 1) + msg(3, parts.packed([1, 2])))
    bad("hdr-9", banned, "UNSUPPORTED", "HDR-9", level="ckptfmt")
    banned = header(version=num(1, 1) + num(3, 7) + num(3, 2))
    bad("hdr-9-unpacked", banned, "UNSUPPORTED", "HDR-9", level="ckptfmt")
    bad("hdr-8-consumer-1", parts.COMPRESSED_HEADER, "UNSUPPORTED", "HDR-8", consumer=1)
    banned = header(version=num(1, 1) + msg(3, parts.packed([1])))
    bad("hdr-9-consumer-1", banned, "UNSUPPORTED", "HDR-9", consumer=1)
    good("hdr-6", "HDR-6", num(1, 1), {"producer": 0, "min_consumer": 0})
    good("hdr-6-empty", "HDR-6", header(version=b""), {"producer": 0, "min_consumer": 0})
    later = header(producer=2**31 - 1)
    good("hdr-7-later", "HDR-7", later, {"producer": 2**31 - 1})
    good("hdr-8-negative", "HDR-8 MSG-11", header(min_consumer=-5), {"min_consumer": -5})
    given = {"producer": 2, "min_consumer": 2}
    good("hdr-8-two", "HDR-8 HDR-11", parts.COMPRESSED_HEADER, given, level="ckptfmt")
    good("hdr-9-one", "HDR-9", banned, {"producer": 1}, level="ckptfmt")
    good("hdr-9-others", "HDR-9 MSG-14", banned.replace(b"\1\1", b"\1\x03"), {}, level="v2")
    unknown = header(tail=num(9, 1))
    good("hdr-2-unknown", "HDR-2 MSG-8", unknown, {"num_shards": 1}, deviations="UNKNOWN_FIELD")
    twice = num(1, 5) + header()
    good("hdr-2-twice", "HDR-2 MSG-9", twice, {"num_shards": 1}, deviations="FIELD_ORDER")
    unpacked = header(version=num(1, 1) + num(3, 7) + num(3, 8))
    good("msg-14-unpacked", "MSG-14", unpacked, {"producer": 1})
    merged = num(1, 1) + msg(3, num(1, 7)) + msg(3, num(2, 1))
    given = {"producer": 7, "min_consumer": 1}
    good("hdr-2-version-twice", "MSG-10", merged, given, deviations="FIELD_ORDER")


def entries(out: Vectors) -> None:
    listed = (4, [3])
    bad = entry(4, [3], 3, CRC, offset=2, shard=1)
    out.at_read("ent-3", bad, DATA, listed, "BAD_ENTRY", "ENT-3")
    bad = entry(4, [3], 3, CRC, offset=2, shard=-1)
    out.at_read("ent-3-negative", bad, DATA, listed, "BAD_ENTRY", "ENT-3")
    for name, offset, size in (
        ("offset", -1, 3),
        ("size", 2, -1),
        ("sum", 2**63 - 3, 3),
    ):
        bad = entry(4, [3], size, CRC, offset=offset)
        out.at_read(f"ent-4-{name}", bad, DATA, listed, "BAD_ENTRY", "ENT-4", rules="ENT-4 MSG-12")
    for name, dims, size in (
        ("short", [3], 2),
        ("long", [3], 4),
        ("zero", [3], 0),
        ("no-elements", [0, 3], 3),
        ("wraps", [2**62, 1], 0),
    ):
        code = FLOAT if name == "wraps" else 4
        piece = (DATA + b"\0")[:size]
        bad = entry(code, dims, size, parts.crc32c(piece), offset=2)
        out.at_read(f"ent-5-{name}", bad, piece, (code, dims), "BAD_ENTRY", "ENT-5")
    bad = entry(4, [3], 3, CRC ^ 1, offset=2)
    found = "DAT-6"
    out.at_read("dat-6", bad, DATA, listed, "CHECKSUM", found, rules="ENT-6 DAT-6")
    bad = MESSAGE.replace(fixed(6, parts.mask(CRC)), b"")
    out.at_read("ent-6-absent", bad, DATA, listed, "CHECKSUM", found, rules="ENT-6 DAT-6")
    bad = entry(4, [0], 0, 1, offset=2)
    out.at_read("ent-8", bad, b"", (4, [0]), "CHECKSUM", "ENT-8")
    bad = entry(21, [0], 0, 1, offset=2)
    out.at_read("ent-8-variant", bad, b"", (21, [0]), "CHECKSUM", "ENT-8")
    no_shape = entry(4, None, 1, parts.crc32c(b"\5"), offset=2)
    out.beside("ent-2", "ENT-2 SHP-1", no_shape, b"\5", u8(5, dims=[]), deviations="NO_SHAPE")
    out.beside("ent-empty", "ENT-8 SHP-7", u8(dims=[0, 3]).entry(5), DATA, u8(dims=[0, 3]))
    far = u8(dims=[0]).entry(2**40)
    out.beside("ent-8-offset", "ENT-8 DAT-2", far, b"", u8(dims=[0]))
    limit = {"tensor_bytes_max": 2}
    out.at_read("tab-13-value", MESSAGE, DATA, listed, "LIMIT", "TAB-13", limits=limit)
    out[-1].steps.pop()
    two = header(2)
    rows, values = [(b"a", GOOD.entry()), (b"x", X.entry(shard=1))], {b"a": GOOD, b"x": X}
    files = files_of(parts.table(*rows, head=two), {0: b"\1\2", 1: DATA}, 2)
    out.sound("two-shards", "NAM-3 ENT-3 DAT-1", files, values, head={"num_shards": 2})


def shapes(out: Vectors) -> None:
    def bad(name: str, content: bytes, rule: str) -> None:
        out.at_entry(name, with_dims(content), "BAD_SHAPE", rule, data=DATA)

    bad("shp-2", shape([-1]), "SHP-2")
    bad("shp-2-lowest", shape([3, -(2**63)]), "SHP-2")
    bad("shp-3", shape([1] * 255), "SHP-3")
    bad("shp-4", shape([2**62, 2]), "SHP-4")
    bad("shp-4-zero-last", shape([2**62, 2**62, 0]), "SHP-4")
    bad("shp-4-wraps-to-3", shape([2**63 - 1, 2**63 - 1, 3]), "SHP-4")
    deep = entry(4, [1] * 254, 1, parts.crc32c(b"\5"), offset=2)
    files = files_of(parts.table((b"a", GOOD.entry()), (b"x", deep)), b"\1\2\5")
    listed = {b"a": GOOD, b"x": Value(4, (1,) * 254)}
    steps = [opens(), lists(listed), reads(b"a", GOOD), verifies()]
    out.add("shp-3-254", "SHP-3", files, *steps)
    huge = [0, 2**62, 2**62]
    files = files_of(parts.table((b"a", GOOD.entry()), (b"x", entry(4, huge, offset=2))), b"\1\2")
    listed = {b"a": GOOD, b"x": Value(4, tuple(huge))}
    steps = [opens(), lists(listed), reads(b"a", GOOD), verifies()]
    out.add("shp-4-zero-first", "SHP-4", files, *steps)
    for name, rules, content, deviations in (
        ("shp-5", "SHP-5 MSG-13", shape([3]) + num(3, 1), "UNKNOWN_RANK"),
        ("shp-5-two", "SHP-5 MSG-13", shape([3]) + num(3, 2), "UNKNOWN_RANK"),
        ("shp-5-false", "SHP-5 MSG-15", shape([3]) + num(3, 0), "FIELD_ORDER"),
        ("shp-6", "SHP-6 MSG-16", msg(2, num(1, 3) + msg(2, b"batch")), "DIM_NAME"),
        ("shp-6-utf-8", "SHP-6 MSG-16", msg(2, num(1, 3) + msg(2, "aé€😀".encode())), "DIM_NAME"),
        ("shp-7-unknown", "MSG-8", msg(2, num(1, 3) + num(9, 1)), "UNKNOWN_FIELD"),
    ):
        out.beside(name, rules, with_dims(content), DATA, X, deviations=deviations)


ELEMENTS = {
    1: "0000803f 000000c0 0000c07f",
    2: "000000000000f03f 00000000000000c0 182d4454fb210940",
    3: "01000000 ffffffff 00000080",
    4: "00 7f ff",
    5: "0100 ffff 0080",
    6: "01 ff 80",
    8: "0000803f00000040 0000000000000080 000080bf0000807f",
    9: "0100000000000000 ffffffffffffffff 0000000000000080",
    10: "00 01 01",
    11: "01 ff 80",
    12: "01 ff 80",
    13: "01000000 ffffffff 00000080",
    14: "803f 00c0 c07f",
    15: "0100 ffff 0080",
    16: "0100 ffff 0080",
    17: "0100 ffff 0080",
    18: "000000000000f03f0000000000000040" * 3,
    19: "003c 00c0 007e",
    22: "01000000 ffffffff 00000080",
    23: "0100000000000000 ffffffffffffffff 0000000000000080",
    **dict.fromkeys(range(24, 29), "00 38 c1"),
    29: "0f 08 07",
    30: "0f 08 07",
    31: "03 02 01",
    32: "03 02 01",
    33: "0f 08 07",
}
SWAP = {1: 4, 2: 8, 3: 4, 5: 2, 8: 4, 9: 8, 13: 4, 14: 2, 15: 2, 16: 2, 17: 2, 18: 8, 19: 2}
SWAP |= {22: 4, 23: 8}


def dtypes(out: Vectors) -> None:
    values = {
        b"d%03d" % code: Value(code, (3,), bytes.fromhex(raw)) for code, raw in ELEMENTS.items()
    }
    values[b"d007"] = Value(STRING, (3,), elements=(b"hello", b"", b"wor\0ld"))
    out.plain("dtypes", "DTY-1 DTY-2 DTY-3 DTY-4 STR-1", values)
    rows, data, swapped = [], b"", {}
    for name, value in values.items():
        if value.code == STRING:
            stored, crc = parts.string_value(value.elements or (), big=True)
        else:
            stored = reverse(value.raw, SWAP.get(value.code, 1))
            crc = parts.crc32c(stored)
        rows.append((name, entry(value.code, value.dims, len(stored), crc, offset=len(data))))
        data += stored
        swapped[name] = value
    files = files_of(parts.table(*sorted(rows), head=header(endianness=1)), data)
    rules = "HDR-5 DAT-7 STR-7 DTY-2"
    out.sound("big-endian", rules, files, swapped, deviations="BIG_ENDIAN")
    narrow = Value(29, (2,), b"\xf7\x18")
    out.beside("dty-3-high-bits", "DTY-3", narrow.entry(2), narrow.raw, narrow)
    flags = Value(10, (3,), b"\0\2\xff")
    out.beside("dty-4-other-bytes", "DTY-4", flags.entry(2), flags.raw, flags)
    for code in (0, -1, 20, 101, 133):
        label = f"dty-5-{code}" if code >= 0 else "dty-5-negative"
        bad = entry(code, [3], 3, CRC, offset=2)
        step = boxes(b"x", [(0, 1)], fails=("BAD_DTYPE", "DTY-5"))
        out.at_read(label, bad, DATA, (code, [3]), "BAD_DTYPE", "DTY-5", step)
    for code in (34, 100, 134, 2**31 - 1):
        unknown = Value(code, (3,), DATA + b"\xaa")
        step = boxes(b"x", [(0, 1)], fails=("UNSUPPORTED", "DTY-6"))
        label, deviations = f"dty-6-{code}", "UNKNOWN_DTYPE"
        out.beside(
            label, "DTY-6", unknown.entry(2), unknown.raw, unknown, step, deviations=deviations
        )
    unknown = Value(34, (3,), DATA + b"\xaa")
    step = boxes(b"x", [(0, 3)], unknown)
    stored, deviations = unknown.raw, "UNKNOWN_DTYPE"
    message = unknown.entry(2)
    out.beside("dty-6-box-of-all", "DTY-6", message, stored, unknown, step, deviations=deviations)
    first, second = Value(34, (1,), b"\5"), Value(34, (2,), b"\6\7")
    pieces = [parts.slice_((0, 1)), parts.slice_((1, 2))]
    extra = [
        (parts.slice_key(b"x", (0, 1)), first.entry(2)),
        (parts.slice_key(b"x", (1, 2)), second.entry(3)),
    ]
    whole = parts.partitioned(34, [3], *pieces)
    out.at_read(
        "dty-6-partitioned",
        whole,
        DATA,
        (34, [3]),
        "UNSUPPORTED",
        "DTY-6",
        extra_rows=extra,
        problems=[],
        deviations="UNKNOWN_DTYPE",
    )


def reverse(data: bytes, unit: int) -> bytes:
    return b"".join(data[at : at + unit][::-1] for at in range(0, len(data), unit))


def add(out: Vectors) -> None:
    wire(out)
    deviating_messages(out)
    headers(out)
    entries(out)
    shapes(out)
    dtypes(out)


__all__ = ["add", "store"]
