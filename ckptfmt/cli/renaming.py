# SPDX-License-Identifier: Apache-2.0
"""The option --rename: OLD=NEW, where each * of NEW stands for what the same * of OLD matched, or
/REGEX/=NEW as Python's re.sub."""

from __future__ import annotations

import re
from collections.abc import Callable

from ckptfmt import InvalidError, TensorNotFoundError
from ckptfmt._base.hints import near
from ckptfmt._base.names import VALUE_SUFFIX
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY


def renames(given: list[str], stored: list[str], prefix: str) -> dict[str, str]:
    """Return the new names by stored name. All rules refer to the stored names, or where a rule
    matches none, to those of variables without the suffix that all of them have.

    Raises:
        TensorNotFoundError: a rule matches no name.
        InvalidError: two rules give a tensor different names.
    """
    names = [name for name in stored if name != OBJECT_GRAPH_KEY]
    found: dict[str, str] = {}
    for rule in given:
        renamed = _rename_rule(rule)
        matched = {name: new for name in names if (new := renamed(name)) is not None}
        if not matched:
            matched = {
                name: f"{new}{VALUE_SUFFIX}"
                for name in names
                if name.endswith(VALUE_SUFFIX)
                and (new := renamed(name.removesuffix(VALUE_SUFFIX))) is not None
            }
        if not matched:
            hint = near(rule.partition("=")[0], names)
            raise TensorNotFoundError(
                f"--rename {rule!r} matches none of the {len(names)} tensors{hint}", path=prefix
            )
        for name, new in matched.items():
            if found.setdefault(name, new) != new:
                raise InvalidError(
                    f"--rename {rule!r} gives {new!r} to a tensor that another rule renames to "
                    f"{found[name]!r}: each tensor is renamed once",
                    tensor=name,
                )
    return {old: new for old, new in found.items() if old != new}


def _rename_rule(rule: str) -> Callable[[str], str | None]:
    """Return a function that gives the new name of a tensor, None if the rule does not match."""
    if rule.startswith("/") and "/=" in rule[1:]:
        pattern, _, replacement = rule[1:].partition("/=")
        try:
            compiled = re.compile(pattern)
            compiled.sub(replacement, "")
        except (re.error, IndexError) as error:
            raise InvalidError(f"--rename {rule!r}: {error}") from None

        def by_regex(name: str) -> str | None:
            new, count = compiled.subn(replacement, name)
            return new if count else None

        return by_regex
    old, equals, new = rule.partition("=")
    if not (old and equals and new):
        raise InvalidError(f"--rename {rule!r}: expected OLD=NEW or /REGEX/=NEW")
    if new.count("*") > old.count("*"):
        raise InvalidError(f"--rename {rule!r}: NEW has a * for which OLD has none")
    whole = re.compile("(.*)".join(map(re.escape, old.split("*"))), re.DOTALL)
    first, *rest = new.split("*")

    def by_glob(name: str) -> str | None:
        match = whole.fullmatch(name)
        if match is None:
            return None
        return first + "".join(match[number] + part for number, part in enumerate(rest, 1))

    return by_glob
