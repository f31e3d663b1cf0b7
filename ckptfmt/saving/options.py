# SPDX-License-Identifier: Apache-2.0
"""CheckpointOptions: how a checkpoint is saved and restored, as `tf.train.CheckpointOptions`."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ckptfmt._base.arguments import Durability, Level, check_switch, wrong
from ckptfmt.bundle.writer import ALIGNMENT, check_options
from ckptfmt.errors import InvalidError
from ckptfmt.saving.sharding import ShardingCallback

PathCallback = Callable[..., object]


def _alias(name: str) -> property:
    """Return an attribute with the value of the attribute `name`."""
    return property(operator.attrgetter(name), doc=f"TensorFlow's name of `{name}`.")


@dataclass(frozen=True, init=False)
class CheckpointOptions:
    """How a checkpoint is saved and restored. Immutable (`dataclasses.replace` makes a changed one)
    and checked at construction.

    All arguments are keywords. TensorFlow's spellings are arguments and attributes as well:
    `experimental_sharding_callback`, `experimental_io_device`, `experimental_write_callbacks`,
    `experimental_skip_slot_variables`, `experimental_enable_async_checkpoint`.

    Attributes:
        sharding_callback: the policy that cuts the tensors of a task into shards; None is
            `ShardByTaskPolicy()`. TensorFlow's callbacks are accepted too; they get TensorFlow's
            tensors. So is any other callable with a `description`.
        io_device: the device that does the input and output, for callers that place work. A Saver
            works in its own process; it refuses the option for tensors on a mesh, as TensorFlow
            does.
        level, alignment, durability, compression: as in `ckptfmt.Writer`.
        enable_async: whether a save returns as soon as everything is copied and continues in the
            background, as in TensorFlow; the next save raises what failed. (The methods named
            `*_async` return a future even without it.)
        write_callbacks: functions called in this order after the checkpoint is in place, with its
            prefix, or without arguments if they take none; results are ignored. A background save
            calls them in its thread.
        before_save_callbacks: the same, before anything is saved and before callables are called,
            always in the calling thread.
        skip_slot_variables: whether `Checkpoint` restores no slot variables of optimizers.
        check_replicas: whether processes that save together compare everything that several devices
            hold; see `ckptfmt.sharded.save`.

    Raises:
        InvalidError: an argument of the wrong type or value, or given in both spellings.
    """

    sharding_callback: ShardingCallback | None
    io_device: str | None
    alignment: int | None
    durability: Durability
    level: Level
    compression: str | None
    enable_async: bool
    write_callbacks: tuple[PathCallback, ...]
    before_save_callbacks: tuple[PathCallback, ...]
    skip_slot_variables: bool
    check_replicas: bool

    # TensorFlow's names.
    experimental_sharding_callback = _alias("sharding_callback")
    experimental_io_device = _alias("io_device")
    experimental_write_callbacks = _alias("write_callbacks")
    experimental_skip_slot_variables = _alias("skip_slot_variables")
    experimental_enable_async_checkpoint = _alias("enable_async")

    def __init__(
        self,
        *,
        sharding_callback: ShardingCallback | None = None,
        io_device: str | None = None,
        alignment: int | None = None,
        durability: Durability = "full",
        level: Level = "v2+",
        compression: str | None = None,
        enable_async: bool = False,
        write_callbacks: Sequence[PathCallback] | None = None,
        before_save_callbacks: Sequence[PathCallback] | None = None,
        skip_slot_variables: bool = False,
        check_replicas: bool = False,
        experimental_sharding_callback: ShardingCallback | None = None,
        experimental_io_device: str | None = None,
        experimental_write_callbacks: Sequence[PathCallback] | None = None,
        experimental_skip_slot_variables: bool = False,
        experimental_enable_async_checkpoint: bool = False,
    ) -> None:
        policy = _one("sharding_callback", sharding_callback, experimental_sharding_callback)
        described = isinstance(getattr(policy, "description", None), str) and callable(policy)
        if policy is not None and not described:
            raise wrong("sharding_callback", "a ShardingCallback", policy)
        device = _one("io_device", io_device, experimental_io_device)
        if device is not None and not isinstance(device, str):
            raise wrong("io_device", "a device's name, a str", device)
        size, _, _ = check_options(None, level, alignment, durability, compression)
        written = _one("write_callbacks", write_callbacks, experimental_write_callbacks)
        values = {
            "sharding_callback": policy,
            "io_device": device,
            "alignment": None if alignment is None else size,
            "durability": durability,
            "level": level,
            "compression": compression,
            "enable_async": check_switch("enable_async", enable_async)
            | check_switch(
                "experimental_enable_async_checkpoint", experimental_enable_async_checkpoint
            ),
            "write_callbacks": _callbacks("write_callbacks", written),
            "before_save_callbacks": _callbacks("before_save_callbacks", before_save_callbacks),
            "skip_slot_variables": check_switch("skip_slot_variables", skip_slot_variables)
            | check_switch("experimental_skip_slot_variables", experimental_skip_slot_variables),
            "check_replicas": check_switch("check_replicas", check_replicas),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

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
        return cls(enable_async=bool(getattr(options, "enable_async", False)), **theirs)

    @property
    def padding(self) -> int | None:
        """The multiple of bytes at which tensors start; None if they follow each other."""
        return self.alignment or (None if self.level == "v2" else ALIGNMENT)

    def before_save(self, prefix: str) -> None:
        """Call the functions before a save; an error ends the save."""
        _call_all(self.before_save_callbacks, prefix)

    def after_write(self, prefix: str) -> None:
        """Call the functions after a save. An error is raised; the checkpoint stays in place."""
        _call_all(self.write_callbacks, prefix)


CheckpointOptions.__module__ = "ckptfmt.tf"


def _one(name: str, ours: Any, theirs: Any) -> Any:
    if ours is not None and theirs is not None:
        raise InvalidError(f"{name} is given twice: as {name} and as experimental_{name}")
    return theirs if ours is None else ours


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


def _call_all(callbacks: Sequence[PathCallback], prefix: str) -> None:
    for callback in callbacks:
        if _takes(callback, 1):
            callback(prefix)
        else:
            callback()


_DEFAULT = CheckpointOptions()
# The options of TensorFlow's class.
_THEIRS = [name for name in vars(CheckpointOptions) if name.startswith("experimental_")]
