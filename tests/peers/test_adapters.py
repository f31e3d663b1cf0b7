# SPDX-License-Identifier: Apache-2.0
"""Objects of frameworks where ckptfmt's own objects are expected: refused when they are given, with
the calls that save and load them. These calls work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from flax.training.train_state import TrainState

import ckptfmt
import ckptfmt.jax
import ckptfmt.keras
import ckptfmt.torch
from ckptfmt import InvalidError

TORCH = "save it with ckptfmt.torch.save(state, prefix) and load it with ckptfmt.torch.load_into("
KERAS = "save the keras.Model with ckptfmt.keras.save_weights(model, prefix) and load it with "
JAX = "save it with ckptfmt.jax.save(prefix, pytree) and load it with ckptfmt.jax.load(prefix, "
NNX = "save it with ckptfmt.jax.save(prefix, nnx.state(it)) and load it with nnx.update(it, "
INIT = "save the pytree that its init returns with ckptfmt.jax.save(prefix, pytree) and load "

PARAMS = {"w": jnp.ones(2)}


def module() -> torch.nn.Module:
    return torch.nn.Linear(2, 2)


def adam() -> torch.optim.Optimizer:
    return torch.optim.Adam(module().parameters())


def model() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])


def linear() -> nnx.Module:
    return nnx.Linear(2, 2, rngs=nnx.Rngs(0))


# Objects that no save of ckptfmt.Checkpoint or save_tree takes.
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (module, TORCH),
    (adam, TORCH),
    (lambda: torch.optim.lr_scheduler.StepLR(adam(), 1), TORCH),
    (model, KERAS),
    (lambda: keras.layers.Dense(2), KERAS),
    (keras.optimizers.Adam, KERAS),
    (linear, NNX),
    (lambda: nnx.Optimizer(linear(), optax.adam(0.1), wrt=nnx.Param), NNX),
    (lambda: flax.linen.Dense(2), INIT),
    (lambda: optax.adam(0.1), INIT),
    (lambda: TrainState.create(apply_fn=print, params=PARAMS, tx=optax.adam(0.1)), JAX),
]
# Objects that need a Checkpoint around them, or an adapter, in a manager only.
CONTAINERS: list[tuple[Callable[[], Any], str]] = [
    (lambda: module().state_dict(), TORCH),
    (lambda: {"model": module(), "step": 0}, TORCH),
    (lambda: torch.ones(2), TORCH),
    (lambda: [model()], KERAS),
    (lambda: PARAMS, JAX),
    (lambda: optax.adam(0.1).init(PARAMS), JAX),
    (lambda: nnx.state(linear()), JAX),
    (lambda: {1: np.ones(1), "1": jnp.ones(1)}, JAX),
]


@pytest.mark.parametrize(("make", "calls"), REFUSED + CONTAINERS)
def test_a_manager_refuses_them(tmp_path: Path, make: Any, calls: str) -> None:
    with pytest.raises(InvalidError) as caught:
        ckptfmt.CheckpointManager(make(), tmp_path / "run", 3)
    adapter = calls.partition("ckptfmt.")[2].partition(".")[0]
    assert f"ckptfmt.{adapter}.Checkpoint(...)" in caught.value.message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("make", "calls"), REFUSED)
def test_checkpoints_and_trees_refuse_them(tmp_path: Path, make: Any, calls: str) -> None:
    for save in (
        lambda one: ckptfmt.Checkpoint(model=[{"x": one}]).save(tmp_path / "one"),
        lambda one: ckptfmt.save_tree(tmp_path / "tree", {"model": [{"x": one}]}),
        lambda one: ckptfmt.tf.TrainingState(one, tmp_path / "state").back_up(1),
    ):
        with pytest.raises(
            InvalidError, match=r"which (cannot be saved|a tree cannot contain)"
        ) as e:
            save(make())
        assert calls in e.value.message
    for path in tmp_path.rglob("*"):
        assert path.is_dir(), path


@pytest.mark.parametrize("make", [module, adam, model, linear])
def test_they_are_refused_when_they_are_given(tmp_path: Path, make: Any) -> None:
    with pytest.raises(InvalidError, match="the object at 'model' is of type"):
        ckptfmt.Checkpoint(model=make())
    with pytest.raises(InvalidError, match="the object at 'model' is of type"):
        ckptfmt.tf.TrainingState(make(), tmp_path)
    with pytest.raises(InvalidError, match="the object at 'root' is of type"):
        ckptfmt.Checkpoint(make())


@pytest.mark.parametrize(
    ("make", "calls"), [(module, TORCH), (adam, TORCH), (model, KERAS), (linear, NNX)]
)
def test_functions_for_arrays_refuse_them(tmp_path: Path, make: Any, calls: str) -> None:
    ckptfmt.save(tmp_path / "stored", {"w": np.ones(2)})
    one = make()
    for call in (
        lambda: ckptfmt.save(tmp_path / "one", one),
        lambda: ckptfmt.save(tmp_path / "one", {"w": one}),
        lambda: ckptfmt.load_into(tmp_path / "stored", one),
        lambda: ckptfmt.Saver(one),
    ):
        with pytest.raises(InvalidError) as caught:
            call()
        assert calls in caught.value.message
    assert {path.stem for path in tmp_path.iterdir()} == {"stored"}


def test_their_own_methods_make_them_savable(tmp_path: Path) -> None:
    """A model that has what a Checkpoint or a manager needs is not refused."""

    class Children(torch.nn.Linear):
        def trackable_children(self) -> Any:
            return dict(self.named_parameters())

    class Managed(torch.nn.Linear):
        def write(self, prefix: str, options: Any = None) -> str:
            ckptfmt.torch.save(self, prefix)
            return prefix

        def restore(self, path: str, options: Any = None) -> Any:
            return ckptfmt.torch.load_into(self, path)

    saved = ckptfmt.Checkpoint(model=Children(2, 2)).save(tmp_path / "children")
    assert "model/weight/.ATTRIBUTES/VARIABLE_VALUE" in ckptfmt.load(saved)
    managed = Managed(2, 2)
    manager = ckptfmt.CheckpointManager(managed, tmp_path / "run", 2)
    manager.save()
    before = managed.weight.detach().clone()
    torch.nn.init.zeros_(managed.weight)
    manager.restore_latest()
    assert torch.equal(managed.weight, before)


def test_the_calls_work(tmp_path: Path) -> None:
    prefix = tmp_path / "one"
    for state in (module(), adam(), module().state_dict()):
        ckptfmt.torch.save(state, prefix)
        ckptfmt.torch.load_into(state, prefix)
    one = model()
    ckptfmt.keras.save_weights(one, prefix)
    ckptfmt.keras.load_weights(one, prefix)
    it = linear()
    ckptfmt.jax.save(prefix, nnx.state(it))
    nnx.update(it, ckptfmt.jax.load(prefix, nnx.state(it)))
    for pytree in (PARAMS, flax.linen.Dense(2).init(jax.random.key(0), jnp.ones((1, 2)))):
        ckptfmt.jax.save(prefix, pytree)
        ckptfmt.jax.load(prefix, pytree)
