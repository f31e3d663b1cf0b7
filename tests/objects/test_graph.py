# SPDX-License-Identifier: Apache-2.0
"""Object graphs: what is encoded is decoded again, known graphs have known bytes, and damaged ones
end in typed errors."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfmt.bundle import graph as graphs
from ckptfmt.bundle.graph import (
    Attribute,
    Node,
    ObjectGraph,
    SlotVariable,
    attribute_key,
    decode_graph,
    encode_graph,
    escape,
    object_path,
    slot_key,
    unescape,
)
from ckptfmt.errors import CorruptError, InvalidError, LimitError

KINDS = ["dict", "list", "tuple", "int", "float", "bool", "str", "bytes", "none"]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def random_graphs(draw: st.DrawFn) -> ObjectGraph:
    count = draw(st.integers(1, 6))
    ids = st.integers(0, count - 1)

    def node() -> Node:
        names = draw(st.lists(texts, max_size=4, unique=True))
        slots = draw(st.lists(st.tuples(ids, texts), max_size=3, unique=True))
        attributes = draw(st.lists(texts, max_size=3, unique=True))
        return Node(
            [(name, draw(ids)) for name in names],
            [Attribute(name, draw(texts), draw(texts)) for name in attributes],
            [SlotVariable(original, name, draw(ids)) for original, name in slots],
            draw(st.none() | st.tuples(texts, texts)),
            draw(st.none() | st.booleans()),
            draw(st.none() | st.sampled_from(KINDS)),
        )

    return ObjectGraph([node() for _ in range(count)])


@given(random_graphs())
def test_what_is_encoded_is_decoded_again(graph: ObjectGraph) -> None:
    content = encode_graph(graph)
    assert decode_graph(content) == graph
    assert encode_graph(decode_graph(content)) == content


GOLDEN = ObjectGraph(
    [
        Node([("v", 1), ("o", 2)], has_checkpoint_values=True),
        Node([], [Attribute("VARIABLE_VALUE", "Variable", "v/.ATTRIBUTES/VARIABLE_VALUE")]),
        Node([("root", 0)], [], [SlotVariable(1, "m", 3)], ("pkg.name", "v"), False),
        Node(kind="none"),
    ]
)
GOLDEN_BYTES = bytes.fromhex(
    "0a 12"
    "  0a 05 08 01 12 01 76  0a 05 08 02 12 01 6f  2a 02 08 01"
    "0a 3a"
    "  12 38 0a 0e 5641524941424c455f56414c5545 12 08 5661726961626c65"
    "     1a 1c 762f2e415454524942555445532f5641524941424c455f56414c5545"
    "0a 22"
    "  0a 06 12 04 726f6f74  1a 07 08 01 12 01 6d 18 03"
    "  22 0d 0a 08 706b672e6e616d65 12 01 76  2a 00"
    "0a 08"
    "  8a e2 09 04 6e6f6e65"
)


def test_known_bytes() -> None:
    assert encode_graph(GOLDEN) == GOLDEN_BYTES
    assert decode_graph(GOLDEN_BYTES) == GOLDEN


@given(texts)
def test_names_are_escaped_and_back(name: str) -> None:
    assert unescape(escape(name)) == name
    assert "/" not in escape(name)


@pytest.mark.parametrize("text", [".", "a.", ".s", "a/b", "...", "a.b"])
def test_what_no_name_is_escaped_to(text: str) -> None:
    with pytest.raises(InvalidError, match="is not an escaped name"):
        unescape(text)


def test_keys() -> None:
    assert object_path([]) == ""
    assert object_path(["dct", "x/y", "a.b"]) == "dct/x.Sy/a..b"
    assert attribute_key("") == "/.ATTRIBUTES/VARIABLE_VALUE"
    assert attribute_key("a", "py_state") == "a/.ATTRIBUTES/py_state"
    assert attribute_key("a", "a.b") == "a/.ATTRIBUTES/a..b"
    assert attribute_key("a", ".TENSORS") == "a/.ATTRIBUTES/"
    assert (
        attribute_key(slot_key("v", "o", "momentum"))
        == "v/.OPTIMIZER_SLOT/o/momentum/.ATTRIBUTES/VARIABLE_VALUE"
    )


def test_checkpoint_values_go_up_to_all_parents() -> None:
    nodes = [Node([("a", 1), ("b", 2)]), Node([("c", 3)]), Node(), Node([("up", 1)])]
    nodes[3].attributes.append(Attribute("VARIABLE_VALUE", "", "a/c/.ATTRIBUTES/VARIABLE_VALUE"))
    graphs.mark_checkpoint_values(ObjectGraph(nodes))
    assert [node.has_checkpoint_values for node in nodes] == [True, True, False, True]


# ---- what others may write -----------------------------------------------------------------------


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes((number << 3 | 2, len(content))) + content


def one(content: bytes) -> Node:
    """The node of a graph of one."""
    (node,) = decode_graph(field(1, content)).nodes
    return node


def test_unknown_fields_are_skipped() -> None:
    odd = (
        b"\x30\x96\x01"  # 6: a number
        b"\x39" + bytes(8) + b"\x45" + bytes(4)  # 7 and 8: of a fixed size
        + field(9, b"text")
        + b"\x53\x5b\x08\x01\x5c\x0a\x01x\x54"  # 10: a group with a group
        + b"\x08\x07"  # 1 as a number
    )  # fmt: skip
    assert decode_graph(odd[:-2] + field(1, odd + field(1, odd[:-2] + field(2, b"me")))) == (
        ObjectGraph([Node([("me", 0)])])
    )


def test_later_values_replace_earlier_ones_and_messages_merge() -> None:
    assert one(field(1, field(2, b"a") + field(2, b"b"))).children == [("b", 0)]
    assert one(field(4, field(1, b"s")) + field(4, field(2, b"n"))).registered_saver == ("s", "n")
    assert one(field(5, b"\x08\x01") + field(5, b"")).has_checkpoint_values is True
    assert one(field(5, b"\x08\x01\x08\x00")).has_checkpoint_values is False


def test_numbers_may_be_longer_than_needed() -> None:
    assert one(field(1, b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00")).children == [("", 0)]
    assert one(field(1, b"\x08\x80\x80\x80\x80\x10")).children == [("", 0)]  # beyond 32 bits


BAD = {
    "empty": (b"", "OBJ-4: no nodes, at byte 0"),
    "no nodes": (b"\x10\x01", "OBJ-4: no nodes, at byte 0"),
    "cut off": (b"\x0a", "MSG-5: a truncated number, at byte 1"),
    "too few bytes": (b"\x0a\x05\x0a\x00", "MSG-5: 5 bytes, of which 2 are present, at byte 1"),
    "inner beyond outer": (
        b"\x0a\x02\x0a\x01\x10\x00",
        "MSG-5: 1 bytes, of which 0 are present, at byte 3",
    ),
    "huge size": (b"\x0a\xff\xff\xff\xff\x0f", "MSG-5: 4294967295 bytes, of which 0 are present"),
    "long size": (b"\x0a" + b"\xff" * 9 + b"\x01", "MSG-5: a size of more than 5 bytes, at byte 1"),
    "long tag": (b"\x8a" + b"\x80" * 4 + b"\x00\x00", "MSG-2: a field number of more than 29 bits"),
    "endless number": (b"\x10" + b"\x80" * 10 + b"\x01", "MSG-3: a number of more than 10 bytes"),
    "field 0": (b"\x0a\x02\x02\x00", "MSG-2: field number 0, at byte 2"),
    "large field": (
        b"\xff\xff\xff\xff\x7f\x00",
        "MSG-2: a field number of more than 29 bits, at byte 0",
    ),
    "wire type 6": (b"\x0a\x01\x0e", "MSG-6: unexpected wire type 6, at byte 3"),
    "group that ends only": (b"\x0a\x01\x0c", "MSG-6: unexpected wire type 4"),
    "group that begins only": (b"\x0a\x01\x0b", "MSG-7: group 1 does not end, at byte 3"),
    "groups crossed": (b"\x0a\x04\x0b\x13\x0c\x14", "MSG-7: the end of group 1, which is not open"),
    "tag in a group": (b"\x0b\x80", "MSG-7: a truncated number, at byte 1"),
    "number in a group": (b"\x0b\x08\x80", "MSG-7: a truncated number, at byte 2"),
    "size in a group": (b"\x0b\x0a\x05", "MSG-7: 5 bytes, of which 0 are present, at byte 2"),
    "fixed in a group": (b"\x0b\x0d\x05", "MSG-7: 4 bytes, of which 1 are present, at byte 2"),
    "wire type in a group": (b"\x0b\x0e", "MSG-7: unexpected wire type 6"),
    "deep groups": (b"\x0b" * 101, "MSG-7: groups more than 100 deep, at byte 100"),
    "cut fixed": (b"\x0d\x00\x00", "MSG-4: 4 bytes, of which 2 are present, at byte 1"),
    "id beyond": (
        b"\x0a\x04\x0a\x02\x08\x01",
        "OBJ-4: node id 1 where there are 1 nodes, at byte 4",
    ),
    "id below 0": (b"\x0a\x0d\x0a\x0b\x08" + b"\xff" * 9 + b"\x01", "OBJ-4: node id -1, at byte 4"),
    "slot beyond": (
        b"\x0a\x04\x1a\x02\x18\x02",
        "OBJ-4: node id 2 where there are 1 nodes, at byte 4",
    ),
    "not UTF-8": (b"\x0a\x05\x0a\x03\x12\x01\xff", "MSG-16: a name that is not UTF-8, at byte 6"),
    "not UTF-8 kind": (
        field(1, b"\x8a\xe2\x09\x01\xff"),
        "MSG-16: a name that is not UTF-8, at byte 6",
    ),
    "child twice": (b"\x0a\x04\x0a\x00\x0a\x00", "OBJ-5: a node with two children '', at byte 2"),
    "attribute twice": (
        field(1, 2 * field(2, field(1, b"a"))),
        "OBJ-5: a node with two attributes 'a', at byte 2",
    ),
    "slot twice": (
        field(1, 2 * field(3, field(2, b"m"))),
        r"OBJ-5: a node with two slots \"\(0, 'm'\)\", at byte 2",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_damaged_graphs(case: str) -> None:
    content, message = BAD[case]
    with pytest.raises(CorruptError, match=f": {message}") as caught:
        decode_graph(content, "some/ckpt")
    assert caught.value.message.startswith(message[:4])
    assert caught.value.failure == "BAD_PROTO"
    assert caught.value.path == "some/ckpt"
    assert caught.value.tensor == "_CHECKPOINTABLE_OBJECT_GRAPH"


def test_every_prefix_and_random_damage_end_in_typed_errors(seed: int) -> None:
    rng = random.Random(f"graph {seed}")
    refused = 0
    for end in range(len(GOLDEN_BYTES)):
        try:
            decode_graph(GOLDEN_BYTES[:end])
        except CorruptError:
            refused += 1
    assert refused == len(GOLDEN_BYTES)
    for _ in range(3000):
        damaged = bytearray(GOLDEN_BYTES)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            graph = decode_graph(bytes(damaged))
        except CorruptError:
            refused += 1
        else:
            assert decode_graph(encode_graph(graph)) == graph
    assert refused > len(GOLDEN_BYTES) + 1000


def test_limits() -> None:
    content = encode_graph(GOLDEN)
    size = len(content)
    enough = {"bytes_max": size, "nodes_max": 4, "entries_max": 5}
    assert decode_graph(content, None, **enough) == GOLDEN
    for name, message in [
        ("bytes_max", f"{size} bytes, more than {size - 1}"),
        ("nodes_max", "more than 3 nodes"),
        ("entries_max", "more than 4 children, attributes and slots"),
    ]:
        with pytest.raises(LimitError, match=f"OBJ-3: the object graph has {message}"):
            decode_graph(content, None, **{**enough, name: enough[name] - 1})


@pytest.mark.parametrize("limit", ["BYTES_MAX", "NODES_MAX", "ENTRIES_MAX"])
def test_what_is_encoded_can_be_read_again(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    enough = {"BYTES_MAX": len(GOLDEN_BYTES), "NODES_MAX": 4, "ENTRIES_MAX": 5}[limit]
    monkeypatch.setattr(graphs, limit, enough)
    assert encode_graph(GOLDEN) == GOLDEN_BYTES
    monkeypatch.setattr(graphs, limit, enough - 1)
    with pytest.raises(LimitError, match="the limit"):
        encode_graph(GOLDEN)


def test_what_cannot_be_encoded() -> None:
    for graph, message in [
        (ObjectGraph([]), "must have a node"),
        (ObjectGraph([Node([("a", 1)])]), "node id 1 is not below 1"),
        (ObjectGraph([Node([], [], [SlotVariable(-1, "m", 0)])]), "node id -1 is not below 1"),
        (ObjectGraph([Node([("\udcff", 0)])]), "cannot hold the name"),
    ]:
        with pytest.raises(InvalidError, match=message):
            encode_graph(graph)


def test_a_deep_graph_needs_no_deep_stack() -> None:
    count = 20_000
    assert count > sys.getrecursionlimit()
    nodes = [Node([("next", i + 1)]) for i in range(count - 1)]
    nodes.append(Node([("first", 0)], [Attribute("VARIABLE_VALUE", "", "x")]))
    graph = ObjectGraph(nodes)
    graphs.mark_checkpoint_values(graph)
    assert graph.nodes[0].has_checkpoint_values
    assert decode_graph(encode_graph(graph)) == graph
