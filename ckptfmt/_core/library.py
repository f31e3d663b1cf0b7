# SPDX-License-Identifier: Apache-2.0
"""Dtypes, checksums, counters and slice texts: calls that need no checkpoint."""

from __future__ import annotations

from typing import Any, NamedTuple

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.border import RANK_MAX, check, fields_of, text


class DtypeInfo(NamedTuple):
    """One row of the dtype table: sizes in bytes an element."""

    name: str
    code: int
    storage: int
    size: int
    swap_size: int
    used_bits: int


DtypeInfo.__module__ = "ckptfmt.types"


def dtype_table() -> list[DtypeInfo]:
    """Return the dtypes that this version knows, in ascending code."""
    table: list[DtypeInfo] = []
    while (info := lib.ckptfmt_dtype_at(len(table))) != ffi.NULL:
        sizes = (info.size, info.swap_size, info.used_bits)
        table.append(DtypeInfo(text(info.name), info.code, info.storage, *sizes))
    return table


def crc32c(data: Any, crc: int = 0) -> int:
    """CRC-32C of the bytes of a contiguous buffer, continuing `crc`."""
    with ffi.from_buffer("uint8_t[]", data) as pointer:
        return int(lib.ckptfmt_crc32c(crc, pointer, len(pointer)))


def counters() -> dict[str, int]:
    """Return the counts of what this process asked of the operating system so far."""
    values = ffi.new("ckptfmt_counters *")
    lib.ckptfmt_counters_get(values)
    return fields_of(values)


def parse_spec(spec: bytes) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Dims, starts and lengths (-1: a full dimension) of a shape_and_slice text; None for the whole
    tensor."""
    rank = ffi.new("int32_t *")
    numbers = ffi.new("int64_t[]", 3 * RANK_MAX)
    dims, starts, lengths = numbers, numbers + RANK_MAX, numbers + 2 * RANK_MAX
    error = ffi.new("ckptfmt_error *")
    with ffi.from_buffer("uint8_t[]", spec) as pointer:
        check(lib.ckptfmt_spec_parse(pointer, len(spec), rank, dims, starts, lengths, error), error)
    if rank[0] < 0:
        return None
    return (
        tuple(ffi.unpack(dims, rank[0])),
        tuple(ffi.unpack(starts, rank[0])),
        tuple(ffi.unpack(lengths, rank[0])),
    )
