# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt mv`: rename a checkpoint."""

from __future__ import annotations

import argparse
import contextlib

import ckptfmt
from ckptfmt import CheckpointNotFoundError, InvalidError
from ckptfmt._base.names import path_text
from ckptfmt.bundle.completeness import check_complete
from ckptfmt.bundle.merge import add_finished, check_one_store
from ckptfmt.cli import text
from ckptfmt.cli.destination import hinted
from ckptfmt.cli.files import named_checkpoint, target_of
from ckptfmt.cli.output import Output
from ckptfmt.cli.progress import Progress

EPILOG = """
SOURCE is a prefix or an index file; DESTINATION is a prefix, or a directory if it ends with a
slash. The data files are moved, or copied to another file system; the index is the last. If the
command is killed, SOURCE or DESTINATION is complete, perhaps both; run it again, with --overwrite
if both are, and also if SOURCE could not be removed (NOT_REMOVED). If SOURCE was moved already, an
error says that DESTINATION is whole. State files (`checkpoint`) and TensorFlow 1's .meta file are
not changed.

examples:
  ckptfmt mv --dry-run runs/1/model.ckpt-1000 best/
  ckptfmt mv runs/1/model.ckpt-1000 best/model

exit status:
  0  moved
  1  the checkpoint is damaged; nothing has changed
  2  wrong usage, no checkpoint at SOURCE, the result could not be written, or SOURCE
     could not be removed
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a checkpoint")
    add("destination", metavar="DESTINATION", help="its new prefix, or a directory")
    add("--overwrite", action="store_true", help="replace a checkpoint at DESTINATION")
    add("-n", "--dry-run", action="store_true", help="print what would be moved, and stop")
    add("-q", "--quiet", action="store_true", help="print nothing on success")


def run(options: argparse.Namespace) -> int:
    """Move and return the exit status.

    Raises:
        CkptfmtError: nothing has changed (after a DurabilityUnknownError, or a StorageError with
            the failure NOT_REMOVED: it has).
    """
    try:
        source = named_checkpoint(options.source)
    except CheckpointNotFoundError as error:
        source = path_text(options.source, urls=True).removesuffix(".index")
        with contextlib.suppress(InvalidError):
            add_finished(error, [source], target_of(source, options.destination, overwrite=True))
        raise
    target = target_of(source, options.destination, overwrite=options.overwrite, consumes=True)
    if options.dry_run:
        check_one_store([source], target)
        check_complete(source)
    else:
        with hinted(options.overwrite), Progress("moving", quiet=options.quiet) as progress:
            ckptfmt.merge(
                [source], target, inputs="consume", partial=True, progress=progress.update
            )
    if not options.quiet:
        word = "would move" if options.dry_run else "moved"
        Output().line(f"{word} {text.path(source)} to {text.path(target)}")
    return 0
