# SPDX-License-Identifier: Apache-2.0
"""Count the files that a call passes through: `python tools/call_walk.py`.

Each of four calls runs once under a profiler, after a first run that imports what is loaded late.
Reported are the files of the package that are entered, the switches from one file to another, and
the depth of the stack of the package's own frames. C code and other packages are not counted.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import ckptfmt

PACKAGE = str(Path(ckptfmt.__file__).parent)


def walk(call: Callable[[], Any]) -> tuple[int, int, int]:
    """Files entered, switches between files, and the deepest stack."""
    files: set[str] = set()
    stack: list[str] = []
    switches = deepest = 0

    def event(frame: FrameType, kind: str, _: object) -> None:
        nonlocal switches, deepest
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE):
            return
        if kind == "call":
            if stack and stack[-1] != name:
                switches += 1
            files.add(name)
            stack.append(name)
            deepest = max(deepest, len(stack))
        elif kind == "return" and stack:
            left = stack.pop()
            if stack and stack[-1] != left:
                switches += 1

    sys.setprofile(event)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(files), switches, deepest


def main() -> None:
    arrays = {"kernel": np.ones((64, 64), np.float32), "bias": np.zeros(64)}
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder, "ck"))
        saver = ckptfmt.Saver({"model": arrays})
        checkpoint = ckptfmt.Checkpoint(model=arrays)
        manager = ckptfmt.CheckpointManager(checkpoint, str(Path(folder, "run")), max_to_keep=2)
        ckptfmt.save(prefix, arrays)
        reader = ckptfmt.open(prefix)
        calls: dict[str, Callable[[], Any]] = {
            "save": lambda: ckptfmt.save(prefix, arrays),
            "reader[name][slice]": lambda: reader["kernel"][3:5, 7],
            "Saver.save": lambda: saver.save(prefix + "-saver"),
            "CheckpointManager.save": manager.save,
        }
        print(f"{'call':24}{'files':>7}{'switches':>10}{'depth':>7}")
        for name, call in calls.items():
            for _ in range(3):
                call()
            found = walk(call)
            print(f"{name:24}{found[0]:7}{found[1]:10}{found[2]:7}")


if __name__ == "__main__":
    main()
