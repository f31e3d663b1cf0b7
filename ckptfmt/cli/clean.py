# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt clean`: remove what killed writers left in a directory."""

from __future__ import annotations

import argparse
import os

from ckptfmt._base.names import path_text
from ckptfmt.cli import text
from ckptfmt.cli.output import Output, complain
from ckptfmt.errors import UnsupportedError
from ckptfmt.manager.directory import CheckpointDirectory

EPILOG = """
Removed are temporary directories (PREFIX_temp_...) and temporary files of ckptfmt whose writers are
dead, as their locks show, and data files of which such a file proves that no checkpoint has them.
Complete checkpoints, files of TensorFlow and files of other programs stay. Subdirectories are not
searched. File systems without locks and network file systems, where a writer on another machine may
be alive, are refused.

examples:
  ckptfmt clean --dry-run runs/1   list what would be removed
  ckptfmt clean runs/1

exit status:
  0  done
  2  wrong usage, or the directory could not be read or is refused, or a file cannot be removed
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("directory", metavar="DIR", help="a directory of checkpoints")
    add("-n", "--dry-run", action="store_true", help="list what would be removed, and stop")


def run(options: argparse.Namespace) -> int:
    """List what is removed, and return the exit status.

    Raises:
        StorageError: the directory cannot be read.
        BusyError: other processes hold its lock.
        UnsupportedError: locks do not show which writers are alive.
    """
    path = path_text(options.directory)
    with CheckpointDirectory(path) as place, place.lock():
        if not place.can_sweep():
            raise UnsupportedError(
                "nothing can be removed here: the file system has no locks, or a writer on another "
                "machine may be alive",
                path=path,
            )
        found = place.sweep(None, dry_run=options.dry_run)
        left = [] if options.dry_run else place.sweep(None, dry_run=True)
    output = Output()
    for name in sorted(found):
        output.line(text.printable(name))
    for name in sorted(left):
        complain(f"ckptfmt: {text.printable(os.path.join(path, name))} cannot be removed")
    return 2 if left else 0
