# SPDX-License-Identifier: Apache-2.0
"""Sharded saves in which a rank dies: `python -m races.dying KILLS SEED DIRECTORY`.

preload.c is in LD_PRELOAD.

Three processes overwrite one checkpoint together. One of them is killed before a random one of the
calls by which it changes files or sends to the others. The others end soon, with an error of the
documented kind; the old checkpoint is whole, or the new one is in its place; the next save
succeeds, and a cleaning removes the other files of the dead process.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path

from faults.driver import KINDS
from support import job
from support.forking import forked, wait_for
from support.jobs import files_of, loads_as, names, others_learned

import ckptfmt
from ckptfmt.files.local_folder import LocalFolder
from ckptfmt.sharded import save as sharded_save
from ckptfmt.sharded.coordinator import SingleProcess

RANKS, TIMEOUT = 3, 120
CHANGE, KILL = len(KINDS) + 1, -1
NEVER = 1 << 30
COUNTED = "calls: "


def save(prefix: Path, number: int, rank: int, meeting: str, kill_at: int, out: int) -> None:
    """What one rank does. It is killed before its call `kill_at`; if it makes fewer, it says how
    many."""
    signal.alarm(TIMEOUT)
    library = ctypes.CDLL(None)
    try:
        with job.PipeCoordinator(meeting, rank, RANKS, TIMEOUT) as coordinator:
            coordinator.barrier("all have started")
            library.fault_arm(CHANGE, kill_at, 1, KILL, 0)
            parts, layouts = job.parts(number, rank, RANKS), job.layouts(RANKS)
            sharded_save(prefix, parts, layouts, coordinator, durability="rename")
            library.fault_disarm()
        os.write(out, f"{COUNTED}{library.fault_count()}".encode())
    except ckptfmt.CkptfmtError as error:
        os.write(out, f"{type(error).__name__}: {error}".encode())


def save_together(
    root: Path, number: int, victim: int = -1, kill_at: int = NEVER
) -> list[tuple[int, str]]:
    """How each rank ended: its status, 1 after an error, and what it said."""
    meeting = str(root / f"meeting-{number}")
    prefix, ranks, ended = root / "ckpt" / "model", [], []
    for rank in range(RANKS):
        reads, writes = os.pipe()
        at = kill_at if rank == victim else NEVER
        ranks.append((forked(partial(save, prefix, number, rank, meeting, at, writes)), reads))
        os.close(writes)
    for process, reads in ranks:
        with open(reads, encoding="utf-8") as stream:
            said = stream.read()
        status = wait_for(process)
        is_error = status == 0 and not said.startswith(COUNTED)
        ended.append((1 if is_error else status, said))
    return ended


def save_whole(root: Path, number: int) -> list[tuple[int, int]]:
    """A save that succeeds; returns the rank and number of each call that was made in it."""
    ended = save_together(root, number)
    assert [status for status, _ in ended] == [0] * RANKS, ended
    prefix = root / "ckpt" / "model"
    assert loads_as(prefix) == number
    assert not [name for name in names(prefix.parent) if "_temp_" in name]
    with LocalFolder(str(prefix.parent)).opened() as place, place.lock():
        place.sweep(None)
    assert names(prefix.parent) == files_of(prefix)
    counts = [int(said.removeprefix(COUNTED)) for _, said in ended]
    return [(rank, at) for rank, count in enumerate(counts) for at in range(1, count + 1)]


def main(rounds: int, seed: str, root: Path) -> None:
    source, counts = random.Random(seed), Counter[str]()
    prefix = root / "ckpt" / "model"
    # What is imported late is imported now.
    parts, layouts = job.parts(1, 0, 1), job.layouts(1)
    sharded_save(prefix, parts, layouts, SingleProcess(), durability="rename")
    number = 2
    calls = save_whole(root, number)
    kills: list[tuple[int, int]] = []
    while min(counts["killed"], counts["failed"]) < rounds:
        if not kills:
            kills = source.sample(calls, len(calls))
        victim, at = kills.pop()
        old, number = number, number + 1
        where = f"rank {victim} before call {at}, save {number}"
        ended = save_together(root, number, victim, at)
        there = loads_as(prefix)
        assert there in (old, number), (where, there)
        if ended[victim][0] == 0:  # it made fewer calls this time
            assert [status for status, _ in ended] == [0] * RANKS, (where, ended)
            assert there == number, where
            counts["spared"] += 1
            continue
        others = [status for rank, (status, _) in enumerate(ended) if rank != victim]
        assert set(others) <= {0, 1}, (where, ended)
        failed = others_learned(ended, victim)
        # Without a new checkpoint, no rank may report that there is one.
        assert there == number or failed == RANKS - 1, (where, ended)
        counts["failed"] += failed
        counts["killed"] += 1
        counts["old" if there == old else "new"] += 1
        number += 1
        calls = save_whole(root, number)
    did = ", ".join(f"{what} {counts[what]:,}" for what in ("killed", "spared", "old", "new"))
    print(f"dying: {did}, failed {counts['failed']:,}; {len(calls)} calls of a save")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
