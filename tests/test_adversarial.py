# SPDX-License-Identifier: Apache-2.0
"""How much of the adversarial checklist the test_adversarial_*.py files cover between them."""

from __future__ import annotations

import re

import test_adversarial_files
import test_adversarial_index
import test_adversarial_rest
import test_adversarial_values


def test_there_are_cases() -> None:
    modules = (
        test_adversarial_files,
        test_adversarial_index,
        test_adversarial_values,
        test_adversarial_rest,
    )
    cases = [name for module in modules for name in module.case]
    assert len(cases) == len(set(cases))
    items = {one for name in cases for one in name.split("+") if re.fullmatch("[A-O][0-9]+", one)}
    print(f"{len(items)} items of the checklist in {len(cases)} cases")
    assert len(items) >= 145
