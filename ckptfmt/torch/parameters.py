# SPDX-License-Identifier: Apache-2.0
"""The names of the parameters that optimizers have. torch stores numbers instead, which mean other
parameters where an optimizer was made of them in another order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

# What wrappers of a module add to the names of its parameters.
_WRAPPERS = {"_orig_mod", "module", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}

# What has values at positions.
SEQUENCES = (list, tuple, deque)
# By parameter group, the names of each parameter.
Groups = list[list[list[str]]]


class Parameters:
    """The modules and optimizers of a state that is saved or loaded by one call.

    Attributes:
        full: by identity of a parameter, its names in the state ("model.0.weight").
        short: by identity, its names in its modules ("0.weight").
        optimizers: by path.
    """

    def __init__(self, state: Any) -> None:
        self.full: dict[int, list[str]] = {}
        self.short: dict[int, list[str]] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self._kept: list[Any] = []  # so that identities last
        for path, value in objects(state, ()):
            name = ".".join(path)
            if isinstance(value, Optimizer):
                self.optimizers[name] = value
                continue
            named = [("", value)]
            if isinstance(value, torch.nn.Module):
                named = [*value.named_parameters(remove_duplicate=False)]
            for key, parameter in named:
                self._kept.append(parameter)
                full = ".".join((*path, key) if key else path)
                self.full.setdefault(id(parameter), []).append(full)
                self.short.setdefault(id(parameter), []).append(key or full)

    def recorded(self) -> dict[str, Groups]:
        """Return the names that are stored, by path of the optimizer; none for one with a parameter
        that has no name."""
        found = {name: self.names(one) for name, one in self.optimizers.items()}
        return {name: groups for name, groups in found.items() if groups is not None}

    def names(self, optimizer: Optimizer, *, short: bool = False) -> Groups | None:
        """Return the names of the parameters of an optimizer; None if one has none."""
        known = self.short if short else self.full
        groups = [[known.get(id(one), []) for one in g["params"]] for g in optimizer.param_groups]
        return groups if all(names for group in groups for names in group) else None


def objects(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the modules, optimizers and loose parameters in a state, with their paths."""
    if isinstance(value, (torch.nn.Module, torch.nn.Parameter)):
        yield path, value
    elif isinstance(optimizer := getattr(value, "optimizer", value), Optimizer):
        yield path, optimizer
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from objects(one, (*path, str(key)))
    elif isinstance(value, SEQUENCES):
        for index, one in enumerate(value):
            yield from objects(one, (*path, str(index)))


def stored_names(groups: Sequence[Mapping[str, Any]]) -> Groups | None:
    """Return the names that the state of an optimizer has itself: those that DCP puts in the place
    of numbers, or `param_names`; None without any."""
    if all(isinstance(one, str) for group in groups for one in group["params"]):
        return [[[one] for one in group["params"]] for group in groups]
    named = [group.get("param_names") for group in groups]
    if all(
        isinstance(one, list) and len(one) == len(g["params"])
        for one, g in zip(named, groups, strict=True)
    ):
        return [[[str(name)] for name in one or ()] for one in named]
    return None


def order(stored: Groups, own: Groups) -> list[list[int]] | None:
    """Return, by group, the positions of the stored parameters in the order of an optimizer's own;
    None if their names differ. Two are the same if they have a name in common that no other has."""
    if list(map(len, stored)) != list(map(len, own)):
        return None
    for of in (str, without_wrappers):
        pairs = [_order(_keys(a, of), _keys(b, of)) for a, b in zip(stored, own, strict=True)]
        if None not in pairs:
            return [one for one in pairs if one is not None]
    return None


def without_wrappers(name: str) -> str:
    """Return the name of a parameter without what wrappers of modules add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _keys(group: list[list[str]], of: Any) -> list[set[str]]:
    return [set(map(of, names)) for names in group]


def _order(stored: list[set[str]], own: list[set[str]]) -> list[int] | None:
    places: dict[str, list[int]] = {}
    for position, names in enumerate(stored):
        for name in names:
            places.setdefault(name, []).append(position)
    found: list[int] = []
    for names in own:
        same = {places[name][0] for name in names if len(places.get(name, ())) == 1}
        if len(same) != 1:
            return None
        found += same
    return found if len(set(found)) == len(stored) else None
