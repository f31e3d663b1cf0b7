# SPDX-License-Identifier: Apache-2.0
# Written by tools/stubs.py.

from ckptfmt.saving.mesh import Layout as Layout
from ckptfmt.saving.mesh import Mesh as Mesh
from ckptfmt.sharded.coordinator import Coordinator as Coordinator
from ckptfmt.sharded.coordinator import SingleProcess as SingleProcess
from ckptfmt.sharded.sharded import restore as restore
from ckptfmt.sharded.sharded import save as save
from ckptfmt.sharded.sharded import save_async as save_async

__all__ = [
    "Coordinator",
    "Layout",
    "Mesh",
    "SingleProcess",
    "restore",
    "save",
    "save_async",
]
