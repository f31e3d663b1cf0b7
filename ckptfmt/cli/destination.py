# SPDX-License-Identifier: Apache-2.0
"""The prefix or file that a command writes to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from ckptfmt import InvalidError
from ckptfmt.bundle.outputs import checkpoint_files, output_path, writing_file
from ckptfmt.cli.output import Output
from ckptfmt.names import index_name, prefix_text
from ckptfmt.places import is_file

__all__ = ["STDOUT", "Stdout", "check_destination", "writing_output"]

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
def writing_output(path: str, prefix: str) -> Iterator[Callable[[bytes], object]]:
    """Write an output file of a command in the `with` block; yields a function that appends bytes.

    Args:
        path: as the user gave it; "-" is standard output.
        prefix: the checkpoint that is read.

    Raises:
        InvalidError: as `output_path`, before the block.
        StorageError: the file cannot be written.
    """
    if path == STDOUT:
        yield Stdout().write
        return
    with writing_file(output_path(path, checkpoint_files(prefix))) as write:
        yield write


def check_destination(prefix: str, *, overwrite: bool) -> None:
    """Check the DESTINATION argument of a command.

    Raises:
        InvalidError: as `prefix_text`, or it holds a checkpoint and `overwrite` is False.
    """
    prefix = prefix_text(prefix, urls=True)
    index = index_name(prefix)
    if not overwrite and (is_file(index) or os.path.lexists(index)):
        raise InvalidError(
            "DESTINATION already holds a checkpoint (--overwrite replaces it)", path=prefix
        )
