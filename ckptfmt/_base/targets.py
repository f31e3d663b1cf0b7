# SPDX-License-Identifier: Apache-2.0
"""The array seam of loading: the only place that decides what memory a load may write.

Memory is written if its framework lets users write it and no two elements share any of it: numpy
arrays, buffers, torch tensors, and objects of other frameworks whose DLPack capsule says that it
may be written. `is_immutable` says which arrays a container gets anew instead. All else is refused,
before anything is written. `docs/loading.md` has the table, and a test goes through its cells.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base import dtypes
from ckptfmt._base.arrays import describe, dlpack_array, has_dlpack, has_lost_memory
from ckptfmt.errors import InvalidError

READ_ONLY = "it is read-only: use ckptfmt.load, which returns new arrays"


class Target(NamedTuple):
    """Memory to read into.

    Attributes:
        array: a numpy array over it, of any strides and byte order.
        tensor: the torch tensor that it belongs to; None for anything else.
    """

    array: NDArray[Any]
    tensor: Any = None

    def mark_written(self) -> None:
        """Report the write that follows to torch, whose autograd refuses to compute with values
        that it saved and that were overwritten since."""
        if self.tensor is not None and not self.tensor.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(self.tensor)


def as_target(data: Any) -> Target:
    """Return the memory of `data`, to read into.

    Args:
        data: a numpy array, torch tensor or other DLPack object in CPU memory, or a buffer; it need
            not be contiguous.

    Raises:
        InvalidError: not memory that may be written.
    """
    tensor = None
    if type(data) is np.ndarray and (flags := data.flags).c_contiguous and flags.writeable:
        return Target(data)  # most are
    if isinstance(data, np.ndarray):
        array, reason = data, _numpy_refusal(data)
    elif (torch := _framework("torch", "Tensor", data)) is not None:
        reason = torch_refusal(torch, data)
        if reason is None:
            tensor = data.detach()
            array, _ = _exported(data, tensor)
    elif (reason := _other_refusal(data)) is not None:
        array = np.empty(0)
    elif has_dlpack(data):
        array, copied = _exported(data, data)
        if copied or not array.flags.writeable:
            reason = READ_ONLY
    elif hasattr(data, "__array_interface__") and not isinstance(data, np.generic):
        array = np.asarray(data)
        reason = None if array.flags.writeable else READ_ONLY
    else:
        array, reason = _buffer(data)
    if reason is None and overlaps_itself(array):
        reason = "its elements share memory: use ckptfmt.load, which returns new arrays"
    if reason is not None:
        raise InvalidError(f"cannot read into {describe(data)}: {reason}")
    return Target(array, tensor)


def _exported(data: Any, exporter: Any) -> tuple[NDArray[Any], bool]:
    is_torch = exporter is not data
    try:
        return dlpack_array(exporter, writable=is_torch)
    except InvalidError as error:
        call = "ckptfmt.torch.load_into" if is_torch else "ckptfmt.load"
        raise InvalidError(
            f"cannot read into {describe(data)}: {error.message}; use {call}"
        ) from None


def _framework(module: str, kind: str, data: Any) -> Any:
    """Return a module that is imported already, if `data` is of a class of it; else None."""
    found = sys.modules.get(module)
    one = getattr(found, kind, None)
    return found if isinstance(one, type) and isinstance(data, one) else None


def _numpy_refusal(array: NDArray[Any]) -> str | None:
    if isinstance(array, np.ma.MaskedArray):
        return "a masked array has a mask beside its values: pass its .data"
    if not array.flags.writeable:
        return "it is read-only (array.flags.writeable): use ckptfmt.load, which returns new arrays"
    return None


def _buffer(data: Any) -> tuple[NDArray[Any], str | None]:
    nothing = np.empty(0)
    if is_variable(type(data)):
        return nothing, "it is a variable: call its assign with an array of ckptfmt.load"
    try:
        view = memoryview(data)
        if view.readonly:
            return nothing, READ_ONLY
        return np.asarray(view), None
    except (TypeError, ValueError) as error:
        return nothing, (
            f"the destination must be writable CPU memory, of a numpy array, a torch tensor, a "
            f"DLPack object or a buffer ({error})"
        )


def _other_refusal(data: Any) -> str | None:
    """Return why memory of a framework that is not torch may not be written, as far as the type
    says it; None otherwise."""
    if _framework("jax", "Array", data) is not None:
        return "a jax.Array is immutable: use ckptfmt.jax.load, which returns new arrays"
    if _framework("tensorflow", "Tensor", data) is not None:
        return (
            "a tf.Tensor is immutable: use a tf.Variable, and call its assign with an array of "
            "ckptfmt.load"
        )
    return None


def _is_transformed(torch: Any, tensor: Any) -> bool:
    found = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", None)
    return found is not None and bool(found(tensor))


# torch says some of this only under names that are private (tested with 2.6 and 2.13).
# In this order: whether it is true of a tensor, why that cannot be written, and a way out.
_Reason = tuple[Callable[[Any, Any], bool], str]
_TORCH: tuple[_Reason, ...] = (
    (
        lambda _, one: one.is_nested,
        "a nested tensor has values of several shapes: load into its tensor.values()",
    ),
    (
        lambda _, one: type(one).__name__ == "DTensor",
        "a DTensor is sharded: use torch.distributed.checkpoint with ckptfmt.torch.dcp",
    ),
    (
        lambda _, one: type(one).__name__ == "FakeTensor",
        "a FakeTensor has no data: make the tensor outside of FakeTensorMode",
    ),
    (
        lambda _, one: hasattr(type(one), "__tensor_flatten__"),
        "a {kind} is made of other tensors: load into these",
    ),
    (
        _is_transformed,
        "a tensor inside of a transform of torch.func has no memory of its own: load before",
    ),
    (
        lambda torch, one: torch.nn.parameter.is_lazy(one),
        "a lazy parameter has no data: use ckptfmt.torch.load_into on its module",
    ),
    (
        lambda torch, one: one.layout is not torch.strided,
        "its layout is {layout}: replace it in the model by tensor.to_dense()",
    ),
    (
        lambda _, one: one.is_meta,
        "it is on the meta device: use ckptfmt.torch.load_into, which replaces it",
    ),
    (
        lambda torch, one: one.is_inference() and not torch.is_inference_mode_enabled(),
        "an inference tensor is written in torch.inference_mode() only: load inside of it",
    ),
    (
        lambda _, one: one._is_zerotensor(),
        "it is an immutable tensor of zeros: replace it in the model by tensor.clone()",
    ),
    (
        lambda _, one: has_lost_memory(one),
        "its storage was resized and no longer holds it: load once it does again",
    ),
    (
        lambda _, one: _overlap(list(zip(one.shape, one.stride(), strict=True)), 1),
        "it is expanded, so that elements share memory: replace it in the model by tensor.clone()",
    ),
)
# Of what only ckptfmt.torch.load_into can load into.
_TORCH_PLAIN: tuple[_Reason, ...] = (
    (
        lambda _, one: one.device.type != "cpu",
        "it is in the memory of {device}: use ckptfmt.torch.load_into",
    ),
    (
        lambda _, one: one.is_quantized,
        "a quantized tensor is replaced, not written: use ckptfmt.torch.load_into",
    ),
    (
        lambda _, one: one.is_conj() or one.is_neg(),
        "it is a lazy conjugate or negative of other values: use ckptfmt.torch.load_into",
    ),
)


def torch_refusal(torch: Any, tensor: Any, *, plain: bool = True) -> str | None:
    """Return why a torch tensor cannot be loaded into, in torch's words and with a way out; None if
    it can be.

    Args:
        torch: the module.
        tensor: the tensor.
        plain: whether its elements must be in the memory of the CPU as they are.
    """
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided:
        # Most tensors are plain: a few calls say so.
        is_plain = tensor.device.type == "cpu" and tensor.is_contiguous()
        if is_plain and not (
            tensor.is_quantized
            or tensor.is_nested
            or tensor.is_conj()
            or tensor.is_neg()
            or tensor.is_inference()
            or tensor._is_zerotensor()
            or _is_transformed(torch, tensor)
            or has_lost_memory(tensor)
        ):
            return None
    for is_true, text in (*_TORCH, *_TORCH_PLAIN) if plain else _TORCH:
        if is_true(torch, tensor):
            named = {
                "kind": type(tensor).__name__,
                "layout": tensor.layout,
                "device": tensor.device,
            }
            return text.format(**named)
    return None


# ---- variables -----------------------------------------------------------------------------------


def is_variable(kind: type) -> bool:
    """Return whether objects of this type are variables of TensorFlow or Keras, which take new
    values by their `assign`."""
    return any(
        isinstance(one := getattr(sys.modules.get(module), "Variable", None), type)
        and issubclass(kind, one)
        for module in ("tensorflow", "keras")
    )


def variable_kind(variable: Any) -> tuple[np.dtype[Any] | None, tuple[int | None, ...] | None]:
    """Return the dtype and shape of the arrays that a variable takes; None where any, also for a
    size."""
    name = getattr(variable.dtype, "name", variable.dtype)
    shape = tuple(variable.shape) if getattr(variable.shape, "rank", 0) is not None else None
    return dtypes.numpy_dtype(dtypes.code_of(str(name))), shape


# ---- arrays that a container gets anew -----------------------------------------------------------


def is_immutable(data: Any) -> bool:
    """Return whether an array is not written, but replaced in the container that holds it:
    read-only numpy arrays and buffers, numpy strings, ranges, JAX's."""
    if isinstance(data, np.ndarray):
        return not data.flags.writeable or data.dtype.kind in "SUT"
    if isinstance(data, memoryview):
        return data.readonly
    if _framework("jax", "Array", data) is not None:
        return isinstance(data.dtype, np.dtype)  # typed PRNG keys have one of JAX's own
    return isinstance(data, range)


def like_of(data: Any) -> Callable[[NDArray[Any]], Any] | None:
    """Return the function that makes of a new numpy array what replaces `data`; None if that is the
    array itself."""
    jax = _framework("jax", "Array", data)
    if jax is None:
        return None
    try:
        sharding = data.sharding if getattr(data, "committed", True) else None
    except Exception as error:  # of JAX, for a traced array
        raise InvalidError(
            f"cannot replace {describe(data)}: {str(error).partition(chr(10))[0]}; load outside of "
            "jax.jit"
        ) from None
    return lambda array: jax.device_put(array, sharding)


# ---- elements that share memory ------------------------------------------------------------------

# Elements of an array with unusual strides whose addresses are compared one by one; larger ones
# count as overlapping.
ADDRESSES_MAX = 1 << 20


def overlaps_itself(array: NDArray[Any]) -> bool:
    """Return whether two elements of an array share memory."""
    if array.flags.c_contiguous or array.flags.f_contiguous:
        return False
    return _overlap(list(zip(array.shape, array.strides, strict=True)), array.itemsize)


def _overlap(extents: list[tuple[int, int]], itemsize: int) -> bool:
    """Return whether two elements share memory, given size and stride of each dimension."""
    extents = sorted(((size, abs(step)) for size, step in extents if size != 1), key=lambda e: e[1])
    if any(size == 0 for size, _ in extents):
        return False
    reach = itemsize
    for size, step in extents:
        if step < reach:
            break
        reach = step * (size - 1) + reach
    else:
        return False
    if extents[0][1] == 0 or math.prod(size for size, _ in extents) > ADDRESSES_MAX:
        return True
    addresses = np.zeros(1, np.int64)
    for size, step in extents:
        addresses = np.add.outer(addresses, np.arange(size) * step).ravel()
    addresses.sort()
    return bool((np.diff(addresses) < itemsize).any())


def check_overlaps(targets: Iterable[tuple[str, NDArray[Any], Any]]) -> None:
    """Refuse arrays to read into that share memory, unless they are the same elements and receive
    the same bytes.

    Args:
        targets: name, array, and a key that is equal for equal bytes (None: for no other tensor).

    Raises:
        InvalidError: names two that overlap.
    """
    spans = [
        (*_byte_bounds(array), name, array, content)
        for name, array, content in targets
        if array.size
    ]
    spans.sort(key=operator.itemgetter(0))
    open_spans: list[tuple[int, int, str, NDArray[Any], Any]] = []
    for span in spans:
        begin, _, name, array, content = span
        open_spans = [other for other in open_spans if other[1] > begin]
        for _, _, other_name, other, other_content in open_spans:
            if same_elements(array, other) and content is not None and content == other_content:
                continue
            if share_memory(array, other):
                raise InvalidError(
                    f"shares memory with the array for '{other_name}', and may have other values: "
                    "load only one of them",
                    tensor=name,
                )
        open_spans.append(span)


def _byte_bounds(array: NDArray[Any]) -> tuple[int, int]:
    """Return the addresses of an array's first byte and of the first one after it."""
    low = high = _core.address(array)
    for size, stride in zip(array.shape, array.strides, strict=True):
        low += min(stride, 0) * (size - 1)
        high += max(stride, 0) * (size - 1)
    return low, high + array.itemsize


def same_elements(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays are the same view of the same memory."""
    return (
        _core.address(one) == _core.address(other)
        and one.shape == other.shape
        and one.dtype == other.dtype
        and _steps(one) == _steps(other)
    )


def _steps(array: NDArray[Any]) -> list[int]:
    return [step for size, step in zip(array.shape, array.strides, strict=True) if size != 1]


# Steps to solve for a common element of two strided arrays; beyond, they count as overlapping.
WORK_MAX = 10_000


def share_memory(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays have elements in common, or may have where that is hard to find
    out."""
    try:
        return bool(np.shares_memory(one, other, max_work=WORK_MAX))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
