# SPDX-License-Identifier: Apache-2.0
"""docs/loading.md: the cells of its table for TensorFlow."""

from __future__ import annotations

from pathlib import Path

from support.loading import ROWS, check_cell, rows_of, table


def test_cells(tmp_path: Path) -> None:
    assert {row for row in table() if row.startswith("tf")} == {*ROWS["tensorflow"]()}
    for number, (row, call, target) in enumerate(rows_of("tensorflow")):
        if call == "ckptfmt.torch.load_into":
            continue
        place = tmp_path / str(number)
        place.mkdir()
        check_cell(table()[row][call], call, target, place)
