# SPDX-License-Identifier: Apache-2.0
"""ckptfmt: read and write TensorFlow V2 checkpoints, and a better checkpoint format, without any
framework."""

from ckptfmt import tf
from ckptfmt._core import version as _version
from ckptfmt.dtypes import DtypeInfo
from ckptfmt.errors import (
    BusyError,
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    DurabilityUnknownError,
    GenerationGoneError,
    InvalidError,
    LimitError,
    MergeConflictError,
    ShardMissingError,
    StorageError,
    TensorNotFoundError,
    UnsupportedError,
)
from ckptfmt.load import load, restore_v2
from ckptfmt.merge import merge, merge_v2_checkpoints
from ckptfmt.names import sharded_filename
from ckptfmt.reader import Header, Reader, open  # noqa: A004 (as gzip.open)
from ckptfmt.slices import SaveSliceInfo, SliceSpec, parse_spec
from ckptfmt.tensor import StoredSlice, TensorHandle
from ckptfmt.verify import Finding, Report, verify
from ckptfmt.writer import Writer, save, save_v2

__version__ = _version()

__all__ = [
    "BusyError",
    "CheckpointNotFoundError",
    "CkptfmtError",
    "CorruptError",
    "DtypeInfo",
    "DurabilityUnknownError",
    "Finding",
    "GenerationGoneError",
    "Header",
    "InvalidError",
    "LimitError",
    "MergeConflictError",
    "Reader",
    "Report",
    "SaveSliceInfo",
    "ShardMissingError",
    "SliceSpec",
    "StorageError",
    "StoredSlice",
    "TensorHandle",
    "TensorNotFoundError",
    "UnsupportedError",
    "Writer",
    "load",
    "merge",
    "merge_v2_checkpoints",
    "open",
    "parse_spec",
    "restore_v2",
    "save",
    "save_v2",
    "sharded_filename",
    "tf",
    "verify",
]
