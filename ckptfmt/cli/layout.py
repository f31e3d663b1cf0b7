# SPDX-License-Identifier: Apache-2.0
"""The regions of the files of a checkpoint; every byte is in one. Nothing is printed here.

Index file: the regions of `Reader.regions`. Data files: values in order of their offsets, and
between them padding (zero bytes) or gaps (bytes that no entry names).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ckptfmt import CkptfmtError, Finding, Reader
from ckptfmt.cli.contents import WHOLE, Contents, DataFile, Tensors, Value, finding_of
from ckptfmt.names import index_name
from ckptfmt.places import pieces_of

__all__ = ["FileLayout", "Region", "layout_of"]

# As ckptfmt_region_kind in ckptfmt.h.
_KINDS = {1: "data block", 2: "metaindex block", 3: "index block", 4: "footer", 5: "gap"}
_COMPRESSIONS = {-1: None, 0: "raw", 1: "snappy"}
# A longer gap is reported as a gap without reading it.
PADDING_MAX = 16 << 20
READ_BYTES = 1 << 20


class Region(NamedTuple):
    """One region of a file.

    Attributes:
        kind: of the index "data block", "metaindex block", "index block", "footer" or "gap"; of a
            data file "value", "padding" (zero bytes) or "gap"; "unread" if it could not be read.
        entries, compression, crc32c, crc_good: of a block; a value has only crc32c.
        row, part: of a value: its tensor and slice index (WHOLE: stored whole).
        overlap: bytes of a value that an earlier value also covers.
        beyond: bytes of a value past the end of the file.
    """

    offset: int
    size: int
    kind: str
    entries: int | None = None
    compression: str | None = None
    crc32c: int | None = None
    crc_good: bool | None = None
    row: int | None = None
    part: int = WHOLE
    overlap: int = 0
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class FileLayout:
    """All regions of one file in order; `size` is None if the file is missing."""

    path: str
    size: int | None
    regions: list[Region]


def layout_of(reader: Reader, contents: Contents) -> tuple[list[FileLayout], list[Finding]]:
    """Return the layout of the index and of each data file, and the problems found."""
    problems: list[Finding] = []
    index = FileLayout(
        contents.index_path,
        reader.header.index_size,
        _index_regions(reader, problems),
    )
    by_shard: dict[int, list[Value]] = {}
    for value in contents.tensors.values() if contents.tensors is not None else ():
        by_shard.setdefault(value.shard, []).append(value)
    files = [index]
    for file in contents.files:
        regions: list[Region] = []
        if contents.tensors is None:
            if file.size:
                regions = [Region(0, file.size, "unread")]
        else:
            values = sorted(by_shard.get(file.shard, ()), key=lambda value: value[1:])
            regions = list(_data_regions(file, values, contents.tensors))
        files.append(FileLayout(file.path, file.size, regions))
    return files, problems


def _index_regions(reader: Reader, problems: list[Finding]) -> list[Region]:
    try:
        found = reader.regions()
    except CkptfmtError as error:
        problems.append(finding_of(error))
        return [Region(0, reader.header.index_size, "unread")]
    regions = []
    for record in found:
        offset, size, code = int(record["offset"]), int(record["size"]), int(record["kind"])
        kind, block = _KINDS.get(code, f"kind {code}"), code in (1, 2, 3)
        compression = int(record["compression"])
        good = bool(record["crc_good"]) if block else None
        regions.append(
            Region(
                offset,
                size,
                kind,
                entries=int(record["entry_count"]) if block else None,
                compression=_COMPRESSIONS.get(compression, f"type {compression}"),
                crc32c=int(record["crc32c"]) if block else None,
                crc_good=good,
            )
        )
        if good is False:
            message = f"BLK-2: the checksum of the {kind} does not match"
            problems.append(
                Finding(
                    "problem",
                    "CORRUPT",
                    "CHECKSUM",
                    message,
                    index_name(reader.prefix),
                    offset,
                    None,
                )
            )
    return regions


def _data_regions(file: DataFile, values: list[Value], tensors: Tensors) -> Iterator[Region]:
    """Yield values in order and the regions between them; only the values if the file is
    missing."""
    end = 0
    for value in values:
        if file.size is not None and end < min(value.offset, file.size):
            yield _between(file.path, end, min(value.offset, file.size))
            end = min(value.offset, file.size)
        crc = (
            tensors.crcs[value.row]
            if value.part == WHOLE
            else tensors.slices(value.row)[value.part].crc32c
        )
        last = value.offset + value.size
        yield Region(
            value.offset,
            value.size,
            "value",
            crc32c=crc,
            row=value.row,
            part=value.part,
            overlap=max(min(end, last) - value.offset, 0) if value.offset < end else 0,
            beyond=0 if file.size is None else min(max(last - file.size, 0), value.size),
        )
        end = max(end, last)
    if file.size is not None and end < file.size:
        yield _between(file.path, end, file.size)


def _between(path: str, first: int, end: int) -> Region:
    kind = "padding" if end - first <= PADDING_MAX and _is_zero(path, first, end) else "gap"
    return Region(first, end - first, kind)


def _is_zero(path: str, first: int, end: int) -> bool:
    try:
        return not any(map(any, pieces_of(path, first, end, READ_BYTES)))
    except OSError:
        return False
