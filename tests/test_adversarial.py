# SPDX-License-Identifier: Apache-2.0
"""Malformed checkpoints, one case an item of the adversarial checklist, each by its id.

The files come from `support.index`, with checksums that fit, so that the check meant is reached.
A refusal is exact: failure class, rule, file, and the offset wherever the damage has one place. No
case may take much memory or time, or leave a file open.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index as ix
from support.arrays import bits
from support.process import Spent, memory_limit, open_files

import ckptfmt
from ckptfmt import CkptfmtError, _core
from ckptfmt.reader import Reader

MEMORY = 64 << 20
SECONDS = 5
BIG = 1 << 40

F2 = np.array([1, 2], np.float32)
DATA = F2.tobytes()
GOOD = ix.stored_entry(ix.FLOAT, [2], DATA)


@dataclass
class Refused:
    """What an error must be. `offset` None: it has none; a range: it lies there."""

    failure: str
    rule: str | None
    offset: int | range | type(Ellipsis) | None = ...
    file: str | None = ".index"
    names: str | None = None  # what the message must say


@dataclass
class Trial:
    label: str
    act: Callable[[], Any]
    expected: Any
    memory: int = MEMORY


Case = Callable[[Path], Iterator[Trial]]
CASES: dict[str, Case] = {}


def case(*identifiers: str) -> Callable[[Case], Case]:
    """Files a case under the items of the checklist that it stands for."""

    def file_under(made: Case) -> Case:
        name = "+".join(identifiers)
        assert name not in CASES
        CASES[name] = made
        return made

    return file_under


# ---- what is done to a file


def listed(prefix: Path, **options: Any) -> Callable[[], dict[str, tuple[int, ...]]]:
    """Opens and lists: name to shape."""

    def act() -> dict[str, tuple[int, ...]]:
        with Reader(str(prefix), **options) as reader:
            return {name: handle.shape for name, handle in reader.items()}

    return act


def loaded(prefix: Path, name: str | bytes = "x", key: Any = None) -> Callable[[], Any]:
    """Looks one tensor up, without a listing, and reads it or a part of it."""

    def act() -> Any:
        with Reader(str(prefix)) as reader:
            handle = reader[name]
            return bits(handle.read() if key is None else handle[key])

    return act


def everything(prefix: Path) -> Callable[[], dict[str, Any]]:
    """Lists and reads all."""

    def act() -> dict[str, Any]:
        with Reader(str(prefix)) as reader:
            return {name: bits(handle.read()) for name, handle in reader.items()}

    return act


def problems(prefix: Path) -> Callable[[], list[tuple[str, str]]]:
    """Failure and rule of each problem that verifying finds."""

    def act() -> list[tuple[str, str]]:
        report = ckptfmt.verify(prefix)
        return [(one.failure, one.message.partition(":")[0]) for one in report.problems]

    return act


def noted(prefix: Path) -> Callable[[], tuple[bool, bool]]:
    """Whether verifying finds it sound, and whether it finds it canonical."""

    def act() -> tuple[bool, bool]:
        return ckptfmt.verify(prefix).ok, ckptfmt.verify(prefix, strict=True).ok

    return act


# ---- files


class Files:
    """Numbered prefixes in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.count = directory, 0

    def __call__(self, index: ix.Index | bytes, data: Any = DATA, num_shards: int = 1) -> Path:
        self.count += 1
        return ix.write(self.directory / f"c{self.count}", index, data, num_shards)


def table(*rows: ix.Row, head: bytes | None = None, **options: Any) -> ix.Index:
    """An index of one block with header and rows, built so that its positions are known."""
    made = ix.index_of([(b"", ix.header() if head is None else head), *rows], **options)
    made.build()
    return made


def with_value(value: bytes, name: bytes = b"x") -> tuple[ix.Index, range]:
    """An index whose only entry is `value`, and where in the file that lies."""
    made = table((name, value))
    start = made.blocks[0].values[1]
    return made, range(start, start + len(value) + 1)


SOUND = {"x": bits(F2)}


def footer_of(content: bytes, *, handles: bytes, padding: int = 0) -> bytes:
    """The file with other handles in its footer."""
    return content[:-48] + handles + bytes([padding]) * (40 - len(handles)) + content[-8:]


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
        listed(link, follow_symlinks=False),
        Refused("BAD_PATH", None, None, file=".data-00000-of-00001"),
    )


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


def many_blocks() -> tuple[ix.Index, int]:
    """An index larger than what opening reads of its end, and its number of tensors."""
    value = ix.entry(1, [0], masked_crc=ix.mask(0))
    groups: list[list[ix.Row]] = [[(b"", ix.header())]]
    for first in range(0, 6000, 1000):
        groups.append([(b"t%05d" % number, value) for number in range(first, first + 1000)])
    return ix.index_of(*groups), 6000


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


def index_of_contents(contents: bytes, last_key: bytes = b"x", **options: Any) -> ix.Index:
    return ix.raw_index(contents, last_key, **options)


ROWS: list[ix.Row] = [(b"", ix.header())]
ROWS += [
    (name, ix.stored_entry(ix.FLOAT, [2], DATA, 8 * number))
    for number, name in enumerate((b"a", b"ab", b"x"))
]
ALL = dict.fromkeys(("a", "ab", "x"), bits(F2))


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
        ("bad_consumers 2, 3", ix.nested(3, b"\2\3")),
    ):
        yield Trial(label, everything(files(with_header(ix.header(version=version)))), SOUND)
    yield Trial("no version", everything(files(with_header(ix.number(1, 1)))), SOUND)


@case("G05", "G06")
def versions_bad(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    for label, version, rule, names in (
        ("min_consumer 2", ix.number(2, 2), "HDR-8", "version 2 .* version 1"),
        ("min_consumer 2^31 - 1", ix.number(2, 2**31 - 1), "HDR-8", "2147483647 .* version 1"),
        ("banned, packed", ix.nested(3, b"\5\1"), "HDR-9", "version 1"),
        ("banned, one by one", ix.number(3, 5) + ix.number(3, 1), "HDR-9", "version 1"),
        ("producer -1", ix.number(1, -1), "HDR-7", "-1"),
    ):
        made = with_header(ix.header(version=version))
        expected = Refused("UNSUPPORTED", rule, HEADER_AT, names=names)
        yield Trial(label, listed(files(made)), expected)
    later = with_header(ix.header(0, endianness=7, version=ix.number(2, 2)))
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


# ---- I: slices

ROW4 = np.arange(4, dtype=np.float32)
FOUR = ROW4.tobytes()
EIGHT = FOUR + FOUR


def partitioned(
    extents: list[list[ix.Extent]],
    dims: list[int],
    *,
    keys: list[list[ix.Extent]] | None = None,
    entries: list[bytes] | None = None,
    dtype: int = 1,
    extra: bytes = b"",
) -> ix.Index:
    """A tensor `x` in slices whose bytes stand one after the other in EIGHT."""
    rows, offset = [], 0
    for number, one in enumerate(keys if keys is not None else extents):
        lengths = [d if n == -1 else n for (_, n), d in zip(one, dims, strict=False)]
        size = 4 * int(np.prod(lengths, dtype=object)) if lengths else 4
        piece = EIGHT[offset : offset + size] if 0 <= size < 100 else b""
        made = ix.stored_entry(1, lengths, piece, offset)
        rows.append((ix.slice_key(b"x", one), entries[number] if entries else made))
        offset += len(piece)
    full = ix.entry(dtype, dims, slices=[ix.slice_message(one) for one in extents], extra=extra)
    return table(*sorted(rows), (b"x", full))


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
    expected = Refused("BAD_SLICE", "SLC-11", ..., file=None, names="1,2|\\[1, 3\\)|1 .. 2|1:3")
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

DATA_FILE = ".data-00000-of-00001"


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
    expected = Refused("CHECKSUM|BAD_ENTRY", "STR-[2-8]", ..., file=None)
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


@case("L12")
def feature_flags(directory: Path) -> Iterator[Trial]:
    flagged = ix.stored_entry(1, [2], DATA, extra=ix.extension(0, [], flags=1 << 40))
    prefix = Files(directory)(table((b"w", flagged), (b"x", GOOD)))
    yield Trial("listed", listed(prefix), {"w": (2,), "x": (2,)})
    yield Trial("read", loaded(prefix, "w"), Refused("UNSUPPORTED", "EXT-3", ..., file=None))
    yield Trial("the other", loaded(prefix), bits(F2))


@case("EXT-2", "EXT-4", "EXT-5", "EXT-6")
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
    yield Trial("no multiple of 4", loaded(made(ragged)), Refused("BAD_ENTRY", "EXT-[24]"))
    no_size = ix.nested(100, ix.nested(3, b"12345678"))
    yield Trial("no chunk size", loaded(made(no_size)), Refused("BAD_ENTRY", "EXT-4"))
    one = ix.extension(8, [ix.crc32c(DATA)])
    yield Trial("one chunk", loaded(made(one)), Refused("BAD_ENTRY", "EXT-5"))
    wrong = ix.extension(4, [crcs[0], crcs[1] ^ 1])
    both = [("CHECKSUM", "EXT-6"), ("CHECKSUM", "EXT-4")]
    yield Trial("contradiction", problems(made(wrong)), both)


# ---- M: merging


def merged(
    directory: Path, *prefixes: Path, to: str = "merged", **options: Any
) -> Callable[[], Any]:
    """Merges; after a refusal nothing may have changed on disk."""

    def snapshot() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in directory.rglob("*") if p.is_file()}

    def act() -> Any:
        before = snapshot()
        try:
            ckptfmt.merge(prefixes, directory / to, **options)
        except CkptfmtError:
            assert snapshot() == before
            raise
        return everything(directory / to)()

    return act


def conflict(rule: str) -> Refused:
    return Refused("MERGE_CONFLICT", rule, ..., file=None)


@case("M01")
def merge_same_key(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    a, b = files(table((b"x", GOOD))), files(table((b"x", GOOD)))
    for inputs in ("keep", "consume"):
        yield Trial(inputs, merged(directory, a, b, inputs=inputs), conflict("MRG-3"))


@case("M02", "M03", "M04")
def merge_slices_disagree(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    first = files(partitioned([[(0, 2)]], [4]), FOUR)
    for label, other, rule in (
        ("dtype", partitioned([[(2, 2)]], [4], dtype=3), "MRG-4"),
        ("shape", partitioned([[(2, 2)]], [5]), "MRG-4"),
        ("rank", partitioned([[(2, 2), (0, 1)]], [4, 1]), "MRG-4"),
        ("overlap", partitioned([[(1, 2)]], [4]), "MRG-5"),
        ("same slice", partitioned([[(0, 2)]], [4]), "MRG-[35]"),
    ):
        second = files(other, FOUR)
        yield Trial(label, merged(directory, first, second), conflict(rule))
    whole = files(table((b"x", GOOD)))
    yield Trial("slice and whole", merged(directory, first, whole), conflict("MRG-[34]"))


@case("M05")
def merge_headers_differ(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    first = files(table((b"x", GOOD)))
    for label, head in (
        ("byte order", ix.header(endianness=1)),
        ("producer", ix.header(version=ix.number(1, 2))),
        ("min_consumer", ix.header(version=ix.number(1, 1) + ix.number(2, 1))),
        ("no version", ix.number(1, 1)),
    ):
        second = files(table((b"y", GOOD), head=head))
        yield Trial(label, merged(directory, first, second), conflict("MRG-2"))


@case("M06")
def merge_same_input(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD)))
    other = Files(directory / "b")(table((b"y", GOOD)))
    wrong = Refused("ARGUMENT", "MRG-10", ..., file=None)
    yield Trial("twice", merged(directory, prefix, other, prefix), wrong)
    yield Trial("destination", merged(directory, prefix, other, to=prefix.name), wrong)
    (directory / "l.index").symlink_to(f"{prefix.name}.index")
    yield Trial("by another name", merged(directory, prefix, directory / "l"), wrong)


@case("M08", "M09")
def merge_damaged(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    good = files(table((b"x", GOOD)))
    content = bytearray(table((b"y", GOOD)).build())
    content[20] ^= 1
    broken = files(bytes(content))
    for inputs in ("keep", "consume"):
        expected = Refused("CHECKSUM", "BLK-2", 0)
        yield Trial(f"index, {inputs}", merged(directory, good, broken, inputs=inputs), expected)
        no_data = files(table((b"y", GOOD)))
        ix.data_name(no_data, 0, 1).unlink()
        expected = Refused("SHARD_MISSING", None, ..., file=DATA_FILE)
        yield Trial(f"no data, {inputs}", merged(directory, good, no_data, inputs=inputs), expected)
        short = files(table((b"y", GOOD)), DATA[:7])
        expected = Refused("TRUNCATED", "DAT-2", ..., file=None)
        yield Trial(f"short, {inputs}", merged(directory, good, short, inputs=inputs), expected)
        none = merged(directory, good, directory / "none", inputs=inputs)
        yield Trial(f"missing, {inputs}", none, Refused("CHECKPOINT_NOT_FOUND", None, file=None))
    astray = files(table((b"y", ix.stored_entry(1, [2], DATA, shard=3))))
    yield Trial("shard 3 of 1", merged(directory, good, astray), Refused("BAD_ENTRY", "ENT-3"))


# ---- N: the state file


@case("N01")
def state_leads_out(directory: Path) -> Iterator[Trial]:
    inside, outside = directory / "in", directory / "out"
    Files(outside)(table((b"x", GOOD)))
    inside.mkdir()
    for label, named in (
        ("absolute", str(outside / "c1")),
        ("dots", "../out/c1"),
        ("dots within", "a/../../out/c1"),
        ("the root", "/"),
    ):
        (inside / "checkpoint").write_text(f'model_checkpoint_path: "{named}"\n')
        expected = Refused("BAD_PATH", None, None, file="/checkpoint")
        yield Trial(label, lambda: ckptfmt.open(inside), expected)


@case("N02")
def state_is_literal(directory: Path) -> Iterator[Trial]:
    ix.write(directory / "a*b", table((b"x", GOOD)), DATA)
    (directory / "checkpoint").write_text('model_checkpoint_path: "a*b"\n')

    def act() -> Any:
        with ckptfmt.open(directory) as reader:
            return {name: bits(handle.read()) for name, handle in reader.items()}

    yield Trial("star", act, SOUND)


@case("N03")
def state_names_nothing(directory: Path) -> Iterator[Trial]:
    Files(directory)(table((b"x", GOOD)))
    (directory / "checkpoint").write_text('model_checkpoint_path: "gone"\n')
    expected = Refused("CHECKPOINT_NOT_FOUND", None, None, file=None, names="'gone'.*'c1'")
    yield Trial("says what is there", lambda: ckptfmt.open(directory), expected)


@case("N04")
def state_garbage(directory: Path) -> Iterator[Trial]:
    path = directory / "checkpoint"
    for content, offset in (
        (b"\xff\xfe garbage", 0),
        (b"no_such_field: 1", 0),
        (b'model_checkpoint_path "a"', 22),
        (b"model_checkpoint_path: a", 23),
        (b'model_checkpoint_path: "a', 23),
        (b"", None),
        (b"model_checkpoint_path { model_checkpoint_path {", 22),
        (b'all_model_checkpoint_paths: "a"', None),
    ):
        path.write_bytes(content)
        expected = Refused("BAD_PROTO", None, offset, file="/checkpoint")
        yield Trial(f"{content!r}", lambda: ckptfmt.open(directory), expected)
    with open(path, "wb") as stream:
        stream.truncate(1 << 30)
    expected = Refused("LIMIT", None, None, file="/checkpoint")
    yield Trial("a gigabyte", lambda: ckptfmt.open(directory), expected)


@case("N05")
def state_names_many(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD)))
    lines = [f'model_checkpoint_path: "{prefix.name}"']
    lines += [f'all_model_checkpoint_paths: "old-{number}"' for number in range(100_000)]
    (directory / "checkpoint").write_text("\n".join(lines))

    def act() -> Any:
        with ckptfmt.open(directory) as reader:
            return list(reader)

    yield Trial("100,000", act, ["x"])


# ---- O: amplification and time


@case("O02")
def key_bomb(directory: Path) -> Iterator[Trial]:
    """Keys that share all but two bytes: a small block of them is gigabytes of names."""
    long = b"k" * 60_000
    out = bytearray(ix.raw_entry(0, 0, 6, ix.header()))
    out += ix.raw_entry(0, len(long) + 2, len(GOOD), long + bytes(2) + GOOD)
    for number in range(1, 5_000):
        out += ix.raw_entry(len(long), 2, len(GOOD), struct.pack(">H", number) + GOOD)
    prefix = Files(directory)(index_of_contents(bytes(out) + ix.u32(0) + ix.u32(1), b"l"))
    memory = 256 << 20
    yield Trial("300 MB of names", listed(prefix), Refused("LIMIT", "TAB-13", ...), memory)
    limited = listed(prefix, limits={"keys_bytes_floor": 1000, "keys_bytes_factor": 0})
    yield Trial("limit set", limited, Refused("LIMIT", "TAB-13", ...))


@case("O04", "O05")
def many_tensors(directory: Path) -> Iterator[Trial]:
    count = 30_000
    entry = ix.entry(1, [0], masked_crc=ix.mask(0))
    groups, each = [], 3000
    for first in range(0, count, each):
        rows = [(b"t%06d" % n, entry) for n in range(first, first + each)]
        groups.append(([] if first else [(b"", ix.header())]) + rows)
    prefix = Files(directory)(ix.index_of(*groups), b"")

    def opened() -> tuple[int, bool]:
        with Spent() as spent, Reader(str(prefix)) as reader:
            found = "t000007" in reader
        return spent.reads, found

    yield Trial("few reads", lambda: (opened()[0] <= 4, opened()[1]), (True, True))
    yield Trial("all of them", lambda: len(listed(prefix)()), count)


@case("O06", "O09")
def lookups_far_apart(directory: Path) -> Iterator[Trial]:
    """Lookups that alternate between blocks read each block once."""
    made, count = many_blocks()
    prefix = Files(directory)(made, b"")

    def act() -> tuple[bool, bool]:
        with Reader(str(prefix)) as reader, Spent() as spent:
            found = all(f"t{number * 997 % count:05d}" in reader for number in range(20_000))
        return found, spent.reads <= len(made.blocks)

    yield Trial("a read a block", act, (True, True))


@case("O07")
def many_slices_many_lookups(directory: Path) -> Iterator[Trial]:
    count = 3000
    data = np.arange(count, dtype=np.float32)
    raw = data.tobytes()
    extents = [[(at, 1)] for at in range(count)]
    rows = [
        (ix.slice_key(b"x", one), ix.stored_entry(1, [1], raw[4 * at : 4 * at + 4], 4 * at))
        for at, one in enumerate(extents)
    ]
    full = ix.entry(1, [count], slices=map(ix.slice_message, extents))
    prefix = Files(directory)(table(*rows, (b"x", full)), raw)

    def act() -> bool:
        with Reader(str(prefix)) as reader:
            handle = reader["x"]
            return all(handle[at] == at for at in range(count))

    yield Trial("each by itself", act, True)


@case("O08")
def messages_bounded(directory: Path) -> Iterator[Trial]:
    name = b"\x1b[31m\r\n" + b"n" * 5000

    def act() -> tuple[bool, bool]:
        with Reader(str(Files(directory)(table((b"x", GOOD))))) as reader:
            try:
                reader[name]
            except ckptfmt.TensorNotFoundError as error:
                text = str(error)
                return len(text) < 1500, text.isprintable()
        return False, False

    yield Trial("escaped and cut", act, (True, True))


# ---- P: the interface


def closed_reader(prefix: Path) -> Reader:
    reader = Reader(str(prefix))
    reader.close()
    reader.close()
    return reader


@case("P01")
def closed(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD)))
    wrong = Refused("ARGUMENT", None, None, file=None, names="is closed")
    for label, use in (
        ("lookup", lambda: closed_reader(prefix)["x"]),
        ("contains", lambda: "x" in closed_reader(prefix)),
        ("list", lambda: list(closed_reader(prefix))),
        ("regions", lambda: closed_reader(prefix).regions()),
    ):
        yield Trial(label, use, wrong)


@case("P02")
def bad_destinations(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD)))
    read_only = np.full(2, 7, np.float32)
    read_only.setflags(write=False)
    for label, target in (
        ("dtype", np.full(2, 7, np.int32)),
        ("byte order", np.full(2, 7, ">f4")),
        ("shape", np.full((2, 1), 7, np.float32)),
        ("read-only", read_only),
        ("no array", 7),
        ("bytes", bytes(8)),
    ):

        def act(target: Any = target) -> None:
            with Reader(str(prefix)) as reader:
                try:
                    reader["x"].read_into(target)
                finally:
                    assert not isinstance(target, np.ndarray) or (target == 7).all()

        yield Trial(label, act, Refused("ARGUMENT", None, None, file=prefix.name))


@case("P03")
def empty_or_uneven(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD)))
    new = directory / "new"
    wrong = Refused("ARGUMENT", None, None, file=None)
    yield Trial("load nothing", lambda: ckptfmt.load(prefix, []), {})
    yield Trial("restore nothing", lambda: ckptfmt.restore_v2(prefix, [], []), [])
    yield Trial("restore uneven", lambda: ckptfmt.restore_v2(prefix, ["x"], []), wrong)
    yield Trial("restore dtypes", lambda: ckptfmt.restore_v2(prefix, ["x"], [""], []), wrong)
    yield Trial("save nothing", lambda: ckptfmt.save_v2(new, [], [], []), wrong)
    yield Trial("save uneven", lambda: ckptfmt.save_v2(new, ["x"], [""], []), wrong)
    yield Trial("merge nothing", lambda: ckptfmt.merge([], new), wrong)
    yield Trial("nothing was made", lambda: sorted(directory.glob("new*")), [])


@case("P04")
def errors_tell_all(directory: Path) -> Iterator[Trial]:
    entry = ix.stored_entry(1, [2], DATA, 4)
    prefix = Files(directory)(table((b"x", entry)), b"past" + DATA[:-1] + b"!")
    crc = ix.crc32c(DATA)
    names = f"stored 0x{crc:08x}, computed 0x[0-9a-f]{{8}}"
    expected = Refused("CHECKSUM", "DAT-6", 4, file=DATA_FILE, names=names)
    yield Trial("checksum", loaded(prefix), expected)

    def act() -> str:
        try:
            loaded(prefix)()
        except CkptfmtError as error:
            return str(error.tensor)
        return ""

    yield Trial("tensor", act, "x")


@case("limits")
def limits_set(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    prefix = files(table(*[(b"t%03d" % n, GOOD) for n in range(100)]))
    for name, value in (
        ("entries_max", 50),
        ("index_bytes_max", 100),
        ("block_bytes_max", 200),
        ("key_bytes_max", 3),
    ):
        expected = Refused("LIMIT", "TAB-13|BLK-14", ...)
        yield Trial(name, listed(prefix, limits={name: value}), expected)

    def act() -> Any:
        with Reader(str(prefix), limits={"tensor_bytes_max": 7}) as reader:
            return reader["t000"].read()

    yield Trial("tensor_bytes_max", act, Refused("LIMIT", None, ..., file=None))
    few = partitioned([[(n, 1)] for n in range(4)], [4])
    sliced = files(few, FOUR)
    expected = Refused("LIMIT", None, ...)
    yield Trial("slices_max", listed(sliced, limits={"slices_max": 3}), expected)


# ---- the test


def check_refusal(label: str, error: BaseException, expected: Refused) -> None:
    assert isinstance(error, CkptfmtError), f"{label}: {error!r}"
    wrong = f"{label}: {error} [{error.failure} {error.offset} {error.path}]"
    assert re.fullmatch(expected.failure, error.failure), wrong
    assert isinstance(error, _core.ERROR_BY_FAILURE[error.failure]), wrong
    if expected.rule is not None:
        assert re.match(f"({expected.rule}):", error.message), wrong
    if isinstance(expected.offset, range):
        assert error.offset in expected.offset, wrong
    elif expected.offset is not ...:
        assert error.offset == expected.offset, wrong
    if expected.file is not None:
        assert error.path is not None, wrong
        assert error.path.endswith(expected.file), wrong
    if expected.names is not None:
        assert re.search(expected.names, error.message), wrong
    assert str(error).isprintable(), wrong


def test_there_are_cases() -> None:
    named = {one for name in CASES for one in name.split("+") if re.fullmatch("[A-O][0-9]+", one)}
    print(f"{len(named)} items of the checklist in {len(CASES)} cases")
    assert len(named) >= 145


def check(trial: Trial) -> None:
    files, began = open_files(), time.perf_counter()
    found: Any
    with memory_limit(trial.memory):
        try:
            found = trial.act()
        except (CkptfmtError, MemoryError) as error:
            found = error
    took = time.perf_counter() - began
    if isinstance(trial.expected, Refused):
        check_refusal(trial.label, found, trial.expected)
    else:
        assert found == trial.expected, f"{trial.label}: {found!r:.300}"
    assert took < SECONDS, f"{trial.label}: {took:.1f} s"
    del found
    assert open_files() == files, trial.label


@pytest.mark.parametrize("name", CASES)
def test_item(name: str, tmp_path: Path) -> None:
    wrong, count = [], 0
    # The files of a trial are made when it is asked for, so only its act is bounded.
    for trial in CASES[name](tmp_path):
        count += 1
        try:
            check(trial)
        except AssertionError as error:
            wrong.append(str(error).partition("\nassert")[0])
    assert count
    assert not wrong, "\n".join(wrong)
