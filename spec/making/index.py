# SPDX-License-Identifier: Apache-2.0
"""Vectors of file names, footer, blocks, Snappy and the table: NAM, FTR, BLK, SNP, TAB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from making import parts
from making.parts import EMPTY_BLOCK, Row, Table, block, handle, header, literal, u32, varint
from making.vectors import (
    FLOATS,
    GOOD,
    Vectors,
    files_of,
    lists,
    opens,
    reads,
    store,
    u8,
    verifies,
)

HEAD: Row = (b"", header())
A: Row = (b"a", GOOD.entry())
ONE = {b"a": GOOD}
MORE = dict.fromkeys((b"a", b"ab", b"b"), GOOD)
# Entries that share all their bytes would overlap: these own bytes of their own.
ROWS, DATA = store(MORE)


def names(out: Vectors) -> None:
    index, data = parts.table(A), b"\1\2"
    good = files_of(index, data)
    out.plain("minimal", "NAM-2 NAM-3 NAM-4 FTR-2 BLK-1 ENT-1 TAB-8", {b"x": FLOATS})
    out.sound("header-only", "TAB-8 BLK-13 SHP-1", files_of(parts.table(), b""), {})
    out.add("nam-1-nul", "NAM-1", {}, opens(fails=("BAD_PATH", "NAM-1")), suffix="\0")
    out.sound("nam-1-empty", "NAM-1", good, ONE, suffix="/")
    out.sound("nam-1-literal", "NAM-1", good, ONE, suffix="-[a]")
    out.plain("nam-1-literal-a", "NAM-1", {b"other": u8(9)})  # what the pattern would match
    out.add("nam-2", "NAM-2", {"": b"text"}, opens(fails=("CHECKPOINT_NOT_FOUND", "NAM-2")))
    v1 = {"": bytes(40) + parts.MAGIC}
    out.add("nam-9-v1", "NAM-9", v1, opens(fails=("UNSUPPORTED", "NAM-9")))
    short = {"": b"text" + parts.MAGIC}
    out.add("nam-9-no-footer", "NAM-9", short, opens(fails=("CHECKPOINT_NOT_FOUND", "NAM-2")))
    out.sound("nam-9-and-index", "NAM-2 NAM-9", good | v1, ONE)
    many = GOOD.entry(shard=3)
    files = files_of(parts.table((b"a", many), head=header(100000)))
    files = {".index": files[".index"], ".data-00003-of-100000": data}
    steps = [opens({"num_shards": 100000}), lists(ONE), reads(b"a", GOOD)]
    out.add("nam-4-six-digits", "NAM-3 NAM-4 NAM-5", files, *steps)
    rows = [
        (b"a", GOOD.entry()),
        (b"gone", u8(3).entry(shard=1)),
        (b"gone-too", u8(dims=[0]).entry(shard=1)),
    ]
    files = files_of(parts.table(*rows, head=header(2)), {0: data}, 2)
    missing = ("SHARD_MISSING", "NAM-5")
    out.add(
        "nam-5",
        "NAM-5",
        files,
        opens({"num_shards": 2}),
        lists(ONE | {b"gone": u8(3), b"gone-too": u8(dims=[0])}),
        reads(b"gone", fails=missing),
        reads(b"gone-too", fails=missing),
        reads(b"a", GOOD),
        verifies(missing),
    )
    no_bytes = u8(dims=[0])
    steps = [lists({b"a": no_bytes}), reads(b"a", fails=missing), verifies(missing)]
    out.add("nam-5-no-bytes", "NAM-5", {".index": parts.table((b"a", no_bytes.entry()))}, *steps)
    directory = {".index/file": b"in a directory"}
    out.add("nam-6-index", "NAM-6", directory, opens(fails=("OS", "NAM-6")))
    files = {".index": index, ".data-00000-of-00001/file": b"in a directory"}
    steps = [opens(), lists(ONE), reads(b"a", fails=("OS", "NAM-6"))]
    out.add("nam-6-data", "NAM-6", files, *steps)
    others = {
        ".data-00000-of-00007": b"left over",
        ".data-0-of-1": b"another name",
        ".index.tempstate0123456789abcdef": b"left over",
        ".meta": b"of TensorFlow's Saver",
    }
    out.sound("nam-8-other-files", "NAM-8", good | others, ONE)


def footer(out: Vectors) -> None:
    index = parts.table(A)
    body, end = index[:-48], index[-48:]
    out.at_open("ftr-1", index[-47:], "TRUNCATED", "FTR-1")
    out.at_open("ftr-1-empty", b"", "TRUNCATED", "FTR-1")
    out.at_open("ftr-2", index[:-1] + b"\0", "BAD_MAGIC", "FTR-2")
    for number, magic in enumerate((0x88E241B785F4CFF7, 0x8242229663BF9564, 0x4F3418EB7A8F13B8)):
        made = index[:-8] + magic.to_bytes(8, "little")
        out.at_open(f"ftr-2-rocksdb-{number}", made, "UNSUPPORTED", "FTR-2")
    unreadable = b"\x29\x08" + b"\xff" * 38
    out.at_open("ftr-3", body + unreadable + end[40:], "BAD_BLOCK", "FTR-3")
    first = b"\x80" * 10 + b"\1" + end[:29]
    out.at_open("ftr-3-first", body + first + end[40:], "BAD_BLOCK", "FTR-3")
    wide = b"\xff" * 9 + b"\2" + end[:30]
    out.at_open("ftr-3-65-bits", body + wide + end[40:], "BAD_BLOCK", "FTR-3")
    padded = parts.table(A, padding=b"\1" * 40)
    out.sound("ftr-4", "FTR-4", files_of(padded, b"\1\2"), ONE, deviations="FOOTER_PADDING")
    starts = [len(body) - 5 - 14, 14]
    meta = [starts[0] - 5 - 8, 8]
    longest = b"".join(varint(one, 10) for one in [*meta, *starts])
    files = files_of(parts.table(A, handles_in_footer=longest), b"\1\2")
    out.sound("ftr-3-forty-bytes", "FTR-3", files, ONE, deviations="OVERLONG_VARINT")
    for name, place in (
        ("ftr-5-index", handle(starts[0], 15)),
        ("ftr-5-index-offset", handle(len(body), 1)),
        ("ftr-5-index-wraps", handle(2**64 - 4, 14)),
        ("ftr-5-index-size-wraps", handle(starts[0], 2**64 - 1)),
    ):
        made = Table([[HEAD, A]], index_handle=place).build()
        out.at_open(name, made, "TRUNCATED", "FTR-5")
    for name, place in (
        ("ftr-5-data", handle(0, 2**32)),
        ("ftr-5-data-wraps", handle(2**64 - 1, 36)),
        ("ftr-5-data-size-wraps", handle(0, 2**64 - 5)),
    ):
        out.at_open(name, Table([[HEAD, A]], handles={0: place}).build(), "TRUNCATED", "FTR-5")
    made = Table([[HEAD, A]], metaindex_handle=handle(2**60, 2**60)).build()
    files = files_of(made, b"\1\2")
    out.sound("tab-10-handle", "TAB-10 FTR-5", files, ONE, deviations="METAINDEX TABLE_GAP")


def blocks(out: Vectors) -> None:
    made = Table([[HEAD, A]], crcs={0: 0}).build()
    out.at_open("blk-2-data", made, "CHECKSUM", "BLK-2")
    out.at_open("blk-2-index", Table([[HEAD, A]], index_crc=0).build(), "CHECKSUM", "BLK-2")
    out.at_open("blk-3", Table([[HEAD, A]], kinds={0: 2}).build(), "BAD_BLOCK", "BLK-3")
    out.at_open("blk-3-index", Table([[HEAD, A]], index_kind=4).build(), "BAD_BLOCK", "BLK-3")

    def one(name: str, contents: bytes, rule: str, failure: str = "BAD_BLOCK") -> None:
        """A first data block of these contents; opening reads it."""
        out.at_open(name, Table([contents], keys=[b"b"]).build(), failure, rule)

    entries = parts.one_entry(0, b"", header()) + parts.one_entry(0, b"a", GOOD.entry())
    second = len(parts.one_entry(0, b"", header()))
    for size in range(4):
        one(f"blk-4-size-{size}", bytes(size), "BLK-4")
    one("blk-4-restarts", block([HEAD, A], count=100), "BLK-4")
    one("blk-4-restarts-wrap", block([HEAD, A], count=2**30), "BLK-4")
    one("blk-4-one-too-many", bytes(4) + u32(2), "BLK-4")
    one("blk-6-cut", block([HEAD, A], tail=b"\0\1"), "BLK-6")
    one("blk-6-unreadable", block([HEAD, A], tail=b"\0\1" + b"\xff" * 6), "BLK-6")
    one("blk-6-33-bits", block([HEAD, A], tail=b"\0\1\xff\xff\xff\xff\x1f" + bytes(40)), "BLK-6")
    one("blk-7", block([HEAD], tail=parts.one_entry(1, b"b", GOOD.entry())), "BLK-7")
    one("blk-8", block([HEAD], tail=b"\0\1\x7fa"), "BLK-8")
    one("blk-8-key", block([HEAD], tail=b"\0\x7f\1a"), "BLK-8")
    wrap = varint(2**32 - 1)
    one("blk-8-wraps", block([HEAD], tail=b"\0" + wrap + b"\2a"), "BLK-8")
    for name, restarts in (
        ("first", [second]),
        ("first-not-zero", [1]),
        ("equal", [0, 0]),
        ("down", [0, second, 0]),
        ("between", [0, second + 1]),
        ("left-over", [0, len(entries)]),
    ):
        one(f"blk-9-{name}", entries + b"".join(map(u32, restarts)) + u32(len(restarts)), "BLK-9")
    empty = u32(4) + u32(1)
    groups: list[Sequence[Row] | bytes] = [[HEAD, A], empty]
    made = Table(groups, keys=[b"a", b"b"]).build()
    out.at_list("blk-9-empty-block", made, "BAD_BLOCK", "BLK-9")
    groups = [[HEAD, A], u32(0) + u32(4) + u32(2)]
    made = Table(groups, keys=[b"a", b"b"]).build()
    out.at_list("blk-9-empty-block-two", made, "BAD_BLOCK", "BLK-9")
    first = len(entries)
    shared = entries + parts.one_entry(1, b"b", GOOD.entry())
    one("blk-10", shared + u32(0) + u32(first) + u32(2), "BLK-10")
    one("blk-10-first", parts.one_entry(1, b"", header()) + u32(0) + u32(1), "BLK-10")
    # Odd and sound ones.
    groups = [[HEAD, *ROWS], block([(b"c", u8(9).entry())], count=0, restarts=[0])]
    made = Table(groups, keys=[b"b", b"d"]).build()
    block_deviations = "NO_RESTARTS BLOCK_SIZE"
    out.sound("blk-5", "BLK-5", files_of(made, DATA), MORE, deviations=block_deviations)
    nothing = Table([[HEAD, A]], index=u32(0)).build()
    out.at_open("blk-5-index", nothing, "BAD_HEADER", "HDR-1")
    out.at_open("blk-5-header", Table([u32(0)], keys=[b"a"]).build(), "BAD_HEADER", "HDR-1")
    made = parts.table(*ROWS, interval=2)
    out.sound("blk-11", "BLK-11 BLK-10", files_of(made, DATA), MORE, deviations="RESTARTS")
    made = parts.table(*ROWS, share=False)
    out.sound("blk-12", "BLK-12", files_of(made, DATA), MORE, deviations="PREFIX")
    many = {b"t%03d" % number: u8(number) for number in range(40)}
    out.plain("blk-11-forty", "BLK-11 BLK-12 BLK-7 BLK-10", many)
    long = parts.table((b"a", GOOD.entry()), (b"k" * 300, GOOD.entry(2)))
    limit = {"block_bytes_max": 300}
    out.at_open("blk-14", long, "LIMIT", "BLK-14", limits=limit)


def snappy_blocks(out: Vectors) -> None:
    plain = block([HEAD, A])

    def one(name: str, stream: bytes, rule: str, **more: object) -> None:
        made = Table([stream], keys=[b"b"], kinds={0: 1}).build()
        out.at_open(name, made, "LIMIT" if rule == "BLK-14" else "BAD_BLOCK", rule, **more)

    def good(name: str, stream: bytes, rules: str) -> None:
        made = Table([stream], keys=[b"b"], kinds={0: 1}).build()
        out.sound(name, rules, files_of(made, b"\1\2"), ONE, deviations="SNAPPY")

    size, body = varint(len(plain)), literal(plain)
    good("snp-1", size + body, "SNP-1 SNP-4 BLK-3")
    pieces = b"".join(literal(plain[at : at + 1]) for at in range(len(plain)))
    good("snp-4-pieces", size + pieces, "SNP-4")
    long = len(plain) - 1
    for extra in (1, 2, 3, 4):
        stream = bytes([59 + extra << 2]) + long.to_bytes(extra, "little") + plain
        good(f"snp-4-extra-{extra}", size + stream, "SNP-4")
    # The last eight bytes are 00 00 00 00 01 00 00 00.
    cut = literal(plain[:-7])
    last = literal(plain[:-3])
    rest = literal(b"\1") + literal(bytes(3))
    good("snp-7-kind-2", size + cut + bytes([2 << 2 | 2, 1, 0]) + rest, "SNP-5 SNP-7")
    good("snp-7-kind-3", size + cut + bytes([2 << 2 | 3, 1, 0, 0, 0]) + rest, "SNP-5 SNP-7")
    many = {b"t%03d" % number: u8(7, 7, 7, 7) for number in range(8)}
    rows, data = store(many)
    whole = block([HEAD, *rows])
    stream = repeated(whole)
    made = Table([stream], keys=[b"u"], kinds={0: 1}).build()
    rules = "SNP-5 SNP-7 SNP-9"
    out.sound("snp-5-copies", rules, files_of(made, data), many, deviations="SNAPPY")
    index = block([(b"b", handle(0, len(plain)))], 1)
    made = Table([[HEAD, A]], index=varint(len(index)) + literal(index), index_kind=1).build()
    out.sound("snp-1-index", "SNP-1", files_of(made, b"\1\2"), ONE, deviations="SNAPPY")
    one("snp-2", b"\xff" * 6, "SNP-2")
    one("snp-2-empty", b"", "SNP-2")
    one("snp-2-33-bits", b"\xff\xff\xff\xff\x1f" + body, "SNP-2")
    one("snp-3", varint(2**26) + body, "SNP-3")
    # e = 5: 1 + 64 and no more; one byte above it is refused for that alone.
    one("snp-3-one-more", varint(66) + literal(b"\0") + bytes([63 << 2 | 2, 1, 0]), "SNP-3")
    one("snp-3-nothing", varint(8) + b"\0", "SNP-3")
    one("snp-6-zero", size + cut + bytes([6 << 2 | 2, 0, 0]), "SNP-6")
    one("snp-6-far", size + cut + bytes([6 << 2 | 2, 0xFF, 0]), "SNP-6")
    one("snp-6-first", size + bytes([2, 1, 0]) + body, "SNP-6")
    one("snp-8-literal", size + body[:-1], "SNP-8")
    one("snp-8-literal-size", size + cut + bytes([61 << 2, 1]), "SNP-8")
    one("snp-8-copy-1", size + cut + bytes([1]), "SNP-8")
    one("snp-8-copy-2", size + cut + bytes([2 << 2 | 2, 1]), "SNP-8")
    one("snp-8-copy-3", size + cut + bytes([2 << 2 | 3, 1, 0, 0]), "SNP-8")
    one("snp-9-short", size + last, "SNP-9")
    one("snp-9-long", size + body + literal(b"\0"), "SNP-9")
    one("snp-9-long-copy", size + last + bytes([3 << 2 | 2, 1, 0]), "SNP-9")
    one("snp-9-empty", b"\0", "BLK-4")
    big = literal(b"\0") + bytes([63 << 2 | 2, 1, 0]) * 20
    one("blk-14-snappy", varint(1281) + big, "BLK-14", limits={"block_bytes_max": 1000})


def repeated(data: bytes) -> bytes:
    """A Snappy stream with a copy, of kind 1 where it fits, wherever four bytes or more stood
    before."""
    out, at, pending = varint(len(data)), 0, b""
    while at < len(data):
        size, distance = 0, 0
        for start in range(at):
            length = 0
            while at + length < len(data) and data[start + length] == data[at + length]:
                length += 1
            if length >= size:
                size, distance = length, at - start
        if size < 4:
            pending += data[at : at + 1]
            at += 1
            continue
        if pending:
            out, pending = out + literal(pending), b""
        if size <= 11:
            out += bytes([1 | size - 4 << 2 | distance >> 8 << 5, distance & 0xFF])
        else:
            size = min(size, 64)
            out += bytes([2 | size - 1 << 2]) + distance.to_bytes(2, "little")
        at += size
    return out + (literal(pending) if pending else b"")


def tables(out: Vectors) -> None:
    for name, rows in (
        ("down", [(b"b", GOOD.entry()), (b"a", GOOD.entry(2))]),
        ("equal", [(b"a", GOOD.entry()), (b"a", GOOD.entry(2))]),
        ("longer-first", [(b"ab", GOOD.entry()), (b"a", GOOD.entry(2))]),
        ("unsigned", [(b"\x80", GOOD.entry()), (b"\x7f", GOOD.entry(2))]),
        ("second-header", [(b"", header())]),
    ):
        made = Table([[HEAD, *rows]], keys=[b"\xff"]).build()
        out.at_open(f"tab-1-{name}", made, "BAD_ORDER", "TAB-1")
    two: list[list[Row]] = [[HEAD, ROWS[0]], ROWS[1:]]
    for name, keys in (
        ("below-last", [b"B", b"c"]),
        ("not-below-first", [b"ab", b"c"]),
        ("last-below-last", [b"a", b"az"]),
    ):
        made = Table(two, keys=keys).build()
        step = out.at_open if name == "below-last" else out.at_list
        step(f"tab-5-{name}", made, "BAD_ORDER", "TAB-5")
    backwards = [[HEAD, ROWS[1]], [ROWS[0]]]
    made = Table(backwards, keys=[b"ab", b"b"]).build()
    out.at_list("tab-5-blocks-down", made, "BAD_ORDER", "TAB-5")
    out.at_open("tab-6", Table(two, keys=[b"c", b"b"]).build(), "BAD_ORDER", "TAB-6")
    out.at_open("tab-6-equal", Table(two, keys=[b"c", b"c"]).build(), "BAD_ORDER", "TAB-6")
    for name, place in (("unreadable", b"\x80"), ("empty", b""), ("one-number", b"\0")):
        made = Table(two, handles={1: place}).build()
        out.at_open(f"tab-2-{name}", made, "BAD_BLOCK", "TAB-2")
    size = len(block(two[0]))
    made = Table(two, handles={1: handle(size + 4, len(block(two[1])))}).build()
    out.at_open("tab-4", made, "BAD_BLOCK", "TAB-4")
    swapped = Table(two, order=[1, 0]).build()
    out.at_open("tab-4-order", swapped, "BAD_BLOCK", "TAB-4")
    index_at = sum(len(block(one)) + 5 for one in two) + len(EMPTY_BLOCK) + 5
    made = Table(two, handles={1: handle(index_at, 8)}).build()
    out.at_open("tab-4-index", made, "BAD_BLOCK", "TAB-4")
    files = files_of(Table(two).build(), DATA)
    out.sound("tab-9-two-blocks", "TAB-2 TAB-5 TAB-7 TAB-9", files, MORE, deviations="BLOCK_SIZE")
    knobs: list[tuple[str, str, dict[str, Any], str]] = [
        ("tab-3", "TAB-3", {"handle_tail": b"\0"}, "HANDLE_TAIL"),
        ("tab-7", "TAB-7", {"keys": [b"aa", b"c"]}, "SEPARATOR"),
        ("tab-8", "TAB-8", {"keys": [b"a", b"zz"]}, "SEPARATOR"),
        ("tab-11-gap", "TAB-11", {"gap": b"\0"}, "TABLE_GAP"),
        ("tab-10", "TAB-10", {"metaindex": block([(b"k", b"v")])}, "METAINDEX"),
    ]
    for name, rules, more, deviations in knobs:
        files = files_of(Table(two, **more).build(), DATA)
        out.sound(name, rules, files, MORE, deviations=f"BLOCK_SIZE {deviations}")
    for name, names_of in (
        ("separators", [b"a", b"kkk"]),
        ("separator-none", [b"04930", b"04931"]),
        ("separator-prefix", [b"a", b"ab"]),
        ("successor-ff", [b"\xff", b"\xffa"]),
        ("successor-none", [b"\xfe", b"\xff\xff"]),
    ):
        tensors = {one: u8(number) for number, one in enumerate(names_of)}
        rows, data = store(tensors)
        files = files_of(Table([[HEAD, rows[0]], [rows[1]]]).build(), data)
        out.sound(f"tab-7-{name}", "TAB-7 TAB-8", files, tensors, deviations="BLOCK_SIZE")
    absent = ("TENSOR_NOT_FOUND", "TAB-12")
    files = files_of(Table(two).build(), DATA)
    wanted = [reads(name, fails=absent) for name in (b"", b"A", b"aa", b"z", b"ab\0")]
    out.add("tab-12", "TAB-12", files, opens(), lists(MORE), *wanted, reads(b"ab", GOOD))
    damaged = Table(two, crcs={1: 0}).build()
    found = ("CHECKSUM", "BLK-2")
    steps = [opens(), lists(fails=found), reads(b"b", fails=found), reads(b"a", GOOD)]
    out.add("tab-14-other-block", "TAB-14 BLK-2", files_of(damaged, DATA), *steps)
    for name, limit, step in (
        ("key", {"key_bytes_max": 1}, out.at_open),
        ("entries", {"entries_max": 3}, out.at_list),
        ("file", {"index_bytes_max": 100}, out.at_open),
    ):
        step(f"tab-13-{name}", parts.table(*ROWS), "LIMIT", "TAB-13", limits=limit)
    many = [parts.slice_((number, 1)) for number in range(60)]
    made = parts.table((b"n" * 600, parts.partitioned(4, [60], *many)))
    out.at_list("tab-13-slices", made, "LIMIT", "TAB-13", limits={"keys_bytes_floor": 1000})
    out[-1].steps.insert(2, reads(b"n" * 600, fails=("LIMIT", "TAB-13")))
    long_name = b"n" * 20
    files = files_of(parts.table((long_name, parts.partitioned(4, [60], *many))), b"")
    missing = ("BAD_SLICE", "SLC-7")
    steps = [opens(), lists({long_name: u8(dims=[60])}), reads(long_name, fails=missing)]
    limit = {"key_bytes_max": 20}
    out.add("tab-13-slice-key", "TAB-13 SLC-7", files, *steps, limits=limit)
    files = files_of(parts.table(*ROWS), DATA)
    exactly = {"key_bytes_max": 2, "entries_max": 4, "index_bytes_max": len(files[".index"])}
    long = [(b"k" * 1000 + b"%02d" % number, GOOD.entry()) for number in range(60)]
    made = parts.table(*long, interval=100)
    out.at_list("tab-13-keys", made, "LIMIT", "TAB-13", limits={"keys_bytes_floor": 1000})
    del out[-1].steps[0]  # whether opening counts the keys of the first block is up to the reader
    out.sound("tab-13-exactly", "TAB-13", files, MORE, limits=exactly)


def add(out: Vectors) -> None:
    names(out)
    footer(out)
    blocks(out)
    snappy_blocks(out)
    tables(out)
