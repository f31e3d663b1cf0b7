# SPDX-License-Identifier: Apache-2.0
# Written by tools/stubs.py.

from ckptfmt.recipe.average import average as average
from ckptfmt.recipe.edit import edit as edit

__all__ = [
    "average",
    "edit",
]
