# SPDX-License-Identifier: Apache-2.0
"""Print the regions of the files of a checkpoint, to be read beside a hex dump."""

from __future__ import annotations

from ckptfmt.cli import text
from ckptfmt.cli.contents import WHOLE, Contents, Tensors
from ckptfmt.cli.layout import FileLayout, Region
from ckptfmt.cli.output import Output

__all__ = ["show"]

TRAILER = "5 bytes of each block are its trailer: compression type, masked CRC-32C"


def show(out: Output, contents: Contents, files: list[FileLayout]) -> None:
    """Print all regions of all files in order, offsets in hexadecimal and decimal."""
    for number, file in enumerate(files):
        size = "missing" if file.size is None else f"{file.size:,} bytes"
        out.line(f"{out.paint(text.path(file.path), 'bold')}: {size}")
        if file.regions:
            columns = _index(file.regions) if not number else _data(file.regions, contents.tensors)
            for piece in text.table(columns):
                out.write(piece)
        if not number:
            out.line(out.paint(TRAILER, "dim"))
        out.line()


def _places(regions: list[Region]) -> list[text.Column]:
    return [
        text.Column("hex", [f"{region.offset:#010x}" for region in regions], right=True),
        text.Column("offset", [str(region.offset) for region in regions], right=True),
        text.Column("size", [str(region.size) for region in regions], right=True),
        text.Column("kind", [region.kind for region in regions]),
    ]


def _index(regions: list[Region]) -> list[text.Column]:
    entries = ["" if region.entries is None else str(region.entries) for region in regions]
    return [
        *_places(regions),
        text.Column("entries", entries, right=True),
        text.Column("compression", [region.compression or "" for region in regions]),
        text.Column("crc32c", [_checksum(region) for region in regions]),
    ]


def _data(regions: list[Region], tensors: Tensors | None) -> list[text.Column]:
    return [
        *_places(regions),
        text.Column("crc32c", [_checksum(region) for region in regions]),
        text.Column("tensor", [_contents_of(region, tensors) for region in regions]),
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
        shown += f"  OVERLAPS {region.overlap} bytes of what is before it"
    if region.beyond:
        shown += f"  {region.beyond} BYTES BEYOND THE END OF THE FILE"
    return shown
