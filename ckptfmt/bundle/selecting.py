# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a checkpoint are meant, and by what names: the forms that `rename` and `filter`
take."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import heapq
import itertools
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import names
from ckptfmt._base.adapters import refused
from ckptfmt._base.arguments import invalid, wrong
from ckptfmt.errors import TensorNotFoundError, about, shortened

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
Rename = Mapping[str, NewName] | Callable[[str], NewName | None] | Rule | Sequence[Rule]
Filter = str | re.Pattern[str] | Callable[[str], object]

# More names than this are counted in a message.
NAMED_MAX = 8
# A missing name is compared with no more names than this, and in full, which is slow, with the few
# that share the most with it: callers may look for many names that are missing.
COMPARED_MAX = 10_000
COMPARED_IN_FULL = 20


def some(found: Collection[object], quote: str = "'") -> str:
    """Return names for a message, quoted and at most `NAMED_MAX`."""
    shown = ", ".join(
        f"{quote}{shortened(str(name))}{quote}" for name in itertools.islice(found, NAMED_MAX)
    )
    return shown + (f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else "")


def near(name: str, present: Collection[str]) -> str:
    """Return a hint with the names most similar to a missing one, for the end of a message: of
    variables, without the suffix that all of them have."""
    if len(present) > COMPARED_MAX:
        return ""
    name = name.removesuffix(names.VALUE_SUFFIX)
    short = {one.removesuffix(names.VALUE_SUFFIX): one for one in present}

    def shared(other: str) -> int:
        start = os.path.commonprefix([name, other])  # noqa: RUF071 (characters are meant)
        end = os.path.commonprefix([name[::-1], other[::-1]])  # noqa: RUF071
        return len(start) + len(end)

    # The last parts of a path alone are a likely mistake.
    found = [one for one in short if one.endswith(f"/{name}")][:COMPARED_IN_FULL]
    if not found:
        likely = heapq.nlargest(COMPARED_IN_FULL, short, shared)
        found = difflib.get_close_matches(name, likely)
    return f"; the nearest are {some([short[one] for one in found])}" if found else ""


def by_text(what: str, given: Mapping[Any, Any], *, filters: bool = False) -> dict[Any, Any]:
    """Return the mapping with its names as str, each once; with `filters`, keys of other types
    stay."""
    if not isinstance(given, Mapping):
        raise refused(f"{what} must be a mapping by names", given, what)
    found: dict[Any, Any] = {}
    for key, value in given.items():
        is_name = isinstance(key, (str, bytes)) or not filters
        name = names.tensor_name(key, what) if is_name else key
        if name in found:
            raise invalid(what, f"{what} has {name!r} as str and as bytes")
        found[name] = value
    return found


# ---- names ---------------------------------------------------------------------------------------


def name_tests(
    prefix: str | bytes | None, glob: str | None, regex: str | re.Pattern[str] | None
) -> tuple[bytes, list[Callable[[str], object]]]:
    """Return the common prefix of all names that meet these conditions, and a test for each.

    Raises:
        InvalidError: `glob` is not a str, or `regex` is not a regular expression for str.
    """
    start, tests = b"", list[Callable[[str], object]]()
    if prefix is not None:
        start = names.tensor_bytes(prefix, "prefix")
        text = names.tensor_text(start)
        tests.append(lambda name: name.startswith(text))
    if glob is not None:
        if not isinstance(glob, str):
            raise wrong("glob", "a str", glob)
        literal = re.match(r"[^*?\[\ud800-\udfff]*", glob)
        start = max(start, literal.group().encode() if literal else b"", key=len)
        tests.append(re.compile(fnmatch.translate(glob)).match)
    if regex is not None:
        tests.append(_text_pattern("regex", regex).search)
    return start, tests


# ---- filter --------------------------------------------------------------------------------------


def filter_function(
    given: Filter | None, present: Collection[str] = (), what: str = "filter"
) -> Callable[[str], object] | None:
    """Return a function that says whether a name passes the filter; None if all do. A str that is
    one of the names `present` matches that name alone, whatever it would mean as a pattern.

    Raises:
        InvalidError: not a filter.
    """
    if given is None:
        return None
    if isinstance(given, str) and given in present:
        return given.__eq__
    if isinstance(given, str) and len(given) > 1 and given.startswith("/") and given.endswith("/"):
        return _text_pattern(what, given[1:-1]).search
    if isinstance(given, str):
        return re.compile(fnmatch.translate(given)).match
    if isinstance(given, re.Pattern):
        return _text_pattern(what, given).search
    if callable(given):
        return given
    raise wrong(what, "a glob pattern, /REGEX/, compiled regex or function", given)


def no_match(
    what: str, given: object, stored: Collection[str], prefix: str | None = None
) -> TensorNotFoundError:
    """Return the error for a filter, or a key of a mapping, that matches no tensor."""
    hint = near(given, stored) if isinstance(given, str) else ""
    message = f"{what}: {given!r} matches none of the {len(stored)} tensors{hint}"
    return TensorNotFoundError(message, path=prefix, argument=what)


def matched(
    what: str,
    given: Filter | Sequence[Filter] | None,
    stored: Collection[str],
    passing: Callable[[Any], Callable[[str], object]] | None = None,
    prefix: str | None = None,
) -> set[str]:
    """Return the stored names that a filter, or one of several, matches; none if it is None.

    Args:
        passing: returns the function of a filter; default `filter_function`.

    Raises:
        TensorNotFoundError: a filter matches no name.
        InvalidError: not a filter, or an empty list.
    """
    filters: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    if not filters:
        raise invalid(what, f"{what} is empty: give at least one filter")
    present, found = frozenset(stored), set[str]()
    for one in filters if given is not None else []:
        passes = filter_function(one, present, what) if passing is None else passing(one)
        if passes is None:
            raise invalid(what, f"{what}: None is not a name or filter")
        new = {name for name in stored if passes(name)}
        if not new:
            raise no_match(what, one, stored, prefix)
        found |= new
    return found


def of_stored(
    rename: Rename | None, stored: Collection[str], prefix: str | None = None
) -> Rename | None:
    """Return `rename`, a mapping with its names as str.

    Raises:
        TensorNotFoundError: a name of the mapping is not stored.
    """
    if not isinstance(rename, Mapping):
        return rename
    rename, present = by_text("rename", rename), frozenset(stored)
    for name in rename:
        if name not in present:
            raise no_match("rename", name, stored, prefix)
    return rename


def by_filters(
    what: str,
    given: Mapping[Any, Any],
    stored: Collection[str],
    passing: Callable[[Any], Callable[[str], object]] | None = None,
) -> tuple[dict[str, Any], list[Any]]:
    """Return by stored name the values of a mapping whose keys are filters, of which the first one
    that matches a name counts, without those that are None; and the keys that match no name.

    Args:
        passing: returns the function of a filter; default `filter_function`.

    Raises:
        InvalidError: earlier keys match all names of a key.
    """
    present = frozenset(stored)
    found: dict[str, Any] = {}
    unused = []
    for key, value in given.items():
        if passing is None and key in present:
            matched = [key]
        else:
            passes = filter_function(key, what=what) if passing is None else passing(key)
            if passes is None:
                raise invalid(what, f"{what}: None is not a name or filter")
            matched = [name for name in stored if passes(name)]
        new = [name for name in matched if name not in found]
        if not matched:
            unused.append(key)
        elif not new:
            raise invalid(
                what, f"{what}: an earlier filter matches all tensors of {key!r}: give this first"
            )
        found.update(dict.fromkeys(new, value))
    return {name: value for name, value in found.items() if value is not None}, unused


def _text_pattern(what: str, pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise invalid(what, f"{what}: {pattern!r} is not a regular expression: {error}") from None
    if not isinstance(compiled.pattern, str):
        raise invalid(what, f"{what}: {pattern!r} is for bytes: names are str")
    return compiled


# ---- rename --------------------------------------------------------------------------------------


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
        found.append(None if new is None else names.tensor_text(new))
    return found, transforms


def _rename_function(rename: Rename) -> Callable[[str], Any]:
    if isinstance(rename, Mapping):
        mapping = rename
        return lambda name: mapping.get(name, name)
    if callable(rename):
        return rename
    if isinstance(rename, Sequence) and not isinstance(rename, (str, bytes)):
        alone = len(rename) > 0 and isinstance(rename[0], (str, re.Pattern))
        return _by_rules([_checked_rule(rule) for rule in ([rename] if alone else rename)])
    raise wrong(
        "rename", "a mapping from names to names, a function, or (regex, replacement) pairs", rename
    )


_CheckedRule = tuple[re.Pattern[str], str | None, Transform | None]


def _checked_rule(rule: Any) -> _CheckedRule:
    is_rule = isinstance(rule, Sequence) and not isinstance(rule, (str, bytes))
    if is_rule and len(rule) in (2, 3) and isinstance(rule[0], (str, re.Pattern)):
        pattern, replacement, *transform = rule
        if isinstance(replacement, str) and all(map(callable, transform)):
            return _text_pattern("rename", pattern), replacement, *(transform or [None])
        if replacement is None and not transform:
            return _text_pattern("rename", pattern), None, None
    raise invalid(
        "rename",
        "rename: expected pairs of a regular expression and a replacement, or these and a "
        f"transform of the array, got {rule!r}",
    )


def _by_rules(rules: Sequence[_CheckedRule]) -> Callable[[str], Any]:
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
        return name, functools.partial(functools.reduce, _apply, transforms)

    return replaced


def _apply(array: NDArray[Any], transform: Transform) -> NDArray[Any]:
    return transform(array)


def transformed(
    name: str,
    array: NDArray[Any],
    transform: Transform | CastFirst,
    shape: tuple[int, ...] | None = None,
) -> NDArray[Any]:
    """Return the result of a transform that `rename` gave for the tensor of this name.

    Args:
        shape: what it must have, as it has for zeros.

    Raises:
        InvalidError: the transform fails, or returns no array or one of another shape; or the cast
            loses values.
    """
    if isinstance(transform, CastFirst):
        array = transform.convert(array, transform.dtype, name)
        return array if transform.then is None else transformed(name, array, transform.then, shape)
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
        if shape is not None and result.shape != shape:
            raise invalid(
                "rename",
                f"rename: the transform gives shape {list(shape)} for zeros, and "
                f"{list(result.shape)} for the tensor",
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
