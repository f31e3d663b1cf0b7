# SPDX-License-Identifier: Apache-2.0
"""Messages about a caller's mistake: what was expected, what was found, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt import load_into


class TorchTensor:
    """What a torch tensor on a GPU shows of itself."""

    dtype, device, requires_grad = "torch.bfloat16", "cuda:0", False

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_options: Any) -> Any:
        raise AssertionError("asked for its memory")


TorchTensor.__module__, TorchTensor.__qualname__ = "torch", "Tensor"
TorchTensor.__name__ = "Tensor"


class WithGrad(TorchTensor):
    """One that requires grad and that `detach` does not help."""

    requires_grad = True

    def detach(self) -> WithGrad:
        return self

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_options: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")


KERNEL, BIAS = np.ones((2, 3)), np.ones(3, np.float32)
X = np.ones(1)

# What the caller does, with the directory of a checkpoint "ck", and the parts of the message.
MISTAKES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "missing tensor": (
        lambda: ckptfmt.load("ck", ["model/kernle"]),
        ["tensor 'model/kernle'", "the nearest are 'model/kernel'"],
    ),
    "missing tensor of a reader": (
        lambda: ckptfmt.open("ck")["model/kernle"],
        ["tensor 'model/kernle'", "the nearest are 'model/kernel'"],
    ),
    "missing tensor to read": (
        lambda: ckptfmt.open("ck").read("model/kernle"),
        ["tensor 'model/kernle'", "the nearest are 'model/kernel'"],
    ),
    "missing tensor of a target": (
        lambda: load_into("ck", {"model/kernle": KERNEL, "model/bias": BIAS}),
        ["missing in the checkpoint (1): 'model/kernle'", "the nearest are 'model/kernel'"],
    ),
    "swapped arguments": (
        lambda: ckptfmt.save({"x": X}, "ck"),  # type: ignore[arg-type]
        ["save(prefix, tensors): prefix must be", "not dict. Are the arguments swapped?"],
    ),
    "None": (lambda: ckptfmt.save("new", {"x": None}), ["tensor 'x': None is not an array"]),
    "nested dict": (
        lambda: ckptfmt.save("new", {"x": {"y": X}}),
        ["tensor 'x'", "save it with ckptfmt.save_tree"],
    ),
    "tensor on a GPU": (
        lambda: ckptfmt.save("new", {"x": TorchTensor()}),
        ["tensor 'x': torch.Tensor of dtype bfloat16 on cuda:0", "tensor.cpu()"],
    ),
    "target on a GPU": (
        lambda: load_into("ck", {"model/bias": TorchTensor()}, strict=False),
        ["cannot read into torch.Tensor of dtype bfloat16 on cuda:0: ", "in the memory of cuda:0"],
    ),
    "tensor that requires grad": (
        lambda: ckptfmt.save("new", {"x": WithGrad()}),
        ["tensor 'x'", "require gradient, use tensor.detach()"],
    ),
    "boolean mask": (
        lambda: ckptfmt.open("ck")["model/bias"][BIAS > 0],
        ["integers, slices or an ellipsis", "read()"],
    ),
    "a directory that cannot be written": (
        lambda: ckptfmt.save("/proc/new", {"x": X}),
        ["/proc/new"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    monkeypatch.chdir(tmp_path)
    ckptfmt.save("ck", {"model/kernel": KERNEL, "model/bias": BIAS}, durability="none")
    before = sorted(tmp_path.iterdir())
    call, parts = MISTAKES[mistake]
    with pytest.raises(ckptfmt.CkptfmtError) as caught:
        call()
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert len(message) < 300 and "\n" not in message
    assert sorted(tmp_path.iterdir()) == before
