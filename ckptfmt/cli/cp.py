# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt cp`: copy a checkpoint."""

from __future__ import annotations

import argparse
from typing import Any

import ckptfmt
from ckptfmt.bundle.completeness import uncovered
from ckptfmt.cli import text
from ckptfmt.cli.files import named_checkpoint, target_of
from ckptfmt.cli.output import Output, complain
from ckptfmt.cli.progress import Progress
from ckptfmt.files.places import elsewhere

EPILOG = """
SOURCE is a prefix or an index file; DESTINATION is a prefix, or a directory if it ends with a
slash. On one file system the data files are hard links: both checkpoints share their bytes until
one of them is removed or saved again. Between files and an object store the tensors are written
anew. The copy appears in one step. State files are not changed. If slices of a tensor are missing,
a linked copy lacks them as well, with a warning; no copy is written anew.

examples:
  ckptfmt cp runs/1/model.ckpt-1000 best/model
  ckptfmt cp runs/1/model.ckpt-1000 best/

exit status:
  0  copied
  1  the checkpoint is damaged; nothing has changed
  2  wrong usage, no checkpoint at SOURCE, or the copy could not be written
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a checkpoint")
    add("destination", metavar="DESTINATION", help="prefix of the copy, or a directory")
    add("--overwrite", action="store_true", help="replace a checkpoint at DESTINATION")
    add("-q", "--quiet", action="store_true", help="print nothing on success")


def run(options: argparse.Namespace) -> int:
    """Copy and return the exit status.

    Raises:
        CkptfmtError: nothing has changed (after a DurabilityUnknownError: it has).
    """
    source = named_checkpoint(options.source)
    target = target_of(source, options.destination, overwrite=options.overwrite)
    if elsewhere(source, [target]) is None:
        with ckptfmt.open(source) as reader:
            if error := uncovered(reader):
                complain(f"ckptfmt: warning: {error}")
        with Progress("copying", quiet=options.quiet) as progress:
            ckptfmt.merge([source], target, partial=True, progress=progress.update)
    else:
        with ckptfmt.open(source) as reader:
            level: Any = reader.level
        with Progress("copying", quiet=options.quiet) as progress:
            ckptfmt.convert(source, target, to="tensorflow", level=level, progress=progress.update)
    if not options.quiet:
        Output().line(f"copied {text.path(source)} to {text.path(target)}")
    return 0
