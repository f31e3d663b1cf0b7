# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt.editing.average`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.files import contents, flip

import ckptfmt
from ckptfmt import CorruptError, InvalidError, UnsupportedError
from ckptfmt._base.names import VALUE_SUFFIX

TINY, MAX, INF, NAN = 5e-324, np.finfo("f8").max, np.inf, np.nan
# Elements of the sources, and their mean.
EXTREMES = [
    ((1e308, 1.7e308), 1.35e308),
    ((MAX, MAX), MAX),
    ((MAX, MAX, MAX), MAX),
    ((-MAX,) * 7, -MAX),
    ((MAX, MAX, -MAX, -MAX), 0.0),
    ((MAX, MAX, -MAX), MAX / 3),
    ((TINY, TINY), TINY),
    ((TINY,) * 5, TINY),
    ((INF, 1.0), INF),
    ((-INF, MAX, MAX), -INF),
    ((INF, -INF), NAN),
    ((NAN, MAX, MAX), NAN),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("elements", "expected"), EXTREMES)
def test_extremes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    elements: tuple[float, ...],
    expected: float,
    large: bool,
) -> None:
    """No mean of finite numbers overflows, and nothing warns."""
    if large:
        monkeypatch.setattr("ckptfmt.recipe.values.HELD_MAX", 100)
        monkeypatch.setattr("ckptfmt.recipe.average.STEP_BYTES", 64)
    paths = [tmp_path / str(number) for number in range(len(elements))]
    for path, element in zip(paths, elements, strict=True):
        real = np.arange(40.0)
        real[17] = element
        parts = np.empty(40, "c16")
        parts.real, parts.imag = real, real[::-1]
        ckptfmt.save(path, {"d": real, "c": parts}, durability="none")
    ckptfmt.editing.average(paths, tmp_path / "m")
    wanted = np.arange(40.0)
    wanted[17] = expected
    loaded = ckptfmt.load(tmp_path / "m")
    for found, want in (
        (loaded["d"], wanted),
        (loaded["c"].real, wanted),
        (loaded["c"].imag, wanted[::-1]),
    ):
        np.testing.assert_allclose(found, want, rtol=1e-15, atol=0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "c8", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
)
def test_extremes_of_small_dtypes(tmp_path: Path, dtype: Any) -> None:
    part = np.dtype("f4" if dtype == "c8" else dtype)
    most = float(ml_dtypes.finfo(part).max)
    rows = np.array([[most, most, NAN, -most], [most, 0, 1, -most], [most, 0, 1, -most]])
    for number, row in enumerate(rows):
        ckptfmt.save(tmp_path / str(number), {"x": row.astype(dtype)}, durability="none")
    ckptfmt.editing.average([tmp_path / str(number) for number in range(3)], tmp_path / "m")
    found = ckptfmt.load(tmp_path / "m")["x"].astype("c16" if dtype == "c8" else "f8")
    want = np.array([most, most / 3, NAN, -most]).astype(dtype).astype(found.dtype)
    np.testing.assert_array_equal(found.real, want.real)


# ---- dry runs ------------------------------------------------------------------------------------


def test_a_dry_run_checks(tmp_path: Path) -> None:
    """As the call itself: other tensors, mistakes, missing and damaged files."""
    ckptfmt.save(tmp_path / "a", {"w": np.ones(300), "n": np.arange(300)})
    ckptfmt.save(tmp_path / "b", {"w": np.ones(300, "f4"), "n": np.arange(300)})
    for name in "cde":
        ckptfmt.save(tmp_path / name, {"w": np.ones(300), "n": np.arange(300)})
    (tmp_path / "c.data-00000-of-00001").unlink()
    with (tmp_path / "d.data-00000-of-00001").open("r+b") as file:
        file.truncate(3000)
    with ckptfmt.open(tmp_path / "e") as reader:
        flip(tmp_path / "e.data-00000-of-00001", (reader["n"].offset or 0) + 8)
    before = contents(tmp_path)
    cases: list[tuple[str, str, type[Exception]]] = [
        ("a", "m", InvalidError),
        ("ab", "m", InvalidError),
        ("aa", "m/", InvalidError),
        ("ac", "m", ckptfmt.CkptfmtError),
        ("ad", "m", CorruptError),
        ("ae", "m", CorruptError),
        ("az", "m", ckptfmt.CheckpointNotFoundError),
    ]
    for names, target, kind in cases:
        for dry_run in (True, False):
            sources = [tmp_path / name for name in names]
            with pytest.raises(kind):
                ckptfmt.editing.average(sources, f"{tmp_path}/{target}", dry_run=dry_run)
            assert contents(tmp_path) == before


# ---- other dtypes and shapes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": np.ones(3)}, "lacks 'v'"),
        ({"w": np.ones(3), "v": np.ones(2), "x": np.ones(2)}, "also has 'x'"),
        ({"w": np.ones(3, "f4"), "v": np.ones(2)}, r"is float32\[3\], and float64\[3\]"),
        ({"w": np.ones(4), "v": np.ones(2)}, r"is float64\[4\], and float64\[3\]"),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    ckptfmt.save(tmp_path / "a", {"w": np.ones(3), "v": np.ones(2)})
    ckptfmt.save(tmp_path / "b", other)
    before = contents(tmp_path)
    with pytest.raises(InvalidError, match=message):
        ckptfmt.editing.average([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    assert contents(tmp_path) == before


def test_mistakes(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "a", {"w": np.ones(300)})
    ckptfmt.save(tmp_path / "b", {"w": np.ones(300)})
    with pytest.raises(InvalidError, match="at least two"):
        ckptfmt.editing.average([tmp_path / "a"], tmp_path / "m")
    with pytest.raises(InvalidError, match="list of checkpoints"):
        ckptfmt.editing.average(tmp_path / "a", tmp_path / "m")  # type: ignore[arg-type]


def test_what_one_format_lacks(tmp_path: Path) -> None:
    """Members that cannot be read may be left out; what has no place in the result is named."""
    sources = [tmp_path / name for name in ("a.npz", "b.npz", "c")]
    for number, path in enumerate(sources[:2]):
        np.savez(path, w=np.full(2, number, "f4"), x=np.array([{}], object))
    with pytest.raises(UnsupportedError, match=r"drop=\['x'\]"):
        ckptfmt.editing.average(sources[:2], tmp_path / "m")
    assert ckptfmt.editing.average(sources[:2], tmp_path / "m", drop="x").dropped == ()
    assert ckptfmt.load(tmp_path / "m")["w"].tolist() == [0.5, 0.5]
    ckptfmt.Checkpoint(w=np.ones(2, "f4")).write(sources[2])
    rename = {f"w{VALUE_SUFFIX}": "w"}
    for dry_run in (True, False):
        done = ckptfmt.editing.average(
            [sources[2], sources[2]], tmp_path / "m.npz", rename=rename, dry_run=dry_run
        )
        assert done.dropped == ("TensorFlow's object graph",)
    ckptfmt.save(tmp_path / "d", {"w": np.ones(2)}, metadata={"a": "xyz"})
    data = tmp_path / "d.data-00000-of-00001"
    flip(data, data.read_bytes().index(b"xyz"))
    with pytest.raises(CorruptError) as caught:
        ckptfmt.editing.average([tmp_path / "d"] * 2, tmp_path / "m.npz")
    assert caught.value.argument is None and "drop_metadata" not in caught.value.message
