# SPDX-License-Identifier: Apache-2.0
"""torch's tensors as arrays, which nothing in the package imports torch for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ckptfmt
import ckptfmt.safetensors
import ckptfmt.torch

DTYPES = [
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
]


def bits(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_both_ways(tmp_path: Path, name: str) -> None:
    values = torch.arange(24, dtype=torch.float32).reshape(4, 6) % 2
    tensor = values.to(getattr(torch, name))
    ckptfmt.save(tmp_path / "ck", {"x": tensor, "part": tensor[1:3]}, durability="none")
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert reader["x"].shape == (4, 6)
        assert str(reader["x"].dtype) == name
    target = {"x": torch.zeros_like(tensor), "part": torch.zeros_like(tensor[1:3])}
    assert ckptfmt.load_into(tmp_path / "ck", target)
    assert bits(target["x"]) == bits(tensor)
    assert bits(target["part"]) == bits(tensor[1:3])


def entries(path: Path) -> dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]]:
    """Ways to save one tensor, and to load it."""
    file = path.with_suffix(".safetensors")
    alone = ckptfmt.sharded.SingleProcess()
    return {
        "save": (lambda x: ckptfmt.save(path, {"x": x}), lambda: ckptfmt.load(path)["x"]),
        "save_tree": (
            lambda x: ckptfmt.save_tree(path, {"x": x}),
            lambda: ckptfmt.load_tree(path)["x"],
        ),
        "torch": (
            lambda x: ckptfmt.torch.save({"x": x}, path),
            lambda: ckptfmt.torch.load(path)["x"],
        ),
        "safetensors": (
            lambda x: ckptfmt.safetensors.save_file({"x": x}, file),
            lambda: ckptfmt.safetensors.load_file(file)["x"],
        ),
        "sharded": (
            lambda x: ckptfmt.sharded.save(path, {"x": x}, {"x": None}, alone),
            lambda: ckptfmt.load(path)["x"],
        ),
    }


@pytest.mark.parametrize("entry", entries(Path("ck")))
def test_tensors_that_are_not_their_memory(tmp_path: Path, entry: str) -> None:
    """A lazy conjugate or negative is saved as its values. A storage that no longer holds the
    tensor is not read beyond its end."""
    save, load = entries(tmp_path / "ck")[entry]
    conjugate = torch.tensor([[1 + 2j, 3 - 4j], [5 + 6j, 7j]]).conj()
    for tensor in (
        conjugate,
        conjugate.imag,
        conjugate.imag[1:, ::2],
        torch._neg_view(torch.ones(3)),
    ):
        save(tensor)
        assert np.array_equal(np.asarray(load()), tensor.resolve_conj().resolve_neg().numpy())
    for dtype in (torch.float32, torch.float8_e5m2):
        short = torch.ones(4, 2, dtype=dtype)
        short.untyped_storage().resize_(7)
        with pytest.raises(ckptfmt.InvalidError, match="storage"):
            save(short)
    part = torch.ones(9)[3:5]
    part.untyped_storage().resize_(20)
    save(part)
    part.untyped_storage().resize_(16)
    with pytest.raises(ckptfmt.InvalidError, match="storage"):
        save(part)


def test_a_state_dict(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    ckptfmt.save(tmp_path / "ck", model.state_dict())
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert ckptfmt.load_into(tmp_path / "ck", model.state_dict())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    # Parameters require grad: their memory is read and filled all the same.
    ckptfmt.save(tmp_path / "again", dict(model.named_parameters()))
    assert ckptfmt.load_into(tmp_path / "again", dict(model.named_parameters()))


def test_tied_weights(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 3)
            self.head = torch.nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

    model = Tied()
    ckptfmt.save(tmp_path / "ck", model.state_dict())
    expected = model.head.weight.detach().clone()
    with torch.no_grad():
        model.head.weight.zero_()
    assert ckptfmt.load_into(tmp_path / "ck", model.state_dict())
    assert torch.equal(model.embedding.weight, expected)
    ckptfmt.save(
        tmp_path / "other",
        {"embedding.weight": torch.zeros(5, 3), "head.weight": torch.ones(5, 3)},
    )
    with pytest.raises(ckptfmt.InvalidError, match="shares memory"):
        ckptfmt.load_into(tmp_path / "other", model.state_dict())


def test_tensors_without_data(tmp_path: Path) -> None:
    for tensor in (torch.empty(2, device="meta"), torch.ones(2, 2).to_sparse()):
        with pytest.raises(
            ckptfmt.InvalidError, match=r"tensor 'x': torch.Tensor of dtype float32"
        ):
            ckptfmt.save(tmp_path / "ck", {"x": tensor})
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in ("complex32", "float8_e8m0fnu", "float4_e2m1fn_x2", "bits8")
        if hasattr(torch, name)
    ],
)
def test_dtypes_that_the_format_lacks(tmp_path: Path, name: str) -> None:
    tensor = torch.empty(2, 2, dtype=getattr(torch, name))
    with pytest.raises(ckptfmt.InvalidError, match=r"tensor 'x': .*dtype") as caught:
        ckptfmt.save(tmp_path / "ck", {"x": tensor})
    assert "not understood" not in str(caught.value)
    assert not list(tmp_path.iterdir())
