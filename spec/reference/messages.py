# SPDX-License-Identifier: Apache-2.0
"""Section 11: messages, of any kind."""

from __future__ import annotations

import contextlib
from typing import Any, TypeAlias

from .rules import LIMITS, Note, need, put_varint, varint

# Fields by number: name, kind (a scalar's, "string", "range" or a schema), whether repeated.
Schema: TypeAlias = "dict[int, tuple[str, str | Schema, bool]]"
Message: TypeAlias = dict[str, Any]


def one_field(
    data: bytes, pos: int, end: int, note: Note, loose: bool = False, group: bool = False
) -> tuple[int, int, Any, int]:
    """Returns number, wire type, payload (number, or start and end) and the position after it."""

    def rule(own: str) -> str:
        return "MSG-7" if group else own

    start = pos
    tag, pos = varint(data, pos, end, 32, rule("MSG-2"), "BAD_PROTO", note)
    number, wire = tag >> 3, tag & 7
    need(number > 0, rule("MSG-2"), "BAD_PROTO", f"field number 0 at {start}")
    value: Any = 0
    if wire == 0:
        value, pos = varint(data, pos, end, 64, rule("MSG-3"), "BAD_PROTO", note, loose)
    elif wire in (1, 5):
        size = 8 if wire == 1 else 4
        need(size <= end - pos, rule("MSG-4"), "BAD_PROTO", f"field {number} cut off at {start}")
        value = int.from_bytes(data[pos : pos + size], "little")
        pos += size
    elif wire == 2:
        size, pos = varint(data, pos, end, 32, rule("MSG-5"), "BAD_PROTO", note)
        need(size <= end - pos, rule("MSG-5"), "BAD_PROTO", f"{size} bytes at {start}")
        value = (pos, pos + size)
        pos += size
    elif wire == 3 and not group:
        value, open_groups = (pos, pos), [number]
        while open_groups and pos < end:
            value = (value[0], pos)
            inner, kind, _, pos = one_field(data, pos, end, note, loose, group=True)
            if kind == 3:
                open_groups.append(inner)
                need(len(open_groups) <= 100, "MSG-7", "BAD_PROTO", f"groups too deep at {pos}")
            elif kind == 4:
                need(inner == open_groups.pop(), "MSG-7", "BAD_PROTO", f"end of a group at {pos}")
        need(not open_groups, "MSG-7", "BAD_PROTO", f"group {number} at {start} has no end")
    else:
        need(group and wire in (3, 4), rule("MSG-6"), "BAD_PROTO", f"wire type {wire} at {start}")
    return number, wire, value, pos


WIRE = {"int32": 0, "int64": 0, "uint64": 0, "bool": 0, "fixed32": 5}


def decode(
    data: bytes,
    pos: int,
    end: int,
    schema: Schema,
    note: Note,
    out: Message | None = None,
    loose: bool = False,
) -> Message:
    """Decodes a message to a dict of the fields that occur.

    A "range" is start and end of the last one, or of all. Unknown fields are listed under "" as
    number, wire type, payload.
    """
    out = {} if out is None else out  # MSG-10: parts of one message are decoded into one dict
    before = 0
    while pos < end:
        start = pos
        number, wire, value, pos = one_field(data, pos, end, note, loose)
        name, kind, repeated = schema.get(number, ("", "", False))
        packed = kind == "int32" and repeated and wire == 2
        if number < before or (number == before and not repeated):
            note("FIELD_ORDER", start)  # MSG-9, MSG-10, MSG-15
        before = number
        if not name or (wire != (WIRE.get(kind, 2) if isinstance(kind, str) else 2) and not packed):
            note("UNKNOWN_FIELD", start)  # MSG-8
            out.setdefault("", []).append((number, wire, value))
            continue
        if wire == 0 and value == 0 and not repeated and name != "num_shards":
            note("FIELD_ORDER", start)  # MSG-15
        if packed:  # MSG-14
            at_number, stop = value
            while at_number < stop:
                element, at_number = varint(
                    data, at_number, stop, 64, "MSG-14", "BAD_PROTO", loose=loose
                )
                out.setdefault(name, []).append(scalar(element, "int32", loose))
            continue
        if isinstance(kind, dict):
            into = {} if repeated else out.get(name)
            inside = without_order(note) if name == "extension" else note
            value = decode(data, value[0], value[1], kind, inside, into, loose)
        elif kind == "string":
            text = data[value[0] : value[1]]
            need(is_utf8(text), "MSG-16", "BAD_PROTO", f"{name} at {start} is not UTF-8")
            value = text.decode("utf-8", "replace")
        else:
            value = scalar(value, kind, loose)
        if repeated:
            out.setdefault(name, []).append(value)
            need(name != "dim" or len(out[name]) <= 254, "SHP-3", "BAD_SHAPE", "rank above 254")
            many = name == "slices" and len(out[name]) > LIMITS["slices"]
            need(not many, "TAB-13", "LIMIT", "too many slices")
        else:
            out[name] = value
    return out


def without_order(note: Note) -> Note:
    return lambda deviation, pos: None if deviation == "FIELD_ORDER" else note(deviation, pos)


def scalar(value: Any, kind: str, loose: bool) -> Any:
    if kind == "bool":  # MSG-13
        return value != 0
    if kind in ("int32", "int64"):  # MSG-11, MSG-12
        value = value - (1 << 64) if value >> 63 else value
    if kind == "int32":
        if loose:
            return ((value + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        need(-(1 << 31) <= value < 1 << 31, "MSG-11", "BAD_PROTO", f"{value} is no int32")
    return value


def is_utf8(text: bytes) -> bool:
    with contextlib.suppress(UnicodeDecodeError):
        return text.decode("utf-8") is not None
    return False


def schema(text: str, **inner: Schema) -> Schema:
    """Fields written as "number name kind", with * if repeated."""
    fields = (part.split() for part in text.split(","))
    return {
        int(number): (name, inner.get(kind.strip("*"), kind.strip("*")), "*" in kind)
        for number, name, kind in fields
    }


def put_field(number: int, payload: bytes) -> bytes:
    return put_varint(number << 3 | 2) + put_varint(len(payload)) + payload
