# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt report`: write a report with pictures, one HTML file."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import Any

from ckptfmt import CheckpointNotFoundError, InvalidError
from ckptfmt._base.arguments import invalid
from ckptfmt._base.names import path_text
from ckptfmt.cli.destination import STDOUT, Stdout
from ckptfmt.cli.options import number
from ckptfmt.cli.output import Output, complain
from ckptfmt.cli.progress import Progress
from ckptfmt.cli.text import printable
from ckptfmt.files.locate import locate
from ckptfmt.recipe.opening import kind_of
from ckptfmt.report import report, report_series
from ckptfmt.report.html import SECONDS
from ckptfmt.report.series import checkpoints_in

EPILOG = """
PATH is a prefix, an .index or data file, a directory with a `checkpoint` file or a single
checkpoint, a SavedModel directory, or a URL; or a safetensors, npz or HDF5 file, the index of a
model in several safetensors files, or a directory of torch.distributed.checkpoint (DCP), which is
converted into a temporary directory first (TMPDIR).

The file works from disk, without a network: bytes by module, share of the optimizer, all tensors
with statistics and histograms, where slices are, damage, and warnings (NaN, infinities, zeros).
With --before it shows what changed.

Of several PATHs, or with --series those with an index in DIR, it shows the last, and how the norm
of each layer, its change, zeros and NaN went from checkpoint to checkpoint. They are ordered by the
step, which is the N of NAME-N or stored as `step` or `global_step`; as given if one has no step. Of
more than 50, 50 are read, the first and the last among them. One that is damaged or missing is a
gap.

Values are read for 10 seconds; of a URL, about 64 MiB. Of a series, half of that is for the last,
and at most 4,096 elements of a tensor are read in each, the same in all. The report says which
tensors were verified against their checksums, and which were measured whole, by a sample (~) or not
at all. Of more than 20,000 tensors its rows are groups of them.

An HTML file that -o names is replaced once the report is complete; any other existing file is
refused, and so is the default one if it exists.

examples:
  ckptfmt report model.ckpt-1000
  ckptfmt report model.ckpt-2000 --before model.ckpt-1000 -o new.html
  ckptfmt report --series checkpoints/ -o run.html

exit status:
  0  written; no damage in what was read
  1  a checkpoint is damaged, or one of several missing; the report is written if one could be
     opened
  2  wrong usage, no checkpoint at PATH, FILE is not to be replaced or could not be written
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("paths", metavar="PATH", nargs="*", help="the checkpoint, or several of a run")
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="the HTML file (default: the last checkpoint's name and .html, in the current "
        "directory); -: stdout",
    )
    add("--before", metavar="PATH", help="a checkpoint to compare with")
    add("--series", metavar="DIR", help="all checkpoints of a directory")
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
    paths = options.paths if options.series is None else _in_directory(options.series)
    if not paths or (options.paths and options.series is not None):
        raise invalid("paths", "give one PATH, several, or --series DIR")
    is_series = len(paths) > 1 or options.series is not None
    if is_series and options.before is not None:
        raise invalid("before", "it compares one PATH with another checkpoint")
    output = _default_output(paths, options) if options.output is None else options.output
    file = Stdout() if output == STDOUT else output
    seconds = None if options.full else options.seconds
    with Progress("reading", quiet=options.quiet) as progress:
        more: dict[str, Any] = {"seconds": seconds, "progress": progress.update}
        if is_series:
            damage = report_series(paths, file, **more)
        else:
            damage = report(paths[0], file, before=options.before, **more)
    for text in damage:
        complain(printable(f"problem: {text}"))
    if options.output is None and not options.quiet:
        Output().line(f"wrote {printable(output)}")
    return 1 if damage else 0


def _in_directory(directory: str) -> list[str]:
    found = checkpoints_in(path_text(directory, urls=True))
    if not found:
        raise CheckpointNotFoundError("the directory has no checkpoint", path=directory)
    return found


def _default_output(paths: list[str], options: argparse.Namespace) -> str:
    """Return the name of the report of the last checkpoint, for the current directory.

    Raises:
        InvalidError: the file exists.
    """
    prefix = paths[-1]
    try:
        prefix = locate(prefix) if kind_of(prefix) == "tensorflow" else prefix
    except CheckpointNotFoundError:
        if len(paths) == 1:
            raise
    name = f"{os.path.basename(os.path.abspath(prefix))}.html"
    if os.path.lexists(name):
        given = list(options.paths)
        for option in ("series", "before"):
            if (value := getattr(options, option)) is not None:
                given += [f"--{option}", value]
        given += ["--full"] * options.full
        line = shlex.join(["ckptfmt", "report", *given, "-o", name])
        raise InvalidError(f"{name!r} exists, and only -o replaces it; try: {line}")
    return name
