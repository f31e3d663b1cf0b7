# SPDX-License-Identifier: Apache-2.0
# Written by tools/stubs.py.

from ckptfmt.recipe.average import average as average
from ckptfmt.recipe.edit import edit as edit
from ckptfmt.recipe.rescue import rescue as rescue

__all__ = [
    "average",
    "edit",
    "rescue",
]
