# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/coming-from-tensorflow.md."""

from __future__ import annotations

import re
from typing import NamedTuple

from support.pages import ROOT

PAGE = ROOT / "docs" / "coming-from-tensorflow.md"
NAMES = "Names"


class Row(NamedTuple):
    """One row: two columns of names; or a case, and the behaviour of both libraries."""

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


def in_backticks(cell: str) -> list[str]:
    """The names in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def quoted_words() -> dict[str, str]:
    """The words of TensorFlow's errors that the page quotes, by the first cell of the row."""
    tables = sections()
    found = {
        row.first: re.search(r'"(.+)"', row.second)
        for table in ("Errors", "Sharding callbacks")
        for row in tables[table]
    }
    return {title: words[1] for title, words in found.items() if words}
