# SPDX-License-Identifier: Apache-2.0
"""Print `inspect --tree` of a checkpoint with an object graph.

An object and its tensors are shown at the shortest path from the root; other references, cycles
included, name that path. Slot variables are shown below their optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ckptfmt import CkptfmtError, Finding, Reader
from ckptfmt.cli import text
from ckptfmt.cli.contents import Contents, Tensors, finding_of
from ckptfmt.cli.inspect_tree import ASCII_LINES, DEPTH_MAX, LINES, write_rows
from ckptfmt.cli.output import Output
from ckptfmt.objects.build import graph_of, key_groups
from ckptfmt.objects.graph import (
    ATTRIBUTES,
    OPTIMIZER_SLOT,
    VARIABLE_VALUE,
    Node,
    ObjectGraph,
    escape,
)
from ckptfmt.objects.nodes import NONE

__all__ = ["Objects", "objects_of", "show"]

MISSING = "missing"


class Objects(NamedTuple):
    """An object graph, and the tensors of attributes that were saved as several, by key."""

    graph: ObjectGraph
    groups: dict[str, list[str]]

    def tensors(self, node: Node) -> Iterator[tuple[str, str]]:
        """Yield label and name of each tensor of an object."""
        for one in node.attributes:
            for name in self.groups.get(one.checkpoint_key, [one.checkpoint_key]):
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
    keys = [one.checkpoint_key for node in graph.nodes for one in node.attributes]
    missing = [key for key in dict.fromkeys(keys) if key not in reader]
    groups = key_groups(missing, sorted(set(reader).difference(keys))) if missing else {}
    missing = [key for key in missing if key not in groups]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        message = f"the object graph refers to this missing tensor{more}"
        contents.problems.append(
            Finding(
                "problem", "CORRUPT", "BAD_ENTRY", message, contents.index_path, None, missing[0]
            )
        )
    return Objects(graph, groups)


class _Line(NamedTuple):
    """One line: a tensor (its row, or MISSING), an object, or a reference to another path."""

    label: str
    kind: str = ""
    row: int | str | None = None
    node: int | None = None


class _Shown:
    """The objects reachable from the root, with totals of the tensors shown."""

    def __init__(self, objects: Objects, tensors: Tensors, *, filtered: bool) -> None:
        self.objects, self.nodes = objects, objects.graph.nodes
        self.tensors, self.filtered = tensors, filtered
        self.rows = {name: row for row, name in enumerate(tensors.names)}
        # Parent and edge by which each object was reached first.
        self.owners: dict[int, tuple[int, str]] = {0: (0, "")}
        self.counts: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self._sum_up(self._met())

    def _met(self) -> list[int]:
        """Return the objects breadth first; those reachable only through slots come last."""
        order, first = [0], 0
        while first < len(order):
            at = first
            while at < len(order):
                for name, child in self.nodes[order[at]].children:
                    self._own(order, order[at], escape(name), child)
                at += 1
            for node_id in order[first:]:
                for label, slot_id in self._slots(node_id):
                    self._own(order, node_id, label, slot_id)
            first = at
        return order

    def _own(self, order: list[int], parent: int, label: str, child: int) -> None:
        if child not in self.owners:
            self.owners[child] = (parent, label)
            order.append(child)

    def _slots(self, node_id: int) -> Iterator[tuple[str, int]]:
        for slot in self.nodes[node_id].slot_variables:
            variable = self.path(slot.original_variable_node_id)
            yield (
                f"{OPTIMIZER_SLOT}/{escape(slot.slot_name)} of {variable}",
                (slot.slot_variable_node_id),
            )

    def _sum_up(self, order: list[int]) -> None:
        self.counts, self.sizes = dict.fromkeys(order, 0), dict.fromkeys(order, 0)
        for node_id in reversed(order):
            for _, key in self.objects.tensors(self.nodes[node_id]):
                row = self.rows.get(key)
                if row is not None:
                    self.counts[node_id] += 1
                    self.sizes[node_id] += self.tensors.nbytes[row]
            if node_id:
                parent = self.owners[node_id][0]
                self.counts[parent] += self.counts[node_id]
                self.sizes[parent] += self.sizes[node_id]

    def path(self, node_id: int) -> str:
        """Where an object stands in the tree."""
        if node_id == 0:
            return "(root)"
        if node_id not in self.owners:
            return "(nothing that the root leads to)"
        labels: list[str] = []
        while node_id and len(labels) < DEPTH_MAX:
            node_id, label = self.owners[node_id]
            labels.append(label)
        return "/".join(["..."] * bool(node_id) + labels[::-1])

    def inside(self, node_id: int) -> list[_Line]:
        """The lines right below an object: its tensors, its children, its slot variables."""
        node = self.nodes[node_id]
        found = [
            _Line(f"{ATTRIBUTES}/{label}", row=self.rows.get(key, MISSING))
            for label, key in self.objects.tensors(node)
        ]
        found += [self._line(node_id, escape(name), child) for name, child in node.children]
        found += [self._line(node_id, label, child) for label, child in self._slots(node_id)]
        return [line for line in found if not self.filtered or self._holds(line)]

    def _holds(self, line: _Line) -> bool:
        """Whether something that was asked for is in this line or below it."""
        return isinstance(line.row, int) or (line.node is not None and self.counts[line.node] > 0)

    def _line(self, parent: int, label: str, child: int) -> _Line:
        if self.owners[child] != (parent, label):
            return _Line(f"{label} -> {self.path(child)}")
        node = self.nodes[child]
        edges = node.children or node.slot_variables or node.registered_saver
        own = list(self.objects.tensors(node))
        if not edges and [name for name, _ in own] == [VARIABLE_VALUE]:
            return _Line(label, _kind(node), self.rows.get(own[0][1], MISSING))
        return _Line(label if node.kind == NONE else f"{label}/", _kind(node), node=child)

    def nbytes(self, line: _Line) -> int:
        if isinstance(line.row, int):
            return self.tensors.nbytes[line.row]
        return 0 if line.node is None else self.sizes[line.node]


def _kind(node: Node) -> str:
    if node.registered_saver is not None:
        return f"saved by {text.printable(node.registered_saver[0])}"
    return text.printable(node.kind or "")


def _walk(
    shown: _Shown, outside: list[_Line], lines: tuple[str, str, str, str], by_size: bool
) -> Iterator[tuple[str, _Line]]:
    """Every line, with its label behind the lines of the tree; without recursion."""

    def ordered(found: list[_Line]) -> list[_Line]:
        return sorted(found, key=lambda line: -shown.nbytes(line)) if by_size else found

    waiting = [("", number == 0, line) for number, line in enumerate(reversed(outside))]
    top = ordered(shown.inside(0))
    waiting += [("", not outside and line is top[-1], line) for line in reversed(top)]
    depth = len(lines[0])
    while waiting:
        indent, last, line = waiting.pop()
        inner = [] if line.node is None else ordered(shown.inside(line.node))
        cut = bool(inner) and len(indent) >= DEPTH_MAX * depth
        label = f"{indent}{lines[1 if last else 0]}{text.printable(line.label)}"
        yield f"{label} ..." if cut else label, line
        if not cut:
            below = indent + lines[3 if last else 2]
            waiting += [(below, one is inner[-1], one) for one in reversed(inner)]


def show(
    out: Output,
    objects: Objects,
    tensors: Tensors,
    limit: int | None,
    *,
    by_size: bool,
    filtered: bool,
) -> None:
    """One line an object and one a tensor; `limit` counts the tensors. Those that no object has
    come last, under their whole names."""
    lines = LINES if out.fits("".join(LINES)) else ASCII_LINES
    shown = _Shown(objects, tensors, filtered=filtered)
    named = {
        key for node_id in shown.owners for _, key in objects.tensors(objects.graph.nodes[node_id])
    }
    outside = [_Line(name, row=row) for name, row in shown.rows.items() if name not in named]
    rows: list[tuple[str, str, str, str, str, str]] = []
    seen: set[int] = set()
    for label, line in _walk(shown, outside, lines, by_size):
        if limit is not None and len(seen) >= limit:
            break
        count = nbytes = dtype = shape = ""
        if isinstance(line.row, int):
            seen.add(line.row)
            nbytes = text.size(tensors.nbytes[line.row])
            dtype, shape = tensors.dtypes[line.row], text.shape(tensors.shapes[line.row])
        elif line.row is not None:
            dtype = line.row
        elif line.node is not None:
            count, nbytes = f"{shown.counts[line.node]:,}", text.size(shown.sizes[line.node])
        rows.append((label, count, nbytes, dtype, shape, line.kind))
    write_rows(out, ("name", "tensors", "bytes", "dtype", "shape", "kind"), rows)
    if len(seen) < len(tensors):
        out.line(f"... and {text.plural(len(tensors) - len(seen), 'tensor')} more")
    out.line()
