# SPDX-License-Identifier: Apache-2.0
"""The prefix that a command writes to."""

from __future__ import annotations

import os

from ckptfmt import InvalidError
from ckptfmt.names import check_extension, index_name
from ckptfmt.places import is_file

__all__ = ["check_destination"]


def check_destination(prefix: str, *, overwrite: bool) -> None:
    """Check the DESTINATION argument of a command.

    Raises:
        InvalidError: it holds a checkpoint and `overwrite` is False, its last component is empty,
            or it is the name of a file of another format.
    """
    check_extension(prefix)
    if is_file(index_name(prefix)) or os.path.lexists(index_name(prefix)):
        if not overwrite:
            raise InvalidError(
                "DESTINATION already holds a checkpoint (--overwrite replaces it)", path=prefix
            )
    elif os.path.basename(prefix) in ("", ".", ".."):
        raise InvalidError(
            f"DESTINATION {prefix!r} must end with a file name, for example {prefix + 'model'!r}"
        )
