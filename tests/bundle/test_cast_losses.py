# SPDX-License-Identifier: Apache-2.0
"""What `ckptfmt.editing.edit` counts when it casts to narrow floating-point dtypes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.bundle.casting import cast_values, losses_of

INF, NAN = math.inf, math.nan
VALUES = [INF, -INF, NAN, 0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 6.0, 448.0, 449.0, 470.0, 1e-30]
# By dtype, the overflows: VALUES whose class (finite, infinite, NaN) differs after the cast, or
# that are beyond the largest number of a dtype that has numbers only; and the values that become 0.
BIG = {1e30, -1e30}
TINY = {1e-30}
TABLE: dict[str, tuple[set[float], set[float]]] = {
    "float16": (BIG, TINY),
    "bfloat16": (set(), set()),
    "float8_e3m4": ({*BIG, 448.0, 449.0, 470.0}, TINY),
    "float8_e4m3": ({*BIG, 448.0, 449.0, 470.0}, TINY),
    "float8_e4m3b11fnuz": ({INF, -INF, *BIG, 448.0, 449.0, 470.0}, TINY),
    "float8_e4m3fn": ({INF, -INF, *BIG, 470.0}, TINY),
    "float8_e4m3fnuz": ({INF, -INF, *BIG, 448.0, 449.0, 470.0}, TINY),
    "float8_e5m2": (BIG, TINY),
    "float8_e5m2fnuz": ({INF, -INF, *BIG}, TINY),
    "float8_e8m0fnu": ({INF, -INF, 0.0, -0.0, -1.0, -1e30}, set()),
    "float6_e2m3fn": ({INF, -INF, NAN, *BIG, 448.0, 449.0, 470.0}, TINY),
    "float6_e3m2fn": ({INF, -INF, NAN, *BIG, 448.0, 449.0, 470.0}, TINY),
    "float4_e2m1fn": ({INF, -INF, NAN, *BIG, 448.0, 449.0, 470.0}, TINY),
}


def dtype_named(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def test_the_table_has_all_narrow_dtypes() -> None:
    found = {name for name in dir(ml_dtypes) if name.startswith(("float", "bfloat"))}
    assert found | {"float16"} == set(TABLE)


@pytest.mark.parametrize("source", ["f4", "f8", "bfloat16"])
@pytest.mark.parametrize("name", TABLE)
def test_every_change_of_class_is_an_overflow(name: str, source: str) -> None:
    overflows, zeros = TABLE[name]
    for value in VALUES:
        before = np.array([value, 1.0]).astype(dtype_named(source))
        if source == "bfloat16" and value in (449.0, 470.0):
            continue  # rounded
        lost = losses_of(before, cast_values(before, dtype_named(name)))
        assert (lost.overflows, lost.zeros) == (value in overflows, value in zeros), value


@pytest.mark.parametrize("dtype", ["c8", "f4", "f8", "i4", "?"])
def test_casts_to_wider_dtypes_lose_nothing(dtype: str) -> None:
    before = np.array([0, 1, 1]).astype(dtype)
    for to in ("c16",) if dtype == "c8" else ("f8", "c16"):
        assert losses_of(before, before.astype(to)) == (0, 0)


def test_infinity_of_a_checkpoint(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "a", {"w": np.array([1, INF, -INF, NAN, 1e9], "f4")})
    done = ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", cast="float8_e4m3fn")
    assert done.overflows == {"w": 3} and done.zeros == {}
