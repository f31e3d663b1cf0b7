# SPDX-License-Identifier: Apache-2.0
"""A smoke run of all rows of the benchmark: every side computes the same. Never its times.

`make bench-smoke` runs this; tests/project/test_bench.py has the other tests.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from support.bench import bench, module


def test_every_row_runs(tmp_path: Path) -> None:
    names = sorted({row.key for row in module("cases").rows("smoke")})
    ran = bench(
        *("--smoke", "--folder", str(tmp_path), "--results", str(tmp_path / "results")),
        *("--seed", os.environ["CKPTFMT_TEST_SEED"], *names),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "OTHER VALUES" not in ran.stdout + ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["results"], "files left behind"
    samples = json.loads((tmp_path / "results" / "latest.json").read_text())
    assert samples["wrong"] == []
    assert samples["rows"].keys() >= set(names)
    for key, entries in samples["rows"].items():
        ours = [entry for entry in entries if entry["side"].startswith("ckptfmt")]
        assert ours and all(entry["samples"] and entry["word"] == "" for entry in ours), key
