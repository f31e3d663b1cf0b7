# SPDX-License-Identifier: Apache-2.0
"""Programs of several processes over torch.distributed (gloo, on the loopback interface)."""

from __future__ import annotations

import os
import subprocess
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


def spawn(command: list[str], where: Path | None = None) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=LOOPBACK, cwd=where)


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
        spawn([sys.executable, "-c", HEAD + program + END, str(place), str(rank), *more], where)
        for rank in range(world_size)
    ]
    printed = []
    for process in started:
        out, err = process.communicate(timeout=240)
        assert process.returncode == status, err
        printed.append(out.splitlines())
    place.touch()
    return printed
