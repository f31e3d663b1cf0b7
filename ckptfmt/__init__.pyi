# SPDX-License-Identifier: Apache-2.0
# Written by tools/stubs.py.

from ckptfmt import editing as editing
from ckptfmt import errors as errors
from ckptfmt import huggingface as huggingface
from ckptfmt import report as report
from ckptfmt import safetensors as safetensors
from ckptfmt import sharded as sharded
from ckptfmt import stores as stores
from ckptfmt import tf as tf
from ckptfmt import types as types
from ckptfmt._base.names import sharded_filename as sharded_filename
from ckptfmt._base.slices import SaveSliceInfo as SaveSliceInfo
from ckptfmt.bundle.merge import merge as merge
from ckptfmt.bundle.merge import merge_v2_checkpoints as merge_v2_checkpoints
from ckptfmt.bundle.saving import save as save
from ckptfmt.bundle.saving import save_async as save_async
from ckptfmt.bundle.saving import save_v2 as save_v2
from ckptfmt.bundle.verify import verify as verify
from ckptfmt.bundle.writer import Writer as Writer
from ckptfmt.errors import CheckpointNotFoundError as CheckpointNotFoundError
from ckptfmt.errors import CkptfmtError as CkptfmtError
from ckptfmt.errors import CkptfmtWarning as CkptfmtWarning
from ckptfmt.errors import CorruptError as CorruptError
from ckptfmt.errors import InvalidError as InvalidError
from ckptfmt.errors import StorageError as StorageError
from ckptfmt.errors import TensorNotFoundError as TensorNotFoundError
from ckptfmt.errors import UnsupportedError as UnsupportedError
from ckptfmt.manager.latest import latest_checkpoint as latest_checkpoint
from ckptfmt.manager.manager import CheckpointManager as CheckpointManager
from ckptfmt.manager.retention import KeepBest as KeepBest
from ckptfmt.naming.reader import Reader as Reader
from ckptfmt.naming.reader import open as open
from ckptfmt.objects.checkpoint import Checkpoint as Checkpoint
from ckptfmt.objects.trackable import Trackable as Trackable
from ckptfmt.objects.trees import load_tree as load_tree
from ckptfmt.objects.trees import load_tree_into as load_tree_into
from ckptfmt.objects.trees import save_tree as save_tree
from ckptfmt.objects.trees import save_tree_async as save_tree_async
from ckptfmt.recipe.convert import convert as convert
from ckptfmt.recipe.load import load as load
from ckptfmt.recipe.load import load_into as load_into
from ckptfmt.recipe.load import restore_v2 as restore_v2
from ckptfmt.saving.saver import Saver as Saver
from ckptfmt.saving.specs import SaveSpec as SaveSpec

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
