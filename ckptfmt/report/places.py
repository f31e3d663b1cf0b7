# SPDX-License-Identifier: Apache-2.0
"""Where a tensor has NaN, infinities and zeros: rows, columns, and a grid of counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt.report.statistics import Statistics

# Rows and columns of a grid; the part of zeros from which there is one.
GRID, ZEROS_MIN = 16, 0.01
# With more columns, none is looked for that is zero.
COLUMNS_MAX = 1 << 20


class Places:
    """Counts what is unusual in a tensor that is read in pieces, each one run of its elements.

    A row is a box of one step in the first dimension, a column one of the last.

    Args:
        shape: of the tensor.
        whole: whether it is read whole, in order.

    Attributes:
        first: the index of the first NaN ("nan") and of the first infinity ("infinite") that were
            read.
    """

    def __init__(self, shape: tuple[int, ...], *, whole: bool) -> None:
        self._shape, self._whole = shape, whole
        self._rows = self._dead = 0
        self.first: dict[str, list[int]] = {}
        # Of a row that is read in several pieces: where it is, and whether all were zero.
        self._place: int | None = None
        self._is_zero = True
        has_columns = whole and len(shape) > 1 and 0 < shape[-1] <= COLUMNS_MAX
        self._columns = np.ones(shape[-1], bool) if has_columns else None
        self._grids: dict[str, NDArray[np.int64]] = {}

    def add(self, box: tuple[slice, ...], part: NDArray[Any], zeros: int, unusual: int) -> None:
        """Count a piece.

        Args:
            box: where it is, in the first dimensions.
            part: its elements.
            zeros, unusual: how many are zero, and NaN or infinite.
        """
        is_zero = part == 0 if zeros else None
        if unusual:
            marked = ~np.isfinite(part)
            self._find(box, part, marked)
            self._mark("nans", box, marked)
        if is_zero is not None and self._whole:
            self._mark("zeros", box, is_zero)
        if len(self._shape) < 2 or not part.size:
            return
        if self._columns is not None:
            last = box[-1] if len(box) == len(self._shape) else slice(None)
            dead = False if is_zero is None else is_zero.reshape(-1, part.shape[-1]).all(axis=0)
            self._columns[last] &= dead
        self._add_rows(box, part, is_zero)

    def _add_rows(
        self, box: tuple[slice, ...], part: NDArray[Any], is_zero: NDArray[np.bool_] | None
    ) -> None:
        dead = 0
        if is_zero is not None:
            dead = int(np.count_nonzero(is_zero.reshape(len(part), -1).all(axis=1)))
        if part.shape[1:] == self._shape[1:]:
            self._rows += len(part)
            self._dead += dead
        elif self._whole:
            if box[0].start != self._place:
                self._end_row()
                self._place, self._is_zero = box[0].start, True
            self._is_zero = self._is_zero and dead > 0

    def _end_row(self) -> None:
        if self._place is not None:
            self._rows += 1
            self._dead += self._is_zero
            self._place = None

    def _start(self, box: tuple[slice, ...]) -> int:
        """Return the place of the first element of a piece."""
        start = 0
        for dim, one in zip(self._shape, box or map(slice, self._shape), strict=False):
            start = start * dim + (one.start or 0)
        return start * (math.prod(self._shape[len(box) :]) if box else 1)

    def _find(self, box: tuple[slice, ...], part: NDArray[Any], marked: NDArray[np.bool_]) -> None:
        """Note the first NaN and the first infinity of the elements that are marked."""
        if len(self.first) == 2:
            return
        # Of complex numbers the absolute values count, as in the statistics.
        is_nan = np.isnan(np.abs(part) if part.dtype.kind == "c" else part)
        for kind, found in (("nan", is_nan), ("infinite", marked & ~is_nan)):
            if kind not in self.first and found.any():
                place = int(np.argmax(found)) + self._start(box)
                self.first[kind] = [int(one) for one in np.unravel_index(place, self._shape)]

    def _mark(self, kind: str, box: tuple[slice, ...], marked: NDArray[np.bool_]) -> None:
        """Count the elements that are marked in the grid of a kind."""
        if not self._whole:
            return
        places = np.flatnonzero(marked) + self._start(box)
        height, width = self._sizes()
        rows, columns = self._grid_shape()
        grid = places // width * rows // height * columns + places % width * columns // width
        found = np.bincount(grid, minlength=rows * columns)
        self._grids[kind] = self._grids.get(kind, 0) + found

    def _sizes(self) -> tuple[int, int]:
        """Return the first dimension, and the product of all others; a vector is one row."""
        height = self._shape[0] if len(self._shape) > 1 else 1
        return height, math.prod(self._shape) // height

    def _grid_shape(self) -> tuple[int, int]:
        height, width = self._sizes()
        return min(height, GRID), min(width, GRID)

    def grids(self, found: Statistics) -> dict[str, Any] | None:
        """Return the grids that say something, if all pieces were added."""
        few = found.zeros == found.count or found.zeros < ZEROS_MIN * found.count
        grids = {kind: one for kind, one in self._grids.items() if kind != "zeros" or not few}
        if not grids:
            return None
        rows, columns = self._grid_shape()
        shaped = {kind: one.reshape(rows, columns).tolist() for kind, one in grids.items()}
        return {"rows": rows, "columns": columns, **shaped}

    def warnings(self, found: Statistics) -> Iterator[tuple[str, str]]:
        """Yield the kinds and texts of what may be wrong, when all pieces were added."""
        self._end_row()
        of = "" if self._whole else " in the sample"
        if found.nans:
            yield "nan", f"{found.nans:,} NaN{of}"
        if found.infinite:
            yield "infinite", f"{found.infinite:,} infinite{of}"
        if found.zeros == found.count:  # of a single element that says nothing
            if found.count > 1:
                yield "zero", f"all zero{of}"
            return
        if self._dead:
            yield "rows", f"{self._dead:,} of {self._rows:,} rows{of} are zero"
        if self._columns is not None and self._columns.any():
            dead = int(np.count_nonzero(self._columns))
            yield "columns", f"{dead:,} of {len(self._columns):,} columns are zero"
