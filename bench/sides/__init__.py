# SPDX-License-Identifier: Apache-2.0
"""The sides of the benchmark: one module for each library, all with the same verbs.

A module has `version()`, `first(folder, name)` for a process that does nothing else, and a class
`Here`, a subclass of `Side`. A verb prepares what is not timed and returns the call that is. What
the call returns is turned into numpy arrays by `arrays`, again not timed. A verb that a library
does not have is not defined.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

Call = Callable[[], Any]


class Side:
    """What the worker holds for one library.

    Attributes:
        names: of the tensors of the data at hand, in order.
        shape: of each of them.
        data: the arrays in the form the library takes.
        tuned: whether its documented settings are to be used.
    """

    def __init__(self, tuned: bool) -> None:
        self.tuned = tuned
        self.names: list[str] = []
        self.shape: list[int] = []
        self.data: Any = None

    def hold(self, arrays: dict[str, Any]) -> Any:
        """The arrays in the form the library takes."""
        return arrays

    def arrays(self, result: Any) -> Any:
        """What was loaded as numpy arrays."""
        return result

    def load_astype(self, folder: str) -> Call:
        """Loads all, then casts each array to bfloat16."""
        import ml_dtypes  # noqa: PLC0415 (not in the time of an import)

        load = self.load(folder)  # type: ignore[attr-defined]
        return lambda: {name: array.astype(ml_dtypes.bfloat16) for name, array in load().items()}

    def forget(self) -> None:
        """Gives back the memory that the library keeps, where it can be asked to."""


def synced(folder: str) -> None:
    """Syncs all files of a folder, and the folders, so that they survive a loss of power."""
    for place, _, files in os.walk(folder):
        for name in [*files, "."]:
            descriptor = os.open(os.path.join(place, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def then_synced(call: Call, folder: str, durable: bool) -> Call:
    """The call, and after it `synced` where that is asked for."""
    if not durable:
        return call

    def both() -> Any:
        result = call()
        synced(folder)
        return result

    return both


def key_of(box: list[list[int]]) -> tuple[slice, ...]:
    """The index of [start, stop, step] in every dimension."""
    return tuple(slice(*part) for part in box)
