# SPDX-License-Identifier: Apache-2.0
"""What a test may ask of its own process: memory, open files, counters."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from ckptfmt import _core

SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")


@contextlib.contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Allocating `more` bytes beyond what the process has is a MemoryError inside.

    Nothing is limited under AddressSanitizer, which keeps what is freed.
    """
    if SANITIZED:
        yield
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def open_files() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    """Another soft limit of a resource, by its number in `resource`."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


@contextlib.contextmanager
def descriptors(free: int) -> Iterator[None]:
    """At most `free` more files can be opened inside. The limit is one of numbers, so numbers
    that are free among those in use are taken first."""
    with contextlib.ExitStack() as stack:
        while True:
            fd = os.open(os.devnull, os.O_RDONLY)
            if fd + 1 == open_files() - 1:  # the listing has one
                os.close(fd)
                break
            stack.callback(os.close, fd)
        with limited(resource.RLIMIT_NOFILE, fd + free):
            yield


class Spent:
    """Counters of the system calls made inside a `with` block, as attributes."""

    opens: int
    reads: int
    bytes_read: int
    writes: int
    bytes_written: int
    syncs: int
    renames: int
    links: int
    unlinks: int
    maps: int

    def __enter__(self) -> Spent:
        self._before = _core.counters()
        return self

    def __exit__(self, *_exc: object) -> None:
        after = _core.counters()
        for name, value in after.items():
            setattr(self, name, value - self._before[name])


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def obey_modes() -> None:
    """Let this process, also of root, do only what the modes of files allow; for a child."""
    version, size = 0x20080522, 6
    header = (ctypes.c_uint32 * 2)(version, 0)
    sets = (ctypes.c_uint32 * size)()  # effective, permitted, inheritable; then the upper halves
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
    sets[0] &= ~0b1111  # CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())
