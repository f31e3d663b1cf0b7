# SPDX-License-Identifier: Apache-2.0
"""Power cuts at any moment of everything that saves: what has returned is there, what has not is
old or new, and the next save works. `make powerloss IMAGES=N` takes more images."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from powerloss.disk import Call
from powerloss.judging import judged
from powerloss.scenarios import SCENARIOS
from powerloss.trace import traced

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux"),
    reason="NOT RUN: needs a C compiler and Linux",
)
# Of each scenario and model.
IMAGES = int(os.environ.get("CKPTFMT_POWERLOSS_IMAGES", "150"))
# Of each scenario, killed.
KILLS = int(os.environ.get("CKPTFMT_POWERLOSS_KILLS", "2"))
MODELS = ("ordered", "subset")
CANARIES = {"canary"}  # which must fail


Known = dict[str, list[Call]]


@pytest.fixture(scope="module")
def known() -> Known:
    """The calls of each scenario, traced once."""
    return {}


def calls_of(name: str, known: Known, scratch: Path) -> list[Call]:
    if name not in known:
        root = scratch / "root"
        root.mkdir()
        known[name] = traced(name, root, scratch / "log")
    return known[name]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in CANARIES])
def test_nothing_is_lost(name: str, model: str, known: Known, tmp_path: Path) -> None:
    count = 0
    for wrong in judged(SCENARIOS[name](), calls_of(name, known, tmp_path), model, IMAGES):
        assert wrong is None, wrong
        count += 1
    assert count > 30
    print(f"power loss: {name}, {model}: {count:,} images, all well")


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in CANARIES])
def test_nothing_is_lost_after_a_kill(name: str, known: Known, tmp_path: Path, seed: int) -> None:
    """Killed before any change of a file, gone on with by another process, and a power cut."""
    chance = random.Random(f"{seed} {name}")
    count = 0
    whole = calls_of(name, known, tmp_path)
    for number in range(KILLS):
        root = tmp_path / str(number)
        root.mkdir()
        kill = chance.choice([call.number for call in whole if call.number])
        calls = traced(name, root, tmp_path / "log", kill=kill)
        model = MODELS[number % 2]
        for wrong in judged(SCENARIOS[name](), calls, model, IMAGES // 2):
            assert wrong is None, wrong
            count += 1
    print(f"power loss after kills: {name}: {count:,} images, all well")


def without_syncs_of_data(calls: list[Call]) -> list[Call]:
    return [call for call in calls if call.kind != "sync" or ".data-" not in call.path]


def without_syncs_of_indexes(calls: list[Call]) -> list[Call]:
    return [call for call in calls if call.kind != "sync" or ".index" not in call.path]


def without_syncs_of_directories(calls: list[Call]) -> list[Call]:
    return [call for call in calls if call.kind != "sync" or "." in call.path]


def removed_before_the_last_sync(calls: list[Call]) -> list[Call]:
    """Each file is removed before the sync that comes before it."""
    found: list[Call] = []
    for call in calls:
        syncs = [i for i, one in enumerate(found) if one.kind == "sync"]
        last = syncs[-1] if call.kind == "unlink" and syncs else len(found)
        found.insert(last, call)
    return found


def parts_without_syncs(calls: list[Call]) -> list[Call]:
    """The data of the parts is never synced, as with durability="rename" and no merge."""
    return [call for call in calls if call.kind != "sync" or "part" not in call.path]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("save", without_syncs_of_data),
        ("save", without_syncs_of_indexes),
        ("save", without_syncs_of_directories),
        ("save", removed_before_the_last_sync),
        ("manager", without_syncs_of_directories),
        ("merge consume", removed_before_the_last_sync),
        ("merge consume", parts_without_syncs),
        ("tree in shards", parts_without_syncs),
    ],
)
def test_a_fault_is_found(
    name: str, fault: Callable[[list[Call]], list[Call]], known: Known, tmp_path: Path
) -> None:
    """The calls of a library that lacks a sync, or makes it too late."""
    calls = fault(calls_of(name, known, tmp_path))
    found = [wrong for one in MODELS for wrong in judged(SCENARIOS[name](), calls, one, IMAGES)]
    caught = sum(wrong is not None for wrong in found)
    print(f"power loss: {name}, {fault.__name__}: caught in {caught:,} of {len(found):,} images")
    assert caught


def test_a_killed_merge_is_finished_in_order(known: Known, tmp_path: Path) -> None:
    """Killed between its commit and the sync of it, it syncs before it removes the inputs. Without
    the syncs of the process that finishes it, images are wrong."""
    name = "merge consume"
    calls = calls_of(name, known, tmp_path)
    commit = next(i for i, one in enumerate(calls) if one.other == "whole.index")
    (tmp_path / "killed").mkdir()
    killed = traced(name, tmp_path / "killed", tmp_path / "log", kill=calls[commit + 1].number)
    again = max(i for i, one in enumerate(killed) if one.path == "begin 3")
    assert killed[again - 1].other == "whole.index"
    careless = killed[:again] + [one for one in killed[again:] if one.kind != "sync"]
    for given, right in ((killed, True), (careless, False)):
        found = [wrong for one in MODELS for wrong in judged(SCENARIOS[name](), given, one, IMAGES)]
        assert all(wrong is None for wrong in found) == right


def test_a_lost_save_is_found(known: Known, tmp_path: Path) -> None:
    """The canary: with durability "rename" nothing is synced."""
    calls = calls_of("canary", known, tmp_path)
    found = [
        wrong for model in MODELS for wrong in judged(SCENARIOS["canary"](), calls, model, IMAGES)
    ]
    caught = sum(wrong is not None for wrong in found)
    print(f"power loss: canary: caught in {caught:,} of {len(found):,} images")
    assert caught > len(found) / 2
