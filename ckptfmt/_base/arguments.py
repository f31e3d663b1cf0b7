# SPDX-License-Identifier: Apache-2.0
"""Argument checks of the public functions. A wrong type raises an InvalidError that says what was
expected and what was given."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from ckptfmt.errors import InvalidError

Verify = Literal["auto", "full", "off"]
Level = Literal["v2", "v2+", "ckptfmt"]
Durability = Literal["full", "rename", "none"]


def invalid(argument: str | None, message: str, **details: Any) -> InvalidError:
    """Return the error about an argument; `details` as in InvalidError."""
    return InvalidError(message, argument=argument, **details)


def wrong(what: str, wanted: str, given: object, argument: str | None = None) -> InvalidError:
    """Return the error for `what`, an argument or a part of `argument`, that must be `wanted`."""
    found = type(given).__name__
    if argument is None and what.isidentifier():
        argument = what
    return InvalidError(f"{what} must be {wanted}, not {found}", argument=argument)


def check_order(call: str, what: str, path: object, other: object) -> None:
    """Refuse a path that is not one, with a hint if the other argument is.

    Args:
        call: how the arguments are given, such as "save(prefix, tensors)".
        what: the name of the path there.
    """
    paths = (str, bytes, os.PathLike)
    if not isinstance(path, paths):
        hint = ". Are the arguments swapped?" if isinstance(other, paths) else ""
        kind = type(path).__name__
        raise InvalidError(
            f"{call}: {what} must be str, bytes or os.PathLike, not {kind}{hint}", argument=what
        )


def check_choice(what: str, given: object, choices: Collection[str]) -> None:
    """Refuse anything but one of these words."""
    if not isinstance(given, str) or given not in choices:
        wanted = f"one of {', '.join(map(repr, choices))}"
        raise InvalidError(f"{what} must be {wanted}, not {given!r}", argument=what)


def check_switch(what: str, given: object) -> bool:
    """Return what is True or False; refuse anything else."""
    if not isinstance(given, bool):
        raise wrong(what, "True or False", given)
    return given


def check_switches(**given: object) -> None:
    """Refuse arguments other than True and False."""
    for what, one in given.items():
        check_switch(what, one)


def check_number(what: str, given: object) -> None:
    """Refuse NaN and anything that is not a number."""
    if not isinstance(given, (int, float, np.number)) or np.isnan(given):
        raise wrong(what, "a number", given)


def is_positive(given: Any) -> bool:
    """Return whether `given` is an integer above zero, and not a bool."""
    try:
        return operator.index(given) > 0 and not isinstance(given, bool)
    except TypeError:
        return False


def whole(what: str, given: Any) -> int:
    """Return an integer, or the single one in an array."""
    try:
        array = np.asarray(given)
        if array.size == 1 and array.dtype.kind in "iu":
            return int(array.item())
    except (TypeError, ValueError):
        pass
    raise wrong(what, "a whole number", given)


def check_progress(progress: object) -> None:
    """Refuse a `progress` that is not callable."""
    if progress is not None and not callable(progress):
        raise wrong("progress", "a function of two numbers", progress)


def check_metadata(metadata: object) -> None:
    """Refuse `metadata` other than a mapping. Names and values are checked where they are used."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise wrong("metadata", "a mapping of names to values", metadata)


def check_limits(limits: object) -> None:
    """Refuse `limits` other than a mapping. Names and values are checked where they are used."""
    if limits is not None and not isinstance(limits, Mapping):
        raise wrong("limits", "a mapping from names of limits to numbers", limits)


def check_sized(what: str, given: Any, things: str) -> None:
    """Refuse anything but a sized iterable; also str and bytes."""
    if isinstance(given, (str, bytes)):
        raise InvalidError(f"{what} must be a sequence of {things}, not one", argument=what)
    if not hasattr(given, "__len__") or not hasattr(given, "__iter__"):
        raise wrong(what, f"a sequence of {things}", given)


def listed(what: str, given: Iterable[Any], things: str) -> list[Any]:
    """Return the elements of an iterable as a list; refuse str and bytes."""
    if isinstance(given, (str, bytes)):
        raise InvalidError(f"{what} must be a list of {things}, not one", argument=what)
    if not hasattr(given, "__iter__"):
        raise wrong(what, f"a list of {things}", given)
    return list(given)
