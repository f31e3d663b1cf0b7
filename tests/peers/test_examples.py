# SPDX-License-Identifier: Apache-2.0
"""The examples that use Dask and Ray. Ray has no packages for some systems; the others install."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
from support.pages import ROOT

import ckptfmt

sys.path.insert(0, str(ROOT / "examples"))
import dask_arrays

TENSORS = {
    "a/x": np.arange(64.0).reshape(8, 8),
    "whole": np.arange(5, dtype=np.float32),
    "scalar": np.float32(3),
    "empty": np.zeros((0, 4)),
}


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_dask(scheduler: str, tmp_path: Path) -> None:
    source, destination = str(tmp_path / "source"), str(tmp_path / "destination")
    ckptfmt.save(source, {**TENSORS, "words": np.array(["no", "numbers"])})
    settings = {"scheduler": scheduler, "array.chunk-size": "256B", "num_workers": 2}
    with dask.config.set(settings):
        arrays = dask_arrays.arrays_of(source)
        assert len(arrays["a/x"].chunks[0]) > 1
        dask_arrays.store(destination, {name: array / 2 for name, array in arrays.items()})
    with ckptfmt.open(destination) as found:
        assert set(found) == set(TENSORS)
        assert len(found["a/x"].slices) == arrays["a/x"].npartitions
        for name, array in TENSORS.items():
            np.testing.assert_array_equal(found.read(name), array / 2)
            assert found[name].dtype == array.dtype
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_dask_from_the_command_line(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    ckptfmt.save(source, TENSORS)
    command = [sys.executable, "examples/dask_arrays.py", str(source), str(destination)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == f"4 tensors in {destination}\n"


def run_ray(directory: Path, workers: int, steps: int) -> None:
    options = ["--workers", str(workers), "--steps", str(steps)]
    # Ray writes to the home directory, and reports its use, unless told otherwise.
    settings = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    ran = subprocess.run(
        [sys.executable, "examples/ray_train.py", str(directory), *options],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert f"checkpoint {directory}/table/step-{steps - 1}\n" in ran.stdout
    last = ckptfmt.load(directory / "table" / f"step-{steps - 1}" / "model")
    assert last["step"] == steps - 1 and (last["table"] == steps).all()
    assert last["table"].shape == (1000, 8)


@pytest.mark.slow  # most of a minute, to start processes
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="NOT RUN: needs Ray (make peers SLOW=1)"
)
def test_ray_resumes_with_other_workers(tmp_path: Path) -> None:
    for workers, steps in ((2, 2), (3, 5)):
        run_ray(tmp_path, workers, steps)
    kept = sorted(path.name for path in (tmp_path / "table").glob("step-*"))
    assert kept == ["step-3", "step-4"]
