# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt inspect_checkpoint` prints what TensorFlow's tool prints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensorflow.python.tools import inspect_checkpoint

import ckptfmt
from ckptfmt.cli import main


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    tensors = {
        "layer/kernel": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
        "layer/kernel/Adam": np.zeros((3, 4), np.float32),
        "many": np.arange(2000),
        "step": np.int64(7),
        "words": np.array(["one", "two"]),
        "empty": np.empty((0, 3)),
    }
    ckptfmt.save_v2(tmp_path / "m", list(tensors), [""] * len(tensors), list(tensors.values()))
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ([], {}),
        (["--all_tensors"], {"all_tensors": True}),
        (["--all_tensor_names=true"], {"all_tensor_names": True}),
        (["--all_tensors=False", "--tensor_name=many"], {"tensor_name": "many"}),
        (["--tensor_name=layer/kernel"], {"tensor_name": "layer/kernel"}),
        (["--tensor_name=nothing"], {"tensor_name": "nothing"}),
        (["--count_exclude_pattern=Adam|many"], {"count_exclude_pattern": "Adam|many"}),
    ],
)
def test_equal_output(
    prefix: Path,
    options: list[str],
    arguments: dict[str, object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["inspect_checkpoint", f"--file_name={prefix}", *options]) == 0
    ours = capsys.readouterr().out
    defaults = {"tensor_name": "", "all_tensors": False}
    inspect_checkpoint.print_tensors_in_checkpoint_file(str(prefix), **{**defaults, **arguments})
    assert ours == capsys.readouterr().out


def test_print_options(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = ["inspect_checkpoint", f"--file_name={prefix}", "--tensor_name=many"]
    assert main([*name, "--printoptions", "threshold=3000", "suppress=True"]) == 0
    assert "1000 1001" in capsys.readouterr().out
    assert main([*name, "--printoptions", "threshold"]) == 2
    assert main([*name, "--all_tensors=perhaps"]) == 2
