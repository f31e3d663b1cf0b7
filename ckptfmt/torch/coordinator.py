# SPDX-License-Identifier: Apache-2.0
"""A coordinator over torch.distributed, for jobs that torchrun or a launcher like it has started.

Every operation has two steps: a barrier with a time-out (torch's `monitored_barrier`, which knows
who is missing) and an exchange of what each rank calls and how many bytes it has. Only then values
travel, as tensors of bytes on the CPU; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import math
from collections.abc import Iterator
from typing import Any

from ckptfmt.arguments import wrong
from ckptfmt.errors import BusyError, InvalidError, UnsupportedError
from ckptfmt.sharded.coordinator import Closing, check_data, check_name, check_root

__all__ = ["TorchCoordinator"]


class TorchCoordinator(Closing):
    """A Coordinator over a process group of torch.distributed that moves CPU tensors (gloo).

    Needs torch (`pip install ckptfmt[peers]`), which is imported when one is made. Making one is
    collective where `group` is None and the default group cannot move CPU tensors (NCCL): a gloo
    group of all processes is made then, and `close` destroys it. A group that is handed in stays.

    Args:
        group: a group of `torch.distributed.new_group` of which this process is a member; ranks are
            those of the group. None is all processes.
        timeout: seconds that an operation waits for other ranks. Once all have come, the time-out
            of the group itself counts.

    Raises:
        InvalidError: torch.distributed is not initialised, or the group does not fit; in
            operations, ranks that disagree about what to do.
        UnsupportedError: torch is not installed, or was built without torch.distributed.
        BusyError: in operations, ranks did not come in time or are gone (failure "PEERS_MISSING").
            Rank 0 names them, as torch does; other ranks know only that rank 0 gave up.
    """

    def __init__(self, group: Any = None, *, timeout: float = 600.0) -> None:
        self._state = "closed"
        if not isinstance(timeout, (int, float)):
            raise wrong("timeout", "a number of seconds", timeout)
        if not 0 < timeout < math.inf:
            raise InvalidError(f"timeout {timeout} is not a positive number of seconds")
        self._timeout = datetime.timedelta(seconds=timeout)
        self._torch = _torch()
        self._distributed = self._torch.distributed
        if not self._distributed.is_initialized():
            raise InvalidError("call torch.distributed.init_process_group first")
        self._made: Any = None
        self._group = group
        if not self._moves_bytes(group):
            if group is not None:
                raise InvalidError(
                    f"the group is of the backend {self._backend(group)!r}, not gloo"
                )
            self._group = self._made = self._distributed.new_group(backend="gloo")
        self._rank = int(self._distributed.get_rank(self._group))
        if self._rank < 0:
            raise InvalidError("this process is no member of the group")
        self._world_size = int(self._distributed.get_world_size(self._group))
        self._number = 0
        self._state = "open"

    def _backend(self, group: Any) -> str:
        return str(self._distributed.get_backend(group))

    def _moves_bytes(self, group: Any) -> bool:
        # A process outside of a group has a stand-in for it, which has no backend.
        if group is self._distributed.GroupMember.NON_GROUP_MEMBER:
            raise InvalidError("this process is no member of the group")
        try:
            return self._backend(group) == "gloo"
        except (TypeError, ValueError, AttributeError):
            raise wrong("group", "a group of torch.distributed", group) from None

    @property
    def rank(self) -> int:
        """Which process of the group this is."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many processes the group has."""
        return self._world_size

    def barrier(self, name: str) -> None:
        """Returns once every rank has called it; as `Coordinator.barrier`."""
        with self._operation(f"barrier {check_name(name)!r}", 0):
            pass

    def gather(self, data: bytes, root: int = 0) -> list[bytes] | None:
        """Brings one value of each rank to `root`; as `Coordinator.gather`. All wait for all."""
        data, root = check_data(data), check_root(root, self._world_size)
        with self._operation(f"gather to rank {root}", len(data)) as sizes:
            if not any(sizes):
                return [b""] * self._world_size if root == self._rank else None
            # The tensors of one gather are of one size.
            mine = self._tensor(data.ljust(max(sizes), b"\0"))
            places = [self._torch.empty_like(mine) for _ in sizes] if root == self._rank else None
            self._distributed.gather(mine, places, dst=self._global(root), group=self._group)
            if places is None:
                return None
            pairs = zip(places, sizes, strict=True)
            return [_bytes(place[:size]) for place, size in pairs]

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        """Gives the value of `root` to all; as `Coordinator.broadcast`. All wait for all."""
        root = check_root(root, self._world_size)
        value = check_data(data) if root == self._rank else b""
        with self._operation(f"broadcast from rank {root}", len(value)) as sizes:
            if not sizes[root]:
                return b""
            if root == self._rank:
                mine = self._tensor(value)
            else:
                mine = self._torch.empty(sizes[root], dtype=self._torch.uint8)
            self._distributed.broadcast(mine, src=self._global(root), group=self._group)
            return _bytes(mine)

    def close(self) -> None:
        """Destroys the group if this coordinator has made it. Never raises."""
        state, self._state = self._state, "closed"
        made, self._made = self._made, None
        if state != "closed" and made is not None and self._distributed.is_initialized():
            with contextlib.suppress(RuntimeError, ValueError):
                self._distributed.destroy_process_group(made)

    # ---- operations ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _operation(self, call: str, size: int) -> Iterator[list[int]]:
        """Waits for all ranks and gives their sizes; whatever ends an operation early leaves the
        coordinator unusable."""
        if self._state != "open":
            why = "is closed" if self._state == "closed" else f"has failed in {self._state}"
            raise InvalidError(f"coordinator {why}")
        self._number += 1
        told = f"operation {self._number}, {call} of {self._world_size} ranks"
        self._state = told
        try:
            self._distributed.monitored_barrier(self._group, self._timeout, wait_all_ranks=True)
            yield self._compare(told, size)
        except RuntimeError as error:
            raise BusyError(
                f"{told}: ranks did not come within {self._timeout.total_seconds():g} s or are "
                f"gone: {' '.join(str(error).split())}",
                failure="PEERS_MISSING",
            ) from error
        self._state = "open"

    def _compare(self, told: str, size: int) -> list[int]:
        """The sizes of all ranks; InvalidError on all of them if they do not call the same."""
        digest = hashlib.sha256(told.encode("utf-8", "surrogatepass")).digest()
        number = int.from_bytes(digest[:8], "little", signed=True)
        mine = self._torch.tensor([number, size], dtype=self._torch.int64)
        theirs = [self._torch.empty_like(mine) for _ in range(self._world_size)]
        self._distributed.all_gather(theirs, mine, group=self._group)
        numbers = [[int(one) for one in other.tolist()] for other in theirs]
        others = [str(rank) for rank, other in enumerate(numbers) if other[0] != number]
        if others:
            raise InvalidError(
                f"{told}: ranks {', '.join(others)} call something else here than rank "
                f"{self._rank}; all ranks must do the same"
            )
        return [other[1] for other in numbers]

    def _tensor(self, data: bytes) -> Any:
        # A bytearray, because torch does not take memory that cannot be written.
        return self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8)

    def _global(self, rank: int) -> int:
        """What a rank of the group is called among all processes."""
        if self._group is None:
            return rank
        return int(self._distributed.get_global_rank(self._group, rank))

    def __repr__(self) -> str:
        state = "" if self._state == "open" else " closed" if self._state == "closed" else " failed"
        return f"<ckptfmt TorchCoordinator rank {self._rank} of {self._world_size}{state}>"


def _bytes(tensor: Any) -> bytes:
    return bytes(tensor.numpy().tobytes())


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415 (only who asks for it needs it)
        import torch.distributed  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError(
            f"TorchCoordinator needs torch (pip install ckptfmt[peers]): {error}"
        ) from error
    if not torch.distributed.is_available():
        raise UnsupportedError("this torch was built without torch.distributed")
    return torch
