# SPDX-License-Identifier: Apache-2.0
# Written by tools/stubs.py.

from ckptfmt.editing.averages import average as average
from ckptfmt.editing.edits import edit as edit

__all__ = [
    "average",
    "edit",
]
