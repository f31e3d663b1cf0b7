# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs with what is installed, and its report has its form. Never its times."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.bench import ROOT, bench, cells, module


def test_a_quick_run_has_the_targets_and_all_cases() -> None:
    cases = module("cases")
    quick = [row for row in cases.rows("quick") if not row.extra]
    assert {target.key for target in cases.TARGETS} <= {row.key for row in quick}
    assert {row.case for row in quick} == {row.case for row in cases.rows("full")}


def test_who_does_something_else_is_named_so() -> None:
    cases = module("cases")
    for profile in ("smoke", "quick", "full"):
        for row in cases.rows(profile):
            for part in row.parts:
                assert part.label or not (part.verb or part.arguments) or part is row.parts[0], row


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


def test_a_side_that_failed_in_one_group_takes_no_part_in_the_next(report: ModuleType) -> None:
    """Ours is in all of them."""
    cases, measure, session = (sys.modules[name] for name in ("cases", "measure", "session"))
    row = next(row for row in cases.rows("quick") if row.key == "B1-P")
    ours, *others = [measure.Entry(part) for part in row.parts]

    class Failing(measure.Measurer):  # type: ignore[name-defined, misc]
        def _call(self, _row: Any, part: Any, *_arguments: Any) -> dict[str, Any]:
            if part.side == cases.OURS:
                raise session.BenchError("broken")
            return {"seconds": 1.0}

    measurer = Failing(measure.Plan("quick", 5, 3, 60.0, 1), None, ROOT)
    for number, group in enumerate((others[:2], others[2:4])):
        measurer._sample(row, [ours, *group], number)
    assert (ours.word, ours.samples) == ("failed: broken", [])
    assert all(len(entry.samples) >= 3 and not entry.word for entry in others[:4])


def test_in_short_it_says_what_tensorflow_does_instead(report: ModuleType) -> None:
    peaks = {"ckptfmt": 0, "tensorflow": 0}
    for key, told in (("B5-map", "2.00 x (loads all into tensors of its own)"), ("B6-C", "2.00 x")):
        last = run_of(report, key, peaks).short().splitlines()[-1]
        assert cells(last)[2] == told


def test_an_unknown_case_is_refused() -> None:
    ran = bench("--smoke", "B99")
    assert ran.returncode == 1
    assert ran.stderr.startswith("B99 is no case; there are B1, ")


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
