# SPDX-License-Identifier: Apache-2.0
"""The tensors of an open file under other names and in other layouts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.arguments import invalid
from ckptfmt._base.patterns import Filter, matched
from ckptfmt._base.renaming import (
    Rename,
    Transform,
    check_distinct,
    of_stored,
    renamed,
    transformed,
    transformed_kind,
)
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.formats.tensors import Box, Tensor
from ckptfmt.naming.metadata import NamedInMetadata

WAY_OUT = "drop_metadata=True"
Opened = AbstractContextManager[tuple[dict[str, Any], dict[str, Any]]]


@contextlib.contextmanager
def renamed_tensors(
    opened: Opened, rename: Rename | None, drop: Filter | Sequence[Filter] | None, path: str
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Give the tensors of an open file by their new names, by which the metadata then name them.

    Args:
        opened: a context manager of the tensors and the metadata.
        rename: as in `ckptfmt.load_into`. TensorFlow's object graph keeps its name.
        drop: filters of tensors to leave out.
        path: of the file, for errors.

    Raises:
        TensorNotFoundError: a filter of `drop`, or a name of a mapping `rename`, matches nothing.
        InvalidError: `rename` is malformed, gives two tensors one name, or its transform fails.
    """
    renamed([], rename)  # checks the argument before anything is opened
    with opened as (found, stored_metadata):
        tensors, metadata = found, stored_metadata
        if rename is not None or drop is not None:
            graph = {name: one for name, one in tensors.items() if name == OBJECT_GRAPH_KEY}
            stored = [name for name in tensors if name not in graph]
            left_out = matched("drop", drop, stored, prefix=path)
            rest = [name for name in stored if name not in left_out]
            given, transforms = renamed(rest, of_stored(rename, stored, path))
            found_names = dict(zip(rest, given, strict=True))
            new_names = [found_names.get(name) for name in stored]
            kept = {old: new for old, new in zip(stored, new_names, strict=True) if new is not None}
            if stored and not kept:
                argument = "rename" if drop is None else "drop"
                raise invalid(argument, f"{argument}: no tensor is left", path=path)
            check_distinct(list(kept), list(kept.values()))
            all_names = dict(zip(stored, new_names, strict=True))
            described = NamedInMetadata(stored, metadata, path, way_out=WAY_OUT)
            edited = described.edited(all_names, cut=False, rename=rename)
            metadata = metadata if edited is None else edited
            last: dict[str, NDArray[Any]] = {}
            for old in transforms.keys() & kept.keys():
                tensors[old] = _Transformed(tensors[old], transforms[old], last)
            tensors = {new: tensors[old] for old, new in kept.items()} | graph
        yield tensors, metadata


def is_transformed(tensor: object) -> bool:
    """Return whether the values of a tensor are those that a transform made."""
    return isinstance(tensor, _Transformed)


class _Transformed:
    """A tensor that is transformed when it is read.

    Args:
        tensor: the stored tensor.
        transform: what `rename` gave.
        last: the transformed tensor that was read last, by name: large ones are read box by box.
    """

    def __init__(self, tensor: Tensor, transform: Transform, last: dict[str, NDArray[Any]]) -> None:
        self._tensor, self._transform, self._last = tensor, transform, last
        self.name = tensor.name
        self.dtype, self.shape = transformed_kind(
            tensor.name, tensor.dtype, tensor.shape, transform
        )

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box of the result."""
        if self.name not in self._last:
            self._last.clear()
            array = transformed(self.name, self._tensor.read(), self._transform, self.shape)
            self._last[self.name] = np.ascontiguousarray(array).reshape(self.shape)
        return self._last[self.name][box]
