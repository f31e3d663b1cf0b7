# SPDX-License-Identifier: Apache-2.0
"""The changes that a program asks of a directory, as support/preload.c records them."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.preload import environment

from powerloss.disk import Call

__all__ = ["traced"]

# Name, offset, the sizes of two paths and of data, number: `record` of preload.c.
_RECORD = struct.Struct("=16sq4I")
_KINDS = ("create", "write", "truncate", "sync", "rename", "link", "unlink", "mkdir")


def traced(scenario: str, root: Path, log: Path, kill: int = 0) -> list[Call]:
    """Run a scenario, `python -m powerloss.scenarios SCENARIO ROOT`, and return its calls.

    Args:
        kill: if not 0, the change before which the process is killed; then another process goes on.
    """
    log.write_bytes(b"")
    program = [sys.executable, "-m", "powerloss.scenarios", scenario, str(root)]
    there = environment(
        CKPTFMT_RECORD=str(log), CKPTFMT_KILL=str(kill), PYTHONDONTWRITEBYTECODE="1"
    )
    ran = subprocess.run(program, check=False, env=there)
    assert ran.returncode in (0, -signal.SIGKILL if kill else 0)
    found = list(_calls(log.read_bytes(), os.fsencode(root.resolve())))
    if ran.returncode:
        begun = [call.path.split()[1] for call in found if call.path.startswith("begin ")]
        there["CKPTFMT_KILL"] = "0"
        subprocess.run([*program, *begun[-1:]], check=True, env=there)
        found = list(_calls(log.read_bytes(), os.fsencode(root.resolve())))
    return found


def _calls(log: bytes, root: bytes) -> Iterator[Call]:
    at = 0
    while at < len(log):
        name, offset, *sizes, number = _RECORD.unpack_from(log, at)
        at += _RECORD.size
        ends = [at + sum(sizes[: i + 1]) for i in range(3)]
        path, other, data = (log[end - size : end] for end, size in zip(ends, sizes, strict=True))
        at = ends[-1]
        kind = name.rstrip(b"\0").decode()
        path, other = os.path.normpath(path), os.path.normpath(other) if other else b""
        if kind == "write" and path == b"/dev/null" and data.startswith(b"mark "):
            yield Call("mark", data[5:].decode())
        elif path.endswith(b" (deleted)") or not (_inside(path, root) or _inside(other, root)):
            continue
        elif kind != "fallocate" or offset == 0:  # else only the room is reserved
            assert kind in _KINDS, f"a call that the model of the disk lacks: {kind}"
            both = _below(path, root), _below(other, root) if other else ""
            yield Call(kind, *both, data=data, offset=offset, number=number)


def _inside(path: bytes, root: bytes) -> bool:
    return path == root or path.startswith(root + b"/")


def _below(path: bytes, root: bytes) -> str:
    assert _inside(path, root), path
    return path[len(root) + 1 :].decode()
