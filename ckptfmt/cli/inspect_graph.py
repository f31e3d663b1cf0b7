# SPDX-License-Identifier: Apache-2.0
"""The lines of `inspect --tree` of a checkpoint with an object graph.

An object and its tensors are shown at the shortest path from the root that does not go through an
optimizer, if there is one; other references, cycles included, name that path. Slot variables are
shown below their optimizer. Objects without tensors are hidden, which are most of those of Keras.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from ckptfmt import CkptfmtError
from ckptfmt.bundle.graph import (
    ATTRIBUTES,
    NONE,
    VARIABLE_VALUE,
    Node,
    ObjectGraph,
    escape,
)
from ckptfmt.bundle.graph_keys import graph_of, key_groups, missing_keys
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.verify import MISSING_MESSAGE, MISSING_TENSOR, finding_of
from ckptfmt.cli import text
from ckptfmt.cli.contents import Contents, Tensors
from ckptfmt.cli.inspect_tree import Line
from ckptfmt.naming.roles import optimizer_nodes
from ckptfmt.naming.tensor_names import ObjectPaths
from ckptfmt.types import Finding

MISSING = "missing"


class Objects(NamedTuple):
    """An object graph, and the tensors of attributes that were saved as several, by key."""

    graph: ObjectGraph
    groups: dict[str, list[str]]
    # The node whose line shows a group: a hostile graph may name one group in every node.
    group_nodes: dict[str, Node]
    paths: ObjectPaths

    def tensors(self, node: Node) -> Iterator[tuple[str, str]]:
        """Yield label and name of each tensor of an object."""
        for one in node.attributes:
            group = self.groups.get(one.checkpoint_key, [one.checkpoint_key])
            if self.group_nodes.get(one.checkpoint_key, node) is not node:
                continue
            for name in group:
                yield escape(one.name) + name.removeprefix(one.checkpoint_key), name


def objects_of(reader: Reader, contents: Contents) -> Objects | None:
    """Return the object graph, or None; a graph that cannot be read is a problem."""
    try:
        graph = graph_of(reader)
    except CkptfmtError as error:
        contents.problems.append(finding_of(error))
        return None
    if graph is None:
        return None
    keys = dict.fromkeys(one.checkpoint_key for node in graph.nodes for one in node.attributes)
    stored = set(reader)
    missing = [key for key in keys if key not in stored]
    groups = key_groups(missing, sorted(stored.difference(keys))) if missing else {}
    missing = missing_keys(reader, graph)
    if missing:
        message = f"{len(missing)} such tensors; " if len(missing) > 1 else ""
        message += MISSING_MESSAGE
        where = contents.index_path, None, missing[0]
        contents.problems.append(Finding("problem", "CORRUPT", MISSING_TENSOR, message, *where))
    group_nodes: dict[str, Node] = {}
    for node in graph.nodes:
        for one in node.attributes:
            if one.checkpoint_key in groups:
                group_nodes.setdefault(one.checkpoint_key, node)
    table = reader.table()
    shapes = dict(zip(table["name"].tolist(), table["shape"].tolist(), strict=True))
    paths = ObjectPaths(graph, optimizer_nodes(graph, shapes))
    return Objects(graph, groups, group_nodes, paths)


class _Shown:
    """The objects reachable from the root, with totals of the tensors shown."""

    def __init__(
        self, objects: Objects, tensors: Tensors, filtered: bool, everything: bool
    ) -> None:
        self.objects, self.nodes = objects, objects.graph.nodes
        self.tensors, self.filtered = tensors, filtered
        self.everything = everything and not filtered
        self.rows = {name: row for row, name in enumerate(tensors.names)}
        order = objects.paths.order
        self.counts, self.elements, self.sizes = (dict.fromkeys(order, 0) for _ in range(3))
        # The root, and those that have a tensor, or lost one, themselves or below.
        self.filled = {0}
        self._sum_up(order)

    def _sum_up(self, order: list[int]) -> None:
        for node_id in reversed(order):
            for _, key in self.objects.tensors(self.nodes[node_id]):
                row = self.rows.get(key)
                if row is not None or not self.filtered:
                    self.filled.add(node_id)
                if row is not None:
                    self.counts[node_id] += 1
                    self.elements[node_id] += self.tensors.elements[row]
                    self.sizes[node_id] += self.tensors.nbytes[row]
            if node_id:
                parent = self.objects.paths.owners[node_id][0]
                if node_id in self.filled:
                    self.filled.add(parent)
                self.counts[parent] += self.counts[node_id]
                self.elements[parent] += self.elements[node_id]
                self.sizes[parent] += self.sizes[node_id]

    def inside(self, node_id: int) -> list[Line]:
        """Return the lines right below an object: its tensors, its children, its slot variables."""
        node = self.nodes[node_id]
        found = [
            self.tensor(f"{ATTRIBUTES}/{label}", self.rows.get(key))
            for label, key in self.objects.tensors(node)
        ]
        edges = [(edge, escape(name), child) for edge, (name, child) in enumerate(node.children)]
        edges += self.objects.paths.slots(node_id)
        found += [
            self._line(node_id, *edge)
            for edge in edges
            if self.everything or edge[2] in self.filled
        ]
        # With a filter, only what leads to a tensor that it chooses.
        return [one for one in found if not self.filtered or one.row is not None or one.count]

    def kind(self, node_id: int) -> str:
        """Return the type or the saver of an object; "" for most."""
        node = self.nodes[node_id]
        if not node_id:
            return ""
        if node.registered_saver is not None:
            return f"saved by {text.printable(node.registered_saver[0])}"
        return text.printable(node.kind or "")

    def tensor(self, label: str, row: int | None, kind: str = "") -> Line:
        """Return the line of a tensor; without a row it is missing."""
        if row is None:
            return Line(label, dtype=MISSING, kind=kind)
        elements, nbytes = self.tensors.elements[row], self.tensors.nbytes[row]
        return Line(label, row, elements=elements, nbytes=nbytes, kind=kind)

    def _line(self, parent: int, edge: int, label: str, child: int) -> Line:
        owner, _, owner_edge = self.objects.paths.owners[child]
        if (owner, owner_edge) != (parent, edge):
            return Line(f"{label} -> {self.objects.paths.path(child)}")
        node = self.nodes[child]
        kind = self.kind(child)
        edges = node.children or node.slot_variables or node.registered_saver
        own = list(self.objects.tensors(node))
        if not edges and [name for name, _ in own] == [VARIABLE_VALUE]:
            return self.tensor(label, self.rows.get(own[0][1]), kind)
        return Line(
            label if node.kind == NONE else f"{label}/",
            count=self.counts[child],
            elements=self.elements[child],
            nbytes=self.sizes[child],
            kind=kind,
            inside=functools.partial(self.inside, child),
        )


def lines(
    objects: Objects, tensors: Tensors, *, filtered: bool, everything: bool
) -> tuple[list[Line], int, bool]:
    """Return the lines of the root, how many objects are hidden, which have no tensors, and whether
    a line has a kind. Tensors that no object has are the last lines, under their whole names.

    Args:
        filtered: whether `tensors` are some that a filter chose.
        everything: whether objects without tensors are shown.
    """
    shown = _Shown(objects, tensors, filtered, everything)
    named = {
        key
        for node_id in objects.paths.owners
        for _, key in objects.tensors(objects.graph.nodes[node_id])
    }
    outside = [shown.tensor(name, row) for name, row in shown.rows.items() if name not in named]
    listed = objects.paths.owners.keys() if shown.everything else shown.filled
    hidden = 0 if filtered else len(objects.paths.owners) - len(listed)
    kinds = any(shown.kind(node_id) for node_id in listed)
    return [*shown.inside(0), *outside], hidden, kinds
