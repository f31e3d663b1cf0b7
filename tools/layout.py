#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print every region of the files of a checkpoint, to be read beside a hex dump.

    python tools/layout.py [--json] PREFIX

Every byte is in one region. Index file: the regions of `Reader.regions`. Data files: values in
order of their offsets, and between them padding (zero bytes) or gaps (bytes that no entry names).
`slice` in the JSON document is an index into the slices of the tensor. The exit status is 1 if
something is damaged or missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import ckptfmt
from ckptfmt import CkptfmtError, Reader
from ckptfmt._base.names import index_name
from ckptfmt.cli import text
from ckptfmt.cli.contents import WHOLE, Contents, DataFile, Tensors, Value, finding_of, gather
from ckptfmt.errors import masked
from ckptfmt.files.locate import locate
from ckptfmt.files.places import pieces_of
from ckptfmt.types import Finding

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


# ---- printing ------------------------------------------------------------------------------------

TRAILER = "5 bytes of each block are its trailer: compression type, masked CRC-32C"


def show(contents: Contents, files: list[FileLayout]) -> Iterator[str]:
    """Yield the text of all regions of all files in order, offsets in hexadecimal and decimal."""
    for number, file in enumerate(files):
        size = "missing" if file.size is None else f"{file.size:,} bytes"
        yield f"{text.path(file.path)}: {size}\n"
        if file.regions:
            yield from text.table(_columns(file.regions, contents.tensors, index=not number))
        yield f"{TRAILER}\n\n" if not number else "\n"


def _columns(regions: list[Region], tensors: Tensors | None, *, index: bool) -> list[text.Column]:
    columns = [
        text.Column("hex", [f"{region.offset:#010x}" for region in regions], right=True),
        text.Column("offset", [str(region.offset) for region in regions], right=True),
        text.Column("size", [str(region.size) for region in regions], right=True),
        text.Column("kind", [region.kind for region in regions]),
    ]
    checksums = text.Column("crc32c", [_checksum(region) for region in regions])
    if not index:
        cells = [_contents_of(region, tensors) for region in regions]
        return [*columns, checksums, text.Column("tensor", cells)]
    entries = ["" if region.entries is None else str(region.entries) for region in regions]
    return [
        *columns,
        text.Column("entries", entries, right=True),
        text.Column("compression", [region.compression or "" for region in regions]),
        checksums,
    ]


def _checksum(region: Region) -> str:
    verdict = {None: "", True: " good", False: " BAD"}[region.crc_good]
    return "" if region.crc32c is None else f"{region.crc32c:08x}{verdict}"


def _contents_of(region: Region, tensors: Tensors | None) -> str:
    if region.row is None or tensors is None:
        return ""
    dims = tensors.shapes[region.row]
    shown = f"{text.printable(tensors.names[region.row])}  {tensors.dtypes[region.row]} "
    shown += text.shape(dims)
    if region.part != WHOLE:
        part = tensors.slices(region.row)[region.part]
        shown += f", slice {text.box(part.start, part.shape, dims)}"
    if region.overlap:
        shown += f"  OVERLAPS {region.overlap} bytes of the value before it"
    if region.beyond:
        shown += f"  {region.beyond} BYTES BEYOND THE END OF THE FILE"
    return shown


def _fields(region: Region, tensors: Tensors | None) -> dict[str, Any]:
    fields = region._asdict()
    row, part = fields.pop("row"), fields.pop("part")
    if row is not None and tensors is not None:
        fields["tensor"] = tensors.names[row]
        fields["slice"] = None if part == WHOLE else part
    return {name: value for name, value in fields.items() if value is not None or name == "slice"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Print every region of a checkpoint's files.")
    parser.add_argument("prefix", metavar="PREFIX", help="the checkpoint")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    with ckptfmt.open(locate(options.prefix)) as reader:
        contents = gather(reader)
        files, problems = layout_of(reader, contents)
        if options.json:
            document = [
                {
                    "path": masked(file.path),
                    "size": file.size,
                    "regions": [_fields(region, contents.tensors) for region in file.regions],
                }
                for file in files
            ]
            print(json.dumps(document))
        else:
            sys.stdout.writelines(show(contents, files))
    problems = contents.problems + problems
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CkptfmtError as error:
        sys.exit(f"layout: {error}")
