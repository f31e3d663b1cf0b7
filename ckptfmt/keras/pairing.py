# SPDX-License-Identifier: Apache-2.0
"""Stored values and the places in a model that take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.casting import can_cast
from ckptfmt._base.renaming import Transform, transformed, transformed_kind
from ckptfmt.bundle.meanings import meant
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.keras.model import Value
from ckptfmt.recipe.changes import Casts, Changes
from ckptfmt.recipe.load import MatchReport, Mismatch, refuse


@dataclass
class Place:
    """What takes a stored value.

    Attributes:
        dtype, shape: of the array that `assign` takes.
        takes_integers: whether integers of all dtypes are converted to its own.
        variables: those that `assign` sets itself.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    assign: Callable[[NDArray[Any]], None]
    takes_integers: bool = False
    variables: tuple[Any, ...] = ()

    @classmethod
    def of(cls, *values: Value) -> Place:
        """Return a place that assigns to all these variables."""

        def assign(array: NDArray[Any]) -> None:
            for value in values:
                value.assign(array)

        variables = tuple(value.variable for value in values)
        return cls(values[0].dtype, values[0].shape, assign, values[0].is_counter, variables)


@dataclass
class Pairing:
    """The stored values that belong to the model, and the places for them.

    Attributes:
        stored: handles or datasets by stored name.
        new_names: stored name to name of a place; one that is no place is unexpected.
        transforms: by stored name, as `rename` gave them.
        places: by name.
        finish: called when all values are assigned.
        left: as in a MatchReport.
        together: places of which all are loaded or none, apart from what the choice leaves out.
        begin: called before the first of these is assigned.
    """

    stored: Mapping[str, Any]
    new_names: dict[str, str]
    transforms: Mapping[str, Transform]
    places: dict[str, Place]
    finish: Callable[[], object] = lambda: None
    left: tuple[str, ...] = ()
    together: frozenset[str] = frozenset()
    begin: Callable[[], object] = lambda: None

    def _values(self, old: str) -> Any:
        found = self.stored[old]
        return meant(found) if isinstance(found, TensorHandle) else found

    def load(self, path: str, choice: Changes) -> MatchReport:
        """Compare everything, then load the values that fit, one at a time.

        Raises:
            TensorNotFoundError, InvalidError: as `load_weights`.
        """
        chosen = replace(choice, rename=None, cast=None, done=Casts())  # the pairing noted keys
        left_out = chosen.chosen(list(self.stored), path).left_out
        read = [o for o, new in self.new_names.items() if new in self.places and o not in left_out]
        handles = [self._values(old) for old in read]
        wanted = choice.casts(
            read, [one.dtype for one in handles], lambda: [h.shape for h in handles]
        )
        casts = {read[i]: dtype for i, dtype in wanted.items()}
        matched, unexpected, filtered = list[str](), list[str](), list[str]()
        shapes, kinds = list[Mismatch](), list[Mismatch]()
        for old, new in self.new_names.items():
            place, handle = self.places.get(new), self._values(old)
            if old in left_out:
                filtered += [new] * (place is not None)
                continue
            if place is None:
                unexpected.append(old)
                continue
            dtype, shape = casts.get(old, handle.dtype), handle.shape
            if old in self.transforms and dtype is not None:
                dtype, shape = transformed_kind(old, dtype, shape, self.transforms[old])
            can = choice.cast is True and can_cast(dtype, place.dtype)
            if place.takes_integers and dtype is not None:
                can = can or dtype.kind in "iu"
            if shape != place.shape:
                shapes.append(Mismatch(new, old, shape, place.shape))
            elif dtype != place.dtype and not can:
                kinds.append(Mismatch(new, old, dtype, place.dtype))
            else:
                matched.append(old)
        lacking = self.places.keys() - self.new_names.values()
        wrong = lacking.union(one.name for one in (*shapes, *kinds))
        if not choice.strict and not wrong.isdisjoint(self.together):
            lacking |= self.together - wrong - {*filtered}
            matched = [old for old in matched if self.new_names[old] not in self.together]
        report = MatchReport(
            tuple(self.new_names[old] for old in matched),
            tuple(name for name in self.places if name in lacking),
            tuple(unexpected),
            tuple(shapes),
            tuple(kinds),
            tuple(filtered),
            left=self.left,
        )
        if choice.strict and not report:
            refuse(path, report)

        def value(old: str) -> NDArray[Any]:
            place, array = self.places[self.new_names[old]], self._values(old).read()
            if old in casts:
                array = choice.converted(array, casts[old], old)
            if old in self.transforms:
                array = transformed(old, array, self.transforms[old], place.shape)
            if place.takes_integers and array.dtype.kind in "iu":  # the bits of a seed
                array = array.astype(place.dtype, copy=False)
            return choice.converted(array, place.dtype, old)

        # A cast may be refused, so it comes before anything is assigned.
        changed = {
            old: value(old)
            for old in matched
            if self._values(old).dtype != self.places[self.new_names[old]].dtype or old in casts
        }
        if any(self.new_names[old] in self.together for old in matched):
            self.begin()
        for old in matched:
            place = self.places[self.new_names[old]]
            place.assign(changed.pop(old) if old in changed else value(old))
        self.finish()
        return choice.reported(report)
