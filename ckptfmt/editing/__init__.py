# SPDX-License-Identifier: Apache-2.0
"""Changing checkpoints: names, tensors, dtypes and metadata; averages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt._base.doors import door

if TYPE_CHECKING:
    from ckptfmt.editing.averages import average
    from ckptfmt.editing.edits import edit

__all__ = [
    "average",
    "edit",
]

if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__, __dir__ = door(
        __name__,
        {
            "editing.averages": "average",
            "editing.edits": "edit",
        },
    )
