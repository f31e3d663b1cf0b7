# SPDX-License-Identifier: Apache-2.0
"""Parallel variables: one variable with a buffer on each of several devices, as those of
TensorFlow's parallel device under `independent_buffers`.

Component 0 is saved under the name of an ordinary variable, which an ordinary reader finds;
component i > 0 is saved as `parallel_component_<i>`:

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
from numpy.typing import NDArray

from ckptfmt._base.arguments import invalid, wrong
from ckptfmt._base.arrays import refuse_masked
from ckptfmt._base.targets import as_target, share_memory
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError, TensorNotFoundError
from ckptfmt.saving.specs import SaveSpec

ATTRIBUTES = "/.ATTRIBUTES/"
FIRST = ATTRIBUTES + "VARIABLE_VALUE"
OTHERS = ATTRIBUTES + "parallel_component_"

_devices: contextvars.ContextVar[tuple[str, ...] | None] = contextvars.ContextVar(
    "ckptfmt.saving.parallel.devices", default=None
)


@contextlib.contextmanager
def independent_buffers(devices: Sequence[str] | None = None) -> Iterator[tuple[str, ...] | None]:
    """Set the devices of the parallel variables created in this context: one made of a single array
    gets a component on each.

    TensorFlow's context takes a parallel device, this one the names of its component devices. Each
    thread and task has its own contexts. None removes the devices of an outer one.

    Yields:
        The devices.

    Raises:
        InvalidError: `devices` is empty or has elements that are not str.
    """
    names = None if devices is None else _device_names(devices)
    token = _devices.set(names)
    try:
        yield names
    finally:
        _devices.reset(token)


class ParallelVariable:
    """A variable with one buffer for each device.

    As an array (`shape`, `dtype`, `numpy.asarray`) it is its first component. It can be a key of
    `Saver`'s `serialized_tensors`:

    >>> from ckptfmt.saving.saver import Saver
    >>> variable = ParallelVariable([np.zeros(2), np.ones(2)])
    >>> saver = Saver({variable: variable.serialize("model/w")})

    If a checkpoint has more components than the variable, the rest is ignored, which
    `assert_consumed` of a Checkpoint reports; if it has fewer, the missing ones get the value of
    component 0. So a variable can be restored from the checkpoint of an ordinary one.

    Args:
        components: the buffers, at least one: writable numpy arrays of one shape and dtype, of any
            byte order, that do not share memory. They are not copied; a restore writes into them.
            Strings are object arrays of bytes. Inside `independent_buffers`, or with `devices`,
            one array makes a copy of it for each device.
        devices: the device of each. Default: those of the enclosing `independent_buffers`, else
            "/job:parallel/replica:0/task:<i>/device:CPU:0", one task for each component.

    Attributes:
        components: the argument as a tuple.
        devices: the device names as a tuple.

    Raises:
        InvalidError: no component, not a writable array, different shapes or dtypes, numpy strings
            (S and U), components that share memory, or another number of devices.
    """

    def __init__(
        self,
        components: Sequence[NDArray[Any]] | NDArray[Any],
        devices: Sequence[str] | None = None,
    ) -> None:
        names = _devices.get() if devices is None else _device_names(devices)
        if isinstance(components, np.ndarray) and names is not None:
            refuse_masked(components)
            components = [np.array(components) for _ in names]
        if isinstance(components, np.ndarray) or not hasattr(components, "__iter__"):
            raise wrong("components", "a list of numpy arrays", components)
        self.components = tuple(components)
        if not self.components:
            raise invalid("components", "a parallel variable has at least one component")
        for index, component in enumerate(self.components):
            _check_component(index, component, self.components[0])
        _check_apart(self.components)
        count = len(self.components)
        self.devices = tuple(map(_default_device, range(count))) if names is None else names
        if len(self.devices) != count:
            raise invalid("devices", f"{count} components have {len(self.devices)} devices")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each component."""
        return self.components[0].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of each component, of component 0 if their byte orders differ."""
        return self.components[0].dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return component 0, as `numpy.asarray` calls it."""
        if copy is False and dtype is not None and np.dtype(dtype) != self.dtype:
            raise ValueError(f"another dtype than {self.dtype} needs a copy")
        found = np.asarray(self.components[0], dtype)
        return found.copy() if copy and found is self.components[0] else found

    def assign(self, value: Any) -> None:
        """Write a value into all components, or those of another variable into each.

        Args:
            value: what NumPy assigns to an array of the components' shape and dtype: an array that
                can be broadcast to it, or a number; or a ParallelVariable of as many components.

        Raises:
            InvalidError: it does not fit; nothing is written.
        """
        count = len(self.components)
        values = value.components if isinstance(value, ParallelVariable) else (value,)
        if isinstance(value, ParallelVariable) and len(values) != count:
            raise InvalidError(f"{len(values)} components do not fit {count}")
        for one in values:
            refuse_masked(one)
        arrays = [self._fitting(np.asarray(one)) for one in values]
        # A value may be a view of the components, which are overwritten one after the other.
        if any(share_memory(array, component) for array in arrays for component in self.components):
            arrays = [array.copy() for array in arrays]
        for component, array in zip(self.components, itertools.cycle(arrays), strict=False):
            component[...] = array

    def _fitting(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array as NumPy assigns it to a component."""
        try:
            return np.broadcast_to(array, self.shape).astype(self.dtype, copy=False)
        except (TypeError, ValueError) as error:
            raise InvalidError(
                f"{array.dtype}{list(array.shape)} does not fit a component of "
                f"{self.dtype}{list(self.shape)}: {error}"
            ) from None

    def serialize(self, path: str) -> dict[str, SaveSpec]:
        """Return checkpoint key to SaveSpec for an object path ("model/w"), component 0 first."""
        keys = self.keys(path)
        return {
            key: SaveSpec(component, "", key, dtype=component.dtype, device=device)
            for key, component, device in zip(keys, self.components, self.devices, strict=False)
        }

    def keys(self, path: str) -> list[str]:
        """Return the checkpoint key of each component that is saved, for an object path."""
        if not isinstance(path, str):
            raise wrong("path", "a str", path)
        return [_key(path, index) for index in range(len(self.components))]

    @staticmethod
    def may_be_missing(key: str) -> bool:
        """Return whether this checkpoint key is optional: all but component 0 are."""
        return OTHERS in key

    def restore(self, source: Mapping[str, Any], path: str | None = None) -> None:
        """Write stored values into the components. Names, shapes and dtypes are checked first.

        Args:
            source: an open `Reader`, or checkpoint key to array, as `Saver` passes it.
            path: the object path; default the only one with a VARIABLE_VALUE in `source`.

        Raises:
            TensorNotFoundError: component 0 is missing, or one before another that exists.
            InvalidError: another shape or dtype, or not exactly one path.
            Exception: what reading raises; the content of the components is then unspecified.
        """
        keys = self.keys(_only_path(source) if path is None else path)
        present = [key in source for key in keys]
        stored_count = present.index(False) if False in present else len(keys)
        if stored_count == 0 or True in present[stored_count:]:
            raise TensorNotFoundError(
                "the component of a parallel variable is missing", tensor=keys[stored_count]
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
            f"<ckptfmt.tf.ParallelVariable {len(self.components)} x "
            f"{first.dtype}{list(first.shape)}>"
        )


ParallelVariable.__module__ = "ckptfmt.tf"


def is_further_component(attribute: str) -> bool:
    """Return whether an attribute of this name is a component other than the first."""
    return attribute.startswith(OTHERS.removeprefix(ATTRIBUTES))


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
            raise wrong("a device", "a str", name, "devices")
    if not names:
        raise invalid("devices", "devices are empty")
    return names


def _check_component(index: int, component: Any, first: NDArray[Any]) -> None:
    what = f"component {index} of a parallel variable"
    if not isinstance(component, np.ndarray):
        raise wrong(what, "a numpy array", component, "components")
    try:
        as_target(component)
    except InvalidError as error:
        error.argument = "components"
        error.hint(f" ({what})")
        raise
    if component.dtype.kind in "SU":
        raise invalid(
            "components",
            f"{what} is of dtype {component.dtype}, into which strings of other lengths do not "
            "fit: it is an object array of bytes",
        )
    if component.shape != first.shape or not _equivalent(component.dtype, first.dtype):
        raise invalid(
            "components",
            f"{what} is {component.dtype}{list(component.shape)}, component 0 is "
            f"{first.dtype}{list(first.shape)}",
        )


def _check_apart(components: Sequence[NDArray[Any]]) -> None:
    """Refuse components that share memory: a restore would overwrite one with the other."""
    for (row, one), (other_row, other) in itertools.combinations(enumerate(components), 2):
        if share_memory(one, other):
            raise invalid(
                "components",
                f"components {row} and {other_row} of a parallel variable share memory",
            )


def _equivalent(first: Any, second: Any) -> bool:
    """Return whether two dtypes differ at most in byte order."""
    return first is not None and np.can_cast(first, second, "equiv")


def _check_value(key: str, value: Any, component: NDArray[Any]) -> None:
    if isinstance(value, TensorHandle):
        value._check_kind(component.dtype, component.shape)
    elif isinstance(value, Mapping):
        raise InvalidError(
            "each component of a parallel variable must be a whole tensor, not a slice", tensor=key
        )
    # TensorFlow's words, for which programs look.
    elif value.shape != component.shape:
        raise InvalidError(
            f"a component of shape {list(component.shape)} does not match the shape stored in "
            f"checkpoint: {list(value.shape)}",
            tensor=key,
        )
    elif not _equivalent(value.dtype, component.dtype):
        raise InvalidError(
            f"a component of dtype {component.dtype} does not equal original dtype {value.dtype}",
            tensor=key,
        )


def _only_path(source: Mapping[str, Any]) -> str:
    paths = [key.removesuffix(FIRST) for key in source if key.endswith(FIRST)]
    if len(paths) != 1:
        raise InvalidError(
            f"restore needs a path: {len(paths)} of the names given end with '{FIRST}'"
        )
    return paths[0]
