# SPDX-License-Identifier: Apache-2.0
"""States of `ckptfmt.torch` as values: the numbers and texts beside the tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from typing import Any, NamedTuple

from ckptfmt._base.names import printable
from ckptfmt.bundle import state_tree
from ckptfmt.errors import UnsupportedError
from ckptfmt.naming.roles import RANDOM

# Elements of a list that is printed.
LISTED_MAX = 8
# The names that a group of an optimizer has if its parameters were given with names.
_NAMES = re.compile(r"(.*)\.param_groups\.[0-9]{1,9}\.param_names")
_SLOT = re.compile(r"(.*)\.state\.([0-9]{1,9})\.[^.]+")


class State(NamedTuple):
    """What a state has beside its tensors.

    Attributes:
        values: Python values by path, those of fewer keys first; of a list of numbers or texts the
            list. Without the states of random number generators.
        random: paths of these.
        parameters: by path of an optimizer, the names of its parameters.
    """

    values: dict[str, Any]
    random: list[str]
    parameters: dict[str, list[str]]

    def parameter_of(self, name: str) -> str | None:
        """Return the parameter to which a tensor of an optimizer's state belongs, if its name is
        stored."""
        match = _SLOT.fullmatch(name)
        found = self.parameters.get(match[1], []) if match else []
        return found[int(match[2])] if match and int(match[2]) < len(found) else None


def value_text(value: Any, *, everything: bool = False) -> str:
    """Return a Python value of a state in one line; a long list by its length, unless
    `everything`."""
    is_list = isinstance(value, Sized) and not isinstance(value, (str, bytes))
    if is_list and len(value) > LISTED_MAX and not everything:
        return f"{type(value).__name__} of {len(value):,} elements"
    return printable(repr(value))


def order_of(metadata: Mapping[str, Any]) -> list[str]:
    """Return the names of the tensors of the state that metadata describe, in its order; none if
    missing or unreadable."""
    try:
        state = state_tree.parse(metadata[state_tree.KEY])["state"]
        return [one.name for one in state_tree.leaves(state, [])]
    except (UnsupportedError, *state_tree.DAMAGED):
        return []


def state_of(metadata: Mapping[str, Any]) -> State | None:
    """Return the state that metadata describe; None if missing or unreadable."""
    try:
        whole = state_tree.parse(metadata[state_tree.KEY])
        found = sorted(state_tree.values(whole["state"]), key=lambda pair: pair[0].count("."))
        names = {
            path: [str(one[0]) for group in groups for one in group]
            for path, groups in whole.get(state_tree.PARAMETERS, {}).items()
        }
    except (UnsupportedError, *state_tree.DAMAGED):
        return None
    values, random = dict[str, Any](), dict[str, None]()
    for path, value in found:
        match = RANDOM.search(path)
        # A number or text of such a name, random_seed, is a setting.
        is_state = isinstance(value, Sized) and not isinstance(value, str)
        if match and (is_state or "." in path[match.end() - 1 :]):
            random[path[: match.end()].rstrip("._/")] = None
        else:
            values[path] = value
        named = _NAMES.fullmatch(path)
        if (
            named
            and isinstance(value, list)
            and named[1] not in whole.get(state_tree.PARAMETERS, {})
        ):
            names.setdefault(named[1], []).extend(map(str, value))
    return State(values, list(random), names)
