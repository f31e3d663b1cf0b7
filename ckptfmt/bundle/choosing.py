# SPDX-License-Identifier: Apache-2.0
"""Choice: which tensors of a checkpoint are loaded, under what names and as what dtypes. The
functions that load have the same options, which `ckptfmt.load_into` describes; they are checked
and applied here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import check_switch, invalid, listed, wrong
from ckptfmt._base.casting import can_cast, cast_dtype, converted, dtype_text, of_kind
from ckptfmt._base.names import tensor_name
from ckptfmt.bundle.reader import missing
from ckptfmt.bundle.selecting import (
    Filter,
    Rename,
    Transform,
    by_text,
    check_distinct,
    filter_function,
    near,
    no_match,
    renamed,
    some,
)

Names = Iterable[str | bytes]
# What `np.dtype` or `ckptfmt` knows as a dtype, a mapping to these, or True where targets have
# dtypes.
Cast = Any


class Chosen(NamedTuple):
    """What a choice makes of stored names.

    Attributes:
        loaded: stored name to new name of the tensors to load, in the order of `names` if it is
            given.
        left_out: the same of the tensors that `names` and `filter` leave out, unless a tensor that
            is loaded has that new name.
        transforms: by stored name, of the tensors to load.
    """

    loaded: dict[str, str]
    left_out: dict[str, str]
    transforms: dict[str, Transform]


@dataclass(frozen=True)
class Choice:
    """Which tensors are loaded, under what names and as what dtypes.

    A tensor has its stored name, a value of a tree or object the name of `nodes.leaf_name`.

    Attributes:
        names: those to load; None loads all.
        filter: which of them to load; None loads all.
        rename: stored name to name of a target.
        cast: True casts numbers to the dtypes of their targets; otherwise a dtype for all tensors
            of its kind with at least one dimension, a mapping from stored names to dtypes, or None.
        allow_loss: whether casts may change values by more than rounding.
        strict: True refuses anything that does not match, False loads what matches; None refuses
            only a value that does not fit its target.
    """

    names: tuple[str, ...] | None = None
    filter: Filter | None = None
    rename: Rename | None = None
    cast: Cast | None = None
    allow_loss: bool = False
    strict: bool | None = True

    @classmethod
    def of(
        cls,
        names: Names | None,
        filter: Filter | None,  # noqa: A002 (as the option)
        rename: Rename | None,
        cast: Cast | None,
        allow_loss: bool,
        strict: bool | None = True,
        *,
        has_targets: bool = True,
        may_defer: bool = False,
    ) -> Choice:
        """Return the choice of a caller, checked before anything is read.

        Args:
            has_targets: whether there are dtypes that `cast=True` can mean.
            may_defer: whether `strict` may be None.

        Raises:
            InvalidError: an argument of the wrong type.
        """
        if not isinstance(strict, bool) and not (may_defer and strict is None):
            raise wrong("strict", "True, False or None" if may_defer else "True or False", strict)
        check_switch("allow_loss", allow_loss)
        if names is not None:
            names = tuple(
                dict.fromkeys(
                    tensor_name(name, "names") for name in listed("names", names, "names")
                )
            )
        filter_function(filter)
        if isinstance(rename, Mapping):
            rename = by_text("rename", rename)
        renamed([], rename)
        if isinstance(cast, np.bool_):
            cast = bool(cast)
        if cast is False:
            cast = None
        elif isinstance(cast, Mapping):
            cast = by_text("cast", cast)
            for dtype in cast.values():
                _check_dtype(dtype)
        elif cast is True and not has_targets:
            raise wrong("cast", "a dtype or a mapping from names to dtypes", cast)
        elif cast is not True:
            _check_dtype(cast)
        return cls(names, filter, rename, cast, allow_loss, strict)

    @property
    def is_default(self) -> bool:
        """Whether all tensors are read under their stored names and as their stored dtypes."""
        is_chosen = self.names is not None or self.filter is not None or self.rename is not None
        return not is_chosen and (self.cast is None or self.cast is True)

    def chosen(self, stored: Sequence[str], prefix: str | None = None) -> Chosen:
        """Return what is loaded of these stored names.

        Raises:
            TensorNotFoundError: one of `names` is not there, or nothing passes the filter.
            InvalidError: two tensors that are loaded get one name, or as `renamed`; `cast` names
                what is not there, unless `strict` is False.
        """
        if self.is_default:
            return Chosen(dict(zip(stored, stored, strict=True)), {}, {})
        present = frozenset(stored)
        given = stored if self.names is None else self.names
        for name in given:
            if name not in present:
                error = missing(name, prefix)
                error.hint(near(name, present))
                raise error
        if isinstance(self.cast, Mapping) and self.strict is not False:
            _check_used("cast", self.cast, present)
        if isinstance(self.rename, Mapping) and self.strict is not False:
            _check_used("rename", self.rename, present)
        passes = filter_function(self.filter, present)
        kept = [name for name in given if passes is None or passes(name)]
        if given and not kept:
            raise no_match(self.filter, len(given), prefix)
        new_names, transforms = renamed(stored, self.rename)
        new = dict(zip(stored, new_names, strict=True))
        loaded = {old: to for old in kept if (to := new[old]) is not None}
        check_distinct(list(loaded), list(loaded.values()))
        taken = frozenset(loaded.values())
        others = {
            old: name
            for old, name in new.items()
            if old not in loaded and name is not None and name not in taken
        }
        return Chosen(loaded, others, {o: one for o, one in transforms.items() if o in loaded})

    def casts(
        self,
        names: Sequence[str],
        stored: Sequence[np.dtype[Any] | None],
        shapes: Callable[[], Sequence[tuple[int, ...]]],
        *,
        is_part: bool = False,
    ) -> dict[int, np.dtype[Any]]:
        """Return the dtypes that tensors are cast to when they are read, by position, of those that
        are changed; none if `cast` is True.

        Args:
            names, stored, shapes: of the tensors that are loaded, or of some of them (`is_part`).

        Raises:
            InvalidError: one of the dtypes is not of numbers; a dtype means none of all tensors.
        """
        if self.cast is None or self.cast is True:
            return {}
        if isinstance(self.cast, Mapping):
            wanted = {i: self.cast.get(name) for i, name in enumerate(names)}
            chosen = {i: cast_dtype(one) for i, one in wanted.items() if one is not None}
        else:
            dtype = cast_dtype(self.cast)
            chosen = dict.fromkeys(
                of_kind(dtype, names, stored, shapes(), is_part=is_part)[0], dtype
            )
        for position, to in chosen.items():
            one = stored[position]
            if not can_cast(one, to):
                kind = "its dtype" if one is None else dtype_text(one)
                raise invalid(
                    "cast", f"cannot cast {kind} to {dtype_text(to)}", tensor=names[position]
                )
        return {i: to for i, to in chosen.items() if to != stored[i]}

    def converted(self, array: NDArray[Any], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
        """Return the values of a tensor with another dtype.

        Raises:
            InvalidError: as `ckptfmt._base.casting.cast`; what it allows causes a CkptfmtWarning.
        """
        return converted(array, dtype, tensor=name, allow_loss=self.allow_loss)


def _check_dtype(given: object) -> None:
    """Refuse what is not a dtype. TensorFlow takes a number for one; here it is a mistake."""
    if isinstance(given, (int, np.number)):
        raise wrong("cast", "a dtype or a mapping from names to dtypes", given)
    if given is not None:
        dtypes.code_of(given, "cast")


def _check_used(what: str, given: Mapping[str, Any], present: Collection[str]) -> None:
    """Refuse names in a mapping that are not there: they are probably misspelt."""
    if unused := set(given).difference(present):
        name, *others = sorted(unused)
        more = f", nor are {some(others)}" if others else ""
        raise invalid(what, f"{what} names a tensor that is not loaded{more}", tensor=name)
