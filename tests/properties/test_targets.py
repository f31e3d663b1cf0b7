# SPDX-License-Identifier: Apache-2.0
"""Loads into memory that exists: exactly the asked elements get the stored values, or the load is
refused and nothing changes, for all aliases of the memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support.strategies import counted, property_test
from support.targets import CALLS, DTYPES, MEMORY_BYTES, NUMPY, check_load, places


@property_test(100, 20_000, data=st.data())
def test_a_load_writes_where_it_was_told_or_is_refused(
    data: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    elements = MEMORY_BYTES // dtype.itemsize
    chosen = data.draw(st.lists(places(NUMPY, elements), min_size=1, max_size=3))
    call = CALLS[data.draw(st.sampled_from(sorted(CALLS)))]
    prefix = tmp_path_factory.getbasetemp() / "targets"
    counted("targets", **{check_load(NUMPY, chosen, dtype, prefix, call): 1})
