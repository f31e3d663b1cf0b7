# SPDX-License-Identifier: Apache-2.0
"""The names of TensorFlow's users: `tf.train`'s functions for looking into checkpoints and the
directories that they are in, with the same arguments and answers; the operations and the classes of
its saving side.

Where TensorFlow answers with its own classes, these are numpy dtypes, a CheckpointState and the
errors of this package. Deviations: paths are literal (TensorFlow treats them as patterns), and
`has_tensor` knows only tensors, not the header (`""`) and the keys of slices. Unlike
`ckptfmt.latest_checkpoint`, the one here believes the state file or finds nothing;
`checkpoints_iterator` finds what `ckptfmt.latest_checkpoint` finds.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np

from ckptfmt._base import dtypes, names
from ckptfmt._base.arguments import invalid
from ckptfmt._base.names import path_text, sharded_filename
from ckptfmt._base.slices import SaveSliceInfo, parse_spec
from ckptfmt.bundle.merge import merge_v2_checkpoints
from ckptfmt.bundle.reader import Reader, missing
from ckptfmt.bundle.saving import save_v2
from ckptfmt.errors import (
    CheckpointNotFoundError,
    CkptfmtWarning,
    InvalidError,
    TensorNotFoundError,
)
from ckptfmt.files.locate import locate
from ckptfmt.files.places import is_directory
from ckptfmt.files.state_file import (
    CheckpointState,
    checkpoint_exists,
    get_checkpoint_mtimes,
    get_checkpoint_state,
    remove_checkpoint,
    update_checkpoint_state,
)
from ckptfmt.files.state_paths import state_checkpoint
from ckptfmt.manager.latest import checkpoints_iterator
from ckptfmt.manager.manager import CheckpointManager
from ckptfmt.manager.training_state import TrainingState
from ckptfmt.objects.checkpoint import Checkpoint
from ckptfmt.recipe.load import restore_v2
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

__all__ = [
    "BalancedPolicy",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "CheckpointReader",
    "CheckpointState",
    "DSaveSpec",
    "MaxShardSizePolicy",
    "ParallelVariable",
    "SaveSliceInfo",
    "SaveSpec",
    "SaveableObject",
    "Saver",
    "ShardByDevicePolicy",
    "ShardByTaskPolicy",
    "ShardableTensor",
    "ShardingCallback",
    "TrainingState",
    "checkpoint_exists",
    "checkpoints_iterator",
    "get_checkpoint_mtimes",
    "get_checkpoint_state",
    "independent_buffers",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "merge_v2_checkpoints",
    "parse_spec",
    "register_checkpoint_saver",
    "remove_checkpoint",
    "restore_v2",
    "save_v2",
    "sharded_filename",
    "unregister_checkpoint_saver",
    "update_checkpoint_state",
    "validate_shards",
]


def __dir__() -> list[str]:
    return __all__


Path = str | bytes | os.PathLike[Any]


class CheckpointReader:
    """The result of `load_checkpoint`, with the methods of TensorFlow's class of this name."""

    def __init__(self, prefix: str) -> None:
        self._reader = Reader(prefix)

    def get_tensor(self, tensor_str: str | bytes) -> Any:
        """Return the tensor's value: an array, for a scalar a numpy scalar or bytes. Quantized
        types give plain integers.

        Raises:
            TensorNotFoundError: the checkpoint has no tensor of this name.
        """
        try:
            array = self._reader.read(tensor_str)
        except (TensorNotFoundError, InvalidError):  # not text, or text that no name can be
            if tensor_str in self._reader:
                raise
            error = missing(tensor_str, self._reader.prefix)
            raise self._reader._with_near_names(error) from None
        return dtypes.plain_quantized(array)[()]

    def has_tensor(self, tensor_str: str | bytes) -> bool:
        """Return whether there is a tensor of this name."""
        return tensor_str in self._reader

    def debug_string(self) -> bytes:
        """Return a line `name (DT_FLOAT) [2,3]` for each tensor that is not partitioned.

        TensorFlow also prints the stored slices of partitioned tensors, under their binary keys.
        """
        table = self._reader.table(reserved=True)
        word = dtypes.tensorflow_name_of
        lines = [
            f"{row['name']} (DT_{word(row['dtype_code']).upper()})"
            f" [{','.join(map(str, row['shape']))}]\n"
            for row in table[table["slices"] == 0]
        ]
        return names.tensor_bytes("".join(lines))

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Name to shape, each a list of int, for all tensors."""
        table = self._reader.table(reserved=True)
        return {
            name: list(shape) for name, shape in zip(table["name"], table["shape"], strict=True)
        }

    def get_variable_to_dtype_map(self) -> dict[str, np.dtype[Any] | None]:
        """Name to numpy dtype (strings: object; None for what numpy cannot hold), for all
        tensors."""
        table = self._reader.table(reserved=True)
        return {
            name: dtypes.numpy_dtype(code)
            for name, code in zip(table["name"], table["dtype_code"].tolist(), strict=True)
        }


def load_checkpoint(ckpt_dir_or_file: Path) -> CheckpointReader:
    """Open a checkpoint: a prefix, or a directory whose `checkpoint` file names one.

    Raises:
        InvalidError: a directory without such a file, or one that names a checkpoint that is not
            there.
        CheckpointNotFoundError: no checkpoint of this prefix.
        CorruptError, UnsupportedError, LimitError, StorageError: it is damaged, of an unknown
            version, too large, or cannot be read now.
    """
    path = path_text(ckpt_dir_or_file, "ckpt_dir_or_file", urls=True)
    if is_directory(path):
        newest = state_checkpoint(path)
        if newest is None or not checkpoint_exists(newest):
            raise invalid(
                "ckpt_dir_or_file",
                f"Couldn't find 'checkpoint' file or checkpoints in given directory {path}",
            )
        path = newest
    try:
        return CheckpointReader(path)
    except CheckpointNotFoundError:
        locate(path)  # its error says what the directory holds
        raise


def list_variables(ckpt_dir_or_file: Path) -> list[tuple[str, list[int]]]:
    """(name, shape) of all tensors, sorted by name."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: Path, name: str) -> Any:
    """Return the value of one tensor; a trailing ":0" of the name is dropped."""
    text = names.tensor_name(name, "name")
    return load_checkpoint(ckpt_dir_or_file).get_tensor(text.removesuffix(":0"))


def latest_checkpoint(checkpoint_dir: Path, latest_filename: Path | None = None) -> str | None:
    """Return the newest checkpoint that a directory's state file names, wherever it is; None if
    there is no state file, or (with a CkptfmtWarning) it cannot be read or the checkpoint is not
    there.

    Raises:
        InvalidError: the state names no newest checkpoint.
    """
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None:
        return None
    if not checkpoint_exists(state.model_checkpoint_path):
        warnings.warn(
            f"Couldn't match files for checkpoint {state.model_checkpoint_path}",
            CkptfmtWarning,
            stacklevel=2,
        )
        return None
    return state.model_checkpoint_path
