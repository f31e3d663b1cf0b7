# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt convert`: write a checkpoint at another level of the format."""

from __future__ import annotations

import argparse

import ckptfmt
from ckptfmt import CkptfmtError
from ckptfmt.bundle.convert import DROPPING
from ckptfmt.bundle.locate import locate
from ckptfmt.cli import text
from ckptfmt.cli.destination import check_destination
from ckptfmt.cli.output import Output
from ckptfmt.cli.progress import Progress

__all__ = ["EPILOG", "SUMMARY", "add_options", "run"]

SUMMARY = "write a checkpoint at another level of the format"

EPILOG = """
SOURCE is a path as for `ckptfmt inspect`; DESTINATION is a prefix. The source is verified while it
is read, and the result is read back before it becomes visible.

  v2       byte for byte what TensorFlow writes
  v2+      with chunk checksums and metadata, which TensorFlow skips
  ckptfmt  compressed tensors; TensorFlow refuses the checkpoint

examples:
  ckptfmt convert --level ckptfmt model.ckpt-1000 archive/model
  ckptfmt convert --level v2 archive/model for-tensorflow/model

exit status:
  0  converted
  1  the source is damaged; nothing has changed
  2  wrong usage, no checkpoint at SOURCE, or the result could not be written
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a checkpoint")
    add("destination", metavar="DESTINATION", help="prefix of the result")
    add("--level", choices=["v2", "v2+", "ckptfmt"], default="v2+", help="of the result")
    add(
        "--compression",
        metavar="zstd[:N]",
        help="compress with this level of zstd, 1 to 22; makes the level ckptfmt",
    )
    add(
        "--drop-metadata",
        action="store_true",
        help="drop metadata that the level cannot hold or that cannot be written",
    )
    add(
        "--overwrite",
        action="store_true",
        help="replace a checkpoint at DESTINATION, which may be SOURCE",
    )
    add("--no-verify", action="store_true", help="do not read the result back")
    add("-q", "--quiet", action="store_true", help="print nothing on success")


def run(options: argparse.Namespace) -> int:
    """Convert and return the exit status.

    Raises:
        CkptfmtError: nothing was converted (after a DurabilityUnknownError: it was).
    """
    source = locate(options.source)
    check_destination(options.destination, overwrite=options.overwrite)
    with Progress("converting", quiet=options.quiet) as progress:
        try:
            ckptfmt.convert(
                source,
                options.destination,
                level=options.level,
                compression=options.compression,
                drop_metadata=options.drop_metadata,
                verify="off" if options.no_verify else "full",
                progress=progress.update,
            )
        except CkptfmtError as error:
            error.message = error.message.replace(DROPPING, "--drop-metadata drops them")
            raise
    if not options.quiet:
        Output().line(
            f"converted {text.printable(source)} into {text.printable(options.destination)}"
        )
    return 0
