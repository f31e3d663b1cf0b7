# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt split`: write a checkpoint again with another number of data files."""

from __future__ import annotations

import argparse

import ckptfmt
from ckptfmt.bundle.locate import locate
from ckptfmt.cli import text
from ckptfmt.cli.destination import check_destination
from ckptfmt.cli.options import add_result_options
from ckptfmt.cli.output import Output
from ckptfmt.cli.progress import Progress

SUMMARY = "write a checkpoint again with another number of data files"

EPILOG = """
SOURCE is a path as for `ckptfmt inspect`; DESTINATION is a prefix. Tensors are divided among N data
files of about the same size, none is cut. The level of the format stays. The source is verified
while it is read, and the result is read back before it becomes visible. A checkpoint of N data
files at DESTINATION is replaced by one of N + 1, because a name is never used twice.

examples:
  ckptfmt split model.ckpt-1000 out/model 8
  ckptfmt split sharded.ckpt-1000 out/model 1     join the data files of one checkpoint

exit status:
  0  written
  1  the source is damaged; nothing has changed
  2  wrong usage, no checkpoint at SOURCE, or the result could not be written
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a checkpoint")
    add("destination", metavar="DESTINATION", help="prefix of the result")
    add("count", metavar="N", type=int, help="number of data files, 1 to 1024")
    add_result_options(parser)


def run(options: argparse.Namespace) -> int:
    """Split and return the exit status.

    Raises:
        CkptfmtError: nothing has changed (after a DurabilityUnknownError: it has).
    """
    source = locate(options.source)
    check_destination(options.destination, overwrite=options.overwrite)
    with ckptfmt.open(source) as reader:
        level = reader.level
    with Progress("splitting", quiet=options.quiet) as progress:
        ckptfmt.convert(
            source,
            options.destination,
            to="tensorflow",
            level=level,  # type: ignore[arg-type]
            shards=options.count,
            progress=progress.update,
        )
    if not options.quiet:
        with ckptfmt.open(options.destination) as reader:
            files = text.plural(reader.header.num_shards, "data file")
        Output().line(f"wrote {files} to {text.path(options.destination)}")
    return 0
