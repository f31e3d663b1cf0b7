# SPDX-License-Identifier: Apache-2.0
"""The object graph of a checkpoint, and the keys that objects have in it.

The tensor `_CHECKPOINTABLE_OBJECT_GRAPH` is a string: a TrackableObjectGraph in protobuf's wire
format (numbers are field numbers, * is repeated):

    graph:    1* node
    node:     1* child {1 node id, 2 local name}
              2* attribute {1 name, 2 full name, 3 checkpoint key}
              3* slot variable {1 id of the original variable, 2 slot name, 3 id of the slot}
              4 registered saver {1 name, 2 object name}
              5 has checkpoint values {1 yes or no}
              20001 kind

`kind` is ours: the type of the Python object ("tuple", "int", ...). TensorFlow skips it. Unknown
fields are skipped. A repeated field is handled as in protobuf: a list grows, a message is merged, a
value is replaced.

Pure bytes: nothing here opens a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ckptfmt._base import names as _names
from ckptfmt.errors import CorruptError, InvalidError, LimitError

OBJECT_GRAPH_KEY = _names.OBJECT_GRAPH_KEY
# TensorFlow's names of the attributes that hold the value of a variable, the state of a Python
# object as text, and the configuration of a Keras object.
VARIABLE_VALUE = "VARIABLE_VALUE"
PY_STATE = "py_state"
OBJECT_CONFIG_JSON = "OBJECT_CONFIG_JSON"
ATTRIBUTES = ".ATTRIBUTES"
OPTIMIZER_SLOT = ".OPTIMIZER_SLOT"
# Attribute of objects with one unnamed group of tensors; their keys end after the slash.
TENSORS = ".TENSORS"

KIND_FIELD = 20001
# The kind of None.
NONE = "none"
BYTES_MAX = 256 << 20
NODES_MAX = 1 << 22
ENTRIES_MAX = 1 << 23  # children, attributes and slot variables of all nodes together
INT32_MAX = (1 << 31) - 1
# Maximum depth of nested groups, as in protobuf.
GROUPS_MAX = 100
# Longer names are cut in messages.
NAME_SHOWN = 200


@dataclass(slots=True)
class SlotVariable:
    """A variable that an optimizer (the node that lists it) stores for another variable."""

    original_variable_node_id: int
    slot_name: str
    slot_variable_node_id: int


@dataclass(slots=True)
class Attribute:
    """A tensor of a node: its name in the node, the variable's name in a name-based checkpoint (""
    if it is not a variable), and its name in this checkpoint."""

    name: str
    full_name: str
    checkpoint_key: str


@dataclass(slots=True)
class Node:
    """One object.

    Attributes:
        children: local names and node ids.
        attributes: its tensors.
        slot_variables: those of this object, an optimizer.
        registered_saver: the name of the saver and the saver's name of the object, or None.
        has_checkpoint_values: whether it or a descendant has tensors, slot variables or a
            registered saver; None if the writer was older than this field.
        kind: the type of the Python object; None in graphs of other writers.
    """

    children: list[tuple[str, int]] = field(default_factory=list)
    attributes: list[Attribute] = field(default_factory=list)
    slot_variables: list[SlotVariable] = field(default_factory=list)
    registered_saver: tuple[str, str] | None = None
    has_checkpoint_values: bool | None = None
    kind: str | None = None


@dataclass(slots=True)
class ObjectGraph:
    """All objects; a node's id is its position, and node 0 is the root."""

    nodes: list[Node] = field(default_factory=list)


def mark_checkpoint_values(graph: ObjectGraph) -> None:
    """Set `has_checkpoint_values` of every node as TensorFlow's writer does."""
    parents: list[list[int]] = [[] for _ in graph.nodes]
    waiting = []
    for node_id, node in enumerate(graph.nodes):
        own = bool(node.attributes or node.slot_variables or node.registered_saver is not None)
        node.has_checkpoint_values = own
        if own:
            waiting.append(node_id)
        for _, child in node.children:
            parents[child].append(node_id)
    while waiting:
        for parent in parents[waiting.pop()]:
            if not graph.nodes[parent].has_checkpoint_values:
                graph.nodes[parent].has_checkpoint_values = True
                waiting.append(parent)


# ---- keys ----------------------------------------------------------------------------------------

_ESCAPED = re.compile(r"\.([.S])|\.|/")


def escape(local_name: str) -> str:
    """Escape a local name for a path: `.` as `..`, `/` as `.S`.

    >>> escape("a.b/c")
    'a..b.Sc'
    """
    return local_name.replace(".", "..").replace("/", ".S")


def unescape(text: str) -> str:
    """Undo `escape`.

    >>> unescape("a..b.Sc")
    'a.b/c'

    Raises:
        InvalidError: `text` is not an escaped name.
    """

    def single(match: re.Match[str]) -> str:
        if match[1] is None:
            raise InvalidError(f"{text!r} is not an escaped name: '{match[0]}' at {match.start()}")
        return "." if match[1] == "." else "/"

    return _ESCAPED.sub(single, text)


def object_path(names: Iterable[str]) -> str:
    """Return the path of an object from the local names that lead to it, "" for the root.

    >>> object_path(["model", "x/y", "0"])
    'model/x.Sy/0'
    """
    return "/".join(map(escape, names))


def attribute_key(path: str, attribute: str = VARIABLE_VALUE) -> str:
    """Return the name of the tensor of an attribute of the object at this path.

    >>> attribute_key("model/kernel")
    'model/kernel/.ATTRIBUTES/VARIABLE_VALUE'
    """
    suffix = "" if attribute == TENSORS else escape(attribute)
    return f"{path}/{ATTRIBUTES}/{suffix}"


def leaf_name(key: str) -> str:
    """Return the name of a tensor in a tree: the path of its object, followed by the attribute if
    it is not the value of a variable. In a name-based checkpoint it is the tensor's name.

    >>> leaf_name("model/kernel/.ATTRIBUTES/VARIABLE_VALUE")
    'model/kernel'
    """
    return key.removesuffix(_names.VALUE_SUFFIX)


def slot_key(variable_path: str, optimizer_path: str, slot_name: str) -> str:
    """Return the path of a slot variable, for `attribute_key`.

    >>> slot_key("v", "o", "momentum")
    'v/.OPTIMIZER_SLOT/o/momentum'
    """
    return f"{variable_path}/{OPTIMIZER_SLOT}/{optimizer_path}/{escape(slot_name)}"


# ---- encoding ------------------------------------------------------------------------------------


class _Varints(dict[int, bytes]):
    """Numbers as varints; those of one byte are stored."""

    def __missing__(self, number: int) -> bytes:
        encoded = bytearray()
        while number > 0x7F:
            encoded.append(number & 0x7F | 0x80)
            number >>= 7
        encoded.append(number)
        return bytes(encoded)


_ENCODED = _Varints({number: bytes((number,)) for number in range(0x80)})
_KIND_TAG = _ENCODED[KIND_FIELD << 3 | 2]


def _text(tag: int, value: str) -> bytes:
    """Encode a text field; an empty text is omitted, as in proto3."""
    content = value.encode()
    return _ENCODED[tag] + _ENCODED[len(content)] + content if content else b""


def _node_id(tag: int, node_id: int, count: int) -> bytes:
    if not 0 <= node_id < count:
        raise InvalidError(f"node id {node_id} is not below {count}, the number of nodes")
    return _ENCODED[tag] + _ENCODED[node_id] if node_id else b""


def _message(tag: int, content: bytes) -> bytes:
    return _ENCODED[tag] + _ENCODED[len(content)] + content


def encode_graph(graph: ObjectGraph) -> bytes:
    """Encode an object graph, byte for byte as TensorFlow except for `kind`.

    Raises:
        InvalidError: no nodes, an id out of range, or a name that is not UTF-8.
        LimitError: more than the default limits of `decode_graph`.
    """
    count = len(graph.nodes)
    if not count:
        raise InvalidError("an object graph must have a node")
    entries = 0
    for node in graph.nodes:
        entries += len(node.children) + len(node.attributes) + len(node.slot_variables)
    if count > NODES_MAX or entries > ENTRIES_MAX:
        raise LimitError(
            f"the object graph has {count} nodes with {entries} children, attributes and slots; "
            f"the limits are {NODES_MAX} and {ENTRIES_MAX}"
        )
    try:
        content = b"".join([_message(0x0A, _encode_node(node, count)) for node in graph.nodes])
    except UnicodeEncodeError as error:
        raise InvalidError(
            f"an object graph cannot hold the name {error.object!r}: {error.reason}"
        ) from None
    if len(content) > BYTES_MAX:
        raise LimitError(f"the object graph has {len(content)} bytes; the limit is {BYTES_MAX}")
    return content


def _encode_node(node: Node, count: int) -> bytes:
    parts = []
    for name, child in node.children:
        parts.append(_message(0x0A, _node_id(0x08, child, count) + _text(0x12, name)))
    for a in node.attributes:
        names = _text(0x0A, a.name) + _text(0x12, a.full_name)
        parts.append(_message(0x12, names + _text(0x1A, a.checkpoint_key)))
    for slot in node.slot_variables:
        original = _node_id(0x08, slot.original_variable_node_id, count)
        variable = _node_id(0x18, slot.slot_variable_node_id, count)
        parts.append(_message(0x1A, original + _text(0x12, slot.slot_name) + variable))
    if node.registered_saver is not None:
        name, object_name = node.registered_saver
        parts.append(_message(0x22, _text(0x0A, name) + _text(0x12, object_name)))
    if node.has_checkpoint_values is not None:
        parts.append(b"\x2a\x02\x08\x01" if node.has_checkpoint_values else b"\x2a\x00")
    if node.kind is not None:
        content = node.kind.encode()
        parts += [_KIND_TAG, _ENCODED[len(content)], content]
    return b"".join(parts)


# ---- decoding ------------------------------------------------------------------------------------

# A field: its number, its wire type, and the start and end of its content; for a number, its value
# and the start of the field.
_Field = tuple[int, int, int, int]
_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)


class _Decoder:
    """A cursor over the message; every read is checked against the bytes that are left.

    The argument `rule` is the rule to report: inside a group every error is MSG-7.
    """

    def __init__(self, content: bytes, path: str | None, nodes_max: int, entries_max: int) -> None:
        self.content = content
        self.path = path
        self.nodes_max = nodes_max
        self.entries_left = self.entries_max = entries_max
        # The largest node id and the offset of its field, compared with the number of nodes at the
        # end.
        self.largest_id = 0
        self.largest_at = 0

    def corrupt(self, rule: str, offset: int, message: str) -> CorruptError:
        return CorruptError(
            f"{rule}: {message}, at byte {offset} of the object graph",
            failure="BAD_PROTO",
            path=self.path,
            tensor=OBJECT_GRAPH_KEY,
        )

    def varint(self, position: int, end: int, rule: str = "MSG-3") -> tuple[int, int]:
        """Return a number, truncated to 64 bits as in protobuf, and its end."""
        if position < end and self.content[position] < 0x80:
            return self.content[position], position + 1
        value = shift = 0
        start = position
        while True:
            if position == end:
                raise self.corrupt(rule, start, "a truncated number")
            if shift == 70:
                raise self.corrupt(rule, start, "a number of more than 10 bytes")
            byte = self.content[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, position
            shift += 7

    def tag(self, position: int, end: int, rule: str = "MSG-2") -> tuple[int, int, int]:
        """Return a field's number, its wire type, and the start of its content."""
        start = position
        tag, position = self.varint(position, end, rule)
        if position - start > 5 or tag > 0xFFFFFFFF:
            raise self.corrupt(rule, start, "a field number of more than 29 bits")
        if tag < 8:
            raise self.corrupt(rule, start, "field number 0")
        return tag >> 3, tag & 7, position

    def size(self, position: int, end: int, rule: str = "MSG-5") -> tuple[int, int]:
        """Return start and end of the content of a bytes field."""
        size, start = self.varint(position, end, rule)
        if start - position > 5:
            raise self.corrupt(rule, position, "a size of more than 5 bytes")
        self.check_left(rule, position, size, end - start)
        return start, start + size

    def check_left(self, rule: str, offset: int, size: int, left: int) -> None:
        if size > left:
            raise self.corrupt(rule, offset, f"{size} bytes, of which {left} are present")

    def past(self, wire: int, position: int, end: int, rule: str = "") -> int:
        """Return the end of a field that is skipped; groups have `past_group`."""
        if wire == _VARINT:
            return self.varint(position, end, rule or "MSG-3")[1]
        if wire == _BYTES:
            return self.size(position, end, rule or "MSG-5")[1]
        if wire not in (_FIXED64, _FIXED32):
            found = f"unexpected wire type {wire}"
            raise self.corrupt(rule or "MSG-6", position, found)
        size = 8 if wire == _FIXED64 else 4
        self.check_left(rule or "MSG-4", position, size, end - position)
        return position + size

    def past_group(self, number: int, position: int, end: int) -> int:
        groups = [number]
        while groups:
            if position == end:
                raise self.corrupt("MSG-7", end, f"group {groups[-1]} does not end")
            start = position
            number, wire, position = self.tag(position, end, "MSG-7")
            if wire == _GROUP:
                if len(groups) == GROUPS_MAX:
                    raise self.corrupt("MSG-7", start, f"groups more than {GROUPS_MAX} deep")
                groups.append(number)
            elif wire == _GROUP_END:
                if groups.pop() != number:
                    found = f"the end of group {number}, which is not open"
                    raise self.corrupt("MSG-7", start, found)
            else:
                position = self.past(wire, position, end, "MSG-7")
        return position

    def fields(self, position: int, end: int) -> Iterator[_Field]:
        """Yield the fields of one message that are numbers or bytes."""
        while position < end:
            start = position
            number, wire, position = self.tag(position, end)
            if wire == _BYTES:
                first, position = self.size(position, end)
                yield number, wire, first, position
            elif wire == _VARINT:
                value, position = self.varint(position, end)
                yield number, wire, value, start
            elif wire == _GROUP:
                position = self.past_group(number, position, end)
            else:
                position = self.past(wire, position, end)

    def text(self, start: int, end: int) -> str:
        try:
            return self.content[start:end].decode()
        except UnicodeDecodeError:
            raise self.corrupt("MSG-16", start, "a name that is not UTF-8") from None

    def node_id(self, value: int, offset: int) -> int:
        node_id = value & 0xFFFFFFFF  # int32: the upper half is ignored
        if node_id > INT32_MAX:
            raise self.corrupt("OBJ-4", offset, f"node id {node_id - (1 << 32)}")
        if node_id > self.largest_id:
            self.largest_id, self.largest_at = node_id, offset
        return node_id

    def entry(self) -> None:
        self.entries_left -= 1
        if self.entries_left < 0:
            raise self.limit(f"more than {self.entries_max} children, attributes and slots")

    def limit(self, message: str) -> LimitError:
        return LimitError(
            f"OBJ-3: the object graph has {message}", path=self.path, tensor=OBJECT_GRAPH_KEY
        )

    def graph(self) -> ObjectGraph:
        nodes: list[Node] = []
        for number, wire, start, end in self.fields(0, len(self.content)):
            if number == 1 and wire == _BYTES:
                if len(nodes) == self.nodes_max:
                    raise self.limit(f"more than {self.nodes_max} nodes")
                nodes.append(self.node(start, end))
        if not nodes:
            raise self.corrupt("OBJ-4", 0, "no nodes")
        if self.largest_id >= len(nodes):
            found = f"node id {self.largest_id} where there are {len(nodes)} nodes"
            raise self.corrupt("OBJ-4", self.largest_at, found)
        return ObjectGraph(nodes)

    def node(self, position: int, node_end: int) -> Node:
        node = Node()
        for number, wire, start, end in self.fields(position, node_end):
            if wire != _BYTES:
                continue
            if number == 1:
                self.entry()
                node.children.append(self.child(start, end))
            elif number == 2:
                self.entry()
                node.attributes.append(Attribute(*self.texts(start, end, 3)))
            elif number == 3:
                self.entry()
                node.slot_variables.append(self.slot(start, end))
            elif number == 4:
                name, object_name = self.texts(start, end, 2)
                old = node.registered_saver or ("", "")
                node.registered_saver = (name or old[0], object_name or old[1])
            elif number == 5:
                node.has_checkpoint_values = node.has_checkpoint_values or False
                for inner, inner_wire, value, _ in self.fields(start, end):
                    if inner == 1 and inner_wire == _VARINT:
                        node.has_checkpoint_values = value != 0
            elif number == KIND_FIELD:
                node.kind = self.text(start, end)
        self.distinct(position, "children", [name for name, _ in node.children])
        self.distinct(position, "attributes", [a.name for a in node.attributes])
        slots = [(s.original_variable_node_id, s.slot_name) for s in node.slot_variables]
        self.distinct(position, "slots", slots)
        return node

    def distinct(self, position: int, what: str, found: list[str] | list[tuple[int, str]]) -> None:
        if len(found) < 2 or len(set(found)) == len(found):
            return
        seen = set()
        for name in found:
            if name in seen:
                shown = str(name)[:NAME_SHOWN]
                raise self.corrupt("OBJ-5", position, f"a node with two {what} {shown!r}")
            seen.add(name)

    def child(self, position: int, child_end: int) -> tuple[str, int]:
        node_id, name = 0, ""
        id_at = position
        for number, wire, start, end in self.fields(position, child_end):
            if number == 1 and wire == _VARINT:
                node_id, id_at = start, end  # the last one wins
            elif number == 2 and wire == _BYTES:
                name = self.text(start, end)
        return name, self.node_id(node_id, id_at)

    def texts(self, position: int, message_end: int, count: int) -> list[str]:
        """Return fields 1 to `count` of a message, which are texts."""
        found = [""] * count
        for number, wire, start, end in self.fields(position, message_end):
            if number <= count and wire == _BYTES:
                found[number - 1] = self.text(start, end)
        return found

    def slot(self, position: int, slot_end: int) -> SlotVariable:
        found = SlotVariable(0, "", 0)
        ids = {1: (0, position), 3: (0, position)}
        for number, wire, start, end in self.fields(position, slot_end):
            if number in ids and wire == _VARINT:
                ids[number] = start, end  # the last one wins
            elif number == 2 and wire == _BYTES:
                found.slot_name = self.text(start, end)
        found.original_variable_node_id = self.node_id(*ids[1])
        found.slot_variable_node_id = self.node_id(*ids[3])
        return found


def decode_graph(
    content: bytes,
    path: str | None = None,
    *,
    bytes_max: int = BYTES_MAX,
    nodes_max: int = NODES_MAX,
    entries_max: int = ENTRIES_MAX,
) -> ObjectGraph:
    """Decode an object graph, in time linear in its size.

    Args:
        content: the message.
        path: its checkpoint, for errors.
        bytes_max: maximum size of the message.
        nodes_max: maximum number of nodes.
        entries_max: maximum number of children, attributes and slot variables of all nodes.

    Raises:
        CorruptError: the message is malformed, has no nodes, an id out of range, a duplicate name
            among a node's children, attributes or slots, or a text that is not UTF-8. The error
            names the rule and the byte.
        LimitError: a limit is exceeded.
    """
    decoder = _Decoder(content, path, nodes_max, entries_max)
    if len(content) > bytes_max:
        raise decoder.limit(f"{len(content)} bytes, more than {bytes_max}")
    return decoder.graph()
