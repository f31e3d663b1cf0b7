# SPDX-License-Identifier: Apache-2.0
"""Processes that work at once until each has done its share, their counters, and what they save."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import traceback
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import numpy as np


class MixedError(AssertionError):
    """The tensors that were read together are not of one save."""


class Counts:
    """Counters that all processes share: each process has its own row of them.

    Args:
        names: what is counted; "mixed" and "error" are counted too.
        processes: how many there are.
    """

    def __init__(self, names: tuple[str, ...], processes: int) -> None:
        self.names = (*names, "mixed", "error")
        self._size = 8 * len(self.names)
        self._memory = mmap.mmap(-1, processes * self._size)
        self._lock = threading.Lock()
        self.row = 0
        self._rows = processes

    def add(self, what: str) -> None:
        at = self.row * self._size + 8 * self.names.index(what)
        with self._lock:
            (count,) = struct.unpack_from("<q", self._memory, at)
            struct.pack_into("<q", self._memory, at, count + 1)

    def total(self, what: str) -> int:
        place = 8 * self.names.index(what)
        rows = range(self._rows)
        return sum(
            struct.unpack_from("<q", self._memory, row * self._size + place)[0] for row in rows
        )

    def __str__(self) -> str:
        return ", ".join(f"{what} {self.total(what):,}" for what in self.names)


# ---- what is saved -------------------------------------------------------------------------------


def tensors(version: int) -> dict[str, Any]:
    """A model whose tensors all carry the number of the save."""
    return {
        "a": np.full(3000, version),
        "b": np.full((40, 50), version, np.float64),
        "c": np.array(version),
        "same": np.arange(2000),
    }


def version_of(found: dict[str, Any]) -> int:
    """Compare all that was loaded with the one version that it must have."""
    version = int(found["c"])
    expected = tensors(version)
    for name, value in found.items():
        if not np.array_equal(value, expected[name]):
            raise MixedError(f"{name} is not of version {version}")
    return version


# ---- running -------------------------------------------------------------------------------------

Steps = Generator[None, None, None]
Role = Callable[[Path, Counts], Steps]


def work(role: Role, root: Path, counts: Counts, is_over: Callable[[], bool]) -> None:
    """Go on, also after an error, until the race is over."""
    while not is_over():
        try:
            with contextlib.closing(role(root, counts)) as steps:
                for _ in steps:
                    if is_over():
                        return
        except Exception as error:  # a role that ends alone would let the others go on for ever
            counts.add("mixed" if isinstance(error, MixedError) else "error")
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{role.__name__}: {type(error).__name__}: {error} ({last.name}:{last.lineno})"
            os.write(1, text[:300].encode() + b"\n")  # in one piece, beside other processes


def child(roles: list[Role], root: Path, counts: Counts, is_over: Callable[[], bool]) -> int:
    process = os.fork()
    if process == 0:
        status = 1
        if len(roles) > 1:
            os.nice(5)  # so that the writers come to write
        try:
            threads = [
                threading.Thread(target=work, args=(role, root, counts, is_over)) for role in roles
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            status = 0
        finally:
            os._exit(status)
    return process


def race(
    name: str,
    processes: list[list[Role]],
    root: Path,
    counts: Counts,
    rounds: int,
    needed: Iterable[str],
) -> None:
    """Run the roles, one process for each list and one thread for each role of it, until all that
    is needed was done so many times, or something went wrong; print the counts."""

    def is_over() -> bool:
        return counts.total("mixed") + counts.total("error") > 0 or all(
            counts.total(what) >= rounds for what in needed
        )

    children = []
    for row, roles in enumerate(processes):
        counts.row = row
        children.append(child(roles, root, counts, is_over))
    ended = [os.waitpid(process, 0)[1] for process in children]
    print(f"{name}: {counts}", flush=True)
    assert not any(ended), ended
