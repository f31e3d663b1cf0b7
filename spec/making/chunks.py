# SPDX-License-Identifier: Apache-2.0
"""Vectors of the extension: EXT (level v2+) and CMP (level ckptfmt)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from making import parts
from making.parts import COMPRESSED_HEADER, entry, extension, fixed, frame, header, msg, num, packed
from making.values import EIGHT, ROWS_OF_2, pieces
from making.vectors import (
    BFLOAT16,
    FLOAT,
    STRING,
    UINT8,
    UINT16,
    VARIANT,
    Step,
    Value,
    Vectors,
    boxes,
    metadata,
    opens,
    reads,
    strings,
    u8,
    verifies,
)

TEN = u8(*range(10))
# Nothing but zstd makes such a block; the bytes are those of its version 1.5.7.
TEXT = b"the quick brown fox jumps over the lazy dog; " * 6
COMPRESSED_BLOCK = bytes.fromhex(
    "d40274686520717569636b2062726f776e20666f78206a756d7073206f76657220746865206c617a"
    "7920646f673b200100f5424a9501"
)
COMPRESSED_CHECKSUM = bytes.fromhex("dc20ade5")


def with_extension(value: Value, content: bytes) -> bytes:
    return value.entry(2, tail=extension(content))


def crcs_of(data: bytes, size: int) -> bytes:
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(parts.u32(parts.crc32c(one)) for one in pieces)


def chunk_checksums(out: Vectors) -> None:
    data, listed = TEN.raw, (UINT8, [10])
    crcs = crcs_of(data, 4)
    sound = num(2, 4) + msg(3, crcs)
    steps = [boxes(b"x", [(5, 2)], u8(5, 6)), boxes(b"x", [(3, 6)], u8(*range(3, 9)))]

    def good(name: str, rules: str, content: bytes, value: Value = TEN, **more: Any) -> None:
        more.setdefault("level", "v2+")
        stored = value.stored()[0]
        given = steps if value is TEN else []
        out.beside(name, rules, with_extension(value, content), stored, value, *given, **more)

    good("ext-4", "EXT-1 EXT-4 EXT-6 EXT-9", sound)
    good("ext-4-exactly", "EXT-4", num(2, 5) + msg(3, crcs_of(data, 5)))
    good("ext-5-empty", "EXT-5", b"")
    good("ext-11-unknown", "EXT-11", sound + msg(99, b"later"), deviations="UNKNOWN_FIELD")
    good("ext-11-only-unknown", "EXT-11 EXT-5", num(99, 1), deviations="UNKNOWN_FIELD")
    twice = num(2, 4) + msg(3, b"\1\2\3\4") + msg(3, crcs)
    good("ext-2-twice", "EXT-2", twice)
    spread = extension(num(2, 4)) + extension(msg(3, crcs))
    out.beside(
        "msg-10-extension",
        "MSG-10 EXT-1",
        TEN.entry(2, tail=spread),
        data,
        TEN,
        *steps,
        level="v2+",
        deviations="FIELD_ORDER",
    )
    unpacked = sound + fixed(3, 9)
    good("ext-2-unpacked", "EXT-2 MSG-8", unpacked, deviations="UNKNOWN_FIELD")
    ignored = sound + packed([4 << 3 | 2, 1, 5]) + num(5, 7) + fixed(6, 7)
    good("cmp-1-without", "CMP-1", ignored, level="ckptfmt")
    text = strings(b"hello", b"", b"world")
    stored = text.stored()[0]
    good("ext-6-strings", "EXT-6 EXT-4", num(2, 8) + msg(3, crcs_of(stored, 8)), text)
    message = TEN.entry(2, tail=num(100, 1))
    out.beside("ext-1-wire", "EXT-1 MSG-8", message, data, TEN, deviations="UNKNOWN_FIELD")

    def bad(name: str, rule: str, content: bytes, failure: str = "BAD_ENTRY", **more: Any) -> None:
        value = more.pop("value", TEN)
        more.setdefault("level", "v2+")
        stored = value.stored()[0]
        place = (value.code, value.dims)
        step = boxes(b"x", [(5, 2)], fails=(failure, rule)) if value is TEN else None
        given = [step] if step else []
        message = with_extension(value, content)
        out.at_read(name, message, stored, place, failure, rule, *given, **more)

    bad("ext-2", "EXT-2", num(2, 4) + msg(3, crcs + b"\0"))
    bad("ext-3", "EXT-3", num(1, 2) + sound, "UNSUPPORTED")
    bad("ext-3-high", "EXT-3", num(1, 1 << 63), "UNSUPPORTED")
    bad("ext-3-consumer-1", "EXT-3", num(1, 1) + sound, "UNSUPPORTED", consumer=1)
    bad("ext-4-few", "EXT-4", num(2, 4) + msg(3, crcs[:8]))
    bad("ext-4-many", "EXT-4", num(2, 4) + msg(3, crcs + bytes(4)))
    bad("ext-4-no-size", "EXT-4", msg(3, crcs))
    bad("ext-4-no-crcs", "EXT-4", num(2, 4))
    large = entry(
        UINT8, [2**33], 2**33, 0, offset=2, tail=extension(num(2, 2**32) + msg(3, bytes(8)))
    )
    listed_large = (UINT8, [2**33])
    out.at_read(
        "ext-4-chunk-size",
        large,
        b"",
        listed_large,
        "BAD_ENTRY",
        "EXT-4",
        more_problems=True,
        level="v2+",
    )
    bad("ext-5", "EXT-5", num(2, 10) + msg(3, crcs_of(data, 10)))
    bad("ext-5-size-0", "EXT-5", num(2, 4), value=u8(dims=[0]))
    # Of a partitioned tensor's own entry only verifying looks at it.
    for name, content, problem in (
        ("ext-5-partitioned", num(2, 4), ("BAD_ENTRY", "EXT-5")),
        ("ext-5-partitioned-crcs", msg(3, crcs + b"\0"), ("BAD_ENTRY", "EXT-5")),
        ("ext-5-partitioned-compressed", num(1, 1), ("BAD_ENTRY", "EXT-5")),
        ("ext-3-partitioned", num(1, 3), ("UNSUPPORTED", "EXT-3")),
        ("ext-5-partitioned-size", num(2, 4), ("BAD_ENTRY", "EXT-5")),
        ("ext-5-partitioned-without", num(5, 4), None),
    ):
        tail = extension(content)
        whole, rows, given = pieces([4, 2], ROWS_OF_2, tail)
        deviations = ""
        if name.endswith("size"):
            whole = whole.replace(b"\x3a", num(5, -1) + b"\x3a", 1)
            deviations = "SLICE_LOCATION"
        found = u8(*EIGHT, dims=[4, 2])
        rules = "EXT-3 EXT-5" if problem else "EXT-5"
        out.beside(
            name, rules, whole, given, found, extra_rows=rows, level="v2+", deviations=deviations
        )
        if problem:
            out[-1].steps[-1] = verifies(problem, deviations=deviations)
    wrong = num(2, 4) + msg(3, crcs[:4] + bytes(4) + crcs[8:])
    message = with_extension(TEN, wrong)
    files_steps = [
        boxes(b"x", [(0, 4)], u8(0, 1, 2, 3)),
        boxes(b"x", [(8, 2)], u8(8, 9)),
        boxes(b"x", [(3, 2)], fails=("CHECKSUM", "EXT-9")),
    ]
    out.beside("ext-6", "EXT-6 EXT-9", message, data, TEN, *files_steps, level="v2+")
    out[-1].steps[-1] = verifies(("CHECKSUM", "EXT-6"), ("CHECKSUM", "EXT-9"))
    flipped = bytearray(data)
    flipped[5] ^= 1
    message = with_extension(TEN, sound)
    out.at_read(
        "ext-9",
        message,
        bytes(flipped),
        listed,
        "CHECKSUM",
        "DAT-6",
        *files_steps,
        rules="EXT-9 DAT-6",
        level="v2+",
    )
    for name, content, rule in (
        ("msg-6-extension", b"\x7e", "MSG-6"),
        ("msg-3-extension", b"\x08", "MSG-3"),
        ("msg-5-extension", b"\x1a\5", "MSG-5"),
    ):
        message = with_extension(TEN, content)
        out.at_entry(
            name, message, "BAD_PROTO", rule, data=data, level="v2+", rules=f"{rule} EXT-1"
        )


def store_of(out: Vectors) -> None:
    """Metadata."""
    for name, text, value in (
        ("plain", '{"a":1,"b":[true,"x"],"c":-2.5}', {"a": 1, "b": [True, "x"], "c": -2.5}),
        ("empty", "{}", {}),
        ("nested", ' {"a": {"b": null}, "e": "\u00e9"} ', {"a": {"b": None}, "e": "\u00e9"}),
        ("twice", '{"a":1,"a":2}', {"a": 2}),
    ):
        value_of = strings(text.encode(), dims=[])
        tensors = {b"_CKPTFMT_METADATA": value_of, b"x": u8(1)}
        out.plain(f"ext-7-{name}", "EXT-7", tensors, metadata(value), level="v2+")
    out.plain("ext-7-none", "EXT-7", {b"x": u8(1)}, metadata({}))
    for name, bad in (
        ("array", strings(b"[1]", dims=[])),
        ("no-json", strings(b"{", dims=[])),
        ("not-utf-8", strings(b'{"a":"\xff"}', dims=[])),
        ("vector", strings(b"{}")),
        ("two", strings(b"{}{}", dims=[])),
        ("nan", strings(b'{"a":NaN}', dims=[])),
        ("no-string", u8(123, dims=[])),
        ("variant", Value(VARIANT, (), elements=(b"{}",))),
    ):
        tensors = {b"_CKPTFMT_METADATA": bad, b"x": u8(1)}
        fails = metadata(fails=("BAD_ENTRY", "EXT-7"))
        out.plain(f"ext-7-bad-{name}", "EXT-7", tensors, fails, level="v2+")
    stand_in = Value(FLOAT, (0,))
    rows = [(b"_CKPTFMT_SHARD_1", stand_in.entry(shard=1)), (b"x", u8(1).entry())]
    index = parts.table(*rows, head=header(2))
    files = {".index": index, ".data-00000-of-00002": b"\1", ".data-00001-of-00002": b""}
    tensors = {b"_CKPTFMT_SHARD_1": stand_in, b"x": u8(1)}
    out.sound("ext-8", "EXT-8", files, tensors, head={"num_shards": 2}, level="v2+")


# ---- compressed values


def compressed(
    value: Value,
    chunks: Sequence[bytes],
    *,
    raw: bytes | None = None,
    chunk_size: int = 4096,
    flags: int = 1,
    crcs: Sequence[int] | None = None,
    sizes: Sequence[int] | bytes | None = None,
    raw_size: int | None = None,
    raw_crc: int | None = None,
    size: int | None = None,
    crc: int | None = None,
    tail: bytes = b"",
    offset: int = 2,
) -> tuple[bytes, bytes]:
    """The entry of a compressed value and its stored bytes; what is None is as it ought to be."""
    data = b"".join(chunks)
    whole, checksum = (raw, parts.crc32c(raw)) if raw is not None else value.stored()
    checksums = [parts.crc32c(one) for one in chunks] if crcs is None else crcs
    given = [len(one) for one in chunks] if sizes is None else sizes
    content = (
        parts.some(1, flags)
        + parts.some(2, chunk_size)
        + msg(3, b"".join(map(parts.u32, checksums)))
        + msg(4, given if isinstance(given, bytes) else packed(given))
        + parts.some(5, len(whole) if raw_size is None else raw_size)
        + fixed(6, checksum if raw_crc is None else raw_crc)
        + tail
    )
    made = entry(
        value.code,
        value.dims,
        len(data) if size is None else size,
        parts.crc32c(data) if crc is None else crc,
        offset=offset,
        tail=extension(content),
    )
    return made, data


ONES = Value(BFLOAT16, (16,), b"\x80\x3f" * 16)
SEVENS = u8(*[7] * 16)
RAMP = Value(UINT16, (16,), b"".join(bytes([n, 0]) for n in range(16)))
THREE = Value(UINT8, (10000,), b"\1" * 4096 + bytes(range(256)) * 16 + b"\2" * 1808)
THREE_CHUNKS = [
    b"\1" + parts.run_frame(1, 4096),
    b"\0" + bytes(range(256)) * 16,
    b"\1" + parts.run_frame(2, 1808),
]


def methods(out: Vectors) -> None:
    def good(
        name: str, rules: str, value: Value, chunks: Sequence[bytes], *steps: Step, **more: Any
    ) -> None:
        head = more.pop("header", COMPRESSED_HEADER)
        deviations = more.pop("deviations", "")
        rows = more.pop("extra_rows", ())
        message, data = compressed(value, chunks, **more)
        given: dict[str, Any] = {"level": "ckptfmt", "deviations": deviations, "header": head}
        out.beside(name, rules, message, data, value, *steps, extra_rows=rows, **given)

    base = "CMP-1 CMP-2 CMP-3 CMP-4 CMP-5 CMP-6 CMP-7 CMP-12"
    part = boxes(b"x", [(3, 2)], Value(BFLOAT16, (2,), b"\x80\x3f" * 2))
    rotated = b"\3\x15\x15" + parts.run_frame(0, 16) + parts.run_frame(0x7F, 16)
    good("cmp-17-rotated", base + " CMP-17", ONES, [rotated], part, chunk_size=262144)
    plain = parts.planes_chunk(ONES.raw, 2, [True, True])
    good("cmp-15-planes", base + " CMP-15 CMP-16 CMP-18", ONES, [plain])
    mixed = b"\2\x20\x15" + bytes(range(16)) + parts.run_frame(0, 16)
    good("cmp-16-one-raw", "CMP-15 CMP-16", RAMP, [mixed])
    good("cmp-13-raw", base + " CMP-13", SEVENS, [b"\0" + SEVENS.raw])
    good("cmp-14-zstd", base + " CMP-14 CMP-18", SEVENS, [b"\1" + parts.run_frame(7, 16)])
    good("hdr-11-old-header", "HDR-11", SEVENS, [b"\1" + parts.run_frame(7, 16)], header=header())
    one = b"\2\x15" + parts.run_frame(7, 16)
    good("cmp-15-unit-1", "CMP-15", SEVENS, [one])
    turned = b"\3\x15" + parts.run_frame(0x0E, 16)
    good("cmp-17-unit-1", "CMP-17", SEVENS, [turned])
    for code, unit in ((FLOAT, 4), (2, 8), (8, 4), (18, 8), (9, 8)):
        size = {8: 8, 18: 16}.get(code, unit)
        raw = b"".join(bytes([n % 100, *range(129, 128 + unit)]) for n in range(512 // unit))
        value = Value(code, (512 // size,), raw)
        for rule, rotate in (("CMP-15", False), ("CMP-17", True)):
            stored = runs_chunk(raw, unit, rotate)
            good(f"{rule.lower()}-dtype-{code}", rule, value, [stored])
    steps = [
        boxes(b"x", [(4095, 2)], u8(1, 0)),
        boxes(b"x", [(9999, 1)], u8(2)),
        boxes(b"x", [(4096, 3)], u8(0, 1, 2)),
    ]
    good("cmp-7-three-chunks", "CMP-4 CMP-7 CMP-21", THREE, THREE_CHUNKS, *steps)
    exact = Value(UINT8, (8192,), b"\5" * 8192)
    good("cmp-4-no-tail", "CMP-4", exact, [b"\1" + parts.run_frame(5, 4096)] * 2)
    text = Value(UINT8, (len(TEXT),), TEXT)
    block = parts.zstd_block(2, len(COMPRESSED_BLOCK), COMPRESSED_BLOCK)
    for name, rules, made in (
        ("block", "CMP-18", frame(block, len(TEXT))),
        ("checksum", "CMP-18", frame(block, len(TEXT), checksum=COMPRESSED_CHECKSUM)),
        ("window", "CMP-18", frame(block, len(TEXT), window=0)),
        ("largest-window", "CMP-18", frame(block, len(TEXT), window=14 << 3)),
        ("size-of-eight", "CMP-18", eight_byte_size(block, len(TEXT))),
        ("dictionary-0", "CMP-18", zero_dictionary(block, len(TEXT))),
    ):
        good(f"cmp-18-{name}", rules, text, [b"\1" + made])
    pieces = parts.zstd_block(0, 10, bytes(10), last=False) + parts.zstd_block(1, 90, b"\7")
    two = Value(UINT8, (100,), bytes(10) + b"\7" * 90)
    good("cmp-18-two-blocks", "CMP-18", two, [b"\1" + frame(pieces, 100)])
    words = strings(b"a" * 40, b"", b"b")
    part = boxes(b"x", [(1, 2)], strings(b"", b"b"))
    stored = b"\1" + parts.runs_frame(words.stored()[0])
    good("cmp-strings", "CMP-6 CMP-21 STR-6", words, [stored], part)
    many = strings(b"a" * 5000, b"b" * 50)
    raw = many.stored()[0]
    chunks = [b"\1" + parts.runs_frame(raw[at : at + 4096]) for at in (0, 4096)]
    good("cmp-strings-two-chunks", "CMP-6 CMP-7 STR-5", many, chunks)
    blobs = Value(VARIANT, (2,), elements=(b"one", b"\0" * 40))
    plane = parts.runs_frame(blobs.stored()[0])
    stored = b"\2" + parts.varint(2 * len(plane) + 1) + plane
    good("cmp-variants", "CMP-6 VAR-3", blobs, [stored])
    unknown = num(99, 5)
    sevens = b"\1" + parts.run_frame(7, 16)
    deviations = "UNKNOWN_FIELD"
    good("ext-11-compressed", "EXT-11", SEVENS, [sevens], tail=unknown, deviations=deviations)
    overlong = parts.varint(len(sevens), 3)
    good("cmp-4-overlong", "CMP-4", SEVENS, [sevens], sizes=overlong)
    stored = b"\2" + parts.varint(0x15, 4) + parts.run_frame(7, 32)
    good("cmp-15-overlong", "CMP-15", u8(*[7] * 32), [stored])
    whole, rows, data = halves({}, {})
    value = Value(UINT8, (4, 16), b"\3" * 32 + b"\4" * 32)
    part = boxes(b"x", [(1, 2), (15, 1)], u8(3, 4, dims=[2, 1]))
    given: dict[str, Any] = {"level": "ckptfmt", "extra_rows": rows, "header": COMPRESSED_HEADER}
    out.beside("cmp-slices", "CMP-7 CMP-21 SLC-1", whole, data, value, part, **given)


def halves(*changes: dict[str, Any] | None) -> tuple[bytes, list[parts.Row], bytes]:
    """A uint8 [4, 16] tensor of two compressed slices of two rows each, as far as they are given:
    its entry, theirs and their bytes. None: a slice without an entry."""
    rows, data, listed = [], b"", []
    for number, change in enumerate(changes):
        listed.append(parts.slice_((2 * number, 2), (0, -1)))
        if change is None:
            continue
        half = Value(UINT8, (2, 16), bytes([3 + number]) * 32)
        chunk = b"\1" + parts.run_frame(3 + number, 32)
        message, stored = compressed(half, [chunk], **{"offset": 2 + len(data)} | change)
        rows.append((parts.slice_key(b"x", (2 * number, 2), (0, -1)), message))
        data += stored
    return parts.partitioned(UINT8, [4, 16], *listed), rows, data


def eight_byte_size(blocks: bytes, size: int) -> bytes:
    return bytes.fromhex("28b52ffd") + bytes([0xE0]) + size.to_bytes(8, "little") + blocks


def zero_dictionary(blocks: bytes, size: int) -> bytes:
    """A frame whose Dictionary_ID is there and 0."""
    return bytes.fromhex("28b52ffd") + bytes([0xA1, 0]) + parts.u32(size) + blocks


def runs_chunk(raw: bytes, unit: int, rotate: bool) -> bytes:
    """A chunk of planes; those of one byte alone as frames."""
    planes = parts.planes_of(raw, unit, rotate=rotate)
    framed = [len(set(plane)) == 1 for plane in planes]
    return parts.planes_chunk(raw, unit, framed, rotate=rotate)


def damaged(out: Vectors) -> None:
    chunk = b"\1" + parts.run_frame(7, 16)

    def bad(
        name: str,
        rule: str,
        failure: str = "BAD_ENTRY",
        value: Value = SEVENS,
        chunks: Sequence[bytes] = (chunk,),
        *,
        box: bool = True,
        rules: str = "",
        data: bytes | None = None,
        **more: Any,
    ) -> None:
        outer: dict[str, Any] = {
            key: more.pop(key) for key in ("problems", "deviations", "limits") if key in more
        }
        head = more.pop("header", COMPRESSED_HEADER)
        message, stored = compressed(value, chunks, **more)
        steps = [boxes(b"x", [(0, 1)], fails=(failure, rule))] if box else []
        listed = (value.code, value.dims)
        stored = stored if data is None else data
        outer |= {"rules": rules, "head": head, "level": "ckptfmt"}
        out.at_read(name, message, stored, listed, failure, rule, *steps, **outer)

    bad("cmp-1", "CMP-1", size=len(chunk) + 1, data=chunk + b"\0")
    bad("cmp-2-small", "CMP-2", chunk_size=4080)
    bad("cmp-2-multiple", "CMP-2", chunk_size=4104)
    bad("cmp-2-large", "CMP-2", chunk_size=2**24 + 16)
    bad("cmp-2-absent", "CMP-2", chunk_size=0)
    bad("cmp-3", "CMP-3", raw_size=0)
    bad("cmp-3-large", "CMP-3", raw_size=2**63)
    bad("cmp-4-crcs", "CMP-4", crcs=[parts.crc32c(chunk), 0])
    bad("cmp-4-no-crcs", "CMP-4", crcs=[])
    bad("cmp-4-sizes", "CMP-4", sizes=[len(chunk) - 1, 1])
    bad("cmp-4-no-sizes", "CMP-4", sizes=[])
    bad("cmp-4-unreadable", "CMP-4", sizes=b"\x80" * 10 + b"\1")
    bad("cmp-4-cut", "CMP-4", sizes=b"\x8b")
    bad("ext-2-compressed", "EXT-2", crcs=[parts.crc32c(chunk)], tail=msg(3, b"\0\0\0"))
    unpacked = Value(UINT8, (16,), SEVENS.raw)
    bad(
        "cmp-4-number",
        "CMP-4",
        value=unpacked,
        sizes=b"",
        tail=num(4, len(chunk)),
        deviations="UNKNOWN_FIELD",
    )
    bad("cmp-5-zero", "CMP-5", chunks=[b""])
    bad("cmp-5-large", "CMP-5", chunks=[b"\0" + bytes(17)])
    wide = Value(UINT8, (8192,), b"\5" * 8192)
    runs = [b"\1" + parts.run_frame(5, 4096)] * 2
    bad("cmp-1-sum", "CMP-1", value=wide, chunks=runs, sizes=[len(runs[0]), len(runs[0]) - 1])
    bad("cmp-6-fixed", "ENT-5", raw_size=17, rules="CMP-6 ENT-5")
    bad(
        "cmp-6-uncompressed-size", "ENT-5", value=u8(*[7] * 12), raw=SEVENS.raw, rules="CMP-6 ENT-5"
    )
    unknown = Value(34, (16,), SEVENS.raw)
    deviations = "UNKNOWN_DTYPE"
    bad(
        "cmp-8",
        "DTY-6",
        "UNSUPPORTED",
        unknown,
        deviations=deviations,
        problems=[],
        rules="CMP-8 DTY-6",
    )
    big, by_order = header(endianness=1, producer=2, min_consumer=2), ("UNSUPPORTED", "CMP-9")
    bad("cmp-9", "CMP-9", "UNSUPPORTED", header=big, deviations="BIG_ENDIAN")
    for name, change in (
        ("cmp-1", {"size": len(chunk) + 1, "data": chunk + b"\0"}),
        ("cmp-2", {"chunk_size": 4080}),
        ("cmp-3", {"raw_size": 0}),
        ("cmp-4", {"crcs": []}),
        ("cmp-5", {"chunks": [b""]}),
    ):
        more: dict[str, Any] = change
        bad(f"cmp-9-{name}", "CMP-9", "UNSUPPORTED", header=big, deviations="BIG_ENDIAN", **more)
    payload = Value(VARIANT, (1,), elements=(b"one",))
    stored_payload = [b"\0" + payload.stored()[0]]
    given_big: dict[str, Any] = {"header": big, "deviations": "BIG_ENDIAN", "rules": "VAR-6 CMP-9"}
    bad("cmp-9-var-6", "VAR-6", "UNSUPPORTED", payload, stored_payload, **given_big)
    given_big = {"header": big, "deviations": "BIG_ENDIAN UNKNOWN_DTYPE", "rules": "CMP-8 CMP-9"}
    bad("cmp-9-cmp-8", "DTY-6", "UNSUPPORTED", unknown, problems=[by_order], **given_big)
    flipped = bytearray(chunk)
    flipped[-1] ^= 1
    bad("cmp-11", "CMP-11", "CHECKSUM", data=bytes(flipped))
    given_unknown: dict[str, Any] = {"deviations": deviations, "rules": "CMP-8 DTY-6"}
    given_unknown["problems"] = [("CHECKSUM", "CMP-11")]
    bad("cmp-8-data", "DTY-6", "UNSUPPORTED", unknown, data=bytes(flipped), **given_unknown)
    given_unknown["problems"] = [("CHECKSUM", "CMP-11"), ("CHECKSUM", "EXT-6")]
    bad("cmp-8-entry", "DTY-6", "UNSUPPORTED", unknown, crcs=[1], **given_unknown)
    problems = [("CHECKSUM", "CMP-11"), ("CHECKSUM", "EXT-6")]
    bad("cmp-11-entry", "CMP-11", "CHECKSUM", crcs=[1], problems=problems)
    steps = [
        boxes(b"x", [(0, 4096)], Value(UINT8, (4096,), b"\1" * 4096)),
        boxes(b"x", [(9000, 1)], u8(2)),
        boxes(b"x", [(4095, 2)], fails=("CHECKSUM", "CMP-11")),
    ]
    message, stored = compressed(THREE, THREE_CHUNKS)
    damage = bytearray(stored)
    damage[len(THREE_CHUNKS[0]) + 9] ^= 1
    listed: tuple[int, Sequence[int]] = (UINT8, THREE.dims)
    given: dict[str, Any] = {"level": "ckptfmt", "head": COMPRESSED_HEADER}
    out.at_read(
        "cmp-21",
        message,
        bytes(damage),
        listed,
        "CHECKSUM",
        "CMP-11",
        *steps,
        rules="CMP-11 CMP-21",
        **given,
    )
    chunk_rules: list[tuple[str, str, Value, bytes]] = [
        ("cmp-12", "CMP-12", SEVENS, b"\4" + SEVENS.raw),
        ("cmp-12-high", "CMP-12", SEVENS, b"\x81" + parts.run_frame(7, 16)),
        ("cmp-13-short", "CMP-13", SEVENS, b"\0" + SEVENS.raw[:-1]),
        ("cmp-15-cut", "CMP-15", RAMP, b"\2\x20"),
        ("cmp-15-unreadable", "CMP-15", RAMP, b"\2\x20" + b"\xff" * 10 + b"\1"),
        ("cmp-15-nothing", "CMP-15", RAMP, b"\2"),
        ("cmp-16-behind", "CMP-16", SEVENS, b"\2\x15" + parts.run_frame(7, 16) + b"\0"),
        ("cmp-16-cut", "CMP-16", SEVENS, b"\2\x15" + parts.run_frame(7, 16)[:-1]),
        ("cmp-16-plane-short", "CMP-16", SEVENS, b"\2\x1e" + SEVENS.raw[:-1]),
        ("cmp-16-plane-long", "CMP-16", RAMP, b"\2\x22\x15" + bytes(17) + parts.run_frame(0, 16)),
        ("cmp-16-huge", "CMP-16", SEVENS, b"\2" + parts.varint(2**64 - 2) + b"\0"),
    ]
    block = parts.zstd_block(1, 16, b"\7")
    frames = {
        "no-magic": b"\x28\xb5\x2f\xfc" + parts.run_frame(7, 16)[4:],
        "nothing": b"",
        "header-cut": parts.run_frame(7, 16)[:5],
        "cut": parts.run_frame(7, 16)[:-1],
        "skippable": bytes.fromhex("502a4d18") + parts.u32(2) + b"\0\0",
        "behind": parts.run_frame(7, 16) + b"\0",
        "no-size": frame(block, None, window=0),
        "size-less": frame(block, 15),
        "size-more": frame(block, 17),
        "decodes-less": frame(parts.zstd_block(1, 15, b"\7"), 16),
        "decodes-more": frame(parts.zstd_block(1, 17, b"\7"), 16),
        "dictionary": frame(block, 16, dictionary=5),
        "window": frame(block, 16, window=14 << 3 | 1),
        "checksum": frame(block, 16, checksum=b"\0\0\0\0"),
        "reserved-bit": parts.run_frame(7, 16)[:4] + b"\x28" + parts.run_frame(7, 16)[5:],
        "block-type": frame(parts.zstd_block(3, 16, b"\7"), 16),
        "bad-block": frame(parts.zstd_block(2, 3, b"\xff\xff\xff"), 16),
        "no-last": frame(parts.zstd_block(1, 16, b"\7", last=False), 16),
    }
    for name, made in frames.items():
        chunk_rules.append((f"cmp-18-bad-{name}", "CMP-18", SEVENS, b"\1" + made))
    wide = u8(*[7] * 2025)
    after = parts.zstd_block(1, 1000, b"\7")
    for name, kind, content in (("run", 1, b"\7"), ("raw", 0, b"\7" * 1025)):
        narrow = frame(parts.zstd_block(kind, 1025, content, last=False) + after, 2025, window=0)
        chunk_rules.append((f"cmp-18-bad-{name}-window", "CMP-18", wide, b"\1" + narrow))
    plane = parts.run_frame(7, 15)
    chunk_rules.append(
        ("cmp-18-plane", "CMP-18", SEVENS, b"\2" + parts.varint(2 * len(plane) + 1) + plane)
    )
    for name, rule, value, stored_chunk in chunk_rules:
        bad(name, rule, "BAD_CHUNK", value, [stored_chunk])
    size = (1 << 17) + 1
    large = b"\1" + frame(parts.zstd_block(1, size, b"\7"), size)
    value = Value(UINT8, (size,), b"\7" * size)
    bad("cmp-18-run-block", "CMP-18", "BAD_CHUNK", value, [large], chunk_size=1 << 18)
    two_frames = b"\1" + parts.run_frame(7, 40) * 2
    bad("cmp-18-second", "CMP-18", "BAD_CHUNK", u8(*[7] * 40), [two_frames])
    message, stored = compressed(SEVENS, [chunk], raw_crc=1)
    part = boxes(b"x", [(0, 1)], u8(7))
    listed = (UINT8, [16])
    out.at_read("cmp-19", message, stored, listed, "CHECKSUM", "CMP-19", part, **given)
    words = strings(b"a" * 40, b"", b"b")
    raw = words.stored()[0]
    listed = (STRING, [3])

    def of_strings(
        name: str, rule: str, raw: bytes, failure: str = "BAD_ENTRY", **more: Any
    ) -> None:
        more.setdefault("raw_crc", words.stored()[1])
        chunk = b"\0" + raw
        message, stored = compressed(words, [chunk], raw=raw, **more)
        out.at_read(name, message, stored, listed, failure, rule, rules=f"CMP-6 {rule}", **given)

    of_strings("cmp-str-2", "STR-2", raw[:6])
    of_strings("cmp-str-3", "STR-3", b"\xff" * 20)
    of_strings("cmp-str-4", "STR-4", raw + b"\0")
    of_strings("cmp-str-5", "STR-5", raw[:3] + b"\0\0\0\0" + raw[7:], "CHECKSUM")
    of_strings("cmp-str-6", "STR-6", raw, "CHECKSUM", raw_crc=1)
    blobs = Value(VARIANT, (1,), elements=(b"one",))
    message, stored = compressed(blobs, [b"\0" + blobs.stored()[0]], raw_crc=1)
    listed = (VARIANT, [1])
    out.at_read(
        "cmp-var-4", message, stored, listed, "CHECKSUM", "VAR-4", rules="CMP-6 VAR-4", **given
    )
    many = Value(UINT8, (2**24,))
    message, stored = compressed(
        many, [b"\1" + parts.run_frame(7, 16)], raw=b"", raw_size=2**24, chunk_size=2**24
    )
    listed = (UINT8, many.dims)
    out.at_read("cmp-20", message, stored, listed, "LIMIT", "CMP-20", **given)
    bomb = Value(UINT8, (2**40,))
    chunks = [b"\1" + parts.run_frame(7, 16)]
    message, stored = compressed(bomb, chunks, raw=b"", raw_size=2**40, chunk_size=2**24)
    found = ("BAD_ENTRY", "CMP-4")
    out.at_read("cmp-4-bomb", message, stored, (UINT8, [2**40]), *found, **given)
    message, stored = compressed(SEVENS, [chunk])
    exact = {"tensor_bytes_max": 15}
    listed = (UINT8, [16])
    out.at_read("cmp-20-value", message, stored, listed, "LIMIT", "CMP-20", limits=exact, **given)
    out[-1].steps.pop()
    message, stored = compressed(SEVENS, [chunk], crc=1)
    value_steps = [boxes(b"x", [(0, 1)], u8(7))]
    files_given: dict[str, Any] = {"level": "ckptfmt", "header": COMPRESSED_HEADER}
    out.beside("cmp-22-ext-6", "CMP-22 EXT-6", message, stored, SEVENS, *value_steps, **files_given)
    out[-1].steps[-1] = verifies(("CHECKSUM", "EXT-6"))
    fails = ("UNSUPPORTED", "HDR-8")
    message, stored = compressed(SEVENS, [chunk])
    files = {".index": parts.table((b"x", message), head=COMPRESSED_HEADER)}
    files[".data-00000-of-00001"] = b"\0\0" + stored
    out.add("cmp-consumer-1", "HDR-8 HDR-11", files, opens(fails=fails), consumer=1)


def slices(out: Vectors) -> None:
    """What is wrong with one slice hides nothing in another (section 4)."""
    wrong: dict[str, Any] = {"raw_crc": 5}
    listed = (UINT8, [4, 16])
    given: dict[str, Any] = {"level": "ckptfmt", "head": COMPRESSED_HEADER}
    found = ("CHECKSUM", "CMP-19")
    second = Value(UINT8, (1, 16), b"\4" * 16)
    whole, rows, data = halves(wrong, {})
    steps = [
        boxes(b"x", [(0, 2), (0, 16)], fails=found),
        boxes(b"x", [(0, 3), (0, 16)], fails=found),
        boxes(b"x", [(1, 1), (0, 16)], Value(UINT8, (1, 16), b"\3" * 16)),
        boxes(b"x", [(0, 2), (0, 15)], Value(UINT8, (2, 15), b"\3" * 30)),
        boxes(b"x", [(3, 1), (0, 16)], second),
    ]
    rules = "CMP-19 CMP-21"
    out.at_read(
        "cmp-19-slice", whole, data, listed, *found, *steps, extra_rows=rows, rules=rules, **given
    )
    cases: list[tuple[str, dict[str, Any] | None, tuple[tuple[str, str], ...]]] = [
        ("cmp-11", {"crcs": [1]}, (("CHECKSUM", "CMP-11"), ("CHECKSUM", "EXT-6"))),
        ("cmp-19", {"raw_crc": 6}, (found,)),
        ("ext-3", {"flags": 3}, (("UNSUPPORTED", "EXT-3"),)),
        ("dat-2", {"offset": 99}, (("TRUNCATED", "DAT-2"),)),
        ("cmp-3", {"raw_size": 0}, (("BAD_ENTRY", "CMP-3"),)),
        ("slc-7", None, (("BAD_SLICE", "SLC-7"),)),
    ]
    for rule, change, problems in cases:
        whole, rows, data = halves(change, wrong)
        every = sorted({*problems, found})
        more = {"extra_rows": rows, "problems": every, "rules": f"CMP-22 {rule.upper()}", **given}
        out.at_read(f"cmp-22-beside-{rule}", whole, data, listed, *problems[0], **more)
    # Wrong for verifying alone: reading all of it meets the other slice first.
    whole, rows, data = halves({"crc": 1}, wrong)
    problems = (found, ("CHECKSUM", "EXT-6"))
    more = {"extra_rows": rows, "problems": problems, "rules": "CMP-22 EXT-6", **given}
    out.at_read("cmp-22-beside-ext-6", whole, data, listed, *found, **more)
    # An entry that cannot be decoded breaks the listing.
    message, data = compressed(SEVENS, [b"\1" + parts.run_frame(7, 16)], raw_crc=5)
    rows = [(b"w", b"\x7e"), (b"x", message)]
    files = {".index": parts.table(*rows, head=COMPRESSED_HEADER)}
    files[".data-00000-of-00001"] = b"\0\0" + data
    broken = ("BAD_PROTO", "MSG-6")
    checks = [opens(), reads(b"x", fails=found), verifies(broken, found)]
    out.add("cmp-22-beside-msg-6", "CMP-22 MSG-6", files, *checks, level="ckptfmt")
    whole, rows, data = halves(wrong)
    problems = (("BAD_SLICE", "SLC-11"), found)
    more = {"extra_rows": rows, "problems": problems, "rules": "CMP-22 SLC-11", **given}
    out.at_read("cmp-22-beside-slc-11", whole, data, listed, *problems[0], **more)


def add(out: Vectors) -> None:
    slices(out)
    chunk_checksums(out)
    store_of(out)
    methods(out)
    damaged(out)
