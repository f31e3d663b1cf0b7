# SPDX-License-Identifier: Apache-2.0
"""What this machine can do, measured in the same run: bytes a second of single things.

Each is taken several times, before and after the cases, by one thread and by as many as a side may
have, and the best one counts: a limit is what was possible.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 8 << 20
TEXT = {
    "memcpy": "copy in memory",
    "write": "page-cache write: fallocate, 8 MiB writes, one thread",
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


def _threads() -> int:
    return min(len(os.sched_getaffinity(0)), 4)


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

    def _copy(self, threads: int) -> None:
        target, source = (
            ctypes.addressof(ctypes.c_char.from_buffer(memory))
            for memory in (self.target, self.source)
        )
        _spread(
            self.size,
            lambda start, size: ctypes.memmove(target + start, source + start, size),
            threads,
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

    def _read(self, target: mmap.mmap, threads: int) -> None:
        view = memoryview(target)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            _spread(
                self.size,
                lambda start, size: os.preadv(descriptor, [view[start : start + size]], start),
                threads,
            )
        finally:
            os.close(descriptor)

    def _sum(self, mapped: mmap.mmap, threads: int) -> None:
        from ckptfmt import _core  # noqa: PLC0415 (a side that may not be there)

        with memoryview(mapped) as view:
            _spread(
                self.size,
                lambda start, size: _core.crc32c(view[start : start + size]),
                threads,
            )

    def measure(self) -> None:
        """All of them once."""
        source, target = memoryview(self.source), memoryview(self.target)
        counts = sorted({1, _threads()})
        self._copy(1)
        for threads in counts:
            self._took("memcpy", partial(self._copy, threads))
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
        for threads in counts:
            self._took("pread fresh", lambda count=threads: self._read(huge(self.size), count))
            self._took("pread reused", partial(self._read, self.target, threads))
        with self.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), self.size, prot=mmap.PROT_READ)
        self._sum(mapped, 1)
        for threads in counts:
            self._took("crc", partial(self._sum, mapped, threads))
        mapped.close()
        self.path.unlink()
