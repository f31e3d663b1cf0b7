# SPDX-License-Identifier: Apache-2.0
"""The prefix or file that a command writes to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from ckptfmt import InvalidError, StorageError
from ckptfmt._base.names import index_name, prefix_text
from ckptfmt.cli.output import Output
from ckptfmt.files.outputs import checkpoint_files, output_path, writing_file
from ckptfmt.files.places import identity, is_file

# The name of standard output as an output file.
STDOUT = "-"


class Stdout:
    """Standard output as a binary stream."""

    def __init__(self) -> None:
        self._output = Output()

    def write(self, data: bytes, /) -> None:
        """Write bytes as they are."""
        self._output.write_bytes(data)


@contextlib.contextmanager
def writing_output(
    path: str, prefix: str, kind: Literal["html", "npy"]
) -> Iterator[Callable[[bytes], object]]:
    """Write an output file of a command in the `with` block; yields a function that appends bytes.

    Args:
        path: as the user gave it; "-" is standard output.
        prefix: the checkpoint that is read.
        kind: what is written, as in `output_path`.

    Raises:
        InvalidError: as `output_path`, before the block.
        StorageError: the file cannot be written.
    """
    if path == STDOUT:
        yield Stdout().write
        return
    with writing_file(output_path(path, checkpoint_files(prefix), kind=kind)) as write:
        yield write


def check_destination(prefix: str, *, overwrite: bool, consumed: Iterable[str] = ()) -> None:
    """Check the DESTINATION argument of a command.

    Args:
        prefix: as given.
        overwrite: whether a checkpoint there is replaced.
        consumed: prefixes of the sources that the command removes.

    Raises:
        InvalidError: as `prefix_text`; it holds a checkpoint and `overwrite` is False; or one of
            its files is a symbolic link to a file of a source that is removed.
    """
    prefix = prefix_text(prefix, "destination", urls=True)
    index = index_name(prefix)
    if not overwrite and (is_file(index) or os.path.lexists(index)):
        raise InvalidError(
            "DESTINATION already holds a checkpoint (--overwrite replaces it)", path=prefix
        )
    links = [file for file in checkpoint_files(prefix) if os.path.islink(file)] if consumed else []
    if not links:
        return
    removed = {identity(file): file for one in consumed for file in checkpoint_files(one)}
    for link in links:
        found = identity(link)
        if found is not None and found in removed:
            raise InvalidError(
                f"DESTINATION has a symbolic link to {removed[found]!r}, which the command would "
                "remove: remove the link first",
                path=link,
            )


@contextlib.contextmanager
def hinted(overwrite: bool) -> Iterator[None]:
    """Say how to finish a merge whose input could not be removed, where `overwrite` is missing."""
    try:
        yield
    except StorageError as error:
        if error.failure == "NOT_REMOVED" and not overwrite:
            error.hint("; then with --overwrite, as DESTINATION exists now")
        raise
