# SPDX-License-Identifier: Apache-2.0
"""Everything in this folder is marked `interop`, and skipped where there is no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .oracle import Oracle, missing

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "interop: differs with the real TensorFlow; needs the interop extra"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    reason = missing() if here else None
    for item in here:
        item.add_marker(pytest.mark.interop)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    with Oracle() as running:
        yield running
