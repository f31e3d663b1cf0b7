# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt merge`: merge the indexes of checkpoints; tensor bytes do not move."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ckptfmt import CheckpointNotFoundError
from ckptfmt._base.names import INTENT, path_text
from ckptfmt.bundle.merge import merge_located
from ckptfmt.cli import text
from ckptfmt.cli.destination import check_destination, hinted
from ckptfmt.cli.output import Output, complain
from ckptfmt.cli.progress import Progress
from ckptfmt.files.locate import locate
from ckptfmt.files.places import is_file

EPILOG = """
An INPUT is a path as for `ckptfmt inspect`; DESTINATION is a prefix. The order of the inputs
determines the numbers of the data files. Slices of one tensor from different inputs are joined.

Everything is checked before the first change on disk: if inputs hold the same tensor or slice, or
disagree about a tensor or in their metadata, or if slices of a tensor are in no input, nothing
changes. The inputs are kept and share their data files with the result by hard links (copies on
another file system), unless --consume moves the files. If the command is killed, or an input
cannot be removed (NOT_REMOVED: DESTINATION is whole), run it again, with --overwrite if DESTINATION
exists; if all inputs were moved already, an error says that DESTINATION is whole.

examples:
  ckptfmt merge part-0 part-1 part-2 model
  ckptfmt merge --metadata-from decoder encoder decoder model
  ckptfmt merge --consume model_temp/part-*.index model

exit status:
  0  merged
  1  the inputs contradict each other, or one is damaged; nothing has changed
  2  wrong usage, no checkpoint at an INPUT, the result could not be written, or an
     input could not be removed
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("prefixes", metavar="INPUT", nargs="+", help="a checkpoint")
    add("destination", metavar="DESTINATION", help="prefix of the result")
    add("--consume", action="store_true", help="move the data files and remove the inputs")
    add(
        "--allow-missing",
        action="store_true",
        help="skip missing inputs; at least one must exist",
    )
    add(
        "--partial",
        action="store_true",
        help="allow tensors of which slices are missing, as in a part of a later merge",
    )
    add(
        "--metadata-from",
        metavar="INPUT",
        help="the input whose metadata DESTINATION has; by default, all metadata must be equal",
    )
    add(
        "--overwrite",
        action="store_true",
        help="replace a checkpoint at DESTINATION",
    )
    add(
        "--durability",
        choices=["full", "rename", "none"],
        default="full",
        help="full: synced, survives a power cut; rename: atomic for other processes, not synced; "
        "none: not synced and not read back",
    )
    add("-q", "--quiet", action="store_true", help="print nothing on success")


def run(options: argparse.Namespace) -> int:
    """Merge and return the exit status.

    Raises:
        CkptfmtError: nothing was merged (after a DurabilityUnknownError, or a StorageError with the
            failure NOT_REMOVED: it was).
    """
    found, missing = _found(options.prefixes)
    skips = bool(missing and found and options.allow_missing)
    if missing and not (skips or options.consume):
        raise missing[0]
    # If DESTINATION was forgotten, this is the last input. If an input is missing, nothing is
    # replaced: the merge finishes one that was killed, or fails.
    check_destination(
        options.destination,
        overwrite=options.overwrite or bool(missing and not skips),
        consumed=found if options.consume else (),
    )
    # What an earlier call of this merge has moved is not there and not skipped.
    again = is_file(path_text(options.destination, urls=True) + INTENT)
    for left_out in missing if skips and not (again or options.quiet) else ():
        complain(f"ckptfmt: skipped: {left_out}")
    with hinted(options.overwrite), Progress("merging", quiet=options.quiet) as progress:
        merge_located(
            options.prefixes,
            options.destination,
            options.consume,
            options.durability,
            allow_missing=skips,
            partial=options.partial,
            metadata_from=options.metadata_from,
            progress=progress.update,
        )
    if not options.quiet:
        inputs = text.plural(len(found if skips else options.prefixes), "checkpoint")
        done = "finished a merge" if again and missing else f"merged {inputs}"
        Output().line(f"{done} into {text.path(options.destination)}")
    return 0


def _found(paths: Iterable[str]) -> tuple[list[str], list[CheckpointNotFoundError]]:
    """Return the prefixes of the inputs that exist, and the errors of the others."""
    found: list[str] = []
    missing: list[CheckpointNotFoundError] = []
    for path in paths:
        try:
            found.append(locate(path))
        except CheckpointNotFoundError as error:
            missing.append(error)
    return found, missing
