# SPDX-License-Identifier: Apache-2.0
"""What counts as an array: DLPack objects of any framework, buffers, and targets that overlap."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.arrays import assert_same

import ckptfmt
from ckptfmt import InvalidError, load_into
from ckptfmt._base.arrays import as_source
from ckptfmt._base.targets import as_target


class Tensor:
    """A tensor of a framework that has nothing but DLPack, over a numpy array."""

    def __init__(
        self, array: Any, *, requires_grad: bool = False, device: tuple[int, int] = (1, 0)
    ) -> None:
        self.array, self.requires_grad, self._device = array, requires_grad, device
        self.dtype = array.dtype
        self.device = "cpu" if device[0] == 1 else f"cuda:{device[1]}"

    def detach(self) -> Tensor:
        return Tensor(self.array)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **options: Any) -> Any:
        if self.requires_grad:
            raise BufferError("cannot export a tensor that requires grad")
        return self.array.__dlpack__(**options)


class OldTensor(Tensor):
    """From before DLPack had versions."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.array.__dlpack__()


ARRAYS = [
    *(np.arange(24).astype(dtype) for dtype in ("i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8")),
    np.arange(24).reshape(2, 3, 4)[::-1, :, ::2],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([True, False]),
    np.array(5.0),
    np.empty((3, 0)),
]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("kind", [Tensor, OldTensor])
def test_sources(tmp_path: Path, array: Any, kind: type[Tensor]) -> None:
    found = as_source(kind(array))
    assert_same(found, array)
    assert not array.size or np.shares_memory(found, array), "not copied"
    ckptfmt.save(tmp_path / "ck", {"x": kind(array)}, durability="none")
    assert_same(
        ckptfmt.load(tmp_path / "ck")["x"], np.ascontiguousarray(array).reshape(array.shape)
    )


@pytest.mark.parametrize("array", ARRAYS)
def test_targets(tmp_path: Path, array: Any) -> None:
    ckptfmt.save(tmp_path / "ck", {"x": array}, durability="none")
    target = np.zeros_like(array)
    assert load_into(tmp_path / "ck", {"x": Tensor(target, requires_grad=True)})
    assert_same(target, array)
    with ckptfmt.open(tmp_path / "ck") as reader:
        target[...] = 0
        reader["x"].read_into(Tensor(target))
    assert_same(target, array)


def test_the_memory_lives_as_long_as_its_views() -> None:
    view = as_source(Tensor(np.arange(10_000)))[1:]
    np.zeros(10_000)
    assert view.tolist() == list(range(1, 10_000))


def test_tensors_of_another_device() -> None:
    tensor = Tensor(np.ones(2, np.float32), device=(2, 1))
    with pytest.raises(InvalidError) as caught:
        as_source(tensor)
    assert caught.value.message == (
        "test_arrays.Tensor of dtype float32 on cuda:1 is in the memory of cuda:1, not of the CPU: "
        "pass a copy, for example tensor.cpu()"
    )
    with pytest.raises(InvalidError, match=r"in the memory of cuda:1, .* use ckptfmt\.load"):
        as_target(tensor)


def test_what_a_framework_refuses() -> None:
    tensor = Tensor(np.ones(2), requires_grad=True)
    tensor.detach = lambda: tensor  # type: ignore[method-assign]
    with pytest.raises(InvalidError, match="through DLPack: cannot export a tensor"):
        as_source(tensor)


def test_strings_of_tensorflow_are_not_exported() -> None:
    """TensorFlow has `__dlpack__` for strings too, which aborts the process."""

    class Strings:
        dtype = SimpleNamespace(name="string")

        def __dlpack__(self, **_options: Any) -> Any:
            raise AssertionError("this aborts the process")

        def __array__(self, *_arguments: Any, **_options: Any) -> Any:
            return np.array([b"a", b"\0"], object)

    assert as_source(Strings()).tolist() == [b"a", b"\0"]
    with pytest.raises(InvalidError, match="cannot read into"):
        as_target(Strings())


def test_buffers() -> None:
    memory = bytearray(8)
    as_target(memory).array[:] = 7
    assert memory == b"\7" * 8
    assert_same(as_source(memoryview(memory)), np.full(8, 7, np.uint8))


def test_narrow_dtypes() -> None:
    """A capsule that says bfloat16, as those of torch do; numpy exports none of ml_dtypes."""
    with pytest.raises(InvalidError):
        as_source(Tensor(np.ones(2, ml_dtypes.bfloat16)))
    assert_same(as_source(np.ones(2, ml_dtypes.bfloat16)), np.ones(2, ml_dtypes.bfloat16))


# ---- targets that overlap ------------------------------------------------------------------------


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    tensors = {"a": np.arange(4.0), "b": np.arange(4.0) + 1, "tied": np.arange(4.0)}
    ckptfmt.save(tmp_path / "ck", tensors, durability="none")
    return tmp_path / "ck"


def test_cast_targets_overlap_too(prefix: Path) -> None:
    buffer = np.zeros(4, np.float32)
    with pytest.raises(InvalidError, match="shares memory"):
        load_into(prefix, {"a": buffer, "b": buffer}, strict=False, cast=True)


def test_interleaved_views(prefix: Path) -> None:
    memory = np.zeros(16)
    targets = {"a": memory[::4], "b": memory[1::4]}
    load_into(prefix, targets, strict=False)
    assert memory.tolist() == [0, 1, 0, 0, 1, 2, 0, 0, 2, 3, 0, 0, 3, 4, 0, 0]
    with pytest.raises(InvalidError, match=r"shares memory with the array for 'a', .*only one"):
        load_into(prefix, targets | {"tied": memory[8::2]}, strict=False)
