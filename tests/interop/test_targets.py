# SPDX-License-Identifier: Apache-2.0
"""Loads into tensors of TensorFlow, which are immutable: refused, and no alias changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from support.strategies import counted, property_test
from support.targets import CALLS, MEMORY_BYTES, Call, Framework, Place, check_load, places


def eager(memory: Any, place: Place) -> Any:
    return tf.zeros(place.shape, memory.dtype)


TENSORFLOW = Framework({"tf.Tensor": (eager, "refused")})


@property_test(60, 2000, data=st.data())
def test_tensors(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(["f4", "i2", "f8", "u1"])))
    elements = MEMORY_BYTES // dtype.itemsize
    chosen = data.draw(st.lists(places(TENSORFLOW, elements), min_size=1, max_size=2))
    call = CALLS[data.draw(st.sampled_from(sorted(CALLS)))]
    prefix = tmp_path_factory.getbasetemp() / "targets"
    made: list[Any] = []

    def load(path: str, targets: dict[str, Any]) -> dict[str, Any]:
        made.extend(tf.identity(one) for one in targets.values())
        made.extend(targets.values())
        return call.load(path, targets)

    found = check_load(TENSORFLOW, chosen, dtype, prefix, Call(call.save, load, call.contains))
    assert found == "refused"
    assert not any(one.numpy().any() for one in made), "an alias changed"
    counted("targets, TensorFlow", refused=1)
