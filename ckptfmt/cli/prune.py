# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt prune`: remove old checkpoints of a directory."""

from __future__ import annotations

import argparse

from ckptfmt.cli import text
from ckptfmt.cli.options import count
from ckptfmt.cli.output import Output
from ckptfmt.manager.pruning import prune
from ckptfmt.names import path_text

__all__ = ["EPILOG", "SUMMARY", "add_options", "run"]

SUMMARY = "remove all but the newest checkpoints of a directory"

EPILOG = """
DIR is a directory that a checkpoint manager (this library's or TensorFlow's) saves into, or a URL
of one. Its `checkpoint` file says which checkpoints are managed and how old they are; others stay,
such as those that a manager preserves permanently. Nothing is removed if none of the checkpoints
that would stay is complete. Prints the prefixes that were removed.

examples:
  ckptfmt prune --keep 3 --dry-run runs/1   list what would be removed
  ckptfmt prune --keep 3 runs/1

exit status:
  0  done
  2  wrong usage, no `checkpoint` file, or a checkpoint could not be removed
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("directory", metavar="DIR", help="a directory of checkpoints")
    add("--keep", metavar="N", type=count, required=True, help="how many of the newest stay")
    add("-n", "--dry-run", action="store_true", help="list what would be removed, and stop")


def run(options: argparse.Namespace) -> int:
    """List what is removed, and return the exit status.

    Raises:
        CkptfmtError: as `prune`.
    """
    directory = path_text(options.directory, urls=True)
    removed = prune(directory, options.keep, dry_run=options.dry_run)
    output = Output()
    for prefix in removed:
        output.line(text.printable(prefix))
    return 0
