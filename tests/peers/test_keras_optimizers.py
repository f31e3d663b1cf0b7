# SPDX-License-Identifier: Apache-2.0
"""State of optimizers in Keras: each moment goes to the variable that it belongs to, or the load is
an error before anything is written. With strict=False an optimizer is loaded whole or not at all.
"""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import pytest
from support.strategies import SEEDS, counted, property_test

import ckptfmt
from ckptfmt.keras import load_weights, save_weights


class Bare(keras.optimizers.Optimizer):
    """Has a variable for each trainable one, to which no name leads."""

    def __init__(self, learning_rate: float = 0.1, name: str = "o", **others: Any) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **others)

    def build(self, variables: Any) -> None:
        super().build(variables)
        named = [self.add_variable_from_reference(one, "state") for one in variables]
        self.own = dict(enumerate(named))


# Whose order depends on that of the variables, so that another one may be refused.
ORDERED = ("bare", "several")
OPTIMIZERS: dict[str, Any] = {
    "bare": Bare,
    "adam": lambda: keras.optimizers.Adam(name="o"),
    "amsgrad": lambda: keras.optimizers.Adam(amsgrad=True, use_ema=True, name="o"),
    "sgd": lambda: keras.optimizers.SGD(momentum=0.9, name="o"),
    "rmsprop": lambda: keras.optimizers.RMSprop(momentum=0.9, centered=True, name="o"),
    "adafactor": lambda: keras.optimizers.Adafactor(name="o"),
    "several": lambda: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.Adam(name="i"),
            {".*b/.*": keras.optimizers.SGD(momentum=0.5, name="j")},
        ),
        name="o",
    ),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(name="i"), name="o"
    ),
}


class Net(keras.Model):
    """Dense layers of one shape, made in this order and called by name."""

    def __init__(self, order: str, frozen: str) -> None:
        super().__init__(name="net")
        for name in order:
            layer = keras.layers.Dense(
                3, name=name, use_bias=name != "a", trainable=name not in frozen
            )
            setattr(self, name, layer)
        self.listed = sorted(order)

    def call(self, inputs: Any) -> Any:
        for name in self.listed:
            inputs = getattr(self, name)(inputs)
        return inputs


def made(order: str, frozen: str, optimizer: str, chance: random.Random, *, built: bool) -> Any:
    model = Net(order, frozen)
    model(np.ones((1, 3), np.float32))
    model.compile(OPTIMIZERS[optimizer](), "mse")
    if built:
        model.optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(chance.getrandbits(32))
    for variable in (*model.weights, *model.optimizer.variables):
        if "float" in str(variable.dtype):
            variable.assign(rng.random(variable.shape, np.float32))
    return model


def weights(model: Any) -> dict[str, Any]:
    return {one.path: np.array(keras.ops.convert_to_numpy(one)).tolist() for one in model.weights}


def moments(model: Any) -> dict[tuple[str, str], Any]:
    """By name of the list and path of the variable."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    found: dict[tuple[str, str], Any] = {}
    for part in getattr(optimizer, "_inner_optimizers", [optimizer]):
        trained = part._trainable_variables
        for name, listed in vars(part).items():
            listed = [*listed.values()] if name == "own" else listed  # noqa: PLW2901
            is_list = isinstance(listed, (list, tuple)) and len(listed) == len(trained)
            if is_list and "_var" not in name:
                for variable, one in zip(trained, listed, strict=True):
                    found[name, variable.path] = keras.ops.convert_to_numpy(one).tolist()
    return found


@property_test(60, 4_000, seed=SEEDS)
def test_moments_go_to_their_variables(seed: int) -> None:
    chance = random.Random(seed)
    names = "abcd"[: chance.randint(2, 4)]
    orders = ["".join(chance.sample(names, len(names))) for _ in range(2)]
    frozen = "".join(name for name in names[1:] if chance.random() < 0.2)
    other = frozen if chance.random() < 0.7 else chance.choice([*names, ""])
    kind = chance.choice([*OPTIMIZERS])
    by = "graph" if kind == "adafactor" else chance.choice(["graph", "path"])
    strict = chance.random() < 0.7
    source = made(orders[0], frozen, kind, chance, built=True)
    target = made(orders[1], other, kind, chance, built=chance.random() < 0.5)
    if kind == "bare" and not target.optimizer.built:  # it is built before all is compared
        target.optimizer.build(target.trainable_variables)
    is_built, before, own = target.optimizer.built, weights(target), moments(target)
    is_same = set(frozen) == set(other)
    has_all = set(frozen) <= set(other)
    with TemporaryDirectory() as folder:
        path = save_weights(source, Path(folder) / "ck", by=by, durability="none")
        try:
            report = load_weights(target, path, strict=strict)
        except ckptfmt.CkptfmtError as error:
            counted("optimizers", refused=1)
            assert strict and (not is_same or kind in ORDERED)
            assert error.report.missing or error.report.unexpected
            assert (target.optimizer.built, weights(target)) == (is_built, before)
            assert moments(target) == own
            return
    assert weights(target) == weights(source)
    assert bool(report) == is_same or kind in ORDERED
    if has_all and (kind not in ORDERED or moments(target) != own):
        counted("optimizers", loaded=1)
        stored, trained = moments(source), {one.path for one in target.trainable_variables}
        assert moments(target) == {at: one for at, one in stored.items() if at[1] in trained}
        assert {path for _, path in moments(target)} == trained
    else:
        counted("optimizers", left=1)
        assert (target.optimizer.built, moments(target)) == (is_built, own)


@pytest.mark.parametrize("by", ["graph", "path"])
@pytest.mark.parametrize("level", ["v2+", "v2"])
def test_the_state_of_another_class(tmp_path: Path, by: Any, level: Any) -> None:
    """The metadata has the class, and without them the names that Keras gives."""
    model = Net("ab", "")
    model(np.ones((1, 3), np.float32))
    model.compile(keras.optimizers.RMSprop(momentum=0.9, name="rmsprop"), "mse")
    model.optimizer.build(model.trainable_variables)
    path = save_weights(model, tmp_path / "ck", by=by, level=level)
    target = made("ab", "", "adam", random.Random(1), built=False)
    target.compile(keras.optimizers.Adam(name="adam"), "mse")
    before = weights(target)
    with pytest.raises(ckptfmt.InvalidError):
        load_weights(target, path)
    assert weights(target) == before
    assert load_weights(target, path, optimizer=False)
    assert weights(target) == weights(model)
    target.get_layer("a").trainable = True
    report = load_weights(target, path, strict=False)
    assert len(report.matched) == len(model.weights)
    assert not target.optimizer.built


def test_moments_follow_renamed_weights(tmp_path: Path) -> None:
    chance = random.Random(1)
    source = made("bcd", "", "adam", chance, built=True)
    path = save_weights(source, tmp_path / "ck")
    swapped = {"b": "c", "c": "b", "d": "d"}
    target = made("cbd", "", "adam", chance, built=False)
    rename = {
        f"model/{old}/{part}": f"model/{new}/{part}"
        for old, new in swapped.items()
        for part in ("kernel", "bias")
    }
    assert load_weights(target, path, rename=rename)
    at = {
        one.path: one.path.replace(f"/{old}/", f"/{new}/")
        for one in source.weights
        for old, new in swapped.items()
        if f"/{old}/" in one.path
    }
    stored = {(name, at[where]): value for (name, where), value in moments(source).items()}
    assert moments(target) == stored
    assert weights(target) == {at[where]: value for where, value in weights(source).items()}


def test_a_weight_is_not_matched_by_its_place_in_the_optimizer(tmp_path: Path) -> None:
    chance = random.Random(1)
    path = save_weights(made("bc", "", "adam", chance, built=True), tmp_path / "ck")
    target = made("dc", "", "adam", chance, built=True)
    before = weights(target)
    with pytest.raises(ckptfmt.CkptfmtError):
        load_weights(target, path)
    report = load_weights(target, path, strict=False)
    assert not any("/d/" in name for name in report.matched)
    assert weights(target)["net/d/kernel"] == before["net/d/kernel"]


class Unusual(keras.optimizers.SGD):
    """Has no configuration of its own."""

    def __init__(self, more: bool) -> None:
        super().__init__(momentum=0.9, name="o")
        self.more = more

    def build(self, variables: Any) -> None:
        if self.more:
            self.extra = self.add_optimizer_variables(variables, "extra")
        super().build(variables)


@pytest.mark.parametrize("by", ["graph", "path", "h5"])
@pytest.mark.parametrize(
    "kind",
    [lambda: Unusual(True), lambda: keras.optimizers.Adam(lambda: 0.01, name="o")],
    ids=["class", "function"],
)
def test_optimizers_that_cannot_be_copied(tmp_path: Path, by: Any, kind: Any) -> None:
    source, target = Net("bc", ""), Net("bc", "")
    for model in (source, target):
        model(np.ones((1, 3), np.float32))
        model.compile(kind(), "mse")
    source.optimizer.build(source.trainable_variables)
    for variable in source.optimizer.variables[2:]:
        variable.assign(keras.ops.ones_like(variable) * len(variable.shape))
    assert load_weights(target, save_weights(source, tmp_path / "ck", by=by))
    assert moments(target) == moments(source)


def test_the_class_is_known_by_the_names_of_h5_as_well(tmp_path: Path) -> None:
    source, target = (made("bc", "", "adam", random.Random(n), built=True) for n in (1, 2))
    target.compile(keras.optimizers.Adamax(name="o"), "mse")
    path = save_weights(source, tmp_path / "ck", by="h5")
    assert load_weights(target, path).left == ("optimizer",)
    assert not target.optimizer.built
    source.compile(keras.optimizers.Adam(), "mse")
    source.optimizer.build(source.trainable_variables)
    source.save_weights(tmp_path / "x.weights.h5")
    path = ckptfmt.convert(tmp_path / "x.weights.h5", tmp_path / "converted").path
    target.compile(keras.optimizers.Adamax(), "mse")
    assert load_weights(target, path).left == ("optimizer",)
    target.compile(keras.optimizers.Adam(), "mse")
    assert load_weights(target, path) and moments(target) == moments(source)


def test_optimizers_beside_that_of_the_model(tmp_path: Path) -> None:
    """They are saved with it, or the save is refused."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(2)])
    model.compile("sgd")
    model.beside = keras.optimizers.Adam()
    model.beside.build(model.trainable_variables)
    with pytest.raises(ckptfmt.InvalidError) as caught:
        save_weights(model, tmp_path / "w")
    assert caught.value.argument == "optimizer" and not list(tmp_path.iterdir())
    save_weights(model, tmp_path / "w", optimizer=False)
    model.optimizer.build(model.trainable_variables)
    model.beside.iterations.assign(7)
    save_weights(model, tmp_path / "w")
    model.beside.iterations.assign(0)
    load_weights(model, tmp_path / "w")
    assert int(model.beside.iterations) == 7
    model.pop()  # the optimizers keep its variables
    for path in (tmp_path / "w", save_weights(model, tmp_path / "popped")):
        with pytest.raises(ckptfmt.InvalidError, match="without a target"):
            load_weights(model, path)
        assert len(load_weights(model, path, optimizer=False, strict=False).matched) >= 2
