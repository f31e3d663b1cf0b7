# SPDX-License-Identifier: Apache-2.0
"""Work in other processes, which say where they are and wait there to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Self

from .forking import forked, wait_for


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
        self.process.wait(600)

    def end(self) -> int:
        """Waits until it has ended, and returns its status."""
        return self.process.wait(600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Forked:
    """A copy of this process that runs `work`, far cheaper than an interpreter that imports all.
    What it prints, also to stderr, is read through a pipe. Its status is what `work` returns."""

    def __init__(self, work: Callable[[], object]) -> None:
        child_stdin, stdin = os.pipe()
        stdout, child_stdout = os.pipe()

        def run() -> None:
            for number, fd in enumerate((child_stdin, child_stdout, child_stdout)):
                os.dup2(fd, number)
            for fd in (child_stdin, stdin, stdout, child_stdout):
                os.close(fd)
            sys.stdin = os.fdopen(0)
            sys.stdout = sys.stderr = os.fdopen(1, "w", 1)
            status = 1
            try:
                status = int(work() or 0)  # type: ignore[call-overload]
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)

        self.pid = forked(run)
        self.status: int | None = None
        os.close(child_stdin)
        os.close(child_stdout)
        self.stdin, self.stdout = os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb")

    @classmethod
    def program(cls, text: str, *arguments: str | Path) -> Self:
        """A Python program with `sys.argv[1:]`."""

        def work() -> None:
            sys.argv = ["", *map(str, arguments)]
            exec(text, {"__name__": "__main__"})

        return cls(work)

    def line(self) -> str:
        """The next line; "" when it has ended."""
        return self.stdout.readline().decode().rstrip("\n")

    def go_on(self, times: int = 1) -> None:
        """Give it the lines that it waits for."""
        self.stdin.write(b"\n" * times)

    def end(self) -> int:
        """Wait until it has ended; return its status, negative for the signal that killed it."""
        if self.status is None:
            self.status = wait_for(self.pid)
        return self.status

    def kill(self) -> None:
        """End it with SIGKILL; an AssertionError if it has failed by itself before."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            assert self.end() in (0, -signal.SIGKILL), self.stdout.read().decode()

    def finish(self) -> tuple[int, str]:
        """Its status, and the rest of what it printed."""
        with self.stdin, self.stdout:
            out = self.stdout.read().decode()
            return self.end(), out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        try:
            self.kill()
        finally:
            self.stdin.close()
            self.stdout.close()
