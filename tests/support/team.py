# SPDX-License-Identifier: Apache-2.0
"""Threads that stand for the processes of a job: a coordinator over a barrier and shared slots."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Shared:
    """What the members of one team have in common."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.meet = threading.Barrier(world_size)
        self.slots: list[bytes] = [b""] * world_size
        self.traffic = 0  # bytes of all messages


class Member:
    """A Coordinator. Everybody waits for everybody in each operation, for ten minutes at most."""

    def __init__(self, shared: Shared, rank: int) -> None:
        self.shared, self.rank, self.world_size = shared, rank, shared.world_size

    def barrier(self, name: str) -> None:
        self.shared.meet.wait(600)

    def gather(self, data: bytes, root: int = 0) -> list[bytes] | None:
        assert isinstance(data, bytes)
        self.shared.slots[self.rank] = data
        self.barrier("gather")
        gathered = list(self.shared.slots) if self.rank == root else None
        self.shared.traffic += sum(map(len, gathered or []))
        self.barrier("gathered")
        return gathered

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        if self.rank == root:
            assert isinstance(data, bytes)
            self.shared.slots[root] = data
            self.shared.traffic += len(data)
        self.barrier("broadcast")
        got = self.shared.slots[root]
        self.barrier("broadcasted")
        return got

    def close(self) -> None:
        self.shared.meet.abort()


def run_team(
    world_size: int, work: Callable[[Any], Any], shared: Shared | None = None
) -> list[Any]:
    """What `work(coordinator)` gave in each of the threads: its result, or what it raised."""
    shared = shared or Shared(world_size)
    outcomes: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        try:
            outcomes[rank] = work(Member(shared, rank))
        except BaseException as error:
            outcomes[rank] = error
        # Nobody of a correct team waits any more, but of a faulty one: those break.
        if isinstance(outcomes[rank], threading.BrokenBarrierError):
            shared.meet.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def all_good(outcomes: list[Any]) -> list[Any]:
    """The outcomes, if none is an error."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes
