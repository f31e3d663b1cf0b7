# SPDX-License-Identifier: Apache-2.0
"""HDF5 files, such as Keras's `.weights.h5`; datasets are tensors, named by their paths."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from ckptfmt._base import dtypes
from ckptfmt.bundle.comparing import pieces
from ckptfmt.errors import InvalidError
from ckptfmt.formats.tensors import Kind, Read, Unreadable

try:
    from ckptfmt.formats.datasets import Dataset, open_datasets, write_datasets
except ImportError as error:
    raise InvalidError(str(error)) from None


# Lists that Keras (2.13 under another name) saves before a model's later attributes: a layer at an
# attribute whose name sorts after `layers` is stored in the list. The optimizer is not a layer.
_LISTS = ("layers", "_layer_checkpoint_dependencies")
_OPTIMIZER = "optimizer"
# Attributes of keras.Model before `layers` that cannot be a layer.
_NOT_LAYERS = (
    *("build", "built", "call", "compute_dtype", "dtype", "dtype_policy", "input", "input_dtype"),
    *("input_spec", "jit_compile"),
)
# Of the layers that do not number their variables, the only one of Keras that ckptfmt knows.
_IDF_WEIGHTS = "idf_weights"


def holds(dtype: np.dtype[Any]) -> bool:
    """Return whether a tensor of this dtype can be written."""
    return dtype.names is None and (dtype.kind == "O" or dtypes.code_of_array(dtype) is not None)


def unlike_keras(kinds: Sequence[Kind]) -> tuple[str, str] | None:
    """Return a tensor, and why no Keras model loads it from a `.weights.h5` file with these
    tensors; None if there can be such a model.

    Keras stores the variables of a layer as "PATH/vars/0", "PATH/vars/1", ...: PATH has the
    attributes that lead from the model to the layer, and in lists the names of classes.
    """
    groups: dict[str, set[str]] = collections.defaultdict(set)
    for kind in kinds:
        group, _, key = f"/{kind.name}".rpartition("/")
        path = group.removesuffix("/vars")
        if path == group or not _is_layer_path(path.split("/")[1:]):
            return kind.name, "Keras does not give a variable this name"
        if kind.dtype.kind not in "biuf" and kind.dtype.name != "bfloat16":
            return kind.name, f"Keras does not load {kind.dtype.name} from such a file"
        groups[group].add(key)
    for group, keys in groups.items():
        numbered = keys - {_IDF_WEIGHTS}
        unlike = numbered - {str(at) for at in range(len(numbered))}
        if unlike:
            name = f"{group}/{min(unlike)}"[1:]
            return name, "Keras numbers the variables of a layer 0, 1, 2, ... without a gap"
    return None


def _is_layer_path(parts: list[str]) -> bool:
    """Return whether Keras can give a layer this path; the model's own is empty."""
    if not all(part.isidentifier() and part != "vars" and part[:2] != "__" for part in parts):
        return False
    if not parts or parts[0] == _OPTIMIZER:
        return True
    if parts[0] in _LISTS:
        return len(parts) > 1 and parts[1] == parts[1].lower()
    return parts[0] < _LISTS[0] and parts[0][0] != "_" and parts[0] not in _NOT_LAYERS


def optimizer_paths(tensors: Mapping[str, Any]) -> list[str]:
    """Return the paths of optimizers in the datasets of a `.weights.h5` file, by the layout of
    Keras: all are variables of layers or of the optimizer, whose first one counts steps."""
    counter = tensors.get(f"{_OPTIMIZER}/vars/0")
    is_keras = all(name.split("/")[-2:-1] == ["vars"] for name in tensors)
    if not is_keras or counter is None or counter.shape or counter.dtype.kind not in "iu":
        return []
    return [_OPTIMIZER]


@contextlib.contextmanager
def open_tensors(
    path: str, *, damaged: bool = False
) -> Iterator[tuple[dict[str, Dataset | Unreadable], dict[str, str]]]:
    """Open a file for the time of a `with` block, as `open_datasets`."""
    with open_datasets(path, _damaged=damaged) as found:
        yield found, {}


def write(path: str, kinds: Sequence[Kind], metadata: Mapping[str, str], read: Read) -> None:
    """Write a file. There is no place for metadata.

    Raises:
        InvalidError: a name that cannot be a path in the file, or is the beginning of another.
        StorageError: the file cannot be written.
    """
    _check_names({kind.name for kind in kinds})
    with write_datasets(path, durability="none") as file:
        for kind in kinds:
            fill = file.create(kind.name, kind.dtype, kind.shape)
            for box in pieces(kind.shape, kind.dtype.itemsize):
                array = read(kind.name, box)
                if array.size:
                    fill(box, array)


def _check_names(names: Set[str]) -> None:
    """Refuse names that cannot be paths in one file, before anything is written."""
    for name in sorted(names):
        parts = name.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        if group := next((one for one in above if one in names), None):
            why = f"{group!r} is a tensor, and cannot be a group as well"
        elif "" in parts:
            why = "a path has no empty part"
        else:
            continue
        raise InvalidError(
            f"HDF5 cannot hold it: {why}; rename=[('[/]', '.')] gives all tensors names that it "
            f"can hold, drop={name!r} leaves this one out",
            tensor=name,
        )
