# SPDX-License-Identifier: Apache-2.0
"""Keras models that draw random numbers, trained, saved and continued in another process.

Run as `keras_random.py COMMAND FOLDER`, on any backend: `save` trains a model of every case, saves
it with its seeds and trains on; `resume` loads each into a model of its own and trains on as well.
Both print the losses and the final weights by case, as JSON, and `save` the cases of which
`save_weights` warned.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

import ckptfmt
from ckptfmt.keras import load_weights, save_weights

IMAGE, SEQUENCE, VOLUME = (8, 8, 3), (4, 6), (2, 4, 4, 3)
RATES = {"dropout": 0.4, "recurrent_dropout": 0.3}

# What makes each layer that has the argument `seed`, and the shape that it takes.
Case = tuple[Callable[..., Any], tuple[int, ...]]
CASES: dict[str, Case] = {
    "Dropout": (lambda **seed: layers.Dropout(0.5, **seed), SEQUENCE),
    "Dropout of a noise shape": (
        lambda **seed: layers.Dropout(0.5, noise_shape=(None, 1, None), **seed),
        SEQUENCE,
    ),
    "AlphaDropout": (lambda **seed: layers.AlphaDropout(0.5, **seed), SEQUENCE),
    "GaussianDropout": (lambda **seed: layers.GaussianDropout(0.5, **seed), SEQUENCE),
    "GaussianNoise": (lambda **seed: layers.GaussianNoise(0.5, **seed), SEQUENCE),
    "SpatialDropout1D": (lambda **seed: layers.SpatialDropout1D(0.5, **seed), SEQUENCE),
    "SpatialDropout2D": (lambda **seed: layers.SpatialDropout2D(0.5, **seed), IMAGE),
    "SpatialDropout3D": (lambda **seed: layers.SpatialDropout3D(0.5, **seed), VOLUME),
    "Attention": (lambda **seed: OfItself(layers.Attention(dropout=0.5, **seed)), SEQUENCE),
    "AdditiveAttention": (lambda **_: OfItself(layers.AdditiveAttention(dropout=0.5)), SEQUENCE),
    "MultiHeadAttention": (
        lambda **seed: OfItself(layers.MultiHeadAttention(2, 3, dropout=0.5, **seed)),
        SEQUENCE,
    ),
    "GroupQueryAttention": (
        lambda **seed: OfItself(layers.GroupQueryAttention(2, 4, 2, dropout=0.5, **seed)),
        SEQUENCE,
    ),
    "SimpleRNNCell": (lambda **seed: rnn(layers.SimpleRNNCell(6, **RATES, **seed)), SEQUENCE),
    "GRUCell": (lambda **seed: rnn(layers.GRUCell(6, **RATES, **seed)), SEQUENCE),
    "LSTMCell": (lambda **seed: rnn(layers.LSTMCell(6, **RATES, **seed)), SEQUENCE),
    "StackedRNNCells": (
        lambda **seed: rnn([layers.LSTMCell(6, **RATES, **seed) for _ in range(2)]),
        SEQUENCE,
    ),
    "SimpleRNN": (
        lambda **seed: layers.SimpleRNN(6, return_sequences=True, **RATES, **seed),
        SEQUENCE,
    ),
    "GRU": (lambda **seed: layers.GRU(6, return_sequences=True, **RATES, **seed), SEQUENCE),
    "LSTM": (lambda **seed: layers.LSTM(6, return_sequences=True, **RATES, **seed), SEQUENCE),
    "Bidirectional": (
        lambda **seed: layers.Bidirectional(
            layers.LSTM(3, return_sequences=True, **RATES, **seed), merge_mode="sum"
        ),
        SEQUENCE,
    ),
    "ConvLSTM1D": (
        lambda **seed: layers.ConvLSTM1D(
            3, 1, padding="same", return_sequences=True, **RATES, **seed
        ),
        IMAGE,
    ),
    "ConvLSTM2D": (
        lambda **seed: layers.ConvLSTM2D(
            3, 1, padding="same", return_sequences=True, **RATES, **seed
        ),
        VOLUME,
    ),
    "ConvLSTM3D": (
        lambda **seed: layers.ConvLSTM3D(
            3, 1, padding="same", return_sequences=True, **RATES, **seed
        ),
        (2, *VOLUME),
    ),
    "AugMix": (lambda **seed: layers.AugMix((0, 1), **seed), IMAGE),
    "CutMix": (lambda **seed: Labelled(layers.CutMix(**seed)), IMAGE),
    "MixUp": (lambda **seed: Labelled(layers.MixUp(**seed)), IMAGE),
    "RandAugment": (lambda **seed: layers.RandAugment((0, 1), **seed), IMAGE),
    "RandomBrightness": (lambda **seed: layers.RandomBrightness(0.5, (0, 1), **seed), IMAGE),
    "RandomColorDegeneration": (
        lambda **seed: layers.RandomColorDegeneration(0.5, (0, 1), **seed),
        IMAGE,
    ),
    "RandomColorJitter": (
        lambda **seed: layers.RandomColorJitter((0, 1), 0.3, 0.3, (0.3, 0.6), 0.3, **seed),
        IMAGE,
    ),
    "RandomContrast": (lambda **seed: layers.RandomContrast(0.5, (0, 1), **seed), IMAGE),
    "RandomCrop": (
        lambda **seed: Padded(layers.RandomCrop(8, 8, **seed)),
        IMAGE,
    ),
    "RandomElasticTransform": (
        lambda **seed: layers.RandomElasticTransform(value_range=(0, 1), **seed),
        IMAGE,
    ),
    "RandomErasing": (lambda **seed: layers.RandomErasing(value_range=(0, 1), **seed), IMAGE),
    "RandomFlip": (layers.RandomFlip, IMAGE),
    "RandomGaussianBlur": (
        lambda **seed: layers.RandomGaussianBlur(sigma=(0.5, 2.0), value_range=(0, 1), **seed),
        IMAGE,
    ),
    "RandomGrayscale": (layers.RandomGrayscale, IMAGE),
    "RandomHue": (lambda **seed: layers.RandomHue(0.5, (0, 1), **seed), IMAGE),
    "RandomInvert": (lambda **seed: layers.RandomInvert(0.5, (0, 1), **seed), IMAGE),
    "RandomPerspective": (layers.RandomPerspective, IMAGE),
    "RandomPosterization": (lambda **seed: layers.RandomPosterization(4, (0, 1), **seed), IMAGE),
    "RandomRotation": (lambda **seed: layers.RandomRotation(0.5, **seed), IMAGE),
    "RandomSaturation": (lambda **seed: layers.RandomSaturation(0.5, (0, 1), **seed), IMAGE),
    "RandomSharpness": (lambda **seed: layers.RandomSharpness(0.5, (0, 1), **seed), IMAGE),
    "RandomShear": (lambda **seed: layers.RandomShear(0.5, 0.5, **seed), IMAGE),
    "RandomTranslation": (lambda **seed: layers.RandomTranslation(0.5, 0.5, **seed), IMAGE),
    "RandomZoom": (lambda **seed: layers.RandomZoom(0.5, **seed), IMAGE),
    "Solarization": (lambda **seed: layers.Solarization(0.3, 0.5, (0, 1), **seed), IMAGE),
}
# Layers with `seed` that are made of others, or of functions of one backend.
ELSEWHERE = {"JaxLayer"}


def rnn(cell: Any) -> Any:
    return layers.RNN(cell, return_sequences=True)


class OfItself(layers.Layer):
    """Attention of a sequence to itself."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.attention = attention

    def call(self, inputs: Any, training: bool = False) -> Any:
        if isinstance(self.attention, (layers.Attention, layers.AdditiveAttention)):
            return self.attention([inputs, inputs], training=training)
        return self.attention(inputs, inputs, training=training)


class Labelled(layers.Layer):
    """A layer that mixes images with their labels."""

    def __init__(self, mix: Any) -> None:
        super().__init__()
        self.mix = mix

    def call(self, inputs: Any, training: bool = False) -> Any:
        labels = keras.ops.ones_like(inputs[:, 0, 0, :])
        return self.mix({"images": inputs, "labels": labels}, training=training)["images"]


class Padded(layers.Layer):
    """Images padded, and cropped to their own size."""

    def __init__(self, crop: Any) -> None:
        super().__init__()
        self.crop = crop

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            padded = keras.ops.pad(inputs, ((0, 0), (2, 2), (2, 2), (0, 0)))
            inputs = self.crop(padded, training=True)
        return inputs


class Noise(layers.Layer):
    """A layer as a user writes it. Without `seed` it draws from the generators that all share;
    JAX refuses that in a compiled function, so that it has a generator of its own there."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        own = seed is not None or keras.backend.backend() == "jax"
        self.random = keras.random.SeedGenerator(seed) if own else None

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            noise = keras.random.normal(keras.ops.shape(inputs), seed=self.random)
            inputs = keras.random.dropout(inputs + noise, 0.3, seed=self.random)
        return inputs


class Hidden(Noise):
    """A layer whose generator Keras tracks, but does not find among its attributes again."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(seed)
        generator = self.random = keras.random.SeedGenerator(seed)
        self.random = None
        self._Hidden__of = lambda: generator

    def call(self, inputs: Any, training: bool = False) -> Any:
        shape = keras.ops.shape(inputs)
        noise = keras.random.normal(shape, seed=self._Hidden__of()) if training else 0
        return inputs + noise


CASES["a custom layer"] = Noise, SEQUENCE
CASES["a custom layer with a hidden generator"] = Hidden, SEQUENCE


def missing() -> list[str]:
    """The layers of Keras that have the argument `seed` and are not in the table."""
    every = {name: one for name, one in vars(layers).items() if inspect.isclass(one)}
    seeded = {
        name for name, one in every.items() if "seed" in inspect.signature(one.__init__).parameters
    }
    return sorted(seeded - CASES.keys() - ELSEWHERE)


def names() -> list[str]:
    """One for each way to keep a generator, fewer where functions are compiled; all with
    KERAS_RANDOM=all, which takes minutes on each backend."""
    some = ["Dropout", *(name for name in CASES if "custom" in name)]
    if keras.backend.backend() == "torch":
        some += ["SpatialDropout2D", "MultiHeadAttention", "LSTM", "StackedRNNCells"]
        some += ["AugMix", "CutMix", "RandAugment", "RandomFlip"]
    return list(CASES) if os.environ.get("KERAS_RANDOM") == "all" else some


def made(name: str) -> Any:
    """A model with a layer without a seed and one with."""
    keras.utils.clear_session()
    make, shape = CASES[name]
    middle = [make(), make(seed=7), layers.Flatten()]
    model = keras.Sequential([keras.Input(shape), *middle, layers.Dense(2)])
    model(np.zeros((2, *shape), np.float32))  # Keras cannot build some from a shape on JAX
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    return model


def trained(model: Any, name: str) -> list[Any]:
    shape = CASES[name][1]
    data = np.random.default_rng(1)
    inputs, outputs = data.random((4, *shape), np.float32), data.random((4, 2), np.float32)
    losses = [
        model.fit(inputs, outputs, batch_size=2, shuffle=False, verbose=0).history["loss"][0]
        for _ in range(2)
    ]
    return [losses, [weight.tolist() for weight in model.get_weights()]]


def save(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"missing": missing(), "warned": []}
    for name in names():
        model = made(name)
        trained(model, name)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for by in ("graph", "path"):
                save_weights(model, folder / f"{name}-{by}", by=by, seeds=True)
        if any(issubclass(one.category, ckptfmt.CkptfmtWarning) for one in caught):
            found["warned"].append(name)
        found[name] = trained(model, name)
    return found


def resume(folder: Path) -> dict[str, Any]:
    random.seed(3)  # the seeds of new generators
    found: dict[str, Any] = {}
    for number, name in enumerate(names()):
        model = made(name)
        report = load_weights(model, folder / f"{name}-{('graph', 'path')[number % 2]}")
        assert report, report
        found[name] = trained(model, name)
    return found


def main() -> None:
    command, folder = sys.argv[1:]
    print(json.dumps({"save": save, "resume": resume}[command](Path(folder))))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
