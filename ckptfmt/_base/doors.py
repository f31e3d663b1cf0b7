# SPDX-License-Identifier: Apache-2.0
"""Modules whose names are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def door(
    module: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module.

    Args:
        module: its name.
        homes: the modules of ckptfmt that define its names, and these, separated by blanks.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"ckptfmt.{home_of[name]}"), name)
        setattr(sys.modules[module], name, value)
        return value

    return get, lambda: sorted(home_of)
