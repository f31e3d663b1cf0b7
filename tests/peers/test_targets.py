# SPDX-License-Identifier: Apache-2.0
"""Loads into tensors of torch and arrays of JAX and TensorFlow: exactly the asked elements get the
stored values, in the tensor or its replacement, or the load is refused and no alias changes; torch
knows of each write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from support.strategies import counted, property_test
from support.targets import (
    CALLS,
    DTYPES,
    MEMORY_BYTES,
    Call,
    Framework,
    Place,
    check_load,
    places,
)

import ckptfmt.jax
import ckptfmt.torch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def strided(memory: Any, place: Place) -> Any:
    return torch.from_numpy(memory).as_strided(place.shape, place.strides, place.first)


def parameter(memory: Any, place: Place) -> Any:
    tensor = strided(memory, place)
    return torch.nn.Parameter(tensor) if tensor.is_floating_point() else tensor


def view(memory: Any, place: Place) -> Any:
    """A view of a leaf that requires grad: writing it is an in-place change of the leaf."""
    base = torch.from_numpy(memory)
    if base.is_floating_point():
        base.requires_grad_()
    with torch.no_grad():
        return base.as_strided(place.shape, place.strides, place.first)


def inference(memory: Any, place: Place) -> Any:
    with torch.inference_mode():
        return torch.from_numpy(memory).as_strided(place.shape, place.strides, place.first).clone()


TORCH = Framework(
    {
        "tensor": (strided, "written"),
        "parameter": (parameter, "written"),
        "view of a leaf": (view, "written"),
        "inference": (inference, "refused"),
    },
    negative=False,
)


def _jax(memory: Any, place: Place) -> Any:
    dense = np.zeros(place.shape, memory.dtype)
    return jax.device_put(dense)


IMMUTABLE = Framework({"jax.Array": (_jax, "replaced")})


def _torch_load_into(path: str, targets: dict[str, Any]) -> dict[str, Any]:
    ckptfmt.torch.load_into(targets, path)
    return targets


def _torch_save(prefix: str, stored: dict[str, Any]) -> str:
    tensors = {name: torch.from_numpy(value.copy()) for name, value in stored.items()}
    ckptfmt.torch.save(tensors, prefix, durability="none")
    return prefix


TORCH_CALLS = {**CALLS, "ckptfmt.torch.load_into": Call(_torch_save, _torch_load_into)}


@property_test(300, 10_000, data=st.data())
def test_torch(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    elements = MEMORY_BYTES // dtype.itemsize
    chosen = data.draw(st.lists(places(TORCH, elements), min_size=1, max_size=3))
    call = TORCH_CALLS[data.draw(st.sampled_from(sorted(TORCH_CALLS)))]
    prefix = tmp_path_factory.getbasetemp() / "targets"
    versions: list[Any] = []

    def load(path: str, targets: dict[str, Any]) -> dict[str, Any]:
        plain = [one for one in targets.values() if not one.is_inference()]
        versions.extend((one, one._version) for one in plain)
        return call.load(path, targets)

    found = check_load(TORCH, chosen, dtype, prefix, Call(call.save, load, call.contains))
    for tensor, version in versions:
        assert (tensor._version > version) == (found == "written"), "torch was not told"
    counted("targets, torch", **{found: 1})


@property_test(60, 2000, data=st.data())
def test_jax(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(["f4", "i2", "u1"])))
    elements = MEMORY_BYTES // dtype.itemsize
    chosen = data.draw(st.lists(places(IMMUTABLE, elements), min_size=1, max_size=2))
    call = CALLS[data.draw(st.sampled_from(sorted(CALLS)))]
    prefix = tmp_path_factory.getbasetemp() / "targets"
    made: list[tuple[Any, Any]] = []

    def load(path: str, targets: dict[str, Any]) -> dict[str, Any]:
        made.extend((one, np.array(one)) for one in targets.values())
        found = call.load(path, targets)
        assert all(isinstance(one, jax.Array) for one in found.values())
        return found

    found = check_load(IMMUTABLE, chosen, dtype, prefix, Call(call.save, load, call.contains))
    for array, before in made:
        np.testing.assert_array_equal(np.asarray(array), before, err_msg="an alias changed")
    counted("targets, JAX", **{found: 1})


# ---- autograd, tied and compiled ----------------------------------------------------------------


@pytest.mark.parametrize("call", sorted(TORCH_CALLS))
def test_autograd_refuses_values_that_were_overwritten(call: str, tmp_path: Path) -> None:
    p = torch.nn.Parameter(torch.full((3,), 2.0))
    y = (p * p).sum()
    one = TORCH_CALLS[call]
    path = one.save(str(tmp_path / "p"), {"p": np.full(3, 100, np.float32)})
    one.load(path, {"p": p})
    assert p.tolist() == [100] * 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_compiled_functions_of_jax_keep_their_arrays(tmp_path: Path) -> None:
    w = jax.numpy.zeros(6)
    compiled = jax.jit(lambda x: x + w)
    compiled(0.0)
    tree = {"w": w}
    one = CALLS["load_tree_into"]
    path = one.save(str(tmp_path / "w"), {"w": np.arange(6, dtype=np.float32)})
    assert one.load(path, tree)["w"].tolist() == list(range(6))
    assert not w.any()
    assert not compiled(0.0).any()


# ---- the way out that each refusal names -------------------------------------------------------


def _inference() -> Any:
    with torch.inference_mode():
        return torch.zeros(2, 3)


def _load_one(path: str, target: Any) -> Any:
    ckptfmt.load_into(path, {"x": target})
    return target


def _with_torch(path: str, target: Any) -> Any:
    held = {"x": target}
    ckptfmt.torch.load_into(held, path)
    return held["x"]


def _in_inference_mode(path: str, target: Any) -> Any:
    with torch.inference_mode():
        return _load_one(path, target)


def _of_nested(path: str, target: Any) -> Any:
    return _load_one(path, target.values())


WAYS_OUT = {
    "tensor.clone()": (
        lambda: torch.zeros(1).expand(2, 3),
        lambda path, target: _load_one(path, target.clone()),
    ),
    "tensor.to_dense()": (
        lambda: torch.zeros(2, 3).to_sparse(),
        lambda path, target: _load_one(path, target.to_dense()),
    ),
    "tensor.values()": (
        lambda: torch.nested.nested_tensor([torch.zeros(1, 3)] * 2, layout=torch.jagged),
        _of_nested,
    ),
    "torch.inference_mode()": (_inference, _in_inference_mode),
    "ckptfmt.torch.load_into": (lambda: torch.zeros(2, 3, device="meta"), _with_torch),
    "ckptfmt.jax.load": (
        lambda: jax.numpy.zeros((2, 3)),
        lambda path, target: ckptfmt.jax.load(path, {"x": target})["x"],
    ),
    "ckptfmt.load": (
        lambda: np.broadcast_to(np.zeros(1, np.float32), (2, 3)),
        lambda path, _: ckptfmt.load(path)["x"],
    ),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_the_way_out_works(way: str, tmp_path: Path) -> None:
    make, work = WAYS_OUT[way]
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = CALLS["load_into"].save(str(tmp_path / "ck"), {"x": values})
    target = make()
    with pytest.raises(ckptfmt.InvalidError) as caught:
        ckptfmt.load_into(path, {"x": target})
    assert way in str(caught.value)
    np.testing.assert_array_equal(np.asarray(work(path, target)), values)
