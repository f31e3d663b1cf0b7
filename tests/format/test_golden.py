# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints of the real TensorFlow: read here, and written again to the same bytes.
And other people's, found through CKPTFMT_CORPUS, which are never committed here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from interop import expected, ours
from interop.values import Value

import ckptfmt

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.parent for path in GOLDEN.glob("*/expected.json"))
CORPUS = os.environ.get("CKPTFMT_CORPUS")
FOUND = sorted(path.parent for path in Path(CORPUS).glob("*/expected.json")) if CORPUS else []


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
    assert FOUND or not CORPUS


def cases(folders: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", folders, ids=lambda folder: folder.name)


@cases(CASES + FOUND)
def test_read(case: Path) -> None:
    assert case in CASES or expected.load(case)["open_error"] is None
    ours.check_expected(case)


@cases(CASES + FOUND)
def test_verify(case: Path) -> None:
    """Sound, and canonical if it was made here, unless it was altered by hand."""
    canonical = case in CASES and "calls" in expected.load(case)
    report = ckptfmt.verify(case.parent / expected.load(case)["prefix"], strict=canonical)
    assert report.ok, report


# The others were altered by hand after TensorFlow wrote them.
@cases([one for one in CASES if "calls" in expected.load(one)])
def test_same_bytes(case: Path, tmp_path: Path) -> None:
    bundles = expected.load(case)["calls"]
    tensors = ours.check_expected(case)
    if len(bundles) == 1:
        ckptfmt.save_v2(tmp_path / "ckpt", *arguments(bundles[0], tensors))
    else:
        prefixes = [str(tmp_path / "temporary" / f"part-{row}") for row in range(len(bundles))]
        for prefix, calls in zip(prefixes, bundles, strict=True):
            ckptfmt.save_v2(prefix, *arguments(calls, tensors))
        ckptfmt.merge_v2_checkpoints(prefixes, str(tmp_path / "ckpt"))
    assert files(tmp_path) == files(case)
