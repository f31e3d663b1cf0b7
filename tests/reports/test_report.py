# SPDX-License-Identifier: Apache-2.0
"""What a report holds. How it looks and works is tested in tests/browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.files import flip

import ckptfmt
from ckptfmt.cli import main
from ckptfmt.report import collect, report

HOSTILE = "</script><script>alert(1)</script><!--\u2028&lt;"


def data_of(file: Path) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8")
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    document: dict[str, Any] = json.loads(found)
    return document


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
    assert data["path"] == str(tmp_path / "m") and data["metadata"] == '{"step": 3}'
    tensors = {one["name"]: one for one in data["tensors"]}
    assert tensors.keys() == {"a/kernel", "a/kernel/Adam", "bad", HOSTILE, "large", "table"}
    kernel = tensors["a/kernel"]
    assert (kernel["dtype"], kernel["shape"], kernel["role"]) == ("float", [4, 3], "weight")
    assert kernel["stats"]["mean"] == 5.5 and kernel["stats"]["count"] == 12
    assert kernel["warnings"] == []
    assert tensors["a/kernel/Adam"]["role"] == "optimizer"
    assert tensors["a/kernel/Adam"]["warnings"] == ["all zero"]
    assert tensors["bad"]["warnings"] == ["1 NaN", "1 infinite"]
    assert "stats" not in tensors[HOSTILE]
    assert tensors["large"]["sampled"] and 2e5 <= tensors["large"]["stats"]["count"] <= 3e5
    assert tensors["large"]["stats"]["low"] == 0 and tensors["large"]["stats"]["high"] == 2**19 - 1
    assert tensors["table"]["slices"] == [[[0, 0], [2, 3], 0], [[2, 0], [2, 3], 0]]
    assert tensors["table"]["warnings"] == ["2 of 4 rows are zero"]


def test_nothing_of_a_name_is_markup(tmp_path: Path) -> None:
    output = tmp_path / "r.html"
    report(model(tmp_path / HOSTILE.replace("/", "")), output)
    text = output.read_text(encoding="utf-8")
    assert "alert(1)</script>" not in text and text.count("<!--") == 0
    assert text.count("<script") == text.count("</script>") == 3
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)


def test_no_values_are_read(tmp_path: Path) -> None:
    output = tmp_path / "r.html"
    assert main(["report", str(model(tmp_path / "m")), "--sample-bytes=0", "-o", str(output)]) == 0
    assert not any("stats" in one for one in data_of(output)["tensors"])


def test_a_damaged_tensor_is_shown_as_such(tmp_path: Path) -> None:
    prefix, output = model(tmp_path / "m"), tmp_path / "r.html"
    with ckptfmt.open(prefix) as reader:
        place = reader["bad"].offset
    assert place is not None
    flip(Path(f"{prefix}.data-00000-of-00001"), place)
    report(prefix, output)
    tensors = {one["name"]: one for one in data_of(output)["tensors"]}
    assert "DAT-6" in tensors["bad"]["error"]
    assert [name for name, one in tensors.items() if "error" in one] == ["bad"]


def test_comparison(tmp_path: Path) -> None:
    one, other, output = tmp_path / "a", tmp_path / "b", tmp_path / "r.html"
    base = {"same": np.array([1.0, np.nan]), "moved": np.array([3.0, 4.0]), "s": np.array(["x"])}
    ckptfmt.save(one, {**base, "gone": np.ones(2), "type": np.ones(2, np.float32)})
    changed = {"moved": np.array([3.0, 4.5]), "s": np.array(["y"])}
    ckptfmt.save(other, {**base, **changed, "new": np.ones(2), "type": np.ones(3, np.float32)})
    assert main(["report", str(other), "--before", str(one), "-o", str(output)]) == 0
    comparison = data_of(output)["comparison"]
    rows = {row.pop("name"): row for row in comparison["rows"]}
    assert comparison["same"] == 1
    numbers = {"largest": None, "relative": None, "nans": 0}
    assert rows == {
        "moved": {
            "change": "changed",
            "elements": 1,
            "nans": 0,
            "largest": 0.5,
            "relative": pytest.approx(1 / 9),
        },
        "s": {"change": "changed", "elements": 1, **numbers},
        "gone": {"change": "removed"},
        "new": {"change": "added"},
        "type": {"change": "retyped", "before": ["float", [2]]},
    }


def test_only_what_changed_is_counted(tmp_path: Path) -> None:
    one, other, output = tmp_path / "a", tmp_path / "b", tmp_path / "r.html"
    big = 1 << 53
    ckptfmt.save(one, {"nan": np.array([np.nan, 1, 2]), "i": np.array([big, 5]), "bad": np.ones(2)})
    ckptfmt.save(
        other, {"nan": np.array([np.nan, 1, 3]), "i": np.array([big + 1, 5]), "bad": np.ones(2)}
    )
    with ckptfmt.open(other) as reader:
        flip(Path(f"{other}.data-00000-of-00001"), reader["bad"].offset or 0)
    report(other, output, before=one)
    rows = {row["name"]: row for row in data_of(output)["comparison"]["rows"]}
    assert (rows["nan"]["elements"], rows["nan"]["largest"], rows["nan"]["nans"]) == (1, 1.0, 0)
    assert (rows["i"]["elements"], rows["i"]["largest"]) == (1, None)
    assert rows["bad"]["change"] == "unreadable" and "DAT-6" in rows["bad"]["error"]


def test_large_tensors_are_judged_by_a_sample(tmp_path: Path) -> None:
    rows = np.ones((4096, 256), np.float32)
    rows[:1024] = 0
    values = {"dead": rows, "half": np.zeros((1 << 20,), np.float32), "fine": np.ones((1 << 20,))}
    values["nan"] = np.full((1 << 20,), np.nan)
    ckptfmt.save(tmp_path / "m", values)
    report(tmp_path / "m", tmp_path / "r.html")
    found = {one["name"]: one for one in data_of(tmp_path / "r.html")["tensors"]}
    assert found["half"]["warnings"] == ["all zero in the sample"]
    assert found["fine"]["warnings"] == []
    assert found["nan"]["warnings"] == [f"{found['nan']['stats']['count']:,} NaN in the sample"]
    (warning,) = found["dead"]["warnings"]
    assert re.fullmatch(r"[\d,]+ of 1,024 rows in the sample are zero", warning)


def test_wrong_usage(tmp_path: Path) -> None:
    output = tmp_path / "r.html"
    assert main(["report", str(tmp_path / "nothing"), "-o", str(output)]) == 2
    assert main(["report", str(model(tmp_path / "m")), "-o", str(tmp_path / "no" / "r.html")]) == 2
    assert main(["report", str(tmp_path / "m")]) == 2
    assert not output.exists() and not list(tmp_path.glob("*.tempstate*"))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(64, 4096))
def test_samples_are_inside_and_bounded(dims: list[int], limit: int) -> None:
    class Handle:
        shape, dtype = tuple(dims), np.dtype(np.float32)

    boxes = collect.sample_boxes(Handle(), limit)  # type: ignore[arg-type]
    assert 1 <= len(boxes) <= collect.SAMPLES
    for box in boxes:
        assert all(0 <= one.start < one.stop <= dim for one, dim in zip(box, dims, strict=True))
    size = sum(4 * int(np.prod([one.stop - one.start for one in box])) for box in boxes)
    assert size <= max(limit, 4 * collect.SAMPLES)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_small_shapes(shape: tuple[int, ...], tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "m", {"x": np.zeros(shape)})
    report(tmp_path / "m", tmp_path / "r.html")
    (one,) = data_of(tmp_path / "r.html")["tensors"]
    assert one["warnings"] == []
