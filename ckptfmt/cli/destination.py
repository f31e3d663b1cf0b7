# SPDX-License-Identifier: Apache-2.0
"""The prefix that a command is to write to."""

from __future__ import annotations

import os

from ckptfmt import InvalidError
from ckptfmt.names import index_name

__all__ = ["check_destination"]


def check_destination(prefix: str, *, overwrite: bool) -> None:
    """Refuses a prefix where a checkpoint is already, unless that is to be replaced, and one that
    would give files without a name: the format allows them, but nobody wants hidden files.

    Raises:
        InvalidError: both cases.
    """
    if os.path.lexists(index_name(prefix)):
        if not overwrite:
            raise InvalidError(
                "DESTINATION holds a checkpoint already (--overwrite replaces it)", path=prefix
            )
    elif os.path.basename(prefix) in ("", ".", ".."):
        raise InvalidError(
            f"DESTINATION is a prefix, to which .index is added: {prefix!r} has no name of its own"
        )
