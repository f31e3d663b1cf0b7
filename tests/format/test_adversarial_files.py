# SPDX-License-Identifier: Apache-2.0
"""Malformed checkpoints: which files there are, and the footer, handles and blocks of the index."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import index as ix
from support.adversarial import (
    ALL,
    BIG,
    DATA,
    F2,
    GOOD,
    ROWS,
    SOUND,
    Cases,
    Files,
    Refused,
    Trial,
    everything,
    footer_of,
    index_of_contents,
    listed,
    loaded,
    many_blocks,
    noted,
    table,
)
from support.arrays import bits

from ckptfmt.bundle.reader import Reader

case = Cases()

# ---- A: file set and opening


@case("A01")
def index_missing(directory: Path) -> Iterator[Trial]:
    prefix = directory / "none"
    yield Trial("nothing", listed(prefix), Refused("CHECKPOINT_NOT_FOUND", None, None))
    ix.data_name(prefix, 0, 1).write_bytes(DATA)
    yield Trial("data only", listed(prefix), Refused("CHECKPOINT_NOT_FOUND", None, None))
    yield Trial(
        "no directory",
        listed(directory / "no" / "x"),
        Refused("CHECKPOINT_NOT_FOUND", None, None, file=None),
    )


@case("A02", "A03")
def index_short(directory: Path) -> Iterator[Trial]:
    content = table((b"x", GOOD)).build()
    for size in range(48):
        prefix = Files(directory)(content[-size:] if size else b"")
        yield Trial(f"{size} bytes", listed(prefix), Refused("TRUNCATED", "FTR-1", size))


@case("A04")
def index_no_file(directory: Path) -> Iterator[Trial]:
    (directory / "d.index").mkdir()
    yield Trial("directory", listed(directory / "d"), Refused("OS", None, None))
    os.mkfifo(directory / "f.index")
    yield Trial("FIFO", listed(directory / "f"), Refused("OS", None, None))
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(directory)  # the name of a socket is short
        try:
            one.bind("s.index")
        finally:
            os.chdir(here)
        yield Trial("socket", listed(directory / "s"), Refused("OS", None, None))
    (directory / "z.index").symlink_to("/dev/zero")
    yield Trial("/dev/zero", listed(directory / "z"), Refused("OS", None, None))


@case("A05")
def symlinks(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD)))
    (directory / "l.index").symlink_to(prefix.name + ".index")
    data = ix.data_name(directory / "l", 0, 1)
    data.symlink_to(ix.data_name(prefix, 0, 1).name)
    link = directory / "l"
    yield Trial("followed", everything(link), SOUND)
    yield Trial(
        "index refused", listed(link, follow_symlinks=False), Refused("BAD_PATH", None, None)
    )
    (directory / "l.index").unlink()
    os.link(f"{prefix}.index", directory / "l.index")
    yield Trial(
        "data refused",
        loaded(link, follow_symlinks=False),
        Refused("BAD_PATH", None, file=".data-00000-of-00001"),
    )
    yield Trial("and not looked at", listed(link, follow_symlinks=False), {"x": (2,)})


@case("A06")
def symlink_loop(directory: Path) -> Iterator[Trial]:
    (directory / "l.index").symlink_to("l.index")
    yield Trial("loop", listed(directory / "l"), Refused("OS", None, None))


@case("A08")
def sparse_index(directory: Path) -> Iterator[Trial]:
    for exponent in (33, 40, 43):
        with open(directory / f"s{exponent}.index", "wb") as stream:
            try:
                stream.truncate(1 << exponent)
            except OSError:  # larger than this file system has files
                continue
        yield Trial(
            f"2^{exponent}", listed(directory / f"s{exponent}"), Refused("LIMIT", "TAB-13", None)
        )


@case("A09", "J14")
def index_changes_while_open(directory: Path) -> Iterator[Trial]:
    """What was read stays as it was; what is read later is checked."""
    made, count = many_blocks()
    content = made.build()
    start, size = made.offsets[3], len(made.blocks[3].contents)
    zeros = content[:start] + bytes(size) + content[start + size :]
    short = made.offsets[3] + 10
    for label, replaced, expected in (
        ("shrinks", content[:short], Refused("TRUNCATED", "FTR-5", short)),
        ("grows", content + b"more", count),
        ("overwritten", zeros, Refused("CHECKSUM", "BLK-2", start)),
    ):
        prefix = Files(directory / label)(made, b"")

        def act(prefix: Path = prefix, replaced: bytes = replaced) -> int:
            with Reader(str(prefix)) as reader:
                assert "t00007" in reader
                with open(f"{prefix}.index", "r+b") as stream:
                    stream.write(replaced)
                    stream.truncate(len(replaced))
                assert "t00008" in reader
                return len(reader)

        yield Trial(label, act, expected)


@case("A10")
def literal_paths(directory: Path) -> Iterator[Trial]:
    content = table((b"x", GOOD)).build()
    for name in ("a*b", "a?", "[a-c]", "{x}", "a\nb", "a b", "\udc80\udcff", "", "..x", "-", "%s"):
        base = os.path.join(directory, "literal", name)
        os.makedirs(os.path.dirname(base), exist_ok=True)
        for path, piece in ((base + ".index", content), (base + ".data-00000-of-00001", DATA)):
            with open(path, "wb") as stream:
                stream.write(piece)

        def act(path: str = base) -> Any:
            with Reader(path) as reader:
                return {one: bits(handle.read()) for one, handle in reader.items()}

        yield Trial(repr(name), act, SOUND)
    yield Trial(
        "pattern", listed(directory / "literal" / "a*"), Refused("CHECKPOINT_NOT_FOUND", None)
    )
    yield Trial(
        "NUL", listed(Path(f"{directory}/a\0b")), Refused("BAD_PATH", None, None, file=None)
    )
    yield Trial(
        "long", listed(directory / ("x" * 5000)), Refused("BAD_PATH", None, None, file=None)
    )


# ---- B: footer


@case("B01")
def magic_flipped(directory: Path) -> Iterator[Trial]:
    content = table((b"x", GOOD)).build()
    files = Files(directory)
    for place in range(1, 9):
        damaged = bytearray(content)
        damaged[-place] ^= 0x40
        expected = Refused("BAD_MAGIC", "FTR-2", len(content) - 8)
        yield Trial(f"byte {place}", listed(files(bytes(damaged))), expected)


@case("B02")
def magic_swapped(directory: Path) -> Iterator[Trial]:
    made = table((b"x", GOOD), magic=ix.MAGIC[::-1])
    expected = Refused("BAD_MAGIC", "FTR-2", made.footer_offset + 40)
    yield Trial("swapped", listed(Files(directory)(made)), expected)


@case("B03")
def handles_unreadable(directory: Path) -> Iterator[Trial]:
    made = table((b"x", GOOD))
    content, start = made.build(), made.footer_offset
    good = ix.handle(made.metaindex_offset, 8)
    files = Files(directory)
    for label, handles, offset in (
        ("forty bytes of 0x80", b"\x80" * 40, start),
        ("eleven bytes", b"\xff" * 10 + b"\1", start),
        ("bit 64", b"\xff" * 9 + b"\2", start),
        ("second, bit 64", good + b"\xff" * 9 + b"\2", start + len(good)),
        ("cut by the magic", good + b"\x80" * (40 - len(good)), start + len(good)),
        ("size cut by the magic", good + b"\0" + b"\x80" * (39 - len(good)), start + len(good)),
    ):
        prefix = files(footer_of(content, handles=handles))
        yield Trial(label, listed(prefix), Refused("BAD_BLOCK", "FTR-3", offset))


@case("B04")
def handles_zero(directory: Path) -> Iterator[Trial]:
    content = table((b"x", GOOD)).build()
    prefix = Files(directory)(footer_of(content, handles=bytes(4)))
    yield Trial("zero", listed(prefix), Refused("CHECKSUM", "BLK-2", 0))


@case("B05")
def footer_padding(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD), footer_padding=0x5A))
    yield Trial("lenient", everything(prefix), SOUND)
    yield Trial("strict", noted(prefix), (True, False))


@case("B06")
def bytes_after_footer(directory: Path) -> Iterator[Trial]:
    content = table((b"x", GOOD)).build()
    for size in (1, 7, 8, 4096):
        prefix = Files(directory)(content + b"Z" * size)
        expected = Refused("BAD_MAGIC", "FTR-2", len(content) + size - 8)
        yield Trial(f"{size} bytes", listed(prefix), expected)


@case("B07")
def gaps(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD), gap_before=b"PK\3\4" * 10))
    yield Trial("lenient", everything(prefix), SOUND)
    yield Trial("strict", noted(prefix), (True, False))


@case("B08")
def rocksdb(directory: Path) -> Iterator[Trial]:
    for magic in (0x88E241B785F4CFF7, 0x8242229663BF9564, 0x4F3418EB7A8F13B8):
        made = table((b"x", GOOD), magic=struct.pack("<Q", magic))
        expected = Refused("UNSUPPORTED", "FTR-2", made.footer_offset + 40)
        yield Trial(f"{magic:x}", listed(Files(directory)(made)), expected)


# ---- C: handles


IMPOSSIBLE = (2**64 - 1, 2**64 - 5, 2**64 - 6, 2**63, BIG, 1 << 32)


def handle_trials(
    directory: Path, places: list[tuple[str, int, int]], expected: Callable[[ix.Index], Refused]
) -> Iterator[Trial]:
    """The handle of the first data block, and of the index block, at each of these places."""
    files = Files(directory)
    for label, offset, size in places:
        made = table((b"x", GOOD), handles={0: ix.handle(offset, size)})
        yield Trial(f"data block {label}", listed(files(made)), expected(made))
        whole = table((b"x", GOOD), index_handle=ix.handle(offset, size))
        footer = whole.footer_offset
        wanted = Refused("TRUNCATED", "FTR-5", footer)
        yield Trial(f"index block {label}", listed(files(whole)), wanted)


def in_index_value(made: ix.Index) -> int:
    """Where the first handle of the index block stands."""
    return made.index_offset + made.index_block.values[0]


@case("C01", "C02", "C04", "C05")
def handles_too_large(directory: Path) -> Iterator[Trial]:
    places = [(f"offset {n}", n, 10) for n in IMPOSSIBLE]
    places += [(f"size {n}", 0, n) for n in IMPOSSIBLE]
    places += [(f"sum wraps {n}", n, 2**64 - n) for n in IMPOSSIBLE[:3]]
    yield from handle_trials(
        directory, places, lambda made: Refused("TRUNCATED", "FTR-5", in_index_value(made))
    )


@case("C03")
def handle_one_too_far(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    base = table((b"x", GOOD))
    # The block, its trailer, and one byte more than there are before the footer.
    size = base.footer_offset - base.index_offset - 5 + 1
    made = table((b"x", GOOD), index_handle=ix.handle(base.index_offset, size))
    expected = Refused("TRUNCATED", "FTR-5", made.footer_offset)
    yield Trial("index block", listed(files(made)), expected)
    room = base.footer_offset - 5
    wide = table((b"x", GOOD), handles={0: ix.handle(0, room + 3)})
    yield Trial(
        "data block", listed(files(wide)), Refused("TRUNCATED", "FTR-5", in_index_value(wide))
    )


@case("C06")
def index_handle_astray(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    base = table((b"x", GOOD))
    made = table((b"x", GOOD), index_handle=ix.handle(base.footer_offset - 4, 0))
    yield Trial(
        "into the footer", listed(files(made)), Refused("TRUNCATED", "FTR-5", made.footer_offset)
    )
    # The data block taken for the index block: its header is no handle.
    wrong = table((b"x", GOOD), index_handle=ix.handle(0, len(base.blocks[0].contents)))
    first = base.blocks[0].values[0]
    yield Trial("at the data block", listed(files(wrong)), Refused("BAD_BLOCK", "TAB-4", first))


@case("C07")
def data_handle_at_the_index(directory: Path) -> Iterator[Trial]:
    base = table((b"x", GOOD))
    size = len(base.index_block.contents)
    made = table((b"x", GOOD), handles={0: ix.handle(base.index_offset, size)})
    expected = Refused("BAD_BLOCK", "TAB-4", in_index_value(made))
    yield Trial("itself", listed(Files(directory)(made)), expected)


def two_blocks(**options: Any) -> ix.Index:
    made = ix.index_of([(b"", ix.header()), (b"a", GOOD)], [(b"x", GOOD)], **options)
    made.build()
    return made


@case("C08", "C09")
def handles_twice_or_disordered(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    base = two_blocks()
    places = [ix.handle(o, len(b.contents)) for o, b in zip(base.offsets, base.blocks, strict=True)]
    for label, first, second in (
        ("same block", places[0], places[0]),
        ("swapped", places[1], places[0]),
        ("overlapping", places[0], ix.handle(base.offsets[1] - 1, 8)),
    ):
        made = two_blocks(handles={0: first, 1: second})
        at = made.index_offset + made.index_block.values[1]
        yield Trial(label, listed(files(made)), Refused("BAD_BLOCK", "TAB-4", at))


@case("C10")
def metaindex_handle(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for label, where in (
        ("beyond the file", ix.handle(BIG, 8)),
        ("wrapping", ix.handle(2**64 - 1, 2**64 - 1)),
        ("zero", ix.handle(0, 0)),
    ):
        prefix = files(table((b"x", GOOD), metaindex_handle=where))
        yield Trial(f"{label}, lenient", everything(prefix), SOUND)
        yield Trial(f"{label}, strict", noted(prefix), (True, False))
    prefix = files(table((b"x", GOOD), metaindex=b"garbage"))
    yield Trial("garbage, lenient", everything(prefix), SOUND)
    yield Trial("garbage, strict", noted(prefix), (True, False))


# ---- D: blocks


@case("D01")
def block_checksum(directory: Path) -> Iterator[Trial]:
    made = table((b"x", GOOD))
    content = made.build()
    size = len(made.blocks[0].contents)
    files = Files(directory)
    for place in range(size + 5):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        expected = Refused("CHECKSUM", "BLK-2", 0)
        yield Trial(f"byte {place}", listed(files(bytes(damaged))), expected)


@case("D02")
def block_checksum_unmasked(directory: Path) -> Iterator[Trial]:
    made = table((b"x", GOOD))
    content, size = bytearray(made.build()), len(made.blocks[0].contents)
    content[size + 1 : size + 5] = ix.u32(ix.crc32c(bytes(content[: size + 1])))
    yield Trial("plain", listed(Files(directory)(bytes(content))), Refused("CHECKSUM", "BLK-2", 0))


@case("D03")
def block_type(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for kind in (2, 3, 4, 7, 128, 255):
        made = table((b"x", GOOD), kinds={0: kind})
        at = len(made.blocks[0].contents)
        yield Trial(f"type {kind}", listed(files(made)), Refused("BAD_BLOCK", "BLK-3", at))


@case("D04")
def block_short(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for size in range(4):
        made = index_of_contents(bytes(size))
        yield Trial(f"{size} bytes", listed(files(made)), Refused("BAD_BLOCK", "BLK-4", 0))
        index = table((b"x", GOOD), index_contents=bytes(size))
        expected = Refused("BAD_BLOCK", "BLK-4", index.index_offset)
        yield Trial(f"index block of {size} bytes", listed(files(index)), expected)


@case("D05")
def block_no_restarts(directory: Path) -> Iterator[Trial]:
    contents = ix.block(ROWS, restarts=[]).contents
    prefix = Files(directory)(index_of_contents(contents))
    # It reads as empty, so that there is no header.
    yield Trial("data block", listed(prefix), Refused("BAD_HEADER", "HDR-1", 0))


@case("D06")
def block_too_many_restarts(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    size = len(ix.block(ROWS).contents)
    for count in (2**32 - 1, 2**31, 2**30, (size - 4) // 4 + 1):
        made = index_of_contents(ix.block(ROWS, restart_count=count).contents)
        yield Trial(f"{count}", listed(files(made)), Refused("BAD_BLOCK", "BLK-4", size - 4))


@case("D07")
def block_bad_restarts(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    good = ix.block(ROWS, share=False)
    end, second, third = good.entries_end, good.entries[2], good.entries[3]
    for label, restarts, at in (
        ("not at 0", [1], 0),
        ("not at 0 of two", [second, third], 0),
        ("twice", [0, 0], 1),
        ("down", [0, third, second], 2),
        ("inside an entry", [0, second + 1], 1),
        ("at the end", [0, end], 1),
        ("beyond", [0, 2**32 - 1], 1),
    ):
        contents = ix.block(ROWS, restarts=restarts, share=False).contents
        prefix = files(index_of_contents(contents))
        expected = Refused("BAD_BLOCK", "BLK-9", end + 4 * at)
        yield Trial(label, listed(prefix), expected)
        yield Trial(f"{label}, lookup", loaded(prefix, "ab"), expected)


@case("D08")
def block_restart_shares(directory: Path) -> Iterator[Trial]:
    good = ix.block(ROWS)
    contents = ix.block(ROWS, restarts=[0, good.entries[2]]).contents
    prefix = Files(directory)(index_of_contents(contents))
    expected = Refused("BAD_BLOCK", "BLK-10", good.entries[2])
    yield Trial("restart at an entry that shares", listed(prefix), expected)


def lying(*numbers: int, content: bytes = b"") -> tuple[bytes, int]:
    """Contents whose second entry gives these numbers, and where that begins."""
    head = ix.raw_entry(0, 0, len(ix.header()), ix.header())
    entries = head + ix.raw_entry(*numbers, content)
    return entries + ix.u32(0) + ix.u32(1), len(head)


@case("D09")
def block_shares_too_much(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for shared in (1, 2**31, 2**32 - 1):
        contents, at = lying(shared, 1, len(GOOD), content=b"x" + GOOD)
        prefix = files(index_of_contents(contents))
        yield Trial(f"{shared}", listed(prefix), Refused("BAD_BLOCK", "BLK-7", at))
    contents = ix.raw_entry(1, 0, 6, ix.header()) + ix.u32(0) + ix.u32(1)
    # The first entry stands at a restart as well, which is seen first.
    yield Trial(
        "first", listed(files(index_of_contents(contents))), Refused("BAD_BLOCK", "BLK-10", 0)
    )


@case("D10", "D11")
def block_sizes_too_large(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for unshared, size in (
        (2**32 - 1, 2),
        (2**31, 2**31 + 1),
        (50, 2**32 - 48),
        (2**32 - 1, 2**32 - 1),
        (1, len(GOOD) + 1),
        (len(GOOD) + 2, 0),
        (0, 2**31),
    ):
        contents, at = lying(0, unshared, size, content=b"x" + GOOD)
        prefix = files(index_of_contents(contents))
        yield Trial(f"{unshared}, {size}", listed(prefix), Refused("BAD_BLOCK", "BLK-8", at))


@case("D12", "D13")
def block_entry_unreadable(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    head = ix.raw_entry(0, 0, len(ix.header()), ix.header())
    for label, tail in (
        ("33 bits", b"\0\xff\xff\xff\xff\x10" + b"\1x"),
        ("six bytes", b"\0\x80\x80\x80\x80\x80\0\0x"),
        ("one byte", b"\0"),
        ("two bytes", b"\0\1"),
        ("varint cut", b"\0\1\x80"),
    ):
        prefix = files(index_of_contents(head + tail + ix.u32(0) + ix.u32(1)))
        yield Trial(label, listed(prefix), Refused("BAD_BLOCK", "BLK-6", len(head)))


@case("D14")
def block_trailing_bytes(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    good = ix.block(ROWS)
    for tail, rule in ((b"\0\0", "BLK-6"), (b"\xff\xff\xff", "BLK-6"), (b"\0\1\5", "BLK-8")):
        prefix = files(index_of_contents(ix.block(ROWS, tail=tail).contents))
        expected = Refused("BAD_BLOCK", rule, good.entries_end)
        yield Trial(tail.hex(), listed(prefix), expected)
    # Three zeros are an entry: an empty key, which comes too late.
    prefix = files(index_of_contents(ix.block(ROWS, tail=bytes(3)).contents))
    expected = Refused("BAD_ORDER", "TAB-1", good.entries_end)
    yield Trial("an empty entry", listed(prefix), expected)


@case("D15")
def block_over_the_limit(directory: Path) -> Iterator[Trial]:
    size = (64 << 20) + 1
    prefix = directory / "sparse"
    with open(f"{prefix}.index", "wb") as stream:
        stream.truncate(size + 5)
        stream.seek(size + 5)
        made = ix.block([(b"x", ix.handle(0, size))], interval=1).contents
        stream.write(ix.with_trailer(ix.EMPTY_BLOCK))
        stream.write(ix.with_trailer(made))
        place = size + 5
        stream.write(ix.footer(ix.handle(place, 8), ix.handle(place + 13, len(made))))
    yield Trial("data block", listed(prefix), Refused("LIMIT", "BLK-14", 0))


@case("D16")
def block_not_canonical(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for label, contents in (
        ("nothing shared", ix.block(ROWS, share=False).contents),
        ("a restart each", ix.block(ROWS, interval=1).contents),
        ("one restart of many", ix.block(ROWS, interval=1000).contents),
        ("long varints", long_varints()),
    ):
        prefix = files(index_of_contents(contents), DATA * 3)
        yield Trial(f"{label}, read", everything(prefix), ALL)
        yield Trial(f"{label}, lookup", loaded(prefix, "ab"), bits(F2))
    prefix = files(index_of_contents(ix.block(ROWS, interval=1).contents), DATA * 3)
    yield Trial("strict", noted(prefix), (True, False))


def long_varints() -> bytes:
    out = b""
    for key, value in ROWS:
        out += ix.varint(0, 5) + ix.varint(len(key), 4) + ix.varint(len(value), 3) + key + value
    return out + ix.u32(0) + ix.u32(1)


@pytest.mark.parametrize("name", case)
def test_item(name: str, tmp_path: Path) -> None:
    case.run(name, tmp_path)
