# SPDX-License-Identifier: Apache-2.0
"""The library that records and breaks the calls of a process (preload.c)."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["environment", "library"]


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
