# SPDX-License-Identifier: Apache-2.0
"""The rows of rows.toml fit the code and the tests as they are; `make mutants` runs them."""

from __future__ import annotations

import ast
from functools import cache

from mutants.run import changed, slice_of
from mutants.table import ROOT, is_program, rows

ROWS = rows()


@cache
def functions(path: str) -> frozenset[str]:
    """The names of the tests of a module."""
    found = ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    return frozenset(one.name for one in found if isinstance(one, ast.FunctionDef))


def test_rows_fit() -> None:
    for row in ROWS:
        text = (ROOT / row.file).read_text(encoding="utf-8")
        assert text.count(row.old) == 1, f"{row.file}: must occur once: {row.old!r}"
        assert row.old != row.new and row.tests, row.fault
        for test in row.tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).exists(), path
            if not is_program(test) and name:
                assert name.partition("[")[0] in functions(path), test


def test_faults_differ() -> None:
    assert len({row.fault for row in ROWS}) == len(ROWS)
    assert len({(row.file, row.old, row.new) for row in ROWS}) == len(ROWS)


def test_the_page_counts_them() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    assert f"| {len(ROWS)} faults | `make mutants` |" in page


def test_rows_that_run() -> None:
    always = [row for row in ROWS if row.always]
    assert {row.is_c for row in always} == {True, False}
    other = next(row for row in ROWS if not row.always)
    assert changed(ROWS, []) == always
    assert changed(ROWS, ["README.md", other.file])[: len(always) + 1] == [*always, other]
    assert slice_of(ROWS, f"{len(ROWS) - 1}:2") == [ROWS[-1], ROWS[0]]
