# SPDX-License-Identifier: Apache-2.0
"""The procedure *verify* of section 4; what is checked after a failure: conformance.md."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from .bundle import Attempt, Bundle, Path, check_part
from .entries import TYPES, VARIANT, Entry, no_value
from .rules import Violation, at, mask, need
from .slices import check_extents, decode_slice_key, slice_box
from .values import (
    check_combined,
    check_elements,
    check_extension,
    check_flags,
    check_place,
    check_raw_size,
)


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
    stored: list[tuple[str, Entry, bool]] = []  # where, the entry, whether its bytes are checked
    for name in attempt(bundle.names, attempt) or ():
        entry, parts = attempt(bundle.entry, name) or (None, [])
        if entry is None:
            continue
        where = f"tensor {name!r}"
        attempt(check_name, name, entry)
        placed = check_entry(bundle, entry, attempt, own_bytes=not entry.slices)
        own = [entry] if placed and not entry.slices else []
        if entry.slices:
            sound = [holds(attempt, check_extents, one, entry.shape) for one in entry.slices]
            if all(sound):
                attempt(bundle.wanted, entry, parts, [(0, n) for n in entry.shape])
            for extents, part, inside in zip(entry.slices, parts, sound, strict=True):
                if (part is None or check_entry(bundle, part, attempt)) and holds(
                    attempt, check_part, entry, part, slice_box(extents, entry.shape)
                ):
                    own += [part] if part and inside else []
        found = [check_described(bundle, one, attempt) for one in own]
        stored += [(where, *one) for one in found if one]
    ends: dict[int, int] = {}  # of the values so far, by shard
    for owner, entry, bytes_too in sorted(stored, key=lambda one: (one[1].offset, one[1].size)):
        where = owner
        before = ends.get(entry.shard_id, 0)
        fd = attempt(bundle.data_file, entry)
        if entry.size:
            ends[entry.shard_id] = max(before, entry.offset + entry.size)
        if fd is None or not entry.size:
            continue
        attempt(need, before <= entry.offset, "DAT-8", "BAD_ENTRY", f"overlap at {entry.offset}")
        if bytes_too:
            check_bytes(bundle, fd, entry, attempt)
    bundle.close()
    return list(problems.values()), sorted({deviation for deviation, _ in bundle.deviations})


def holds(attempt: Attempt, call: Any, *arguments: Any) -> bool:
    """Whether the attempt succeeds."""

    def succeed() -> bool:
        call(*arguments)
        return True

    return attempt(succeed) is not None


def silently(call: Any, *arguments: Any) -> Any:
    """An attempt whose failure is reported elsewhere."""
    with contextlib.suppress(Violation):
        return call(*arguments)
    return None


def check_name(name: bytes, entry: Entry) -> None:
    """KEY-7, of a tensor."""
    if entry.slices:
        return
    try:
        decode_slice_key(name)
    except Violation:
        return
    need(False, "KEY-7", "BAD_SLICE", "the key of a slice that no tensor lists")


def check_entry(bundle: Bundle, entry: Entry, attempt: Attempt, own_bytes: bool = True) -> bool:
    """What an entry says for itself; whether its value has a place (ENT-3, ENT-4)."""
    attempt(need, not no_value(entry.dtype), "DTY-5", "BAD_DTYPE", f"data type {entry.dtype}")
    if own_bytes:
        # CMP-9 comes with the value; a negative size breaks ENT-4.
        whole = not bundle.big if entry.compressed else entry.size >= 0
        if whole:
            attempt(check_extension, entry, bundle.big, bundle.consumer)
        else:
            attempt(check_flags, entry, bundle.consumer)
    else:
        attempt(check_unowned, entry, bundle.consumer)
    return holds(attempt, check_place, entry, bundle.shards, own_bytes)


def check_unowned(entry: Entry, consumer: int) -> None:
    """The extension of a partitioned tensor's own entry (EXT-5)."""
    check_flags(entry, consumer)
    chunks = entry.compressed or entry.ext.get("chunk_size") or entry.ext.get("chunk_crcs")
    need(not chunks, "EXT-5", "BAD_ENTRY", "chunks in an entry that owns no bytes")


def check_described(bundle: Bundle, entry: Entry, attempt: Attempt) -> tuple[Entry, bool] | None:
    """What the entry says of its value: the entry to go on with, and whether its bytes are checked.

    None: not even the place of the value is.
    """
    usable = holds(silently, check_extension, entry, bundle.big, bundle.consumer)
    if not holds(silently, check_flags, entry, bundle.consumer):
        return entry, False
    if entry.compressed and bundle.big:
        rule = "VAR-6" if entry.dtype == VARIANT else "CMP-9"
        attempt(need, False, rule, "UNSUPPORTED", "compressed in a big-endian bundle")
    if not usable and entry.compressed:
        return entry, False
    if not holds(attempt, check_sizes, bundle, entry):
        return None
    if not usable:
        entry = replace(entry, ext={})
    if no_value(entry.dtype):
        return entry, False
    attempt(check_combined, entry)
    return entry, True


def check_sizes(bundle: Bundle, entry: Entry) -> None:
    """The sizes in the entry, and the checksum of a value without bytes."""
    need(entry.dtype != VARIANT or not bundle.big, "VAR-6", "UNSUPPORTED", "big-endian")
    check_elements(entry)
    check_raw_size(entry)
    need(entry.size or entry.crc32c == mask(0), "ENT-8", "CHECKSUM", "size 0")


def check_bytes(bundle: Bundle, fd: int, entry: Entry, attempt: Attempt) -> None:
    """The bytes of a value: its chunks before they are decoded, or if the value is right."""

    def value() -> bool:
        return holds(attempt, bundle.value, entry, None, entry.count)

    if entry.compressed or value():
        numbers = range(len(entry.ext.get("chunk_crcs", b"")) // 4)
        sound = [holds(attempt, bundle.stored_chunk, fd, entry, i) for i in numbers]
        if entry.compressed and all(sound) and entry.dtype in TYPES:  # DTY-6: not decoded
            value()
