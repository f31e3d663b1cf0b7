# SPDX-License-Identifier: Apache-2.0
"""Small files that would take long: work is bounded by the bytes, or refused.

Each of these took time quadratic in the file: half a minute at least at the sizes used here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support import index as ix
from support.arrays import assert_same

import ckptfmt
from ckptfmt import CorruptError
from ckptfmt.errors import LimitError

SECONDS = 8.0  # of processor time; what is allowed here takes well below one


@contextmanager
def in_time() -> Iterator[None]:
    began = time.process_time()
    yield
    took = time.process_time() - began
    assert took < SECONDS, f"{took:.1f} s"


def one_block(rows: list[tuple[bytes, bytes]], interval: int = 16) -> ix.Index:
    rows = sorted(rows)
    return ix.Index([ix.block(rows, interval=interval)], last_keys=[rows[-1][0]])


def rows_of(count: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """A uint8 vector `t` in slices of one element, its entries, and the data."""
    data = bytes(number % 251 for number in range(count))
    boxes = [[(number, 1)] for number in range(count)]
    rows = [
        (b"", ix.header()),
        (b"t", ix.entry(ix.UINT8, [count], slices=map(ix.slice_message, boxes))),
    ]
    for number, box in enumerate(boxes):
        stored = ix.stored_entry(ix.UINT8, [1], data[number : number + 1], number)
        rows.append((ix.slice_key(b"t", box), stored))
    return rows, data


def test_a_block_with_one_restart(tmp_path: Path) -> None:
    rows, data = rows_of(20000)
    prefix = ix.write(tmp_path / "m", one_block(rows, interval=10**9), data)
    with ckptfmt.open(prefix) as reader, in_time():
        assert reader["t"].read().tobytes() == data
    with ckptfmt.open(prefix) as reader, in_time():
        assert [handle.shape for handle in reader.values()] == [(20000,)]


def test_many_slices_of_a_long_name(tmp_path: Path) -> None:
    name, count = "n" * (1 << 17), 1 << 12
    entry = ix.entry(ix.FLOAT, [5], slices=[ix.slice_message([(0, -1)])] * count)
    made = one_block([(b"", ix.header()), (name.encode(), entry)])
    content = made.build()
    prefix = ix.write(tmp_path / "m", content)
    with ckptfmt.open(prefix) as reader, in_time():
        for act in (lambda: reader[name], lambda: list(reader)):
            with pytest.raises(LimitError, match="TAB-13") as caught:
                act()
            error = caught.value
            assert (error.failure, error.path) == ("LIMIT", f"{prefix}.index")
            assert error.tensor is not None and error.tensor.startswith("nnn")
            assert error.offset == made.offsets[0] + made.blocks[0].values[1]
    with in_time():
        problems = ckptfmt.verify(prefix).problems
    assert problems[0].failure == "LIMIT" and problems[0].message.startswith("TAB-13")
    # What is allowed is settable, as for a listing.
    with ckptfmt.open(prefix, limits={"keys_bytes_floor": count << 17}) as reader:
        assert len(reader[name].slices) == count


def test_all_slices_count(tmp_path: Path) -> None:
    """Tensors that are within the limit one by one, and beyond it together."""
    floor = 4096
    slices = [ix.slice_message([(0, -1)])] * 30
    names = [bytes([letter]) * 100 for letter in b"ab"]
    rows = [(b"", ix.header())] + [(one, ix.entry(1, [5], slices=slices)) for one in names]
    prefix = ix.write(tmp_path / "m", one_block(rows))
    limits = {"keys_bytes_floor": floor, "keys_bytes_factor": 1}
    with ckptfmt.open(prefix, limits=limits) as reader:
        assert [len(reader[one.decode()].slices) for one in names] == [30, 30]
        with pytest.raises(LimitError, match="TAB-13") as caught:
            list(reader)
        assert caught.value.tensor == "b" * 100


def test_many_names_like_slice_keys(tmp_path: Path) -> None:
    """Whole tensors under keys that would be those of slices, if their tensor listed them."""
    count = 20000
    listed = [ix.slice_message([(number, 1)]) for number in range(count)]
    rows = [(b"", ix.header()), (b"t", ix.entry(ix.FLOAT, [10 * count], slices=listed))]
    keys = [ix.slice_key(b"t", [(5 * count + number, 1)]) for number in range(count)]
    rows += [(key, ix.stored_entry(ix.FLOAT, [0], b"", 0)) for key in keys]
    prefix = ix.write(tmp_path / "m", one_block(rows))
    with ckptfmt.open(prefix) as reader:
        names = [name for name in reader if name != "t"]
        assert len(names) == count
        with in_time():
            loaded = ckptfmt.load(prefix, names)
    assert len(loaded) == count


@pytest.mark.parametrize("listed", [0, 1])
def test_keys_of_slices_are_no_names(tmp_path: Path, listed: int) -> None:
    """Asked one after the other, of one tensor and of several, there and not there."""
    rows = [(b"", ix.header())]
    boxes = {b"a": [[(0, 2)], [(2, 2)]], b"b": [[(1, 3)]]}
    for name, parts in boxes.items():
        given = [ix.slice_message(box) for box in parts] if listed else []
        rows.append((name, ix.entry(ix.FLOAT, [4] if listed else [0], slices=given)))
        rows += [(ix.slice_key(name, box), ix.entry(ix.FLOAT, [0])) for box in parts]
    orphans = [(b"a", [(0, 3)]), (b"b", [(2, 2)]), (b"no", [(0, 1)])]
    rows += [(ix.slice_key(name, box), ix.entry(ix.FLOAT, [0])) for name, box in orphans]
    prefix = ix.write(tmp_path / "m", one_block(rows), b"")
    with ckptfmt.open(prefix) as reader:
        named = {name.encode("utf-8", "surrogateescape") for name in reader}
    keys = {ix.slice_key(name, box) for name, parts in boxes.items() for box in parts}
    expected = {b"a", b"b", *(ix.slice_key(name, box) for name, box in orphans)}
    assert named == expected | (set() if listed else keys)
    with ckptfmt.open(prefix) as reader:
        for key in sorted(keys | expected):
            name = key.decode("utf-8", "surrogateescape")
            assert (name in reader) == (key in named)


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_a_name_that_readers_refuse(tmp_path: Path, level: str) -> None:
    value, most = np.zeros(2, np.float32), 16 << 20
    with pytest.raises(LimitError, match="TAB-13") as caught:
        ckptfmt.save(tmp_path / "m", {"n" * (most + 1): value}, level=level)
    assert caught.value.failure == "LIMIT"
    assert list(tmp_path.iterdir()) == []
    ckptfmt.save(tmp_path / "m", {"n" * most: value}, level=level, durability="none")
    assert [len(name) for name in ckptfmt.load(tmp_path / "m")] == [most]


@pytest.mark.parametrize(
    ("letter", "most", "refused"),
    [("n", (16 << 20) - 100, (16 << 20) - 5), ("\0", (8 << 20) - 100, 8 << 20)],
    ids=["n", "0"],
)
def test_a_slice_of_a_name_that_readers_refuse(
    tmp_path: Path, letter: str, most: int, refused: int
) -> None:
    """The key of a slice is longer than the name, up to twice as long."""
    value, name = np.zeros(2, np.float32), letter * most
    with ckptfmt.Writer(tmp_path / "m", level="v2", durability="none") as writer:
        writer.add_slice(name, value, (4,), (0,))
        writer.add_slice(name, value, (4,), (2,))
    with ckptfmt.open(tmp_path / "m") as reader:
        assert reader[name].read().tolist() == [0, 0, 0, 0]
    with (
        pytest.raises(LimitError, match="TAB-13"),
        ckptfmt.Writer(tmp_path / "m", level="v2") as writer,
    ):
        writer.add_slice(letter * refused, value, (4,), (0,))


def test_small_boxes_of_many_slices(tmp_path: Path) -> None:
    rows, data = rows_of(20000)
    prefix = ix.write(tmp_path / "m", one_block(rows), data)
    with ckptfmt.open(prefix) as reader:
        handle = reader["t"]
        with in_time():
            for at in range(0, len(data), 5):
                assert handle[at : at + 2].tobytes() == data[at : at + 2]


def layout(chance: random.Random, shape: tuple[int, ...], count: int) -> list[list[ix.Extent]]:
    """Boxes that fill the shape, in a random order; whole dimensions in either spelling."""
    boxes = [[(0, size) for size in shape]]
    while len(boxes) < count:
        box = boxes.pop(chance.randrange(len(boxes)))
        axis = max(range(len(shape)), key=lambda d: box[d][1] * chance.random())
        start, length = box[axis]
        cut = chance.randint(1, length - 1) if length > 1 else 0
        for begin, size in ((start, cut), (start + cut, length - cut)):
            if size:
                boxes.append([*box[:axis], (begin, size), *box[axis + 1 :]])
    chance.shuffle(boxes)
    return [
        [
            (0, -1) if extent == (0, size) and chance.random() < 0.5 else extent
            for extent, size in zip(box, shape, strict=True)
        ]
        for box in boxes
    ]


@pytest.mark.parametrize("shape", [(3000,), (1, 900), (40, 50), (7, 1, 11, 23)])
@pytest.mark.parametrize("strings", [False, True])
def test_boxes_of_many_slices(
    tmp_path: Path, seed: int, shape: tuple[int, ...], strings: bool
) -> None:
    """Any box is what it is of the whole tensor, and one that touches a hole is refused."""
    chance = random.Random(seed)
    full = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    whole = np.vectorize(lambda value: b"%d" % value, otypes=[object])(full) if strings else full
    boxes = layout(chance, shape, 300)
    missing = chance.choice(boxes)
    code = ix.STRING if strings else 9
    data, rows = bytearray(), [(b"", ix.header())]
    for name, listed in ((b"t", boxes), (b"hole", [box for box in boxes if box is not missing])):
        rows.append((name, ix.entry(code, shape, slices=map(ix.slice_message, listed))))
        for box in listed:
            part = whole[place(box)]
            if strings:
                stored, crc = ix.string_value(list(part.ravel()))
                more = {"size": len(stored), "masked_crc": crc}
                entry = ix.entry(code, part.shape, offset=len(data), **more)
            else:
                stored = part.tobytes()
                entry = ix.stored_entry(code, part.shape, stored, len(data))
            rows.append((ix.slice_key(name, box), entry))
            data += stored
    prefix = ix.write(tmp_path / "m", one_block(rows), bytes(data))
    hole = np.zeros(shape, bool)
    hole[place(missing)] = True
    with ckptfmt.open(prefix) as reader:
        for _ in range(60):
            starts = [chance.randint(0, size) for size in shape]
            key = tuple(
                slice(start, chance.choice([start, chance.randint(start, size), size]))
                for start, size in zip(starts, shape, strict=True)
            )
            assert_same(reader["t"][key], whole[key])
            if hole[key].any():
                with pytest.raises(CorruptError, match="SLC-11"):
                    reader["hole"][key]
            else:
                assert_same(reader["hole"][key], whole[key])


def place(box: list[ix.Extent]) -> tuple[slice, ...]:
    return tuple(slice(start, None if length < 0 else start + length) for start, length in box)
