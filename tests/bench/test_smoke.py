# SPDX-License-Identifier: Apache-2.0
"""A smoke run of all rows of the benchmark: every side computes the same, and the report is whole.
Never its times. `make bench-smoke` runs this; tests/project/test_bench.py has the other tests."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.bench import bench, cells, module


def tables(text: str) -> dict[str, list[list[str]]]:
    """The rows of each table, by the first two cells of its head."""
    found: dict[str, list[list[str]]] = {}
    rows: list[list[str]] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            rows = []
            continue
        rows.append(cells(line))
        if len(rows) == 3:
            found[" ".join(rows[0][:2])] = rows
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a smoke run of all rows."""
    folder = tmp_path_factory.mktemp("bench")
    names = sorted({row.key for row in module("cases").rows("smoke")})
    ran = bench(
        *("--smoke", "--folder", str(folder), "--results", str(folder / "results")),
        *("--seed", os.environ["CKPTFMT_TEST_SEED"], *names),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "OTHER VALUES" not in ran.stdout + ran.stderr
    assert [path.name for path in folder.iterdir()] == ["results"], "files left behind"
    return folder / "results"


def test_every_row_is_in_the_report(results: Path) -> None:
    cases = module("cases")
    wanted = {row.key for row in cases.rows("smoke")}
    wanted |= {key for row in cases.rows("smoke") for key in row.also}
    everything = tables((results / "latest.md").read_text())["row side"]
    assert {row[0] for row in everything[2:] if not row[0].startswith("**")} == wanted
    samples = json.loads((results / "latest.json").read_text())
    assert samples["wrong"] == []
    for key, entries in samples["rows"].items():
        ours = [entry for entry in entries if entry["side"].startswith("ckptfmt")]
        assert ours, key
        for entry in ours:
            assert entry["word"] == "", key
            assert len(entry["samples"]) in (1, 2), key
            assert all(sample["seconds"] > 0 for sample in entry["samples"]), key


def test_every_target_has_its_row(results: Path) -> None:
    cases = module("cases")
    text = (results / "latest.md").read_text()
    head, _, *rows = tables(text)["row case"]
    assert head[:4] == ["row", "case", "ours", "x TensorFlow (95%)"]
    must, met = head.index("must / moonshot"), head.index("met")
    assert [row[0] for row in rows] == [target.key for target in cases.TARGETS]
    assert all(len(row) == len(head) for row in rows)
    for row, target in zip(rows, cases.TARGETS, strict=True):
        assert row[must].startswith(f"{target.must:g} / {target.moonshot:g}")
        assert row[met].split(",")[0] in ("yes", "no", "moonshot", "?")
    limits = {row[0] for row in tables(text)["limit what"][2:]}
    assert limits >= {"memcpy", "write", "pread fresh", "pread reused", "crc"}
