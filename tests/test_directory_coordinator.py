# SPDX-License-Identifier: Apache-2.0
"""The coordinator over a shared directory: against a model, over a file system that shows things
late, and with ranks that die, leave, come twice or do something else."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ckptfmt import BusyError, InvalidError, StorageError
from ckptfmt.sharded import directory
from ckptfmt.sharded.directory import DirectoryCoordinator

# What every program of these tests begins with.
HEAD = """
import os, signal, sys, time
from ckptfmt.sharded.directory import DirectoryCoordinator
where, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
coordinator = DirectoryCoordinator(where, rank, world_size, run_id="run", timeout=20)
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HEAD + program, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def in_threads(world_size: int, work: Callable[[int], Any]) -> list[Any]:
    """What the work gives on each rank; the first error is raised, after all have ended."""
    with ThreadPoolExecutor(world_size) as pool:
        return [one.result() for one in [pool.submit(work, rank) for rank in range(world_size)]]


def folder(where: Path, run_id: str = "run") -> Path:
    return where / f"ckptfmt-run-{run_id}"


def on_rank(where: Path, world_size: int, **options: Any) -> Callable[[int], DirectoryCoordinator]:
    options = {"run_id": "run", "timeout": 20.0, **options}
    return lambda rank: DirectoryCoordinator(where, rank, world_size, **options)


# ---- against a model -------------------------------------------------------------------------


def value_of(seed: int, operation: int, rank: int) -> bytes:
    """What a rank hands over: all bytes occur, and often none or a mebibyte."""
    source = random.Random(f"{seed} {operation} {rank}")
    return source.randbytes(source.choice((0, 1, 10, 1000, 1 << 20)))


def script(seed: int, world_size: int, count: int) -> list[tuple[str, int]]:
    source = random.Random(seed)
    return [
        (source.choice(("barrier", "gather", "broadcast")), source.randrange(world_size))
        for _ in range(count)
    ]


def play(coordinator: DirectoryCoordinator, seed: int, steps: list[tuple[str, int]]) -> list[Any]:
    """Runs a script on one rank, with pauses of its own."""
    source = random.Random(f"{seed} pauses {coordinator.rank}")
    results: list[Any] = []
    for operation, (kind, root) in enumerate(steps):
        if source.random() < 0.2:
            time.sleep(source.random() * 0.005)
        mine = value_of(seed, operation, coordinator.rank)
        if kind == "barrier":
            results.append(coordinator.barrier(f"b{operation}"))
        elif kind == "gather":
            results.append(coordinator.gather(mine, root))
        else:
            given = mine if coordinator.rank == root else None
            results.append(coordinator.broadcast(given, root))
    return results


def model(seed: int, rank: int, world_size: int, steps: list[tuple[str, int]]) -> list[Any]:
    results: list[Any] = []
    for operation, (kind, root) in enumerate(steps):
        if kind == "gather" and rank == root:
            results.append([value_of(seed, operation, one) for one in range(world_size)])
        elif kind == "broadcast":
            results.append(value_of(seed, operation, root))
        else:
            results.append(None)
    return results


def test_random_operations_in_threads(tmp_path: Path, seed: int) -> None:
    for case in range(25):
        mine = seed + case
        world_size = 1 + mine % 5
        steps = script(mine, world_size, 12)
        make = on_rank(tmp_path, world_size)

        def work(rank: int, mine: int = mine, steps: Any = steps, make: Any = make) -> list[Any]:
            with make(rank) as coordinator:
                return play(coordinator, mine, steps)

        for rank, found in enumerate(in_threads(world_size, work)):
            assert found == model(mine, rank, world_size, steps), (mine, rank)
        # The last to close has removed the folder: the same run_id is free.
        assert list(tmp_path.iterdir()) == []


def digest(results: list[Any]) -> str:
    return hashlib.sha256(repr(results).encode()).hexdigest()


def test_random_operations_in_processes(tmp_path: Path, seed: int) -> None:
    program = """
sys.path.insert(0, sys.argv[5])
from test_directory_coordinator import digest, play, script
seed = int(sys.argv[4])
with coordinator:
    print(digest(play(coordinator, seed, script(seed, world_size, 30))))
"""
    world_size = 4
    here = Path(__file__).parent
    started = [start(program, tmp_path, r, world_size, seed, here) for r in range(world_size)]
    steps = script(seed, world_size, 30)
    for rank, process in enumerate(started):
        out, err = process.communicate(timeout=60)
        assert out.strip() == digest(model(seed, rank, world_size, steps)), (seed, rank, err)
        assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_barrier_is_one(tmp_path: Path, seed: int) -> None:
    """Nobody is behind it before all were in front of it."""
    world_size, rounds = 4, 40
    arrived = [0] * rounds
    lock = threading.Lock()
    make = on_rank(tmp_path, world_size)

    def work(rank: int) -> list[int]:
        source, behind = random.Random(f"{seed} {rank}"), []
        with make(rank) as coordinator:
            for number in range(rounds):
                if source.random() < 0.3:
                    time.sleep(source.random() * 0.01)
                with lock:
                    arrived[number] += 1
                coordinator.barrier("here")
                behind.append(arrived[number])
        return behind

    assert in_threads(world_size, work) == [[world_size] * rounds] * world_size


def test_roots_and_senders_do_not_wait(tmp_path: Path) -> None:
    make = on_rank(tmp_path, 2)
    with make(0) as first:
        assert first.broadcast(b"early") == b"early"
        assert first.broadcast(b"birds") == b"birds"
        assert first.gather(b"sent", root=1) is None
        first.close()
        with make(1) as second:
            assert (second.broadcast(None), second.broadcast(b"x")) == (b"early", b"birds")
            assert second.gather(b"mine", root=1) == [b"sent", b"mine"]
    assert list(tmp_path.iterdir()) == []


# ---- files -----------------------------------------------------------------------------------


def test_files_of_passed_operations_go(tmp_path: Path) -> None:
    world_size = 3
    make = on_rank(tmp_path, world_size)
    left: list[str] = []

    def work(rank: int) -> None:
        with make(rank) as coordinator:
            for number in range(30):
                coordinator.broadcast(b"data", root=number % 3)
                coordinator.gather(b"data", root=number % 2)
                coordinator.barrier("each")
            if rank == 0:
                # Others may be writing already what they bring to the next operation.
                left.extend(path.name for path in folder(tmp_path).glob("0*"))
            coordinator.barrier("counted")

    in_threads(world_size, work)
    steps = [name for name in left if not name.endswith(".started")]
    # All have passed the barrier before the last, which is operation 87; from there on, a rank's
    # files stay until it has looked again.
    assert len(left) - len(steps) == world_size
    assert {int(name.split(".")[0]) for name in steps} <= {87, 88, 89, 90, 91}
    assert len(steps) <= 4 * world_size
    assert list(tmp_path.iterdir()) == []


def test_another_run_is_not_looked_at(tmp_path: Path) -> None:
    """What a crashed run left stays, and its values are never those of the next."""
    crashed = DirectoryCoordinator(tmp_path, 0, 2, run_id="job-1", timeout=5)
    crashed.broadcast(b"stale")
    before = sorted(path.name for path in folder(tmp_path, "job-1").iterdir())
    make = on_rank(tmp_path, 2, run_id="job-1.1")

    def work(rank: int) -> bytes:
        with make(rank) as coordinator:
            return coordinator.broadcast(b"fresh" if rank == 0 else None)

    assert in_threads(2, work) == [b"fresh", b"fresh"]
    assert [path.name for path in tmp_path.iterdir()] == ["ckptfmt-run-job-1"]
    assert sorted(path.name for path in folder(tmp_path, "job-1").iterdir()) == before


def test_half_written_files_are_not_read(tmp_path: Path) -> None:
    """A killed writer's temporary file, and a file that this machine cannot see whole yet."""
    make = on_rank(tmp_path, 2)
    with make(0) as first, make(1) as second:
        first.broadcast(b"x" * 5000)
        (path,) = folder(tmp_path).glob("00000001.00000.*")
        whole = path.read_bytes()
        (folder(tmp_path) / "temp-0123").write_bytes(whole[:100])
        shown = threading.Timer(0.3, lambda: path.write_bytes(whole))
        for cut in (0, 10, len(whole) - 1):
            path.write_bytes(whole[:cut])
            assert second._folder.read(path.name) is None
        shown.start()
        assert second.broadcast(None) == b"x" * 5000
        shown.join()


class Late:
    """Stands for `os` and `open`: a file system that shows a directory's changes late and only in
    part, and files it has just listed not at all, as clients of network file systems do."""

    def __init__(self, seed: int) -> None:
        self._own = threading.local()
        self._seed = seed

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @property
    def _state(self) -> Any:
        if not hasattr(self._own, "seen"):
            self._own.seen = {}
            self._own.source = random.Random(f"{self._seed} {threading.current_thread().name}")
        return self._own

    def listdir(self, path: str) -> list[str]:
        state = self._state
        old = state.seen.get(path, set())
        if state.source.random() < 0.1:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        if state.source.random() < 0.3:
            return list(old)
        new = {name for name in os.listdir(path) if name in old or state.source.random() < 0.7}
        state.seen[path] = new
        return list(new)

    def open_late(self, path: Any, mode: str = "r") -> Any:
        if isinstance(path, str) and "r" in mode and self._state.source.random() < 0.4:
            number = self._state.source.choice((errno.ENOENT, errno.ESTALE))
            raise OSError(number, os.strerror(number), path)
        return open(path, mode)


def test_a_file_system_that_shows_things_late(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(seed)
    monkeypatch.setattr(directory, "os", late)
    monkeypatch.setattr(directory, "open", late.open_late, raising=False)
    for case in range(8):
        world_size = 2 + case % 3
        steps = script(seed + case, world_size, 10)
        make = on_rank(tmp_path, world_size, run_id=f"run{case}")

        def work(rank: int, case: int = case, steps: Any = steps, make: Any = make) -> list[Any]:
            with make(rank) as coordinator:
                return play(coordinator, seed + case, steps)

        for rank, found in enumerate(in_threads(world_size, work)):
            assert found == model(seed + case, rank, world_size, steps), (case, rank)


# ---- failures --------------------------------------------------------------------------------


def test_a_killed_process_is_named(tmp_path: Path) -> None:
    program = """
coordinator.barrier("one")
coordinator.gather(b"x")
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = start(program, tmp_path, 1, 3)
    make = on_rank(tmp_path, 3, timeout=2.0)

    def work(rank: int) -> BusyError:
        with make(rank) as coordinator:
            coordinator._timeout = 20.0  # a process takes its time to start
            coordinator.barrier("one")
            coordinator.gather(b"x")
            coordinator._timeout = 1.0
            with pytest.raises(BusyError) as caught:
                coordinator.barrier("two")
            with pytest.raises(InvalidError) as after:
                coordinator.barrier("three")
            assert after.value.message == (
                "coordinator has failed in operation 3, barrier 'two' of 3 ranks"
            )
            return caught.value

    errors = in_threads(3, lambda rank: None if rank == 1 else work(rank))
    killed.communicate(timeout=20)
    assert killed.returncode == -signal.SIGKILL
    for error in (errors[0], errors[2]):
        assert error.failure == "PEERS_MISSING"
        assert error.path == str(folder(tmp_path))
        assert error.message == (
            "operation 3, barrier 'two' of 3 ranks: 1 of 3 ranks did not come within 1 s: rank 1 "
            f"(process {killed.pid} on {socket.gethostname()}; last at operation 2)"
        )
    # What crashed is left for whoever looks into it, and its place is not free.
    assert folder(tmp_path).is_dir()
    with pytest.raises(BusyError):
        make(1)


def test_ranks_that_never_started(tmp_path: Path) -> None:
    with on_rank(tmp_path, 12, timeout=0.2)(3) as coordinator:
        began = time.monotonic()
        with pytest.raises(BusyError) as caught:
            coordinator.gather(b"", root=3)
        assert 0.2 <= time.monotonic() - began < 2
    missing = ", ".join(f"rank {r} (not started)" for r in (0, 1, 2, 4, 5, 6, 7, 8))
    assert caught.value.message == (
        "operation 1, gather to rank 3 of 12 ranks: 11 of 12 ranks did not come within 0.2 s: "
        f"{missing}, and 3 more"
    )
    assert str(caught.value).startswith("PEERS_MISSING in ")


def test_who_leaves_is_not_waited_for(tmp_path: Path) -> None:
    """A process that fails closes its coordinator, and the others learn it before the time-out."""
    make = on_rank(tmp_path, 3, timeout=60.0)

    def work(rank: int) -> str:
        try:
            with make(rank) as coordinator:
                coordinator.barrier("one")
                if rank == 2:
                    raise OSError("disk on fire")
                coordinator.broadcast(b"x" if rank == 2 else None, root=2)
        except (OSError, BusyError) as error:
            return str(error)
        return "nothing"

    began = time.monotonic()
    told = in_threads(3, work)
    assert time.monotonic() - began < 20
    assert told[2] == "disk on fire"
    who = f"process {os.getpid()} on {socket.gethostname()}; closed after operation 1"
    for rank in (0, 1):
        assert told[rank].endswith(
            "operation 2, broadcast from rank 2 of 3 ranks: 1 of 3 ranks left before: "
            f"rank 2 ({who})"
        )
    # All three have closed: the run is over, and nothing of it is left.
    assert list(tmp_path.iterdir()) == []


def test_who_may_still_come_is_not_blamed(tmp_path: Path) -> None:
    make = on_rank(tmp_path, 3, timeout=60.0)
    make(1).close()
    with make(0) as coordinator, pytest.raises(BusyError) as caught:
        coordinator.barrier("x")
    assert caught.value.message == (
        "operation 1, barrier 'x' of 3 ranks: 1 of 3 ranks left before: rank 1 (process "
        f"{os.getpid()} on {socket.gethostname()}; closed after operation 0)"
    )


def test_a_rank_started_twice(tmp_path: Path) -> None:
    make = on_rank(tmp_path, 2)
    with make(0), make(1):
        with pytest.raises(BusyError) as caught:
            make(0)
        assert caught.value.failure == "BUSY"
        assert caught.value.message == (
            f"rank 0 was started before in the run 'run' (process {os.getpid()} on "
            f"{socket.gethostname()}); a job that starts again needs another run_id"
        )
        # Half-written by a process that died.
        for path in folder(tmp_path).glob("*.started"):
            path.write_bytes(b"")
        with pytest.raises(BusyError, match=r"\(by an unknown process\)"):
            make(1)
    # In one moment: one of many gets the place.
    results = in_threads(8, lambda _: _tried(make))
    assert sorted(results) == ["BusyError"] * 7 + ["started"]


def _tried(make: Callable[[int], DirectoryCoordinator]) -> str:
    try:
        make(0)
    except BusyError:
        return "BusyError"
    return "started"


def test_ranks_that_disagree(tmp_path: Path) -> None:
    make = on_rank(tmp_path, 2)
    with make(0) as first, make(1) as second:
        second.gather(b"x")
        with pytest.raises(InvalidError) as caught:
            first.barrier("saved")
    assert caught.value.message == (
        "operation 1, barrier 'saved' of 2 ranks: rank 1 calls gather to rank 0 of 2 ranks where "
        "rank 0 calls barrier 'saved' of 2 ranks; all ranks must do the same"
    )
    for other, message in (
        (2, "rank 1 calls broadcast from rank 1 of 4 ranks where rank 0 calls"),
        (4, "rank 3 has started in this job of 2"),
    ):
        run = f"other{other}"
        with DirectoryCoordinator(tmp_path, other - 1, 4, run_id=run, timeout=5) as larger:
            larger.broadcast(b"x", root=other - 1)
            with (
                pytest.raises(InvalidError, match=re.escape(message)),
                DirectoryCoordinator(tmp_path, 0, 2, run_id=run, timeout=5) as smaller,
            ):
                smaller.broadcast(None, root=1)


def test_the_folder_is_gone(tmp_path: Path) -> None:
    with on_rank(tmp_path, 2)(0) as coordinator:
        (path,) = folder(tmp_path).iterdir()
        path.unlink()
        folder(tmp_path).rmdir()
        with pytest.raises(StorageError) as caught:
            coordinator.barrier("x")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.message == (
        "operation 1, barrier 'x' of 2 ranks: the run's folder cannot be used: "
        f"{os.strerror(errno.ENOENT)}"
    )


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="the run's folder cannot be made") as caught:
        DirectoryCoordinator(tmp_path / "file", 0, 1, run_id="x")
    assert caught.value.errno == errno.ENOTDIR


def test_after_a_fork(tmp_path: Path) -> None:
    """A child has no place of its own, and takes none away by closing."""
    program = """
with coordinator:
    child = os.fork()
    if child == 0:
        try:
            coordinator.barrier("x")
        except Exception as error:
            print(type(error).__name__, error, flush=True)
        coordinator.close()
        os._exit(0)
    os.waitpid(child, 0)
    coordinator.barrier("y")
    print("passed")
"""
    out, err = start(program, tmp_path, 0, 1).communicate(timeout=20)
    assert out.splitlines() == [
        "InvalidError coordinator was made by another process, before a fork",
        "passed",
    ], err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2}, "rank 2 is none of a job of 2"),
        ({"rank": -1}, "rank -1 is none of a job of 2"),
        ({"rank": "0"}, "rank is a whole number, not str"),
        ({"world_size": 0}, "world_size 0 is not positive"),
        ({"timeout": 0}, "timeout 0 is not a positive number of seconds"),
        ({"timeout": float("nan")}, "timeout nan is not a positive number of seconds"),
        ({"timeout": None}, "timeout is a number of seconds, not NoneType"),
        ({"run_id": 7}, "run_id is a str, not int"),
        *(
            (
                {"run_id": bad},
                f"run_id {bad!r} is not 1 to 100 letters, digits, '_', '-' and '.', beginning "
                "with none of the last two",
            )
            for bad in ("", ".", "..", "a/b", "a b", "-x", "x\n", "ü", "x" * 101)
        ),
    ],
)
def test_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    given = {"rank": 0, "world_size": 2, "run_id": "run", **arguments}
    with pytest.raises(InvalidError) as caught:
        DirectoryCoordinator(tmp_path, **given)
    assert caught.value.message == message
    assert list(tmp_path.iterdir()) == []


def test_paths_and_text(tmp_path: Path) -> None:
    """The directory is whatever a path can be, and is made; states show in the text."""
    where = os.fsencode(tmp_path / "made" / "here")
    with DirectoryCoordinator(where, 0, 2, run_id="r.1_x-2", timeout=0.05) as coordinator:
        assert (coordinator.rank, coordinator.world_size) == (0, 2)
        shown = f"<ckptfmt DirectoryCoordinator '{tmp_path}/made/here/ckptfmt-run-r.1_x-2' rank 0"
        assert repr(coordinator) == f"{shown} of 2>"
        with pytest.raises(BusyError):
            coordinator.barrier("\udcff \n'")  # any text is a name
        assert repr(coordinator) == f"{shown} of 2 failed>"
    assert repr(coordinator) == f"{shown} of 2 closed>"
    coordinator.close()
    with pytest.raises(InvalidError, match=r"^coordinator is closed$"):
        coordinator.barrier("x")
