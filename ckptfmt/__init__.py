# SPDX-License-Identifier: Apache-2.0
"""ckptfmt: read and write TensorFlow V2 checkpoints, and a better checkpoint format, without any
framework.

Importing this loads next to nothing; a name is loaded, with what it needs, when it is first used.
"""

from __future__ import annotations

import _thread
import atexit
import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptfmt import tf
    from ckptfmt.checkpoint_state import CheckpointState
    from ckptfmt.convert import convert
    from ckptfmt.distributed.coordinator import Coordinator, SingleProcess
    from ckptfmt.distributed.directory import DirectoryCoordinator
    from ckptfmt.dtypes import DtypeInfo
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
        ShardMissingError,
        StorageError,
        TensorNotFoundError,
        UnsupportedError,
    )
    from ckptfmt.incremental import CompactionLimits
    from ckptfmt.lifecycle.checkpoint import Checkpoint
    from ckptfmt.lifecycle.latest import checkpoints_iterator, latest_checkpoint
    from ckptfmt.lifecycle.manager import CheckpointManager, Rejected, Restored
    from ckptfmt.lifecycle.retention import KeepBest
    from ckptfmt.lifecycle.state import (
        checkpoint_exists,
        get_checkpoint_mtimes,
        get_checkpoint_state,
        remove_checkpoint,
        update_checkpoint_state,
    )
    from ckptfmt.lifecycle.trackable import Trackable
    from ckptfmt.lifecycle.training_state import TrainingState
    from ckptfmt.lifecycle.tree_nodes import TreeNode
    from ckptfmt.lifecycle.trees import load_tree, save_tree
    from ckptfmt.line import SaveFuture
    from ckptfmt.load import load, restore_v2
    from ckptfmt.matching import MatchReport, load_into
    from ckptfmt.memory import release_memory
    from ckptfmt.merge import merge, merge_v2_checkpoints
    from ckptfmt.names import sharded_filename
    from ckptfmt.reader import Header, Reader, open  # noqa: A004 (as gzip.open)
    from ckptfmt.saving.background import save_async
    from ckptfmt.saving.mesh import Layout, Mesh
    from ckptfmt.saving.options import CheckpointOptions
    from ckptfmt.saving.parallel import ParallelVariable, independent_buffers
    from ckptfmt.saving.policies import (
        BalancedPolicy,
        MaxShardSizePolicy,
        ShardByDevicePolicy,
        ShardByTaskPolicy,
    )
    from ckptfmt.saving.registration import register_checkpoint_saver
    from ckptfmt.saving.saver import Saver
    from ckptfmt.saving.sharded import sharded_restore, sharded_save, sharded_save_async
    from ckptfmt.saving.sharding import ShardableTensor, ShardingCallback, validate_shards
    from ckptfmt.saving.specs import DSaveSpec, SaveableObject, SaveSpec
    from ckptfmt.slices import SaveSliceInfo, SliceSpec, parse_spec
    from ckptfmt.tensor import StoredSlice, TensorHandle
    from ckptfmt.verify import Finding, Report, verify
    from ckptfmt.writer import Writer, save, save_v2

    __version__: str

__all__ = [
    "BalancedPolicy",
    "BusyError",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointNotFoundError",
    "CheckpointOptions",
    "CheckpointState",
    "CkptfmtError",
    "CkptfmtWarning",
    "CompactionLimits",
    "Coordinator",
    "CorruptError",
    "DSaveSpec",
    "DirectoryCoordinator",
    "DtypeInfo",
    "DurabilityUnknownError",
    "Finding",
    "GenerationGoneError",
    "Header",
    "InvalidError",
    "KeepBest",
    "Layout",
    "LimitError",
    "MatchError",
    "MatchReport",
    "MaxShardSizePolicy",
    "MergeConflictError",
    "Mesh",
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
    "checkpoint_exists",
    "checkpoints_iterator",
    "convert",
    "get_checkpoint_mtimes",
    "get_checkpoint_state",
    "independent_buffers",
    "latest_checkpoint",
    "load",
    "load_into",
    "load_tree",
    "merge",
    "merge_v2_checkpoints",
    "open",
    "parse_spec",
    "register_checkpoint_saver",
    "release_memory",
    "remove_checkpoint",
    "restore_v2",
    "save",
    "save_async",
    "save_tree",
    "save_v2",
    "sharded_filename",
    "sharded_restore",
    "sharded_save",
    "sharded_save_async",
    "tf",
    "update_checkpoint_state",
    "validate_shards",
    "verify",
]

# Where each name lives.
_HOMES = {
    name: module
    for module, names in {
        "checkpoint_state": "CheckpointState",
        "convert": "convert",
        "distributed.coordinator": "Coordinator SingleProcess",
        "distributed.directory": "DirectoryCoordinator",
        "dtypes": "DtypeInfo",
        "errors": (
            "BusyError CheckpointNotFoundError CkptfmtError CkptfmtWarning CorruptError "
            "DurabilityUnknownError GenerationGoneError InvalidError LimitError MatchError "
            "MergeConflictError ShardMissingError StorageError TensorNotFoundError "
            "UnsupportedError"
        ),
        "incremental": "CompactionLimits",
        "lifecycle.checkpoint": "Checkpoint",
        "lifecycle.latest": "checkpoints_iterator latest_checkpoint",
        "lifecycle.manager": "CheckpointManager Rejected Restored",
        "lifecycle.retention": "KeepBest",
        "lifecycle.state": (
            "checkpoint_exists get_checkpoint_mtimes get_checkpoint_state "
            "remove_checkpoint update_checkpoint_state"
        ),
        "lifecycle.trackable": "Trackable",
        "lifecycle.training_state": "TrainingState",
        "lifecycle.tree_nodes": "TreeNode",
        "lifecycle.trees": "load_tree save_tree",
        "line": "SaveFuture",
        "load": "load restore_v2",
        "matching": "MatchReport load_into",
        "memory": "release_memory",
        "merge": "merge merge_v2_checkpoints",
        "names": "sharded_filename",
        "reader": "Header Reader open",
        "saving.background": "save_async",
        "saving.mesh": "Layout Mesh",
        "saving.options": "CheckpointOptions",
        "saving.parallel": "ParallelVariable independent_buffers",
        "saving.policies": (
            "BalancedPolicy MaxShardSizePolicy ShardByDevicePolicy ShardByTaskPolicy"
        ),
        "saving.registration": "register_checkpoint_saver",
        "saving.saver": "Saver",
        "saving.sharded": "sharded_restore sharded_save sharded_save_async",
        "saving.sharding": "ShardableTensor ShardingCallback validate_shards",
        "saving.specs": "DSaveSpec SaveableObject SaveSpec",
        "slices": "SaveSliceInfo SliceSpec parse_spec",
        "tensor": "StoredSlice TensorHandle",
        "verify": "Finding Report verify",
        "writer": "Writer save save_v2",
    }.items()
    for name in names.split()
}


# Threads that begin with modules which need each other would see one that is half made: they take
# turns. Who imports a module by its own name holds Python's lock of that and may want this one, so
# that nobody waits for it for ever.
_TURN = _thread.RLock()
_TURN_SECONDS = 5.0


def _begin_turns_again() -> None:
    """In a forked child: nobody is left to give back a turn that a thread of the parent had."""
    global _TURN  # noqa: PLW0603 (there is one package)
    _TURN = _thread.RLock()


os.register_at_fork(after_in_child=_begin_turns_again)

if not TYPE_CHECKING:  # to type checkers it would mean that there is every name

    def __getattr__(name: str) -> Any:
        if name == "__version__" or name in _HOMES:
            turn = _TURN
            mine = turn.acquire(timeout=_TURN_SECONDS)
            try:
                value = _value(name)
            finally:
                if mine:
                    turn.release()
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
    # From here, because what is registered first runs last: a handler of the user's may save.
    line = sys.modules.get(f"{__name__}.line")
    if line is not None:
        line.end()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


class _Package(ModuleType):
    """Some functions have the name of the module that they live in. Importing that module sets the
    name to it; here it stays the function, or what a user has set, whoever imports what first."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _HOMES.get(name) == name:
            value = vars(self).get(name, getattr(value, name))
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
