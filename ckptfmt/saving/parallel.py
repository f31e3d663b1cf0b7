# SPDX-License-Identifier: Apache-2.0
"""Parallel variables: one variable with a buffer on each of several devices, as those of
TensorFlow's parallel device under `independent_buffers`.

Component 0 is saved under the name that an ordinary variable has, so that an ordinary reader gets
it; component i from 1 on as `parallel_component_<i>` beside it:

    <path>/.ATTRIBUTES/VARIABLE_VALUE
    <path>/.ATTRIBUTES/parallel_component_1
    <path>/.ATTRIBUTES/parallel_component_2
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.exceptions import TooHardError
from numpy.typing import NDArray

from ckptfmt.arguments import wrong
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError, TensorNotFoundError
from ckptfmt.saving.specs import SaveSpec

__all__ = ["ParallelVariable", "independent_buffers"]

ATTRIBUTES = "/.ATTRIBUTES/"
FIRST = ATTRIBUTES + "VARIABLE_VALUE"
OTHERS = ATTRIBUTES + "parallel_component_"

# How long to look for memory that two components share.
_WORK_MAX: Any = 100_000  # NumPy's annotations know two values only

_devices: contextvars.ContextVar[tuple[str, ...] | None] = contextvars.ContextVar(
    "ckptfmt.saving.parallel.devices", default=None
)


@contextlib.contextmanager
def independent_buffers(devices: Sequence[str] | None = None) -> Iterator[tuple[str, ...] | None]:
    """Within this context the parallel variables that are made without devices lie on these.

    The context of TensorFlow's name takes a parallel device; here the names of its component
    devices. Contexts may be nested, and each thread and task has its own. None takes away the
    devices of the context around.

    Raises:
        InvalidError: `devices` are no names, or none.
    """
    names = None if devices is None else _device_names(devices)
    token = _devices.set(names)
    try:
        yield names
    finally:
        _devices.reset(token)


class ParallelVariable:
    """A variable with one buffer a device, saved and restored independently.

    An object for the keys of `Saver`'s `serialized_tensors`:

    >>> from ckptfmt.saving.saver import Saver
    >>> variable = ParallelVariable([np.zeros(2), np.ones(2)])
    >>> saver = Saver({variable: variable.serialize("model/w")})

    Restoring a checkpoint of another number of components: with more of them than the variable has
    the first ones are taken; with fewer, the components that are not there get the value of
    component 0. So every variable can be restored from the checkpoint of an ordinary one.

    Args:
        components: the buffers, at least one: writable numpy arrays of one shape and dtype, which
            are kept, not copied. A restore writes into them. Strings are object arrays of bytes.
            No two may share memory; the order of bytes does not matter.
        devices: the device of each. Default those of the `independent_buffers` around, else
            "/job:parallel/replica:0/task:<i>/device:CPU:0": a task, and so at least a data file,
            for each component.

    Attributes:
        components, devices: tuples of what was given.

    Raises:
        InvalidError: no component, one that is no writable array, different shapes or dtypes,
            NumPy's own strings (S and U), components that share memory, another number of devices.
    """

    def __init__(
        self, components: Sequence[NDArray[Any]], devices: Sequence[str] | None = None
    ) -> None:
        if isinstance(components, np.ndarray) or not hasattr(components, "__iter__"):
            raise wrong("components", "a list of numpy arrays", components)
        self.components = tuple(components)
        if not self.components:
            raise InvalidError("a parallel variable has at least one component")
        for index, component in enumerate(self.components):
            _check_component(index, component, self.components[0])
        _check_apart(self.components)
        count = len(self.components)
        names = _devices.get() if devices is None else _device_names(devices)
        self.devices = tuple(map(_default_device, range(count))) if names is None else names
        if len(self.devices) != count:
            raise InvalidError(f"{count} components have {len(self.devices)} devices")

    @classmethod
    def replicated(
        cls, array: NDArray[Any], devices: Sequence[str] | None = None
    ) -> ParallelVariable:
        """A variable whose components are copies of one array, one for each device.

        Args:
            array: their common value at first; any shape and dtype.
            devices: as in the constructor, but needed outside of `independent_buffers`.

        Raises:
            InvalidError: no devices, or no array.
        """
        names = _devices.get() if devices is None else _device_names(devices)
        if names is None:
            raise InvalidError("replicated needs devices outside of independent_buffers")
        return cls([np.array(array) for _ in names], names)

    def serialize(self, path: str) -> dict[str, SaveSpec]:
        """What is saved of this variable at an object path ("model/w"): checkpoint key to SaveSpec,
        component 0 first."""
        keys = self.keys(path)
        return {
            key: SaveSpec(component, "", key, dtype=component.dtype, device=device)
            for key, component, device in zip(keys, self.components, self.devices, strict=True)
        }

    def keys(self, path: str) -> list[str]:
        """The checkpoint key of each component at an object path."""
        if not isinstance(path, str):
            raise wrong("path", "a str", path)
        return [_key(path, index) for index in range(len(self.components))]

    @staticmethod
    def may_be_missing(key: str) -> bool:
        """Whether a restore can do without this checkpoint key: component 0 only is needed."""
        return OTHERS in key

    def restore(self, source: Mapping[str, Any], path: str | None = None) -> None:
        """Writes stored values into the components, in place; nothing where something is wrong with
        the shapes, the dtypes or the names.

        Args:
            source: an open `Reader` or, as `Saver` hands it in, checkpoint key to array.
            path: the object path; None means the one of which `source` has a VARIABLE_VALUE.

        Raises:
            TensorNotFoundError: component 0 is not there, or one before another that is.
            InvalidError: another shape or dtype than the component has, or no single path.
            What reading raises, with the contents of the components then unspecified.
        """
        keys = self.keys(_only_path(source) if path is None else path)
        present = [key in source for key in keys]
        stored_count = present.index(False) if False in present else len(keys)
        if stored_count == 0 or True in present[stored_count:]:
            raise TensorNotFoundError(
                "the component of a parallel variable is not there", tensor=keys[stored_count]
            )
        values = [source[key] for key in keys[:stored_count]]
        for key, value, component in zip(keys, values, self.components, strict=False):
            _check_value(key, value, component)
        for value, component in zip(values, self.components, strict=False):
            if isinstance(value, TensorHandle) and component.dtype.isnative:
                value.read_into(component)
            else:
                component[...] = value.read() if isinstance(value, TensorHandle) else value
        for component in self.components[stored_count:]:
            component[...] = self.components[0]

    def __repr__(self) -> str:
        first = self.components[0]
        return (
            f"<ckptfmt.ParallelVariable {len(self.components)} x {first.dtype}{list(first.shape)}>"
        )


def _key(path: str, index: int) -> str:
    return path + FIRST if index == 0 else f"{path}{OTHERS}{index}"


def _default_device(index: int) -> str:
    return f"/job:parallel/replica:0/task:{index}/device:CPU:0"


def _device_names(devices: Sequence[str]) -> tuple[str, ...]:
    if isinstance(devices, str) or not hasattr(devices, "__iter__"):
        raise wrong("devices", "a list of device names", devices)
    names = tuple(devices)
    for name in names:
        if not isinstance(name, str):
            raise wrong("a device", "a str", name)
    if not names:
        raise InvalidError("devices are empty")
    return names


def _check_component(index: int, component: Any, first: NDArray[Any]) -> None:
    what = f"component {index} of a parallel variable"
    if not isinstance(component, np.ndarray):
        raise wrong(what, "a numpy array", component)
    if not component.flags.writeable:
        raise InvalidError(f"{what} is read-only: a restore could not write into it")
    if component.dtype.kind in "SU":
        raise InvalidError(
            f"{what} is of dtype {component.dtype}, into which strings of other lengths do not "
            "fit: it is an object array of bytes"
        )
    if component.shape != first.shape or not _equivalent(component.dtype, first.dtype):
        raise InvalidError(
            f"{what} is {component.dtype}{list(component.shape)}, component 0 is "
            f"{first.dtype}{list(first.shape)}"
        )


def _check_apart(components: Sequence[NDArray[Any]]) -> None:
    """Refuses components of which one restore would overwrite the other."""
    for (row, one), (other_row, other) in itertools.combinations(enumerate(components), 2):
        if _shared(one, other):
            raise InvalidError(
                f"components {row} and {other_row} of a parallel variable share memory"
            )


def _shared(first: NDArray[Any], second: NDArray[Any]) -> bool:
    try:
        return np.shares_memory(first, second, max_work=_WORK_MAX)
    except TooHardError:
        return True  # no views that anybody would make on purpose


def _equivalent(first: Any, second: Any) -> bool:
    """Whether two dtypes are the same but for the order of bytes."""
    return first is not None and np.can_cast(first, second, "equiv")


def _check_value(key: str, value: Any, component: NDArray[Any]) -> None:
    if isinstance(value, TensorHandle):
        value.check_target(_native(component))
    elif isinstance(value, Mapping):
        raise InvalidError("a component of a parallel variable is no slice", tensor=key)
    elif value.shape != component.shape or not _equivalent(value.dtype, component.dtype):
        raise InvalidError(
            f"{value.dtype}{list(value.shape)} does not fit a component of "
            f"{component.dtype}{list(component.shape)}",
            tensor=key,
        )


def _native(component: NDArray[Any]) -> NDArray[Any]:
    """An array of the same shape in this machine's order of bytes; without memory of its own where
    the order is another."""
    if component.dtype.isnative:
        return component
    native = np.empty((), component.dtype.newbyteorder("="))
    return np.lib.stride_tricks.as_strided(
        native, component.shape, (0,) * component.ndim, writeable=True
    )


def _only_path(source: Mapping[str, Any]) -> str:
    paths = [key.removesuffix(FIRST) for key in source if key.endswith(FIRST)]
    if len(paths) != 1:
        raise InvalidError(
            f"restore needs a path: {len(paths)} of the names given end with '{FIRST}'"
        )
    return paths[0]
