# SPDX-License-Identifier: Apache-2.0
"""Malformed checkpoints beyond the vectors: what the file system holds, huge and hostile sizes,
merges and state files of such checkpoints, and wrong uses of the interface.

Each damage of the index and of values by its rule, with its exact place: test_vectors.py.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index as ix
from support.adversarial import (
    DATA,
    DATA_FILE,
    F2,
    FOUR,
    GOOD,
    SOUND,
    Cases,
    Files,
    Refused,
    Trial,
    everything,
    index_of_contents,
    listed,
    loaded,
    many_blocks,
    merged,
    partitioned,
    table,
    with_value,
)
from support.arrays import bits
from support.process import Spent

import ckptfmt
from ckptfmt import CkptfmtError
from ckptfmt.bundle.reader import Reader

case = Cases()

# ---- which files there are


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


@case("A07")
def permission_denied(directory: Path) -> Iterator[Trial]:
    """As another user where this one is root, who is denied nothing."""
    user = os.geteuid()
    data = Files(directory)(table((b"x", GOOD)))
    ix.data_name(data, 0, 1).chmod(0)
    index = Files(directory / "i")(table((b"x", GOOD)))
    Path(f"{index}.index").chmod(0)
    for place in (directory, *directory.parents[:-2]):
        place.chmod(place.stat().st_mode | 0o111)

    def act(use: Callable[[], Any]) -> Any:
        if user == 0:
            os.seteuid(65534)
        try:
            return use()
        finally:
            os.seteuid(user)

    yield Trial("index", lambda: act(listed(index)), Refused("OS", None, None, names="denied"))
    expected = Refused("OS", None, ..., file=DATA_FILE, names="denied")
    yield Trial("data", lambda: act(loaded(data)), expected)


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


# ---- the index


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


@case("F05")
def groups_nested(directory: Path) -> Iterator[Trial]:
    deep = b"\x7b" * 10000 + b"\x7c" * 10000
    yield from message_trials(directory, [("10,000 groups", deep, "MSG-7")])
    for depth, good in ((100, True), (101, False)):
        made, where = with_value(GOOD + b"\x7b" * depth + b"\x7c" * depth)
        expected = SOUND if good else Refused("BAD_PROTO", "MSG-7", where)
        yield Trial(f"{depth} groups", everything(Files(directory)(made)), expected)


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


@case("H02", "H04")
def types_that_cannot_be_read(directory: Path) -> Iterator[Trial]:
    """An unknown type, a resource, a variant; others beside them are read."""
    files = Files(directory)
    for code, failure, rule in ((999, "UNSUPPORTED", None), (20, "BAD_DTYPE", "DTY-5")):
        prefix = files(table((b"v", ix.stored_entry(code, [2], DATA)), (b"x", GOOD)))
        yield Trial(f"{code} listed", listed(prefix), {"v": (2,), "x": (2,)})
        expected = Refused(failure, rule, ..., file=None)
        yield Trial(f"{code} in part", loaded(prefix, "v", slice(1, 2)), expected)
        yield Trial(f"beside {code}", loaded(prefix), bits(F2))
    payload, crc = ix.variant_value([b"any"])
    entry = ix.entry(21, [1], offset=len(DATA), size=len(payload), masked_crc=crc)
    prefix = files(table((b"v", entry), (b"x", GOOD)), DATA + payload)

    def act() -> bytes:
        with Reader(str(prefix)) as reader:
            return bytes(reader["v"].read()[0])

    yield Trial("variant", act, b"any")
    yield Trial("beside a variant", loaded(prefix), bits(F2))


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
def sizes_beyond_numpy(directory: Path) -> Iterator[Trial]:
    """No elements, but sizes that numpy does not take even so."""
    for dims in ([0, 1 << 62], [1 << 40, 0, 1 << 40]):
        prefix = Files(directory)(with_value(ix.entry(1, dims, masked_crc=ix.mask(0)))[0])
        yield Trial(f"{dims} listed", listed(prefix), {"x": tuple(dims)})
        expected = Refused("UNSUPPORTED", None, None, file=None)
        yield Trial(f"{dims} read", loaded(prefix), expected)


# ---- slices and data files


@case("I07")
def slices_without_elements(directory: Path) -> Iterator[Trial]:
    """Of a tensor without elements no slice is looked at: the one listed has no entry."""
    made = with_value(ix.entry(1, [0, 3], slices=[ix.slice_message([(0, -1), (0, 3)])]))[0]
    prefix = Files(directory)(made)
    expected = bits(np.zeros((0, 3), np.float32))
    yield Trial("whole", loaded(prefix), expected)
    yield Trial("box", loaded(prefix, key=slice(0, 0)), expected)


@case("I14")
def many_slices(directory: Path) -> Iterator[Trial]:
    count = 20_000
    data = np.arange(count, dtype=np.float32).tobytes()
    slices = [ix.slice_message([(at, 1)]) for at in range(count)]
    rows = [
        (ix.slice_key(b"x", [(at, 1)]), ix.stored_entry(1, [1], data[4 * at : 4 * at + 4], 4 * at))
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


@case("J06")
def data_no_file(directory: Path) -> Iterator[Trial]:
    for name, make in (("directory", Path.mkdir), ("FIFO", os.mkfifo)):
        prefix = Files(directory / name)(table((b"x", GOOD)))
        data = ix.data_name(prefix, 0, 1)
        data.unlink()
        make(data)
        yield Trial(name, loaded(prefix), Refused("OS", None, ..., file=DATA_FILE))


@case("J13")
def data_cut_while_open(directory: Path) -> Iterator[Trial]:
    """Cut after it was opened: a typed error, and no signal; what was read is the reader's own."""
    prefix = Files(directory)(table((b"x", GOOD)))

    def act(use: Callable[[ckptfmt.types.TensorHandle], Any]) -> Any:
        ix.data_name(prefix, 0, 1).write_bytes(DATA)
        with Reader(str(prefix)) as reader:
            before = reader["x"].read()
            os.truncate(ix.data_name(prefix, 0, 1), 3)
            assert bits(before) == bits(F2)
            return bits(use(reader["x"]))

    cut = Refused("TRUNCATED", "DAT-2", ..., file=DATA_FILE)
    yield Trial("read", lambda: act(lambda handle: handle.read()), cut)
    yield Trial("box", lambda: act(lambda handle: handle[:1]), cut)
    yield Trial("map", lambda: act(lambda handle: handle.map()), cut)


@case("J08")
def generations_mixed(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD)), DATA[:4])
    hint = Refused("TRUNCATED", "DAT-2", 0, file=DATA_FILE, names="different saves")
    yield Trial("shorter", loaded(prefix), hint)


@case("J11", "J12")
def mapped(directory: Path) -> Iterator[Trial]:
    entry = ix.stored_entry(1, [2], DATA, 1)
    text, crc = ix.string_value([b"a"])
    rows = [
        (b"n", ix.entry(1, [0], masked_crc=ix.mask(1))),
        (b"s", ix.entry(ix.STRING, [1], offset=9, size=len(text), masked_crc=crc)),
        (b"x", entry),
    ]
    prefix = Files(directory)(table(*rows), b"!" + DATA + text)

    def act(name: str) -> Any:
        with Reader(str(prefix)) as reader:
            return bits(reader[name].map())

    yield Trial("unaligned", lambda: act("x"), bits(F2))
    yield Trial("strings", lambda: act("s"), Refused("ARGUMENT", None, ..., file=None))
    yield Trial("no bytes", lambda: act("n"), Refused("CHECKSUM", "ENT-8", ..., file=DATA_FILE))


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


# ---- merging, state files, amplification, the interface


@case("M06")
def merge_same_input(directory: Path) -> Iterator[Trial]:
    prefix = Files(directory)(table((b"x", GOOD)))
    wrong = Refused("ARGUMENT", "MRG-10", ..., file=None)
    (directory / "l.index").symlink_to(f"{prefix.name}.index")
    yield Trial("by another name", merged(directory, prefix, directory / "l"), wrong)


@case("M07")
def merge_of_many_files(directory: Path) -> Iterator[Trial]:
    files = Files(directory)
    good = files(table((b"x", GOOD)))
    for count, expected in (
        (1 << 20, {"x": bits(F2)}),
        ((1 << 20) + 1, Refused("LIMIT", None, ...)),
        ((1 << 31) - 1, Refused("LIMIT", None, ...)),
    ):
        claims = files(table(head=ix.header(count)))
        yield Trial(f"{count}", merged(directory, good, claims, to=f"m{count}"), expected)


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
    hurt = files(with_value(ix.entry(1, [4, 1], slices=[ix.slice_message([(0, 2)])]), b"y")[0])
    expected = Refused("BAD_SLICE", "SLC-2", ..., file=f"{hurt.name}.index")
    yield Trial("slice", merged(directory, good, hurt), expected)
    beyond = ix.stored_entry(1, [2], DATA, 1, slices=[ix.slice_message([(0, 1)])])
    row = (ix.slice_key(b"y", [(0, 2)]), beyond)
    nested = files(table(row, (b"y", ix.entry(1, [4], slices=[ix.slice_message([(0, 2)])]))))
    expected = Refused("TRUNCATED", "DAT-2", ..., file=f"{nested.name}.index")
    yield Trial("slices of a slice", merged(directory, good, nested), expected)
    astray = files(table((b"y", ix.stored_entry(1, [2], DATA, shard=3))))
    yield Trial("shard 3 of 1", merged(directory, good, astray), Refused("BAD_ENTRY", "ENT-3"))


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
    limited = listed(prefix, limits={"keys_bytes_floor": 1000, "keys_bytes_factor": 1})
    yield Trial("limit set", limited, Refused("LIMIT", "TAB-13", ...))


@case("O03")
def one_block_many_times(directory: Path) -> Iterator[Trial]:
    """Handles that all name one block: its keys come once."""
    made = ix.index_of([(b"", ix.header())], [(b"x%04d" % n, GOOD) for n in range(1000)])
    made.build()
    handle = ix.handle(made.offsets[1], len(made.blocks[1].contents))
    rows = [(b"", ix.handle(0, len(made.blocks[0].contents)))]
    rows += [(b"y%06d" % n, handle) for n in range(50_000)]
    made.index_contents = ix.block(rows, interval=1).contents
    prefix = Files(directory)(made)
    yield Trial("50,000 times", listed(prefix), Refused("BAD_BLOCK", "TAB-4", ...))


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


@pytest.mark.parametrize("name", case)
def test_item(name: str, tmp_path: Path) -> None:
    case.run(name, tmp_path)
