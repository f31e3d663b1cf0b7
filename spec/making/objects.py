# SPDX-License-Identifier: Apache-2.0
"""Vectors of the object graph: OBJ."""

from __future__ import annotations

from typing import Any

from making.parts import fixed, msg, num, varint
from making.vectors import VARIANT, Value, Vectors, objects, strings, u8

GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"
Json = dict[str, Any]


def child(node: int, name: str | bytes) -> bytes:
    raw = name if isinstance(name, bytes) else name.encode()
    return msg(1, (num(1, node) if node else b"") + msg(2, raw))


def attribute(name: str, full_name: str, key: str) -> bytes:
    texts = ((1, name), (2, full_name), (3, key))
    return msg(2, b"".join(msg(number, one.encode()) for number, one in texts if one))


def slot(original: int, name: str, variable: int) -> bytes:
    return msg(3, num(1, original) + msg(2, name.encode()) + num(3, variable))


def has(yes: bool) -> bytes:
    return msg(5, num(1, 1) if yes else b"")


def graph(*nodes: bytes) -> bytes:
    return b"".join(msg(1, one) for one in nodes)


def node(**more: Any) -> Json:
    """What a decoder gives of a node; what is left out is empty."""
    empty: Json = {"children": [], "attributes": [], "slots": []}
    return empty | more


VALUE = "VARIABLE_VALUE"
KEY_V = "v/.ATTRIBUTES/VARIABLE_VALUE"
KEY_M = "v/.OPTIMIZER_SLOT/o/m/.ATTRIBUTES/VARIABLE_VALUE"

NODES = [
    child(1, "o") + child(2, "v") + has(True),
    slot(2, "m", 3) + has(True),
    attribute(VALUE, "v", KEY_V) + has(True),
    attribute(VALUE, "v/m", KEY_M) + has(True),
]
DECODED = [
    node(children=[[1, "o"], [2, "v"]], has_checkpoint_values=True),
    node(slots=[[2, "m", 3]], has_checkpoint_values=True),
    node(attributes=[[VALUE, "v", KEY_V]], has_checkpoint_values=True),
    node(attributes=[[VALUE, "v/m", KEY_M]], has_checkpoint_values=True),
]


def add(out: Vectors) -> None:
    def whole(name: str, rules: str, content: bytes | Value, step: Json, **more: Any) -> None:
        value = content if isinstance(content, Value) else strings(content, dims=[])
        out.plain(name, rules, {GRAPH: value}, step, **more)

    def good(name: str, rules: str, content: bytes, nodes: list[Json]) -> None:
        whole(name, rules, content, objects(nodes))

    def bad(
        name: str, rule: str, content: bytes | Value, failure: str = "BAD_PROTO", **more: Any
    ) -> None:
        whole(name, rule, content, objects(fails=(failure, rule)), **more)

    values = {KEY_M.encode(): u8(2), KEY_V.encode(): u8(1), GRAPH: strings(graph(*NODES), dims=[])}
    tensors = dict(sorted(values.items()))
    rules = "OBJ-2 OBJ-4 OBJ-5 OBJ-6 OBJ-7 OBJ-8 OBJ-9 OBJ-10 OBJ-11"
    out.plain("obj", rules, tensors, objects(DECODED))
    saver = num(99, 1) + msg(4, msg(1, b"saver") + msg(2, b"thing"))
    kind = varint(20001 << 3 | 2) + varint(4) + b"dict"
    decoded = [
        node(
            children=[[0, "self"], [1, "b"], [1, "c"]],
            registered_saver=["saver", "thing"],
            has_checkpoint_values=False,
            kind="dict",
        ),
        node(),
    ]
    links = child(0, "self") + child(1, "b") + child(1, "c")
    good("obj-12", "OBJ-5 OBJ-12 OBJ-13", graph(links + saver + has(False) + kind, b""), decoded)
    wide = b"\x0a\x08" + b"\x08" + varint(2**32) + b"\x12\0"
    overlong = b"\x0a" + varint(len(wide), 3) + wide
    good("obj-2-int32", "OBJ-2", overlong, [node(children=[[0, ""]])])
    dropped = b"\x0a\x0f\x0a\x0d\x08" + b"\x80" * 9 + b"\x7e\x12\0"
    good("obj-2-65-bits", "OBJ-2", dropped, [node(children=[[0, ""]])])
    good("obj-2-unknown", "OBJ-2 MSG-8", graph(num(7, 1) + fixed(9, 1)) + num(5, 1), [node()])
    twice = msg(1, num(1, 5) + num(1, 0) + msg(2, b"x") + msg(2, b"y"))
    good("obj-2-twice", "OBJ-2 MSG-9", graph(twice), [node(children=[[0, "y"]])])
    joined = msg(4, msg(1, b"s")) + msg(4, msg(2, b"o"))
    good("obj-2-joined", "OBJ-2 MSG-10", graph(joined), [node(registered_saver=["s", "o"])])
    bad("obj-1-vector", "OBJ-1", strings(graph(b"")), "BAD_ENTRY")
    bad("obj-1-number", "OBJ-1", u8(10, 0), "BAD_ENTRY")
    bad("obj-1-variant", "OBJ-1", Value(VARIANT, (), elements=(graph(b""),)), "BAD_ENTRY")
    bad("obj-4-none", "OBJ-4", b"")
    bad("obj-4-child", "OBJ-4", graph(child(1, "a")))
    bad("obj-4-negative", "OBJ-4", graph(child(-1, "a")))
    bad("obj-4-slot", "OBJ-4", graph(slot(0, "m", 1)))
    bad("obj-4-slot-original", "OBJ-4", graph(slot(1, "m", 0)))
    bad("obj-5-child", "OBJ-5", graph(child(1, "a") + child(0, "a"), b""))
    bad("obj-5-attribute", "OBJ-5", graph(attribute("a", "", "k") + attribute("a", "", "l")))
    bad("obj-5-slot", "OBJ-5", graph(slot(0, "m", 0) + slot(0, "m", 1), b""))
    for name, content, rule in (
        ("tag", b"\x00\x01", "MSG-2"),
        ("tag-long", b"\xb8\x80\x80\x80\x80\x00\x01", "MSG-2"),
        ("size-long", b"\x0a\x80\x80\x80\x80\x80\x00", "MSG-5"),
        ("varint", b"\x38\x80", "MSG-3"),
        ("fixed", b"\x3d\0", "MSG-4"),
        ("size", b"\x0a\x05", "MSG-5"),
        ("wire", b"\x0e", "MSG-6"),
        ("group", b"\x3b", "MSG-7"),
        ("utf-8", graph(child(0, b"\xff")), "MSG-16"),
        ("in-node", graph(b"\x0a\x05"), "MSG-5"),
    ):
        whole(f"obj-2-{name}", f"OBJ-2 {rule}", content, objects(fails=("BAD_PROTO", rule)))
    limit = {"graph_bytes_max": 3}
    bad("obj-3-bytes", "OBJ-3", graph(b"", b"") + b"", "LIMIT", limits=limit)
    bad("obj-3-nodes", "OBJ-3", graph(b"", b"", b""), "LIMIT", limits={"graph_nodes_max": 2})
    many = graph(child(0, "a") + child(0, "b") + slot(0, "m", 0))
    bad("obj-3-parts", "OBJ-3", many, "LIMIT", limits={"graph_parts_max": 2})
