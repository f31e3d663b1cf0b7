# SPDX-License-Identifier: Apache-2.0
"""The format of format.md as a program: the reader (reference_writer.py has the writer).

Written from the text alone, in its order, to be read beside it; it shares no code with the library.
Correct and plain before fast, but linear in the bytes that are there. A file that breaks a rule
gives a Violation with the rule's id and the failure class; no other exception comes of any bytes.
"""

import bisect
import contextlib
import importlib
import itertools
import json
import math
import os
import re
import stat
import struct
import sys
from dataclasses import dataclass, field

import crcmod.predefined
import ml_dtypes as ml
import numpy as np
import zstandard

# Rules whose checks are skipped, for tests; what such a check guarded may then fail in any way.
DISABLED: set[str] = set()
LIMITS = {  # section 23
    "index": 4 << 30, "block": 64 << 20, "key": 16 << 20, "keys": 64 << 20, "entries": 1 << 24,
    "slices": 1 << 20, "value": 1 << 63, "expansion": 65536, "graph_bytes": 256 << 20,
    "nodes": 1 << 22, "node_fields": 1 << 23,
}  # fmt: skip


class Violation(Exception):  # noqa: N818
    """A rule that does not hold: its id, the failure class, and where."""

    def __init__(self, rule, failure, message=""):
        super().__init__(rule, failure, message)
        self.rule, self.failure, self.message, self.place = rule, failure, message, ""

    def __str__(self):
        return f"{self.rule} {self.failure}: {self.message} ({self.place})"


def need(condition, rule, failure, message=""):
    """The only way that a Violation comes about."""
    if not condition and rule not in DISABLED:
        raise Violation(rule, failure, message)


@contextlib.contextmanager
def at(place):
    """Names the file, and the offset or tensor, in a Violation from inside."""
    try:
        yield
    except Violation as violation:
        violation.place = f"{place}, {violation.place}" if violation.place else place
        raise


# --- 1. Conventions ---
crc32c = crcmod.predefined.mkCrcFun("crc-32c")  # crc32c(data, earlier) continues
u32 = struct.Struct("<I")
u64 = struct.Struct("<Q")


def mask(crc):
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def silent(_oddity, _position):
    """Notes nothing."""


def varint(data, pos, end, bits, rule, failure, note=silent, loose=False):
    """Returns the value and the position after it; loose is OBJ-2."""
    value, start = 0, pos
    for shift in range(0, 35 if bits == 32 else 70, 7):
        if pos >= end or pos >= len(data):
            break
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            value = value & (1 << 64) - 1 if loose else value
            need(value < 1 << bits, rule, failure, f"varint too large at {start}")
            if byte == 0 and shift:
                note("OVERLONG_VARINT", start)
            return value, pos
    need(False, rule, failure, f"unreadable varint at {start}")
    return value, pos


def put_varint(value):
    """A varint; negative numbers are of 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- 4. NAM: file names and prefix ---
def data_name(prefix, shard, shards):  # NAM-3, NAM-4
    return f"{prefix}.data-{shard:05d}-of-{shards:05d}"


def open_regular(path):
    """A descriptor of a regular file, or None where nothing has the name (NAM-6)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        need(False, "NAM-6", "OS", f"{path}: {error.strerror}")
        return None
    regular = stat.S_ISREG(os.fstat(fd).st_mode)
    if not regular:
        os.close(fd)
    need(regular, "NAM-6", "OS", f"{path} is no regular file")
    return fd if regular else None


def pread(fd, offset, size):
    """The bytes, or fewer where the file ends."""
    out = bytearray()
    while len(out) < size:
        piece = os.pread(fd, min(size - len(out), 1 << 30), offset + len(out))
        if not piece:
            break
        out += piece
    return bytes(out)


# --- 5. FTR: footer and handles ---
MAGIC = 0xDB4775248B80FB57
ROCKSDB = (0x88E241B785F4CFF7, 0x8242229663BF9564, 0x4F3418EB7A8F13B8)


def handle(data, pos, end, rule, note):
    offset, pos = varint(data, pos, end, 64, rule, "BAD_BLOCK", note)
    size, pos = varint(data, pos, end, 64, rule, "BAD_BLOCK", note)
    return offset, size, pos


def footer(data, note):
    """The two handles of an index file."""
    need(len(data) >= 48, "FTR-1", "TRUNCATED", f"{len(data)} bytes")
    start = len(data) - 48
    magic = u64.unpack_from(data, start + 40)[0]
    need(magic not in ROCKSDB, "FTR-2", "UNSUPPORTED", "a table of RocksDB")
    need(magic == MAGIC, "FTR-2", "BAD_MAGIC", f"magic {magic:#x} at {start + 40}")
    meta_offset, meta_size, pos = handle(data, start, start + 40, "FTR-3", note)
    offset, size, pos = handle(data, pos, start + 40, "FTR-3", note)
    if any(data[pos : start + 40]):
        note("FOOTER_PADDING", pos)  # FTR-4
    return (meta_offset, meta_size), (offset, size)


def is_v1(prefix):
    """Whether the prefix itself is a V1 checkpoint: a file with a readable footer (NAM-9)."""
    with contextlib.suppress(Violation, OSError):
        fd = None if prefix.endswith(".index") else open_regular(prefix)
        if fd is not None:
            with open(fd, "rb") as file:
                file.seek(max(os.fstat(fd).st_size - 48, 0))
                return bool(footer(file.read(48), silent))
    return False


def in_file(offset, size, data):
    need(offset + size + 5 <= len(data) - 48, "FTR-5", "TRUNCATED", f"block at {offset}, {size}")


# --- 6. BLK: blocks ---
def block_contents(data, offset, size, note):
    """Checks the trailer; returns the contents and a note for positions in them."""
    need(size <= LIMITS["block"], "BLK-14", "LIMIT", f"block of {size} bytes")
    stored, kind = data[offset : offset + size], data[offset + size]
    checksum = u32.unpack_from(data, offset + size + 1)[0]
    need(checksum == mask(crc32c(data[offset : offset + size + 1])), "BLK-2", "CHECKSUM", "block")
    need(kind in (0, 1), "BLK-3", "BAD_BLOCK", f"type {kind} at {offset + size}")
    if kind != 1:
        return stored, lambda oddity, pos: note(oddity, offset + pos)
    note("SNAPPY", offset)
    inside = lambda oddity, _: note(oddity, offset)  # noqa: E731
    return snappy(stored), inside


def block_entries(contents, index, note):
    """Yields key, start and end of value, offset, and number of restarts before it, of each entry.

    The checks are those of section 24, in its order.
    """
    s = len(contents)
    need(s >= 4, "BLK-4", "BAD_BLOCK", f"{s} bytes")
    r = u32.unpack_from(contents, s - 4)[0]
    need(r <= (s - 4) // 4, "BLK-4", "BAD_BLOCK", f"{r} restarts in {s} bytes")
    if r == 0:  # BLK-5
        note("NO_RESTARTS", s - 4)
        return
    end = s - 4 - 4 * r
    restarts = struct.unpack_from(f"<{r}I", contents, end)
    need(restarts[0] == 0, "BLK-9", "BAD_BLOCK", f"first restart {restarts[0]}")
    order, interval = ("TAB-6", 1) if index else ("TAB-1", 16)
    pos = used = count = 0
    last = b""
    while pos < end:
        start = pos
        need(used == r or restarts[used] >= start, "BLK-9", "BAD_BLOCK", f"restart before {start}")
        restart = used < r and restarts[used] == start
        shared, pos = varint(contents, pos, end, 32, "BLK-6", "BAD_BLOCK", note)
        unshared, pos = varint(contents, pos, end, 32, "BLK-6", "BAD_BLOCK", note)
        size, pos = varint(contents, pos, end, 32, "BLK-6", "BAD_BLOCK", note)
        need(unshared + size <= end - pos, "BLK-8", "BAD_BLOCK", f"entry at {start}")
        need(not restart or shared == 0, "BLK-10", "BAD_BLOCK", f"restart {start} shares")
        need(shared <= len(last), "BLK-7", "BAD_BLOCK", f"entry at {start} shares {shared}")
        need(shared + unshared <= LIMITS["key"], "TAB-13", "LIMIT", f"key at {start}")
        key = last[:shared] + contents[pos : pos + unshared]
        need(count == 0 or key > last, order, "BAD_ORDER", f"key {key[:80]!r} at {start}")
        if restart != (count % interval == 0):
            note("RESTARTS", start)  # BLK-11
        if not restart and unshared and shared < len(last) and last[shared] == contents[pos]:
            note("PREFIX", start)  # BLK-12
        pos += unshared
        yield key, pos, pos + size, start, used
        pos += size
        used += restart
        count += 1
        last = key
    need(used == r or (count == 0 and r == 1), "BLK-9", "BAD_BLOCK", "restarts that are no entries")


# --- 7. SNP: Snappy ---
def snappy(stream):
    end = len(stream)
    size, pos = varint(stream, 0, end, 32, "SNP-2", "BAD_BLOCK")
    q, s = divmod(end - pos - 2, 3)
    most = 1 + 64 * q + (0, 1, 11)[s] if end - pos >= 2 else 0
    need(size <= most, "SNP-3", "BAD_BLOCK", f"decoded size {size} of {end - pos} bytes")
    need(size <= LIMITS["block"], "BLK-14", "LIMIT", f"decoded size {size}")
    out = bytearray()
    while pos < end:
        tag = stream[pos]
        pos += 1
        high, kind = tag >> 2, tag & 3
        extra = (max(high - 59, 0), 1, 2, 4)[kind]
        need(end - pos >= extra, "SNP-8", "BAD_BLOCK", f"element cut off at {pos}")
        number = int.from_bytes(stream[pos : pos + extra], "little")
        pos += extra
        if kind == 0:  # SNP-4
            n = number + 1 if extra else high + 1
            need(end - pos >= n, "SNP-8", "BAD_BLOCK", f"literal of {n} bytes cut off at {pos}")
            need(len(out) + n <= size, "SNP-9", "BAD_BLOCK", f"more than {size} bytes")
            out += stream[pos : pos + n]
            pos += n
            continue
        n = 4 + (high & 7) if kind == 1 else high + 1
        distance = ((tag >> 5) << 8) + number if kind == 1 else number
        need(1 <= distance <= len(out), "SNP-6", "BAD_BLOCK", f"distance {distance} at {pos}")
        need(len(out) + n <= size, "SNP-9", "BAD_BLOCK", f"more than {size} bytes")
        begin = max(len(out) - distance, 0)
        pattern = bytes(out[begin : begin + n]) or b"\0"
        out += (pattern * (n // len(pattern) + 1))[:n]  # SNP-5, SNP-7
    need(len(out) == size, "SNP-9", "BAD_BLOCK", f"{len(out)} bytes for {size}")
    return bytes(out)


# --- 8. TAB: the table ---
def common(a, b):
    """The number of bytes that both begin with."""
    least = min(len(a), len(b))
    return next((i for i in range(least) if a[i] != b[i]), least)


def separator(last, following):  # TAB-7
    d = common(last, following)
    if d < len(last) and d < len(following) and last[d] < 255 and last[d] + 1 < following[d]:
        return last[:d] + bytes([last[d] + 1])
    return last


def successor(last):  # TAB-8
    for i, byte in enumerate(last):
        if byte != 255:
            return last[:i] + bytes([byte + 1])
    return last


EMPTY_BLOCK = bytes.fromhex("00000000 01000000 00 c0f2a1b0")  # BLK-13, with its trailer


# --- 9. MSG: protobuf wire rules ---
def one_field(data, pos, end, note, loose=False, group=False):
    """Returns number, wire type, payload (number, or start and end) and the position after it."""

    def rule(own):
        return "MSG-7" if group else own

    start = pos
    tag, pos = varint(data, pos, end, 32, rule("MSG-2"), "BAD_PROTO", note)
    number, wire = tag >> 3, tag & 7
    need(number > 0, rule("MSG-2"), "BAD_PROTO", f"field number 0 at {start}")
    value = 0
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


def decode(data, pos, end, schema, note, out=None, loose=False):
    """Decodes a message to a dict of the fields that occur.

    A kind of a field is a scalar's, a schema, "string" or "range" (start and end of the last one,
    or of all). Unknown fields are listed under "" as number, wire type, payload.
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
                out.setdefault(name, []).append(scalar(element, kind, loose))
            continue
        if isinstance(kind, dict):
            into = {} if repeated else out.get(name)
            inside = without_order(note) if name == "extension" else note
            value = decode(data, *value, kind, inside, into, loose)
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


def scalar(value, kind, loose):
    if kind == "bool":  # MSG-13
        return value != 0
    if kind in ("int32", "int64"):  # MSG-11, MSG-12
        value = value - (1 << 64) if value >> 63 else value
    if kind == "int32":
        if loose:
            return ((value + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        need(-(1 << 31) <= value < 1 << 31, "MSG-11", "BAD_PROTO", f"{value} is no int32")
    return value


def is_utf8(text):
    with contextlib.suppress(UnicodeDecodeError):
        return text.decode("utf-8") is not None
    return False


def schema(text, **inner):
    """Fields written as "number name kind", with * if repeated."""
    fields = (part.split() for part in text.split(","))
    return {
        int(number): (name, inner.get(kind.strip("*"), kind.strip("*")), "*" in kind)
        for number, name, kind in fields
    }


VERSION = schema("1 producer int32, 2 min_consumer int32, 3 bad_consumers int32*")
HEADER = schema("1 num_shards int32, 2 endianness int32, 3 version VERSION", VERSION=VERSION)
DIM = schema("1 size int64, 2 name string")
SHAPE = schema("2 dim DIM*, 3 unknown_rank bool", DIM=DIM)
EXTENT = schema("1 start int64, 2 length int64")
SLICE = schema("1 extent EXTENT*", EXTENT=EXTENT)
EXTENSION = schema(
    "1 feature_flags uint64, 2 chunk_size uint64, 3 chunk_crcs range, 4 chunk_sizes range,"
    "5 raw_size uint64, 6 raw_crc32c fixed32"
)
ENTRY = schema(
    "1 dtype int32, 2 shape SHAPE, 3 shard_id int32, 4 offset int64, 5 size int64,"
    "6 crc32c fixed32, 7 slices range*, 100 extension EXTENSION",
    SHAPE=SHAPE,
    EXTENSION=EXTENSION,
)


# --- 10. HDR: the header ---
def read_header(data, pos, end, consumer, note):
    header = {"num_shards": 0, "endianness": 0} | decode(data, pos, end, HEADER, note)
    version = {"producer": 0, "min_consumer": 0, "bad_consumers": []}  # HDR-6
    version |= header.get("version", {})
    need(version["producer"] >= 0, "HDR-7", "UNSUPPORTED", f"producer {version['producer']}")
    least = version["min_consumer"]
    need(least <= consumer, "HDR-8", "UNSUPPORTED", f"min_consumer {least}, here {consumer}")
    need(consumer not in version["bad_consumers"], "HDR-9", "UNSUPPORTED", "bad consumer")
    need(header["num_shards"] >= 1, "HDR-3", "BAD_HEADER", f"{header['num_shards']} shards")
    need(header["endianness"] in (0, 1), "HDR-4", "BAD_HEADER", "endianness")
    if header["endianness"] == 1:
        note("BIG_ENDIAN", pos)  # HDR-5
    return header | {"version": version}


# --- 11. ENT and 12. SHP: entries and shapes ---
@dataclass
class Entry:
    """A decoded entry; slices hold (start, length) for each dimension, length None if full."""

    dtype: int = 0
    shape: list = field(default_factory=list)
    shard_id: int = 0
    offset: int = 0
    size: int = 0
    crc32c: int = 0
    slices: list = field(default_factory=list)
    ext: dict = field(default_factory=dict)
    bytes: int = 0  # of its message
    at: tuple = ()  # contents, start, end and note

    @property
    def count(self):
        return math.prod(self.shape)

    @property
    def compressed(self):
        return bool(self.ext.get("feature_flags", 0) & 1)


def read_entry(data, pos, end, note, own=False):
    """The step *Entry* of section 24, without the slices' own entries; own: this is such a one."""
    message = decode(data, pos, end, ENTRY, note)
    extension = message.get("extension", {})
    for name in ("chunk_crcs", "chunk_sizes"):
        if name in extension:
            extension[name] = data[slice(*extension[name])]
    known = ("dtype", "shard_id", "offset", "size", "crc32c")
    plain = {name: message[name] for name in known if name in message}
    entry = Entry(**plain, ext=extension, bytes=end - pos, at=(data, pos, end, note))
    if "shape" not in message:
        note("NO_SHAPE", pos)  # ENT-2
    shape = message.get("shape", {})
    if shape.get("unknown_rank"):
        note("UNKNOWN_RANK", pos)  # SHP-5
    if any("name" in dim for dim in shape.get("dim", [])):
        note("DIM_NAME", pos)  # SHP-6
    entry.shape = [dim.get("size", 0) for dim in shape.get("dim", [])]
    product = 1
    for size in entry.shape:
        need(size >= 0, "SHP-2", "BAD_SHAPE", f"dimension of {size}")
        product *= size
        need(product < 1 << 63, "SHP-4", "BAD_SHAPE", f"{entry.shape} has too many elements")
    if entry.dtype not in TYPES and not no_value(entry.dtype):
        note("UNKNOWN_DTYPE", pos)  # DTY-6
    slices = message.get("slices", [])
    if own and slices:
        note("NESTED_SLICES", pos)  # SLC-10
    elif slices:
        entry.slices = [read_slice(data, *place, len(entry.shape), note) for place in slices]
    return entry


def without_order(note):
    return lambda oddity, pos: None if oddity == "FIELD_ORDER" else note(oddity, pos)


# --- 13. DTY: data types ---
STRING, VARIANT = 7, 21
TYPES = {  # code: name, element size (0: STRING, VARIANT), swap size, numpy type
    1: ("float", 4, 4, np.float32), 2: ("double", 8, 8, np.float64), 3: ("int32", 4, 4, np.int32),
    4: ("uint8", 1, 1, np.uint8), 5: ("int16", 2, 2, np.int16), 6: ("int8", 1, 1, np.int8),
    7: ("string", 0, 1, object), 8: ("complex64", 8, 4, np.complex64), 9: ("int64", 8, 8, np.int64),
    10: ("bool", 1, 1, np.bool_), 11: ("qint8", 1, 1, np.int8), 12: ("quint8", 1, 1, np.uint8),
    13: ("qint32", 4, 4, np.int32), 14: ("bfloat16", 2, 2, ml.bfloat16),
    15: ("qint16", 2, 2, np.int16), 16: ("quint16", 2, 2, np.uint16),
    17: ("uint16", 2, 2, np.uint16), 18: ("complex128", 16, 8, np.complex128),
    19: ("half", 2, 2, np.float16), 21: ("variant", 0, 1, object), 22: ("uint32", 4, 4, np.uint32),
    23: ("uint64", 8, 8, np.uint64), 24: ("float8_e5m2", 1, 1, ml.float8_e5m2),
    25: ("float8_e4m3fn", 1, 1, ml.float8_e4m3fn),
    26: ("float8_e4m3fnuz", 1, 1, ml.float8_e4m3fnuz),
    27: ("float8_e4m3b11fnuz", 1, 1, ml.float8_e4m3b11fnuz),
    28: ("float8_e5m2fnuz", 1, 1, ml.float8_e5m2fnuz), 29: ("int4", 1, 1, ml.int4),
    30: ("uint4", 1, 1, ml.uint4), 31: ("int2", 1, 1, ml.int2), 32: ("uint2", 1, 1, ml.uint2),
    33: ("float4_e2m1fn", 1, 1, ml.float4_e2m1fn),
}  # fmt: skip


def no_value(code):  # DTY-5
    return code < 1 or code == 20 or 101 <= code <= 133


def to_array(flat, code, shape):
    """A numpy array; flat where numpy has no such shape (it takes 64 dimensions at most)."""
    name, _, _, kind = TYPES.get(code, ("", 1, 1, np.uint8))
    if name in ("string", "variant"):
        array = np.empty(len(flat), object)
        array[:] = flat
    else:
        array = np.frombuffer(bytearray(flat), kind)  # DTY-3: ml_dtypes looks at the low bits only
    if not name:
        return array
    with contextlib.suppress(ValueError):
        return array.reshape(shape)
    return array


# --- 14. SLC: partitioned tensors ---
def read_slice(data, pos, end, rank, note):
    message = decode(data, pos, end, SLICE, silent)
    extents = [(one.get("start", 0), one.get("length")) for one in message.get("extent", [])]
    extents = [(start, None if length == -1 else length) for start, length in extents]
    if data[pos:end] != put_slice(extents):
        note("FIELD_ORDER", pos)  # MSG-15, SLC-3: the only oddity of a slice message
    need(len(extents) == rank, "SLC-2", "BAD_SLICE", f"{len(extents)} extents for rank {rank}")
    return extents


def put_field(number, payload):
    return put_varint(number << 3 | 2) + put_varint(len(payload)) + payload


def put_slice(extents):
    out = b""
    for start, length in extents:
        message = b"\x08" + put_varint(start) if start else b""
        message += b"" if length is None else b"\x10" + put_varint(length)
        out += put_field(1, message)
    return out


def check_extents(extents, shape):
    for (start, length), size in zip(extents, shape, strict=True):
        if length is None:
            need(start == 0, "SLC-3", "BAD_SLICE", f"full extent from {start}")
        else:
            good = start >= 0 and length >= 1 and start + length <= size
            need(good, "SLC-4", "BAD_SLICE", f"extent {start},{length} of {size}")
    need(any(length is not None for _, length in extents), "SLC-5", "BAD_SLICE", "all extents full")


def check_overlaps(slices, rule="SLC-6", failure="BAD_SLICE"):
    """Sweeps along the dimension with the most starts; LIMIT where that would not be enough."""
    if len(slices) < 2:
        return
    boxes = [
        [(0, 1 << 63) if length is None else (s, s + length) for s, length in extents]
        for extents in slices
    ]
    axis = max(range(len(boxes[0])), key=lambda d: len({box[d][0] for box in boxes}))
    boxes.sort(key=lambda box: box[axis])
    active, work = [], 0
    for box in boxes:
        active = [other for other in active if other[axis][1] > box[axis][0]]
        work += len(active)
        need(work <= 1 << 22 or work <= 256 * len(boxes), rule, "LIMIT", "slices side by side")
        for other in active:
            apart = any(a1 <= b0 or b1 <= a0 for (a0, a1), (b0, b1) in zip(box, other, strict=True))
            need(apart, rule, failure, f"slices {box} and {other} overlap")
        active.append(box)


def slice_box(extents, shape):
    """A slice as (start, length) of every dimension, none of them full."""
    return [
        (0, size) if length is None else (s, length)
        for (s, length), size in zip(extents, shape, strict=True)
    ]


def intersection(one, other):
    starts = [max(a, b) for (a, _), (b, _) in zip(one, other, strict=True)]
    ends = [min(a + n, b + m) for (a, n), (b, m) in zip(one, other, strict=True)]
    return [(start, max(end - start, 0)) for start, end in zip(starts, ends, strict=True)]


def elements(box):
    return math.prod(length for _, length in box)


def missing_box(box, boxes):
    """A box of which no element is in the boxes (SLC-11); the request itself if they are many."""
    boxes = [part for part in (intersection(box, other) for other in boxes) if elements(part)]
    if not boxes or len(boxes) > 500:
        return box
    for d, ((start, length), (s, n)) in enumerate(zip(box, boxes[0], strict=True)):
        for low, high in ((start, s), (s + n, start + length)):
            piece = [*boxes[0][:d], (low, high - low), *box[d + 1 :]]
            inside = sum(elements(intersection(piece, other)) for other in boxes)
            if high > low and inside < elements(piece):
                return missing_box(piece, boxes)
    return box


def runs(shape, box):
    """The runs of consecutive elements of a box, ascending: first element and number."""
    if not shape:
        yield 0, 1
        return
    if not elements(box):
        return
    inner = len(shape) - 1
    while inner and box[inner] == (0, shape[inner]):
        inner -= 1
    strides = [math.prod(shape[d + 1 :]) for d in range(inner + 1)]
    for outer in itertools.product(*(range(start, start + n) for start, n in box[:inner])):
        first = sum(i * stride for i, stride in zip((*outer, box[inner][0]), strides, strict=True))
        yield first, box[inner][1] * strides[inner]


# --- 15. KEY: slice keys ---
def put_number(value):  # KEY-2
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def put_signed(v):  # KEY-4
    n = 1 + (v if v >= 0 else -1 - v).bit_length() // 7
    leading = ((1 << n) - 1) << (8 * n - n)
    return ((v & (1 << 8 * n) - 1) ^ leading).to_bytes(n, "big")


def slice_key(name, extents):
    escape = {b"\0": b"\0\xff", b"\xff": b"\xff\0"}
    out = b"\0" + re.sub(rb"[\0\xff]", lambda m: escape[m[0]], name) + b"\0\1"  # KEY-3
    out += put_number(len(extents))
    for start, length in extents:  # KEY-5
        out += b"\x80\x7f" if length is None else put_signed(start) + put_signed(length)
    return out


def key_name(key):
    """The tensor's name in what may be a slice key, and the position after it; else None."""
    pos, name = 1, bytearray()
    while key[:1] == b"\0" and pos < len(key):
        pair = key[pos : pos + 2]
        if pair == b"\0\1":
            return bytes(name), pos + 2
        if pair[0] in (0, 255) and pair not in (b"\0\xff", b"\xff\0"):
            return None
        name.append(pair[0])
        pos += 2 if pair[0] in (0, 255) else 1
    return None


# --- 17. STR, VAR: string and variant tensors ---
def read_strings(value, n, checksum, big=False):
    """The elements of a string value; checksum is the entry's, masked."""
    end = len(value)
    if n == 0 and end == 0:  # STR-8
        need(checksum == mask(0), "ENT-8", "CHECKSUM", "size 0")
        return []
    order, pos, sizes, crc = ">" if big else "<", 0, [], 0
    for _ in range(n):
        size, pos = varint(value, pos, end, 64, "STR-3", "BAD_ENTRY")
        sizes.append(size)
        crc = crc32c(struct.pack(order + ("I" if size < 1 << 32 else "Q"), size), crc)  # STR-5
    need(end - pos >= 4, "STR-3", "BAD_ENTRY", "the checksum of the sizes is cut off")
    stored = value[pos : pos + 4]
    need(stored == struct.pack(order + "I", mask(crc)), "STR-5", "CHECKSUM", "sizes")
    pos += 4
    need(pos + sum(sizes) == end, "STR-4", "BAD_ENTRY", f"{sum(sizes)} in {end - pos}")
    crc = crc32c(value[pos:], crc32c(stored, crc))
    need(checksum == mask(crc), "STR-6", "CHECKSUM", "elements")
    ends = list(itertools.accumulate(sizes, initial=pos))
    return [value[a:b] for a, b in itertools.pairwise(ends)]


def read_variants(value, n, checksum):
    pos, end, crc, out = 0, len(value), 0, []
    if end == 0:
        need(checksum == mask(0), "ENT-8", "CHECKSUM", "size 0")
    for _ in range(n):
        size, pos = varint(value, pos, end, 64, "VAR-2", "BAD_ENTRY")
        need(size + 4 <= end - pos, "VAR-2", "BAD_ENTRY", f"payload of {size} at {pos}")
        payload, stored = value[pos : pos + size], value[pos + size : pos + size + 4]
        crc = crc32c(payload, crc32c(u64.pack(size), crc))
        need(stored == u32.pack(mask(crc)), "VAR-3", "CHECKSUM", f"payload at {pos}")
        crc = crc32c(stored, crc)
        out.append(payload)
        pos += size + 4
    need(pos == end, "VAR-2", "BAD_ENTRY", f"{end - pos} bytes left")
    need(checksum == mask(crc), "VAR-4", "CHECKSUM", "elements")
    return out


# --- 18. DAT: data files ---
def swap(value, unit):  # DAT-7
    return np.frombuffer(value, np.uint8).reshape(-1, unit)[:, ::-1].tobytes()


# --- 19. EXT: the extension ---
def check_extension(entry, big, consumer):
    """The checks of *Value* up to EXT-4, or CMP-1."""
    ext, code = entry.ext, entry.dtype
    unknown = ext.get("feature_flags", 0) & ~(1 if consumer >= 2 else 0)
    need(unknown == 0, "EXT-3", "UNSUPPORTED", f"feature_flags {unknown:#x}")
    size, crcs = ext.get("chunk_size", 0), ext.get("chunk_crcs", b"")
    if entry.compressed:
        raw = ext.get("raw_size", 0)
        need(not big, "CMP-9", "UNSUPPORTED", "compressed in a big-endian bundle")
        need(code in TYPES, "CMP-8", "UNSUPPORTED", f"compressed of data type {code}")
        need(size % 16 == 0 and 4096 <= size <= 1 << 24, "CMP-2", "BAD_ENTRY", f"chunk_size {size}")
        need(1 <= raw < 1 << 63, "CMP-3", "BAD_ENTRY", f"raw_size {raw}")
        need(len(crcs) % 4 == 0, "EXT-2", "BAD_ENTRY", "chunk_crcs")
        n = -(-raw // size)
        packed, pos, sizes = ext.get("chunk_sizes", b""), 0, []
        need(len(crcs) // 4 == n, "CMP-4", "BAD_ENTRY", f"{len(crcs) // 4} chunk_crcs for {n}")
        while pos < len(packed):
            number, pos = varint(packed, pos, len(packed), 64, "CMP-4", "BAD_ENTRY")
            sizes.append(number)
        need(len(sizes) == n, "CMP-4", "BAD_ENTRY", f"{len(sizes)} chunk_sizes for {n} chunks")
        for i, number in enumerate(sizes):
            good = 1 <= number <= min(size, raw - i * size) + 1
            need(good, "CMP-5", "BAD_ENTRY", f"chunk {i}: size {number}")
        need(sum(sizes) == entry.size, "CMP-1", "BAD_ENTRY", f"chunks of {sum(sizes)}")
        entry.ext["sizes"] = sizes
        return
    need(len(crcs) % 4 == 0, "EXT-2", "BAD_ENTRY", "chunk_crcs")
    if size or crcs:
        need(entry.size > size, "EXT-5", "BAD_ENTRY", f"chunks of {size} in {entry.size} bytes")
        need(1 <= size < 1 << 32, "EXT-4", "BAD_ENTRY", f"chunk_size {size}")
        n = -(-entry.size // size)
        need(len(crcs) // 4 == n, "EXT-4", "BAD_ENTRY", f"{len(crcs) // 4} chunk_crcs for {n}")


def parse_metadata(text):  # EXT-7

    def constant(name):
        raise ValueError(name)

    try:
        value = json.loads(text.decode("utf-8"), parse_constant=constant)
    except (ValueError, RecursionError):
        value = None
    need(isinstance(value, dict), "EXT-7", "BAD_ENTRY", "not a JSON object")
    return value


# --- 20. CMP: compressed values ---
def read_chunk(chunk, n, unit):
    """The n raw bytes of a stored chunk."""
    method, end = chunk[0], len(chunk)
    need(method <= 3, "CMP-12", "BAD_CHUNK", f"method {method}")
    if method == 0:
        need(end == n + 1, "CMP-13", "BAD_CHUNK", f"{end} bytes for {n}")
        return chunk[1:]
    if method == 1:
        return read_frame(chunk[1:], n)  # CMP-14
    numbers, pos, size = [], 1, n // unit
    for _ in range(unit):
        number, pos = varint(chunk, pos, end, 64, "CMP-15", "BAD_CHUNK")
        numbers.append(number)
    planes = np.empty((size, unit), np.uint8)
    for p, number in enumerate(numbers):
        stored = chunk[pos : pos + (number >> 1)]
        need(len(stored) == number >> 1, "CMP-16", "BAD_CHUNK", f"plane {p} cut off")
        pos += number >> 1
        if number & 1:
            stored = read_frame(stored, size)
        need(len(stored) == size, "CMP-16", "BAD_CHUNK", f"plane {p}: {len(stored)} of {size}")
        planes[:, p] = np.frombuffer(stored, np.uint8)
    need(pos == end, "CMP-16", "BAD_CHUNK", f"{end - pos} bytes behind the planes")
    if method == 3:  # CMP-17
        r = planes.reshape(-1).view(f"<u{unit}")
        planes = (r >> 1) | (r << (8 * unit - 1))
    return planes.tobytes()


def read_frame(frame, n):
    """The n bytes of one zstd frame (CMP-18); its header is read here, by RFC 8878."""

    def good(condition, what):
        need(condition, "CMP-18", "BAD_CHUNK", what)

    good(frame[:4] == b"\x28\xb5\x2f\xfd" and len(frame) > 5, "no zstd frame")
    descriptor = frame[4]
    single = descriptor >> 5 & 1
    dictionary = (0, 1, 2, 4)[descriptor & 3]
    content = (single, 2, 4, 8)[descriptor >> 6]
    pos = 5 if single else 6
    good(len(frame) >= pos + dictionary + content, "frame header cut off")
    good(not any(frame[pos : pos + dictionary]), "frame with a dictionary")
    pos += dictionary
    good(content, "frame without content size")
    size = int.from_bytes(frame[pos : pos + content], "little") + (256 if content == 2 else 0)
    good(size == n, f"frame of {size} bytes for {n}")
    base = 1 << (10 + (frame[5] >> 3))
    window = size if single else base + base // 8 * (frame[5] & 7)
    good(window <= 1 << 24, f"window of {window}")
    decompress = zstandard.ZstdDecompressor().decompress
    try:
        out = decompress(frame, max_output_size=n, allow_extra_data=False)
    except zstandard.ZstdError as error:
        good(False, str(error))
        out = bytes(n)
    good(len(out) == n, f"{len(out)} bytes for {n}")
    return out


# --- lifecycle.md, 5. OBJ: the object graph ---
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


def decode_graph(message):
    """The nodes of an object graph: dicts of the fields that occur, lists always there."""
    need(len(message) <= LIMITS["graph_bytes"], "OBJ-3", "LIMIT", f"graph of {len(message)} bytes")
    nodes, inner, pos = [], 0, 0
    while pos < len(message):
        number, wire, value, pos = one_field(message, pos, len(message), silent, loose=True)
        if (number, wire) != (1, 2):
            continue
        need(len(nodes) < LIMITS["nodes"], "OBJ-3", "LIMIT", "too many nodes")
        node = decode(message, *value, NODE, silent, loose=True)
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


# --- 24. What a reader does ---
class Bundle:
    """An open checkpoint: the index is checked now; blocks, entries and values when asked for.

    header: num_shards, endianness, version. notes: oddities met, as (name, offset in the index
    file; that of the block if inside Snappy). verified: whether checksums cover the last read.
    """

    def __init__(self, prefix, consumer=2):
        self.prefix, self.consumer = os.fspath(prefix), consumer
        self.notes, self.verified = [], True
        self._noted, self._blocks, self._entries, self._files, self._keys = set(), {}, {}, {}, 0
        nul = "\0" in self.prefix
        need(not nul, "NAM-1", "BAD_PATH", "a NUL byte in the prefix")
        self.path = self.prefix + ".index"
        with at(self.path):
            self._load_index()
            self._open_table()

    # Open

    def _load_index(self):
        fd = open_regular(self.path)
        if fd is None:
            need(not is_v1(self.prefix), "NAM-9", "UNSUPPORTED", "a V1 checkpoint")
            need(False, "NAM-2", "CHECKPOINT_NOT_FOUND", "no index file")
        with open(fd, "rb") as file:
            self._stat = os.fstat(fd)
            need(self._stat.st_size <= LIMITS["index"], "TAB-13", "LIMIT", "size of the index")
            self.data = file.read()

    def _note(self, oddity, offset):
        if (oddity, offset) not in self._noted:
            self._noted.add((oddity, offset))
            self.notes.append((oddity, offset))

    def _open_table(self):
        data, note = self.data, self._note
        meta, (offset, size) = footer(data, note)
        in_file(offset, size, data)
        with at(f"index block at {offset}"):
            contents, inside = block_contents(data, offset, size, note)
            self._index, end, gap = [], 0, False  # index key, offset, size of each data block
            for key, start, stop, _, _ in block_entries(contents, True, inside):
                begin, length, pos = handle(contents, start, stop, "TAB-2", inside)
                if pos != stop:
                    inside("HANDLE_TAIL", pos)  # TAB-3
                in_file(begin, length, data)
                need(begin >= end, "TAB-4", "BAD_BLOCK", f"block at {begin} before {end}")
                gap |= begin != end
                end = begin + length + 5
                need(end <= offset, "TAB-4", "BAD_BLOCK", f"block at {begin} after the index")
                self._index.append((key, begin, length))
        if data[meta[0] : meta[0] + 13] != EMPTY_BLOCK or meta[1] != 8:
            note("METAINDEX", meta[0])  # TAB-10
        ends = (meta[0], end + meta[1] + 5, offset + size + 5)
        if gap or ends != (end, offset, len(data) - 48):
            note("TABLE_GAP", end)  # TAB-11
        first = self._block(0) if self._index else {}
        need(next(iter(first), None) == b"", "HDR-1", "BAD_HEADER", "no header")
        contents, start, stop, inside = first[b""]
        self.header = read_header(contents, start, stop, self.consumer, inside)
        self._big = self.header["endianness"] == 1

    def _block(self, i):
        """The entries of a data block: key -> contents, start and end of value, note."""
        if i in self._blocks:
            return self._blocks[i]
        top, offset, size = self._index[i]
        out, first, position, before = {}, None, 0, 0
        with at(f"block at {offset}"):
            contents, note = block_contents(self.data, offset, size, self._note)
            for key, start, stop, position, restarts in block_entries(contents, False, note):
                self._keys += len(key)
                self._check_listed(self._keys)
                if out and len(key) + stop - start >= 524288:
                    note("BLOCK_SIZE", position)  # TAB-9
                first = key if first is None else first
                before = position + 4 * restarts + 4 if out else 0
                out[key] = (contents, start, stop, note)
            if out:
                low = self._index[i - 1][0] if i else None
                need(low is None or first > low, "TAB-5", "BAD_ORDER", f"first key {first[:80]!r}")
                need(key <= top, "TAB-5", "BAD_ORDER", f"last key {key[:80]!r}")
            if not out or before >= 262144:
                note("BLOCK_SIZE", position)  # TAB-9: the block should have ended before
        self._blocks[i] = out
        return out

    # Look a name up

    def _place(self, key):
        i = bisect.bisect_left(self._index, key, key=lambda block: block[0])
        return self._block(i).get(key) if i < len(self._index) else None

    def _find(self, key, own=False):
        """The entry under a key, or None (TAB-12); own: the key is that of a slice."""
        if key not in self._entries:
            place = self._place(key)
            if place is None:
                return None
            with at(f"entry of {key[:80]!r}"):
                self._entries[key] = read_entry(*place, own)
        return self._entries[key]

    def _is_slice(self, key):
        """Whether some tensor's entry lists the key (KEY-6)."""
        name, _ = key_name(key) or (b"", 0)
        parent = self._find(name) if name and not self._is_slice(name) else None
        return bool(parent) and any(slice_key(name, extents) == key for extents in parent.slices)

    def entry(self, name):
        """The decoded entry of a tensor, and its slices' own (None where missing)."""
        own = self._is_slice(name)
        need(not own, "KEY-6", "TENSOR_NOT_FOUND", f"{name!r} is the key of a slice")
        entry = self._find(name, own) if name else None
        need(entry, "TAB-12", "TENSOR_NOT_FOUND", f"{name!r}")
        if not entry.slices:
            return entry, []
        if entry.offset or entry.size or entry.crc32c:
            entry.at[3]("SLICE_LOCATION", entry.at[1])  # ENT-7
        self._check_listed(len(name) * len(entry.slices))
        keys = (slice_key(name, extents) for extents in entry.slices)
        # TAB-13: a key above the limit is in no index.
        return entry, [self._find(k, True) if len(k) <= LIMITS["key"] else None for k in keys]

    def _check_listed(self, size):
        """The limit of decoded keys (TAB-13)."""
        need(size <= max(LIMITS["keys"], 16 * len(self.data)), "TAB-13", "LIMIT", "size of keys")

    # List

    def names(self):
        """Names of all tensors in key order, after checking every block and every entry."""
        with at(self.path):
            keys = []
            for i in range(len(self._index)):
                keys += self._block(i)
                need(len(keys) <= LIMITS["entries"], "TAB-13", "LIMIT", "number of entries")
            self._note_blocks()
            hidden, listed = set(), 0
            for key in sorted(keys[1:], key=len):  # a slice key is longer than the tensor's name
                entry = self._find(key, key in hidden)
                if entry.slices:
                    listed += len(key) * len(entry.slices)
                    self._check_listed(listed)
                    hidden.update(slice_key(key, extents) for extents in entry.slices)
                    self.entry(key)
            return [key for key in keys[1:] if key not in hidden]

    def _note_blocks(self):
        """Oddities that take two blocks: TAB-7, TAB-8 and the end of a block by TAB-9."""
        for i, (top, offset, _) in enumerate(self._index):
            block, after = self._block(i), self._block(i + 1) if i + 1 < len(self._index) else None
            if not block or after == {}:
                continue
            last = next(reversed(block))
            following = next(iter(after)) if after else None
            if top != (successor(last) if after is None else separator(last, following)):
                self._note("SEPARATOR", offset)
            if after:
                _, start, stop, _ = after[following]
                full = len(block[last][0]) >= 262144 or len(following) + stop - start >= 524288
                if not full:
                    self._note("BLOCK_SIZE", offset)

    # Read

    def read(self, name, box=None):
        """A tensor, or a box of it, (start, length) for each dimension, as a numpy array.

        Strings and variants are bytes in an object array; an unknown type gives the stored bytes.
        """
        with at(f"tensor {name!r}"):
            self.verified = True
            with at(self.path):
                entry, parts = self.entry(name)
                box = check_box(box, entry.shape)
                code = entry.dtype
                need(not no_value(code), "DTY-5", "BAD_DTYPE", f"data type {code}")
                whole = box is None and not entry.slices and not entry.compressed
                need(code in TYPES or whole, "DTY-6", "UNSUPPORTED", f"data type {code}")
                need(code != VARIANT or not self._big, "VAR-6", "UNSUPPORTED", "big-endian")
            if entry.slices:
                flat = self._read_slices(entry, parts, box or [(0, n) for n in entry.shape])
            else:
                flat = self._read_value(entry, box, entry.count if box is None else elements(box))
            return to_array(flat, code, entry.shape if box is None else [n for _, n in box])

    def _read_slices(self, entry, parts, box):
        for extents in entry.slices:
            check_extents(extents, entry.shape)
        check_overlaps(entry.slices)
        boxes = [slice_box(extents, entry.shape) for extents in entry.slices]
        covered = sum(elements(intersection(box, other)) for other in boxes)
        if covered != elements(box):
            need(False, "SLC-11", "BAD_SLICE", f"{missing_box(box, boxes)} is in no slice")
        pieces = []
        for own, place in zip(parts, boxes, strict=True):
            wanted = intersection(box, place)
            if not elements(wanted):
                continue
            with at(f"slice {place}"):
                need(own is not None, "SLC-7", "BAD_SLICE", "no entry under the slice key")
                need(own.dtype == entry.dtype, "SLC-8", "BAD_SLICE", f"data type {own.dtype}")
                need(own.shape == [n for _, n in place], "SLC-9", "BAD_SLICE", f"shape {own.shape}")
                inside = [
                    (s - origin, n) for (s, n), (origin, _) in zip(wanted, place, strict=True)
                ]
                own_box = check_box(inside, own.shape)
                pieces.append((wanted, self._read_value(own, own_box, elements(box))))
        size = TYPES[entry.dtype][1] or 1
        out = bytearray(elements(box) * size) if TYPES[entry.dtype][1] else [b""] * elements(box)
        for wanted, flat in pieces:
            inside = [(s - origin, n) for (s, n), (origin, _) in zip(wanted, box, strict=True)]
            pos = 0
            for first, n in runs([n for _, n in box], inside):
                out[first * size : (first + n) * size] = flat[pos : pos + n * size]
                pos += n * size
        return out

    def _read_value(self, entry, box, given):
        """The step *Value*: flat bytes, or a list of bytes, of a whole value or a box of it.

        given is the number of elements that the whole request gives (TAB-13).
        """
        with at(self.path):
            check_extension(entry, self._big, self.consumer)
            shards = self.header["num_shards"]
            need(0 <= entry.shard_id < shards, "ENT-3", "BAD_ENTRY", f"shard_id {entry.shard_id}")
            good = entry.offset >= 0 and entry.size >= 0 and entry.offset + entry.size < 1 << 63
            need(good, "ENT-4", "BAD_ENTRY", f"offset {entry.offset}, size {entry.size}")
            _, element, unit, _ = TYPES.get(entry.dtype, ("", None, 1, None))
            raw = entry.ext["raw_size"] if entry.compressed else entry.size
            if element:
                need(raw == entry.count * element, "ENT-5", "BAD_ENTRY", f"{raw} for {entry.shape}")
            if entry.compressed:
                most = LIMITS["expansion"] * (entry.size + entry.bytes)
                good = raw <= most and raw <= LIMITS["value"]
                need(good, "CMP-20", "LIMIT", f"{raw} bytes from {entry.size}")
            total = given * element if element else raw
            need(total <= LIMITS["value"], "TAB-13", "LIMIT", f"{total} bytes")
        path = data_name(self.prefix, entry.shard_id, shards)
        with at(f"{path} at {entry.offset}"):
            fd = self._file(entry.shard_id, path)
            length = os.fstat(fd).st_size
            good = entry.size == 0 or length >= entry.offset + entry.size
            need(good, "DAT-2", "TRUNCATED", f"{length} bytes")
            if element == 0:
                least = entry.count + 4 if entry.dtype == STRING else 5 * entry.count
                good = raw >= least or (entry.count == raw == 0)
                rule = "STR-2" if entry.dtype == STRING else "VAR-2"
                need(good, rule, "BAD_ENTRY", f"{raw} bytes")
            if box is not None and element:
                flat = self._read_part(fd, entry, box, raw, element)
                return flat if not self._big else swap(flat, unit)
            value, checksum = self._read_whole(fd, entry, raw), entry.crc32c
            if entry.compressed:
                checksum = mask(entry.ext.get("raw_crc32c", 0))
            if entry.dtype == STRING:
                flat = read_strings(value, entry.count, checksum, self._big)
            elif entry.dtype == VARIANT:
                flat = read_variants(value, entry.count, checksum)
            else:
                rule = "CMP-19" if entry.compressed else "DAT-6" if entry.size else "ENT-8"
                need(mask(crc32c(value)) == checksum, rule, "CHECKSUM", "value")
                return swap(value, unit) if self._big else value
            if box is None:
                return flat
            return [x for first, n in runs(entry.shape, box) for x in flat[first : first + n]]

    def _chunk(self, fd, entry, i, raw):
        """The raw bytes of chunk i, compared with its checksum (EXT-9, CMP-11)."""
        size, sizes = entry.ext["chunk_size"], entry.ext.get("sizes")
        if sizes is not None and "starts" not in entry.ext:
            entry.ext["starts"] = list(itertools.accumulate(sizes, initial=entry.offset))  # CMP-7
        n = min(size, raw - i * size)
        start, length = entry.offset + i * size, n
        if sizes is not None:
            start, length = entry.ext["starts"][i], sizes[i]
        chunk = pread(fd, start, length)
        need(len(chunk) == length, "DAT-2", "TRUNCATED", f"chunk {i}")
        stored = u32.unpack_from(entry.ext["chunk_crcs"], 4 * i)[0]
        with at(f"chunk {i} at {start}"):
            need(crc32c(chunk) == stored, "CMP-11" if sizes else "EXT-9", "CHECKSUM")
            return chunk if sizes is None else read_chunk(chunk, n, TYPES[entry.dtype][2])

    def _read_whole(self, fd, entry, raw):
        if entry.compressed:
            return b"".join(self._chunk(fd, entry, i, raw) for i in range(len(entry.ext["sizes"])))
        value = pread(fd, entry.offset, entry.size)
        need(len(value) == entry.size, "DAT-2", "TRUNCATED", "the file shrank")
        return value

    def _read_part(self, fd, entry, box, raw, element):
        """A box of a FIXED value: only the chunks that have a byte of it (EXT-9, CMP-21)."""
        out, size, held, chunk = bytearray(), entry.ext.get("chunk_size", 0), None, b""
        self.verified = self.verified and size > 0
        for first, n in runs(entry.shape, box):
            pos, end = first * element, (first + n) * element
            if not size:
                out += pread(fd, entry.offset + pos, end - pos)
            while size and pos < end:
                i = pos // size
                if i != held:
                    held, chunk = i, self._chunk(fd, entry, i, raw)
                stop = min(end, (i + 1) * size)
                out += chunk[pos - i * size : stop - i * size]
                pos = stop
        need(len(out) == elements(box) * element, "DAT-2", "TRUNCATED", "the file shrank")
        return bytes(out)

    def _file(self, shard, path):
        """The descriptor of a data file of this very generation (NAM-5, CMT-12)."""
        if shard not in self._files:
            fd = open_regular(path)
            if fd is not None:
                self._files[shard] = fd
            try:
                now = os.stat(self.path)
                known = (self._stat.st_dev, self._stat.st_ino, len(self.data))
                same = (now.st_dev, now.st_ino, now.st_size) == known
                if same and now.st_ctime_ns != self._stat.st_ctime_ns:
                    with open(self.path, "rb") as file:
                        file.seek(-48, os.SEEK_END)
                        same = file.read() == self.data[-48:]
            except OSError:
                same = False
            need(same, "CMT-12", "GENERATION_GONE", "another index is in force")
            need(fd is not None, "NAM-5", "SHARD_MISSING", path)
        return self._files[shard]

    # Metadata and objects

    def _one_string(self, name, rule):
        entry, _ = self.entry(name)
        value = self.read(name)
        need(entry.dtype == STRING and not entry.shape, rule, "BAD_ENTRY", "no scalar string")
        return value.item()

    @property
    def metadata(self):
        name = b"_CKPTFMT_METADATA"
        return parse_metadata(self._one_string(name, "EXT-7")) if self._find(name) else {}

    def objects(self):
        """The nodes of the object graph; None without one."""
        name = b"_CHECKPOINTABLE_OBJECT_GRAPH"
        if not self._find(name):
            return None
        with at(self.prefix):
            return decode_graph(self._one_string(name, "OBJ-1"))

    def close(self):
        for fd in self._files.values():
            os.close(fd)
        self._files = {}

    def __del__(self):
        self.close() if "_files" in self.__dict__ else None


def check_box(box, shape):
    """None for the whole of a tensor; a box must lie in it."""
    if box is None:
        return None
    box = [(int(start), int(length)) for start, length in box]
    good = len(box) == len(shape) and all(
        s >= 0 <= n and s + n <= size for (s, n), size in zip(box, shape, strict=True)
    )
    need(good, "TXT-6", "ARGUMENT", f"box {box} of {shape}")
    return None if box == [(0, size) for size in shape] else box


def read_all(prefix):
    bundle = Bundle(prefix)
    return {name: bundle.read(name) for name in bundle.names()}


MORE = ("write", "merge", "Piece", "parse_slice_text", "print_slice_text", "decode_slice_key")


def __getattr__(name):
    """What reference_writer.py has."""
    if name not in MORE:
        raise AttributeError(name)
    return getattr(importlib.import_module("reference_writer"), name)


def main(path):
    """Prints a listing; returns the exit status."""
    try:
        bundle = Bundle(path.removesuffix(".index"))
        print(bundle.header)
        for name in bundle.names():
            entry, _ = bundle.entry(name)
            kind = TYPES.get(entry.dtype, (entry.dtype,))[0]
            try:
                bundle.read(name)
                state = "ok"
            except Violation as violation:
                state = str(violation)
            shown = name.decode("utf-8", "backslashreplace")
            print(shown, kind, entry.shape, len(entry.slices) or "whole", state)
        for oddity, offset in bundle.notes:
            print(f"odd: {oddity} at {offset}")
    except Violation as violation:
        print(violation, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
