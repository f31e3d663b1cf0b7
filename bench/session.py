# SPDX-License-Identifier: Apache-2.0
"""The processes that the benchmark measures in, and the state of their files in the page cache."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cases import BEFORE, OURS

# What the documentation of the sides advises, beside what their modules do when tuned. Huge pages
# for what malloc gives is for all of them.
TUNED = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "TF_TABLE_INDEX_CACHE_SIZE_IN_MB": "64",
}


class BenchError(Exception):
    """A side did not do what it was asked for."""


class UnsupportedError(BenchError):
    """The library has no such thing."""


def environment(tuned: bool, bytecode: Path | None = None) -> dict[str, str]:
    """That of a side's process; `bytecode` is where it keeps what it has compiled, if elsewhere."""
    dropped = {*TUNED, "PYTHONDONTWRITEBYTECODE"} if bytecode else set(TUNED)
    found = {key: value for key, value in os.environ.items() if key not in dropped}
    if bytecode:
        found["PYTHONPYCACHEPREFIX"] = str(bytecode)
    found |= {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": ""}
    return found | TUNED if tuned else found


def module(side: str) -> str:
    """The module in `sides` that a side's process runs."""
    return OURS if side == BEFORE else side


class Process:
    """A worker for one side."""

    def __init__(self, python: str, home: Path, side: str, tuned: bool, log: Path) -> None:
        self.label = f"{side}{', tuned' if tuned else ''}"
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [python, str(home / "worker.py"), module(side), *(["tuned"] if tuned else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(tuned),
                text=True,
            )
        hello = self._answer()
        self.missing: str = hello.get("missing", "")
        self.version: str = hello.get("version", "")
        self.verbs: list[str] = hello.get("verbs", [])
        self.held: tuple[Any, ...] = ()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            told = self.log.read_text(errors="replace").splitlines()[-20:]
            raise BenchError("\n".join([f"{self.label}: the process has ended", *told]))
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One request and its answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # of one that has ended; the answer tells so
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        found = self._answer()
        if "unsupported" in found:
            raise UnsupportedError("not offered")
        if "failed" in found:
            raise BenchError(f"{self.label}: {found['failed']}")
        return found

    def hold(self, count: int, shape: tuple[int, ...], arrays: bool) -> None:
        """Lets it make that data, unless it has it."""
        wish = (count, shape, arrays)
        if self.held != wish:
            self.ask("hold", count=count, shape=shape, arrays=arrays)
            self.held = wish

    def drop(self) -> None:
        """Lets it forget its data."""
        if self.held:
            self.ask("drop")
            self.held = ()

    def close(self) -> None:
        """Ends it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@dataclass
class Sides:
    """The workers, begun when first asked for; one that is not installed is None."""

    pythons: dict[str, str]
    homes: dict[str, Path]  # the folder `bench` of each side
    folder: Path
    workers: dict[tuple[str, bool], Process] = field(default_factory=dict)

    def __call__(self, side: str, tuned: bool = False) -> Process | None:
        key = (side, tuned)
        if not self.pythons.get(side):
            return None
        broken = self.workers.get(key)
        if broken is not None and not broken.missing and broken.process.poll() is not None:
            del self.workers[key]  # its end is in the report; the next row begins with a new one
        if key not in self.workers:
            log = self.folder / f"{side}{'-tuned' if tuned else ''}.log"
            self.workers[key] = Process(self.pythons[side], self.homes[side], side, tuned, log)
        found = self.workers[key]
        return None if found.missing else found

    def versions(self) -> dict[str, str]:
        """What was met, by side; empty for one that is not installed."""
        return {side: worker.version for (side, _), worker in self.workers.items()}

    def drop_others(self, kept: set[tuple[str, bool]]) -> None:
        """Frees the memory of those that do not take part."""
        for key, worker in self.workers.items():
            if key not in kept and not worker.missing and worker.process.poll() is None:
                worker.drop()

    def renew(self, side: str, tuned: bool) -> None:
        """Ends a worker; the next one is a new process."""
        worker = self.workers.get((side, tuned))
        if worker is not None and not worker.missing and worker.process.poll() is None:
            worker.close()
            del self.workers[side, tuned]

    def close(self) -> None:
        for worker in self.workers.values():
            if worker.process.poll() is None:
                worker.close()


def in_new_process(
    sides: Sides, side: str, tuned: bool, folder: str, name: str, bytecode: Path | None
) -> dict[str, Any]:
    """Import, open, first tensor: from the start of the process until it tells the value."""
    first = str(sides.homes[side] / "first.py")
    command = [sides.pythons[side], first, module(side), folder, name]
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(tuned, bytecode),
        text=True,
    )
    assert process.stdout is not None
    told = process.stdout.readline()
    seconds = time.perf_counter() - began
    process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not told:
        raise BenchError(f"{side}: the first tensor did not come")
    return {
        "seconds": seconds,
        "cpu": used.ru_utime + used.ru_stime,
        "minor": used.ru_minflt,
        "sum": told.strip(),
        "peak_kib": used.ru_maxrss,
    }


# ---- memory, and files in the page cache ---------------------------------------------------------


# Linux' number, which the module `mmap` does not have.
MADV_POPULATE_WRITE = 23


def ready_memory(size: int) -> None:
    """Touch this much memory and free it. Otherwise a virtual machine would fetch memory that it
    returned to its host while a side is timed."""
    with mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for advice in (mmap.MADV_HUGEPAGE, MADV_POPULATE_WRITE):
            with contextlib.suppress(OSError):  # of a kernel that has none: the noise stays
                memory.madvise(advice)


def all_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path


def resident(path: Path) -> float:
    """The share of a file that the page cache holds."""
    size = path.stat().st_size
    if not size:
        return 0.0
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file:
        mapped = mmap.mmap(
            file.fileno(), size, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE
        )
    pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    first = ctypes.c_char.from_buffer(mapped)
    try:
        if libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), found):
            raise OSError(ctypes.get_errno(), "mincore")
    finally:
        del first
        mapped.close()
    return sum(byte & 1 for byte in found) / pages


def evict(folder: Path) -> float:
    """Syncs the files and drops them from the page cache; the largest share that stayed."""
    for path in all_files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return max(map(resident, all_files(folder)), default=0.0)


def warm(folder: Path) -> None:
    """Brings the files into the page cache where they are not."""
    for path in all_files(folder):
        if resident(path) < 1:
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 23):
                    pass
