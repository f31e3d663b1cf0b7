# SPDX-License-Identifier: Apache-2.0
"""A small checkpoint cut at every length and with a bit of each byte flipped, all with --slow.

The place of the damage determines the outcome. The failure class, the file and the offset are exact
as long as the checksums are unchanged. Under repaired checksums the damage may be a different,
sound checkpoint; then what is read still has the checksum that the index has for it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support import index as ix
from support.arrays import bits
from support.process import memory_limit, open_files

import ckptfmt
from ckptfmt import CkptfmtError, CorruptError

INDEX = "ckpt.index"
DATA = "ckpt.data-00000-of-00001"
MEMORY = 64 << 20

# Classes that damage to the messages or the structure of a block can have once its checksum fits.
STRUCTURAL = {"BAD_BLOCK", "BAD_ORDER", "BAD_PROTO", "BAD_HEADER", "BAD_SHAPE", "BAD_SLICE"}
STRUCTURAL |= {"BAD_ENTRY", "BAD_DTYPE", "UNSUPPORTED", "LIMIT"}
READING = {"CHECKSUM", "TRUNCATED", "SHARD_MISSING"}


@dataclass
class Sample:
    """The sound checkpoint: its files, its values, and where its parts are."""

    prefix: str
    index: bytes
    data: bytes
    values: dict[str, Any]
    regions: ix.Regions

    @property
    def index_path(self) -> str:
        return self.prefix + ".index"

    @property
    def data_path(self) -> str:
        return f"{self.prefix}.data-00000-of-00001"


def tensors() -> dict[str, Any]:
    strings = np.array([b"hello", b"", b"wor\0ld"], object)
    return {
        "bool": np.array([True, False, True]),
        "dense/float": np.array([[1.5, -2.0, np.nan], [0.0, -0.0, 3e-39]], np.float32),
        "dense/half": np.array([1, 2], ml_dtypes.bfloat16),
        "int4": np.array([-8, 7, -1], ml_dtypes.int4),
        "part": np.arange(24, dtype=np.int16).reshape(4, 6),
        "scalar": np.array(-7, np.int64),
        "text": strings,
        "zero": np.zeros((0, 3), np.complex64),
    }


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    prefix = tmp_path / "ckpt"
    values = tensors()
    with ckptfmt.Writer(prefix, level="v2", durability="none") as writer:
        for name, array in values.items():
            if name == "part":
                writer.add_slice(name, array[:, :2], array.shape, (0, 0))
                writer.add_slice(name, array[:, 2:], array.shape, (0, 2))
            else:
                writer.add(name, array)
    index, data = (tmp_path / INDEX).read_bytes(), (tmp_path / DATA).read_bytes()
    made = Sample(str(prefix), index, data, values, ix.regions(index))
    assert outcome(made) == {name: bits(array) for name, array in values.items()}
    return made


Flips = Callable[[bytes, int], list[bytearray]]


@pytest.fixture(params=["one bit", pytest.param("all bits", marks=pytest.mark.slow)])
def flips(request: pytest.FixtureRequest, seed: int) -> Flips:
    """The content with a random bit of a byte flipped, or with each in turn."""
    chance = random.Random(seed)

    def found(content: bytes, position: int) -> list[bytearray]:
        bits = [chance.randrange(8)] if request.param == "one bit" else range(8)
        damaged = [bytearray(content) for _ in bits]
        for one, bit in zip(damaged, bits, strict=True):
            one[position] ^= 1 << bit
        return damaged

    return found


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """No damage makes the reader take much memory, or leave files open."""
    before = open_files()
    with memory_limit(MEMORY):
        yield
    assert open_files() == before


def write(path: str, content: bytes) -> None:
    with open(path, "wb") as stream:
        stream.write(content)


def read_all(prefix: str) -> dict[str, Any]:
    """Each tensor's bits or the error of reading it; an error of opening or listing is raised."""
    found: dict[str, Any] = {}
    with ckptfmt.open(prefix) as reader:
        for name, handle in reader.items():
            try:
                found[name] = bits(handle.read())
            except CkptfmtError as error:
                found[name] = error
    return found


def outcome(sample: Sample) -> dict[str, Any]:
    return read_all(sample.prefix)


def refusal(sample: Sample) -> CkptfmtError:
    with pytest.raises(CkptfmtError) as caught:
        outcome(sample)
    return caught.value


def assert_is(error: Any, failure: str, rule: str, offset: int | None, path: str) -> None:
    assert isinstance(error, CorruptError), error
    assert error.failure == failure, error
    assert error.message.startswith(rule + ":"), error
    assert error.offset == offset, error
    assert error.path == path, error


# ---- as the damage comes


def test_index_cut_at_every_length(sample: Sample) -> None:
    for size in range(len(sample.index)):
        write(sample.index_path, sample.index[:size])
        error = refusal(sample)
        if size < ix.FOOTER_SIZE:
            assert_is(error, "TRUNCATED", "FTR-1", size, sample.index_path)
        else:
            assert_is(error, "BAD_MAGIC", "FTR-2", size - 8, sample.index_path)


def test_index_with_bytes_after_it(sample: Sample) -> None:
    for size in (1, 7, 8, 4096):
        write(sample.index_path, sample.index + b"Z" * size)
        place = len(sample.index) + size - 8
        assert_is(refusal(sample), "BAD_MAGIC", "FTR-2", place, sample.index_path)


def places(sample: Sample) -> dict[str, list[tuple[int, int]]]:
    """Offset and size of each tensor's stored values."""
    with ckptfmt.open(sample.prefix) as reader:
        return {
            name: [(part.offset, part.nbytes) for part in handle.slices]
            or [(handle.offset or 0, handle.stored_nbytes)]
            for name, handle in reader.items()
        }


def test_data_cut_at_every_length(sample: Sample) -> None:
    stored = places(sample)
    for size in range(len(sample.data)):
        write(sample.data_path, sample.data[:size])
        found = outcome(sample)
        for name, runs in stored.items():
            lost = [offset for offset, count in runs if count and offset + count > size]
            if not lost:
                assert found[name] == bits(sample.values[name])
                continue
            assert_is(found[name], "TRUNCATED", "DAT-2", lost[0], sample.data_path)
            assert found[name].tensor == name


def test_every_bit_of_the_data(sample: Sample, flips: Flips) -> None:
    stored = places(sample)
    for position in range(len(sample.data)):
        (hit,) = [
            (name, offset)
            for name, runs in stored.items()
            for offset, count in runs
            if offset <= position < offset + count
        ]
        for damaged in flips(sample.data, position):
            write(sample.data_path, damaged)
            found = outcome(sample)
            error = found.pop(hit[0])
            assert found == {
                name: bits(array) for name, array in sample.values.items() if name != hit[0]
            }
            assert isinstance(error, CorruptError)
            assert error.path == sample.data_path
            assert error.tensor == hit[0]
            if hit[0] == "text":  # the sizes may no longer fit before any checksum can be taken
                assert error.failure in ("CHECKSUM", "BAD_ENTRY"), error
                assert hit[1] <= (error.offset or 0) <= hit[1] + stored["text"][0][1]
            else:
                assert_is(error, "CHECKSUM", "DAT-6", hit[1], sample.data_path)


def expected_of_footer(sample: Sample, damaged: bytes) -> tuple[str, str, int] | None:
    """What a damaged footer must give; None where the damage is in what readers do not look at."""
    start = sample.regions.footer
    if damaged[-8:] != ix.MAGIC:
        return "BAD_MAGIC", "FTR-2", start + 40
    area, numbers, position = damaged[start : start + 40], [], 0
    for _ in range(4):
        end = next((p for p in range(position, 40) if area[p] < 0x80), None)
        if end is None or end - position >= 10:
            return "BAD_BLOCK", "FTR-3", -1
        value, position = ix.read_varint(area, position)
        if value >= 2**64:
            return "BAD_BLOCK", "FTR-3", -1
        numbers.append(value)
    place, count = numbers[2:]
    if (place, count) == sample.regions.index:
        return None
    if place + count + ix.TRAILER_SIZE > start:
        return "TRUNCATED", "FTR-5", start
    return "CHECKSUM", "BLK-2", place


def test_every_bit_of_the_index(sample: Sample, flips: Flips) -> None:
    parts = sample.regions
    good = {name: bits(array) for name, array in sample.values.items()}
    ignored = 0
    for position in range(len(sample.index)):
        for damaged in flips(sample.index, position):
            write(sample.index_path, damaged)
            wanted: tuple[str, str, int] | None = None
            for offset, size in (*parts.data_blocks, parts.index):
                if offset <= position < offset + size + ix.TRAILER_SIZE:
                    wanted = ("CHECKSUM", "BLK-2", offset)
            if position >= parts.footer:
                wanted = expected_of_footer(sample, bytes(damaged))
            if wanted is None:
                assert outcome(sample) == good
                ignored += 1
                continue
            error = refusal(sample)
            offset_wanted = wanted[2] if wanted[2] >= 0 else error.offset
            assert_is(error, wanted[0], wanted[1], offset_wanted, sample.index_path)
            if wanted[2] < 0:
                assert parts.footer <= (error.offset or 0) < parts.footer + 40
    # The metaindex block, the footer's padding, and at most its handle.
    padding = parts.footer + 40 - parts.handles_end
    size, each = parts.metaindex[1] + ix.TRAILER_SIZE + padding, len(flips(sample.index, 0))
    assert each * size <= ignored <= each * (size + 4)


# ---- behind repaired checksums


def repair(index: bytearray, place: tuple[int, int]) -> None:
    """Make the checksum of a block fit its bytes."""
    end = sum(place) + 1
    index[end : end + 4] = ix.u32(ix.mask(ix.crc32c(bytes(index[place[0] : end]))))


def check_readable(sample: Sample, name: str, handle: ckptfmt.types.TensorHandle) -> None:
    """Reads a tensor of a damaged but consistent checkpoint: an error, or bytes that have the
    checksum that the index has for them."""
    try:
        array = handle.read()
    except CkptfmtError as error:
        assert error.failure in READING | STRUCTURAL, error
        assert error.path in (sample.index_path, sample.data_path) or (
            error.failure == "SHARD_MISSING"
        ), error
        if error.failure in READING - {"SHARD_MISSING"}:
            assert error.offset is not None, error
        return
    assert array.shape == handle.shape or handle.dtype is None
    if handle.dtype is not None and handle.dtype != np.dtype(object) and not handle.partitioned:
        assert ix.crc32c(array.tobytes()) == handle.crc32c


@pytest.mark.parametrize("part", ["data block", "index block"])
def test_every_bit_with_the_block_checksum_repaired(
    sample: Sample, flips: Flips, part: str
) -> None:
    parts = sample.regions
    (place,) = parts.data_blocks if part == "data block" else [parts.index]
    refused: dict[str, int] = {}
    for position in range(place[0], place[0] + place[1] + 1):
        for damaged in flips(sample.index, position):
            repair(damaged, place)
            write(sample.index_path, damaged)
            try:
                with ckptfmt.open(sample.prefix) as reader:
                    for name, handle in reader.items():
                        check_readable(sample, name, handle)
            except CkptfmtError as error:
                refused[error.failure] = refused.get(error.failure, 0) + 1
                assert error.path == sample.index_path, error
                if position == sum(place) and damaged[position] > 1:  # an unknown block type
                    assert_is(error, "BAD_BLOCK", "BLK-3", position, sample.index_path)
                elif part == "data block":
                    assert error.failure in STRUCTURAL, error
                else:  # a handle may point elsewhere
                    assert error.failure in STRUCTURAL | {"TRUNCATED", "CHECKSUM"}, error
                if error.offset is not None:
                    assert error.offset < parts.footer, error
                elif error.failure != "UNSUPPORTED":
                    raise AssertionError(f"no offset: {error}") from error
    print(part, refused)
    assert refused["BAD_BLOCK"] > 2.5 * len(flips(sample.index, 0))


def test_every_bit_of_the_data_with_its_checksum_repaired(sample: Sample, flips: Flips) -> None:
    """The values are then what the file says, except that strings have a second checksum."""
    (block_place,) = sample.regions.data_blocks
    rows = ix.block_rows(sample.index[block_place[0] : sum(block_place)])
    entries = {key: (place, value) for _, key, place, value in rows}
    with ckptfmt.open(sample.prefix) as reader:
        whole = {n: (h.offset or 0, h.stored_nbytes) for n, h in reader.items() if h.shard == 0}
    for name, (offset, size) in whole.items():
        place, value = entries[name.encode()]
        at = block_place[0] + place + value.rindex(b"\x35") + 1
        for position in range(offset, offset + size):
            for data in flips(sample.data, position):
                stored = bytes(data[offset : offset + size])
                index = bytearray(sample.index)
                index[at : at + 4] = ix.u32(ix.mask(entry_crc(name, stored)))
                repair(index, block_place)
                write(sample.index_path, index)
                write(sample.data_path, data)
                found = outcome(sample)[name]
                if name != "text":
                    expected = np.frombuffer(stored, sample.values[name].dtype)
                    assert found == bits(expected.reshape(sample.values[name].shape))
                elif position - offset < TEXT_HEAD:
                    assert isinstance(found, CorruptError)
                    assert found.failure in ("CHECKSUM", "BAD_ENTRY")
                    assert found.message.startswith(("STR-3", "STR-4", "STR-5")), found
                    assert found.path == sample.data_path
                    assert offset <= (found.offset or 0) <= offset + size
                else:
                    assert b"".join(found[2]) == stored[TEXT_HEAD:]


TEXT_HEAD = 3 + 4  # the sizes of the three elements, and their checksum


def entry_crc(name: str, stored: bytes) -> int:
    if name != "text":
        return ix.crc32c(stored)
    sizes, position = b"", 0
    for _ in range(3):
        with contextlib.suppress(IndexError):
            size, position = ix.read_varint(stored, position)
            sizes += ix.u32(size & 0xFFFFFFFF)
    # STR-6 takes the checksum of the sizes as it is stored, damaged or not.
    return ix.crc32c(stored[TEXT_HEAD - 4 :], ix.crc32c(sizes))
