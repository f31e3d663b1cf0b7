# SPDX-License-Identifier: Apache-2.0
"""The procedure *verify* of section 4: all that is there is read and compared with what is told."""

from __future__ import annotations

from typing import Any

from .bundle import Attempt, Bundle, Path, check_part
from .entries import TYPES, VARIANT, Entry, no_value
from .rules import Violation, at, need
from .slices import decode_slice_key, slice_box
from .values import check_combined, check_flags, check_place, check_value


def verify(prefix: Path, consumer: int = 2) -> tuple[list[Violation], list[str]]:
    """What is wrong with a checkpoint, each thing once, and the deviations that it has.

    What section 4 counts as neither is left out: files and bytes that no entry names.
    """
    problems: dict[str, Violation] = {}
    where = ""

    def attempt(call: Any, *arguments: Any) -> Any:
        try:
            with at(where):
                return call(*arguments)
        except Violation as violation:
            problems[str(violation)] = violation
            return None

    bundle: Bundle | None = attempt(Bundle, prefix, consumer)
    if bundle is None:
        return list(problems.values()), []
    owners: list[Entry] = []
    for name in attempt(bundle.names, attempt) or ():
        entry, parts = attempt(bundle.entry, name) or (None, [])
        if entry is not None:
            where = f"tensor {name!r}"
            attempt(check_tensor, bundle, name, entry)
            if entry.slices:
                attempt(bundle.wanted, entry, parts, [(0, n) for n in entry.shape])
            for extents, part in zip(entry.slices, parts, strict=True):
                attempt(check_part, entry, part, slice_box(extents, entry.shape))
            stored = [part for part in parts if part] if entry.slices else [entry]
            for one in stored:
                attempt(check_stored, bundle, one, attempt)
            owners += [one for one in stored if one.offset >= 0 < one.size]
        where = ""
    ends: dict[int, int] = {}  # of the values so far, by shard
    for entry in sorted(owners, key=lambda one: one.offset):
        before = ends.get(entry.shard_id, 0)
        attempt(need, before <= entry.offset, "DAT-8", "BAD_ENTRY", f"overlap at {entry.offset}")
        ends[entry.shard_id] = max(before, entry.offset + entry.size)
    bundle.close()
    return list(problems.values()), sorted({deviation for deviation, _ in bundle.notes})


def check_tensor(bundle: Bundle, name: bytes, entry: Entry) -> None:
    """What reading does not look at in the entry under a tensor's name."""
    check_place(entry, bundle.shards, own_bytes=False)
    if entry.slices:  # ENT-7: its offset and size are ignored
        check_flags(entry, bundle.consumer)
        chunks = entry.compressed or entry.ext.get("chunk_size") or entry.ext.get("chunk_crcs")
        need(not chunks, "EXT-5", "BAD_ENTRY", "chunks in an entry that owns no bytes")
        return
    check_place(entry, bundle.shards)
    try:
        decode_slice_key(name)
    except Violation:
        return
    need(False, "KEY-7", "BAD_SLICE", "the key of a slice that no tensor lists")


def check_stored(bundle: Bundle, entry: Entry, attempt: Attempt) -> None:
    """A stored value, and the checksums of its chunks."""
    need(not no_value(entry.dtype), "DTY-5", "BAD_DTYPE", f"data type {entry.dtype}")
    need(entry.dtype != VARIANT or not bundle.big, "VAR-6", "UNSUPPORTED", "big-endian")
    check_value(entry, bundle.shards, bundle.big, bundle.consumer)
    fd = bundle.data_file(entry)
    attempt(check_combined, entry)
    if entry.dtype in TYPES or not entry.compressed:  # DTY-6: else only the stored bytes
        bundle.value(entry, None, entry.count)
    for i in range(len(entry.ext.get("chunk_crcs", b"")) // 4):
        attempt(bundle.stored_chunk, fd, entry, i)
