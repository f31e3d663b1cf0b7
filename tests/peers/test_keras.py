# SPDX-License-Identifier: Apache-2.0
"""Weights of Keras models on PyTorch (here) and JAX (in a process of its own)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import torch
from keras import layers
from support import keras_models
from support.keras_models import SHAPES, built, made, values
from support.pages import run_page

import ckptfmt
import ckptfmt.torch
from ckptfmt.keras import load_weights, save_weights

ROOT = Path(__file__).resolve().parents[2]


def elsewhere(
    command: str, folder: Path, backend: str = "jax", script: str = keras_models.__file__
) -> Any:
    """What a process with another backend found."""
    ran = subprocess.run(
        [sys.executable, script, command, str(folder)],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": backend},
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    return json.loads(ran.stdout.splitlines()[-1])


def test_both_backends_read_what_the_other_wrote(tmp_path: Path) -> None:
    assert keras.backend.backend() == "torch"
    ours, theirs = tmp_path / "torch", tmp_path / "jax"
    keras_models.write(ours)
    assert elsewhere("read", ours) == {}
    elsewhere("write", theirs)
    assert keras_models.read(theirs) == {}


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_what_layers_derive_and_what_is_left(tmp_path: Path, backend: str) -> None:
    script = str(ROOT / "tests" / "support" / "keras_layers.py")
    assert elsewhere("", tmp_path, backend, script) == {}


# ---- random numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_a_training_with_random_layers_continues_bit_equal(tmp_path: Path, backend: str) -> None:
    """Each layer with and without a seed, in another process; or `save_weights` warns of the layer.
    All layers of Keras that draw with KERAS_RANDOM=all."""
    script = str(ROOT / "tests" / "support" / "keras_random.py")
    whole = elsewhere("save", tmp_path, backend, script)
    rest = elsewhere("resume", tmp_path, backend, script)
    assert whole.pop("missing") == []
    warned = whole.pop("warned")
    assert warned == [name for name in whole if name == "AugMix"]
    assert whole.keys() == rest.keys() and len(whole) >= (11 if backend == "torch" else 3)
    assert [name for name in whole if whole[name] != rest[name] and name not in warned] == []


def with_dropout(*names: str) -> Any:
    parts = [layers.Dropout(0.5, name=name) for name in names]
    return keras.Sequential([keras.Input((2,)), *parts, layers.Dense(3, name="d")], name="m")


@pytest.mark.parametrize("by", ["graph", "path"])
def test_a_seed_without_a_state_is_missing(tmp_path: Path, by: Any) -> None:
    """Only where seeds were saved."""
    keras.utils.clear_session()
    save_weights(with_dropout("a"), tmp_path / "with", by=by, seeds=True)
    save_weights(with_dropout("a"), tmp_path / "without", by=by)
    keras.utils.clear_session()
    model = with_dropout("a", "b")
    with pytest.raises(ckptfmt.TensorNotFoundError, match="seed_generator"):
        load_weights(model, tmp_path / "with")
    assert load_weights(model, tmp_path / "without")


def test_what_a_model_without_the_torch_backend_saved(tmp_path: Path) -> None:
    """The state of torch's generator is left out where it is not saved, and where it is not asked
    for."""
    save_weights(with_dropout("a"), tmp_path / "ck", seeds=True)
    assert "random_state/torch" in load_weights(with_dropout("a"), tmp_path / "ck").matched
    report = load_weights(with_dropout("a"), tmp_path / "ck", filter="model/*")
    assert set(report.filtered) == {"random_state/keras", "random_state/torch"}


def test_a_layer_in_a_pipeline_of_tensorflow(tmp_path: Path) -> None:
    """Has a generator of TensorFlow, of which the save says that it cannot be continued."""
    tf = pytest.importorskip(
        "tensorflow", reason="NOT RUN: needs TensorFlow (make interop installs it)"
    )
    flip = layers.RandomFlip(name="flip")
    model = keras.Sequential([keras.Input((4, 4, 1)), flip, layers.Flatten(), layers.Dense(1)])
    list(tf.data.Dataset.from_tensors(np.ones((1, 4, 4, 1), np.float32)).map(flip))
    with pytest.raises(
        ckptfmt.InvalidError, match=r"layer 'flip': the layer was called in a tf\.data"
    ):
        save_weights(model, tmp_path / "ck", seeds=True)
    assert not list(tmp_path.iterdir())
    save_weights(model, tmp_path / "ck")


# ---- .weights.h5 ---------------------------------------------------------------------------------


def content(path: Path) -> dict[str, Any]:
    """Groups with their attributes, and datasets with their values."""
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        value = (str(item.dtype), item[()].tolist()) if isinstance(item, h5py.Dataset) else None
        found[name] = dict(item.attrs), value

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_the_files_are_those_of_keras(tmp_path: Path, name: str) -> None:
    model = made(name)
    model.save_weights(tmp_path / "theirs.weights.h5")
    assert save_weights(model, tmp_path / "ours.weights.h5") == str(tmp_path / "ours.weights.h5")
    assert content(tmp_path / "ours.weights.h5") == content(tmp_path / "theirs.weights.h5")
    expected = values(model)
    other = built(name)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "ours.weights.h5")
    assert values(other) == expected
    other = built(name)
    assert load_weights(other, tmp_path / "theirs.weights.h5")
    assert values(other) == expected


OTHERS: dict[str, tuple[Any, Any, bool]] = {
    "same": (keras.optimizers.Adam, lambda: keras.optimizers.Adam(name="adam_7"), True),
    "renamed": (lambda: keras.optimizers.AdamW(name="mine"), keras.optimizers.Adam, True),
    "class": (lambda: keras.optimizers.RMSprop(momentum=0.9), keras.optimizers.Adam, False),
    "subclass": (lambda: keras.optimizers.AdamW(name="AdamW"), keras.optimizers.Adam, False),
    "length": (lambda: keras.optimizers.Adam(amsgrad=True), keras.optimizers.Adam, False),
    "shapes": (keras.optimizers.Adafactor, keras.optimizers.Adam, False),
    "inner": (
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Lion()),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(momentum=0.9)),
        False,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_optimizer_is_left_out_whole(tmp_path: Path, name: str) -> None:
    """Of a file, which has no more than positions and names."""
    saved, target, is_loaded = OTHERS[name]
    model, other = trained(layered(3), saved()), layered(3)
    save_weights(model, tmp_path / "x.weights.h5")
    other.compile(target(), "mse")
    other.optimizer.build(other.trainable_variables)
    before = [keras.ops.convert_to_numpy(one).copy() for one in other.optimizer.variables]
    for strict in (True, False):
        report = load_weights(other, tmp_path / "x.weights.h5", strict=strict)
        assert report and report.left == (() if is_loaded else ("optimizer",))
        assert np.array_equal(other.get_weights()[0], model.get_weights()[0])
    found = [keras.ops.convert_to_numpy(one) for one in other.optimizer.variables]
    expected = model.optimizer.variables if is_loaded else before
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_low_precision(tmp_path: Path) -> None:
    def small(dtype: str) -> Any:
        return keras.Sequential([keras.Input((2,)), layers.Dense(2, dtype=dtype, name="dense")])

    model = small("bfloat16")
    model.set_weights([np.array([[1, 2], [3, 4.5]]), np.array([5, 6])])
    model.save_weights(tmp_path / "theirs.weights.h5")
    save_weights(model, tmp_path / "ours.weights.h5")
    assert content(tmp_path / "ours.weights.h5") == content(tmp_path / "theirs.weights.h5")
    save_weights(model, tmp_path / "ck")
    for path in (tmp_path / "ck", tmp_path / "theirs.weights.h5"):
        other = small("bfloat16")
        assert load_weights(other, path)
        assert np.asarray(other.get_weights()[0]).tolist() == [[1, 2], [3, 4.5]]
        wide = small("float32")
        with pytest.raises(ckptfmt.InvalidError, match=r"of another dtype .*cast=True converts"):
            load_weights(wide, path)
        assert load_weights(wide, path, cast=True)
        assert wide.get_weights()[0].tolist() == [[1, 2], [3, 4.5]]


def test_keys_and_losses_of_casts(tmp_path: Path) -> None:
    def small(dtype: str) -> Any:
        dense = layers.Dense(2, dtype=dtype, name="dense")
        return keras.Sequential([keras.Input((2,)), dense], name="m")

    model, half = small("float32"), small("float16")
    model.set_weights([np.array([[1, 1e30], [1e-9, 0]]), np.array([1, 2])])
    model.save_weights(tmp_path / "h5.weights.h5")
    save_weights(model, tmp_path / "graph")
    save_weights(model, tmp_path / "path", by="path")
    for name in ("graph", "path", "h5.weights.h5"):
        cast: dict[Any, str | None] = {re.compile("kernel|/0$"): "float16", "*": "float16"}
        before = half.get_weights()[0].tolist()
        for given in (True, "float16", cast):
            with pytest.raises(ckptfmt.InvalidError, match="changes 1 element") as caught:
                load_weights(half, tmp_path / name, cast=given)
            assert caught.value.argument == "allow_loss"
            assert half.get_weights()[0].tolist() == before
            report = load_weights(half, tmp_path / name, cast=given, allow_loss=True)
            assert [*report.losses.values()] == [*report.zeros.values()] == [1] and report
            half.set_weights([np.array(before), np.zeros(2)])
        cast["z*"] = None
        with pytest.raises(ckptfmt.TensorNotFoundError):
            load_weights(half, tmp_path / name, cast=cast, allow_loss=True)
        report = load_weights(half, tmp_path / name, cast=cast, allow_loss=True, strict=False)
        assert report.unused == ("z*",) and len(report.matched) == 2 and not report
        with pytest.raises(ckptfmt.InvalidError, match="casts complex tensors"):
            load_weights(half, tmp_path / name, cast="complex64")


class Table(layers.Layer):
    def __init__(self, dtype: str) -> None:
        super().__init__(name="table")
        self.of = dtype

    def build(self, _: Any) -> None:
        self.v = self.add_weight((2,), "zeros", self.of, trainable=False, name="v")

    def call(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("stored", "value", "dtype"), [("float32", 1.5, "int32"), ("int64", 300, "int8")]
)
def test_integers_of_a_layer_keep_their_values(
    tmp_path: Path, stored: str, value: float, dtype: str
) -> None:
    model = keras.Sequential([keras.Input((2,)), Table(stored)], name="m")
    other = keras.Sequential([keras.Input((2,)), Table(dtype)], name="m")
    model.layers[-1].v.assign(np.full(2, value))
    save_weights(model, tmp_path / "graph")
    save_weights(model, tmp_path / "path", by="path")
    save_weights(model, tmp_path / "h5.weights.h5")
    for name in ("graph", "path", "h5.weights.h5"):
        with pytest.raises(ckptfmt.InvalidError, match="of another dtype"):
            load_weights(other, tmp_path / name)
        with pytest.raises(ckptfmt.InvalidError, match="changes 2 elements"):
            load_weights(other, tmp_path / name, cast=True)
        assert not other.get_weights()[0].any()


# ---- what matched --------------------------------------------------------------------------------


def layered(*units: int, name: str = "m") -> Any:
    parts = [layers.Dense(count, name=f"d{index}") for index, count in enumerate(units)]
    return keras.Sequential([keras.Input((2,)), *parts], name=name)


@pytest.mark.parametrize("by", ["graph", "path", "h5"])
def test_the_report(tmp_path: Path, by: Any) -> None:
    stored, model = layered(3, 4, 5), layered(3, 6)
    save_weights(stored, tmp_path / "ck", by=by)
    before = [array.copy() for array in model.get_weights()]
    with pytest.raises(ckptfmt.InvalidError) as caught:
        load_weights(model, tmp_path / "ck")
    report = caught.value.report
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    assert load_weights(model, tmp_path / "ck", strict=False) == report
    assert (len(report.matched), len(report.unexpected), len(report.shape_mismatch)) == (2, 2, 2)
    assert np.array_equal(model.get_weights()[0], stored.get_weights()[0])
    assert np.array_equal(model.get_weights()[2], before[2])
    first = {
        "graph": "model/layer_with_weights-0/kernel",
        "path": "m/d0/kernel",
        "h5": "layers/dense/vars/0",
    }[by]
    assert first in report.matched
    assert report.shape_mismatch[0].stored[0] in (3, 4)

    with pytest.raises(ckptfmt.TensorNotFoundError) as caught:
        load_weights(layered(3, 4, 5, 6), tmp_path / "ck", filter="*[0k]*")
    assert len(caught.value.report.missing) == 2
    assert len(caught.value.report.filtered) == (3 if by == "h5" else 2)


def test_names_of_a_path_are_renamed(tmp_path: Path) -> None:
    stored, model = layered(3, name="old"), layered(3, name="new")
    save_weights(stored, tmp_path / "ck", by="path")
    with pytest.raises(ckptfmt.InvalidError, match="the nearest are 'old/d0/"):
        load_weights(model, tmp_path / "ck")
    assert load_weights(model, tmp_path / "ck", rename=[("^old/", "new/")])
    assert np.array_equal(model.get_weights()[0], stored.get_weights()[0])
    ckptfmt.save(tmp_path / "t", {"new/d0/kernel": model.get_weights()[0].T, "b": np.ones(3, "f4")})
    rename = {"new/d0/kernel": ("new/d0/kernel", np.transpose), "b": "new/d0/bias"}
    assert load_weights(model, tmp_path / "t", rename=rename)
    assert np.array_equal(model.get_weights()[0], stored.get_weights()[0])


def test_values_of_a_graph_are_renamed_and_transformed(tmp_path: Path) -> None:
    kernel, bias = np.ones((3, 2), np.float32), np.ones(3, np.float32)
    ckptfmt.save_tree(tmp_path / "ck", {"net": {"a": {"weight": kernel, "bias": bias}, "step": 3}})
    model = layered(3)
    rename = [("net/step", None), ("^net/a", "layer-0"), ("weight", "kernel", np.transpose)]
    assert load_weights(model, tmp_path / "ck", rename=rename)
    assert model.get_weights()[0].tolist() == kernel.T.tolist()


@pytest.mark.parametrize("by", ["graph", "path", "h5"])
def test_every_name_in_a_rename_is_stored(tmp_path: Path, by: Any) -> None:
    model, rename = layered(3), {"nope": "elsewhere"}
    save_weights(model, tmp_path / "ck", by=by)
    with pytest.raises(ckptfmt.TensorNotFoundError, match="rename: 'nope' matches none"):
        load_weights(model, tmp_path / "ck", rename=rename)
    given: dict[str, Any]
    for given in ({}, {"filter": "*"}, {"cast": "float32"}):
        report = load_weights(model, tmp_path / "ck", rename=rename, strict=False, **given)
        assert report.unused == ("nope",)


def test_the_optimizer_is_optional(tmp_path: Path) -> None:
    model = made("shared")
    save_weights(model, tmp_path / "with")
    save_weights(model, tmp_path / "without", optimizer=False)
    assert len(ckptfmt.load(tmp_path / "with")) == 4 + 10 + 2  # + the graph and the counter
    assert len(ckptfmt.load(tmp_path / "without")) == 4 + 2
    for path, options in (("without", {}), ("with", {"optimizer": False})):
        other = built("shared")
        assert len(load_weights(other, tmp_path / path, **options).matched) == 4
        assert not other.optimizer.built
    save_weights(built("shared"), tmp_path / "untrained")
    assert load_weights(built("shared"), tmp_path / "untrained")


OPTIMIZERS: dict[str, Any] = {
    "adam": keras.optimizers.Adam,
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9)),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adagrad()),
    "named": lambda: keras.optimizers.Ftrl(name="mine"),
    "outside": keras.optimizers.Nadam,  # with a variable that is not below its name
}


class Counting(keras.layers.Layer):
    """With a variable that is named as that of an optimizer."""

    def build(self, shape: Any) -> None:
        self.iteration = self.add_weight(shape=shape[1:], name="iteration")

    def call(self, inputs: Any) -> Any:
        return inputs * self.iteration


def counting() -> Any:
    """Its layers are not below a model in the paths of variables."""
    inputs = keras.Input((2,))
    return keras.Model(inputs, layers.Dense(3, name="d")(Counting(name="count")(inputs)))


def trained(model: Any, optimizer: Any) -> Any:
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(np.ones((4, 2)), np.ones((4, 3)), verbose=0)
    return model


@pytest.mark.parametrize("by", ["graph", "path", "h5"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_left_out_however_it_is_stored(tmp_path: Path, by: Any, name: str) -> None:
    model = trained(layered(3), OPTIMIZERS[name]())
    save_weights(model, tmp_path / "ck", by=by)
    bare, compiled, other = layered(3), layered(3), layered(3)
    compiled.compile(optimizer=OPTIMIZERS[name](), loss="mse")
    other.compile(optimizer=keras.optimizers.RMSprop(), loss="mse")
    for one, options in (
        (bare, {}),
        (compiled, {"optimizer": False}),
        (other, {"optimizer": False}),
    ):
        report = load_weights(one, tmp_path / "ck", **options)
        assert (len(report.matched), report.complete) == (2, True)
        assert np.array_equal(one.get_weights()[0], model.get_weights()[0])
    # As in a checkpoint without its values.
    own = model.optimizer.name
    rename = [(rf"^(optimizer|model/optimizer|{own}|adagrad[^/]*)/.*", None)]
    report = load_weights(compiled, tmp_path / "ck", rename=rename)
    assert (len(report.matched), report.complete) == (2, True)


@pytest.mark.parametrize("by", ["graph", "path", "h5"])
def test_a_layer_with_the_names_of_an_optimizer(tmp_path: Path, by: Any) -> None:
    model = counting()
    save_weights(model, tmp_path / "ck", by=by)
    other = counting()
    for compiled in (False, True):
        if compiled:
            other.compile(optimizer="adam", loss="mse")
        assert len(load_weights(other, tmp_path / "ck").matched) == 3


@pytest.mark.parametrize("by", ["graph", "path", "h5"])
@pytest.mark.parametrize("wanted", ["names", "filter"])
def test_what_is_left_out_does_not_take_a_new_name(tmp_path: Path, by: Any, wanted: str) -> None:
    """Three values get one new name; two of them are left out."""
    stored, model = layered(2, 2, 2), layered(2)
    save_weights(stored, tmp_path / "ck", by=by)
    kernels = {
        "graph": ["model/layer_with_weights-0/kernel", "model/layer_with_weights-{}/kernel"],
        "path": ["m/d0/kernel", "m/d{}/kernel"],
        "h5": ["layers/dense/vars/0", "layers/dense_{}/vars/0"],
    }[by]
    first, names = kernels[0], [kernels[1].format(i) for i in (1, 2)]
    rename = dict.fromkeys(names, first)
    given: dict[str, Any] = {"rename": rename, "strict": False}
    given |= {"names": [names[1]]} if wanted == "names" else {"filter": names[1]}
    before = model.get_weights()
    report = load_weights(model, tmp_path / "ck", **given)
    assert report.matched == (first,)
    assert np.array_equal(model.get_weights()[0], stored.get_weights()[4])
    assert np.array_equal(model.get_weights()[1], before[1])
    twice = {**rename, names[0]: "elsewhere", names[1]: "elsewhere"}
    report = load_weights(model, tmp_path / "ck", names=[first], rename=twice)
    assert report.matched == (first,)


@pytest.mark.parametrize(
    ("optimizer", "count"),
    [
        (lambda: keras.optimizers.SGD(momentum=0.9), 4),
        (lambda: keras.optimizers.RMSprop(centered=True, momentum=0.5), 12),
        (lambda: keras.optimizers.Adam(amsgrad=True, use_ema=True), 16),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adagrad()), 4),
        (keras.optimizers.Ftrl, 8),
    ],
)
def test_optimizers(tmp_path: Path, optimizer: Any, count: int) -> None:
    model = made("shared", optimizer())
    save_weights(model, tmp_path / "ck")
    other = built("shared", optimizer())
    report = load_weights(other, tmp_path / "ck")
    assert values(other) == values(made("shared", optimizer()))
    assert len(report.matched) >= 4 + count


def test_under_any_name_and_as_the_root(tmp_path: Path) -> None:
    """As `tf.train.Checkpoint(net=model)` and `tf.train.Checkpoint(root=model)` save it."""
    model = layered(3)
    save_weights(model, tmp_path / "ck")
    tree = ckptfmt.load_tree(tmp_path / "ck")
    ckptfmt.save_tree(tmp_path / "net", {"net": tree["model"], "step": 1, "other": {"w": 2}})
    ckptfmt.save_tree(tmp_path / "root", {**tree["model"], "save_counter": 1})
    for path in ("net", "root"):
        other = layered(3)
        assert load_weights(other, tmp_path / path)
        assert np.array_equal(other.get_weights()[0], model.get_weights()[0])


# ---- what Keras 2 wrote --------------------------------------------------------------------------


def keras2_sequential() -> Any:
    parts = [layers.Embedding(10, 3), layers.Bidirectional(layers.LSTM(2)), layers.Dense(2)]
    return keras.Sequential([keras.Input((8,)), *parts, layers.BatchNormalization()])


def keras2_functional() -> Any:
    inputs = keras.Input((4, 5))
    found = layers.LayerNormalization()(layers.MultiHeadAttention(2, 3)(inputs, inputs))
    return keras.Model(inputs, layers.Dense(2)(found))


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [layers.Dense(4), layers.Dense(4)]
        self.heads = {"one": layers.Dense(2)}
        self.scale = self.add_weight(shape=(2,), name="scale")

    def call(self, inputs: Any) -> Any:
        for block in self.blocks:
            inputs = block(inputs)
        return self.heads["one"](inputs) * self.scale


def numbers(variables: Any) -> list[float]:
    """The one value that all elements of each variable have."""
    found = [np.unique(keras.ops.convert_to_numpy(one)) for one in variables]
    assert all(one.size == 1 for one in found)
    return [float(one[0]) for one in found]


@pytest.mark.parametrize("name", ["sequential", "functional"])
def test_weights_and_optimizers_of_keras_2(name: str) -> None:
    """`keras2/make.py` wrote them; the optimizer of the second one has slot variables."""
    model = {"sequential": keras2_sequential, "functional": keras2_functional}[name]()
    model.compile(keras.optimizers.Adam(), "mse")
    path = Path(__file__).with_name("keras2") / name
    assert load_weights(model, path)
    assert numbers(model.weights) == list(range(len(model.weights)))
    count = len(model.trainable_variables)
    assert numbers(model.optimizer._momentums) == list(range(100, 100 + count))
    assert numbers(model.optimizer._velocities) == list(range(200, 200 + count))
    assert int(model.optimizer.iterations) == 7
    for variable in model.weights:
        variable.assign(keras.ops.zeros_like(variable))
    if name == "sequential":  # its moments are named after the variables
        model.layers[0].trainable = False
        model.compile(keras.optimizers.Adam(), "mse")
        load_weights(model, path, strict=False)
        assert numbers(model.optimizer._momentums) == list(range(101, 100 + count))
    if name == "functional":
        report = load_weights(model, path, by="path", strict=False, optimizer=False)
        assert "layer_normalization/gamma" in report.matched


def test_layers_without_weights_do_not_shift_others(tmp_path: Path) -> None:
    def make(*indexes: int) -> Any:
        parts: list[Any] = [layers.Dense(4) for _ in range(3)]
        for index in indexes:
            parts.insert(index, layers.Dropout(0.5))
        return keras.Sequential([keras.Input((4,)), *parts])

    ways = [(), (1,), (1, 1), (1, 3)]
    for stored in ways:
        model = make(*stored)
        save_weights(model, tmp_path / "ck")
        for own in ways:
            other = make(*own)
            assert load_weights(other, tmp_path / "ck")
            assert all(map(np.array_equal, other.get_weights(), model.get_weights()))


def test_a_depthwise_kernel_of_keras_2(tmp_path: Path) -> None:
    kernel = np.random.rand(3, 3, 3, 1).astype(np.float32)
    layer = {"depthwise_kernel": kernel, "bias": np.ones(3, np.float32)}
    ckptfmt.save_tree(tmp_path / "ck", {"model": {"layer_with_weights-0": layer}})
    model = keras.Sequential([keras.Input((5, 5, 3)), layers.DepthwiseConv2D(3)])
    assert load_weights(model, tmp_path / "ck")
    assert np.array_equal(model.get_weights()[0], kernel)


def test_a_subclassed_model_of_keras_2() -> None:
    model = Subclassed()
    model(np.ones((1, 4), np.float32))
    path = Path(__file__).with_name("keras2") / "subclassed-1"
    with pytest.raises(ckptfmt.InvalidError, match=r"missing.*model/heads/one"):
        load_weights(model, path, rename=[("heads", "extra")])
    assert load_weights(model, path)
    assert sorted(numbers(model.weights)) == list(range(7))
    assert numbers(model.heads["one"].weights)[0] == numbers(model.blocks[1].weights)[0] + 2


# ---- arguments -----------------------------------------------------------------------------------


def test_wrong_arguments(tmp_path: Path) -> None:
    model = layered(3)
    path = tmp_path / "x.weights.h5"
    save_weights(model, path)
    save_weights(model, tmp_path / "ck", by="path", metadata={"a": 1}, level="v2+")
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert reader.metadata == {"a": 1}

    class Unbuilt(keras.Model):
        def call(self, inputs: Any) -> Any:
            return inputs

    refused = [
        (lambda: save_weights(Unbuilt(), path), "the model has no weights yet"),
        (lambda: save_weights({}, path), "model must be a keras.Model, not dict"),
        (lambda: save_weights(model, path, by="x"), "by must be one of"),
        (lambda: save_weights(model, path, by="path"), "by cannot be used with a .weights.h5 file"),
        (lambda: save_weights(model, path, metadata={"a": 1}), "metadata cannot be used with"),
        (lambda: save_weights(model, path, seeds=True), "seeds=True cannot be used with"),
        (lambda: save_weights(model, path, seeds=1), "seeds must be True or False, not int"),
        (lambda: save_weights(model, path, optimizer="a"), "optimizer must be True or False"),
        (lambda: load_weights(model, path, by="graph"), "is loaded by='h5', not by='graph'"),
        (lambda: load_weights(model, tmp_path / "ck", by="graph"), "there is no object graph"),
        (lambda: load_weights(model, path, strict=1), "strict must be True or False, not int"),
        (lambda: load_weights(model, path, filter=3), "filter must be"),
    ]
    for call, words in refused:
        with pytest.raises(ckptfmt.InvalidError, match=words):
            call()
    with pytest.raises(ckptfmt.CheckpointNotFoundError):
        load_weights(model, tmp_path / "absent")


def test_two_variables_of_one_path(tmp_path: Path) -> None:
    class Same(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.add_weight(shape=(1,), name="w")
            self.b = self.add_weight(shape=(1,), name="w")

        def call(self, inputs: Any) -> Any:
            return inputs * self.a * self.b

    model = Same()
    model(np.ones((1, 1), np.float32))
    with pytest.raises(ckptfmt.InvalidError, match="two variables have this path"):
        save_weights(model, tmp_path / "ck", by="path")
    save_weights(model, tmp_path / "ck")
    with pytest.raises(ckptfmt.InvalidError, match="two variables of the checkpoint have this"):
        load_weights(model, tmp_path / "ck", by="path")
    assert load_weights(model, tmp_path / "ck")


def test_the_page(tmp_path: Path) -> None:
    assert "matched: 14 of 14 tensors" in run_page("docs/keras.md", tmp_path)


def test_bits_of_a_torch_state(tmp_path: Path) -> None:
    """Variables get the numbers that they stand for."""
    model = keras.Sequential([keras.Input((1,)), layers.Dense(2, name="d")], name="m")
    scales = torch.tensor([126, 128], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    ckptfmt.torch.save({"m/d/kernel": torch.ones(1, 2), "m/d/bias": scales}, tmp_path / "ck")
    with pytest.raises(ckptfmt.InvalidError):
        load_weights(model, tmp_path / "ck")
    for cast in (True, {"m/d/bias": "float32"}):
        load_weights(model, tmp_path / "ck", cast=cast)
        assert keras.ops.convert_to_numpy(model.variables[1]).tolist() == [0.5, 2]
        model.variables[1].assign([0, 0])
