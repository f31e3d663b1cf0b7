# SPDX-License-Identifier: Apache-2.0
"""Options of `ckptfmt diff`: tolerances, filters, new names, checksums, other formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
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


def test_infinities_are_near_themselves(command: Command, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    ckptfmt.save(a, {"x": np.array([np.inf, 1.0])})
    ckptfmt.save(b, {"x": np.array([np.inf, 1.1])})
    assert command("diff", "--rtol", "0.2", a, b).status == 0
    ckptfmt.save(b, {"x": np.array([-np.inf, 1.0])})
    assert command("diff", "--rtol", "0.2", a, b).status == 1


INF, NAN = np.inf, np.nan
# Two values, and the largest absolute and relative differences.
DISTANCES = [
    (1.0, INF, "inf", "inf"),
    (INF, 1.0, "inf", "inf"),
    (INF, -INF, "inf", "inf"),
    (INF, 0.0, "inf", "inf"),
    (1.0, 0.0, "1", "inf"),
    (0.0, 2.0, "2", "1"),
    (0.0, -0.0, "0", "0"),
    (1.0, NAN, "0", "0"),
    (INF, NAN, "0", "0"),
    (1e308, -1e308, "inf", "2"),
    (complex(INF, 1), complex(INF, 2), "inf", "inf"),
    (complex(1, INF), complex(1, 0), "inf", "inf"),
    (complex(3e307, 4e307), 0j, "5e+307", "inf"),
]


@pytest.mark.parametrize("case", DISTANCES)
@pytest.mark.parametrize("options", [[], ["--rtol", "0.1"]])
def test_the_largest_differences(
    case: tuple[complex, complex, str, str], options: list[str], tmp_path: Path, command: Command
) -> None:
    a, b, largest, relative = case
    for name, value in (("a", a), ("b", b)):
        ckptfmt.save(tmp_path / name, {"x": np.array([1.0, value])})
    ran = command("diff", *options, tmp_path / "a", tmp_path / "b")
    if a == b and options:
        assert ran.status == 0
        return
    line = ran.out.splitlines()[0]
    assert f"1 of 2 elements, largest difference {largest} (relative {relative})" in line
    document = json.loads(command("diff", *options, "--json", tmp_path / "a", tmp_path / "b").out)
    (found,) = document["differences"]
    assert float(found["max_rel_difference"]) == float(relative)


def test_filter_and_rename(command: Command, tmp_path: Path) -> None:
    a, b = two(tmp_path, bias=np.array([9, 9, 9]))
    assert command("diff", "--filter", "*/kernel", a, b).out == "equal: 1 tensor equal\n"
    assert command("diff", "--filter", "/b.as$/", a, b).status == 1
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


# ---- casts, and other formats

FLOATS = ["f8", "f4", "f2", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, "c8", "c16"]


@pytest.mark.parametrize(
    ("dtype", "other"), [("f4", "f4"), *zip(FLOATS, FLOATS[1:] + FLOATS[:1], strict=True)]
)
def test_other_dtypes_within_a_tolerance(
    dtype: Any, other: Any, command: Command, tmp_path: Path
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    values = np.linspace(0.5, 1, 100)
    ckptfmt.save(a, {"w": values.astype(dtype)})
    ckptfmt.save(b, {"w": values.astype(other)})
    ran = command("diff", "--rtol", "0.1", a, b)
    assert ran.status == 0, ran.out
    if dtype != other:
        assert ran.out.splitlines()[0].endswith(" in B: equal within the tolerance")
        assert ran.out.splitlines()[1] == (
            "equal: 0 tensors equal, 1 of another dtype equal within the tolerance"
        )
        assert command("diff", a, b).status == 1, "without a tolerance"
        assert command("diff", "--quiet", "--rtol", "0.1", a, b).status == 0
        document = json.loads(command("diff", "--json", "--rtol", "0.1", a, b).out)
        (found,) = document["differences"]
        assert document["equal"] and (found["kind"], found["elements"]) == ("dtype", 0)
    ckptfmt.save(b, {"w": (values + (values > 0.9)).astype(other)})
    ran = command("diff", "--rtol", "0.1", a, b)
    assert ran.status == 1
    assert ran.out.splitlines()[-1].startswith("different: 1 ")
    assert " of 100 elements, largest difference " in ran.out
    assert command("diff", "--quiet", "--rtol", "0.1", a, b).status == 1


def test_other_dtypes_that_are_not_compared(command: Command, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    ckptfmt.save(a, {"i": np.arange(3, dtype=np.int32), "s": np.array(["a"]), "n": np.ones(1)})
    ckptfmt.save(b, {"i": np.arange(3, dtype=np.int64), "s": np.ones(1), "n": np.array([True])})
    ran = command("diff", "--rtol", "1", a, b)
    assert ran.status == 1
    assert [line.split(":")[0] for line in ran.out.splitlines()] == ["dtype"] * 3 + ["different"]


@pytest.mark.parametrize("name", ["b.safetensors", "b.npz"])
def test_a_format_without_graphs_and_metadata(name: str, command: Command, tmp_path: Path) -> None:
    a, other = tmp_path / "a", tmp_path / name
    values = {"w": np.ones(3), "step": np.array(7)}
    ckptfmt.Checkpoint(**values).write(a)
    ckptfmt.convert(a, other)
    for pair in ((a, other), (other, a)):
        assert command("diff", *pair).out == "equal: 2 tensors equal\n"
    ckptfmt.save(tmp_path / "c", {"w": np.ones(3)}, metadata={"step": 1})
    ckptfmt.convert(tmp_path / "c", other)
    assert command("diff", tmp_path / "c", other).status == 0
    ckptfmt.save(tmp_path / "d", {"w": np.ones(3)})
    ran = command("diff", tmp_path / "c", tmp_path / "d")
    assert ran.status == 1 and "metadata" in ran.out, "two of a format"
    assert "_CHECKPOINTABLE_OBJECT_GRAPH" in command("diff", a, tmp_path / "d").out
