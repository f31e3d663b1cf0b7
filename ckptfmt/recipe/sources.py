# SPDX-License-Identifier: Apache-2.0
"""The tensors of an open file under other names and in other layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.patterns import Passing
from ckptfmt._base.renaming import CastFirst, Transform, transformed, transformed_kind
from ckptfmt.formats.tensors import Box, Tensor
from ckptfmt.naming.metadata import NamedInMetadata
from ckptfmt.recipe.changes import Changes
from ckptfmt.recipe.plan import Tensors, plan

WAY_OUT = "drop_metadata=True"


class Planned(NamedTuple):
    """Tensors that changes take, by their new names.

    Attributes:
        tensors: with what transforms make of them.
        metadata: by which the new names are.
        casts: the dtypes before and after, of those that a cast changes.
        only_cast: the dtypes of those of them that have no transform.
        uncast: new names of the 0-d tensors of the kind of `cast=DTYPE`, which leaves them.
    """

    tensors: dict[str, Any]
    metadata: dict[str, Any]
    casts: dict[str, tuple[np.dtype[Any], np.dtype[Any]]]
    only_cast: dict[str, np.dtype[Any]]
    uncast: tuple[str, ...]


def planned_tensors(
    tensors: dict[str, Any],
    metadata: dict[str, Any],
    changes: Changes,
    path: str,
    passing: Passing | None,
    *,
    are_values: bool,
) -> Planned:
    """Return the tensors of an open file by their new names, by which the metadata then name them.

    Args:
        are_values: whether the tensors are what their bits stand for, not what is stored.

    Raises:
        TensorNotFoundError, InvalidError: as `plan`; a transform fails; metadata that cannot follow
            the new names.
    """
    stored, rename = list(tensors), changes.rename
    named = rename is not None or changes.drop is not None or changes.keep is not None
    read = named or changes.cast is not None
    described = NamedInMetadata(
        stored, metadata if read else {}, path, way_out=WAY_OUT, are_values=are_values
    )

    def kinds(rows: Sequence[int]) -> tuple[list[Any], list[tuple[int, ...]]]:
        chosen = [tensors[stored[row]] for row in rows]
        unread = [getattr(one, "left_out", None) is not None for one in chosen]
        found = [None if no else one.dtype for one, no in zip(chosen, unread, strict=True)]
        return found, [one.shape for one in chosen]

    found = plan(changes, Tensors(stored, kinds, path, described, passing))
    new_names = found.new_names()
    if named:
        edited = described.edited(new_names, cut=False, rename=rename)
        metadata = metadata if edited is None else edited
    last: dict[str, NDArray[Any]] = {}
    for old, transform in found.transforms.items():
        tensors[old] = _Transformed(tensors[old], transform, last)
    return Planned(
        {new: tensors[old] for old, new in new_names.items() if new is not None},
        metadata,
        {str(new_names[old]): pair for old, pair in found.casts.items()},
        {str(new_names[old]): to for old, to in found.only_cast().items()},
        tuple(str(new_names[old]) for old in found.uncast),
    )


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

    def __init__(
        self, tensor: Tensor, transform: Transform | CastFirst, last: dict[str, NDArray[Any]]
    ) -> None:
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
