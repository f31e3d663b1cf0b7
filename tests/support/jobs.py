# SPDX-License-Identifier: Apache-2.0
"""Starts jobs of several processes, each running support/job.py, and checks what they leave."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

import ckptfmt

from . import job

Job = list["subprocess.Popen[str]"]


def start(
    where: Path,
    run_id: str,
    world_size: int,
    *actions: str,
    before_last: dict[int, list[str]] | None = None,
) -> Job:
    """A job whose processes all do these actions; some do something more before the last."""
    started = []
    for rank in range(world_size):
        mine = [*actions[:-1], *(before_last or {}).get(rank, []), actions[-1]]
        (where / "runs").mkdir(exist_ok=True)
        place = str(where / "runs" / run_id)
        command = [sys.executable, job.__file__, "pipes", place, str(rank), str(world_size)]
        pipe = subprocess.PIPE
        process = subprocess.Popen([*command, *mine], stdout=pipe, stderr=pipe, text=True)
        started.append(process)
    return started


def finish(processes: Job) -> list[tuple[int, str]]:
    """How each process ended: its status and what it printed."""
    ended = []
    for process in processes:
        out, err = process.communicate(timeout=90)
        assert "Traceback" not in err, err
        ended.append((process.returncode, out))
    return ended


def good(processes: Job) -> None:
    ended = finish(processes)
    assert ended == [(0, "")] * len(processes)


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
