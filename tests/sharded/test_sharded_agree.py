# SPDX-License-Identifier: Apache-2.0
"""Processes of a sharded save or restore that call it with different things: nothing may be lost or
mixed silently, and everybody hears what differs."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import job
from support.child import Forked
from support.team import all_good, run_team

import ckptfmt
from ckptfmt.bundle import reader as reading
from ckptfmt.errors import CheckpointNotFoundError, GenerationGoneError, InvalidError
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.sharded import restore as sharded_restore
from ckptfmt.sharded import save as sharded_save
from ckptfmt.sharded.plan import Plan, Planned, parts_of

MESH = Mesh({"x": 2}, ["a", "b"])
ROWS = Layout(["x", None], MESH)
WHOLE = np.arange(8, dtype=np.float32).reshape(4, 2)


def part(rank: int) -> dict[str, Any]:
    return {"ab"[rank]: WHOLE[2 * rank : 2 * rank + 2]}


def message_of(outcomes: list[Any], kind: type[Exception] = InvalidError) -> str:
    """The one message with which all fail."""
    assert [type(outcome) for outcome in outcomes] == [kind] * len(outcomes), outcomes
    [message] = {str(outcome) for outcome in outcomes}
    return message


# ---- replicas ------------------------------------------------------------------------------------


def save(where: Path, give: Any, layouts: Any, world_size: int) -> list[Any]:
    def work(team: Any) -> None:
        sharded_save(where, give(team.rank), layouts, team, durability="none")

    return run_team(world_size, work)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(3, np.float32), np.array([0, 0, -0.0], np.float32)),
        (np.zeros(1 << 20, np.uint8), np.arange(1 << 20).astype(np.uint8)),
        (["ab", "c"], ["a", "bc"]),
        (7, 8),
    ],
)
def test_replicas_that_differ_between_processes(tmp_path: Path, one: Any, other: Any) -> None:
    outcomes = save(tmp_path / "ck", lambda rank: {"w": other if rank == 1 else one}, {}, 3)
    assert message_of(outcomes) == (
        "tensor 'w': it is replicated, but its elements differ between these processes: 0, 2; 1"
    )
    assert not list(tmp_path.glob("*"))
    layout = Layout.replicated(Mesh({"x": 3}, ["a", "b", "c"]), np.ndim(one))
    outcomes = save(
        tmp_path / "ck",
        lambda rank: {"w": {"abc"[rank]: other if rank == 2 else one}},
        {"w": layout},
        3,
    )
    assert message_of(outcomes) == (
        "tensor 'w': a (process 0, 1) and c (process 2) hold the same part of it, but their arrays "
        "differ"
    )


def test_replicas_of_other_layouts_and_orders_are_equal(tmp_path: Path) -> None:
    turned = np.asfortranarray(WHOLE).astype(">f4")
    given = [{"w": WHOLE}, {"w": {"a": turned, "b": WHOLE}}]
    all_good(save(tmp_path / "ck", given.__getitem__, {"w": None}, 2))
    assert ckptfmt.load(tmp_path / "ck")["w"].tolist() == WHOLE.tolist()


def test_large_local_replicas_are_compared(tmp_path: Path) -> None:
    one = np.zeros(3 << 20, np.uint8)
    other = one.copy()
    all_good(save(tmp_path / "ck", lambda _: {"w": {"a": one, "b": other}}, {"w": None}, 1))
    other[-1] = 1
    outcomes = save(tmp_path / "ck", lambda _: {"w": {"a": one, "b": other}}, {"w": None}, 1)
    assert message_of(outcomes) == (
        "tensor 'w': a and b hold the same part of it, but their arrays differ"
    )


def test_blocks_of_one_device_each_are_compared(tmp_path: Path) -> None:
    """On a mesh of data x model the devices of one model block are replicas."""
    mesh = Mesh([("data", 2), ("model", 2)], ["a", "b", "c", "d"])
    layout = Layout(["model"], mesh)
    blocks = {"a": [1], "b": [2], "c": [1], "d": [2]}
    all_good(save(tmp_path / "ck", lambda _: {"w": blocks}, {"w": layout}, 1))
    outcomes = save(tmp_path / "ck", lambda _: {"w": {**blocks, "d": [3]}}, {"w": layout}, 1)
    assert message_of(outcomes) == (
        "tensor 'w': b and d hold the same part of it, but their arrays differ"
    )


BLOCKS: list[Any] = [
    # The specs on a mesh of [x=2, y=3]; the process that differs; and the two that are named.
    (["x"], 1, "a (process 0, 2) and b (process 1)"),
    (["x"], 3, "d (process 3) and e (process 4, 5)"),
    (["y"], 3, "a (process 0) and d (process 3)"),
    ([None, "y"], 2, "c (process 2) and f (process 5)"),
    ([None], 5, "a (process 0, 1, 2, 3, 4) and f (process 5)"),
]


@pytest.mark.parametrize(("specs", "rank", "names"), BLOCKS)
@pytest.mark.parametrize("elements", [1, 1 << 20, (1 << 20) + 1])
@pytest.mark.parametrize("check", [False, True])
def test_blocks_of_a_replica_group_are_compared(
    tmp_path: Path, specs: Any, rank: int, names: str, elements: int, check: bool
) -> None:
    layout = Layout(specs, Mesh({"x": 2, "y": 3}, list("abcdef")))

    def work(team: Any) -> None:
        block = np.zeros([1] * (len(specs) - 1) + [elements], np.uint8)
        block[..., -1] = team.rank == rank
        tensors = {"t": {"abcdef"[team.rank]: block}}
        how: Any = {"durability": "none", "check_replicas": check}
        sharded_save(tmp_path / "ck", tensors, {"t": layout}, team, **how)

    outcomes = run_team(6, work)
    if elements > 1 << 20 and not check:
        all_good(outcomes)
        return
    assert message_of(outcomes) == (
        f"tensor 't': {names} hold the same part of it, but their arrays differ"
    )
    assert list(tmp_path.iterdir()) == []


# ---- restores ------------------------------------------------------------------------------------


def test_restores_of_different_names_read_one_generation(tmp_path: Path) -> None:
    prefix = tmp_path / "ck"
    ckptfmt.save(prefix, {"a": [1], "b": [1]})

    def restore(team: Any) -> Any:
        if team.rank == 0:  # it has read all when the others begin
            gather = team.gather

            def replaced(data: bytes, root: int = 0) -> Any:
                ckptfmt.save(prefix, {"a": [2], "b": [2]})
                team.barrier("replaced")
                return gather(data, root)

            team.gather = replaced
        else:
            team.barrier("replaced")
        return sharded_restore(prefix, {"ab"[team.rank]: None}, team)

    assert message_of(run_team(2, restore), GenerationGoneError).endswith(
        "/ck: process 0 and process 1 found different checkpoints here: it was replaced while it "
        "was being restored; restore it again"
    )


def test_a_checkpoint_replaced_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was hashed and what was opened are one file."""
    prefix = tmp_path / "ck"
    ckptfmt.save(prefix, {"a": [1]})
    opened = reading.Reader

    def replacing(*rest: Any, **options: Any) -> Any:
        ckptfmt.save(prefix, {"a": [2]})
        return opened(*rest, **options)

    monkeypatch.setattr(reading, "Reader", replacing)
    [error] = run_team(1, lambda team: sharded_restore(prefix, {"a": None}, team))
    assert isinstance(error, GenerationGoneError)
    assert "replaced while it was being opened" in str(error)


# ---- calls that do not belong together -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            [{"level": "v2"}, {}, {"level": "v2"}],
            "values of level: v2 (process 0, 2); v2+ (process 1)",
        ),
        ([{}, {}, {"alignment": 64}], "values of alignment: None (process 0, 1); 64 (process 2)"),
        (
            [{"durability": "none"}, {"durability": "rename"}, {"durability": "none"}],
            "values of durability: none (process 0, 2); rename (process 1)",
        ),
        (
            [{}, {"compression": "zstd"}, {}],
            "values of compression: None (process 0, 2); zstd (process 1)",
        ),
    ],
)
def test_options_that_differ(tmp_path: Path, options: list[dict[str, Any]], message: str) -> None:
    def work(team: Any) -> None:
        sharded_save(tmp_path / "ck", {"w": 1}, {}, team, **options[team.rank])

    assert message_of(run_team(3, work)) == f"the processes give different {message}"
    assert not list(tmp_path.glob("*"))


def test_prefixes_that_differ(tmp_path: Path) -> None:
    def work(team: Any) -> None:
        sharded_save(tmp_path / f"ck{team.rank}", {"w": part(team.rank)}, {"w": ROWS}, team)

    assert message_of(run_team(2, work)) == (
        f"the processes give different prefixes: {tmp_path}/ck0 (process 0); {tmp_path}/ck1 "
        "(process 1)"
    )
    assert not list(tmp_path.glob("*"))


def test_a_place_that_is_not_shared(tmp_path: Path) -> None:
    """One relative prefix in two directories: each sees only what it wrote, and removes that."""

    def work(rank: int) -> None:
        (tmp_path / f"{rank}").mkdir()
        os.chdir(tmp_path / f"{rank}")
        with job.PipeCoordinator(f"{tmp_path}/meet", rank, 2) as team:
            with pytest.raises(CheckpointNotFoundError) as caught:
                sharded_save("ck", {"w": part(rank)}, {"w": ROWS}, team)
            print(caught.value)

    started = [Forked(partial(work, rank)) for rank in range(2)]
    for status, text in [process.finish() for process in started]:
        assert status == 0 and text.strip().endswith(
            "process 1 wrote its part here, but process 0 does not see it: is ck on a file system "
            "that all processes share?"
        )
    assert not list(tmp_path.glob("[01]/*"))


def test_a_save_and_a_restore_at_once(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "old", {"w": WHOLE})

    def work(team: Any) -> Any:
        if team.rank == saving:
            return sharded_save(tmp_path / "ck", {"w": part(saving)}, {"w": ROWS}, team)
        return sharded_restore(tmp_path / "old", {"w": ROWS}, team)

    for saving in range(2):
        calls = ["round 1 of sharded.restore (process {})", "round 1 of sharded.save (process {})"]
        first, second = calls if saving else calls[::-1]
        assert message_of(run_team(2, work)) == (
            f"the processes are at different places: {first.format(0)}; {second.format(1)}"
        )
        assert not list(tmp_path.glob("ck*"))


# ---- who writes what -----------------------------------------------------------------------------


def test_the_least_loaded_process_writes(seed: int) -> None:
    """As if all holders were compared for every slice, the largest first."""
    chance = random.Random(seed)
    holders = [tuple(sorted(chance.sample(range(9), chance.randint(2, 9)))) for _ in range(6)]
    tensors = {
        f"t{i:03}": Planned(4, None, (chance.randint(1, 40),), chance.choice(holders))
        for i in range(300)
    }
    loads = [0] * 9
    expected: list[list[str]] = [[] for _ in loads]
    for name, one in sorted(tensors.items(), key=lambda item: (-item[1].size, item[0])):
        chosen = min(one.holders, key=lambda rank: (loads[rank], rank))
        loads[chosen] += one.size
        expected[chosen].append(name)
    plan = Plan(tensors, {})
    found = [[part.name for part in parts_of(plan, rank)] for rank in range(9)]
    assert found == [sorted(names) for names in expected]
