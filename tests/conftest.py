# SPDX-License-Identifier: Apache-2.0
"""One seed for everything random in a run: CKPTFMT_TEST_SEED, 1 if it is not set.

Hypothesis gets it too. Tests marked `slow` need gigabytes or minutes and run with `--slow`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from support import strategies
from support.background import Gate

from ckptfmt._base import background

VARIABLE = "CKPTFMT_TEST_SEED"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")


# First, so that Hypothesis finds its seed; before xdist starts workers, which inherit the variable.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: needs gigabytes or minutes; runs with --slow")
    config.addinivalue_line("markers", "properties: runs long in `make properties`")
    seed = os.environ.setdefault(VARIABLE, "1")
    # Whoever was started in the background of a script has Ctrl-C ignored, and its children too.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if getattr(config.option, "hypothesis_seed", "") is None:
        config.option.hypothesis_seed = int(seed, 0)


def pytest_report_header() -> str:
    return f"seed: {VARIABLE}={os.environ[VARIABLE]}"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int | pytest.ExitCode
) -> None:
    if strategies.LONG:
        for group, counts in sorted(strategies.DRAWN.items()):
            found = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
            terminalreporter.write_line(f"drawn: {group}: {found}")
    if exitstatus:
        terminalreporter.write_line(f"to have the same again: {VARIABLE}={os.environ[VARIABLE]}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow: runs with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def seed() -> int:
    """The seed of this run."""
    return int(os.environ[VARIABLE], 0)


@pytest.fixture
def saves_end() -> Iterator[None]:
    """Keep the background saves of one test away from the next."""
    yield
    background.wait_for_saves()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Background saves wait here before they write."""
    with Gate(monkeypatch) as found:
        yield found
