# SPDX-License-Identifier: Apache-2.0
"""What a report holds of two checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files import flip
from support.reports import data_of, reported

import ckptfmt
from ckptfmt.cli import main
from ckptfmt.report import comparison as comparing
from ckptfmt.report import measuring


def test_comparison(tmp_path: Path) -> None:
    one, other, output = tmp_path / "a", tmp_path / "b", tmp_path / "r.html"
    base = {"same": np.array([1.0, np.nan]), "moved": np.array([3.0, 4.0]), "s": np.array(["x"])}
    ckptfmt.save(
        one,
        {**base, "gone": np.ones(2), "type": np.ones(2, np.float32)},
        metadata={"step": 1, "same": 0},
    )
    changed = {"moved": np.array([3.0, 4.5]), "s": np.array(["y"])}
    ckptfmt.save(
        other,
        {**base, **changed, "new": np.ones(2), "type": np.ones(3, np.float32)},
        metadata={"step": 2, "same": 0, "more": []},
    )
    assert main(["report", str(other), "--before", str(one), "-o", str(output)]) == 0
    comparison = data_of(output)["comparison"]
    assert comparison["before"] == str(one)
    assert comparison["metadata"] == [["more", None, "[]"], ["step", "1", "2"]]
    assert comparison["counts"] == {
        "same": 1,
        "changed": 2,
        "removed": 1,
        "added": 1,
        "retyped": 1,
    }
    assert [row["change"] for row in comparison["rows"]][:3] == ["removed", "added", "retyped"]
    rows = {row.pop("name"): row for row in comparison["rows"]}
    numbers = {"largest": None, "relative": None, "nans": [0, 0]}
    sides = {"before": ["float64", [2]], "after": ["float64", [2]]}
    text = {"before": ["string", [1]], "after": ["string", [1]]}
    assert rows == {
        "moved": {
            "change": "changed",
            "elements": 1,
            "nans": [0, 0],
            "largest": 0.5,
            "relative": pytest.approx(0.1),
            **sides,
        },
        "s": {"change": "changed", "elements": 1, **numbers, **text},
        "gone": {"change": "removed", "before": ["float64", [2]]},
        "new": {"change": "added", "after": ["float64", [2]]},
        "type": {"change": "retyped", "before": ["float32", [2]], "after": ["float32", [3]]},
    }


def test_only_what_changed_is_counted(tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    big = 1 << 53
    before = {"nan": np.array([np.nan, 1, 2]), "i": np.array([big, 5]), "bad": np.ones(2)}
    ckptfmt.save(one, before | {"inf": np.array([1.0])})
    after = {"nan": np.array([np.nan, 1, 3]), "i": np.array([big + 1, 5]), "bad": np.zeros(2)}
    ckptfmt.save(other, after | {"inf": np.array([np.inf])})
    with ckptfmt.open(other) as reader:
        flip(Path(f"{other}.data-00000-of-00001"), reader["bad"].offset or 0)
    rows = {row["name"]: row for row in reported(other, before=one)["comparison"]["rows"]}
    nan = rows["nan"]
    assert (nan["elements"], nan["largest"], nan["nans"]) == (1, 1.0, [1, 1])
    assert (rows["i"]["elements"], rows["i"]["largest"]) == (1, 1.0)
    assert rows["inf"]["largest"] == "Infinity"
    assert rows["bad"]["change"] == "unreadable" and "DAT-6" in rows["bad"]["error"]


def test_what_was_not_compared_is_counted(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "a", {"x": np.ones(9), "y": np.ones(3)})
    ckptfmt.save(tmp_path / "b", {"x": np.zeros(9), "y": np.ones(3), "z": np.ones(1)})
    comparison = reported(tmp_path / "b", before=tmp_path / "a", seconds=0)["comparison"]
    # Equal checksums are compared without reading.
    assert comparison["counts"] == {"not compared": 1, "same": 1, "added": 1}


def test_byte_order_is_part_of_the_values(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "big_endian" / "ckpt"
    with ckptfmt.open(golden) as reader:
        tensors = {name: one.read() for name, one in reader.items() if one.dtype_name == "float32"}
        # Stored as the same bytes.
        ckptfmt.save(tmp_path / "m", {name: one.byteswap() for name, one in tensors.items()})
        with ckptfmt.open(tmp_path / "m") as other:
            name = next(name for name in tensors if tensors[name].any())
            assert other[name].crc32c == reader[name].crc32c
            found = comparing.comparison_data(reader, other, measuring.Budget(None))
    assert name in [row["name"] for row in found["rows"] if row["change"] == "changed"]


def test_no_piece_is_read_beyond_the_limit_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckptfmt.save(tmp_path / "a", {"x": np.ones(1 << 17), "y": np.ones(9)})
    ckptfmt.save(tmp_path / "b", {"x": np.zeros(1 << 17), "y": np.zeros(9)})
    read = set()
    whole = ckptfmt.types.TensorHandle.read

    def noted(one: ckptfmt.types.TensorHandle) -> Any:
        read.add(one.name)
        return whole(one)

    monkeypatch.setattr(ckptfmt.types.TensorHandle, "read", noted)
    with ckptfmt.open(tmp_path / "a") as one, ckptfmt.open(tmp_path / "b") as other:
        found = comparing.comparison_data(one, other, measuring.Budget(None, 1 << 20))
    assert found["counts"] == {"changed": 1, "not compared": 1} and read == {"y"}


def test_each_kind_of_change_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "ROWS_MAX", 40)
    for name, other in (("old", "a"), ("new", "b")):
        tensors = {f"{name}{number}": np.ones(1) for number in range(30)}
        ckptfmt.save(tmp_path / other, tensors | {"same": np.ones(1)})
    comparison = reported(tmp_path / "b", before=tmp_path / "a")["comparison"]
    assert comparison["counts"] == {"removed": 30, "added": 30, "same": 1}
    assert comparison["unread"] == 1 and len(comparison["rows"]) == 60


def test_credentials_of_a_url_are_masked(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "a", {"x": np.ones(9)})
    secret = f"file://{tmp_path}/a"
    data = reported(tmp_path / "a", before=secret)
    assert data["comparison"]["counts"] == {"same": 1}
