# SPDX-License-Identifier: Apache-2.0
"""Jobs of real processes: saving and restoring on different numbers
of them, being killed in the middle, and two jobs with one prefix."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from support import job
from support.jobs import files_of, finish, good, loads_as, names, others_learned, start

import ckptfmt
from ckptfmt.sharded import save as sharded_save
from ckptfmt.sharded.coordinator import SingleProcess


def save_alone(prefix: Path, number: int) -> None:
    """The next save, by a job of one process: this one."""
    sharded_save(
        prefix, job.parts(number, 0, 1), job.layouts(1), SingleProcess(), durability="rename"
    )


def test_four_save_two_restore_and_save_three_restore(tmp_path: Path) -> None:
    first, second = tmp_path / "ckpt" / "first", tmp_path / "ckpt" / "second"
    good(start(tmp_path, "a", 4, f"save={first}=7"))
    assert loads_as(first) == 7
    good(start(tmp_path, "b", 2, f"restore={first}=7", f"again={second}"))
    assert loads_as(second) == 7
    good(start(tmp_path, "c", 3, f"restore={second}=7", f"restore={first}=7"))
    # Every process wrote, nothing else is left, and the runs are over.
    assert names(tmp_path / "ckpt") == [
        *(f"first.data-0000{shard}-of-00004" for shard in range(4)),
        "first.index",
        *(f"second.data-0000{shard}-of-00002" for shard in range(2)),
        "second.index",
    ]
    assert names(tmp_path / "runs") == []


def test_a_manager_of_four_then_two_then_three(tmp_path: Path) -> None:
    """Saved in the background too, by a Checkpoint of all processes."""
    where = tmp_path / "ckpt"
    actions = [f"manage={where}", "keep=5", "later=6", "later=7", "latest=7"]
    good(start(tmp_path, "a", 4, *actions))
    assert ckptfmt.latest_checkpoint(where) == str(where / "ckpt-3")
    good(start(tmp_path, "b", 2, f"manage={where}", "latest=7", "keep=8"))
    good(start(tmp_path, "c", 3, f"manage={where}", "latest=8"))
    assert {name.partition(".")[0] for name in names(where)} == {"checkpoint", "ckpt-3", "ckpt-4"}


# `CKPTFMT_KILLS=200 pytest --slow` is the long form.
MANY_KILLS = int(os.environ.get("CKPTFMT_KILLS", "10"))


@pytest.mark.parametrize("count", [1, pytest.param(MANY_KILLS, marks=pytest.mark.slow)])
def test_killed_during_saves_of_a_manager_in_the_background(
    tmp_path: Path, seed: int, count: int
) -> None:
    """After a kill of any process the previous or the new checkpoint is restored, whole, and the
    next save leaves nothing else."""
    where = tmp_path / "ckpt"
    source = random.Random(seed)
    good(start(tmp_path, "first", 4, f"manage={where}", "keep=1"))
    newest = 1
    for case in range(count):
        saves = [f"later={newest + 1}", f"later={newest + 2}"]
        actions = [f"manage={where}", "latest", "start", "ready", *saves]
        killed = start(tmp_path, f"case{case}", 4, *actions)
        victim = source.randrange(4)
        for process in killed:
            assert process.line() == str(newest), (seed, case)
        assert killed[victim].line() == "ready"
        time.sleep(source.random() * 0.1)
        killed[victim].kill()
        ended = finish(killed)
        assert all(status in (0, 1) for status, _ in ended[:victim] + ended[victim + 1 :])
        after = start(tmp_path, f"after{case}", 4, f"manage={where}", "latest", "keep=1000")
        found = {out for status, out in finish(after)}
        assert found <= {f"{newest + number}\n" for number in range(3)}, (seed, case, found)
        assert len(found) == 1
        newest = 1000
        state = ckptfmt.tf.get_checkpoint_state(where)
        kept = {Path(path).name for path in state.all_model_checkpoint_paths}
        assert {name.partition(".")[0] for name in names(where)} == {"checkpoint", *kept}


# Which process dies, when, and whether the new checkpoint exists then.
KILLS = [
    (1, "gather:0", False),
    (0, "gathered:0", False),
    (2, "broadcasted:0", False),
    (1, "add:0", False),
    (0, "add:2", False),
    (1, "commit", False),
    (0, "commit", False),
    (2, "gather:1", False),
    (0, "merge", False),
    (0, "merged", True),
    (0, "broadcasted:1", True),
    (2, "broadcasted:1", True),
]


@pytest.mark.parametrize(("victim", "moment", "there"), KILLS)
def test_killed_in_a_save(tmp_path: Path, victim: int, moment: str, there: bool) -> None:
    """The old checkpoint stays readable until the new one replaces it, the other processes learn
    that one is missing, and the next save succeeds as usual."""
    prefix = tmp_path / "ckpt" / "model"
    ckptfmt.save(prefix, job.model(1), durability="rename")
    dying = {victim: [f"die={moment}"]}
    killed = start(tmp_path, "a", 3, "start", f"save={prefix}=2", before_last=dying)
    killed[victim].end()
    assert loads_as(prefix) == (2 if there else 1)
    failed = others_learned(finish(killed), victim)
    # The decision is the last message.
    assert failed == (0 if moment.startswith("broadcasted:1") else 2)
    assert loads_as(prefix) == (2 if there else 1)
    save_alone(prefix, 3)
    assert loads_as(prefix) == 3
    assert names(prefix.parent) == files_of(prefix)


def test_killed_at_any_time(tmp_path: Path, seed: int) -> None:
    prefix = tmp_path / "ckpt" / "model"
    source = random.Random(seed)
    ckptfmt.save(prefix, job.model(1), durability="rename")
    seen = {1}
    for case in range(4):
        victim, number = source.randrange(2), 10 + case
        actions = ["start", "ready", *[f"save={prefix}={number}"] * 8]
        killed = start(tmp_path, f"case{case}", 2, *actions)
        assert killed[victim].line() == "ready"
        time.sleep(source.random() * 0.2)
        killed[victim].kill()
        seen.add(number)
        # The last one committed is complete, also while the other process still waits.
        assert loads_as(prefix) in seen, (seed, case)
        ended = finish(killed)
        assert ended[1 - victim][0] in (0, 1)
        assert loads_as(prefix) in seen, (seed, case)
    save_alone(prefix, 99)
    assert loads_as(prefix) == 99


def test_two_jobs_with_one_prefix(tmp_path: Path) -> None:
    """Two jobs save independently: each save is complete, and the last to commit stays."""
    prefix = tmp_path / "ckpt" / "model"
    gate = f"barrier={tmp_path / 'gate'}=4"
    jobs = []
    for which in (0, 1):
        saves = [f"save={prefix}={10 * which + number}" for number in range(1, 7)]
        before = {rank: [f"gate={2 * which + rank}", gate, *saves[:-1]] for rank in (0, 1)}
        jobs.append(start(tmp_path, f"job{which}", 2, saves[-1], before_last=before))
    for one in jobs:
        good(one)
    assert loads_as(prefix) in (6, 16)
    assert names(prefix.parent) == files_of(prefix)
