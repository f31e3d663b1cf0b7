# SPDX-License-Identifier: Apache-2.0
"""What this machine can do, measured in the same run: bytes a second of single things.

Each is taken several times, before and after the cases, and the best one counts: a limit is what
was possible.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 8 << 20
TEXT = {
    "memcpy": "copy in memory, one thread",
    "write": "page-cache write: fallocate, 8 MiB writes",
    "direct write": "O_DIRECT write of a new file, two threads of 8 MiB, synced",
    "direct read": "O_DIRECT read, two threads of 8 MiB",
    "pread fresh": "pread of a cached file into fresh huge pages",
    "pread reused": "the same into memory used before",
    "crc": "CRC-32C over a mapped, cached file",
}


def huge(size: int) -> mmap.mmap:
    """Memory of its own that asks for huge pages."""
    found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        found.madvise(mmap.MADV_HUGEPAGE)
    return found


def _spread(size: int, work: Callable[[int, int], Any], threads: int = 2) -> None:
    """Blocks over threads."""

    def run(first: int) -> None:
        for start in range(first * BLOCK, size, threads * BLOCK):
            work(start, min(BLOCK, size - start))

    started = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


class Limits:
    """Measures in a folder; `rates` holds the best of each, in bytes a second."""

    def __init__(self, folder: Path, size: int) -> None:
        self.size = max(size // BLOCK, 1) * BLOCK
        self.path = folder / "limits"
        self.source, self.target = huge(self.size), huge(self.size)
        np.frombuffer(self.source, np.uint64)[:] = np.arange(self.size // 8, dtype=np.uint64)
        self.rates: dict[str, float] = {}
        self.all: dict[str, list[float]] = {}

    def _took(self, name: str, call: Callable[[], Any]) -> None:
        began = time.perf_counter()
        call()
        rate = self.size / (time.perf_counter() - began)
        self.all.setdefault(name, []).append(rate)
        self.rates[name] = max(self.rates.get(name, 0.0), rate)

    def _copy(self) -> None:
        ctypes.memmove(
            ctypes.addressof(ctypes.c_char.from_buffer(self.target)),
            ctypes.addressof(ctypes.c_char.from_buffer(self.source)),
            self.size,
        )

    def _write(self) -> None:
        view = memoryview(self.source)
        descriptor = os.open(self.path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            os.posix_fallocate(descriptor, 0, self.size)
            for start in range(0, self.size, BLOCK):
                os.pwrite(descriptor, view[start : start + BLOCK], start)
        finally:
            os.close(descriptor)

    def _direct(self, flags: int, work: Callable[[int, int, int], Any]) -> None:
        descriptor = os.open(self.path, flags | os.O_DIRECT)
        try:
            if flags & os.O_CREAT:
                os.posix_fallocate(descriptor, 0, self.size)
            _spread(self.size, lambda start, size: work(descriptor, start, size))
            if flags & os.O_CREAT:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read(self, target: mmap.mmap) -> None:
        view = memoryview(target)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            for start in range(0, self.size, BLOCK):
                os.preadv(descriptor, [view[start : start + BLOCK]], start)
        finally:
            os.close(descriptor)

    def _fresh(self) -> None:
        self._read(huge(self.size))

    def _sum(self, mapped: mmap.mmap) -> None:
        from ckptfmt import _core  # noqa: PLC0415 (a side that may not be there)

        _core.crc32c(mapped)

    def measure(self) -> None:
        """All of them once."""
        source, target = memoryview(self.source), memoryview(self.target)
        self._copy()
        self._took("memcpy", self._copy)
        self.path.unlink(missing_ok=True)
        try:
            self._took(
                "direct write",
                lambda: self._direct(
                    os.O_CREAT | os.O_WRONLY,
                    lambda file, start, size: os.pwrite(file, source[start : start + size], start),
                ),
            )
            self._took(
                "direct read",
                lambda: self._direct(
                    os.O_RDONLY,
                    lambda file, start, size: os.preadv(
                        file, [target[start : start + size]], start
                    ),
                ),
            )
        except OSError:  # a file system without O_DIRECT has no such limit
            pass
        self.path.unlink(missing_ok=True)
        self._took("write", self._write)
        self._took("pread fresh", self._fresh)
        self._took("pread reused", lambda: self._read(self.target))
        with self.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), self.size, prot=mmap.PROT_READ)
        self._took("crc", lambda: self._sum(mapped))
        self._took("crc", lambda: self._sum(mapped))
        mapped.close()
        self.path.unlink()
