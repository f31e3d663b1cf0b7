# SPDX-License-Identifier: Apache-2.0
"""The option --rename: OLD=NEW, where each * of NEW stands for what the same * of OLD matched, or
/REGEX/=NEW as Python's re.sub."""

from __future__ import annotations

import re
from collections.abc import Callable

from ckptfmt import InvalidError, TensorNotFoundError
from ckptfmt._base.hints import near
from ckptfmt._base.names import VALUE_SUFFIX
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY, leaf_name


def renames(
    given: list[str], stored: list[str], prefix: str, shown: Callable[[str], str] = leaf_name
) -> Callable[[str], str]:
    """Return a function that gives a name its new one. A rule refers to the stored name, or where
    it does not match that, to the name without the suffix that all variables have, or to the one
    that `shown` returns. A name that is not stored, of a tied tensor of torch, is renamed by the
    first rule that matches.

    Raises:
        TensorNotFoundError: a rule matches no name.
        InvalidError: two rules give a tensor different names.
    """
    stored_names = frozenset(stored)
    names = [name for name in stored if name != OBJECT_GRAPH_KEY]
    found: dict[str, str] = {}
    rules = [_compiled(rule) for rule in given]
    for rule, (pattern, replacement) in zip(given, rules, strict=True):
        matched: dict[str, str] = {}
        for name in names:
            for form in (str, leaf_name, shown):
                new, count = pattern.subn(replacement, form(name))
                if count:
                    is_short = form is not str and name.endswith(VALUE_SUFFIX)
                    matched[name] = new + VALUE_SUFFIX * is_short
                    break
        if not matched:
            hint = near(rule.partition("=")[0], list(map(shown, names)))
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

    def renamed(name: str) -> str:
        if name in stored_names:
            return found.get(name, name)
        tied = (pattern.subn(replacement, name) for pattern, replacement in rules)
        return next((new for new, count in tied if count), name)

    return renamed


def _compiled(rule: str) -> tuple[re.Pattern[str], str]:
    """Return what a rule searches names for, and what it puts there."""
    if rule.startswith("/") and "/=" in rule[1:]:
        regex, _, replacement = rule[1:].partition("/=")
        try:
            pattern = re.compile(regex)
            pattern.sub(replacement, "")
        except (re.error, IndexError) as error:
            raise InvalidError(f"--rename {rule!r}: {error}") from None
        return pattern, replacement
    old, equals, new = rule.partition("=")
    if not (old and equals and new):
        raise InvalidError(f"--rename {rule!r}: expected OLD=NEW or /REGEX/=NEW")
    if new.count("*") > old.count("*"):
        raise InvalidError(f"--rename {rule!r}: NEW has a * for which OLD has none")
    groups = "(.*)".join(map(re.escape, old.split("*")))
    first, *rest = new.replace("\\", r"\\").split("*")
    numbered = "".join(rf"\g<{number}>{part}" for number, part in enumerate(rest, 1))
    return re.compile(rf"\A{groups}\Z", re.DOTALL), first + numbered
