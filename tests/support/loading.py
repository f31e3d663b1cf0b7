# SPDX-License-Identifier: Apache-2.0
"""The table of docs/loading.md: a target for each of its rows, and what a call did with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ckptfmt
from ckptfmt import InvalidError

from .pages import ROOT
from .targets import Exported, save_objects

__all__ = ["ROWS", "check_cell", "rows_of", "table"]

PAGE = "docs/loading.md"
STORED = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


def table() -> dict[str, dict[str, str]]:
    """Return the table: target to call to word."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*\|$", text, re.M)
    ]
    columns = lines[0][1:]
    return {
        line[0]: {
            call: word
            for column, word in zip(columns, line[1:], strict=True)
            for call in re.findall(r"`([^`]+)`", column)
        }
        for line in lines[2:]
    }


class OtherDevice(Exported):
    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class Interface:
    def __init__(self, array: Any) -> None:
        self.array, self.__array_interface__ = array, array.__array_interface__


def blank() -> Any:
    return np.zeros_like(STORED)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def _torch() -> dict[str, Callable[[], list[Any]]]:
    import torch  # noqa: PLC0415

    def inference() -> Any:
        with torch.inference_mode():
            return torch.zeros(2, 3)

    def resized() -> Any:
        tensor = torch.zeros(2, 3)
        tensor.untyped_storage().resize_(0)
        return tensor

    def fake() -> Any:
        from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

        with FakeTensorMode():
            return torch.empty(2, 3)

    return {
        "torch tensor, parameter or buffer": lambda: [
            torch.zeros(2, 3),
            torch.nn.Parameter(torch.zeros(2, 3)),
            torch.nn.Buffer(torch.zeros(2, 3)),
        ],
        "torch view with gaps or transposed": lambda: [
            torch.zeros(2, 6)[:, ::2],
            torch.zeros(3, 2).T,
        ],
        "torch tensor whose elements share memory (expanded)": lambda: [
            torch.zeros(1).expand(2, 3),
            torch.zeros(9).as_strided((2, 3), (1, 1)),
        ],
        "torch tensor on the meta device": lambda: [torch.zeros(2, 3, device="meta")],
        "torch lazy parameter, outside of its module": lambda: [torch.nn.LazyLinear(2).weight],
        "torch lazy conjugate": lambda: [torch.zeros(2, 3, dtype=torch.complex64).conj()],
        "torch quantized tensor": lambda: [
            torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8)
        ],
        "torch inference tensor, outside of `torch.inference_mode`": lambda: [inference()],
        "torch tensor whose storage was resized": lambda: [resized()],
        "torch sparse or nested tensor": lambda: [
            torch.zeros(2, 3).to_sparse(),
            torch.zeros(2, 3).to_sparse_csr(),
            torch.nested.nested_tensor([torch.zeros(3), torch.zeros(3)], layout=torch.jagged),
        ],
        "torch DTensor or FakeTensor": lambda: [fake()],
    }


def _jax() -> dict[str, Callable[[], list[Any]]]:
    import jax.numpy as jnp  # noqa: PLC0415

    return {"jax.Array": lambda: [jnp.zeros((2, 3), jnp.float32)]}


def _tensorflow() -> dict[str, Callable[[], list[Any]]]:
    import keras  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    return {
        "tf.Tensor": lambda: [tf.zeros((2, 3))],
        "tf.Variable or keras.Variable": lambda: [
            tf.Variable(tf.zeros((2, 3))),
            keras.Variable(blank()),
        ],
    }


def _numpy() -> dict[str, Callable[[], list[Any]]]:
    return {
        "NumPy array": lambda: [blank()],
        "NumPy array with gaps, or reversed or transposed, or in another byte order": lambda: [
            np.zeros((2, 6), np.float32)[:, ::2],
            blank()[::-1],
            np.asfortranarray(blank()),
            blank().astype(blank().dtype.newbyteorder()),
        ],
        "NumPy array that is read-only": lambda: [read_only(blank())],
        "writable NumPy array whose elements share memory": lambda: [
            np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (2, 3), (4, 4)),
            np.lib.stride_tricks.as_strided(np.zeros(3, np.float32), (2, 3), (0, 4)),
        ],
        "NumPy masked array": lambda: [np.ma.masked_array(blank())],
        "NumPy scalar": lambda: [np.float32(0)],
        "writable memoryview, or bytearray (one row of uint8)": lambda: [
            bytearray(24),
            memoryview(blank()),
        ],
        "read-only memoryview": lambda: [memoryview(read_only(blank()))],
        "DLPack object": lambda: [Exported(blank())],
        "DLPack object that is read-only, or older than DLPack 1.0": lambda: [
            Exported(read_only(blank())),
            Exported(blank(), versioned=False),
        ],
        "DLPack object that exports a marked copy": lambda: [Exported(blank(), copied=True)],
        "DLPack object on another device": lambda: [OtherDevice(blank())],
        "object with `__array_interface__`": lambda: [Interface(blank())],
        "object with `__array_interface__` that is read-only": lambda: [
            Interface(read_only(blank()))
        ],
    }


ROWS = {"": _numpy, "torch": _torch, "jax": _jax, "tensorflow": _tensorflow}


def rows_of(needs: str) -> Iterator[tuple[str, str, Any]]:
    """Yield row, call and target of the rows that need this framework."""
    words = table()
    for row, make in ROWS[needs]().items():
        for call in words[row]:
            for target in make():
                yield row, call, target


def _stored_for(target: Any) -> Any:
    if isinstance(target, bytearray):
        return np.arange(24, dtype=np.uint8)
    if isinstance(target, np.generic):
        return np.float32(5)
    if "complex64" in str(getattr(target, "dtype", "")):
        return STORED.astype(np.complex64)
    return STORED


def _values(value: Any) -> Any:
    if isinstance(value, (Exported, Interface)):
        return np.asarray(value.array)
    if type(value).__module__.startswith("torch"):
        if value.is_quantized:
            return value.dequantize().numpy()
        return value.detach().resolve_conj().numpy()
    return np.asarray(value)


def _call(call: str, prefix: str, target: Any, stored: Any) -> Any:
    """Save, and load into the target; return what then is in its place."""
    held = {"x": target}
    if call == "Checkpoint.restore":
        path = save_objects(prefix, {"x": stored})
        ckptfmt.Checkpoint(tree=held).read(path)
    elif call == "load_tree_into":
        ckptfmt.save_tree(prefix, {"x": stored}, durability="none")
        ckptfmt.load_tree_into(prefix, held)
    elif call == "ckptfmt.torch.load_into":
        import torch  # noqa: PLC0415

        from ckptfmt import torch as adapter  # noqa: PLC0415

        given: Any = torch.from_numpy(stored.copy()) if isinstance(stored, np.ndarray) else stored
        if not isinstance(target, torch.Tensor):
            given = stored
        elif target.is_quantized:
            given = torch.quantize_per_tensor(given, 0.5, 0, torch.qint8)
        adapter.save({"x": given}, prefix)
        adapter.load_into(held, prefix)
    else:
        ckptfmt.save(prefix, {"x": stored}, durability="none")
        if call == "load_into":
            ckptfmt.load_into(prefix, held)
        else:
            with ckptfmt.open(prefix) as reader:
                reader["x"].read_into(target)
    return held["x"]


def check_cell(word: str, call: str, target: Any, directory: Path) -> None:
    """Check that the call does with the target what the table says."""
    stored = _stored_for(target)
    readable = word != "refused" and "meta" not in str(getattr(target, "device", ""))
    try:
        found = _call(call, str(directory / "ck"), target, stored)
    except InvalidError as error:
        assert word == "refused", error
        assert error.tensor is not None or error.path is not None
        return
    assert word == ("written" if found is target else "replaced")
    np.testing.assert_array_equal(_values(found), stored)
    if word == "replaced" and readable and type(target).__name__ != "UninitializedParameter":
        assert not np.asarray(_values(target)).any(), "the old one was written as well"
