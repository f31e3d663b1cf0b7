# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt rm`: remove checkpoints."""

from __future__ import annotations

import argparse

import ckptfmt
from ckptfmt.cli import text
from ckptfmt.cli.files import named_checkpoint
from ckptfmt.cli.output import Output
from ckptfmt.files.places import canonical

EPILOG = """
A CHECKPOINT is a prefix or an index file, not a directory. Removed are the index, then the data
files of exactly this prefix, then the .meta file of TensorFlow 1. State files (`checkpoint`) are
not changed. Nothing is removed if one of the arguments is not a checkpoint; a damaged one is.

examples:
  ckptfmt rm runs/1/model.ckpt-1000
  ckptfmt rm runs/1/model.ckpt-*.index

exit status:
  0  removed
  1  one is not a checkpoint
  2  wrong usage, no such checkpoint, or a file could not be removed
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("checkpoints", metavar="CHECKPOINT", nargs="+", help="a checkpoint")
    add("-n", "--dry-run", action="store_true", help="list what would be removed, and stop")
    add("-q", "--quiet", action="store_true", help="print nothing on success")


def run(options: argparse.Namespace) -> int:
    """Remove and return the exit status.

    Raises:
        CkptfmtError: one is not a checkpoint, or a file could not be removed.
    """
    found = [named_checkpoint(path, damaged=True) for path in options.checkpoints]
    output = Output()
    for prefix in {canonical(one): one for one in found}.values():
        if not options.dry_run:
            ckptfmt.tf.remove_checkpoint(prefix)
        if not options.quiet:
            word = "would remove" if options.dry_run else "removed"
            output.line(f"{word} {text.path(prefix)}")
    return 0
