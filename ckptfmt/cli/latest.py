# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt latest`: print the newest complete checkpoint of a directory."""

from __future__ import annotations

import argparse

import ckptfmt
from ckptfmt import CheckpointNotFoundError
from ckptfmt._base.names import path_text
from ckptfmt.cli import text
from ckptfmt.cli.output import Output
from ckptfmt.cli.progress import Progress
from ckptfmt.files.places import is_directory
from ckptfmt.manager.latest import newest_sound

EPILOG = """
DIR is a directory of checkpoints, or a URL of one. Its `checkpoint` file names the newest; if that
one is not complete, another is searched for, and standard error says why. Tensors are not read,
unless --verify has all values checked.

examples:
  ckptfmt latest runs/1
  ckptfmt verify "$(ckptfmt latest s3://bucket/runs/1)"

exit status:
  0  found
  2  wrong usage, or there is no complete (with --verify: sound) checkpoint
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("directory", metavar="DIR", help="a directory of checkpoints")
    parser.add_argument(
        "--verify", action="store_true", help="the newest sound one: check all of its values"
    )


def run(options: argparse.Namespace) -> int:
    """Print the prefix, and return the exit status.

    Raises:
        CheckpointNotFoundError: there is no complete checkpoint.
        StorageError: the directory cannot be read now.
    """
    if options.verify:
        with Progress("checking") as progress:
            directory = path_text(options.directory, urls=True)
            prefix = newest_sound(directory, progress.update)
    else:
        prefix = ckptfmt.latest_checkpoint(options.directory)
    if prefix is None:
        kind = "sound" if options.verify else "complete"
        there = is_directory(path_text(options.directory, urls=True))
        raise CheckpointNotFoundError(
            f"the directory has no {kind} checkpoint" if there else "there is no such directory",
            path=options.directory,
        )
    # Not masked: it is passed back to `open`.
    Output().line(text.printable(prefix))
    return 0
