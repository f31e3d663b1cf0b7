# SPDX-License-Identifier: Apache-2.0
"""An index is read from its end; an answer with fewer bytes than asked for is completed."""

from __future__ import annotations

import numpy as np
import pytest
from support.dict_client import DictClient, mount

import ckptfmt
from ckptfmt.stores import waiting

URL = "dict://bucket/run/model"


def saved(client: DictClient, count: int) -> dict[str, np.ndarray]:
    names = np.random.default_rng(1).integers(0, 1 << 62, count)
    tensors = {f"{name:062b}": np.array(at) for at, name in enumerate(names)}
    ckptfmt.save(URL, tensors)
    return tensors


@pytest.mark.parametrize("lacking", [1, 48, 1000])
@pytest.mark.parametrize("count", [1, 3000])
def test_the_end_of_an_index_is_completed(
    monkeypatch: pytest.MonkeyPatch, count: int, lacking: int
) -> None:
    monkeypatch.setattr(waiting, "PAUSE", 0)
    client = mount(monkeypatch)
    tensors = saved(client, count)
    cut = iter([True])
    client.answer = lambda body: body[:-lacking] if next(cut, False) else body
    with ckptfmt.open(URL) as reader:
        assert sorted(reader) == sorted(tensors)
        name = max(tensors)
        assert reader[name].read() == tensors[name]
    assert next(cut, None) is None
