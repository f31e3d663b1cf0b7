# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of any framework's arrays, in TensorFlow's V2 format and beyond, without TensorFlow.

Reading:
    load(path), load_into(path, arrays), latest_checkpoint(directory), verify(path)
    open(path): a Reader, a mapping from names to handles that read what is asked for
Writing:
    save(prefix, arrays), save_async(prefix, arrays)
    Writer(prefix): adds tensors and slices of tensors one by one
    merge(prefixes, destination), convert(source, destination)
Trees and objects:
    save_tree(prefix, tree), save_tree_async, load_tree(path), load_tree_into(path, tree)
    Checkpoint(**objects), CheckpointManager(checkpoint, directory), KeepBest, Trackable
The operations of the V2 format:
    save_v2, restore_v2, merge_v2_checkpoints, sharded_filename, SaveSpec, SaveSliceInfo, Saver
Errors:
    CkptfmtError, CkptfmtWarning, CorruptError, InvalidError, StorageError,
    CheckpointNotFoundError, TensorNotFoundError, UnsupportedError; the others: ckptfmt.errors
Modules:
    ckptfmt.sharded: many processes; ckptfmt.editing: edit, average; ckptfmt.report: HTML reports
    ckptfmt.tf: the names of TensorFlow's users; ckptfmt.types: classes for annotations
    ckptfmt.torch, ckptfmt.jax, ckptfmt.keras, ckptfmt.huggingface, ckptfmt.safetensors,
    ckptfmt.mpi, ckptfmt.stores

Importing the package loads almost nothing: each public name is imported when it is first used.
"""

from __future__ import annotations

import atexit
import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any


def _refuse_sub_interpreters() -> None:
    """Raise an ImportError in any interpreter but the first of a process: threads that the C core
    starts call Python, which the first interpreter answers, and numpy works only there."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    try:
        interpreters = importlib.import_module(name)
    except ImportError:  # a Python built without them
        return
    if interpreters.get_current() != interpreters.get_main():
        raise ImportError(
            "ckptfmt works only in the main interpreter of a process, not in a sub-interpreter. "
            "Under mod_wsgi set WSGIApplicationGroup %{GLOBAL}"
        )


_refuse_sub_interpreters()

if TYPE_CHECKING:
    from ckptfmt import (  # noqa: F401 (attributes)
        editing,
        errors,
        sharded,
        tf,
        types,
    )
    from ckptfmt._base.names import sharded_filename
    from ckptfmt._base.slices import SaveSliceInfo
    from ckptfmt.bundle.load import load, load_into, restore_v2
    from ckptfmt.bundle.merge import merge, merge_v2_checkpoints
    from ckptfmt.bundle.reader import Reader, open  # noqa: A004 (as gzip.open)
    from ckptfmt.bundle.saving import save, save_async, save_v2
    from ckptfmt.bundle.verify import verify
    from ckptfmt.bundle.writer import Writer
    from ckptfmt.errors import (
        CheckpointNotFoundError,
        CkptfmtError,
        CkptfmtWarning,
        CorruptError,
        InvalidError,
        StorageError,
        TensorNotFoundError,
        UnsupportedError,
    )
    from ckptfmt.formats.convert import convert
    from ckptfmt.manager.latest import latest_checkpoint
    from ckptfmt.manager.manager import CheckpointManager
    from ckptfmt.manager.retention import KeepBest
    from ckptfmt.objects.checkpoint import Checkpoint
    from ckptfmt.objects.trackable import Trackable
    from ckptfmt.objects.trees import load_tree, load_tree_into, save_tree, save_tree_async
    from ckptfmt.saving.saver import Saver
    from ckptfmt.saving.specs import SaveSpec

    __version__: str

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "CheckpointNotFoundError",
    "CkptfmtError",
    "CkptfmtWarning",
    "CorruptError",
    "InvalidError",
    "KeepBest",
    "Reader",
    "SaveSliceInfo",
    "SaveSpec",
    "Saver",
    "StorageError",
    "TensorNotFoundError",
    "Trackable",
    "UnsupportedError",
    "Writer",
    "convert",
    "latest_checkpoint",
    "load",
    "load_into",
    "load_tree",
    "load_tree_into",
    "merge",
    "merge_v2_checkpoints",
    "open",
    "restore_v2",
    "save",
    "save_async",
    "save_tree",
    "save_tree_async",
    "save_v2",
    "sharded_filename",
    "verify",
]

# The module that defines each public name.
_HOMES = {
    name: module
    for module, names in {
        "_base.names": "sharded_filename",
        "_base.slices": "SaveSliceInfo",
        "bundle.load": "load load_into restore_v2",
        "bundle.merge": "merge merge_v2_checkpoints",
        "bundle.reader": "Reader open",
        "bundle.saving": "save save_async save_v2",
        "bundle.verify": "verify",
        "bundle.writer": "Writer",
        "errors": (
            "CheckpointNotFoundError CkptfmtError CkptfmtWarning CorruptError InvalidError "
            "StorageError TensorNotFoundError UnsupportedError"
        ),
        "formats.convert": "convert",
        "manager.latest": "latest_checkpoint",
        "manager.manager": "CheckpointManager",
        "manager.retention": "KeepBest",
        "objects.checkpoint": "Checkpoint",
        "objects.trackable": "Trackable",
        "objects.trees": "load_tree load_tree_into save_tree save_tree_async",
        "saving.saver": "Saver",
        "saving.specs": "SaveSpec",
    }.items()
    for name in names.split()
}
# Modules that cannot be imported without other packages: `help` and completion, which look at what
# `dir` lists, would load or miss these.
_NEED_PACKAGES = {"hdf5", "jax", "keras", "mpi", "torch"}
# The modules that users import.
_DOORS = {
    "editing",
    "errors",
    "hdf5",
    "huggingface",
    "jax",
    "keras",
    "mpi",
    "report",
    "safetensors",
    "sharded",
    "stores",
    "tf",
    "torch",
    "types",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name == "__version__" or name in _HOMES:
            value = _value(name)
        else:
            value = _submodule(name)
        globals()[name] = value
        return value


def _value(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("ckptfmt._core").version()
    return getattr(importlib.import_module(f"ckptfmt.{_HOMES[name]}"), name)


def _submodule(name: str) -> ModuleType:
    whole = f"{__name__}.{name}"
    try:
        if name in _DOORS:
            return importlib.import_module(whole)
    except ModuleNotFoundError as error:
        if error.name != whole:
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@atexit.register
def _end() -> None:
    # Registered on import, so that it runs after the user's exit handlers, which may save.
    background = sys.modules.get(f"{__name__}._base.background")
    if background is not None:
        background.end()
    waiting = sys.modules.get(f"{__name__}.stores.waiting")
    if waiting is not None:
        waiting.end()


def __dir__() -> list[str]:
    return sorted([*__all__, *(_DOORS - _NEED_PACKAGES), "__version__"])
