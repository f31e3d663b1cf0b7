# SPDX-License-Identifier: Apache-2.0
"""Vectors of stored values: SLC, KEY, TXT, STR, VAR, DAT."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from making import parts
from making.parts import Extent, Row, entry, fixed, header, msg, num, slice_, slice_key, varint
from making.vectors import (
    FLOAT,
    GOOD,
    STRING,
    UINT8,
    VARIANT,
    Step,
    Value,
    Vectors,
    boxes,
    files_of,
    lists,
    opens,
    reads,
    reads_unverified,
    store,
    strings,
    u8,
    verifies,
)

EIGHT = bytes(range(10, 18))


def pieces(
    dims: Sequence[int], boxes_of: Sequence[Sequence[Extent]], tail: bytes = b""
) -> tuple[bytes, list[Row], bytes]:
    """A uint8 tensor `x` in these slices, whose bytes follow one another from 2 on: its
    entry, theirs, and the bytes."""
    rows, data = [], b""
    for one in boxes_of:
        shape = tuple(
            dim if length == -1 else length for (_, length), dim in zip(one, dims, strict=True)
        )
        count = 1
        for size in shape:
            count *= size
        raw = EIGHT[len(data) : len(data) + count]
        rows.append((slice_key(b"x", *one), Value(UINT8, shape, raw).entry(2 + len(data))))
        data += raw
    whole = parts.partitioned(UINT8, dims, *(slice_(*one) for one in boxes_of), tail=tail)
    return whole, rows, data


ROWS_OF_2 = [[(0, 2), (0, -1)], [(2, 2), (0, -1)]]


def slices(out: Vectors) -> None:
    whole, rows, data = pieces([4, 2], ROWS_OF_2)
    x = u8(*EIGHT, dims=[4, 2])
    parts_of_x: list[Step] = [
        boxes(b"x", [(1, 2), (0, 2)], u8(*EIGHT[2:6], dims=[2, 2])),
        boxes(b"x", [(0, 4), (1, 1)], u8(*EIGHT[1::2], dims=[4, 1])),
        boxes(b"x", [(3, 1), (0, 1)], u8(EIGHT[6], dims=[1, 1])),
        boxes(b"x", [(1, 0), (0, 2)], u8(dims=[0, 2])),
    ]
    rules = "SLC-1 SLC-2 SLC-3 SLC-4 SLC-11 KEY-1 KEY-5 KEY-6"
    own = reads(rows[0][0], fails=("TENSOR_NOT_FOUND", "KEY-6"))
    out.beside("slices", rules, whole, data, x, *parts_of_x, extra_rows=rows)
    out.add("key-6", "KEY-6", out[-1].files, opens(), own, reads(b"x", x))
    whole, rows, data = pieces([4, 2], [[(2, 2), (0, 2)], [(0, 2), (0, -1)]])
    mixed = u8(*EIGHT[4:], *EIGHT[:4], dims=[4, 2])
    out.beside("slc-13-order", "SLC-13 KEY-5", whole, data, mixed, extra_rows=rows)
    grid = [[(a, 1), (b, 1)] for a in (0, 1) for b in (0, 1)]
    whole, rows, data = pieces([2, 2], grid)
    out.beside("slc-grid", "SLC-6", whole, data, u8(*EIGHT[:4], dims=[2, 2]), extra_rows=rows)

    def in_entry(
        name: str, content: bytes, failure: str = "BAD_SLICE", rule: str = "SLC-2"
    ) -> None:
        bad = parts.partitioned(UINT8, [4, 2], content)
        out.at_entry(name, bad, failure, rule, data=EIGHT)

    in_entry("slc-2-few", slice_((0, 2)))
    in_entry("slc-2-many", slice_((0, 2), (0, -1), (0, -1)))
    in_entry("slc-2-none", b"")
    in_entry("msg-5-slice", b"\x0a\5", "BAD_PROTO", "MSG-5")
    in_entry("msg-3-extent", msg(1, b"\x08") + msg(1, b""), "BAD_PROTO", "MSG-3")

    def at_read(
        name: str,
        rule: str,
        dims: Sequence[int],
        boxes_of: Sequence[Sequence[Extent]],
        *steps: Step,
        content: bytes | None = None,
        extra_rows: Sequence[Row] | None = None,
        more_problems: bool = False,
        rules: str = "",
        deviations: str = "",
    ) -> None:
        whole, rows, data = pieces(dims, boxes_of)
        if content is not None:
            whole = parts.partitioned(UINT8, dims, content)
        out.at_read(
            name,
            whole,
            data,
            (UINT8, dims),
            "BAD_SLICE",
            rule,
            *steps,
            extra_rows=rows if extra_rows is None else extra_rows,
            more_problems=more_problems,
            rules=rules,
            deviations=deviations,
        )

    def malformed(name: str, rule: str, *extents: bytes) -> None:
        """A slice that no key can be written for as it stands."""
        at_read(
            name, rule, [4, 2], [], content=b"".join(extents), extra_rows=[], more_problems=True
        )

    malformed("slc-3", "SLC-3", msg(1, num(1, 1)), parts.extent(0, 2))
    malformed("slc-4-start", "SLC-4", parts.extent(-1, 2), parts.extent(0, -1))
    malformed("slc-4-length-0", "SLC-4", msg(1, num(2, 0)), parts.extent(0, -1))
    malformed("slc-4-length-2", "SLC-4", msg(1, num(2, -2)), parts.extent(0, -1))
    malformed("slc-4-beyond", "SLC-4", parts.extent(2, 3), parts.extent(0, -1))
    malformed("slc-4-wraps", "SLC-4", parts.extent(2**63 - 1, 2), parts.extent(0, -1))
    at_read("slc-5", "SLC-5", [2, 2], [[(0, -1), (0, -1)]])
    scalar = parts.partitioned(UINT8, [], b"")
    row = (b"\0x\0\1\0", u8(7, dims=[]).entry(2))
    listed = (UINT8, ())
    out.at_read("slc-5-scalar", scalar, b"\7", listed, "BAD_SLICE", "SLC-5", extra_rows=[row])
    overlapping = [[(0, 3), (0, 1)], [(2, 2), (0, -1)]]
    at_read("slc-6", "SLC-6", [4, 2], overlapping)
    at_read("slc-6-full", "SLC-6", [4, 2], [[(0, -1), (0, 1)], [(1, 1), (0, -1)]])
    at_read("slc-6-twice", "SLC-6", [4, 2], [[(0, 2), (0, 2)], [(0, 2), (0, -1)]])
    whole, rows, data = pieces([4, 2], ROWS_OF_2)
    first = boxes(b"x", [(0, 2), (0, 2)], u8(*EIGHT[:4], dims=[2, 2]))
    needs = boxes(b"x", [(1, 2), (0, 2)], fails=("BAD_SLICE", "SLC-7"))
    at_read("slc-7", "SLC-7", [4, 2], ROWS_OF_2, first, needs, extra_rows=rows[:1])

    def second(
        name: str, rule: str, message: bytes, failure: str = "BAD_SLICE", **more: Any
    ) -> None:
        """The second slice has this entry."""
        changed = [rows[0], (rows[1][0], message)]
        needed = boxes(b"x", [(1, 2), (0, 2)], fails=(failure, rule))
        listed = (UINT8, (4, 2))
        # Verifying what is read in part is up to the reader, without checksums of chunks.
        steps = [first] if failure == "CHECKSUM" else [first, needed]
        out.at_read(name, whole, data, listed, failure, rule, *steps, extra_rows=changed, **more)

    crc = parts.crc32c(EIGHT[4:])
    second("slc-8", "SLC-8", entry(6, [2, 2], 4, crc, offset=6))
    second("slc-9", "SLC-9", entry(UINT8, [4], 4, crc, offset=6))
    out[-1].steps.insert(3, boxes(b"x", [(3, 0), (0, 2)], u8(dims=[0, 2])))
    second("slc-9-other", "SLC-9", entry(UINT8, [1, 2], 2, parts.crc32c(EIGHT[4:6]), offset=6))
    second("slc-slice-checksum", "DAT-6", entry(UINT8, [2, 2], 4, crc ^ 1, offset=6), "CHECKSUM")
    second("slc-slice-size", "ENT-5", entry(UINT8, [2, 2], 3, crc, offset=6), "BAD_ENTRY")
    changed = [rows[0], (rows[1][0], entry(UINT8, [2, 2], 4, crc, offset=6, tail=b"\x7e"))]
    found = ("BAD_PROTO", "MSG-6")
    files = files_of(
        parts.table(*sorted([(b"a", GOOD.entry()), (b"x", whole), *changed])), b"\1\2" + data
    )
    steps = [opens(), lists(fails=found), reads(b"x", fails=found), reads(b"a", GOOD)]
    out.add("msg-6-slice-entry", "MSG-6 KEY-6", files, *steps, verifies(found))
    nested = entry(UINT8, [2, 2], 4, crc, offset=6, slices=[slice_((0, 1), (0, -1))])
    x = u8(*EIGHT, dims=[4, 2])
    extra = [rows[0], (rows[1][0], nested)]
    out.beside("slc-10", "SLC-10", whole, data, x, extra_rows=extra, deviations="NESTED_SLICES")
    bad = entry(UINT8, [2, 2], 4, crc, offset=6, slices=[slice_((0, 1))])
    extra = [rows[0], (rows[1][0], bad)]
    out.beside("slc-10-any", "SLC-10", whole, data, x, extra_rows=extra, deviations="NESTED_SLICES")
    crcs = parts.chunked(EIGHT[4:], 2)
    nested = entry(UINT8, [2, 2], 4, crc, offset=6, slices=[slice_((0, 1), (0, -1))], tail=crcs)
    extra = [rows[0], (rows[1][0], nested)]
    more = {"extra_rows": extra, "deviations": "NESTED_SLICES", "level": "v2+"}
    out.beside("slc-10-chunks", "SLC-10 EXT-5", whole, data, x, **more)
    broken = reads(rows[0][0], fails=("BAD_PROTO", "MSG-6"))
    out.at_entry("key-6-broken", whole + b"\x7e", "BAD_PROTO", "MSG-6", *rows, rules="KEY-6 MSG-6")
    out[-1].steps.insert(3, broken)
    full = [slice_((0, -1), (0, 3)), slice_((0, -1), (2, 2))]
    empty = [
        (slice_key(b"x", (0, -1), (0, 3)), u8(dims=[0, 3]).entry(2)),
        (slice_key(b"x", (0, -1), (2, 2)), u8(dims=[0, 2]).entry(2)),
    ]
    message = parts.partitioned(UINT8, [0, 4], *full)
    none = (UINT8, [0, 4])
    out.at_read("slc-6-empty", message, b"", none, "BAD_SLICE", "SLC-6", extra_rows=empty)
    # A request without elements needs no slice: neither its entry nor its data file.
    apart = parts.partitioned(UINT8, [0, 4], slice_((0, -1), (0, 2)), slice_((0, -1), (2, 2)))
    other_shape = (slice_key(b"x", (0, -1), (0, 2)), u8(dims=[0, 9]).entry(2))
    no_elements = u8(dims=[0, 4])
    rules = "SLC-7 SLC-9"
    out.beside("slc-9-no-elements", rules, apart, b"", no_elements, extra_rows=[other_shape])
    missing = [("BAD_SLICE", "SLC-7"), ("BAD_SLICE", "SLC-9")]
    out[-1].steps[-1] = verifies(*missing)
    covered = boxes(b"x", [(2, 2), (0, 2)], u8(*EIGHT[:4], dims=[2, 2]))
    hole = boxes(b"x", [(1, 2), (0, 2)], fails=("BAD_SLICE", "SLC-11"))
    nothing = boxes(b"x", [(0, 0), (0, 2)], u8(dims=[0, 2]))
    at_read("slc-11", "SLC-11", [4, 2], ROWS_OF_2[1:], covered, hole, nothing)
    written = msg(1, num(2, 2)) + msg(1, num(2, -1))
    long = parts.partitioned(UINT8, [4, 2], written, slice_((2, 2), (0, -1)))
    out.beside("slc-3-minus-1", "SLC-3", long, data, x, extra_rows=rows, deviations="FIELD_ORDER")
    located = parts.partitioned(UINT8, [4, 2], *(slice_(*one) for one in ROWS_OF_2))
    with_place = located.replace(b"\x3a", num(4, 1) + num(5, 5) + fixed(6, 9) + b"\x3a", 1)
    out.beside("ent-7", "ENT-7", with_place, data, x, extra_rows=rows, deviations="SLICE_LOCATION")
    misplaced = parts.partitioned(UINT8, [2], msg(1, num(1, 1)), slice_((0, 2)))
    hidden = slice_key(b"x", (0, -1))
    row = (hidden, u8(8, 9).entry(2))
    hides = reads(hidden, fails=("TENSOR_NOT_FOUND", "KEY-6"))
    hiding = functools.partial(out.at_read, extra_rows=[row], more_problems=True)
    unlisted = ((UINT8, [2]), "BAD_SLICE", "SLC-3", hides)
    hiding("key-5-full", misplaced, b"\10\11", *unlisted, rules="SLC-3 KEY-5 KEY-6")
    limited = {"slices_max": 1}
    out.at_entry("slices-limit", whole, "LIMIT", "TAB-13", *rows, data=data, limits=limited)


def names_like_keys(out: Vectors) -> None:
    """A tensor under a name that begins with 0, whose slices stand before it, and what their
    entries list."""
    name, halves = b"\0b", [(0, 2), (2, 2)]
    first, second = (slice_key(name, one) for one in halves)
    tensor = (name, parts.partitioned(UINT8, [4], *(slice_(one) for one in halves)))
    below = slice_key(first, (0, 1))
    deepest = slice_key(below, (0, 1))
    ones = [slice_((0, 1)), slice_((1, 1))]

    def slices_of(value: Value, keys: Sequence[bytes], offset: int) -> list[Row]:
        """The whole value by single elements."""
        return [(key, u8(value.raw[at]).entry(offset + at)) for at, key in enumerate(keys)]

    value = u8(1, 2, 3, 4)
    lists_more = u8(1, 2).entry()
    lists_more += b"".join(msg(7, one) for one in ones)
    rows = [tensor, (first, lists_more), (second, u8(3, 4).entry(2))]
    files = files_of(parts.table(*sorted(rows)), value.raw)
    rules = "KEY-6 KEY-7 SLC-10"
    hidden = [reads(one, fails=("TENSOR_NOT_FOUND", "KEY-6")) for one in (first, second)]
    out.sound("key-6-before", rules, files, {name: value}, *hidden, deviations="NESTED_SLICES")
    # What the slice lists is no slice, but a tensor; what that lists again is.
    more = u8(8, 9)
    files = files_of(parts.table(*sorted([*rows, (below, more.entry(4))])), value.raw + more.raw)
    found = {below: more, name: value}
    steps = [opens(), lists(found), *(reads(one, found[one]) for one in found), *hidden]
    orphan = ("BAD_SLICE", "KEY-7")
    out.add("key-6-nested", rules, files, *steps, verifies(orphan, deviations="NESTED_SLICES"))
    pair = (below, parts.partitioned(UINT8, [2], *ones))
    lowest = slices_of(more, [deepest, slice_key(below, (1, 1))], 4)
    table = parts.table(*sorted([*rows, pair, *lowest]))
    files = files_of(table, value.raw + more.raw)
    hidden.append(reads(deepest, fails=("TENSOR_NOT_FOUND", "KEY-6")))
    out.sound("key-6-deep", rules, files, found, *hidden, deviations="NESTED_SLICES")


# Names that begin with 0 and are no slice keys.
STRANGE = [
    b"\0",
    b"\0\1",
    b"\0v\0\1\0",
    b"\0v\0\1\1\0",
    b"\0v\0\2\1\1\x80\x82",
    b"\0v\xff\1\0\1\1\1\x80\x82",
    slice_key(b"v", (0, 2)) + b"\0",
    slice_key(b"v", (0, 2))[:-1],
    b"\0v\0\1\1\1\x80\x80",
    b"\0v\0\1\1\1\x7f\x82",
    b"\0v\0\1\1\1\x81\x7f",
    b"\0v\0\1\1\1\xc0\x00\x82",
    b"\0v\0\1\2\0\1\x80\x82",
    b"\0v\0\1\1\1\x80\x7e",
    b"\0v\0\1\1\1\x80\xc0",
    b"\0v\0\1\1\1\xff\xff\xff",
    b"\0v\0\1\1\1\xff\xc0\x80\0\0\0\0\0\0\0\x81",
    *(slice_key(b"v", (number, 1)) for number in (-1, -64, -65, -(2**63), 2**63 - 1)),
]


def keys(out: Vectors) -> None:
    numbers = [0, 63, 64, 8191, 8192, 2**20, 2**34 + 5, 2**55, 2**62]
    extents = [[(start, 1)] for start in numbers]
    dims = [2**63 - 1]
    rows, data = [], b""
    for number, one in enumerate(extents):
        rows.append((slice_key(b"x", *one), u8(number).entry(2 + number)))
        data += bytes([number])
    whole = parts.partitioned(UINT8, dims, *(slice_(*one) for one in extents))
    steps = [
        opens(),
        lists({b"a": GOOD, b"x": Value(UINT8, tuple(dims))}),
        *(boxes(b"x", one, u8(number)) for number, one in enumerate(extents)),
        reads(b"a", GOOD),
        verifies(("BAD_SLICE", "SLC-11")),
    ]
    index = parts.table(*sorted([(b"a", GOOD.entry()), (b"x", whole), *rows]))
    hole = [opens(), reads(b"x", fails=("BAD_SLICE", "SLC-11")), reads(b"a", GOOD)]
    out.add("slc-11-huge", "SLC-11", files_of(index, b"\1\2" + data), *hole)
    out.add("key-4-numbers", "KEY-2 KEY-4", files_of(index, b"\1\2" + data), *steps)
    name = b"a\0b\xffc"
    value = u8(1, 2, 3, 4)
    halves = [[(0, 2)], [(2, 2)]]
    rows = [
        (slice_key(name, (0, 2)), u8(1, 2).entry()),
        (slice_key(name, (2, 2)), u8(3, 4).entry(2)),
        (name, parts.partitioned(UINT8, [4], *(slice_(*one) for one in halves))),
    ]
    files = files_of(parts.table(*sorted(rows)), value.raw)
    out.sound("key-3-escapes", "KEY-3 KEY-2", files, {name: value})
    many: list[list[Extent]] = [[(0, 1)] + [(0, -1)] * 7, [(1, 1)] + [(0, -1)] * 7]
    whole, rows, data = pieces([2, *[1] * 7], many)
    x = u8(*EIGHT[:2], dims=[2, *[1] * 7])
    out.beside("key-2-rank-8", "KEY-1 KEY-2", whole, data, x, extra_rows=rows)
    orphan = slice_key(b"v", (0, 2), (0, -1))
    values = {orphan: u8(9, dims=[2, 1]), b"a": GOOD}
    rows, data = store(values)
    files = files_of(parts.table(*sorted(rows)), data)
    problem = ("BAD_SLICE", "KEY-7")
    steps = [opens(), lists(values), *(reads(one, values[one]) for one in values)]
    sound = {orphan: u8(8, 9, dims=[2, 1]), b"a": GOOD}
    rows, data = store(sound)
    files = files_of(parts.table(*sorted(rows)), data)
    steps = [opens(), lists(sound), *(reads(one, sound[one]) for one in sound)]
    out.add("key-7", "KEY-7 KEY-6", files, *steps, verifies(problem))
    values = {one: u8(number) for number, one in enumerate(STRANGE)}
    rows, data = store(values)
    files = files_of(parts.table(*sorted(rows)), data)
    out.sound("key-8-not-slice-keys", "KEY-7 KEY-8", files, dict(sorted(values.items())))
    raw = [b"\n\r", b"\xc3\xa9", b"\xed\xa0\x80", b"\xff", b"\xff\xfe", b" ", b"a" * 200]
    values = {one: u8(number) for number, one in enumerate(sorted(raw))}
    out.plain("names", "TAB-1 TAB-12", values)


def decoded_keys(out: Vectors) -> None:
    """Slice keys by themselves, as a decoder of them sees them."""
    good: dict[bytes, list[Extent]] = {
        b"v": [(0, 2), (0, -1)],
        b"a\0b\xffc": [(0, 2)],
        b"": [(1, 1)],
        b"deep": [(0, 1)] * 254,
        b"large": [(2**63 - 2, 1)],
        b"long": [(0, 2**63 - 1)],
    }
    for number in (63, 64, 8191, 8192, 2**20, 2**34 + 5, 2**55, 2**62):
        good[b"n%d" % number] = [(number, 1)]
    for name, extents in good.items():
        key = slice_key(name, *extents)
        gives = [name.hex(), [list(one) for one in extents]]
        out.keys.append({"key": key.hex(), "rules": ["KEY-1", "KEY-8"], "gives": gives})
    for key in STRANGE:
        out.keys.append({"key": key.hex(), "rules": ["KEY-8"], "fails": ["BAD_SLICE", "KEY-8"]})


def texts(out: Vectors) -> None:
    largest = str(2**63 - 1)
    good = {
        "4 6 0,2:-": ([4, 6], [[0, 2], [0, -1]]),
        "4 6 0,2:0,6": ([4, 6], [[0, 2], [0, 6]]),
        "4 6 ::0,2::-:": ([4, 6], [[0, 2], [0, -1]]),
        "4 ,0,,2,": ([4], [[0, 2]]),
        "+4 +0,+2": ([4], [[0, 2]]),
        "\t4 \v0\f,\r2\n": ([4], [[0, 2]]),
        "04 00,02": ([4], [[0, 2]]),
        f"{largest} 0,{largest}": ([2**63 - 1], [[0, 2**63 - 1]]),
        f"{largest} {2**63 - 2},1": ([2**63 - 1], [[2**63 - 2, 1]]),
        "0 -": ([0], [[0, -1]]),
        f"0 {2**62} {2**62} -:-:-": ([0, 2**62, 2**62], [[0, -1]] * 3),
        "2 -": ([2], [[0, -1]]),
    }
    out.texts.append({"text": "", "rules": ["TXT-1"], "gives": None})
    for text, (dims, extents) in good.items():
        rules = ["TXT-2", "TXT-3", "TXT-4", "TXT-5", "TXT-6", "TXT-7"]
        out.texts.append({"text": text, "rules": rules, "gives": [dims, extents]})
    bad = {
        "TXT-2": ["-", "4", "0,2"],
        "TXT-3": ["x 0,2", "-4 -", f"{2**63} -", "4  -", " 4 -", "4 6a -:-", "4. -"],
        "TXT-4": ["4 0,2:-", "4 6 -", "4 6 -:-:-"],
        "TXT-5": ["4 0", "4 0,1,2", "4 a,b", "4 --", f"4 0,{2**63}", "4 0,1.5", "4 0x0,1"],
        "TXT-6": ["4 -1,2", "4 0,0", "4 0,-1", "4 2,3", f"4 {2**63 - 1},1"],
        "TXT-7": [f"{2**62} 2 -:-", f"{2**62} {2**62} 0 -:-:-", "1 " * 255 + ":".join("-" * 255)],
    }
    for rule, every in bad.items():
        for text in every:
            out.texts.append({"text": text, "rules": [rule], "fails": ["ARGUMENT", rule]})


def string_checksum(sizes: Sequence[int], behind: bytes) -> int:
    """The entry's checksum (STR-6) of sizes below 2^32 and the bytes behind them."""
    return parts.crc32c(b"".join(map(parts.u32, sizes)) + behind)


def string_tensors(out: Vectors) -> None:
    elements = (b"hello", b"", b"wor\0ld")
    value = strings(*elements)
    data, crc = value.stored()
    part = boxes(b"x", [(1, 2)], strings(*elements[1:]))
    out.beside("str-1", "STR-1 STR-3 STR-4 STR-5 STR-6", value.entry(2), data, value, part)
    scalar = strings(b"", dims=[])
    out.beside("str-1-scalar", "STR-1 STR-2", scalar.entry(2), scalar.stored()[0], scalar)
    none = strings(dims=[0])
    out.beside("str-8", "STR-8", none.entry(2), none.stored()[0], none)
    zero = entry(STRING, [0], offset=2)
    out.beside("str-8-size-0", "STR-8", zero, b"", none)
    long = strings(bytes(range(256)) * 2)
    out.beside("str-3-long", "STR-3 STR-5", long.entry(2), long.stored()[0], long)
    overlong, crc_of = parts.string_value(elements, sizes=b"\x85\0\0\x86\x80\0")
    message = entry(STRING, [3], len(overlong), crc_of, offset=2)
    out.beside("str-3-overlong", "STR-3", message, overlong, value)
    big, crc_of = parts.string_value(elements, big=True)
    index = parts.table((b"x", entry(STRING, [3], len(big), crc_of)), head=header(endianness=1))
    out.sound("str-7", "STR-7", files_of(index, big), {b"x": value}, deviations="BIG_ENDIAN")

    def bad(
        name: str,
        raw: bytes,
        rule: str,
        failure: str = "BAD_ENTRY",
        *,
        crc: int = crc,
        count: int = 3,
        unverified: Value | None = None,
    ) -> None:
        message = entry(STRING, [count], len(raw), crc, offset=2)
        steps = [boxes(b"x", [(0, 1)], fails=(failure, rule))]
        if unverified is not None:
            steps.append(reads_unverified(b"x", unverified))
        out.at_read(name, message, raw, (STRING, [count]), failure, rule, *steps)

    bad("str-2", data[:6], "STR-2")
    bad("str-2-many", data, "STR-2", count=2**40)
    bad("str-2-size-0", b"", "STR-2", crc=0)
    bad("str-3", b"\x85\x80\x80\x80\x80\x80\x80\x80\x80\x80\1" + data[1:], "STR-3")
    bad("str-3-past-end", b"\x80\x80\x80\x80\x80\x80\x80", "STR-3")
    bad("str-3-checksum-outside", b"\5\0\x86\x80\0\0\0", "STR-3")
    for name, sizes in (("less", (4, 0, 6)), ("more", (6, 0, 6)), ("wraps", (2**64 - 1, 6, 6))):
        raw = parts.string_sizes(sizes) + data[7:]
        bad(f"str-4-{name}", raw, "STR-4")
    # The entry's checksum is right, and the layout is not.
    sizes = (4, 0, 6)
    raw = parts.string_sizes(sizes) + data[7:]
    bad("str-4-under-str-6", raw, "STR-4", crc=string_checksum(sizes, raw[3:]))
    flipped = bytearray(data)
    flipped[3] ^= 1
    bad("str-5", bytes(flipped), "STR-5", "CHECKSUM", unverified=value)
    right = string_checksum((5, 0, 6), bytes(flipped[3:]))
    bad("str-5-under-str-6", bytes(flipped), "STR-5", "CHECKSUM", crc=right, unverified=value)
    swapped, other = parts.string_value(elements, big=True)
    bad("str-7-big-in-little", swapped, "STR-5", "CHECKSUM", crc=other)
    flipped = bytearray(data)
    flipped[-1] ^= 1
    other_last = strings(*elements[:2], b"wor\0le")
    bad("str-6", bytes(flipped), "STR-6", "CHECKSUM", unverified=other_last)
    bad("str-6-entry", data, "STR-6", "CHECKSUM", crc=crc ^ 1, unverified=value)
    not_masked = parts.unmask(crc)
    bad("str-6-not-masked", data, "STR-6", "CHECKSUM", crc=not_masked, unverified=value)
    message = entry(STRING, [0], 4, 1, offset=2)
    raw = parts.u32(parts.mask(0))
    listed = (STRING, [0])
    out.at_read("str-6-none", message, raw, listed, "CHECKSUM", "STR-6")
    message = entry(STRING, [0], 0, 1, offset=2)
    given = "STR-8 ENT-8"
    out.at_read("str-8-checksum", message, b"", listed, "CHECKSUM", "ENT-8", rules=given)
    halves = [strings(b"p", b"qq"), strings(b"", dims=[1])]
    rows, offset, stored = [], 2, b""
    for one, extents in zip(halves, ([(0, 2)], [(2, 1)]), strict=True):
        rows.append((slice_key(b"x", *extents), one.entry(offset)))
        stored += one.stored()[0]
        offset = 2 + len(stored)
    whole = parts.partitioned(STRING, [3], slice_((0, 2)), slice_((2, 1)))
    joined = strings(b"p", b"qq", b"")
    part = boxes(b"x", [(1, 2)], strings(b"qq", b""))
    out.beside("str-slices", "STR-1 SLC-1", whole, stored, joined, part, extra_rows=rows)


def variants(out: Vectors) -> None:
    payloads = (b"one", b"", bytes(40))
    value = Value(VARIANT, (3,), elements=payloads)
    data, crc = value.stored()
    out.beside("var-1", "VAR-1 VAR-2 VAR-3 VAR-4 VAR-5", value.entry(2), data, value)
    none = Value(VARIANT, (0,), elements=())
    out.beside("var-1-none", "VAR-1 ENT-8", none.entry(2), b"", none)

    def bad(
        name: str,
        raw: bytes,
        rule: str,
        failure: str = "BAD_ENTRY",
        crc: int = crc,
        unverified: Sequence[bytes] = (),
    ) -> None:
        message = entry(VARIANT, [3], len(raw), crc, offset=2)
        found = Value(VARIANT, (3,), elements=tuple(unverified))
        steps = [reads_unverified(b"x", found)] if unverified else []
        out.at_read(name, message, raw, (VARIANT, [3]), failure, rule, *steps)

    bad("var-2-few", data[:14], "VAR-2")
    bad("var-2-cut", data[:-1], "VAR-2")
    bad("var-2-more", data + b"\0", "VAR-2")
    bad("var-2-unreadable", data[:13] + b"\x80" * 11 + data[13:], "VAR-2")
    bad("var-2-wraps", data[:13] + varint(2**64 - 4) + data[14:], "VAR-2")
    changed = {"payload": (b"nne", *payloads[1:]), "last": (*payloads[:2], bytes(39) + b"\1")}
    for name, at in (("payload", 1), ("stored", 4), ("second", 9), ("last", len(data) - 5)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        found = changed.get(name, payloads)
        bad(f"var-3-{name}", bytes(flipped), "VAR-3", "CHECKSUM", unverified=found)
    bad("var-4", data, "VAR-4", "CHECKSUM", crc ^ 1, payloads)
    big = header(endianness=1)
    listed = (VARIANT, [3])
    out.at_read(
        "var-6",
        value.entry(2),
        data,
        listed,
        "UNSUPPORTED",
        "VAR-6",
        head=big,
        deviations="BIG_ENDIAN",
    )


def data_files(out: Vectors) -> None:
    x = u8(5, 6, 7)
    listed = (UINT8, [3])
    out.at_read("dat-2", x.entry(2), b"\5\6", listed, "TRUNCATED", "DAT-2")
    out.at_read("dat-2-far", x.entry(2**63 - 4), b"", listed, "TRUNCATED", "DAT-2")
    huge = 2**62
    bad = entry(UINT8, [huge], huge, 0, offset=2)
    out.at_read("dat-2-huge", bad, b"", (UINT8, [huge]), "TRUNCATED", "DAT-2")
    out.beside("dat-3", "DAT-1 DAT-3", x.entry(4), b"??" + x.raw + b"??", x)
    aligned = {b"a": u8(1, 2, 3, 4, 5), b"b": u8(6, 7, 8, 9, 10)}
    rows, data = store(aligned, 16)
    out.sound("dat-5", "DAT-5 DAT-3", files_of(parts.table(*rows), data), aligned)
    order = {b"z": u8(1), b"b": u8(2, 3), b"m": u8(4)}
    rows, data = store(order)
    tensors = dict(sorted(order.items()))
    out.sound("dat-4", "DAT-4", files_of(parts.table(*rows), data), tensors)
    overlap = u8(2, 5)
    files = files_of(parts.table((b"a", GOOD.entry()), (b"x", overlap.entry(1))), b"\1\2\5")
    steps = [opens(), lists({b"a": GOOD, b"x": overlap}), reads(b"a", GOOD), reads(b"x", overlap)]
    out.add("dat-8", "DAT-8", files, *steps, verifies(("BAD_ENTRY", "DAT-8")))
    part = boxes(b"x", [(1, 2)], u8(6, 7))
    out.beside("box", "DAT-1", x.entry(2), x.raw, x, part)
    cube = Value(FLOAT, (2, 3, 2), b"".join(bytes([n, 0, 0, 0]) for n in range(12)))
    wanted = [4 * at for at in (3, 5)]
    raw = b"".join(cube.raw[at : at + 4] for at in wanted)
    part = boxes(b"x", [(0, 1), (1, 2), (1, 1)], Value(FLOAT, (1, 2, 1), raw))
    out.beside("box-strided", "DTY-2", cube.entry(2), cube.raw, cube, part)


def add(out: Vectors) -> None:
    slices(out)
    names_like_keys(out)
    keys(out)
    decoded_keys(out)
    texts(out)
    string_tensors(out)
    variants(out)
    data_files(out)
