# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt report`: write a report with pictures, one HTML file."""

from __future__ import annotations

import argparse
import os
import shlex

from ckptfmt import InvalidError
from ckptfmt.cli.destination import STDOUT, Stdout
from ckptfmt.cli.options import number
from ckptfmt.cli.output import Output, complain
from ckptfmt.cli.progress import Progress
from ckptfmt.cli.text import printable
from ckptfmt.files.locate import locate
from ckptfmt.recipe.opening import kind_of
from ckptfmt.report import report
from ckptfmt.report.html import SECONDS

EPILOG = """
PATH is a prefix, an .index or data file, a directory with a `checkpoint` file or a single
checkpoint, a SavedModel directory, or a URL; or a safetensors, npz or HDF5 file, the index of a
model in several safetensors files, or a directory of torch.distributed.checkpoint (DCP), which is
converted into a temporary directory first (TMPDIR).

The file works from disk, without a network: bytes by module, share of the optimizer, all tensors
with statistics and histograms, where slices are, damage, and warnings (NaN, infinities, zeros).
With --before it shows what changed.

Values are read for 10 seconds; of a URL, about 64 MiB. The report says which tensors were verified
against their checksums, and which were measured whole, by a sample (~) or not at all. Of more than
20,000 tensors its rows are modules.

An HTML file that -o names is replaced once the report is complete; any other existing file is
refused, and so is the default one if it exists.

examples:
  ckptfmt report model.ckpt-1000
  ckptfmt report model.ckpt-2000 --before model.ckpt-1000 -o new.html

exit status:
  0  written; no damage in what was read
  1  the checkpoint is damaged; the report is written if it could be opened
  2  wrong usage, no checkpoint at PATH, FILE is not to be replaced or could not be written
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("path", metavar="PATH", help="the checkpoint")
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="the HTML file (default: the checkpoint's name and .html, in the current directory); "
        "-: stdout",
    )
    add("--before", metavar="PATH", help="a checkpoint to compare with")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--seconds",
        metavar="N",
        type=number,
        default=SECONDS,
        help="read values for about N seconds (default 10); 0: read no values",
    )
    form.add_argument("--full", action="store_true", help="read all values, however long it takes")
    add("-q", "--quiet", action="store_true", help="print nothing on success, no progress bar")


def run(options: argparse.Namespace) -> int:
    """Write the report and return the exit status.

    Raises:
        CkptfmtError: as `ckptfmt.report.report`.
    """
    output = _default_output(options.path) if options.output is None else options.output
    with Progress("reading", quiet=options.quiet) as progress:
        damage = report(
            options.path,
            Stdout() if output == STDOUT else output,
            before=options.before,
            seconds=None if options.full else options.seconds,
            progress=progress.update,
        )
    for text in damage:
        complain(printable(f"problem: {text}"))
    if options.output is None and not options.quiet:
        Output().line(f"wrote {printable(output)}")
    return 1 if damage else 0


def _default_output(path: str) -> str:
    """Return the name of the report of a checkpoint, for the current directory.

    Raises:
        InvalidError: the file exists.
    """
    prefix = locate(path) if kind_of(path) == "tensorflow" else path
    name = f"{os.path.basename(os.path.abspath(prefix))}.html"
    if os.path.lexists(name):
        line = shlex.join(["ckptfmt", "report", path, "-o", name])
        raise InvalidError(f"{name!r} exists, and only -o replaces it; try: {line}")
    return name
