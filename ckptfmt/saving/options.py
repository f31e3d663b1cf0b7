# SPDX-License-Identifier: Apache-2.0
"""CheckpointOptions: how a checkpoint is saved and restored, as `tf.train.CheckpointOptions`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ckptfmt._base.arguments import check_switch, wrong
from ckptfmt._base.save_options import SaveOptions
from ckptfmt.errors import InvalidError
from ckptfmt.saving.sharding import ShardingCallback

PathCallback = Callable[..., object]


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(SaveOptions):
    """How a checkpoint is saved and restored. Immutable (`dataclasses.replace` makes a changed one)
    and checked at construction.

    All arguments are keywords; the options that TensorFlow has, have its names.

    Attributes:
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        enable_async: whether a save returns as soon as everything is copied and continues in the
            background, as in TensorFlow; the next save raises what failed. (The methods named
            `*_async` return a future even without it.)
        check_replicas: whether processes that save together compare everything that several devices
            hold; see `ckptfmt.sharded.save`.
        experimental_sharding_callback: the policy that cuts the tensors of a task into shards; None
            is `ShardByTaskPolicy()`. TensorFlow's callbacks are accepted too; they get TensorFlow's
            tensors. So is any other callable with a `description`.
        experimental_io_device: the device that does the input and output, for callers that place
            work. A Saver works in its own process; it refuses the option for tensors on a mesh, as
            TensorFlow does.
        experimental_write_callbacks: functions called in this order after the checkpoint is in
            place, with its prefix, or without arguments if they take none; results are ignored. A
            background save calls them in its thread.
        experimental_skip_slot_variables: whether `Checkpoint` restores no slot variables of
            optimizers.

    Raises:
        InvalidError: an argument of the wrong type or value.
    """

    enable_async: bool = False
    check_replicas: bool = False
    experimental_sharding_callback: ShardingCallback | None = None
    experimental_io_device: str | None = None
    experimental_write_callbacks: Sequence[PathCallback] | None = None
    experimental_skip_slot_variables: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        policy, device = self.experimental_sharding_callback, self.experimental_io_device
        described = isinstance(getattr(policy, "description", None), str) and callable(policy)
        if policy is not None and not described:
            raise wrong("experimental_sharding_callback", "a ShardingCallback", policy)
        if device is not None and not isinstance(device, str):
            raise wrong("experimental_io_device", "a device's name, a str", device)
        for name in ("enable_async", "check_replicas", "experimental_skip_slot_variables"):
            check_switch(name, getattr(self, name))
        name = "experimental_write_callbacks"
        object.__setattr__(self, name, _callbacks(name, getattr(self, name)))

    @classmethod
    def of(cls, options: Any) -> CheckpointOptions:
        """Return the argument `options` of a save or restore; None is the defaults. The options of
        a `tf.train.CheckpointOptions` are taken over.

        Raises:
            InvalidError: it is not a CheckpointOptions, or as the constructor.
        """
        if options is None:
            return _DEFAULT
        if isinstance(options, cls):
            return options
        theirs = {name: getattr(options, name, options) for name in _THEIRS}
        if any(value is options for value in theirs.values()):
            raise wrong("options", "a CheckpointOptions", options)
        return cls(**theirs)

    def check_meshed(self, tensors: Iterable[str]) -> None:
        """Refuse `experimental_io_device` for these tensors on a mesh, as TensorFlow does."""
        device = self.experimental_io_device
        for name in tensors if device is not None else ():
            what = f"experimental_io_device '{device}' cannot be used for a tensor on a mesh"
            raise InvalidError(what, tensor=name)

    def after_write(self, prefix: str) -> None:
        """Call the functions after a save. An error is raised; the checkpoint stays in place."""
        for callback in self.experimental_write_callbacks or ():
            if _takes(callback, 1):
                callback(prefix)
            else:
                callback()


CheckpointOptions.__module__ = "ckptfmt.tf"


def _callbacks(name: str, given: Any) -> tuple[PathCallback, ...]:
    if given is None:
        return ()
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise wrong(name, "a list of functions", given)
    callbacks = tuple(given)
    for callback in callbacks:
        if not callable(callback):
            raise wrong(f"one of {name}", "a function", callback, name)
        if not (_takes(callback, 1) or _takes(callback, 0)):
            raise InvalidError(f"one of {name}, {callback!r}, must take no argument or a path")
    return callbacks


def _takes(callback: PathCallback, count: int) -> bool:
    """Return whether the function can be called with this number of positional arguments. A
    function without a signature, written in C, is assumed to take a path."""
    try:
        inspect.signature(callback).bind(*[""] * count)
    except TypeError:
        return False
    except ValueError:
        return count == 1
    return True


_DEFAULT = CheckpointOptions()
# The options of TensorFlow's class.
_THEIRS = (
    *(name for name in vars(CheckpointOptions) if name.startswith("experimental_")),
    "enable_async",
)
