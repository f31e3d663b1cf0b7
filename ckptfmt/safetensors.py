# SPDX-License-Identifier: Apache-2.0
"""Tensors of safetensors files and of our checkpoints through one interface, that of the
safetensors library: `safe_open`, `load_file` and `save_file`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes
from ckptfmt._base.adapters import refused
from ckptfmt._base.arguments import check_choice, check_order, invalid, wrong
from ckptfmt._base.arrays import as_source
from ckptfmt._base.casting import cast, dtype_text
from ckptfmt._base.hints import near
from ckptfmt._base.names import path_text
from ckptfmt.bundle.indexing import box_of
from ckptfmt.bundle.meanings import meant
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.reader import open as open_checkpoint
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError, TensorNotFoundError
from ckptfmt.files.temporary import open_directory, replacing_file
from ckptfmt.formats import safetensors
from ckptfmt.formats.tensors import Box, Kind
from ckptfmt.recipe.sources import format_of

__all__ = ["load_file", "safe_open", "save_file"]


def __dir__() -> list[str]:
    return __all__


Path = str | bytes | os.PathLike[Any]
Framework = Literal["np", "numpy", "pt", "torch", "jax", "flax"]


class safe_open:  # noqa: N801 (the name that users know)
    """An open safetensors file, model of several files, or checkpoint of ours.

    Args:
        path: a safetensors file, its index, a directory with either, or what `ckptfmt.open` takes.
        framework: whose arrays are returned: "numpy" ("np"), "torch" ("pt") or "jax" ("flax").
        device: where arrays of torch and JAX are put, as `torch.Tensor.to` and the platform of
            `jax.devices` take it.

    Raises:
        CheckpointNotFoundError, StorageError, CorruptError, LimitError, UnsupportedError: the file
            cannot be read, or is not sound.
        InvalidError: an argument.
    """

    def __init__(self, path: Path, framework: Framework = "np", device: str = "cpu") -> None:
        check_choice("framework", framework, get_args(Framework))
        self._convert = _converter(framework, device)
        self._stack = contextlib.ExitStack()
        text = path_text(path, "path", urls=True)
        if format_of(text, exists=True) == "safetensors":
            text = path_text(path, "path")  # a file, not a checkpoint of a store
            opened = self._stack.enter_context(safetensors.open_tensors(text))
            self._tensors: Mapping[str, Any] = opened[0]
            self._metadata = opened[1]
        else:
            reader: Reader = self._stack.enter_context(open_checkpoint(text))
            self._tensors = reader
            self._metadata = {
                name: value if isinstance(value, str) else json.dumps(value)
                for name, value in reader.metadata.items()
            }

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._stack.close()

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return sorted(self._tensors)

    def offset_keys(self) -> list[str]:
        """Return the names in the order of the bytes, of checkpoints in the order of the names."""
        return list(self._tensors)

    def metadata(self) -> dict[str, str] | None:
        """Return the metadata; None if there is none. Values of checkpoints that are not text are
        JSON."""
        return dict(self._metadata) or None

    def get_tensor(self, name: str) -> Any:
        """Return a tensor. Raises TensorNotFoundError, and what reading raises."""
        return self._convert(self._find(name).read())

    def get_slice(self, name: str) -> _Slice:
        """Return a tensor to index, which reads a part of it."""
        return _Slice(self, self._find(name))

    def _find(self, name: str) -> Any:
        if name not in self._tensors:
            raise TensorNotFoundError(f"no such tensor{near(name, self._tensors)}", tensor=name)
        found = self._tensors[name]
        return meant(found) if isinstance(found, TensorHandle) else found


class _Slice:
    """A tensor of which parts are read, as safetensors' `PySafeSlice`."""

    def __init__(self, file: safe_open, tensor: Any) -> None:
        self._file = file  # open as long as a slice of it is used
        self._tensor, self._convert = tensor, file._convert

    def get_shape(self) -> list[int]:
        """Return the sizes of the dimensions."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Return the dtype as safetensors names it, such as "F32"; others as NumPy does."""
        if isinstance(self._tensor, safetensors.FileTensor):
            return self._tensor.code
        dtype = self._tensor.dtype
        return (safetensors.code_of(dtype) if dtype is not None else None) or str(dtype)

    def __getitem__(self, key: Any) -> Any:
        """Return the part that basic indexing (integers, slices, an ellipsis) names."""
        if isinstance(self._tensor, TensorHandle):
            return self._convert(np.asarray(self._tensor[key]))
        box = box_of(key, self._tensor.shape)
        parts = zip(box.start, box.shape, strict=True)
        array = self._tensor.read(tuple(slice(start, start + size) for start, size in parts))
        return self._convert(np.asarray(array[box.rest]))


def _converter(framework: Framework, device: str) -> Any:
    if framework in ("np", "numpy"):
        if device != "cpu":
            raise invalid("device", f"device: numpy arrays are in CPU memory, not on {device!r}")
        return np.asarray
    if framework in ("pt", "torch"):
        import torch  # noqa: PLC0415 (only for this framework)

        def to_torch(array: NDArray[Any]) -> Any:
            if array.dtype.name == dtypes.FP4:
                if not safetensors.has_pairs(array.shape):
                    raise InvalidError(f"torch has pairs of {array.dtype} in the last dimension")
                pairs = torch.from_numpy(dtypes.packed_fp4(array))
                return pairs.view(torch.float4_e2m1fn_x2).to(device)
            dtype = getattr(torch, array.dtype.name, None)
            if dtype is None:
                raise InvalidError(f"torch cannot hold {dtype_text(array.dtype)}")
            raw = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            return raw.view(dtype).reshape(array.shape).to(device)

        return to_torch
    import jax  # noqa: PLC0415 (only for this framework)

    def to_jax(array: NDArray[Any]) -> Any:
        if array.dtype.kind in "OS":
            raise InvalidError("jax cannot hold strings")
        dtype = jax.dtypes.canonicalize_dtype(array.dtype)
        result, losses = cast(array, dtype, tensor="", allow_loss=True)
        if losses is not None and losses.changed:
            raise InvalidError(
                f"values of {array.dtype} do not fit {dtype}, which jax makes of it as long as "
                "jax_enable_x64 is off"
            )
        return jax.device_put(result, jax.devices(device)[0])

    return to_jax


def load_file(path: Path) -> dict[str, NDArray[Any]]:
    """Return all tensors of a safetensors file, or of anything that `safe_open` takes."""
    with safe_open(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def save_file(
    tensors: Mapping[str, Any], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file, all or nothing and synced.

    Args:
        tensors: arrays by name, of any framework (in CPU memory).
        path: of the file.
        metadata: texts.

    Raises:
        InvalidError: an array of a dtype that safetensors lacks, or a name that is not UTF-8;
            metadata that are not texts; an index of several files has this file's name, so that
            loaders might read that.
        StorageError, DurabilityUnknownError: as in `ckptfmt.save`.
    """
    check_order("save_file(tensors, path)", "path", path, tensors)
    if not isinstance(tensors, Mapping):
        raise refused("tensors must be a mapping of names to arrays", tensors, "tensors")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise wrong("metadata", "a mapping of texts", metadata)
    for one in (text for pair in (metadata or {}).items() for text in pair):
        if not isinstance(one, str):
            raise wrong("a name or value in metadata", "a str", one, "metadata")
    arrays = {name: _source(value) for name, value in tensors.items()}
    for name, array in arrays.items():
        if not safetensors.holds(array.dtype.newbyteorder("=")):
            raise InvalidError(f"safetensors cannot hold {array.dtype}", tensor=name)
    kinds = [Kind(name, one.dtype.newbyteorder("="), one.shape) for name, one in arrays.items()]
    text = path_text(path, "path")
    safetensors.refuse_beside(text, is_split=False)
    with (
        open_directory(os.path.dirname(text)) as directory,
        replacing_file(directory, text, "full") as (temporary, _),
    ):
        safetensors.write(
            temporary,
            kinds,
            metadata or {},
            lambda name, box: arrays[name][box].astype(arrays[name].dtype.newbyteorder("=")),
        )


class _Pairs:
    """The values of torch's pairs of FP4."""

    def __init__(self, pairs: NDArray[np.uint8]) -> None:
        self._pairs, self.dtype = pairs, dtypes.narrow_dtype(dtypes.FP4)
        self.shape = (*pairs.shape[:-1], 2 * pairs.shape[-1])

    def __getitem__(self, box: Box) -> NDArray[Any]:
        if len(box) == len(self.shape):  # of pairs: a part of a row begins and ends at even places
            box = (*box[:-1], slice(box[-1].start // 2, box[-1].stop // 2))
        return dtypes.unpacked_fp4(self._pairs[box])


def _source(value: Any) -> Any:
    if str(getattr(value, "dtype", "")) == "torch.float4_e2m1fn_x2" and value.ndim:
        return _Pairs(as_source(value.view(sys.modules["torch"].uint8)))
    return as_source(value)
