# SPDX-License-Identifier: Apache-2.0
"""What tf_page.py and tf_page_devices.py have in common: rows of docs/coming-from-tensorflow.md,
each with a function that checks what TensorFlow does.

A program reads {"names": [name, ...], "words": {row: words of an error}} from standard input, and
writes {"missing": [name, ...], "rows": {row: None, or why it is not so}}. It runs in an empty
directory, its argument.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Check = Callable[[], None]

ROWS: dict[str, Check] = {}
WORDS: dict[str, str] = {}


def row(title: str) -> Callable[[Check], Check]:
    """Register the check of a row."""

    def add(check: Check) -> Check:
        ROWS[title] = check
        return check

    return add


def fails(kind: type[Exception], call: Callable[[], object], words: str = "") -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), str(error)
    else:
        raise AssertionError("does not fail")


def outcome(check: Check) -> str | None:
    try:
        check()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def run(is_there: Callable[[str], bool] = bool) -> None:
    """Answer the question, in the order of the rows."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.chdir(sys.argv[1])
    request: Any = json.load(sys.stdin)
    WORDS.update(request["words"])
    missing = [name for name in request["names"] if not is_there(name)]
    rows = {title: outcome(check) for title, check in ROWS.items()}
    json.dump({"missing": missing, "rows": rows}, replies)
    replies.flush()
    os._exit(0)  # a mesh on which an operation failed may abort at the end
