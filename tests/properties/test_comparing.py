# SPDX-License-Identifier: Apache-2.0
"""What two tensors differ by, as exact arithmetic of Python has it."""

from __future__ import annotations

import cmath
import math
import random
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.arrays import bits
from support.strategies import SEEDS, counted, property_test

import ckptfmt
from ckptfmt.bundle import comparing
from ckptfmt.bundle.comparing import Difference, Tolerance, difference

FLOATS: list[Any] = ["f8", "f4", "f2", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, "c8", "c16"]
INTEGERS: list[Any] = [*(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), ml_dtypes.int4]
SPECIAL = [0.0, -0.0, 1e308, -1e308, 5e-324, 1e-200, 3e200, math.inf, -math.inf, math.nan]


def is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype in map(np.dtype, INTEGERS)


def drawn(chance: random.Random, dtype: Any, size: int) -> np.ndarray:
    kind = np.dtype(dtype)
    if is_integer(kind):
        limits = ml_dtypes.iinfo(kind) if dtype is ml_dtypes.int4 else np.iinfo(kind)
        least, most = int(limits.min), int(limits.max)
        near = [chance.choice([least, most, 0]) + chance.randint(-2, 2) for _ in range(size)]
        return np.array([kind.type(min(max(one, least), most)) for one in near], kind)

    def one() -> float:
        return chance.choice(SPECIAL) if chance.random() < 0.3 else chance.gauss(0, 1)

    with np.errstate(over="ignore", invalid="ignore"):
        if kind.kind == "c":
            return np.array([complex(one(), one()) for _ in range(size)]).astype(kind)
        return np.array([one() for _ in range(size)]).astype(kind)


def plain(array: np.ndarray) -> list[Any]:
    """Return Python's numbers."""
    if is_integer(array.dtype):
        return [int(one) for one in array]
    return [complex(one) if array.dtype.kind == "c" else float(one) for one in array]


def is_nan(one: Any) -> bool:
    return cmath.isnan(one)


def apart(one: Any, other: Any) -> float:
    """Return the distance of two numbers that are not NaN."""
    if one == other:
        return 0.0
    if not (cmath.isfinite(one) and cmath.isfinite(other)):
        return math.inf
    delta = one - other
    return math.hypot(delta.real, delta.imag) if isinstance(delta, complex) else float(abs(delta))


def size_of(one: Any) -> float:
    return math.hypot(one.real, one.imag)


def expected(a: np.ndarray, b: np.ndarray, tolerance: Tolerance | None) -> Any:
    pairs = list(zip(plain(a), plain(b), strict=True))
    known = [(x, y) for x, y in pairs if not is_nan(x) and not is_nan(y)]
    far = [bits(one) != bits(other) for one, other in zip(a, b, strict=True)]
    within = 0
    if tolerance is not None and not is_integer(a.dtype):
        for at, (x, y) in enumerate(pairs):
            far[at] = is_nan(x) != is_nan(y)
            if not is_nan(x) and not is_nan(y) and (distance := apart(x, y)):
                allowed = tolerance.absolute + tolerance.relative * size_of(y)
                far[at] = distance == math.inf or distance > allowed
                within += not far[at]
    sides = list(zip(*pairs, strict=True))
    finite = [[one for one in side if cmath.isfinite(one)] for side in sides]
    both = [apart(x, y) for x, y in known if cmath.isfinite(x) and cmath.isfinite(y)]
    return (
        sum(far),
        within,
        max((apart(x, y) for x, y in known), default=0.0),
        math.hypot(*map(size_of, finite[0])),
        math.hypot(*both),
        *(sum(map(is_nan, side)) for side in sides),
        *(sum(cmath.isinf(one) and not is_nan(one) for one in side) for side in sides),
    )


def numbers(found: Difference) -> Any:
    names = ("elements", "within", "largest", "norm_a", "norm_change")
    return (*(getattr(found, name) for name in names), *found.nans, *found.infinite)


@property_test(200, 20_000, seed=SEEDS)
def test_numbers_of_a_difference(seed: int) -> None:
    chance = random.Random(seed)
    dtype = chance.choice(FLOATS + INTEGERS)
    tolerance = chance.choice([None, Tolerance(), Tolerance(0.5), Tolerance(0, 1.0)])
    a = drawn(chance, dtype, chance.choice([1, 3, 20]))
    b = a.copy()
    changed = chance.sample(range(a.size), chance.randint(0, a.size))
    b[changed] = drawn(chance, dtype, len(changed))
    if tolerance is not None and dtype in FLOATS and chance.random() < 0.3:
        with np.errstate(over="ignore", invalid="ignore"):
            others = [one for one in FLOATS if a.dtype.kind != "c" or one in ("c8", "c16")]
            b = b.astype(chance.choice([one for one in others if np.dtype(one) != a.dtype]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "BLOCK", chance.choice([1, 2, 7, 100]))
        patch.setattr(comparing, "PIECE_BYTES", chance.choice([1, 16, 1 << 20]))
        for name, array in (("a", a), ("b", b)):
            ckptfmt.save(Path(folder, name), {"x": array}, durability="none")
        with ckptfmt.open(f"{folder}/a") as one, ckptfmt.open(f"{folder}/b") as other:
            found = difference(one["x"], other["x"], tolerance=tolerance)
            wanted = expected(a, b, tolerance)
            counted("comparing", equal=found is None, retyped=a.dtype != b.dtype)
            if found is None:
                assert a.dtype == b.dtype and not wanted[0] and not wanted[1]
                return
            assert numbers(found) == pytest.approx(wanted, rel=1e-9, abs=0)
            assert found.is_near == (wanted[0] == 0)
            if is_integer(a.dtype):
                assert found.largest
            values = found.values()
            assert (values is None) == (a.size > comparing.FEW)
            if values is not None:
                assert [bits(one) for one in values] == [bits(a), bits(b)]
