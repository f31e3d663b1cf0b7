# SPDX-License-Identifier: Apache-2.0
"""Compression through every other way to save: in the background, savers, trees, many processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.arrays import assert_same

import ckptfmt
from ckptfmt import InvalidError
from ckptfmt.sharded import SingleProcess
from ckptfmt.tf import CheckpointOptions


def weights(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.02, (500, 400)).astype("f4")


def assert_compressed(prefix: Path | str, name: str, array: NDArray[np.float32]) -> None:
    with ckptfmt.open(prefix) as reader:
        assert reader.level == "ckptfmt"
        assert reader[name].compressed
        assert_same(reader[name].read(), array)
        assert reader.verify().ok


def test_in_the_background(tmp_path: Path, seed: int) -> None:
    array = weights(seed)
    expected = array.copy()
    future = ckptfmt.save_async(tmp_path / "a", {"w": array}, compression="zstd")
    array[:] = 0
    future.result()
    assert_compressed(tmp_path / "a", "w", expected)
    with pytest.raises(InvalidError, match="level 'v2' has no place"):
        ckptfmt.save_async(tmp_path / "b", {"w": array}, level="v2", compression="zstd")


@pytest.mark.parametrize("enable_async", [False, True])
def test_saver(tmp_path: Path, seed: int, enable_async: bool) -> None:
    array = weights(seed)
    options = CheckpointOptions(compression="zstd:2", enable_async=enable_async)
    saver = ckptfmt.Saver({None: {"w": array, "b": np.arange(4)}})
    prefix = saver.save(tmp_path / "a", options)
    saver.restore(prefix)  # waits for a background save
    assert_compressed(prefix, "w", array)
    assert_same(ckptfmt.restore_v2(prefix, ["w"], [""])[0], array)


def test_tree(tmp_path: Path, seed: int) -> None:
    array = weights(seed)
    prefix = ckptfmt.save_tree(tmp_path / "a", {"model": {"w": array}}, compression="zstd")
    assert isinstance(prefix, str)
    assert_same(ckptfmt.load_tree(prefix)["model"]["w"], array)
    with ckptfmt.open(prefix) as reader:
        assert reader.level == "ckptfmt"


def test_many_processes(tmp_path: Path, seed: int) -> None:
    array = weights(seed)
    ckptfmt.sharded.save(
        tmp_path / "a", {"w": array}, {"w": None}, SingleProcess(), compression="zstd"
    )
    assert_compressed(tmp_path / "a", "w", array)
    ckptfmt.sharded.save_async(
        tmp_path / "b", {"w": array}, {"w": None}, SingleProcess(), level="ckptfmt"
    ).result()
    assert_compressed(tmp_path / "b", "w", array)
    found = ckptfmt.sharded.restore(tmp_path / "b", {"w": None}, SingleProcess())
    assert_same(found["w"], array)
