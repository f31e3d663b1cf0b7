# SPDX-License-Identifier: Apache-2.0
"""Handles made with rows or readers that do not fit read no memory beyond the index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forking import in_child

import ckptfmt
from ckptfmt.bundle.tensor import TensorHandle

USES: list[Callable[[TensorHandle], Any]] = [
    lambda handle: handle.shape,
    lambda handle: handle.slices,
    lambda handle: handle.compressed,
    lambda handle: handle[2:4],
    lambda handle: handle.map(),
    lambda handle: handle.read_into(np.zeros(10)),
]


@pytest.fixture
def reader(tmp_path: Path) -> ckptfmt.Reader:
    ckptfmt.save(tmp_path / "ck", {"a": np.arange(10.0), "b": np.ones(3)})
    return ckptfmt.open(tmp_path / "ck")


@pytest.mark.parametrize("row", [-1, 1, 1000, 10**6, 2**40, 2**63, 2**64, "a", None, 0.5])
def test_a_row_that_the_selection_does_not_have(reader: ckptfmt.Reader, row: Any) -> None:
    selection = reader["a"]._selection

    def make() -> None:
        with pytest.raises((ckptfmt.InvalidError, TypeError)):
            TensorHandle(reader, selection, row, "a")

    # In a child: reading it without a check ends the process.
    assert in_child(make) == 0


def test_a_selection_of_another_reader(reader: ckptfmt.Reader, tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "other", {"z": np.arange(10.0)})
    with ckptfmt.open(tmp_path / "other") as other:
        handle = TensorHandle(other, reader["a"]._selection, 0, "a")
        for use in USES[3:]:
            with pytest.raises(ckptfmt.InvalidError, match="another reader"):
                use(handle)
