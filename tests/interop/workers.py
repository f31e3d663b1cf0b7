# SPDX-License-Identifier: Apache-2.0
"""Programs of this folder, run by the Python that has TensorFlow, which answer in JSON. What they
write meanwhile is read by both decoders."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import subprocess
from pathlib import Path
from typing import Any

from .oracle import environment, interpreter
from .readings import written

SECONDS = 400


def command(worker: str, *arguments: str | Path) -> list[str]:
    """What runs a program of this folder."""
    program = str(Path(__file__).with_name(worker))
    return [interpreter(), program, *map(str, arguments)]


def ask(worker: str, *arguments: str | Path, question: Any = None) -> Any:
    """What a program printed that was given these arguments, and the question on its input."""
    with contextlib.ExitStack() as folders:
        for folder in arguments:
            if isinstance(folder, Path):
                folders.enter_context(written(folder))
        program = str(Path(__file__).with_name(worker))
        found = forks()(
            "run", program=program, arguments=[str(one) for one in arguments], question=question
        )
    assert "answer" in found, (worker, found)
    return found["answer"]


@functools.cache
def forks() -> Worker:
    """What runs programs in forks, until this process ends."""
    found = Worker("tf_forks.py")
    atexit.register(found.close)
    return found


class Worker:
    """A program that goes on: it is told what to do in a line, and answers in one. It writes to the
    directory that it was told last."""

    def __init__(self, worker: str) -> None:
        self.directory = ""
        self.process = subprocess.Popen(
            command(worker),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            text=True,
        )

    def __call__(self, op: str, **arguments: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.directory = arguments.get("directory", self.directory)
        with written(self.directory):
            self.process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self.process.stdin.flush()
            answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
