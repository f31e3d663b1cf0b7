# SPDX-License-Identifier: Apache-2.0
"""Tensors of equal bytes that differ in one attribute are different, for every call that compares:
dtype, rank, shape, order of the axes, byte order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from interop.values import KINDS
from support.arrays import NUMERIC, bits

import ckptfmt
from ckptfmt.bundle import incremental
from ckptfmt.cli import main

SHAPES = [(6,), (1, 6), (6, 1), (2, 3), (3, 2), (1, 2, 3)]
ONE, NONE = [(), (1,), (1, 1)], [(0,), (0, 2), (2, 0), (0, 3)]


def equal_bytes() -> Iterator[tuple[Any, Any]]:
    """Pairs of arrays that are the same memory."""
    kinds = [KINDS[code].numpy_type for code in NUMERIC]
    for one, other in itertools.permutations(kinds, 2):
        yield np.zeros(48, np.uint8).view(one), np.zeros(48, np.uint8).view(other)
    for shapes in (SHAPES, ONE, NONE):
        for one, other in itertools.permutations(shapes, 2):
            size = int(np.prod(one))
            for array in (np.arange(size, dtype="i2"), np.array([b"text"] * size, object)):
                yield array.reshape(one), array.reshape(other)
    square, numbers = np.arange(4).reshape(2, 2), np.arange(4, dtype="<i4")
    yield square, square.T
    yield numbers, numbers.view(">i4")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A directory with "a", the first of all pairs, and "b", the second upon it; the latter."""
    folder = tmp_path_factory.mktemp("equal")
    first, second = zip(*equal_bytes(), strict=True)
    ckptfmt.save(folder / "a", {f"t{i}": array for i, array in enumerate(first)})
    tensors = {f"t{i}": array for i, array in enumerate(second)}
    with mock.patch.object(incremental, "DEAD_SHARE_MAX", 1):  # one equal tensor is worth a link
        ckptfmt.save(folder / "b", tensors, base=folder / "a")
    return folder, list(second)


def test_a_base_is_not_kept_for_its_bytes(saved: tuple[Path, list[Any]]) -> None:
    folder, tensors = saved
    found = ckptfmt.load(folder / "b", verify="full")
    for i, array in enumerate(tensors):
        native = array.astype(array.dtype.newbyteorder("=")) if array.dtype.kind in "iu" else array
        assert bits(found[f"t{i}"]) == bits(native)
    assert [path.stat().st_nlink for path in folder.glob("b.data-*")] == [1]


@pytest.mark.parametrize("option", [[], ["--checksums"]])
def test_a_difference_is_not_only_one_of_bytes(
    saved: tuple[Path, list[Any]], option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, tensors = saved
    assert main(["diff", "--json", *option, str(folder / "a"), str(folder / "b")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["tensors_equal"] == 0
    assert {one["name"] for one in found["differences"]} == {f"t{i}" for i in range(len(tensors))}
