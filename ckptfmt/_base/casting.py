# SPDX-License-Identifier: Apache-2.0
"""Casting values: what a cast may change, and what it loses.

A cast rounds floating-point and complex numbers, also to subnormal ones and to 0. It keeps all
other values: an integer that does not fit, a fraction that becomes an integer, a finite number that
becomes infinite are losses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import invalid

_PART = 1 << 17  # elements
# By kind of `kind_of`, in words.
KINDS = {"f": "floating-point", "i": "integer", "c": "complex"}


def cast_dtype(name: Any) -> np.dtype[Any]:
    """Return the dtype that a `cast` argument names.

    Raises:
        InvalidError: not a dtype of numbers.
    """
    found = dtypes.numpy_dtype(dtypes.code_of(name, "cast"))
    if found is None or found.kind == "O":
        raise invalid("cast", f"cast: {name!r} is not a dtype of numbers")
    return found


def cast_dtypes(given: Mapping[Any, Any]) -> dict[Any, np.dtype[Any] | None]:
    """Return the dtypes that a mapping `cast` names, by its keys; None leaves tensors as they are.

    Raises:
        InvalidError: as `cast_dtype`.
    """
    return {key: None if one is None else cast_dtype(one) for key, one in given.items()}


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype for people."""
    if dtype.kind == "O":
        return "strings"
    return dtype.names[0] if dtype.names else dtype.name


def kind_of(dtype: np.dtype[Any]) -> str:
    """Return "f", "i" (signed or not), "c" or "b" for a dtype of numbers, those of ml_dtypes
    included; "" for others, such as quantized ones."""
    if dtype.kind in "fcbiu":
        return "i" if dtype.kind == "u" else dtype.kind
    if dtype.name.startswith(("bfloat", "float")):
        return "f"
    return "i" if dtype.name.startswith(("int", "uint")) else ""


def _element(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the integers of a quantized dtype; any other dtype unchanged."""
    return dtype[0] if dtype.names and dtype.names[0] in dtypes.QUANTIZED else dtype


def can_cast(stored: Any, wanted: Any) -> bool:
    """Return whether both are dtypes of numbers, quantized ones included."""
    return all(isinstance(one, np.dtype) and kind_of(_element(one)) for one in (stored, wanted))


def check_castable(name: str, stored: Any, wanted: np.dtype[Any]) -> None:
    """Refuse a cast from or to a dtype that is not of numbers; None is one that NumPy lacks."""
    # NumPy compares None equal to float64.
    if (stored is None or stored != wanted) and not can_cast(stored, wanted):
        kind = "a dtype that NumPy lacks" if stored is None else dtype_text(stored)
        raise invalid("cast", f"cannot cast {kind} to {dtype_text(wanted)}", tensor=name)


def of_kind(
    wanted: np.dtype[Any],
    names: Sequence[str],
    stored: Sequence[np.dtype[Any] | None],
    shapes: Sequence[tuple[int, ...]],
    *,
    is_part: bool = False,
) -> tuple[list[int], tuple[str, ...]]:
    """Return the positions of the tensors that `cast=DTYPE` means, which are those of its kind with
    at least one dimension, and the names of the 0-d tensors of its kind,
    which it leaves.

    Raises:
        InvalidError: there are tensors, which are not a part of more, and it means none.
    """
    kind = kind_of(wanted)
    same = [i for i, one in enumerate(stored) if one is not None and kind and kind_of(one) == kind]
    scalars = tuple(names[i] for i in same if shapes[i] == () and stored[i] != wanted)
    found = [i for i in same if shapes[i] != ()]
    if names and not found and not is_part:
        text = dtype_text(wanted)
        message = f"cast={text!r} casts {KINDS.get(kind, 'no')} tensors with at least one dimension"
        if scalars:
            message += f", and only 0-d ones match: cast={{{scalars[0]!r}: {text!r}}} casts one"
        elif all(one is None for one in stored):
            message += ", and none of these tensors can be cast: load them without it"
        else:
            message += ", and none matches: a mapping from names to dtypes casts others"
        raise invalid("cast", message)
    return found, scalars


class Losses(NamedTuple):
    """What a cast lost.

    Attributes:
        changed: elements that changed by more than rounding.
        zeros: floating-point and complex elements that became 0 by rounding.
    """

    changed: int = 0
    zeros: int = 0

    def __add__(self, other: Losses) -> Losses:  # type: ignore[override]
        return Losses(self.changed + other.changed, self.zeros + other.zeros)


def counts_of(losses: Mapping[str, Losses]) -> tuple[dict[str, int], dict[str, int]]:
    """Return by name how many elements casts changed by more than rounding, and rounded to 0."""
    changed = {name: one.changed for name, one in losses.items() if one.changed}
    return changed, {name: one.zeros for name, one in losses.items() if one.zeros}


def cast(
    values: NDArray[Any],
    dtype: np.dtype[Any],
    *,
    tensor: str,
    allow_loss: bool,
    start: tuple[int, ...] | None = None,
) -> tuple[NDArray[Any], Losses | None]:
    """Return the values with another dtype, and what was lost, if anything.

    Args:
        values, dtype: of numbers. Values that have the dtype already are not copied.
        tensor: name of the tensor, for the error.
        allow_loss: whether elements may change by more than rounding.
        start: index of the first of the values, if they may be a part of the tensor.

    Raises:
        InvalidError: not `allow_loss`, and an element changes by more than rounding.
    """
    if values.dtype == dtype:
        return values, None
    old, to = dtypes.plain_quantized(values), _element(dtype).newbyteorder("=")
    if not old.size or is_widening(old.dtype, to):
        return _with(_castable(old, to).astype(to, copy=False), dtype), None
    flat = old.ravel()  # contiguous
    new = np.empty(flat.shape, to)
    count = zeros = first = 0
    with np.errstate(all="ignore"):
        # In parts that stay in the caches of the processor, which looks at each value twice.
        for begin in range(0, flat.size, _PART):
            part = flat[begin : begin + _PART]
            cut = new[begin : begin + _PART]
            cut[...] = _castable(part, to)
            if (rounded := _zeros(part, cut)) is not None:
                zeros += rounded
                continue
            lost = _lost(part, cut)
            if not count and lost.any():
                first = begin + int(np.argmax(lost))
            count += int(lost.sum())
            if kind_of(old.dtype) in "fc" and kind_of(to) in "fc":
                zeros += int(((cut == 0) & (part != 0) & ~lost).sum())
    if count and not allow_loss:
        place = tuple(map(int, np.unravel_index(first, old.shape)))
        raise _loss(tensor, dtype, values, place, count, start)
    result = _with(new.reshape(old.shape), dtype)
    return result, Losses(count, zeros) if count or zeros else None


def _with(elements: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return elements as those of a quantized dtype or of one in another byte order."""
    return elements.view(dtype) if dtype.names else elements.astype(dtype, copy=False)


def _loss(
    tensor: str,
    dtype: np.dtype[Any],
    values: NDArray[Any],
    first: tuple[int, ...],
    count: int,
    start: tuple[int, ...] | None,
) -> Exception:
    """Return the error for a cast that loses so many of the values."""
    value = dtypes.plain_quantized(values)[first]
    place = first
    if start:
        place = tuple(a + b for a, b in zip(first, (*start, *[0] * len(first)), strict=False))
    elements = f"{'at least ' if start else ''}{count} element{'s' if count > 1 else ''}"
    at = f", at {list(place)}" if place else ""
    hint = ""
    if kind_of(value.dtype) == "f" and value == _finfo(value.dtype).min:
        hint = f" (the lowest {value.dtype}, which masks of attention hold)"
    return invalid(
        "allow_loss",
        f"a cast from {dtype_text(values.dtype)} to {dtype_text(dtype)} changes {elements} by more "
        f"than rounding, first {value}{at}{hint}; allow_loss=True casts them all the same",
        tensor=tensor,
    )


def _castable(old: NDArray[Any], to: np.dtype[Any]) -> NDArray[Any]:
    """Return the values with a dtype that NumPy casts to the other one, which may be that one."""
    if old.dtype.kind == "c" and to.kind != "c":
        old = old.real
    if not {old.dtype.kind, to.kind} & set("biuc") and old.dtype != np.float64:
        old = old.astype(np.float32, copy=False)
    return _native(old)  # ml_dtypes has no casts between some of its dtypes


def _native(values: NDArray[Any]) -> NDArray[Any]:
    """Return bools and the integers of ml_dtypes as integers of NumPy; others unchanged."""
    if values.dtype.kind == "b":
        return values.view(np.uint8)
    if values.dtype.kind == "V" and kind_of(values.dtype) == "i":
        return values.astype(np.uint8 if values.dtype.name.startswith("u") else np.int8)
    return values


@functools.cache
def is_widening(old: np.dtype[Any], to: np.dtype[Any]) -> bool:
    """Return whether every value of one dtype of floating-point numbers is one of the other."""
    if not kind_of(old) == kind_of(to) == "f":
        return False
    one, other = _finfo(old), _finfo(to)
    return (
        bool(np.isinf(np.array(np.inf).astype(to)))
        and other.nmant >= one.nmant
        and float(other.max) >= float(one.max)
        and float(other.smallest_subnormal) <= float(one.smallest_subnormal)
    )


@functools.cache
def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the first and last integer of a dtype of integers or bools."""
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind == "V":
        import ml_dtypes  # noqa: PLC0415 (takes as long as opening a checkpoint)

        info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    else:
        info = np.iinfo(dtype)
    return int(info.min), int(info.max)


@functools.cache
def _finfo(dtype: np.dtype[Any]) -> Any:
    if dtype.isbuiltin != 2:
        return np.finfo(dtype)
    import ml_dtypes  # noqa: PLC0415 (takes as long as opening a checkpoint)

    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


@functools.cache
def _exact(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the first and last integer of those from which on all are values of a dtype."""
    if kind_of(dtype) != "f":
        return _bounds(dtype)
    info = _finfo(dtype)
    bound = 2 ** (info.nmant + 1)
    return max(-bound, math.ceil(float(info.min))), min(bound, math.floor(float(info.max)))


@functools.cache
def _saturates(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype has neither infinity nor NaN: a cast returns the nearest number."""
    return bool(np.isfinite(np.array(np.inf).astype(dtype)))


@functools.cache
def _largest(dtype: np.dtype[Any]) -> int | None:
    """Return the bits of the largest number of a dtype of floating-point numbers, if those of
    infinity and NaN are larger without the sign."""
    largest = int(np.array(_finfo(dtype).max, dtype).view(f"u{dtype.itemsize}"))
    others = _magnitudes(np.array([np.inf, np.nan]).astype(dtype))
    return largest if largest < int(others.min()) else None


def _magnitudes(values: NDArray[Any]) -> NDArray[Any]:
    """Return the bits of floating-point numbers without the sign."""
    bits: NDArray[Any] = values.view(f"u{values.itemsize}")
    return bits & ((1 << 8 * values.itemsize - 1) - 1)


def _zeros(old: NDArray[Any], new: NDArray[Any]) -> int | None:
    """Return how many values became 0 if none was lost, by the least and the largest one; None
    where that takes a look at each value."""
    if old.dtype.kind == "c" and new.dtype.kind == "c":
        zeros = _zeros(old.view(old.real.dtype), new.view(new.real.dtype))
        return None if zeros else zeros
    if old.dtype.kind == "c":
        return None
    if new.dtype.kind == "c":
        new = new.real
    if kind_of(old.dtype) == kind_of(new.dtype) == "f":
        largest, sizes = _largest(new.dtype), _magnitudes(new)
        if largest is None or sizes.max() > largest:
            return None
        return 0 if sizes.min() else int(np.count_nonzero(old != 0) - np.count_nonzero(sizes))
    whole = _castable(old, new.dtype)
    least, most = _exact(new.dtype)
    if not (least <= whole.min().item() and whole.max().item() <= most):
        return None
    is_kept = kind_of(old.dtype) != "f" or (np.trunc(whole) == whole).all()
    return 0 if is_kept else None


def _lost(old: NDArray[Any], new: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are not the same but for rounding."""
    lost: NDArray[np.bool_]
    if old.dtype.kind == "c" and new.dtype.kind == "c":
        return _lost(old.real, new.real) | _lost(old.imag, new.imag)
    if old.dtype.kind == "c":
        lost = (old.imag != 0) | _lost(old.real, new)
    elif new.dtype.kind == "c":
        lost = _lost(old, new.real)
    elif kind_of(new.dtype) != "f":
        lost = ~_holds(old, *_bounds(new.dtype))
    elif kind_of(old.dtype) != "f":
        whole, wide = _native(old), new.astype(np.float64)
        fits = _holds(wide, *_bounds(whole.dtype))
        lost = ~fits | (np.where(fits, wide, 0).astype(whole.dtype) != whole)
    else:
        lost = (np.isfinite(old) != np.isfinite(new)) | (np.isnan(old) != np.isnan(new))
        if _saturates(new.dtype):
            lost = lost | (np.abs(old) > float(_finfo(new.dtype).max))
    return lost


def _holds(values: NDArray[Any], least: int, most: int) -> NDArray[np.bool_]:
    """Return which values are integers from `least` to `most`."""
    held: NDArray[np.bool_]
    if kind_of(values.dtype) == "f":
        wide = values.astype(np.float64)  # which has `least` and `most + 1`, powers of two
        held = (np.trunc(wide) == wide) & (wide >= least) & (wide < most + 1)
    else:
        whole = _native(values)
        first, last = _bounds(whole.dtype)
        held = (whole >= max(least, first)) & (whole <= min(most, last))
    return held
