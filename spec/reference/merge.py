# SPDX-License-Identifier: Apache-2.0
"""Section 4 of lifecycle.md: merge."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .bundle import Bundle, Path
from .entries import ENTRY, HEADER, STRING, VERSION, Entry
from .messages import Message, Schema, decode, one_field, put_field
from .rules import Violation, mask, need, put_varint, silent, u32
from .slices import SLICE, Extents, check_overlaps
from .values import check_place
from .writer import Maker, commit, put_entry, put_file, put_header, put_table

# An unknown field here is the extension, too (MRG-7).
CANONICAL: Schema = {n: one for n, one in ENTRY.items() if n != 100} | {7: ("slices", SLICE, True)}


def rewrite_fields(data: bytes, pos: int, end: int) -> bytes:
    """The fields of a group, with tags, sizes and varints in the fewest bytes."""
    out = b""
    while pos < end:
        number, wire, value, pos = one_field(data, pos, end, silent, group=True)
        out += put_varint(number << 3 | wire)
        out += put_payload(data, wire, value) if wire not in (3, 4) else b""
    return out


def put_payload(data: bytes, wire: int, value: Any, number: int = 0) -> bytes:
    if wire == 0:
        return put_varint(value)
    if wire in (1, 5):
        return bytes(value.to_bytes(8 if wire == 1 else 4, "little"))
    if wire == 2:
        return put_varint(value[1] - value[0]) + data[slice(*value)]
    return rewrite_fields(data, *value) + put_varint(number << 3 | 4)


def rewrite(data: bytes, message: Message, schema: Schema) -> bytes:
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


def is_placeholder(name: bytes, entry: Entry) -> bool:  # EXT-8
    empty = (entry.dtype, entry.shape) == (1, [0]) and not (entry.size or entry.slices)
    return empty and bool(re.fullmatch(rb"_CKPTFMT_SHARD_[0-9]+", name))


def put_versions(bundles: Sequence[Bundle]) -> bytes:
    """The one version message of all inputs (MRG-2, MRG-15)."""
    headers = [bundle.block(0)[b""] for bundle in bundles]
    versions = [decode(*one[:3], HEADER, silent).get("version", {}) for one in headers]
    numbers = ("producer", "min_consumer")
    highest = {name: max(version.get(name, 0) for version in versions) for name in numbers}
    if highest["min_consumer"] >= 2:  # MRG-15
        versions = [version | highest for version in versions]
    texts = [
        rewrite(one.contents, version, VERSION)
        for one, version in zip(headers, versions, strict=True)
    ]
    same = len(set(texts)) == len({bundle.big for bundle in bundles}) == 1
    need(same, "MRG-2", "MERGE_CONFLICT", "headers differ")
    return texts[0]


@dataclass
class Merged:
    """An entry of the result: that of its first input, with the slices of later ones."""

    entry: Entry
    message: Message
    texts: list[bytes] = field(default_factory=list)  # of those slices
    slices: list[Extents] = field(default_factory=list)

    def stored(self) -> bytes:
        if self.slices:
            check_overlaps([*self.entry.slices, *self.slices], "MRG-5", "MERGE_CONFLICT")
        source = self.entry.at.contents
        unknown = {"": self.message.pop("", [])}
        later = b"".join(put_field(7, text) for text in self.texts)
        return rewrite(source, self.message, CANONICAL) + later + rewrite(source, unknown, {})


def merge(prefixes: Iterable[Path], destination: Path, *, allow_missing: bool = False) -> None:
    """Merges bundles into one under a prefix without files; the inputs stay."""
    inputs, target = [os.fspath(one) for one in prefixes], os.fspath(destination)
    distinct = {os.path.abspath(one) for one in [*inputs, target]}
    need(len(distinct) == len(inputs) + 1, "MRG-10", "ARGUMENT", "a prefix twice")
    bundles: list[Bundle] = []
    for prefix in inputs:
        try:
            bundles.append(Bundle(prefix))
        except Violation as violation:
            if not (allow_missing and violation.rule == "NAM-2"):
                raise
    need(bundles, "MRG-1", "CHECKPOINT_NOT_FOUND", "no input")
    version = put_versions(bundles)
    merged: dict[bytes, Merged] = {}
    ids: dict[tuple[int, int], int] = {}
    for number, bundle in enumerate(bundles):
        bundle.names()
        for key in bundle.keys()[1:]:
            entry = bundle.entries[key]
            if is_placeholder(key, entry):
                continue
            check_place(entry, bundle.shards, not entry.slices)
            message = decode(*entry.at[:3], CANONICAL, silent)
            if key in merged:
                join(key, merged[key], entry, message)
                continue
            message["shard_id"] = ids.setdefault((number, entry.shard_id), len(ids))  # MRG-6
            merged[key] = Merged(entry, message)
    table = [(key, one.stored()) for key, one in merged.items()]
    makers = [linker(bundles[number], shard) for number, shard in ids]
    if not makers:  # MRG-8: a placeholder with an empty file
        table.append((b"_CKPTFMT_SHARD_0", put_entry(1, [0], crc=mask(0))))
        makers = [lambda path: put_file(path, b"")]
    table.append((b"", put_header(len(makers), version, int(bundles[0].big))))
    commit(target, makers, put_table(sorted(table)))


def join(key: bytes, earlier: Merged, entry: Entry, message: Message) -> None:
    """A key of two inputs: MRG-3, MRG-4, MRG-16."""
    one, other = earlier.entry, entry
    strings = all(e.dtype == STRING and not e.shape for e in (one, other))
    if key == b"_CKPTFMT_METADATA" and strings:
        same = (one.size, one.crc32c) == (other.size, other.crc32c) and not other.slices
        need(same, "MRG-16", "MERGE_CONFLICT", "metadata differ")
        return
    need(one.slices and other.slices, "MRG-3", "MERGE_CONFLICT", f"{key!r} twice")
    same = (one.dtype, one.shape) == (other.dtype, other.shape)
    need(same, "MRG-4", "MERGE_CONFLICT", f"{key!r}: data types or shapes differ")
    earlier.texts += [rewrite(other.at.contents, item, SLICE) for item in message["slices"]]
    earlier.slices += other.slices


def linker(bundle: Bundle, shard: int) -> Maker:
    """Puts a data file under another name (MRG-12)."""
    owners = [entry for entry in bundle.entries.values() if entry.shard_id == shard]
    for entry in owners:
        bundle.data_file(entry)
    path = bundle.data_path(owners[0])

    def make(name: str) -> None:
        try:
            os.link(path, name)
        except OSError:
            shutil.copyfile(path, name)

    return make
