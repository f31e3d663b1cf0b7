# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules as numpy arrays, without a copy."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._ckptfmt import ffi, lib

# DLDataTypeCode of numpy's own kinds, and the names that ml_dtypes gives to the others.
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c"}
_BOOL = 6
_NARROW = {
    (4, 16): "bfloat16",
    (7, 8): "float8_e3m4",
    (8, 8): "float8_e4m3",
    (9, 8): "float8_e4m3b11fnuz",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}


class _Memory:
    """Memory of a capsule, for numpy. Every view of it keeps the capsule alive."""

    def __init__(self, capsule: Any, interface: dict[str, Any]) -> None:
        self._capsule = capsule
        self.__array_interface__ = interface


def array_of_capsule(capsule: Any, *, writable: bool = False) -> tuple[NDArray[Any], bool]:
    """Return a numpy array over the memory of a DLPack capsule, and whether that memory is a copy
    that the exporter made.

    The array is read-only if the capsule says so, or has no version and so cannot say that its
    memory may be written (as numpy.from_dlpack).

    Args:
        capsule: as `__dlpack__` returns it.
        writable: the exporter is known to let users write.

    Raises:
        ValueError: not a capsule of CPU memory, or of a dtype that numpy and ml_dtypes do not have.
    """
    out = ffi.new("cf_dlpack *")
    if not lib.cf_dlpack_describe(id(capsule), out):
        raise ValueError("not a DLPack capsule of a known version")
    dtype = _dtype(out.type_code, out.bits, out.lanes)
    shape = tuple(out.shape[axis] for axis in range(out.rank))
    strides = None
    if out.strides != ffi.NULL:
        strides = tuple(out.strides[axis] * dtype.itemsize for axis in range(out.rank))
    read_only, copied = bool(out.read_only) and not writable, bool(out.copied)
    if 0 in shape:
        empty = np.empty(shape, dtype)
        empty.flags.writeable = not read_only
        return empty, copied
    interface = {
        "version": 3,
        "shape": shape,
        "strides": strides,
        "typestr": f"|V{dtype.itemsize}",
        "data": (int(out.data), read_only),
    }
    return np.asarray(_Memory(capsule, interface)).view(dtype), copied


@functools.cache
def _dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    if lanes == 1 and code in _KINDS and bits % 8 == 0:
        with contextlib.suppress(TypeError):
            return np.dtype(f"{_KINDS[code]}{bits // 8}")
    if lanes == 1 and code == _BOOL and bits == 8:
        return np.dtype(np.bool_)
    if lanes == 1 and (code, bits) in _NARROW:
        import ml_dtypes  # noqa: PLC0415 (most arrays need none of its dtypes)

        narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _NARROW[code, bits]))
        return narrow
    raise ValueError(f"DLPack type {code} of {bits} bits and {lanes} lanes has no numpy dtype")
