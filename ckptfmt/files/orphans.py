# SPDX-License-Identifier: Apache-2.0
"""Names in a directory of checkpoints: which checkpoints of a manager have files in it."""

from __future__ import annotations

import re
from collections.abc import Iterable

# The metrics of checkpoints, beside the state file.
METRICS_NAME = "checkpoint.ckptfmt"

INDEX = ".index"
DATA = ".data-"
_NUMBER = "0|-?[1-9][0-9]*"
_DIGITS = "(?:[0-9]{5}|[1-9][0-9]{5,9})"
# What follows the name of a checkpoint in the names of its files and temporary directories, also
# TensorFlow's, and of the lock files by which registered savers reserve the name.
_FILE = re.compile(
    rf"(?s)(?:\.index|\.merge-intent|\.data-{_DIGITS}-of-{_DIGITS})"
    r"(?:\.tempstate(?:[a-f][0-9a-f]{15}|[0-9]{1,20}))?|_temp(?:_[0-9a-f]{16})?|-.+\.claim"
)


def number_of(name: str, checkpoint_name: str) -> int | None:
    """Return n of the name `<checkpoint_name>-<n>` as managers spell it; None of another name."""
    text = name.removeprefix(f"{checkpoint_name}-")
    return int(text) if text != name and re.fullmatch(_NUMBER, text) else None


def of_managed(names: Iterable[str], checkpoint_name: str) -> set[str]:
    """Return the checkpoints `<checkpoint_name>-<n>` that any of `names` belongs to."""
    owner = re.compile(f"{re.escape(checkpoint_name)}-(?:{_NUMBER})")
    found = ((name, owner.match(name)) for name in names)
    return {match[0] for name, match in found if match and _FILE.fullmatch(name, match.end())}
