# SPDX-License-Identifier: Apache-2.0
"""What `cp`, `mv` and `rm` have in common: the checkpoint that an argument names exactly."""

from __future__ import annotations

import os

import ckptfmt
from ckptfmt import CheckpointNotFoundError, CorruptError, InvalidError
from ckptfmt._base.names import index_name, path_text
from ckptfmt.cli.destination import check_destination
from ckptfmt.files.locate import locate, recognised
from ckptfmt.files.places import canonical, is_file


def named_checkpoint(path: str, *, damaged: bool = False) -> str:
    """Return the prefix of the checkpoint that a prefix or an index file names; a directory does
    not name one.

    Args:
        path: as given.
        damaged: whether one is enough whose index can be recognised, but not read.

    Raises:
        CheckpointNotFoundError: there is no index file of this prefix; a file of another format is
            named.
        CorruptError, UnsupportedError, StorageError: it is not the index of a checkpoint.
    """
    prefix = path_text(path, urls=True).removesuffix(".index")
    if not is_file(index_name(prefix)):
        if recognised(path) is not None:
            locate(path)  # its error says what it is
        raise CheckpointNotFoundError(
            f"there is no checkpoint of this name: {index_name(prefix)!r} is not a file", path=path
        )
    try:
        ckptfmt.open(index_name(prefix)).close()
    except CorruptError as error:
        if not damaged or error.failure in ("BAD_MAGIC", "TRUNCATED"):
            raise
    return prefix


def target_of(source: str, destination: str, *, overwrite: bool, consumes: bool = False) -> str:
    """Return the prefix to write to; a DESTINATION that is a directory, or ends with a slash,
    takes the checkpoint under its own name.

    Args:
        source: prefix of the checkpoint.
        destination: as given.
        overwrite: whether a checkpoint there is replaced.
        consumes: whether the command removes `source`.

    Raises:
        InvalidError: as `check_destination`, or it is SOURCE itself.
    """
    if destination.endswith("/") or os.path.isdir(destination):
        destination = os.path.join(destination, os.path.basename(source))
    if canonical(destination) == canonical(source):
        raise InvalidError("SOURCE and DESTINATION are the same", path=source)
    check_destination(destination, overwrite=overwrite, consumed=[source] if consumes else [])
    return destination
