# SPDX-License-Identifier: Apache-2.0
"""docs/loading.md: the cells of its table for torch and JAX."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from support.loading import ROWS, check_cell, rows_of, table

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of torch, that some of its kinds of tensors are old or new
    CELLS = [
        *(one for one in rows_of("") if one[1] == "ckptfmt.torch.load_into"),
        *rows_of("torch"),
        *rows_of("jax"),
    ]


@pytest.mark.parametrize("needs", ["torch", "jax"])
def test_every_row_has_a_target(needs: str) -> None:
    assert {row for row in table() if row.startswith(needs)} == {*ROWS[needs]()}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("number", range(len(CELLS)), ids=[f"{c[0]}, {c[1]}" for c in CELLS])
def test_cells(number: int, tmp_path: Path) -> None:
    row, call, target = CELLS[number]
    check_cell(table()[row][call], call, target, tmp_path)
