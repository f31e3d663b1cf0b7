# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other people's TensorFlow, found through CKPTFMT_CORPUS; never committed here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from interop import expected, ours

import ckptfmt

CORPUS = os.environ.get("CKPTFMT_CORPUS")
CASES = sorted(path.parent for path in Path(CORPUS).glob("*/expected.json")) if CORPUS else []


def test_corpus_is_there() -> None:
    if not CORPUS:
        print("corpus: not run, CKPTFMT_CORPUS is not set")
        pytest.skip("CKPTFMT_CORPUS is not set")
    print(f"corpus: {len(CASES)} checkpoints in {CORPUS}")
    assert CASES


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_as_tensorflow_reads_it(folder: Path) -> None:
    assert expected.load(folder)["open_error"] is None
    ours.check_expected(folder)


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_verify(folder: Path) -> None:
    report = ckptfmt.verify(folder.parent / expected.load(folder)["prefix"])
    assert report.ok, report
