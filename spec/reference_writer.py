# SPDX-License-Identifier: Apache-2.0
"""The format of format.md as a program: writer and merge. The reader is reference.py."""

import itertools
import json
import os
import re
import shutil
from dataclasses import dataclass

import numpy as np
import reference as ref
import zstandard
from reference import STRING, VARIANT, crc32c, mask, need, put_field, put_varint, u32, u64

# --- 16. TXT: slice text ---
NUMBER = re.compile(r"[\t\n\v\f\r]*[+-]?[0-9]+[\t\n\v\f\r]*")


def parse_slice_text(text):
    """Dimensions and extents of a slice text; None of the empty one (TXT-1)."""
    if text == "":
        return None

    def number(part, rule):
        need(NUMBER.fullmatch(part), rule, "ARGUMENT", f"{part!r} is no number")
        value = int(part.strip("\t\n\v\f\r"))
        need(-(1 << 63) <= value < 1 << 63, rule, "ARGUMENT", f"{part!r} does not fit int64")
        return value

    *dims, last = text.split(" ")
    need(dims, "TXT-2", "ARGUMENT", f"{text!r} has no dimensions")
    shape = [number(part, "TXT-3") for part in dims]
    need(all(size >= 0 for size in shape), "TXT-3", "ARGUMENT", "negative dimension")
    pieces = [piece for piece in last.split(":") if piece]
    need(len(pieces) == len(shape), "TXT-4", "ARGUMENT", f"{len(pieces)} pieces")
    extents = []
    for piece, size in zip(pieces, shape, strict=True):
        if piece == "-":
            extents.append((0, None))
            continue
        numbers = [number(part, "TXT-5") for part in piece.split(",") if part]
        need(len(numbers) == 2, "TXT-5", "ARGUMENT", f"piece {piece!r}")
        start, length = numbers
        good = start >= 0 and length >= 1 and start + length <= size
        need(good, "TXT-6", "ARGUMENT", f"piece {piece!r} of {size}")
        extents.append((start, length))
    products = itertools.accumulate(shape, lambda a, b: a * b)
    need(len(shape) <= 254 and all(p < 1 << 63 for p in products), "TXT-7", "ARGUMENT", "size")
    return shape, extents


def print_slice_text(shape, extents):  # TXT-8
    pieces = ("-" if length is None else f"{start},{length}" for start, length in extents)
    return " ".join([*map(str, shape), ":".join(pieces)])


# --- 15. KEY: a decoder of slice keys ---
def signed_size(first, second):
    """n of an encoded signed number from its first two bytes."""
    word = first << 8 | second
    word = word if word >> 15 else word ^ 0xFFFF
    return 16 - (word ^ 0xFFFF).bit_length()


def decode_slice_key(key):
    """Name and extents of exactly the keys that the rules write (KEY-8)."""
    found = ref.key_name(key)
    need(found is not None, "KEY-8", "BAD_SLICE", "no name")
    name, pos = found
    width = key[pos] if pos < len(key) else 9
    rank = int.from_bytes(key[pos + 1 : pos + 1 + width], "big")
    need(width <= 8 and 1 <= rank <= 254, "KEY-8", "BAD_SLICE", f"rank {rank}")
    pos += 1 + width
    numbers = []
    while pos < len(key) and len(numbers) < 2 * rank:
        n = signed_size(key[pos], key[pos + 1] if pos + 1 < len(key) else 0)
        raw = key[pos : pos + n]
        need(n <= 10 and len(raw) == n, "KEY-8", "BAD_SLICE", f"number at {pos}")
        value = int.from_bytes(raw, "big") ^ ((1 << n) - 1) << (8 * n - n)
        value -= 1 << 8 * n if value >> (8 * n - 1) else 0
        need(-(1 << 63) <= value < 1 << 63, "KEY-8", "BAD_SLICE", f"number at {pos}")
        numbers.append(value)
        pos += n
    extents = [
        (start, None if n == -1 else n)
        for start, n in zip(numbers[::2], numbers[1::2], strict=False)
    ]
    for start, n in extents:
        good = start == 0 if n is None else start >= 0 and n >= 1 and start + n < 1 << 63
        need(good, "KEY-8", "BAD_SLICE", f"extent {start},{n}")
    full = all(n is None for _, n in extents)
    need(not full and ref.slice_key(name, extents) == key, "KEY-8", "BAD_SLICE", "another spelling")
    return name, extents


# --- 9 to 13: messages, header, entries ---
def put(number, value):
    """A field of wire type 0, left out if 0 (MSG-15)."""
    return put_varint(number << 3) + put_varint(value) if value else b""


def put_header(num_shards, version=b"\x08\x01", endianness=0):  # HDR
    return put(1, num_shards) + put(2, endianness) + put_field(3, version)


def put_entry(code, shape, offset=0, size=0, crc=0, slices=(), extension=b""):  # ENT, SHP, SLC-13
    dims = b"".join(put_field(2, put(1, n)) for n in shape)
    out = put(1, code) + put_field(2, dims) + put(4, offset) + put(5, size)
    out += b"\x35" + u32.pack(crc) if crc else b""
    out += b"".join(put_field(7, ref.put_slice(extents)) for extents in slices)
    return out + (put_field(100, extension) if extension else b"")


# --- 8. TAB: a canonical table ---
class Block:
    """A block under construction (BLK-11, BLK-12)."""

    def __init__(self, interval):
        self.interval, self.count, self.last = interval, 0, b""
        self.contents, self.restarts = bytearray(), []

    def add(self, key, value):
        shared = 0
        if self.count % self.interval == 0:
            self.restarts.append(len(self.contents))
        else:
            shared = ref.common(self.last, key)
        self.contents += put_varint(shared) + put_varint(len(key) - shared) + put_varint(len(value))
        self.contents += key[shared:] + value
        self.count, self.last = self.count + 1, key

    def size(self):
        return len(self.contents) + 4 * len(self.restarts) + 4

    def stored(self):
        """The contents with the trailer."""
        restarts = self.restarts or [0]  # BLK-13
        raw = bytes(self.contents) + b"".join(map(u32.pack, [*restarts, len(restarts)])) + b"\0"
        return raw + u32.pack(mask(crc32c(raw)))


def put_table(entries):
    """The index file of entries in key order, the header first."""
    out, block, index, pending = bytearray(), Block(16), Block(1), None

    def end():
        nonlocal block
        stored = block.stored()
        place = put_varint(len(out)) + put_varint(len(stored) - 5)
        out.extend(stored)
        last, block = block.last, Block(16)
        return last, place

    for key, value in entries:
        if block.count and len(key) + len(value) >= 524288:
            pending = end()
        if pending:
            index.add(ref.separator(pending[0], key), pending[1])
            pending = None
        block.add(key, value)
        if block.size() >= 262144:
            pending = end()
    pending = end() if block.count else pending
    index.add(ref.successor(pending[0]), pending[1])
    handles = put_varint(len(out)) + put_varint(8)
    out += ref.EMPTY_BLOCK
    stored = index.stored()
    handles += put_varint(len(out)) + put_varint(len(stored) - 5)
    return bytes(out + stored + handles.ljust(40, b"\0") + u64.pack(ref.MAGIC))


# --- 17 to 20: values ---
BITS = {29: 4, 30: 4, 31: 2, 32: 2, 33: 4}  # DTY-3
CODES = {
    np.dtype(kind): code
    for code, (_, _, _, kind) in reversed(ref.TYPES.items())
    if kind is not object
}


@dataclass
class Piece:
    """A slice, by its text (TXT), or an array of a type that numpy has not (quantized, variant)."""

    array: object
    text: str = ""
    dtype: int = 0


def put_strings(items):  # STR
    crc = 0
    for item in items:
        crc = crc32c(u32.pack(len(item)) if len(item) < 1 << 32 else u64.pack(len(item)), crc)
    stored = u32.pack(mask(crc))
    crc = crc32c(stored, crc)
    for item in items:
        crc = crc32c(item, crc)
    return b"".join(put_varint(len(item)) for item in items) + stored + b"".join(items), crc


def put_variants(items):  # VAR
    out, crc = bytearray(), 0
    for item in items:
        crc = crc32c(item, crc32c(u64.pack(len(item)), crc))
        stored = u32.pack(mask(crc))
        crc = crc32c(stored, crc)
        out += put_varint(len(item)) + item + stored
    return bytes(out), crc


def put_value(array, code):
    """The raw value and its checksum, not masked."""
    if code in (STRING, VARIANT):
        items = [
            item.encode() if isinstance(item, str) else bytes(item) for item in array.reshape(-1)
        ]
        return put_strings(items) if code == STRING else put_variants(items)
    raw = np.ascontiguousarray(array).tobytes()
    if code in BITS:  # DTY-3
        raw = (np.frombuffer(raw, np.uint8) & ((1 << BITS[code]) - 1)).tobytes()
    return raw, crc32c(raw)


def put_extension(size, crcs, flags=0, sizes=(), raw_size=0, raw_crc=0):
    packed = b"".join(map(put_varint, sizes))
    out = put(1, flags) + put(2, size) + put_field(3, b"".join(map(u32.pack, crcs)))
    out += put_field(4, packed) if packed else b""
    return out + put(5, raw_size) + (b"\x35" + u32.pack(raw_crc) if raw_crc else b"")


def chunks_of(value, size):
    return [value[i : i + size] for i in range(0, len(value), size)]


def put_chunk(raw, unit):
    """The smallest of the forms of a chunk (CMP-12)."""
    frame = zstandard.ZstdCompressor(level=3).compress
    forms = [b"\x00" + raw, b"\x01" + frame(raw)]
    for method in (2, 3) if unit > 1 else ():
        units = np.frombuffer(raw, f"<u{unit}")
        if method == 3:
            units = (units << 1) | (units >> (8 * unit - 1))
        numbers, body = b"", b""
        for plane in units.view(np.uint8).reshape(-1, unit).T:
            stored = plane.tobytes()
            small = frame(stored)
            numbers += put_varint(2 * min(len(stored), len(small)) + (len(small) < len(stored)))
            body += min(stored, small, key=len)
        forms.append(bytes([method]) + numbers + body)
    return min(forms, key=len)


def stored_value(raw, crc, code, level, chunk_size, plain):
    """Stored bytes, their checksum and the extension of a value, by its level (EXT-10, CMP-10)."""
    fixed, unit = code not in (STRING, VARIANT), ref.TYPES[code][2]
    extension = b""
    if level != "v2" and fixed and len(raw) > chunk_size:
        extension = put_extension(chunk_size, map(crc32c, chunks_of(raw, chunk_size)))
    need(len(raw) <= 15 * 2**20 * chunk_size or level == "v2", "EXT-10", "LIMIT", "too many chunks")
    if level == "ckptfmt" and raw and not plain:
        chunks = [put_chunk(chunk, unit) for chunk in chunks_of(raw, chunk_size)]
        stored = b"".join(chunks)
        sizes = [len(chunk) for chunk in chunks]
        packed = put_extension(chunk_size, map(crc32c, chunks), 1, sizes, len(raw), crc)
        if len(stored) + len(packed) < len(raw) + len(extension):
            return stored, crc32c(stored), packed
    return raw, crc, extension


# --- the writer ---
def put_metadata(value):
    """The JSON of metadata (EXT-12), with nothing that a reader may refuse (EXT-7)."""

    def good(item, depth):
        if isinstance(item, str):
            return not re.search("[\ud800-\udfff]", item)
        if isinstance(item, float):
            return item - item == 0
        if isinstance(item, list | tuple):
            return depth < 100 and all(good(inner, depth + 1) for inner in item)
        return isinstance(item, int) and abs(item) < 10**4300

    sound = isinstance(value, dict) and all(
        isinstance(name, str) and good(name, 1) and good(item, 1) for name, item in value.items()
    )
    need(sound, "EXT-12", "ARGUMENT", "metadata")
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def write(prefix, tensors, *, level="v2", alignment=None, metadata=None, chunk_size=262144):
    """Writes a checkpoint of one shard under a prefix that has no files.

    tensors are pairs of a name (bytes or str) and an array or Piece, in the order of their values.
    """
    prefix = os.fspath(prefix)
    need(level in ("v2", "v2+", "ckptfmt"), "EXT-10", "ARGUMENT", f"level {level}")
    need(metadata is None or level != "v2", "EXT-12", "ARGUMENT", "level v2 has no metadata")
    most = 1 << 24 if level == "ckptfmt" else (1 << 32) - 1
    good = chunk_size % 16 == 0 and 4096 <= chunk_size <= most
    need(good, "EXT-10", "ARGUMENT", f"chunk_size {chunk_size}")
    alignment = alignment or (1 if level == "v2" else 64)
    items = [(name.encode() if isinstance(name, str) else name, value) for name, value in tensors]
    for name, _ in items:
        need(name, "TAB-12", "ARGUMENT", "a tensor without name")
        need(not name.startswith(b"_CKPTFMT_"), "EXT-8", "ARGUMENT", f"{name!r} is reserved")
        need(len(name) <= ref.LIMITS["key"], "TAB-13", "LIMIT", "name")
    if metadata is not None:
        items.append((b"_CKPTFMT_METADATA", np.array(put_metadata(metadata), object)))
    table, partitioned, data, compressed = {}, {}, bytearray(), False
    for name, value in items:
        piece = value if isinstance(value, Piece) else Piece(value)
        array = np.asarray(piece.array)
        code = piece.dtype or (STRING if array.dtype.kind in "OSU" else CODES.get(array.dtype, 0))
        need(code in ref.TYPES, "DTY-7", "ARGUMENT", f"{name!r} of {array.dtype}")
        need(array.ndim <= 254, "SHP-3", "ARGUMENT", "rank")
        key = name
        shape, extents = parse_slice_text(piece.text) or (list(array.shape), [])
        box = ref.slice_box(extents, shape) if extents else [(0, n) for n in shape]
        good = [n for _, n in box] == list(array.shape)
        need(good, "TXT-9", "ARGUMENT", f"{piece.text} of {array.shape}")
        if box != [(0, n) for n in shape]:  # SLC-12
            full = partitioned.setdefault(name, (code, shape, []))
            need(full[:2] == (code, shape) and name not in table, "SLC-14", "ARGUMENT", f"{name!r}")
            full[2].append(extents)
            key = ref.slice_key(name, extents)
            need(len(key) <= ref.LIMITS["key"], "TAB-13", "LIMIT", "slice key")
        good = key not in table and (key != name or name not in partitioned)
        need(good, "SLC-14", "ARGUMENT", f"{name!r} twice")
        raw, crc = put_value(array, code)
        plain = name == b"_CKPTFMT_METADATA"
        stored, crc, extension = stored_value(raw, crc, code, level, chunk_size, plain)
        compressed |= extension[:2] == b"\x08\x01"
        table[key] = put_entry(code, array.shape, len(data), len(stored), mask(crc), (), extension)
        data += stored
        data += bytes(-len(data) % alignment)  # DAT-5
    for name, (code, shape, slices) in partitioned.items():
        ref.check_overlaps(slices, "SLC-6", "ARGUMENT")
        table[name] = put_entry(code, shape, slices=slices)
    table[b""] = put_header(1, b"\x08\x02\x10\x02" if compressed else b"\x08\x01")  # HDR-10, HDR-11
    commit(prefix, [lambda path: put_file(path, data)], put_table(sorted(table.items())))


def put_file(path, contents):
    with open(path, "xb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())


def commit(prefix, makers, index):
    """CMT for a prefix without files: the one case here."""
    names = [ref.data_name(prefix, i, len(makers)) for i in range(len(makers))] + [
        prefix + ".index"
    ]
    makers = [*makers, lambda path: put_file(path, index)]
    need(not any(map(os.path.lexists, names)), "CMT-5", "ARGUMENT", f"{prefix} has files")
    made = []
    try:
        for name, make in zip(names, makers, strict=True):
            made.append(f"{name}.tempstate{'a' + os.urandom(8).hex()[1:]}")  # CMT-2
            make(made[-1])
        for name, temporary in zip(names, made, strict=True):
            os.rename(temporary, name)  # CMT-9: the index is the last
    finally:
        for path in filter(os.path.lexists, made):
            os.unlink(path)
    parent = os.open(os.path.dirname(prefix) or ".", os.O_RDONLY)
    os.fsync(parent)  # CMT-10
    os.close(parent)


# --- 22. MRG: merge ---
CANONICAL = ref.ENTRY | {7: ("slices", ref.SLICE, True)}
CANONICAL.pop(100)  # an unknown field here (MRG-7)


def rewrite_fields(data, pos, end):
    """Fields with tags, sizes and varints in the fewest bytes, groups kept."""
    out = b""
    while pos < end:
        number, wire, value, pos = ref.one_field(data, pos, end, ref.silent, group=True)
        out += put_varint(number << 3 | wire) + put_payload(data, wire, value, groups=False)
    return out


def put_payload(data, wire, value, number=0, groups=True):
    if wire == 0:
        return put_varint(value)
    if wire in (1, 5):
        return value.to_bytes(8 if wire == 1 else 4, "little")
    if wire == 2:
        return put_varint(value[1] - value[0]) + data[slice(*value)]
    return rewrite_fields(data, *value) + put_varint(number << 3 | 4) if groups else b""


def rewrite(data, message, schema):
    """A decoded message in canonical form (MRG-7)."""
    out = b""
    for number, (name, kind, repeated) in sorted(schema.items()):
        if name not in message:
            continue
        value = message[name]
        if isinstance(kind, dict):
            for item in value if repeated else [value]:
                out += put_field(number, rewrite(data, item, kind))
        elif repeated:
            out += put_field(number, b"".join(map(put_varint, value))) if value else b""
        elif kind == "string":
            out += put_field(number, value.encode()) if value else b""
        elif kind == "fixed32":
            out += put_varint(number << 3 | 5) + u32.pack(value) if value else b""
        elif value or name == "length":
            out += put_varint(number << 3) + put_varint(value)
    for number, wire, value in message.get("", []):
        out += put_varint(number << 3 | wire) + put_payload(data, wire, value, number)
    return out


def is_placeholder(name, entry):  # EXT-8
    match = re.fullmatch(rb"_CKPTFMT_SHARD_(0|[1-9][0-9]*)", name)
    return (
        bool(match)
        and (entry.dtype, entry.shape, entry.shard_id) == (1, [0], int(match[1]))
        and not (entry.offset or entry.size or entry.slices)
    )


def version_of(bundle):
    """The version message, decoded, and the bytes in which its unknown fields lie."""
    data, start, stop, _ = bundle._block(0)[b""]
    return data, ref.decode(data, start, stop, ref.HEADER, ref.silent).get("version", {})


def same_version(data, version):
    """What MRG-2 and MRG-15 compare."""
    rest = {
        name: value for name, value in version.items() if name not in ("producer", "min_consumer")
    }
    return rewrite(data, rest, ref.VERSION)


def merge(prefixes, destination, *, allow_missing=False):
    """Merges bundles into one under a prefix without files; the inputs stay."""
    prefixes, destination = [os.fspath(p) for p in prefixes], os.fspath(destination)
    distinct = {os.path.abspath(p) for p in [*prefixes, destination]}
    need(len(distinct) == len(prefixes) + 1, "MRG-10", "ARGUMENT", "a prefix twice")
    bundles = []
    for prefix in prefixes:
        try:
            bundles.append(ref.Bundle(prefix))
        except ref.Violation as violation:
            if not (allow_missing and violation.rule == "NAM-2"):
                raise
    need(bundles, "MRG-1", "CHECKPOINT_NOT_FOUND", "no input")
    versions = [version_of(bundle) for bundle in bundles]
    data, version = versions[0]
    highest = {
        name: max(v.get(name, 0) for _, v in versions) for name in ("producer", "min_consumer")
    }
    compare = (
        same_version if highest["min_consumer"] >= 2 else lambda d, v: rewrite(d, v, ref.VERSION)
    )  # MRG-15
    kinds = {(b.header["endianness"], compare(*v)) for b, v in zip(bundles, versions, strict=True)}
    need(len(kinds) == 1, "MRG-2", "MERGE_CONFLICT", "headers differ")
    merged, ids = {}, {}
    for number, bundle in enumerate(bundles):
        bundle.names()
        for key in [key for i in range(len(bundle._index)) for key in bundle._block(i)][1:]:
            entry, earlier = bundle._find(key), merged.get(key)
            shards = bundle.header["num_shards"]
            need(0 <= entry.shard_id < shards, "ENT-3", "BAD_ENTRY", f"{key!r}")
            if is_placeholder(key, entry):
                continue
            source, start, stop, _ = bundle._place(key)
            message = ref.decode(source, start, stop, CANONICAL, ref.silent)
            if earlier is None:  # MRG-6
                message["shard_id"] = ids.setdefault((number, entry.shard_id), len(ids))
                merged[key] = [message, entry, source]
                continue
            if key == b"_CKPTFMT_METADATA" and all(
                e.dtype == 7 and not e.shape for e in (entry, earlier[1])
            ):  # MRG-16
                same = (entry.size, entry.crc32c) == (earlier[1].size, earlier[1].crc32c)
                need(same and not entry.slices, "MRG-16", "MERGE_CONFLICT", "metadata differ")
                continue
            need(entry.slices and earlier[1].slices, "MRG-3", "MERGE_CONFLICT", f"{key!r} twice")
            need(
                (entry.dtype, entry.shape) == (earlier[1].dtype, earlier[1].shape),
                "MRG-4", "MERGE_CONFLICT", f"{key!r}: data types or shapes differ",
            )  # fmt: skip
            texts = [rewrite(source, item, ref.SLICE) for item in message["slices"]]
            earlier.append((texts, entry.slices))
    version |= highest if highest["min_consumer"] >= 2 else {}
    version = rewrite(data, version, ref.VERSION)
    table = [(b"", put_header(max(len(ids), 1), version, bundles[0].header["endianness"]))]
    for key, (message, entry, source, *more) in sorted(merged.items(), key=lambda item: item[0]):
        if more:
            slices = [*entry.slices, *(x for _, later in more for x in later)]
            ref.check_overlaps(slices, "MRG-5", "MERGE_CONFLICT")
        table.append((key, put_merged(message, source, more)))
    makers = [linker(bundles[number], shard) for number, shard in ids]
    if not makers:  # MRG-8: a placeholder with an empty file
        table.append((b"_CKPTFMT_SHARD_0", put_entry(1, [0], crc=mask(0))))
        makers = [lambda path: put_file(path, b"")]
    commit(destination, makers, put_table(table))


def put_merged(message, source, more):
    """An entry, with the slices of later inputs after its own."""
    unknown = {"": message.pop("", [])}
    extra = b"".join(put_field(7, text) for texts, _ in more for text in texts)
    return rewrite(source, message, CANONICAL) + extra + rewrite(source, unknown, {})


def linker(bundle, shard):
    """Puts a data file under another name (MRG-12)."""
    path = ref.data_name(bundle.prefix, shard, bundle.header["num_shards"])
    size = os.fstat(bundle._file(shard, path)).st_size
    for entry in bundle._entries.values():
        if entry.shard_id == shard and not entry.slices and entry.size:
            need(size >= entry.offset + entry.size, "DAT-2", "TRUNCATED", path)

    def make(name):
        try:
            os.link(path, name)
        except OSError:
            shutil.copyfile(path, name)

    return make
