# SPDX-License-Identifier: Apache-2.0
"""Checkpoints for the tests of the `ckptfmt` command, and ways to run it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import ckptfmt
from ckptfmt.cli import main

ODD_NAMES = [
    b"\x1b[31mred\x1b[0m",
    b"line\nbreak\r",
    b"not utf-8 \xff\xc3",
    "\N{RIGHT-TO-LEFT OVERRIDE}reversed\N{NEXT LINE}".encode(),
    "検査点/é".encode(),
    rb"back\slash\x1b",
    b"nul\0nul",
    bytes(range(1, 256)),
]


# ---- checkpoints


def small(directory: Path) -> Path:
    """One data file: whole, partitioned, string, empty and scalar tensors."""
    prefix = directory / "small"
    rows = np.arange(24, dtype=np.int32).reshape(6, 4)
    ckptfmt.save_v2(
        prefix,
        ["scale", "model/dense/kernel", "model/dense/kernel", "model/words", "model/none", "step"],
        ["", "6 4 0,4:-", "6 4 4,2:-", "", "", ""],
        [
            np.float32(0.5),
            rows[:4],
            rows[4:],
            np.array(["one", "three"]),
            np.empty((3, 0)),
            np.int64(7),
        ],
    )
    return prefix


def plus(directory: Path) -> Path:
    """Two data files, with padding and metadata; one tensor is in both."""
    parts = [directory / "parts" / str(number) for number in range(2)]
    for number, part in enumerate(parts):
        metadata = None if number else {"step": 12, "by": "\x1bé"}
        with ckptfmt.Writer(part, metadata=metadata) as writer:
            writer.add_slice(
                "table", np.full((2, 3), number, np.float64), shape=(4, 3), offset=(2 * number, 0)
            )
            writer.add(f"layer_{number}/bias", np.full(5, number, np.int8))
    ckptfmt.merge(parts, directory / "plus")
    return directory / "plus"


def odd(directory: Path) -> Path:
    prefix = directory / "odd"
    ckptfmt.save_v2(prefix, ODD_NAMES, [""] * len(ODD_NAMES), [np.int8(1) for _ in ODD_NAMES])
    return prefix


def many(directory: Path) -> Path:
    """An index of several blocks, whose listing fills more than a pipe."""
    prefix = directory / "many"
    names = [f"{number:05d}/{'x' * 150}" for number in range(3000)]
    ckptfmt.save_v2(prefix, names, [""] * len(names), [np.int8(1)] * len(names))
    with ckptfmt.open(prefix) as reader:
        assert reader.header.block_count > 1
    return prefix


MADE: dict[str, Callable[[Path], Path]] = {"small": small, "plus": plus, "odd": odd}


def data_file(prefix: Path, shard: int = 0, count: int = 1) -> Path:
    return Path(ckptfmt.sharded_filename(f"{prefix}.data", shard, count))


def index_file(prefix: Path) -> Path:
    return Path(f"{prefix}.index")


# ---- running it


class Ran:
    """What a run printed, and its exit status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


Command = Callable[..., Ran]


def environment(**more: str) -> dict[str, str]:
    """For a child that imports the package that is tested here."""
    root = Path(ckptfmt.__file__).parent.parent
    inherited = os.environ.get("PYTHONPATH")
    path = f"{root}{os.pathsep}{inherited}" if inherited else str(root)
    dropped = ("NO_COLOR", "FORCE_COLOR", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "PYTHONPATH": path, "PYTHONUTF8": "1", "TERM": "xterm", **more}


def child(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "env": environment(),
        **options,
    }
    words = [sys.executable, "-m", "ckptfmt", *map(str, arguments)]
    return subprocess.Popen(words, **options)


def script(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs a few lines and then the command, in a process of its own."""
    code = f"import sys\n{code}\nfrom ckptfmt.cli import main\nsys.exit(main())"
    words = [sys.executable, "-c", code, *map(str, arguments)]
    options = {"capture_output": True, "env": environment(), **options}
    return subprocess.run(words, check=False, **options)


def on_terminal(stream: str, *arguments: object) -> tuple[int, bytes]:
    """Runs the command in this process with a terminal as `stdout` or `stderr`: its status, and
    what it wrote there."""
    ours, theirs = pty.openpty()

    def read_all() -> bytes:
        written = b""
        try:
            while piece := os.read(ours, 4096):
                written += piece
        except OSError:  # how Linux says that the other side is closed
            pass
        return written

    with ThreadPoolExecutor(1) as reader:
        written = reader.submit(read_all)
        with open(theirs, "w", encoding="utf-8") as file, mock.patch.object(sys, stream, file):
            status = main([*map(str, arguments)])
    os.close(ours)
    return status, written.result()
