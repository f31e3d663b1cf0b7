# SPDX-License-Identifier: Apache-2.0
"""How much memory compressed values take that claim more than they hold (L03, L04). What is refused
otherwise, by which rule: the vectors cmp-*."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import zstandard
from support import index as ix
from support.process import memory_limit

import ckptfmt
from ckptfmt import CorruptError
from ckptfmt.bundle.codec import Zstd
from ckptfmt.errors import LimitError

UINT8, STRING = 4, 7
SIZE = 16 << 20  # of a chunk


def frame(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(raw)


def write(
    prefix: Path, chunks: list[bytes], raw_size: int, dtype: int, count: int, raw_crc: int
) -> Path:
    """A checkpoint of one compressed tensor `x` in chunks of 16 MiB."""
    data = b"".join(chunks)
    extension = (
        ix.number(1, 1)
        + ix.number(2, SIZE)
        + ix.nested(3, b"".join(ix.u32(ix.crc32c(chunk)) for chunk in chunks))
        + ix.nested(4, b"".join(ix.varint(len(chunk)) for chunk in chunks))
        + ix.number(5, raw_size)
        + ix.fixed32(6, raw_crc)
    )
    entry = ix.entry(
        dtype,
        (count,),
        size=len(data),
        masked_crc=ix.mask(ix.crc32c(data)),
        extra=ix.nested(100, extension),
    )
    head = ix.header(version=ix.number(1, 2) + ix.number(2, 2))
    return ix.write(prefix, ix.index_of([(b"", head), (b"x", entry)]), data)


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


def test_expansion_is_limited_before_memory_is_taken(tmp_path: Path) -> None:
    """L03: the index alone claims 8 TiB of nearly nothing."""
    size = 2**33
    chunk = b"\1" + b"\x28\xb5\x2f\xfd"
    prefix = write(tmp_path / "a", [chunk] * (size // SIZE), size, UINT8, size, 0)
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
    raw = bytes(SIZE)
    crc = ix.crc32c(raw)
    prefix = write(tmp_path / "a", [b"\1" + frame(raw)], SIZE, UINT8, SIZE, crc)
    with ckptfmt.open(prefix) as reader:
        assert reader["x"].stored_nbytes < 3000
        assert not reader["x"].read().any()
    refused(prefix, LimitError, "CMP-20", limits={"expansion_max": 100})


def claimed_strings(prefix: Path, count: int) -> Path:
    """So many strings, all empty, of which the checksum of the lengths is wrong."""
    chunk = b"\1" + frame(bytes(SIZE))
    chunks = [chunk] * (count // SIZE)
    return write(prefix, chunks, count, STRING, count - 4, ix.crc32c(bytes(4)))


def test_claimed_strings_cost_little_to_check(tmp_path: Path) -> None:
    """Nothing is held of a value that is checked; reading it takes no room for its elements before
    their lengths are found right."""
    prefix = claimed_strings(tmp_path / "a", 32 << 20)
    with memory_limit(56 << 20):
        found = ckptfmt.verify(prefix).problems
    assert [(one.message[:5], one.tensor) for one in found] == [("STR-5", "x")]
    with memory_limit(104 << 20):
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
