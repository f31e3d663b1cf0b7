# SPDX-License-Identifier: Apache-2.0
"""ckptfmt.torch.load_into with optimizers: their state is read in place, and compared before
anything is written."""

from __future__ import annotations

import copy
import json
import random
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.strategies import SEEDS, property_test
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

import ckptfmt
import ckptfmt.torch as ct
from ckptfmt import InvalidError

OPTIMIZERS = [
    one
    for one in vars(torch.optim).values()
    if isinstance(one, type) and issubclass(one, Optimizer) and one is not Optimizer
]


def trained(kind: Any = torch.optim.AdamW, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """A module and an optimizer that has state."""
    torch.manual_seed(seed)
    sparse = kind is torch.optim.SparseAdam
    model = nn.Embedding(5, 4, sparse=True) if sparse else nn.Linear(4, 3, bias=kind is not MUON)
    model = model.to(options.pop("dtype", torch.float32))
    optimizer = kind(model.parameters(), lr=options.pop("lr", 0.1), **options)
    for _ in range(2):
        step(model, optimizer)
    return model, optimizer


MUON = getattr(torch.optim, "Muon", None)


def step(model: nn.Module, optimizer: Any) -> torch.Tensor:
    parameter = next(model.parameters())
    if isinstance(model, nn.Embedding):
        inputs = torch.tensor([0, 3])
    else:
        inputs = torch.ones(2, 4, dtype=parameter.dtype)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        found: torch.Tensor = model(inputs).pow(2).sum()
        found.backward()
        return found

    result: torch.Tensor = optimizer.step(loss)
    return result


def tensors_of(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from tensors_of(one, f"{path}.{key}")
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from tensors_of(one, f"{path}.{index}")


def places(optimizer: Optimizer) -> dict[str, int]:
    state = optimizer.state_dict()["state"]
    return {name: one.data_ptr() for name, one in tensors_of(state) if one.numel()}


def content(*objects: Any) -> list[Any]:
    return [
        {name: one.clone() for name, one in tensors_of(copy.deepcopy(each.state_dict()))}
        for each in objects
    ]


def same(one: Any, other: Any) -> bool:
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


# ---- in place ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("fresh", [False, True])
def test_state_stays_where_it_is(tmp_path: Path, kind: Any, fresh: bool) -> None:
    model, optimizer = trained(kind)
    ct.save({"model": model, "opt": optimizer}, tmp_path / "ck")
    other_model, other = trained(kind, seed=1)
    if fresh:
        other = kind(other_model.parameters(), lr=0.1)
    before = places(other)
    report = ct.load_into({"model": other_model, "opt": other}, tmp_path / "ck")
    assert same(content(other_model, other), content(model, optimizer))
    names = [f"opt.state{name}" for name, _ in tensors_of(optimizer.state_dict()["state"])]
    assert {one for one in report.matched if one.startswith("opt")} == set(names)
    found = places(other)
    assert all(found[name] == place for name, place in before.items() if name in found)
    for _ in range(3):
        assert torch.equal(step(model, optimizer), step(other_model, other))


def test_a_report_counts_tensors(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    ct.save({"model": model, "opt": optimizer, "step": 3}, tmp_path / "ck")
    target = {"model": model, "opt": optimizer, "step": 0}
    report = ct.load_into(target, tmp_path / "ck")
    assert str(report) == "matched: 16 of 16 tensors"
    assert len([one for one in report.matched if one.startswith("opt.state.")]) == 12
    report = ct.load_into({"model": model}, tmp_path / "ck", strict=False)
    assert "unexpected in the checkpoint, without a target (13): 'opt.state.0" in str(report)
    assert report.unexpected[-1] == "step"


OPTIONS = {
    "foreach": {"foreach": True},
    "loop": {"foreach": False},
    "fused": {"fused": True},
    "capturable": {"capturable": True, "foreach": False},
    "differentiable": {"differentiable": False},
    "amsgrad": {"amsgrad": True},
    "tensor lr": {"lr": torch.tensor(0.1), "foreach": False},
    "bfloat16": {"dtype": torch.bfloat16},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_options_of_adam(tmp_path: Path, options: dict[str, Any]) -> None:
    options = copy.deepcopy(options)
    make = {**options, "capturable": False} if options.get("capturable") else options
    model, optimizer = trained(torch.optim.Adam, **make)
    ct.save({"model": model, "opt": optimizer}, tmp_path / "ck")
    other_model, other = trained(torch.optim.Adam, seed=1, **copy.deepcopy(make))
    before = places(other)
    assert ct.load_into({"model": other_model, "opt": other}, tmp_path / "ck")
    assert places(other) == before
    expected = copy.deepcopy(other)
    expected.load_state_dict(ct.load(tmp_path / "ck")["opt"])
    assert same(content(other), content(expected))
    assert str(other.param_groups[0]["lr"]) == str(optimizer.param_groups[0]["lr"])
    assert torch.equal(step(model, optimizer), step(other_model, other))


def test_hooks_run(tmp_path: Path) -> None:
    _, optimizer = trained()
    ct.save(optimizer, tmp_path / "ck")
    _, other = trained(seed=1)
    ran = []

    def before(optimizer: Any, state: Any) -> None:
        ran.append(("before", torch.equal(state["state"][0]["exp_avg"], expected)))

    expected = optimizer.state_dict()["state"][0]["exp_avg"]
    other.register_load_state_dict_pre_hook(before)
    other.register_load_state_dict_post_hook(lambda optimizer: ran.append(("after", True)))
    held = places(other)
    assert ct.load_into(other, tmp_path / "ck")
    assert ran == [("before", True), ("after", True)]
    assert places(other) == held


def test_a_hook_may_fit_the_state_to_the_optimizer(tmp_path: Path) -> None:
    """So nothing is compared before it runs."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    ct.save(optimizer, tmp_path / "ck")
    other = torch.optim.AdamW(model[1].parameters())

    def choose(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        chosen = {0: state["state"][2], 1: state["state"][3]}
        group = {**state["param_groups"][0], "params": [0, 1]}
        return {"state": chosen, "param_groups": [group]}

    other.register_load_state_dict_pre_hook(choose)
    assert ct.load_into(other, tmp_path / "ck")
    found = other.state_dict()["state"]
    for index in (0, 1):
        expected = optimizer.state_dict()["state"][index + 2]["exp_avg"]
        assert torch.equal(found[index]["exp_avg"], expected)


def test_state_is_replaced_as_load_state_dict_does(tmp_path: Path) -> None:
    """What the checkpoint lacks goes, what the optimizer lacks comes."""
    model, optimizer = trained(torch.optim.SGD, momentum=0.9)
    ct.save({"opt": optimizer}, tmp_path / "full")
    ct.save({"opt": torch.optim.SGD(model.parameters(), lr=0.5)}, tmp_path / "empty")
    assert ct.load_into({"opt": optimizer}, tmp_path / "empty")
    assert not optimizer.state and optimizer.param_groups[0]["lr"] == 0.5
    assert ct.load_into({"opt": optimizer}, tmp_path / "full")
    assert len(optimizer.state) == 2 and optimizer.param_groups[0]["momentum"] == 0.9


def _shared(one: Any, other: Any) -> None:
    """The second optimizer gets the tensors of the first."""
    parameters = zip(one.param_groups[0]["params"], other.param_groups[0]["params"], strict=True)
    for mine, its in parameters:
        other.state[its]["exp_avg"] = one.state[mine]["exp_avg"]


def _expanded(one: Any, _: Any) -> None:
    state = one.state[one.param_groups[0]["params"][0]]
    state["exp_avg"] = torch.zeros(1).expand(state["exp_avg"].shape)


def _views(one: Any, _: Any) -> None:
    state = one.state[one.param_groups[0]["params"][0]]
    size = state["exp_avg"].numel()
    flat = torch.zeros(size + 3)
    state["exp_avg"] = flat[:size].view(state["exp_avg"].shape)
    state["exp_avg_sq"] = flat[3:].view(state["exp_avg"].shape)


def _parameter(one: Any, _: Any) -> None:
    parameter = one.param_groups[0]["params"][0]
    one.state[parameter]["exp_avg"] = parameter.data


@pytest.mark.parametrize("share", [_shared, _expanded, _views, _parameter])
def test_state_that_shares_memory_gets_new_tensors(
    tmp_path: Path, share: Callable[[Any, Any], None]
) -> None:
    _, first = trained()
    _, second = trained(seed=3)
    ct.save({"a": first, "b": second}, tmp_path / "ck")
    other_model, one = trained(seed=4)
    _, two = trained(seed=5)
    share(one, two)
    weights = content(other_model)
    assert ct.load_into({"a": one, "b": two}, tmp_path / "ck")
    assert same(content(one, two), content(first, second))
    assert same(content(other_model), weights)


def test_shared_state_that_was_stored_once_stays_shared(tmp_path: Path) -> None:
    model, optimizer = trained()
    for state in optimizer.state.values():
        state["exp_avg_sq"] = state["exp_avg"]
    ct.save({"model": model, "opt": optimizer}, tmp_path / "ck")
    expected = content(model, optimizer)
    before = places(optimizer)
    step(model, optimizer)
    assert ct.load_into({"model": model, "opt": optimizer}, tmp_path / "ck")
    assert same(content(model, optimizer), expected)
    assert places(optimizer) == before


class Wrapper(Optimizer):
    """As `accelerate` wraps an optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    state_dict = lambda self: self.optimizer.state_dict()  # noqa: E731

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)


def test_a_wrapped_optimizer(tmp_path: Path) -> None:
    model, optimizer = trained()
    ct.save({"model": model, "opt": Wrapper(optimizer)}, tmp_path / "ck")
    other_model, other = trained(seed=1)
    before = places(other)
    assert ct.load_into({"model": other_model, "opt": Wrapper(other)}, tmp_path / "ck")
    assert places(other) == before
    assert same(content(other_model, other), content(model, optimizer))
    weights = content(model)
    small = Wrapper(torch.optim.AdamW([model.weight]))
    with pytest.raises(InvalidError, match="'opt' is 2 parameters"):
        ct.load_into({"model": model, "opt": small}, tmp_path / "ck")
    assert same(content(model), weights)


class Lookahead(Optimizer):
    """As pytorch_optimizer has it: a state of its own around that of an optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.slow = optimizer, [one.clone() for one in _parameters(optimizer)]

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)

    def state_dict(self) -> Any:
        return {"base_optimizer": self.optimizer.state_dict(), "slow": self.slow}

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state["base_optimizer"])
        self.slow = state["slow"]


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [one.detach() for group in optimizer.param_groups for one in group["params"]]


def test_a_wrapper_with_a_state_of_its_own(tmp_path: Path) -> None:
    model, optimizer = trained()
    ct.save({"model": model, "opt": Lookahead(optimizer)}, tmp_path / "ck")
    ct.save(Lookahead(optimizer), tmp_path / "alone")
    for alone in (False, True):
        other_model, other = trained(seed=1)
        wrapped = Lookahead(other)
        if alone:
            assert ct.load_into(wrapped, tmp_path / "alone")
        else:
            assert ct.load_into({"model": other_model, "opt": wrapped}, tmp_path / "ck")
        assert same(content(other), content(optimizer))
        assert all(map(torch.equal, wrapped.slow, _parameters(optimizer)))
    with pytest.raises(InvalidError, match=r"'opt' would lose its parameters"):
        ct.load_into({"opt": wrapped, "model": other_model}, tmp_path / "ck", assign=True)


# ---- what does not fit ---------------------------------------------------------------------------


def _fewer(_: nn.Module) -> Any:
    return torch.optim.AdamW([nn.Parameter(torch.zeros(3, 4))])


def _groups(model: nn.Module) -> Any:
    return torch.optim.AdamW([{"params": [one]} for one in model.parameters()])


def _other_shapes(_: nn.Module) -> Any:
    return torch.optim.AdamW(nn.Linear(5, 3).parameters())


def _other_shapes_with_state(_: nn.Module) -> Any:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    return optimizer


def _other_dtype(_: nn.Module) -> Any:
    return torch.optim.AdamW(nn.Linear(4, 3).bfloat16().parameters())


MISFITS = [
    (_fewer, r"structure \(1\): 'opt' is 2 parameters in param_groups\[0\] and not 1"),
    (_groups, r"structure \(1\): 'opt' is 1 parameter group and not 2"),
    (_other_shapes, r"shape \(2\): 'opt.state.0.exp_avg' is \(3, 4\) and not \(3, 5\)"),
    (_other_shapes_with_state, r"'opt.state.1.exp_avg_sq' is \(3,\) and not \(2,\)"),
    (_other_dtype, r"dtype \(4\): 'opt.state.0.exp_avg' is torch.float32 and not torch.bfloat16"),
]


@pytest.mark.parametrize(("make", "message"), MISFITS)
def test_an_optimizer_that_does_not_fit_is_found_first(
    tmp_path: Path, make: Callable[[nn.Module], Any], message: str
) -> None:
    model, optimizer = trained()
    ct.save({"model": model, "opt": optimizer, "step": 7}, tmp_path / "ck")
    other_model, _ = trained(seed=1)
    other = make(other_model)
    target = {"model": other_model, "opt": other, "step": 0}
    before = content(other_model, other)
    with pytest.raises(InvalidError, match=message) as caught:
        ct.load_into(target, tmp_path / "ck")
    assert not caught.value.report
    assert same(content(other_model, other), before) and target["step"] == 0
    # Without strict, the optimizer stays as it is, and the others are loaded.
    report = ct.load_into(target, tmp_path / "ck", strict=False)
    assert not report and not [one for one in report.matched if one.startswith("opt")]
    assert same(content(other_model), content(model)) and target["step"] == 7
    assert same(content(other), before[1:])


def test_cast_leaves_the_dtype_to_torch(tmp_path: Path) -> None:
    model, optimizer = trained()
    ct.save({"model": model, "opt": optimizer}, tmp_path / "ck")
    other_model, other = trained(seed=1, dtype=torch.bfloat16)
    with pytest.raises(InvalidError, match="cast=True converts"):
        ct.load_into({"model": other_model, "opt": other}, tmp_path / "ck")
    assert ct.load_into({"model": other_model, "opt": other}, tmp_path / "ck", cast=True)
    state = other.state_dict()["state"][0]
    assert state["exp_avg"].dtype is torch.bfloat16
    assert torch.equal(state["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"].bfloat16())


class Custom(Optimizer):
    """State of shapes and dtypes that only the optimizer knows: a history that grows, and float32
    for parameters of bfloat16."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        torch.enable_grad()(closure)()
        for group in self.param_groups:
            for one in group["params"]:
                old = self.state[one].get("history", torch.zeros(0, *one.shape))
                self.state[one]["history"] = torch.cat([old, one.grad[None].float()])
                self.state[one]["master"] = one.float()
                one.sub_(group["lr"] * one.grad)


def test_an_optimizer_of_the_user(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model, optimizer = trained(Custom, dtype=dtype)
        ct.save({"model": model, "opt": optimizer}, tmp_path / "ck")
        expected = copy.deepcopy(optimizer)
        expected.load_state_dict(optimizer.state_dict())
        step(model, optimizer)
        assert ct.load_into({"model": model, "opt": optimizer}, tmp_path / "ck")
        assert same(content(optimizer), content(expected))


@pytest.mark.skipif(MUON is None, reason="a torch without Muon")
def test_new_moments_of_muon_are_compared(tmp_path: Path) -> None:
    """Its class has the module `torch.optim` itself."""
    ct.save(trained(MUON)[1], tmp_path / "ck")
    other = MUON(nn.Linear(5, 3, bias=False).parameters())
    with pytest.raises(InvalidError, match=r"momentum_buffer' is \(3, 4\) and not \(3, 5\)"):
        ct.load_into(other, tmp_path / "ck")
    assert not other.state


class OwnLoad(torch.optim.AdamW):
    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, OwnLoad])
def test_an_optimizer_of_parameters_that_are_replaced(
    tmp_path: Path, kind: Any, meta: bool
) -> None:
    """It would go on with the old ones."""
    model, optimizer = trained(kind)
    ct.save({"opt": optimizer, "model": model}, tmp_path / "ck")
    with torch.device("meta" if meta else "cpu"):
        other_model = nn.Linear(4, 3)
    other = kind(other_model.parameters())
    target = {"opt": other, "model": other_model}
    with pytest.raises(InvalidError, match=r"'opt' would lose its parameters \('model"):
        ct.load_into(target, tmp_path / "ck", assign=not meta)
    if meta:
        with pytest.raises(InvalidError, match=r"its parameters \(one is on the meta device"):
            ct.load_into({"opt": other}, tmp_path / "ck", strict=False)
    assert not other.state
    ct.load_into({"model": other_model}, tmp_path / "ck", strict=False, assign=not meta)
    other = kind(other_model.parameters())
    ct.load_into({"opt": other}, tmp_path / "ck", strict=False)
    assert torch.equal(step(model, optimizer), step(other_model, other))


# ---- a single object and a training state --------------------------------------------------------


def test_a_single_object_against_a_training_state(tmp_path: Path) -> None:
    model, optimizer = trained()
    scheduler = StepLR(optimizer, 3)
    path = str(tmp_path / "run")
    ct.save({"model": model, "ema": model, "opt": optimizer, "lr": scheduler, "step": 1}, path)
    before = content(model, optimizer)
    rate = dict(vars(scheduler))
    for target, keys, call in (
        (optimizer, "AdamW under 'opt': call", "{'opt': optimizer}"),
        (model, "Linear under 'model', 'ema': call", "{'model': model}"),
        (scheduler, "StepLR under 'lr': call", "{'lr': target}"),
    ):
        for strict in (True, False):
            with pytest.raises(InvalidError) as caught:
                ct.load_into(target, path, strict=strict)
            assert keys in str(caught.value)
            found = caught.value.report
            assert found is None if target is scheduler else found is not None and not found
            assert f"ckptfmt.torch.load_into({call}, {path!r}, strict=False)" in str(caught.value)
    assert same(content(model, optimizer), before) and vars(scheduler) == rate
    assert not ct.load_into({"opt": optimizer}, path, strict=False).missing
    assert not ct.load_into({"model": model}, path, strict=False).missing
    assert not ct.load_into({"lr": scheduler}, path, strict=False).missing


class Bare:
    def state_dict(self) -> dict[str, Any]:
        return {"seen": 3}

    def load_state_dict(self, state: Any) -> None:
        self.seen = state["seen"]


@pytest.mark.parametrize(
    ("stored", "target", "message"),
    [
        ({"x": 3}, lambda: nn.Linear(1, 1), "'x' is a value of type int and not the state of a Li"),
        ({"x": 3}, lambda: trained()[1], "'x' is a value of type int and not the state of a Adam"),
        ({"x": {"a": 1}}, lambda: trained()[1], "'x' is a dict with 'a' and not the state"),
        ({"x": 3}, lambda: StepLR(trained()[1], 3), "'x' is a value of type int and not the st"),
        ({"x": 3}, torch.Generator, "'x' is a value of type int and not the state of a torch.Gen"),
        ({"x": [3]}, lambda: [trained()[1]] * 2, "'x' is a list of 1 and not a list of 2"),
        ({"x": {"a": 3}}, lambda: [trained()[1]], "'x' is a dict with 'a' and not a list of 1"),
        ({"x": 3}, lambda: {"a": trained()[1]}, "'x' is a value of type int and not a dict with"),
    ],
)
def test_values_that_are_not_a_state(
    tmp_path: Path, stored: Any, target: Callable[[], Any], message: str
) -> None:
    ct.save({"w": torch.ones(2), **stored}, tmp_path / "ck")
    weight = torch.zeros(2)
    with pytest.raises(InvalidError) as caught:
        ct.load_into({"w": weight, "x": target()}, tmp_path / "ck")
    assert message in str(caught.value)
    assert weight.tolist() == [0, 0]


@pytest.mark.parametrize("stored", [3, {"other": 1}, torch.ones(2)])
def test_what_an_object_refuses_is_named(tmp_path: Path, stored: Any) -> None:
    ct.save({"x": stored}, tmp_path / "ck")
    with pytest.raises(InvalidError, match="the Bare refuses the stored state") as caught:
        ct.load_into({"x": Bare()}, tmp_path / "ck")
    assert caught.value.tensor == "x"
    assert isinstance(caught.value.__cause__, (KeyError, TypeError, IndexError))


def test_objects_in_tuples_are_loaded(tmp_path: Path) -> None:
    _, first = trained()
    ct.save({"both": (first, 3)}, tmp_path / "ck")
    _, other = trained(seed=1)
    target = {"both": (other, 0)}
    assert ct.load_into(target, tmp_path / "ck")
    assert target["both"][0] is other and target["both"][1] == 3
    assert same(content(other), content(first))


def test_another_program_has_no_optimizer(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"a": np.ones(2)})
    with pytest.raises(InvalidError, match="'AdamW' is a dict with 'a' and not the state"):
        ct.load_into(trained()[1], tmp_path / "ck")


# ---- the parameters that a state belongs to ------------------------------------------------------


class Drawn:
    """A module of layers of one shape, some tied, and an optimizer of its parameters in groups."""

    def __init__(
        self, chance: random.Random, count: int, tied: bool, groups: list[list[str]]
    ) -> None:
        torch.manual_seed(chance.getrandbits(30))
        self.model = nn.Sequential(*(nn.Linear(3, 3, bias=bool(row)) for row in range(count)))
        if tied:
            self.model[1].weight = self.model[0].weight
        self.named = dict(self.model.named_parameters())
        self.optimizer = torch.optim.Adam(
            [{"params": [self.named[name] for name in group]} for group in groups], lr=0.1
        )

    def train(self) -> None:
        for name, one in self.named.items():
            one.grad = torch.rand_like(one) + len(name)
        self.optimizer.step()

    def moments(self) -> dict[str, Any]:
        state = self.optimizer.state
        return {
            name: {key: value.tolist() for key, value in state[one].items()}
            for name, one in self.named.items()
            if one in state
        }

    def weights(self) -> dict[str, Any]:
        return {name: one.tolist() for name, one in self.model.state_dict().items()}


@property_test(100, 10_000, seed=SEEDS)
def test_state_goes_to_the_parameters_that_it_belongs_to(seed: int) -> None:
    chance = random.Random(seed)
    count, tied = chance.randint(2, 4), chance.random() < 0.3
    names = list(Drawn(chance, count, tied, [[]]).named)
    cut = chance.randint(1, len(names))
    groups = [one for one in (names[:cut], names[cut:]) if one]
    own = [chance.sample(group, len(group)) for group in groups]
    is_moved = len(groups) == 2 and chance.random() < 0.3
    if is_moved:
        own[0][0], own[1][0] = own[1][0], own[0][0]
    recorded = chance.random() < 0.7
    source, target = (Drawn(chance, count, tied, one) for one in (groups, own))
    source.train()
    if chance.random() < 0.5:
        target.train()
    before = target.weights(), target.moments()
    state = {"m": source.model, "o": source.optimizer}
    twin, other = (Drawn(chance, count, tied, one) for one in (groups, own))  # beside it
    twin.train()
    kind = chance.choice([list, tuple, deque])
    with tempfile.TemporaryDirectory() as folder:
        if not recorded:
            state = {"o": source.optimizer.state_dict()}
        if recorded and not is_moved:
            state |= {"twin": kind([twin.model, twin.optimizer])}
        ct.save(state, f"{folder}/ck", durability="none")
        if recorded and is_moved:
            with pytest.raises(InvalidError):
                ct.load_into({"m": target.model, "o": target.optimizer}, f"{folder}/ck")
            assert (target.weights(), target.moments()) == before
            return
        if not recorded:
            like = copy.deepcopy((target.model, target.optimizer))
            try:
                like[1].load_state_dict(source.optimizer.state_dict())
                ct.load_into({"o": target.optimizer}, f"{folder}/ck")
            except InvalidError:  # of other shapes
                return
            found, wanted = target.optimizer.state_dict(), like[1].state_dict()
            assert str(found) == str(wanted)
            return
        targets = {"m": target.model, "o": target.optimizer}
        targets |= {"twin": kind([other.model, other.optimizer])}
        assert ct.load_into(targets, f"{folder}/ck")
    for found, wanted in ((target, source), (other, twin)):
        assert (found.weights(), found.moments()) == (wanted.weights(), wanted.moments())


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.Adam])
def test_loose_parameters_have_names_and_one_history_an_order(tmp_path: Path, kind: Any) -> None:
    def made(order: int) -> tuple[dict[str, Any], list[Any]]:
        torch.manual_seed(order)
        model, loose = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        parameters = [loose, *model.parameters()]
        return {"m": model, "t": loose, "o": kind(parameters[::order], lr=0.1)}, parameters

    source, parameters = made(1)

    def closure() -> torch.Tensor:
        source["o"].zero_grad()
        loss = (source["m"](torch.ones(2, 4)) * source["t"]).pow(2).sum()
        loss.backward()
        return loss

    source["o"].step(closure)
    ct.save(source, tmp_path / "ck")
    target, own = made(-1)
    if kind is torch.optim.LBFGS:
        with pytest.raises(InvalidError):
            ct.load_into(target, tmp_path / "ck")
        assert torch.equal(own[0], torch.ones(4)) and not target["o"].state
        target, _ = made(1)
        assert ct.load_into(target, tmp_path / "ck")
        return
    assert ct.load_into(target, tmp_path / "ck")
    for one, other in zip(parameters, own, strict=True):
        found, wanted = target["o"].state[other], source["o"].state[one]
        assert all(torch.equal(found[key], wanted[key]) for key in wanted), wanted.keys()


@pytest.mark.parametrize("wrap", ["_orig_mod", "module"])
def test_names_of_wrappers_are_set_aside(tmp_path: Path, wrap: str) -> None:
    def made(order: int, wrapped: bool) -> tuple[Any, Any, Any]:
        layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model = nn.ModuleDict({wrap: layers}) if wrapped else layers
        return layers, model, torch.optim.Adam([*layers.parameters()][::order])

    source, model, optimizer = made(1, True)
    for one in source.parameters():
        one.grad = torch.rand_like(one)
    optimizer.step()
    ct.save({"m": model, "o": optimizer}, tmp_path / "ck")
    target, plain, other = made(-1, False)
    report = ct.load_into({"m": plain, "o": other}, tmp_path / "ck", strict=False)
    assert not report.structure_mismatch
    for one, two in zip(source.parameters(), target.parameters(), strict=True):
        assert torch.equal(optimizer.state[one]["exp_avg"], other.state[two]["exp_avg"])


def test_an_edit_renames_the_parameters(tmp_path: Path) -> None:
    source = Drawn(random.Random(1), 3, False, [["0.weight", "1.weight", "2.weight"]])
    source.train()
    ct.save({"m": source.model, "o": source.optimizer}, tmp_path / "ck")
    ckptfmt.editing.edit(tmp_path / "ck", tmp_path / "new", rename=[(r"^m[.](\d)", r"m.l\1")])
    target = Drawn(random.Random(2), 3, False, [["2.weight", "0.weight", "1.weight"]])
    model = nn.ModuleDict({f"l{row}": one for row, one in enumerate(target.model)})
    assert ct.load_into({"m": model, "o": target.optimizer}, tmp_path / "new")
    assert target.moments() == source.moments()
    with ckptfmt.open(tmp_path / "new") as reader:
        names = json.loads(reader.metadata["ckptfmt.torch"])["parameters"]
    assert names == {"o": [[[f"m.l{row}.weight"] for row in range(3)]]}
