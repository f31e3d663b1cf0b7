# SPDX-License-Identifier: Apache-2.0
"""Salvage of damaged indexes: what is given back as sound equals what was stored."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forking import in_child

import ckptfmt
from ckptfmt import _core
from ckptfmt.errors import CorruptError

DRAWS = {"quick": 25, "all": 2000}
# Tensors and level, the last in several blocks by its long names; files of others, the first with
# Snappy blocks.
SAVED = [(20, "v2"), (20, "v2+"), (3000, "v2")]
GOLDEN = ["snappy_copies", "big_endian", "partitioned"]
FILES = Path(__file__).parents[1] / "golden"


def saved(folder: Path, count: int, level: str) -> Path:
    """A checkpoint of many tensors, one of them in slices."""
    prefix = folder / "ck"
    with ckptfmt.Writer(prefix, level=level) as writer:
        for i in range(count):
            name = f"model/layer_{i:05d}/{'kernel' * (1 + count // 200)}"
            writer.add(name, np.full(i % 3, i, np.float32))
        for row in range(2):
            writer.add_slice("table", np.ones((1, 4)), shape=(2, 4), offset=(row, 0))
    return prefix


@pytest.fixture(scope="module", params=[*SAVED, *GOLDEN], ids=str)
def prefix(request: Any, tmp_path_factory: Any) -> Path:
    if isinstance(request.param, str):
        return next((FILES / request.param).glob("*.index")).with_suffix("")
    return saved(tmp_path_factory.mktemp("salvage"), *request.param)


def rows(prefix: Path, index: bytes) -> dict[tuple[str, str], Any]:
    """What the index says of each tensor and each slice that it has. A slice whose tensor is lost
    is a name that begins with a zero byte."""
    reader = _core.ReaderHandle(str(prefix), None, True, index=index)
    listed, found = reader.list_all(), {}
    for i, name in enumerate(listed.names()):
        if name[0] != "\0":
            found[name, ""] = listed.record(i)
            for extents, stored in listed.slices(i):
                if not stored.flags & _core.STORED_MISSING:
                    found[name, str(extents)] = stored
    return found


def changes(chance: random.Random, size: int) -> Iterator[tuple[int, int]]:
    """Bytes and the bits to invert in them: one bit, two, a byte, or several."""
    kind = chance.randrange(4)
    for _ in range((1, 2, 1, chance.randint(2, 12))[kind]):
        bits = 1 << chance.randrange(8) if kind < 2 else chance.randint(1, 255)
        yield chance.randrange(size), bits


def test_drawn_damage(prefix: Path, seed: int, request: Any) -> None:
    index = Path(f"{prefix}.index").read_bytes()
    stored, chance = rows(prefix, index), random.Random(seed)
    for _ in range(DRAWS["all" if request.config.getoption("--slow") else "quick"]):
        damaged, drawn = bytearray(index), list(changes(chance, len(index)))
        for at, bits in drawn:
            damaged[at] ^= bits
        if chance.randrange(5) == 0:
            del damaged[chance.randrange(len(index)) :]
        try:
            found = _core.salvage_index(damaged, 1)
        except CorruptError:
            assert len(drawn) > 1 or len(damaged) < len(index)
            continue
        given = rows(prefix, found.sound)
        assert given.items() <= stored.items()
        if len(drawn) == 1 and drawn[0][1].bit_count() == 1 and len(damaged) == len(index):
            assert given == stored
            assert found.doubtful is None
        if found.doubtful is not None:
            assert not rows(prefix, found.doubtful).keys() & given.keys()


def test_the_reader_keeps_the_bytes(tmp_path: Path) -> None:
    """Also in a forked child, and where the file is damaged."""
    prefix = saved(tmp_path, 5, "v2+")
    index = Path(f"{prefix}.index").read_bytes()
    Path(f"{prefix}.index").write_bytes(b"damaged")
    reader = _core.ReaderHandle(str(prefix), None, True, index=bytearray(index))
    gc.collect()

    def child() -> None:
        assert len(reader.names()) == 6

    assert in_child(child) == 0
    child()
