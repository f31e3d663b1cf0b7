# SPDX-License-Identifier: Apache-2.0
"""Registered savers: functions that save and restore objects with steps of their own, as those of
TensorFlow's `saved_model.registration.register_checkpoint_saver`.

The registry belongs to the process. A name is `<package>.<name>`, becomes part of file names, and
can be registered once. A save claims the names of the files that its savers write.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ckptfmt._base.arguments import check_switch, invalid, wrong
from ckptfmt.errors import BusyError, InvalidError, StorageError
from ckptfmt.files.folder import split

_VALID_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True)
class RegisteredSaver:
    """The registration under one name; see `register_checkpoint_saver`."""

    name: str
    predicate: Callable[[Any], object]
    save_fn: Callable[..., Any]
    restore_fn: Callable[..., Any]
    strict_predicate_restore: bool


# Every use is one operation of the dict, so threads and forked children need no lock.
_registry: dict[str, RegisteredSaver] = {}


def register_checkpoint_saver(
    package: str = "Custom",
    name: str | None = None,
    predicate: Callable[[Any], object] | None = None,
    save_fn: Callable[..., Any] | None = None,
    restore_fn: Callable[..., Any] | None = None,
    strict_predicate_restore: bool = True,
) -> None:
    """Register functions that save and restore some objects with steps of their own.

    Args:
        package, name: the name is `<package>.<name>`, of letters, digits, `.`, `_` and `-`.
        predicate: called with an object; true if these functions save it. If several are true, the
            one registered last is used.
        save_fn: called as `save_fn(trackables=..., file_prefix=...)` with a dict of names to
            objects and the path `<prefix>-<package>.<name>`. It writes bundles (`Writer`,
            `save_v2`) and returns their prefixes: one, a list that may be nested or empty, or None.
            An eager tensor of strings stands for a list of its elements. They become part of the
            checkpoint and are removed.
        restore_fn: called as `restore_fn(trackables=..., merged_prefix=...)` with the prefix of the
            checkpoint, after everything else was restored.
        strict_predicate_restore: whether a restore fails if the predicate is false for an object
            that was saved by these functions. Otherwise it leaves the object unchanged.

    Raises:
        InvalidError: an argument of the wrong type, a name with other characters, or one that is
            registered.
    """
    for what, text in (("package", package), ("name", name)):
        if not isinstance(text, str):
            raise wrong(what, "a str", text)
    functions: dict[str, Any]
    functions = {"predicate": predicate, "save_fn": save_fn, "restore_fn": restore_fn}
    for what, given in functions.items():
        if not callable(given):
            raise wrong(what, "a function", given)
    check_switch("strict_predicate_restore", strict_predicate_restore)
    full_name = f"{package}.{name}"
    if not _VALID_NAME.fullmatch(full_name):
        raise invalid(
            "name",
            f"the name of a registered saver must consist of letters, digits, '.', '_' and '-', "
            f"not '{full_name}'",
        )
    saver = RegisteredSaver(
        full_name, strict_predicate_restore=strict_predicate_restore, **functions
    )
    if _registry.setdefault(full_name, saver) is not saver:
        raise invalid("name", f"a checkpoint saver is already registered as '{full_name}'")


def unregister_checkpoint_saver(registered_name: str) -> None:
    """Remove a name (`<package>.<name>`) from the registry.

    Raises:
        InvalidError: it is not registered.
    """
    is_text = isinstance(registered_name, str)
    if not is_text or _registry.pop(registered_name, None) is None:
        raise _unknown(registered_name)


def get_registered_saver(registered_name: str) -> RegisteredSaver:
    """Return what is registered under a name, `<package>.<name>`.

    Raises:
        InvalidError: it is not registered.
    """
    saver = _registry.get(registered_name)
    if saver is None:
        raise _unknown(registered_name)
    return saver


def get_registered_saver_name(trackable: Any) -> str | None:
    """Return the name of the last registered saver whose predicate is true for this object; None if
    there is none."""
    savers = reversed(list(_registry.values()))
    return next((saver.name for saver in savers if saver.predicate(trackable)), None)


def validate_restore_function(trackable: Any, registered_name: str, what: str = "") -> None:
    """Check that an object that was saved with this saver can be restored with it. `what` describes
    the object in messages; default its type.

    Raises:
        InvalidError: the saver is not registered, or its predicate is false for the object.
    """
    saver = _registry.get(registered_name)
    if saver is None or not saver.predicate(trackable):
        why = "which is not registered here" if saver is None else "whose predicate is false for it"
        what = what or f"an object of type {type(trackable).__name__}"
        raise InvalidError(
            f"{what} was saved with the registered saver '{registered_name}', {why}; strict=False "
            "restores everything else"
        )


def _unknown(registered_name: str) -> InvalidError:
    return invalid("registered_name", f"no checkpoint saver is registered as {registered_name!r}")


# ---- claims --------------------------------------------------------------------------------------


@contextlib.contextmanager
def claimed(prefix: str, savers: Iterable[str]) -> Iterator[None]:
    """Claim the names `<prefix>-<name>` of registered savers against other threads and processes.

    A claim is an advisory lock on a file `<prefix>-<name>.claim` (the merge locks the directory).
    The file is removed before the lock is released. The lock ends with the process: a forked child
    closes its copy. In a store nothing is claimed.

    Raises:
        BusyError: another thread or process has claimed one; it names the prefix and the saver.
        StorageError: the file cannot be created or locked.
    """
    with contextlib.ExitStack() as stack:
        for name in sorted(savers):
            stack.enter_context(_claim(prefix, name))
        yield


@contextlib.contextmanager
def _claim(prefix: str, saver: str) -> Iterator[None]:
    folder, name = split(prefix)
    folder.make()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder.claimed(f"{name}-{saver}.claim"))
        except BlockingIOError:
            raise BusyError(
                f"another save to '{prefix}' is running the registered saver '{saver}'",
                path=f"{prefix}-{saver}.claim",
            ) from None
        except OSError as error:
            raise StorageError(
                f"cannot claim the files of the registered saver '{saver}': {error.strerror}",
                path=f"{prefix}-{saver}.claim",
                errno=error.errno,
            ) from None
        yield
