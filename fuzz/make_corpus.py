# SPDX-License-Identifier: Apache-2.0
"""Writes fuzz/corpus: small inputs for the fuzz targets, sound ones and each way of being wrong.

    python fuzz/make_corpus.py [FOLDER]

Needs crcmod for CRC-32C and nothing else. The same script gives the same files. Every input of
fuzz_table and fuzz_block ends with two bytes of parameters (see repair.h).
"""

import json
import pathlib
import struct
import sys

import crcmod

crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

MAGIC = bytes.fromhex("57fb808b247547db")
HEADER = (b"", bytes.fromhex("08011a020801"))
ENTRY_X = (b"x", bytes.fromhex("0801120412020802280835593ce535"))
RAW, SNAPPY = 0, 1


def varint(value, size=0):
    """The varint of a value, padded with needless bytes to `size`."""
    out = bytearray()
    while value >= 0x80 or len(out) + 1 < size:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def entry(key, value, shared=0, sizes=None):
    head = sizes if sizes is not None else varint(shared) + varint(len(key)) + varint(len(value))
    return head + key + value


def block(entries, interval=16, share=True, restarts=None, count=None, varint_size=0):
    """A block. `restarts` and `count` replace what the entries call for."""
    body, places, last = b"", [], b""
    for row, (key, value) in enumerate(entries):
        shared = 0
        if row % interval == 0:
            places.append(len(body))
        elif share:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        sizes = b"".join(varint(n, varint_size) for n in (shared, len(key) - shared, len(value)))
        body += sizes + key[shared:] + value
        last = key
    places = (places or [0]) if restarts is None else restarts
    count = len(places) if count is None else count
    return body + b"".join(struct.pack("<I", p) for p in places) + struct.pack("<I", count)


def stored(contents, kind=RAW, masked=True):
    crc = crc32c(contents + bytes([kind]))
    if masked:
        crc = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return contents + bytes([kind]) + struct.pack("<I", crc)


def literals(contents):
    """A Snappy stream of literals only."""
    out = varint(len(contents))
    for at in range(0, len(contents), 60):
        piece = contents[at : at + 60]
        out += bytes([(len(piece) - 1) << 2]) + piece
    return out


def handle(offset, size):
    return varint(offset) + varint(size)


def footer(metaindex, index, padding=b"", magic=MAGIC):
    handles = metaindex + index + padding
    return handles[:40].ljust(40, b"\0") + magic


def table(blocks, separators=None, kind=RAW, index_interval=1, edit=None, **ends):
    """A table of data blocks given as contents. `edit(handles, end)` may change the handles that
    the index gets."""
    out, handles = ends.get("lead", b""), []
    for contents in blocks:
        data = literals(contents) if kind == SNAPPY else contents
        handles.append((len(out), len(data)))
        out += ends.get("trailer", stored)(data, ends.get("type", kind)) + ends.get("gap", b"")
    metaindex = (len(out), 8)
    out += stored(block([]))
    if edit is not None:
        handles = edit(handles, len(out))
    separators = separators or [bytes([0x79 + i]) for i in range(len(blocks))]
    tail = ends.get("handle_tail", b"")
    rows = [(k, handle(*h) + tail) for k, h in zip(separators, handles, strict=False)]
    index = block(rows, index_interval)
    index = ends.get("index", index)
    place = (len(out), len(index))
    out += stored(index)
    return out + footer(
        ends.get("metaindex", handle(*metaindex)),
        ends.get("index_handle", handle(*place)),
        ends.get("padding", b""),
        ends.get("magic", MAGIC),
    )


def names(count):
    return [(b"layer/%04d/kernel" % i, bytes([i & 0x7F]) * 3) for i in range(count)]


def sound_tables():
    small = block([HEADER, ENTRY_X])
    yield "one", table([small])
    yield "none", table([])
    yield "header_only", table([block([HEADER])], [b""])
    yield "many", table([block([HEADER, *names(60)])], [b"m"])
    two = [block([HEADER, (b"b", b"1")]), block([(b"d", b"2"), (b"e", b"3")])]
    yield "two_blocks", table(two, [b"c", b"f"])
    extremes = block([(b"\0", b""), (b"\0\xff", b"v"), (b"\xff", b"w"), (b"\xff\xff", b"")])
    yield "bytes", table([extremes], [b"\xff\xff"])
    yield "snappy", table([block([HEADER, *names(20)])], [b"m"], SNAPPY)
    yield "interval_1", table([block([HEADER, *names(20)], 1)], [b"m"])
    yield "unshared", table([block([HEADER, *names(20)], 1000, share=False)], [b"m"])
    yield "interval_64", table([block([HEADER, *names(70)], 64)], [b"m"])
    sparse = [block([HEADER, *names(70)], 65), block([(b"n%02d" % i, b"v") for i in range(66)], 99)]
    yield "interval_65", table(sparse, [b"m", b"o"])
    yield "interval_65_snappy", table(sparse, [b"m", b"o"], SNAPPY)
    yield "overlong", table([block([HEADER, *names(5)], varint_size=4)], [b"m"])
    alike = [block([(b"sa", b"1")]), block([(b"sb", b"2")])]
    yield "index_shared", table(alike, [b"sa", b"sb"], index_interval=9)
    yield "handle_tail", table([small], handle_tail=b"more")
    yield "padding", table([small], padding=b"\0\0pad")
    yield "lead", table([small], lead=b"lead")
    yield "gap", table([small], gap=b"gap")


def footer_tables():
    small = block([HEADER, ENTRY_X])
    good = table([small])
    yield "b01_magic", good[:-1] + b"\0"
    yield "b02_magic_swapped", table([small], magic=MAGIC[::-1])
    cut, long, wide = b"\xff" * 40, b"\x80" * 10 + b"\0", b"\xff" * 9 + b"\x02"
    for name, bad in (("cut", cut), ("long", long), ("wide", wide)):
        yield f"b03_varint_{name}", table([small], metaindex=bad)
    yield "b04_zero_handles", table([small], metaindex=b"\0\0", index_handle=b"\0\0")
    yield "b06_tail", good + b"tail"
    yield "b08_rocksdb", table([small], magic=struct.pack("<Q", 0x88E241B785F4CFF7))
    yield "short_47", good[-47:]
    yield "short_0", b""


def handle_tables():
    small = block([HEADER, ENTRY_X])
    two = [block([HEADER, (b"b", b"1")]), block([(b"d", b"2")])]
    end = len(table([small]))
    ahead = {
        "c01_offset": (end + 1, 4),
        "c02_size": (0, end),
        "c03_one_too_many": (0, end - 48 - 4),
        "c04_size_max": (0, 2**64 - 1),
        "c04_size_wraps": (36, 2**64 - 6),
        "c05_size_2_63": (0, 2**63),
        "c05_size_2_40": (0, 2**40),
    }
    for name, place in ahead.items():
        yield name, table([small], edit=lambda handles, at, place=place: [place])
        yield f"{name}_of_index", table([small], index_handle=handle(*place))
    yield "c06_index_in_footer", table([small], index_handle=handle(end - 48, 20))
    yield "c07_data_is_index", table([small], edit=lambda handles, at: [(at, 14)])
    yield "c08_same_block", table(two, edit=lambda handles, at: [handles[0]] * 2)
    yield "c09_order", table(two, edit=lambda handles, at: handles[::-1])
    yield "c09_overlap", table(two, edit=lambda handles, at: [handles[0], (handles[0][1] + 4, 4)])
    yield "c10_metaindex", table([small], metaindex=handle(2**40, 9))
    yield "c10_metaindex_is_data", table([small], metaindex=handle(0, len(small)))
    yield "handle_cut", table([small], index=block([(b"y", b"\x80")], 1))


def order_tables():
    yield "e01_inside", table([block([HEADER, (b"b", b""), (b"a", b"")])])
    yield "e02_across", table([block([(b"m", b"")]), block([(b"c", b"")])], [b"n", b"o"])
    yield "e03_twice", table([block([HEADER, (b"a", b""), (b"a", b"")])])
    yield "e04_low", table([block([HEADER, (b"m", b"")])], [b"k"])
    yield "e04_high", table([block([(b"b", b"")]), block([(b"d", b"")])], [b"d", b"e"])
    yield "e04_index", table([block([(b"b", b"")]), block([(b"d", b"")])], [b"f", b"e"])
    yield "e06_two_headers", table([block([HEADER, HEADER])])
    yield "e09_long_key", table([block([HEADER, (b"k" * 500, b"")])], [b"l"])
    bomb = entry(b"p" * 2000, b"") + entry(b"q", b"", 2000)
    bomb += b"".join(entry(b"\0", b"", 2001 + i) for i in range(200))
    yield "o02_prefix_bomb", table([bomb + struct.pack("<II", 0, 1)], [b"z"])


def bad_blocks():
    body = entry(b"a", b"1") + entry(b"b", b"2")
    one = struct.pack("<II", 0, 1)
    for size in range(4):
        yield f"d04_size_{size}", b"\0" * size
    yield "d05_no_restarts", body + struct.pack("<I", 0)
    yield "d06_restarts_max", body + struct.pack("<II", 0, 2**32 - 1)
    yield "d06_restarts_many", struct.pack("<II", 0, 3)
    yield "d07_not_0", body + struct.pack("<II", 5, 1)
    yield "d07_twice", body + struct.pack("<III", 0, 0, 2)
    yield "d07_down", body * 2 + struct.pack("<IIII", 0, 10, 5, 3)
    yield "d07_beyond", body + struct.pack("<III", 0, 500, 2)
    yield "d07_at_end", body + struct.pack("<III", 0, len(body), 2)
    yield "d07_inside", body + struct.pack("<III", 0, 2, 2)
    yield "d08_shared", entry(b"aa", b"") + entry(b"b", b"", 1) + struct.pack("<III", 0, 5, 2)
    yield "d09_shared_first", entry(b"a", b"", 1) + one
    yield "d09_shared_long", entry(b"a", b"") + entry(b"b", b"", 2) + one
    for unshared, value in ((2**32 - 1, 2), (2**31, 2**31 + 1), (50, 2**32 - 48)):
        sizes = b"\0" + varint(unshared) + varint(value)
        yield f"d10_wrap_{unshared}", entry(b"a", b"1", sizes=sizes) + one
    yield "d11_unshared", entry(b"a", b"1", sizes=b"\0\x10\1") + one
    yield "d11_value", entry(b"a", b"1", sizes=b"\0\1\x10") + one
    yield "d12_six_bytes", entry(b"a", b"", sizes=varint(0, 6) + b"\1\0") + one
    yield "d12_33_bits", entry(b"a", b"", sizes=varint(2**32) + b"\1\0") + one
    yield "d13_head_cut", body + b"\0" + one
    yield "d14_trailing", body + b"\0\0\0\0" + one
    yield "order", entry(b"b", b"") + entry(b"a", b"") + one
    yield "empty", one
    yield "sound", block([HEADER, *names(40)])
    yield "long_varints", block([HEADER, *names(4)], varint_size=5)
    yield "interval_1000", block(names(40), 1000)
    yield "unshared", block(names(40), share=False)
    yield "key_2000", block([(b"k" * 2000, b"v"), (b"k" * 2001, b"w")])


def snappy_streams():
    yield "literals", literals(block([HEADER, *names(10)]))
    yield "empty", b"\0"
    copies = b"\x1d\4" + b"\xfe\2\0" + b"\x13\1\0\0\0"
    yield "copies", varint(4 + 11 + 64 + 5) + b"\x0cabcd" + copies
    yield "long_literal", varint(70) + b"\xf0\x45" + b"z" * 70
    yield "most", varint(1 + 64 * 4) + b"\0a" + b"\xfe\1\0" * 4
    yield "l11_claim", varint(0xFFFFFFF0) + b"\0a"
    yield "distance_0", varint(5) + b"\0a\x01\0"
    yield "distance_far", varint(5) + b"\0a\x01\2"
    yield "cut_copy", varint(5) + b"\0a\xfe\1"
    yield "cut_literal", varint(9) + b"\x20abc"
    yield "too_few", varint(9) + b"\x08abc"
    yield "too_many", varint(2) + b"\x08abc"
    yield "size_cut", b"\x80\x80"


def chunks():
    """Inputs of fuzz_chunk: a stored chunk, and the raw size and unit that the top says."""

    def frame(contents, run=False, last=1, flags=0x20, more=b""):
        kind = 1 if run else 0
        head = struct.pack("<I", 0xFD2FB528) + bytes([flags, len(contents)]) + more
        header = (len(contents) << 3 | kind << 1 | last).to_bytes(3, "little")
        return head + header + (contents[:1] if run else contents)

    def case(stored, size, unit):
        return stored + struct.pack("<HB", size, unit)

    def planes(method, *parts):
        sizes = b"".join(varint(2 * len(part) + is_frame) for part, is_frame in parts)
        return bytes([method]) + sizes + b"".join(part for part, _ in parts)

    text, sevens = b"0123456789abcdef", b"\7" * 16
    yield "raw", case(b"\0" + text, 16, 0)
    yield "raw_short", case(b"\0" + text, 17, 0)
    yield "zstd", case(b"\1" + frame(text), 16, 0)
    yield "zstd_run", case(b"\1" + frame(sevens, run=True), 16, 0)
    yield "zstd_other_size", case(b"\1" + frame(text), 15, 0)
    yield "zstd_two", case(b"\1" + frame(text) + frame(text), 32, 0)
    yield "zstd_behind", case(b"\1" + frame(text) + b"\0", 16, 0)
    yield "zstd_cut", case(b"\1" + frame(text)[:-1], 16, 0)
    yield "zstd_not_last", case(b"\1" + frame(text, last=0), 16, 0)
    yield "zstd_dictionary", case(b"\1" + frame(text, flags=0x21, more=b"\7"), 16, 0)
    yield "zstd_reserved", case(b"\1" + frame(text, flags=0x28), 16, 0)
    yield "zstd_checksum", case(b"\1" + frame(text, flags=0x24) + b"sums", 16, 0)
    window = bytes.fromhex("28b52ffd80f8") + struct.pack("<I", 16) + b"\x81\0\0" + text
    yield "zstd_window", case(b"\1" + window, 16, 0)
    yield "zstd_skippable", case(b"\1" + struct.pack("<II", 0x184D2A50, 0) + frame(text), 16, 0)
    run = frame(sevens, run=True)
    yield "planes_2", case(planes(2, (text, 0), (run, 1)), 32, 1)
    yield "rotated_2", case(planes(3, (text, 0), (run, 1)), 32, 1)
    yield "planes_4", case(planes(2, (text, 0), (run, 1), (run, 1), (text, 0)), 64, 2)
    yield "rotated_8", case(planes(3, *[(run, 1)] * 8), 128, 3)
    yield "planes_1", case(planes(2, (run, 1)), 16, 0)
    yield "planes_behind", case(planes(2, (text, 0), (run, 1)) + b"\0", 32, 1)
    yield "planes_cut", case(planes(2, (text, 0), (run, 1))[:-1], 32, 1)
    yield "planes_uneven", case(planes(2, (text, 0), (run, 1)), 33, 1)
    yield "planes_huge", case(b"\2" + varint(2**64 - 1) + varint(2**64 - 2) + text, 32, 1)
    yield "method_4", case(b"\4" + text, 16, 0)
    yield "empty", case(b"", 16, 0)


def number(tag, value, size=0):
    """A field of wire type 0."""
    return varint(tag << 3) + varint(value & 2**64 - 1, size)


def fixed(tag, value):
    """A field of wire type 5."""
    return varint(tag << 3 | 5) + struct.pack("<I", value)


def nested(tag, contents):
    """A field of wire type 2."""
    return varint(tag << 3 | 2) + varint(len(contents)) + contents


def entries():
    """Inputs of fuzz_entry: the value of a tensor's key."""

    def extent(start, length):
        return nested(1, number(1, start) + number(2, length))

    plain = ENTRY_X[1]
    chunked = number(2, 4096) + nested(3, b"12345678")
    slices = nested(7, extent(0, 2) + nested(1, b"")) + nested(7, extent(2, 2) + nested(1, b""))
    shape = nested(2, nested(2, number(1, 4)) + nested(2, number(1, 6)))
    yield "plain", plain
    yield "none", b""
    yield "scalar", number(1, 1) + nested(2, b"") + number(3, 5) + number(4, 48) + number(5, 4)
    yield "partitioned", number(1, 1) + shape + slices
    yield "partitioned_extension", number(1, 1) + shape + slices + nested(100, chunked)
    yield "slices_odd", number(1, 1) + shape + nested(7, extent(-1, -1) + number(9, 1)) + slices
    yield "slices_few", number(1, 1) + shape + nested(7, extent(0, 2))
    yield "slices_cut", number(1, 1) + shape + nested(7, b"\x0a\5")
    yield "shape_twice", plain + nested(2, nested(2, number(1, 3)) + number(3, 1))
    yield "shape_named", number(1, 1) + nested(2, nested(2, number(1, 3) + nested(2, b"rows")))
    yield "shape_negative", number(1, 1) + nested(2, nested(2, number(1, -1)))
    yield "shape_large", number(1, 1) + nested(2, nested(2, number(1, 2**62)) * 2)
    yield "dim_tag", number(1, 1) + nested(2, nested(2, b"\6"))
    yield "dim_cut", number(1, 1) + nested(2, nested(2, b"\x08"))
    yield "rank_255", number(1, 1) + nested(2, nested(2, b"") * 255)
    yield (
        "unknown",
        plain + number(15, 7) + nested(16, b"text") + fixed(17, 1) + b"\x91\1" + bytes(8),
    )
    yield "groups", b"\x7b\x0b\x08\1\x0c\x7c" + plain + b"\x7b\x7c"
    yield "group_open", plain + b"\x7b\x08\1"
    yield "overlong", number(1, 1, 5) + nested(2, number(1, 0, 9)) + number(5, 8, 4)
    yield "backwards", fixed(6, 1) + number(5, 8) + nested(2, b"") + number(1, 2) + number(1, 1)
    yield "negative", number(1, -5) + number(3, -1) + number(4, -(2**63)) + number(5, -1)
    yield "wide", number(1, 2**31) + plain


def extended_entries():
    """Inputs of fuzz_entry with an extension."""

    def compressed(*sizes, chunk=4096, raw=None, crcs=None):
        crcs = crcs if crcs is not None else b"abcd" * len(sizes)
        packed = b"".join(map(varint, sizes))
        contents = number(1, 1) + number(2, chunk) + nested(3, crcs) + nested(4, packed)
        return nested(100, contents + number(5, raw or 4096 * len(sizes)) + fixed(6, 7))

    chunked = number(2, 4096) + nested(3, b"12345678")
    value = number(1, 4) + nested(2, nested(2, number(1, 8192))) + number(5, 8192) + fixed(6, 9)
    small = number(1, 4) + nested(2, nested(2, number(1, 8192))) + number(5, 300) + fixed(6, 9)
    yield "chunked", value + nested(100, chunked)
    yield "chunked_spread", value + nested(100, chunked[:3]) + nested(100, chunked[3:])
    yield "chunked_twice", value + nested(100, nested(3, b"old!") + chunked + number(2, 4096))
    yield "chunked_uneven", value + nested(100, number(2, 4096) + nested(3, b"1234567"))
    yield "chunked_unpacked", value + nested(100, chunked + fixed(3, 9))
    yield "chunked_wide", value + nested(100, number(2, 2**64 - 1) + nested(3, b"1234"))
    yield "extension_empty", value + nested(100, b"")
    yield "extension_number", value + number(100, 1)
    yield "extension_group", value + varint(100 << 3 | 3) + chunked + varint(100 << 3 | 4)
    yield "extension_later", value + nested(100, number(1, 1 << 40) + nested(99, b"later"))
    yield "extension_inner_group", value + nested(100, b"\x0b\x10\5\x0c" + chunked)
    yield "extension_overlong", value + nested(100, number(2, 4096, 6) + nested(3, b"12345678"))
    for name, bad in (("tag", b"\0\1"), ("cut", b"\x08"), ("size", b"\x1a\5"), ("wire", b"\x7e")):
        yield f"extension_{name}", value + nested(100, bad)
    yield "compressed", small + compressed(100, 200)
    yield "compressed_last", small + compressed(200, 100, raw=4097 + 98)
    yield "compressed_sum", small + compressed(100, 201)
    yield "compressed_none", small + compressed(0, 300)
    yield "compressed_large", small + compressed(300, 4098)
    yield "compressed_few", small + compressed(300, raw=8192)
    yield "compressed_many", small + compressed(100, 100, 100, raw=8192)
    yield "compressed_crcs", small + compressed(100, 200, crcs=b"1234567")
    yield "compressed_chunk", small + compressed(100, 200, chunk=4095)
    yield "compressed_raw", small + compressed(100, 200, raw=2**63)


def slice_lists():
    """Inputs of fuzz_slices: dims, item size, slices and a query, as the top of that file says."""

    def case(dims, itemsize, slices, query):
        numbers = [n for axes in (*slices, query) for axis in axes for n in axis]
        return bytes([len(dims), *dims, itemsize - 1, len(slices), *numbers])

    full, int64_max, int64_min, big = (0, 0xFF), 0xFE, 0xFD, 0xFC  # a full dimension is 0, -1
    quarters = [((r, 4), (c, 3)) for r in (0, 4) for c in (0, 3)]
    rows = [((r, 1), full) for r in range(6)]
    yield "none", b""
    yield "scalar", case([], 4, [()], ())
    yield "whole", case([8, 6], 4, [(full, full)], [(2, 3), (1, 4)])
    yield "quarters", case([8, 6], 4, quarters, [(3, 2), (2, 2)])
    yield "quarters_all", case([8, 6], 1, quarters, [(0, 8), (0, 6)])
    yield "rows", case([6, 5], 8, rows, [(1, 4), (0, 5)])
    yield "rows_backwards", case([6, 5], 2, rows[::-1], [(0, 6), (4, 1)])
    yield "columns", case([5, 9], 16, [(full, (c, 3)) for c in (0, 3, 6)], [(1, 3), (2, 5)])
    yield "cubes", case([4, 4, 4], 4, [(full, (a, 2), full) for a in (0, 2)], [(1, 2)] * 3)
    yield "six_axes", case([2] * 6, 1, [((a, 1), *[full] * 5) for a in (0, 1)], [(0, 2)] * 6)
    yield "hole", case([8, 6], 4, quarters[:3], [(0, 8), (0, 6)])
    yield "hole_unasked", case([8, 6], 4, quarters[:3], [(0, 4), (0, 6)])
    yield "overlap", case([8, 6], 4, [*quarters, ((3, 2), (2, 2))], [(0, 8), (0, 6)])
    yield "twice", case([8], 4, [((0, 8),), ((0, 8),)], [(0, 8)])
    yield "no_elements", case([0, 5], 4, [(full, full)], [(0, 0), (0, 5)])
    yield "empty_query", case([8, 6], 4, quarters, [(8, 0), (2, 3)])
    yield "outside", case([8, 6], 4, [((4, 5), full), ((8, 1), full)], [(4, 5), (0, 6)])
    yield "no_length", case([8], 4, [((0, 0),), ((3, 0xFF),)], [(0, 8)])
    ends = [((1, int64_max),), ((int64_max, 1),), ((big, big),)]
    yield "wraps", case([8], 4, ends, [(1, int64_max)])
    yield "negative", case([8], 4, [((int64_min, 8),), ((0, int64_min),)], [(int64_min, int64_min)])


def bundles():
    """Inputs of fuzz_bundle: the good and the deviating bundles of the specification's vectors."""
    vectors = pathlib.Path(__file__).parent.parent / "spec" / "vectors"
    for vector in json.loads((vectors / "vectors.json").read_text())["vectors"]:
        names = sorted(vector["files"], key=lambda name: (not name.endswith(".index"), name))
        pieces = [(vectors / name).read_bytes() for name in names]
        if vector["kind"] == "bad" or len(pieces) > 4 or max(map(len, pieces)) > 1 << 13:
            continue
        yield vector["name"], b"".join(struct.pack("<H", len(p)) + p for p in pieces)


def choices():
    """Inputs of the targets that choose what they do by the bytes of their input."""
    yield "none", b""
    yield "zeros", bytes(64)
    for number in range(1, 25):
        # Any bytes will do; these differ, and are the same in every run.
        yield (
            f"any_{number}",
            bytes((number * 37 + at * (2 * number + 1)) & 0xFF for at in range(160)),
        )


def damaged_tables():
    """Tables of valid entries, sound and with each kind of damage that a salvage tells apart."""
    keys = [b"layer/%02d/kernel" % i for i in range(24)]
    rows = [HEADER, *((key, ENTRY_X[1]) for key in keys)]
    parts = [block(rows[at : at + 9], 4) for at in range(0, len(rows), 9)]
    separators = [rows[min(at + 8, len(rows) - 1)][0] for at in range(0, len(rows), 9)]
    for kind, data in (
        ("one", table([block(rows)], [b"m"])),
        ("three", table(parts, separators)),
        ("snappy", table(parts, separators, SNAPPY)),
    ):
        yield kind, data
        middle = len(data) // 3
        yield f"{kind}_bit", flipped(data, (middle, 4))
        yield f"{kind}_byte", flipped(data, (middle, 0x5A))
        yield f"{kind}_bytes", flipped(data, (middle, 0x5A), (middle + 20, 0x5A))
        yield f"{kind}_first", flipped(data, (5, 0x5A), (20, 0x5A))
        yield f"{kind}_bits", flipped(data, (30, 1), (middle + 3, 1), (2 * middle, 1))
        yield f"{kind}_index", flipped(data, (len(data) - 60, 8))
        yield f"{kind}_cut", data[:-60]
        yield f"{kind}_torn", data[: 2 * middle]


def flipped(data, *changes):
    out = bytearray(data)
    for at, bits in changes:
        out[at] ^= bits
    return bytes(out)


def write(folder, files, parameters=b"\0\0"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in files:
        (folder / name).write_bytes(contents + parameters)


def main():
    folder = pathlib.Path(__file__).parent / "corpus"
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else folder
    small = block([HEADER, ENTRY_X])
    good = table([small])
    unmasked = table([small], trailer=lambda contents, kind: stored(contents, kind, masked=False))
    write(root / "table", sound_tables())
    write(root / "table", footer_tables())
    write(root / "table", handle_tables())
    write(root / "table", order_tables())
    blocks = dict(bad_blocks())
    write(root / "table", ((name, table([contents])) for name, contents in blocks.items()))
    write(root / "table", [("d01_checksum", good[:10] + b"\xff" + good[11:])])
    write(root / "table", [("d02_unmasked", unmasked)])
    write(root / "table", [("d03_type", table([small], type=7))])
    write(root / "table", [("limits", table([block([HEADER, *names(60)])], [b"m"]))], b"\x1f\xff")
    sparse = block([(bytes([32 + i]), b"") for i in range(70)], 70)
    write(root / "table", [("limit_of_rebuilt", table([sparse]))], b"\x10\xff")
    write(root / "rescue", damaged_tables(), b"\x80\0")
    write(root / "block", blocks.items(), b"\3\5")
    write(root / "snappy", snappy_streams(), b"")
    write(root / "chunk", chunks(), b"")
    write(root / "entry", entries(), b"\0")
    write(root / "entry", extended_entries(), b"\0")
    write(root / "entry", [("slices_limit", b"\x3a\0" * 3)], b"\2")
    write(root / "slices", slice_lists(), b"")
    write(root / "bundle", bundles())
    for name in ("roundtrip", "merge", "program"):
        write(root / name, choices(), b"")
    write(root / "canary", [("must_fail", b"canary")], b"")


if __name__ == "__main__":
    main()
