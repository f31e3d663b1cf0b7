# SPDX-License-Identifier: Apache-2.0
"""The memory of loaded arrays: ordinary arrays, whose memory goes back to the allocator."""

from __future__ import annotations

import gc
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support.process import SANITIZED, resident

import ckptfmt
from ckptfmt import _core

SIZE = 8 << 20
LARGE = np.arange(SIZE // 8, dtype=np.int64).reshape(1024, -1)


def held_by(array: np.ndarray) -> int:
    """Bytes that an array keeps alive."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert base.base is None
    return base.nbytes


def test_ordinary_arrays(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"large": LARGE}, durability="none")
    loaded = ckptfmt.load(tmp_path / "ck")["large"]
    assert np.array_equal(loaded, LARGE)
    assert type(loaded) is np.ndarray
    assert loaded.flags.writeable and loaded.flags.c_contiguous and loaded.flags.aligned
    assert _core.address(loaded) % 64 == 0
    loaded += 1
    assert np.array_equal(pickle.loads(pickle.dumps(loaded)), LARGE + 1)


@pytest.mark.skipif(SANITIZED, reason="the sanitizer delays what is freed")
def test_memory_goes_back_to_the_system(tmp_path: Path) -> None:
    # glibc may keep what is freed, up to 32 MiB.
    large = np.ones(40 << 20, np.uint8)
    ckptfmt.save(tmp_path / "ck", {"large": large}, durability="none")
    before = resident()
    for _ in range(3):
        ckptfmt.load(tmp_path / "ck")
        gc.collect()
        assert resident() - before < large.nbytes // 2


@pytest.mark.parametrize("elements", [1, 100, 1000, 4096, 8192])
def test_a_small_array_keeps_little_alive(tmp_path: Path, elements: int) -> None:
    tensors = {f"t{i}": np.full(elements + i % 3, i, np.float32) for i in range(200)}
    ckptfmt.save(tmp_path / "ck", tensors, durability="none")
    for name, array in ckptfmt.load(tmp_path / "ck").items():
        assert np.array_equal(array, tensors[name])
        assert held_by(array) <= max(array.nbytes, 81 << 10)


@pytest.mark.parametrize("offset", [None, 0, 64, 4096 + 640, 8, 12345])
def test_places(offset: int | None) -> None:
    """A large array begins in its page where its data does in the file, unless that would leave it
    less aligned than usual."""
    array = _core.new_array((3, SIZE), np.dtype(np.uint8), offset)
    fits = offset is not None and offset % 64 == 0
    assert _core.address(array) % 4096 == (offset or 0) % 4096 * fits


def test_too_large() -> None:
    for shape in ((1 << 61,), (1 << 45,)):
        with pytest.raises(MemoryError):
            _core.new_array(shape, np.dtype(np.float64))


def test_arrays_that_need_no_memory_of_their_own() -> None:
    assert _core.new_array((0, 1 << 40), np.dtype(np.float64)).shape == (0, 1 << 40)
    assert _core.new_array((2, 3), np.dtype(np.int8)).base is None
    assert _core.new_array((1 << 20,), np.dtype(object))[0] is None


@pytest.mark.parametrize("into", [False, True])
def test_a_cast_takes_the_result_and_one_tensor(tmp_path: Path, into: bool) -> None:
    """Not the stored values of all tensors as well."""
    arrays = {f"t{n}": np.full((1 << 20,), n, np.float32) for n in range(16)}
    ckptfmt.save(tmp_path / "m", arrays, durability="none")
    result = 2 * sum(array.size for array in arrays.values())
    targets = {name: np.ones(array.shape, np.float16) for name, array in arrays.items()}
    ckptfmt.load(tmp_path / "m", ["t0"], cast="float16")
    tracemalloc.start()
    if into:
        ckptfmt.load_into(tmp_path / "m", targets, cast=True)
        result = 0
    else:
        targets = ckptfmt.load(tmp_path / "m", cast="float16")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < result + (12 << 20)
    assert all((targets[f"t{n}"] == n).all() for n in range(16))
