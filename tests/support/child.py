# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own, which say where they are and wait there to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self


class Child:
    """A Python program that runs beside the test. What it prints is read line by line.

    Args:
        program: its text.
        arguments: its `sys.argv[1:]`.
    """

    def __init__(self, program: str, *arguments: str | Path) -> None:
        here = str(Path(__file__).parent.parent)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])},
        )

    def line(self) -> str:
        """The next line; "" when the program has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def go_on(self) -> None:
        """Gives it the line that it waits for."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Ends it with SIGKILL, whatever it does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def end(self) -> int:
        """Waits until it has ended, and returns its status."""
        return self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
