# SPDX-License-Identifier: Apache-2.0
"""Files of the frameworks themselves: errors name the call that reads each, and it does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Keras reads it once, when it is imported.
os.environ.setdefault("KERAS_BACKEND", "torch")

import jax.numpy as jnp
import keras
import orbax.checkpoint as ocp
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
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


def _equal(one: keras.Model, other: keras.Model) -> bool:
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return all(np.array_equal(left, right) for left, right in pairs)
