# SPDX-License-Identifier: Apache-2.0
"""Casting the values of stored tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import invalid


def cast_dtype(name: Any) -> np.dtype[Any]:
    """Return the dtype that a `cast` argument names.

    Raises:
        InvalidError: not a dtype of numbers.
    """
    found = dtypes.numpy_dtype(dtypes.code_of(name, "cast"))
    if found is None or found.kind == "O":
        raise invalid("cast", f"cast: {name!r} is not a dtype of numbers")
    return found


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype for people."""
    if dtype.kind == "O":
        return "strings"
    return dtype.names[0] if dtype.names else dtype.name


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is of real floating-point numbers, those of ml_dtypes included."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is of integers, those of ml_dtypes included."""
    return dtype.kind in "iu" or dtype.name.startswith(("int", "uint"))


def cast_values(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the array with another dtype. What is too large for it becomes what `astype` says."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        plain = dtypes.plain_quantized(array).astype(dtype[0] if dtype.names else dtype)
    return plain.view(dtype)


class Losses(NamedTuple):
    """Elements that a cast changed beyond rounding.

    Attributes:
        overflows: became infinite, NaN, finite or another integer, or were beyond the largest
            number of a dtype without infinity and NaN.
        zeros: became 0 and were not.
    """

    overflows: int = 0
    zeros: int = 0

    def __add__(self, other: Losses) -> Losses:  # type: ignore[override]
        return Losses(self.overflows + other.overflows, self.zeros + other.zeros)


def losses_of(before: NDArray[Any], after: NDArray[Any]) -> Losses:
    """Return what a cast lost."""
    old, new = dtypes.plain_quantized(before), dtypes.plain_quantized(after)
    if new.dtype.kind == "b":
        return Losses(int(((old != 0) & (old != 1)).sum()))
    with np.errstate(over="ignore", invalid="ignore"):
        if is_integer(new.dtype):
            apart = np.abs(old.astype(np.float64) - new.astype(np.float64))
            return Losses(int((~(apart < 1)).sum()))  # nor is NaN an integer
        if is_integer(old.dtype):
            real = new.real if new.dtype.kind == "c" else new
            changed = old.astype(np.float64) != real.astype(np.float64)
            return Losses(int(changed.sum()))
        beyond = (np.isfinite(old) != np.isfinite(new)) | (np.isnan(old) != np.isnan(new))
        if new.dtype.kind != "c" and np.isfinite(np.array(np.inf).astype(new.dtype)):
            # The dtype has neither infinity nor NaN: the cast returns the nearest number.
            most = float(ml_dtypes.finfo(new.dtype).max)  # type: ignore[no-untyped-call]
            beyond |= np.abs(old) > most
        return Losses(int(beyond.sum()), int(((old != 0) & (new == 0) & ~beyond).sum()))
