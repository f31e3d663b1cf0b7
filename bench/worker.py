# SPDX-License-Identifier: Apache-2.0
"""One side of the benchmark in a process of its own: takes a line of JSON, answers one.

    PYTHON bench/worker.py SIDE [tuned]

A request names a verb of the side and its arguments. What the verb prepares is not timed, the call
that it returns is, and what is made of the result (numpy arrays, a digest of them) again is not.
`hold` makes the arrays, `drop` forgets them.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import resource
import sys
import time
from typing import Any

import data
import stall

REPORTED = "/sys/module/page_reporting/parameters/reported_kib"


def number(path: str, field: str = "") -> int:
    """The number in a file of the system, or after a word in it; 0 where there is none."""
    try:
        with open(path) as file:
            for line in file:
                if line.startswith(field):
                    return int(line.removeprefix(field).split()[0])
    except (OSError, ValueError):
        pass
    return 0


def forget_peak() -> None:
    """From now on the peak of resident memory is that of what comes."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def timed(call: Any, calls: int = 1) -> tuple[Any, dict[str, Any]]:
    """The call's result, and what it took, of several calls on average."""
    gc.collect()
    forget_peak()
    resident = number("/proc/self/status", "VmRSS:")
    read, wrote = number("/proc/self/io", "rchar:"), number("/proc/self/io", "wchar:")
    reported = number(REPORTED)
    used, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(calls - 1):
        call()
    result = call()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return result, {
        "seconds": seconds / calls,
        "calls": calls,
        "reported_kib": number(REPORTED) - reported,
        "cpu": (after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime) / calls,
        "minor": after.ru_minflt - used.ru_minflt,
        "major": after.ru_majflt - used.ru_majflt,
        "read": number("/proc/self/io", "rchar:") - read,
        "written": number("/proc/self/io", "wchar:") - wrote,
        "peak_kib": max(number("/proc/self/status", "VmHWM:") - resident, 0),
        "load": round(os.getloadavg()[0], 2),
    }


class Worker:
    """Answers requests for one side."""

    def __init__(self, module: Any, tuned: bool) -> None:
        self.side = module.Here(tuned)

    def hold(self, count: int, shape: list[int], arrays: bool) -> dict[str, Any]:
        """Makes the data, or only learns what they are called."""
        self.side.data = None
        gc.unfreeze()
        gc.collect()
        self.side.names, self.side.shape = data.names(count), shape
        if arrays:
            self.side.data = self.side.hold(data.arrays(count, shape))
        gc.collect()
        gc.freeze()
        return {}

    def drop(self) -> dict[str, Any]:
        """Forgets the data, and gives the memory back."""
        self.side = type(self.side)(self.side.tuned)
        gc.unfreeze()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        return {}

    def stall(self, usual_seconds: float, **arguments: Any) -> dict[str, Any]:
        """A save during a training loop; its time is that of which the caller is blocked."""
        parts = self.side.loop(**arguments)
        result, found = timed(lambda: stall.measure(**parts, usual_seconds=usual_seconds))
        return {**found, **result}

    def sample(
        self, verb: str, arguments: dict[str, Any], check: bool, calls: int = 1
    ) -> dict[str, Any]:
        """One call of a verb of the side, or several."""
        if check:  # the peak is seen where nothing is kept
            self.side.forget()
        call = getattr(self.side, verb)(**arguments)
        result, found = timed(call, calls)
        del call
        if isinstance(result, dict) and "written" in result:
            found.update(result)
        elif check and result is not None:
            found["digest"] = data.digest(self.side.arrays(result))
        return found


def main() -> None:
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        module = importlib.import_module(f"sides.{sys.argv[1]}")
    except ImportError as error:
        answer({"missing": str(error)})
        return
    worker = Worker(module, "tuned" in sys.argv[2:])
    gc.collect()
    gc.freeze()  # what the import made need not be gone through before every sample
    verbs = [name for name in dir(module.Here) if not name.startswith("_")]
    answer({"version": module.version(), "verbs": verbs})
    for line in sys.stdin:
        request = json.loads(line)
        verb = request.pop("do")
        try:
            if verb in ("hold", "drop", "stall", "sample"):
                answer(getattr(worker, verb)(**request))
            else:
                answer({"failed": f"no {verb}"})
        except NotImplementedError:
            answer({"unsupported": True})
        except Exception as error:
            answer({"failed": repr(error)})
        gc.collect()


if __name__ == "__main__":
    main()
