# SPDX-License-Identifier: Apache-2.0
"""What a forked child does."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable


def in_child(work: Callable[[], object]) -> int:
    """Exit status of a child that ran `work`; 0 if nothing was raised."""
    return wait_for(forked(work))


def forked(work: Callable[[], object]) -> int:
    """Number of a child that runs `work`, and ends with the status 0 if nothing is raised."""
    with warnings.catch_warnings():
        # Python 3.12 warns of any fork in a process with threads, which xdist makes.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", RuntimeWarning)  # of JAX, which the child does not use
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    return pid


def wait_for(pid: int) -> int:
    """Exit status of a child; negative for the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
