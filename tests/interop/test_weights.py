# SPDX-License-Identifier: Apache-2.0
"""TensorFlow restores what `ckptfmt.keras` saves, which loads what TensorFlow saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ckptfmt.keras import load_weights

from .workers import ask


def test_weights_of_keras_models_go_both_ways(tmp_path: Path) -> None:
    assert ask("tf_weights.py", tmp_path) == []


class Net(keras.Model):
    """Two layers of one shape, made in this order."""

    def __init__(self, order: str) -> None:
        super().__init__()
        for name in order:
            setattr(self, name, keras.layers.Dense(6, name=name))

    def call(self, inputs: Any) -> Any:
        return self.b(self.a(inputs))


def trained(order: str) -> tuple[Any, dict[str, Any]]:
    """Return a model and the moments by variable."""
    model, data = Net(order), np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    model.compile("adam", "mse")
    model.fit(data, 2 * data, epochs=2, verbose=0)
    return model, moments(model)


def moments(model: Any) -> dict[str, Any]:
    variables = {f"{name}/{one.name}": one for name in "ab" for one in getattr(model, name).weights}
    order = [id(one) for one in model.optimizer._trainable_variables]
    return {
        name: np.array(model.optimizer._momentums[order.index(id(one))]).tolist()
        for name, one in variables.items()
    }


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_moments_of_tensorflows_files_go_to_their_variables(tmp_path: Path) -> None:
    model, stored = trained("ab")
    tf.train.Checkpoint(model=model).write(str(tmp_path / "theirs"))
    other, _ = trained("ba")
    assert load_weights(other, tmp_path / "theirs")
    assert moments(other) == stored


def test_what_export_writes(tmp_path: Path) -> None:
    """It has each variable in two lists, and no edge of the model."""

    def made() -> Any:
        parts = [keras.layers.Dense(3, name="d"), keras.layers.BatchNormalization(name="n")]
        return keras.Sequential([keras.Input((4,)), *parts], name="s")

    model, other = made(), made()
    model.export(tmp_path / "exported", verbose=False)
    assert load_weights(other, tmp_path / "exported")
    for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
