# SPDX-License-Identifier: Apache-2.0
"""A smoke run of all rows of the benchmark: every side computes the same, and the report is whole.
Never its times. `make bench-smoke` runs this; tests/project/test_bench.py has the other tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.bench import ROOT, bench, cells, module


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


def test_a_side_that_is_not_installed_is_named(results: Path) -> None:
    samples = json.loads((results / "latest.json").read_text())
    missing = {side for side, version in samples["versions"].items() if not version}
    assert "ckptfmt" not in missing
    assert "numpy" not in missing
    for entries in samples["rows"].values():
        for entry in entries:
            side = entry["side"].split(",")[0]
            assert bool(entry["samples"]) or entry["word"] in ("not installed", "not offered")
            assert (entry["word"] == "not installed") == (side in missing), entry["side"]


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


def test_the_report_names_no_place(results: Path) -> None:
    for path in results.iterdir():
        text = path.read_text()
        assert str(results.parent) not in text
        assert os.uname().nodename not in text
        assert str(ROOT) not in text


def test_the_picture_is_svg(results: Path) -> None:
    root = ElementTree.fromstring((results / "latest.svg").read_text())  # of our own making
    names = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert names.count("rect") > 5


def test_imports() -> None:
    command = [sys.executable, str(ROOT / "bench" / "imports.py"), "--smoke"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    (rows,) = tables(ran.stdout).values()
    steps = [row[0].strip("`") for row in rows[2:]]
    assert steps == ["import numpy", *(step for step in steps if "ckptfmt" in step)]
    assert all(float(row[1]) >= 0 for row in rows[2:])
