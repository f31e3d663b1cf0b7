# SPDX-License-Identifier: Apache-2.0
"""Changing checkpoints: names, tensors, dtypes and metadata; averages."""

from ckptfmt._base.doors import door

__getattr__, __dir__, __all__ = door(__name__)
