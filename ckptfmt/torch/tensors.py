# SPDX-License-Identifier: Apache-2.0
"""How tensors of every dtype are stored: as a carrier, a tensor over the same memory with a dtype
that the format has, and a note that says what the tensor was."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ckptfmt._base import dtypes
from ckptfmt.bundle import state_tree
from ckptfmt.errors import CorruptError, InvalidError
from ckptfmt.recipe.changes import Changes

# torch's plain form of quantized dtypes.
_PLAIN_NAMES = {
    "qint8": "int8",
    "quint8": "uint8",
    "qint16": "int16",
    "quint16": "uint16",
    "qint32": "int32",
}
# Dtypes that are stored as they are.
PLAIN = frozenset(getattr(torch, name) for name in state_tree.PLAIN_DTYPES)
# Dtypes whose elements torch copies to one another. Of bits and parts of a byte it has no numbers,
# and quantized ones need a quantizer.
_NUMBERS = PLAIN | {torch.complex32, getattr(torch, "float8_e8m0fnu", torch.complex32)}
# Dtypes with all values of those that NumPy or the format lack.
_WIDER = dict.fromkeys(_NUMBERS - PLAIN, torch.float32) | {torch.complex32: torch.complex64}
# The dtype of the values of a quantized tensor.
_QUANTIZED = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
# Quantized dtypes with several elements in a byte.
_PACKED = (torch.quint4x2, torch.quint2x4)


def dtype_named(name: str) -> torch.dtype | None:
    """Return torch's dtype of this name; None if it has none."""
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


def dtype_of(code: int) -> torch.dtype | None:
    """Return the dtype of a carrier for TensorFlow's dtype code; None if torch has none."""
    name = dtypes.name_of(code)
    return dtype_named(_PLAIN_NAMES.get(name, name))


def can_cast(stored: Any, wanted: Any) -> bool:
    """Return whether both are dtypes of numbers, which `casted` converts."""
    return stored in _NUMBERS and wanted in _NUMBERS


def casted(tensor: torch.Tensor, dtype: torch.dtype, name: str, choice: Changes) -> torch.Tensor:
    """Return the values of a tensor with another dtype.

    Raises:
        InvalidError: as `Changes.converted`.
    """
    if tensor.dtype == dtype:
        return tensor
    wide = tensor.detach().cpu().to(_WIDER.get(tensor.dtype, tensor.dtype))
    if dtype is torch.complex32:  # which NumPy lacks
        parts = torch.view_as_real(wide.to(torch.complex128))
        choice.converted(array_of(parts), np.dtype(np.float16), name)
        return wide.to(dtype)
    array = array_of(wide.contiguous())
    goal = dtypes.narrow_dtype(str(dtype).removeprefix("torch.")) if dtype not in PLAIN else None
    goal = dtypes.numpy_dtype(dtypes.code_of(dtype)) if goal is None else goal
    assert goal is not None
    return of_array(choice.converted(array, goal, name), dtype)


def kind_of(
    code: int, shape: tuple[int, ...], note: dict[str, Any]
) -> tuple[torch.dtype | None, tuple[int, ...]]:
    """Return dtype and shape of the tensor that a stored carrier becomes with its note."""
    if "dtype" not in note:
        return dtype_of(code), shape
    dtype = dtype_named(note["dtype"])
    return dtype, shape[:-1] if dtype is torch.complex32 else tuple(note.get("shape", shape))


def note_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Return what the carrier does not say: the dtype, if it is another one, and the quantizer.

    Raises:
        InvalidError: a tensor without data of its own, or of a layout that cannot be stored.
    """
    if tensor.is_nested:
        raise InvalidError(
            "nested tensors cannot be stored: pass list(tensor.unbind()), a list of tensors"
        )
    if tensor.layout is not torch.strided:
        raise InvalidError(f"{tensor.layout} tensors cannot be stored: pass tensor.to_dense()")
    if is_traceable_wrapper_subclass(tensor):
        kind, parts = type(tensor).__name__, " and ".join(tensor.__tensor_flatten__()[0])
        raise InvalidError(
            "a DTensor is saved through ckptfmt.torch.dcp, or whole as tensor.full_tensor()"
            if kind == "DTensor"
            else f"a {kind} is made of other tensors: save its {parts} as tensors of their own, "
            "and make it of them after the load"
        )
    is_fake = type(tensor).__name__ == "FakeTensor"
    if tensor.is_meta or is_fake or torch.nn.parameter.is_lazy(tensor):
        raise InvalidError("the tensor has no data: it is on the meta device or uninitialized")
    dtype = tensor.dtype
    if dtype in PLAIN:
        return {}
    note: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch.")}
    if not tensor.is_quantized:
        return note
    if dtype in _PACKED:
        if tensor.storage_offset() or not tensor.is_contiguous():
            raise InvalidError(f"a view of a {dtype} tensor cannot be stored")
        note["shape"] = list(tensor.shape)
    if tensor.qscheme() is torch.per_tensor_affine:
        return note | {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    return note | {
        "axis": tensor.q_per_channel_axis(),
        "scales": tensor.q_per_channel_scales(),
        "zero_points": tensor.q_per_channel_zero_points(),
    }


def carrier(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of a plain dtype over the same memory. Only lazy conjugates and negatives
    are copied."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype in PLAIN:
        return tensor
    if tensor.dtype is torch.complex32:
        return torch.view_as_real(tensor)
    if not tensor.is_quantized:
        return tensor.view(torch.uint8 if tensor.itemsize == 1 else torch.uint16)
    offset, shape, strides = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    if tensor.dtype in _PACKED:
        shape, strides = (tensor.untyped_storage().nbytes(),), (1,)
    plain = torch.empty(0, dtype=_QUANTIZED.get(tensor.dtype, torch.uint8), device=tensor.device)
    return plain.set_(tensor.untyped_storage(), offset, shape, strides)


def restore(plain: torch.Tensor, note: dict[str, Any]) -> torch.Tensor:
    """Return the tensor of a carrier and its note, over the same memory.

    Args:
        plain: the carrier.
        note: as `note_of`, with tensors for the parameters of channels.

    Raises:
        CorruptError: the note is not one of such a carrier.
    """
    dtype, shape = dtype_named(note["dtype"]), tuple(note.get("shape", plain.shape))
    try:
        if "scale" in note or "axis" in note:
            return _quantized(plain, note, dtype, shape)
        if dtype is torch.complex32 and plain.dtype is torch.float16:
            return torch.view_as_complex(plain)
        if dtype is not None and dtype.itemsize == plain.itemsize:
            return plain.view(dtype)
        reason = f"{note['dtype']} is not stored as {plain.dtype}"
    except (RuntimeError, LookupError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
    raise CorruptError(
        f"the note of what the tensor was does not fit it: {reason}", failure="BAD_ENTRY"
    )


def _quantized(
    plain: torch.Tensor, note: dict[str, Any], dtype: torch.dtype | None, shape: tuple[int, ...]
) -> torch.Tensor:
    if dtype not in _PACKED and (shape != plain.shape or plain.dtype is not _QUANTIZED.get(dtype)):
        raise ValueError(f"{dtype} is not stored as {plain.dtype}")
    if dtype in _PACKED and (plain.ndim != 1 or math.prod(shape) > 4 * plain.nbytes):
        raise ValueError(f"{plain.nbytes} bytes do not hold {dtype} of shape {shape}")
    make: Any
    if "axis" in note:
        make = torch._empty_per_channel_affine_quantized
        quantizer = {key: note[key] for key in ("scales", "zero_points", "axis")}
    else:
        make, quantizer = (
            torch._empty_affine_quantized,
            {key: note[key] for key in ("scale", "zero_point")},
        )
    tensor: torch.Tensor = make(shape, dtype=dtype, device=plain.device, **quantizer)
    if tensor.untyped_storage().nbytes() > plain.nbytes:
        raise ValueError(f"{plain.nbytes} bytes do not hold {dtype} of shape {shape}")
    strides = tensor.stride() if dtype in _PACKED else plain.stride()
    return tensor.set_(plain.untyped_storage(), plain.storage_offset(), shape, strides)


def of_array(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of this dtype over the memory of a contiguous array with elements of the same
    size."""
    if array.dtype.isbuiltin == 2 or array.dtype.names:  # not a dtype of NumPy itself
        array = array.view(f"u{array.dtype.itemsize}")
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype is dtype else tensor.view(dtype)


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return an array over the memory of a tensor of the CPU; the inverse of `of_array`."""
    dtype = dtypes.numpy_dtype(dtypes.code_of(tensor.dtype))
    if dtype is None or dtype.isbuiltin == 1:
        return np.asarray(tensor)
    plain = tensor.view(torch.uint8 if tensor.itemsize == 1 else torch.uint16)
    return np.asarray(plain).view(dtype)


def identity(tensor: torch.Tensor) -> Any:
    """Return a key that is equal for tensors that are the same elements of the same memory."""
    if (
        torch.nn.parameter.is_lazy(tensor)
        or tensor.layout != torch.strided  # sparse or nested: it has several memories
        or tensor.is_nested
        or tensor.is_meta
        or tensor.is_quantized
        or not tensor.numel()
    ):
        return id(tensor)
    return (
        tensor.data_ptr(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.is_conj(),
        tensor.is_neg(),
    )
