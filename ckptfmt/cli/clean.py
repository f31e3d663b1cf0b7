# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt clean`: remove what killed writers left in a directory."""

from __future__ import annotations

import argparse
import os

from ckptfmt._base.names import path_text
from ckptfmt.cli import text
from ckptfmt.cli.options import number
from ckptfmt.cli.output import Output, complain
from ckptfmt.errors import InvalidError, UnsupportedError
from ckptfmt.files.folder import Folder, folder_of

EPILOG = """
Removed are temporary directories (PREFIX_temp_...) and temporary files of ckptfmt whose writers are
dead, as their locks show, and data files of which such a file proves that no checkpoint has them.
Complete checkpoints, files of TensorFlow and files of other programs stay. Subdirectories are not
searched. File systems without locks and network file systems, where a writer on another machine may
be alive, are refused.

An object store has no locks. There, all that shows that a writer is dead is the age of what it
wrote: --older-than must be more than any save to DIR takes. Listed, and removed with --remove, are
objects with temporary names, temporary directories, and data files of which no index says that the
checkpoint has so many; all data files of that number, or of the directory, must be old. Data files
beside an index that cannot be read stay, and standard error names them.

examples:
  ckptfmt clean --dry-run runs/1
  ckptfmt clean runs/1
  ckptfmt clean --older-than 48 s3://bucket/runs/1
  ckptfmt clean --older-than 48 --remove s3://bucket/runs/1

exit status:
  0  done
  2  wrong usage, or the directory could not be read or is refused, or a file cannot be removed
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("directory", metavar="DIR", help="a directory of checkpoints, or its URL")
    parser.add_argument(
        "--older-than",
        metavar="HOURS",
        type=number,
        help="of a URL: look at objects that were written so many hours ago or before",
    )
    add = parser.add_mutually_exclusive_group().add_argument
    add("-n", "--dry-run", action="store_true", help="list what would be removed, and stop")
    add("--remove", action="store_true", help="of a URL: remove what is listed")


def run(options: argparse.Namespace) -> int:
    """List what is removed, and return the exit status.

    Raises:
        StorageError: the directory cannot be read.
        BusyError: other processes hold its lock.
        UnsupportedError: nothing shows which writers are alive.
        InvalidError: the options are for other places.
    """
    folder = folder_of(path_text(options.directory, urls=True))
    if options.older_than is not None:
        return _clean_by_age(folder, options.older_than, options.remove)
    if options.remove:
        raise InvalidError("it goes with --older-than HOURS, for a URL", argument="remove")
    with folder.opened() as place, place.lock():
        if not place.can_sweep():
            raise UnsupportedError(place.why_no_sweep, path=place.path)
        found = place.sweep(None, dry_run=options.dry_run)
        left = [] if options.dry_run else place.sweep(None, dry_run=True)
    output = Output()
    for name in sorted(found):
        output.line(text.printable(os.path.join(folder.path, name)))
    for name in sorted(left):
        complain(f"ckptfmt: {text.printable(os.path.join(folder.path, name))} cannot be removed")
    return 2 if left else 0


def _clean_by_age(folder: Folder, hours: float, remove: bool) -> int:
    found = folder.leftovers(hours * 3600, remove=remove)
    output = Output()
    for one in sorted(found, key=lambda one: one.url):
        if one.problem is None:
            output.line(text.path(one.url))
        else:
            complain(f"ckptfmt: {text.path(one.url)} stays: {text.printable(str(one.problem))}")
    return 2 if any(one.problem for one in found) else 0
