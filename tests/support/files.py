# SPDX-License-Identifier: Apache-2.0
"""The files that there are."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator
from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """All files in a folder and below, by their paths from it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def flip(path: Path, offset: int) -> None:
    """Flip one bit of the byte at this offset."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def listing(folder: Path) -> list[str]:
    """The names of everything in a folder and below."""
    return sorted(path.name for path in folder.rglob("*"))


@contextlib.contextmanager
def file_size_limit(most: int) -> Iterator[None]:
    """No file can have more bytes. Modules that are imported meanwhile are not cached, because
    Python keeps what a short write leaves of a cached module."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    cached, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
        sys.dont_write_bytecode = cached
