# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt prune`: remove old checkpoints of a directory."""

from __future__ import annotations

import argparse

from ckptfmt._base.names import path_text
from ckptfmt.cli import text
from ckptfmt.cli.options import count
from ckptfmt.cli.output import Output, complain
from ckptfmt.cli.progress import Progress
from ckptfmt.errors import masked
from ckptfmt.manager.pruning import prune

EPILOG = """
DIR is a directory that a checkpoint manager (this library's or TensorFlow's) saves into, or a URL
of one. Its `checkpoint` file says which checkpoints are managed and how old they are; others stay,
such as those that a manager preserves permanently. What a manager of DIR retains by its options
stays as well: the best by their metrics, and one of so many steps or hours, as the manager that
saved last was told. If the file of these records is damaged, nothing is removed. A `checkpoint`
file without times, as tf.train.Saver and tf.train.Checkpoint.save write it, is refused: --by-order
takes its checkpoints as managed, in its order.

All values are checked, newest checkpoint first, until N are sound; older ones are removed
without being read. A damaged or incomplete one among the newer does not count: standard error names
it, and it stays, so that the last sound checkpoint is never removed. If a file cannot be read now,
which does not prove damage, nothing is removed. One to whose files a symbolic link in DIR leads
stays as well, unless the link is removed with its own checkpoint, and is named. With --no-verify
only the index and the sizes of the data files are checked. --dry-run checks the same. Prints the
prefixes that were removed.

examples:
  ckptfmt prune --keep 3 --dry-run runs/1   list what would be removed
  ckptfmt prune --keep 3 runs/1

exit status:
  0  done
  1  done, and a checkpoint that stays is damaged; or nothing was done: the records of managers are
  2  wrong usage, no `checkpoint` file, or a checkpoint could not be read or removed
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("directory", metavar="DIR", help="a directory of checkpoints")
    add("--keep", metavar="N", type=count, required=True, help="how many sound ones stay")
    add(
        "--no-verify",
        action="store_true",
        help="check only that indexes are sound and data files complete, and read no tensors",
    )
    add(
        "--by-order",
        action="store_true",
        help="go by the order of a `checkpoint` file without times",
    )
    add("-n", "--dry-run", action="store_true", help="list what would be removed, and stop")
    add("-q", "--quiet", action="store_true", help="no progress bar")


def run(options: argparse.Namespace) -> int:
    """List what is removed, and return the exit status.

    Raises:
        CkptfmtError: as `prune`.
    """
    directory = path_text(options.directory, urls=True)
    with Progress("checking", quiet=options.quiet) as progress:
        done = prune(
            directory,
            options.keep,
            verify=not options.no_verify,
            by_order=options.by_order,
            dry_run=options.dry_run,
            progress=progress.update,
        )
    output = Output()
    for prefix in done.removed:
        output.line(text.path(prefix))
    kind = "complete" if options.no_verify else "sound"
    messages = [
        f"'{masked(prefix)}' is not {kind}, and stays: {why}"
        for prefix, why in done.damaged.items()
    ]
    messages += [
        f"'{masked(prefix)}' stays: the symbolic link '{link}' leads to one of its files"
        for prefix, link in done.linked.items()
    ]
    if done.damaged and not done.kept:
        messages.append(f"no checkpoint is {kind}: nothing is removed")
    for message in messages:
        complain(f"ckptfmt: {text.printable(message)}")
    for error in done.failed.values():
        complain(f"ckptfmt: {error}")
    return 2 if done.failed else 1 if done.damaged else 0
