# SPDX-License-Identifier: Apache-2.0
"""Read every tensor of a TensorFlow V2 checkpoint, with the standard library and numpy only.

    python examples/read_v2.py PREFIX

This is the program of spec/quickstart.md, which names its functions. It refuses big-endian
checkpoints, variant tensors and protobuf groups. Damaged bytes raise ValueError; a missing file
raises FileNotFoundError. A reader of files that an attacker may have made also needs limits
(section "Limits" of spec/format.md).
"""

import sys
from collections import defaultdict

import numpy as np

# The numpy types of data type codes 1 to 19 and 22 on; O is a string. numpy has no bfloat16 (14),
# no quantized types (11, 12, 13, 15, 16) and no type from 24 on: those are integers of these bits.
TYPES = "<f4 <f8 <i4 u1 <i2 i1 O <c8 <i8 ? i1 u1 <i4 <u2 <i2 <u2 <u2 <c16 <f2 <u4 <u8" + 10 * " u1"
DTYPES = dict(zip([*range(1, 20), *range(22, 34)], TYPES.split(), strict=True))

CRC_TABLE = list(range(256))
for _ in range(8):
    CRC_TABLE = [crc >> 1 ^ 0x82F63B78 * (crc & 1) for crc in CRC_TABLE]


def check(condition, message):
    if not condition:
        raise ValueError(message)


def crc32c(data, crc=0):
    """Return the CRC-32C of `data`; `crc` is the checksum of the bytes before it."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(crc):
    """Return the four bytes that store the checksum `crc`."""
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) % (1 << 32)).to_bytes(4, "little")


class Cursor(bytearray):
    """Bytes that are taken from the front. Taking more than are left is a ValueError."""

    def take(self, count):
        check(0 <= count <= len(self), "the bytes end too early")
        taken, self[:count] = bytes(self[:count]), b""
        return taken

    def varint(self, longest=10):
        """Take an integer that is stored in groups of 7 bits, the lowest first."""
        check(longest > 0, "a varint has more than ten bytes")
        byte = self.take(1)[0]
        return byte if byte < 0x80 else byte - 0x80 + (self.varint(longest - 1) << 7)


def unsnappy(stored):
    """Return the decoded bytes of a Snappy stream."""
    stream, out = Cursor(stored), bytearray()
    size = stream.varint()
    while stream:
        tag = stream.take(1)[0]
        kind, count = tag & 3, (4 + (tag >> 2 & 7) if tag & 3 == 1 else 1 + (tag >> 2))
        extra = int.from_bytes(stream.take((max(0, count - 60), 1, 2, 4)[kind]), "little")
        if kind == 0:  # a literal; those of more than 60 bytes have their size behind the tag
            out += stream.take(count if count <= 60 else extra + 1)
            continue
        distance = extra + (tag >> 5) * 256 if kind == 1 else extra
        check(1 <= distance <= len(out), "a Snappy copy begins before the output")
        out += (out[-distance:][:count] * count)[:count]  # a copy may repeat its own bytes
    check(len(out) == size, "a Snappy stream does not have the size that it declares")
    return out


def records(file, handle):
    """Yield the key and value of each record in the block to which a handle points."""
    offset, size = handle.varint(), handle.varint()
    block = Cursor(file[offset : offset + size + 5])
    stored, checksum = block.take(size + 1), block.take(4)  # the last byte of stored is the type
    check(checksum == masked(crc32c(stored)) and stored[-1] <= 1, "a block is damaged or unknown")
    contents = unsnappy(stored[:-1]) if stored[-1] == 1 else stored[:-1]
    restarts = int.from_bytes(contents[-4:], "little")
    check(4 + 4 * restarts <= len(contents), "a block is shorter than its restart points")
    body, key = Cursor(contents[: -4 - 4 * restarts] if restarts else b""), b""
    while body:
        shared, unshared, value_size = body.varint(), body.varint(), body.varint()
        check(shared <= len(key), "a key shares more bytes than the key before it has")
        key = key[:shared] + body.take(unshared)
        yield key, body.take(value_size)


def fields(message):
    """Return the values of each field of a protobuf message, a list by tag."""
    cursor, found = Cursor(message), defaultdict(list)
    while cursor:
        tag = cursor.varint()
        check(tag >> 3 and tag & 7 in (0, 1, 2, 5), "a field has an invalid tag")
        size = {0: 0, 1: 8, 5: 4}[tag & 7] if tag & 7 != 2 else cursor.varint()
        found[tag].append(cursor.take(size) if tag & 7 else cursor.varint())
    return found


def number(found, tag, default=0):
    """Return the integer of a field, an int64; of several the last one counts."""
    return ([default, *found[tag]][-1] + (1 << 63)) % (1 << 64) - (1 << 63)


def read_index(prefix):
    """Return the number of data files, and the entries of the index by key."""
    file = np.fromfile(prefix + ".index", "u1").tobytes()
    check(file[-8:] == bytes.fromhex("57fb808b247547db"), "the magic number differs")
    footer, blocks = Cursor(file[-48:-8]), file[:-48]
    _, _ = footer.varint(), footer.varint()  # the handle of the metaindex block, which is empty
    table = [one for _, value in records(blocks, footer) for one in records(blocks, Cursor(value))]
    check([key for key, _ in table] == sorted(dict(table)), "the keys are out of order")
    entries = {key: fields(message) for key, message in table}
    header = entries.pop(b"", fields(b""))
    check(number(header, 0x08) >= 1 and not number(header, 0x10), "no header, or big-endian values")
    check(number(fields(b"".join(header[0x1A])), 0x10) <= 1, "the checkpoint needs a later reader")
    return number(header, 0x08), entries


def shape_of(entry):
    return [number(fields(dim), 0x08) for dim in fields(b"".join(entry[0x12]))[0x12]]


def read_value(prefix, shards, entry):
    """Return the elements of an entry that has no slices."""
    code, shard, offset, size = (number(entry, tag) for tag in (0x08, 0x18, 0x20, 0x28))
    shape, checksum = shape_of(entry), [bytes(4), *entry[0x35]][-1]
    check(code in DTYPES and 0 <= shard < shards and offset >= 0, "unknown data type or place")
    path = f"{prefix}.data-{shard:05}-of-{shards:05}"
    value = np.memmap(path, "u1", "r")[offset : offset + size].tobytes() if size else b""
    check(len(value) == size, "the data file ends before the value")
    count = np.prod(shape, dtype=object)
    if DTYPES[code] == "O":
        return np.array(read_strings(Cursor(value), count, checksum), object).reshape(shape)
    check(size == count * np.dtype(DTYPES[code]).itemsize, "a value does not have its shape's size")
    check(checksum == masked(crc32c(value)), "the checksum of a value differs")
    return np.frombuffer(value, DTYPES[code]).reshape(shape)


def read_strings(cursor, count, checksum):
    """Return the elements of a string value, a Cursor."""
    sizes = [cursor.varint() for _ in range(count)]
    crc = crc32c(b"".join(size.to_bytes(4 if size < 1 << 32 else 8, "little") for size in sizes))
    check(checksum == masked(crc32c(cursor, crc)), "the checksum of a string value differs")
    check(not (count or cursor) or cursor.take(4) == masked(crc), "the sizes' checksum differs")
    check(sum(sizes) == len(cursor), "the sizes of strings do not add up")
    return [cursor.take(size) for size in sizes]


def slice_key(name, extents):
    """Return the key of the entry of one slice of the tensor `name`."""
    escaped = (bytes([byte, 255 - byte] if byte in (0, 255) else [byte]) for byte in name)
    key = b"\0" + b"".join(escaped) + b"\0\1" + bytes([1, len(extents)])
    for value in sum(extents, ()):  # start and length of each dimension
        size = 1 + max(value, ~value).bit_length() // 7
        key += (value % 256**size ^ (2**size - 1) << 7 * size).to_bytes(size, "big")
    return key


def assemble(name, entry, values):
    """Return the elements of a partitioned tensor. Its slices are removed from `values`."""
    shape, dtype = shape_of(entry), DTYPES.get(number(entry, 0x08), "V")
    check(np.prod(shape, dtype=object) <= sum(map(np.size, values.values())), "too few slices")
    whole, filled = np.empty(shape, dtype), np.zeros(shape, "i4")
    for one in entry[0x3A]:
        extents = [(number(e, 0x08), number(e, 0x10, -1)) for e in map(fields, fields(one)[0x0A])]
        check(extents and all(a >= 0 and n >= -1 for a, n in extents), "an extent is invalid")
        part, pairs = values.pop(slice_key(name, extents), None), zip(extents, shape, strict=True)
        check(part is not None and part.dtype == dtype, "a slice is missing, or of another type")
        box = tuple(slice(a, a + (size if n == -1 else n)) for (a, n), size in pairs)
        check(part.shape == whole[box].shape, "a slice does not have the shape of its extents")
        whole[box], filled[box] = part, filled[box] + 1
    check((filled == 1).all(), "slices overlap or leave elements out")
    return whole


def load(prefix):
    """Return the tensors of a checkpoint, a dict of arrays by name."""
    shards, entries = read_index(prefix)
    values = {key: read_value(prefix, shards, e) for key, e in entries.items() if not e[0x3A]}
    for name in sorted(entries.keys() - values.keys()):
        values[name] = assemble(name, entries[name], values)
    return values


if __name__ == "__main__":
    for name, tensor in load(sys.argv[1]).items():
        print(name.decode(errors="backslashreplace"), tensor.dtype, tensor.shape)
