# SPDX-License-Identifier: Apache-2.0
"""The names by which people know the tensors of a checkpoint.

A variable of an object graph is stored as `PATH/.ATTRIBUTES/VARIABLE_VALUE`; people know it by the
paths of its object. Keras 3 stores the model's weights at their paths in the optimizer; people look
for them in the model.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ckptfmt._base.hints import near, some
from ckptfmt._base.names import RESERVED, VALUE_SUFFIX, index_name, printable
from ckptfmt._base.patterns import Filter, filter_function
from ckptfmt._core import cached_property
from ckptfmt.bundle.graph import (
    ATTRIBUTES,
    OPTIMIZER_SLOT,
    VARIABLE_VALUE,
    Node,
    ObjectGraph,
    SlotVariable,
    escape,
    leaf_name,
)
from ckptfmt.bundle.graph_keys import graph_of
from ckptfmt.bundle.reader import LISTED_FOR_A_HINT_MAX, Reader
from ckptfmt.errors import CkptfmtError, InvalidError, TensorNotFoundError
from ckptfmt.naming.roles import optimizer_nodes

# Longer paths are not names: a hostile graph is a chain of a million objects, or has names of a
# megabyte.
DEPTH_MAX, LENGTH_MAX = 40, 4096
# So many of the last paths of a tensor are compared with the next.
ALIASES_MAX = 8
# So many characters of paths are retained, and some for each of the stored names: an object with a
# long name may have a million children that are one variable.
PATHS_SIZE_MAX, PATHS_PER_NAME = 64 << 20, 16


def slot_label(slot: SlotVariable, variable: str) -> str:
    """Return how a slot variable is named below its optimizer."""
    return f"{OPTIMIZER_SLOT}/{escape(slot.slot_name)} of {variable}"


class ObjectPaths:
    """The shortest path from the root to every object that it reaches. What is below an optimizer
    and elsewhere is named after its other place, and slot variables come last.

    Attributes:
        owners: parent, label and edge by which an object is named. Labels may repeat: the edge is
            the position among the parent's children and slots.
        order: the objects, each after its owner.
    """

    def __init__(self, graph: ObjectGraph, optimizers: Iterable[int] = ()) -> None:
        self.nodes = graph.nodes
        self.owners: dict[int, tuple[int, str, int]] = {0: (0, "", -1)}
        self.order = [0]
        self._optimizers = set(optimizers)
        # Of each path the objects and characters, and whether an optimizer is among the objects.
        self._sizes = {0: (0, 0, False)}
        self._walk()

    def _walk(self) -> None:
        at = slots = 0
        optimizers: list[int] = []
        while at < len(self.order) or optimizers or slots < len(self.order):
            for number in self.order[at:]:
                if number in self._optimizers:
                    optimizers.append(number)
                else:
                    self._enter(number)
                at += 1
            if at < len(self.order):
                continue
            if optimizers:
                for number in optimizers:
                    self._enter(number)
                optimizers = []
                continue
            for number in self.order[slots:]:
                for edge, label, slot in self.slots(number):
                    self._own(number, label, edge, slot)
            slots = at

    def _enter(self, number: int) -> None:
        for edge, (name, child) in enumerate(self.nodes[number].children):
            self._own(number, escape(name), edge, child)

    def _own(self, parent: int, label: str, edge: int, child: int) -> None:
        if child not in self.owners:
            depth, length, inside = self._sizes[parent]
            inside = inside or parent in self._optimizers
            self.owners[child] = (parent, label, edge)
            self._sizes[child] = (depth + 1, length + len(label) + 1, inside)
            self.order.append(child)

    def is_state(self, number: int) -> bool:
        """Return whether an object is an optimizer or is named below one."""
        return number in self._optimizers or self._sizes[number][2]

    def slots(self, number: int) -> Iterator[tuple[int, str, int]]:
        """Yield edge, label and node of each slot variable of an object."""
        node = self.nodes[number]
        for edge, slot in enumerate(node.slot_variables, len(node.children)):
            label = slot_label(slot, self.path(slot.original_variable_node_id))
            yield edge, label, slot.slot_variable_node_id

    def path(self, number: int) -> str:
        """Return the path of an object, cut at its beginning if it is very long."""
        if number == 0:
            return "(root)"
        if number not in self.owners:
            return "(an object that the root does not reach)"
        labels: list[str] = []
        while number and len(labels) < DEPTH_MAX:
            number, label, _ = self.owners[number]
            labels.append(label)
        return "/".join(["..."] * bool(number) + labels[::-1])

    def whole_path(self, number: int) -> str | None:
        """Return the path of an object, "" of the root; None if the root does not reach it or the
        path is very long."""
        depth, length, _ = self._sizes.get(number, (DEPTH_MAX + 1, 0, False))
        if depth > DEPTH_MAX or length > LENGTH_MAX:
            return None
        return self.path(number) if number else ""


class TensorNames:
    """All names of the tensors of a checkpoint: as they are stored, the paths of their objects, and
    both as they are printed.

    Attributes:
        reader: the checkpoint.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader._by_stored_names()

    @cached_property
    def stored(self) -> list[str]:
        """The stored names, in key order."""
        return list(self.reader)

    @property
    def aliases(self) -> dict[str, list[str]]:
        """The paths of each tensor that has an object, by its stored name. Damage of the object
        graph leaves them out."""
        return self._paths.aliases

    @cached_property
    def _paths(self) -> _Paths:
        graph = None
        with contextlib.suppress(CkptfmtError):
            graph = graph_of(self.reader)
        return _Paths({}, {}, []) if graph is None else self._named(graph)

    def _named(self, graph: ObjectGraph) -> _Paths:
        aliases: dict[str, list[str]] = {}
        table = self.reader.table()
        shapes = dict(zip(self.stored, table["shape"].tolist(), strict=True))
        paths = ObjectPaths(graph, optimizer_nodes(graph, shapes))
        instead: dict[str, str] = {}
        left = PATHS_SIZE_MAX + PATHS_PER_NAME * sum(map(len, self.stored))

        def add(number: int, child: int, path: str, label: str) -> None:
            nonlocal left
            path = f"{path}/{label}" if path else label
            if len(path) > min(LENGTH_MAX, left):
                return
            for one in graph.nodes[child].attributes:
                key = one.checkpoint_key
                if key not in shapes:
                    continue
                name = path if one.name == VARIABLE_VALUE else f"{path}/{ATTRIBUTES}/{one.name}"
                listed = aliases.setdefault(key, [])
                if name not in listed[-ALIASES_MAX:]:
                    listed.append(name)
                    left -= len(name)
                if name == leaf_name(key) and paths.is_state(number) and not paths.is_state(child):
                    instead[key] = paths.whole_path(child) or name

        for number in paths.order:
            path = paths.whole_path(number)
            if path is None:
                continue
            for name, child in graph.nodes[number].children:
                add(number, child, path, escape(name))
            for _, label, slot in paths.slots(number):
                add(number, slot, path, label)
                add(number, slot, "", label)
        # A name that two tensors would have is nobody's.
        taken = Counter([*map(leaf_name, shapes.keys() - instead.keys()), *instead.values()])
        shown = {key: name for key, name in instead.items() if taken[name] == 1}
        return _Paths(aliases, shown, graph.nodes)

    @cached_property
    def _by_path(self) -> dict[str, list[str]]:
        """The stored names by the paths of their objects."""
        found: dict[str, list[str]] = {}
        for stored, paths in self.aliases.items():
            for path in paths:
                found.setdefault(path, []).append(stored)
        return found

    @property
    def nodes(self) -> list[Node]:
        """The nodes of the object graph; none if there is none, or it is damaged."""
        return self._paths.nodes

    @property
    def elsewhere(self) -> Mapping[str, str]:
        """The shown names of tensors by stored name, where `leaf_name` does not give them."""
        return self._paths.shown

    def shown(self, name: str) -> str:
        """Return the name under which people look for a tensor, not escaped. Two tensors never
        have the same."""
        found = self._paths.shown.get(name)
        if found is not None:
            return found
        short = leaf_name(name)
        return name if short != name and short in self.reader else short

    def _at(self, path: str) -> Iterator[str]:
        """Yield the stored name of the variable at a path of the object graph, which may lead
        through any of the objects' names."""
        nodes, number = self._paths.nodes, 0
        for label in path.split("/") if nodes else ():
            names = (child for name, child in nodes[number].children if escape(name) == label)
            following = next(names, None)
            if following is None:
                return
            number = following
        for one in nodes[number].attributes if number else ():
            if one.name == VARIABLE_VALUE and one.checkpoint_key in self.reader:
                yield one.checkpoint_key

    def all_of(self, name: str) -> list[str]:
        """Return all names of a tensor, the stored one first."""
        found = [name, *self.aliases.get(name, [])]
        short = leaf_name(name)
        return found if short in found else [*found, short]

    def passing(self, given: Filter, what: str = "filter") -> Callable[[str], object]:
        """Return a function that says of a stored name whether its tensor passes a filter: by the
        stored name, or by any of its other names. A str that is a name means the tensors of that
        name. A pattern finds no slot variable by its path, which ends with that of its variable:
        `*/w` has no slots of `w`.

        Raises:
            InvalidError: not a filter.
        """
        passes = filter_function(given, what=what)
        assert passes is not None, "None is no filter"
        if isinstance(given, str) and (named := set(self._found(given))):
            return named.__contains__

        def passes_any(name: str) -> bool:
            if passes(name):
                return True
            others = self.all_of(name)[1:]
            return any(passes(one) and not self._is_of_slot(name, one) for one in others)

        return passes_any

    def _is_of_slot(self, name: str, alias: str) -> bool:
        """Return whether an alias of a stored name is a path through a slot of an optimizer."""
        return f"/{OPTIMIZER_SLOT}/" in f"/{alias}" and alias != leaf_name(name)

    def passing_of_load(self, given: Filter, what: str = "filter") -> Callable[[str], object]:
        """Return the function of a filter as `passing`; a function is called with stored names."""
        return given if callable(given) else self.passing(given, what)

    def find(self, given: str) -> str:
        """Return the stored name of the tensor of this name.

        Raises:
            InvalidError: several tensors have it.
            TensorNotFoundError: no tensor has it.
        """
        found = self._found(given)
        if not found:
            hint = self.reader._part_hint(given)
            if not hint and self.reader.header.index_size <= LISTED_FOR_A_HINT_MAX:
                with contextlib.suppress(CkptfmtError):  # damage elsewhere in the index
                    hint = near(given, list(map(self.shown, self.stored)))
            raise TensorNotFoundError(
                f"not found in checkpoint{hint}",
                path=index_name(self.reader.prefix),
                tensor=given,
            )
        return self._only(given, found)

    def __contains__(self, given: str) -> bool:
        """Whether a tensor, or several, have this name."""
        return bool(self._found(given))

    def _only(self, given: str, found: list[str]) -> str:
        if len(found) > 1:
            raise InvalidError(
                f"{given!r} is a name of {len(found)} tensors: {some(found)}; give one of these",
                path=self.reader.prefix,
            )
        return found[0]

    def _exact(self, given: str) -> str | None:
        """Return a stored name that is this one, or has it before its suffix."""
        return next((one for one in (given, given + VALUE_SUFFIX) if one in self.reader), None)

    def _found(self, given: str) -> list[str]:
        """Return the stored names of the tensors of this name."""
        if given.startswith(RESERVED):  # of the format, and no object's
            return [given] if given in self.reader else []
        if exact := self._exact(given):
            return [exact]
        found = list(dict.fromkeys(self._by_path.get(given) or self._at(given)))
        if not found and "\\" in given:
            found = [
                name
                for name in self.stored
                if any(printable(one) == given for one in self.all_of(name))
            ]
        return found


class _Paths(NamedTuple):
    """What an object graph says of names.

    Attributes:
        aliases: the paths of each tensor, by its stored name.
        shown: by stored name, of the tensors that are shown under the path of another object.
        nodes: of the graph.
    """

    aliases: dict[str, list[str]]
    shown: dict[str, str]
    nodes: list[Node]
