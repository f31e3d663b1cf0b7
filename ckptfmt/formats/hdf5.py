# SPDX-License-Identifier: Apache-2.0
"""HDF5 files, such as Keras's `.weights.h5`; datasets are tensors, named by their paths."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ckptfmt import dtypes
from ckptfmt.errors import InvalidError
from ckptfmt.formats.tensors import Kind, Read, slabs

try:
    from ckptfmt.hdf5 import Dataset, is_variable_name, open_datasets, write_datasets
except ImportError as error:
    raise InvalidError(str(error)) from None

__all__ = ["holds", "is_variable_name", "open_tensors", "write"]


def holds(dtype: np.dtype[Any]) -> bool:
    """Return whether a tensor of this dtype can be written."""
    return dtype.names is None and (dtype.kind == "O" or dtypes.code_of_array(dtype) is not None)


@contextlib.contextmanager
def open_tensors(path: str) -> Iterator[tuple[dict[str, Dataset], dict[str, str]]]:
    """Open a file for the time of a `with` block; errors as `open_datasets`."""
    with open_datasets(path) as found:
        yield found, {}


def write(path: str, kinds: Sequence[Kind], metadata: Mapping[str, str], read: Read) -> None:
    """Write a file. There is no place for metadata.

    Raises:
        InvalidError: a name that cannot be a path in the file, or is the beginning of another.
        StorageError: the file cannot be written.
    """
    with write_datasets(path, durability="none") as file:
        for kind in kinds:
            fill = file.create(kind.name, kind.dtype, kind.shape)
            for box in slabs(kind.shape, kind.dtype.itemsize):
                array = read(kind.name, box)
                if array.size:
                    fill(box, array)
