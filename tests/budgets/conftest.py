# SPDX-License-Identifier: Apache-2.0
"""What the tests of budgets share: a ledger of all that was measured, which ends the run.

These tests count and never time, so that they say the same on a busy machine. They run with
`make budgets`, apart from the others, because a budget holds for one kind of machine and compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

SLACK = 0.9  # a budget that is used to less than this could be tightened


@dataclass
class Ledger:
    """Every measurement of this run, in the order in which they were made."""

    lines: list[str] = field(default_factory=list)

    def check(self, what: str, measured: float, budget: int, aim: int | None) -> None:
        """Enters a measurement and compares it with its budget.

        Args:
            what: Names the measurement and its unit.
            measured: What it takes.
            budget: What it may take.
            aim: What it ought to take one day; None where nothing more is wanted.

        Raises:
            AssertionError: It takes more than it may.
        """
        wanted = "" if aim is None or measured <= aim else f", aim {aim:,}"
        tighten = ", could be tightened" if measured < budget * SLACK else ""
        line = f"{what:<44} {measured:>11,.1f} of {budget:>9,}{wanted}{tighten}"
        self.lines.append(line)
        if measured > budget:
            raise AssertionError(f"{what}: {measured:,.1f}, and the budget is {budget:,}")


LEDGER = Ledger()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """The ledger of this run."""
    yield LEDGER


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LEDGER.lines:
        terminalreporter.section("measured, of what is allowed")
    for line in LEDGER.lines:
        terminalreporter.write_line(line)
