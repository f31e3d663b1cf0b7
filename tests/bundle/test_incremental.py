# SPDX-License-Identifier: Apache-2.0
"""Saving upon an earlier checkpoint: the result is what a full save would hold, needs the base no
longer, and costs what has changed."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.arrays import CODES, bits, random_array, random_shape
from support.files import flip

import ckptfmt
from ckptfmt import CheckpointNotFoundError, CorruptError, InvalidError, _core
from ckptfmt._base.arrays import Sources
from ckptfmt._base.save_options import SaveOptions
from ckptfmt.bundle import incremental
from ckptfmt.bundle.writer import write_sources

CHUNK = 262_144
Tensors = dict[str, Any]


def assert_holds(prefix: Path, tensors: Tensors) -> None:
    found = ckptfmt.load(prefix, verify="full")
    assert {name: bits(array) for name, array in found.items()} == {
        name: bits(array) for name, array in tensors.items()
    }


def assert_sound(prefix: Path) -> None:
    """Verified, with nothing worse than bytes that no entry names."""
    report = ckptfmt.verify(prefix)
    assert report.ok
    for finding in report.findings:
        assert finding.severity == "note"
        assert finding.message.startswith(("DAT-3", "DAT-5")), finding.message


def remove(prefix: Path) -> None:
    for path in files_of(prefix):
        path.unlink()


def files_of(prefix: Path) -> list[Path]:
    """The files of one checkpoint; its data files first."""
    data = sorted(prefix.parent.glob(f"{prefix.name}.data-*"))
    return [*data, prefix.with_name(f"{prefix.name}.index")]


def links(prefix: Path) -> list[int]:
    """The names that each data file has."""
    return [path.stat().st_nlink for path in files_of(prefix)[:-1]]


def written(prefix: Path, tensors: Tensors, **options: Any) -> int:
    """Saves; the bytes that it took."""
    before = _core.counters()["bytes_written"]
    ckptfmt.save(prefix, tensors, **options)
    return _core.counters()["bytes_written"] - before


def limited(share: float = 0.5, files: int = 64) -> Any:
    """Other limits of when data files are linked."""
    return mock.patch.multiple(incremental, DEAD_SHARE_MAX=share, DATA_FILES_MAX=files)


def some_tensors(chance: random.Random, count: int = 12) -> Tensors:
    return {
        f"t{i}": random_array(chance, chance.choice(CODES), random_shape(chance))
        for i in range(count)
    }


# ---- the promise ---------------------------------------------------------------------------------


def change(chance: random.Random, tensors: Tensors) -> Tensors:
    """Some tensors with other bytes, some gone, new, renamed or of another shape."""
    changed = {name: array.copy() for name, array in tensors.items()}
    for name in list(changed):
        array = changed[name]
        match chance.choice(("stay", "stay", "stay", "bytes", "all", "drop", "rename", "shape")):
            case "bytes" if array.size and array.dtype != np.dtype(object):
                raw = array.reshape(-1).view(np.uint8)
                raw[chance.randrange(raw.size)] ^= 1
            case "all":
                code = chance.choice(CODES)
                changed[name] = random_array(chance, code, random_shape(chance))
            case "drop":
                del changed[name]
            case "rename":
                changed[f"{name}'"] = changed.pop(name)
            case "shape":
                changed[name] = array.reshape((1, *array.shape))
    for _ in range(chance.randint(0, 2)):
        code = chance.choice(CODES)
        changed[f"new{chance.randrange(1 << 30)}"] = random_array(
            chance, code, random_shape(chance)
        )
    names = list(changed)
    chance.shuffle(names)
    return {name: changed[name] for name in names}


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_sequence_of_saves(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("sequence")
    chance = random.Random(data.draw(st.integers(0, 2**32), label="seed"))
    tensors = some_tensors(chance)
    saved: dict[Path, Tensors] = {}
    base: Path | None = None
    for step in range(data.draw(st.integers(2, 7), label="saves")):
        over = base is not None and data.draw(st.booleans(), label="over the base")
        prefix = base if over and base is not None else folder / f"ck{step}"
        options = {
            "level": data.draw(st.sampled_from(("v2+", "v2+", "v2")), label="level"),
            "alignment": data.draw(st.sampled_from((None, 1, 8, 4096)), label="alignment"),
            "durability": data.draw(st.sampled_from(("rename", "none")), label="durability"),
        }
        share = data.draw(st.sampled_from((0.0, 0.5, 1.0)), label="dead share")
        with limited(share, data.draw(st.sampled_from((1, 2, 3, 64)), label="data files")):
            ckptfmt.save(prefix, tensors, base=base, **options)
        saved[prefix], base = tensors, prefix
        for other, held in saved.items():
            assert_holds(other, held)
        if data.draw(st.booleans(), label="remove others"):
            for other in [other for other in saved if other != base]:
                remove(other)
                del saved[other]
        tensors = change(chance, tensors)
    for prefix, held in saved.items():
        assert_sound(prefix)
        assert_holds(prefix, held)
    shutil.rmtree(folder)


def test_a_long_chain_stays_within_bounds(tmp_path: Path, seed: int) -> None:
    """Two hundred saves, each upon the one before, which then goes: few data files, little that is
    dead, and far fewer bytes written than full saves take."""
    chance = random.Random(seed)
    generator = np.random.default_rng(seed)
    tensors = {f"w{i}": generator.random(500) for i in range(100)}
    full = written(tmp_path / "ck0", tensors, durability="none")
    total = 0
    for step in range(1, 201):
        for name in chance.sample(list(tensors), 2):
            tensors[name] = generator.random(500)
        prefix, base = tmp_path / f"ck{step}", tmp_path / f"ck{step - 1}"
        options = {"base": base, "metadata": {"s": step}, "durability": "none"}
        with limited(files=16):
            total += written(prefix, tensors, **options)
        remove(base)
        data = files_of(prefix)[:-1]
        assert len(data) <= 16
        assert links(prefix) == [1] * len(data)
        assert sum(path.stat().st_size for path in data) <= 2 * full
        if step % 50 == 0:
            assert_holds(prefix, tensors)
            assert_sound(prefix)
            with ckptfmt.open(prefix) as reader:
                assert reader.metadata == {"s": step}
    assert total < 200 * full / 4


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_every_dtype_in_every_layout(tmp_path: Path, level: str, seed: int) -> None:
    """Unchanged tensors are not written, whatever their layout in memory."""
    chance = random.Random(seed)
    tensors = {f"t{code}": random_array(chance, code, (6, 7)) for code in CODES}
    tensors |= {f"e{code}": random_array(chance, code, (0, 7)) for code in CODES}
    tensors |= {f"s{code}": random_array(chance, code, ()) for code in CODES}
    ckptfmt.save(tmp_path / "a", tensors, level=level)
    layouts: Tensors = {}
    for name, array in tensors.items():
        if array.dtype == np.dtype(object):
            layouts[name] = array
        elif name.startswith("t"):
            layouts[name] = np.asfortranarray(array)
            if array.dtype.kind in "iufc" and array.dtype.isbuiltin == 1:
                layouts[name] = array.astype(array.dtype.newbyteorder())
        else:
            layouts[name] = array[::-1] if array.ndim else array
    cost = written(tmp_path / "b", layouts, base=tmp_path / "a", level=level)
    assert cost == (tmp_path / "b.index").stat().st_size
    assert links(tmp_path / "b") == [2]
    remove(tmp_path / "a")
    assert_holds(tmp_path / "b", tensors)
    for name, array in tensors.items():
        if array.dtype != np.dtype(object) and array.size:
            tensors[name] = array.copy()
            tensors[name].reshape(-1).view(np.uint8)[-1 if array.ndim else 0] ^= 1
    ckptfmt.save(tmp_path / "c", tensors, base=tmp_path / "b", level=level)
    assert_holds(tmp_path / "c", tensors)


def test_a_repeated_save_is_the_same_bytes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    tensors = some_tensors(chance)
    ckptfmt.save(tmp_path / "a", tensors)
    tensors = change(chance, tensors)
    for name in ("b", "c"):
        ckptfmt.save(tmp_path / name, tensors, base=tmp_path / "a")
    for one, other in zip(files_of(tmp_path / "b"), files_of(tmp_path / "c"), strict=True):
        assert one.read_bytes() == other.read_bytes()


# ---- what counts as changed ----------------------------------------------------------------------


def test_times_decide_nothing(tmp_path: Path) -> None:
    tensors = {"x": np.arange(1000.0), "y": np.ones(1000)}
    ckptfmt.save(tmp_path / "a", tensors)
    for path in files_of(tmp_path / "a"):
        os.utime(path, (0, 0))
    tensors["x"][3] = -1
    ckptfmt.save(tmp_path / "b", tensors, base=tmp_path / "a")
    assert links(tmp_path / "b") == [2, 1]
    assert_holds(tmp_path / "b", tensors)


def with_crc(head: bytes, wanted: int) -> bytes:
    """`head` and four bytes more, so that the checksum of all is `wanted`: it is linear in them."""
    zero = _core.crc32c(head + bytes(4))
    basis: dict[int, tuple[int, int]] = {}  # highest bit: difference of the sum, bits that make it
    for bit in range(32):
        difference = _core.crc32c(head + (1 << bit).to_bytes(4, "little")) ^ zero
        made = 1 << bit
        while difference and difference.bit_length() in basis:
            other, by = basis[difference.bit_length()]
            difference, made = difference ^ other, made ^ by
        assert difference
        basis[difference.bit_length()] = difference, made
    left, answer = wanted ^ zero, 0
    while left:
        other, by = basis[left.bit_length()]
        left, answer = left ^ other, answer ^ by
    return head + answer.to_bytes(4, "little")


@pytest.mark.parametrize("size", [100, 2 * CHUNK])
@pytest.mark.parametrize("text", [False, True])
def test_equal_checksums_lose_no_update(tmp_path: Path, size: int, text: bool, seed: int) -> None:
    chance = random.Random(seed)
    first = chance.randbytes(size)
    tail = first[-100:]
    second = first[:-100] + with_crc(chance.randbytes(96), _core.crc32c(tail))
    assert first != second
    assert _core.crc32c(first) == _core.crc32c(second)

    def tensors(content: bytes) -> Tensors:
        array = np.array([content], object) if text else np.frombuffer(content, np.uint8)
        return {"x": array, "y": np.ones(3 * CHUNK)}

    ckptfmt.save(tmp_path / "a", tensors(first))
    ckptfmt.save(tmp_path / "b", tensors(second), base=tmp_path / "a")
    with ckptfmt.open(tmp_path / "a") as a, ckptfmt.open(tmp_path / "b") as b:
        assert a["x"].crc32c == b["x"].crc32c
    assert_holds(tmp_path / "a", tensors(first))
    assert_holds(tmp_path / "b", tensors(second))
    assert links(tmp_path / "b") == [2, 1]


def test_a_damaged_tensor_is_written_anew(tmp_path: Path) -> None:
    tensors = {"x": np.arange(100.0), "y": np.arange(1000.0), "s": np.array([b"one"], object)}
    ckptfmt.save(tmp_path / "a", tensors)
    with ckptfmt.open(tmp_path / "a") as reader:
        offsets = [reader["x"].offset, reader["s"].offset]
    data = files_of(tmp_path / "a")[0]
    for offset in offsets:
        assert offset is not None
        flip(data, offset + 4)
    ckptfmt.save(tmp_path / "b", tensors, base=tmp_path / "a")
    assert links(tmp_path / "b") == [2, 1]
    assert_holds(tmp_path / "b", tensors)
    assert_sound(tmp_path / "b")


def test_a_base_without_its_data(tmp_path: Path) -> None:
    tensors = {"x": np.arange(100.0)}
    ckptfmt.save(tmp_path / "a", tensors)
    files_of(tmp_path / "a")[0].unlink()
    ckptfmt.save(tmp_path / "b", tensors, base=tmp_path / "a")
    assert_holds(tmp_path / "b", tensors)


def test_a_partitioned_tensor_is_written_whole(tmp_path: Path) -> None:
    value = np.arange(12.0).reshape(4, 3)
    with ckptfmt.Writer(tmp_path / "a") as writer:
        writer.add("y", np.ones(1000))
        for row in (0, 2):
            writer.add_slice("x", value[row : row + 2], (4, 3), (row, 0))
    tensors = {"x": value, "y": np.ones(1000)}
    ckptfmt.save(tmp_path / "b", tensors, base=tmp_path / "a")
    assert links(tmp_path / "b") == [2, 1]
    with ckptfmt.open(tmp_path / "b") as reader:
        assert not reader["x"].slices
    assert_holds(tmp_path / "b", tensors)


def test_slices_are_written(tmp_path: Path) -> None:
    """As savers of shards hand them in: what is a slice is written, what is whole may be kept."""
    value, rest = np.arange(12.0).reshape(4, 3), np.ones(1000)
    ckptfmt.save(tmp_path / "a", {"x": value, "rest": rest})
    sources = Sources()
    sources.add(b"s", np.array(["text"]))
    sources.add(b"x", value[1:3], part=((4, 3), (1, 0), (2, -1)))
    sources.add(b"rest", rest)
    sources.add(b"x", value[3:].astype(">f8"), part=((4, 3), (3, 0), (1, -1)))
    write_sources(str(tmp_path / "b"), sources, None, SaveOptions(), base=tmp_path / "a")
    assert links(tmp_path / "b") == [2, 1]
    with ckptfmt.open(tmp_path / "b") as reader:
        assert np.array_equal(reader["x"][1:], value[1:])
        assert np.array_equal(reader["rest"].read(), rest)
        assert reader["s"].read().tolist() == [b"text"]


def test_names_of_any_bytes(tmp_path: Path) -> None:
    tensors = {b"\xff\x00x": np.ones(3), "ä/ö".encode(): np.ones(4), b"\x00": np.ones(5)}
    ckptfmt.save(tmp_path / "a", tensors)
    assert written(tmp_path / "b", tensors, base=tmp_path / "a") < 600
    assert links(tmp_path / "b") == [2]
    found = ckptfmt.load(tmp_path / "b", list(tensors))
    assert [array.size for array in found.values()] == [3, 4, 5]


# ---- files ---------------------------------------------------------------------------------------


def test_costs_what_has_changed(tmp_path: Path) -> None:
    tensors = {f"t{i}": np.full(10_000, float(i)) for i in range(50)}
    ckptfmt.save(tmp_path / "a", tensors)
    tensors["t7"] = tensors["t7"] + 1
    read = _core.counters()["bytes_read"]
    cost = written(tmp_path / "b", tensors, base=tmp_path / "a")
    read = _core.counters()["bytes_read"] - read
    assert cost == 80_000 + (tmp_path / "b.index").stat().st_size
    # What differs is not read, and the rest once; the indexes as well.
    assert 49 * 80_000 <= read <= 49 * 80_000 + 20_000


def test_nothing_changed_makes_no_data_file(tmp_path: Path) -> None:
    tensors = {"x": np.ones(10), "y": np.empty((0, 2)), "z": np.array(b"z", object)}
    ckptfmt.save(tmp_path / "a", tensors)
    assert (
        written(tmp_path / "b", tensors, base=tmp_path / "a")
        == os.stat(tmp_path / "b.index").st_size
    )
    assert links(tmp_path / "b") == [2]
    ckptfmt.save(tmp_path / "c", tensors, base=tmp_path / "b", metadata={"step": 1})
    assert links(tmp_path / "c") == [3, 1]
    with ckptfmt.open(tmp_path / "c") as reader:
        assert reader.metadata == {"step": 1}
    # Metadata is of a save, not of a tensor: it does not come along.
    ckptfmt.save(tmp_path / "d", tensors, base=tmp_path / "c")
    with ckptfmt.open(tmp_path / "d") as reader:
        assert reader.metadata == {}


def test_only_empty_tensors(tmp_path: Path) -> None:
    tensors = {"x": np.empty(0), "y": np.empty((3, 0), np.int8)}
    ckptfmt.save(tmp_path / "a", tensors)
    ckptfmt.save(tmp_path / "b", tensors, base=tmp_path / "a")
    assert links(tmp_path / "b") == [1]
    assert_holds(tmp_path / "b", tensors)
    ckptfmt.save(tmp_path / "c", {}, base=tmp_path / "b")
    assert_holds(tmp_path / "c", {})


def test_upon_itself(tmp_path: Path) -> None:
    tensors = {f"t{i}": np.full(1000, float(i)) for i in range(20)}
    ckptfmt.save(tmp_path / "a", tensors)
    costs = []
    for step in range(12):
        tensors[f"t{step}"] = tensors[f"t{step}"] + 100
        costs.append(written(tmp_path / "a", tensors, base=tmp_path / "a"))
        assert_holds(tmp_path / "a", tensors)
        assert_sound(tmp_path / "a")
        with ckptfmt.open(tmp_path / "a") as reader:
            assert len(files_of(tmp_path / "a")) == reader.header.num_shards + 1
        assert links(tmp_path / "a") == [1] * len(links(tmp_path / "a"))
    # Until half of the first file is dead, which then is written anew, once.
    assert [cost > 16_000 for cost in costs] == [False] * 10 + [True, False]


def test_dead_bytes_are_bounded(tmp_path: Path) -> None:
    """A file of which more than the share is dead is not linked."""
    tensors = {f"t{i}": np.full(1000, float(i)) for i in range(10)}
    ckptfmt.save(tmp_path / "a", tensors)
    for i in range(6):
        tensors[f"t{i}"] = tensors[f"t{i}"] + 100
    for name, share, linked in (("b", 0.5, False), ("c", 0.6, True), ("d", 0.0, False)):
        with limited(share):
            ckptfmt.save(tmp_path / name, tensors, base=tmp_path / "a")
        assert links(tmp_path / name) == ([2, 1] if linked else [1]), name
        assert_holds(tmp_path / name, tensors)
        if linked:
            remove(tmp_path / name)
    with limited(0.0):
        ckptfmt.save(tmp_path / "e", tensors, base=tmp_path / "b")
    assert links(tmp_path / "e") == [2]


def test_padding_is_not_dead(tmp_path: Path) -> None:
    """Tensors of a few bytes each take a place of 64."""
    tensors = {f"t{i}": np.float32(i) for i in range(100)}
    ckptfmt.save(tmp_path / "a", tensors)
    with limited(0.0):
        ckptfmt.save(tmp_path / "b", tensors, base=tmp_path / "a")
    assert links(tmp_path / "b") == [2]
    ckptfmt.save(tmp_path / "c", tensors, base=tmp_path / "a", alignment=1)
    assert links(tmp_path / "c") == [1]


def test_data_files_are_bounded(tmp_path: Path) -> None:
    """Of too many the largest are linked, half as many as there may be."""
    tensors = {f"t{i}": np.full(1000 * (i + 1), float(i)) for i in range(9)}
    parts = [tmp_path / f"part{i}" for i in range(9)]
    for part, (name, array) in zip(parts, tensors.items(), strict=True):
        ckptfmt.save(part, {name: array})
    ckptfmt.merge(parts, tmp_path / "a", inputs="consume")
    for most, expected in ((10, [2] * 9), (9, [2, 2, 2, 2, 1]), (3, [2, 1]), (1, [1])):
        with limited(files=most):
            ckptfmt.save(tmp_path / "b", tensors, base=tmp_path / "a")
        assert links(tmp_path / "b") == expected
        assert_holds(tmp_path / "b", tensors)
        with ckptfmt.open(tmp_path / "b") as reader:
            assert reader["t0"].shard == (0 if most == 10 else len(expected) - 1)
        remove(tmp_path / "b")


def test_a_file_of_too_many_names_is_written_anew(tmp_path: Path) -> None:
    tensors = {"x": np.ones(100)}
    ckptfmt.save(tmp_path / "a", tensors)
    for i in range(999):
        os.link(files_of(tmp_path / "a")[0], tmp_path / f"link{i}")
    ckptfmt.save(tmp_path / "b", tensors, base=tmp_path / "a")
    assert links(tmp_path / "b") == [1]
    assert_holds(tmp_path / "b", tensors)


# ---- levels --------------------------------------------------------------------------------------


def test_levels(tmp_path: Path) -> None:
    """Level "v2" takes no entry with an extension; "v2+" takes what there is."""
    tensors = {"large": np.arange(CHUNK), "small": np.arange(9000)}
    ckptfmt.save(tmp_path / "plus", tensors)
    with limited(1.0):
        ckptfmt.save(tmp_path / "a", tensors, base=tmp_path / "plus", level="v2")
    assert links(tmp_path / "a") == [2, 1]
    with ckptfmt.open(tmp_path / "a") as reader:
        assert (reader["small"].shard, reader["large"].shard) == (0, 1)
        assert not reader["large"].partial_reads_verified
    ckptfmt.save(tmp_path / "b", tensors, base=tmp_path / "a")
    assert links(tmp_path / "b") == [2, 1]
    with ckptfmt.open(tmp_path / "b") as reader:
        assert (reader["large"].shard, reader["small"].shard) == (0, 1)
        assert not reader["large"].partial_reads_verified
    assert_holds(tmp_path / "b", tensors)
    ckptfmt.save(tmp_path / "c", tensors, base=tmp_path / "plus")
    with ckptfmt.open(tmp_path / "c") as reader:
        assert reader["large"].partial_reads_verified


# ---- the rest of the life ------------------------------------------------------------------------


def test_progress(tmp_path: Path) -> None:
    """Each byte counts once: when it is found unchanged, or when it is written."""
    tensors = {f"t{i}": np.full(1000, float(i)) for i in range(10)}
    ckptfmt.save(tmp_path / "a", tensors)
    tensors["t3"] = tensors["t3"] + 1
    for files in (64, 1):
        told: list[tuple[int, int]] = []
        with limited(files=files):
            ckptfmt.save(
                tmp_path / "b",
                tensors,
                base=tmp_path / "a",
                progress=lambda *numbers, told=told: told.append(numbers),
            )
        assert told[0] == (72_000, 80_000)
        assert told[-1] == (80_000, 80_000)
        assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    tensors = {"x": np.ones(100), "y": np.zeros(100)}
    ckptfmt.save(tmp_path / "a", tensors)
    before = sorted(tmp_path.iterdir())
    for number in (1, 2):
        calls: list[int] = []

        def stop(*_: int, calls: list[int] = calls, number: int = number) -> None:
            calls.append(1)
            if len(calls) == number:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ckptfmt.save(
                tmp_path / "b", {**tensors, "y": np.ones(5)}, base=tmp_path / "a", progress=stop
            )
        assert sorted(tmp_path.iterdir()) == before
        assert links(tmp_path / "a") == [1]


# ---- refused -------------------------------------------------------------------------------------


def test_no_base(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError):
        ckptfmt.save(tmp_path / "new" / "b", {"x": [1.0]}, base=tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a.index").write_bytes(b"no index" * 20)
    with pytest.raises(CorruptError):
        ckptfmt.save(tmp_path / "new" / "b", {"x": [1.0]}, base=tmp_path / "a")
    assert not (tmp_path / "new").exists()


def test_wrong_arguments(tmp_path: Path) -> None:
    tensors = {"x": np.ones(3)}
    ckptfmt.save(tmp_path / "a", tensors)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidError, match="level"):
        ckptfmt.save(tmp_path / "b", tensors, base=tmp_path / "a", level="v3")
    with pytest.raises(InvalidError, match="alignment"):
        ckptfmt.save(tmp_path / "b", tensors, base=tmp_path / "a", alignment=0)
    with pytest.raises(CheckpointNotFoundError):
        ckptfmt.save(tmp_path / "b", tensors, base="memory://nothing/a")
    assert sorted(tmp_path.iterdir()) == before


def test_comparing_in_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting what was compared, while other threads go on, once wrote beyond an array."""
    monkeypatch.setattr(incremental, "BATCH_BYTES", 1)
    arrays = {f"t{i:05d}": np.full(8, i, np.int32) for i in range(20000)}
    ckptfmt.save(tmp_path / "a", arrays, durability="none")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        told: list[int] = []
        ckptfmt.save(
            tmp_path / "b",
            arrays,
            base=tmp_path / "a",
            durability="none",
            progress=lambda done, _total: told.append(done),
        )
    finally:
        sys.setswitchinterval(interval)
    assert told == sorted(told)
    assert told[-1] == 20000 * 32
    assert ckptfmt.verify(tmp_path / "b").ok
