# SPDX-License-Identifier: Apache-2.0
"""Files in the safetensors format, beside the safetensors library, with numpy and torch."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import ckptfmt
from ckptfmt.safetensors import load_file, safe_open, save_file

# All dtypes of the library that torch has too, but for those of less than a byte.
TORCH = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
]
# Of torch's dtypes, those of which a checkpoint has the bits.
OF_TORCH = ["float8_e8m0fnu", "float4_e2m1fn_x2"]


def tensors() -> dict[str, torch.Tensor]:
    raw = torch.arange(48, dtype=torch.uint8) % 2
    found = {f"d/{name}": raw.view(getattr(torch, name)).reshape(2, -1) for name in TORCH}
    found = {name: one.clone() for name, one in found.items()}
    return found | {"scalar": torch.tensor(1.5), "none": torch.zeros(0, 3)}


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_every_dtype_both_ways(tmp_path: Path) -> None:
    """Theirs to a checkpoint and back: the same bytes, in their library and in ours."""
    given = tensors()
    safetensors.torch.save_file(given, tmp_path / "theirs.safetensors", {"format": "pt"})
    ckptfmt.convert(tmp_path / "theirs.safetensors", tmp_path / "ck")
    ckptfmt.convert(tmp_path / "ck", tmp_path / "ours.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "ours.safetensors")
    assert loaded.keys() == given.keys()
    for name, tensor in given.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert bytes_of(loaded[name]) == bytes_of(tensor)
    with safetensors.safe_open(tmp_path / "ours.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    for path in ("theirs.safetensors", "ck"):
        with safe_open(tmp_path / path, framework="pt") as file:
            for name, tensor in given.items():
                ours = file.get_tensor(name)
                assert (ours.dtype, ours.shape) == (tensor.dtype, tensor.shape)
                assert bytes_of(ours) == bytes_of(tensor)


def test_what_a_framework_lacks(tmp_path: Path) -> None:
    lacking = np.ones(2, ml_dtypes.float8_e4m3b11fnuz)
    ckptfmt.save(tmp_path / "ck", {"texts": np.array([b"a"], object), "w": lacking})
    for framework, name in (("pt", "texts"), ("pt", "w"), ("jax", "texts")):
        with safe_open(tmp_path / "ck", framework) as file, pytest.raises(ckptfmt.InvalidError):
            file.get_tensor(name)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
@pytest.mark.parametrize("name", OF_TORCH)
def test_dtypes_of_torch(tmp_path: Path, name: str, metadata: dict[str, str] | None) -> None:
    """The library's file is read as its dtype, a checkpoint stores the bits with it, and the way
    back gives the same file."""
    given = torch.arange(48, dtype=torch.uint8).reshape(3, 2, 8).view(getattr(torch, name))
    theirs, ours, back = (tmp_path / f"{one}.safetensors" for one in ("theirs", "ours", "back"))
    state = {"a": torch.ones(3), "s": given, "none": given[:0]}
    safetensors.torch.save_file(state, theirs, metadata)
    with safe_open(theirs, framework="pt") as file:
        found = file.get_tensor("s")
        assert (found.dtype, bytes_of(found)) == (given.dtype, bytes_of(given))
    whole = load_file(theirs)["s"]
    assert whole.dtype.name == name.removesuffix("_x2")
    with safe_open(theirs) as file:
        for key in ((1, 1), (..., 3), (slice(1, 3), 0, slice(3, 8)), (0, 1, slice(5, 2, -1))):
            assert file.get_slice("s")[key].tobytes() == whole[key].tobytes()
    done = ckptfmt.convert(theirs, tmp_path / "ck")
    assert done.bits == dict.fromkeys(("s", "none"), (name, "uint8"))
    assert ckptfmt.load(tmp_path / "ck")["s"].dtype.name == name.removesuffix("_x2")
    assert load_file(tmp_path / "ck")["s"].tobytes() == whole.tobytes()
    loaded = ckptfmt.torch.load(tmp_path / "ck")["s"]
    assert (loaded.dtype, bytes_of(loaded)) == (given.dtype, bytes_of(given))
    for source in (theirs, tmp_path / "ck"):
        ckptfmt.convert(source, back)
        if source == theirs or metadata:
            assert back.read_bytes() == theirs.read_bytes()
        assert bytes_of(safetensors.torch.load_file(back)["s"]) == bytes_of(given)
    save_file(state, ours, metadata)
    assert ours.read_bytes() == theirs.read_bytes()
    done = ckptfmt.convert(theirs, tmp_path / "two.safetensors", max_shard_bytes=80)
    assert load_file(done.path)["s"].tobytes() == load_file(theirs)["s"].tobytes()


def test_same_interface(tmp_path: Path) -> None:
    """What both safe_opens answer, on the same file."""
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    safetensors.numpy.save_file({"b": array, "a": array[0]}, tmp_path / "x.safetensors")
    with (
        safetensors.safe_open(tmp_path / "x.safetensors", "np") as theirs,
        safe_open(tmp_path / "x.safetensors") as ours,
    ):
        assert ours.keys() == list(theirs.keys())
        assert ours.offset_keys() == list(theirs.offset_keys())
        assert ours.metadata() == theirs.metadata()
        for name in ours.keys():  # noqa: SIM118 (not a mapping)
            one, other = ours.get_slice(name), theirs.get_slice(name)
            assert one.get_shape() == other.get_shape()
            assert one.get_dtype() == other.get_dtype()
            for key in (slice(1, 3), (slice(None), slice(1, 2)), (0, slice(None)), ...):
                assert np.array_equal(one[key], other[key])


def test_their_bytes(tmp_path: Path) -> None:
    """The same tensors make the same file."""
    arrays = {name: np.ones((3, 2), name) for name in ("float64", "int8", "float32", "uint16")}
    safetensors.numpy.save_file(arrays, tmp_path / "theirs.safetensors", {"k": "v"})
    save_file(arrays, tmp_path / "ours.safetensors", {"k": "v"})
    ours, theirs = (tmp_path / f"{who}.safetensors" for who in ("ours", "theirs"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert load_file(theirs).keys() == arrays.keys()


@pytest.mark.parametrize(("name", "step"), [("x.weights.h5", "vars/0"), ("x.h5", "step")])
def test_hdf5(tmp_path: Path, name: str, step: str) -> None:
    import h5py  # noqa: PLC0415

    arrays = {"layers/dense/vars/0": np.arange(6.0).reshape(2, 3), step: np.array(3)}
    ckptfmt.save(tmp_path / "ck", arrays, metadata={"a": 1})
    done = ckptfmt.convert(tmp_path / "ck", tmp_path / name)
    assert (done.format, done.dropped) == ("hdf5", ("the metadata",))
    with h5py.File(tmp_path / name) as file:
        assert np.array_equal(file["layers/dense/vars/0"], arrays["layers/dense/vars/0"])
    ckptfmt.convert(tmp_path / name, tmp_path / "back")
    loaded = ckptfmt.load(tmp_path / "back")
    assert all(np.array_equal(loaded[key], array) for key, array in arrays.items())


def test_values_that_jax_would_cut(tmp_path: Path) -> None:
    """Without jax_enable_x64 it makes 64 bits 32."""
    values = {
        "int": np.array([2**40 + 5]),
        "float": np.array([0.1, 1e300]),
        "half": np.ones(2, "f2"),
    }
    save_file(values, tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", "jax") as file:
        assert file.get_tensor("half").dtype == np.float16
        for name in ("int", "float"):
            with pytest.raises(ckptfmt.InvalidError, match="x64"):
                file.get_tensor(name)
            with pytest.raises(ckptfmt.InvalidError, match="x64"):
                file.get_slice(name)[...]
