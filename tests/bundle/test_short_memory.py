# SPDX-License-Identifier: Apache-2.0
"""Compressing in a process that has hardly any memory left ends with success or MemoryError."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.process import SANITIZED

# A process that has not compressed anything yet forks a child for each amount of memory.
PROGRAM = """
import os, resource, sys
import numpy as np, ckptfmt
if sys.argv[2] == "loaded":
    import zstandard
tensors = {"x": np.tile(np.arange(1000, dtype=np.float32), 1000)}
ckptfmt.save(sys.argv[1], tensors, durability="none")
pages = int(open("/proc/self/statm").read().split()[0])
seen = set()
for more in range(0, 20 << 20, 160 << 10):
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more,) * 2)
        try:
            ckptfmt.save(sys.argv[1], tensors, compression="zstd", durability="none")
            os._exit(0)
        except MemoryError:
            os._exit(3)
        except BaseException as error:
            print(more, repr(error))
            os._exit(4)
    seen.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(sorted(seen))
"""


@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer reserves all of the address space")
@pytest.mark.parametrize("package", ["loaded", "unloaded"])
def test_the_first_compression_of_a_process(tmp_path: Path, package: str) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "ck"), package]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert ran.stdout == "[0, 3]\n", ran.stdout + ran.stderr
