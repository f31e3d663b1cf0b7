# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's DTensorCheckpoint and our Checkpoint with a coordinator restore what the other
saved: whole, on the same layout and on others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.team import all_good, run_team

import ckptfmt
from ckptfmt.saving.mesh import Layout, Mesh

from .workers import Worker

KERNEL, BIAS = np.arange(96.0).reshape(8, 12), np.arange(12.0)
ROWS, COLUMNS = ["x", None], [None, "x"]


@pytest.fixture(scope="module")
def theirs() -> Iterator[Worker]:
    worker = Worker("tf_dtensor.py")
    yield worker
    worker.close()


def local(layout: Layout, whole: Any, member: Any) -> dict[str, Any]:
    found = {}
    for device in layout.mesh.local_devices(member.rank, member.world_size):
        box = layout.slice_of(whole.shape, device)
        index = tuple(slice(at, at + n) for at, n in zip(box.start, box.shape, strict=True))
        found[device] = whole[index].copy()
    return found


def checkpoint_of(member: Any, specs: list[str | None], factor: float) -> ckptfmt.Checkpoint:
    mesh = Mesh({"x": member.world_size})
    layouts = {"model/kernel": Layout(specs, mesh), "model/bias": Layout([None], mesh)}
    model = {
        "kernel": local(layouts["model/kernel"], KERNEL * factor, member),
        "bias": local(layouts["model/bias"], BIAS * factor, member),
    }
    return ckptfmt.Checkpoint(coordinator=member, layouts=layouts, model=model)


@pytest.mark.parametrize("level", ["v2", "v2+"])
@pytest.mark.parametrize(("processes", "saved"), [(4, ROWS), (3, ROWS), (2, COLUMNS), (1, ROWS)])
@pytest.mark.parametrize("restored", [ROWS, COLUMNS, [None, None]])
def test_theirs_restores_ours(
    tmp_path: Path, theirs: Worker, level: Any, processes: int, saved: Any, restored: Any
) -> None:
    options = ckptfmt.tf.CheckpointOptions(durability="none", level=level)

    def save(member: Any) -> str:
        return checkpoint_of(member, saved, 2).save(tmp_path / "ck", options)

    (path, *_) = all_good(run_team(processes, save))
    theirs("make", specs=restored, factor=0)
    found = theirs("restore", path=path)
    np.testing.assert_array_equal(found["kernel"], KERNEL * 2)
    np.testing.assert_array_equal(found["bias"], BIAS * 2)


@pytest.mark.parametrize("saved", [ROWS, COLUMNS])
@pytest.mark.parametrize(("processes", "restored"), [(4, ROWS), (3, COLUMNS), (1, ROWS)])
def test_ours_restores_theirs(
    tmp_path: Path, theirs: Worker, saved: Any, processes: int, restored: Any
) -> None:
    theirs("make", specs=saved, factor=3)
    path = theirs("save", prefix=str(tmp_path / "ck"))["path"]

    def restore(member: Any) -> None:
        checkpoint = checkpoint_of(member, restored, 0)
        checkpoint.restore(path).assert_consumed()
        wanted = checkpoint_of(member, restored, 3)
        for name, arrays in wanted.model.items():
            for device, array in arrays.items():
                np.testing.assert_array_equal(checkpoint.model[name][device], array)
        assert checkpoint.save_counter == 1

    all_good(run_team(processes, restore))


def test_layouts_of_tensorflow(tmp_path: Path, theirs: Worker) -> None:
    theirs("make", specs=ROWS, factor=1)
    theirs("layouts", prefix=str(tmp_path / "ck"))
