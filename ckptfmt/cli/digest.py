# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt digest`: a SHA-256 of the contents of checkpoints."""

from __future__ import annotations

import argparse

import ckptfmt
from ckptfmt import CkptfmtError
from ckptfmt.cli import complain, text
from ckptfmt.cli.output import Output
from ckptfmt.cli.progress import Progress

EPILOG = """
PATH is a prefix, an .index or data file, a directory with a `checkpoint` file or a single
checkpoint, a SavedModel directory, or a URL.

The digest is the same for the same tensors and metadata, however they are stored: sharded, merged,
compressed or converted. All values are read and verified. One line per checkpoint, the digest and
the path as other commands print it; sign this to detect tampering, which checksums do not.

examples:
  ckptfmt digest model.ckpt-1000
  ckptfmt digest a b | uniq -c -w 64

exit status:
  0  all digests printed
  1  a checkpoint is damaged
  2  wrong usage, or no checkpoint at PATH
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a checkpoint")


def run(options: argparse.Namespace) -> int:
    """Print the digests, and return the exit status."""
    output = Output()
    status = 0
    for path in options.paths:
        try:
            with ckptfmt.open(path) as reader, Progress("reading") as progress:
                digest = reader.digest(progress=progress.update)
            output.line(f"{digest}  {text.path(path)}")
        except CkptfmtError as error:
            output.flush()
            status = max(status, complain(error))
    return status
