# SPDX-License-Identifier: Apache-2.0
"""What a report holds of a series of checkpoints."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.files import flip
from support.reports import data_of, parsed

import ckptfmt
import ckptfmt.safetensors
from ckptfmt.cli import main
from ckptfmt.files import locate
from ckptfmt.report import measuring, report_series
from ckptfmt.report.series import SAMPLED_MAX

Arrays = dict[str, NDArray[Any]]
# By layer the names of its tensors; "h.1/w" is sampled, and "ids" is not floating point.
LAYERS = {"h.0": ["h.0/a/b", "h.0/a/w"], "h.1": ["h.1/a/w"], "h.2": ["h.2/a/w"]}
SHAPES = {"h.0/a/b": (7,), "h.0/a/w": (5, 7), "h.1/a/w": (90, 70), "h.2/a/w": (3,)}
DTYPES = {"h.0/a/b": "f4", "h.0/a/w": "f8", "h.1/a/w": "f4", "h.2/a/w": "c8"}


def series_of(paths: list[Any], **options: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The data of a series, and what is damaged."""
    out = io.BytesIO()
    damage = report_series(paths, out, **options)
    found: dict[str, Any] = parsed(out.getvalue().decode())["series"]
    return found, damage


# ---- a model


def sample(array: NDArray[Any]) -> NDArray[Any]:
    if array.size <= SAMPLED_MAX:
        return array.reshape(-1)
    boxes = measuring.sample_boxes(array, SAMPLED_MAX * array.itemsize)  # type: ignore[arg-type]
    return np.concatenate([array[box].reshape(-1) for box in boxes])


def norm(parts: list[tuple[NDArray[Any], int]]) -> float | None:
    """The norm of arrays of which these elements are known."""
    known = [(part[np.isfinite(part)], size) for part, size in parts]
    squares = [np.mean(np.abs(part) ** 2) * size for part, size in known if part.size]
    return float(np.sqrt(sum(squares))) if squares else None


def expected(layer: list[str], before: Arrays | None, after: Arrays) -> dict[str, Any]:
    wide = {"f": np.float64, "c": np.complex128}
    new = {name: sample(after[name]).astype(wide[after[name].dtype.kind]) for name in layer}
    sizes = {name: after[name].size for name in layer}
    found: dict[str, Any] = {
        "norm": norm([(new[name], sizes[name]) for name in layer]),
        "zeros": sum(np.mean(new[name] == 0) * sizes[name] for name in layer) / sum(sizes.values()),
        "bad": sum(np.count_nonzero(~np.isfinite(new[name])) for name in layer),
        "ratio": None,
    }
    if before is not None:
        old = {name: sample(before[name]).astype(new[name].dtype) for name in layer}
        both = {name: np.isfinite(old[name]) & np.isfinite(new[name]) for name in layer}
        moved = [(new[name][both[name]] - old[name][both[name]], sizes[name]) for name in layer]
        whole = norm([(old[name][both[name]], sizes[name]) for name in layer])
        change = norm(moved)
        if whole is not None and change is not None:
            found["ratio"] = change / whole if whole else (None if change else 0.0)
    return found


@st.composite
def arrays(draw: st.DrawFn) -> Arrays:
    random = np.random.default_rng(draw(st.integers(0, 99)))
    found: Arrays = {"ids": np.arange(3), "words": np.array([b"x"], object)}
    for name, shape in SHAPES.items():
        values = random.normal(size=shape).astype(DTYPES[name])
        what = draw(st.sampled_from(["values", "values", "zeros", "nan", "inf", "all nan"]))
        values *= what != "zeros"
        if what in ("nan", "inf"):
            values.reshape(-1)[random.integers(values.size)] = np.nan if what == "nan" else np.inf
        elif what == "all nan":
            values[:] = np.nan
        found[name] = values
    return found


HARMS = ["none", "none", "none", "index", "data", "gone", "lost", "reshaped", "retyped"]


def harmed(values: Arrays, harm: str, name: str) -> Arrays:
    """The arrays without one, or with another in its place."""
    changed = {"reshaped": values[name].reshape(1, -1), "retyped": values[name].astype("c16")}
    left = {one: array for one, array in values.items() if one != name or harm != "lost"}
    return left | ({name: changed[harm]} if harm in changed else {})


def save(path: str, values: Arrays, harm: str, how: str, step: int) -> None:
    """Save a checkpoint of a series, and damage its files."""
    tensors = values | ({"step": np.array(step)} if how == "tensor" else {})
    ckptfmt.save(path, tensors, metadata={"global_step": step} if how == "value" else None)
    if harm == "index":
        flip(Path(f"{path}.index"), 20)
    elif harm == "data":
        os.truncate(f"{path}.data-00000-of-00001", 0)
    elif harm == "gone":
        os.unlink(f"{path}.index")


@settings(max_examples=60, deadline=None)
@given(data=st.data(), how=st.sampled_from(["name", "value", "tensor", "none"]))
def test_series(data: st.DataObject, how: str) -> None:
    steps = data.draw(st.lists(st.integers(0, 2000), min_size=1, max_size=5, unique=True))
    harms = [data.draw(st.sampled_from(HARMS)) for _ in steps]
    harms[data.draw(st.integers(0, len(steps) - 1))] = "none"
    names = [data.draw(st.sampled_from(sorted(SHAPES))) for _ in steps]
    saved = [harmed(data.draw(arrays()), *pair) for pair in zip(harms, names, strict=True)]
    with tempfile.TemporaryDirectory() as directory:
        ends = [f"-{step}" if how == "name" else "" for step in steps]
        paths = [f"{directory}/{'edcba'[at]}{end}" for at, end in enumerate(ends)]
        for one in zip(paths, saved, harms, steps, strict=True):
            save(*one[:3], how, one[3])
        found, damage = series_of(paths, seconds=None)
    gaps = {at for at, harm in enumerate(harms) if harm in ("index", "gone", "data")}
    # The metadata are read before tensors are compared.
    unread = {at for at in gaps if harms[at] != "data" or how == "value"}
    known = how == "name" or (how != "none" and not gaps)
    order = sorted(range(len(steps)), key=lambda at: steps[at]) if known else range(len(steps))
    assert [one["path"] for one in found["steps"]] == [paths[at] for at in order]
    assert found["axis"] == ("step" if known else "place") and found["skipped"] == 0
    assert not known or [one["step"] for one in found["steps"]] == sorted(steps)
    for at, one in zip(order, found["steps"], strict=True):
        assert (one["error"] is not None) == (at in gaps) and "partial" not in one
        assert one["error"] is None or one["error"] in damage
    kinds = [
        {(name, one.shape, one.dtype) for name, one in values.items()}
        for at, values in enumerate(saved)
        if at not in unread
    ]
    missing = {name for name, *_ in set.union(*kinds) - set.intersection(*kinds)}
    assert found["missing"] == sorted(missing) and found["missing_count"] == len(missing)
    layers = {layer: [one for one in LAYERS[layer] if one not in missing] for layer in LAYERS}
    assert [(row["name"], row["role"]) for row in found["layers"]] == [
        (layer, "weight") for layer, left in layers.items() if left
    ]
    for row in found["layers"]:
        before: Arrays | None = None
        for place, at in enumerate(order):
            values = {field: row[field][place] for field in ("norm", "zeros", "bad", "ratio")}
            if at in gaps:
                assert {*values.values()} == {None}
                continue
            assert values == pytest.approx(expected(layers[row["name"]], before, saved[at]))
            before = saved[at]


# ---- the command and the function


def run(folder: Path, count: int, name: str = "m-{}") -> list[str]:
    paths = [str(folder / name.format(at)) for at in range(count)]
    for at, path in enumerate(paths):
        ckptfmt.save(path, {"a/w": np.full(3, at + 1.0)})
    return paths


def test_sixty_checkpoints(tmp_path: Path) -> None:
    paths = run(tmp_path, 60)
    found, damage = series_of([*reversed(paths)])
    steps = [one["step"] for one in found["steps"]]
    assert steps == sorted(set(steps)) and len(steps) == 50 and not damage
    assert (steps[0], steps[-1], found["skipped"]) == (0, 59, 10)
    assert max(np.diff(steps)) == 2
    (layer,) = found["layers"]
    assert layer["norm"] == pytest.approx([(step + 1) * np.sqrt(3) for step in steps])


def test_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(tmp_path, 12)
    ckptfmt.save("best", {"a/w": np.zeros(3)})
    assert main(["report", "--series", "."]) == 0
    assert capsys.readouterr().out == "wrote best.html\n"
    data = data_of(Path("best.html"))
    assert data["path"] == os.path.join(".", "best")
    steps = data["series"]["steps"]
    assert [one["step"] for one in steps] == [*range(12), None]
    assert data["series"]["axis"] == "place"
    assert main(["report", "--series", "nowhere"]) == 2


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(tmp_path, 3)
    assert main(["report", "m-2", "m-0", "m-1"]) == 0
    assert capsys.readouterr().out == "wrote m-1.html\n"
    data = data_of(Path("m-1.html"))
    assert data["path"] == "m-2" and len(data["series"]["steps"]) == 3
    flip(Path("m-1.index"), 20)
    assert main(["report", "-q", "m-0", "m-1", "m-2", "m-3", "-o", "r.html"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line[:20] for line in lines] == ["problem: CHECKSUM in", "problem: in m-3: Fai"]
    for words in ([], ["m-0", "--series", "."], ["m-0", "m-2", "--before", "m-1"]):
        assert main(["report", "-o", "r.html", *words]) == 2
    assert main(["report", "m-4", "m-3", "-o", "r.html"]) == 2


@pytest.mark.parametrize("kind", ["safetensors", "npz", "folders"])
def test_other_formats(tmp_path: Path, kind: str) -> None:
    """They are sampled where they are; only the last is converted."""
    saved = {3: np.full((70, 90), 2, "f"), 10: np.full((70, 90), 3, "f")}
    paths = []
    for step, values in saved.items():
        path = tmp_path / (f"run-{step}" if kind == "folders" else f"{'ba'[step == 10]}.{kind}")
        paths.append(path)
        if kind == "folders":
            path.mkdir()
        if kind == "npz":
            np.savez(path, w=values, step=np.array(step))
        else:
            file = path / "model.safetensors" if kind == "folders" else path
            about = {"step": str(step)} if kind == "safetensors" else None
            ckptfmt.safetensors.save_file({"w": values}, file, metadata=about)
    found, damage = series_of(paths[::-1])
    assert not damage and [one["step"] for one in found["steps"]] == [3, 10]
    assert [one["path"] for one in found["steps"]] == [str(path) for path in paths]
    layer = found["layers"][0]
    size = np.sqrt(70 * 90)
    assert layer["norm"] == pytest.approx([2 * size, 3 * size]) and layer["bad"] == [0, 0]
    assert layer["ratio"] == [None, 0.5]


def test_a_damaged_tensor(tmp_path: Path) -> None:
    """It is a gap in its layer alone, and the next change is that since the one before."""
    paths = [tmp_path / f"m-{at}" for at in range(3)]
    for at, path in enumerate(paths):
        ckptfmt.save(path, {"a/w": np.full(3, at + 1.0), "b/w": np.full(3, at + 2.0)})
    with ckptfmt.open(paths[1]) as reader:
        offset = reader["a/w"].offset
    flip(Path(f"{paths[1]}.data-00000-of-00001"), offset or 0)
    found, (damage,) = series_of([*paths])
    assert "a/w" in damage and [one["error"] for one in found["steps"]] == [None, damage, None]
    one, other = found["layers"]
    assert one["ratio"] == [None, None, 2] and one["bad"] == [0, None, 0]
    assert other["ratio"] == [None, 0.5, pytest.approx(1 / 3)]


@pytest.mark.parametrize("other", [{"a/w": np.ones(4)}, {"b/w": np.ones(3)}])
def test_one_that_is_replaced_meanwhile(tmp_path: Path, other: Arrays) -> None:
    paths = run(tmp_path, 2)

    def replace(done: int, total: int) -> None:
        if done == total:  # the indexes are read
            ckptfmt.save(paths[0], other)

    found, (damage,) = series_of([*paths], progress=replace)
    assert [one["error"] for one in found["steps"]] == [damage, None]
    assert paths[0] in damage and found["layers"][0]["norm"][0] is None


def test_limits(tmp_path: Path) -> None:
    paths = run(tmp_path, 3)
    found, _ = series_of(paths, seconds=0)
    assert all(one["partial"] for one in found["steps"])
    assert found["layers"][0]["norm"] == [None] * 3


def test_what_may_be_transient_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = run(tmp_path, 3)
    original = locate.is_file

    def fails(path: str) -> bool:
        if path == f"{paths[1]}.index":
            raise ckptfmt.StorageError("too many open files", path=path, errno=errno.EMFILE)
        return original(path)

    monkeypatch.setattr(locate, "is_file", fails)
    with pytest.raises(ckptfmt.StorageError) as caught:
        series_of([*paths])
    assert caught.value.errno == errno.EMFILE
