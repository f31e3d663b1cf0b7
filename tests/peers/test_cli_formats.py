# SPDX-License-Identifier: Apache-2.0
"""HDF5 files and DCP directories, through the commands that read checkpoints."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from ckptfmt.cli import main

VALUES = np.arange(100_000.0)


def hdf5(path: Path, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("w", data=VALUES, **options)
        file["alias"] = file["w"]
    return path


def checkpoint(path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dcp.save({"w": torch.tensor(VALUES), "n": 3}, checkpoint_id=path, no_dist=True)
    return path


MADE = {
    "hdf5": (lambda path: hdf5(path / "x.h5"), False),
    "hdf5 with fletcher32": (
        lambda path: hdf5(path / "x.h5", chunks=(64,), fletcher32=True, compression="gzip"),
        True,
    ),
    "dcp": (lambda path: checkpoint(path / "dcp"), True),
}


@pytest.mark.parametrize("name", MADE)
def test_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    make, verified = MADE[name]
    path = str(make(tmp_path))
    assert main(["inspect", "--json", path]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == name.split(maxsplit=1)[0]
    assert found["tensors"][-1]["shape"] == [100_000]
    assert main(["verify", "--json", path]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] is verified
    assert main(["show", path, "w[7]"]) == 0
    assert "7." in capsys.readouterr().out
    assert main(["report", "-q", path, "-o", str(tmp_path / "x.html")]) == 0


@pytest.mark.parametrize("name", ["hdf5 with fletcher32", "dcp"])
def test_changed_value(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = MADE[name][0](tmp_path)
    file = next(path.glob("*.distcp")) if path.is_dir() else path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert main(["verify", "--json", str(path)]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["tensor"] in ("w", "alias")  # the first name of a dataset with two


@pytest.mark.parametrize("name", MADE)
def test_truncated(tmp_path: Path, name: str) -> None:
    path = MADE[name][0](tmp_path)
    file = next(path.glob("*.distcp")) if path.is_dir() else path
    os.truncate(file, file.stat().st_size // 2)
    for words in (["inspect"], ["verify"], ["report", "-q", "-o", str(tmp_path / "x.html")]):
        assert main([*words, str(path)]) == 1
