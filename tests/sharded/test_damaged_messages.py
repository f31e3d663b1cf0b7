# SPDX-License-Identifier: Apache-2.0
"""Messages between processes that are cut, changed, emptied or doubled on the way: every process
gets a typed error that names a process, and the checkpoint that was there stays."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.team import Member, run_team

import ckptfmt
from ckptfmt import CkptfmtError


def _changed(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ chance.randrange(1, 256)]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": lambda data, _: data[: len(data) // 2],
    "empty": lambda *_: b"",
    "doubled": lambda data, _: data + data,
    "text": lambda *_: b"hello\n",
    "changed": _changed,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("operation", ["gather", "broadcast"])
def test_damaged_messages(operation: str, damage: str, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    ckptfmt.save(tmp_path / "m", {"r": np.zeros(3)}, durability="none")

    def work(member: Member, at: int) -> None:
        calls = 0
        own = getattr(member, operation)

        def damaged(data: bytes | None, root: int = 0) -> object:
            nonlocal calls
            calls += 1
            if calls != at or data is None or (operation == "gather") != (member.rank == 1):
                return own(data, root)
            return own(DAMAGE[damage](data, chance), root)

        setattr(member, operation, damaged)
        try:
            ckptfmt.sharded.save(
                tmp_path / "m", {"r": np.arange(3.0)}, {"r": None}, member, durability="none"
            )
        except CkptfmtError:
            if operation == "broadcast":
                member.close()  # as the end of the process tells the others
            raise

    failed = 0
    for at in (1, 2, 3):
        outcomes = run_team(2, lambda member, at=at: work(member, at))
        if outcomes == [None, None]:
            continue
        failed += 1
        # A broadcast is damaged for the others: process 0 has decided.
        told = outcomes if operation == "gather" else outcomes[1:]
        for outcome in told:
            assert isinstance(outcome, CkptfmtError), repr(outcome)
            assert "process" in str(outcome)
        assert ckptfmt.load(tmp_path / "m")["r"].tolist() in ([0, 0, 0], [0, 1, 2])
    assert failed >= 2
    assert run_team(2, lambda member: work(member, 0)) == [None, None]
    assert ckptfmt.load(tmp_path / "m")["r"].tolist() == [0, 1, 2]
