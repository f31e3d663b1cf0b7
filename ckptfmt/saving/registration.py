# SPDX-License-Identifier: Apache-2.0
"""Registered savers: functions that save and restore objects with steps of their own, as those of
TensorFlow's `saved_model.registration.register_checkpoint_saver`.

The registry belongs to the process. A name is `<package>.<name>`, stands in the names of files, and
is taken once.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ckptfmt.arguments import wrong
from ckptfmt.errors import InvalidError

__all__ = [
    "RegisteredSaver",
    "get_registered_saver",
    "get_registered_saver_name",
    "register_checkpoint_saver",
    "unregister_checkpoint_saver",
    "validate_restore_function",
]

_VALID_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True)
class RegisteredSaver:
    """What was registered under one name; see `register_checkpoint_saver`."""

    name: str
    predicate: Callable[[Any], object]
    save_fn: Callable[..., Any]
    restore_fn: Callable[..., Any]
    strict_predicate_restore: bool


_lock = threading.RLock()  # a handler of signals may save as well
_registry: dict[str, RegisteredSaver] = {}


def _begin_again() -> None:
    """In a forked child: a thread of the parent may have had the lock."""
    global _lock  # noqa: PLW0603 (there is one registry)
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_begin_again)


def register_checkpoint_saver(
    package: str = "Custom",
    name: str | None = None,
    predicate: Callable[[Any], object] | None = None,
    save_fn: Callable[..., Any] | None = None,
    restore_fn: Callable[..., Any] | None = None,
    strict_predicate_restore: bool = True,
) -> None:
    """Registers functions that save and restore some objects with steps of their own.

    Args:
        package, name: their name is `<package>.<name>`, of letters, digits, `.`, `_` and `-`.
        predicate: called with an object; true if it is to be saved by these functions. Of several
            that are true the one registered last counts.
        save_fn: called as `save_fn(trackables=..., file_prefix=...)` with a dict of names to
            objects and the path `<prefix>-<package>.<name>`. It writes bundles (`Writer`,
            `save_v2`) and returns their prefixes: one, a list that may be nested or empty, or None.
            They become part of the checkpoint and are gone afterwards.
        restore_fn: called as `restore_fn(trackables=..., merged_prefix=...)` with the prefix of the
            checkpoint, after everything else was restored.
        strict_predicate_restore: whether a restore may not go on where the predicate is false for
            an object that was saved so.

    Raises:
        InvalidError: an argument of another type, a name with other characters, or one that is
            taken.
    """
    if not isinstance(package, str):
        raise wrong("package", "a str", package)
    if not isinstance(name, str):
        raise wrong("name", "a str", name)
    for what, given in (("predicate", predicate), ("save_fn", save_fn), ("restore_fn", restore_fn)):
        if not callable(given):
            raise wrong(what, "a function", given)
    if not isinstance(strict_predicate_restore, bool):
        raise wrong("strict_predicate_restore", "True or False", strict_predicate_restore)
    full_name = f"{package}.{name}"
    if not _VALID_NAME.fullmatch(full_name):
        raise InvalidError(
            f"the name '{full_name}' of a registered saver is not of letters, digits, '.', '_' "
            "and '-'"
        )
    assert predicate is not None
    assert save_fn is not None
    assert restore_fn is not None
    saver = RegisteredSaver(full_name, predicate, save_fn, restore_fn, strict_predicate_restore)
    with _lock:
        if full_name in _registry:
            raise InvalidError(f"a checkpoint saver is already registered as '{full_name}'")
        _registry[full_name] = saver


def unregister_checkpoint_saver(registered_name: str) -> None:
    """Takes a name (`<package>.<name>`) out of the registry.

    Raises:
        InvalidError: it is not registered.
    """
    with _lock:
        if _registry.pop(registered_name, None) is None:
            raise _unknown(registered_name)


def get_registered_saver(registered_name: str) -> RegisteredSaver:
    """What is registered under a name, `<package>.<name>`.

    Raises:
        InvalidError: nothing.
    """
    saver = _registry.get(registered_name)
    if saver is None:
        raise _unknown(registered_name)
    return saver


def get_registered_saver_name(trackable: Any) -> str | None:
    """The name of the saver whose predicate is true for this object, the one registered last; None
    if there is none."""
    if not _registry:
        return None
    with _lock:
        savers = list(_registry.values())
    return next((saver.name for saver in reversed(savers) if saver.predicate(trackable)), None)


def validate_restore_function(trackable: Any, registered_name: str) -> None:
    """Checks that an object that was saved with this saver can be restored with it.

    Raises:
        InvalidError: the saver is not registered, or its predicate is false for the object.
    """
    saver = _registry.get(registered_name)
    if saver is None:
        raise InvalidError(
            f"{trackable!r} was saved with the registered saver '{registered_name}', which is not "
            "registered here"
        )
    if not saver.predicate(trackable):
        raise InvalidError(
            f"{trackable!r} was saved with the registered saver '{registered_name}', whose "
            "predicate is false for it"
        )


def _unknown(registered_name: str) -> InvalidError:
    return InvalidError(f"no checkpoint saver is registered as {registered_name!r}")
