# SPDX-License-Identifier: Apache-2.0
"""The structure of a checkpoint with the chosen tensors only, under their new names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ckptfmt._base.arguments import invalid
from ckptfmt._base.renaming import CastFirst, Transform
from ckptfmt.bundle.reader import Reader
from ckptfmt.naming.metadata import moved_versions
from ckptfmt.recipe.changes import Changes
from ckptfmt.torch.parameters import SEQUENCES
from ckptfmt.torch.structure import Stored, alike, leaves, path_name, versions_of

_OMITTED = object()


def chosen_state(structure: Any, choice: Changes, reader: Reader) -> Any:
    """Return a structure with the chosen tensors: dicts omit the others, lists and tuples have None
    in their place.

    Raises:
        TensorNotFoundError, InvalidError: as `Changes.chosen`; `rename`, and the structure is not
            a dict of tensors.
    """
    stored = {path_name(path): leaf for path, leaf in leaves(structure)}
    if choice.rename is not None and not all(isinstance(v, Stored) for v in structure.values()):
        raise invalid("rename", "rename= is for a dict of tensors, and the state is more than that")
    loaded, _, transforms = choice.chosen(list(stored), reader.prefix)
    converted = _Conversion(choice, reader, {name: stored[name] for name in loaded})

    def chosen(value: Any, path: tuple[str, ...]) -> Any:
        name = path_name(path)
        if isinstance(value, Stored):
            if name not in loaded:
                return _OMITTED
            return converted(value, name, transforms.get(name))
        if isinstance(value, dict):
            pairs = [(key, chosen(one, (*path, str(key)))) for key, one in value.items()]
            if choice.rename is not None:  # of a dict of tensors
                new = {key: loaded.get(str(key), "") for key in value}
                pairs = [(key if new[key] == str(key) else new[key], one) for key, one in pairs]
            made = alike(value, {key: one for key, one in pairs if one is not _OMITTED})
            if choice.rename is not None and hasattr(value, "_metadata"):
                made._metadata = moved_versions(value._metadata, loaded)
            return made
        if type(value) in SEQUENCES:
            several = [chosen(one, (*path, str(i))) for i, one in enumerate(value)]
            return alike(value, [None if one is _OMITTED else one for one in several])
        return value

    return chosen(structure, ())


def chosen_tensors(
    structure: Any, choice: Changes, reader: Reader, target: Any
) -> tuple[dict[Any, Any], tuple[str, ...], tuple[str, ...]]:
    """Return the chosen tensors by the keys of the target that they belong to; the stored names
    of those that it has not; and the names of the target's tensors that are left out.

    Args:
        target: a module or a dict of tensors.

    Raises:
        TensorNotFoundError, InvalidError: as `Changes.chosen`; the target has other values
            than tensors.
    """
    own = target if isinstance(target, dict) else {}
    if isinstance(target, torch.nn.Module):
        own = target.state_dict(keep_vars=True)
    elif own is not target or not all(isinstance(v, torch.Tensor) for v in own.values()):
        raise invalid(
            _first(choice),
            "names=, filter=, rename= and cast= with dtypes are for a module or a dict of tensors",
        )
    keys = {str(key): key for key in own}
    stored = {path_name(path): leaf for path, leaf in leaves(structure, extra=True)}
    loaded, left_out, transforms = choice.chosen(list(stored), reader.prefix)
    read = {old: stored[old] for old, new in loaded.items() if new in keys}
    converted = _Conversion(choice, reader, read)
    chosen = OrderedDict(
        (keys[loaded[old]], converted(leaf, old, transforms.get(old))) for old, leaf in read.items()
    )
    if versions := versions_of(structure):
        own_names = {old: loaded[old] for old in read}
        chosen._metadata = moved_versions(versions, own_names)  # type: ignore[attr-defined]
    unexpected = tuple(old for old, new in loaded.items() if new not in keys)
    return chosen, unexpected, tuple(new for new in left_out.values() if new in keys)


def _first(choice: Changes) -> str:
    """Return the first option that a choice has."""
    options = ("names", "filter", "rename", "cast")
    return next(name for name in options if getattr(choice, name) is not None)


class _Conversion:
    """Casts tensors as a choice says, and then transforms them. Equal conversions are one function,
    so that tensors that were tied stay so."""

    def __init__(self, choice: Changes, reader: Reader, leaves: Mapping[str, Any]) -> None:
        self._choice = choice
        self._made: dict[tuple[np.dtype[Any], int], CastFirst] = {}
        stored = {name: one for name, one in leaves.items() if isinstance(one, Stored)}
        handles = [reader[one.name] for one in stored.values()]
        # A dtype that only torch has is stored as another, with a note: no other has its numbers.
        kinds = [
            None if one.note else handle.dtype
            for one, handle in zip(stored.values(), handles, strict=True)
        ]
        casts = choice.casts([*stored], kinds, lambda: [one.shape for one in handles])
        self._casts = {name: casts[i] for i, name in enumerate(stored) if i in casts}

    def __call__(self, leaf: Any, name: str, transform: Transform | None) -> Any:
        if not isinstance(leaf, Stored):
            if name in self._choice.done.wanted:
                raise invalid("cast", "the extra state of a module is not cast", tensor=name)
            return leaf
        if name in self._casts:
            key = self._casts[name], id(transform)
            first = CastFirst(key[0], self._choice.converted, transform)
            return replace(leaf, transform=self._made.setdefault(key, first))
        return leaf if transform is None else replace(leaf, transform=transform)
