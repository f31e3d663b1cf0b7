# SPDX-License-Identifier: Apache-2.0
"""Programs of several processes over torch.distributed (gloo, on the loopback interface).

The processes are forks of one that has imported torch, which takes longer than most programs.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# Every process hears only this machine, and finds `support`.
LOOPBACK = {
    **os.environ,
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
}

HEAD = """
import sys, torch
import torch.distributed as dist
place, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + place, rank=rank, world_size=world_size)
"""
# At the end of a program. Some processes of torch abort in its teardown, with or without ckptfmt.
LEAVE = """
import atexit, os, sys
sys.stdout.flush()
atexit._run_exitfuncs()
os._exit(0)
"""
END = (
    """
dist.barrier()
dist.destroy_process_group()
"""
    + LEAVE
)
_IMPORTED = [
    *("torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "torch.optim"),
    *("ckptfmt.torch.dcp", "ckptfmt.torch.checkpoint", "pytest"),
]
_forks = multiprocessing.get_context("forkserver")


class Rank:
    """A process that runs a program with these arguments in `where`."""

    def __init__(self, program: str, arguments: list[str], where: Path) -> None:
        number = len(list(where.glob("rank*.out")))
        self._paths = where / f"rank{number}.out", where / f"rank{number}.err"
        for path in self._paths:
            path.touch()
        os.environ["OMP_NUM_THREADS"] = "1"  # read once, by the first process
        _forks.set_forkserver_preload(_IMPORTED)
        self._process = _forks.Process(target=_run, args=(program, arguments, where, *self._paths))
        self._process.start()

    def wait(self, timeout: float) -> tuple[int, str, str]:
        """Return how it ended, and what it printed, also as errors."""
        self._process.join(timeout)
        status = self._process.exitcode
        self._process.kill()
        assert status is not None, f"a process still runs after {timeout} seconds"
        out, err = (path.read_text() for path in self._paths)
        return status, out, err


def _run(program: str, arguments: list[str], where: Path, out: Path, err: Path) -> None:
    for number, path in enumerate((out, err), 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    os.environ.update(LOOPBACK)
    os.chdir(where)
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.argv = ["-c", *arguments]
    exec(program, vars(sys.modules["__main__"]))


def run_ranks(
    where: Path, world_size: int, program: str, *arguments: str, status: int = 0
) -> list[list[str]]:
    """What each rank of the program printed. All must end with this status.

    `rank` and `world_size` are defined; further arguments are in sys.argv[4:]. The working
    directory is `where`.
    """
    place = where / f"meet{len(list(where.glob('meet*')))}"
    more = [str(world_size), *arguments]
    started = [
        Rank(HEAD + program + END, [str(place), str(rank), *more], where)
        for rank in range(world_size)
    ]
    printed = []
    for process in started:
        ended, out, err = process.wait(240)
        assert ended == status, err
        printed.append(out.splitlines())
    place.touch()
    return printed
