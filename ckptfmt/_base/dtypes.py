# SPDX-License-Identifier: Apache-2.0
"""Data types: the codes of the format, their names, numpy's dtypes, and the mapping between them.

The codes and sizes come from the C table, with TensorFlow's words. The names are those of NumPy and
ml_dtypes, which are also what people read; the words are accepted, and `ckptfmt.tf` prints them.
The quantized types are TensorFlow's structured dtypes (`np.dtype([("qint8", np.int8)])`), the
narrow floats and integers are those of ml_dtypes, strings and variant payloads are object arrays of
bytes. A narrow integer takes one byte in a file and in memory, with the value in the low bits.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base.arguments import invalid
from ckptfmt._core import DtypeInfo
from ckptfmt.errors import StorageError

STRING, VARIANT = "string", "variant"
FP4 = "float4_e2m1fn"

# By TensorFlow's word for it, the name of a dtype that it calls otherwise.
_NAMES = {"float": "float32", "double": "float64", "half": "float16"}
_WORDS = {name: word for word, name in _NAMES.items()}

_TABLE = {
    info.code: info._replace(name=_NAMES.get(info.name, info.name)) for info in _core.dtype_table()
}
_BY_NAME = {info.name: info for info in _TABLE.values()}
_BY_NAME |= {word: _BY_NAME[name] for word, name in _NAMES.items()}

QUANTIZED = {
    "qint8": np.int8,
    "quint8": np.uint8,
    "qint16": np.int16,
    "quint16": np.uint16,
    "qint32": np.int32,
}


def _numpy_of(info: DtypeInfo) -> np.dtype[Any] | None:
    """Return the numpy dtype. Raises TypeError for one of ml_dtypes."""
    if info.storage in (_core.STORAGE_STRING, _core.STORAGE_VARIANT):
        return np.dtype(object)
    if info.storage != _core.STORAGE_FIXED:
        return None
    if info.name in QUANTIZED:
        return np.dtype([(info.name, QUANTIZED[info.name])])
    return np.dtype(info.name)


class _Dtypes(dict[int, "np.dtype[Any] | None"]):
    """numpy's own dtypes by code, and all of them once one of ml_dtypes is needed: importing that
    takes as long as opening a checkpoint. None for codes without a numpy dtype."""

    def __missing__(self, code: int) -> np.dtype[Any] | None:
        if code in _TABLE:
            _take_others()
        return self.get(code)


NUMPY = _Dtypes()
CODES: dict[np.dtype[Any], int]  # by dtype, all of them


def _take_dtypes() -> list[DtypeInfo]:
    """Enter the dtypes of numpy itself; returns the others."""
    others = []
    for code, info in _TABLE.items():
        try:
            NUMPY[code] = _numpy_of(info)
        except TypeError:
            others.append(info)
    return others


_OTHERS = _take_dtypes()


def _ml_dtypes() -> ModuleType:
    """Import ml_dtypes. Raises StorageError if that fails for want of descriptors."""
    try:
        import ml_dtypes  # noqa: PLC0415 (see NUMPY)
    except OSError as error:
        raise StorageError(f"cannot import ml_dtypes: {error}", errno=error.errno) from error
    return ml_dtypes


def narrow_dtype(name: str) -> np.dtype[Any]:
    """Return ml_dtypes' dtype of this name: "float8_e5m2"."""
    narrow: np.dtype[Any] = np.dtype(getattr(_ml_dtypes(), name))
    return narrow


def _take_others() -> None:
    for info in _OTHERS:
        NUMPY[info.code] = np.dtype(getattr(_ml_dtypes(), info.name))


@functools.cache
def _codes() -> dict[np.dtype[Any], int]:
    _take_others()
    known = {code: dtype for code, dtype in NUMPY.items() if dtype is not None}
    return {dtype: code for code, dtype in known.items() if dtype != np.dtype(object)}


def __getattr__(name: str) -> Any:
    if name == "CODES":
        globals()[name] = _codes()
        return _codes()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def info_of(code: int) -> DtypeInfo | None:
    """Return the table's row for a code; None for an unknown code."""
    return _TABLE.get(code)


def name_of(code: int) -> str:
    """Return the name of a code ("float32", "bfloat16", "string", ...); "dtype 99" for an unknown
    one."""
    info = _TABLE.get(code)
    return info.name if info else f"dtype {code}"


def tensorflow_name_of(code: int) -> str:
    """Return the name of a code in TensorFlow's enum, in lower case: "float"."""
    name = name_of(code)
    return _WORDS.get(name, name)


def numpy_dtype(code: int) -> np.dtype[Any] | None:
    """Return the numpy dtype of a code; None if there is none (unknown codes, resources)."""
    return NUMPY[code]


def code_of_array(dtype: np.dtype[Any]) -> tuple[int, bool] | None:
    """Return the code of a numeric numpy dtype and whether its byte order is the other one; None if
    it cannot be stored."""
    codes = _codes()
    code = codes.get(dtype)
    if code is not None:
        return code, False
    if not dtype.isnative:
        code = codes.get(dtype.newbyteorder("="))
    return None if code is None else (code, True)


def code_of(dtype: Any, argument: str | None = None) -> int:
    """Return the code of a dtype that is given in any form.

    Args:
        dtype: a code, the name of one or TensorFlow's word for it, a numpy or ml_dtypes dtype or
            scalar type, a torch dtype or a TensorFlow DType. `object`, `str` and `bytes` mean
            strings.

    Raises:
        InvalidError: not a dtype that a checkpoint can store.
    """
    # numpy takes None for float64.
    if dtype is None:
        raise invalid(argument, "None is not a dtype")
    if type(dtype).__module__ == "torch":
        return code_of(str(dtype).removeprefix("torch."))
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        info = _TABLE.get(dtype)
    elif isinstance(dtype, str) and dtype in _BY_NAME:
        info = _BY_NAME[dtype]
    elif hasattr(dtype, "as_datatype_enum"):
        info = _TABLE.get(int(dtype.as_datatype_enum))
    else:
        info = _info_of_numpy(dtype)
    if info is None or info.storage == _core.STORAGE_NONE:
        raise invalid(argument, f"{dtype!r} is not a dtype that a checkpoint can store")
    return info.code


def _info_of_numpy(dtype: Any) -> DtypeInfo | None:
    if isinstance(dtype, str):
        dtype = getattr(_ml_dtypes(), dtype, dtype)
    try:
        parsed = np.dtype(dtype)
    except TypeError:
        return None
    if parsed.kind in "OSUT":
        return _BY_NAME[STRING]
    found = code_of_array(parsed)
    return _TABLE[found[0]] if found else None


def is_floating(code: int) -> bool:
    """Return True for the real floating-point types of any width."""
    return code in _TABLE and _TABLE[code].name.startswith(("float", "bfloat"))


def plain_quantized(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of a quantized array as plain integers; any other array unchanged."""
    names = array.dtype.names
    return array[names[0]] if names and names[0] in QUANTIZED else array


def little_endian(array: NDArray[Any], code: int) -> NDArray[np.uint8]:
    """Return the row-major, little-endian bytes of a numeric array."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    unit = _TABLE[code].swap_size if code in _TABLE else 1
    if np.little_endian or unit <= 1:
        return raw
    return raw.view(f"u{unit}").byteswap().view(np.uint8)


def packed_fp4(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return float4_e2m1fn as torch and safetensors store it: two of the last dimension in a byte,
    the first in its low bits."""
    bits = values.view(np.uint8)
    return bits[..., ::2] | bits[..., 1::2] << np.uint8(4)


def unpacked_fp4(pairs: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the values of `packed_fp4`, twice as many in the last dimension."""
    bits = np.stack([pairs & 0xF, pairs >> 4], axis=-1)
    return bits.reshape(*pairs.shape[:-1], 2 * pairs.shape[-1]).view(narrow_dtype(FP4))
