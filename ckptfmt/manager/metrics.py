# SPDX-License-Identifier: Apache-2.0
"""What a manager knows of checkpoints beyond the state file: their metrics.

They stand in one small file beside the state file, `checkpoint.ckptfmt`, which TensorFlow does not
look at: JSON, written before the state file that names the checkpoint. An entry counts only as long
as the checkpoint has the very index that it was written for, and goes with it.

    {"ckptfmt_metrics": 1, "checkpoints": {"ckpt-7": {"metrics": {"loss": 0.5}, "index": "9f..."}}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptfmt.arguments import wrong
from ckptfmt.errors import InvalidError

__all__ = ["Record", "check_metrics", "format_records", "mark_of", "parse_records"]

_HEAD, _VERSION = "ckptfmt_metrics", 1


@dataclass(frozen=True)
class Record:
    """The metrics of one checkpoint.

    Attributes:
        metrics: name to number.
        mark: what its index is known by.
    """

    metrics: Mapping[str, float]
    mark: str


def check_metrics(given: Any) -> dict[str, float] | None:
    """Metrics as a caller gives them, checked; None if there are none.

    Raises:
        InvalidError: no mapping from names to numbers.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise wrong("metrics", "a mapping from names to numbers", given)
    found = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise wrong("the name of a metric", "a str", name)
        if isinstance(value, (str, bytes)):
            raise wrong(f"the metric '{name}'", "a number", value)
        try:
            found[name] = float(np.asarray(value).item())
        except (TypeError, ValueError, OverflowError):
            raise wrong(f"the metric '{name}'", "a number", value) from None
    return found


def mark_of(index: bytes) -> str:
    """What an index file with these bytes is known by."""
    return hashlib.sha256(index).hexdigest()[:32]


def format_records(records: Mapping[str, Record]) -> bytes:
    """The file's content."""
    checkpoints = {
        name: {"metrics": dict(record.metrics), "index": record.mark}
        for name, record in records.items()
    }
    return (json.dumps({_HEAD: _VERSION, "checkpoints": checkpoints}, indent=1) + "\n").encode()


def parse_records(content: bytes) -> dict[str, Record]:
    """The records in a file's content.

    Raises:
        InvalidError: it is no such content.
    """
    try:
        found = json.loads(content)
        if found[_HEAD] != _VERSION:
            raise InvalidError(f"version {found[_HEAD]!r} of the metrics is not known")
        return {name: _record(one) for name, one in found["checkpoints"].items()}
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        if isinstance(error, InvalidError):
            raise
        raise InvalidError(f"no metrics of checkpoints ({type(error).__name__})") from None


def _record(given: Any) -> Record:
    metrics = given["metrics"]
    if not all(
        isinstance(value, (int, float)) and not isinstance(value, bool)
        for value in metrics.values()
    ):
        raise TypeError
    return Record({name: float(value) for name, value in metrics.items()}, str(given["index"]))
