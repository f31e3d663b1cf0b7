# SPDX-License-Identifier: Apache-2.0
"""Directories of torch.distributed.checkpoint are a source of drawn recipes like any other."""

from __future__ import annotations

import functools
import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from properties.test_recipes import ENDS, check_average, check_recipe
from support.recipes import BFLOAT16, Source, drawn_arrays
from support.strategies import SEEDS, property_test

OUTLETS = ["v2", "v2+", "ckptfmt", *ENDS, "average"]


def made_directory(folder: Path, number: int, values: int) -> Source:
    """As `support.recipes.made_source`."""
    arrays = drawn_arrays(random.Random(number), "torch", values)
    state = {
        name: torch.tensor(array.view("i2")).view(torch.bfloat16)
        if array.dtype == BFLOAT16
        else torch.tensor(array)
        for name, array in arrays.items()
    }
    # Columns first, as a transposed weight is.
    state = {name: one.mT.contiguous().mT if one.ndim == 2 else one for name, one in state.items()}
    path = folder / f"{number}-{values}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.distributed.checkpoint.save(state, checkpoint_id=path, no_dist=True)
    return Source("dcp", path, arrays, {})


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("directories")
    return functools.cache(functools.partial(made_directory, folder))


@property_test(100, 10_000, seed=SEEDS)
def test_directories_in_recipes(seed: int, sources: Any) -> None:
    chance = random.Random(seed)
    outlet, number = chance.choice(OUTLETS), chance.randrange(12)
    with tempfile.TemporaryDirectory() as name, np.errstate(all="ignore"):
        if outlet == "average":
            several = [sources(number, values) for values in range(chance.choice([2, 3]))]
            check_average(chance, several, Path(name))
        else:
            check_recipe(chance, sources(number, 0), outlet, Path(name))
