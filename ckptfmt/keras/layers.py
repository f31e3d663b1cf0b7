# SPDX-License-Identifier: Apache-2.0
"""The layers whose state is more than their variables: what they derive from variables, and what
no variable has.

Keras's own loading calls `load_own_variables` of each layer, and `load_assets` only for a whole
model. A checkpoint has the variables alone.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterator
from typing import Any

import keras
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.saving.saving_lib import _walk_saveable
from keras.src.utils.naming import to_snake_case

from ckptfmt.errors import warn
from ckptfmt.keras.model import OPTIMIZER


def saveables(saveable: Any, path: str, visited: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield what saves variables itself with its path in a file, in the order of Keras."""
    if id(saveable) in visited:
        return
    visited.add(id(saveable))
    yield path, saveable
    for name, child in _walk_saveable(saveable):
        below = f"{path}/{name}".lstrip("/")
        if isinstance(child, KerasSaveable):
            yield from saveables(child, below, visited)
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
            yield from saveables(item, below, visited)
        else:
            yield from _contained(item, below, visited, containers)


def _layers(model: Any) -> list[Any]:
    visited = {id(getattr(model, OPTIMIZER, None))}
    return [one for _, one in saveables(model, "", visited) if isinstance(one, keras.Layer)]


# ---- what layers derive from variables -----------------------------------------------------------


def derive(model: Any, written: Collection[int]) -> None:
    """Have the layers derive what Keras's loading derives.

    Args:
        model: the model.
        written: identities of the variables that were assigned.
    """
    for layer in _layers(model):
        if _is_foreign(layer, "load_own_variables"):
            own = _saved_by(layer)
            if _are_variables(layer, own) and any(id(one) in written for one in own.values()):
                values = {key: keras.ops.convert_to_numpy(one) for key, one in own.items()}
                layer.load_own_variables(values)
        elif isinstance(layer, keras.layers.Normalization) and any(
            id(one) in written for one in layer.weights
        ):
            layer.finalize_state()


def _is_foreign(layer: Any, method: str) -> bool:
    """Return whether a class outside of Keras has the method."""
    owner = next(kind for kind in type(layer).__mro__ if method in vars(kind))
    return owner.__module__.partition(".")[0] != "keras"


def _saved_by(layer: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    layer.save_own_variables(found)
    return found


def _are_variables(layer: Any, values: dict[str, Any]) -> bool:
    own = {id(one) for one in layer.weights}
    return all(id(one) in own for one in values.values())


# ---- what no variable has ------------------------------------------------------------------------


def without_variables(model: Any) -> list[Any]:
    """Return the layers that have a vocabulary, bins or other assets, which are files beside the
    weights."""
    every = _layers(model)
    inner = {id(getattr(layer, "_lookup_layer", None)) for layer in every}
    return [layer for layer in every if _has_assets(layer) and id(layer) not in inner]


def _has_assets(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Discretization) or hasattr(layer, "save_assets")


def beside_variables(model: Any) -> list[Any]:
    """Return the layers whose own methods save more than their variables."""
    return [layer for layer in _layers(model) if _saves_more(layer)]


def _saves_more(layer: Any) -> bool:
    if isinstance(layer, keras.layers.TorchModuleWrapper):
        return any(True for _ in layer.module.buffers())
    methods = ("save_own_variables", "load_own_variables")
    is_own = any(_is_foreign(layer, method) for method in methods)
    return is_own and not _are_variables(layer, _saved_by(layer))


def paths_of(layers: list[Any]) -> tuple[str, ...]:
    """Return what a report calls layers."""
    return tuple(layer.path or layer.name for layer in layers)


def warn_of_rest(model: Any, *, with_methods: bool) -> None:
    """Warn of layers with state that a checkpoint does not have.

    Args:
        model: the model that is saved.
        with_methods: whether the layers' own methods save them.
    """
    if names := [layer.name for layer in without_variables(model) if _is_adapted(layer)]:
        warn(
            f"the vocabularies, bins or assets of the layers {names} are not saved:"
            " model.save keeps them, or get_vocabulary and set_vocabulary (bin_boundaries)"
        )
    if not with_methods and (names := [layer.name for layer in beside_variables(model)]):
        warn(
            f"the layers {names} save more than their variables, which is not saved here: a"
            " .weights.h5 file keeps everything"
        )


def _is_adapted(layer: Any) -> bool:
    if isinstance(layer, keras.layers.Discretization):
        return layer.bin_boundaries is not None
    table = getattr(getattr(layer, "_lookup_layer", layer), "lookup_table", None)
    return table is None or int(table.size()) > 0
