# SPDX-License-Identifier: Apache-2.0
"""Malformed checkpoints: what the index says: keys, messages, header, entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index as ix
from support.adversarial import (
    BIG,
    DATA,
    F2,
    GOOD,
    SOUND,
    Cases,
    Files,
    Refused,
    Trial,
    everything,
    listed,
    loaded,
    noted,
    problems,
    table,
    with_value,
)
from support.arrays import bits

import ckptfmt

case = Cases()

# ---- E: what the index says


@case("E01", "E03")
def keys_out_of_order(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for label, names in (
        ("down", [b"b", b"a"]),
        ("twice", [b"a", b"a"]),
        ("prefix after", [b"ab", b"a"]),
        ("unsigned", [b"\x80", b"\x7f"]),
    ):
        made = table(*[(name, GOOD) for name in names], separators=[b"\xff"])
        expected = Refused("BAD_ORDER", "TAB-1", made.blocks[0].entries[2])
        yield Trial(label, listed(files(made)), expected)
        yield Trial(f"{label}, lookup", loaded(files(made), "a"), expected)


@case("E02", "E04")
def blocks_out_of_order(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    head = (b"", ix.header())
    for label, first, second, separators, block in (
        ("blocks overlap", [head, (b"m", GOOD)], [(b"c", GOOD)], [b"m", b"z"], 1),
        ("separator too low", [head, (b"m", GOOD)], [(b"p", GOOD)], [b"f", b"z"], 0),
        ("separator too high", [head, (b"m", GOOD)], [(b"p", GOOD)], [b"p", b"z"], 1),
        ("last separator too low", [head, (b"m", GOOD)], [(b"p", GOOD)], [b"n", b"o"], 1),
        ("same key twice", [head, (b"m", GOOD)], [(b"m", GOOD)], [b"m", b"z"], 1),
    ):
        made = ix.index_of(first, second, separators=separators)
        prefix = files(made)
        expected = Refused("BAD_ORDER", "TAB-5", made.offsets[block])
        yield Trial(label, listed(prefix), expected)
    made = ix.index_of([head, (b"m", GOOD)], [(b"p", GOOD)], separators=[b"z", b"n"])
    prefix = files(made)
    at = made.index_offset + made.index_block.entries[1]
    yield Trial("separators down", listed(prefix), Refused("BAD_ORDER", "TAB-6", at))


@case("E05")
def header_missing(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    made = ix.index_of([(b"x", GOOD)])
    yield Trial("no header", listed(files(made)), Refused("BAD_HEADER", "HDR-1", 0))
    empty = ix.index_of([])
    yield Trial("empty block", listed(files(empty)), Refused("BAD_HEADER", "HDR-1", 0))
    none = ix.Index([])
    yield Trial("no block", listed(files(none)), Refused("BAD_HEADER", "HDR-1", 0))


@case("E06")
def two_headers(directory: Path) -> Iterator[Trial]:
    made = table((b"", ix.header()), (b"x", GOOD))
    expected = Refused("BAD_ORDER", "TAB-1", made.blocks[0].entries[1])
    yield Trial("two", listed(Files(directory)(made)), expected)


@case("E07")
def header_only(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(ix.index_of([(b"", ix.header())]), b"")
    yield Trial("no tensors", everything(prefix), {})


@case("E08")
def strange_names(directory: Path) -> Iterator[Trial]:
    raw = [b"\0", b"\0\1", b"\n\r", b"\xc3\xa9", b"\xed\xa0\x80", b"\xff", b"\xff\xfe"]
    prefix = Files(directory)(table(*[(name, GOOD) for name in sorted(raw)]))
    names = {name.decode("utf-8", "surrogateescape"): bits(F2) for name in sorted(raw)}
    yield Trial("listed", everything(prefix), names)
    for name in raw:
        yield Trial(f"{name!r}", loaded(prefix, name), bits(F2))


@case("E09")
def long_key(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    size = (16 << 20) + 1
    made = table((b"k" * size, GOOD), separators=[b"l"])
    expected = Refused("LIMIT", "TAB-13", made.blocks[0].entries[1])
    yield Trial("longer than the limit", listed(files(made)), expected)
    long = b"k" * (1 << 20)
    prefix = files(table((long, GOOD), separators=[b"l"]))
    yield Trial("a megabyte", everything(prefix), {long.decode(): bits(F2)})
    limited = listed(prefix, limits={"key_bytes_max": 1000})
    yield Trial("limit set", limited, Refused("LIMIT", "TAB-13", made.blocks[0].entries[1]))


@case("E10")
def orphans(directory: Path) -> Iterator[Trial]:
    key = ix.slice_key(b"v", [(0, 2), (0, -1)])
    prefix = Files(directory)(table((key, GOOD), (b"x", GOOD)))
    text = key.decode("utf-8", "surrogateescape")
    yield Trial("a tensor of that name", everything(prefix), {text: bits(F2), "x": bits(F2)})
    yield Trial("verify", problems(prefix), [("BAD_SLICE", "KEY-7"), ("BAD_ENTRY", "DAT-8")])


# ---- F: messages


def message_trials(directory: Path, messages: list[tuple[str, bytes, str]]) -> Iterator[Trial]:
    """Each message as an entry and appended to a header; the rule it breaks."""
    files = Files(directory)
    for label, message, rule in messages:
        made, where = with_value(GOOD + message)
        yield Trial(f"entry: {label}", listed(files(made)), Refused("BAD_PROTO", rule, where))
        yield Trial(f"lookup: {label}", loaded(files(made)), Refused("BAD_PROTO", rule, where))
        top = table((b"x", GOOD), head=ix.header() + message)
        start = top.blocks[0].values[0]
        inside = range(start, start + len(ix.header() + message) + 1)
        yield Trial(f"header: {label}", listed(files(top)), Refused("BAD_PROTO", rule, inside))


@case("F01", "F02", "F03", "F04")
def bad_messages(directory: Path) -> Iterator[Trial]:
    yield from message_trials(
        directory,
        [
            ("field number 0", b"\0\1", "MSG-2"),
            ("field number of 30 bits", b"\xf8\xff\xff\xff\x1f\0", "MSG-2"),
            ("tag of six bytes", b"\x88\x80\x80\x80\x80\0\0", "MSG-2"),
            ("tag cut", b"\x80", "MSG-2"),
            ("wire type 6", b"\x7e", "MSG-6"),
            ("wire type 7", b"\x7f", "MSG-6"),
            ("group without end", b"\x7b\x08\1", "MSG-7"),
            ("end without group", b"\x7c", "MSG-[67]"),
            ("group with another end", b"\x7b\x84\1", "MSG-7"),
            ("size beyond the end", b"\x7a\5\0", "MSG-5"),
            ("size 2^63", b"\x7a" + ix.varint(2**63), "MSG-5"),
            ("size 2^32 - 1", b"\x7a" + ix.varint(2**32 - 1), "MSG-5"),
            ("size missing", b"\x7a", "MSG-5"),
            ("varint cut", b"\x78\x80", "MSG-3"),
            ("varint of eleven bytes", b"\x78" + b"\xff" * 10 + b"\1", "MSG-3"),
            ("varint of 65 bits", b"\x78" + b"\xff" * 9 + b"\2", "MSG-3"),
            ("four bytes cut", b"\x7d\0\0\0", "MSG-4"),
            ("eight bytes cut", b"\x79" + bytes(7), "MSG-4"),
        ],
    )


@case("F05")
def groups_nested(directory: Path) -> Iterator[Trial]:
    deep = b"\x7b" * 10000 + b"\x7c" * 10000
    yield from message_trials(directory, [("10,000 groups", deep, "MSG-7")])
    for depth, good in ((100, True), (101, False)):
        made, where = with_value(GOOD + b"\x7b" * depth + b"\x7c" * depth)
        expected = SOUND if good else Refused("BAD_PROTO", "MSG-7", where)
        yield Trial(f"{depth} groups", everything(Files(directory)(made)), expected)


@case("F06")
def fields_twice(directory: Path) -> Iterator[Trial]:
    twice = ix.number(1, 9) + ix.number(5, 99) + GOOD
    prefix = Files(directory)(with_value(twice)[0])
    yield Trial("the last counts", everything(prefix), SOUND)
    yield Trial("strict", noted(prefix), (True, False))


@case("F07")
def many_empty_messages(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    dims = ix.entry(1, shape_content=b"\x12\0" * 1_000_000)
    made, where = with_value(dims)
    expected = Refused("BAD_SHAPE", "SHP-3", where.start)
    yield Trial("a million dimensions", listed(files(made)), expected)
    slices, place = with_value(ix.entry(1, [4], extra=b"\x3a\0" * ((1 << 20) + 1)))
    yield Trial("2^20 + 1 slices", listed(files(slices)), Refused("LIMIT", None, place.start))
    fewer, place = with_value(ix.entry(1, [4], extra=b"\x3a\0" * 1_000_000))
    yield Trial("a million slices", listed(files(fewer)), Refused("BAD_SLICE", "SLC-2", place))


@case("F08")
def unknown_fields(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    extra = ix.number(15, 7) + ix.nested(16, b"hello") + ix.fixed32(17, 1) + b"\x91\1" + bytes(8)
    extra += b"\x7b\x08\1\x7c" + ix.nested(1, b"the dtype as text")
    prefix = files(with_value(GOOD + extra)[0])
    yield Trial("read", everything(prefix), SOUND)
    merged = directory / "merged"

    def act() -> tuple[Any, bool]:
        other = files(table((b"y", GOOD)))
        ckptfmt.merge([prefix, other], merged)
        content = (directory / "merged.index").read_bytes()
        return everything(merged)(), extra in content

    yield Trial("kept by merge", act, ({"x": bits(F2), "y": bits(F2)}, True))


@case("F09")
def value_no_message(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for junk in (b"\xff\xff\xff\xff\xff\xff", b"hello world", b"\x0f"):
        made, where = with_value(junk)
        yield Trial(f"{junk!r}", listed(files(made)), Refused("BAD_PROTO", "MSG-[2-7]", where))


# ---- G: the header


def with_header(head: bytes) -> ix.Index:
    return table((b"x", GOOD), head=head)


HEADER_AT = 3


@case("G01")
def shard_counts(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for count in (0, -1, -(2**31)):
        made = with_header(ix.header(count))
        yield Trial(f"{count}", listed(files(made)), Refused("BAD_HEADER", "HDR-3", HEADER_AT))
    for wide in (2**31, 2**32 + 1, -(2**63)):
        made = with_header(ix.header(wide))
        where = range(HEADER_AT, HEADER_AT + len(ix.header(wide)) + 1)
        yield Trial(f"{wide}", listed(files(made)), Refused("BAD_PROTO", "MSG-11", where))
    for count in (2, 2**31 - 1):
        prefix = files(with_header(ix.header(count)))
        yield Trial(f"{count}, listed", listed(prefix), {"x": (2,)})
        name = f".data-00000-of-{count:05d}"
        expected = Refused("SHARD_MISSING", None, ..., file=name)
        yield Trial(f"{count}, read", loaded(prefix), expected)


@case("G02")
def big_endian(directory: Path) -> Iterator[Trial]:
    swapped = F2.astype(">f4").tobytes()
    made = table((b"x", ix.stored_entry(1, [2], swapped)), head=ix.header(endianness=1))
    yield Trial("read", everything(Files(directory)(made, swapped)), SOUND)


@case("G03")
def endianness(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for value in (2, 3, -1, 2**31 - 1):
        made = with_header(ix.header(endianness=value))
        yield Trial(f"{value}", listed(files(made)), Refused("BAD_HEADER", "HDR-4", HEADER_AT))


@case("G04", "G07")
def versions_good(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for label, version in (
        ("producer 0", b""),
        ("producer 1", ix.number(1, 1)),
        ("producer 2^31 - 1", ix.number(1, 2**31 - 1)),
        ("min_consumer 1", ix.number(1, 9) + ix.number(2, 1)),
        ("min_consumer -1", ix.number(2, -1)),
        ("bad_consumers 1, 3", ix.nested(3, b"\1\3")),
    ):
        yield Trial(label, everything(files(with_header(ix.header(version=version)))), SOUND)
    yield Trial("no version", everything(files(with_header(ix.number(1, 1)))), SOUND)


@case("G05", "G06")
def versions_bad(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for label, version, rule, names in (
        ("min_consumer 3", ix.number(2, 3), "HDR-8", "version 3 .* version 2"),
        ("min_consumer 2^31 - 1", ix.number(2, 2**31 - 1), "HDR-8", "2147483647 .* version 2"),
        ("banned, packed", ix.nested(3, b"\5\2"), "HDR-9", "version 2"),
        ("banned, one by one", ix.number(3, 5) + ix.number(3, 2), "HDR-9", "version 2"),
        ("producer -1", ix.number(1, -1), "HDR-7", "-1"),
    ):
        made = with_header(ix.header(version=version))
        expected = Refused("UNSUPPORTED", rule, HEADER_AT, names=names)
        yield Trial(label, listed(files(made)), expected)
    later = with_header(ix.header(0, endianness=7, version=ix.number(2, 3)))
    expected = Refused("UNSUPPORTED", "HDR-8", HEADER_AT)
    yield Trial("the version is looked at first", listed(files(later)), expected)


@case("G08")
def many_shards(directory: Path) -> Iterator[Trial]:
    value = ix.stored_entry(1, [2], DATA, shard=123455)
    made = table((b"x", value), head=ix.header(123456))
    prefix = Files(directory)(made, {123455: DATA}, 123456)
    assert (directory / f"{prefix.name}.data-123455-of-123456").exists()
    yield Trial("six digits", everything(prefix), SOUND)


# ---- H: entries


@case("H01", "H03")
def dtypes_unreadable(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for code in (0, 20, 101, 133, -1):
        prefix = files(table((b"w", ix.entry(code, [2], size=8)), (b"x", GOOD)))
        yield Trial(f"{code} listed", listed(prefix), {"w": (2,), "x": (2,)})
        expected = Refused("BAD_DTYPE", "DTY-5", ..., file=None)
        yield Trial(f"{code} read", loaded(prefix, "w"), expected)
        yield Trial(f"{code}, the other", loaded(prefix), bits(F2))


@case("H02")
def dtypes_unknown(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for code in (34, 99, 134, 999, 2**31 - 1):
        prefix = files(table((b"x", ix.stored_entry(code, [3], DATA))))
        raw = bits(np.frombuffer(DATA, np.uint8))
        yield Trial(f"{code}", loaded(prefix), raw)
        bad = files(table((b"x", ix.entry(code, [3], size=8, masked_crc=5))))
        expected = Refused("CHECKSUM", "DAT-6", 0, file=".data-00000-of-00001")
        yield Trial(f"{code}, checksum", loaded(bad), expected)


@case("H04", "K09")
def variants(directory: Path) -> Iterator[Trial]:
    payloads = [b"a", b"", b"z" * 300]
    value, crc = ix.variant_value(payloads)
    entry = ix.entry(ix.VARIANT, [3], size=len(value), masked_crc=crc)
    prefix = Files(directory)(table((b"x", entry)), value)
    yield Trial("payloads", loaded(prefix), ((3,), "object", tuple(payloads)))
    big = table((b"x", entry), head=ix.header(endianness=1))
    expected = Refused("UNSUPPORTED", "VAR-6", ..., file=None)
    yield Trial("big-endian", loaded(Files(directory / "b")(big, value)), expected)


@case("H05")
def unknown_rank(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    shape = ix.shape([2]) + ix.number(3, 1)
    made = with_value(ix.stored_entry(1, [2], DATA, shape_content=shape))[0]
    yield Trial("with dims", everything(files(made)), SOUND)
    yield Trial("strict", noted(files(made)), (True, False))
    one = F2[:1].tobytes()
    scalar = ix.stored_entry(1, [], one, shape_content=ix.number(3, 1))
    expected = {"x": bits(F2[0])}
    yield Trial("without", everything(files(with_value(scalar)[0], one)), expected)


@case("H06")
def negative_dims(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for dims in ([-1], [2, -1], [0, -1], [-(2**63)], [-2, -2]):
        made, where = with_value(ix.entry(1, dims, size=8))
        yield Trial(f"{dims}", listed(files(made)), Refused("BAD_SHAPE", "SHP-2", where.start))


@case("H07")
def ranks(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    one = F2[:1].tobytes()
    for rank in (0, 1, 64):
        made = with_value(ix.stored_entry(1, [1] * rank, one))[0]
        expected = {"x": bits(F2[:1].reshape((1,) * rank))}
        yield Trial(f"{rank}", everything(files(made, one)), expected)
    for rank in (65, 254):
        prefix = files(with_value(ix.stored_entry(1, [1] * rank, one))[0], one)
        yield Trial(f"{rank} listed", listed(prefix), {"x": (1,) * rank})
        expected = Refused("UNSUPPORTED", None, None, file=None)
        yield Trial(f"{rank} read", loaded(prefix), expected)
    for rank in (255, 300):
        made, where = with_value(ix.entry(1, [1] * rank))
        yield Trial(f"{rank}", listed(files(made)), Refused("BAD_SHAPE", "SHP-3", where.start))


@case("H08")
def products_wrap(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for dims in (
        [4194305, 4194305, 211106198978564],
        [2**32, 2**32],
        [2**62, 2],
        [2**62, 2**62, 0],
        [2**63 - 1, 3],
    ):
        made, where = with_value(ix.entry(1, dims, size=8))
        yield Trial(f"{dims}", listed(files(made)), Refused("BAD_SHAPE", "SHP-4", where.start))
    prefix = files(with_value(ix.stored_entry(1, [0, 2**32, 2**32], b""))[0], b"")
    yield Trial("zero first", listed(prefix), {"x": (0, 2**32, 2**32)})


@case("H09")
def bytes_wrap(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for dims, size in (([2**61, 2], 0), ([2**62], 0), ([2**62 + 2], 8), ([2**63 - 1], 8)):
        prefix = files(with_value(ix.entry(1, dims, size=size))[0])
        expected = Refused("BAD_(SHAPE|ENTRY)", "ENT-5", ..., file=None)
        yield Trial(f"{dims}, {size}", loaded(prefix), expected)


@case("H10")
def sizes_wrong(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for size in (0, 7, 9, 4, 16, BIG):
        made = with_value(ix.entry(1, [2], size=size, masked_crc=ix.mask(ix.crc32c(DATA))))[0]
        expected = Refused("BAD_ENTRY", "ENT-5", ..., file=None)
        yield Trial(f"{size}", loaded(files(made)), expected)
    for size in (-8, -1, -(2**63)):
        made = with_value(ix.entry(1, [2], size=size))[0]
        expected = Refused("BAD_ENTRY", "ENT-[45]", ..., file=None)
        yield Trial(f"{size}", loaded(files(made)), expected)


@case("H11")
def huge_but_consistent(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    data = ".data-00000-of-00001"
    for count in (3, 1 << 20, BIG, 1 << 60):
        prefix = files(with_value(ix.entry(1, [count], size=4 * count))[0])
        yield Trial(f"{count}", loaded(prefix), Refused("TRUNCATED", "DAT-2", 0, file=data))
        expected = Refused("TRUNCATED", "DAT-2", 0, file=data)
        yield Trial(f"{count}, one element", loaded(prefix, key=0), expected)
    text = files(with_value(ix.entry(ix.STRING, [BIG], size=2 * BIG))[0])
    yield Trial("strings", loaded(text), Refused("TRUNCATED", "DAT-2", 0, file=data))


@case("H12")
def offsets_wrong(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    crc = ix.mask(ix.crc32c(DATA))
    for offset in (-8, -1, -(2**63), 2**63 - 1, 2**63 - 4):
        prefix = files(with_value(ix.entry(1, [2], offset=offset, size=8, masked_crc=crc))[0])
        expected = Refused("BAD_ENTRY|TRUNCATED", "ENT-4|DAT-2", ..., file=None)
        yield Trial(f"{offset}", loaded(prefix), expected)
    for offset in (1, 8, BIG):
        prefix = files(with_value(ix.entry(1, [2], offset=offset, size=8, masked_crc=crc))[0])
        expected = Refused("TRUNCATED", "DAT-2", offset, file=".data-00000-of-00001")
        yield Trial(f"{offset}", loaded(prefix), expected)


@case("H13")
def shards_wrong(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for shard in (1, -1, 2**31 - 1, -(2**31)):
        prefix = files(with_value(ix.stored_entry(1, [2], DATA, shard=shard))[0])
        yield Trial(f"{shard}", loaded(prefix), Refused("BAD_ENTRY", "ENT-3", ...))


@case("H14", "DAT-8")
def values_overlap(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD), (b"y", GOOD)))
    yield Trial("read", everything(prefix), {"x": bits(F2), "y": bits(F2)})
    yield Trial("verify", problems(prefix), [("BAD_ENTRY", "DAT-8")])


@pytest.mark.parametrize("name", case)
def test_item(name: str, tmp_path: Path) -> None:
    case.run(name, tmp_path)
