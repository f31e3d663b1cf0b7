# SPDX-License-Identifier: Apache-2.0
"""Pytrees as named tensors: the names of leaves, and what a leaf is.

The name of a leaf is its path in the pytree, joined with slashes: "params/dense/kernel", "0/mu/w".
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.adapters import refused
from ckptfmt._base.arguments import invalid
from ckptfmt._base.casting import can_cast
from ckptfmt._core import cached_property
from ckptfmt.bundle import state_tree
from ckptfmt.errors import InvalidError
from ckptfmt.objects.build import from_names

# The name of a pytree that is a leaf itself.
ROOT = "value"

_SCALARS = (bool, int, float, complex)

# What JAX raises for a sharding that it cannot apply: IndivisibleError is a ValueError.
_JAX_ERRORS = (IndexError, TypeError, ValueError, AssertionError, NotImplementedError)


Box = tuple[tuple[int, int], ...]


def box_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    """Return start and stop in each dimension."""
    pairs = zip(index, shape, strict=True)
    return tuple(part.indices(size)[:2] for part, size in pairs)


def _volume(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def check_pytree(what: str, given: Any, remedy: str = "") -> None:
    """Refuse None and paths where a pytree is expected."""
    if given is None or isinstance(given, (str, bytes, os.PathLike)):
        raise InvalidError(f"{what}, not {type(given).__name__}{remedy}")


# ---- names ---------------------------------------------------------------------------------------


def named_leaves(pytree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by name, in the order of `jax.tree.leaves`.

    Raises:
        InvalidError: two leaves have the same name: the keys 1 and "1" of one dict.
    """
    found: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(pytree)[0]:
        name = _name(path) or ROOT
        if name in found:
            raise InvalidError("two leaves of the pytree have this name", tensor=name)
        found[name] = leaf
    return found


def optimizer_paths(pytree: Any) -> list[str]:
    """Return the paths of optimizer states of Optax in a pytree; "" is the pytree itself.

    Optax is not imported: its states are recognised by their classes. The average of `optax.ema`
    is not one of them, because it may be of weights.
    """
    found = jax.tree_util.tree_flatten_with_path(pytree, is_leaf=_is_optimizer_state)[0]
    return [_name(path) for path, one in found if _is_optimizer_state(one) and jax.tree.leaves(one)]


def _is_optimizer_state(value: Any) -> bool:
    kind = type(value)
    return (
        kind.__module__.partition(".")[0] == "optax"
        and kind.__name__.endswith("State")
        and kind.__name__ != "EmaState"
    )


def _name(path: Any) -> str:
    return "/".join(state_tree.slashed(_key(one)) for one in path)


def _key(entry: Any) -> Any:
    """Return the key that an entry of a path has."""
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return entry


# ---- structure -----------------------------------------------------------------------------------


def structure_of(pytree: Any) -> str | None:
    """Return the member of the metadata with the structure of a pytree; None if its names and
    arrays say it all. Lists, tuples and dicts come back as such; other containers are dicts, or
    lists if they have positions alone."""
    node = _node(pytree)
    plain = from_names({name: {"$tensor": True} for name in named_leaves(pytree)})
    return None if node == plain else state_tree.text_of(state=node)


def _node(value: Any) -> Any:
    if value is None:
        return None
    below = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda one: one is not value)[0]
    if below and not below[0][0]:
        return _leaf_node(value)
    pairs = [(_key(path[0]), one) for path, one in below]
    if isinstance(value, dict):
        pairs = [(key, value[key]) for key in value]  # JAX sorts them
    nodes = [_node(one) for _, one in pairs]
    if type(value) is tuple:
        return {"$tuple": nodes}
    has_positions = len(nodes) > 0 and not isinstance(value, dict)
    if type(value) is list or (has_positions and [key for key, _ in pairs] == [*range(len(nodes))]):
        return nodes
    keys = [_key_node(key) for key, _ in pairs]
    return state_tree.dict_node([list(pair) for pair in zip(keys, nodes, strict=True)])


def _key_node(key: Any) -> Any:
    """Return the node of a key; one of another type becomes text."""
    key = key.item() if isinstance(key, np.generic) else key
    if type(key) is tuple:
        return {"$tuple": [_key_node(one) for one in key]}
    is_plain = type(key) in (str, int, bool) or key is None
    return key if is_plain or (type(key) is float and math.isfinite(key)) else str(key)


def _leaf_node(leaf: Any) -> dict[str, Any]:
    if isinstance(leaf, np.generic) and not isinstance(leaf, (str, bytes)):
        return {"$scalar": True}
    for kind in (str, bytes, *_SCALARS):
        if isinstance(leaf, kind):
            return {"$scalar": True, "dtype": kind.__name__}
    return {"$array" if isinstance(leaf, (np.ndarray, bytearray, memoryview)) else "$tensor": True}


# ---- PRNG keys -----------------------------------------------------------------------------------


def is_key(leaf: Any) -> bool:
    """Return whether the elements of a leaf are typed PRNG keys."""
    dtype = getattr(leaf, "dtype", None)
    try:
        return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
    except TypeError:  # the dtype of another framework
        return False


def is_of_jax(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of JAX can have a dtype now."""
    try:
        return not dtype.hasobject and jax.dtypes.canonicalize_dtype(dtype) == dtype
    except TypeError:
        return False


def keys_of(data: jax.ShapeDtypeStruct, impl: str) -> Any:
    """Return the array of keys that has these key data."""
    try:
        return jax.eval_shape(functools.partial(jax.random.wrap_key_data, impl=impl), data)
    except _JAX_ERRORS as error:
        raise InvalidError(f"no PRNG keys of {impl!r}: {_one_line(error)}") from None


def key_impl(leaf: Any) -> tuple[str, jax.ShapeDtypeStruct]:
    """Return the implementation of an array of keys, which may be abstract, and its key data."""
    found: list[str] = []

    def data(keys: Any) -> Any:
        found.append(str(jax.random.key_impl(keys)))
        return jax.random.key_data(keys)

    abstract = jax.eval_shape(data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return found[0], abstract


# ---- what a leaf asks for ------------------------------------------------------------------------


@dataclass
class Wanted:
    """What a leaf of `like` asks for.

    Attributes:
        leaf: the leaf.
        shape, dtype: of the stored tensor; dtype None takes any of `kind`.
        sharding: where the array is put; None if it is not a jax.Array, or is not committed.
        impl: of PRNG keys.
        weak: whether it stands for a Python scalar.
    """

    leaf: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sharding: jax.sharding.Sharding | None = None
    impl: str | None = None
    weak: bool = False
    is_jax: bool = True

    @property
    def has_value(self) -> bool:
        """Whether the leaf is an array or a value, and not only a description of one."""
        if isinstance(self.leaf, jax.Array):
            return not self.leaf.is_deleted()
        return not isinstance(self.leaf, jax.ShapeDtypeStruct)

    @property
    def is_int(self) -> bool:
        """Whether the leaf is a Python int, which can have the value of any stored integer."""
        return isinstance(self.leaf, int) and not isinstance(self.leaf, bool)

    def accepts(self, dtype: np.dtype[Any], cast: bool) -> bool:
        """Return whether a tensor of this dtype can become the leaf."""
        if dtype == self.dtype.newbyteorder("="):  # the byte order of a NumPy array is its own
            return True
        kinds = {dtype.kind, self.dtype.kind}
        if self.weak and self.shape == () and (len(kinds) == 1 or kinds == {"i", "u"}):
            return True
        return cast and can_cast(dtype, self.dtype)

    @cached_property
    def reads(self) -> list[Box]:
        """The boxes to read: those of the devices of this process, or the box that they fill
        together, so that nothing is read twice."""
        if self.sharding is None:
            return [tuple((0, size) for size in self.shape)]
        indices = self.sharding.addressable_devices_indices_map(self.shape).values()
        boxes = list(dict.fromkeys(box_of(index, self.shape) for index in indices))
        if not boxes:
            return []
        hull = tuple(
            (min(start for start, _ in side), max(stop for _, stop in side))
            for side in zip(*boxes, strict=True)
        )
        return [hull] if _volume(hull) == sum(map(_volume, boxes)) else boxes

    @property
    def misfit(self) -> str | None:
        """Why the sharding cannot be applied to the shape of the leaf; None if it can be."""
        if self.sharding is None:
            return None
        shape, spec = tuple(self.leaf.shape), getattr(self.sharding, "spec", ())
        if len(spec) > len(shape):  # JAX takes None beyond the rank in some places
            return f"its rank is below the {len(spec)} of {spec}"
        try:
            self.sharding.shard_shape(shape)
            self.reads  # noqa: B018 (computed at the first access)
        except _JAX_ERRORS as error:
            sizes = getattr(getattr(self.sharding, "mesh", None), "shape", {})
            for dimension, axes in enumerate(spec):
                several = axes if isinstance(axes, tuple) else (axes,)
                parts = math.prod(sizes[axis] for axis in several if axis in sizes)
                if shape[dimension] % parts:
                    return f"{spec} divides dimension {dimension} into {parts} parts"
            return _one_line(error)
        return None

    def leaf_of(self, parts: Mapping[Box, NDArray[Any]]) -> Any:
        """Return the leaf that consists of these parts."""
        if self.is_jax:
            array = self._jax_array(parts)
            return array if self.impl is None else jax.random.wrap_key_data(array, impl=self.impl)
        (array,) = parts.values()
        if isinstance(self.leaf, np.ndarray):
            return array
        value: Any = array[()]
        if isinstance(self.leaf, str):
            value = value.decode("utf-8", "surrogateescape")
        elif isinstance(self.leaf, _SCALARS) and isinstance(value, np.generic):
            value = value.item()
        return value if isinstance(value, np.generic) else type(self.leaf)(value)

    def _jax_array(self, parts: Mapping[Box, NDArray[Any]]) -> jax.Array:
        shape, sharding = self.shape, self.sharding
        if self.weak and shape == () and (sharding is None or sharding.is_fully_addressable):
            # Only Python scalars become weakly typed.
            array = jax.numpy.asarray(next(iter(parts.values())).item())
            if array.dtype == self.dtype:
                return array if sharding is None else jax.device_put(array, sharding)
        if sharding is None:
            return jax.numpy.asarray(next(iter(parts.values())))

        def part(index: tuple[slice, ...]) -> NDArray[Any]:
            box = box_of(index, shape)
            if box in parts:
                return parts[box]
            ((hull, array),) = parts.items()
            pairs = zip(box, hull, strict=True)
            return array[tuple(slice(a - start, b - start) for (a, b), (start, _) in pairs)]

        try:
            return jax.make_array_from_callback(shape, sharding, part, self.dtype)
        except _JAX_ERRORS as error:
            text = f"the sharding {sharding} cannot be used: {_one_line(error)}"
            raise InvalidError(text) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def check_shardings(leaves: Mapping[str, Wanted]) -> None:
    """Refuse shardings that cannot be applied, with the names of all leaves that have one."""
    found = [
        f"'{name}' of shape {tuple(one.leaf.shape)}: {one.misfit}"
        for name, one in leaves.items()
        if one.misfit is not None
    ]
    if found:
        raise invalid(
            "sharding",
            f"sharding does not fit these leaves: {'; '.join(found)}. Give a pytree of shardings, "
            "for example with PartitionSpec() for these",
        )


def wanted(leaf: Any, sharding: Any) -> Wanted:
    """Return what a leaf asks for.

    Args:
        leaf: the leaf.
        sharding: a sharding or device instead of that of the leaf, or None.

    Raises:
        InvalidError: the leaf is not an array or a scalar.
    """
    if isinstance(leaf, (str, bytes)):
        return Wanted(leaf, (), np.dtype(object), is_jax=False)
    if isinstance(leaf, (np.ndarray, np.generic)):
        is_text = leaf.dtype.kind in "SUT"
        return Wanted(leaf, leaf.shape, np.dtype(object) if is_text else leaf.dtype, is_jax=False)
    if isinstance(leaf, _SCALARS):
        return Wanted(leaf, (), np.asarray(leaf).dtype, weak=True, is_jax=False)
    expected = (
        "a leaf of `like` must be an array of JAX or NumPy, a jax.ShapeDtypeStruct, a Python "
        "scalar, str or bytes"
    )
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        raise refused(expected, leaf)
    if sharding is None and getattr(leaf, "committed", True):
        sharding = getattr(leaf, "sharding", None)
    sharding = _placed(sharding)
    if isinstance(sharding, jax.Device):
        sharding = jax.sharding.SingleDeviceSharding(sharding)
    if sharding is not None and not isinstance(sharding, jax.sharding.Sharding):
        raise invalid(
            "sharding",
            f"the sharding must be a jax.sharding.Sharding or a device, not "
            f"{type(sharding).__name__}",
        )
    if is_key(leaf):
        impl, data = key_impl(leaf)
        return Wanted(leaf, data.shape, data.dtype, sharding, impl)
    weak = bool(getattr(leaf, "weak_type", False))
    try:
        dtype = np.dtype(leaf.dtype)
    except TypeError:  # of another framework
        raise refused(expected, leaf) from None
    return Wanted(leaf, tuple(leaf.shape), dtype, sharding, weak=weak)


def _placed(sharding: Any) -> Any:
    """Return a sharding with devices: `jax.eval_shape` returns those of an abstract mesh."""
    if not isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):
        return sharding
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        raise InvalidError(
            "its sharding has an abstract mesh, without devices: call jax.set_mesh, or give the "
            "sharding"
        )
    return jax.sharding.NamedSharding(mesh, sharding.spec)
