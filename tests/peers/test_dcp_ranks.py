# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint over our storage, in several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from support.ranks import run_ranks

import ckptfmt
import ckptfmt.torch

SAVE = """
import torch.distributed.checkpoint as dcp
from support.dcp_state import check, meshes, state
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharded_tensor.shard import Shard as Shard1D
from torch.distributed.tensor import Shard, distribute_tensor
from ckptfmt._core import counters
from ckptfmt.torch.dcp import StorageReader, StorageWriter
"""


def test_four_save_two_load_and_save_one_loads(tmp_path: Path) -> None:
    program = """
dcp.save(state(False), storage_writer=StorageWriter("four"))
big = distribute_tensor(torch.arange(1 << 20), meshes()[0], [Shard(0)])
dcp.save({"big": big, "other": big * 2}, storage_writer=StorageWriter("big"))
# Of two shards of a ShardedTensor a rank, and of one.
number = rank * 2
shards = [
    Shard1D.from_tensor_and_offsets(torch.full((2, 3), float(at)), [at * 2, 0], rank)
    for at in (number, number + 1)
]
whole = sharded_tensor.init_from_local_shards(shards, 16, 3)
dcp.save({"sharded": {"st": whole}}, storage_writer=StorageWriter("sharded"))
"""
    run_ranks(tmp_path, 4, SAVE + program)
    program = """
for flip in (0, 1):
    mine = state(True, flip)
    dcp.load(mine, storage_reader=StorageReader("four"))
    check(mine, flip)
dcp.save(mine, storage_writer=StorageWriter("two"))
# A rank reads the bytes of its part.
big = distribute_tensor(torch.zeros(1 << 20, dtype=torch.int64), meshes()[0], [Shard(0)])
before = counters()["bytes_read"]
dcp.load({"big": big}, storage_reader=StorageReader("big"))
read = counters()["bytes_read"] - before
assert torch.equal(big.full_tensor(), torch.arange(1 << 20))
assert 4 << 20 <= read <= (4 << 20) + 4096, read
uneven = [(0, 5), (5, 11)][rank]
shard = Shard1D.from_tensor_and_offsets(torch.zeros(uneven[1], 3), [uneven[0], 0], rank)
whole = sharded_tensor.init_from_local_shards([shard], 16, 3)
dcp.load({"sharded": {"st": whole}}, storage_reader=StorageReader("sharded"))
wanted = torch.arange(8.0).repeat_interleave(2)[uneven[0] : uneven[0] + uneven[1]]
assert torch.equal(shard.tensor, wanted.reshape(-1, 1).expand(-1, 3)), shard.tensor
plain = torch.zeros(16, 3)
dcp.load({"sharded": {"st": plain}}, storage_reader=StorageReader("sharded"))
assert torch.equal(plain[:, 0], torch.arange(8.0).repeat_interleave(2))
"""
    run_ranks(tmp_path, 2, SAVE + program)
    assert sorted(path.name for path in tmp_path.glob("four*")) == [
        *(f"four.data-0000{number}-of-00005" for number in range(5)),
        "four.index",
    ]
    first, second = ckptfmt.load(tmp_path / "four"), ckptfmt.load(tmp_path / "two")
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype, name
        np.testing.assert_array_equal(array, second[name], name)


def test_each_rank_has_its_own_random_numbers(tmp_path: Path) -> None:
    """Three processes save; three, two and one load, and draw what theirs would have drawn."""
    head = """
import random
import warnings
import numpy as np
import torch.distributed.checkpoint as dcp
import ckptfmt.torch as ct
from ckptfmt.torch.dcp import StorageReader, StorageWriter

def drawn():
    return [torch.rand(1).item(), np.random.rand(), random.random()]

def seed(number):
    torch.manual_seed(number), np.random.seed(number), random.seed(number)
"""
    save = """
seed(rank)
state = {"random": ct.RandomState()}
dcp.save(state, storage_writer=StorageWriter("three"))
if rank == 0:
    ct.save(state, "one")
"""
    load = """
seed(rank)
wanted = drawn()
seed(100 + rank)
state = {"random": ct.RandomState()}
dcp.load(state, storage_reader=StorageReader("three"))
assert drawn() == wanted, rank
seed(100 + rank)
own = drawn()
seed(100 + rank)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ct.load_into(state, "one")
assert drawn() == (own if rank else wanted), rank
assert bool(caught) == bool(rank), caught
"""
    run_ranks(tmp_path, 3, head + save)
    run_ranks(tmp_path, 3, head + load)
    run_ranks(tmp_path, 2, head + load)
    partial = """
from torch.distributed.checkpoint import DefaultLoadPlanner
seed(100 + rank)
own = drawn()
seed(100 + rank)
state = {"random": ct.RandomState()}
planner = DefaultLoadPlanner(allow_partial_load=True)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    dcp.load(state, storage_reader=StorageReader("three"), planner=planner)
assert (drawn() == own) == any("rank 3" in str(one.message) for one in caught) == (rank == 3)
"""
    run_ranks(tmp_path, 4, head + partial)
    torch.manual_seed(0)
    first = torch.rand(1)
    ckptfmt.torch.load_into({"random": ckptfmt.torch.RandomState()}, tmp_path / "one")
    assert torch.equal(torch.rand(1), first)


def test_fsdp_and_optimizers(tmp_path: Path) -> None:
    """A model sharded by FSDP2 over three processes and over two, then whole in one: a resumed run
    has the losses of the uninterrupted one."""
    head = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from ckptfmt.torch.dcp import StorageReader, StorageWriter

torch.manual_seed(rank * int(sys.argv[4]))
net = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3)).bfloat16()
if world_size > 1:
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
data = torch.arange(7).bfloat16().reshape(1, 7) / 7

def step():
    optimizer.zero_grad()
    loss = (net(data) ** 2).sum()
    loss.backward()
    optimizer.step()
    return loss.item()

class App:
    def state_dict(self):
        model, optim = get_state_dict(net, optimizer)
        return {"model": model, "optim": optim}
    def load_state_dict(self, state):
        parts = {"model_state_dict": state["model"], "optim_state_dict": state["optim"]}
        set_state_dict(net, optimizer, **parts)
"""
    save = """
step(), step()
dcp.save({"app": App(), "step": 2}, storage_writer=StorageWriter("three"))
print(step()), print(step())
"""
    load = """
state = {"app": App(), "step": 0}
dcp.load(state, storage_reader=StorageReader(sys.argv[5]))
assert state["step"] == 2
dcp.save(state, storage_writer=StorageWriter(sys.argv[6]))
print(step()), print(step())
"""
    losses = run_ranks(tmp_path, 3, head + save, "0")
    assert losses == [losses[0]] * 3 and len({*losses[0]}) == 2
    assert run_ranks(tmp_path, 3, head + load, "1", "three", "b") == losses
    in_two = run_ranks(tmp_path, 2, head + load, "1", "three", "again")
    assert in_two == [in_two[0]] * 2 and in_two[0][0] == losses[0][0]
    assert run_ranks(tmp_path, 2, head + load, "1", "again", "c") == in_two
    assert run_ranks(tmp_path, 1, head + load, "1", "again", "d")[0][0] == losses[0][0]
    # In a process that cannot import torch.
    program = """
import sys
sys.modules["torch"] = None
import ckptfmt
first, second = ckptfmt.load("three"), ckptfmt.load("again")
assert first.keys() == second.keys()
for name, array in first.items():
    assert array.dtype == second[name].dtype and (array == second[name]).all(), name
print(first["app.model.0.weight"].dtype, first["app.model.0.weight"].shape)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.stdout == "bfloat16 (9, 7)\n", ran.stderr


def test_saves_in_the_background(tmp_path: Path) -> None:
    """`async_save` by thread and by process; what changes after the call is not saved."""
    program = """
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

def main():
    for kind in ("THREAD", "PROCESS"):
        for step in range(2):
            mine = state(False)
            mine["plain"]["scalar"] = torch.tensor(float(step))
            future = dcp.async_save(
                mine,
                checkpoint_id=f"{kind}-{step}",
                storage_writer=StorageWriter(metadata={"step": step}),
                async_checkpointer_type=AsyncCheckpointerType[kind],
            )
            assert mine["plain"]["scalar"].add_(100) >= 100
            future.result()
            found = state(True)
            dcp.load(found, checkpoint_id=f"{kind}-{step}", storage_reader=StorageReader())
            assert found["plain"].pop("scalar") == step
            mine["plain"].pop("scalar")
            found["plain"]["scalar"] = torch.tensor(2.5)
            check(found)
main()
"""
    run_ranks(tmp_path, 2, SAVE + program)
    for kind in ("THREAD", "PROCESS"):
        with ckptfmt.open(tmp_path / f"{kind}-1") as reader:
            assert reader.metadata["step"] == 1
    assert not list(tmp_path.glob("*temp*"))
    assert len(list(tmp_path.glob("*.index"))) == 4


def test_faults(tmp_path: Path) -> None:
    """An error of one rank, in any step, ends the save on all, and the old checkpoint stays."""
    program = """
import os
from pathlib import Path
from torch.distributed.checkpoint.api import CheckpointException
import ckptfmt

class Faulty(StorageWriter):
    fault = None
    def _maybe(self, step):
        if self.fault == (step, rank):
            raise ValueError(f"fault in {step}")
    def set_up_storage_writer(self, *args, **kwargs):
        self._maybe("set_up")
        super().set_up_storage_writer(*args, **kwargs)
    def prepare_local_plan(self, plan):
        self._maybe("local")
        return super().prepare_local_plan(plan)
    def prepare_global_plan(self, plans):
        self._maybe("global")
        return super().prepare_global_plan(plans)
    def write_data(self, plan, planner):
        self._maybe("write")
        return super().write_data(plan, planner)
    def finish(self, metadata, results):
        self._maybe("finish")
        return super().finish(metadata, results)

dcp.save({"old": torch.ones(3)}, storage_writer=StorageWriter("x"))
mine = state(False)
writer = Faulty("x")
faults = [("set_up", 0), ("local", 1), ("global", 0), ("write", 0), ("write", 1), ("finish", 0)]
for fault in faults:
    writer.fault = fault
    try:
        dcp.save(mine, storage_writer=writer)
    except CheckpointException as error:
        (where,) = error.failures
        assert where == fault[1] and f"fault in {fault[0]}" in str(error), error
    else:
        raise SystemExit(f"{fault} did not fail")
    dist.barrier()
    assert list(ckptfmt.load("x")) == ["old"], fault
    dist.barrier()
writer.fault = None
# A value that needs pickle, on one rank.
odd = {"values": {"here": 1}, "mine": {"odd": object() if rank == 1 else 5}}
if rank == 0:
    del odd["mine"]
try:
    dcp.save(odd, storage_writer=writer)
except CheckpointException as error:
    assert list(error.failures) == [1]
    assert "mine.odd: type object cannot be stored" in str(error)
else:
    raise SystemExit("no error")
# Two ranks write the same slice: the merge refuses.
class Twice(dcp.DefaultSavePlanner):
    def create_global_plan(self, plans):
        return plans, super().create_global_plan(plans)[1]
try:
    dcp.save({"w": torch.ones(2)}, storage_writer=writer, planner=Twice())
except CheckpointException as error:
    assert isinstance(error.failures[0][0], ckptfmt.errors.MergeConflictError), error
else:
    raise SystemExit("no error")
assert list(ckptfmt.load("x")) == ["old"]
dist.barrier()
# The same writer goes on, and nothing is left of all that failed.
dcp.save(mine, storage_writer=writer)
dist.barrier()
found = state(True)
reader = StorageReader("x")
dcp.load(found, storage_reader=reader)
check(found)
for wanted, key in ((0, "w"), (1, "even")):
    try:
        dcp.load({"plain": {key: torch.ones(3 + rank)}}, storage_reader=reader)
    except CheckpointException as error:
        assert ("Missing key" if key == "w" else "Size mismatch") in str(error), error
    else:
        raise SystemExit("no error")
dcp.load(found, storage_reader=reader)
dist.barrier()
if rank == 0:
    assert not list(Path().glob("*temp*")), list(Path().iterdir())
dist.barrier()
# Without collectives each rank has a checkpoint of its own, which its load finds.
own = {"mine": torch.full((3,), rank), "n": rank}
dcp.save(own, storage_writer=StorageWriter("own"), use_collectives=False)
found = {"mine": torch.zeros(3, dtype=torch.int64), "n": None}
dcp.load(found, storage_reader=StorageReader("own"))
assert found["mine"].tolist() == [rank] * 3 and found["n"] == rank
assert os.path.exists(f"own-rank-0000{rank}.index") and not os.path.exists("own.index")
# A load would read the checkpoint of all ranks.
dcp.save(own | {"mine": torch.ones(3)}, storage_writer=StorageWriter("all"))
try:
    dcp.save(own, storage_writer=StorageWriter("all"), use_collectives=False)
except ckptfmt.InvalidError as error:
    assert error.argument == "checkpoint_id", error
else:
    raise SystemExit("no error")
"""
    run_ranks(tmp_path, 2, SAVE + program)


def test_a_refused_save_leaves_nothing(tmp_path: Path) -> None:
    """On the rank that refuses, and on one that has written its part when another refuses: there
    when the writer is freed, or the process exits."""
    program = """
import gc
from pathlib import Path
from torch.distributed.checkpoint.api import CheckpointException
mine = {"a": torch.ones(2), "odd": object()} if rank == 1 else {"b": torch.ones(2)}
def refused(step, **options):
    try:
        dcp.save(mine, checkpoint_id=f"run/step-{step}", storage_writer=StorageWriter(), **options)
    except CheckpointException as error:
        assert list(error.failures) == [1]
    else:
        raise SystemExit("no error")
refused(1)
gc.collect()  # the exception is in a frame that its traceback has
dist.barrier()
assert not list(Path("run").glob("*")), list(Path("run").iterdir())
dist.barrier()
gc.disable()
refused(2)
dist.barrier()
print(len(list(Path("run").glob("*"))))
"""
    assert run_ranks(tmp_path, 2, SAVE + program) == [["1"], ["1"]]
    assert not list((tmp_path / "run").glob("*"))


def test_a_killed_job_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    program = """
import os, signal
class Killed(StorageWriter):
    def write_data(self, plan, planner):
        super().write_data(plan, planner)
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
dcp.save({"old": torch.ones(3)}, storage_writer=StorageWriter("x"))
dcp.save(state(False), storage_writer=Killed("x"))
"""
    run_ranks(tmp_path, 2, SAVE + program, status=-9)
    assert len(list(tmp_path.glob("x_temp_*/part-*.index"))) == 2
    assert list(ckptfmt.load(tmp_path / "x")) == ["old"]
    run_ranks(
        tmp_path, 1, SAVE + "dcp.save({'new': torch.ones(3)}, storage_writer=StorageWriter('x'))"
    )
    assert list(ckptfmt.load(tmp_path / "x")) == ["new"]
    assert not list(tmp_path.glob("*temp*"))
