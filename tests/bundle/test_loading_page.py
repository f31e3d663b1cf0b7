# SPDX-License-Identifier: Apache-2.0
"""docs/loading.md: its program, and each cell of its table that needs no framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.loading import ROWS, check_cell, rows_of, table
from support.pages import run_page


def test_page(tmp_path: Path) -> None:
    run_page("docs/loading.md", tmp_path)


def test_every_row_has_a_target() -> None:
    assert {row for row in table() if not row.startswith(("torch", "jax", "tf"))} == {*ROWS[""]()}


@pytest.mark.parametrize(
    ("row", "call", "target"), [one for one in rows_of("") if one[1] != "ckptfmt.torch.load_into"]
)
def test_cells(row: str, call: str, target: Any, tmp_path: Path) -> None:
    check_cell(table()[row][call], call, target, tmp_path)
