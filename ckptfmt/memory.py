# SPDX-License-Identifier: Apache-2.0
"""The memory of large arrays that were loaded and died."""

from __future__ import annotations

from ckptfmt import _core

__all__ = ["release_memory"]


def release_memory() -> int:
    """Gives the memory that is kept of loaded arrays which are no more back to the system.

    Arrays of 4 MiB and more that are loaded get the memory of such arrays that died before, because
    new memory takes longer to get than a file to read. Kept is, together with what is in use, no
    more than was in use at once before, and at most a quarter of the machine's memory. The system
    may take it whenever it lacks memory, without swapping; until it does, or this is called, what
    is kept counts in the size of the process.

    Returns:
        The bytes that were given back: 0 also where another thread is just taking or giving some.
    """
    return _core.release_memory()
