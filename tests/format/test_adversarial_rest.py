# SPDX-License-Identifier: Apache-2.0
"""Malformed checkpoints: merging, state files, amplification, and the interface."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index as ix
from support.adversarial import (
    DATA,
    DATA_FILE,
    FOUR,
    GOOD,
    SOUND,
    Cases,
    Files,
    Refused,
    Trial,
    index_of_contents,
    listed,
    loaded,
    many_blocks,
    merged,
    partitioned,
    table,
)
from support.arrays import bits
from support.process import Spent

import ckptfmt
from ckptfmt import CkptfmtError
from ckptfmt.bundle.reader import Reader

case = Cases()

# ---- M: merging


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
    limited = listed(prefix, limits={"keys_bytes_floor": 1000, "keys_bytes_factor": 1})
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


@pytest.mark.parametrize("name", case)
def test_item(name: str, tmp_path: Path) -> None:
    case.run(name, tmp_path)
