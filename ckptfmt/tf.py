# SPDX-License-Identifier: Apache-2.0
"""`tf.train`'s functions for looking into checkpoints, without TensorFlow: the same arguments and
answers.

Where TensorFlow answers with its own classes, these are numpy dtypes and the errors of this
package. Deviations: paths are literal (TensorFlow treats them as patterns), and `has_tensor` knows
only tensors, not the header (`""`) and the keys of slices.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ckptfmt import dtypes, names
from ckptfmt.errors import InvalidError
from ckptfmt.locate import path_text, state_checkpoint
from ckptfmt.reader import Reader, missing

__all__ = [
    "CheckpointReader",
    "checkpoint_exists",
    "list_variables",
    "load_checkpoint",
    "load_variable",
]

Path = str | bytes | os.PathLike[Any]


class CheckpointReader:
    """What `load_checkpoint` returns; the methods of TensorFlow's class of this name."""

    def __init__(self, prefix: str) -> None:
        self._reader = Reader(prefix)

    def get_tensor(self, tensor_str: str | bytes) -> Any:
        """The tensor's value: an array, for a scalar a numpy scalar or bytes. Quantized types give
        plain integers.

        Raises:
            TensorNotFoundError: there is none of this name.
        """
        if tensor_str not in self._reader:
            raise missing(tensor_str, self._reader.prefix)
        return dtypes.plain_quantized(self._reader[tensor_str].read())[()]

    def has_tensor(self, tensor_str: str | bytes) -> bool:
        """True if there is a tensor of this name."""
        return tensor_str in self._reader

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
    """Opens a checkpoint: a prefix, or a directory whose `checkpoint` file names one.

    Raises:
        InvalidError: a directory without such a file, or one that names a checkpoint that is not
            there.
        CheckpointNotFoundError: no checkpoint of this prefix.
        What `ckptfmt.open` raises.
    """
    path = path_text(ckpt_dir_or_file)
    if os.path.isdir(path):
        newest = state_checkpoint(path)
        if newest is None or not checkpoint_exists(newest):
            raise InvalidError(
                f"Couldn't find 'checkpoint' file or checkpoints in given directory {path}"
            )
        path = newest
    return CheckpointReader(path)


def list_variables(ckpt_dir_or_file: Path) -> list[tuple[str, list[int]]]:
    """(name, shape) of all tensors, sorted by name."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: Path, name: str) -> Any:
    """The value of one tensor; a trailing ":0" of the name is dropped."""
    text = names.tensor_text(names.tensor_bytes(name))
    return load_checkpoint(ckpt_dir_or_file).get_tensor(text.removesuffix(":0"))


def checkpoint_exists(checkpoint_prefix: Path) -> bool:
    """True if `<prefix>.index` exists, or, as for TensorFlow, anything at the prefix itself."""
    prefix = path_text(checkpoint_prefix)
    return os.path.exists(names.index_name(prefix)) or os.path.exists(prefix)
