# SPDX-License-Identifier: Apache-2.0
"""Matching the nodes of a checkpoint with Python objects, for `Checkpoint` and for trees.

The two graphs are followed side by side from the root, along edges of the same name, as TensorFlow
does. So an array finds its tensor under any path. A checkpoint without an object graph (TensorFlow
1, `ckptfmt.save`) is matched by full names. What was matched gets its values from `assigning`.

A restoration of a Checkpoint stays open while values of the checkpoint have no object. It keeps the
reader open, so that these values are of the generation that was restored, and restores them

- when the missing attribute of a Trackable or a Checkpoint is set;
- when its status is asked to retry: a new element of a dict or list is found in no other way.

If two restores have a value for an object, the later restore wins, even if its value was restored
first. A restoration of a tree ends with the call (`once`).
"""

from __future__ import annotations

import collections
import itertools
import warnings
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckptfmt._base.hints import some
from ckptfmt._base.targets import is_immutable
from ckptfmt.bundle.graph import (
    VARIABLE_VALUE,
    Attribute,
    Node,
    ObjectGraph,
)
from ckptfmt.bundle.reader import Reader
from ckptfmt.errors import CkptfmtWarning, InvalidError, TensorNotFoundError
from ckptfmt.objects import assigning
from ckptfmt.objects.assigning import Assignment, Conversion, Misfit
from ckptfmt.objects.choice import choose, value_name
from ckptfmt.objects.serializing import slot_locals
from ckptfmt.objects.trackable import Trackable, waiting
from ckptfmt.objects.traversal import (
    Child,
    Local,
    Role,
    Trail,
    View,
    described,
    has_slots,
    is_array,
    is_value,
    refuse_coordinated,
    slot_of,
)
from ckptfmt.recipe.changes import Changes
from ckptfmt.saving.mesh import Layout
from ckptfmt.saving.parallel import is_further_component

# Further warnings about shared objects are counted in one.
WARNINGS_MAX = 10

# What takes the first component of a parallel variable, and counts as all of it.
_ONE_VALUE = (Role.ARRAY, Role.SCALAR, Role.MESH)

_numbers = itertools.count(1)


# ---- objects that are not kept alive -------------------------------------------------------------


def _reference(value: Any) -> Callable[[], Any]:
    """Return a weak reference; a strong one where the type has no weak references."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


class _Latest:
    """The number of the restore that each object got its values from."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], int]] = {}

    def of(self, value: Any) -> int:
        """Return the number; 0 for an object that was never restored."""
        found = self._found.get(id(value))
        return 0 if found is None else found[1]

    def set(self, value: Any, number: int) -> None:
        """Record the number while the object lives; without weak references, do nothing."""
        key = id(value)
        try:
            gone = weakref.ref(value, lambda _: self._found.pop(key, None))
        except TypeError:
            return
        self._found[key] = gone, number


_latest = _Latest()


def _is_by_place(local: Local) -> bool:
    """Return whether a restore replaces the object in its place."""
    value = local.value
    return is_value(value) or (is_array(value) and is_immutable(value))


def _mark(local: Local) -> Hashable:
    """Return the key of the object, or of the place, that is restored only once."""
    return local.place if _is_by_place(local) else local.key


class _Restored:
    """The objects and places that got the values of nodes."""

    def __init__(self) -> None:
        # Nearly every node has one object, and there may be millions.
        self._objects: dict[int, Callable[[], Any]] = {}
        self._places: dict[int, set[Hashable]] = {}

    def add(self, node: int, local: Local) -> None:
        """Record that this object got the values of this node."""
        if _is_by_place(local) or self.object_of(node) is not None:
            self._places.setdefault(node, set()).add(local.place)
        else:
            self._objects[node] = _reference(local.value)

    def object_of(self, node: int) -> Any:
        """Return the first object that got the values of a node, unless it belongs to a place."""
        return self._objects[node]() if node in self._objects else None

    def has(self, node: int, local: Local) -> bool:
        """Return whether this object got the values of this node."""
        if local.place in self._places.get(node, ()):
            return True
        return not _is_by_place(local) and self.object_of(node) is local.value

    def __contains__(self, node: int) -> bool:
        return node in self._objects or node in self._places

    def __len__(self) -> int:
        return len(self._objects) + sum(node not in self._objects for node in self._places)


# ---- a match -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Match:
    """The result of following both graphs.

    Attributes:
        bound: node to the first object that was found for it.
        others: further objects and places, which get the values of their node as well.
        contradictions: pairs of objects that are two here and one in the checkpoint.
        absent: (holders, trail, node) where the checkpoint has values and no object exists.
        trackables: the Trackables, where any new attribute may be expected.
    """

    bound: dict[int, Local] = field(default_factory=dict)
    others: list[tuple[int, Local]] = field(default_factory=list)
    contradictions: list[tuple[Local, Local]] = field(default_factory=list)
    absent: list[tuple[list[Any], tuple[Trail, str], int]] = field(default_factory=list)
    trackables: list[Local] = field(default_factory=list)

    def pairs(self) -> Iterator[tuple[int, Local]]:
        """Yield all nodes with their objects."""
        return itertools.chain(self.bound.items(), self.others)


def _has_values(node: Node) -> bool:
    if node.has_checkpoint_values is not None:
        return node.has_checkpoint_values
    return bool(node.children or node.attributes or node.slot_variables or node.registered_saver)


@dataclass(slots=True)
class _Plan:
    """The assignments of a restore, the nodes that they complete, and by node the attributes that
    the object does not take."""

    assignments: list[Assignment] = field(default_factory=list)
    given: list[tuple[int, Local]] = field(default_factory=list)
    unused: dict[int, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a restore would do: the match, and the plan that follows from it."""

    match: Match
    plan: _Plan


@dataclass(frozen=True, slots=True)
class _Slot:
    """A slot variable of the checkpoint: the nodes of its optimizer and of the variable that it
    belongs to, its name, and its own node."""

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


# ---- a restoration -------------------------------------------------------------------------------


class Restoration:
    """A restore from a checkpoint with an object graph, until all its values are restored.

    Args:
        reader: the checkpoint; closed when nothing is left to be restored.
        graph: its object graph.
        choice: which values are restored, under what names and as what dtypes.
        skip_slots: whether to leave out slot variables.
        once: whether nothing is restored later; two arrays for one tensor then both get it. Else
            the first one gets it, with a warning, as in TensorFlow.
        partial: whether objects of unknown registered savers are left, as with `strict` False.

    Attributes:
        filtered: the nodes that the filter excludes.
        transforms: the transforms that `rename` gave, by name of a value in the checkpoint.
        misfits: where `strict` is False, what did not fit and was left as it is, by place.
        once: whether nothing is restored later.
        choice: as given.
        unused: node to the names of its attributes that its object did not take.
        expect_partial: whether values may remain without an object.
    """

    def __init__(
        self,
        reader: Reader,
        graph: ObjectGraph,
        choice: Changes,
        *,
        skip_slots: bool = False,
        once: bool = False,
        partial: bool = False,
    ) -> None:
        self.reader = reader
        self.graph = graph
        self.filtered, self.transforms = choose(choice, graph, reader.prefix)
        self.misfits: dict[Hashable, Misfit] = {}
        self._number = next(_numbers)
        self.choice, self._strict, self.once = choice, choice.strict, once
        self._leaves = choice.strict is False or (partial and choice.strict is None)
        self._closed = False
        self._layouts: Mapping[str, Layout | None] | None = None
        self._reported: set[tuple[str, str]] = set()
        slots = [
            _Slot(index, one.original_variable_node_id, one.slot_name, one.slot_variable_node_id)
            for index, node in enumerate(graph.nodes)
            for one in node.slot_variables
        ]
        self._slots = [] if skip_slots else slots
        self._ends: dict[int, Callable[[], Any]] = {}
        for slot in self._slots:
            self._ends[slot.optimizer] = self._ends[slot.original] = lambda: None
        skipped = {slot.node for slot in slots} if skip_slots else set()
        # The nodes that have values.
        self._full = {
            index
            for index, node in enumerate(graph.nodes)
            if (node.attributes or node.registered_saver is not None) and index not in skipped
        }
        self._left = _Left(reader.prefix, graph, self._full)
        self.unused = self._left.unused
        weakref.finalize(self, self._left.warn)

    @property
    def expect_partial(self) -> bool:
        """Whether values may remain without an object."""
        return self._left.expected

    @expect_partial.setter
    def expect_partial(self, expected: bool) -> None:
        self._left.expected = expected

    def match(self, view: View) -> Match:
        """Match the checkpoint with the objects as they are now, from the root."""
        return self._match(0, view.start(), view)

    def prepare(self, view: View) -> Prepared:
        """Match and plan a restore of all values that have an object now and were not restored
        before."""
        self._layouts = view.layouts
        match = self.match(view)
        return Prepared(match, self._plan(match))

    def restore(
        self,
        prepared: Prepared,
        ready: Callable[[], None] | None = None,
        *,
        may_be_more: bool = True,
    ) -> None:
        """Restore what was prepared, unless the restoration is closed.

        Args:
            prepared: of the objects as they are now.
            may_be_more: whether other values may be restored later, or were before.
            ready: called once everything is checked, before anything is written.
        """
        match, planned = prepared.match, prepared.plan
        if self._closed:
            return
        # Once everything is restored the reader is closed, and nothing is planned.
        if planned.assignments or ready is not None:
            if self._strict is False:
                self._leave_out(planned)
            assigning.run(
                self.reader,
                planned.assignments,
                self._conversion(),
                may_be_more=may_be_more,
                ready=ready,
            )
        for node_id, local in planned.given:
            self._left.given.add(node_id, local)
            if not _is_by_place(local):
                _latest.set(local.value, max(self._number, _latest.of(local.value)))
        for node_id, names in planned.unused.items():
            self.unused[node_id] = names
            if not names:
                del self.unused[node_id]
        if self.once:
            return
        self._wait(match)
        for first, second in match.contradictions[:WARNINGS_MAX]:
            self._contradiction(described(first), described(second))
        more = len(match.contradictions) - WARNINGS_MAX
        if more > 0:
            self._contradiction(f"{more} more objects", "others")

    def is_whole(self, prepared: Prepared) -> bool:
        """Return whether all values of the checkpoint have an object."""
        return self._full <= {node for node, _ in prepared.plan.given}

    def expected(self, planned: _Plan) -> tuple[list[str], list[Misfit]]:
        """Return the tensors that no object would take, and what would not fit."""
        given = _Restored()
        for node, local in planned.given:
            given.add(node, local)
        keys = _keys_left(self.graph, self._full, given, planned.unused)
        return keys, self._misfits(planned.assignments)

    def fill(self, node: int, holder: Local, name: str, value: Any) -> None:
        """Restore an attribute that was just set."""
        refuse_coordinated(value, (*holder, name))
        view = View(value, None, self._layouts)
        local = view.found(holder.child(Child(name, value, holder.value, name)))
        other = None if _is_by_place(local) else self._left.given.object_of(node)
        if other is not None and other is not value:
            self._contradiction("another object", described(local))
        self._fill(node, local, view)

    def has_given(self, node: int, local: Local) -> bool:
        """Return whether this object got the values of this node."""
        return self._left.given.has(node, local)

    def keys_left(self) -> list[str]:
        """Return the tensors that no object took."""
        return self._left.keys()

    def overlooked(self, view: View) -> list[Local]:
        """Return the objects whose values were not restored."""
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

    def name_of(self, key: str) -> str:
        """Return the name that a tensor has in the options and in reports."""
        return value_name(key)

    def close(self) -> None:
        """Restore nothing from now on."""
        self._closed = True
        self.reader.close()

    # ---- how

    def _match(self, node: int, start: Local, view: View) -> Match:
        match = Match({node: start})
        seen: set[tuple[int, Hashable]] = {(node, start.key)}
        to_visit = collections.deque([(node, start)])
        # An object may be found for many nodes.
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
                below = view.found(local.child(child_found))
                # A read-only array is one object in several places, each of which is changed.
                mark = child_node, _mark(below)
                if mark not in seen:
                    seen.add(mark)
                    if self._bind(match, child_node, below):
                        to_visit.append((child_node, below))
        self._match_slots(match)
        return match

    def _bind(self, match: Match, node: int, local: Local) -> bool:
        """Bind an object to a node; return whether its children are to be visited."""
        first = match.bound.setdefault(node, local)
        if first is local:
            return True
        if _is_by_place(local) or (self.once and first.value is not local.value):
            match.others.append((node, local))
            return True
        if node != 0 and first.value is not local.value:
            # An edge back to the root (node 0) may have any name.
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
            found = match.bound.setdefault(slot.node, Local(value, (trail, slot.name)))
            if ends[0] is not None and isinstance(value, Mapping):
                found.layout = ends[0].layout

    def _fill(self, node: int, start: Local, view: View) -> None:
        """Restore an object and what is below it."""
        if not self._closed:
            match = self._match(node, start, view)
            self.restore(Prepared(match, self._plan(match)))

    def _misfits(self, assignments: list[Assignment]) -> list[Misfit]:
        return assigning.misfits(self.reader, assignments, self._conversion())

    def _conversion(self) -> Conversion:
        return Conversion(self.choice, self.transforms, self.name_of)

    def _is_done(self, node: int, local: Local) -> bool:
        return node in self._left.given

    def _assignment(self, local: Local, node: Node) -> Assignment | None:
        try:
            return assigning.plan(local, node, may_be_left=self._leaves)
        except (InvalidError, TensorNotFoundError) as error:
            if self._strict is False and isinstance(error, TensorNotFoundError):
                return None
            error.path = self.reader.prefix
            raise

    def _plan(self, match: Match) -> _Plan:
        plan = _Plan()
        marks: set[Hashable] = set()
        replaced: dict[tuple[int, int], list[Local]] = {}
        for node_id, local in match.pairs():
            if node_id not in self._full or self._is_done(node_id, local):
                continue
            by_place = _is_by_place(local)
            mark = _mark(local)
            if not by_place and _latest.of(local.value) >= self._number:
                plan.given.append((node_id, local))  # restored, perhaps by a later restore
                continue
            if mark in marks:
                # One object of two nodes gets the values of the first.
                if self._strict is None:
                    plan.given.append((node_id, local))
                continue
            value = id(local.value)
            places = replaced.get((node_id, value)) if by_place else None
            if places is not None:
                marks.add(mark)
                places.append(local)
                plan.given.append((node_id, local))
                continue
            node = self.graph.nodes[node_id]
            assignment = self._assignment(local, node)
            used = [] if assignment is None else assignment.used
            one_value = local.role in _ONE_VALUE
            plan.unused[node_id] = [
                one.name
                for one in node.attributes
                if one.name not in used and not (one_value and is_further_component(one.name))
            ]
            if assignment is not None:
                marks.add(mark)
                if assignment.places is not None:
                    replaced[node_id, value] = assignment.places
                plan.assignments.append(assignment)
                plan.given.append((node_id, local))
        return plan

    def _leave_out(self, planned: _Plan) -> None:
        """Remove from a plan what is missing or does not fit."""
        stored = [
            one
            for one in planned.assignments
            if one.saver is not None or all(wanted.key in self.reader for wanted in one.wanted)
        ]
        found = self._misfits(stored)
        wrong = {id(one.assignment) for one in found}
        fitting = [one for one in stored if id(one) not in wrong]
        for assignment in fitting:
            self.misfits.pop(assignment.local.place, None)
        self.misfits.update({one.assignment.local.place: one for one in found})
        included = {id(one) for one in fitting}
        left_out = {
            _mark(local)
            for one in planned.assignments
            if id(one) not in included
            for local in one.places or [one.local]
        }
        planned.assignments = fitting
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
        if (first, second) in self._reported:
            return
        self._reported.add((first, second))
        warnings.warn(
            f"inconsistent references: {first} and {second} are one object in "
            f"{self.reader.prefix} and two here; only the first one is restored",
            CkptfmtWarning,
            stacklevel=2,
        )


def _keys_left(
    graph: ObjectGraph, full: set[int], given: _Restored, unused: Mapping[int, Collection[str]]
) -> list[str]:
    """Return the tensors that no object took, and the objects of registered savers."""
    found = []
    for index in sorted(full):
        node = graph.nodes[index]
        if node.registered_saver is not None and index not in given:
            found.append(node.registered_saver[1])
        found += [
            one.checkpoint_key
            for one in node.attributes
            if index not in given or one.name in unused.get(index, ())
        ]
    return found


class _Left:
    """The values that a restore left out; it outlives the restore to warn of them."""

    def __init__(self, prefix: str, graph: ObjectGraph, full: set[int]) -> None:
        self.prefix = prefix
        self.graph = graph
        self.full = full
        self.given = _Restored()
        self.unused: dict[int, list[str]] = {}
        self.expected = False

    def is_empty(self) -> bool:
        return len(self.given) == len(self.full)

    def keys(self) -> list[str]:
        """Return the tensors that no object took."""
        return _keys_left(self.graph, self.full, self.given, self.unused)

    def warn(self) -> None:
        keys = [] if self.expected else self.keys()
        if keys:
            warnings.warn(
                f"{self.prefix}: no object took {some(keys)}; expect_partial() of the status "
                "silences this warning",
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
        self.restoration.restore_from(local)


class NamedRestoration(Restoration):
    """A restore from a checkpoint without an object graph, as those of TensorFlow 1.

    Every object gets the tensor of its full name: its attribute `name`, or else its path joined by
    "/"; of a slot variable, the full name of its variable, "/" and the slot's name, unless another
    optimizer has the same slot. In a graph each name is a node of its own, and no edge leads to it.
    """

    def __init__(
        self, reader: Reader, choice: Changes, *, skip_slots: bool = False, once: bool = False
    ) -> None:
        self._skip_slots = skip_slots
        graph = ObjectGraph([Node()])
        self._nodes: dict[str, int] = {}
        excluded = set()
        stored = list(reader)
        loaded, left_out, transforms = choice.chosen(stored, reader.prefix)
        for old, new in (loaded | left_out).items():
            self._nodes[new] = len(graph.nodes)
            node = Node(attributes=[Attribute(VARIABLE_VALUE, new, old)])
            if old in left_out:
                excluded.add(len(graph.nodes))
                node.attributes = []
            graph.nodes.append(node)
        super().__init__(reader, graph, Changes(strict=choice.strict), once=once)
        self.choice, self.filtered = choice, frozenset(excluded)
        self.transforms = transforms
        self.expect_partial = True

    def name_of(self, key: str) -> str:
        """Return the stored name."""
        return key

    def restore_from(self, start: Local) -> None:
        """Restore an object and what is below it."""
        self._fill(0, start, View(start.value, None, self._layouts))

    def _match(self, node: int, start: Local, view: View) -> Match:
        match = Match()
        objects = view.walk(start).objects
        # Those of variables elsewhere are found from the root.
        is_part = start.trail is not None
        slots = [] if self._skip_slots else slot_locals(objects, is_part=is_part)
        for local in [*objects, *(one.local for one in slots)]:
            if isinstance(local.value, Trackable):
                match.trackables.append(local)
            found = self._nodes.get(local.full_name)
            if found is None or local.role is Role.NOTHING:
                continue
            if match.bound.setdefault(found, local) is not local:
                match.others.append((found, local))
        return match

    def _is_done(self, node: int, local: Local) -> bool:
        return self.has_given(node, local)

    def _assignment(self, local: Local, node: Node) -> Assignment | None:
        return assigning.plan_tensors(local, {VARIABLE_VALUE: node.attributes[0].checkpoint_key})

    def _wait(self, match: Match) -> None:
        for local in match.trackables:
            waiting.wait(local.value, None, self._number, _ExpectedNames(self, local.trail))
