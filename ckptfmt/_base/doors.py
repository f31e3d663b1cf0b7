# SPDX-License-Identifier: Apache-2.0
"""The public names of `ckptfmt` and of the modules that only lead elsewhere, each imported when it
is first used. `tools/stubs.py` writes their stubs from this table."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

# Door, module of ckptfmt that defines the names, names.
NAMES = {
    "ckptfmt": {
        "_base.names": "sharded_filename",
        "_base.slices": "SaveSliceInfo",
        "recipe.load": "load load_into restore_v2",
        "bundle.merge": "merge merge_v2_checkpoints",
        "naming.reader": "Reader open",
        "bundle.saving": "save save_async save_v2",
        "bundle.verify": "verify",
        "bundle.writer": "Writer",
        "errors": (
            "CheckpointNotFoundError CkptfmtError CkptfmtWarning CorruptError InvalidError "
            "StorageError TensorNotFoundError UnsupportedError"
        ),
        "recipe.convert": "convert",
        "manager.latest": "latest_checkpoint",
        "manager.manager": "CheckpointManager",
        "manager.retention": "KeepBest",
        "objects.checkpoint": "Checkpoint",
        "objects.trackable": "Trackable",
        "objects.trees": "load_tree load_tree_into save_tree save_tree_async",
        "saving.saver": "Saver",
        "saving.specs": "SaveSpec",
    },
    "ckptfmt.types": {
        "_base.background": "SaveFuture",
        "_base.slices": "SliceSpec",
        "_core": "DtypeInfo",
        "recipe.load": "MatchReport",
        "bundle.reader": "Header",
        "bundle.tensor": "StoredSlice TensorHandle",
        "bundle.verify": "Finding Report",
        "recipe.average": "Average",
        "recipe.edit": "Edit",
        "recipe.rescue": "Rescue",
        "recipe.convert": "Conversion",
        "manager.restoring": "Rejected Restored",
        "objects.nodes": "TreeNode",
        "objects.status": "InitializationOnlyStatus LoadStatus NameBasedSaverStatus",
    },
    "ckptfmt.sharded": {
        "saving.mesh": "Layout Mesh",
        "sharded.coordinator": "Coordinator SingleProcess",
        "sharded.sharded": "restore save save_async",
    },
    "ckptfmt.editing": {
        "recipe.average": "average",
        "recipe.edit": "edit",
        "recipe.rescue": "rescue",
    },
}
# Modules that users import.
MODULES = {"editing", "errors", "huggingface", "report", "safetensors", "sharded", "stores"}
MODULES |= {"tf", "types"}
# Those that need other packages are not in `dir`: `help` and completion, which look at what it
# lists, would load or miss them.
NEED_PACKAGES = {"hdf5", "jax", "keras", "mpi", "torch"}


def door(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module of this table."""
    home_of = {name: home for home, names in NAMES[module].items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"ckptfmt.{home_of[name]}"), name)
        setattr(sys.modules[module], name, value)
        return value

    public = sorted(home_of)
    return get, lambda: public, public
