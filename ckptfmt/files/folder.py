# SPDX-License-Identifier: Apache-2.0
"""`folder_of`: a directory of checkpoints by path or URL, with one set of methods. What only one of
the two kinds can do is a method that does nothing, or says so, on the other."""

from __future__ import annotations

import os

from ckptfmt._base.arguments import Durability
from ckptfmt._base.names import is_url
from ckptfmt.files.local_folder import LocalFolder
from ckptfmt.files.store_folder import StoreFolder

Folder = LocalFolder | StoreFolder


def folder_of(path: str, *, durability: Durability = "full") -> Folder:
    """Return the directory at a path or URL. Looks at nothing.

    Args:
        path: of the directory.
        durability: "full" syncs what is written and removed; a store always does.
    """
    return StoreFolder(path) if is_url(path) else LocalFolder(path, durability=durability)


def split(prefix: str, *, durability: Durability = "full") -> tuple[Folder, str]:
    """Return the directory of a checkpoint, and the name of the checkpoint in it."""
    name = os.path.basename(prefix)
    # os.path.dirname would make "memory:" of "memory://name".
    return folder_of(prefix[: len(prefix) - len(name)], durability=durability), name
