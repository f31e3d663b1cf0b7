# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt rescue`: write what is sound of a damaged checkpoint."""

from __future__ import annotations

import argparse
from dataclasses import asdict

import ckptfmt
from ckptfmt.cli import text
from ckptfmt.cli.destination import check_destination
from ckptfmt.cli.options import add_level
from ckptfmt.cli.output import Output
from ckptfmt.cli.progress import Progress
from ckptfmt.errors import masked

EPILOG = """
SOURCE is a path as for `ckptfmt convert`, and is not changed; DESTINATION is a prefix. What is
written there is proven by checksums: a data file may be cut short or missing, values and the index
may have flipped bits, the end of the index may be gone. One flipped bit in the index is repaired.
The object graph, or the structure of a state that ckptfmt.torch saved, stays without what is lost.
Every tensor that is lost is printed, with the reason, and with the rows that are sound if it has
no strings, and its chunks have checksums or it is stored in slices.

A safetensors, npz or HDF5 file that is cut short, or a directory of safetensors files or of
torch.distributed.checkpoint (DCP) with some files cut or missing, becomes a checkpoint of the
tensors whose names and values are left. In safetensors, and HDF5 without filters, a flipped bit
is not noticed.

Of a checkpoint, --unproven also writes DESTINATION-unproven: values whose checksum does not hold,
as they are, and tensors of damaged blocks of the index, of which names, shapes and dtypes may be
wrong as well.

--json prints {"schema": 2, "path": null if nothing was sound, "kept": [name, ...], "lost": {name:
reason}, "index": [what was damaged, ...], "unproven": {name: reason}, "structure": "whole", "cut",
"lost" or "none", "metadata": "whole", "lost" or "none"}.

examples:
  ckptfmt rescue broken/ckpt-900 rescued
  ckptfmt rescue --unproven broken/ckpt-900 rescued
  ckptfmt rescue cut.safetensors rescued

exit status:
  0  nothing is lost
  1  something is lost, or nothing is sound and nothing was written
  2  wrong usage, no checkpoint at SOURCE, something at DESTINATION without --overwrite, a file that
     cannot be read now or is of a kind that cannot be rescued, or a result that could not be
     written
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help="the damaged checkpoint or file")
    add("destination", metavar="DESTINATION", help="prefix of the result")
    add(
        "--unproven",
        action="store_true",
        help="also write what can be read and is not proven, to DESTINATION-unproven",
    )
    add_level(parser, "v2+", "")
    add("--overwrite", action="store_true", help="replace what is at DESTINATION")
    add("--json", action="store_true", help="print what was done as one JSON document")
    add("-q", "--quiet", action="store_true", help="print losses alone")


def run(options: argparse.Namespace) -> int:
    """Rescue and return the exit status.

    Raises:
        CkptfmtError: nothing was written.
    """
    check_destination(options.destination, overwrite=options.overwrite)
    if options.unproven:
        check_destination(f"{options.destination}-unproven", overwrite=options.overwrite)
    with Progress("rescuing", quiet=options.quiet or options.json) as progress:
        done = ckptfmt.editing.rescue(
            options.source,
            options.destination,
            unproven=options.unproven,
            level=options.level,
            compression=options.compression,
            progress=progress.update,
        )
    output, is_lost = Output(), bool(done.lost) or "lost" in (done.structure, done.metadata)
    if options.json:
        path = None if done.path is None else masked(done.path)
        output.document({**asdict(done), "path": path})
        return int(is_lost)
    for one in done.index:
        output.line(f"index: {one}")
    for name, reason in done.lost.items():
        output.line(f"lost: {text.name(name)}: {text.printable(reason)}")
    for what, became in (("structure", done.structure), ("metadata", done.metadata)):
        if became == "lost":
            output.line(f"lost: the {what}")
    if not options.quiet:
        if done.path is not None:
            output.line(
                f"rescued {text.plural(len(done.kept), 'tensor')} to {text.path(done.path)}"
            )
        if done.unproven:
            place = text.path(f"{options.destination}-unproven")
            output.line(f"wrote {text.plural(len(done.unproven), 'unproven tensor')} to {place}")
    return int(is_lost)
