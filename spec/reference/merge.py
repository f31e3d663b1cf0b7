# SPDX-License-Identifier: Apache-2.0
"""Section 22: merge."""

import os
import re
import shutil

from .bundle import Bundle
from .entries import ENTRY, HEADER, VERSION
from .index import data_name
from .messages import decode, one_field, put_field
from .rules import Violation, mask, need, put_varint, silent, u32
from .slices import SLICE, check_overlaps
from .writer import commit, put_entry, put_file, put_header, put_table

CANONICAL = ENTRY | {7: ("slices", SLICE, True)}
CANONICAL.pop(100)  # an unknown field here (MRG-7)


def rewrite_fields(data, pos, end):
    """Fields with tags, sizes and varints in the fewest bytes, groups kept."""
    out = b""
    while pos < end:
        number, wire, value, pos = one_field(data, pos, end, silent, group=True)
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
    return data, decode(data, start, stop, HEADER, silent).get("version", {})


def same_version(data, version):
    """What MRG-2 and MRG-15 compare."""
    rest = {
        name: value for name, value in version.items() if name not in ("producer", "min_consumer")
    }
    return rewrite(data, rest, VERSION)


def merge(prefixes, destination, *, allow_missing=False):
    """Merges bundles into one under a prefix without files; the inputs stay."""
    prefixes, destination = [os.fspath(p) for p in prefixes], os.fspath(destination)
    distinct = {os.path.abspath(p) for p in [*prefixes, destination]}
    need(len(distinct) == len(prefixes) + 1, "MRG-10", "ARGUMENT", "a prefix twice")
    bundles = []
    for prefix in prefixes:
        try:
            bundles.append(Bundle(prefix))
        except Violation as violation:
            if not (allow_missing and violation.rule == "NAM-2"):
                raise
    need(bundles, "MRG-1", "CHECKPOINT_NOT_FOUND", "no input")
    versions = [version_of(bundle) for bundle in bundles]
    data, version = versions[0]
    highest = {
        name: max(v.get(name, 0) for _, v in versions) for name in ("producer", "min_consumer")
    }
    compare = (
        same_version if highest["min_consumer"] >= 2 else lambda d, v: rewrite(d, v, VERSION)
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
            message = decode(source, start, stop, CANONICAL, silent)
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
            texts = [rewrite(source, item, SLICE) for item in message["slices"]]
            earlier.append((texts, entry.slices))
    version |= highest if highest["min_consumer"] >= 2 else {}
    version = rewrite(data, version, VERSION)
    table = [(b"", put_header(max(len(ids), 1), version, bundles[0].header["endianness"]))]
    for key, (message, entry, source, *more) in sorted(merged.items(), key=lambda item: item[0]):
        if more:
            slices = [*entry.slices, *(x for _, later in more for x in later)]
            check_overlaps(slices, "MRG-5", "MERGE_CONFLICT")
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
    path = data_name(bundle.prefix, shard, bundle.header["num_shards"])
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
