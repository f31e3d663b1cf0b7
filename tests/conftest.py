# SPDX-License-Identifier: Apache-2.0
"""One seed for everything random in a run: CKPTFMT_TEST_SEED, 1 if it is not set.

Hypothesis gets it too. Tests marked `slow` are long, large or the rest of a sample, and run with
`--slow`. Tests that take more than a second of processor time are `slow`, `properties`, or in
long_tests.txt, and those may take 30 seconds together.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from support import strategies
from support.background import Gate

from ckptfmt._base import background

VARIABLE = "CKPTFMT_TEST_SEED"
LONG_TESTS = Path(__file__).with_name("long_tests.txt")  # a line each: test, reason
BEGAN = pytest.StashKey[float]()
USUAL_SECONDS = 0.05  # of a million additions

# Hypothesis also draws numbers and texts that it finds in the modules loaded by then, which depend
# on the tests that ran before in the same process: one seed would draw this here and that there.
providers._get_local_constants = Constants
# Where the environment says that this is CI, it would take another profile, which has no seed.
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")
    parser.addoption(
        "--cpu-limit",
        type=float,
        metavar="SECONDS",
        help="fail if a test that is not in long_tests.txt takes more time of a processor of usual "
        "speed, or those in it 30 times as much together",
    )


# First, so that Hypothesis finds its seed; before xdist starts workers, which inherit the variable.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "slow: long, large, or the rest of a sample; runs with --slow"
    )
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
    for line in too_long(terminalreporter.config):
        terminalreporter.write_line(line)
    if exitstatus:
        terminalreporter.write_line(f"to have the same again: {VARIABLE}={os.environ[VARIABLE]}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The longest first, so that no process is left with one at the end.
    long = [*long_tests()]
    items.sort(
        key=lambda item: (base_of(item.nodeid) not in long, "properties" not in item.keywords)
    )
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow: runs with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


# ---- processor time of each test -----------------------------------------------------------------


def long_tests() -> set[str]:
    """The tests that may take more than a second."""
    lines = LONG_TESTS.read_text(encoding="utf-8").splitlines()
    return {line.partition(" ")[0] for line in lines}


def base_of(name: str) -> str:
    """The name of a test without its parameters."""
    return name.partition("[")[0]


def processor_seconds() -> float:
    """Of this process, and of children that it has waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[BEGAN] = processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        seconds = processor_seconds() - item.stash[BEGAN]
        report.user_properties.append(("cpu", seconds / slowness() if seconds > 1 else seconds))
    return report


def slowness() -> float:
    """How many times as long as usual the processor takes now, at least 1: others may use it."""
    began = time.process_time()
    for number in range(1_000_000):
        number + 1
    return max(1, (time.process_time() - began) / USUAL_SECONDS)


def too_long(config: pytest.Config) -> list[str]:
    """What took more processor time than `--cpu-limit` allows, a line each."""
    limit = config.getoption("--cpu-limit")
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if limit is None or reporter is None:
        return []
    took = [
        (seconds, report)
        for reports in reporter.stats.values()
        for report in reports
        for name, seconds in getattr(report, "user_properties", ())
        if name == "cpu" and report.when == "teardown"
    ]
    listed = long_tests()
    lines = [
        f"{seconds:.1f} s: {report.nodeid}: mark it slow, or add it to {LONG_TESTS.name}"
        for seconds, report in took
        if seconds > limit and base_of(report.nodeid) not in listed
        if not {"slow", "properties"} & report.keywords.keys()
    ]
    together = sum(seconds for seconds, report in took if base_of(report.nodeid) in listed)
    if together > 30 * limit:
        lines.append(f"{together:.1f} s: the tests in {LONG_TESTS.name}")
    return lines


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == 0 and too_long(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


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
