# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of any framework's arrays, in TensorFlow's V2 format and beyond, without TensorFlow.

Arrays by name:
    save(prefix, arrays), load(path), load_into(path, arrays), save_async(prefix, arrays)
    open(path): a Reader, a mapping from names to handles that read what is asked for
    Writer(prefix): adds tensors and slices of tensors one by one
Whole checkpoints:
    merge(prefixes, destination), verify(path), convert(source, destination),
    edit(source, destination), average(sources, destination), latest_checkpoint(directory)
Training loops:
    Checkpoint(**objects), CheckpointManager(checkpoint, directory), TrainingState
    save_tree(prefix, tree), load_tree(path), load_tree_into(path, tree)
Many devices and processes:
    Saver, SaveSpec, sharding policies; sharded_save, sharded_restore, Mesh, Layout, Coordinator
TensorFlow's own functions:
    save_v2, restore_v2, merge_v2_checkpoints, sharded_filename; ckptfmt.tf
Frameworks and formats:
    ckptfmt.torch, ckptfmt.jax, ckptfmt.keras, ckptfmt.huggingface, ckptfmt.safetensors,
    ckptfmt.mpi, ckptfmt.stores, ckptfmt.report

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
    from ckptfmt import tf
    from ckptfmt.background import SaveFuture
    from ckptfmt.bundle.load import MatchReport, load, load_into, restore_v2
    from ckptfmt.bundle.merge import merge, merge_v2_checkpoints
    from ckptfmt.bundle.reader import Header, Reader, open  # noqa: A004 (as gzip.open)
    from ckptfmt.bundle.saving import save, save_async, save_v2
    from ckptfmt.bundle.state_file import (
        CheckpointState,
        checkpoint_exists,
        get_checkpoint_mtimes,
        get_checkpoint_state,
        remove_checkpoint,
        update_checkpoint_state,
    )
    from ckptfmt.bundle.tensor import StoredSlice, TensorHandle
    from ckptfmt.bundle.verify import Finding, Report, verify
    from ckptfmt.bundle.writer import Writer
    from ckptfmt.dtypes import DtypeInfo
    from ckptfmt.editing.average import Average, average
    from ckptfmt.editing.edit import Edit, edit
    from ckptfmt.errors import (
        BusyError,
        CheckpointNotFoundError,
        CkptfmtError,
        CkptfmtWarning,
        CorruptError,
        DurabilityUnknownError,
        GenerationGoneError,
        InvalidError,
        LimitError,
        MatchError,
        MergeConflictError,
        ShardingError,
        ShardMissingError,
        StorageError,
        TensorNotFoundError,
        UnsupportedError,
    )
    from ckptfmt.formats.convert import Conversion, convert
    from ckptfmt.manager.latest import checkpoints_iterator, latest_checkpoint
    from ckptfmt.manager.manager import CheckpointManager
    from ckptfmt.manager.restoring import Rejected, Restored
    from ckptfmt.manager.retention import KeepBest
    from ckptfmt.manager.training_state import TrainingState
    from ckptfmt.names import sharded_filename
    from ckptfmt.objects.checkpoint import Checkpoint
    from ckptfmt.objects.nodes import TreeNode
    from ckptfmt.objects.status import InitializationOnlyStatus, LoadStatus, NameBasedSaverStatus
    from ckptfmt.objects.trackable import Trackable
    from ckptfmt.objects.trees import load_tree, load_tree_into, save_tree, save_tree_async
    from ckptfmt.saving.mesh import Layout, Mesh
    from ckptfmt.saving.options import CheckpointOptions
    from ckptfmt.saving.parallel import ParallelVariable, independent_buffers
    from ckptfmt.saving.policies import (
        BalancedPolicy,
        MaxShardSizePolicy,
        ShardByDevicePolicy,
        ShardByTaskPolicy,
    )
    from ckptfmt.saving.registration import register_checkpoint_saver, unregister_checkpoint_saver
    from ckptfmt.saving.saver import Saver
    from ckptfmt.saving.sharding import ShardingCallback, validate_shards
    from ckptfmt.saving.specs import DSaveSpec, SaveableObject, SaveSpec, ShardableTensor
    from ckptfmt.sharded.coordinator import Coordinator, SingleProcess
    from ckptfmt.sharded.sharded import sharded_restore, sharded_save, sharded_save_async
    from ckptfmt.slices import SaveSliceInfo, SliceSpec, parse_spec

    __version__: str

__all__ = [
    "Average",
    "BalancedPolicy",
    "BusyError",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointNotFoundError",
    "CheckpointOptions",
    "CheckpointState",
    "CkptfmtError",
    "CkptfmtWarning",
    "Conversion",
    "Coordinator",
    "CorruptError",
    "DSaveSpec",
    "DtypeInfo",
    "DurabilityUnknownError",
    "Edit",
    "Finding",
    "GenerationGoneError",
    "Header",
    "InitializationOnlyStatus",
    "InvalidError",
    "KeepBest",
    "Layout",
    "LimitError",
    "LoadStatus",
    "MatchError",
    "MatchReport",
    "MaxShardSizePolicy",
    "MergeConflictError",
    "Mesh",
    "NameBasedSaverStatus",
    "ParallelVariable",
    "Reader",
    "Rejected",
    "Report",
    "Restored",
    "SaveFuture",
    "SaveSliceInfo",
    "SaveSpec",
    "SaveableObject",
    "Saver",
    "ShardByDevicePolicy",
    "ShardByTaskPolicy",
    "ShardMissingError",
    "ShardableTensor",
    "ShardingCallback",
    "ShardingError",
    "SingleProcess",
    "SliceSpec",
    "StorageError",
    "StoredSlice",
    "TensorHandle",
    "TensorNotFoundError",
    "Trackable",
    "TrainingState",
    "TreeNode",
    "UnsupportedError",
    "Writer",
    "average",
    "checkpoint_exists",
    "checkpoints_iterator",
    "convert",
    "edit",
    "get_checkpoint_mtimes",
    "get_checkpoint_state",
    "independent_buffers",
    "latest_checkpoint",
    "load",
    "load_into",
    "load_tree",
    "load_tree_into",
    "merge",
    "merge_v2_checkpoints",
    "open",
    "parse_spec",
    "register_checkpoint_saver",
    "remove_checkpoint",
    "restore_v2",
    "save",
    "save_async",
    "save_tree",
    "save_tree_async",
    "save_v2",
    "sharded_filename",
    "sharded_restore",
    "sharded_save",
    "sharded_save_async",
    "tf",
    "unregister_checkpoint_saver",
    "update_checkpoint_state",
    "validate_shards",
    "verify",
]

# The module that defines each public name.
_HOMES = {
    name: module
    for module, names in {
        "formats.convert": "Conversion convert",
        "sharded.coordinator": "Coordinator SingleProcess",
        "dtypes": "DtypeInfo",
        "editing.average": "Average average",
        "editing.edit": "Edit edit",
        "errors": (
            "BusyError CheckpointNotFoundError CkptfmtError CkptfmtWarning CorruptError "
            "DurabilityUnknownError GenerationGoneError InvalidError LimitError MatchError "
            "MergeConflictError ShardMissingError ShardingError StorageError TensorNotFoundError "
            "UnsupportedError"
        ),
        "objects.checkpoint": "Checkpoint",
        "manager.latest": "checkpoints_iterator latest_checkpoint",
        "manager.manager": "CheckpointManager",
        "manager.restoring": "Rejected Restored",
        "manager.retention": "KeepBest",
        "bundle.state_file": (
            "CheckpointState checkpoint_exists get_checkpoint_mtimes get_checkpoint_state "
            "remove_checkpoint update_checkpoint_state"
        ),
        "objects.trackable": "Trackable",
        "manager.training_state": "TrainingState",
        "objects.nodes": "TreeNode",
        "objects.status": "InitializationOnlyStatus LoadStatus NameBasedSaverStatus",
        "objects.trees": "load_tree load_tree_into save_tree save_tree_async",
        "background": "SaveFuture",
        "bundle.load": "MatchReport load load_into restore_v2",
        "bundle.merge": "merge merge_v2_checkpoints",
        "names": "sharded_filename",
        "bundle.reader": "Header Reader open",
        "bundle.saving": "save save_async save_v2",
        "saving.mesh": "Layout Mesh",
        "saving.options": "CheckpointOptions",
        "saving.parallel": "ParallelVariable independent_buffers",
        "saving.policies": (
            "BalancedPolicy MaxShardSizePolicy ShardByDevicePolicy ShardByTaskPolicy"
        ),
        "saving.registration": "register_checkpoint_saver unregister_checkpoint_saver",
        "saving.saver": "Saver",
        "sharded.sharded": "sharded_restore sharded_save sharded_save_async",
        "saving.sharding": "ShardingCallback validate_shards",
        "saving.specs": "DSaveSpec SaveableObject SaveSpec ShardableTensor",
        "slices": "SaveSliceInfo SliceSpec parse_spec",
        "bundle.tensor": "StoredSlice TensorHandle",
        "bundle.verify": "Finding Report verify",
        "bundle.writer": "Writer",
    }.items()
    for name in names.split()
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
        if name.isidentifier() and not name.startswith("_"):
            return importlib.import_module(whole)
    except ModuleNotFoundError as error:
        if error.name != whole:
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@atexit.register
def _end() -> None:
    # Registered on import, so that it runs after the user's exit handlers, which may save.
    background = sys.modules.get(f"{__name__}.background")
    if background is not None:
        background.end()
    waiting = sys.modules.get(f"{__name__}.stores.waiting")
    if waiting is not None:
        waiting.end()


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
