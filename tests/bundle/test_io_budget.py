# SPDX-License-Identifier: Apache-2.0
"""What a partial read costs in bytes, counted where the system is called: of a stored tensor above
1 MiB at most the bytes asked for plus one chunk at each end of each run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt import _core

CHUNK = 262_144


def runs_of(shape: tuple[int, ...], index: tuple[slice, ...]) -> int:
    """How many pieces of the row-major array the box consists of."""
    count, whole = 1, True
    for size, part in reversed(list(zip(shape, index, strict=True))):
        length = len(range(*part.indices(size)))
        if not whole:
            count *= length
        whole = whole and length == size
    return count


def bytes_read(handle: Any, index: tuple[slice, ...]) -> tuple[int, Any]:
    before = _core.counters()["bytes_read"]
    got = handle[index]
    return _core.counters()["bytes_read"] - before, got


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_partial_reads_stay_within_the_budget(tmp_path: Path, level: str, seed: int) -> None:
    chance = random.Random(seed)
    shape = (96, 64, 320)
    value = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    ckptfmt.save(tmp_path / "ck", {"a": np.zeros(77), "x": value}, level=level, durability="none")
    with ckptfmt.open(tmp_path / "ck") as reader:
        handle = reader["x"]
        assert handle.nbytes > 1 << 20
        for _ in range(150):
            index = []
            for size in shape:
                start = chance.randrange(size)
                stop = chance.choice((start + 1, chance.randrange(start, size) + 1, size))
                index.append(slice(chance.choice((0, start)), stop))
            key = tuple(index)
            read, got = bytes_read(handle, key)
            assert np.array_equal(got, value[key])
            assert read <= got.nbytes + 2 * CHUNK * runs_of(shape, key), (key, read, got.nbytes)
            # And never more than the value itself, a window's width of it aside.
            assert read <= handle.nbytes + CHUNK


def test_rows_cost_rows(tmp_path: Path) -> None:
    """At level v2 a block of rows costs exactly its bytes; verified, its chunks."""
    value = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
    for level, expected in (("v2", 8 * 4096), ("v2+", CHUNK)):
        ckptfmt.save(tmp_path / level, {"x": value}, level=level, durability="none")
        with ckptfmt.open(tmp_path / level) as reader:
            read, got = bytes_read(reader["x"], (slice(500, 508), slice(0, 1024)))
            assert np.array_equal(got, value[500:508])
            assert read == expected
            assert reader["x"].partial_reads_verified == (level == "v2+")


def test_names_cost_their_blocks_of_the_index(tmp_path: Path) -> None:
    """A load of many names does not list the others."""
    arrays = {f"layer_{n:06d}": np.float32(n) for n in range(60_000)}
    ckptfmt.save(tmp_path / "ck", arrays, durability="none")
    names = list(arrays)[20_000:21_500]
    before = _core.counters()["bytes_read"]
    found = ckptfmt.load(tmp_path / "ck", names)
    assert _core.counters()["bytes_read"] - before < (tmp_path / "ck.index").stat().st_size
    assert list(found) == names and found[names[7]] == 20_007
