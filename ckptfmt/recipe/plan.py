# SPDX-License-Identifier: Apache-2.0
"""Plan: what changes make of the tensors of a file, by name. An outlet reads and writes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ckptfmt._base.arguments import invalid
from ckptfmt._base.names import OBJECT_GRAPH_KEY
from ckptfmt._base.patterns import Passing, matched, no_match
from ckptfmt._base.renaming import (
    CastFirst,
    Transform,
    check_distinct,
    renamed,
    transformed_kind,
)
from ckptfmt.errors import InvalidError, TensorNotFoundError
from ckptfmt.naming.metadata import NamedInMetadata
from ckptfmt.recipe.changes import Changes


class Tensors(NamedTuple):
    """The tensors of a file, in columns.

    Attributes:
        names: their stored names.
        kinds: returns the dtypes and the shapes of those at some positions; a dtype that NumPy
            lacks is None.
        path: of the file, for errors.
        described: what its metadata say of them.
        passing: returns the function of a filter by all names that tensors have; None for one by
            the stored names.
    """

    names: Sequence[str]
    kinds: Callable[[Sequence[int]], tuple[Sequence[Any], Sequence[tuple[int, ...]]]]
    path: str
    described: NamedInMetadata
    passing: Passing | None = None


@dataclass(frozen=True)
class Plan:
    """What changes make of tensors.

    Attributes:
        stored: the stored names of all of them.
        names: their new names, None for those that are dropped.
        casts: the dtypes before and after, by stored name.
        transforms: by stored name; each casts first, if it is of a tensor that is cast.
    """

    stored: Sequence[str]
    names: list[str | None]
    casts: Mapping[str, tuple[np.dtype[Any], np.dtype[Any]]]
    transforms: Mapping[str, Transform | CastFirst]

    def new_names(self) -> dict[str, str | None]:
        """Return the new names by the stored ones."""
        return dict(zip(self.stored, self.names, strict=True))

    def only_cast(self) -> dict[str, np.dtype[Any]]:
        """Return the dtypes of the tensors that are cast and not transformed."""
        return {name: to for name, (_, to) in self.casts.items() if name not in self.transforms}


def plan(changes: Changes, tensors: Tensors, dropped: Set[str] = frozenset()) -> Plan:
    """Return what changes make of tensors.

    The object graph is only dropped by its own name, and is neither renamed nor cast.

    Args:
        dropped: stored names of more tensors to drop.

    Raises:
        TensorNotFoundError: a filter, or a name of a mapping `rename`, matches nothing; `rename`
            changes nothing.
        InvalidError: nothing is left; two tensors with one name; a malformed `rename`; a cast that
            is not possible.
    """
    stored = tensors.names
    names, transforms = new_names(changes, stored, tensors.passing, tensors.path, dropped)
    rows = [row for row, name in enumerate(names) if name is not None]
    rows = [row for row in rows if stored[row] != OBJECT_GRAPH_KEY]
    casts = _casts(changes, tensors, rows)
    made = dict[str, Transform | CastFirst](transforms)
    for name in transforms.keys() & casts.keys():
        made[name] = CastFirst(casts[name][1], changes.converted, transforms[name])
    rows = [row for row in rows if stored[row] in made] if made else []
    kinds = tensors.kinds(rows) if rows else ((), ())
    for row, before, shape in zip(rows, *kinds, strict=True):
        name = stored[row]
        if before is None:
            raise invalid("rename", "a dtype that NumPy lacks has no transforms", tensor=name)
        dtype, _ = transformed_kind(name, before, shape, made[name])
        tensors.described.check_change("rename", name, before, dtype)
    return Plan(stored, names, casts, made)


def new_names(
    changes: Changes,
    stored: Sequence[str],
    passing: Passing | None,
    path: str,
    dropped: Set[str] = frozenset(),
) -> tuple[list[str | None], Mapping[str, Transform]]:
    """Return the new names of tensors, None of those that are dropped, and transforms by stored
    name.

    Raises:
        TensorNotFoundError, InvalidError: as `plan`, but for casts and transforms.
    """
    gone = _left_out(changes, stored, passing, path) | dropped
    rest = [name for name in stored if name not in gone and name != OBJECT_GRAPH_KEY]
    rename, present = changes.rename, frozenset(stored)
    for name in rename if isinstance(rename, Mapping) else ():
        if name not in present:
            raise no_match("rename", name, stored, path)
        if name == OBJECT_GRAPH_KEY:
            raise invalid("rename", "the object graph cannot be renamed", tensor=name)
    names, transforms = renamed(rest, rename)
    if rename is not None and rest and not transforms and names == rest:
        raise TensorNotFoundError(
            f"rename changes none of the {len(rest)} names", path=path, argument="rename"
        )
    if len(rest) < len(stored):
        found = dict(zip(rest, names, strict=True))
        if OBJECT_GRAPH_KEY not in gone:
            found[OBJECT_GRAPH_KEY] = OBJECT_GRAPH_KEY
        names = [found.get(name) for name in stored]
    rows = [row for row, name in enumerate(names) if name is not None]
    check_distinct([stored[row] for row in rows], [one for one in names if one is not None])
    if all(stored[row] == OBJECT_GRAPH_KEY for row in rows) and (
        (changes.keep or changes.drop or rename) is not None
    ):
        raise _nothing_left(changes, path)
    return names, transforms


def _left_out(
    changes: Changes, stored: Sequence[str], passing: Passing | None, path: str
) -> set[str]:
    """Return the stored names that `drop` matches, or `keep` does not.

    Raises:
        TensorNotFoundError: a filter matches nothing.
    """
    drop, keep = changes.drop, changes.keep
    names = [name for name in stored if name != OBJECT_GRAPH_KEY]
    is_named = drop == OBJECT_GRAPH_KEY or (
        isinstance(drop, (list, tuple)) and OBJECT_GRAPH_KEY in drop
    )
    found = matched("drop", drop, stored if is_named else names, passing, path)
    if keep is not None:
        found |= {*names} - matched("keep", keep, names, passing, path)
    return found


def _nothing_left(changes: Changes, path: str) -> InvalidError:
    given = {"drop": changes.drop, "keep": changes.keep, "rename": changes.rename}
    found = [name for name, one in given.items() if one is not None]
    how = " and ".join(f"{name}=" for name in found)
    return invalid(
        found[0], f"no tensor is left: change {how} so that at least one stays", path=path
    )


def _casts(
    changes: Changes, tensors: Tensors, rows: Sequence[int]
) -> dict[str, tuple[np.dtype[Any], np.dtype[Any]]]:
    """Return the dtypes before and after of the tensors at some positions that are cast."""
    if changes.cast is None:
        return {}
    names = [tensors.names[row] for row in rows]
    described = tensors.described
    if isinstance(changes.cast, Mapping):
        if unused := changes.note_wanted(names, tensors.passing):
            raise no_match("cast", unused[0], names, tensors.path)
        chosen = [name in changes.done.wanted for name in names]
    else:
        chosen = [not described.stays_as_it_is(name) for name in names]
    rows = list(itertools.compress(rows, chosen))
    names = list(itertools.compress(names, chosen))
    stored, shapes = tensors.kinds(rows)
    casts = {}
    for i, to in changes.casts(names, stored, lambda: shapes).items():
        described.check_change("cast", names[i], stored[i], to)
        casts[names[i]] = stored[i], to
    return casts
