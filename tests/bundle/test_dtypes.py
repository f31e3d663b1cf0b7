# SPDX-License-Identifier: Apache-2.0
"""The dtype table: codes, names and sizes of the format, and the numpy dtypes that hold them.

Each dtype through a checkpoint: test_writer.py, and the vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from interop.expected import dtype_name
from interop.values import KINDS, STRING
from support import arrays

import ckptfmt
from ckptfmt import _core
from ckptfmt._base import dtypes

RESOURCE, VARIANT = 20, 21
NUMERIC = arrays.NUMERIC
UNKNOWN = [0, -1, 34, 99, 101, 2**31 - 1]


class TensorFlowType:
    """As far as `code_of` looks at a DType of TensorFlow."""

    def __init__(self, code: int) -> None:
        self.as_datatype_enum = code


def case(code: int) -> Any:
    return pytest.param(code, id=KINDS[code].name)


# ---- the table -----------------------------------------------------------------------------------


def test_codes_are_those_of_the_format() -> None:
    listed = [(info.code, info.name) for info in _core.dtype_table()]
    expected = {code: kind.name for code, kind in KINDS.items()}
    expected |= {RESOURCE: "resource", VARIANT: "variant"}
    assert listed == sorted(expected.items())
    assert [code for code, _ in listed] == list(range(1, 34))


@pytest.mark.parametrize("code", [case(code) for code in NUMERIC])
def test_numbers(code: int) -> None:
    kind, info = KINDS[code], dtypes.info_of(code)
    used = kind.used_bits if kind.used_bits and kind.name != "bool" else 8 * kind.size
    assert info == (dtype_name(code), code, _core.STORAGE_FIXED, kind.size, kind.unit, used)
    assert dtypes.numpy_dtype(code) == kind.numpy_type
    assert kind.numpy_type.itemsize == kind.size
    assert dtypes.code_of_array(kind.numpy_type) == (code, False)
    assert dtypes.name_of(code) == dtype_name(code)
    assert dtypes.tensorflow_name_of(code) == kind.name
    for spelling in (code, kind.name, dtype_name(code), kind.numpy_type, TensorFlowType(code)):
        assert dtypes.code_of(spelling) == code


def test_what_has_no_fixed_size() -> None:
    assert dtypes.info_of(STRING) == ("string", 7, _core.STORAGE_STRING, 0, 1, 0)
    assert dtypes.info_of(RESOURCE) == ("resource", 20, _core.STORAGE_NONE, 0, 1, 0)
    assert dtypes.info_of(VARIANT) == ("variant", 21, _core.STORAGE_VARIANT, 0, 1, 0)


@pytest.mark.parametrize("code", UNKNOWN)
def test_codes_that_nobody_knows(code: int) -> None:
    assert dtypes.info_of(code) is None
    assert dtypes.numpy_dtype(code) is None
    assert dtypes.name_of(code) == f"dtype {code}"
    assert not dtypes.is_floating(code)
    with pytest.raises(ckptfmt.InvalidError, match=f"^{code} is not a dtype that a checkpoint"):
        dtypes.code_of(code)


# ---- numpy ---------------------------------------------------------------------------------------


def test_numpy_dtypes_of_the_others() -> None:
    assert dtypes.numpy_dtype(STRING) == np.dtype(object)
    assert dtypes.numpy_dtype(VARIANT) == np.dtype(object)
    assert dtypes.numpy_dtype(RESOURCE) is None


SPELLINGS: dict[int, list[Any]] = {
    1: ["<f4", np.float32],
    2: [float],
    9: [int],
    10: [bool, np.bool_],
    14: [ml_dtypes.bfloat16],
    18: [complex],
    29: [np.dtype(ml_dtypes.int4)],
    STRING: [object, str, bytes, "string", "S5", np.dtype("U3"), TensorFlowType(7)],
    VARIANT: ["variant", VARIANT],
}


def test_other_spellings() -> None:
    for code, spellings in SPELLINGS.items():
        assert [dtypes.code_of(one) for one in spellings] == [code] * len(spellings)


@pytest.mark.parametrize(
    "spelling",
    [
        *(RESOURCE, "resource", TensorFlowType(RESOURCE), TensorFlowType(101)),
        *("float31", "", np.longdouble, np.clongdouble, "datetime64[s]", "timedelta64[ns]", "V4"),
        *([("a", np.int8)], [("qint8", np.int16)], True, 1.5, object()),
        ml_dtypes.float8_e3m4,
    ],
    ids=lambda spelling: type(spelling).__name__,
)
def test_no_dtype_of_a_checkpoint(spelling: Any) -> None:
    with pytest.raises(ckptfmt.InvalidError, match=r"is not a dtype that a checkpoint can store$"):
        dtypes.code_of(spelling)


def test_floating_ones() -> None:
    floating = {1, 2, 14, 19, 24, 25, 26, 27, 28, 33}
    assert {code for code in KINDS if dtypes.is_floating(code)} == floating
    assert not dtypes.is_floating(RESOURCE)
    assert not dtypes.is_floating(VARIANT)


@pytest.mark.parametrize("code", [11, 12, 13, 15, 16])
def test_quantized_ones_as_integers(code: int) -> None:
    array = np.arange(5).astype(KINDS[code].numpy_type[0]).view(KINDS[code].numpy_type)
    plain = dtypes.plain_quantized(array)
    assert plain.dtype == KINDS[code].numpy_type[0]
    assert plain.tolist() == [0, 1, 2, 3, 4]
    assert np.shares_memory(plain, array)


NARROW = [code for code in NUMERIC if KINDS[code].used_bits and KINDS[code].name != "bool"]


@pytest.mark.parametrize("code", [case(code) for code in NARROW])
@pytest.mark.parametrize("options", [{}, {"level": "v2"}, {"compression": "zstd"}])
def test_unused_bits_are_not_stored(tmp_path: Path, code: int, options: Any) -> None:
    """Of each byte, in any layout: equal values have equal bytes, checksums and base files."""
    kind = KINDS[code]
    junk = np.tile(np.arange(256, dtype=np.uint8), 8).reshape(4, 512)
    clean = junk & ((1 << kind.used_bits) - 1)
    for name, array in {"junk": junk, "clean": clean}.items():
        layouts = {"rows": array, "columns": array[::-1, ::2].T, "cut": array[1:3, 5:9]}
        tensors = {one: layout.view(kind.numpy_type) for one, layout in layouts.items()}
        ckptfmt.save(tmp_path / name, tensors, **options)
        assert ckptfmt.load(tmp_path / name)["rows"].view(np.uint8).tolist() == clean.tolist()
    for end in ("index", "data-00000-of-00001"):
        paths = [tmp_path / f"{name}.{end}" for name in ("junk", "clean")]
        assert paths[0].read_bytes() == paths[1].read_bytes()
