# SPDX-License-Identifier: Apache-2.0
"""Saves and restores by many processes: meshes, layouts, coordinators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt._base.doors import door

if TYPE_CHECKING:
    from ckptfmt.saving.mesh import Layout, Mesh
    from ckptfmt.sharded.coordinator import Coordinator, SingleProcess
    from ckptfmt.sharded.sharded import restore, save, save_async

__all__ = [
    "Coordinator",
    "Layout",
    "Mesh",
    "SingleProcess",
    "restore",
    "save",
    "save_async",
]

if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__, __dir__ = door(
        __name__,
        {
            "saving.mesh": "Layout Mesh",
            "sharded.coordinator": "Coordinator SingleProcess",
            "sharded.sharded": "restore save save_async",
        },
    )
