# SPDX-License-Identifier: Apache-2.0
"""The structure of a checkpoint with the chosen tensors only, under their new names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ckptfmt._base.arguments import invalid
from ckptfmt._base.patterns import filter_function
from ckptfmt._base.renaming import CastFirst, Transform
from ckptfmt.bundle.reader import Reader
from ckptfmt.errors import InvalidError
from ckptfmt.naming.metadata import moved_versions
from ckptfmt.recipe.changes import Changes
from ckptfmt.torch.parameters import SEQUENCES, Groups
from ckptfmt.torch.structure import (
    Path,
    Stored,
    alike,
    build,
    holds,
    is_stateful,
    leaves,
    path_name,
    versions_of,
)

_OMITTED: Any = object()


def chosen_state(structure: Any, choice: Changes, reader: Reader) -> Any:
    """Return a structure with the chosen tensors, and the values whose paths pass the filter: dicts
    omit the others, lists and tuples have None in their place. What becomes empty is omitted.

    Raises:
        TensorNotFoundError, InvalidError: as `Changes.chosen`; `rename` moves a tensor out of its
            dict.
    """
    stored = {path_name(path): leaf for path, leaf in leaves(structure, extra=True)}
    loaded, _, transforms = choice.chosen(list(stored), reader.prefix)
    converted = _Conversion(choice, reader, {name: stored[name] for name in loaded})
    keeps = _keeps(choice, stored)

    def chosen(value: Any, path: Path) -> Any:
        name = path_name(path)
        if stored.get(name, _OMITTED) is value:
            return converted(value, name, transforms.get(name)) if name in loaded else _OMITTED
        if isinstance(value, dict) and value:
            made, keys = {}, {}
            for key, one in value.items():
                found = chosen(one, (*path, str(key)))
                if found is not _OMITTED:
                    keys[str(key)] = new = new_key(path, str(key))
                    if new in made:
                        message = f"rename gives the name '{path_name((*path, new))}' twice"
                        raise invalid("rename", message)
                    made[key if new == str(key) else new] = found
            if not made and path:
                return _OMITTED
            made = alike(value, made)
            if choice.rename is not None and hasattr(value, "_metadata"):
                made._metadata = moved_versions(value._metadata, keys)
            return made
        if type(value) in SEQUENCES and value:
            several = [chosen(one, (*path, str(i))) for i, one in enumerate(value)]
            for i in range(len(value)):
                new_key(path, str(i), fixed=True)
            if all(one is _OMITTED for one in several):
                return _OMITTED
            return alike(value, [None if one is _OMITTED else one for one in several])
        return value if keeps(name) else _OMITTED

    def new_key(path: Path, key: str, *, fixed: bool = False) -> str:
        name, start = path_name((*path, key)), path_name((*path, ""))
        new = loaded.get(name, name)
        keys = "".join(f"[{one!r}]" for one in path)
        if not new.startswith(start) or (fixed and new != name):
            raise invalid(
                "rename",
                f"rename= gives the name '{new}', which has no place in what load returns: leave "
                f"rename= out, and call ckptfmt.torch.load(path){keys}",
                tensor=name,
            )
        return new.removeprefix(start)

    return chosen(structure, ())


def _keeps(choice: Changes, present: Collection[str]) -> Callable[[str], object]:
    """Return whether a choice has the value at a path that is not a tensor."""
    if choice.names is not None:
        return lambda _: False
    return filter_function(choice.filter, present) or (lambda _: True)


class Placed:
    """The chosen tensors of a structure at the places of a target, by name: names that are joined
    by dots match nested keys. Other objects get what is stored at their own path, if all of its
    tensors are chosen.

    Attributes:
        structure: what the target is matched with.
        unexpected: stored names of what the target has no place for.
        filtered: names of the target's tensors and objects that are left out.

    Raises:
        TensorNotFoundError, InvalidError: as `Changes.chosen`; an object would get a part of its
            state, or renamed tensors.
    """

    def __init__(self, structure: Any, choice: Changes, reader: Reader, target: Any) -> None:
        self._choice, self._prefix = choice, reader.prefix
        self._stored = {path_name(path): leaf for path, leaf in leaves(structure, extra=True)}
        self._loaded, self._left, transforms = choice.chosen(list(self._stored), reader.prefix)
        self._old = {new: old for old, new in self._loaded.items()}
        self._left_out = set(self._left.values())
        self._keeps = _keeps(choice, self._stored)
        self._read: dict[str, Any] = {}
        self._modules: list[tuple[Any, str]] = []
        self.unexpected: list[str] = []
        self.filtered: list[str] = []
        self._new_names = {**self._left, **self._loaded}
        placed = self._place(target, structure, ())
        self.unexpected[:0] = [old for old in self._loaded if old not in self._read]
        converted = _Conversion(choice, reader, self._read)
        names = {id(leaf): name for name, leaf in self._read.items()}
        versions = versions_of(structure)
        versions = moved_versions(versions, {old: self._loaded[old] for old in self._read})
        for made, name in self._modules:
            below = {
                one[len(name) :].removeprefix("."): version
                for one, version in versions.items()
                if one == name or one.startswith(path_name((name, "")) if name else "")
            }
            if below:
                made._metadata = below

        def of(leaf: Stored) -> Any:
            name = names.get(id(leaf))  # None in an extra state
            return leaf if name is None else converted(leaf, name, transforms.get(name))

        self.structure = build({} if placed is _OMITTED else placed, of)

    def renamed(self, groups: Mapping[str, Groups]) -> dict[str, Groups]:
        """Return the names of the parameters of optimizers, as the tensors are renamed."""
        new = self._new_names
        return {
            path: [[[new.get(name, name) for name in names] for names in group] for group in one]
            for path, one in groups.items()
        }

    def _place(self, target: Any, node: Any, path: Path) -> Any:
        """Return what is stored for a target.

        Args:
            node: what is stored at its path; `_OMITTED` for nothing.
        """
        name = path_name(path)
        if path and name in self._old:
            self._read[self._old[name]] = leaf = self._stored[self._old[name]]
            return leaf
        if path and name in self._left_out:
            self.filtered.append(name)
            return _OMITTED
        if isinstance(target, torch.Tensor) and self._stored.get(name, _OMITTED) is node:
            return _OMITTED  # it has another name
        if isinstance(target, torch.nn.Module):
            own = target.state_dict(keep_vars=True)
            # A module makes its own of values that are not tensors.
            made = self._items(
                {key: one if isinstance(one, torch.Tensor) else None for key, one in own.items()},
                node,
                path,
            )
            self._modules.append((made, name))
            return made
        if is_stateful(target) or (path and not holds(target)):
            return self._object(target, node, path)
        if isinstance(target, dict):
            return self._items(target, node, path)
        if isinstance(target, SEQUENCES) and self._is_elsewhere(node, path):
            has_all = isinstance(node, SEQUENCES) and len(node) == len(target)
            nodes = node if has_all else [_OMITTED] * len(target)
            triples = zip(target, nodes, map(str, range(len(target))), strict=True)
            found = [self._place(one, other, (*path, key)) for one, other, key in triples]
            found = [one for one in found if one is not _OMITTED]
            return alike(target, found) if found else _OMITTED
        return self._object(target, node, path)

    def _is_elsewhere(self, node: Any, path: Path) -> bool:
        """Return whether the tensors of a list have other names, or their names are not nested."""
        names = [path_name(one) for one, _ in leaves(node, path, extra=True)]
        return node is _OMITTED or any(self._loaded.get(name, name) != name for name in names)

    def _items(self, own: dict[Any, Any], node: Any, path: Path) -> Any:
        if not isinstance(node, dict) and node is not _OMITTED:
            return self._object(own, node, path)
        nodes = {} if node is _OMITTED else {str(key): one for key, one in node.items()}
        keys = set(map(str, own))
        for key, one in nodes.items():
            if key not in keys:
                tensors, values = self._below(one, (*path, key))
                if not tensors and any(values.values()):
                    self.unexpected.append(path_name((*path, key)))
        made: dict[Any, Any] = OrderedDict()
        for key, value in own.items():
            below = str(key)
            found = self._place(value, nodes.get(below, _OMITTED), (*path, below))
            if found is not _OMITTED:
                made[key] = found
        return made

    def _below(self, node: Any, path: Path) -> tuple[dict[str, bool], dict[str, bool]]:
        """Return which tensors at and below a path are chosen, and which other values."""
        tensors, values = {}, {}
        for one, leaf in leaves(node, path, extra=True, values=True):
            name = path_name(one)
            if self._stored.get(name, _OMITTED) is leaf:
                tensors[name] = name in self._loaded
            else:
                values[name] = bool(self._keeps(name))
        return tensors, values

    def _object(self, target: Any, node: Any, path: Path) -> Any:
        """Return the whole node of an object or value."""
        if node is _OMITTED:
            start = path_name((*path, ""))
            for new, old in self._old.items():
                if new != old and new.startswith(start) and is_stateful(target):
                    raise self._refusal("rename", old, (), target)
            return _OMITTED
        tensors, values = self._below(node, path)
        chosen = tensors or values
        for name in tensors:
            if self._loaded.get(name, name) != name:
                raise self._refusal("rename", name, path, target)
        if all(chosen.values()):
            self._read |= {name: self._stored[name] for name in tensors}
            return node
        options = ("names", "filter", "rename")
        option = next(one for one in options if getattr(self._choice, one) is not None)
        for name, is_chosen in chosen.items():
            if is_chosen:
                raise self._refusal(option, name, path, target)
        if option != "rename":
            self.filtered.append(path_name(path))
        return _OMITTED

    def _refusal(self, option: str, name: str, path: Path, target: Any) -> InvalidError:
        """Return the error for an option that gives an object a part of its state, or other
        names."""
        own = target.state_dict() if is_stateful(target) else None
        first = name.partition(".")[0]
        if not path and not (isinstance(own, dict) and first in own):
            path = (first,)  # the key of a training state
        what = path[-1] if path and path[-1].isidentifier() else type(target).__name__.lower()
        for key in reversed(path):
            what = f"{{{key!r}: {what}}}"
        return invalid(
            option,
            f"{option}= changes what is stored for {type(target).__name__}, which is loaded as a "
            "whole under its own names: load it in a call of its own, "
            f"ckptfmt.torch.load_into({what}, {self._prefix!r}, strict=False)",
            tensor=name,
        )


class _Conversion:
    """Casts tensors as a choice says, and then transforms them. Equal conversions are one function,
    so that tensors that were tied stay so."""

    def __init__(self, choice: Changes, reader: Reader, leaves: Mapping[str, Any]) -> None:
        self._choice = choice
        self._made: dict[tuple[np.dtype[Any], int], CastFirst] = {}
        self._casts: dict[str, np.dtype[Any]] = {}
        if choice.cast is None or choice.cast is True:
            return
        stored = {name: one for name, one in leaves.items() if isinstance(one, Stored)}
        for name in choice.done.wanted.keys() & (leaves.keys() - stored.keys()):
            raise invalid("cast", "the extra state of a module is not cast", tensor=name)
        handles = [reader[one.name] for one in stored.values()]
        # A dtype that only torch has is stored as another, with a note: no other has its numbers.
        kinds = [
            None if one.note else handle.dtype
            for one, handle in zip(stored.values(), handles, strict=True)
        ]
        casts = choice.casts([*stored], kinds, lambda: [one.shape for one in handles])
        self._casts = {name: casts[i] for i, name in enumerate(stored) if i in casts}

    def __call__(self, leaf: Any, name: str, transform: Transform | None) -> Any:
        if transform is not None and getattr(leaf, "note", None):
            raise invalid("rename", "bits of another dtype are not transformed", tensor=name)
        if name in self._casts:
            key = self._casts[name], id(transform)
            first = CastFirst(key[0], self._choice.converted, transform)
            return replace(leaf, transform=self._made.setdefault(key, first))
        return leaf if transform is None else replace(leaf, transform=transform)
