# SPDX-License-Identifier: Apache-2.0
"""The files that there are."""

from __future__ import annotations

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
