#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the stubs of the modules whose names are imported when they are first used, from the table
of `ckptfmt/_base/doors.py`.

python tools/stubs.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from ckptfmt._base.doors import MODULES, NAMES  # noqa: E402 (from this checkout)


def stub(door: str) -> str:
    """Return the stub of a module."""
    lines = ["# SPDX-License-Identifier: Apache-2.0", "# Written by tools/stubs.py."]
    if door == "ckptfmt":
        lines += ["", *(f"from ckptfmt import {name} as {name}" for name in sorted(MODULES))]
    else:
        lines.append("")
    for home, names_of in sorted(NAMES[door].items()):
        lines += (f"from ckptfmt.{home} import {name} as {name}" for name in names_of.split())
    if door == "ckptfmt":
        lines += ["", "__version__: str"]
    listed = sorted(name for names_of in NAMES[door].values() for name in names_of.split())
    lines += ["", "__all__ = [", *(f'    "{name}",' for name in listed), "]", ""]
    return "\n".join(lines)


def path_of(door: str) -> Path:
    """Return the place of the stub of a module."""
    place = ROOT.joinpath(*door.split("."))
    return place / "__init__.pyi" if place.is_dir() else place.with_suffix(".pyi")


def main() -> None:
    for door in NAMES:
        path_of(door).write_text(stub(door), encoding="utf-8")


if __name__ == "__main__":
    main()
