# SPDX-License-Identifier: Apache-2.0
"""Pytrees on the devices of several processes of JAX, which meet on the loopback interface."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest
from support.jax_ranks import run_jax_ranks
from support.s3 import running

import ckptfmt
import ckptfmt.jax

STATE = """
import os
import jax.numpy as jnp
import numpy as np
import ckptfmt
import ckptfmt.jax
from ckptfmt.errors import BusyError
from ckptfmt import CkptfmtError, InvalidError, TensorNotFoundError
from jax.sharding import NamedSharding, PartitionSpec

mesh = jax.make_mesh((4, 2), ("a", "b"))
matrix = np.arange(64.0, dtype=np.float32).reshape(8, 8)
keys = jax.random.split(jax.random.key(1), 8)

def on(*spec):
    return NamedSharding(mesh, PartitionSpec(*spec))

def put(array, *spec):
    return jax.make_array_from_callback(array.shape, on(*spec), lambda index: array[index])

state = {
    "both": put(matrix, "a", "b"),
    "columns": put(matrix, None, "b"),
    "replica": [put(matrix + number) for number in range(4)],
    "keys": jax.jit(lambda: jax.random.split(jax.random.key(1), 8), out_shardings=on("a"))(),
    "empty": put(matrix[:0]),
    "mine": jnp.ones(3),
    "numpy": np.arange(5),
    "step": 3,
}

def check(found, sharding=None):
    for name in ("both", "columns"):
        assert sharding or found[name].sharding == state[name].sharding
        for shard in found[name].addressable_shards:
            np.testing.assert_array_equal(shard.data, matrix[shard.index])
    for number, one in enumerate(found["replica"]):
        np.testing.assert_array_equal(one.addressable_data(0), matrix + number)
    shard = found["keys"].addressable_shards[0]
    one, other = jax.random.key_data(shard.data), jax.random.key_data(keys[shard.index[0]])
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found["mine"], np.ones(3))
    assert (found["numpy"].tolist(), found["step"]) == ([0, 1, 2, 3, 4], 3)

def refused(kind, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        return error.message
    raise SystemExit(f"no {kind.__name__}")
"""


def test_two_processes(tmp_path: Path) -> None:
    """Save and load; what one process saved; what the processes disagree about."""
    ckptfmt.save(tmp_path / "plain", {"both": np.arange(64, dtype=np.float32).reshape(8, 8)})
    program = """
before = ckptfmt._core.counters()["bytes_written"]
ckptfmt.jax.save("saved", state, metadata={"step": 3})
print(ckptfmt._core.counters()["bytes_written"] - before)
check(ckptfmt.jax.load("saved", state))
other = on("b", None)
shardings = dict.fromkeys(state) | dict.fromkeys(["both", "columns"], other)
check(ckptfmt.jax.load("saved", state, sharding=shardings), other)
state["mine"] += rank * 0
future = ckptfmt.jax.save_async("later", state)
assert future.result() == "later"
check(ckptfmt.jax.load("later", state))

# What one process saved is read in part by each.
like = {"both": jax.ShapeDtypeStruct((8, 8), "float32", sharding=on("a"))}
found = ckptfmt.jax.load("plain", like)["both"]
assert len(found.addressable_shards) == 4
for shard in found.addressable_shards:
    np.testing.assert_array_equal(shard.data, matrix[shard.index])

print(refused(InvalidError, ckptfmt.jax.save, "bad", {**state, "numpy": np.arange(5) + rank}))
print(refused(InvalidError, ckptfmt.jax.save, "bad", {**state, "more": 1} if rank else state))
print(refused(InvalidError, ckptfmt.jax.save, "bad", state, durability=["full", "none"][rank]))
wrong = {**state, "other": object()} if rank else state
print(refused(InvalidError, ckptfmt.jax.save, "bad", wrong))
print(refused(InvalidError, ckptfmt.jax.save_async, "bad", wrong))
print(refused(InvalidError, ckptfmt.jax.save, "bad", state, alignment=-1 if rank else None))
shardings = dict.fromkeys(state) | {"both": on("a", "b", None)} if rank else None
print(refused(InvalidError, ckptfmt.jax.load, "saved", state, sharding=shardings))
print(refused(InvalidError, ckptfmt.jax.load, 5 if rank else "saved", state))
like = {**state, "more": 1} if rank else state
print(refused(TensorNotFoundError, ckptfmt.jax.load, "saved", like))
checkpoint = ckptfmt.jax.Checkpoint(state)
manager, Options = ckptfmt.CheckpointManager(checkpoint, "run", 2), ckptfmt.tf.CheckpointOptions
refused(InvalidError, checkpoint.restore, None if rank else "saved")
refused(InvalidError, checkpoint.restore, "saved", 5 if rank else None)
refused(InvalidError, checkpoint.write, "bad/" if rank else "bad")
refused(InvalidError, checkpoint.write_async, "bad", 5 if rank else None)
refused(InvalidError, manager.save, 1, options=Options(check_replicas=rank == 1))
refused(InvalidError, manager.save, 1, options=Options(level=["v2", "v2+"][rank]))
manager.save(1)
if rank == 1:
    os.mkdir("file.index")  # cannot be replaced
print(refused(CkptfmtError, ckptfmt.jax.save, "file", state)[:20])
"""
    first, second = (out.splitlines() for out in run_jax_ranks(tmp_path, 2, STATE + program))
    # Replicas are distributed evenly; process 0 also writes the index, and merges.
    assert abs(int(first.pop(0)) - int(second.pop(0))) < 4096
    crcs = "int64[5] of every process with checksum"
    assert first[0] == second[0]
    assert first[0].startswith(f"the processes have different values: {crcs} ")
    assert first[1].startswith("the processes have different values: no value (process 0); int64[]")
    assert '"durability": "none"' in first[2]
    text = "a leaf must be an array, a Python scalar, str or bytes, not object"
    assert second[3:5] == [text] * 2
    assert first[3:5] == [f"process 1 of 2 failed: {text}" for text in second[3:5]]
    assert second[5].startswith("alignment -1 is not ")
    assert second[6].startswith("sharding does not fit these leaves: 'both' of shape (8, 8): ")
    assert second[7].startswith("load(path, like): path must be str, bytes or os.PathLike, not int")
    assert second[8] == "missing in the checkpoint (1): 'more'"
    assert first[5:9] == [f"process 1 of 2 failed: {text}" for text in second[5:9]]
    assert sorted(path.name for path in tmp_path.iterdir() if "temp" in path.name) == []

    # One process loads it, onto another mesh.
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("b", "a"))
    like = {"both": jax.ShapeDtypeStruct((8, 8), "float32", sharding=sharding)}
    both = ckptfmt.jax.load(tmp_path / "saved", like, strict=False)["both"]
    assert both.sharding == sharding
    np.testing.assert_array_equal(both, np.arange(64.0).reshape(8, 8))
    found = ckptfmt.load(tmp_path / "saved")
    np.testing.assert_array_equal(found["columns"], np.arange(64.0).reshape(8, 8))
    np.testing.assert_array_equal(found["replica/3"], np.arange(64.0).reshape(8, 8) + 3)
    with ckptfmt.open(tmp_path / "saved") as reader:
        assert reader.metadata["jax_prng_impls"] == [["keys", "threefry2x32"]]
        assert reader.metadata["step"] == 3
        assert len(reader["both"].slices) == 8
        assert {reader[f"replica/{number}"].shard for number in range(4)} == {0, 1}
    assert len(ckptfmt.jax.load(tmp_path / "saved")["replica"]) == 4


def test_a_manager_in_processes_that_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One, two and one processes continue a directory, each on its own mesh; what comes out is that
    of two processes over an S3 server."""
    program = """
import json
import numpy as np
import ckptfmt
import ckptfmt.jax
from jax.sharding import NamedSharding, PartitionSpec

directory, last, is_async, *sizes = json.loads(sys.argv[4])
mesh = jax.make_mesh(tuple(sizes), ("a", "b"))
sharding = NamedSharding(mesh, PartitionSpec("a", "b"))
matrix = np.arange(64, dtype=np.float32).reshape(8, 8)
array = jax.make_array_from_callback((8, 8), sharding, lambda index: matrix[index])
checkpoint = ckptfmt.jax.Checkpoint({"w": [array], "key": jax.random.key(3), "step": 0})
best = ckptfmt.KeepBest("loss", mode="min")
manager = ckptfmt.CheckpointManager(checkpoint, directory, 3, keep_best=best)
found = manager.restore_latest()
while (tree := checkpoint.tree)["step"] < last:
    step = tree["step"] + 1
    key, drawn = jax.random.split(tree["key"])
    number = int(jax.random.randint(drawn, (), 0, 100))
    checkpoint.tree = {"w": [tree["w"][0] + number], "key": key, "step": step}
    (manager.save_async if is_async else manager.save)(step, metrics={"loss": abs(step - 2)})
manager.sync()
w = checkpoint.tree["w"][0]
assert w.sharding == sharding
total = float(jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))(w))
with open(f"result{rank}", "w") as file:  # Gloo prints as well
    json.dump([found.path and found.path[-6:], total, *map(str, manager.checkpoints)], file)
"""

    def run(world_size: int, where: str, last: int, *sizes: int, is_async: bool) -> list[str]:
        given = json.dumps([where, last, is_async, *sizes])
        devices = math.prod(sizes) // world_size
        run_jax_ranks(tmp_path, world_size, program, given, devices=devices)
        files = [tmp_path / f"result{rank}" for rank in range(world_size)]
        found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        assert found == found[:1] * world_size
        return [Path(one).name if isinstance(one, str) else one for one in found[0]]

    assert run(1, "a", 3, 2, 2, is_async=False)[0] is None
    assert run(2, "a", 5, 2, 4, is_async=True)[0] == "ckpt-3"
    resumed = run(1, "a", 7, 1, 2, is_async=True)
    assert resumed[0] == "ckpt-5"
    assert resumed[2:] == ["ckpt-2", "ckpt-5", "ckpt-6", "ckpt-7"]
    for server in running():
        server.bucket("bucket")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        for last, is_async in ((4, False), (7, True)):
            whole = run(2, "s3://bucket/run", last, 4, 2, is_async=is_async)
    assert whole[1:] == resumed[1:]


def test_the_coordinator(tmp_path: Path) -> None:
    program = """
from ckptfmt.jax import JaxCoordinator
from ckptfmt.sharded.coordinator import Coordinator

with JaxCoordinator(timeout=60) as coordinator:
    assert isinstance(coordinator, Coordinator)
    assert (coordinator.rank, coordinator.world_size) == (rank, world_size)
    # Sizes differ, some are nothing, all bytes occur.
    value = bytes(range(256)) * (40_000 * rank)
    for root in range(world_size):
        coordinator.barrier("here")
        found = coordinator.gather(value, root)
        wanted = [bytes(range(256)) * (40_000 * one) for one in range(world_size)]
        assert found == (wanted if rank == root else None), root
        mine = value if rank == root else None
        assert coordinator.broadcast(mine, root) == wanted[root], root
    print(repr(coordinator))
print(refused(InvalidError, coordinator.barrier, "late"))
print(refused(InvalidError, JaxCoordinator, timeout=0))

coordinator = JaxCoordinator(timeout=60)
print(refused(InvalidError, coordinator.gather, "text"))  # does not count
(coordinator.gather if rank else coordinator.broadcast)(b"x")  # neither waits
if rank == 0:
    print(refused(InvalidError, coordinator.gather, b"y"))
else:
    coordinator.gather(b"y")

coordinator = JaxCoordinator(timeout=1)
if rank == 0:
    print(refused(BusyError, coordinator.barrier, "b"))
    print(refused(InvalidError, coordinator.barrier, "b"))
"""
    first, second = (out.splitlines() for out in run_jax_ranks(tmp_path, 2, STATE + program))
    assert first == [
        "<ckptfmt JaxCoordinator rank 0 of 2>",
        "coordinator is closed",
        "timeout 0 is not a positive number of seconds",
        "data must be bytes, not str",
        "operation 2, gather to rank 0 of 2 ranks: rank 1 called another operation than rank 0, "
        "now or before; all ranks must call the same",
        "operation 1, barrier 'b' of 2 ranks: ranks 1 did not arrive within 1 s",
        "coordinator has failed in operation 1, barrier 'b' of 2 ranks",
    ]
    assert second == ["<ckptfmt JaxCoordinator rank 1 of 2>", *first[1:4]]
