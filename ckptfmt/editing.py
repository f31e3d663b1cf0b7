# SPDX-License-Identifier: Apache-2.0
"""Change checkpoints: names, tensors, dtypes and metadata; averages.

edits.py     edit
averages.py  average
linking.py   a checkpoint written again, whose unchanged data files are linked
"""

from ckptfmt._base.doors import door

__getattr__, __dir__, __all__ = door(__name__)
