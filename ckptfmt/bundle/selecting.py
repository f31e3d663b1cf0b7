# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a checkpoint are meant, and by what names: the forms that `rename` and `filter`
take."""

from __future__ import annotations

import difflib
import fnmatch
import heapq
import itertools
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ckptfmt import names
from ckptfmt.arguments import wrong
from ckptfmt.errors import InvalidError, TensorNotFoundError

__all__ = [
    "Filter",
    "Rename",
    "by_text",
    "check_distinct",
    "filter_function",
    "name_tests",
    "near",
    "renamed",
    "some",
]

Pair = tuple[str | re.Pattern[str], str]
Rename = Mapping[str, str] | Callable[[str], str | None] | Pair | Sequence[Pair]
Filter = str | re.Pattern[str] | Callable[[str], object]

# More names than this are counted in a message.
NAMED_MAX = 8
# A missing name is compared with no more names than this, and in full, which is slow, with the few
# that share the most with it: callers may look for many names that are missing.
COMPARED_MAX = 10_000
COMPARED_IN_FULL = 20


def some(found: Collection[object], quote: str = "'") -> str:
    """Return names for a message, quoted and at most `NAMED_MAX`."""
    shown = ", ".join(f"{quote}{name}{quote}" for name in itertools.islice(found, NAMED_MAX))
    return shown + (f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else "")


def near(name: str, present: Collection[str]) -> str:
    """Return a hint with the names most similar to a missing one, for the end of a message."""
    if len(present) > COMPARED_MAX:
        return ""

    def shared(other: str) -> int:
        start = os.path.commonprefix([name, other])  # noqa: RUF071 (characters are meant)
        end = os.path.commonprefix([name[::-1], other[::-1]])  # noqa: RUF071
        return len(start) + len(end)

    likely = heapq.nlargest(COMPARED_IN_FULL, present, shared)
    found = difflib.get_close_matches(name, likely)
    return f"; the nearest are {some(found)}" if found else ""


def by_text(what: str, given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the mapping with its names as str."""
    if not isinstance(given, Mapping):
        raise wrong(what, "a mapping by names", given)
    return {names.tensor_text(names.tensor_bytes(name)): value for name, value in given.items()}


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
        start = names.tensor_bytes(prefix)
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


def filter_function(given: Filter | None) -> Callable[[str], object] | None:
    """Return a function that says whether a stored name passes the filter; None if all do.

    Raises:
        InvalidError: not a filter.
    """
    if given is None:
        return None
    if isinstance(given, str) and len(given) > 1 and given.startswith("/") and given.endswith("/"):
        return _text_pattern("filter", given[1:-1]).search
    if isinstance(given, str):
        return re.compile(fnmatch.translate(given)).match
    if isinstance(given, re.Pattern):
        return _text_pattern("filter", given).search
    if callable(given):
        return given
    raise wrong("filter", "a glob pattern, /REGEX/, compiled regex or function", given)


def no_match(given: Filter | None, count: int, prefix: str | None = None) -> TensorNotFoundError:
    """Return the error for a filter that matches no tensor."""
    return TensorNotFoundError(f"filter {given!r} matches none of the {count} tensors", path=prefix)


def _text_pattern(what: str, pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise InvalidError(f"{what}: {pattern!r} is not a regular expression: {error}") from None
    if not isinstance(compiled.pattern, str):
        raise InvalidError(f"{what}: {pattern!r} is for bytes: names are str")
    return compiled


# ---- rename --------------------------------------------------------------------------------------


def renamed(stored: list[str], rename: Rename | None) -> list[str | None]:
    """Return the new names of stored tensors; None for those that a function drops.

    Raises:
        InvalidError: `rename` is malformed, or gives an invalid name.
    """
    if rename is None:
        return list(stored)
    function = _rename_function(rename)
    found = []
    for name in stored:
        new = function(name)
        # A function that says None drops the tensor; in a mapping None is a mistake.
        if not isinstance(new, str) and (new is not None or isinstance(rename, Mapping)):
            raise InvalidError(f"rename gave {new!r}, which is not a valid name", tensor=name)
        found.append(new)
    return found


def _rename_function(rename: Rename) -> Callable[[str], Any]:
    if isinstance(rename, Mapping):
        mapping = rename
        return lambda name: mapping.get(name, name)
    if callable(rename):
        return rename
    if isinstance(rename, Sequence) and not isinstance(rename, (str, bytes)):
        pairs = [rename] if rename and isinstance(rename[0], (str, re.Pattern)) else rename
        return _by_pairs([_checked_pair(pair) for pair in pairs])
    raise wrong(
        "rename", "a mapping from names to names, a function, or (regex, replacement) pairs", rename
    )


def _checked_pair(pair: Any) -> tuple[re.Pattern[str], str]:
    if not isinstance(pair, Sequence) or isinstance(pair, (str, bytes)) or len(pair) != 2:
        raise InvalidError(
            f"rename: expected pairs of a regular expression and a replacement, got {pair!r}"
        )
    pattern, replacement = pair
    if not isinstance(pattern, (str, re.Pattern)) or not isinstance(replacement, str):
        raise InvalidError(
            f"rename: expected pairs of a regular expression and a replacement, got {pair!r}"
        )
    return _text_pattern("rename", pattern), replacement


def _by_pairs(pairs: Sequence[tuple[re.Pattern[str], str]]) -> Callable[[str], str]:
    def replaced(name: str) -> str:
        for pattern, replacement in pairs:
            try:
                name = pattern.sub(replacement, name)
            except (re.error, IndexError) as error:
                raise InvalidError(
                    f"rename: {replacement!r} cannot replace matches of "
                    f"{pattern.pattern!r}: {error}"
                ) from None
        return name

    return replaced


def check_distinct(stored: Sequence[str], new_names: Sequence[str]) -> None:
    """Refuse new names of which two are the same."""
    if len(set(new_names)) == len(new_names):
        return
    seen: dict[str, str] = {}
    for old, new in zip(stored, new_names, strict=True):
        if new in seen:
            raise InvalidError(
                f"rename gives the name '{new}' to '{seen[new]}' as well", tensor=old
            )
        seen[new] = old
