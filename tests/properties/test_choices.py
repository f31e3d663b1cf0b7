# SPDX-License-Identifier: Apache-2.0
"""The options of loading mean the same in every call that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from support.choices import CALLS, STORED, check, grid, nested, options
from support.strategies import counted, property_test

import ckptfmt


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    folder = tmp_path_factory.mktemp("choices")
    ckptfmt.save(folder / "flat", STORED)
    ckptfmt.save_tree(folder / "tree", nested(STORED))
    return {False: folder / "flat", True: folder / "tree"}


@pytest.mark.parametrize("name", CALLS)
def test_all_options_together(name: str, prefixes: dict[bool, Path]) -> None:
    words = [check(CALLS[name], given, prefixes) for given in grid()]
    assert words.count("loaded") > len(words) / 4


@property_test(600, 20_000, data=st.data())
def test_options_of_loading_mean_the_same_everywhere(data: Any, prefixes: dict[bool, Path]) -> None:
    call = CALLS[data.draw(st.sampled_from(sorted(CALLS)))]
    counted("choices", **{check(call, data.draw(options()), prefixes): 1})
