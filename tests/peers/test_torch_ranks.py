# SPDX-License-Identifier: Apache-2.0
"""ckptfmt.torch.Checkpoint in several processes: any number of them continues one directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.ranks import run_ranks
from support.s3 import S3, running

import ckptfmt
from ckptfmt.files.places import names_in
from ckptfmt.torch import load

# The training: its weights, moments and random numbers depend on all steps before. Each rank draws
# its own numbers; what it trains with is the same on all.
TRAIN = """
import warnings
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import ckptfmt
from ckptfmt.torch import Checkpoint, RandomState

warnings.filterwarnings("ignore", module="torch")
warnings.filterwarnings("ignore", ".*random state has no generators.*")

def training(sharded=True, width=8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))
    head = nn.Linear(3, 2)
    if sharded and world_size > 1:
        for one in (model, head):
            fully_shard(one, mesh=init_device_mesh("cpu", (world_size,)))
    first = torch.optim.AdamW(model.parameters(), lr=0.1)
    second = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(first, [2, 4])
    return {
        "net": {"model": model, "head": head},
        "optimizers": {"first": first, "second": second},
        "scheduler": scheduler, "random": RandomState(), "at": {"step": 0},
        "empty": {},
    }

def step(state):
    state["at"]["step"] += 1
    values = torch.linspace(-1, 1, 24).reshape(6, 4) * state["at"]["step"]
    state["net"]["head"](state["net"]["model"](values)).square().mean().backward()
    for one in state["optimizers"].values():
        one.step()
        one.zero_grad()
    state["scheduler"].step()

def manager_of(state, directory="run", **more):
    checkpoint = Checkpoint(state, options=ckptfmt.tf.CheckpointOptions(durability="rename"))
    return ckptfmt.CheckpointManager(checkpoint, directory, 2, **more)
"""
GO_ON = """
state = training()
best = ckptfmt.KeepBest("distance", mode="min")
manager = manager_of(state, place_of_run, keep_best=best)
assert bool(manager.restore_or_initialize()) == (begin > 0)
assert state["at"]["step"] == begin, state["at"]
while state["at"]["step"] < end:
    step(state)
    number = state["at"]["step"]
    save = manager.save_async if number % 2 else manager.save
    save(number, metrics={"distance": abs(number - 3)})
manager.sync()
assert manager.best_checkpoint.endswith("ckpt-3") == (end >= 3)
if world_size > 1:
    manager.checkpoint.close()
"""


def run(where: Path, world_size: int, begin: int, end: int, head: str = "") -> None:
    run_ranks(where, world_size, f"{head}{TRAIN}\nbegin, end = {begin}, {end}\n{GO_ON}")


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    yield from running()


@pytest.mark.parametrize(
    ("numbers", "place"), [((2, 3, 1), "run"), ((1, 3, 2), "run"), ((2, 1, 3), "s3://ranks/run")]
)
def test_any_number_of_processes_continues(
    tmp_path: Path,
    numbers: tuple[int, ...],
    place: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The weights and moments are those of one process that made all steps, but for the order in
    which numbers are added."""
    head = f"place_of_run = {place!r}\n"
    if place != "run":
        server: S3 = request.getfixturevalue("server")
        server.bucket("ranks")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        head += f"import os; os.environ.update({server.environment()!r})\n"
    else:
        place = str(tmp_path / "run")
    for part, world_size in enumerate(numbers):
        run(tmp_path, world_size, 2 * part, 2 * part + 2, head)
    whole = tmp_path / "whole"
    whole.mkdir()
    run(whole, 1, 0, 2 * len(numbers), "place_of_run = 'run'\n")
    found, wanted = (load(f"{one}/ckpt-6") for one in (place, whole / "run"))
    assert found["at"] == {"step": 6} and found["scheduler"] == wanted["scheduler"]
    for name in ("model", "head"):
        for key, value in wanted["net"][name].items():
            torch.testing.assert_close(found["net"][name][key], value)
    with ckptfmt.open(f"{place}/ckpt-6") as reader:
        moments = [name for name in reader if name.endswith(".exp_avg")]
    assert len(moments) == 4
    names = [name for name in names_in(place) if name.endswith(".index")]
    assert sorted(names) == ["ckpt-3.index", "ckpt-5.index", "ckpt-6.index"]


REFUSED = """
import pytest
state = training(width=7 if what == "shape" else 8)
if what == "dtype":
    state["net"]["head"].bfloat16()
before = {name: one.full_tensor() for name, one in state["net"]["model"].state_dict().items()}
manager = manager_of(state)
if what != "key":
    with pytest.raises(ckptfmt.InvalidError) as caught:
        manager.restore_or_initialize()
    report = caught.value.report
    assert len(report.shape_mismatch) == (9 if what == "shape" else 0), report
    assert len(report.dtype_mismatch) == (4 if what == "dtype" else 0), report
else:
    state["more"] = torch.zeros(3)
    with pytest.raises(ckptfmt.CkptfmtError) as caught:
        manager.restore_or_initialize()
    assert caught.value.report.missing == ("more",)
    assert state["at"] == {"step": 0}
    pair = nn.Linear(2, 2), nn.Linear(2, 2)
    both = torch.optim.SGD([*pair[0].parameters(), *pair[1].parameters()])
    with pytest.raises(ckptfmt.InvalidError):
        Checkpoint({"a": pair[0], "b": pair[1], "optimizer": both})
    with pytest.raises(ckptfmt.InvalidError):
        Checkpoint({"a": pair[0], "b": pair[0], "optimizer": torch.optim.SGD(pair[0].parameters())})
after = {name: one.full_tensor() for name, one in state["net"]["model"].state_dict().items()}
assert all(torch.equal(before[name], after[name]) for name in before)
"""


@pytest.mark.parametrize(("what", "world_size"), [("shape", 2), ("key", 3), ("dtype", 2)])
def test_another_state_is_refused_before_anything_changes(
    tmp_path: Path, what: str, world_size: int
) -> None:
    run(tmp_path, 1, 0, 2, "place_of_run = 'run'\n")
    run_ranks(tmp_path, world_size, f"{TRAIN}\nwhat = {what!r}\n{REFUSED}")


FRESH = """
state = training()
manager = manager_of(state)
if world_size == first:
    assert manager.restore_or_initialize() is None
    manager.save(0)
    assert not any(one.state for one in state["optimizers"].values())
else:
    for one in state["optimizers"].values():
        one.param_groups[0]["lr"] = 5.0
    step(state)
    assert manager.restore_or_initialize()
    assert not any(one.state for one in state["optimizers"].values())
    rates = [one.param_groups[0]["lr"] for one in state["optimizers"].values()]
    assert rates == [0.1, 0.1] and state["at"] == {"step": 0}, rates
"""


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_optimizers_before_their_first_step(tmp_path: Path, first: int, second: int) -> None:
    """A save leaves them as they are, and what is loaded empties others."""
    for world_size in (first, second):
        run_ranks(tmp_path, world_size, f"{TRAIN}\nfirst = {first}\n{FRESH}")


FAILURES = """
import pytest

class Failing:
    method = None
    def state_dict(self):
        assert self.method != "save"
        return {"count": 1}
    def load_state_dict(self, found):
        assert self.method != "load"

failing = Failing()
torch.manual_seed(0)
state = {"model": nn.Linear(2, 2), "failing": failing, "step": 0}
manager = manager_of(state, keep_best=ckptfmt.KeepBest("loss", mode="min"))

def slow(prefix):
    time.sleep(0.5 * (rank == 0))
    assert failing.method != "callback"

options = ckptfmt.tf.CheckpointOptions(experimental_write_callbacks=[slow])
manager.save(1, metrics={"loss": 1.0}, options=options)
assert manager.best_checkpoint == "run/ckpt-1"  # recorded in all processes
expected = {
    "save": lambda: manager.save(2),
    "async": lambda: manager.save_async(2).result(),
    "callback": lambda: manager.save(2, options=options),
    "load": manager.restore_or_initialize,
}
for method, call in expected.items():
    failing.method = method.replace("async", "save") if rank == 1 or method == "load" else None
    failed_here = rank == 1 or method == "load"
    with pytest.raises(AssertionError if failed_here else ckptfmt.StorageError):
        call()
    failing.method = None
checkpoint, wrong = manager.checkpoint, rank == 1
Options = ckptfmt.tf.CheckpointOptions
for call in (
    lambda: checkpoint.restore(None if wrong else "run/ckpt-1"),
    lambda: checkpoint.write("run/" if wrong else "run/other"),
    lambda: checkpoint.write_async("run/other", wrong or None),
    lambda: manager.save(4, options=Options(check_replicas=wrong)),
    lambda: checkpoint.write("run/other", Options(level="v2" if wrong else "v2+")),
    lambda: manager.save_async(4, options=Options(compression="zstd" if wrong else None)),
):
    with pytest.raises(ckptfmt.InvalidError):
        call()
checkpoint.state = {**state, "listed": [nn.Linear(2, 2)]} if wrong else state
with pytest.raises(ckptfmt.InvalidError):
    manager.save_async(4)
checkpoint.state = {**state, "optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters())}
checkpoint.state = checkpoint.state if wrong else state
with pytest.raises(ckptfmt.InvalidError):
    manager.save_async(4)
checkpoint.state = state
state["step"] = 1
manager.save(3)
assert manager.all_steps() == [1, 2, 3]
checkpoint.write("aligned", Options(alignment=4096))
with ckptfmt.open("aligned") as reader:
    assert not any(reader.table()["offset"] % 4096), reader.table()
with pytest.raises(ckptfmt.errors.GenerationGoneError):
    checkpoint.restore("run/ckpt-1" if wrong else "run/ckpt-3")
dist.barrier()
if rank == 0:
    content = bytearray(open("run/ckpt-3.index", "rb").read())
    content[len(content) // 3] ^= 1
    open("run/ckpt-3.index", "wb").write(content)
dist.barrier()
with pytest.raises(ckptfmt.CorruptError):
    manager.checkpoint.restore("run/ckpt-3")
"""


def test_all_processes_fail_together(tmp_path: Path) -> None:
    """No process waits for one that failed, and what is damaged has the error of one process."""
    run_ranks(tmp_path, 2, f"import time\n{TRAIN}\n{FAILURES}")


OPTIMIZERS = """
import pytest
torch.manual_seed(0)
model = nn.Linear(3, 2)
with pytest.raises(ckptfmt.InvalidError):
    Checkpoint({"model": model, "optimizer": torch.optim.LBFGS(model.parameters())})

def state(kind, *groups):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    own = list(model.parameters())
    groups = [{"params": own[:at], "lr": 0.1} if at > 0 else {"params": own[at:]} for at in groups]
    return {"model": model, "optimizer": kind(groups, lr=0.2)}

saved = state(torch.optim.SGD, 1, -3)
manager_of(saved).save(1)
for groups in ((3, -1), (1, -1)):
    target = state(torch.optim.SGD, *groups)
    with pytest.raises(ckptfmt.InvalidError) as caught:
        manager_of(target).restore_or_initialize()
    assert caught.value.report.structure_mismatch[0].name == "optimizer.param_groups"

saved, target = (state(torch.optim.Adam, 4) for _ in range(2))
saved["model"](torch.ones(1, 3)).sum().backward()
saved["optimizer"].step()
manager_of(saved, "moments").save(1)
target["model"](torch.ones(1, 3)).sum().backward()
gradients = [one.grad.clone() for one in target["model"].parameters()]
assert manager_of(target, "moments").restore_or_initialize()
assert len(target["optimizer"].state) == 4
assert all(map(torch.equal, gradients, (one.grad for one in target["model"].parameters())))
"""


def test_optimizers_that_do_not_fit(tmp_path: Path) -> None:
    """What torch would assign to other parameters is refused; gradients are no reason to."""
    run_ranks(tmp_path, 2, f"{TRAIN}\n{OPTIMIZERS}")


SHARED = """
import pytest, time
from ckptfmt.torch import TorchCoordinator

def failing(prefix):
    time.sleep(2 * rank)
    assert rank == 0

coordinator = TorchCoordinator()
torch.manual_seed(0)
state = {"model": nn.Linear(2, 2)}
options = ckptfmt.tf.CheckpointOptions(experimental_write_callbacks=[failing])
future = Checkpoint(state, coordinator=coordinator).write_async("first", options)
time.sleep(0.5)
second = Checkpoint(state, coordinator=coordinator)
with pytest.raises(AssertionError if rank == 1 else ckptfmt.StorageError):
    future.result()
future = Checkpoint(state, coordinator=coordinator).write_async("first", options)
time.sleep(0.5)
assert second.write("second") == "second"
with pytest.raises(AssertionError if rank == 1 else ckptfmt.StorageError):
    future.result()
"""


def test_two_checkpoints_share_a_coordinator(tmp_path: Path) -> None:
    """The error of a background save is not that of the other checkpoint."""
    run_ranks(tmp_path, 2, f"{TRAIN}\n{SHARED}")


DIFFERENT = """
import collections
import numpy as np
import pytest
from pathlib import Path

names = ("loader.at", "seen", "t", "array", "nested", "window")

class Loader:
    def __init__(self):
        self.at = rank * differs

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

def given():
    return {
        **training(), "loader": Loader(), "seen": {"b", "a", str(rank * differs)},
        "t": torch.full((2,), float(rank * differs)),
        # repr abbreviates these
        "array": np.where(np.arange(5000) == 2500, rank * differs, 0.1),
        "window": collections.deque([1], 2 + rank * differs),
        "nested": [{"b", "a", "c", "d"}, (torch.tensor(0.1 + rank * differs * 1e-6), 1)],
    }

for differs in (1, 0):
    for name in names if differs else ("",):
        state = training()
        if name:
            state[name.partition(".")[0]] = given()[name.partition(".")[0]]
        else:
            state = given()
        manager = manager_of(state)
        for save in (manager.save, lambda number: manager.save_async(number).result()):
            if not differs:
                save(2 - len(manager.all_steps()))
                continue
            with pytest.raises(ckptfmt.InvalidError) as caught:
                save(1)
            assert caught.value.tensor == name, caught.value
            assert not manager.all_steps()
        manager.checkpoint.close()
with pytest.raises(ckptfmt.InvalidError):
    Checkpoint({"x": [nn.Linear(2, 2)]}).write("listed")
assert not list(Path().glob("listed*"))
"""


def test_one_value_is_not_stored_for_all_where_they_differ(tmp_path: Path) -> None:
    run_ranks(tmp_path, 2, f"{TRAIN}\n{DIFFERENT}")


FULL = """
import resource, signal
import pytest
from pathlib import Path

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
manager = manager_of(training())
manager.save(1)
if rank == 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, resource.RLIM_INFINITY))
with pytest.raises(ckptfmt.StorageError) as caught:
    manager.save(2)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
dist.barrier()
assert not list(Path("run").glob("*_temp_*")), "the error is kept, and what was written is not"
manager.save(3)
assert manager.all_steps() == [1, 3]
"""


def test_a_failed_save_leaves_no_parts(tmp_path: Path) -> None:
    run_ranks(tmp_path, 2, f"{TRAIN}\n{FULL}")


BUFFERS = """
from ckptfmt.torch import load

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.BatchNorm1d(5))
model = nn.parallel.DistributedDataParallel(net)
manager = manager_of({"model": model})
model(torch.full((3, 4), rank + 1.0) * torch.arange(3).reshape(3, 1)).sum().backward()
means = torch.stack([net[1].running_mean, net[3].running_mean])
every = [torch.empty_like(means) for _ in range(world_size)]
dist.all_gather(every, means)
assert not torch.equal(*every)
for number, save in enumerate((manager.save, lambda at: manager.save_async(at).result()), 1):
    found = load(save(number))["model"]
    stored = torch.stack([found["1.running_mean"], found["3.running_mean"]])
    assert torch.equal(stored, every[0])
"""


def test_buffers_are_those_of_process_0(tmp_path: Path) -> None:
    """As DistributedDataParallel gives them to the others before each step."""
    run_ranks(tmp_path, 2, f"{TRAIN}\n{BUFFERS}")
