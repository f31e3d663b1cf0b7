# SPDX-License-Identifier: Apache-2.0
"""The library that records and breaks the calls of a process (preload.c), and processes with it."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self

from .forking import in_child

__all__ = ["Forks", "environment", "library", "serve"]

# A fork need not import these again.
IMPORTED_LATE = [
    *("ckptfmt.bundle.writer", "ckptfmt.cli.mv", "ckptfmt.recipe.edit"),
    *("ckptfmt.recipe.convert", "ckptfmt.manager.manager", "ckptfmt.tf", "numpy.testing"),
]

_folder = tempfile.TemporaryDirectory()


@functools.cache
def library() -> Path:
    """Build it, once a process."""
    source = Path(__file__).with_name("preload.c")
    built = Path(_folder.name) / "preload.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", str(built), str(source), "-ldl", "-pthread"], check=True)
    return built


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a Python process that it is loaded into."""
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "LD_PRELOAD": str(library()), "PYTHONPATH": path, **more}


class Forks:
    """A process that imports a module, which calls `serve`, and forks for each piece of work.

    Args:
        module: its name.
        more: variables of its environment.
    """

    def __init__(self, module: str, **more: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            env=environment(PYTHONDONTWRITEBYTECODE="1", **more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    def run(self, *arguments: object) -> int:
        """Work with these arguments; returns the exit status, negative for a signal."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\t".join(map(str, arguments)) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def serve(main: Callable[..., object]) -> None:
    """Call `main` with the arguments of each line of the input, in a fork of this process."""
    for module in IMPORTED_LATE:
        importlib.import_module(module)

    def work(*arguments: str) -> None:
        os.dup2(2, 1)  # stdout is for statuses
        main(*arguments)

    for line in sys.stdin:
        print(in_child(functools.partial(work, *line.rstrip("\n").split("\t"))), flush=True)
