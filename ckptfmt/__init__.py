# SPDX-License-Identifier: Apache-2.0
"""ckptfmt: read and write TensorFlow V2 checkpoints, and a better checkpoint format, without any
framework."""

from ckptfmt import tf
from ckptfmt._core import version as _version
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

__version__ = _version()

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
