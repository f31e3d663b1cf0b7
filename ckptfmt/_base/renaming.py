# SPDX-License-Identifier: Apache-2.0
"""What names tensors get: the forms that `rename` takes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import names
from ckptfmt._base.arguments import invalid, wrong
from ckptfmt._base.patterns import text_pattern
from ckptfmt.errors import about

# Applied to a tensor that was read, before it is stored in its target.
Transform = Callable[[NDArray[Any]], NDArray[Any]]


class CastFirst(NamedTuple):
    """A transform of what a cast gives.

    Attributes:
        convert: casts the values of a tensor with this name to the dtype.
        then: the transform after it; None without one.
    """

    dtype: np.dtype[Any]
    convert: Callable[[NDArray[Any], np.dtype[Any], str], NDArray[Any]]
    then: Transform | None


NewName = str | tuple[str, Transform]
Pattern = str | re.Pattern[str]
Rule = tuple[Pattern, str | None] | tuple[Pattern, str, Transform]
Rename = Mapping[str, NewName] | Callable[[str], NewName | None] | Sequence[Rule]


def renamed(
    stored: Sequence[str], rename: Rename | None
) -> tuple[list[str | None], dict[str, Transform]]:
    """Return the new names of stored tensors, None for those that are dropped; and by stored name
    the transforms of those that have one.

    Raises:
        InvalidError: `rename` is malformed, or gives an invalid name.
    """
    if rename is None:
        return list(stored), {}
    function = _rename_function(rename)
    found: list[str | None] = []
    transforms: dict[str, Transform] = {}
    for name in stored:
        new = function(name)
        if isinstance(new, tuple) and len(new) == 2 and callable(new[1]):
            new, transforms[name] = new
        # A function that says None drops the tensor; in a mapping None is a mistake.
        if not isinstance(new, str) and (new is not None or isinstance(rename, Mapping)):
            raise invalid("rename", f"rename gave {new!r}, which is not a valid name", tensor=name)
        found.append(new if new is None or type(new) is str else names.tensor_text(new))
    return found, transforms


def _rename_function(rename: Rename) -> Callable[[str], Any]:
    if isinstance(rename, Mapping):
        mapping = rename
        return lambda name: mapping.get(name, name)
    if callable(rename):
        return rename
    if isinstance(rename, Sequence) and not isinstance(rename, (str, bytes)):
        return _by_rules([_checked_rule(rule) for rule in rename])
    raise wrong("rename", "a mapping from names to names, a function, or a list of pairs", rename)


_CheckedRule = tuple[re.Pattern[str], str | None, Transform | None]


def _checked_rule(rule: Any) -> _CheckedRule:
    is_rule = isinstance(rule, Sequence) and not isinstance(rule, (str, bytes))
    if is_rule and len(rule) in (2, 3) and isinstance(rule[0], (str, re.Pattern)):
        pattern, replacement, *transform = rule
        if isinstance(replacement, str) and all(map(callable, transform)):
            return text_pattern("rename", pattern), replacement, *(transform or [None])
        if replacement is None and not transform:
            return text_pattern("rename", pattern), None, None
    raise invalid(
        "rename",
        "rename: expected a list of pairs (regular expression, replacement), or of these and a "
        f"transform of the array; {rule!r} is none of them",
    )


def _by_rules(rules: Sequence[_CheckedRule]) -> Callable[[str], Any]:
    # Names that are transformed alike have one function, so that tied tensors stay tied.
    made: dict[tuple[int, ...], Transform] = {}

    def replaced(name: str) -> Any:
        transforms = []
        for pattern, replacement, transform in rules:
            try:
                new, count = pattern.subn(replacement or "", name)
            except (re.error, IndexError) as error:
                raise invalid(
                    "rename",
                    f"rename: {replacement!r} cannot replace matches of "
                    f"{pattern.pattern!r}: {error}",
                ) from None
            if count and replacement is None:
                return None
            name = new
            if count and transform is not None:
                transforms.append(transform)
        if not transforms:
            return name
        each = functools.partial(functools.reduce, _apply, transforms)
        return name, made.setdefault(tuple(map(id, transforms)), each)

    return replaced


def _apply(array: NDArray[Any], transform: Transform) -> NDArray[Any]:
    return transform(array)


def transformed(
    name: str,
    array: NDArray[Any],
    transform: Transform | CastFirst,
    shape: tuple[int, ...] | None = None,
    dtype: np.dtype[Any] | None = None,
) -> NDArray[Any]:
    """Return the result of a transform that `rename` gave for the tensor of this name.

    Args:
        shape, dtype: what it must have, as it has for zeros.

    Raises:
        InvalidError: the transform fails, or returns no array or one of another shape or dtype; or
            the cast loses values.
    """
    if isinstance(transform, CastFirst):
        array = transform.convert(array, transform.dtype, name)
        then = transform.then
        return array if then is None else transformed(name, array, then, shape, dtype)
    with about(name, argument="rename"):
        try:
            result = transform(array)
            if isinstance(result, np.generic):  # what NumPy returns for 0-d arrays
                result = np.asarray(result)
        except Exception as error:  # whatever the caller's function raises
            raise invalid(
                "rename",
                f"rename: the transform fails for {array.dtype}{list(array.shape)}: {error}",
            ) from error
        if not isinstance(result, np.ndarray):
            raise wrong("rename: the result of the transform", "a numpy array", result)
        before = result.shape if shape is None else shape, dtype or result.dtype
        if before != (result.shape, result.dtype):
            raise invalid(
                "rename",
                f"rename: the transform gives {before[1]}{list(before[0])} for zeros, and "
                f"{result.dtype}{list(result.shape)} for the tensor",
            )
    return result


def transformed_kind(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], transform: Transform | CastFirst
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and shape that a transform makes of a tensor, by applying it to zeros, which
    are one element in memory."""
    if isinstance(transform, CastFirst):
        dtype, then = transform.dtype, transform.then
        return (dtype, shape) if then is None else transformed_kind(name, dtype, shape, then)
    zero = np.array(b"", object) if dtype.kind == "O" else np.zeros((), dtype)
    result = transformed(name, np.broadcast_to(zero, shape), transform)
    return result.dtype, result.shape


def check_distinct(stored: Sequence[str], new_names: Sequence[str]) -> None:
    """Refuse new names of which two are the same."""
    if len(set(new_names)) == len(new_names):
        return
    seen: dict[str, str] = {}
    for old, new in zip(stored, new_names, strict=True):
        if new in seen:
            raise invalid(
                "rename", f"rename gives the name '{new}' to '{seen[new]}' as well", tensor=old
            )
        seen[new] = old
