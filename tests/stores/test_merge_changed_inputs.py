# SPDX-License-Identifier: Apache-2.0
"""Inputs of a merge that another writer saves again while they are merged."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from support.dict_client import mount

import ckptfmt
from ckptfmt import errors
from ckptfmt.stores import waiting

FOLDER = "dict://bucket/run"
PARTS = ["a", "b"]


def save(name: str, value: int) -> None:
    ckptfmt.save(f"{FOLDER}/{name}", {name: np.full(1000, value)})


@pytest.mark.parametrize("inputs", ["keep", "consume"])
@pytest.mark.parametrize("changed", PARTS)
def test_an_input_that_is_saved_again_stops_the_merge(
    monkeypatch: pytest.MonkeyPatch, inputs: Literal["keep", "consume"], changed: str
) -> None:
    """Once both were read. The new values are kept, and the destination is not made of old ones."""
    monkeypatch.setattr(waiting, "PAUSE", 0)
    client = mount(monkeypatch)
    for part in PARTS:
        save(part, 1)
    calls = []

    def before(method: str, key: str) -> None:
        calls.append((method, key))
        copied = [one for one in calls if one[0] == "copy"]
        if len(copied) == len(PARTS) and method != "copy":
            client.before = lambda method, key: None
            save(changed, 2)

    client.before = before
    merge = [f"{FOLDER}/{part}" for part in PARTS], f"{FOLDER}/whole"
    with pytest.raises(errors.BusyError):
        ckptfmt.merge(*merge, inputs=inputs)
    assert client.before is not before, calls
    assert "run/whole.index" not in client.objects
    values = {part: 1 + (part == changed) for part in PARTS}
    assert {part: ckptfmt.load(f"{FOLDER}/{part}")[part][0] for part in PARTS} == values
    ckptfmt.merge(*merge, inputs=inputs)
    found = ckptfmt.load(f"{FOLDER}/whole")
    assert {part: found[part][0] for part in PARTS} == values
