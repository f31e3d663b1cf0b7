# SPDX-License-Identifier: Apache-2.0
"""Which names are meant: by names, globs, regular expressions and functions."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ckptfmt._base import names
from ckptfmt._base.adapters import refused
from ckptfmt._base.arguments import invalid, wrong
from ckptfmt._base.hints import near
from ckptfmt.errors import TensorNotFoundError

Filter = str | re.Pattern[str] | Callable[[str], object]
Filters = Filter | Sequence[Filter]
Passing = Callable[..., Callable[[str], object] | None]


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
        tests.append(text_pattern("regex", regex).search)
    return start, tests


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
        return text_pattern(what, given[1:-1]).search
    if isinstance(given, str):
        return re.compile(fnmatch.translate(given)).match
    if isinstance(given, re.Pattern):
        return text_pattern(what, given).search
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


def check_filters(what: str, given: Filters | None) -> list[Any]:
    """Return the filters of an argument, [] for None.

    Raises:
        InvalidError: not a filter, or an empty list.
    """
    filters: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    if not filters:
        raise invalid(what, f"{what} is empty: give at least one filter")
    if given is None:
        return []
    for one in filters:
        if filter_function(one, what=what) is None:
            raise invalid(what, f"{what}: None is not a name or filter")
    return filters


def matched(
    what: str,
    given: Filters | None,
    stored: Collection[str],
    passing: Passing | None = None,
    prefix: str | None = None,
) -> set[str]:
    """Return the stored names that a filter, or one of several, matches; the empty set for None.

    Args:
        passing: returns the function of a filter; default `filter_function`.

    Raises:
        TensorNotFoundError: a filter matches no name.
        InvalidError: as `check_filters`.
    """
    present, found = frozenset(stored), set[str]()
    for one in check_filters(what, given):
        new = _matching(what, one, stored, present, passing)
        if not new:
            raise no_match(what, one, stored, prefix)
        found.update(new)
    return found


def _matching(
    what: str,
    given: Any,
    stored: Collection[str],
    present: frozenset[str],
    passing: Passing | None,
) -> list[str]:
    """Return the stored names, which are those in `present`, that a filter matches."""
    if passing is None and isinstance(given, str) and given in present:
        return [given]
    passes = filter_function(given, what=what) if passing is None else passing(given, what=what)
    assert passes is not None, "check_filters refuses None"
    return [name for name in stored if passes(name)]


def by_filters(
    what: str,
    given: Mapping[Any, Any],
    stored: Collection[str],
    passing: Passing | None = None,
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
        matching = _matching(what, key, stored, present, passing)
        new = [name for name in matching if name not in found]
        if not matching:
            unused.append(key)
        elif not new:
            raise invalid(
                what, f"{what}: an earlier filter matches all tensors of {key!r}: give this first"
            )
        found.update(dict.fromkeys(new, value))
    return {name: value for name, value in found.items() if value is not None}, unused


def text_pattern(what: str, pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise invalid(what, f"{what}: {pattern!r} is not a regular expression: {error}") from None
    if not isinstance(compiled.pattern, str):
        raise invalid(what, f"{what}: {pattern!r} is for bytes: names are str")
    return compiled
