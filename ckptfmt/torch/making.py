# SPDX-License-Identifier: Apache-2.0
"""Reading tensors of torch, into those that are given or into new ones, on any device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ckptfmt._base import dtypes
from ckptfmt._base.arrays import batches
from ckptfmt._base.names import tensor_bytes
from ckptfmt._base.progress import Meter, Progress, part_of
from ckptfmt._base.renaming import CastFirst, Transform, transformed, transformed_kind
from ckptfmt._base.targets import as_target
from ckptfmt.bundle.batch import Batch, select_batch
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.state_tree import PARTS
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError
from ckptfmt.torch import tensors
from ckptfmt.torch.structure import Stored, build

# Devices whose memory is read into; data for others goes there in parts of so many bytes.
UNSTAGED, STAGING_BYTES = {"cpu", "meta"}, 256 << 20


class New:
    """Tensors to be made, one for each stored tensor."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._found: dict[str, Any] = {}
        # By stored name and identity of the transform.
        self._transformed: dict[tuple[str, int], tuple[Any, torch.Tensor | None]] = {}
        # By stored name, what takes the tensor, which is not kept.
        self._taken: list[tuple[str, Callable[[torch.Tensor], object]]] = []
        self._built: dict[str, Any] = {}

    def add(self, structure: Any) -> None:
        """Add the tensors of a structure."""

        def add_one(stored: Stored) -> None:
            if stored.transform is not None:
                self._transformed[stored.name, id(stored.transform)] = stored.transform, None
                return
            self._found[stored.name] = None
            for part in PARTS:
                if part in stored.note:
                    add_one(stored.note[part])

        build(structure, add_one)

    def give(self, stored: Stored, take: Callable[[torch.Tensor], object]) -> None:
        """Call a function with a tensor as soon as it is read, without a transform and parts."""
        restore = functools.partial(tensors.restore, note=stored.note) if stored.note else _itself
        self._taken.append((stored.name, lambda plain: take(restore(plain))))

    def read(
        self,
        reader: Reader,
        fills: list[tuple[str, torch.Tensor]],
        progress: Progress | None,
    ) -> None:
        """Read the new tensors, and those that fill existing ones."""
        wanted: list[tuple[str, torch.Tensor | None]] = [*fills]
        if self.device.type == "meta":
            self._found = {name: reader[name] for name in self._found}
        else:
            wanted += [(name, None) for name in self._found]
        size = sum(reader[name].nbytes for name, _ in wanted) if progress is not None else 0
        later = [name for name, _ in (*self._transformed, *self._taken)]
        batch = select_batch(reader, [tensor_bytes(name) for name in later])
        rest = sum(batch.handle(p).nbytes for p in range(len(later))) if progress is not None else 0
        for name, one in _read(reader, wanted, self.device, part_of(progress, 0, rest)):
            self._found[name] = one
        transforms = list(self._transformed.items())
        report = part_of(progress, size, 0)
        for position, array in batch.read_in_parts(range(len(later)), report):
            if position < len(transforms):
                key, (transform, _) = transforms[position]
                made = _transformed(key[0], transform, array).to(self.device)
                self._transformed[key] = transform, made
            else:
                name, take = self._taken[position - len(transforms)]
                dtype = _dtype(name, batch.codes[position])
                assert dtype is not None
                take(tensors.of_array(array, dtype))
            del array  # before the next is read

    def build(self, structure: Any) -> Any:
        """Return the structure with its tensors, once they are read."""
        return build(structure, self._build)

    def _build(self, stored: Stored) -> Any:
        found: Any
        if stored.transform is not None:
            _, found = self._transformed[stored.name, id(stored.transform)]
            is_tensor = stored.kind == "tensor" or self.device.type == "meta"
            return found if is_tensor else _of_numpy(found, stored.kind)
        if stored.name in self._built:
            return self._built[stored.name]
        found, note = self._found[stored.name], stored.note
        if isinstance(found, TensorHandle):
            dtype, shape = tensors.kind_of(found.dtype_code, found.shape, note)
            if dtype is None:
                return np.empty(shape, object)
            found = torch.empty(shape, dtype=dtype, device=self.device)
        elif stored.kind != "tensor":
            found = _of_numpy(found, stored.kind)
        elif note:
            note = {key: self._build(one) if key in PARTS else one for key, one in note.items()}
            found = tensors.restore(found, note)
        self._built[stored.name] = found
        return found


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _of_numpy(tensor: torch.Tensor, kind: str) -> Any:
    """Return the array or scalar of NumPy that was stored."""
    array = tensors.array_of(tensor.cpu())
    return array if kind == "array" else array[()]


def _transformed(
    name: str, transform: Transform | CastFirst, array: np.ndarray[Any, Any]
) -> torch.Tensor:
    """Return what the transform of a tensor makes of its array."""
    _, shape = transformed_kind(name, array.dtype, array.shape, transform)
    result = transformed(name, array, transform, shape)
    # A function may return an array that it keeps.
    copy = None if isinstance(transform, CastFirst) and transform.then is None else True
    result = np.array(result, result.dtype.newbyteorder("="), order="C", copy=copy)
    code = dtypes.code_of_array(result.dtype)
    dtype = None if code is None else tensors.dtype_of(code[0])
    if dtype is None:
        raise InvalidError(f"torch has no dtype {result.dtype}", tensor=name)
    return tensors.of_array(result, dtype)


def _dtype(name: str, code: int) -> torch.dtype | None:
    """Return the dtype of a tensor that is read; None for strings."""
    dtype = tensors.dtype_of(code)
    if dtype is None and dtypes.name_of(code) != dtypes.STRING:
        raise InvalidError(
            f"torch has no dtype {dtypes.name_of(code)}: use ckptfmt.load", tensor=name
        )
    return dtype


def _read(
    reader: Reader,
    wanted: list[tuple[str, torch.Tensor | None]],
    device: torch.device,
    progress: Progress | None,
) -> Iterator[tuple[str, Any]]:
    """Read tensors, into those that are given or into new ones; yield the new ones."""
    batch = select_batch(reader, [tensor_bytes(name) for name, _ in wanted])
    if {device.type, *(fill.device.type for _, fill in wanted if fill is not None)} <= UNSTAGED:
        yield from _read_part(batch, wanted, device, progress)
        return
    sizes = np.array([batch.handle(p).nbytes for p in range(len(wanted))], np.int64)
    meter = Meter(progress, int(sizes.sum()))
    for part in batches(sizes, STAGING_BYTES):
        some = batch.only(list(range(part.start, part.stop)))
        yield from _read_part(some, wanted[part], device, None)
        meter.add(int(sizes[part].sum()))
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _read_part(
    batch: Batch,
    wanted: list[tuple[str, torch.Tensor | None]],
    device: torch.device,
    progress: Progress | None,
) -> Iterator[tuple[str, Any]]:
    kinds = [_dtype(name, code) for (name, _), code in zip(wanted, batch.codes, strict=True)]
    local: dict[int, torch.Tensor] = {}  # what is read into, by position
    for position, (_, fill) in enumerate(wanted):
        dtype, where = kinds[position], device if fill is None else fill.device
        if dtype is not None and where.type == "cuda":
            # torch keeps pinned memory until the copies from it are done.
            shape = batch.handle(position).shape
            local[position] = torch.empty(shape, dtype=dtype, pin_memory=True)
        elif fill is not None and where.type == "cpu":
            local[position] = fill
    batch.targets = {position: as_target(one) for position, one in local.items()}
    batch.check_targets({})
    for position, array in enumerate(batch.read_each(progress)):
        (name, fill), dtype = wanted[position], kinds[position]
        if dtype is None:
            yield name, array
            continue
        found = local[position] if position in local else tensors.of_array(array, dtype)
        if fill is None:
            yield name, found.to(device, non_blocking=True)
        elif fill is not found:
            fill.copy_(found, non_blocking=True)
