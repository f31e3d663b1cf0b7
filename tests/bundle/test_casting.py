# SPDX-License-Identifier: Apache-2.0
"""A cast rounds, and refuses or counts every other change of a value: against a model that decides
by fractions."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from support.strategies import counted, property_test

import ckptfmt
from ckptfmt._base import casting, dtypes
from ckptfmt._base.casting import Losses, can_cast, cast, kind_of

NARROW = [name for name in dir(ml_dtypes) if name.startswith(("bfloat", "float", "int", "uint"))]
QUANTIZED = [np.dtype([(name, plain)]) for name, plain in dtypes.QUANTIZED.items()]
DTYPES = [*map(np.dtype, "?bBhHiIqQefdFD"), *(dtypes.narrow_dtype(n) for n in NARROW), *QUANTIZED]
FLOATS = [one for one in DTYPES if kind_of(one) == "f"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cast arrays of a few elements in several parts."""
    monkeypatch.setattr(casting, "_PART", 2)


def element(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype[0] if dtype.names else dtype


@functools.cache
class Float:
    """What a floating-point dtype can hold, as fractions."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        self.bits = info.nmant + 1
        self.most = Fraction(float(info.max))
        self.step = Fraction(float(info.smallest_subnormal))
        special = np.array([math.inf, math.nan]).astype(dtype).astype(float)
        self.has_infinity, self.has_nan = bool(np.isinf(special[0])), bool(np.isnan(special[1]))
        self.is_scale = dtype.name == "float8_e8m0fnu"  # powers of two

    def ulp(self, value: Fraction) -> Fraction:
        exponent = value.numerator.bit_length() - value.denominator.bit_length() if value else 0
        exponent += Fraction(2) ** exponent <= abs(value)  # abs(value) < 2**exponent
        exponent -= Fraction(2) ** (exponent - 1) > abs(value)
        return max(self.step, Fraction(2) ** (exponent - self.bits))

    def is_beyond(self, value: Fraction) -> bool:
        if self.is_scale and value <= Fraction(1, 2**150):
            return True  # it has no 0, which smaller numbers are on the way through float32
        if not self.has_nan:
            return abs(value) > self.most
        ulp = self.ulp(self.most)
        is_odd = self.most / ulp % 2 == 1  # a tie is rounded to the even neighbour
        limit = self.most + ulp / 2
        return abs(value) > limit or (is_odd and abs(value) == limit)


def is_lost(value: Any, old: np.dtype[Any], to: np.dtype[Any]) -> bool:
    """Return whether a number of a dtype is lost by a cast."""
    if old.kind == "c":
        if to.kind != "c":
            return value.imag != 0 or is_lost(value.real, np.dtype("f8"), to)
        parts = (value.real, value.imag)
        return any(is_lost(one, np.dtype("f8"), np.empty(0, to).real.dtype) for one in parts)
    if to.kind == "c":
        to = np.empty(0, to).real.dtype
    if not math.isfinite(value):
        if kind_of(to) != "f":
            return True
        return not (Float(to).has_nan if math.isnan(value) else Float(to).has_infinity)
    exact = Fraction(value)
    if kind_of(to) != "f":
        least, most = (0, 1) if to.kind == "b" else bounds(to)
        return exact.denominator != 1 or not least <= exact <= most
    if Float(to).is_beyond(exact):
        return True
    return kind_of(old) != "f" and exact % Float(to).ulp(exact) != 0


def bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    info: Any = (ml_dtypes if dtype.kind == "V" else np).iinfo(dtype)
    return int(info.min), int(info.max)


def is_near(value: Any, new: Any, to: np.dtype[Any]) -> bool:
    """Return whether a number that is not lost became the nearest one of the dtype."""
    if isinstance(value, complex) or isinstance(new, complex):
        part = np.empty(0, to).real.dtype
        pairs = ((complex(value).real, complex(new).real), (complex(value).imag, complex(new).imag))
        return all(is_near(one, other, part) for one, other in pairs)
    if not math.isfinite(value):
        return repr(value) == repr(new)
    exact = Fraction(value)
    if kind_of(to) != "f":
        return exact == new
    error = abs(exact - Fraction(new))
    return 2 * error <= Float(to).ulp(exact) or (Float(to).is_scale and new == Float(to).step)


def python(values: np.ndarray[Any, Any]) -> list[Any]:
    """The elements as int, float or complex."""
    plain = dtypes.plain_quantized(values)
    make: Any = {"c": complex, "f": float}.get(kind_of(plain.dtype), int)
    return [make(one) for one in plain]


def edges_of(to: np.dtype[Any]) -> list[Fraction]:
    """Numbers at the edges of a dtype, of both signs."""
    part = np.empty(0, to).real.dtype if to.kind == "c" else to
    edges = [Fraction(one) for one in (0, 1)] + [Fraction(5, 2)]
    if kind_of(part) == "f":
        model = Float(part)
        edges += [model.most, model.most + model.ulp(model.most) / 2, model.step / 2, model.step]
        edges += [Fraction(2**model.bits), Fraction(2**model.bits + 1), 2 * model.most]
    else:
        least, most = (0, 1) if part.kind == "b" else bounds(part)
        edges += [Fraction(one) for one in (least, most, least - 1, most + 1)]
    return [*edges, *(-one for one in edges)]


def made(numbers: list[Any], old: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of the numbers that fit the dtype."""
    plain = element(old)
    if kind_of(plain) in "ib":
        low, high = (0, 1) if plain.kind == "b" else bounds(plain)
        kept = [
            int(one)
            for one in numbers
            if (isinstance(one, Fraction) or math.isfinite(one)) and low <= int(one) <= high
        ]
        return np.array(kept or [0], "u8" if low == 0 else "i8").astype(plain).view(old)
    real = np.empty(0, plain).real.dtype if plain.kind == "c" else plain
    with np.errstate(all="ignore"):
        return np.array([_float(one) for one in numbers]).astype(real).astype(plain)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.dtype[Any]]:
    """Values of any dtype near the edges of another, and any others."""
    old, to = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(DTYPES))
    near = st.floats(0.99, 1.01) | st.just(1.0)
    edges = st.sampled_from(edges_of(element(to)))
    scaled = st.tuples(edges, near).map(lambda two: _float(two[0]) * two[1])
    special = st.sampled_from([math.inf, -math.inf, math.nan, -0.0])
    others = st.floats() | st.integers(-(2**63), 2**64 - 1)
    values = made(draw(st.lists(edges | scaled | special | others, min_size=1, max_size=5)), old)
    if old.kind == "c" and draw(st.booleans()):
        values.imag = values.real[::-1]
    return values, to


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@pytest.mark.parametrize("old", DTYPES, ids=lambda one: one.name if not one.names else one.names[0])
def test_casts_at_the_edges(old: np.dtype[Any]) -> None:
    for to in DTYPES:
        edges = edges_of(element(to))
        special = [*edges, math.inf, math.nan]
        for some in (edges, edges[:2], edges[:3], edges[1:3], special, [0, 1e-300, 2.0]):
            values = made(some, old)
            check(values, to)
            if old.kind == "c":
                values.imag = values.real[::-1]
                check(values, to)
        if kind_of(element(to)) == "f":
            bits = Float(element(to)).bits
            check(made([0, 2**bits + 1, 2**bits + 2], old), to)  # the ends are exact


@property_test(200, 40_000, drawn=arrays())
def test_a_cast_rounds_and_counts_all_other_changes(drawn: Any) -> None:
    check(*drawn)


def check(values: np.ndarray[Any, Any], to: np.dtype[Any]) -> None:
    """Cast values, contiguous and strided ones, and compare what is lost with the model."""
    old, goal = element(values.dtype), element(to)
    assert can_cast(values.dtype, to)
    given = python(values)
    lost = [is_lost(one, old, goal) for one in given] if old != goal else [False] * len(given)
    result, losses = cast(values, to, tensor="t", allow_loss=True)
    assert result.dtype == to and result.shape == values.shape
    found = losses or Losses()
    assert found.changed == sum(lost), (given, lost)
    pairs = [
        (a, b) for a, b, is_gone in zip(given, python(result), lost, strict=True) if not is_gone
    ]
    assert all(is_near(before, after, goal) for before, after in pairs), pairs
    zeros = sum(before != 0 and after == 0 for before, after in pairs)
    assert found.zeros == zeros and (losses is None) == (not zeros and not any(lost))
    counted("casts", **{"lossy" if any(lost) else "kept": 1})
    values = np.repeat(values, 2)[::2]
    if not any(lost):
        assert cast(values, to, tensor="t", allow_loss=False)[1] == losses
        return
    with pytest.raises(ckptfmt.InvalidError, match=f"changes {sum(lost)} element") as caught:
        cast(values, to, tensor="t", allow_loss=False)
    assert caught.value.tensor == "t" and f", at [{lost.index(True)}]" in caught.value.message


def test_the_error_names_the_place_in_the_tensor() -> None:
    part = np.array([[1, 2], [3, 300]])
    with pytest.raises(ckptfmt.InvalidError, match=r"at least 1 element .* 300, at \[6, 1\]"):
        cast(part, np.dtype("i1"), tensor="t", allow_loss=False, start=(5,))
    mask = np.array(np.finfo("f4").min)
    with pytest.raises(ckptfmt.InvalidError, match=r"1 element .*masks of attention"):
        cast(mask, dtypes.narrow_dtype("bfloat16"), tensor="t", allow_loss=False)


def test_a_dropped_name_is_no_pattern(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"n[1]": np.ones(2), "n1": np.ones(2), "w": np.ones(2)})
    with pytest.raises(ckptfmt.TensorNotFoundError) as caught:
        ckptfmt.convert(tmp_path / "a.npz", tmp_path / "b", drop="n[[]1]", cast={"n[1]": "f4"})
    assert caught.value.argument == "cast"
