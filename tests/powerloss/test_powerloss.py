# SPDX-License-Identifier: Apache-2.0
"""Power cuts at any moment of everything that saves: what has returned is there, what has not is
old or new, and the next save works. `make powerloss IMAGES=N` takes more images."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from powerloss.disk import Call
from powerloss.judging import judged
from powerloss.scenarios import SCENARIOS
from powerloss.trace import traced

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="NOT RUN: needs strace")
# Of each scenario and model.
IMAGES = int(os.environ.get("CKPTFMT_POWERLOSS_IMAGES", "150"))
MODELS = ("ordered", "subset")
CANARIES = {"canary"}  # which must fail


@pytest.fixture(scope="module")
def known() -> dict[str, list[Call]]:
    """The calls of each scenario, traced once."""
    return {}


def calls_of(name: str, known: dict[str, list[Call]], scratch: Path) -> list[Call]:
    if name not in known:
        root = scratch / "root"
        root.mkdir()
        known[name] = traced(name, root, scratch / "log")
    return known[name]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in CANARIES])
def test_nothing_is_lost(
    name: str, model: str, known: dict[str, list[Call]], tmp_path: Path
) -> None:
    count = 0
    for wrong in judged(SCENARIOS[name](), calls_of(name, known, tmp_path), model, IMAGES):
        assert wrong is None, wrong
        count += 1
    assert count > 30
    print(f"power loss: {name}, {model}: {count:,} images, all well")


def test_a_lost_save_is_found(known: dict[str, list[Call]], tmp_path: Path) -> None:
    """The canary: with durability "rename" nothing is synced."""
    calls = calls_of("canary", known, tmp_path)
    found = [
        wrong for model in MODELS for wrong in judged(SCENARIOS["canary"](), calls, model, IMAGES)
    ]
    caught = sum(wrong is not None for wrong in found)
    print(f"power loss: canary: caught in {caught:,} of {len(found):,} images")
    assert caught > len(found) / 2
