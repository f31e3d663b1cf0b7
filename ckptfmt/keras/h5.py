# SPDX-License-Identifier: Apache-2.0
"""The names of variables in Keras's `.weights.h5` files ("layers/dense/vars/0")."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import keras
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.saving.saving_lib import _walk_saveable
from keras.src.utils.naming import to_snake_case
from numpy.typing import NDArray

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import Durability
from ckptfmt.bundle.choosing import Choice
from ckptfmt.formats.datasets import write_datasets
from ckptfmt.keras.model import OPTIMIZER, with_optimizer
from ckptfmt.keras.pairing import Pairing, Place


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
        return Place(dtype, tuple(value.shape), assign, dtype.kind in "iu")

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
    return {path: Own(saveable) for path, saveable in _saveables(model, "", visited)}


def _saveables(saveable: Any, path: str, visited: set[int]) -> Iterator[tuple[str, Any]]:
    if id(saveable) in visited:
        return
    visited.add(id(saveable))
    yield path, saveable
    for name, child in _walk_saveable(saveable):
        below = f"{path}/{name}".lstrip("/")
        if isinstance(child, KerasSaveable):
            yield from _saveables(child, below, visited)
        elif isinstance(child, (list, dict, tuple)):
            yield from _contained(child, below, visited, set())


def _contained(
    container: Any, path: str, visited: set[int], containers: set[int]
) -> Iterator[tuple[str, Any]]:
    """Yield the saveables in a list or dict, which are named and numbered by their types."""
    if id(container) in containers:
        return
    containers.add(id(container))
    counts: collections.Counter[str] = collections.Counter()
    for item in container.values() if isinstance(container, dict) else container:
        is_saveable = isinstance(item, KerasSaveable)
        if not is_saveable and not isinstance(item, (list, dict, tuple)):
            continue
        name = to_snake_case(type(item).__name__) if is_saveable else "container"
        below = f"{path}/{name}_{counts[name]}" if counts[name] else f"{path}/{name}"
        counts[name] += 1
        if is_saveable:
            yield from _saveables(item, below, visited)
        else:
            yield from _contained(item, below, visited, containers)


def _dataset_name(path: str, key: str) -> str:
    return f"{path}/vars/{key}".lstrip("/")


# ---- loading and saving --------------------------------------------------------------------------


def by_h5(stored: Mapping[str, Any], model: Any, optimizer: bool, choice: Choice) -> Pairing:
    """Pair a model with values that are named as in a `.weights.h5` file."""
    loaded, left_out, transforms = choice.chosen(list(stored))
    new_names = loaded | left_out
    start = f"{OPTIMIZER}/"
    is_stored = any(new.startswith(start) for new in new_names.values())
    optimizer = with_optimizer(model, optimizer, is_stored)
    if not optimizer:
        new_names = {old: new for old, new in new_names.items() if not new.startswith(start)}
    owners = owners_of(model, optimizer)
    places = {
        _dataset_name(path, key): own.place(key)
        for path, own in owners.items()
        for key in own.stored
    }

    def finish() -> None:
        for own in owners.values():
            own.finish()

    return Pairing(stored, new_names, transforms, places, finish)


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
