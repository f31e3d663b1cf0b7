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
    ckptfmt.hdf5, ckptfmt.mpi, ckptfmt.stores

Importing the package loads almost nothing: each public name is imported when it is first used.
"""

from __future__ import annotations

import atexit
import importlib
import sys
from typing import Any

from ckptfmt._base.doors import MODULES, NEED_PACKAGES, door


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

_get, _, __all__ = door(__name__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("ckptfmt._core").version()
    if name not in MODULES | NEED_PACKAGES:
        return _get(name)
    whole = f"{__name__}.{name}"
    try:
        return importlib.import_module(whole)
    except ModuleNotFoundError as error:
        if error.name != whole:
            raise
        return _get(name)


def __dir__() -> list[str]:
    return sorted([*__all__, *MODULES, "__version__"])


@atexit.register
def _end() -> None:
    # Registered on import, so that it runs after the user's exit handlers, which may save.
    background = sys.modules.get(f"{__name__}._base.background")
    if background is not None:
        background.end()
    waiting = sys.modules.get(f"{__name__}.stores.waiting")
    if waiting is not None:
        waiting.end()
