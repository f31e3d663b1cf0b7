# SPDX-License-Identifier: Apache-2.0
"""Options of `ckptfmt diff`: tolerances, filters, new names, checksums, other formats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.files import flip

import ckptfmt
from cli.commands import Command, data_file

VALUES = {
    "bert/kernel": np.array([1.0, 2.0, 0.0, np.nan], np.float32),
    "bert/bias": np.array([1, 2, 3]),
}


def two(directory: Path, **changed: np.ndarray) -> tuple[Path, Path]:
    a, b = directory / "a", directory / "b"
    ckptfmt.save(a, VALUES)
    ckptfmt.save(b, {**VALUES, **{f"bert/{name}": value for name, value in changed.items()}})
    return a, b


def test_tolerances(command: Command, tmp_path: Path) -> None:
    near = np.array([1.001, 2.0, 0.0005, np.nan], np.float32)
    a, b = two(tmp_path, kernel=near)
    ran = command("diff", a, b)
    assert ran.status == 1
    assert "2 of 4 elements, largest difference 0.00100005 (relative 1)" in ran.out
    assert command("diff", "--rtol", "0.01", a, b).status == 1
    assert command("diff", "--rtol", "0.01", "--atol", "0.001", a, b).status == 0
    assert command("diff", "--atol", "0.002", a, b).status == 0
    ran = command("diff", "--rtol", "1e-5", "--atol", "0.0006", a, b)
    assert "1 of 4 elements" in ran.out
    _, b = two(tmp_path, bias=np.array([1, 2, 4]))
    assert command("diff", "--atol", "10", a, b).status == 1, "integers are exact"
    for option in ("--rtol", "--atol"):
        assert command("diff", option, "-1", a, b).status == 2
        assert command("diff", option, "nan", a, b).status == 2


def test_infinities_are_near_themselves(command: Command, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    ckptfmt.save(a, {"x": np.array([np.inf, 1.0])})
    ckptfmt.save(b, {"x": np.array([np.inf, 1.1])})
    assert command("diff", "--rtol", "0.2", a, b).status == 0
    ckptfmt.save(b, {"x": np.array([-np.inf, 1.0])})
    assert command("diff", "--rtol", "0.2", a, b).status == 1


def test_filter_and_rename(command: Command, tmp_path: Path) -> None:
    a, b = two(tmp_path, bias=np.array([9, 9, 9]))
    assert command("diff", "--filter", "*/kernel", a, b).out == "equal: 1 tensor equal\n"
    assert command("diff", "--filter", "/b.as$/", a, b).status == 1
    ran = command("diff", "--filter", "nothing", a, b)
    assert (ran.status, ran.out) == (2, "") and "'nothing' matches no tensor" in ran.err
    ckptfmt.save(b, {name.replace("bert", "enc"): value for name, value in VALUES.items()})
    assert command("diff", a, b).status == 1
    assert command("diff", "--rename", "bert/*=enc/*", a, b).status == 0
    assert command("diff", "--rename", "/^bert/=enc", a, b).status == 0
    ran = command("diff", "--rename", "/^.+$/=one", a, b)
    assert ran.status == 2 and "are both named 'one'" in ran.err
    assert command("diff", "--rename", "nothing=x", a, b).status == 2


def test_summary(command: Command, tmp_path: Path) -> None:
    a, b = two(tmp_path, bias=np.array([9, 9, 9]))
    ran = command("diff", "--summary", a, b)
    assert (ran.status, ran.out) == (1, "different: 1 with other values, 1 tensor equal\n")


def test_checksums(command: Command, tmp_path: Path) -> None:
    a, b = two(tmp_path)
    flip(data_file(b), 2)
    assert command("diff", a, b).status == 1, "damage is noticed"
    assert command("diff", "--checksums", a, b).status == 0
    a, b = two(tmp_path, bias=np.array([9, 9, 9]))
    ran = command("diff", "--checksums", "--json", a, b)
    assert [one["name"] for one in json.loads(ran.out)["differences"]] == ["bert/bias"]


@pytest.mark.parametrize("name", ["b.safetensors", "b.npz"])
def test_other_formats(name: str, command: Command, tmp_path: Path) -> None:
    a, b = two(tmp_path, bias=np.array([9, 9, 9]))
    other = tmp_path / name
    ckptfmt.convert(a, other)
    assert command("diff", a, other).status == 0
    assert command("diff", other, a).status == 0
    ran = command("diff", other, b)
    assert ran.status == 1 and "bert/bias" in ran.out
    assert command("diff", tmp_path / "nothing.npz", b).status == 2
