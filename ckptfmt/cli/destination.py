# SPDX-License-Identifier: Apache-2.0
"""The prefix that a command writes to."""

from __future__ import annotations

import os

from ckptfmt import InvalidError
from ckptfmt.names import index_name
from ckptfmt.places import is_file

__all__ = ["check_destination"]

# Extensions of other checkpoint formats, none of which is written.
OTHER_FORMATS = {".safetensors", ".npz", ".npy", ".h5", ".hdf5", ".pt", ".pth", ".gguf", ".index"}


def check_destination(prefix: str, *, overwrite: bool) -> None:
    """Check the DESTINATION argument of a command.

    Raises:
        InvalidError: it holds a checkpoint and `overwrite` is False, its last component is empty,
            or it is the name of a file of another format.
    """
    extension = os.path.splitext(prefix)[1].lower()
    if extension in OTHER_FORMATS:
        raise InvalidError(
            f"DESTINATION {prefix!r} looks like a {extension} file: the result is a TensorFlow V2 "
            "checkpoint, so give a prefix without that extension"
        )
    if is_file(index_name(prefix)) or os.path.lexists(index_name(prefix)):
        if not overwrite:
            raise InvalidError(
                "DESTINATION already holds a checkpoint (--overwrite replaces it)", path=prefix
            )
    elif os.path.basename(prefix) in ("", ".", ".."):
        raise InvalidError(
            f"DESTINATION {prefix!r} must end with a file name, for example {prefix + 'model'!r}"
        )
