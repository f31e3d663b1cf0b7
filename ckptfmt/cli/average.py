# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt average`: the mean of the weights of several checkpoints."""

from __future__ import annotations

import argparse

import ckptfmt
from ckptfmt.cli import text
from ckptfmt.cli.convert import check_new, rename_of
from ckptfmt.cli.destination import check_destination
from ckptfmt.cli.options import add_cast, add_result_options, add_selection, cast
from ckptfmt.cli.progress import Progress
from ckptfmt.cli.results import listed, names_of, print_result
from ckptfmt.files.locate import locate
from ckptfmt.recipe.sources import format_of

EPILOG = """
A SOURCE is a path as for `ckptfmt inspect`, or a file that `ckptfmt convert` reads; DESTINATION is
a prefix, or a file by its extension. Floating-point and complex
tensors are averaged in double precision. Everything else is that of the first SOURCE; tensors that
differ in another one, such as steps, are listed, but not the metadata and the object graph. Tensors
that the object graph refers to and that are missing are named on standard error.

--json prints {"schema": 2, "path", "averaged": how many, "taken": [name, ...], "missing":
[key of the object graph without a tensor, ...], "losses", "zeros": {name: elements that a cast
changed by more than rounding, or that became 0}, "uncast": [name of a tensor without a dimension,
...], "dropped": [what the result has no place for, ...]}.

--rename, --keep, --drop and --cast are those of `ckptfmt edit`: the sources may differ in what is
left out. --dry-run checks the sources but only reads the tensors that would be cast.

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
    add("destination", metavar="DESTINATION", help="prefix or file of the result")
    add_selection(parser)
    add_cast(parser)
    add_result_options(parser, "a SOURCE", reports=True)


def run(options: argparse.Namespace) -> int:
    """Average and return the exit status.

    Raises:
        CkptfmtError: nothing has changed (after a DurabilityUnknownError: it has).
    """
    kinds = [format_of(path, exists=True) for path in options.sources]
    pairs = zip(options.sources, kinds, strict=True)
    sources = [locate(path) if kind == "tensorflow" else path for path, kind in pairs]
    # If DESTINATION was forgotten, this is the last source.
    if format_of(options.destination, exists=False) == "tensorflow":
        check_destination(options.destination, overwrite=options.overwrite)
    elif not options.overwrite:
        check_new(options.destination, in_several=False)
    shown = names_of(sources[0]) if kinds[0] == "tensorflow" else text.name
    with Progress("averaging", quiet=options.quiet or options.json) as progress:
        done = ckptfmt.editing.average(
            sources,
            options.destination,
            rename=rename_of(options.rename, kinds[0], sources[0]),
            drop=options.drop or None,
            keep=options.keep or None,
            cast=cast(options.cast),
            allow_loss=options.allow_loss,
            dry_run=options.dry_run,
            progress=progress.update,
        )
    tensors = text.plural(done.averaged, "tensor")
    checkpoints = text.plural(len(sources), "checkpoint")
    verb = "would average" if options.dry_run else "averaged"
    lines = [
        *listed("took {} from the first checkpoint", done.taken, shown),
        f"{verb} {tensors} of {checkpoints} into {text.path(done.path)}",
    ]
    print_result(done, options, lines, missing=done.missing, shown=shown)
    return 0
