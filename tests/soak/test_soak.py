# SPDX-License-Identifier: Apache-2.0
"""The loop of loop.py with a few kills; `make soak` has more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KILLS = os.environ.get("CKPTFMT_SOAK_KILLS", "4")


def test_soak(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    seed = os.environ["CKPTFMT_TEST_SEED"]
    ran = subprocess.run(
        [sys.executable, "-m", "soak.loop", KILLS, seed, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    print(ran.stdout.strip())
