# SPDX-License-Identifier: Apache-2.0
"""Damaged indexes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.border import check, fields_of, limits_of

REGION_DATA = lib.CKPTFMT_REGION_DATA
REGION_INDEX = lib.CKPTFMT_REGION_INDEX
REGION_FOOTER = lib.CKPTFMT_REGION_FOOTER
SALVAGE_REPAIRED = lib.CKPTFMT_SALVAGE_REPAIRED
SALVAGE_LIKELY = lib.CKPTFMT_SALVAGE_LIKELY
SALVAGE_LOST = lib.CKPTFMT_SALVAGE_LOST


class Damage(NamedTuple):
    """`ckptfmt_damage`."""

    offset: int
    size: int
    changed: int
    entry_count: int
    kind: int
    outcome: int


class Salvage(NamedTuple):
    """`ckptfmt_salvage`; `doubtful` is None where it has no entry."""

    sound: bytes
    doubtful: bytes | None
    damages: list[Damage]
    header_lost: bool


def salvage_index(
    data: Any, num_shards: int = 0, limits: Mapping[str, int] | None = None
) -> Salvage:
    """Return what is sound of the bytes of an index file. `num_shards` is needed if its header is
    lost."""
    out, error = ffi.new("ckptfmt_salvage **"), ffi.new("ckptfmt_error *")
    values = limits_of(limits)
    with ffi.from_buffer("uint8_t[]", data) as raw:
        status = lib.ckptfmt_index_salvage(raw, len(raw), num_shards, values, out, error)
    check(status, error)
    found = out[0]
    try:
        return Salvage(
            ffi.buffer(found.sound, found.sound_size)[:],
            ffi.buffer(found.doubtful, found.doubtful_size)[:] if found.doubtful_size else None,
            [Damage(**fields_of(found.damages + i)) for i in range(found.damage_count)],
            bool(found.header_lost),
        )
    finally:
        lib.ckptfmt_salvage_free(found)
