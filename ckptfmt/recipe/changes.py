# SPDX-License-Identifier: Apache-2.0
"""Changes: which tensors of a checkpoint are taken, under what names and as what dtypes. The
functions that load, edit and convert have the same options, which `ckptfmt.load_into` and
`ckptfmt.editing.edit` describe; they are checked here."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.arguments import check_switch, invalid, listed, wrong
from ckptfmt._base.casting import (
    Losses,
    cast,
    cast_dtype,
    cast_dtypes,
    check_castable,
    counts_of,
    of_kind,
)
from ckptfmt._base.hints import near, some
from ckptfmt._base.names import OBJECT_GRAPH_KEY, VALUE_SUFFIX, tensor_name
from ckptfmt._base.patterns import (
    Filter,
    Filters,
    Passing,
    by_filters,
    by_text,
    check_filters,
    filter_function,
    no_match,
)
from ckptfmt._base.renaming import Rename, Transform, check_distinct, renamed
from ckptfmt.bundle.reader import Reader, missing
from ckptfmt.errors import warn
from ckptfmt.naming.tensor_names import TensorNames

Names = Iterable[str | bytes]
# What `np.dtype` or `ckptfmt` knows as a dtype, a mapping of filters to these, or True where
# targets have dtypes.
Cast = Any
_Report = TypeVar("_Report")


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


@dataclass
class Casts:
    """What the casts of one call mean and do.

    Attributes:
        wanted: the dtypes that a mapping gives, by stored name.
        unused: keys of the mappings `cast` and `rename` that match no tensor.
        uncast: names of 0-d tensors that a dtype leaves; a dict, for their order.
        losses: what casts lost, by stored name and part of the tensor.
    """

    wanted: dict[str, np.dtype[Any]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    uncast: dict[str, None] = field(default_factory=dict)
    losses: dict[tuple[str, Hashable], Losses] = field(default_factory=dict)


@dataclass(frozen=True)
class Changes:
    """Which tensors are taken, under what names and as what dtypes.

    A tensor has its stored name, a value of a tree or object the name of `graph.leaf_name`.

    Attributes:
        names: those to load; None loads all.
        filter: which of them to load; None loads all.
        keep, drop: filters of those to write, and of those not to write; None for no such filter.
        rename: stored name to name of a target.
        cast: True casts numbers to the dtypes of their targets; otherwise a dtype for all tensors
            of its kind with at least one dimension, a mapping of filters to dtypes, or None.
        allow_loss: whether casts may change values by more than rounding.
        strict: True refuses anything that does not match, False loads what matches; None refuses
            only a value that does not fit its target.
        done: what the casts did.
        asked: the names by which tensors are loaded, by stored name, where these differ.
        passing: returns the function of a filter by all names that tensors have; None for one by
            the stored names.
    """

    names: tuple[str, ...] | None = None
    filter: Filter | None = None
    keep: Filters | None = None
    drop: Filters | None = None
    rename: Rename | None = None
    cast: Cast | None = None
    allow_loss: bool = False
    strict: bool | None = True
    done: Casts = field(default_factory=Casts, compare=False)
    asked: Mapping[str, str] = field(default_factory=dict)
    passing: Passing | None = None

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
        keep: Filters | None = None,
        drop: Filters | None = None,
        has_targets: bool = True,
        may_defer: bool = False,
    ) -> Changes:
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
        check_filters("keep", keep)
        check_filters("drop", drop)
        if isinstance(rename, Mapping):
            rename = by_text("rename", rename)
        renamed([], rename)
        if isinstance(cast, np.bool_):
            cast = bool(cast)
        if cast is False:
            cast = None
        elif isinstance(cast, Mapping):
            cast = by_text("cast", cast, filters=True)
            check_filters("cast", [*cast] or None)
            for dtype in cast.values():
                if dtype is not None:
                    _check_dtype(dtype)
        elif cast is True and not has_targets:
            raise wrong("cast", _CAST, cast)
        elif cast is not None and cast is not True:
            _check_dtype(cast)
        return cls(names, filter, keep, drop, rename, cast, allow_loss, strict)

    def by_names_of(self, reader: Reader, present: Container[str]) -> Changes:
        """Return the changes with the stored names of tensors that have other names.

        Args:
            present: stored names, with all of `names` that are some.

        Raises:
            TensorNotFoundError, InvalidError: as `TensorNames.find`; two names of one tensor.
        """
        names, given = TensorNames(reader), self.names or ()
        asked = {name if name in present else names.find(name): name for name in given}
        if len(asked) < len(given):
            raise invalid("names", "names has one tensor by two of its names")
        changed = {stored: name for stored, name in asked.items() if stored != name}
        taken = None if self.names is None else tuple(asked)
        return replace(self, names=taken, asked=changed, passing=names.passing_of_load)

    @property
    def is_default(self) -> bool:
        """Whether all tensors are read under their stored names and as their stored dtypes."""
        is_chosen = self.names is not None or self.filter is not None or self.rename is not None
        return not is_chosen and (self.cast is None or self.cast is True)

    def chosen(self, stored: Sequence[str], prefix: str | None = None) -> Chosen:
        """Return what is loaded of these stored names.

        Raises:
            TensorNotFoundError: one of `names` is not there, or nothing passes the filter; a key of
                `cast` or `rename` matches nothing, unless `strict` is False.
            InvalidError: two tensors that are loaded get one name, or as `renamed`, `by_filters`.
        """
        if self.is_default:
            return Chosen(dict(zip(stored, stored, strict=True)), {}, {})
        present = frozenset(stored)
        given = stored if self.names is None else self.names
        for name in given:
            if name not in present:
                error = missing(name, prefix)
                is_path = name.removesuffix(VALUE_SUFFIX) in present  # a leaf of a tree or object
                error.hint(f": leave out {VALUE_SUFFIX}" if is_path else near(name, present))
                raise error
        unused: list[tuple[str, Any]] = []
        if isinstance(self.cast, Mapping):
            tensors = [name for name in stored if name != OBJECT_GRAPH_KEY]
            unused += [("cast", key) for key in self.note_wanted(tensors, self.passing)]
        if isinstance(self.rename, Mapping):
            unused += [("rename", name) for name in self.rename if name not in present]
        if unused and self.strict is not False:
            raise no_match(*unused[0], stored, prefix)
        self.done.unused = tuple(key if isinstance(key, str) else repr(key) for _, key in unused)
        if self.passing is None or self.filter is None:
            passes = filter_function(self.filter, present)
        else:
            passes = self.passing(self.filter)
        kept = [name for name in given if passes is None or passes(name)]
        if given and not kept:
            raise no_match("filter", self.filter, given, prefix)
        new_names, transforms = renamed(stored, self.rename)
        if self.rename is None and self.asked:
            new_names = [self.asked.get(name, name) for name in stored]
        new = dict(zip(stored, new_names, strict=True))
        loaded = {old: to for old in kept if (to := new[old]) is not None}
        check_distinct(list(loaded), list(loaded.values()))
        taken = frozenset(loaded.values())
        left_out = {
            old: name
            for old, name in new.items()
            if old not in loaded and name is not None and name not in taken
        }
        return Chosen(loaded, left_out, {o: one for o, one in transforms.items() if o in loaded})

    def note_wanted(self, stored: Sequence[str], passing: Passing | None = None) -> list[Any]:
        """Note the dtypes that a mapping `cast` gives; return its keys that match no tensor.

        Raises:
            InvalidError: as `by_filters`.
        """
        rules = cast_dtypes(self.cast or {})
        self.done.wanted, unused = by_filters("cast", rules, stored, passing)
        return unused

    def casts(
        self,
        names: Sequence[str],
        stored: Sequence[np.dtype[Any] | None],
        shapes: Callable[[], Sequence[tuple[int, ...]]],
        *,
        is_part: bool = False,
        may_mean_none: bool = False,
    ) -> dict[int, np.dtype[Any]]:
        """Return the dtypes that tensors are cast to when they are read, by position, of those that
        are changed; none if `cast` is True.

        Args:
            names, stored, shapes: of the tensors that are loaded, after `chosen`.
            is_part: whether they are only some of those that are loaded now; another call has all.
            may_mean_none: whether more tensors may be loaded later.

        Raises:
            InvalidError: one of the dtypes is not of numbers; a dtype means none of all tensors.
        """
        if self.cast is None or self.cast is True:
            return {}
        if isinstance(self.cast, Mapping):
            wanted = self.done.wanted
            chosen = {i: wanted[name] for i, name in enumerate(names) if name in wanted}
        else:
            dtype, may_mean_none = cast_dtype(self.cast), is_part or may_mean_none
            found, uncast = of_kind(dtype, names, stored, shapes(), is_part=may_mean_none)
            chosen = dict.fromkeys(found, dtype)
            if not is_part:
                self.done.uncast |= dict.fromkeys(uncast)
        for position, to in chosen.items():
            one = stored[position]
            check_castable(names[position], one, to)
        return {i: to for i, to in chosen.items() if to != stored[i]}

    def converted(
        self,
        array: NDArray[Any],
        dtype: np.dtype[Any],
        name: str,
        part: Hashable = None,
        start: tuple[int, ...] | None = None,
    ) -> NDArray[Any]:
        """Return the values of a tensor, or of a part of it that begins at `start`, with another
        dtype, and note what that loses.

        Raises:
            InvalidError: as `ckptfmt._base.casting.cast`.
        """
        result, lost = cast(array, dtype, tensor=name, allow_loss=self.allow_loss, start=start)
        if lost is not None:  # a tensor may have several targets
            before = self.done.losses.get((name, part), lost)
            self.done.losses[name, part] = max(before, lost)
        return result

    def results(self) -> dict[str, Any]:
        """Return what a MatchReport has of the casts."""
        found: dict[str, Losses] = {}
        for (name, _), lost in self.done.losses.items():
            found[name] = found.get(name, Losses()) + lost
        losses, zeros = counts_of(found)
        done = {"uncast": tuple(self.done.uncast), "unused": self.done.unused}
        return {"losses": losses, "zeros": zeros, **done}

    def reported(self, report: _Report) -> _Report:
        """Return a MatchReport with what the casts did."""
        return replace(report, **self.results())  # type: ignore[type-var]

    def warn(self) -> None:
        """Warn of what casts lost and keys that matched nothing, for a call whose result does not
        say it."""
        if self.done.unused:
            warn(f"keys of cast and rename that match no tensor: {some(self.done.unused)}")
        if losses := self.results()["losses"]:
            counts = [f"{count} of {name!r}" for name, count in losses.items()]
            warn(f"casts changed elements by more than rounding: {some(counts, quote='')}")


_CAST = "a dtype or a mapping from names or patterns to dtypes"


def _check_dtype(given: object) -> None:
    """Refuse what is not a dtype. TensorFlow takes a number for one; here it is a mistake."""
    if isinstance(given, (int, np.number)):
        raise wrong("cast", _CAST, given)
    cast_dtype(given)
