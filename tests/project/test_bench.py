# SPDX-License-Identifier: Apache-2.0
"""The figures of the benchmark: digests, ratios and peaks of memory. Never its times."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.bench import ROOT, cells, module


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """With the modules that it imports by names of theirs that are common."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    try:
        yield importlib.import_module("report")
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "bench")):
                del sys.modules[name]


def run_of(report: ModuleType, key: str, peaks: dict[str, int]) -> Any:
    """A run with one row, in which ours took a second, others two, and so many KiB each."""
    cases, measure = (sys.modules[name] for name in ("cases", "measure"))
    row = next(row for row in cases.rows("quick") if row.key == key)
    entries = []
    for part in cases.only(row, set(peaks)).parts:
        sample = {"seconds": 2.0 - (part.side == cases.OURS), "group": 0}
        sample["peak_kib"] = peaks[part.side]
        entries.append(measure.Entry(part, 4, 1 << 30, samples=[sample], first=sample))
    limits = SimpleNamespace(rates={}, all={})
    found = report.Run(measure.Plan("quick", 1, 1, 0.0, 1), limits, ROOT)
    found.add(row, entries)
    return found


def test_memory_that_was_kept_is_no_peak(report: ModuleType) -> None:
    """A load into it takes none, which says nothing of what it takes."""
    peaks = {"ckptfmt": 0, "tensorflow": 0}
    rows = [cells(line) for line in run_of(report, "B6-C", peaks)._peaks()][2:]
    assert rows == [["B6-C", "ckptfmt", "not seen", "?"], ["B6-C", "tensorflow", "not seen", ""]]
    peaks = {"ckptfmt": (1 << 20) + 5120, "tensorflow": 1 << 20}
    rows = [cells(line) for line in run_of(report, "B6-C", peaks)._peaks()][2:]
    assert rows == [["B6-C", "ckptfmt", "5", "yes"], ["B6-C", "tensorflow", "0", ""]]


def test_digests_tell_values_apart() -> None:
    data = module("data")
    few = data.arrays(3, [8])
    assert data.digest(few) == data.digest(dict(reversed(few.items())))
    name = data.names(3)[1]
    assert data.digest({**few, name: few[name][::-1].copy()}) != data.digest(few)
    large = data.one([300, 1000], 5)
    assert data.digest(large) == data.digest(data.one([300, 1000], 5))
    for i, j in ((0, 1), (0, 1000), (7, 299_999)):
        other = large.reshape(-1).copy()
        other[[i, j]] = other[[j, i]]
        assert data.digest(other.reshape(large.shape)) != data.digest(large), (i, j)
    assert data.digest(large.reshape(1000, 300)) != data.digest(large)


def test_ratio_has_an_interval() -> None:
    stats = module("stats")
    found = stats.ratio([2.0, 2.2, 2.1], [1.0, 1.0, 1.1], 7)
    assert found == stats.ratio([2.0, 2.2, 2.1], [1.0, 1.0, 1.1], 7)
    assert found.value == pytest.approx(2.1)
    assert 2.0 / 1.1 - 1e-9 <= found.low <= found.value <= found.high <= 2.2 + 1e-9
    assert stats.ratio([3.0], [1.5], 7) == (2.0, 2.0, 2.0)
