# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that was saved exactly so many hours after the last permanent one is permanent."""

from __future__ import annotations

import pytest

from ckptfmt.manager.retention import Policy, Queued, decide


@pytest.mark.parametrize(
    ("late", "permanent"), [(-1.0, False), (-0.25, False), (0.0, True), (0.25, True)]
)
def test_hours_are_inclusive(late: float, permanent: bool) -> None:
    begin, hours = 1_000_000.0, 2.0
    old = Queued("ckpt-1", begin + hours * 3600 + late)
    new = Queued("ckpt-2", begin + 1e6)
    done = decide([old, new], begin, Policy(max_to_keep=1, every_n_hours=hours))
    assert done.kept == [new]
    assert done.preserved == ([old] if permanent else [])
    assert done.deleted == ([] if permanent else [old])
    assert done.last_preserved == (old.timestamp if permanent else begin)
