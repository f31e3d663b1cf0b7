# SPDX-License-Identifier: Apache-2.0
"""Every opener beside every hostile thing: a result or a typed error, in time and memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.hostile import OPENERS, check_opener
from support.strategies import LONG

MUTANTS = max(25, round(3000 * LONG))


@pytest.mark.parametrize("opener", OPENERS)
def test_every_opener(opener: str, tmp_path: Path, seed: int) -> None:
    check_opener(opener, tmp_path, seed, MUTANTS)
