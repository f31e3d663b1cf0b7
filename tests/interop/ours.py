# SPDX-License-Identifier: Apache-2.0
"""ckptfmt as these tests call it: the public API, with values in the terms of values.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ckptfmt

from . import expected
from .values import Value, from_array


def name_text(name: bytes) -> str:
    """A tensor's name as ckptfmt spells it."""
    return name.decode("utf-8", "surrogateescape")


def save_v2(
    prefix: Path, names: Sequence[bytes], specs: Sequence[bytes], tensors: Sequence[Value]
) -> None:
    arrays = [value.array() for value in tensors]
    ckptfmt.save_v2(prefix, list(names), [spec.decode() for spec in specs], arrays)


def restore_v2(
    prefix: Path, names: Sequence[bytes], specs: Sequence[bytes], codes: Sequence[int]
) -> list[Value]:
    texts = [spec.decode() for spec in specs]
    arrays = ckptfmt.restore_v2(prefix, list(names), texts, list(codes))
    return [from_array(code, array) for code, array in zip(codes, arrays, strict=True)]


def read_all(prefix: Path, codes: dict[bytes, int]) -> dict[bytes, Value]:
    """Every tensor that the checkpoint lists, read whole; `codes` tells the dtypes to expect."""
    with ckptfmt.open(prefix) as reader:
        names = [name.encode("utf-8", "surrogateescape") for name in reader]
    loaded = ckptfmt.load(prefix)
    assert sorted(name_text(name) for name in names) == sorted(loaded)
    return {name: from_array(codes[name], loaded[name_text(name)]) for name in names}


def part(handle: Any, code: int, key: Any) -> Value:
    found = handle[key]
    if isinstance(found, bytes):
        # One string; numpy would cut the zero bytes at its end.
        return Value(code, (), (found,))
    return from_array(code, np.asarray(found))


def numpy_name(dtype: np.dtype) -> str:
    """TensorFlow's name of a numpy dtype."""
    if dtype.names:
        return dtype.names[0]
    return "string" if dtype.hasobject else dtype.name


def check_expected(folder: Path) -> dict[bytes, Value]:
    """Reads a folder's checkpoint in all the ways there are, compares, and returns its tensors."""
    document = expected.load(folder)
    prefix = folder.parent / document["prefix"]
    rows = {row["name"]: row for row in document["tensors"]}
    assert len(rows) == document["n_tensors"]
    found = {}
    loaded = ckptfmt.load(prefix)
    with ckptfmt.open(prefix) as reader:
        assert list(reader) == sorted(
            rows, key=lambda name: name.encode("utf-8", "surrogateescape")
        )
        assert sorted(loaded) == sorted(rows)
        for name, row in rows.items():
            handle = reader[name]
            assert numpy_name(handle.dtype) == row["dtype"], name
            assert list(handle.shape) == row["shape"], name
            code = expected.DTYPES[row["dtype"]]
            for array in (handle.read(), np.asarray(handle), loaded[name]):
                value = from_array(code, array)
                assert list(value.shape) == row["shape"], name
                assert len(value.packed()) == row["nbytes"], name
                assert value.digest() == row["sha256"], name
            found[name.encode("utf-8", "surrogateescape")] = value
    names = list(rows)
    for name, array in zip(
        names, ckptfmt.restore_v2(prefix, names, [""] * len(names)), strict=True
    ):
        assert (
            from_array(expected.DTYPES[rows[name]["dtype"]], array).digest() == rows[name]["sha256"]
        )
    return found
