#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a page of the site: the public names, in the order of the package's own help.

python tools/api.py > docs/api.md
"""

from __future__ import annotations

import re

import ckptfmt


def main() -> None:
    told = re.findall(r"[A-Za-z_0-9]+", ckptfmt.__doc__ or "")
    public = (name for name in ckptfmt.__all__ if name[0] != "_")
    names = sorted(
        (name for name in public if callable(getattr(ckptfmt, name))),
        key=lambda name: (told.index(name) if name in told else len(told), name),
    )
    print("# Python\n\nWritten by `tools/api.py` from the docstrings.\n")
    for name in names:
        kind = "autoclass" if isinstance(getattr(ckptfmt, name), type) else "autofunction"
        members = "   :members:\n" if kind == "autoclass" else ""
        print(f"```{{eval-rst}}\n.. {kind}:: ckptfmt.{name}\n{members}```\n")


if __name__ == "__main__":
    main()
