# SPDX-License-Identifier: Apache-2.0
"""Programs of several processes over jax.distributed, each with a few devices of the CPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
HEAD = """
import sys
import jax
rank, world_size = int(sys.argv[2]), int(sys.argv[3])
jax.distributed.initialize(sys.argv[1], world_size, rank)
"""
END = """
jax.distributed.shutdown()
"""


def environment(devices: int) -> dict[str, str]:
    """The environment of a process with so many devices of the CPU, which finds `support`."""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }


def run_jax_ranks(
    where: Path, world_size: int, program: str, *arguments: str, devices: int = 4, end: str = END
) -> list[str]:
    """What each rank of the program printed. All must succeed.

    `jax`, `rank` and `world_size` are defined; further arguments are in sys.argv[4:]. The working
    directory is `where`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    pipe, more = subprocess.PIPE, str(world_size)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", HEAD + program + end, place, f"{rank}", more, *arguments],
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environment(devices),
            cwd=where,
        )
        for rank in range(world_size)
    ]
    printed = []
    for process in started:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        printed.append(out)
    return printed
