# SPDX-License-Identifier: Apache-2.0
"""The figures of the benchmark: digests of values, and ratios with their intervals."""

from __future__ import annotations

import pytest
from support.bench import module


def test_digests_tell_values_apart() -> None:
    data = module("data")
    few = data.arrays(3, [8])
    assert data.digest(few) == data.digest(dict(reversed(few.items())))
    name = data.names(3)[1]
    assert data.digest({**few, name: few[name][::-1].copy()}) != data.digest(few)
    large = data.one([300, 1000], 5)
    assert data.digest(large) == data.digest(data.one([300, 1000], 5))
    for i, j in ((0, 1), (0, 1000), (7, 299_999)):
        other = large.reshape(-1).copy()
        other[[i, j]] = other[[j, i]]
        assert data.digest(other.reshape(large.shape)) != data.digest(large), (i, j)
    assert data.digest(large.reshape(1000, 300)) != data.digest(large)


def test_ratio_has_an_interval() -> None:
    stats = module("stats")
    found = stats.ratio([2.0, 2.2, 2.1], [1.0, 1.0, 1.1], 7)
    assert found == stats.ratio([2.0, 2.2, 2.1], [1.0, 1.0, 1.1], 7)
    assert found.value == pytest.approx(2.1)
    assert 2.0 / 1.1 - 1e-9 <= found.low <= found.value <= found.high <= 2.2 + 1e-9
    assert stats.ratio([3.0], [1.5], 7) == (2.0, 2.0, 2.0)
