# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt show`: statistics, files, paths of variables, wrong indexes."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from support.strategies import property_test

import ckptfmt
from ckptfmt._base import dtypes
from ckptfmt.bundle import comparing
from ckptfmt.cli import main
from ckptfmt.report.statistics import BINS, statistics_of
from cli.commands import Command, small

VALUES = np.array([0.0, 1.0, 2.0, 4.0, np.nan, np.inf], np.float32)


def rows(out: str) -> dict[str, str]:
    lines = out.split("\n\n", maxsplit=1)[0].splitlines()[1:]
    return {line.split()[0]: line.strip().partition(" ")[2].strip() for line in lines}


@pytest.mark.parametrize("piece_bytes", [1 << 20, 4])
def test_statistics(
    piece_bytes: int, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "PIECE_BYTES", piece_bytes)
    ckptfmt.save(tmp_path / "m", {"v": VALUES, "s": np.array([b"a"], object)})
    ran = command("show", "--stats", tmp_path / "m", "v")
    assert ran.status == 0
    assert rows(ran.out) == {
        "elements": "6",
        "zero": "1 (16.7%)",
        "infinite": "1 (16.7%)",
        "NaN": "1 (16.7%)",
        "min": "0",
        "max": "4",
        "mean": "1.75",
        "std": f"{np.std([0, 1, 2, 4]):.6g}",
    }
    bars = ran.out.split("\n\n")[1].splitlines()
    assert len(bars) == BINS
    assert [bar.split()[-1] for bar in bars if bar.split()[-1] == "1"] == ["1"] * 4
    ran = command("show", "--stats", tmp_path / "m", "v[1:3]")
    assert rows(ran.out)["elements"] == "2" and rows(ran.out)["max"] == "2"
    ran = command("show", "--stats", tmp_path / "m", "s")
    assert (ran.status, ran.out) == (2, "") and "needs numbers" in ran.err


@given(arrays(np.float64, array_shapes(max_dims=1, max_side=40)), st.integers(1, 3))
def test_statistics_of_any_numbers(whole: np.ndarray, count: int) -> None:
    """NaN, infinities, and finite numbers whose sums or differences are infinite or vanish."""
    found = statistics_of(lambda: np.array_split(whole, count))
    assert found is not None
    finite = whole[np.isfinite(whole)]
    assert sum(found.counts) == finite.size == found.count - found.nans - found.infinite
    if finite.size:
        assert (found.low, found.high) == (finite.min(), finite.max())
        if found.low != found.high:
            assert found.counts[0] and found.counts[-1], "the ends are the extremes"
    assert all(list(found.rows())) and len(list(found.histogram(solid=False))) in (0, BINS)


def test_statistics_without_finite_numbers(command: Command, tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "m", {"v": np.array([np.nan]), "e": np.empty((0, 3))})
    assert rows(command("show", "--stats", tmp_path / "m", "v").out)["NaN"] == "1 (100.0%)"
    assert rows(command("show", "--stats", tmp_path / "m", "e").out) == {"elements": "0"}


def test_statistics_of_complex_numbers_say_so(command: Command, tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "m", {"c": np.array([3 + 4j])})
    ran = command("show", "--stats", tmp_path / "m", "c")
    assert ran.out.startswith("c  complex128 [1], absolute values\n")
    assert rows(ran.out)["min"] == "5"


def test_npy(command: Command, tmp_path: Path) -> None:
    prefix, file = small(tmp_path), tmp_path / "x.npy"
    ran = command("show", "--npy", file, prefix, "model/dense/kernel[1:3]")
    assert (ran.status, ran.out) == (0, "")
    assert np.array_equal(np.load(file), np.arange(4, 12, dtype=np.int32).reshape(2, 4))
    before = sorted(tmp_path.iterdir())
    assert command("show", "--npy", file, prefix, "model/words").status == 2
    assert command("show", "--npy", tmp_path / "no/x.npy", prefix, "step").status == 2
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", sorted({str(one) for one in dtypes.CODES}))
def test_npy_is_what_numpy_loads_or_refused(command: Command, tmp_path: Path, name: str) -> None:
    values = np.zeros(3, next(one for one in dtypes.CODES if str(one) == name))
    ckptfmt.save(tmp_path / "m", {"x": values})
    status = command("show", "--npy", tmp_path / "x.npy", tmp_path / "m", "x").status
    values = dtypes.plain_quantized(values)
    assert (status == 0) == (values.dtype.isbuiltin == 1 and values.dtype.kind not in "OV")
    if status == 0:
        found = np.load(tmp_path / "x.npy")
        assert found.dtype == values.dtype and np.array_equal(found, values)


def test_raw(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    prefix = str(small(tmp_path))
    assert main(["show", "--raw", prefix, "model/dense/kernel[:, 1]"]) == 0
    assert capfdbinary.readouterr().out == np.arange(1, 24, 4, dtype="<i4").tobytes()
    assert main(["show", "--raw", prefix, "model/words"]) == 2
    out, err = capfdbinary.readouterr()
    assert out == b"" and b"not strings" in err


def test_a_name_as_it_is_printed(tmp_path: Path, command: Command) -> None:
    ckptfmt.save(tmp_path / "m", {"a\n\x1b[1mb": np.arange(3)})
    ran = command("show", str(tmp_path / "m"), r"a\n\x1b[1mb")
    assert (ran.status, ran.out.splitlines()[-1]) == (0, "[0 1 2]")
    ran = command("show", str(tmp_path / "m"), r"a\n\x1b[1mb[1:]")
    assert (ran.status, ran.out.splitlines()[-1]) == (0, "[1 2]")


@property_test(100, 5000, st.data())
def test_statistics_of_values_of_any_size(data: st.DataObject) -> None:
    """In one piece or several, as exact fractions give them."""
    number = st.floats(allow_nan=False, allow_infinity=False)
    drawn = data.draw(st.lists(st.lists(number, min_size=1, max_size=4), min_size=1, max_size=4))
    found = statistics_of(lambda: iter([np.array(one) for one in drawn]))
    assert found is not None
    exact = [Fraction(one) for piece in drawn for one in piece]
    mean = sum(exact) / len(exact)
    largest = max(map(abs, exact))
    variance = sum((one - mean) ** 2 for one in exact) / len(exact)
    # The root by integers, as the fraction may be beyond what floats hold.
    scale = Fraction(2) ** (2200 if largest < 1 else 40)
    deviation = Fraction(math.isqrt(int(variance * scale * scale))) / scale
    smallest = Fraction(5e-324)  # that a float can have
    assert abs(Fraction(float(found.mean)) - mean) <= largest * Fraction(1, 10**12) + smallest
    assert abs(Fraction(found.deviation) - deviation) <= largest * Fraction(1, 10**7) + smallest
