# SPDX-License-Identifier: Apache-2.0
"""Layers whose state is more than variables, saved and loaded by every route.

Run as `keras_layers.py FOLDER` on any backend: prints as JSON what differs from EXPECTED, by layer
and route. "equal": the outputs are equal, without a warning and without something in `left`;
"said": the save warns of the layer, and the report of the load has it in `left`.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

import ckptfmt.keras

X = np.array([[1.0, 2.0], [5.0, 8.0], [9.0, 3.0]], np.float32)
KERAS_2 = Path(__file__).resolve().parents[1] / "peers" / "keras2"
ROUTES: tuple[Any, ...] = ("graph", "path", "file")


class Halving(layers.Layer):
    """Derives a number from its variable when Keras loads it."""

    half: Any = 0.5

    def build(self, shape: Any) -> None:
        self.whole = self.add_weight(shape=shape[1:], initializer="ones", name="whole")

    def adapt(self, data: Any) -> None:
        self.whole.assign(data[0])
        self.half = data[0] / 2

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(store)
        self.half = np.asarray(store["0"]) / 2

    def call(self, inputs: Any) -> Any:
        return inputs * keras.ops.convert_to_tensor(self.half)


class Remembering(layers.Layer):
    """Saves an array beside its variable."""

    array = np.zeros(2, np.float32)

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=shape[1:], initializer="ones", name="scale")

    def adapt(self, data: Any) -> None:
        self.array = data[0]

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        store["array"] = self.array

    def load_own_variables(self, store: Any) -> None:
        self.scale.assign(store["0"])
        self.array = np.array(store["array"])

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale + keras.ops.convert_to_tensor(self.array)


class Noting(layers.Layer):
    """Saves a file beside the weights."""

    bin_boundaries = ("own",)

    def adapt(self, data: Any) -> None:
        self.bin_boundaries = tuple(data[0])

    def save_assets(self, folder: str) -> None:
        raise AssertionError

    def call(self, inputs: Any) -> Any:
        return inputs


class Listing(keras.Model):
    """Has a layer of a model in a list of lists."""

    def __init__(self) -> None:
        super().__init__()
        inner = keras.Sequential([keras.Input((2,)), layers.Normalization()])
        self.parts = [[inner], layers.Dense(2)]

    def adapt(self, data: Any) -> None:
        self.parts[0][0].layers[0].adapt(data)

    def call(self, inputs: Any) -> Any:
        return self.parts[1](self.parts[0][0](inputs))


class Wrapped(layers.TorchModuleWrapper):
    """Has buffers of torch, which are not variables."""

    def adapt(self, data: Any) -> None:
        self(data, training=True)


class Custom(layers.Normalization):
    """As those of users."""


NUMBERS = np.array([[5], [6], [6], [9]])
WORDS = np.array([["a b"], ["b c"]])
# What makes the layer, and the data that it is adapted to.
KINDS: dict[str, tuple[Callable[[], Any], Any]] = {
    "normalization": (layers.Normalization, X),
    "subclass": (Custom, X),
    "one_axis": (lambda: layers.Normalization(axis=None, dtype="float16"), X),
    "given": (lambda: layers.Normalization(mean=2.0, variance=3.0), None),
    "list": (Listing, X),
    "halving": (Halving, X),
    "remembering": (Remembering, X),
    "noting": (Noting, X),
    "discretization": (lambda: layers.Discretization(num_bins=3), X),
}
if find_spec("tensorflow") is not None:
    KINDS |= {
        "integers": (layers.IntegerLookup, NUMBERS),
        "strings": (layers.StringLookup, WORDS),
        "texts": (layers.TextVectorization, WORDS),
    }

if keras.backend.backend() == "torch":
    import torch

    KINDS["torch"] = (lambda: Wrapped(torch.nn.BatchNorm1d(2)), X)

EXPECTED = {
    "remembering": ["said", "said", "equal"],
    "torch": ["said", "said", "equal"],
    "of Keras 2": ["equal", "equal", "said"],
}

# Whose state is not variables: the target has one as well, which stays.
ADAPTED = {"discretization", "noting", "integers", "strings", "texts"}


def made(kind: str, saved: bool) -> tuple[Any, Any]:
    """A model that was adapted, or is loaded; and the layer."""
    keras.utils.clear_session(free_memory=False)
    make, data = KINDS[kind]
    part = make()
    if kind not in ADAPTED and not isinstance(part, keras.Model):
        part.build((None, 2))
    if data is not None and (saved or kind in ADAPTED):
        part.adapt(data if saved else data[:1])
    model: Any = part
    if not isinstance(part, keras.Model):
        # Strings are not called in a model of every backend.
        model = keras.Sequential([layers.Dense(2) if kind in ADAPTED else part])
        model.part = part
    model(X)
    return model, part


def state(part: Any) -> Any:
    bins = getattr(part, "bin_boundaries", None)
    return part.get_vocabulary() if hasattr(part, "get_vocabulary") else bins


def outcome(kind: str, by: Any, folder: Path) -> str:
    model, part = made(kind, saved=True)
    path = folder / (f"{kind}.weights.h5" if by == "file" else f"{kind}-{by}")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ckptfmt.keras.save_weights(model, path, by=None if by == "file" else by)
    warned = [str(one.message) for one in found if one.category is ckptfmt.CkptfmtWarning]
    other, target = made(kind, saved=False)
    before = state(target)
    report = ckptfmt.keras.load_weights(other, path)
    if not report or state(target) != before:
        return f"changed: {report}"
    if len(warned) == 1 and part.name in warned[0]:
        return "said" if report.left == (target.path or target.name,) else f"left: {report.left}"
    expected, got = (np.asarray(keras.ops.convert_to_numpy(one(X))) for one in (model, other))
    same = np.array_equal(expected, got) and not warned and not report.left
    return "equal" if same else f"lost: {warned}, {report.left}, {expected}, {got}"


def of_keras_2(name: str) -> str:
    """The same for a file that Keras 2 wrote."""
    keras.utils.clear_session(free_memory=False)
    parts = [layers.Normalization(), layers.Dense(5), layers.Dense(2)]
    model = keras.Sequential([keras.Input((6,)), *parts])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    seen = np.arange(12, dtype=np.float32).reshape(2, 6)
    for strict in (True, False):
        report = ckptfmt.keras.load_weights(model, KERAS_2 / name, strict=strict)
        moments = [float(np.max(one)) for one in model.optimizer._momentums]
        fills = ([100, 101, 102, 103], ()), ([0, 0, 0, 0], ("optimizer",))
        if not report or (moments, report.left) not in fills:
            return f"{report}, {moments}"
    expected = (seen - seen.mean(0)) / seen.std(0)
    got = keras.ops.convert_to_numpy(model.layers[0](seen))
    if not np.allclose(expected, got):
        return f"lost: {got}"
    return "said" if report.left else "equal"


def wrong(folder: Path) -> dict[str, list[str]]:
    found = {kind: [outcome(kind, by, folder) for by in ROUTES] for kind in KINDS}
    names = ("normalized", "saved_model", "normalized.weights.h5")
    found["of Keras 2"] = [of_keras_2(name) for name in names]
    said = dict.fromkeys(ADAPTED, ["said"] * len(ROUTES)) | EXPECTED
    equal = ["equal"] * len(ROUTES)
    return {kind: one for kind, one in found.items() if one != said.get(kind, equal)}


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print(json.dumps(wrong(Path(sys.argv[-1]))))
