# SPDX-License-Identifier: Apache-2.0
"""Everything in this folder is marked `interop`, and not collected where there is no TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .oracle import Oracle, missing
from .readings import LEAST, READINGS

HERE = Path(__file__).parent
collect_ignore_glob = [] if missing() is None else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "interop: differs with the real TensorFlow; needs the interop extra"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    with Oracle(written=READINGS.read) as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def readings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where all of these tests ran, and in one process, the reference decoder must have read many
    bundles."""
    yield
    files = {item.path for item in request.session.items}
    chosen = request.config.option.keyword or request.config.option.markexpr
    if (
        files >= set(HERE.glob("test_*.py"))
        and not chosen
        and "PYTEST_XDIST_WORKER" not in os.environ
    ):
        assert READINGS.bundles >= LEAST, READINGS.summary()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if READINGS.bundles:
        terminalreporter.write_line(READINGS.summary())
