# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt average`: the mean of the weights of several checkpoints."""

from __future__ import annotations

import argparse

import ckptfmt
from ckptfmt.cli import text
from ckptfmt.cli.destination import check_destination
from ckptfmt.cli.options import add_result_options
from ckptfmt.cli.progress import Progress
from ckptfmt.cli.results import listed, print_result
from ckptfmt.files.locate import locate

EPILOG = """
A SOURCE is a path as for `ckptfmt inspect`; DESTINATION is a prefix. Floating-point and complex
tensors are averaged in double precision. Everything else is that of the first SOURCE; tensors that
differ in another one, such as steps, are listed, but not the metadata and the object graph. Tensors
that the object graph refers to and that are missing are named on standard error.

--json prints {"schema": 1, "path", "averaged": how many, "taken": [name, ...], "missing":
[key of the object graph without a tensor, ...]}.

--dry-run checks the sources but does not read the tensors that would be averaged.

examples:
  ckptfmt average --dry-run ckpt-900 ckpt-950 mean/model
  ckptfmt average ckpt-900 ckpt-950 ckpt-1000 mean/model

exit status:
  0  written
  1  a source is damaged; nothing has changed
  2  wrong usage, other tensors than in the first, no checkpoint at a SOURCE, or the result could
     not be written
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("sources", metavar="SOURCE", nargs="+", help="a checkpoint")
    add("destination", metavar="DESTINATION", help="prefix of the result")
    add_result_options(parser, "a SOURCE", reports=True)


def run(options: argparse.Namespace) -> int:
    """Average and return the exit status.

    Raises:
        CkptfmtError: nothing has changed (after a DurabilityUnknownError: it has).
    """
    sources = [locate(path) for path in options.sources]
    # If DESTINATION was forgotten, this is the last source.
    check_destination(options.destination, overwrite=options.overwrite)
    with Progress("averaging", quiet=options.quiet or options.json) as progress:
        done = ckptfmt.editing.average(
            sources, options.destination, dry_run=options.dry_run, progress=progress.update
        )
    tensors = text.plural(done.averaged, "tensor")
    checkpoints = text.plural(len(sources), "checkpoint")
    verb = "would average" if options.dry_run else "averaged"
    lines = [
        *listed("took {} from the first checkpoint", done.taken),
        f"{verb} {tensors} of {checkpoints} into {text.path(done.path)}",
    ]
    print_result(done, options, lines, missing=done.missing)
    return 0
