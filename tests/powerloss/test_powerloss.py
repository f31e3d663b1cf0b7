# SPDX-License-Identifier: Apache-2.0
"""Power cuts at any moment of everything that saves: what has returned is there, what has not is
old or new, and the next save works. `make powerloss IMAGES=N` takes more images."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator

import pytest

from powerloss.disk import Call
from powerloss.judging import judged
from powerloss.scenarios import SCENARIOS
from powerloss.trace import Tracer

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux"),
    reason="NOT RUN: needs a C compiler and Linux",
)
LONG = "CKPTFMT_POWERLOSS_IMAGES" in os.environ  # `make powerloss`
# Of each scenario and model, the images that are judged; more of those that faults are made in.
IMAGES = int(os.environ.get("CKPTFMT_POWERLOSS_IMAGES", "15"))
IMAGES_MORE = {} if LONG else {"save": 180, "merge consume": 90}
# Of each scenario, killed.
KILLS = int(os.environ.get("CKPTFMT_POWERLOSS_KILLS", "1"))
MODELS = ("ordered", "subset")
CANARIES = {"canary"}  # which must fail


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    with Tracer(tmp_path_factory.mktemp("traced")) as found:
        yield found


def found_in(name: str, calls: list[Call], *models: str) -> Iterator[str | None]:
    """Yield what is wrong with each image that is judged."""
    limit = IMAGES_MORE.get(name, IMAGES)
    for model in models:
        yield from judged(SCENARIOS[name](), calls, model, limit)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in CANARIES])
def test_nothing_is_lost(name: str, model: str, tracer: Tracer) -> None:
    found = [*found_in(name, tracer.calls(name), model)]
    assert not any(found), next(filter(None, found))
    assert len(found) >= min(IMAGES, 30)
    print(f"power loss: {name}, {model}: {len(found):,} images, all well")


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in CANARIES])
def test_nothing_is_lost_after_a_kill(name: str, tracer: Tracer, seed: int) -> None:
    """Killed before any change of a file, gone on with by another process, and a power cut."""
    chance = random.Random(f"{seed} {name}")
    numbers = [call.number for call in tracer.calls(name) if call.number]
    count = 0
    for _ in range(KILLS):
        calls = tracer.traced(name, kill=chance.choice(numbers))
        for model in MODELS if LONG else [chance.choice(MODELS)]:
            for wrong in judged(SCENARIOS[name](), calls, model, IMAGES // 2):
                assert wrong is None, wrong
                count += 1
    print(f"power loss after kills: {name}: {count:,} images, all well")


def removed_before_the_last_sync(calls: list[Call]) -> list[Call]:
    """Each file is removed before the sync that comes before it, if it had its name by then."""
    found: list[Call] = []
    for call in calls:
        syncs = [i for i, one in enumerate(found) if one.kind == "sync"]
        last = syncs[-1] if call.kind == "unlink" and syncs else len(found)
        linked = any(one.kind == "link" and one.path == call.path for one in found[last:])
        found.insert(len(found) if linked else last, call)
    return found


# By name, the paths that a faulty library does not sync. Without "parts" it is as with
# durability="rename" and no merge.
NOT_SYNCED: dict[str, Callable[[str], bool]] = {
    "data": lambda path: ".data-" in path,
    "indexes": lambda path: ".index" in path,
    "directories": lambda path: "." not in path,
    "parts": lambda path: "part" in path,
}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *[("save", fault) for fault in ("data", "indexes", "directories", "late")],
        *[("manager", "directories"), ("merge consume", "late"), ("merge consume", "parts")],
        ("tree in shards", "parts"),
    ],
)
def test_a_fault_is_found(name: str, fault: str, tracer: Tracer) -> None:
    """The calls of a library that lacks a sync, or makes it too late."""
    calls = tracer.calls(name)
    if fault == "late":
        calls = removed_before_the_last_sync(calls)
    else:
        lost = NOT_SYNCED[fault]
        calls = [call for call in calls if call.kind != "sync" or not lost(call.path)]
    assert any(found_in(name, calls, *MODELS))


def test_a_killed_merge_is_finished_in_order(tracer: Tracer) -> None:
    """Killed between its commit and the sync of it, it syncs before it removes the inputs. Without
    the syncs of the process that finishes it, images are wrong."""
    name = "merge consume"
    calls = tracer.calls(name)
    commit = next(i for i, one in enumerate(calls) if one.other == "whole.index")
    killed = tracer.traced(name, kill=calls[commit + 1].number)
    again = max(i for i, one in enumerate(killed) if one.path == "begin 3")
    assert killed[again - 1].other == "whole.index"
    careless = killed[:again] + [one for one in killed[again:] if one.kind != "sync"]
    assert not any(found_in(name, killed, *MODELS))
    assert any(found_in(name, careless, *MODELS))


def test_the_calls_are_those_of_the_build(tracer: Tracer) -> None:
    """The canary of `make plain-posix`: a file gets a new name by a link, not by renameat2."""
    calls = tracer.calls("save")
    renamed = {one.other for one in calls if one.kind == "rename"}
    linked = {
        one.other
        for one, then in itertools.pairwise(calls)
        if (one.kind, then.kind, then.path) == ("link", "unlink", one.path)
    }
    assert len(renamed | linked) == 4
    plain = "CKPTFMT_PLAIN_POSIX" in os.environ
    assert linked == ({one for one in renamed | linked if ".data-" in one} if plain else set())


def test_a_lost_save_is_found(tracer: Tracer) -> None:
    """The canary: with durability "rename" nothing is synced."""
    found = [*found_in("canary", tracer.calls("canary"), *MODELS)]
    caught = sum(wrong is not None for wrong in found)
    print(f"power loss: canary: caught in {caught:,} of {len(found):,} images")
    assert caught > len(found) / 2
