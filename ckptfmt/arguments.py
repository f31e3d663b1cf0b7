# SPDX-License-Identifier: Apache-2.0
"""What the public functions check of their arguments before they do anything: whoever hands in
something of the wrong type gets an InvalidError that says what was expected."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from ckptfmt.errors import InvalidError

__all__ = [
    "check_choice",
    "check_limits",
    "check_number",
    "check_progress",
    "check_sized",
    "is_positive",
    "listed",
    "whole",
    "wrong",
]


Verify = Literal["auto", "full", "off"]
Level = Literal["v2", "v2+", "ckptfmt"]
Durability = Literal["full", "rename", "none"]


def wrong(what: str, wanted: str, given: object) -> InvalidError:
    """The error for an argument `what` that is no `wanted`."""
    return InvalidError(f"{what} is {wanted}, not {type(given).__name__}")


def check_choice(what: str, given: object, choices: Collection[str]) -> None:
    """Refuses what is none of these words."""
    if not isinstance(given, str) or given not in choices:
        raise InvalidError(f"{what} {given!r} is none of {', '.join(map(repr, choices))}")


def check_number(what: str, given: object) -> None:
    """Refuses what is no number, and NaN."""
    if not isinstance(given, (int, float, np.number)) or np.isnan(given):
        raise wrong(what, "a number", given)


def is_positive(given: Any) -> bool:
    """Whether something is a whole number above zero."""
    try:
        return operator.index(given) > 0
    except TypeError:
        return False


def whole(what: str, given: Any) -> int:
    """A whole number, or the one in an array of one."""
    try:
        array = np.asarray(given)
        if array.size == 1 and array.dtype.kind in "iu":
            return int(array.item())
    except (TypeError, ValueError):
        pass
    raise wrong(what, "a whole number", given)


def check_progress(progress: object) -> None:
    """Refuses a `progress` that cannot be called."""
    if progress is not None and not callable(progress):
        raise wrong("progress", "a function of two numbers", progress)


def check_limits(limits: object) -> None:
    """Refuses `limits` that are no mapping; their names and values are checked where they are
    used."""
    if limits is not None and not isinstance(limits, Mapping):
        raise wrong("limits", "a mapping from names of limits to numbers", limits)


def check_sized(what: str, given: Any, things: str) -> None:
    """Refuses what has no number of elements to go through, and a text, which has letters."""
    if isinstance(given, (str, bytes)):
        raise InvalidError(f"{what} is a sequence of {things}, not one")
    if not hasattr(given, "__len__") or not hasattr(given, "__iter__"):
        raise wrong(what, f"a sequence of {things}", given)


def listed(what: str, given: Iterable[Any], things: str) -> list[Any]:
    """The elements of an iterable; texts and what cannot be gone through are refused."""
    if isinstance(given, (str, bytes)):
        raise InvalidError(f"{what} is a list of {things}, not one")
    if not hasattr(given, "__iter__"):
        raise wrong(what, f"a list of {things}", given)
    return list(given)
