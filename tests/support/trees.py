# SPDX-License-Identifier: Apache-2.0
"""Trees of paths, and comparing trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ckptfmt.objects.nodes import TreeNode

from .arrays import bits


def assert_same_tree(found: Any, expected: Any) -> None:
    """The same types, names and values, and the same sharing of all that can be changed; without
    recursion."""
    met: dict[int, int] = {}
    waiting = [("root", found, expected)]
    while waiting:
        path, ours, theirs = waiting.pop()
        assert type(ours) is type(theirs), f"{path}: {ours!r} for {theirs!r}"
        if isinstance(theirs, (dict, list, np.ndarray)):
            if id(ours) in met:
                assert met[id(ours)] == id(theirs), f"{path}: one object for two"
                continue
            met[id(ours)] = id(theirs)
        if isinstance(theirs, np.ndarray):
            assert bits(ours) == bits(theirs), f"{path}: {ours!r} for {theirs!r}"
        elif isinstance(theirs, (dict, list, tuple)):
            waiting += inside(path, ours, theirs)
        else:
            assert repr(ours) == repr(theirs), path  # NaN and -0.0 as well
    assert len(set(met.values())) == len(met), "two objects for one"


def inside(path: str, ours: Any, theirs: Any) -> list[tuple[str, Any, Any]]:
    """The pairs of what two containers hold."""
    if isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), path
        return [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(ours, theirs, strict=True))]
    assert ours.keys() == theirs.keys(), path
    pairs = [(f"{path}[{name!r}]", ours[name], theirs[name]) for name in theirs]
    if isinstance(theirs, TreeNode):
        assert ours.registered_saver == theirs.registered_saver, path
        pairs.append((f"{path} attributes", ours.attributes, theirs.attributes))
        assert [slot.name for slot in ours.slots] == [slot.name for slot in theirs.slots], path
        for one, other in zip(ours.slots, theirs.slots, strict=True):
            pairs.append((f"{path} slot {one.name}", one.value, other.value))
            pairs.append((f"{path} variable of {one.name}", one.variable, other.variable))
    return pairs


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of the paths."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, leaf = name.split("/")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[leaf] = value
    return tree


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """The leaves by their paths."""
    if not isinstance(tree, dict):
        return {path: tree}
    found = {}
    for key, value in tree.items():
        found |= flat(value, f"{path}/{key}" if path else key)
    return found
