# SPDX-License-Identifier: Apache-2.0
"""The names of variables in Keras's `.weights.h5` files ("layers/dense/vars/0")."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import keras
from numpy.typing import NDArray

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import Durability
from ckptfmt.formats.datasets import write_datasets
from ckptfmt.keras.layers import saveables
from ckptfmt.keras.model import OPTIMIZER, is_counter
from ckptfmt.keras.optimizers import OwnOptimizer
from ckptfmt.keras.pairing import Pairing, Place
from ckptfmt.naming.roles import KERAS_NAMES
from ckptfmt.recipe.changes import Changes

# Where Keras 2 stores the variables of metrics.
METRICS = "metrics/"


class Own:
    """The variables that a layer or optimizer saves itself, in the order of its methods."""

    def __init__(self, saveable: Any) -> None:
        self.saveable = saveable
        self.stored: dict[str, Any] = {}
        self.given: dict[str, NDArray[Any]] = {}
        self.saves = hasattr(saveable, "save_own_variables")
        if self.saves:
            saveable.save_own_variables(self.stored)

    def place(self, key: str) -> Place:
        """Return a place for one of them."""
        value = self.stored[key]
        dtype = dtypes.numpy_dtype(dtypes.code_of(keras.backend.standardize_dtype(value.dtype)))
        assert dtype is not None
        assign = functools.partial(self._give, key)
        return Place(dtype, tuple(value.shape), assign, is_counter(dtype, self.saveable))

    def _give(self, key: str, array: NDArray[Any]) -> None:
        self.given[key] = array
        if len(self.given) == len(self.stored):
            self.finish()

    def finish(self) -> None:
        """Load what was given, beside what it has."""
        if self.given:
            self.saveable.load_own_variables({**self.stored, **self.given})
            self.given = {}


def owners_of(model: Any, optimizer: bool) -> dict[str, Own]:
    """Return what saves variables itself by its path in a file, in the order of Keras."""
    visited = set() if optimizer else {id(getattr(model, OPTIMIZER, None))}
    return {path: Own(saveable) for path, saveable in saveables(model, "", visited)}


def _dataset_name(path: str, key: str) -> str:
    return f"{path}/vars/{key}".lstrip("/")


# ---- loading and saving --------------------------------------------------------------------------


def by_h5(stored: Mapping[str, Any], model: Any, optimizer: bool, choice: Changes) -> Pairing:
    """Pair a model with values that are named as in a `.weights.h5` file. An optimizer is paired by
    the positions of its variables, if it has the same number of them, of the same shapes."""
    loaded, left_out, transforms = choice.chosen(list(stored))
    new_names = loaded | left_out
    is_stored = any(map(_is_of_optimizer, new_names.values()))
    own_optimizer = OwnOptimizer(model, optimizer and is_stored)
    optimizer = own_optimizer.optimizer is not None
    owners = owners_of(model, optimizer=False)
    if optimizer:
        owners |= _of_optimizer(own_optimizer.optimizer)
    places = {
        _dataset_name(path, key): own.place(key)
        for path, own in owners.items()
        for key in own.stored
    }
    shapes = {name: place.shape for name, place in places.items() if _is_of_optimizer(name)}
    found = {
        new: shapes.get(new) if old in transforms else stored[old].shape
        for old, new in new_names.items()
        if _is_of_optimizer(new)
    }
    left: tuple[str, ...] = ()
    metadata = getattr(stored, "metadata", {})
    group_names = getattr(stored, "group_names", {})
    with contextlib.suppress(TypeError, ValueError):
        group_names = group_names or dict(metadata.get(KERAS_NAMES, ()))
    names = [
        (own.saveable.name, str(group_names.get(f"{path}/vars", "")))
        for path, own in owners.items()
        if isinstance(own.saveable, keras.optimizers.Optimizer)
    ]
    if optimizer and (found != shapes or not own_optimizer.is_of_class(metadata, names)):
        optimizer, left = False, (OPTIMIZER,)
        places = {name: place for name, place in places.items() if name not in shapes}
    new_names = {
        old: new
        for old, new in new_names.items()
        if new in places or not (new.startswith(METRICS) or (not optimizer and new in found))
    }

    def begin() -> None:
        for path, own in _of_optimizer(own_optimizer.build()).items():
            owners[path].saveable = own.saveable

    def finish() -> None:
        for own in owners.values():
            own.finish()

    together = frozenset(filter(_is_of_optimizer, places))
    return Pairing(stored, new_names, transforms, places, finish, left, together, begin)


def _of_optimizer(optimizer: Any) -> dict[str, Own]:
    return {path: Own(saveable) for path, saveable in saveables(optimizer, OPTIMIZER, set())}


def _is_of_optimizer(name: str) -> bool:
    return name.startswith(f"{OPTIMIZER}/")


def tensors_of(owners: Mapping[str, Own]) -> dict[str, NDArray[Any]]:
    """Return the values by their names in a file."""
    return {
        _dataset_name(path, key): keras.ops.convert_to_numpy(value)
        for path, own in owners.items()
        for key, value in own.stored.items()
    }


def write_h5(file: str, owners: Mapping[str, Own], durability: Durability) -> None:
    """Write a `.weights.h5` file as Keras does.

    Raises:
        What `write_datasets` and its methods raise.
    """
    with write_datasets(file, durability=durability) as datasets:
        for path, own in owners.items():
            name = getattr(own.saveable, "name", None)
            if own.saves and isinstance(name, str):
                datasets.set_attributes(f"{path}/vars".lstrip("/"), {"name": name})
        for name, array in tensors_of(owners).items():
            datasets.add(name, array)
