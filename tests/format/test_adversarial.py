# SPDX-License-Identifier: Apache-2.0
"""How much of the adversarial checklist the test_adversarial_*.py files cover between them."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path


def test_there_are_cases() -> None:
    paths = sorted(Path(__file__).parent.glob("test_adversarial_*.py"))
    cases = [name for path in paths for name in import_module(path.stem).case]
    assert len(cases) == len(set(cases))
    items = {one for name in cases for one in name.split("+") if re.fullmatch("[A-O][0-9]+", one)}
    print(f"{len(items)} items of the checklist in {len(cases)} cases")
    assert len(items) >= 145
