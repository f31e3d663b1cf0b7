# SPDX-License-Identifier: Apache-2.0
"""A coordinator over torch.distributed, for jobs started by torchrun or a similar launcher.

Every operation begins with a barrier with a time-out (torch's `monitored_barrier`, which reports
the missing ranks) and an exchange of the operation and the size of each rank. Then the values are
sent as tensors of bytes on the CPU; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed

from ckptfmt._base.arguments import wrong
from ckptfmt.errors import BusyError, InvalidError, UnsupportedError
from ckptfmt.sharded.coordinator import Engine, check_data, check_name, check_root, check_timeout


class TorchCoordinator(Engine):
    """A Coordinator over a process group of torch.distributed that moves CPU tensors (gloo).

    If `group` is None and the default group cannot move CPU tensors (NCCL), the constructor is
    collective: it makes a gloo group of all processes, which `close` destroys. A group that is
    passed in is left alone.

    Args:
        group: a group of `torch.distributed.new_group` with this process; ranks are those of the
            group. None means all processes.
        timeout: seconds that an operation waits for other ranks. Once all have arrived, the
            time-out of the group applies.

    Raises:
        InvalidError: torch.distributed is not initialised, or the group cannot be used; in
            operations, ranks that call different ones.
        UnsupportedError: torch was built without torch.distributed.
        BusyError: in operations, ranks did not arrive in time or ended (failure "PEERS_MISSING").
            Rank 0 names them, as torch does; other ranks know only that rank 0 gave up.
    """

    def __init__(self, group: Any = None, *, timeout: float = 600.0) -> None:
        self._timeout = datetime.timedelta(seconds=check_timeout(timeout))
        if not distributed.is_available():
            raise UnsupportedError("this torch was built without torch.distributed")
        if not distributed.is_initialized():
            raise InvalidError("call torch.distributed.init_process_group first")
        self._made: Any = None
        self._group = group
        if not self._moves_bytes(group):
            if group is not None:
                raise InvalidError(
                    f"the group must have the backend gloo, not {self._backend(group)!r}"
                )
            self._group = self._made = distributed.new_group(backend="gloo")
        self._rank = int(distributed.get_rank(self._group))
        if self._rank < 0:
            raise InvalidError("this process is not a member of the group")
        self._world_size = int(distributed.get_world_size(self._group))
        self._state = "open"

    def _backend(self, group: Any) -> str:
        return str(distributed.get_backend(group))

    def _moves_bytes(self, group: Any) -> bool:
        # In a process outside the group torch has a placeholder without a backend.
        if group is distributed.GroupMember.NON_GROUP_MEMBER:
            raise InvalidError("this process is not a member of the group")
        try:
            return self._backend(group) == "gloo"
        except (TypeError, ValueError, AttributeError):
            raise wrong("group", "a group of torch.distributed", group) from None

    def barrier(self, name: str) -> None:
        """Wait until every rank has called it; as `Coordinator.barrier`."""
        with self._exchange(f"barrier {check_name(name)!r}", 0):
            pass

    def gather(self, data: bytes, root: int = 0) -> list[bytes] | None:
        """Collect one value of each rank on `root`; as `Coordinator.gather`. Every rank waits."""
        data, root = check_data(data), check_root(root, self._world_size)
        with self._exchange(f"gather to rank {root}", len(data)) as sizes:
            if not any(sizes):
                return [b""] * self._world_size if root == self._rank else None
            # torch gathers tensors of one size.
            mine = self._tensor(data.ljust(max(sizes), b"\0"))
            places = [torch.empty_like(mine) for _ in sizes] if root == self._rank else None
            distributed.gather(mine, places, dst=self._global(root), group=self._group)
            if places is None:
                return None
            pairs = zip(places, sizes, strict=True)
            return [_bytes(place[:size]) for place, size in pairs]

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        """Send the value of `root` to all; as `Coordinator.broadcast`. Every rank waits."""
        root = check_root(root, self._world_size)
        value = check_data(data) if root == self._rank else b""
        with self._exchange(f"broadcast from rank {root}", len(value)) as sizes:
            if not sizes[root]:
                return b""
            if root == self._rank:
                mine = self._tensor(value)
            else:
                mine = torch.empty(sizes[root], dtype=torch.uint8)
            distributed.broadcast(mine, src=self._global(root), group=self._group)
            return _bytes(mine)

    def close(self) -> None:
        """Destroy the group if this coordinator made it. Never raises."""
        state, self._state = self._state, "closed"
        made, self._made = self._made, None
        if state != "closed" and made is not None and distributed.is_initialized():
            with contextlib.suppress(RuntimeError, ValueError):
                distributed.destroy_process_group(made)

    # ---- operations ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _exchange(self, call: str, size: int) -> Iterator[list[int]]:
        """Begin an operation: wait for all ranks and yield their sizes."""
        with self._operation(call) as operation:
            try:
                distributed.monitored_barrier(self._group, self._timeout, wait_all_ranks=True)
                yield self._compare(operation, size)
            except RuntimeError as error:
                raise BusyError(
                    f"{operation}: ranks did not arrive within {self._timeout.total_seconds():g} s "
                    f"or ended: {' '.join(str(error).split())}",
                    failure="PEERS_MISSING",
                ) from error

    def _compare(self, operation: str, size: int) -> list[int]:
        """Return the sizes of all ranks; raise InvalidError on all if their calls differ."""
        digest = hashlib.sha256(operation.encode("utf-8", "surrogatepass")).digest()
        number = int.from_bytes(digest[:8], "little", signed=True)
        mine = torch.tensor([number, size], dtype=torch.int64)
        theirs = [torch.empty_like(mine) for _ in range(self._world_size)]
        distributed.all_gather(theirs, mine, group=self._group)
        numbers = [[int(one) for one in other.tolist()] for other in theirs]
        others = [str(rank) for rank, other in enumerate(numbers) if other[0] != number]
        if others:
            raise InvalidError(
                f"{operation}: ranks {', '.join(others)} called another operation than rank "
                f"{self._rank}; all ranks must call the same"
            )
        return [other[1] for other in numbers]

    def _tensor(self, data: bytes) -> Any:
        # A bytearray, because torch warns of read-only memory.
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def _global(self, rank: int) -> int:
        """Return the number of a rank of the group among all processes."""
        if self._group is None:
            return rank
        return int(distributed.get_global_rank(self._group, rank))


TorchCoordinator.__module__ = "ckptfmt.torch"


def _bytes(tensor: Any) -> bytes:
    return bytes(tensor.numpy().tobytes())
