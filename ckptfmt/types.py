# SPDX-License-Identifier: Apache-2.0
"""The classes of results, handles and options: for annotations and `isinstance`."""

from ckptfmt._base.doors import door

__getattr__, __dir__, __all__ = door(__name__)
