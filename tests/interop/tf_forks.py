# SPDX-License-Identifier: Apache-2.0
"""Runs programs of this folder in forks of a process that has imported TensorFlow, which takes
seconds.

Each line of standard input is a request: the program, its arguments, and the document on its
standard input. The answer is a line: {"answer": DOCUMENT} with what the program printed, {"error":
TEXT}, or {"status": ...} if it was killed.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
import traceback
from typing import Any

folder = sys.path.pop(0)  # its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf  # noqa: E402, F401


def run(request: dict[str, Any]) -> Any:
    sys.argv = [request["program"], *request["arguments"]]
    sys.path.insert(0, folder)  # programs remove it
    printed = io.StringIO()
    sys.stdin, sys.stdout = io.StringIO(json.dumps(request["question"])), printed
    runpy.run_path(request["program"], run_name="__main__")
    return json.loads(printed.getvalue())


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # TensorFlow prints, too
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                answer = {"answer": run(json.loads(line))}
            except BaseException:
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), file=answers, flush=True)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status != 0:
            print(json.dumps({"status": status}), file=answers, flush=True)


if __name__ == "__main__":
    main()
