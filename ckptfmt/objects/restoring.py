# SPDX-License-Identifier: Apache-2.0
"""Restoring a checkpoint of objects: its nodes are matched with Python objects along the edges of
the two graphs, and what was matched gets its values.

A restoration lives on where values of the checkpoint found no object. It keeps the checkpoint open,
so that these values are of the generation that was restored, and hands them out

- when an attribute that was not there is set on a Trackable or a Checkpoint;
- when it is asked to look again: there is no other way to learn of a new element of a dict or list.

Of two restores the later one counts, whenever its values are handed out.
"""

from __future__ import annotations

import collections
import itertools
import warnings
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.selecting import some
from ckptfmt.errors import CkptfmtWarning
from ckptfmt.objects import assigning
from ckptfmt.objects.assigning import Assignment, Misfit
from ckptfmt.objects.choosing import Choice
from ckptfmt.objects.graph import VARIABLE_VALUE, Node, ObjectGraph
from ckptfmt.objects.serializing import slot_of
from ckptfmt.objects.trackable import (
    Child,
    Local,
    Role,
    Trackable,
    Trail,
    View,
    can_be_written,
    described,
    has_slots,
    is_value,
    waiting,
)

__all__ = ["Match", "NamedRestoration", "Restoration"]

# More warnings than this of objects that are two here are counted in one.
WARNINGS_MAX = 10

_numbers = itertools.count(1)


# ---- objects that are not kept alive -------------------------------------------------------------


def _reference(value: Any) -> Callable[[], Any]:
    """Gives the object as long as somebody else keeps it; one that cannot tell is kept."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


class _Latest:
    """The number of the restore that each object got its values from."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], int]] = {}

    def of(self, value: Any) -> int:
        """0 for an object that was never restored."""
        found = self._found.get(id(value))
        return 0 if found is None else found[1]

    def set(self, value: Any, number: int) -> None:
        """Keeps it for as long as the object lives, if that can be known."""
        key = id(value)
        try:
            gone = weakref.ref(value, lambda _: self._found.pop(key, None))
        except TypeError:
            return
        self._found[key] = gone, number


_latest = _Latest()


def _is_by_place(local: Local) -> bool:
    """Whether a restore replaces the object where it lies."""
    value = local.value
    return is_value(value) or (isinstance(value, np.ndarray) and not can_be_written(value))


def _mark(local: Local) -> Hashable:
    """What is restored once: an object, or a place."""
    return local.place if _is_by_place(local) else local.key


class _Given:
    """Where the values of nodes went: to objects, or to places."""

    def __init__(self) -> None:
        # Most go to one object; there may be very many.
        self._objects: dict[Any, Callable[[], Any]] = {}
        self._places: dict[Any, set[Hashable]] = {}

    def add(self, node: Any, local: Local) -> None:
        """Notes that this object got the values of this node."""
        if _is_by_place(local):
            self._places.setdefault(node, set()).add(local.place)
        else:
            self._objects[node] = _reference(local.value)

    def object_of(self, node: Any) -> Any:
        """The object that got the values of a node, if it is none that lies in places."""
        return self._objects[node]() if node in self._objects else None

    def has(self, node: Any, local: Local) -> bool:
        """Whether this object got the values of this node."""
        if _is_by_place(local):
            return local.place in self._places.get(node, ())
        return node in self._objects and self._objects[node]() is local.value

    def __contains__(self, node: Any) -> bool:
        return node in self._objects or node in self._places

    def __len__(self) -> int:
        return len(self._objects) + sum(node not in self._objects for node in self._places)


# ---- matching ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Match:
    """What one walk along the edges of both graphs found.

    Attributes:
        bound: node to the object that was met for it first.
        others: more places of values, which all get what their node has.
        contradictions: objects that are two here and one in the checkpoint, as pairs.
        absent: (holders, trail, node) where the checkpoint has values and there is no object.
    """

    bound: dict[int, Local] = field(default_factory=dict)
    others: list[tuple[int, Local]] = field(default_factory=list)
    contradictions: list[tuple[Local, Local]] = field(default_factory=list)
    absent: list[tuple[list[Any], tuple[Trail, str], int]] = field(default_factory=list)

    def pairs(self) -> Iterator[tuple[int, Local]]:
        """All nodes and objects."""
        return itertools.chain(self.bound.items(), self.others)


def _has_values(node: Node) -> bool:
    if node.has_checkpoint_values is not None:
        return node.has_checkpoint_values
    return bool(node.children or node.attributes or node.slot_variables or node.registered_saver)


@dataclass(slots=True)
class _Plan:
    """What is to be handed out, which nodes are then done with, and the names of attributes that
    stay behind, by node."""

    assignments: list[Assignment] = field(default_factory=list)
    given: list[tuple[int, Local]] = field(default_factory=list)
    unused: dict[int, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Slot:
    """A slot variable of the checkpoint: nodes of its optimizer, of the variable that it is for,
    and its own."""

    optimizer: int
    original: int
    name: str
    node: int


@dataclass(frozen=True, slots=True)
class _Expected:
    """A node that waits for an attribute."""

    restoration: Restoration
    node: int
    trail: Trail

    def fill(self, holder: Any, name: str, value: Any) -> None:
        self.restoration.fill(self.node, Local(holder, self.trail), name, value)


class Restoration:
    """A restore from a checkpoint with an object graph, until all its values are handed out.

    Args:
        reader: the checkpoint; closed when nothing more can be asked of it.
        graph: its object graph.
        skip_slots: whether to leave out slot variables.
        choice: which values are wanted, under what names and as what dtypes.

    Attributes:
        filtered: the nodes that the filter leaves out.
        misfits: where `strict` is False, what did not fit and was left as it is, by place.
        unused: node to the names of its attributes that its object did not take.
        expect_partial: whether it is all right that values stay behind.
    """

    def __init__(
        self, reader: Reader, graph: ObjectGraph, choice: Choice, *, skip_slots: bool = False
    ) -> None:
        self.reader = reader
        self.graph = graph
        self.filtered = choice.applied(graph)
        self.misfits: dict[Hashable, Misfit] = {}
        self._number = next(_numbers)
        self._cast, self._strict = choice.cast, choice.strict
        self._closed = False
        self._told: set[tuple[str, str]] = set()
        slots = [
            _Slot(row, slot.original_variable_node_id, slot.slot_name, slot.slot_variable_node_id)
            for row, node in enumerate(graph.nodes)
            for slot in node.slot_variables
        ]
        self._slots = [] if skip_slots else slots
        self._ends: dict[int, Callable[[], Any]] = {}
        for slot in self._slots:
            self._ends[slot.optimizer] = self._ends[slot.original] = lambda: None
        skipped = {slot.node for slot in slots} if skip_slots else set()
        # The nodes that have something to give.
        self._full = {
            row
            for row, node in enumerate(graph.nodes)
            if (node.attributes or node.registered_saver is not None) and row not in skipped
        }
        self._left = _Left(reader.prefix, graph, self._full)
        self.unused = self._left.unused
        weakref.finalize(self, self._left.warn)

    @property
    def expect_partial(self) -> bool:
        """Whether it is all right that values stay behind."""
        return self._left.expected

    @expect_partial.setter
    def expect_partial(self, expected: bool) -> None:
        self._left.expected = expected

    def match(self, view: View) -> Match:
        """Matches the checkpoint with the objects as they are now, from the root."""
        return self._match(0, view.start(), view)

    def restore(self, view: View) -> Match:
        """Hands out all values that have an object now and were not handed out before."""
        match = self.match(view)
        self._fill(match)
        return match

    def expected(self, view: View) -> tuple[list[tuple[int, Local]], list[str], list[Misfit]]:
        """What `restore` would hand out, the tensors that nobody would take, and what would not
        fit."""
        planned = self._plan(self.match(view))
        given = _Given()
        for node, local in planned.given:
            given.add(node, local)
        keys = _keys_left(self.graph, self._full, given, planned.unused)
        return planned.given, keys, assigning.misfits(self.reader, planned.assignments, self._cast)

    def fill(self, node: int, holder: Local, name: str, value: Any) -> None:
        """Hands out what an attribute that was just set has been waiting for."""
        local = holder.child(Child(name, value, holder.value, name))
        other = None if _is_by_place(local) else self._left.given.object_of(node)
        if other is not None and other is not value:
            self._contradiction("another object", described(local))
        self._fill(self._match(node, local, View(value)))

    def has_given(self, node: int, local: Local) -> bool:
        """Whether this object got the values of this node."""
        return self._left.given.has(node, local)

    def keys_left(self) -> list[str]:
        """The tensors that nobody took."""
        return self._left.keys()

    def overlooked(self, view: View) -> list[Local]:
        """Objects that have values here which were not handed out."""
        if self._closed or self._left.is_empty():
            return []
        return [
            local
            for node, local in self.match(view).bound.items()
            if node in self._full
            and node not in self._left.given
            and node not in self.unused
            and local.role is not Role.NOTHING
        ]

    def close(self) -> None:
        """Hands out nothing any more."""
        self._closed = True
        self.reader.close()

    # ---- how

    def _match(self, node: int, start: Local, view: View) -> Match:
        match = Match({node: start})
        seen: set[tuple[int, Hashable]] = {(node, start.key)}
        to_visit = collections.deque([(node, start)])
        # An object may be met for many nodes.
        children_by_key: dict[Hashable, dict[str, Child]] = {}
        while to_visit:
            node, local = to_visit.popleft()
            if node in self._ends and match.bound[node] is local:
                self._ends[node] = _reference(local.value)
            children = children_by_key.get(local.key)
            if children is None:
                children = children_by_key[local.key] = {}
                for child in view.children(local):
                    children.setdefault(child.name, child)
            for name, child_node in self.graph.nodes[node].children:
                child_found = children.get(name)
                if child_found is None:
                    if child_node not in match.bound and _has_values(self.graph.nodes[child_node]):
                        is_root = local.value is view.root and view.beside is not None
                        holders = [local.value, view.beside] if is_root else [local.value]
                        match.absent.append((holders, (local.trail, name), child_node))
                    continue
                met = local.child(child_found)
                # A read-only array is one object in all places, each of which is to be changed.
                mark = child_node, met.place if _is_by_place(met) else met.key
                if mark not in seen:
                    seen.add(mark)
                    if self._bind(match, child_node, met):
                        to_visit.append((child_node, met))
        self._match_slots(match)
        return match

    def _bind(self, match: Match, node: int, local: Local) -> bool:
        """Binds an object to a node; whether its children are to be visited."""
        first = match.bound.setdefault(node, local)
        if first is local:
            return True
        if _is_by_place(local):
            match.others.append((node, local))
            return True
        if node != 0 and first.value is not local.value:
            # Node 0: whatever its name, an edge back to the root.
            match.contradictions.append((first, local))
        return False

    def _match_slots(self, match: Match) -> None:
        for slot in self._slots:
            optimizer, original = self._ends[slot.optimizer](), self._ends[slot.original]()
            if optimizer is None or original is None or not has_slots(optimizer):
                continue
            value = slot_of(optimizer, original, slot.name)
            if value is None:
                continue
            ends = [match.bound.get(slot.original), match.bound.get(slot.optimizer)]
            trail = ends[0].trail if ends[0] is not None else None
            if ends[1] is not None and ends[1].trail is not None:
                trail = trail, ends[1].trail[1]
            match.bound.setdefault(slot.node, Local(value, (trail, slot.name)))

    def _fill(self, match: Match) -> None:
        """Hands out what was matched and not handed out before."""
        if self._closed:
            return
        planned = self._plan(match)
        if self._strict is False:
            self._leave_out(planned)
        if planned.assignments:
            assigning.run(self.reader, planned.assignments, cast=self._cast)
        for node_id, local in planned.given:
            self._left.given.add(node_id, local)
            if not _is_by_place(local):
                _latest.set(local.value, max(self._number, _latest.of(local.value)))
        for node_id, names in planned.unused.items():
            self.unused[node_id] = names
            if not names:
                del self.unused[node_id]
        self._wait(match)
        for first, second in match.contradictions[:WARNINGS_MAX]:
            self._contradiction(described(first), described(second))
        more = len(match.contradictions) - WARNINGS_MAX
        if more > 0:
            self._contradiction(f"{more} more objects", "others")

    def _plan(self, match: Match) -> _Plan:
        plan = _Plan()
        met: set[Hashable] = set()
        replaced: dict[tuple[int, int], list[Local]] = {}
        for node_id, local in match.pairs():
            if node_id not in self._full or node_id in self._left.given:
                continue
            by_place = _is_by_place(local)
            mark = _mark(local)
            # What is of two nodes gets the values of the first, of two restores those of the later
            # one.
            if mark in met or (not by_place and _latest.of(local.value) >= self._number):
                plan.given.append((node_id, local))
                continue
            value = id(local.value)
            places = replaced.get((node_id, value)) if by_place else None
            if places is not None:
                met.add(mark)
                places.append(local)
                plan.given.append((node_id, local))
                continue
            node = self.graph.nodes[node_id]
            assignment = assigning.plan(local, node)
            used = [] if assignment is None else assignment.used
            plan.unused[node_id] = [a.name for a in node.attributes if a.name not in used]
            if assignment is not None:
                met.add(mark)
                if assignment.places is not None:
                    replaced[node_id, value] = assignment.places
                plan.assignments.append(assignment)
                plan.given.append((node_id, local))
        return plan

    def _leave_out(self, planned: _Plan) -> None:
        """Takes from a plan what is not there or does not fit."""
        stored = [
            one
            for one in planned.assignments
            if one.saver is not None or all(wanted.key in self.reader for wanted in one.wanted)
        ]
        found = assigning.misfits(self.reader, stored, self._cast)
        wrong = {id(one.assignment) for one in found}
        kept = [one for one in stored if id(one) not in wrong]
        for assignment in kept:
            self.misfits.pop(assignment.local.place, None)
        self.misfits.update({one.assignment.local.place: one for one in found})
        taken = {id(one) for one in kept}
        left_out = {
            _mark(local)
            for one in planned.assignments
            if id(one) not in taken
            for local in one.places or [one.local]
        }
        planned.assignments = kept
        planned.given = [pair for pair in planned.given if _mark(pair[1]) not in left_out]

    def _wait(self, match: Match) -> None:
        if self._left.is_empty():
            self.reader.close()
            return
        for holders, (trail, name), node in match.absent:
            for holder in holders:
                if isinstance(holder, Trackable):
                    waiting.wait(holder, name, self._number, _Expected(self, node, trail))

    def _contradiction(self, first: str, second: str) -> None:
        if (first, second) in self._told:
            return
        self._told.add((first, second))
        warnings.warn(
            f"inconsistent references: {first} and {second} are one object in "
            f"{self.reader.prefix} and two here; the one that was met first is restored",
            CkptfmtWarning,
            stacklevel=2,
        )


def _keys_left(
    graph: ObjectGraph, full: set[int], given: _Given, unused: Mapping[int, Collection[str]]
) -> list[str]:
    """The tensors that nobody took, and the objects of registered savers."""
    found = []
    for row in sorted(full):
        node = graph.nodes[row]
        if node.registered_saver is not None and row not in given:
            found.append(node.registered_saver[1])
        found += [
            one.checkpoint_key
            for one in node.attributes
            if row not in given or one.name in unused.get(row, ())
        ]
    return found


class _Left:
    """What a restoration has not handed out; it outlives it to tell of that."""

    def __init__(self, prefix: str, graph: ObjectGraph, full: set[int]) -> None:
        self.prefix = prefix
        self.graph = graph
        self.full = full
        self.given = _Given()
        self.unused: dict[int, list[str]] = {}
        self.expected = False

    def is_empty(self) -> bool:
        return len(self.given) == len(self.full)

    def keys(self) -> list[str]:
        """The tensors that nobody took."""
        return _keys_left(self.graph, self.full, self.given, self.unused)

    def warn(self) -> None:
        keys = [] if self.expected else self.keys()
        if keys:
            warnings.warn(
                f"{self.prefix}: no object took {some(keys)}; expect_partial() of the status says "
                "that this is all right",
                CkptfmtWarning,
                stacklevel=2,
            )


# ---- a checkpoint without an object graph --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ExpectedNames:
    """Names that wait for any new attribute of an object."""

    restoration: NamedRestoration
    trail: Trail

    def fill(self, holder: Any, name: str, value: Any) -> None:
        local = Local(holder, self.trail).child(Child(name, value, holder, name))
        self.restoration.restore(View(value), local)


class NamedRestoration:
    """A restore from a checkpoint of names and no objects, as those of TensorFlow 1.

    Every object gets the tensor of its full name: its `name`, or else its path joined by "/".

    Args:
        reader: the checkpoint.
        choice: which values are wanted, under what names and as what dtypes.

    Attributes:
        misfits: where `strict` is False, what did not fit and was left as it is, by place.
    """

    def __init__(self, reader: Reader, choice: Choice) -> None:
        self.reader = reader
        self.misfits: dict[Hashable, Misfit] = {}
        self._cast, self._strict = choice.cast, choice.strict
        self._number = next(_numbers)
        every = choice.names(list(reader))
        self._names = {
            new: old for old, new in every.items() if choice.passes is None or choice.passes(old)
        }
        # Names of what the filter leaves out.
        self._filtered = set(every.values()) - self._names.keys()
        self._given = _Given()
        self._closed = False

    def restore(self, view: View, start: Local | None = None) -> None:
        """Hands out the values of all objects that have any and did not get them before."""
        if self._closed:
            return
        found = view.walk(start)[0]
        assignments, given = self._plan(found)
        if self._strict is False:
            self.misfits = {
                one.assignment.local.place: one
                for one in assigning.misfits(self.reader, assignments, self._cast)
            }
            wrong = {id(one.assignment) for one in self.misfits.values()}
            assignments = [one for one in assignments if id(one) not in wrong]
            given = [local for local in given if local.place not in self.misfits]
        if assignments:
            assigning.run(self.reader, assignments, cast=self._cast)
        for local in found:
            if isinstance(local.value, Trackable):
                waiting.wait(local.value, None, self._number, _ExpectedNames(self, local.trail))
        for local in given:
            self._given.add(local.full_name, local)
            if not _is_by_place(local):
                _latest.set(local.value, max(self._number, _latest.of(local.value)))

    def _plan(self, found: Iterable[Local]) -> tuple[list[Assignment], list[Local]]:
        """What of these objects takes something, and which are then done with."""
        assignments: list[Assignment] = []
        given: list[Local] = []
        for local in found:
            name = local.full_name
            if local.role is Role.NOTHING or name not in self._names or self.has_given(local):
                continue
            if not _is_by_place(local) and _latest.of(local.value) > self._number:
                given.append(local)
                continue
            assignment = assigning.plan_tensors(local, {VARIABLE_VALUE: self._names[name]})
            if assignment is not None:
                assignments.append(assignment)
                given.append(local)
        return assignments, given

    def expected(self, view: View) -> tuple[list[Local], list[str], list[Misfit]]:
        """What `restore` would give a value, the tensors that nobody would take, and what would not
        fit."""
        assignments, given = self._plan(view.walk()[0])
        names = {local.full_name for local in given}
        keys = [old for new, old in self._names.items() if new not in names]
        return given, keys, assigning.misfits(self.reader, assignments, self._cast)

    def is_filtered(self, local: Local) -> bool:
        """Whether the filter leaves out what the checkpoint has for this object."""
        return local.full_name in self._filtered

    def has_given(self, local: Local) -> bool:
        """Whether this object got its value."""
        return self._given.has(local.full_name, local)

    def keys_left(self) -> list[str]:
        """The tensors that nobody took."""
        return [old for new, old in self._names.items() if new not in self._given]

    def close(self) -> None:
        """Hands out nothing any more."""
        self._closed = True
        self.reader.close()
