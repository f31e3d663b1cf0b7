# SPDX-License-Identifier: Apache-2.0
"""Orbax in this format: `ocp.CheckpointManager(directory, handler_registry=registry())`.

Orbax decides when to save, names and commits the directories of the steps and removes old ones;
`ckptfmt.jax` writes and reads `<step>/default/checkpoint`. The calls of `save` and `restore` stay
as they are: `ocp.args.StandardSave(state)`, `ocp.args.StandardRestore(like)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

try:
    import orbax.checkpoint as ocp
except ImportError as error:
    raise ImportError(
        f"ckptfmt.jax.orbax needs orbax (pip install orbax-checkpoint): {error}"
    ) from error

from ckptfmt.bundle import reader as reading
from ckptfmt.errors import InvalidError
from ckptfmt.jax.checkpoint import load, save, save_async

NAME = "checkpoint"


def registry(**options: Any) -> Any:
    """Return a registry for `ocp.CheckpointManager` in which pytrees are saved in this format.

    Args:
        options: of `ckptfmt.jax.save`: level, alignment, durability, compression.
    """
    found, handler = ocp.handlers.DefaultCheckpointHandlerRegistry(), Handler(**options)
    for kind in ("StandardSave", "StandardRestore", "PyTreeSave", "PyTreeRestore"):
        found.add(None, getattr(ocp.args, kind), handler)
    return found


# Arguments of Orbax.
_TAKEN = {"item", "custom_metadata", "partial_restore"}


class Handler(ocp.handlers.AsyncCheckpointHandler):  # type: ignore[misc]
    """Saves pytrees with `ckptfmt.jax.save_async` and restores them with `ckptfmt.jax.load`.

    Of the arguments of Orbax it takes the item, `custom_metadata` and `partial_restore`; others are
    refused. To restore, the item is required: it has the structure, the dtypes and the shardings.

    Args:
        options: of `ckptfmt.jax.save`: level, alignment, durability, compression.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        """Save a pytree."""
        pytree, metadata = _given(item, args)
        save(directory / NAME, pytree, metadata=metadata, **self._options)

    async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> list[Any]:
        """Return the future of the save, once the arrays are copied."""
        pytree, metadata = _given(item, args)
        # Orbax makes the directory meanwhile, and would remove one that is there.
        ocp.future.CommitFutureAwaitingContractedSignals(_nothing()).result()
        return [save_async(directory / NAME, pytree, metadata=metadata, **self._options)]

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """Return the pytree with the structure of the item."""
        like = item if args is None else _checked(args).item
        if like is None:
            raise InvalidError(
                "the item is required: ocp.args.StandardRestore(item), a pytree of arrays or "
                "jax.ShapeDtypeStruct"
            )
        partial = getattr(args, "partial_restore", False)
        return load(directory / NAME, like, strict=not partial)

    def metadata(self, directory: Any) -> Mapping[str, Any]:
        """Return shapes and dtypes of the tensors by name."""
        with reading.open(directory / NAME) as reader:
            return {
                name: jax.ShapeDtypeStruct(handle.shape, handle.dtype)
                for name, handle in reader.items()
                if handle.dtype is not None and not handle.dtype.hasobject
            }


async def _nothing() -> None:
    pass


def _given(item: Any, args: Any) -> tuple[Any, Mapping[str, Any] | None]:
    if args is None:
        return item, None
    return _checked(args).item, getattr(args, "custom_metadata", None)


def _repeats(value: Any, item: Any) -> bool:
    """Return whether the SaveArgs or RestoreArgs of all arrays say only what they say as well."""
    kinds = (ocp.SaveArgs, ocp.RestoreArgs)
    every = jax.tree.leaves(value, is_leaf=lambda one: isinstance(one, kinds))
    arrays = jax.tree.leaves(item)
    if len(every) != len(arrays) or not all(isinstance(one, kinds) for one in every):
        return False
    return all(map(_repeats_one, every, arrays))


def _repeats_one(given: Any, array: Any) -> bool:
    dtype, shape = getattr(array, "dtype", None), getattr(array, "shape", None)
    dtypes: tuple[Any, ...] = (None, dtype)
    shapes: tuple[Any, ...] = (None, shape)
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, array)  # as Orbax saves keys
        dtypes, shapes = (*dtypes, data.dtype), (*shapes, data.shape)
    sharding = getattr(array, "sharding", None)
    own: dict[str, tuple[Any, ...]] = {
        "dtype": dtypes,
        "shape": shapes,
        "global_shape": shapes,
        "sharding": (None, sharding),
        "mesh": (None, getattr(sharding, "mesh", None)),
        "mesh_axes": (None, getattr(sharding, "spec", None)),
        "restore_type": (None, "jax.Array", jax.Array, type(array)),
    }
    plain = type(given)()
    for field in dataclasses.fields(given):
        value = getattr(given, field.name)
        if value not in (*own.get(field.name, ()), getattr(plain, field.name)):
            return False
    return True


def _checked(args: Any) -> Any:
    """Return the arguments; refuse those that would change what is stored or restored."""
    for field in dataclasses.fields(args):
        if field.name in _TAKEN:
            continue
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        value = getattr(args, field.name)
        says_nothing = value is default or (isinstance(value, (bool, str)) and value == default)
        if not says_nothing and not _repeats(value, args.item):
            raise InvalidError(
                f"{field.name} of {type(args).__name__} is not supported: the item says what is "
                "saved, and with which structure, dtypes and shardings it is restored",
                argument=field.name,
            )
    return args


@ocp.args.register_with_handler(Handler, for_save=True)
class _Save(ocp.args.StandardSave):  # type: ignore[misc]
    """What ocp.Checkpointer makes of the item that it saves."""


@ocp.args.register_with_handler(Handler, for_restore=True)
class _Restore(ocp.args.StandardRestore):  # type: ignore[misc]
    """What ocp.Checkpointer makes of the item that it restores."""
