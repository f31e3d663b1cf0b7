# SPDX-License-Identifier: Apache-2.0
"""Starts jobs of several processes, each running support/job.py, and checks what they leave."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import numpy as np

import ckptfmt
import ckptfmt.tf  # imported before the forks

from . import job
from .child import Forked


def start(
    where: Path,
    run_id: str,
    world_size: int,
    *actions: str,
    before_last: dict[int, list[str]] | None = None,
) -> list[Forked]:
    """A job whose processes all do these actions; some do something more before the last."""
    (where / "runs").mkdir(exist_ok=True)
    started = []
    for rank in range(world_size):
        mine = [*actions[:-1], *(before_last or {}).get(rank, []), actions[-1]]
        given = ["pipes", str(where / "runs" / run_id), str(rank), str(world_size), *mine]
        started.append(Forked(partial(job.main, given)))
    return started


def finish(processes: list[Forked]) -> list[tuple[int, str]]:
    """How each process ended: its status and what it printed."""
    ended = [process.finish() for process in processes]
    assert not [out for _, out in ended if "Traceback" in out]
    return ended


def good(processes: list[Forked]) -> None:
    assert finish(processes) == [(0, "")] * len(processes)


def loads_as(prefix: Path) -> int:
    """The number of the complete model at the prefix."""
    found = ckptfmt.load(prefix)
    number = int(found["scalar"])
    wanted = job.model(number)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array, name)
    report = ckptfmt.verify(prefix)
    assert report.ok, report
    return number


def files_of(prefix: Path) -> list[str]:
    """The files that a checkpoint consists of."""
    with ckptfmt.open(prefix) as reader:
        count = reader.header.num_shards
    data = [ckptfmt.sharded_filename(f"{prefix.name}.data", shard, count) for shard in range(count)]
    return sorted([*data, f"{prefix.name}.index"])


def names(where: Path) -> list[str]:
    return sorted(path.name for path in where.iterdir())


def others_learned(ended: list[tuple[int, str]], victim: int) -> int:
    """How many of the others failed, all because a process is missing."""
    assert ended[victim] == (-signal.SIGKILL, "")
    failed = [out for rank, (status, out) in enumerate(ended) if rank != victim and status]
    for out in failed:
        assert out.startswith("BusyError: PEERS_MISSING: another process ended"), out
    return len(failed)
