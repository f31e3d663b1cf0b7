#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a page of the site: the public names, in the order of the package's own help.

python tools/api.py > docs/api.md
"""

from __future__ import annotations

import importlib
import re
from types import ModuleType

import ckptfmt

# The modules whose names follow those of the package itself.
DOORS = ("types", "errors", "sharded", "editing", "tf")


def main() -> None:
    print("# Python\n\nWritten by `tools/api.py` from the docstrings.\n")
    told = re.findall(r"[A-Za-z_0-9]+", ckptfmt.__doc__ or "")
    seen: set[object] = set()
    for door in ("", *DOORS):
        module = importlib.import_module(f"ckptfmt.{door}".rstrip("."))
        public = (name for name in module.__all__ if callable(getattr(module, name)))
        names = sorted(
            (name for name in public if getattr(module, name) not in seen),
            key=lambda name: (told.index(name) if name in told and not door else len(told), name),
        )
        seen.update(getattr(module, name) for name in names)
        if door:
            print(f"## ckptfmt.{door}\n")
        for name in names:
            show(module, name)


def show(module: ModuleType, name: str) -> None:
    kind = "autoclass" if isinstance(getattr(module, name), type) else "autofunction"
    members = "   :members:\n" if kind == "autoclass" else ""
    print(f"```{{eval-rst}}\n.. {kind}:: {module.__name__}.{name}\n{members}```\n")


if __name__ == "__main__":
    main()
