# SPDX-License-Identifier: Apache-2.0
"""Files of the frameworks themselves: errors name the call that reads each, and it does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from support import keras_models
from support.foreign import CONVERT, FOREIGN, ORBAX, TORCH, check_refusal

import ckptfmt
import ckptfmt.jax
import ckptfmt.keras
import ckptfmt.torch
from ckptfmt.torch.dcp import StorageWriter

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]


def layered(units: int) -> Any:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])


STATE = {"a": torch.arange(3.0)}


def _orbax(path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, {"a": jnp.arange(3.0)})


def _steps(path: Path) -> None:
    with ocp.CheckpointManager(path) as manager:
        manager.save(12, args=ocp.args.StandardSave({"a": jnp.arange(3.0)}))


# What is made, how, the row of `FOREIGN` whose error is expected, and the call that reads it.
MADE: dict[str, tuple[Callable[[Path], Any], str, Callable[[Path], Any] | None]] = {
    "x.safetensors": (
        lambda path: safetensors.torch.save_file(STATE, path),
        "safetensors",
        ckptfmt.safetensors.load_file,
    ),
    "x.pt": (lambda path: torch.save(STATE, path), "torch", torch.load),
    "x.ckpt": (lambda path: torch.save(STATE, path), "torch", torch.load),
    "old.pt": (
        lambda path: torch.save(STATE, path, _use_new_zipfile_serialization=False),
        "old torch",
        torch.load,
    ),
    "script.pt": (
        lambda path: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path),
        "torch",
        torch.jit.load,
    ),
    "dcp": (lambda path: dcp.save(STATE, checkpoint_id=path, no_dist=True), "DCP", None),
    "orbax": (_orbax, "Orbax", lambda path: ocp.StandardCheckpointer().restore(path)),
    "steps": (_steps, "steps of Orbax", None),
    "x.keras": (lambda path: layered(3).save(path), "keras", keras.models.load_model),
    "x.h5": (lambda path: layered(3).save(path), "h5", None),
    "x.weights.h5": (
        lambda path: layered(3).save_weights(path),
        "weights.h5",
        lambda path: ckptfmt.keras.load_weights(layered(3), path),
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_reading(tmp_path: Path, name: str) -> None:
    make, row, pointer = MADE[name]
    path, made = tmp_path / name, FOREIGN[row]
    make(path)
    calls = [
        lambda: ckptfmt.open(path),
        lambda: ckptfmt.torch.load(path),
        lambda: ckptfmt.torch.load_into(torch.nn.Linear(2, 2), path),
        lambda: ckptfmt.jax.load(path, {"a": jnp.zeros(3)}),
    ]
    if row != "weights.h5":
        calls.append(lambda: ckptfmt.keras.load_weights(layered(3), path))
    for call in calls:
        with pytest.raises(ckptfmt.CkptfmtError) as caught:
            call()
        check_refusal(caught.value, made, row)
    if pointer is not None:
        assert pointer(path)
    if CONVERT in caught.value.message:
        assert ckptfmt.convert(path, tmp_path / "result").tensors
    elif made.pointer in (TORCH, ORBAX):
        assert "then ckptfmt." in caught.value.message


def test_the_other_formats_first_step(tmp_path: Path) -> None:
    """What torch.load and Orbax return is saved by the calls that the errors name."""
    torch.save(STATE, tmp_path / "x.pt")
    ckptfmt.torch.save(torch.load(tmp_path / "x.pt"), tmp_path / "torch")
    _orbax(tmp_path / "orbax")
    ckptfmt.jax.save(tmp_path / "jax", ocp.StandardCheckpointer().restore(tmp_path / "orbax"))
    for name in ("torch", "jax"):
        assert ckptfmt.load(tmp_path / name)["a"].tolist() == [0, 1, 2]


NAMES = {
    "x.safetensors": "ckptfmt.safetensors.save_file",
    "x.keras": "keras.Model.save",
    "x.h5": "ckptfmt.convert",
    "x.pt": "torch.save",
}


@pytest.mark.parametrize("name", NAMES)
def test_names(tmp_path: Path, name: str) -> None:
    """Those of other formats are refused by what saves for a framework."""
    path = tmp_path / name
    calls = [
        lambda: ckptfmt.torch.save(STATE, path),
        lambda: ckptfmt.torch.save_async(STATE, path),
        lambda: ckptfmt.jax.save(path, {"a": jnp.arange(3.0)}),
        lambda: ckptfmt.jax.save_async(path, {"a": jnp.arange(3.0)}),
        lambda: ckptfmt.keras.save_weights(layered(3), path),
        lambda: StorageWriter(path),
    ]
    for call in calls:
        with pytest.raises(ckptfmt.InvalidError) as caught:
            call()
        assert caught.value.failure == "BAD_PATH"
        assert NAMES[name] in caught.value.message
    assert os.listdir(tmp_path) == []


def test_convert_to_weights_h5(tmp_path: Path) -> None:
    """Written if the names are Keras's, and Keras loads it; else refused, with what works."""
    model, other = layered(3), layered(3)
    ckptfmt.keras.save_weights(model, tmp_path / "graph")
    ckptfmt.keras.save_weights(model, tmp_path / "h5", by="h5")
    ckptfmt.convert(tmp_path / "h5", tmp_path / "x.weights.h5")
    other.load_weights(tmp_path / "x.weights.h5")
    assert _equal(model, other)
    for to in (None, "hdf5"):
        with pytest.raises(ckptfmt.InvalidError, match=r"model\.save_weights") as caught:
            ckptfmt.convert(tmp_path / "graph", tmp_path / "y.weights.h5", to=to)
        assert "ckptfmt.keras.load_weights(model, PATH)" in caught.value.message
        assert caught.value.tensor in ckptfmt.load(tmp_path / "graph")
    assert not list(tmp_path.glob("y*"))
    ckptfmt.keras.load_weights(other := layered(3), tmp_path / "graph")
    other.save_weights(tmp_path / "y.weights.h5")
    (again := layered(3)).load_weights(tmp_path / "y.weights.h5")
    assert _equal(model, again)
    assert ckptfmt.convert(tmp_path / "graph", tmp_path / "y.h5").format == "hdf5"


ONE = np.ones(2, np.float32)
REFUSED: dict[str, dict[str, Any]] = {
    "other names": {"step": ONE},
    "no group": {"0": ONE},
    "a group below the variables": {"dense/vars/kernel/0": ONE},
    "a gap": {"dense/vars/0": ONE, "dense/vars/2": ONE},
    "not from 0": {"dense/vars/1": ONE},
    "another number": {"dense/vars/0": ONE, "dense/vars/01": ONE},
    "names and numbers": {"dense/vars/0": ONE, "dense/vars/kernel": ONE},
    "one group of several": {"a/vars/0": ONE, "b/vars/1": ONE},
    "no attribute": {"layer 1/vars/0": ONE},
    "a number": {"layers/1/vars/0": ONE},
    "no part": {"a//b/vars/0": ONE},
    "a list itself": {"layers/vars/0": ONE},
    "no class": {"layers/Dense/vars/0": ONE},
    "a property": {"dtype_policy/vars/0": ONE},
    "an attribute after `layers`": {"x/vars/0": ONE},
    "a private attribute": {"_dense/vars/0": ONE},
    "a layer named vars": {"vars/vars/0": ONE},
    "strings": {"dense/vars/0": np.array([b"a"], object)},
    "complex numbers": {"dense/vars/0": ONE.astype(np.complex64)},
    "float8": {"dense/vars/0": ONE.astype(ml_dtypes.float8_e4m3fn)},
    "int4": {"dense/vars/0": ONE.astype(ml_dtypes.int4)},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_model_loads(tmp_path: Path, what: str) -> None:
    ckptfmt.save(tmp_path / "ck", REFUSED[what])
    with pytest.raises(ckptfmt.InvalidError, match=r"model\.save_weights") as caught:
        ckptfmt.convert(tmp_path / "ck", tmp_path / "x.weights.h5")
    assert caught.value.tensor in REFUSED[what]
    assert not list(tmp_path.glob("x*"))


class Group(keras.Layer):
    """A layer with variables of the shapes and dtypes of these, and with layers as attributes."""

    def __init__(self, arrays: list[Any]) -> None:
        super().__init__()
        self.own = _variables(self, arrays)
        self.built = True


def _variables(layer: Any, arrays: list[Any]) -> list[Any]:
    options = {"initializer": "zeros", "trainable": False}
    return [
        layer.add_weight(shape=array.shape, dtype=array.dtype.name, **options) for array in arrays
    ]


def _model_of(tensors: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a model with these variables in its `.weights.h5`, and its layers by path."""

    class Model(keras.Model):
        pass

    groups: dict[str, list[Any]] = {}
    for name in sorted(tensors, key=lambda name: (name.count("/"), len(name), name)):
        groups.setdefault(name.rpartition("vars/")[0].rstrip("/"), []).append(tensors[name])
    root: Any = Model()
    root.own = _variables(root, groups.get("", []))
    made: dict[str, Any] = {"": root}
    for path, arrays in groups.items():
        parent = root
        parts = path.split("/") if path else []
        for at in range(1, len(parts) + 1):
            below = "/".join(parts[:at])
            if below not in made:
                made[below] = Group(arrays if below == path else groups.get(below, []))
                setattr(parent, parts[at - 1], made[below])
            parent = made[below]
    root.built = True
    return root, {path: made[path] for path in groups}


@pytest.mark.parametrize("seed", range(20))
def test_a_model_loads_what_is_written(tmp_path: Path, seed: int) -> None:
    """Of any names that are accepted, there is a model with such layers, and Keras fills it."""
    random = np.random.default_rng(seed)
    dtypes = [np.float32, np.float16, np.int32, np.uint8, np.bool_, ml_dtypes.bfloat16]
    tensors: dict[str, Any] = {}
    for _ in range(random.integers(1, 6)):
        depth = random.integers(1, 4)
        path = "/".join(
            [
                random.choice(["a", "dense", "block_1", "H"]),
                *random.choice(["x", "layers", "é", "_p"], depth - 1),
            ]
        )
        path = path if random.integers(5) else ""
        for number in range(random.integers(1, 13)):
            shape = random.integers(0, 4, random.integers(0, 3))
            values = random.integers(0, 2, shape)
            name = f"{path}/vars/{number}".lstrip("/")
            tensors[name] = values.astype(random.choice(dtypes))
    ckptfmt.save(tmp_path / "ck", tensors)
    ckptfmt.convert(tmp_path / "ck", tmp_path / "x.weights.h5")
    model, layers = _model_of(tensors)
    model.load_weights(tmp_path / "x.weights.h5")
    for path, layer in layers.items():
        for number, variable in enumerate(layer.own):
            found = keras.ops.convert_to_numpy(variable)
            expected = tensors[f"{path}/vars/{number}".lstrip("/")]
            assert np.array_equal(found.astype(np.float64), expected.astype(np.float64))
    model.save_weights(tmp_path / "theirs.weights.h5")
    ckptfmt.convert(tmp_path / "theirs.weights.h5", tmp_path / "theirs")
    assert ckptfmt.load(tmp_path / "theirs").keys() == tensors.keys(), "and they are its names"


@pytest.mark.parametrize("name", keras_models.SHAPES)
def test_files_of_keras_come_back(tmp_path: Path, name: str) -> None:
    """What was converted from a `.weights.h5` file, or has its names, is converted to one."""
    model = keras_models.made(name)
    expected = keras_models.values(model)
    model.save_weights(tmp_path / "theirs.weights.h5")
    ckptfmt.convert(tmp_path / "theirs.weights.h5", tmp_path / "converted")
    ckptfmt.keras.save_weights(model, tmp_path / "saved", by="h5")
    for source in ("theirs.weights.h5", "converted", "saved"):
        ckptfmt.convert(tmp_path / source, tmp_path / "x.weights.h5")
        other = keras_models.built(name)
        other.optimizer.build(other.trainable_variables)
        other.load_weights(tmp_path / "x.weights.h5")
        assert keras_models.values(other) == expected, source


def _equal(one: keras.Model, other: keras.Model) -> bool:
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return all(np.array_equal(left, right) for left, right in pairs)
