# SPDX-License-Identifier: Apache-2.0
"""Section 5 of lifecycle.md: the object graph."""

from __future__ import annotations

from .messages import Message, decode, one_field, schema
from .rules import LIMITS, need, silent

CHILD = schema("1 node_id int32, 2 local_name string")
ATTRIBUTE = schema("1 name string, 2 full_name string, 3 checkpoint_key string")
SLOT = schema(
    "1 original_variable_node_id int32, 2 slot_name string, 3 slot_variable_node_id int32"
)
NODE = schema(
    "1 child CHILD*, 2 attribute ATTRIBUTE*, 3 slot SLOT*, 4 registered_saver SAVER,"
    "5 has_checkpoint_values HAS, 20001 kind string",
    CHILD=CHILD,
    ATTRIBUTE=ATTRIBUTE,
    SLOT=SLOT,
    SAVER=schema("1 name string, 2 object_name string"),
    HAS=schema("1 value bool"),
)


def decode_graph(message: bytes) -> list[Message]:
    """The nodes of an object graph: dicts of the fields that occur, lists always there."""
    need(len(message) <= LIMITS["graph_bytes"], "OBJ-3", "LIMIT", f"graph of {len(message)} bytes")
    nodes: list[Message] = []
    inner = pos = 0
    while pos < len(message):
        number, wire, value, pos = one_field(message, pos, len(message), silent, loose=True)
        if (number, wire) != (1, 2):
            continue
        need(len(nodes) < LIMITS["nodes"], "OBJ-3", "LIMIT", "too many nodes")
        node = decode(message, value[0], value[1], NODE, silent, loose=True)
        for name, kind in (("child", CHILD), ("attribute", ATTRIBUTE), ("slot", SLOT)):
            blank = {n: 0 if k == "int32" else "" for n, k, _ in kind.values()}
            node[name] = [blank | item for item in node.get(name, [])]
            inner += len(node[name])
        need(inner <= LIMITS["node_fields"], "OBJ-3", "LIMIT", "too much in nodes")
        nodes.append(node)
    need(nodes, "OBJ-4", "BAD_PROTO", "no node")
    for i, node in enumerate(nodes):
        ids = [child["node_id"] for child in node["child"]]
        ids += [slot["original_variable_node_id"] for slot in node["slot"]]
        ids += [slot["slot_variable_node_id"] for slot in node["slot"]]
        need(all(0 <= x < len(nodes) for x in ids), "OBJ-4", "BAD_PROTO", f"node {i}: an id")
        for names in (
            [child["local_name"] for child in node["child"]],
            [attribute["name"] for attribute in node["attribute"]],
            [(slot["original_variable_node_id"], slot["slot_name"]) for slot in node["slot"]],
        ):
            need(len(set(names)) == len(names), "OBJ-5", "BAD_PROTO", f"node {i}: a name twice")
    return nodes
