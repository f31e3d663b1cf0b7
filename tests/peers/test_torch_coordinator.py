# SPDX-License-Identifier: Apache-2.0
"""The coordinator over torch.distributed: real processes over gloo on the loopback interface.

Needs the extra `peers`; `make peers` installs it and runs these.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support import job
from support.ranks import LEAVE, Rank

import ckptfmt
from ckptfmt import InvalidError
from ckptfmt.torch.coordinator import TorchCoordinator

HEAD = """
import os, signal, sys
import torch.distributed as dist
from ckptfmt.errors import BusyError, InvalidError
from ckptfmt.sharded.coordinator import Coordinator
from ckptfmt.torch.coordinator import TorchCoordinator
place, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + place, rank=rank, world_size=world_size)

def refused(kind, use):
    try:
        use()
    except kind as error:
        return error.message
    raise SystemExit(f"no {kind.__name__}")
"""


def run(place: Path, world_size: int, program: str) -> list[tuple[int, list[str]]]:
    """What each rank printed, and how it ended."""
    started = [
        Rank(HEAD + program + LEAVE, [str(place), str(rank), str(world_size)], place.parent)
        for rank in range(world_size)
    ]
    ended = []
    for process in started:
        status, out, err = process.wait(120)
        assert "Traceback" not in err, err
        ended.append((status, out.splitlines()))
    return ended


def test_operations(tmp_path: Path) -> None:
    program = """
with TorchCoordinator(timeout=60) as coordinator:
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
    print(repr(coordinator))
print(refused(InvalidError, lambda: coordinator.barrier("late")))
print(refused(InvalidError, lambda: TorchCoordinator(timeout=0)))
print(refused(InvalidError, lambda: TorchCoordinator("all")))
assert dist.is_initialized()
dist.barrier()
dist.destroy_process_group()
"""
    for rank, ended in enumerate(run(tmp_path / "meet", 3, program)):
        assert ended == (
            0,
            [
                f"<ckptfmt TorchCoordinator rank {rank} of 3>",
                "coordinator is closed",
                "timeout 0 is not a positive number of seconds",
                "group must be a group of torch.distributed, not str",
            ],
        )


def test_a_group_of_some(tmp_path: Path) -> None:
    """Ranks are those of the group, and root is one of them."""
    program = """
group = dist.new_group([2, 0])
if rank == 1:
    print(refused(InvalidError, lambda: TorchCoordinator(group)))
else:
    with TorchCoordinator(group, timeout=60) as coordinator:
        mine = b"%d" % rank
        print(coordinator.rank, coordinator.gather(mine, 1), coordinator.broadcast(mine, 1))
    dist.barrier(group)
dist.barrier()
dist.destroy_process_group()
"""
    assert run(tmp_path / "meet", 3, program) == [
        (0, ["0 None b'2'"]),
        (0, ["this process is not a member of the group"]),
        (0, ["1 [b'0', b'2'] b'2'"]),
    ]


def test_ranks_that_disagree(tmp_path: Path) -> None:
    """All get an error, at once; the coordinator cannot be used any more."""
    program = """
coordinator = TorchCoordinator(timeout=60)
print(refused(InvalidError, lambda: coordinator.gather("text")))  # does not count
coordinator.barrier("a")
other = coordinator.gather if rank == 1 else coordinator.broadcast
print(refused(InvalidError, lambda: other(b"x")))
print(refused(InvalidError, lambda: coordinator.barrier("b")))
dist.barrier()
dist.destroy_process_group()
"""
    first, second = (printed for _, printed in run(tmp_path / "meet", 2, program))
    called = ["broadcast from rank 0 of 2 ranks", "gather to rank 0 of 2 ranks"]
    for rank, printed in enumerate((first, second)):
        assert printed == [
            "data must be bytes, not str",
            f"operation 2, {called[rank]}: ranks {1 - rank} called another operation than rank "
            f"{rank}; all ranks must call the same",
            f"coordinator has failed in operation 2, {called[rank]}",
        ]


def test_a_killed_process_is_named(tmp_path: Path) -> None:
    program = """
coordinator = TorchCoordinator(timeout=3)
coordinator.barrier("one")
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
print(refused(BusyError, lambda: coordinator.barrier("two")), flush=True)
os._exit(0)
"""
    ended = run(tmp_path / "meet", 3, program)
    assert ended[2] == (-signal.SIGKILL, [])
    for rank in (0, 1):
        (message,) = ended[rank][1]
        assert message.startswith(
            "operation 2, barrier 'two' of 3 ranks: ranks did not arrive within 3 s or ended: "
        )
    assert "Ranks 2 failed to pass" in ended[0][1][0]  # the others only know that rank 0 gave up


def test_before_torch_is_ready() -> None:
    with pytest.raises(InvalidError, match=r"^call torch.distributed.init_process_group first$"):
        TorchCoordinator()


def run_job(where: Path, world_size: int, *actions: str) -> None:
    """Run support/job.py in this many processes, which must succeed."""
    place = str(where / f"meet{world_size}")
    program = f"import runpy; runpy.run_path({job.__file__!r}, run_name='__main__')"
    started = [
        Rank(program, ["torch", place, str(rank), str(world_size), *actions], where)
        for rank in range(world_size)
    ]
    for process in started:
        status, out, err = process.wait(120)
        assert (status, out) == (0, ""), err


def test_a_manager_of_four_then_two_then_three(tmp_path: Path) -> None:
    """A Checkpoint of all processes, saved in the background as well."""
    where = tmp_path / "ckpt"
    run_job(tmp_path, 4, f"manage={where}", "keep=5", "later=6", "latest=6")
    run_job(tmp_path, 2, f"manage={where}", "latest=6", "later=7")
    run_job(tmp_path, 3, f"manage={where}", "latest=7", "keep=8")
    assert ckptfmt.latest_checkpoint(where) == str(where / "ckpt-4")


def test_four_save_two_restore_and_save_three_restore(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for world_size, actions in (
        (4, [f"save={first}=7"]),
        (2, [f"restore={first}=7", f"again={second}"]),
        (3, [f"restore={second}=7", f"restore={first}=7"]),
    ):
        run_job(tmp_path, world_size, *actions)
    with ckptfmt.open(second) as reader:
        assert reader.header.num_shards == 2
