# SPDX-License-Identifier: Apache-2.0
"""The object graph of a checkpoint beside its tensors: which keys it names, and which are missing.

A graph is not trusted: it may have cycles and chains of millions of nodes. Nothing here recurses,
and the cost is linear in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ckptfmt._base.dtypes import STRING, name_of
from ckptfmt._core import ReaderHandle
from ckptfmt.bundle.graph import (
    ATTRIBUTES,
    OBJECT_CONFIG_JSON,
    OBJECT_GRAPH_KEY,
    ObjectGraph,
    decode_graph,
)
from ckptfmt.bundle.tensor import Opened
from ckptfmt.errors import CorruptError, LimitError, UnsupportedError

# The longest suffix that the names of an attribute's tensors add to its key.
SUFFIX_MAX = 256
_KEY = OBJECT_GRAPH_KEY.encode()


def graph_bytes(handle: ReaderHandle, path: str, mode: int) -> bytes | None:
    """Return the encoded object graph of a checkpoint; None if it has none.

    Args:
        path: the checkpoint, for errors.
        mode: how the read is verified.

    Raises:
        CorruptError: the tensor of that name is not a string.
    """
    if not handle.contains(_KEY):
        return None
    selection = handle.select_one(_KEY)
    record = selection.record(0)
    dtype = name_of(record.dtype)
    if dtype != STRING or record.shape:
        raise CorruptError(
            f"OBJ-1: the object graph is {dtype}{list(record.shape)}, not one string",
            failure="BAD_ENTRY",
            path=path,
            tensor=OBJECT_GRAPH_KEY,
        )
    return handle.read_strings(selection, 0, None, mode)[0]


def read_graph_bytes(reader: Opened) -> bytes | None:
    """Return the encoded object graph of an open checkpoint, as `graph_bytes`."""
    if OBJECT_GRAPH_KEY in reader._forgotten:
        return None
    return graph_bytes(reader._handle, reader.prefix, reader._default_mode)


def graph_of(reader: Opened) -> ObjectGraph | None:
    """Return the object graph of a checkpoint; None if it has none."""
    content = read_graph_bytes(reader)
    return None if content is None else decode_graph(content, reader.prefix)


def missing_keys(stored: Iterable[str], graph: ObjectGraph) -> list[str]:
    """Return the tensors that the object graph names and are not among the stored ones.

    TensorFlow saves an uninitialised variable so: its object is in the graph, its value is not
    stored. Restoring it fails, restoring the other objects does not. Otherwise the checkpoint lost
    these tensors. The configurations of Keras objects, which nothing restores, do not count.
    """
    found = reachable(graph)
    missing, groups = _absent(stored, wanted_keys(graph, found))
    if not missing:
        return []
    configurations = {
        one.checkpoint_key
        for number in found
        for one in graph.nodes[number].attributes
        if one.name == OBJECT_CONFIG_JSON
    }
    return [key for key in missing if key not in groups and key not in configurations]


def missing_tensors(reader: Opened) -> tuple[str, ...]:
    """Return the tensors that the object graph names and the checkpoint does not have; none if
    there is no graph, or it cannot be decoded."""
    try:
        graph = graph_of(reader)
    except (CorruptError, LimitError, UnsupportedError):
        return ()
    return () if graph is None else tuple(missing_keys(reader, graph))


def _absent(names: Iterable[str], keys: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the keys that are not tensors, and the tensors of those that stand for several."""
    stored = set(names)
    missing = [key for key in keys if key not in stored]
    if not missing:
        return [], {}
    return missing, key_groups(missing, sorted(stored.difference(keys)))


def stored_keys(
    stored: Iterable[str], graph: ObjectGraph, found: Iterable[int], strict: bool
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the tensors of these nodes, and those of keys that stand for several.

    Args:
        stored: the names of all tensors.
        strict: whether a missing key is returned as well, so that reading it fails.
    """
    keys = wanted_keys(graph, found)
    missing, groups = _absent(stored, keys)
    if not strict:
        absent = set(missing).difference(groups)
        keys = [key for key in keys if key not in absent]
    return [name for key in keys for name in groups.get(key, [key])], groups


def reachable(graph: ObjectGraph) -> list[int]:
    """Return the nodes that the root reaches through children and slot variables, breadth
    first."""

    def following(node_id: int) -> list[int]:
        node = graph.nodes[node_id]
        found = [child for _, child in node.children]
        for slot in node.slot_variables:
            found += (slot.original_variable_node_id, slot.slot_variable_node_id)
        return found

    return reached([0], following)


def reached(start: Iterable[int], following: Callable[[int], Iterable[int]]) -> list[int]:
    """Return the nodes that these lead to, themselves included, breadth first."""
    found = list(dict.fromkeys(start))
    seen = set(found)
    for node_id in found:
        for one in following(node_id):
            if one not in seen:
                seen.add(one)
                found.append(one)
    return found


def wanted_keys(graph: ObjectGraph, found: Iterable[int]) -> list[str]:
    """Return the keys of these nodes, each once."""
    keys = (one.checkpoint_key for node_id in found for one in graph.nodes[node_id].attributes)
    return list(dict.fromkeys(keys))


def key_groups(keys: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """Return the tensors of keys that are not tensors themselves: those whose names are the key and
    a suffix without a slash, or the key of an attribute and `/...`. A name belongs to the longest
    key that it begins with.

    An object of TensorFlow with several tensors has one key in the graph; for a table the tensors
    are `<key>-keys` and `<key>-values`.
    """
    found: dict[str, list[str]] = {key: [] for key in keys if "/" in key}
    for name in names if found else ():
        for end in _group_ends(name):
            if name[:end] in found:
                found[name[:end]].append(name)
                break
    return {key: group for key, group in found.items() if group}


def _group_ends(name: str) -> Iterator[int]:
    """Yield the lengths of the keys of which a tensor may be one of several, the longest first."""
    shortest = max(0, len(name) - SUFFIX_MAX)
    slash = name.rfind("/")
    yield from range(len(name) - 1, max(slash, shortest - 1), -1)
    attribute = name.find(f"/{ATTRIBUTES}/")
    while 0 <= attribute < slash - len(ATTRIBUTES) - 1 and slash >= shortest:
        yield slash
        slash = name.rfind("/", 0, slash)
