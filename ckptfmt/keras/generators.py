# SPDX-License-Identifier: Apache-2.0
"""The random number generators that a model draws from and does not own: those of the process.

Keras draws from its global SeedGenerator where a function of `keras.random` has no seed, and on
torch from torch's own generator, for the dropout of layers without a seed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras.src.random.seed_generator import global_seed_generator
from numpy.typing import NDArray

from ckptfmt._base.names import VALUE_SUFFIX
from ckptfmt.errors import warn
from ckptfmt.keras.model import Value
from ckptfmt.keras.pairing import Pairing, Place

# Beside the model in a checkpoint.
RANDOM_STATE = "random_state"
NAMES = ("keras", "torch", "torch_cuda", "torch_mps")


class TorchState:
    """The state of a generator of torch, as an array."""

    def __init__(self, get: Callable[[], Any], set_: Callable[[Any], object]) -> None:
        self._get, self._set = get, set_

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array: NDArray[Any] = self._get().numpy()
        return array

    def place(self) -> Place:
        """Return what sets the state."""
        array = np.asarray(self)
        return Place(array.dtype, array.shape, self._assign)

    def _assign(self, array: NDArray[Any]) -> None:
        import torch  # noqa: PLC0415 (only where it is the backend)

        self._set(torch.from_numpy(array.copy()))


def warn_of_layers(model: Any) -> None:
    """Warn of layers that draw from a generator whose state no backend can continue."""
    kind = getattr(keras.layers, "AugMix", ())
    if names := [layer.name for layer in model._flatten_layers() if isinstance(layer, kind)]:
        warn(
            f"seeds=True: AugMix layers {names} choose transformations with Python's random, whose"
            " state is not saved: a training that continues draws others"
        )


def generators_of_process() -> dict[str, Any]:
    """Return what has the states by name."""
    generator = global_seed_generator()
    return {"keras": Value(generator.state, generator), **dict(_of_torch())}


def _of_torch() -> Iterator[tuple[str, TorchState]]:
    if keras.backend.backend() != "torch":
        return
    import torch  # noqa: PLC0415
    from keras.src.backend.torch.core import get_device  # noqa: PLC0415

    yield "torch", TorchState(torch.get_rng_state, torch.set_rng_state)
    device = get_device()
    if device.startswith("cuda"):
        get = functools.partial(torch.cuda.get_rng_state, device)
        set_ = functools.partial(torch.cuda.set_rng_state, device=device)
        yield "torch_cuda", TorchState(get, set_)
    if device.startswith("mps"):
        yield "torch_mps", TorchState(torch.mps.get_rng_state, torch.mps.set_rng_state)


def has_seeds(reader: Any) -> bool:
    """Return whether `save_weights` saved this with `seeds=True`."""
    path = f"{RANDOM_STATE}/keras"
    return path in reader or path + VALUE_SUFFIX in reader


def add_generators(pairing: Pairing, reader: Any, model: Any) -> None:
    """Pair the generators of this process with those of a checkpoint. What other backends and
    devices have is left out."""
    if not has_seeds(reader):
        return  # a look at the generators of this process would make those that are missing
    stored, own = dict(pairing.stored), generators_of_process()
    for name in NAMES:
        path = f"{RANDOM_STATE}/{name}"
        key = next((key for key in (path + VALUE_SUFFIX, path) if key in reader), None)
        if key is None:
            continue
        stored.pop(path, None)
        pairing.new_names.pop(path, None)
        if name in own:
            stored[path], pairing.new_names[path] = reader[key], path
            one = own[name]
            pairing.places[path] = Place.of(one) if isinstance(one, Value) else one.place()
            if name == "torch":
                pairing.finish = functools.partial(_build_without_drawing, model)
    pairing.stored = stored


def _build_without_drawing(model: Any) -> None:
    """Have the next `fit` build metrics without a change of torch's generators: Keras takes a
    batch of the data for that, which draws a number that a training without a break does not."""
    if "_symbolic_build" in vars(model):
        return
    build = model._symbolic_build

    def build_once(*args: Any, **options: Any) -> None:
        del model._symbolic_build
        states = [(one.place(), np.array(one)) for _, one in _of_torch()]
        build(*args, **options)
        for place, state in states:
            place.assign(state)

    model._symbolic_build = build_once
