# SPDX-License-Identifier: Apache-2.0
"""`verify` beside a process that overwrites the checkpoint: it starts again from the new index."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

import ckptfmt

SAVES = 150


def test_verify_beside_a_writer(tmp_path: Path) -> None:
    prefix = tmp_path / "ck"
    done = threading.Event()

    def overwrite() -> None:
        try:
            for step in range(SAVES):
                arrays = {f"w{i}": np.full(1000 + step, step + i) for i in range(10)}
                ckptfmt.save(prefix, arrays, durability="rename")
        finally:
            done.set()

    ckptfmt.save(prefix, {"w0": np.zeros(3)})
    writer = threading.Thread(target=overwrite)
    writer.start()
    found = []
    try:
        while not done.is_set():
            # A writer that is faster than ten verifications in a row is a finding of its own.
            found += [
                one for one in ckptfmt.verify(prefix).problems if one.failure != "GENERATION_GONE"
            ]
    finally:
        writer.join()
    found += ckptfmt.verify(prefix).problems
    assert found == []
