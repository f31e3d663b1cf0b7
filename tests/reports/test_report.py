# SPDX-License-Identifier: Apache-2.0
"""What a report holds. How it looks and works is tested in tests/browser."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.files import flip
from support.reports import data_of, measured, reported

import ckptfmt
from ckptfmt.cli import main
from ckptfmt.report import collect, measuring, report

HOSTILE = "</script><script>alert(1)</script><!--\u2028&lt;"
PIECE = measuring.PIECE_BYTES


def model(prefix: Path) -> Path:
    with ckptfmt.Writer(prefix, metadata={"step": 3}) as writer:
        writer.add("a/kernel", np.arange(12, dtype=np.float32).reshape(4, 3))
        writer.add("a/kernel/Adam", np.zeros((4, 3), np.float32))
        writer.add("bad", np.array([1.0, np.nan, np.inf]))
        writer.add(HOSTILE, np.array([b"<b>"], object))
        writer.add("large", np.arange(1 << 19, dtype=np.float32))
        for row in range(2):
            part = np.full((2, 3), row)
            writer.add_slice("table", part, shape=(4, 3), offset=(2 * row, 0))
    return prefix


def test_data(tmp_path: Path) -> None:
    output = tmp_path / "r.html"
    report(model(tmp_path / "m"), output)
    data = data_of(output)
    assert data["path"] == str(tmp_path / "m") and data["about"]["metadata"] == [["step", "3"]]
    tensors = {one["name"]: one for one in data["tensors"]}
    assert tensors.keys() == {"a/kernel", "a/kernel/Adam", "bad", HOSTILE, "large", "table"} ^ {
        HOSTILE,
        HOSTILE.replace("\u2028", r"\u2028"),
    }
    kernel = tensors["a/kernel"]
    assert (kernel["dtype"], kernel["shape"], kernel["role"]) == ("float32", [4, 3], "weight")
    assert kernel["stats"]["mean"] == 5.5 and kernel["stats"]["count"] == 12
    assert "warnings" not in kernel
    assert tensors["a/kernel/Adam"]["role"] == "optimizer"
    assert tensors["a/kernel/Adam"]["warnings"] == ["all zero"]
    assert tensors["bad"]["warnings"] == ["1 NaN", "1 infinite"]
    large = tensors["large"]
    assert not large["sampled"] and large["stats"]["count"] == 1 << 19
    assert large["stats"]["high"] == 2**19 - 1
    assert 2e5 <= sum(large["histogram"]["after"]) <= 3e5
    assert tensors["table"]["slices"] == [[[0, 0], [2, 3], 0], [[2, 0], [2, 3], 0]]
    assert tensors["table"]["warnings"] == ["2 of 4 rows are zero"]
    parts = {role: numbers for role, *numbers in data["parts"]}
    assert parts["optimizer"] == [1, 12, 48]
    health = data["health"]
    assert (health["complete"], health["whole"], health["sampled"]) == (True, 5, 0)
    assert health["findings"] == [] and health["zero_slots"] == 1
    assert [one["name"] for one in health["items"]] == ["bad", "bad", "table"]


def test_integers_are_exact(tmp_path: Path) -> None:
    ends = np.array([2**63 - 1, -(2**63)])
    values = {"step": np.int64(1234999), "ends": ends, "u": np.array([2**64 - 1], np.uint64)}
    values |= {"b": np.array([True, False, True]), "c": np.array([3 + 4j], np.complex64)}
    ckptfmt.save(tmp_path / "m", values)
    found = {one["name"]: one["stats"] for one in reported(tmp_path / "m")["tensors"]}
    assert [found["step"][name] for name in ("low", "high", "mean")] == ["1234999"] * 3
    assert (found["ends"]["low"], found["ends"]["high"]) == (str(-(2**63)), str(2**63 - 1))
    assert found["ends"]["mean"] == -0.5
    assert found["u"]["mean"] == str(2**64 - 1)
    assert (found["b"]["low"], found["b"]["high"]) == ("0", "1")
    assert found["c"]["low"] == 5


def test_nothing_of_a_name_is_markup(tmp_path: Path) -> None:
    output = tmp_path / "r.html"
    report(model(tmp_path / HOSTILE.replace("/", "")), output)
    text = output.read_text(encoding="utf-8")
    assert "alert(1)</script>" not in text and text.count("<!--") == 0
    assert text.count("<script") == text.count("</script>") == 3
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)


def test_names_are_escaped_and_short(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "m", {"\u202eRTL/\x1b[31m\x00\n": np.ones(3)})
    (one,) = reported(tmp_path / "m")["tensors"]
    assert one["name"] == r"\u202eRTL/\x1b[31m\x00\n"
    ckptfmt.Checkpoint(model={"w": np.ones(3)}).write(tmp_path / "o")
    names = [one["name"] for one in reported(tmp_path / "o")["tensors"]]
    assert "model/w" in names


def test_no_values_are_read(tmp_path: Path) -> None:
    output = tmp_path / "r.html"
    assert main(["report", str(model(tmp_path / "m")), "--seconds=0", "-o", str(output)]) == 0
    data = data_of(output)
    assert not any("stats" in one for one in data["tensors"])
    health = data["health"]
    assert not health["complete"] and health["whole"] == health["sampled"] == 0
    assert health["verified"] == 0 and health["numbers"] == 5


def test_a_damaged_tensor_is_shown_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix, output = model(tmp_path / "m"), tmp_path / "r.html"
    with ckptfmt.open(prefix) as reader:
        place = reader["bad"].offset
    assert place is not None
    flip(Path(f"{prefix}.data-00000-of-00001"), place)
    assert main(["report", "-q", str(prefix), "-o", str(output)]) == 1
    assert "problem: " in capsys.readouterr().err
    data = data_of(output)
    assert report(prefix, output) == tuple(data["health"]["findings"])
    tensors = {one["name"]: one for one in data["tensors"]}
    assert "DAT-6" in tensors["bad"]["error"]
    assert [name for name, one in tensors.items() if "error" in one] == ["bad"]
    first = data["health"]["items"][0]
    assert (first["kind"], first["name"], first["text"]) == (
        "damaged",
        "bad",
        tensors["bad"]["error"],
    )
    assert len(data["health"]["findings"]) == 1 and data["health"]["damaged"] == 1


@pytest.mark.parametrize("which", ["path", "before"])
@pytest.mark.parametrize(("harm", "seconds"), [("flipped", 10), ("gone", 10), ("gone", 0)])
def test_damage_of_either_is_a_finding(tmp_path: Path, which: str, harm: str, seconds: int) -> None:
    places = {"path": tmp_path / "m", "before": tmp_path / "n"}
    for value, prefix in enumerate(places.values()):
        ckptfmt.save(prefix, {"x": np.full(9, value)})
    data = Path(f"{places[which]}.data-00000-of-00001")
    if harm == "gone":
        data.unlink()
    else:
        flip(data, 3)
    output = str(tmp_path / "r.html")
    command = ["report", "-q", str(places["path"]), "--before", str(places["before"])]
    assert main([*command, f"--seconds={seconds}", "-o", output]) == 1


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_damage_of_a_large_tensor_is_not_a_limit(level: Any, tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "m", {"x": np.ones(1 << 19), "y": np.ones(2)}, level=level)
    flip(tmp_path / "m.data-00000-of-00001", 2_000_001)
    data = reported(tmp_path / "m")
    health = data["health"]
    assert health["complete"] and health["sampled"] == 0
    assert health["whole"] + health["damaged"] == health["numbers"] == 2
    assert ["error" in one for one in data["tensors"]] == [True, False]


def test_a_damaged_graph_is_reported(tmp_path: Path) -> None:
    ckptfmt.Checkpoint(model={"w": np.ones(1000, "f")}, step=np.array(3)).write(tmp_path / "m")
    os.truncate(tmp_path / "m.data-00000-of-00001", 30)
    data = reported(tmp_path / "m")
    assert {one["role"] for one in data["tensors"]} == {"unknown"}
    assert any("TRUNCATED" in text for text in data["health"]["findings"])
    assert len(data["health"]["findings"]) == len(set(data["health"]["findings"]))


def test_findings_that_are_alike_are_one(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "m", {f"t{i:04d}": np.ones(4, "f") for i in range(1200)})
    os.truncate(tmp_path / "m.data-00000-of-00001", 1000)
    (finding,) = reported(tmp_path / "m")["health"]["findings"]
    assert finding.startswith("1,184 tensors like this one: TRUNCATED")


def planted(shape: tuple[int, ...], what: str, at: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    values = np.ones(shape, np.float32)
    if what in ("nan", "inf"):
        values.reshape(-1)[int(at * values.size)] = np.nan if what == "nan" else np.inf
    elif what == "row" and len(shape) == 1:  # a single element that is zero says nothing
        values[:] = 0
    elif what == "row":
        values[int(at * len(values))] = 0
    elif what == "part":  # most of a row
        values[int(at * len(values))].reshape(-1)[1:] = 0
    return values


# A tensor of a size around a piece of 1 MiB, whole or in slices, and what is planted in it.
SHAPES = st.sampled_from(
    [(7,), (300, 5), (1 << 18,), ((1 << 18) + 1,), (3, 1 << 18), (2, 3, 90_000), (2, (1 << 19) + 5)]
)


@settings(max_examples=120, deadline=None)
@given(
    shape=SHAPES,
    what=st.sampled_from(["nan", "inf", "row", "part", "flip"]),
    at=st.floats(0, 1, exclude_max=True),
    limit=st.sampled_from([None, 0, 1 << 20, 3 << 20, 20 << 20]),
    sliced=st.booleans(),
)
def test_what_is_planted_is_shown_or_not_looked_for(
    shape: tuple[int, ...], what: str, at: float, limit: int | None, sliced: bool
) -> None:
    values = planted(shape, what, at)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "m")
        with ckptfmt.Writer(path, level="v2") as writer:
            writer.add("other", np.ones(300))
            if sliced:
                for row in (0, len(values) // 2):
                    part = values[row : len(values) // 2 if row == 0 else None]
                    start = (row,) + (0,) * (values.ndim - 1)
                    writer.add_slice("t", part, shape=shape, offset=start)
            else:
                writer.add("t", values)
        if what == "flip":
            with ckptfmt.open(path) as reader:
                handle = reader["t"]
                part = handle.slices[-1] if sliced else handle
                start, nbytes = part.offset, part.nbytes
            assert start is not None
            flip(Path(f"{path}.data-00000-of-00001"), start + int(at * nbytes))
        data = measured(path, measuring.Budget(None, limit))
    (one,) = (one for one in data["tensors"] if one["name"] == "t")
    health = data["health"]
    if what == "flip":
        assert health["findings"] or not (health["complete"] or health["verified"] == 2)
        if health["verified"] == 2:
            assert health["complete"]
        return
    found = " ".join(one.get("warnings", []))
    if what == "part":
        assert "zero" not in found or one["sampled"]
        return
    word = {"nan": "NaN", "inf": "infinite", "row": "zero"}[what]
    if word in found:
        assert set(one["warnings"]) <= {item["text"] for item in health["items"]}
    else:
        assert one.get("sampled", "stats" not in one)
        assert health["whole"] < health["numbers"] == 2
        assert health["sampled"] == ("stats" in one)


def test_a_limit_of_time_ends_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ckptfmt.save(tmp_path / "m", {f"t{i}": np.ones(1 << 19) for i in range(20)})
    clock = iter(range(10_000))
    monkeypatch.setattr(measuring.time, "monotonic", lambda: next(clock))
    health = measured(tmp_path / "m", measuring.Budget(30.0))["health"]
    assert 0 < health["sampled"] < 20 and health["whole"] < 20 and not health["complete"]
    assert health["numbers"] == 20


def test_time_that_verifying_leaves_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckptfmt.save(tmp_path / "m", {f"t{i}": np.full(9, i) for i in range(20)})
    monkeypatch.setattr(measuring, "SAMPLING", 0.0)  # no time for the first look
    data = measured(tmp_path / "m", measuring.Budget(600.0))
    assert data["health"]["complete"] and data["health"]["whole"] == 20
    assert {one["name"]: one["stats"]["low"] for one in data["tensors"]} == {
        f"t{i}": str(i) for i in range(20)
    }


def test_paths_are_escaped(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "\u202em", {"x": np.ones(9)})
    data = reported(tmp_path / "\u202em", before=tmp_path / "\u202em")
    assert "\u202e" not in data["path"] + data["comparison"]["before"]
    assert data["path"].endswith("\\u202em")


@pytest.mark.parametrize("flat", [False, True])
def test_too_many_tensors_are_shown_as_groups(
    flat: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "ROWS_MAX", 50)
    names = [f"t{i:05}" if flat else f"block_{i % 9}/layer_{i}/w" for i in range(500)]
    values = {name: np.full(2, np.nan) if i == 7 else np.ones(2) for i, name in enumerate(names)}
    ckptfmt.save(tmp_path / "m", values)
    with monkeypatch.context() as limits:
        limits.setattr(collect, "ROWS_MAX", 500)
        plain = reported(tmp_path / "m")
    data = reported(tmp_path / "m")
    assert not plain["grouped"] and data["layers"] == plain["layers"]
    for field in ("items", "kinds", "whole"):
        assert data["health"][field] == plain["health"][field]
    assert data["grouped"] and data["count"] == 500 and len(data["tensors"]) <= 50
    assert sum(one["tensors"] for one in data["tensors"]) == 500
    assert sum(one["bytes"] for one in data["tensors"]) == 500 * 16
    (item,) = data["health"]["items"]
    assert (item["kind"], item["name"], item["text"]) == ("nan", names[7], "2 NaN")
    if not flat:
        assert [one["name"] for one in data["tensors"]] == [f"block_{i}/" for i in range(9)]


@given(st.lists(st.text("ab/", max_size=8), max_size=40, unique=True))
def test_groups_hold_every_name(names: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "ROWS_MAX", 10)
        groups = collect.group_names(names)
    if len(names) <= 10:
        assert groups is None
    else:
        assert groups is not None and len(groups) == len(names) and len(set(groups)) <= 11


def test_wrong_usage(tmp_path: Path) -> None:
    output = tmp_path / "r.html"
    assert main(["report", str(tmp_path / "nothing"), "-o", str(output)]) == 2
    assert main(["report", str(model(tmp_path / "m")), "-o", str(tmp_path / "no" / "r.html")]) == 2
    with pytest.raises(ckptfmt.InvalidError):
        report(tmp_path / "m", output, seconds=-1)
    assert not output.exists() and not list(tmp_path.glob("*.tempstate*"))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(64, 4096))
def test_samples_are_inside_and_bounded(dims: list[int], limit: int) -> None:
    class Handle:
        shape, dtype = tuple(dims), np.dtype(np.float32)

    boxes = measuring.sample_boxes(Handle(), limit)  # type: ignore[arg-type]
    assert 1 <= len(boxes) <= measuring.SAMPLES
    for box in boxes:
        assert all(0 <= one.start < one.stop <= dim for one, dim in zip(box, dims, strict=True))
    size = sum(4 * int(np.prod([one.stop - one.start for one in box])) for box in boxes)
    assert size <= max(limit, 4 * measuring.SAMPLES)
    times = np.zeros(dims, int)
    for box in boxes:
        times[box] += 1
    assert times.max() == 1 or times.size * 4 <= limit, "no element is counted twice"


def test_a_nan_between_two_samples_is_counted_once(tmp_path: Path) -> None:
    values = np.ones(300_000, np.float32)
    values[280_000] = np.nan
    ckptfmt.save(tmp_path / "m", {"x": values})
    data = measured(tmp_path / "m", measuring.Budget(None, PIECE))
    (one,), (layer,) = data["tensors"], data["layers"]
    assert layer["sampled"] and layer["count"] == PIECE // 4 and layer["elements"] == 300_000
    assert layer["norm"] == one["stats"]["norm"] == pytest.approx(300_000**0.5, rel=1e-5)
    assert one["sampled"] and one["stats"]["count"] == PIECE // 4
    assert one.get("warnings", ["1 NaN in the sample"]) == ["1 NaN in the sample"]


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_small_shapes(shape: tuple[int, ...], tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "m", {"x": np.zeros(shape)})
    (one,) = reported(tmp_path / "m")["tensors"]
    assert "warnings" not in one
