# SPDX-License-Identifier: Apache-2.0
"""The coordinator over MPI: real ranks, started by mpirun. Debian's package is openmpi-bin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import job
from support.pages import program, run_console, run_line

import ckptfmt

pytestmark = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="NOT RUN: needs mpirun (apt install openmpi-bin)"
)

VERSION = subprocess.run(
    ["sh", "-c", "mpirun --version || true"], capture_output=True, text=True, check=True
).stdout

# Open MPI refuses root and more ranks than processors unless told; MPICH ignores these.
MPIRUN = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl": "self,vader",  # this machine only
    "OMP_NUM_THREADS": "1",
}

HEAD = """
import os, signal, sys, time
from mpi4py import MPI
import ckptfmt
from ckptfmt.errors import BusyError
from ckptfmt import InvalidError
from ckptfmt.mpi import MPICoordinator
comm = MPI.COMM_WORLD
rank, world_size = comm.Get_rank(), comm.Get_size()

def refused(kind, use):
    try:
        use()
    except kind as error:
        return error.message
    raise SystemExit(f"no {kind.__name__}")

def short(coordinator, *ranks):
    # Give up soon, but not before these ranks have called.
    while not all(coordinator._comm.Iprobe(rank) for rank in ranks):
        time.sleep(0.001)
    coordinator._timeout = 0.5

def tell(*what):
    with open(str(rank), "a") as out:
        print(*what, file=out)
"""


def mpirun(
    where: Path, world_size: int, *command: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["mpirun", *options, "-n", str(world_size), sys.executable, *command],
        cwd=where,
        env={**os.environ, **MPIRUN},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run(where: Path, world_size: int, program: str, *options: str) -> list[list[str]]:
    """What each rank told of a job that succeeds."""
    ran = mpirun(where, world_size, "-c", HEAD + program, options=options)
    assert ran.returncode == 0 and "Traceback" not in ran.stderr, ran.stderr
    return told(where, world_size)


def told(where: Path, world_size: int) -> list[list[str]]:
    paths = [where / str(rank) for rank in range(world_size)]
    return [path.read_text().splitlines() if path.exists() else [] for path in paths]


def test_operations(tmp_path: Path) -> None:
    program = """
from ckptfmt.sharded.coordinator import Coordinator
with MPICoordinator(timeout=60) as coordinator:
    assert isinstance(coordinator, Coordinator)
    assert (coordinator.rank, coordinator.world_size) == (rank, world_size)
    # Sizes differ, some are nothing, all bytes occur.
    value = bytes(range(256)) * (4096 * rank)
    for root in range(world_size):
        coordinator.barrier("here")
        found = coordinator.gather(value, root)
        wanted = [bytes(range(256)) * (4096 * one) for one in range(world_size)]
        assert found == (wanted if rank == root else None), root
        found = coordinator.gather(b"", root)
        assert found == ([b""] * world_size if rank == root else None), root
        mine = value if rank == root else None
        assert coordinator.broadcast(mine, root) == wanted[root], root
    tell(repr(coordinator))
tell(refused(InvalidError, lambda: coordinator.barrier("late")))
coordinator.close()
tell(refused(InvalidError, lambda: MPICoordinator(timeout=0)))
tell(refused(InvalidError, lambda: MPICoordinator("all")))
tell(refused(InvalidError, lambda: MPICoordinator(MPI.COMM_NULL)).split(",")[0])
"""
    for rank, lines in enumerate(run(tmp_path, 3, program)):
        assert lines == [
            f"<ckptfmt MPICoordinator rank {rank} of 3>",
            "coordinator is closed",
            "timeout 0 is not a positive number of seconds",
            "comm must be an intracommunicator of mpi4py, not str",
            "comm must be an intracommunicator of mpi4py",
        ]


def test_a_communicator_of_some_and_messages_of_the_caller(tmp_path: Path) -> None:
    """Ranks are those of the communicator, and messages of the caller stay the caller's."""
    program = """
some = comm.Split(rank % 2, key=-rank)
waiting = comm.irecv(source=(rank + 1) % world_size)
comm.send("mine", (rank - 1) % world_size)
with MPICoordinator(some, timeout=60) as coordinator:
    mine = b"%d" % rank
    tell(coordinator.rank, coordinator.gather(mine), coordinator.broadcast(mine, 0))
assert waiting.wait() == "mine"
"""
    assert run(tmp_path, 3, program) == [
        ["1 None b'2'"],
        ["0 [b'1'] b'1'"],
        ["0 [b'2', b'0'] b'2'"],
    ]


def test_ranks_that_disagree(tmp_path: Path) -> None:
    program = """
coordinator = MPICoordinator(timeout=60)
tell(refused(InvalidError, lambda: coordinator.gather("text")))  # does not count
coordinator.barrier("a")
if rank == 1:
    coordinator.broadcast(b"x", 1)  # a root does not wait
    tell(refused(BusyError, lambda: coordinator.barrier("b")))
else:
    tell(refused(InvalidError, lambda: coordinator.gather(b"x")))
tell(refused(InvalidError, lambda: coordinator.barrier("b")))
"""
    first, second = run(tmp_path, 2, program)
    why = (
        "operation 2, gather to rank 0 of 2 ranks: rank 1 called another operation than rank 0; "
        "all ranks must call the same"
    )
    assert first == [
        "data must be bytes, not str",
        why,
        "coordinator has failed in operation 2, gather to rank 0 of 2 ranks",
    ]
    operation = "operation 3, barrier 'b' of 2 ranks"
    assert second[1:] == [
        f"{operation}: failed on rank 0: InvalidError: {why}",
        f"coordinator has failed in {operation}",
    ]


def test_missing_ranks_are_named_on_all(tmp_path: Path) -> None:
    """Rank 0 names them, and tells the others, which do not wait for their time-out."""
    program = """
coordinator = MPICoordinator(timeout=60)
coordinator.barrier("one")
if rank == 0:
    short(coordinator, 3)
if rank in (0, 3):
    tell(refused(BusyError, lambda: coordinator.barrier("two")))
"""
    ended = run(tmp_path, 4, program)
    operation = "operation 2, barrier 'two' of 4 ranks"
    why = f"{operation}: ranks 1, 2 did not arrive within 0.5 s"
    assert ended[0] == [why]
    assert ended[3] == [f"{operation}: failed on rank 0: BusyError: PEERS_MISSING: {why}"]


def test_rank_0_is_missing(tmp_path: Path) -> None:
    program = """
coordinator = MPICoordinator(timeout=60)
if rank == 1:
    short(coordinator)
    tell(refused(BusyError, lambda: coordinator.broadcast(None)))
    tell(refused(InvalidError, lambda: coordinator.broadcast(None)))
"""
    operation = "operation 1, broadcast from rank 0 of 2 ranks"
    assert run(tmp_path, 2, program)[1] == [
        f"{operation}: rank 0 did not arrive within 0.5 s",
        f"coordinator has failed in {operation}",
    ]


def test_a_rank_that_does_not_construct(tmp_path: Path) -> None:
    program = """
if rank == 0:
    tell(refused(BusyError, lambda: MPICoordinator(timeout=0.5)))
"""
    text = "MPICoordinator(): other ranks did not arrive within 0.5 s"
    assert run(tmp_path, 2, program)[0] == [text]


def test_an_exception_on_one_rank_ends_the_others(tmp_path: Path) -> None:
    """At once, though the rank that raises never calls the operation."""
    program = """
try:
    with MPICoordinator(timeout=600) as coordinator:
        if rank == 1:
            raise RuntimeError("out of luck")
        coordinator.barrier("saved")
except (BusyError, RuntimeError) as error:
    tell(type(error).__name__, error)
"""
    operation = "operation 1, barrier 'saved' of 3 ranks"
    begin = f"BusyError PEERS_MISSING: {operation}: failed on rank"
    first, _, third = run(tmp_path, 3, program)
    assert first == [f"{begin} 1: RuntimeError: out of luck"]
    why = f"{operation}: failed on rank 1: RuntimeError: out of luck"
    assert third == [f"{begin} 0: BusyError: PEERS_MISSING: {why}"]


def test_a_killed_rank_ends_the_job(tmp_path: Path) -> None:
    program = """
with MPICoordinator(timeout=600) as coordinator:
    coordinator.barrier("one")
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    coordinator.barrier("two")
"""
    ran = mpirun(tmp_path, 3, "-c", HEAD + program)
    assert ran.returncode != 0


@pytest.mark.skipif("Open MPI) 4" not in VERSION, reason="only Open MPI 4 lets ranks survive")
def test_ranks_that_survive_a_killed_one(tmp_path: Path) -> None:
    program = """
coordinator = MPICoordinator(timeout=60)
coordinator.barrier("one")
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    short(coordinator, 1)
tell(refused(BusyError, lambda: coordinator.barrier("two")))
os._exit(0)
"""
    survive = ("--mca", "orte_enable_recovery", "1")
    mpirun(tmp_path, 3, "-c", HEAD + program, options=survive)
    operation = "operation 2, barrier 'two' of 3 ranks"
    why = f"{operation}: ranks 2 did not arrive within 0.5 s"
    assert told(tmp_path, 3) == [
        [why],
        [f"{operation}: failed on rank 0: BusyError: PEERS_MISSING: {why}"],
        [],
    ]


def test_an_error_in_one_rank_is_raised_in_all(tmp_path: Path) -> None:
    """Of a save: nothing is left behind. Of a restore: with the rank that failed."""
    program = """
import numpy as np
from ckptfmt.sharded import Layout, Mesh
mesh = Mesh({"x": world_size})
(mine,) = mesh.local_devices(rank, world_size)
layouts = {"table": Layout(["x", None], mesh)}
good, bad = np.full((2, 3), rank), object()
with MPICoordinator(timeout=60) as coordinator:
    def save(array):
        ckptfmt.sharded.save("model", {"table": {mine: array}}, layouts, coordinator)
    tell(refused(InvalidError, lambda: save(bad if rank == 1 else good)))
    comm.Barrier()
    tell(sorted(name for name in os.listdir() if name.startswith("model")))
    save(good)  # the coordinator is still good
    found = ckptfmt.sharded.restore("model", layouts, coordinator)
    assert (found["table"][mine] == rank).all()
"""
    ended = run(tmp_path, 4, program)
    assert all("not object" in lines[0] and lines[1:] == ["[]"] for lines in ended)
    for rank in (0, 2, 3):
        assert ended[rank][0].startswith("process 1 of 4 failed: ")


def test_a_background_save_ends_before_its_coordinator(tmp_path: Path) -> None:
    """Also where one rank raises meanwhile; the others learn of that in their next save."""
    program = """
from ckptfmt import Checkpoint, CheckpointManager
from ckptfmt.tf import CheckpointOptions
options = CheckpointOptions(experimental_write_callbacks=[lambda _: time.sleep(0.5)])
with MPICoordinator(timeout=60) as coordinator:
    future = Checkpoint(x=1.0, coordinator=coordinator).save_async("last", options=options)
tell(future.result())
try:
    with MPICoordinator(timeout=60) as coordinator:
        manager = CheckpointManager(Checkpoint(x=1.0, coordinator=coordinator), "run", 3)
        manager.save_async(options=options)
        if rank == 1:
            raise RuntimeError("out of luck")
        tell(refused(BusyError, manager.save).rpartition(": ")[2])
except RuntimeError:
    tell("raised")
"""
    assert run(tmp_path, 2, program) == [["last-1", "out of luck"], ["last-1", "raised"]]
    assert ckptfmt.latest_checkpoint(tmp_path / "run") == str(tmp_path / "run" / "ckpt-1")


def test_background_saves_need_threads(tmp_path: Path) -> None:
    program = """
from ckptfmt import Checkpoint
with MPICoordinator(timeout=60) as coordinator:
    future = Checkpoint(x=1.0, coordinator=coordinator).save_async("model")
    tell(refused(InvalidError, future.result))
"""
    funneled = "import mpi4py; mpi4py.rc.thread_level = 'funneled'"
    ran = mpirun(tmp_path, 2, "-c", funneled + HEAD + program)
    assert ran.returncode == 0, ran.stderr
    for (line,) in told(tmp_path, 2):
        assert line.startswith("MPI was initialised for one thread: ")


def run_job(where: Path, world_size: int, *actions: str) -> None:
    """Run support/job.py on this many ranks, which must succeed."""
    ran = mpirun(where, world_size, str(job.__file__), "mpi", "-", "0", "0", *actions)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr


def test_a_manager_of_four_then_two(tmp_path: Path) -> None:
    """A Checkpoint of all ranks, saved in the background as well."""
    where = tmp_path / "ckpt"
    run_job(tmp_path, 4, f"manage={where}", "keep=5", "later=6", "latest=6")
    run_job(tmp_path, 2, f"manage={where}", "latest=6", "later=7", "latest=7")
    assert ckptfmt.latest_checkpoint(where) == str(where / "ckpt-3")


def test_four_save_two_restore_and_save_one_restores(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for world_size, actions in (
        (4, [f"save={first}=7", f"async={tmp_path / 'third'}=8", "finish"]),
        (2, [f"restore={first}=7", f"again={second}"]),
        (1, [f"restore={second}=7", f"restore={tmp_path / 'third'}=8"]),
    ):
        run_job(tmp_path, world_size, *actions)
    with ckptfmt.open(second) as reader:
        assert reader.header.num_shards == 2


def test_page(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program("docs/mpi.md", "train.py"), encoding="utf-8")
    run_console("docs/mpi.md", tmp_path, MPIRUN)
    status, out, err = run_line("mpirun -n 3 python -m mpi4py train.py", tmp_path, MPIRUN)
    assert (status, out + err) == (0, "")
    with ckptfmt.open(tmp_path / "run" / "ckpt-6") as reader:
        assert reader["state/table/.ATTRIBUTES/VARIABLE_VALUE"].shape == (12, 12)
