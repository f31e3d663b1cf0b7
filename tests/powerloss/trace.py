# SPDX-License-Identifier: Apache-2.0
"""The changes that a program asks of a directory, as support/preload.c records them."""

from __future__ import annotations

import os
import signal
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.preload import Forks

from powerloss.disk import Call

__all__ = ["Tracer"]

# Name, offset, the sizes of two paths and of data, number: `record` of preload.c.
_RECORD = struct.Struct("=16sq4I")
_KINDS = ("create", "write", "truncate", "sync", "rename", "link", "unlink", "mkdir")


class Tracer(Forks):
    """Runs scenarios with preload.c, each in a fork of one process that has imported everything.

    Args:
        folder: where the log and the directories of the scenarios are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "log"
        self._known: dict[str, list[Call]] = {}
        super().__init__("powerloss.scenarios", CKPTFMT_RECORD=str(self._log))

    def calls(self, scenario: str) -> list[Call]:
        """The calls of a whole scenario, traced once."""
        if scenario not in self._known:
            self._known[scenario] = self.traced(scenario)
        return self._known[scenario]

    def traced(self, scenario: str, kill: int = 0) -> list[Call]:
        """Run a scenario and return its calls.

        Args:
            kill: if not 0, the change before which the process is killed; then another one goes on.
        """
        self._log.write_bytes(b"")
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            root = os.path.realpath(folder)
            status = self.run(scenario, root, kill, 0)
            assert status in (0, -signal.SIGKILL if kill else 0)
            if status:
                begun = [call.path for call in self._calls(root) if call.path.startswith("begin ")]
                step = int(begun[-1].split()[1]) if begun else 0
                assert self.run(scenario, root, 0, step) == 0
            return self._calls(root)

    def _calls(self, root: str) -> list[Call]:
        return list(_calls(self._log.read_bytes(), os.fsencode(root)))


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
