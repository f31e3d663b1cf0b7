# SPDX-License-Identifier: Apache-2.0
"""docs/coming-from-tensorflow.md says of TensorFlow what is so: its names exist, and each row is
run there. tests/project has our side."""

from __future__ import annotations

import re
from pathlib import Path

from support.page import NAMES, Row, quoted, sections

from .workers import ask

# What cannot be run, and why.
NOT_RUN = {
    "callbacks of TensorFlow's classes": "tf_callbacks.py has both libraries in one process",
    "a row larger than a shard": "it does not end; test_policies.py recognises such sets",
}
PARALLEL = "Parallel variables"  # the module is not in this version


def words(row: Row) -> str | None:
    """TensorFlow's words, in quotes; or its arguments."""
    found = re.search(r'"(.+)"|^`(\(.*\))`$', row.second)
    return found and (found[1] or found[2])


def test_what_the_page_says_of_tensorflow(tmp_path: Path) -> None:
    tables = sections()
    names = [name for row in tables[NAMES] for name in quoted(row.first)]
    rows = [row for table in tables if table not in (NAMES, PARALLEL) for row in tables[table]]
    expected = {row.first: words(row) for row in rows if words(row)}
    found: dict[str, str | None] = {}
    for program, asked in (("tf_page.py", names), ("tf_page_devices.py", [])):
        place = tmp_path / program
        place.mkdir()
        # The bundles are not read again: some are damaged on purpose.
        answer = ask(program, str(place), question={"names": asked, "words": expected})
        assert answer["missing"] == []
        found |= answer["rows"]
    assert {title: why for title, why in found.items() if why is not None} == {}
    assert sorted([*found, *NOT_RUN]) == sorted(row.first for row in rows)
