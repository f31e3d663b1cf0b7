# SPDX-License-Identifier: Apache-2.0
"""Restores of one object that was two in the checkpoint, and of objects without their slots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.graphs import Optimizer

import ckptfmt


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_one_object_gets_the_values_of_the_first_place(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    path = ckptfmt.Checkpoint(a=np.array([1.0]), b=np.array([2.0])).write(str(tmp_path / "ck"))
    one = np.array([0.0])
    first, second = names
    ckptfmt.Checkpoint(**{first: one, second: one}).restore(path).expect_partial()
    assert one == [1.0]


def test_slot_variables_can_be_left_out(tmp_path: Path) -> None:
    def model(value: float) -> tuple[ckptfmt.Checkpoint, np.ndarray, np.ndarray]:
        weight, slot, optimizer = np.array([value]), np.array([value + 1]), Optimizer()
        optimizer.add(weight, "m", slot)
        return ckptfmt.Checkpoint(weight=weight, optimizer=optimizer), weight, slot

    path = model(5.0)[0].write(str(tmp_path / "ck"))
    for left_out in (False, True):
        checkpoint, weight, slot = model(0.0)
        options = ckptfmt.tf.CheckpointOptions(experimental_skip_slot_variables=left_out)
        checkpoint.restore(path, options=options).expect_partial()
        assert weight == [5.0]
        assert slot == [1.0 if left_out else 6.0]
