# SPDX-License-Identifier: Apache-2.0
"""Vectors of merges: MRG. Inputs and the index that results, or the failure."""

from __future__ import annotations

from collections.abc import Sequence

from making import parts
from making.parts import COMPRESSED_HEADER, Row, header, msg, num, slice_, slice_key
from making.vectors import UINT8, Value, Vectors, files_of, strings, u8

FLOAT = 1
METADATA = b"_CKPTFMT_METADATA"


def floats(*numbers: int, dims: Sequence[int]) -> Value:
    """Small whole numbers as float."""
    bits = {0: 0, 1: 0x3F800000, 2: 0x40000000, 3: 0x40400000}
    return Value(FLOAT, tuple(dims), b"".join(parts.u32(bits[one]) for one in numbers))


class Merges:
    """Bundles by name under `merge/`, and what merging them gives."""

    def __init__(self, out: Vectors) -> None:
        self.out = out
        self.files: dict[str, bytes] = {}

    def bundle(self, name: str, rows: Sequence[Row], data: bytes, head: bytes | None = None) -> str:
        index = parts.table(*sorted(rows), head=head)
        for suffix, content in files_of(index, data).items():
            self.files[f"merge/{name}{suffix}"] = content
        return f"merge/{name}"

    def index(self, name: str, rows: Sequence[Row], head: bytes) -> str:
        self.files[f"merge/{name}.index"] = parts.table(*sorted(rows), head=head)
        return f"merge/{name}.index"

    def add(self, name: str, rules: str, inputs: list[str], **outcome: object) -> None:
        given = {"name": name, "rules": rules.split(), "inputs": inputs}
        self.out.merges.append(given | outcome)


def add(out: Vectors) -> None:
    made = Merges(out)
    a, b, c = u8(1), u8(2, 3), u8(4)
    one = made.bundle("one", [(b"a", a.entry())], a.raw)
    two = made.bundle("two", [(b"b", b.entry()), (b"c", c.entry(2))], b.raw + c.raw)
    rows = [(b"a", a.entry()), (b"b", b.entry(shard=1)), (b"c", c.entry(2, shard=1))]
    both = made.index("one-two", rows, header(2))
    made.add("join", "MRG-3 MRG-6 MRG-8 MRG-13", [one, two], gives=both)
    rows = [(b"a", a.entry(shard=1)), (b"b", b.entry()), (b"c", c.entry(2))]
    other = made.index("two-one", rows, header(2))
    made.add("join-order", "MRG-1 MRG-6", [two, one], gives=other)
    conflict = ["MERGE_CONFLICT", "MRG-3"]
    same = made.bundle("same", [(b"a", u8(9).entry())], b"\x09")
    made.add("mrg-3", "MRG-3", [one, same], fails=conflict)
    made.add("mrg-1", "MRG-1", [one, "merge/none"], fails=["CHECKPOINT_NOT_FOUND", "NAM-2"])
    allow: dict[str, object] = {"allow_missing": True}
    none_left = ["CHECKPOINT_NOT_FOUND", "MRG-1"]
    made.add("mrg-1-none-left", "MRG-1", ["merge/none"], fails=none_left, **allow)
    made.add("mrg-1-allowed", "MRG-1", ["merge/none", one, two], gives=both, **allow)
    made.add("mrg-10-twice", "MRG-10", [one, one], fails=["ARGUMENT", "MRG-10"])
    big = made.bundle("big", [(b"d", c.entry())], c.raw, header(endianness=1))
    made.add("mrg-2-order", "MRG-2", [one, big], fails=["MERGE_CONFLICT", "MRG-2"])
    later = made.bundle("later", [(b"d", c.entry())], c.raw, header(producer=2))
    made.add("mrg-2-version", "MRG-2", [one, later], fails=["MERGE_CONFLICT", "MRG-2"])
    slices = []
    for number, start in enumerate((0, 2)):
        piece = floats(number, number + 1, dims=[2])
        rows = [
            (slice_key(b"v", (start, 2)), piece.entry()),
            (b"v", parts.partitioned(FLOAT, [4], slice_((start, 2)))),
        ]
        slices.append(made.bundle(f"slice-{number}", rows, piece.raw))
    first, second = floats(0, 1, dims=[2]), floats(1, 2, dims=[2])
    rows = [
        (slice_key(b"v", (0, 2)), first.entry()),
        (slice_key(b"v", (2, 2)), second.entry(shard=1)),
        (b"v", parts.partitioned(FLOAT, [4], slice_((0, 2)), slice_((2, 2)))),
    ]
    whole = made.index("slices", rows, header(2))
    made.add("slices", "MRG-4 MRG-6", slices, gives=whole)
    for name, rule, code, dims, box in (
        ("mrg-4-dtype", "MRG-4", 3, [4], (2, 2)),
        ("mrg-4-shape", "MRG-4", FLOAT, [5], (2, 2)),
        ("mrg-5", "MRG-5", FLOAT, [4], (1, 2)),
    ):
        piece = Value(code, (2,), bytes(8))
        rows = [
            (slice_key(b"v", box), piece.entry()),
            (b"v", parts.partitioned(code, dims, slice_(box))),
        ]
        third = made.bundle(name, rows, piece.raw)
        made.add(name, rule, [slices[0], third], fails=["MERGE_CONFLICT", rule])
    made.bundle("spare", [(b"d", c.entry(shard=1))], b"none", header(2))
    for shard, content in ((0, b"none"), (1, c.raw)):
        made.files[f"merge/spare.data-{shard:05d}-of-00002"] = content
    del made.files["merge/spare.data-00000-of-00001"]
    rows = [(b"a", a.entry()), (b"d", c.entry(shard=1))]
    result = made.index("one-spare", rows, header(2))
    made.add("mrg-9", "MRG-9", [one, "merge/spare"], gives=result)
    none = [made.bundle(f"nothing-{number}", [], b"") for number in range(2)]
    place = (b"_CKPTFMT_SHARD_0", floats(dims=[0]).entry())
    result = made.index("nothing", [place], header())
    made.add("mrg-8-nothing", "MRG-8 MRG-9 EXT-8", none, gives=result)
    moved = (b"_CKPTFMT_SHARD_1", floats(dims=[0]).entry(shard=7))
    none.append(made.bundle("moved", [moved], b""))
    made.add("ext-8-moved", "MRG-8 EXT-8", none[1:], gives=result)
    for rule, changes in (("ENT-3", {"shard": 1}), ("ENT-4", {"offset": -1})):
        wrong = made.bundle(rule.lower(), [(b"d", c.entry(**changes))], c.raw)
        made.add(rule.lower(), rule, [one, wrong], fails=["BAD_ENTRY", rule])
    rows = [(b"a", a.entry())]
    result = made.index("one-nothing", rows, header())
    made.add("mrg-9-nothing", "MRG-9", [none[0], one, none[1]], gives=result)
    unknown = num(99, 5) + msg(98, b"kept")
    deviating = num(1, 9) + num(1, 4, 3) + msg(2, parts.shape([2])) + num(5, 2)
    deviating += parts.fixed(6, parts.mask(parts.crc32c(b.raw))) + unknown
    strange = made.bundle("strange", [(b"b", deviating)], b.raw)
    canonical = b.entry(shard=1, tail=unknown)
    rows = [(b"a", a.entry()), (b"b", canonical)]
    result = made.index("one-strange", rows, header(2))
    made.add("mrg-7", "MRG-7 MSG-8 MSG-9", [one, strange], gives=result)
    # A length of -1 stays.
    lengths = msg(1, num(2, 2)) + msg(1, num(2, -1))
    table = parts.partitioned(UINT8, [4, 2], lengths)
    half = (slice_key(b"t", (0, 2), (0, -1)), u8(1, 2, 3, 4, dims=[2, 2]).entry())
    full = made.bundle("full-extent", [half, (b"t", table)], b"\1\2\3\4")
    result = made.index("full-extent-merged", [half, (b"t", table)], header())
    made.add("mrg-7-length-minus-1", "MRG-7 SLC-3", [full], gives=result)
    extended = u8(*range(10))
    tail = parts.chunked(extended.raw, 4) + parts.extension(num(99, 5))
    plus = made.bundle("plus", [(b"x", extended.entry(tail=tail))], extended.raw)
    rows = [(b"a", a.entry()), (b"x", extended.entry(shard=1, tail=tail))]
    result = made.index("one-plus", rows, header(2))
    made.add("extensions", "MRG-7 EXT-1 EXT-11", [one, plus], gives=result)
    zipped = made.bundle("zipped", [(b"d", c.entry())], c.raw, COMPRESSED_HEADER)
    rows = [(b"a", a.entry()), (b"d", c.entry(shard=1))]
    result = made.index("one-zipped", rows, header(2, producer=2, min_consumer=2))
    made.add("mrg-15", "MRG-15", [one, zipped], gives=result, level="ckptfmt")
    # Whether producer and min_consumer count is settled for all inputs, whichever comes first.
    third = made.bundle("third", [(b"e", c.entry())], c.raw, header(producer=3, min_consumer=1))
    for name, inputs in (
        ("last", [one, third, zipped]),
        ("middle", [third, zipped, one]),
        ("first", [zipped, one, third]),
    ):
        places = {inputs[number]: number for number in range(3)}
        rows = [
            (b"a", a.entry(shard=places[one])),
            (b"d", c.entry(shard=places[zipped])),
            (b"e", c.entry(shard=places[third])),
        ]
        result = made.index(f"zipped-{name}", rows, header(3, producer=3, min_consumer=2))
        made.add(f"mrg-15-{name}", "MRG-15 MRG-2", inputs, gives=result, level="ckptfmt")
    differ = ["MERGE_CONFLICT", "MRG-2"]
    made.add("mrg-15-none", "MRG-15 MRG-2", [one, third], fails=differ)
    banning = header(version=num(1, 1) + msg(3, b"\5"))
    fourth = made.bundle("banning", [(b"f", c.entry())], c.raw, banning)
    made.add("mrg-15-rest", "MRG-15 MRG-2", [one, zipped, fourth], fails=differ, level="ckptfmt")
    lowest = header(version=num(1, 1) + num(2, -1))
    fifth = made.bundle("negative", [(b"g", c.entry())], c.raw, lowest)
    rows = [(b"d", c.entry()), (b"g", c.entry(shard=1))]
    result = made.index("zipped-negative", rows, header(2, producer=2, min_consumer=2))
    made.add("mrg-15-negative", "MRG-15", [zipped, fifth], gives=result, level="ckptfmt")
    made.add("mrg-2-negative", "MRG-2", [one, fifth], fails=differ)
    texts = [strings(one, dims=[]) for one in (b'{"a":1}', b'{"a":1}', b'{"a":2}')]
    described = [
        made.bundle(
            f"metadata-{number}",
            [(METADATA, one.entry()), (name, c.entry(12))],
            one.stored()[0] + c.raw,
        )
        for number, (one, name) in enumerate(zip(texts, (b"a", b"b", b"c"), strict=True))
    ]
    rows = [(METADATA, texts[0].entry()), (b"a", c.entry(12)), (b"b", c.entry(12, shard=1))]
    assert len(texts[0].stored()[0]) == 12
    result = made.index("metadata", rows, header(2))
    made.add("mrg-16", "MRG-16", described[:2], gives=result)
    made.add(
        "mrg-16-differs", "MRG-16", [described[0], described[2]], fails=["MERGE_CONFLICT", "MRG-16"]
    )
    out.merge_files = made.files
