# SPDX-License-Identifier: Apache-2.0
"""Malformed checkpoints: slices, and what lies in the data files."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index as ix
from support.adversarial import (
    ALL,
    DATA,
    DATA_FILE,
    EIGHT,
    F2,
    FOUR,
    GOOD,
    ROW4,
    ROWS,
    SOUND,
    Cases,
    Files,
    Refused,
    Trial,
    everything,
    index_of_contents,
    listed,
    loaded,
    noted,
    partitioned,
    problems,
    table,
    with_value,
)
from support.arrays import bits
from support.process import Spent

import ckptfmt
from ckptfmt.bundle.reader import Reader

case = Cases()

# ---- I: slices


@case("I01", "I02")
def extents_bad(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    huge = 7954877770267194415
    for label, extent, rule in (
        ("start -1", (-1, 2), "SLC-4"),
        ("length -2", (0, -2), "SLC-4"),
        ("length 0", (0, 0), "SLC-4"),
        ("start without length", (2, -1), "SLC-3"),
        ("too long", (0, 5), "SLC-4"),
        ("past the end", (3, 2), "SLC-4"),
        ("at the end", (4, 1), "SLC-4"),
        ("wraps", (huge, huge), "SLC-4"),
        ("largest", (2**63 - 1, 2**63 - 1), "SLC-4"),
        ("smallest", (-(2**63), 1), "SLC-4"),
        ("length -2^63", (0, -(2**63)), "SLC-4"),
    ):
        full = ix.entry(1, [4], slices=[ix.slice_message([extent])])
        prefix = files(table((b"x", full)), FOUR)
        yield Trial(label, loaded(prefix), Refused("BAD_SLICE", rule, ..., file=None))


@case("I03", "I04")
def extent_counts(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for label, extents in (("none", []), ("too few", [(0, 2)]), ("too many", [(0, 2)] * 3)):
        full = ix.entry(1, [2, 2], slices=[ix.slice_message(extents)])
        made, where = with_value(full)
        yield Trial(label, listed(files(made)), Refused("BAD_SLICE", "SLC-2", where))


@case("I05")
def slices_overlap(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for extents in ([[(0, 2)], [(1, 2)]], [[(0, 3)], [(2, 2)]], [[(0, 4)], [(1, 1)]]):
        prefix = files(partitioned(extents, [4]), EIGHT)
        expected = Refused("BAD_SLICE", "SLC-6", ..., file=None)
        yield Trial(f"{extents}", loaded(prefix), expected)
        yield Trial(f"{extents}, a part", loaded(prefix, key=slice(1, 3)), expected)


@case("I06")
def slices_with_a_hole(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    prefix = files(partitioned([[(0, 1)], [(3, 1)]], [4]), FOUR)
    expected = Refused("BAD_SLICE", "SLC-11", ..., file=None)
    yield Trial("all", loaded(prefix), expected)
    yield Trial("touching the hole", loaded(prefix, key=slice(0, 2)), expected_hole())
    yield Trial("beside the hole", loaded(prefix, key=slice(3, 4)), bits(ROW4[1:2]))
    yield Trial("nothing", loaded(prefix, key=slice(2, 2)), bits(ROW4[:0]))


def expected_hole() -> Refused:
    return Refused("BAD_SLICE", "SLC-11", ..., file=None)


@case("I07")
def slice_entry_missing(directory: Path) -> Iterator[Trial]:
    made = partitioned([[(0, 2)], [(2, 2)]], [4], keys=[[(0, 2)]])
    prefix = Files(directory)(made, FOUR)
    yield Trial("listed", listed(prefix), {"x": (4,)})
    yield Trial("needed", loaded(prefix), Refused("BAD_SLICE", "SLC-7", ..., file=None))
    yield Trial("not needed", loaded(prefix, key=slice(0, 2)), bits(ROW4[:2]))


@case("I08", "I09")
def slice_entry_disagrees(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    half = FOUR[:8]
    for label, entry in (
        ("smaller", ix.stored_entry(1, [1], half[:4])),
        ("larger", ix.stored_entry(1, [4], FOUR)),
        ("other rank", ix.stored_entry(1, [2, 1], half)),
        ("scalar", ix.stored_entry(1, [], half[:4])),
        ("other dtype", ix.stored_entry(3, [2], half)),
        ("wider dtype", ix.stored_entry(2, [2], FOUR)),
    ):
        second = ix.stored_entry(1, [2], FOUR[8:], 8)
        made = partitioned([[(0, 2)], [(2, 2)]], [4], entries=[entry, second])
        expected = Refused("BAD_SLICE", "SLC-[89]", ..., file=None)
        yield Trial(label, loaded(files(made, FOUR)), expected)


@case("I10")
def slices_twice(directory: Path) -> Iterator[Trial]:
    made = partitioned([[(0, 2)], [(0, 2)], [(2, 2)]], [4], keys=[[(0, 2)], [(2, 2)]])
    expected = Refused("BAD_SLICE", "SLC-6", ..., file=None)
    yield Trial("twice", loaded(Files(directory)(made, FOUR)), expected)


@case("I11")
def slices_nested(directory: Path) -> Iterator[Trial]:
    inner = [ix.slice_message([(0, 1)])]
    entries = [
        ix.stored_entry(1, [2], FOUR[:8], slices=inner),
        ix.stored_entry(1, [2], FOUR[8:], 8),
    ]
    prefix = Files(directory)(partitioned([[(0, 2)], [(2, 2)]], [4], entries=entries), FOUR)
    yield Trial("ignored", everything(prefix), {"x": bits(ROW4)})
    yield Trial("strict", noted(prefix), (True, False))


@case("I12")
def full_entry_odd(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    extra = ix.number(4, 77) + ix.number(5, 88) + ix.fixed32(6, 99)
    prefix = files(partitioned([[(0, 2)], [(2, 2)]], [4], extra=extra), FOUR)
    yield Trial("with a place", everything(prefix), {"x": bits(ROW4)})
    yield Trial("strict", noted(prefix), (True, False))
    full = partitioned([[(0, -1)]], [4])
    expected = Refused("BAD_SLICE", "SLC-5", ..., file=None)
    yield Trial("a slice that is all", loaded(files(full, FOUR)), expected)
    mixed = partitioned([[(0, -1)], [(0, 2)]], [4])
    expected = Refused("BAD_SLICE", "SLC-[56]", ..., file=None)
    yield Trial("all and a part", loaded(files(mixed, EIGHT)), expected)


@case("I13")
def slice_keys_damaged(directory: Path) -> Iterator[Trial]:
    """Damaged, they are the names of other tensors; the slices they should be are missing."""
    files = Files(directory)
    good = ix.slice_key(b"x", [(0, 2)])
    second = ix.slice_key(b"x", [(2, 2)])
    for label, key in (
        ("bad escape", good.replace(b"x\0\1", b"x\0\2")),
        ("no end of the name", b"\0x"),
        ("number not minimal", good.replace(b"\0\1\1\1", b"\0\1\2\0\1")),
        ("too long a number", good.replace(b"\0\1\1\1", b"\0\1\x09\1")),
        ("cut", good[:-1]),
        ("more after it", good + b"\0"),
        ("other extent", ix.slice_key(b"x", [(0, 1)])),
        ("negative start", ix.slice_key(b"x", [(-1, 2)])),
    ):
        full = ix.entry(1, [4], slices=[ix.slice_message([(0, 2)]), ix.slice_message([(2, 2)])])
        rows = [
            (key, ix.stored_entry(1, [2], FOUR[:8])),
            (second, ix.stored_entry(1, [2], FOUR[8:], 8)),
        ]
        prefix = files(table(*sorted(rows), (b"x", full)), FOUR)
        yield Trial(label, loaded(prefix), Refused("BAD_SLICE", "SLC-7", ..., file=None))
        text = key.decode("utf-8", "surrogateescape")
        yield Trial(f"{label}, listed", listed(prefix), {text: (2,), "x": (4,)})
    for label, extent, keyed in (
        ("listed below 0", (-1, 2), (-1, 2)),
        ("listed with no elements", (1, 0), (1, 0)),
        ("listed with length -2", (0, -2), (0, -2)),
        ("listed full from 1 on", (1, -1), (0, -1)),
    ):
        full = ix.entry(1, [4], slices=[ix.slice_message([extent]), ix.slice_message([(2, 2)])])
        key = ix.slice_key(b"x", [keyed])
        rows = [
            (key, ix.stored_entry(1, [2], FOUR[:8])),
            (second, ix.stored_entry(1, [2], FOUR[8:], 8)),
        ]
        prefix = files(table(*sorted(rows), (b"x", full)), FOUR)
        yield Trial(label, listed(prefix), {"x": (4,)})
        absent = Refused("TENSOR_NOT_FOUND", None)
        yield Trial(f"{label}, looked up", loaded(prefix, key), absent)
    for start in (63, 64, 8191, 8192, 2**20, 2**34, 2**55):
        dims = [start + 2]
        extents = [[(start, 2)]]
        prefix = files(partitioned(extents, dims), FOUR)
        part = loaded(prefix, key=slice(start, None))
        yield Trial(f"start {start}", part, bits(ROW4[:2]))


@case("I14")
def many_slices(directory: Path) -> Iterator[Trial]:
    count = 20_000
    data = np.arange(count, dtype=np.float32).tobytes()
    slices = [ix.slice_message([(at, 1)]) for at in range(count)]
    rows = [
        (
            ix.slice_key(b"x", [(at, 1)]),
            ix.stored_entry(1, [1], data[4 * at : 4 * at + 4], 4 * at),
        )
        for at in range(count)
    ]
    made = table(*rows, (b"x", ix.entry(1, [count], slices=slices)))
    prefix = Files(directory)(made, data)
    yield Trial("all", loaded(prefix), bits(np.arange(count, dtype=np.float32)))

    def act() -> int:
        with Reader(str(prefix)) as reader:
            handle = reader["x"]
            handle[0]
            with Spent() as spent:
                handle[count - 1]
            return spent.bytes_read

    yield Trial("one slice", act, 4)


# ---- J: data files


@case("J01")
def data_missing(directory: Path) -> Iterator[Trial]:
    entry = ix.stored_entry(1, [2], DATA, shard=1)
    made = table((b"w", GOOD), (b"x", entry), head=ix.header(2))
    prefix = Files(directory)(made, {0: DATA}, 2)
    yield Trial("listed", listed(prefix), {"w": (2,), "x": (2,)})
    yield Trial("there", loaded(prefix, "w"), bits(F2))
    expected = Refused("SHARD_MISSING", None, ..., file=".data-00001-of-00002")
    yield Trial("missing", loaded(prefix), expected)


@case("J02")
def data_cut(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for size in range(len(DATA)):
        prefix = files(table((b"x", GOOD)), DATA[:size])
        expected = Refused("TRUNCATED", "DAT-2", 0, file=DATA_FILE)
        yield Trial(f"{size}", loaded(prefix), expected)


@case("J03")
def data_longer(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD)), DATA + b"more")
    yield Trial("read", everything(prefix), SOUND)
    yield Trial("verify", noted(prefix), (True, False))


@case("J04")
def data_checksum(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for bit in range(8 * len(DATA)):
        damaged = bytearray(DATA)
        damaged[bit // 8] ^= 1 << bit % 8
        prefix = files(table((b"x", GOOD)), bytes(damaged))
        expected = Refused("CHECKSUM", "DAT-6", 0, file=DATA_FILE, names=None)
        yield Trial(f"bit {bit}", loaded(prefix), expected)


@case("J05")
def data_checksum_unmasked(directory: Path) -> Iterator[Trial]:
    entry = ix.entry(1, [2], size=8, masked_crc=ix.crc32c(DATA))
    prefix = Files(directory)(table((b"x", entry)))
    yield Trial("plain", loaded(prefix), Refused("CHECKSUM", "DAT-6", 0, file=DATA_FILE))


@case("J06")
def data_no_file(directory: Path) -> Iterator[Trial]:
    for name, make in (("directory", Path.mkdir), ("FIFO", os.mkfifo)):
        prefix = Files(directory / name)(table((b"x", GOOD)))
        data = ix.data_name(prefix, 0, 1)
        data.unlink()
        make(data)
        yield Trial(name, loaded(prefix), Refused("OS", None, ..., file=DATA_FILE))


@case("J07")
def data_swapped(directory: Path) -> Iterator[Trial]:
    other = np.array([3, 4], np.float32).tobytes()
    rows = [(b"w", GOOD), (b"x", ix.stored_entry(1, [2], other, shard=1))]
    prefix = Files(directory)(table(*rows, head=ix.header(2)), {0: other, 1: DATA}, 2)
    for name, shard in (("w", 0), ("x", 1)):
        expected = Refused("CHECKSUM", "DAT-6", 0, file=f".data-0000{shard}-of-00002")
        yield Trial(name, loaded(prefix, name), expected)


@case("J08")
def generations_mixed(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD)), DATA[:4])
    hint = Refused("TRUNCATED", "DAT-2", 0, file=DATA_FILE, names="different saves")
    yield Trial("shorter", loaded(prefix), hint)


@case("J09")
def padding_not_zero(directory: Path) -> Iterator[Trial]:
    rows = [(b"w", GOOD), (b"x", ix.stored_entry(1, [2], DATA, 64))]
    prefix = Files(directory)(table(*rows), DATA + b"\1" * 56 + DATA)
    yield Trial("read", everything(prefix), {"w": bits(F2), "x": bits(F2)})
    yield Trial("verify", noted(prefix), (True, False))


@case("J10")
def mapping_outlives(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD)))
    data = ix.data_name(prefix, 0, 1)

    def act() -> tuple[Any, bool, str]:
        with Reader(str(prefix)) as reader:
            array = reader["x"].map()
        other = directory / "other"
        other.write_bytes(bytes(8))
        other.rename(data)
        data.unlink()
        try:
            array[0] = 1
        except ValueError as error:
            return bits(array), array.flags.writeable, str(error)
        return bits(array), array.flags.writeable, ""

    yield Trial("mapped", act, (bits(F2), False, "assignment destination is read-only"))


@case("J11", "J12")
def mapped(directory: Path) -> Iterator[Trial]:
    entry = ix.stored_entry(1, [2], DATA, 1)
    text, crc = ix.string_value([b"a"])
    rows = [
        (b"s", ix.entry(ix.STRING, [1], offset=9, size=len(text), masked_crc=crc)),
        (b"x", entry),
    ]
    prefix = Files(directory)(table(*rows), b"!" + DATA + text)

    def act(name: str) -> Any:
        with Reader(str(prefix)) as reader:
            return bits(reader[name].map())

    yield Trial("unaligned", lambda: act("x"), bits(F2))
    yield Trial("strings", lambda: act("s"), Refused("ARGUMENT", None, ..., file=None))


@case("J15", "J16")
def odd_bits(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    raw = bytes([0, 1, 2, 255])
    prefix = files(with_value(ix.stored_entry(10, [4], raw))[0], raw)

    def act() -> bytes:
        with Reader(str(prefix)) as reader:
            return reader["x"].read().tobytes()

    yield Trial("bool", act, raw)
    odd = struct.pack("<6I", 0x7FC00001, 0xFFFFFFFF, 0x7F800000, 1, 0x80000000, 0x7F800001)
    floats = files(with_value(ix.stored_entry(1, [6], odd))[0], odd)
    yield Trial("floats", loaded(floats), bits(np.frombuffer(odd, np.float32)))


# ---- K: strings


def text_trial(
    files: Files, label: str, count: int, value: bytes, crc: int, expected: Any
) -> Trial:
    entry = ix.entry(ix.STRING, [count], size=len(value), masked_crc=crc)
    return Trial(label, loaded(files(with_value(entry)[0], value)), expected)


def text_refused(rule: str, offset: Any = ..., failure: str = "BAD_ENTRY") -> Refused:
    return Refused(failure, rule, offset, file=DATA_FILE)


@case("K01", "K02", "K03", "K06")
def string_sizes(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    good, crc = ix.string_value([b"ab", b"c"])
    yield text_trial(files, "sound", 2, good, crc, ((2,), "object", (b"ab", b"c")))
    for count in (2**33, 2**61, len(good) - 3):
        expected = Refused("BAD_ENTRY", "STR-2", ..., file=None)
        yield text_trial(files, f"{count} elements", count, good, crc, expected)
    for label, sizes, rule in (
        ("2^40", ix.varint(2**40) + b"\1", "STR-[34]"),
        ("2^64 - 1 twice", ix.varint(2**64 - 1) * 2, "STR-[34]"),
        ("wraps", ix.varint(2**63) + ix.varint(2**63 + 3), "STR-[34]"),
        ("one more", b"\2\2", "STR-4"),
        ("one less", b"\2\0", "STR-4"),
    ):
        numbers = read_sizes(sizes)
        packed = b"".join(struct.pack("<I" if n < 2**32 else "<Q", n) for n in numbers)
        sizes_crc = ix.crc32c(packed)
        stored = ix.u32(ix.mask(sizes_crc))
        whole = ix.mask(ix.crc32c(stored + b"abc", sizes_crc))
        value = sizes + stored + b"abc"
        yield text_trial(files, label, 2, value, whole, text_refused(rule))
    endless = b"\xff" * 30
    yield text_trial(files, "endless varint", 2, endless, 0, text_refused("STR-3", 0))
    yield text_trial(
        files, "varint of 65 bits", 1, b"\xff" * 9 + b"\2" + bytes(9), 0, text_refused("STR-3", 0)
    )
    yield text_trial(
        files, "no room for the checksum", 2, b"\x80\x80\1\0\0\0", 0, text_refused("STR-3")
    )


def read_sizes(sizes: bytes) -> list[int]:
    found, position = [], 0
    while position < len(sizes):
        value, position = ix.read_varint(sizes, position)
        found.append(value)
    return found


@case("K04", "K05")
def string_checksums(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    good, crc = ix.string_value([b"ab", b"c"])
    for place in range(2, 6):
        value = bytearray(good)
        value[place] ^= 1
        expected = text_refused("STR-5", ..., "CHECKSUM")
        yield text_trial(files, f"of the sizes, byte {place}", 2, bytes(value), crc, expected)
    for bit in range(32):
        expected = text_refused("STR-6", 0, "CHECKSUM")
        yield text_trial(files, f"of all, bit {bit}", 2, good, crc ^ 1 << bit, expected)
    lower = bytes([*good[:-1], good[-1] ^ 1])
    yield text_trial(files, "last byte", 2, lower, crc, text_refused("STR-6", 0, "CHECKSUM"))


@case("K07")
def string_old_sizes(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    good, crc = ix.string_value([b"ab"])
    wide = ix.varint(2, 9) + good[1:]
    yield text_trial(files, "long varint", 1, wide, crc, ((1,), "object", (b"ab",)))
    sizes_crc = ix.crc32c(struct.pack("<Q", 2))
    stored = ix.u32(ix.mask(sizes_crc))
    value = b"\2" + stored + b"ab"
    whole = ix.mask(ix.crc32c(stored + b"ab", sizes_crc))
    yield text_trial(
        files, "size as 8 bytes", 1, value, whole, text_refused("STR-5", ..., "CHECKSUM")
    )


@case("K08")
def string_no_elements(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    none = ((0,), "object", ())
    value, crc = ix.string_value([])
    yield text_trial(files, "four bytes", 0, value, crc, none)
    yield text_trial(files, "no bytes", 0, b"", ix.mask(0), none)
    expected = Refused("CHECKSUM", "ENT-8", ..., file=None)
    yield text_trial(files, "no bytes, checksum wrong", 0, b"", 7, expected)
    for size in (1, 2, 3):
        yield text_trial(
            files,
            f"{size} bytes",
            0,
            value[:size],
            crc,
            Refused("BAD_ENTRY", "STR-[234]", ..., file=None),
        )
    yield text_trial(files, "five bytes", 0, value + b"x", crc, text_refused("STR-4"))


@case("K10")
def variant_damage(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    good, crc = ix.variant_value([b"abc", b"de"])

    def trial(label: str, value: bytes, masked: int, expected: Any, count: int = 2) -> Trial:
        entry = ix.entry(ix.VARIANT, [count], size=len(value), masked_crc=masked)
        return Trial(label, loaded(files(with_value(entry)[0], value)), expected)

    first = bytearray(good)
    first[1] ^= 1
    yield trial("payload", bytes(first), crc, text_refused("VAR-3", ..., "CHECKSUM"))
    yield trial("all", good, crc ^ 1, text_refused("VAR-4", 0, "CHECKSUM"))
    yield trial("left over", good + b"\0", crc, text_refused("VAR-2"))
    yield trial("cut", good[:-1], crc, text_refused("VAR-2"))
    few = Refused("BAD_ENTRY", "VAR-2", ..., file=None)
    yield trial("too many elements", good, crc, few, 2**40)
    huge = ix.varint(2**64 - 1) + good[1:]
    yield trial("size 2^64 - 1", huge, crc, text_refused("VAR-2"))


# ---- L: Snappy


def snappy(contents: bytes) -> bytes:
    """The contents as one literal."""
    size = len(contents) - 1
    return ix.varint(len(contents)) + b"\xf4" + size.to_bytes(2, "little") + contents


def offsets(prefix: Path) -> Callable[[], set[int | None]]:
    """Offsets in the index of the problems that verify finds."""

    def act() -> set[int | None]:
        report = ckptfmt.verify(prefix)
        assert report.problems
        about = report.problems
        return {one.offset for one in about if one.path and one.path.endswith(".index")}

    return act


@case("L11")
def snappy_blocks(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    contents = ix.block(ROWS).contents
    good = snappy(contents)

    def made(stream: bytes) -> ix.Index:
        return index_of_contents(stream, kinds={0: 1})

    prefix = files(made(good), DATA * 3)
    yield Trial("sound", everything(prefix), ALL)
    yield Trial("sound, strict", noted(prefix), (True, False))
    head = ix.varint(len(contents))
    for label, stream, rule in (
        ("empty", b"", "SNP-2"),
        ("size cut", b"\x80", "SNP-2"),
        ("size 0xfffffff0", ix.varint(0xFFFFFFF0) + good[len(head) :], "SNP-3"),
        ("size of 33 bits", b"\xff\xff\xff\xff\x1f" + good, "SNP-2"),
        ("copy before the start", head + b"\x01\x01" + good[len(head) :], "SNP-6"),
        ("distance 0", head + b"\x00A\x01\x00" + good[len(head) :], "SNP-6"),
        ("literal cut", good[:-1], "SNP-8"),
        ("copy cut", good + b"\x02\x01", "SNP-[89]"),
        ("more than declared", good + b"\x00A", "SNP-9"),
        ("less than declared", ix.varint(len(contents) + 1) + good[len(head) :], "SNP-9"),
        ("declares nothing", b"\0" + good[len(head) :], "SNP-9"),
    ):
        where = range(len(stream) + 1)
        yield Trial(label, listed(files(made(stream))), Refused("BAD_BLOCK", rule, where))


@case("SNP-1")
def offsets_in_snappy_blocks(directory: Path) -> Iterator[Trial]:
    """What breaks a rule in a block that was compressed has the offset of the block."""
    files = Files(directory)
    for label, message, failure, rule in (
        ("entry", GOOD + b"\x7e", "BAD_PROTO", "MSG-6"),
        ("shape", ix.entry(1, shape_content=b"\x12\5\x08"), "BAD_PROTO", "MSG-5"),
        ("negative dimension", ix.entry(1, [-1]), "BAD_SHAPE", "SHP-2"),
        ("extension", GOOD + ix.nested(100, b"\x08\1\x18"), "BAD_PROTO", "MSG-3"),
        ("slice", ix.entry(1, [4], slices=[b"\x0a\0\x0a\0"]), "BAD_SLICE", "SLC-2"),
    ):
        made = ix.index_of([(b"", ix.header())], [(b"x", message)], kinds={1: 1})
        made.blocks[1] = ix.Block(snappy(made.blocks[1].contents))
        prefix = files(made)
        expected = Refused(failure, rule, made.offsets[1])
        assert made.offsets[1] > 0
        yield Trial(f"{label}, listed", listed(prefix), expected)
        yield Trial(f"{label}, looked up", loaded(prefix), expected)
        yield Trial(f"{label}, verified", offsets(prefix), {made.offsets[1]})
    made = ix.index_of([(b"", ix.header() + b"\x7e")], [(b"x", GOOD)], kinds={0: 1})
    made.gap_before = b"gap"
    made.blocks[0] = ix.Block(snappy(made.blocks[0].contents))
    yield Trial("header", listed(files(made)), Refused("BAD_PROTO", "MSG-6", 3))


@case("L12")
def feature_flags(directory: Path) -> Iterator[Trial]:
    flagged = ix.stored_entry(1, [2], DATA, extra=ix.extension(0, [], flags=1 << 40))
    prefix = Files(directory)(table((b"w", flagged), (b"x", GOOD)))
    yield Trial("listed", listed(prefix), {"w": (2,), "x": (2,)})
    yield Trial("read", loaded(prefix, "w"), Refused("UNSUPPORTED", "EXT-3", ..., file=None))
    yield Trial("the other", loaded(prefix), bits(F2))


@case("EXT-2", "EXT-4", "EXT-5", "EXT-6", "EXT-9")
def chunk_checksums(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    crcs = [ix.crc32c(DATA[:4]), ix.crc32c(DATA[4:])]

    def made(extra: bytes) -> Path:
        return files(table((b"x", ix.stored_entry(1, [2], DATA, extra=extra))))

    yield Trial("sound", everything(made(ix.extension(4, crcs))), SOUND)
    for label, chunk, given in (
        ("too few", 4, crcs[:1]),
        ("too many", 4, [*crcs, 0]),
        ("chunk size 2^32", 1 << 32, crcs[:1]),
        ("chunk size 2^64 - 1", 2**64 - 1, crcs[:1]),
    ):
        expected = Refused("BAD_ENTRY", "EXT-[45]", ..., file=None)
        yield Trial(label, loaded(made(ix.extension(chunk, given))), expected)
    ragged = ix.nested(100, ix.number(2, 4) + ix.nested(3, b"1234567"))
    yield Trial("no multiple of 4", loaded(made(ragged)), Refused("BAD_ENTRY", "EXT-2"))
    no_size = ix.nested(100, ix.nested(3, b"12345678"))
    yield Trial("no chunk size", loaded(made(no_size)), Refused("BAD_ENTRY", "EXT-4"))
    one = ix.extension(8, [ix.crc32c(DATA)])
    yield Trial("one chunk", loaded(made(one)), Refused("BAD_ENTRY", "EXT-5"))
    wrong = ix.extension(4, [crcs[0], crcs[1] ^ 1])
    both = [("CHECKSUM", "EXT-6"), ("CHECKSUM", "EXT-9")]
    yield Trial("contradiction", problems(made(wrong)), both)


@pytest.mark.parametrize("name", case)
def test_item(name: str, tmp_path: Path) -> None:
    case.run(name, tmp_path)
