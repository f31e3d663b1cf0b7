# SPDX-License-Identifier: Apache-2.0
"""Saves and restores by many processes: meshes, layouts, coordinators."""

from ckptfmt._base.doors import door

__getattr__, __dir__, __all__ = door(__name__)
