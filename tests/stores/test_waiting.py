# SPDX-License-Identifier: Apache-2.0
"""How long a request is tried, on a clock of the test: two limits at most."""

from __future__ import annotations

import contextlib
import errno

import pytest

from ckptfmt.stores import waiting
from ckptfmt.stores.client import BodyError

LIMIT = 7.0
STALL, BROKEN = waiting.StallError(LIMIT), BodyError(errno.EIO, "broken")


@pytest.mark.parametrize(
    ("problem", "seconds", "moved", "tries"),
    [
        (STALL, LIMIT, 0, 2),
        # That bytes arrive before each silence is not enough.
        (STALL, LIMIT, waiting.PROGRESS + 1, 2),
        (STALL, LIMIT, 1, 2),
        # Without silence: four tries that bring nothing, in two limits.
        (BROKEN, 0.0, 0, 4),
        (BROKEN, LIMIT, 0, 2),
        (BROKEN, LIMIT - 1, 1, 3),
        (BROKEN, 0.0, waiting.PROGRESS // 8, 4),
        # While bytes arrive, it may take any time.
        (BROKEN, 2 * LIMIT - 1, waiting.PROGRESS, 1000),
    ],
)
def test_how_often_a_request_is_sent(
    monkeypatch: pytest.MonkeyPatch, problem: OSError, seconds: float, moved: int, tries: int
) -> None:
    now = 0.0
    monkeypatch.setattr(waiting._current, "group", waiting.Group())  # it remembers a stall
    monkeypatch.setenv(waiting.STALL_VARIABLE, str(LIMIT))
    monkeypatch.setattr(waiting, "PAUSE", 0)
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now)
    budget = waiting.Budget()
    done = 0
    with contextlib.suppress(type(problem)):
        while done < 1000:
            now, done = now + seconds, done + 1
            budget.again(problem, moved)
    assert done == tries
