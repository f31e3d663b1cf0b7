# SPDX-License-Identifier: Apache-2.0
"""What a forked child does."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable


def in_child(work: Callable[[], None]) -> int:
    """Exit status of a child that ran `work`; 0 if nothing was raised."""
    with warnings.catch_warnings():
        # Python 3.12 warns of any fork in a process with threads, which xdist makes.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
