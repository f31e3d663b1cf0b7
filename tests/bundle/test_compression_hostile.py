# SPDX-License-Identifier: Apache-2.0
"""Compressed values that nobody wrote in good faith, made by hand: what is refused, with which
rule, and how much memory that takes (checklist L01 to L12); and files of versions to come."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import zstandard
from support import index as ix
from support.arrays import assert_same
from support.process import memory_limit

import ckptfmt
from ckptfmt import CorruptError, LimitError, UnsupportedError
from ckptfmt.bundle.codec import Zstd

UINT8, UINT16, FLOAT, STRING = 4, 17, 1, 7
CHUNK = 4096
RAW = bytes(range(256)) * 40  # 10240 bytes: three chunks
GOOD = zstandard.ZstdCompressor(level=1)
VERSION = ix.number(1, 2) + ix.number(2, 2)


def frame(raw: bytes) -> bytes:
    return GOOD.compress(raw)


def pieces(raw: bytes, size: int = CHUNK) -> list[bytes]:
    return [raw[at : at + size] for at in range(0, len(raw), size)]


@dataclass
class Packed:
    """A compressed value, of which anything can be made wrong; checksums follow, unless given."""

    chunks: list[bytes]
    raw: bytes = RAW
    dtype: int = UINT8
    shape: Sequence[int] = (len(RAW),)
    flags: int = 1
    chunk_size: int = CHUNK
    crcs: list[int] | None = None
    sizes: list[int] | None = None
    sizes_content: bytes | None = None
    raw_size: int | None = None
    raw_crc: int | None = None
    size: int | None = None
    extra: bytes = b""
    version: bytes = VERSION
    endianness: int = 0
    others: list[tuple[bytes, bytes]] = field(default_factory=list)

    def entry(self, offset: int = 0) -> bytes:
        data = b"".join(self.chunks)
        sizes = [len(chunk) for chunk in self.chunks] if self.sizes is None else self.sizes
        crcs = [ix.crc32c(chunk) for chunk in self.chunks] if self.crcs is None else self.crcs
        packed = b"".join(map(ix.varint, sizes))
        raw_size = len(self.raw) if self.raw_size is None else self.raw_size
        content = (
            (ix.number(1, self.flags) if self.flags else b"")
            + ix.number(2, self.chunk_size)
            + ix.nested(3, b"".join(map(ix.u32, crcs)))
            + ix.nested(4, packed if self.sizes_content is None else self.sizes_content)
            + ix.number(5, raw_size)
            + ix.fixed32(6, ix.crc32c(self.raw) if self.raw_crc is None else self.raw_crc)
            + self.extra
        )
        return ix.entry(
            self.dtype,
            self.shape,
            offset=offset,
            size=len(data) if self.size is None else self.size,
            masked_crc=ix.mask(ix.crc32c(data)),
            extra=ix.nested(100, content),
        )

    def write(self, prefix: Path) -> Path:
        head = ix.header(version=self.version, endianness=self.endianness)
        rows = sorted([(b"x", self.entry()), *self.others])
        return ix.write(prefix, ix.index_of([(b"", head), *rows]), b"".join(self.chunks))


def zstd_chunks(raw: bytes = RAW) -> list[bytes]:
    return [b"\1" + frame(piece) for piece in pieces(raw)]


def refused(
    prefix: Path, kind: type[Exception], rule: str, **options: object
) -> ckptfmt.CkptfmtError:
    """The error of reading the tensor, which names it; listing it succeeds."""
    with ckptfmt.open(prefix, **options) as reader:  # type: ignore[arg-type]
        assert "x" in list(reader)
        with pytest.raises(kind) as caught:
            reader["x"].read()
    error = caught.value
    assert isinstance(error, ckptfmt.CkptfmtError)
    assert error.message.startswith(f"{rule}: "), error
    assert error.tensor == "x" and error.path
    return error


def test_sound(tmp_path: Path) -> None:
    planes = [np.frombuffer(piece, "<u2") for piece in pieces(RAW)]
    low = [(numbers & 255).astype("u1").tobytes() for numbers in planes]
    high = [(numbers >> 8).astype("u1").tobytes() for numbers in planes]
    rotated = [(numbers << 1) | (numbers >> 15) for numbers in planes]
    turned = [
        [part.tobytes() for part in ((n & 255).astype("u1"), (n >> 8).astype("u1"))]
        for n in rotated
    ]
    cases = {
        "raw": [b"\0" + piece for piece in pieces(RAW)],
        "zstd": zstd_chunks(),
        "planes": [
            b"\2" + ix.varint(2 * len(a)) + ix.varint(2 * len(frame(b)) + 1) + a + frame(b)
            for a, b in zip(low, high, strict=True)
        ],
        "rotated": [
            b"\3" + ix.varint(2 * len(frame(a)) + 1, 4) + ix.varint(2 * len(b)) + frame(a) + b
            for a, b in turned
        ],
        "mixed": [zstd_chunks()[0], b"\0" + pieces(RAW)[1], zstd_chunks()[2]],
    }
    expected = np.frombuffer(RAW, np.uint16)
    for name, chunks in cases.items():
        packed = Packed(chunks, dtype=UINT16, shape=(len(RAW) // 2,))
        with ckptfmt.open(packed.write(tmp_path / name)) as reader:
            assert_same(reader["x"].read(), expected)
            assert_same(reader["x"][2040:2060], expected[2040:2060])
            assert reader.verify().problems == []


# ---- the entry -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("CMP-2", {"chunk_size": 4080}),
        ("CMP-2", {"chunk_size": 4097}),
        ("CMP-2", {"chunk_size": (16 << 20) + 16}),
        ("CMP-2", {"chunk_size": 2**64 - 16}),
        ("CMP-3", {"raw_size": 0}),
        ("CMP-3", {"raw_size": 2**63}),
        ("CMP-4", {"raw_size": 2**40}),
        ("CMP-4", {"raw_size": 2**63 - 1}),
        ("CMP-4", {"crcs": [1, 2]}),
        ("CMP-4", {"crcs": []}),
        ("CMP-4", {"sizes": [5000, 5000]}),
        ("CMP-4", {"sizes": [9, 9, 9, 9]}),
        ("CMP-4", {"sizes_content": b"\x05\x05\x85"}),
        ("CMP-4", {"sizes_content": b"\xff" * 11}),
        ("CMP-5", {"sizes": [4098, 9, 9]}),
        ("CMP-5", {"sizes": [0, 9, 9]}),
        ("CMP-5", {"sizes": [9, 9, 2**63]}),
        ("CMP-5", {"sizes": [9, 9, 2050]}),
        ("CMP-1", {"sizes": [9, 9, 9]}),
        ("CMP-1", {"size": 7}),
        ("ENT-5", {"shape": (10241,)}),
        ("ENT-5", {"shape": (10239,)}),
        ("ENT-5", {"shape": (10240,), "dtype": UINT16}),
    ],
)
def test_sizes_that_do_not_fit(tmp_path: Path, rule: str, changes: dict[str, object]) -> None:
    packed = Packed(zstd_chunks())
    for name, value in changes.items():
        setattr(packed, name, value)
    error = refused(packed.write(tmp_path / "a"), CorruptError, rule)
    assert error.failure == "BAD_ENTRY"
    found = ckptfmt.verify(tmp_path / "a").problems
    assert any(one.message.startswith(rule) for one in found)


def test_strings_that_cannot_lie_there(tmp_path: Path) -> None:
    packed = Packed(zstd_chunks(), dtype=STRING, shape=(20_000,))
    refused(packed.write(tmp_path / "a"), CorruptError, "STR-2")


def test_unknown_dtype_and_byte_order(tmp_path: Path) -> None:
    error = refused(
        Packed(zstd_chunks(), dtype=77).write(tmp_path / "a"), UnsupportedError, "DTY-6"
    )
    assert "data type 77" in error.message
    refused(Packed(zstd_chunks(), endianness=1).write(tmp_path / "b"), UnsupportedError, "CMP-9")


def test_expansion_is_limited_before_memory_is_taken(tmp_path: Path) -> None:
    """L03: the index alone claims 8 TiB of nearly nothing."""
    size = 2**33
    count = size // (16 << 20)
    chunk = b"\1" + b"\x28\xb5\x2f\xfd"
    packed = Packed(
        [chunk] * count,
        raw=b"",
        raw_size=size,
        raw_crc=0,
        chunk_size=16 << 20,
        shape=(size,),
    )
    prefix = packed.write(tmp_path / "a")
    tracemalloc.start()
    try:
        error = refused(prefix, LimitError, "CMP-20", limits={"expansion_max": 1000})
        assert "expansion_max" in error.message
        refused(prefix, LimitError, "CMP-20", limits={"tensor_bytes_max": 2**33 - 1})
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_bomb_within_the_limits_is_just_a_tensor(tmp_path: Path) -> None:
    """L04: 16 MiB of zeros in some hundred bytes."""
    raw = bytes(16 << 20)
    packed = Packed([b"\1" + frame(raw)], raw=raw, chunk_size=16 << 20, shape=(len(raw),))
    prefix = packed.write(tmp_path / "a")
    with ckptfmt.open(prefix) as reader:
        assert reader["x"].stored_nbytes < 3000
        assert not reader["x"].read().any()
    refused(prefix, LimitError, "CMP-20", limits={"expansion_max": 100})


def claimed_strings(prefix: Path, count: int) -> Path:
    """So many strings, all empty, of which the checksum of the lengths is wrong."""
    size = 16 << 20
    chunk = b"\1" + frame(bytes(size))
    packed = Packed([chunk] * (count // size), raw=bytes(4), dtype=STRING, shape=(count - 4,))
    packed.chunk_size, packed.raw_size = size, count
    return packed.write(prefix)


def test_claimed_strings_cost_little_to_check(tmp_path: Path) -> None:
    """Nothing is held of a value that is checked; reading it takes no room for its elements before
    their lengths are found right."""
    prefix = claimed_strings(tmp_path / "a", 64 << 20)
    with memory_limit(112 << 20):
        found = ckptfmt.verify(prefix).problems
    assert [(one.message[:5], one.tensor) for one in found] == [("STR-5", "x")]
    with memory_limit(208 << 20):
        assert refused(prefix, CorruptError, "STR-5").failure == "CHECKSUM"


def test_too_little_memory_is_told_with_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_arguments: object) -> None:
        raise MemoryError

    prefix = claimed_strings(tmp_path / "a", 16 << 20)
    monkeypatch.setattr(Zstd, "decode", exhausted)
    (found,) = ckptfmt.verify(prefix).problems
    with ckptfmt.open(prefix) as reader, pytest.raises(LimitError) as caught:
        reader["x"].read()
    assert (found.failure, found.tensor) == ("LIMIT", "x") and "no memory" in found.message
    assert caught.value.tensor == "x" and "no memory" in caught.value.message


# ---- the chunks ----------------------------------------------------------------------------------


def window(log: int, raw: bytes) -> bytes:
    """A frame of one raw block with a window of its own."""
    head = b"\x28\xb5\x2f\xfd\x80" + bytes([(log - 10) << 3]) + ix.u32(len(raw))
    return head + (len(raw) << 3 | 1).to_bytes(3, "little") + raw


FIRST = pieces(RAW)[0]
SUM = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(FIRST)
UNSIZED = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(FIRST)
DICTIONARY = zstandard.ZstdCompressionDict(FIRST, zstandard.DICT_TYPE_RAWCONTENT)
LITERALS = bytearray(frame(FIRST))
LITERALS[10:16] = b"\xff" * 6


@pytest.mark.parametrize(
    ("rule", "chunk"),
    [
        ("CMP-12", b"\4" + frame(FIRST)),
        ("CMP-12", b"\xff"),
        ("CMP-13", b"\0" + FIRST[:-1]),
        ("CMP-13", b"\0"),
        ("CMP-15", b"\2" + b"\xff" * 11),
        ("CMP-15", b"\3"),
        ("CMP-16", b"\2" + ix.varint(2 * 4095) + FIRST[:-1]),
        ("CMP-16", b"\2" + ix.varint(2 * 4096) + FIRST[:-10]),
        ("CMP-16", b"\2" + ix.varint(2**64 - 1) + FIRST[:10]),
        ("CMP-16", b"\3" + ix.varint(2 * len(frame(FIRST)) + 1) + frame(FIRST) + b"\0"),
        ("CMP-18", b"\1"),
        ("CMP-18", b"\1" + frame(FIRST + b"\0")),  # L01
        ("CMP-18", b"\1" + frame(FIRST[:-1])),
        ("CMP-18", b"\1" + UNSIZED),  # L02
        ("CMP-18", b"\1" + window(25, FIRST[:100] * 40)[:3000]),  # L05
        ("CMP-18", b"\1" + window(31, b"")),
        ("CMP-18", b"\1" + frame(FIRST)[:-1]),  # L06
        ("CMP-18", b"\1" + frame(FIRST) + b"\0"),
        ("CMP-18", b"\1" + frame(FIRST[:2048]) + frame(FIRST[2048:])),
        ("CMP-18", b"\1" + frame(FIRST) + frame(b"")),
        ("CMP-18", b"\1\x50\x2a\x4d\x18\0\0\0\0" + frame(FIRST)),
        ("CMP-18", b"\1" + frame(FIRST) + b"\x50\x2a\x4d\x18\0\0\0\0"),
        ("CMP-18", b"\1\x28\xb5\x2f\xfd\x61\x07" + frame(FIRST)[5:]),  # L07
        ("CMP-18", b"\1" + SUM[:-1] + bytes([SUM[-1] ^ 1])),  # L08
        ("CMP-18", b"\1" + bytes(LITERALS)),
        ("CMP-18", b"\1\x1f\x8b\x08" + bytes(30)),
    ],
)
def test_bad_chunks(tmp_path: Path, rule: str, chunk: bytes) -> None:
    chunks = [b"\0" + pieces(RAW)[1], chunk[: CHUNK + 1], b"\0" + pieces(RAW)[2]]
    raw = pieces(RAW)[1] + FIRST + pieces(RAW)[2]
    prefix = Packed(chunks, raw=raw).write(tmp_path / "a")
    error = refused(prefix, CorruptError, rule)
    assert error.failure == "BAD_CHUNK"
    assert error.path == str(ix.data_name(prefix, 0, 1))
    assert error.offset is not None and CHUNK + 1 <= error.offset <= CHUNK + 1 + len(chunk)
    # Switching verification off is about checksums, and not about this.
    refused(prefix, CorruptError, rule, verify="off")
    with ckptfmt.open(prefix) as reader:
        expected = np.frombuffer(raw, np.uint8)
        assert_same(reader["x"][:100], expected[:100])
        assert_same(reader["x"][2 * CHUNK :], expected[2 * CHUNK :])
        with pytest.raises(CorruptError, match=rule):
            reader["x"][CHUNK : CHUNK + 1]
        (found,) = reader.verify().problems
        assert (found.failure, found.tensor) == ("BAD_CHUNK", "x")
        assert found.message.startswith(rule)


def test_checksums(tmp_path: Path) -> None:
    """L10: of the stored bytes before they are looked at, of the raw bytes afterwards."""
    chunks = [*zstd_chunks()[:2], b"\x07 no chunk at all"]
    crcs = [*map(ix.crc32c, chunks[:2]), 7]
    prefix = Packed(chunks, crcs=crcs).write(tmp_path / "a")
    error = refused(prefix, CorruptError, "CMP-11")
    assert error.failure == "CHECKSUM" and error.offset == sum(map(len, chunks[:2]))
    refused(prefix, CorruptError, "CMP-12", verify="off")
    prefix = Packed(zstd_chunks(), raw_crc=5).write(tmp_path / "b")
    assert refused(prefix, CorruptError, "CMP-19").failure == "CHECKSUM"
    with ckptfmt.open(prefix) as reader:
        assert_same(reader["x"][:9000], np.frombuffer(RAW, np.uint8)[:9000])
        assert [one.message[:6] for one in reader.verify().problems] == ["CMP-19"]
    with ckptfmt.open(prefix, verify="off") as reader:
        assert_same(reader["x"].read(), np.frombuffer(RAW, np.uint8))


def test_strings_are_checked_by_their_rules(tmp_path: Path) -> None:
    elements = [b"abc" * 100] * 40
    raw, masked = ix.string_value(elements)
    crc = ix.unmask(masked)
    good = Packed(zstd_chunks(raw), raw=raw, raw_crc=crc, dtype=STRING, shape=(40,))
    with ckptfmt.open(good.write(tmp_path / "a")) as reader:
        assert reader["x"].read().tolist() == elements
    good.raw_crc = crc ^ 1
    prefix = good.write(tmp_path / "b")
    refused(prefix, CorruptError, "STR-6")
    assert [one.message[:5] for one in ckptfmt.verify(prefix).problems] == ["STR-6"]


def test_each_problem_of_a_slice_is_told_once(tmp_path: Path) -> None:
    """The C core and the decoder look at the same values."""
    rows, data = [], b""
    for number in range(4):
        raw = bytes([number]) * 5000
        chunks = zstd_chunks(raw)
        damage = {0: {"crcs": [1, 2]}, 1: {"raw_crc": 5}, 3: {"raw_crc": 6}}.get(number, {})
        half = Packed(chunks, raw=raw, shape=(1, 5000), **damage)  # type: ignore[arg-type]
        extents = [(number, 1), (0, -1)]
        rows.append((ix.slice_key(b"x", extents), half.entry(len(data))))
        data += b"".join(chunks)
    listed = [ix.slice_message([(number, 1), (0, -1)]) for number in range(4)]
    whole = ix.entry(UINT8, (4, 5000), slices=listed)
    head = ix.header(version=VERSION)
    ix.write(tmp_path / "a", ix.index_of([(b"", head), *sorted([(b"x", whole), *rows])]), data)
    found = [one.message[:6] for one in ckptfmt.verify(tmp_path / "a").problems]
    assert sorted(found) == ["CMP-11", "CMP-19", "CMP-19", "EXT-6:"]


def test_cut_short(tmp_path: Path) -> None:
    prefix = Packed(zstd_chunks()).write(tmp_path / "a")
    data = ix.data_name(prefix, 0, 1)
    data.write_bytes(data.read_bytes()[:-1])
    assert refused(prefix, CorruptError, "DAT-2").failure == "TRUNCATED"


# ---- versions to come ----------------------------------------------------------------------------


def test_unknown_fields_are_ignored_and_kept(tmp_path: Path) -> None:
    """Version N + 1 has added what readers of version N may do without."""
    later = ix.number(7, 9) + ix.nested(40, b"new") + ix.fixed32(41, 3)
    packed = Packed(zstd_chunks(), extra=later)
    prefix = packed.write(tmp_path / "a")
    with ckptfmt.open(prefix) as reader:
        assert_same(reader["x"].read(), np.frombuffer(RAW, np.uint8))
        assert reader.verify().ok
    ckptfmt.merge([prefix], tmp_path / "b")
    assert later in (tmp_path / "b.index").read_bytes()
    with ckptfmt.open(tmp_path / "b") as reader:
        assert reader.header.min_consumer == 2
        assert_same(reader["x"].read(), np.frombuffer(RAW, np.uint8))


def test_an_unknown_feature_is_refused_where_it_is_used(tmp_path: Path) -> None:
    """L12: and nothing else of it is looked at, however it is stored."""
    good = b"y", ix.stored_entry(UINT8, [4], RAW[:4])
    packed = Packed(
        [RAW], flags=3, chunk_size=1, sizes_content=b"\xff", raw_size=2**63, others=[good]
    )
    prefix = packed.write(tmp_path / "a")
    error = refused(prefix, UnsupportedError, "EXT-3")
    assert error.failure == "UNSUPPORTED"
    with ckptfmt.open(prefix) as reader:
        assert reader["x"].shape == (len(RAW),)
        assert_same(reader["y"].read(), np.frombuffer(RAW[:4], np.uint8))
    ckptfmt.merge([prefix], tmp_path / "b")
    refused(tmp_path / "b", UnsupportedError, "EXT-3")


def test_a_later_min_consumer_is_refused_at_once(tmp_path: Path) -> None:
    version = ix.number(1, 3) + ix.number(2, 3)
    prefix = Packed(zstd_chunks(), version=version).write(tmp_path / "a")
    with pytest.raises(UnsupportedError, match="HDR-8: written for readers of version 3 or later"):
        ckptfmt.open(prefix)


def test_the_header_does_not_tell_how_a_value_is_stored(tmp_path: Path) -> None:
    """A merge by others may lose min_consumer."""
    prefix = Packed(zstd_chunks(), version=ix.number(1, 1)).write(tmp_path / "a")
    assert_same(ckptfmt.load(prefix)["x"], np.frombuffer(RAW, np.uint8))
