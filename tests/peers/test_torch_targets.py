# SPDX-License-Identifier: Apache-2.0
"""ckptfmt.torch.load_into: which tensors are written, replaced or refused, with and without
`rename=`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.testing._internal.two_tensor import TwoTensor

import ckptfmt
import ckptfmt.torch as ct
from ckptfmt import InvalidError

SHAPE = (4, 3)
Rename = dict[str, Any] | None
RENAMES: list[Any] = [None, {"old": "x"}, {"old": ("x", lambda array: array + 0)}]


def stored(path: Path, rename: Rename, **more: Any) -> torch.Tensor:
    """Save a tensor for the target "x", and others before it."""
    tensor = torch.arange(12.0).reshape(SHAPE)
    ct.save({"a": torch.ones(2), "old" if rename else "x": tensor, **more}, path)
    return tensor


def base() -> torch.Tensor:
    return torch.zeros(40)


WRITTEN: dict[str, Callable[[], torch.Tensor]] = {
    "owned": lambda: torch.zeros(SHAPE),
    "view": lambda: base()[5:17].view(SHAPE),
    "columns": lambda: torch.zeros(3, 4).t(),
    "steps": lambda: torch.zeros(8, 6)[::2, ::2],
    "parameter": lambda: nn.Parameter(torch.zeros(SHAPE)),
    "as_strided": lambda: base().as_strided(SHAPE, (1, 5)),
}


def expanded() -> torch.Tensor:
    return torch.zeros(1).expand(SHAPE)


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(SHAPE)


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(SHAPE)


REFUSED: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "expanded": (expanded, "expanded"),
    "overlapping": (lambda: base().as_strided(SHAPE, (1, 1)), "share memory"),
    "sparse": (lambda: torch.zeros(SHAPE).to_sparse(), "to_dense"),
    "inference": (inference, "inference_mode"),
    "fake": (fake, "FakeTensorMode"),
    "subclass": (
        lambda: TwoTensor(torch.zeros(SHAPE), torch.zeros(SHAPE)),
        "made of other tensors",
    ),
}


@pytest.mark.parametrize("rename", RENAMES, ids=["plain", "rename", "transform"])
@pytest.mark.parametrize("make", WRITTEN.values(), ids=WRITTEN.keys())
@pytest.mark.parametrize("cast", [False, True])
def test_written(tmp_path: Path, make: Any, rename: Rename, cast: bool) -> None:
    expected = stored(tmp_path / "ck", rename)
    target = make()
    memory = torch.empty(0).set_(target.untyped_storage())
    other = {"a": torch.zeros(2, dtype=torch.float64 if cast else torch.float32), "x": target}
    place = target.data_ptr()
    report = ct.load_into(other, tmp_path / "ck", rename=rename, cast=cast)
    assert report and set(report.matched) == {"a", "x"}
    assert other["x"] is target and target.data_ptr() == place
    assert torch.equal(target, expected) and other["a"].tolist() == [1, 1]
    with torch.no_grad():
        target.zero_()  # the elements around it are as they were
    assert not memory.any()


@pytest.mark.parametrize("rename", RENAMES, ids=["plain", "rename", "transform"])
@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("strict", [False, True])
def test_refused(tmp_path: Path, make: Any, message: str, rename: Rename, strict: bool) -> None:
    """Before anything is written, and by name."""
    stored(tmp_path / "ck", rename)
    first = torch.zeros(2)
    with pytest.raises(InvalidError, match=message) as caught:
        ct.load_into({"a": first, "x": make()}, tmp_path / "ck", rename=rename, strict=strict)
    assert caught.value.tensor == "x"
    assert first.tolist() == [0, 0]
    assert ".contiguous()" not in str(caught.value) and ".cpu()" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_assign_of_sparse_and_nested_buffers(tmp_path: Path) -> None:
    expected = stored(tmp_path / "ck", None)
    model = nn.Module()
    model.register_buffer("x", torch.zeros(SHAPE).to_sparse())
    ct.load_into(model, tmp_path / "ck", strict=False, assign=True)
    assert torch.equal(model.x, expected)
    model.register_buffer("x", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    with pytest.raises(InvalidError) as caught:
        ct.load_into(model, tmp_path / "ck", strict=False, assign=True)
    assert caught.value.tensor == "x"


@pytest.mark.parametrize("rename", RENAMES, ids=["plain", "rename", "transform"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autograd_notices_a_load(tmp_path: Path, rename: Rename, dtype: torch.dtype) -> None:
    stored(tmp_path / "ck", rename)
    x = nn.Parameter(torch.ones(SHAPE, dtype=dtype))
    loss = (x * x).sum()
    ct.load_into({"x": x}, tmp_path / "ck", rename=rename, cast=True, strict=False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.fixture
def mesh() -> Any:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:DTensor random operators")
@pytest.mark.parametrize("placement", [Shard(0), Replicate()])
@pytest.mark.parametrize("assign", [False, True])
def test_sharded_tensors(tmp_path: Path, mesh: Any, placement: Any, assign: bool) -> None:
    stored(tmp_path / "ck", None)
    sharded = distribute_tensor(torch.zeros(SHAPE), mesh, [placement])
    module = nn.Module()
    module.a, module.x = nn.Parameter(torch.zeros(2)), nn.Parameter(sharded)
    with pytest.raises(InvalidError, match=r"torch.distributed.checkpoint with ckptfmt.torch.dcp"):
        ct.load_into(module, tmp_path / "ck", assign=assign)
    assert module.a.tolist() == [0, 0]
    optimizer = torch.optim.SGD([module.x], momentum=0.9)
    ct.save({"opt": optimizer}, tmp_path / "opt")
    with pytest.raises(InvalidError, match=r"torch.distributed.checkpoint with ckptfmt.torch.dcp"):
        ct.load_into({"opt": optimizer}, tmp_path / "opt", assign=assign)
    with pytest.raises(InvalidError, match=r"DTensor is saved through ckptfmt.torch.dcp"):
        ct.save(module, tmp_path / "no")


@pytest.mark.parametrize("rename", RENAMES, ids=["plain", "rename", "transform"])
def test_tensors_on_meta_are_replaced(tmp_path: Path, rename: Rename) -> None:
    expected = stored(tmp_path / "ck", rename)
    module = nn.Module()
    module.a = nn.Parameter(torch.zeros(2))
    module.x = nn.Parameter(torch.empty(SHAPE, device="meta"), requires_grad=False)
    assert ct.load_into(module, tmp_path / "ck", rename=rename)
    assert torch.equal(module.x, expected) and not module.x.requires_grad
    assert isinstance(module.x, nn.Parameter) and module.a.requires_grad


@pytest.mark.parametrize("rename", RENAMES, ids=["plain", "rename", "transform"])
@pytest.mark.parametrize("cast", [False, True])
def test_names_of_one_tensor(tmp_path: Path, rename: Rename, cast: bool) -> None:
    """One of them is enough; two must have equal values."""
    dtype = torch.float64 if cast else torch.float32
    for other, fits in ((None, True), (torch.arange(12.0).reshape(SHAPE), True), (base(), False)):
        more = {} if other is None else {"tied": other[:12].view(SHAPE).clone()}
        expected = stored(tmp_path / "ck", rename, **more)
        x = torch.zeros(SHAPE, dtype=dtype)
        target = {"a": torch.zeros(2, dtype=dtype), "x": x, "tied": x}
        transformed = rename is not None and isinstance(rename["old"], tuple)
        if other is None or (fits and not transformed):
            assert ct.load_into(target, tmp_path / "ck", rename=rename, cast=cast)
            assert torch.equal(x, expected.to(dtype))
        else:
            with pytest.raises(InvalidError, match="shares memory"):
                ct.load_into(target, tmp_path / "ck", rename=rename, cast=cast)
            assert not x.any() and not target["a"].any()


def test_interleaved_views_are_written_each(tmp_path: Path) -> None:
    ct.save({"a": torch.ones(3), "b": torch.full((3,), 2.0)}, tmp_path / "ck")
    for dtype in (torch.float32, torch.float64):
        both = torch.zeros(6, dtype=dtype)
        assert ct.load_into({"a": both[::2], "b": both[1::2]}, tmp_path / "ck", cast=True)
        assert both.tolist() == [1, 2, 1, 2, 1, 2]


# ---- renamed -------------------------------------------------------------------------------------


def test_renamed_as_not_renamed(tmp_path: Path) -> None:
    """The same report, but for the stored names."""
    ct.save({"x.weight": torch.ones(3, 2), "x.more": torch.ones(1)}, tmp_path / "ck")
    ct.save({"weight": torch.ones(3, 2), "more": torch.ones(1)}, tmp_path / "plain")
    model = nn.Linear(2, 3)
    plain = ct.load_into(model, tmp_path / "plain", strict=False)
    report = ct.load_into(model, tmp_path / "ck", strict=False, rename=[(r"^x\.", "")])
    assert (report.matched, report.missing) == (("weight",), ("bias",))
    assert (plain.matched, plain.missing) == (("weight",), ("bias",))
    assert (plain.unexpected, report.unexpected) == (("more",), ("x.more",))
    model = nn.Linear(2, 3).half()
    ct.load_into(model, tmp_path / "ck", strict=False, assign=True, rename=[(r"^x\.", "")])
    assert model.weight.dtype is torch.float32 and torch.equal(model.weight, torch.ones(3, 2))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, :UserWarning")
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_dtypes_that_the_format_lacks_are_renamed(tmp_path: Path) -> None:
    state = {"x.c": torch.view_as_complex(torch.ones(3, 2).half()), "x.q": torch.ones(2)}
    state["x.q"] = torch.quantize_per_tensor(state["x.q"], 0.5, 3, torch.qint8)
    ct.save(state, tmp_path / "ck")
    target = {"c": torch.zeros(3, dtype=torch.complex32), "q": state["x.q"].clone()}
    assert ct.load_into(target, tmp_path / "ck", rename=[(r"x\.", "")])
    assert torch.equal(torch.view_as_real(target["c"]), torch.ones(3, 2).half())


def test_transforms(tmp_path: Path) -> None:
    values = {"k": torch.randn(2, 3), "b": torch.randn(4).bfloat16(), "n": torch.tensor(3.0)}
    values["m"] = torch.ones(5)
    ct.save(values, tmp_path / "ck")
    model = {"k": torch.zeros(3, 2), "b": torch.zeros(2, 2).bfloat16(), "n": torch.zeros(1)}
    rename: Any = {
        "k": ("k", np.transpose),
        "b": ("b", lambda array: array.reshape(2, 2)),
        "n": ("n", lambda array: array.reshape(1)),
    }
    calls: list[tuple[int, int]] = []
    report = ct.load_into(
        {**model, "m": torch.zeros(5)},
        tmp_path / "ck",
        rename=rename,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert report and calls == sorted(calls) and {total for _, total in calls} == {24 + 8 + 4 + 20}
    assert calls[-1][0] == calls[-1][1]
    assert torch.equal(model["k"], values["k"].T)
    assert torch.equal(model["b"], values["b"].view(2, 2))
    assert model["n"].tolist() == [3]
    with pytest.raises(InvalidError, match=r"'k' is \(3, 2\) and not \(2, 3\)"):
        ct.load_into({**model, "k": torch.zeros(2, 3)}, tmp_path / "ck", rename=rename)
    changing: Any = {**rename, "k": ("k", lambda array: array.T[: 3 - 2 * bool(array.any())])}
    failing: Any = {**rename, "k": ("k", lambda array: array.nothing)}
    for wrong, message in ((changing, "for zeros"), (failing, "the transform fails")):
        with pytest.raises(InvalidError, match=message):
            ct.load_into({**model, "m": torch.zeros(5)}, tmp_path / "ck", rename=wrong)
    with pytest.raises(InvalidError, match="rename gives the name 'k' to 'k' as well"):
        ct.load_into(model, tmp_path / "ck", rename={"b": "k"})


def test_a_checkpoint_of_tensorflow(tmp_path: Path) -> None:
    """Its object graph and save counter are not unexpected."""
    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    ckptfmt.Checkpoint(net={"w": np.ones((4, 2), "f4"), "b": np.ones(2, "f4")}).save(
        tmp_path / "ck"
    )
    rules: Any = {f"net/w{end}": ("weight", np.transpose), f"net/b{end}": "bias"}
    model = nn.Linear(4, 2)
    assert ct.load_into(model, tmp_path / "ck-1", rename=rules)
    assert torch.equal(model.weight, torch.ones(2, 4))
    target = {f"net/w{end}": torch.zeros(4, 2), f"net/b{end}": torch.zeros(2)}
    assert ct.load_into(target, tmp_path / "ck-1")
    assert ct.load_into(target, tmp_path / "ck-1", rename=lambda name: name)
    report = ct.load_into(model, tmp_path / "ck-1", strict=False)
    assert report.unexpected == (f"net/b{end}", f"net/w{end}")


def test_names_of_one_parameter_on_meta(tmp_path: Path) -> None:
    """With other stored values for each: one of them would be lost."""

    class Pair(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, *, tied: bool) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
            if tied:
                self.b.weight = self.a.weight

    ct.save(Pair(tied=False), tmp_path / "apart")
    ct.save(Pair(tied=True), tmp_path / "tied")
    with torch.device("meta"):
        model = Pair(tied=True)
    with pytest.raises(InvalidError, match="stored values differ"):
        ct.load_into(model, tmp_path / "apart")
    assert model.a.weight.is_meta
    assert ct.load_into(model, tmp_path / "tied")
    assert model.a.weight is model.b.weight


@pytest.mark.parametrize("into", [False, True])
def test_a_cast_takes_the_result_and_one_tensor(tmp_path: Path, into: bool) -> None:
    """Not the stored values of all tensors as well."""
    ct.save({f"t{n}": torch.full((1 << 20,), float(n)) for n in range(16)}, tmp_path / "m")
    targets = {f"t{n}": torch.ones(1 << 20, dtype=torch.bfloat16) for n in range(16)}
    ct.load(tmp_path / "m", names=["t0"], cast=torch.bfloat16)
    tracemalloc.start()
    if into:
        ct.load_into(targets, tmp_path / "m", cast=True)
    else:
        targets = ct.load(tmp_path / "m", cast=torch.bfloat16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (12 << 20) + (0 if into else 32 << 20)
    assert all((targets[f"t{n}"] == n).all() for n in range(16))
