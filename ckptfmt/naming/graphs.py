# SPDX-License-Identifier: Apache-2.0
"""The object graph of a checkpoint whose tensors are renamed or dropped.

Nothing here opens a file. The graph is not trusted; nothing recurses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ckptfmt._base.hints import some
from ckptfmt.bundle.graph import (
    ATTRIBUTES,
    NONE,
    OPTIMIZER_SLOT,
    Attribute,
    Node,
    ObjectGraph,
    SlotVariable,
    escape,
    mark_checkpoint_values,
    object_path,
    unescape,
)
from ckptfmt.bundle.graph_keys import (
    graph_of,
    key_groups,
    reached,
    read_graph_bytes,
    wanted_keys,
)
from ckptfmt.bundle.reader import Reader
from ckptfmt.errors import CkptfmtError, InvalidError
from ckptfmt.naming.roles import optimizer_nodes

# No path of more names is made up.
DEPTH_MAX = 1000

# An edge of the graph: a node, and the local name of a child.
_Edge = tuple[int, str]


def edited_graph(
    graph: ObjectGraph, new_names: Mapping[str, str | None], *, cut_optimizers: bool = False
) -> ObjectGraph:
    """Return the graph of a checkpoint after its tensors were renamed and dropped.

    An attribute whose tensor is dropped is removed, and with it objects that have nothing left. If
    the new name of a tensor is the key of an object at another path with as many parts, the objects
    on the path are renamed with it.

    Args:
        graph: the graph before; unchanged.
        new_names: the new name of every stored tensor; None if it is dropped.
        cut_optimizers: whether to remove the optimizers themselves, if all tensors that stay can
            be reached without them.

    Raises:
        InvalidError: only some of the tensors of an object that is stored as several are renamed or
            dropped, or are renamed so that they no longer have a common beginning; or only some of
            the tensors below an object are renamed to another path.
    """
    keys = _new_keys(graph, new_names)
    edges = _renamed_edges(graph, {old: new for old, new in keys.items() if new is not None})
    nodes: list[Node] = []
    lost: set[int] = set()
    for node_id, node in enumerate(graph.nodes):
        attributes = [
            Attribute(one.name, one.full_name, key)
            for one in node.attributes
            if (key := keys.get(one.checkpoint_key, one.checkpoint_key)) is not None
        ]
        if len(attributes) < len(node.attributes):
            lost.add(node_id)
        children = [(edges.get((node_id, name), name), child) for name, child in node.children]
        slots = list(node.slot_variables)
        nodes.append(replace(node, children=children, attributes=attributes, slot_variables=slots))
    _prune(nodes, lost)
    for node_id in {node_id for node_id, _ in edges}:
        _check_distinct(nodes[node_id].children)
    result = ObjectGraph(nodes)
    if cut_optimizers:
        _cut(result, optimizer_nodes(graph))
    result = _compacted(result)
    if any(node.has_checkpoint_values is not None for node in graph.nodes):
        mark_checkpoint_values(result)
    return result


def graphs_equal(a: Reader, b: Reader, renamed: Callable[[str], str] | None = None) -> bool:
    """Return whether the object graphs of two checkpoints, which both have one, have the same
    objects, keys and slots after the tensors of A are renamed, however they are stored. Without new
    names, equal bytes are equal graphs, also damaged ones."""
    if renamed is None and read_graph_bytes(a) == read_graph_bytes(b):
        return True
    try:
        one, other = (
            edited_graph(graph_of(reader) or ObjectGraph(), {name: new(name) for name in reader})
            for reader, new in ((a, renamed or str), (b, str))
        )
    except CkptfmtError:
        return False
    return _unordered(one) == _unordered(other)


def _unordered(graph: ObjectGraph) -> list[Any]:
    """Return the contents of a graph, independent of the order of its nodes and their lists."""
    numbers: dict[int, int] = {}

    def visit(number: int) -> None:
        waiting = [number]
        for one in waiting:
            if one not in numbers:
                numbers[one] = len(numbers)
                waiting += [child for _, child in sorted(graph.nodes[one].children)]

    if graph.nodes:
        visit(0)
    for number in [*numbers]:
        slots = graph.nodes[number].slot_variables
        originals = (numbers.get(one.original_variable_node_id, -1) for one in slots)
        named = ((one.slot_name, one.slot_variable_node_id) for one in slots)
        for _, (_, slot) in sorted(zip(originals, named, strict=True)):
            visit(slot)
    for number in range(len(graph.nodes)):
        visit(number)
    return [
        (
            sorted((name, numbers[child]) for name, child in node.children),
            sorted((one.name, one.full_name, one.checkpoint_key) for one in node.attributes),
            sorted(
                (
                    numbers[one.original_variable_node_id],
                    one.slot_name,
                    numbers[one.slot_variable_node_id],
                )
                for one in node.slot_variables
            ),
            node.registered_saver,
            node.kind,
        )
        for node in map(graph.nodes.__getitem__, numbers)
    ]


def paths_differ(graph: ObjectGraph, other: ObjectGraph) -> bool:
    """Return whether two graphs have other objects, or the same at other paths."""
    return [node.children for node in graph.nodes] != [node.children for node in other.nodes]


def relocate_keys(
    graph: ObjectGraph, edited: ObjectGraph, tensors: Iterable[str]
) -> dict[str, str]:
    """Give tensors whose keys were paths of objects new keys where an edit has removed the path, as
    a save of the objects that are left would: Keras 3 has variables of the model at paths of the
    optimizer.

    Args:
        graph: the graph before.
        edited: the graph after, which is changed.
        tensors: the names of the tensors that are left.

    Returns:
        New keys by old key, of tensors.
    """
    before, after = ([dict(node.children) for node in one.nodes] for one in (graph, edited))
    owners: dict[int, tuple[int, str]] = {}
    order = [0]
    for number in order:
        for name, child in edited.nodes[number].children:
            if child and child not in owners:
                owners[child] = number, name
                order.append(child)
    found: dict[str, str] = {}
    stored = set(tensors)
    taken = stored.union(one.checkpoint_key for node in edited.nodes for one in node.attributes)
    for number in order:
        for one in edited.nodes[number].attributes:
            parts = _path_of(one.checkpoint_key)
            if parts is None or _edges(after, parts, parts) or not _edges(before, parts, parts):
                continue
            path = _path_to(owners, number)
            new = f"{path}/{ATTRIBUTES}/{one.checkpoint_key.rpartition('/')[2]}"
            if path and one.checkpoint_key in stored and new not in taken:
                taken.add(new)
                found[one.checkpoint_key] = new
                one.checkpoint_key = new
    return found


def _path_to(owners: Mapping[int, tuple[int, str]], number: int) -> str:
    """Return the path of an object; "" if it is too deep, or the root."""
    names: list[str] = []
    while number and len(names) < DEPTH_MAX:
        number, name = owners[number]
        names.append(name)
    return "" if number else object_path(reversed(names))


# ---- keys ----------------------------------------------------------------------------------------


def _new_keys(graph: ObjectGraph, new_names: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the new keys of all attributes that have tensors. A key may stand for several."""
    found: dict[str, str | None] = {}
    keys = wanted_keys(graph, range(len(graph.nodes)))
    missing = [key for key in keys if key not in new_names]
    groups = key_groups(missing, sorted(set(new_names).difference(keys))) if missing else {}
    for key in keys:
        if key in new_names:
            found[key] = new_names[key]
        elif key in groups:
            found[key] = _group_key(key, groups[key], new_names)
    return found


def _group_key(key: str, group: list[str], new_names: Mapping[str, str | None]) -> str | None:
    """Return the new key of tensors that the graph names by their common beginning."""
    possible: set[str | None] = set()
    for name in group:
        new, suffix = new_names[name], name[len(key) :]
        if new is not None and not new.endswith(suffix):
            break
        possible.add(None if new is None else new.removesuffix(suffix))
    else:
        if len(possible) == 1:
            return possible.pop()
    raise InvalidError(
        f"the object graph refers to {some(group)} by their common beginning: rename all of them, "
        "keeping their endings, or drop all of them",
        tensor=group[0],
    )


# ---- paths ---------------------------------------------------------------------------------------


def _path_of(key: str) -> list[str] | None:
    """Return the local names that lead to the object of a key, still escaped; None if the key does
    not say, as that of a slot variable."""
    path, found, _ = key.rpartition(f"/{ATTRIBUTES}/")
    parts = path.split("/")
    return parts if found and OPTIMIZER_SLOT not in parts else None


def _renamed_edges(graph: ObjectGraph, keys: Mapping[str, str]) -> dict[_Edge, str]:
    """Return the edges whose names change, so that objects are found at the paths of their new
    keys."""
    children = [dict(node.children) for node in graph.nodes]
    wanted: dict[_Edge, dict[str, str]] = {}
    changed: dict[_Edge, str] = {}
    for old, new in keys.items():
        before, after = _path_of(old), _path_of(new)
        if before is None or after is None or len(before) != len(after):
            continue
        for edge, name in _edges(children, before, after):
            wanted.setdefault(edge, {}).setdefault(name, old)
            if name != edge[1]:
                changed[edge] = name
    for edge in changed:
        if len(wanted[edge]) > 1:
            places = list(wanted[edge].items())[:3]
            shown = "; ".join(f"{old!r} to '{escape(name)}'" for name, old in places)
            raise InvalidError(
                f"the new names move the object '{escape(edge[1])}' of the object graph to "
                f"different places: {shown}; rename all tensors below it alike"
            )
    return changed


def _edges(
    children: list[dict[str, int]], before: list[str], after: list[str]
) -> list[tuple[_Edge, str]]:
    """Return the edges along a path with their new names; none if the path is not in the graph."""
    found, node_id = [], 0
    for old, new in zip(before, after, strict=True):
        try:
            local, renamed = unescape(old), unescape(new)
        except InvalidError:
            return []
        child = children[node_id].get(local)
        if child is None:
            return []
        found.append(((node_id, local), renamed))
        node_id = child
    return found


def _check_distinct(children: list[tuple[str, int]]) -> None:
    counts = Counter(name for name, _ in children)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise InvalidError(f"the new names give two objects of the object graph the path '{twice}'")


# ---- nodes ---------------------------------------------------------------------------------------


def _prune(nodes: list[Node], lost: set[int]) -> None:
    """Remove the references to nodes that lost their tensors and have nothing else, and to nodes
    that only lead to such. An element of a list or tuple becomes None instead."""
    parents: dict[int, list[int]] = {}
    owners: dict[int, list[SlotVariable]] = {}
    optimizer_of: dict[int, list[int]] = {}
    uses = [0] * len(nodes)  # as the variable of a slot
    rest = [len(node.children) + len(node.slot_variables) for node in nodes]
    for node_id, node in enumerate(nodes):
        for _, child in node.children:
            parents.setdefault(child, []).append(node_id)
        for slot in node.slot_variables:
            owners.setdefault(slot.slot_variable_node_id, []).append(slot)
            optimizer_of.setdefault(slot.slot_variable_node_id, []).append(node_id)
            uses[slot.original_variable_node_id] += 1
    waiting, gone = list(lost), set[int]()
    while waiting:
        node_id = waiting.pop()
        node, above = nodes[node_id], parents.get(node_id, [])
        if node.attributes or node.registered_saver or rest[node_id] or uses[node_id]:
            continue
        if node_id in gone or node_id == 0:
            continue
        if any(nodes[parent].kind in ("list", "tuple") for parent in above):
            node.kind = NONE
            continue
        gone.add(node_id)
        for slot in owners.get(node_id, ()):
            uses[slot.original_variable_node_id] -= 1
            if slot.original_variable_node_id in lost:
                waiting.append(slot.original_variable_node_id)
        for other in (*above, *optimizer_of.get(node_id, ())):
            rest[other] -= 1
            waiting.append(other)
    for node in nodes if gone else ():
        node.children = [edge for edge in node.children if edge[1] not in gone]
        slots = node.slot_variables
        node.slot_variables = [one for one in slots if one.slot_variable_node_id not in gone]


def _cut(graph: ObjectGraph, optimizers: set[int]) -> None:
    """Remove optimizers, unless a tensor is found only through them."""
    nodes = graph.nodes
    seen = _reached(nodes, optimizers)
    if any(node.attributes and number not in seen for number, node in enumerate(nodes)):
        return
    for node in nodes:
        node.children = [edge for edge in node.children if edge[1] not in optimizers]
    for one in optimizers:
        nodes[one].slot_variables = []


def _reached(nodes: list[Node], but: set[int]) -> set[int]:
    def following(number: int) -> list[int]:
        found = [child for _, child in nodes[number].children]
        found += [slot.slot_variable_node_id for slot in nodes[number].slot_variables]
        return [one for one in found if one not in but]

    return set(reached([0], following))


def _compacted(graph: ObjectGraph) -> ObjectGraph:
    """Return the graph without the nodes that the root does not reach and that have nothing."""
    nodes = graph.nodes
    seen = _reached(nodes, set())
    originals = {
        slot.original_variable_node_id for number in seen for slot in nodes[number].slot_variables
    }
    stays = [
        number
        for number, node in enumerate(nodes)
        if number in seen or number in originals or node.attributes or node.registered_saver
    ]
    if len(stays) == len(nodes):
        return graph
    numbers = {old: new for new, old in enumerate(stays)}
    for old in stays:
        node = nodes[old]
        node.children = [
            (name, numbers[child]) for name, child in node.children if child in numbers
        ]
        node.slot_variables = [
            SlotVariable(
                numbers[slot.original_variable_node_id],
                slot.slot_name,
                numbers[slot.slot_variable_node_id],
            )
            for slot in node.slot_variables
            if slot.original_variable_node_id in numbers and slot.slot_variable_node_id in numbers
        ]
    return ObjectGraph([nodes[old] for old in stays])
