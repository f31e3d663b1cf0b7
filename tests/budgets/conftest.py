# SPDX-License-Identifier: Apache-2.0
"""A ledger of all measurements, printed at the end of the run.

These tests count and never time, so that they give the same result on a busy machine. They run with
`make budgets` and need strace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

SLACK = 0.9  # a budget used to less than this could be tightened


@dataclass
class Ledger:
    """Every measurement of this run, in order."""

    lines: list[str] = field(default_factory=list)

    def check(self, what: str, measured: float, budget: int, aim: int | None) -> None:
        """Record a measurement and compare it with its budget.

        Args:
            what: name of the measurement, with its unit.
            measured: the value.
            budget: the largest allowed value.
            aim: the value to reach one day; None if the budget is the aim.

        Raises:
            AssertionError: the value exceeds the budget.
        """
        wanted = "" if aim is None or measured <= aim else f", aim {aim:,}"
        tighten = ", could be tightened" if measured < budget * SLACK else ""
        line = f"{what:<44} {measured:>11,.1f} of {budget:>9,}{wanted}{tighten}"
        self.lines.append(line)
        if measured > budget:
            raise AssertionError(f"{what}: {measured:,.1f} exceeds the budget of {budget:,}")


LEDGER = Ledger()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """The ledger of this run."""
    yield LEDGER


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LEDGER.lines:
        terminalreporter.section("measured, of the budget")
    for line in LEDGER.lines:
        terminalreporter.write_line(line)
