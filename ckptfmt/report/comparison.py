# SPDX-License-Identifier: Apache-2.0
"""What a report shows of two checkpoints, as JSON values.

Values are compared whole, piece by piece. Of a tensor at most SAMPLE_MAX elements are kept, and
only if it gets a histogram, or changed so much that it may have been exchanged with another one.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.names import printable
from ckptfmt._base.values import few_as_text
from ckptfmt.bundle import state_tree
from ckptfmt.bundle.comparing import (
    FEW,
    Difference,
    changed_metadata,
    checksums_equal,
    difference,
    is_float,
    pairs,
    ratio,
)
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.bundle.meanings import alike, meant
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import CkptfmtError, masked
from ckptfmt.naming.graphs import graphs_equal
from ckptfmt.naming.states import state_of, value_text
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.report.about import LINES_MAX, cut
from ckptfmt.report.collect import NAMES_MAX, ROWS_MAX
from ckptfmt.report.layers import Layers, short
from ckptfmt.report.measuring import Budget, OutOfBudget, Progress
from ckptfmt.report.statistics import histogram, json_number, numbers_of

CHANGES = {"only in A": "removed", "only in B": "added", "values": "changed"}
# What a training step does not do comes first.
ORDER = ("unreadable", "removed", "added", "retyped", "changed", "not compared")
GRAPHS_DIFFER = "The object graphs have other objects, keys or slot variables."
# Elements of a sample, and how many tensors have a histogram.
SAMPLE_MAX, HISTOGRAMS_MAX = 4096, 500
# Longer strings in tensors are cut.
STRING_MAX = 60
# Tensors of one shape that may have been exchanged, and elements of the samples of all of them.
CANDIDATES_MAX, CANDIDATE_ELEMENTS = 256, 4 << 20
# Tensors that were exchanged changed by more than this part of their norm, and the cosine of their
# samples says that they are not like before and like the other one. Of fewer numbers than this that
# are not 0, it may be chance.
EXCHANGED, UNLIKE, LIKE, NUMBERS_MIN = 0.5, 0.9, 0.99, 8


def comparison_data(
    a: Reader,
    layers_b: Layers,
    budget: Budget,
    progress: Progress | None = None,
    of_b: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what became of the tensors from A to B: how many are the "same", and a row for each of
    the others: "changed", "added", "removed", "retyped" (another dtype or shape), "unreadable" or,
    when the budget is used up, "not compared". Values are compared whole, in pieces; tensors that
    are stored with the same checksum are the same, and "unread". Object graphs are compared as
    graphs; where both have one, they are not counted.

    Args:
        a: one checkpoint.
        layers_b: of the other.
        budget: how much of their values may be read.
        progress: called with the tensors done, and of all.
        of_b: what `checkpoint_data` returned of B.
    """
    b = layers_b.people.reader
    every, by_checksum = len({*a, *b}), a.header.big_endian == b.header.big_endian
    layers, rows, exchanges = _Layers(a, layers_b, of_b or {}), _Rows(), _Exchanges()
    counts: Counter[str] = Counter()
    graph, unread = None, 0
    for done, (one, other) in enumerate(pairs(a, b), 1):
        if progress is not None:
            progress(done, every)
        there = other if other is not None else one
        assert there is not None
        sample, found, more = _Sample(there.size), None, dict[str, Any]()
        try:
            one, other = one and meant(one), other and meant(other)  # noqa: PLW2901
            there = other or one or there
            sample = _Sample(there.size)
            if one and other and there.name == OBJECT_GRAPH_KEY:
                graph = None if graphs_equal(a, b) else GRAPHS_DIFFER
                continue
            is_read, found = _difference(one, other, budget, sample, by_checksum=by_checksum)
            change = "same" if found is None else CHANGES.get(found.kind, "retyped")
            unread += not is_read
            if found is not None:
                more = _numbers(found, budget)
        except OutOfBudget:
            change = "not compared"
        except CkptfmtError as error:
            change, found, more = "unreadable", None, {"error": cut(str(error))}
        counts[change] += 1
        layer = layers.add(there, change, found)
        if change != "same":
            name, role = layers.shown[there.name]
            row: dict[str, Any] = {"name": name, "change": change, "role": role}
            for side, handle in (("before", one), ("after", other)):
                if handle is not None:
                    row[side] = [handle.dtype_name, list(handle.shape)]
            row |= more
            rows.add(row, sample)
            if found is not None and layer is not None and _ratio(row) > EXCHANGED:
                exchanges.add(name, layer, found, sample)
    return {
        "before": printable(masked(a.prefix)),
        "counts": dict(counts),
        "unread": unread,
        **_metadata(a, b),
        "graph": graph,
        "rows": rows.listed(budget),
        "layers": [one.data() for one in layers.sums.values()],
        "still": layers.still(),
        "exchanged": exchanges.found()[:LINES_MAX],
    }


def _difference(
    one: TensorHandle | None,
    other: TensorHandle | None,
    budget: Budget,
    sample: _Sample,
    *,
    by_checksum: bool,
) -> tuple[bool, Difference | None]:
    """Return whether the checksums did not say that the tensors are equal, and the difference."""

    def check(nbytes: int) -> None:
        if not budget.allows(nbytes):
            raise OutOfBudget

    if one and other and one.shape == other.shape and alike(one, other):
        if by_checksum and checksums_equal(one, other):
            return False, None
        check(2 * one.nbytes)  # before the first piece is read
    return True, difference(one, other, lambda _: check(0), seen=sample.add)


def _numbers(found: Difference, budget: Budget) -> dict[str, Any]:
    """Return what a row has of the values."""
    row: dict[str, Any] = {}
    if found.kind == "values":
        row = {
            "elements": found.elements,
            "largest": json_number(found.largest),
            "norm": json_number(found.norm_a),
            "norm_change": json_number(_norm_change(found)),
            "ratio": json_number(None if _norm_change(found) is None else found.relative),
            "nans": list(found.nans),
            "infinite": list(found.infinite),
        }
    both = [one for one in (found.a, found.b) if one is not None and one.size <= FEW]
    if len(both) == 2 and budget.allows(sum(one.nbytes for one in both)):
        values = found.values()
        if values is not None:
            row["old"], row["new"] = (few_as_text(one, STRING_MAX) for one in values)
    return row


def _norm_change(found: Difference) -> float | None:
    """Return the norm of the change; None if no element of one side is finite."""
    assert found.b is not None
    unusual = map(sum, zip(found.nans, found.infinite, strict=True))
    return None if found.b.size in unusual else found.norm_change


def _metadata(a: Reader, b: Reader) -> dict[str, Any]:
    """Return what differs in the metadata: "values" of a state by path, and "metadata", other
    members, before and after as text; None where one is missing. Both are None of members that are
    not for people."""
    try:
        both = a.metadata, b.metadata
        changed = changed_metadata(*both)
    except CkptfmtError:
        return {"values": [], "metadata": []}
    states = [state_of(one) for one in both]
    old, new = ({} if state is None else state.values for state in states)
    values = [
        [
            printable(path),
            *(cut(value_text(one[path])) if path in one else None for one in (old, new)),
        ]
        for path in {**new, **old}
        if (path in old, repr(old.get(path))) != (path in new, repr(new.get(path)))
    ]
    if values:
        changed.pop(state_tree.KEY, None)
    metadata = [
        [printable(name), *(one and cut(one) for one in pair)]
        if not name.startswith("ckptfmt.")
        else [printable(name), None, None]
        for name, pair in changed.items()
    ]
    return {"values": values[:LINES_MAX], "metadata": metadata[:ROWS_MAX]}


def _ratio(row: dict[str, Any]) -> float:
    """Return the ratio of a row, -1 if it has none."""
    found = row.get("ratio")
    return -1.0 if found is None else float(found)


class _Rows:
    """The tensors that are not the same, of each kind as many as one checkpoint would have."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[float, int, dict[str, Any]]]] = {one: [] for one in ORDER}
        self._sampled: list[tuple[float, int, dict[str, Any], _Sample]] = []
        self._count = 0

    def add(self, row: dict[str, Any], sample: _Sample) -> None:
        """Add a tensor, in the order of their names."""
        rank, rows = _ratio(row), self._rows[row["change"]]
        self._count += 1
        rows.append((-rank, self._count, row))
        if len(rows) > 2 * ROWS_MAX:
            rows.sort()
            del rows[ROWS_MAX:]
        if rank >= 0:
            one = rank, -self._count, row, sample
            if len(self._sampled) < HISTOGRAMS_MAX:
                heapq.heappush(self._sampled, one)
                sample.take()
            elif self._sampled[0] < one:
                heapq.heapreplace(self._sampled, one)
                sample.take()

    def listed(self, budget: Budget) -> list[dict[str, Any]]:
        """Return the rows in their order, the first ones that changed with histograms."""
        for *_, row, sample in self._sampled:
            if budget.left() > 0 and (found := _histogram(*sample.take())) is not None:
                row["histogram"] = found
        listed = list[dict[str, Any]]()
        for rows in self._rows.values():
            names = 0
            for _, _, row in sorted(rows)[:ROWS_MAX]:
                names += len(row["name"])
                if names > NAMES_MAX:
                    break
                listed.append(row)
        return listed


# ---- layers --------------------------------------------------------------------------------------


class _Sum:
    """What adds up over the tensors of a layer.

    Attributes:
        place: of the layer in the order of the model.
        changed, unknown: how many tensors differ, and could not be compared.
        norms: of each tensor that counts, before and of the change; None where not known.
    """

    def __init__(self, place: int, name: str, role: str) -> None:
        self.place, self.name, self.role = place, short(name), role
        self.changed = self.unknown = 0
        self.norms: list[tuple[float | None, float | None]] = []

    def data(self) -> dict[str, Any]:
        """Return what the report shows."""
        known = [(a, change) for a, change in self.norms if a is not None and change is not None]
        relative = None
        if known and len(known) == len(self.norms):
            norm, norm_change = (math.hypot(*side) for side in zip(*known, strict=True))
            relative = ratio(norm_change, norm)
        return {
            "name": self.name,
            "role": self.role,
            "changed": self.changed,
            "unknown": self.unknown,
            "ratio": json_number(relative),
        }


class _Layers:
    """The layers of two checkpoints, and what became of them.

    Attributes:
        shown: of all tensors the shown name and the role.
        sums: the layers, in the order of the model; those of A alone come last.
    """

    def __init__(self, a: Reader, after: Layers, of_b: Mapping[str, Any]) -> None:
        self.shown = dict[str, tuple[str, str]]()
        self.sums = dict[tuple[str, str], _Sum]()
        self._of = dict[str, _Sum | None]()
        self._add_names(after)
        if any(name not in self.shown for name in a):
            self._add_names(Layers(TensorNames(a)))
        rows = [] if of_b.get("grouped", True) else of_b["tensors"]
        self._of_b = dict(zip(after.stored, rows, strict=False))

    def _add_names(self, names: Layers) -> None:
        """Add the tensors of a checkpoint that are not known, and their layers."""
        new = [row for row, name in enumerate(names.stored) if name not in self.shown]
        for place in sorted({at for row in new if (at := names.of[row]) is not None}):
            layer = names.layers[place]
            self.sums.setdefault(layer, _Sum(len(self.sums), *layer))
        for row in new:
            name, at = names.stored[row], names.of[row]
            self.shown[name] = names.shown[row], names.roles[row]
            self._of[name] = None if at is None else self.sums[names.layers[at]]

    def add(self, there: TensorHandle, change: str, found: Difference | None) -> _Sum | None:
        """Add a tensor and return its layer; None of the object graph."""
        one = self._of[there.name]
        if one is None:
            return None
        is_unknown = change in ("unreadable", "not compared")
        one.unknown += is_unknown
        one.changed += change != "same" and not is_unknown
        # Most scalars are counters, larger than all parameters together.
        if is_float(there) and there.shape and change not in ("added", "removed"):
            if change == "same":
                one.norms.append((self._norm(there), 0.0))
            else:
                one.norms.append((found.norm_a, _norm_change(found)) if found else (None, None))
        return one

    def _norm(self, there: TensorHandle) -> float | None:
        """Return the norm of a tensor of B, estimated if only a sample of it was read."""
        stats = self._of_b.get(there.name, {}).get("stats")
        if not there.size or stats is None:
            return None if there.size else 0.0
        return float(stats["norm"] or 0)

    def still(self) -> list[str]:
        """Return the layers of weights that did not change, if at least half of them did."""
        weights = [one for one in self.sums.values() if one.role == "weight" and one.norms]
        still = [one.name for one in weights if not (one.changed or one.unknown)]
        changed = sum(one.changed > 0 for one in weights)
        return still if 2 * changed >= len(weights) else []


# ---- samples -------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _places(size: int) -> NDArray[np.int64]:
    """Return the places of a sample: one in each of SAMPLE_MAX equal parts of a tensor. They are
    not at equal distances: these might all be in one column."""
    part = np.arange(SAMPLE_MAX)
    golden = part * 0.6180339887498949 % 1
    return ((part + golden) * (size / SAMPLE_MAX)).astype(np.int64)


class _Sample:
    """The elements of two tensors at the same places, at most SAMPLE_MAX of each.

    Args:
        size: how many elements each has.
    """

    def __init__(self, size: int) -> None:
        self._size, self._added = size, 0
        self._parts: list[tuple[NDArray[Any], NDArray[Any]]] = []

    def add(self, one: NDArray[Any], other: NDArray[Any]) -> None:
        """Add the next elements of both."""
        if one.size < self._size:
            places = _places(self._size) - self._added
            places = places[(places >= 0) & (places < one.size)]
            self._added += one.size
            one, other = one[places], other[places]
        self._parts.append((one, other))

    def take(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the sample after all elements were added, and forget the others."""
        one, other = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        if one.size > SAMPLE_MAX:
            one, other = (part[_places(self._size)] for part in (one, other))
        self._parts = [(one, other)]
        return one, other


def _histogram(one: NDArray[Any], other: NDArray[Any]) -> dict[str, Any] | None:
    """Return how the finite numbers of a sample are distributed; None if all are equal."""
    both = [np.sort(numbers[np.isfinite(numbers)]) for numbers in map(numbers_of, (one, other))]
    return histogram(before=both[0], after=both[1])


class _Candidate(NamedTuple):
    """A tensor that may have been exchanged: its sample before and after as unit vectors."""

    name: str
    layer: _Sum
    before: NDArray[np.float32]
    after: NDArray[np.float32]


class _Exchanges:
    """Tensors that changed so much that they may have been exchanged."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Any, ...], list[_Candidate]] = {}
        self._left = CANDIDATE_ELEMENTS

    def add(self, name: str, layer: _Sum, found: Difference, sample: _Sample) -> None:
        """Add a tensor if it is not like before."""
        assert found.b is not None
        group = self._groups.setdefault((found.b.dtype_name, *found.b.shape), [])
        if len(group) >= CANDIDATES_MAX or self._left < min(found.b.size, SAMPLE_MAX):
            return
        before, after = map(_unit, sample.take())
        if before is not None and after is not None and before @ after < UNLIKE:
            self._left -= before.size
            group.append(_Candidate(name, layer, before, after))

    def found(self) -> list[list[str]]:
        """Return pairs of tensors; of layers, where all that changed in both was exchanged."""
        pairs: dict[tuple[_Sum, _Sum], list[tuple[str, str]]] = {}
        for group in self._groups.values():
            if len(group) < 2:
                continue
            before = np.stack([one.before for one in group])
            after = np.stack([one.after for one in group])
            like = before @ after.T > LIKE  # of one before and the other after
            taken = set[int]()
            for places in np.argwhere(np.triu(like & like.T, 1)).tolist():
                if taken.isdisjoint(places):
                    taken.update(places)
                    a, b = sorted((group[at] for at in places), key=lambda one: one.layer.place)
                    pairs.setdefault((a.layer, b.layer), []).append((a.name, b.name))
        listed = list[tuple[str, str]]()
        for both, names in sorted(pairs.items(), key=lambda one: [x.place for x in one[0]]):
            if both[0] is not both[1] and all(len(names) == layer.changed for layer in both):
                listed.append((both[0].name, both[1].name))
            else:
                listed += names
        return [list(pair) for pair in dict.fromkeys(listed)]


def _unit(values: NDArray[Any]) -> NDArray[np.float32] | None:
    """Return the finite numbers divided by their norm, and 0 for others; None if few are not 0."""
    wide = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64).view(np.float64)
    wide[~np.isfinite(wide)] = 0
    if np.count_nonzero(wide) < NUMBERS_MIN:
        return None
    wide /= np.abs(wide).max()
    return (wide / np.linalg.norm(wide)).astype(np.float32)
