# SPDX-License-Identifier: Apache-2.0
"""Prints what is in a checkpoint and what is wrong with it: `python -m reference PREFIX`."""

from __future__ import annotations

import sys

from .bundle import Bundle
from .rules import Violation
from .verify import verify


def main(prefix: str) -> int:
    """Returns the exit status: 1 if something is wrong."""
    try:
        bundle = Bundle(prefix)
        print(bundle.header)
        for name in bundle.names():
            entry, parts = bundle.entry(name)
            shown = name.decode("utf-8", "backslashreplace")
            slices = f"{len(parts)} slices" if parts else "whole"
            print(shown, entry.type.name or entry.dtype, entry.shape, slices)
    except Violation:
        pass  # verify() reports it below
    problems, deviations = verify(prefix)
    for line in (*problems, *(f"deviation: {deviation}" for deviation in deviations)):
        print(line)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].removesuffix(".index")))
