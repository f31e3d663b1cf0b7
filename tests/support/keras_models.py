# SPDX-License-Identifier: Apache-2.0
"""Keras models of every kind, with weights that depend on a seed only.

Run as `keras_models.py COMMAND FOLDER`: `write` saves each model in every form
that `ckptfmt.keras` has, `read` loads what `write` saved, on any backend, and prints what was
different, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

import ckptfmt.keras

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "sequential": [(8,)],
    "functional": [(4, 5)],
    "shared": [(4,), (4,)],
    "nested": [(4,)],
    "convolution": [(8, 8, 1)],
    "in_lists": [(4,)],
    "subclassed": [(4,)],
}


def sequential() -> Any:
    """With a random seed, and layers in layers."""
    parts = [layers.Embedding(11, 4), layers.Bidirectional(layers.LSTM(3))]
    return keras.Sequential([keras.Input((8,)), *parts, layers.Dropout(0.2), layers.Dense(2)])


def functional() -> Any:
    inputs = keras.Input((4, 5))
    found = layers.MultiHeadAttention(2, 3)(inputs, inputs)
    found = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(found + inputs))
    return keras.Model(inputs, layers.Dense(2)(found))


def shared() -> Any:
    left, right = keras.Input((4,)), keras.Input((4,))
    both = layers.Dense(3)
    joined = layers.Concatenate()([both(left), both(right)])
    return keras.Model([left, right], layers.Dense(2)(joined))


def nested() -> Any:
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.BatchNormalization()])
    outer = keras.Input((4,))
    return keras.Model(outer, layers.Dense(2)(inner(inner(outer))))


def convolution() -> Any:
    parts = [layers.Conv2D(3, 3), layers.SeparableConv2D(4, 3), layers.BatchNormalization()]
    last = layers.EinsumDense("ab,bc->ac", output_shape=2)
    return keras.Sequential([keras.Input((8, 8, 1)), *parts, layers.Flatten(), last])


class in_lists(keras.Model):  # noqa: N801 (named as the other models)
    """Layers in a list, in a dict and in both, and a variable that no attribute names."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [layers.Dense(4, name="one"), layers.Dense(4, name="two")]
        self.heads = {"one": layers.Dense(2, name="three"), "two": layers.Dense(2, name="four")}
        self.first = self.blocks[0]
        self.scale = self.add_weight(shape=(2,), name="scale")
        self.add_weight(shape=(2,), name="hidden")

    def call(self, inputs: Any) -> Any:
        for block in self.blocks:
            inputs = block(inputs)
        return self.heads["one"](inputs) * self.scale + self.heads["two"](inputs)


class subclassed(keras.Model):  # noqa: N801
    """Layers in attributes, of which the weights of one have no names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = layers.Dense(4)
        self.norm = layers.BatchNormalization()
        self.dropout = layers.Dropout(0.1)
        self.head = layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.head(self.dropout(self.norm(self.encoder(inputs))))


def built(name: str, optimizer: Any = None) -> Any:
    """A model with its variables, which have other values in each process."""
    keras.utils.clear_session()
    model = globals()[name]()
    found = [np.ones((1, *shape), np.float32) for shape in SHAPES[name]]
    model(found[0] if len(found) == 1 else found)
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse")
    return model


def variables_of(model: Any) -> list[Any]:
    return [*model.variables, *model.optimizer.variables]


def made(name: str, optimizer: Any = None) -> Any:
    """A model whose variables have values of their own."""
    model = built(name, optimizer)
    model.optimizer.build(model.trainable_variables)
    for index, variable in enumerate(variables_of(model)):
        values = np.arange(np.prod(variable.shape)).reshape(variable.shape) + 100 * index
        variable.assign(values.astype(str(variable.dtype)))
    return model


def values(model: Any, seeds: bool = False) -> list[list[Any]]:
    """The values of all variables, and whether the states of seeds are among them."""
    return [
        keras.ops.convert_to_numpy(variable).ravel().tolist()
        for variable in variables_of(model)
        if seeds or "seed" not in variable.path
    ]


def write(folder: Path) -> dict[str, Any]:
    for name in SHAPES:
        model = made(name)
        for by in ("graph", "path", "h5"):
            ckptfmt.keras.save_weights(model, folder / f"{name}-{by}", by=by)
        ckptfmt.keras.save_weights(model, folder / f"{name}-seeds", seeds=True)
        ckptfmt.keras.save_weights(model, folder / f"{name}.weights.h5")
    return {}


def read(folder: Path) -> dict[str, Any]:
    """Load every file into a model, whose optimizer is not built at first."""
    found = {}
    for name in SHAPES:
        expected = {seeds: values(made(name), seeds) for seeds in (False, True)}
        model = built(name)
        for form in ("-graph", "-path", "-h5", "-seeds", ".weights.h5"):
            report = ckptfmt.keras.load_weights(model, folder / f"{name}{form}")
            same = expected[form == "-seeds"]
            # The generators of the process are not variables of the model.
            count = sum(not one.startswith("random_state/") for one in report.matched)
            if values(model, form == "-seeds") != same or count != len(same):
                found[f"{name}{form}"] = str(report)
            for variable in variables_of(model):
                variable.assign(np.zeros(variable.shape, str(variable.dtype)))
    return found


def main() -> None:
    command, folder = sys.argv[1:]
    print(json.dumps({"write": write, "read": read}[command](Path(folder))))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
