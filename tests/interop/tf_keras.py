# SPDX-License-Identifier: Apache-2.0
"""Keras models with their optimizers, saved and restored by TensorFlow, for test_trees.py.

Run as `tf_keras.py COMMAND FOLDER`. `write` trains each model for a few steps, saves it as
`FOLDER/NAME-1`, its weights and the optimizer's variables in order as `FOLDER/NAME.npz`. `read`
restores `FOLDER/NAME-1`, and then `FOLDER/ours-NAME`, each into a model of its own that was just
built, and prints by name of the file what stopped it; the values it saves as `FILE.read.npz`.
"""

from __future__ import annotations

import json
import os
import sys

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from typing import Any  # noqa: E402

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers, optimizers  # noqa: E402


def dense() -> Any:
    return keras.Sequential([keras.Input((6,)), layers.Dense(5, "relu"), layers.Dense(2)])


def convolution() -> Any:
    parts = [layers.Conv2D(3, 3), layers.BatchNormalization(), layers.Dropout(0.1)]
    return keras.Sequential([keras.Input((8, 8, 1)), *parts, layers.Flatten(), layers.Dense(2)])


def recurrent() -> Any:
    return keras.Sequential(
        [keras.Input((7,)), layers.Embedding(11, 4), layers.LSTM(3), layers.Dense(2)]
    )


def shared_layer() -> Any:
    left, right = keras.Input((4,)), keras.Input((4,))
    shared = layers.Dense(3)
    joined = layers.Concatenate()([shared(left), shared(right)])
    return keras.Model([left, right], layers.Dense(2)(joined))


def nested() -> Any:
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.BatchNormalization()])
    outer = keras.Input((4,))
    return keras.Model(outer, layers.Dense(2)(inner(inner(outer))))


class Subclassed(keras.Model):
    """Layers in a list and in a dict, and a layer that two attributes name."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [layers.Dense(4), layers.Dense(4)]
        self.heads = {"one": layers.Dense(2), "two": layers.Dense(2)}
        self.first = self.blocks[0]

    def call(self, inputs: Any) -> Any:
        for block in self.blocks:
            inputs = block(inputs)
        return self.heads["one"](inputs) + self.heads["two"](inputs)


class Plain(tf.Module):
    """Two variables, as they were before Keras."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable(tf.ones((4, 2)))
        self.bias = tf.Variable(tf.zeros((2,)))

    def __call__(self, inputs: Any, training: bool = False) -> Any:
        return inputs @ self.kernel + self.bias

    @property
    def weights(self) -> list[Any]:
        return [self.kernel, self.bias]


class Legacy(tf.compat.v1.train.AdamOptimizer):
    """An optimizer with slot variables."""

    def build(self, variables: Any) -> None:
        self._made_for = tuple(variables)
        self._create_slots(variables)

    @property
    def variables(self) -> list[Any]:
        slots = [self.get_slot(v, name) for v in self._made_for for name in ("m", "v")]
        return [*slots, *self._get_beta_accumulators()]


MODELS = {
    "dense": (dense, lambda: optimizers.Adam(0.01), [(6,)]),
    "convolution": (convolution, lambda: optimizers.SGD(0.01, momentum=0.9), [(8, 8, 1)]),
    "recurrent": (recurrent, lambda: optimizers.RMSprop(0.01, centered=True), [(7,)]),
    "shared_layer": (shared_layer, lambda: optimizers.AdamW(0.01), [(4,), (4,)]),
    "nested": (nested, lambda: optimizers.Adam(0.01, use_ema=True), [(4,)]),
    "subclassed": (Subclassed, lambda: optimizers.Adagrad(0.01), [(4,)]),
    "slots": (Plain, lambda: Legacy(0.01), [(4,)]),
}


def inputs_of(shapes: list[tuple[int, ...]]) -> list[Any]:
    found = [tf.constant(np.arange(3 * np.prod(s)).reshape(3, *s) % 7, tf.float32) for s in shapes]
    return found[0] if len(found) == 1 else found


def made(name: str, steps: int) -> tuple[Any, Any]:
    function, optimizer_of, shapes = MODELS[name]
    model, optimizer, inputs = function(), optimizer_of(), inputs_of(shapes)
    model(inputs)
    optimizer.build(model.trainable_variables)
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs, training=True) - 1.0))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return model, optimizer


def values(model: Any, optimizer: Any) -> dict[str, Any]:
    variables = [*model.weights, *optimizer.variables]
    return {f"v{i}": np.asarray(variable) for i, variable in enumerate(variables)}


def restored(prefix: str, name: str) -> str:
    model, optimizer = made(name, 0)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    outcome = "consumed"
    status = checkpoint.restore(prefix)
    try:
        status.assert_consumed()
    except AssertionError as error:
        outcome = str(error).splitlines()[0]
        status.assert_existing_objects_matched()
    np.savez(f"{prefix}.read.npz", **values(model, optimizer))
    return outcome


def main() -> None:
    command, folder = sys.argv[1:]
    outcomes: dict[str, Any] = {}
    for name in MODELS:
        prefix = os.path.join(folder, name)
        if command == "write":
            model, optimizer = made(name, 3)
            tf.train.Checkpoint(model=model, optimizer=optimizer).save(prefix)
            np.savez(f"{prefix}.npz", **values(model, optimizer))
            outcomes[name] = len(optimizer.variables)
        else:
            for file in (f"{name}-1", f"ours-{name}"):
                outcomes[file] = restored(os.path.join(folder, file), name)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
