# SPDX-License-Identifier: Apache-2.0
"""Processes of a sharded save or restore that call it with different things: nothing may be lost or
mixed silently, and everybody hears what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.team import all_good, run_team

import ckptfmt
from ckptfmt import reader as reading
from ckptfmt.errors import GenerationGoneError, InvalidError
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.saving.sharded import sharded_restore, sharded_save

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
        "tensor 'w': it is replicated, but these processes hold different elements: 0, 2; 1"
    )
    assert not list(tmp_path.glob("*"))
    layout = Layout.replicated(Mesh({"x": 3}, ["a", "b", "c"]), np.ndim(one))
    outcomes = save(
        tmp_path / "ck",
        lambda rank: {"w": {"abc"[rank]: other if rank == 2 else one}},
        {"w": layout},
        3,
    )
    assert message_of(outcomes).endswith(" different elements: 0, 1; 2")


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
