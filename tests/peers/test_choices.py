# SPDX-License-Identifier: Apache-2.0
"""The options of loading mean the same in the calls of the adapters."""

from __future__ import annotations

import gc
import inspect
import random
import weakref
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from support.choices import (
    LOSSY,
    STORED,
    Call,
    Loaded,
    check,
    check_losses,
    drawn_options,
    grid,
)
from support.options import ADAPTERS, calls, check_calls
from support.strategies import SEEDS, counted, property_test
from support.trees import flat, nested

import ckptfmt
import ckptfmt.jax
import ckptfmt.keras
import ckptfmt.torch


@pytest.fixture(scope="module", autouse=True)
def x64() -> Any:
    import jax  # noqa: PLC0415

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def _torch_load(path: Path, _targets: dict[str, Any], given: dict[str, Any]) -> Loaded:
    return {name: one.numpy() for name, one in ckptfmt.torch.load(path, **given).items()}, None


def _torch_load_into(path: Path, targets: dict[str, Any], given: dict[str, Any]) -> Loaded:
    state = {name: torch.from_numpy(one) for name, one in targets.items()}
    report = ckptfmt.torch.load_into(state, path, **given)
    return {name: one.numpy() for name, one in state.items()}, report


def _jax_load(path: Path, targets: dict[str, Any], given: dict[str, Any]) -> Loaded:
    like = {name: jnp.asarray(one) for name, one in targets.items()}
    found = flat(ckptfmt.jax.load(path, nested(like), **given))
    return {name: np.asarray(one) for name, one in found.items()}, None


CALLS = {
    "torch.load": Call(_torch_load, with_targets=False, lacks=("strict",)),
    "torch.load_into": Call(_torch_load_into, in_place=True),
    "jax.load": Call(_jax_load),
}


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[bool, Path]]:
    folder = tmp_path_factory.mktemp("choices")
    ckptfmt.save(folder / "plain", STORED)
    ckptfmt.torch.save({name: torch.from_numpy(one) for name, one in STORED.items()}, folder / "pt")
    ckptfmt.jax.save(folder / "jax", nested(STORED))
    return {name: {False: folder / name} for name in ("plain", "pt", "jax")}


@pytest.mark.parametrize("name", CALLS)
def test_all_options_together(name: str, prefixes: dict[str, dict[bool, Path]]) -> None:
    words = [check(CALLS[name], given, prefixes["plain"]) for given in grid()]
    assert words.count("loaded") > len(words) / 4


@pytest.mark.parametrize("name", CALLS)
def test_losses_are_refused_or_reported(name: str, tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", LOSSY)
    check_losses(CALLS[name], tmp_path / "ck")


@property_test(600, 20_000, seed=SEEDS)
def test_options_of_loading_mean_the_same_in_adapters(
    seed: int, prefixes: dict[str, dict[bool, Path]]
) -> None:
    chance = random.Random(seed)
    call, stored = CALLS[chance.choice(sorted(CALLS))], prefixes[chance.choice(sorted(prefixes))]
    counted("choices", **{check(call, drawn_options(chance), stored): 1})


def test_leaves_without_values_must_be_loaded(tmp_path: Path) -> None:
    """A pytree of descriptions has nothing to return for what is left out."""
    import jax  # noqa: PLC0415

    ckptfmt.jax.save(tmp_path / "ck", {"a": jnp.ones(2), "b": jnp.ones(3)})
    like: Any = {"a": jax.ShapeDtypeStruct((2,), np.float64), "b": jnp.zeros(3)}
    assert ckptfmt.jax.load(tmp_path / "ck", like, names=["a"])["b"].tolist() == [0, 0, 0]
    with pytest.raises(ckptfmt.InvalidError) as caught:
        ckptfmt.jax.load(tmp_path / "ck", like, filter="b")
    assert caught.value.tensor == "a"
    like["c"] = jax.ShapeDtypeStruct((2,), np.float32)
    with pytest.raises(ckptfmt.TensorNotFoundError):
        ckptfmt.jax.load(tmp_path / "ck", like, strict=False)


def test_options_are_those_of_the_page() -> None:
    check_calls(ADAPTERS)
    for name, call in calls(ADAPTERS).items():
        kinds = {one.kind for one in inspect.signature(call).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, name


TORCH: Any = {"x": torch.ones(2)}
JAX: Any = {"x": jnp.ones(2)}
MODEL: Any = object()
SWAPPED: dict[str, Any] = {
    "prefix torch.save": lambda at: ckptfmt.torch.save(at, TORCH),
    "prefix torch.save_async": lambda at: ckptfmt.torch.save_async(at, TORCH),
    "path torch.load_into": lambda at: ckptfmt.torch.load_into(at, TORCH),
    "prefix jax.save": lambda at: ckptfmt.jax.save(JAX, at),
    "path jax.load": lambda at: ckptfmt.jax.load(JAX, at),
    "prefix keras.save_weights": lambda at: ckptfmt.keras.save_weights(at, MODEL),
    "path keras.load_weights": lambda at: ckptfmt.keras.load_weights(at, MODEL),
}


@pytest.mark.parametrize("name", SWAPPED)
def test_swapped_arguments_are_recognised(name: str, tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.InvalidError, match="swapped") as caught:
        SWAPPED[name](str(tmp_path / "ck"))
    assert caught.value.argument == name.partition(" ")[0]
    assert not list(tmp_path.iterdir())


OPTIONS: dict[str, Any] = {
    "torch.save": lambda at, **given: ckptfmt.torch.save(TORCH, at, **given),
    "torch.save_async": lambda at, **given: ckptfmt.torch.save_async(TORCH, at, **given).result(),
    "torch.load": ckptfmt.torch.load,
    "torch.load_into": lambda at, **given: ckptfmt.torch.load_into(TORCH, at, **given),
    "jax.save": lambda at, **given: ckptfmt.jax.save(at, JAX, **given),
    "jax.load": lambda at, **given: ckptfmt.jax.load(at, JAX, **given),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_a_wrong_type_are_refused(name: str, tmp_path: Path) -> None:
    ckptfmt.torch.save(TORCH, tmp_path / "ck")
    for option, parameter in inspect.signature(calls(ADAPTERS)[name]).parameters.items():
        annotation = str(parameter.annotation)
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or annotation == "Any":
            continue
        for value in (object(), *([] if "None" in annotation else [None])):
            with pytest.raises(ckptfmt.InvalidError) as caught:
                OPTIONS[name](tmp_path / "ck", **{option: value})
                pytest.fail(f"{option}={value}")
            assert caught.value.argument == option


def test_keys_of_other_types_are_kept(tmp_path: Path) -> None:
    ckptfmt.torch.save({5: torch.ones(1), 6: torch.zeros(1), "a": torch.ones(2)}, tmp_path / "ck")
    loaded = ckptfmt.torch.load(tmp_path / "ck", rename={"a": "b"})
    assert [*loaded] == [5, 6, "b"]
    target = {5: torch.zeros(1), 6: torch.ones(1)}
    assert ckptfmt.torch.load_into(target, tmp_path / "ck", names=["5", "6"])
    assert (target[5].item(), target[6].item()) == (1, 0)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_what_else_torch_stores_is_cast_or_refused(tmp_path: Path) -> None:
    """Arrays and scalars of NumPy in a state, those of other dtypes than NumPy's own too."""
    state = {"a": np.arange(3.0), "s": np.float64(0.5), "b": np.ones(2, ml_dtypes.bfloat16)}
    more = {"h": torch.ones(2, dtype=torch.complex32), "w": torch.ones(2)}
    ckptfmt.torch.save({**state, **more}, tmp_path / "ck")
    plain = ckptfmt.torch.load(tmp_path / "ck")
    assert {name: plain[name].dtype for name in state} == {k: v.dtype for k, v in state.items()}
    loaded = ckptfmt.torch.load(tmp_path / "ck", cast="float16")
    assert {loaded[name].dtype for name in "ab"} == {np.dtype(np.float16)}
    assert type(loaded["s"]) is np.float64 and loaded["a"].tolist() == [0, 1, 2]
    wide = ckptfmt.torch.load(tmp_path / "ck", cast={"w": "complex128"})["w"]
    assert wide.dtype == torch.complex128 and wide.tolist() == [1, 1]
    for dtype in ("float32", "float64"):  # NumPy compares float64 equal to None
        with pytest.raises(ckptfmt.InvalidError) as caught:
            ckptfmt.torch.load(tmp_path / "ck", cast={"h": dtype})
        assert (caught.value.argument, caught.value.tensor) == ("cast", "h")


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight


@pytest.mark.parametrize("cast", [True, "float16"])
def test_tied_weights_are_cast_and_stay_tied(tmp_path: Path, cast: Any) -> None:
    stored, model = Tied(), Tied().half()
    ckptfmt.torch.save(stored, tmp_path / "ck")
    assert ckptfmt.torch.load_into(model, tmp_path / "ck", cast=cast)
    assert model.a.weight is model.b.weight
    assert torch.equal(model.a.weight, stored.a.weight.half())
    if cast is not True:
        loaded = ckptfmt.torch.load(tmp_path / "ck", cast=cast)
        assert loaded["a.weight"] is loaded["b.weight"]

    def negated(array: Any) -> Any:
        return -array

    other = [("^a", "a", negated), ("^b", "b")]
    with pytest.raises(ckptfmt.InvalidError, match="shares memory"):
        ckptfmt.torch.load_into(Tied(), tmp_path / "ck", rename=other)


def test_texts_and_object_graphs_in_jax(tmp_path: Path) -> None:
    ckptfmt.jax.save(tmp_path / "text", {"s": "x"})
    same = {"s": ("s", lambda array: array)}
    assert ckptfmt.jax.load(tmp_path / "text", {"s": ""}, rename=same) == {"s": "x"}
    prefix = ckptfmt.Checkpoint(w=np.ones(2)).save(tmp_path / "objects")
    rename = [("/.ATTRIBUTES/VARIABLE_VALUE", "")]
    loaded = ckptfmt.jax.load(prefix, {"w": np.zeros(2)}, rename=rename)
    assert loaded["w"].tolist() == [1, 1]


def test_a_load_keeps_no_transform(tmp_path: Path) -> None:
    """Nor needs to hash it; casts come before it."""

    class Negation:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, array: Any) -> Any:
            return -array

    ckptfmt.torch.save({"a": torch.ones(2)}, tmp_path / "ck")
    transform = Negation()
    rename = {"a": ("a", transform)}
    for _ in range(2):
        loaded = ckptfmt.torch.load(tmp_path / "ck", rename=rename, cast="float64")
        assert loaded["a"].tolist() == [-1, -1] and loaded["a"].dtype is torch.float64
    gone = weakref.ref(transform)
    del transform, rename
    gc.collect()
    assert gone() is None
