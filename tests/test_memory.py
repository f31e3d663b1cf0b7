# SPDX-License-Identifier: Apache-2.0
"""The memory of large loaded arrays: ordinary arrays, whose memory serves the next ones."""

from __future__ import annotations

import gc
import mmap
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.forking import in_child
from support.process import SANITIZED

import ckptfmt
from ckptfmt import _core

SIZE = 8 << 20
LARGE = np.arange(SIZE // 8, dtype=np.int64).reshape(1024, -1)
nothing_kept = pytest.mark.skipif(SANITIZED, reason="it is to see what is used too late")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    gc.collect()
    ckptfmt.release_memory()
    ckptfmt.save(tmp_path / "ck", {"large": LARGE, "small": LARGE[:2]}, durability="none")
    yield tmp_path / "ck"
    gc.collect()
    ckptfmt.release_memory()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_ordinary_arrays(path: Path) -> None:
    loaded = ckptfmt.load(path)["large"]
    assert np.array_equal(loaded, LARGE)
    assert type(loaded) is np.ndarray
    assert loaded.flags.writeable and loaded.flags.c_contiguous and loaded.flags.aligned
    assert _core.address(loaded) % 64 == 0
    loaded += 1
    assert np.array_equal(pickle.loads(pickle.dumps(loaded)), LARGE + 1)
    assert np.array_equal(loaded.copy(), loaded)
    with pytest.raises(ValueError, match="does not own its data"):
        loaded.resize((1, 2))


@nothing_kept
def test_used_again(path: Path) -> None:
    with ckptfmt.open(path) as reader:
        for read in (
            lambda: ckptfmt.load(path)["large"],
            reader["large"].read,
            lambda: reader["large"][:1000],
            lambda: ckptfmt.restore_v2(path, ["large"], [""])[0],
        ):
            array = read()
            assert np.array_equal(array, LARGE[: len(array)])
            place = _core.address(array)
            array.fill(-1)
            del array
            array = read()
            assert _core.address(array) == place
            assert np.array_equal(array, LARGE[: len(array)])
            del array
            assert ckptfmt.release_memory() >= 4 << 20
    assert ckptfmt.release_memory() == 0


@nothing_kept
def test_a_view_keeps_it(path: Path) -> None:
    array = ckptfmt.load(path)["large"]
    view = array[5:7, 3:]
    del array
    gc.collect()
    assert ckptfmt.release_memory() == 0
    other = ckptfmt.load(path)["large"]
    other.fill(0)
    assert np.array_equal(view, LARGE[5:7, 3:])
    del view
    assert ckptfmt.release_memory() >= SIZE


@nothing_kept
def test_release_gives_it_back(path: Path) -> None:
    arrays = [ckptfmt.load(path)["large"] for _ in range(8)]
    before = resident()
    del arrays
    gc.collect()
    assert ckptfmt.release_memory() >= 8 * SIZE
    assert before - resident() > 7 * SIZE


def test_no_more_than_was_in_use(path: Path) -> None:
    for _ in range(20):
        first, second = (ckptfmt.load(path)["large"] for _ in range(2))
    del first, second
    # Two at once, and for a moment a third while a name still held the last one.
    assert ckptfmt.release_memory() <= 4 * (SIZE + mmap.PAGESIZE)


def test_after_a_fork(path: Path) -> None:
    kept, held = (ckptfmt.load(path)["large"] for _ in range(2))
    del kept

    def child() -> None:
        assert np.array_equal(held, LARGE)
        assert np.array_equal(ckptfmt.load(path)["large"], LARGE)

    assert in_child(child) == 0
    assert np.array_equal(held, LARGE)


def test_threads(path: Path) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(10):
            array = ckptfmt.load(path)["large"]
            array += number
            if not np.array_equal(array, LARGE + number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("offset", [None, 0, 64, 4096 + 640, 8, 12345])
def test_places(offset: int | None) -> None:
    """An array begins in its page where its data does in the file, unless it would begin oddly."""
    array = _core.new_array((3, SIZE), np.dtype(np.uint8), offset)
    within = _core.address(array) % 64
    assert within == 0 or not within % 16
    fits = offset is not None and offset % 64 == 0
    if not SANITIZED:  # then it is memory of the heap
        assert _core.address(array) % 4096 == (offset or 0) % 4096 * fits


def test_too_large() -> None:
    for shape in ((1 << 61,), (1 << 45,)):
        with pytest.raises(MemoryError):
            _core.new_array(shape, np.dtype(np.float64))


def test_no_large_ones() -> None:
    assert _core.new_array((0, 1 << 40), np.dtype(np.float64)).shape == (0, 1 << 40)
    assert _core.new_array((2, 3), np.dtype(np.int8)).base is None
    assert _core.new_array((1 << 20,), np.dtype(object))[0] is None
