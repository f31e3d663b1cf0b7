# SPDX-License-Identifier: Apache-2.0
"""Prints what is in a checkpoint: `python -m reference PREFIX`."""

import sys

from .bundle import Bundle
from .entries import TYPES
from .rules import Violation


def main(path):
    """Prints a listing; returns the exit status."""
    try:
        bundle = Bundle(path.removesuffix(".index"))
        print(bundle.header)
        for name in bundle.names():
            entry, _ = bundle.entry(name)
            kind = TYPES.get(entry.dtype, (entry.dtype,))[0]
            try:
                bundle.read(name)
                state = "ok"
            except Violation as violation:
                state = str(violation)
            shown = name.decode("utf-8", "backslashreplace")
            print(shown, kind, entry.shape, len(entry.slices) or "whole", state)
        for oddity, offset in bundle.notes:
            print(f"odd: {oddity} at {offset}")
    except Violation as violation:
        print(violation, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
