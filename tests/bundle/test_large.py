# SPDX-License-Identifier: Apache-2.0
"""Values beyond 4 GiB. The slow ones take 13 GiB of memory and 7 GiB of disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckptfmt

GIB = 1 << 30


@pytest.mark.parametrize("size", [1 << 20, pytest.param(6 * GIB, marks=pytest.mark.slow)])
def test_large_tensor(tmp_path: Path, size: int) -> None:
    value = np.arange(size // 8, dtype=np.uint64).reshape(-1, 1024)
    value *= np.uint64(0x9E3779B97F4A7C15)
    ckptfmt.save_v2(tmp_path / "t", ["big"], [""], [value])
    with ckptfmt.open(tmp_path / "t") as reader:
        handle = reader["big"]
        assert handle.nbytes == size
        assert np.array_equal(handle[-3:-1], value[-3:-1])
        read = handle.read()
    for row in range(0, len(value), 65536):
        assert np.array_equal(read[row : row + 65536], value[row : row + 65536])


@pytest.mark.parametrize("size", [70_000, pytest.param(4 * GIB + 12_345, marks=pytest.mark.slow)])
def test_large_string(tmp_path: Path, size: int) -> None:
    pattern = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8).tobytes()
    strings = np.empty(3, object)
    strings[:] = [b"first", (pattern * (size // len(pattern) + 1))[:size], b"last"]
    ckptfmt.save_v2(tmp_path / "s", ["text"], [""], [strings])
    del strings
    with ckptfmt.open(tmp_path / "s") as reader:
        read = reader["text"].read()
    assert read[0] == b"first" and read[2] == b"last"
    assert len(read[1]) == size
    view = memoryview(read[1])
    for start in range(0, size, len(pattern)):
        piece = view[start : start + len(pattern)]
        assert piece == pattern[: len(piece)]
