# SPDX-License-Identifier: Apache-2.0
"""ckptfmt.torch: modules, state dicts and whole training states, in place and new."""

from __future__ import annotations

import copy
import itertools
import json
import math
import random
import re
import subprocess
import sys
import warnings
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ckptfmt
import ckptfmt.torch as ct
from ckptfmt import InvalidError, TensorNotFoundError
from ckptfmt.torch import making

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, :UserWarning"),
]


def all_dtypes() -> list[torch.dtype]:
    found = dict.fromkeys(one for one in vars(torch).values() if isinstance(one, torch.dtype))
    return sorted(found, key=str)


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's elements, in row-major order."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if not tensor.is_quantized and tensor.itemsize <= 2:
        # Some dtypes cannot be copied.
        tensor = tensor.view(torch.uint8 if tensor.itemsize == 1 else torch.int16)
    if not tensor.is_quantized or not tensor.is_contiguous():
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return bytes(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy())


def quantizer(tensor: torch.Tensor) -> Any:
    if not tensor.is_quantized:
        return None
    if tensor.qscheme() is torch.per_tensor_affine:
        return tensor.q_scale(), tensor.q_zero_point()
    scales, points = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return tensor.q_per_channel_axis(), scales.tolist(), points.tolist(), scales.dtype, points.dtype


def equal(one: Any, other: Any) -> bool:
    """Whether two states are the same, types and bits included."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and bits(one) == bits(other)
            and quantizer(one) == quantizer(other)
        )
    if type(one) is not type(other):
        return False
    for kept in ("maxlen", "default_factory"):
        if getattr(one, kept, None) != getattr(other, kept, None):
            return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def filled(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor with random bits; 0 and 1 of a bool."""
    if str(dtype).startswith("torch.q"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch._empty_affine_quantized(shape, scale=0.3, zero_point=2, dtype=dtype)
    tensor = torch.empty(shape, dtype=dtype)
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    raw.copy_(torch.randint(0, 2 if dtype is torch.bool else 256, raw.shape, dtype=torch.uint8))
    return tensor


@pytest.mark.parametrize("dtype", all_dtypes(), ids=str)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {"x": filled(dtype, 4, 6), "scalar": filled(dtype), "empty": filled(dtype, 0, 3)}
    state["again"] = state["x"]
    if dtype not in (torch.quint4x2, torch.quint2x4):  # packed ones have no views
        state["columns"] = filled(dtype, 4, 6).t()
        state["part"] = filled(dtype, 4, 6)[1:3, ::2]
    ct.save(state, tmp_path / "ck", durability="none")
    loaded = ct.load(tmp_path / "ck")
    assert equal(loaded, state)
    assert loaded["again"] is loaded["x"]
    shapes = ct.load(tmp_path / "ck", device="meta")
    assert {k: (v.shape, v.dtype) for k, v in shapes.items()} == {
        k: (v.shape, v.dtype) for k, v in state.items()
    }
    targets = {name: filled(dtype, *tensor.shape) for name, tensor in state.items()}
    places = {name: (tensor, tensor.data_ptr()) for name, tensor in targets.items()}
    assert ct.load_into(targets, tmp_path / "ck")
    assert equal(targets, state)
    for name, (tensor, place) in places.items():
        if not tensor.is_quantized:
            assert targets[name] is tensor and tensor.data_ptr() == place
    # In place into memory of other strides.
    if not targets["x"].is_quantized:
        turned = {"x": filled(dtype, 6, 4).t()}
        assert not ct.load_into(turned, tmp_path / "ck", strict=False).missing
        assert equal(turned["x"], state["x"])


def test_quantized_by_channel(tmp_path: Path) -> None:
    values, scales = torch.randn(3, 4), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    points = torch.tensor([0, 5, 9])
    state = {
        "int": torch.quantize_per_channel(values, scales, points, 0, torch.quint8),
        "tensor": torch.quantize_per_tensor(values, 0.5, 3, torch.qint32),
        "float": torch.quantize_per_channel(values, scales, points / 2, 0, torch.quint8),
        "packed": torch.quantize_per_channel(values, scales, points / 2, 0, torch.quint4x2),
    }
    ct.save(state, tmp_path / "ck")
    assert equal(ct.load(tmp_path / "ck"), state)
    assert torch.equal(ct.load(tmp_path / "ck")["int"].dequantize(), state["int"].dequantize())
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert reader["int"].dtype_name == "quint8"


def test_lazy_views(tmp_path: Path) -> None:
    values = torch.randn(3, 2, dtype=torch.complex64)
    state = {"conj": values.conj(), "neg": values.conj().imag, "grad": values.requires_grad_()}
    ct.save(state, tmp_path / "ck")
    loaded = ct.load(tmp_path / "ck")
    for name, tensor in state.items():
        assert torch.equal(loaded[name], tensor.detach()), name
    targets = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    targets["conj"] = torch.zeros(3, 2, dtype=torch.complex64).conj()
    assert ct.load_into(targets, tmp_path / "ck")
    for name, tensor in state.items():
        assert torch.equal(targets[name], tensor.detach()), name


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    model = Tied()
    ct.save(model, tmp_path / "ck")
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert list(reader.keys()) == ["embedding.weight"]
    loaded = ct.load(tmp_path / "ck")
    assert loaded["head.weight"] is loaded["embedding.weight"]
    other = Tied()
    place = other.head.weight.data_ptr()
    report = ct.load_into(other, tmp_path / "ck")
    assert set(report.matched) == {"embedding.weight", "head.weight"}
    assert other.head.weight is other.embedding.weight and other.head.weight.data_ptr() == place
    assert torch.equal(other.head.weight, model.head.weight)
    with torch.device("meta"):
        empty = Tied()
    assert ct.load_into(empty, tmp_path / "ck")
    assert empty.head.weight is empty.embedding.weight
    assert torch.equal(empty.head.weight, model.head.weight)
    assert ct.load_into(other, tmp_path / "ck", assign=True)
    assert other.head.weight is other.embedding.weight and other.head.weight.data_ptr() != place


@pytest.mark.parametrize("meta", [False, True])
def test_one_name_is_enough_for_tied_tensors(tmp_path: Path, meta: bool) -> None:
    weight = torch.randn(5, 3)
    ckptfmt.save(tmp_path / "ck", {"head.weight": weight})
    with torch.device("meta" if meta else "cpu"):
        model = Tied()
    assert not ct.load_into(model, tmp_path / "ck").missing
    assert model.head.weight is model.embedding.weight
    assert torch.equal(model.embedding.weight, weight)
    targets = dict(model.state_dict())
    assert not ct.load_into(targets, tmp_path / "ck").missing


def test_parameters_that_are_not_tied_stay_so(tmp_path: Path) -> None:
    ct.save(Tied(), tmp_path / "ck")
    with torch.device("meta"):
        model = Tied()
        model.head = nn.Linear(3, 5, bias=False)
    assert ct.load_into(model, tmp_path / "ck")
    assert torch.equal(model.head.weight, model.embedding.weight)
    assert model.head.weight.data_ptr() != model.embedding.weight.data_ptr()


def test_tied_targets_of_different_tensors(tmp_path: Path) -> None:
    ckptfmt.save(
        tmp_path / "ck",
        {"embedding.weight": torch.zeros(5, 3), "head.weight": torch.ones(5, 3)},
    )
    with pytest.raises(InvalidError, match="shares memory"):
        ct.load_into(Tied(), tmp_path / "ck")


def test_overlapping_views_are_stored_each(tmp_path: Path) -> None:
    flat = torch.arange(10.0)
    state = {"flat": flat, "first": flat[:6], "last": flat[4:], "matrix": flat.view(2, 5)}
    ct.save(state, tmp_path / "ck")
    assert equal(ct.load(tmp_path / "ck"), state)
    targets = {"first": torch.zeros(6), "last": torch.zeros(6)}
    ct.load_into(targets, tmp_path / "ck", strict=False)
    assert torch.equal(targets["last"], flat[4:])


def wrapped(model: nn.Module, kind: str) -> nn.Module:
    """A module whose tensors have the names of a wrapper's."""
    if not kind:
        return model
    outer = nn.Module()
    setattr(outer, kind, model)
    return outer


@pytest.mark.parametrize(
    "kinds",
    [
        *([kind, ""] for kind in ("_orig_mod", "module", "net-1")),
        *(["", kind] for kind in ("_orig_mod", "module", "net-1")),
        ["_orig_mod", "module"],
        ["weight", "odd"],
    ],
)
def test_the_error_mends_names_that_differ_by_a_prefix(tmp_path: Path, kinds: list[str]) -> None:
    """What it says, done as it is written, loads: of modules, dicts of tensors, training states."""
    plain, other = nn.Linear(2, 3), nn.Linear(2, 3)
    saved, target = wrapped(plain, kinds[0]), wrapped(other, kinds[1])
    calls: list[Callable[[Path, Any], Any]] = [
        lambda path, more: ct.load_into(target, path, **more),
        lambda path, more: ct.load_into(dict(target.state_dict()), path, **more),
        lambda path, more: ckptfmt.load_into(path, target.state_dict(), **more),
    ]
    for number, call in enumerate(calls):
        ct.save(saved, tmp_path / f"{number}")
        with pytest.raises(InvalidError) as caught:
            call(tmp_path / f"{number}", {})
        found = re.search(r"pass (rename=.*)$", str(caught.value))
        assert found is not None
        assert call(tmp_path / f"{number}", eval(f"dict({found[1]})"))
        assert equal(other.state_dict(), plain.state_dict())
        nn.init.zeros_(other.weight)
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (saved, target)]
    ct.save({"model": saved, "optimizer": optimizers[0], "step": 3}, tmp_path / "a run")
    state = {"model": target, "optimizer": optimizers[1], "step": 0}
    with pytest.raises(InvalidError) as caught:
        ct.load_into(state, tmp_path / "a run")
    found = re.search(r"pass (rename=.*)$", str(caught.value))
    assert found is not None
    assert ct.load_into(state, tmp_path / "a run", **eval(f"dict({found[1]})"))
    assert state["step"] == 3
    assert equal(other.state_dict(), plain.state_dict())


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ("module.a module.b", "a c"),
        ("module.a module.b", "a"),
        ("module.a x.b", "a b"),
        ("modulea", "a"),
        ("b.a", "b.c"),
        ("a b.x", "module.a b.x"),  # a rename of all would move the one that matches
        ("module.a module.x", "a module.x"),
    ],
)
def test_names_that_differ_otherwise(tmp_path: Path, stored: str, wanted: str) -> None:
    ct.save({name: torch.ones(1) for name in stored.split()}, tmp_path / "ck")
    with pytest.raises(InvalidError) as caught:
        ct.load_into({name: torch.ones(1) for name in wanted.split()}, tmp_path / "ck")
    assert "rename" not in str(caught.value)


def test_options_of_torch_are_named(tmp_path: Path) -> None:
    ct.save({"x": torch.ones(1)}, tmp_path / "ck")
    for option, word in (("map_location", "device="), ("weights_only", "pickle")):
        with pytest.raises(InvalidError, match=word) as caught:
            ct.load(tmp_path / "ck", **{option: "cpu"})
        assert caught.value.argument == option and "\n" not in str(caught.value)
    with pytest.raises(TypeError):
        ct.load(tmp_path / "ck", other=1)  # type: ignore[call-arg]


def test_buffers_that_stay_on_meta_are_reported(tmp_path: Path) -> None:
    def made() -> nn.Module:
        model = nn.Sequential(nn.BatchNorm1d(2))
        model[0].register_buffer("table", torch.ones(2), persistent=False)
        return model

    model = made()
    ct.save({"model": model}, tmp_path / "ck")
    with torch.device("meta"):
        other = made()
    assert not ct.load_into({"model": model}, tmp_path / "ck").left
    report = ct.load_into({"model": other}, tmp_path / "ck")
    assert report and report.left == ("model.0.table",) and "model.0.table" in str(report)
    assert other[0].table.is_meta and not other[0].running_mean.is_meta


def test_what_does_not_match(tmp_path: Path) -> None:
    ct.save(nn.Linear(3, 4), tmp_path / "ck")
    model = nn.Sequential(nn.Linear(3, 4))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InvalidError, match=r"missing in the checkpoint \(2\)") as caught:
        ct.load_into(model, tmp_path / "ck")
    assert caught.value.report.unexpected == ("weight", "bias")
    with pytest.raises(InvalidError, match=r"'weight' is \(4, 3\) and not \(4, 5\)"):
        ct.load_into(nn.Linear(5, 4), tmp_path / "ck")
    with pytest.raises(InvalidError, match="cast=True"):
        ct.load_into(nn.Linear(3, 4).half(), tmp_path / "ck")
    with pytest.raises(TensorNotFoundError):
        ct.load_into({**nn.Linear(3, 4).state_dict(), "more": torch.zeros(1)}, tmp_path / "ck")
    report = ct.load_into(model, tmp_path / "ck", strict=False)
    assert report.missing == ("0.weight", "0.bias") and not report
    assert equal(model.state_dict(), before)
    half = nn.Linear(3, 4).half()
    assert ct.load_into(half, tmp_path / "ck", cast=True)
    assert torch.equal(half.weight, ct.load(tmp_path / "ck")["weight"].half())
    with torch.device("meta"):
        empty, cast = (nn.Linear(3, 4, dtype=torch.float16) for _ in range(2))
    assert ct.load_into(cast, tmp_path / "ck", cast=True)
    assert torch.equal(cast.weight, half.weight) and cast.weight.requires_grad
    assert ct.load_into(empty, tmp_path / "ck", assign=True)
    assert empty.weight.dtype is torch.float32 and empty.weight.requires_grad


def test_the_plain_functions_and_ours_read_each_other(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    ct.save(model, tmp_path / "ours")
    ckptfmt.save(tmp_path / "plain", model.state_dict())
    for path in (tmp_path / "ours", tmp_path / "plain"):
        arrays, loaded = ckptfmt.load(path), ct.load(path)
        assert arrays.keys() == loaded.keys() == model.state_dict().keys()
        for name, tensor in model.state_dict().items():
            assert np.array_equal(arrays[name], tensor.numpy()), name
            assert torch.equal(loaded[name], tensor), name
        other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        assert ckptfmt.load_into(path, other.state_dict())
        assert equal(other.state_dict(), model.state_dict())
    # A level without metadata holds what needs none.
    ct.save(model, tmp_path / "v2", level="v2")
    assert equal(dict(ct.load(tmp_path / "v2")), dict(sorted(model.state_dict().items())))
    with pytest.raises(InvalidError, match="metadata"):
        ct.save({"step": 1}, tmp_path / "v2", level="v2")


def test_strings_of_other_checkpoints(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"text": np.array([b"a", b"bc"], object), "x": np.ones(2)})
    loaded = ct.load(tmp_path / "ck")
    assert loaded["text"].tolist() == [b"a", b"bc"]
    assert ct.load(tmp_path / "ck", device="meta")["text"].shape == (2,)
    module = nn.Module()
    module.register_buffer("text", torch.zeros(2))
    with pytest.raises(InvalidError, match="dtype"):
        ct.load_into(module, tmp_path / "ck", filter="text", assign=True)
    assert torch.equal(loaded["x"], torch.ones(2, dtype=torch.float64))


def test_data_for_a_gpu_is_staged_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts, with the CPU as the GPU: pinned memory needs a real one."""
    monkeypatch.setattr(making, "UNSTAGED", set())
    monkeypatch.setattr(making, "STAGING_BYTES", 100)
    state = {f"{size}": torch.randn(size) for size in (1, 30, 5, 0, 80, 3)}
    ct.save(state, tmp_path / "ck")
    calls: list[tuple[int, int]] = []
    loaded = ct.load(tmp_path / "ck", progress=lambda *call: calls.append(call))
    assert equal(loaded, state)
    assert calls[-1] == (119 * 4, 119 * 4) and len(calls) > 2
    targets = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    assert ct.load_into(targets, tmp_path / "ck")
    assert equal(targets, state)


def test_torch_must_be_installed() -> None:
    code = "import sys; sys.modules['torch'] = None; import ckptfmt.torch"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ckptfmt.torch needs torch (pip install torch)" in ran.stderr


# ---- arguments and structures ----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(tmp_path: Path, layout: torch.layout) -> None:
    parts = [torch.ones(2), torch.zeros(3)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    with pytest.raises(InvalidError, match=r"nested .*pass list\(tensor.unbind\(\)\)") as caught:
        ct.save({"x": nested}, tmp_path / "ck")
    assert caught.value.tensor == "x"
    ct.save({"x": list(nested.unbind())}, tmp_path / "ck")
    assert equal(ct.load(tmp_path / "ck")["x"], parts)
    with pytest.raises(InvalidError, match="a nested tensor") as caught:
        ct.load_into({"x": [nested, parts[1]]}, tmp_path / "ck")
    assert caught.value.tensor == "x.0"


def test_wrong_arguments(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(InvalidError, match="swapped"):
        ct.save(str(tmp_path / "ck"), model)
    with pytest.raises(InvalidError, match="swapped"):
        ct.load_into(str(tmp_path / "ck"), model)
    with pytest.raises(InvalidError, match="not Tensor"):
        ct.save(torch.ones(2), tmp_path / "ck")
    with pytest.raises(InvalidError, match="two values of the state have this name"):
        ct.save({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}, tmp_path / "ck")
    ct.save(model, tmp_path / "ck")
    with pytest.raises(InvalidError, match="device='nowhere' cannot be used"):
        ct.load(tmp_path / "ck", device="nowhere")
    with pytest.raises(InvalidError, match="not int"):
        ct.load_into(3, tmp_path / "ck")
    loop: dict[str, Any] = {}
    loop["self"] = loop
    with pytest.raises(InvalidError, match="contains itself"):
        ct.save(loop, tmp_path / "ck")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version":1}',
        '{"version":1,"state":{"x":{"$dict":[1]}}}',
        '{"version":1,"state":{"x":{"$dtype":"load"}}}',
        '{"version":1,"state":{"x":{"$set":[[]]}}}',
        '{"version":1,"state":{"$state_dict":[],"versions":[1]}}',
    ],
)
def test_a_damaged_structure(tmp_path: Path, text: str) -> None:
    ckptfmt.save(tmp_path / "ck", {"x": np.ones(2)}, metadata={"ckptfmt.torch": text})
    with pytest.raises(ckptfmt.CorruptError, match="structure of the torch state"):
        ct.load(tmp_path / "ck")


@pytest.mark.parametrize(
    "note",
    [
        '"dtype":"complex32"',
        '"dtype":"int8"',
        '"dtype":"qint8"',
        '"dtype":"qint8","scale":1.0,"zero_point":0',
        '"dtype":"quint4x2","scale":1.0,"zero_point":0,"shape":[1000000000000]',
        '"dtype":"quint4x2","scale":1.0,"zero_point":0,"shape":[33]',
        '"dtype":"quint4x2","scale":1.0,"zero_point":0,"shape":[-1]',
        '"dtype":"qint8","axis":0',
        '"dtype":5',
        '"shape":[2]',
        '"dtype":"qint8","axis":0,"scales":1,"zero_points":2',
    ],
)
def test_a_damaged_note(tmp_path: Path, note: str) -> None:
    text = f'{{"version":1,"state":{{"x":{{"$tensor":true,{note}}}}}}}'
    ckptfmt.save(tmp_path / "ck", {"x": np.ones(2)}, metadata={"ckptfmt.torch": text})
    with pytest.raises(ckptfmt.CorruptError):
        ct.load(tmp_path / "ck")


def test_states_of_later_versions(tmp_path: Path) -> None:
    for text in (
        '{"version":2,"state":{}}',
        '{"version":1,"state":{"$nothing":1}}',
        '{"version":1,"state":{"x":{"$tensor":true,"dtype":"float3"}}}',
    ):
        ckptfmt.save(tmp_path / "ck", {"x": np.ones(2)}, metadata={"ckptfmt.torch": text})
        with pytest.raises(ckptfmt.UnsupportedError, match=r"(version 2|float3|of kind)"):
            ct.load(tmp_path / "ck")


def test_save_async_copies_first(tmp_path: Path) -> None:
    tensor = torch.ones(1000)
    future = ct.save_async({"x": tensor, "step": 3}, tmp_path / "ck")
    tensor.zero_()
    future.result()
    assert torch.equal(ct.load(tmp_path / "ck")["x"], torch.ones(1000))


def test_the_metadata_of_the_caller_stay(tmp_path: Path) -> None:
    ct.save({"x": torch.ones(1)}, tmp_path / "ck", metadata={"run": "a"})
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert reader.metadata["run"] == "a"
        assert json.loads(reader.metadata["ckptfmt.torch"])["version"] == 1


class Counting(nn.Module):
    """A module with an extra state that is not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.calls = nn.Parameter(torch.zeros(2)), 0

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


class Migrating(nn.Module):
    """The parameter of version 1 was ten times smaller. What comes with the state is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.calls, self.seen = 0, None

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]

    def _load_from_state_dict(self, state: Any, prefix: str, local: Any, *rest: Any) -> None:
        self.seen = local.get("version")
        if self.seen is None or self.seen < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] * 10
        super()._load_from_state_dict(state, prefix, local, *rest)


class Migrated(Migrating):
    _version = 2


WHERE = {"alone": "", "below": "0.", "deep": "0.block."}
CHOICES: dict[str, dict[str, Any]] = {
    "all": {},
    "filter": {"filter": "*"},
    "cast": {"cast": torch.float32},
    "rename": {"rename": [("none", "other")]},
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("old", [Migrating, Migrated])
def test_modules_migrate_what_an_older_version_saved(
    tmp_path: Path, old: Callable[[], nn.Module], where: str, choice: str
) -> None:
    """As torch does: by the version in the checkpoint, not by that of the module."""

    def made(inner: nn.Module) -> nn.Module:
        if where == "alone":
            return inner
        return nn.Sequential(inner if where == "below" else nn.ModuleDict({"block": inner}))

    saved, expected, found = old(), Migrated(), Migrated()
    saved.calls = 7
    made(expected).load_state_dict(made(saved).state_dict())
    ct.save(made(saved), tmp_path / "ck")
    assert ct.load_into(made(found), tmp_path / "ck", **CHOICES[choice])
    assert torch.equal(found.weight, expected.weight)
    assert (found.seen, found.calls) == (expected.seen, expected.calls) == (old()._version, 7)
    # Of a part of a training state, and by the plain functions.
    ct.save({"model": made(saved), "step": 1}, tmp_path / "whole")
    part, plain = Migrated(), Migrated()
    rename = [(r"^model\.", "")]
    assert ct.load_into(made(part), tmp_path / "whole", filter="model.*", rename=rename)
    made(plain).load_state_dict(ct.load(tmp_path / "whole")["model"])
    for one in (part, plain):
        assert torch.equal(one.weight, expected.weight) and one.seen == expected.seen


class Container(nn.Module):
    """It has a version and no tensors of its own."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = Migrated(), None

    def _load_from_state_dict(self, state: Any, prefix: str, local: Any, *rest: Any) -> None:
        self.seen = local.get("version")
        super()._load_from_state_dict(state, prefix, local, *rest)


def test_versions_follow_renamed_modules(tmp_path: Path) -> None:
    """Also of containers, in chains and through edits; and so does the extra state."""
    saved = nn.Sequential(Container(), Migrating(), Migrated())
    for one in (saved[0].inner, saved[1], saved[2]):
        one.calls = 5
    ct.save(saved, tmp_path / "ck")

    def rename(name: str) -> str:
        first, _, rest = name.partition(".")
        return f"{(int(first) + 1) % 3}.{rest}"

    ckptfmt.editing.edit(tmp_path / "ck", tmp_path / "edited", rename=rename)
    ckptfmt.convert(tmp_path / "ck", tmp_path / "converted", rename=rename)
    ckptfmt.convert(tmp_path / "ck", tmp_path / "x.safetensors", rename=rename)
    ckptfmt.convert(tmp_path / "x.safetensors", tmp_path / "back")

    def check(model: nn.Module, extra: int) -> None:
        assert (model[1].seen, model[1].inner.seen, model[2].seen, model[0].seen) == (2, 2, 1, 2)
        assert [model[1].inner.calls, model[2].calls, model[0].calls] == [extra] * 3
        assert model[2].weight.tolist() == [10, 10] and model[0].weight.tolist() == [1, 1]

    for path in ("edited", "converted", "back"):
        model = nn.Sequential(Migrated(), Container(), Migrated())
        assert ct.load_into(model, tmp_path / path)
        check(model, 5)
    model = nn.Sequential(Migrated(), Container(), Migrated())
    assert ct.load_into(model, tmp_path / "ck", rename=rename)
    check(model, 5)


RENAMED = {
    "a part of the root": {"a.b.w": "x.a.b.w"},
    "into a module that stays": {"a.b.w": "c.b.w"},
    "out of a module": {"a.b.w": "b.w"},
    "a part of a module": {"a.w": "x.w"},
    "all of a module": {"a.w": "x.w", "a.b.w": "x.b.w"},
    "swapped": {"a.w": "c.w", "a.b.w": "c.b.w", "c.w": "a.w"},
}
# Modules whose version and extra state move, with their new names.
MOVED = {
    "a part of the root": {"a.b": "x.a.b"},
    "into a module that stays": {"a.b": "c.b"},
    "out of a module": {"a.b": "b"},
    "a part of a module": {},
    "all of a module": {"a": "x", "a.b": "x.b"},
    "swapped": {"a": "c", "a.b": "c.b", "c": "a"},
}


@pytest.mark.parametrize("case", RENAMED)
def test_what_modules_have_moves_with_all_their_tensors(tmp_path: Path, case: str) -> None:
    modules = ["", "a", "a.b", "c"]
    state = OrderedDict((name, torch.ones(1)) for name in ("w", "a.w", "a.b.w", "c.w"))
    state.update((f"{one}._extra_state".removeprefix("."), {"of": one}) for one in modules)
    state._metadata = {one: {"version": 2 + i} for i, one in enumerate(modules)}
    ct.save(state, tmp_path / "ck")
    ckptfmt.editing.edit(tmp_path / "ck", tmp_path / "to", rename=RENAMED[case])
    found = ct.load(tmp_path / "to")
    new = {one: MOVED[case].get(one, one) for one in modules}
    for number, module in enumerate(modules):
        assert found[f"{new[module]}._extra_state".removeprefix(".")] == {"of": module}
        assert found._metadata[new[module]] == {"version": 2 + number}
    assert len(found) == len(state)


def test_versions_of_other_kinds(tmp_path: Path) -> None:
    state = nn.BatchNorm1d(2).state_dict()
    state._metadata[""] = OrderedDict(version=2, tag="x")
    state._metadata["odd"] = None
    ct.save(state, tmp_path / "ck")
    assert ct.load(tmp_path / "ck")._metadata == {"": {"version": 2, "tag": "x"}}


def test_extra_state_and_lazy_modules(tmp_path: Path) -> None:
    model = Counting()
    model.calls = 7
    ct.save(model, tmp_path / "ck")
    other = Counting()
    assert ct.load_into(other, tmp_path / "ck")
    assert other.calls == 7
    lazy = nn.Sequential(nn.LazyLinear(4))
    plain = nn.Sequential(nn.Linear(3, 4))
    ct.save(plain, tmp_path / "ck")
    assert ct.load_into(lazy, tmp_path / "ck")
    assert torch.equal(lazy[0].weight, plain[0].weight)


def test_quantized_modules(tmp_path: Path) -> None:
    """Their state dicts have tuples of tensors, and dtypes; load_state_dict packs them."""
    quantized = pytest.importorskip("torch.ao.nn.quantized")
    first, second = quantized.Linear(3, 4), quantized.Linear(3, 4)
    first.set_weight_bias(
        torch.quantize_per_channel(
            torch.randn(4, 3), torch.rand(4).double(), torch.zeros(4).int(), 0, torch.qint8
        ),
        torch.randn(4),
    )
    first.scale, first.zero_point = 0.5, 3
    ct.save(first, tmp_path / "ck")
    assert ct.load_into(second, tmp_path / "ck")
    assert equal(second.weight(), first.weight()) and equal(second.bias(), first.bias())
    assert (second.scale, second.zero_point) == (0.5, 3)


# ---- resuming ------------------------------------------------------------------------------------


def adamw(model: nn.Module) -> tuple[Any, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)


def momentum(model: nn.Module) -> tuple[Any, Any]:
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)


class Training:
    def __init__(self, make: Callable[[nn.Module], tuple[Any, Any]], seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 1)
        )
        self.optimizer, self.scheduler = make(self.model)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        self.state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "random": ct.RandomState(),
            "step": 0,
        }

    def run(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            inputs = torch.randn(16, 8) * random.random() + float(np.random.rand())
            with torch.autocast("cpu", torch.bfloat16):
                loss = self.model(inputs).float().pow(2).mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.state["step"] += 1
            losses.append(loss.item())
        return losses


@pytest.mark.parametrize("make", [adamw, momentum])
@pytest.mark.parametrize("wait", [True, False])
def test_resumed_training_gives_the_same_losses(
    tmp_path: Path, make: Callable[[nn.Module], tuple[Any, Any]], wait: bool
) -> None:
    first = Training(make, 1)
    first.run(4)
    if wait:
        ct.save(first.state, tmp_path / "ck")
        expected = first.run(6)
    else:
        future = ct.save_async(first.state, tmp_path / "ck")
        expected = first.run(6)
        future.result()
    second = Training(make, 2)
    assert ct.load_into(second.state, tmp_path / "ck")
    assert second.state["step"] == 4
    assert second.run(6) == expected
    assert equal(second.model.state_dict(), first.model.state_dict())
    # As with torch.load: the saved dict, and each object's own load_state_dict.
    loaded, third = ct.load(tmp_path / "ck"), Training(make, 3)
    for name in ("model", "optimizer", "scheduler", "scaler", "random"):
        third.state[name].load_state_dict(loaded[name])
    assert third.run(6) == expected


OPTIMIZERS = [
    one
    for one in vars(torch.optim).values()
    if isinstance(one, type) and issubclass(one, torch.optim.Optimizer)
    if one not in (torch.optim.Optimizer, torch.optim.SparseAdam)
]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_resumes(tmp_path: Path, kind: Any) -> None:
    class Run:
        def __init__(self) -> None:
            torch.manual_seed(1)
            self.model = nn.Linear(3, 3, bias=False)
            self.optimizer = kind(self.model.parameters(), lr=0.1)

        def loss(self) -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.model(torch.ones(2, 3)).pow(2).sum()
            loss.backward()
            return loss

        def run(self, steps: int) -> list[float]:
            return [self.optimizer.step(self.loss).item() for _ in range(steps)]

    first, second = Run(), Run()
    first.run(2)
    ct.save(vars(first), tmp_path / "ck")
    expected = first.run(3)
    assert ct.load_into(vars(second), tmp_path / "ck")
    assert second.run(3) == expected
    ct.save(first.optimizer, tmp_path / "ck")
    assert ct.load_into(second.optimizer, tmp_path / "ck")
    assert equal(second.optimizer.state_dict(), first.optimizer.state_dict())


def test_one_part_of_a_training_state(tmp_path: Path) -> None:
    first, second = Training(adamw, 1), Training(adamw, 2)
    first.run(1)
    ct.save(first.state, tmp_path / "ck")
    report = ct.load_into({"model": second.model}, tmp_path / "ck", strict=False)
    assert not report.missing and "optimizer.state.0.exp_avg" in report.unexpected
    assert {"scheduler", "random.torch", "step"} < set(report.unexpected)
    assert equal(second.model.state_dict(), first.model.state_dict())


@pytest.mark.parametrize(
    ("target", "stored"),
    [
        ([torch.zeros(2), torch.zeros(2)], [torch.ones(2)]),
        ([torch.zeros(2)], [torch.ones(2), torch.ones(2)]),
        ([torch.zeros(2), torch.zeros(2)], {"0": torch.ones(2), "1": torch.ones(2)}),
        ([torch.zeros(2), torch.zeros(2)], (torch.ones(2), torch.ones(2))),
        ({"0": torch.zeros(2)}, [torch.ones(2)]),
        ([torch.zeros(2)], 7),
        ([torch.zeros(2)], None),
        ({"a": [torch.zeros(2)]}, {"a": [torch.ones(2), torch.ones(2)]}),
        ({torch.zeros(2)}, {torch.ones(2)}),
        (deque([torch.zeros(2)]), [torch.ones(2)]),
        (deque([torch.zeros(2)], 3), deque([torch.ones(2)])),
        (UserDict(a=torch.zeros(2)), {"a": torch.ones(2)}),
    ],
)
def test_containers_of_tensors_that_do_not_fit(tmp_path: Path, target: Any, stored: Any) -> None:
    """They are no match, and no tensor is written; a container without tensors is replaced."""
    ct.save({"x": stored, "y": torch.ones(1)}, tmp_path / "ck")
    state = {"x": copy.deepcopy(target), "y": torch.zeros(1)}
    with pytest.raises(InvalidError, match="x"):
        ct.load_into(state, tmp_path / "ck")
    assert repr(state) == repr({"x": target, "y": torch.zeros(1)})
    report = ct.load_into(state, tmp_path / "ck", strict=False)
    assert not report
    assert [one.name.partition(".")[0] for one in report.structure_mismatch] == ["x"]
    assert repr(state) == repr({"x": target, "y": torch.ones(1)})
    replaced = {"x": [], "y": torch.zeros(1)}
    assert ct.load_into(replaced, tmp_path / "ck")


class Accumulating(torch.nn.Module):
    """Its state has lists of any length, as metrics have them, and what it makes of them."""

    def __init__(self, values: list[torch.Tensor]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.values = values

    def get_extra_state(self) -> dict[str, Any]:
        return {"values": self.values, "count": {str(len(self.values)): torch.zeros(1)}}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        assert state["count"].keys() == {str(len(state["values"]))}
        self.values = [one.clone() for one in state["values"]]


@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("nested", [False, True])
def test_a_module_takes_state_of_its_own_whole(tmp_path: Path, before: int, nested: bool) -> None:
    saved = Accumulating([torch.full((2,), float(i)) for i in range(2)])
    torch.nn.init.ones_(saved.weight)
    ct.save(torch.nn.Sequential(saved) if nested else saved, tmp_path / "ck")
    module = Accumulating([torch.ones(1)] * before)
    assert ct.load_into(torch.nn.Sequential(module) if nested else module, tmp_path / "ck")
    assert equal(module.values, saved.values) and torch.equal(module.weight, saved.weight)


@pytest.mark.parametrize(
    ("value", "to"),
    [
        (torch.tensor([1.0, 1e30]), torch.float16),
        (torch.tensor([1.0, torch.finfo(torch.float32).min]), torch.bfloat16),
        (torch.tensor([0, 300]), torch.int8),
        (torch.tensor([1.0, 2.5]), torch.int64),
        (torch.tensor([1, 1j]), torch.float32),
        (torch.tensor([1j, 1e30j]), torch.complex32),
    ],
)
def test_casts_that_lose_values(tmp_path: Path, value: torch.Tensor, to: torch.dtype) -> None:
    ct.save({"w": value}, tmp_path / "ck")
    target = {"w": torch.zeros(2, dtype=to)}
    calls: list[Any]
    calls = [lambda **given: ct.load_into(target, tmp_path / "ck", cast=True, **given)]
    if to is not torch.complex32:
        name = {"w": str(to).removeprefix("torch.")}
        calls.append(lambda **given: ct.load(tmp_path / "ck", cast=name, **given))
    for call in calls:
        with pytest.raises(InvalidError, match=r"changes 1 element .*, at \[1") as caught:
            call()
        assert (caught.value.tensor, caught.value.argument) == ("w", "allow_loss")
    assert calls.pop(0)(allow_loss=True).losses == {"w": 1}
    for call in calls:
        with pytest.warns(ckptfmt.CkptfmtWarning, match="rounding: 1 of 'w'"):
            call(allow_loss=True)


def test_the_state_of_an_optimizer_is_cast_by_the_rules(tmp_path: Path) -> None:
    def trained(dtype: torch.dtype) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD([torch.ones(2, dtype=dtype, requires_grad=True)], momentum=0.9)
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.full_like(parameter, 1e4)
        optimizer.step()
        return optimizer

    optimizer = trained(torch.float32)
    next(iter(optimizer.state.values()))["momentum_buffer"].fill_(1e30)
    ct.save({"optimizer": optimizer}, tmp_path / "ck")
    half = {"optimizer": trained(torch.float16)}
    with pytest.raises(InvalidError, match="float32 to float16 changes 2 elements"):
        ct.load_into(half, tmp_path / "ck", cast=True)
    report = ct.load_into(half, tmp_path / "ck", cast=True, allow_loss=True)
    assert [*report.losses.values()] == [2]


@pytest.mark.parametrize(
    ("name", "into"),
    [
        ("qint8", False),  # a quantized target is replaced
        *itertools.product(
            [name for name in ("bits8", "int4", "float4_e2m1fn_x2") if hasattr(torch, name)],
            [False, True],
        ),
    ],
)
def test_dtypes_that_no_cast_reaches(tmp_path: Path, name: str, into: bool) -> None:
    dtype = getattr(torch, name)
    if name == "qint8":
        odd = torch.quantize_per_tensor(torch.arange(4.0), 0.1, 0, dtype)
    else:
        odd = torch.zeros(4, dtype=torch.uint8).view(dtype)
    plain = torch.zeros(4)
    ct.save({"a": torch.ones(1), "q": plain if into else odd}, tmp_path / "ck")
    for cast in (False, True):
        state = {"a": torch.zeros(1), "q": odd if into else plain}
        with pytest.raises(InvalidError, match="q") as caught:
            ct.load_into(state, tmp_path / "ck", cast=cast)
        assert "cast=True" not in str(caught.value)
        assert state["a"].tolist() == [0]
