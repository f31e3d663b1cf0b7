# SPDX-License-Identifier: Apache-2.0
"""The interpreter ends while daemon threads read from a store, and right after a request."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The threads must not print: CPython aborts if the exit meets one that holds a stream's lock.
BESIDE_THREADS = """
import threading, numpy as np, ckptfmt
url = "memory://x/m"
ckptfmt.save(url, {f"w{number}": np.ones(300_000, np.float32) for number in range(10)})

loads, failed = threading.Semaphore(0), []

def load():
    while True:
        ckptfmt.load(url)
        loads.release()

def note(error):
    failed.append(error)
    loads.release(20)

threading.excepthook = note
for _ in range(4):
    threading.Thread(target=load, daemon=True).start()
for _ in range(20):
    loads.acquire()
assert not failed, failed
"""
AT_ONCE = """
import numpy as np, ckptfmt
ckptfmt.save("memory://x/m", {"w": np.ones(3)})
ckptfmt.load("memory://x/m")
"""
IN_AN_EXIT_HANDLER = """
import atexit, numpy as np, ckptfmt

@atexit.register
def save():
    ckptfmt.save("memory://x/m", {"w": np.ones(3)})
    assert ckptfmt.load("memory://x/m")["w"].sum() == 3
    print("saved")
"""


@pytest.mark.parametrize("program", [BESIDE_THREADS, AT_ONCE, IN_AN_EXIT_HANDLER])
def test_exit(program: str) -> None:
    for _ in range(3 if program is BESIDE_THREADS else 1):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-1000:]
        assert program is not IN_AN_EXIT_HANDLER or done.stdout == "saved\n"
