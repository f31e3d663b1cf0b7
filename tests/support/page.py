# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/coming-from-tensorflow.md, and what its tests have in common."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import ckptfmt
from support.pages import ROOT

PAGE = ROOT / "docs" / "coming-from-tensorflow.md"
NAMES = "Names"

A = np.arange(16, dtype=np.float32).reshape(8, 2)
V = np.array([1, 2], np.float32)
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"

Check = Callable[[], None]


class Row(NamedTuple):
    """One row: two columns of names; or a case, and the answers of both libraries."""

    first: str
    second: str
    third: str


def sections() -> dict[str, list[Row]]:
    """The rows of each table, by the heading above it."""
    found: dict[str, list[Row]] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        lines = [line for line in section.splitlines() if line.startswith("|")]
        cells = [line.strip("|").split("|") for line in lines[2:]]
        found[section.splitlines()[0]] = [Row(*map(str.strip, row)) for row in cells]
    return found


def quoted(cell: str) -> list[str]:
    """What is in backticks."""
    return re.findall(r"`([^`]+)`", cell)


class Checks(dict[str, Check]):
    """Functions that check the rows of these sections, by first cell."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.rows = {row.first: row for name in names for row in sections()[name]}

    def row(self, title: str) -> Callable[[Check], Check]:
        """Register the check of a row."""

        def add(check: Check) -> Check:
            assert title not in self
            self[title] = check
            return check

        return add

    def words(self, title: str) -> str:
        """TensorFlow's words, quoted in the row."""
        (found,) = re.findall(r'"(.+)"', self.rows[title].second)
        return str(found)


def there(start: str = "") -> list[str]:
    """The files here."""
    return sorted(name for name in os.listdir() if name.startswith(start))


def fails(
    call: Callable[[], object], text: str = "", kind: type[Exception] = ckptfmt.InvalidError
) -> Any:
    """Call, and return the error."""
    with pytest.raises(kind, match=re.escape(text) or None) as caught:
        call()
    assert isinstance(caught.value, ckptfmt.CkptfmtError)
    return caught.value


def options(**given: Any) -> ckptfmt.tf.CheckpointOptions:
    """Options that save without syncing."""
    return ckptfmt.tf.CheckpointOptions(**{"durability": "none", **given})
