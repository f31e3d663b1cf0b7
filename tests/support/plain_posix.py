# SPDX-License-Identifier: Apache-2.0
"""Take away what Python has on Linux alone: /proc, and functions of os that Darwin lacks. Importing
this module does it; `python -m pytest -p support.plain_posix` runs tests so."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

refused: list[str] = []


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and not isinstance(arguments[0], int | None):
        path = os.fsdecode(arguments[0])
        if path.startswith("/proc/"):
            refused.append(path)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _exists(path: Any) -> bool:
    if isinstance(path, str) and path.startswith("/proc/"):
        refused.append(path)
        return False
    return _real_exists(path)


_real_exists = os.path.exists
os.path.exists = _exists
sys.addaudithook(_refuse)
del os.sched_getaffinity, os.posix_fallocate
