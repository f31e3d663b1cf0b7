# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints of the real TensorFlow: read here, and written again to the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from interop import expected, ours
from interop.values import Value

import ckptfmt

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json"))


def spec_box(spec: str) -> tuple[slice, ...]:
    """The box of a slice text as make_golden.py spells them."""
    pieces = [piece for piece in spec.rpartition(" ")[2].split(":") if piece]
    bounds = [tuple(map(int, piece.split(","))) if piece != "-" else None for piece in pieces]
    return tuple(slice(None) if pair is None else slice(pair[0], sum(pair)) for pair in bounds)


def arguments(
    calls: list[list[str]], tensors: dict[bytes, Value]
) -> tuple[list[bytes], list[str], list[Any]]:
    names = [name.encode("utf-8", "surrogateescape") for name, _ in calls]
    specs = [spec for _, spec in calls]
    arrays = [
        tensors[name].box(spec_box(spec)).array() if spec else tensors[name].array()
        for name, spec in zip(names, specs, strict=True)
    ]
    return names, specs, arrays


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("ckpt.*")}


def test_there_are_cases() -> None:
    assert len(CASES) >= 11


@pytest.mark.parametrize("case", CASES)
def test_read(case: str) -> None:
    ours.check_expected(GOLDEN / case)


@pytest.mark.parametrize("case", CASES)
def test_verify(case: str) -> None:
    """Sound, and canonical unless it was altered by hand."""
    canonical = "calls" in expected.load(GOLDEN / case)
    report = ckptfmt.verify(GOLDEN / case / "ckpt", strict=canonical)
    assert report.ok, report


# The others were altered by hand after TensorFlow wrote them.
@pytest.mark.parametrize("case", [one for one in CASES if "calls" in expected.load(GOLDEN / one)])
def test_same_bytes(case: str, tmp_path: Path) -> None:
    bundles = expected.load(GOLDEN / case)["calls"]
    tensors = ours.check_expected(GOLDEN / case)
    if len(bundles) == 1:
        ckptfmt.save_v2(tmp_path / "ckpt", *arguments(bundles[0], tensors))
    else:
        prefixes = [str(tmp_path / "temporary" / f"part-{row}") for row in range(len(bundles))]
        for prefix, calls in zip(prefixes, bundles, strict=True):
            ckptfmt.save_v2(prefix, *arguments(calls, tensors))
        ckptfmt.merge_v2_checkpoints(prefixes, str(tmp_path / "ckpt"))
    assert files(tmp_path) == files(GOLDEN / case)
