# SPDX-License-Identifier: Apache-2.0
"""Coordination of the processes of one job: the protocol, and the coordinator of one process.

An engine implements the protocol over what the job uses anyway, as `ckptfmt.torch.coordinator` does
over torch.distributed. Only prefixes, decisions and short reports pass through it, never tensors.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from ckptfmt._base.arguments import wrong
from ckptfmt._base.background import wait_for_saves
from ckptfmt.errors import BusyError, InvalidError


@runtime_checkable
class Coordinator(Protocol):
    """The connection of one process (a rank) with the others of its job: a protocol, with engines
    in `ckptfmt.torch`, `ckptfmt.jax` and `ckptfmt.mpi`.

    All operations are collective, as in MPI: every rank calls the same ones in the same order.
    Ranks that call different ones get an InvalidError or a time-out, never the bytes of another
    operation. After an operation that failed, only `close` can be called. Only one thread at a time
    may use a coordinator. As a context manager it waits for background saves, which use it, and
    closes.

    >>> with ckptfmt.sharded.SingleProcess() as one:
    ...     one.rank, one.world_size, one.gather(b"mine"), one.broadcast(b"all")
    (0, 1, [b'mine'], b'all')

    Raises:
        InvalidError: a wrong argument, a closed or failed coordinator, or ranks that call different
            operations.
        BusyError: ranks did not arrive in time; the message names those that the engine knows to be
            missing.
        StorageError: the transport failed.
    """

    @property
    def rank(self) -> int:
        """The number of this process: 0 to `world_size - 1`."""

    @property
    def world_size(self) -> int:
        """The number of processes of the job, at least 1."""

    def barrier(self, name: str) -> None:
        """Wait until every rank has called it.

        Args:
            name: the name of the barrier in messages; the same on all ranks.
        """

    def gather(self, data: bytes, root: int = 0) -> list[bytes] | None:
        """Collect one value of each rank on one rank.

        Args:
            data: the value of this rank: any bytes, up to some MiB.
            root: the rank that gets the values; the same on all ranks.

        Returns:
            The values by rank on `root`, None elsewhere. Ranks other than `root` may return before
            the others have called.
        """

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        """Send one rank's value to all.

        Args:
            data: on `root` the value: any bytes, up to some MiB. Ignored elsewhere.
            root: the rank that sends; the same on all ranks.

        Returns:
            The value, on every rank. `root` may return before the others have called.
        """

    def close(self) -> None:
        """Release the resources of the engine without waiting for other ranks; may be repeated."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


Coordinator.__module__ = "ckptfmt.sharded"


class Closing:
    """Makes an engine a context manager that waits for background saves and closes."""

    def close(self) -> None:
        """Release the resources of the engine; as `Coordinator.close`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        wait_for_saves()  # they use the engine
        self.close()


class Engine(Closing):
    """Counts and names operations, and refuses them after one that failed and after `close`.

    Attributes:
        _state: "open", "closed", or the operation that failed.
    """

    _state = "closed"
    _number = 0
    _rank: int
    _world_size: int

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self._world_size

    @contextlib.contextmanager
    def _operation(self, call: str) -> Iterator[str]:
        """Yield the name of an operation, equal on all ranks that are in the same one. If the body
        raises, the engine is unusable."""
        if self._state != "open":
            why = "is closed" if self._state == "closed" else f"has failed in {self._state}"
            raise InvalidError(f"coordinator {why}")
        self._number += 1
        self._state = f"operation {self._number}, {call} of {self.world_size} ranks"
        yield self._state
        self._state = "open"

    def __repr__(self) -> str:
        state = "" if self._state == "open" else " closed" if self._state == "closed" else " failed"
        name = type(self).__name__
        return f"<ckptfmt {name} rank {self.rank} of {self.world_size}{state}>"


class MessageEngine(Engine):
    """An engine whose operations are messages from one rank to another.

    Attributes:
        _timeout: seconds that an operation waits for other ranks.
    """

    _timeout: float

    def barrier(self, name: str) -> None:
        """Wait until every rank has called it.

        Args:
            name: the name of the barrier in messages; the same on all ranks.
        """
        with self._operation(f"barrier {check_name(name)!r}") as operation:
            self._gather(operation, b"", 0)
            self._broadcast(operation, b"", 0)

    def gather(self, data: bytes, root: int = 0) -> list[bytes] | None:
        """Return the values of all ranks by rank on `root`, and None elsewhere.

        Args:
            data: the value of this rank: any bytes, up to some MiB.
            root: the rank that gets the values; the same on all ranks.
        """
        data, root = check_data(data), check_root(root, self._world_size)
        with self._operation(f"gather to rank {root}") as operation:
            return self._gather(operation, data, root)

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        """Return the value of one rank on every rank.

        Args:
            data: on `root` the value: any bytes, up to some MiB. Ignored elsewhere.
            root: the rank that sends; the same on all ranks.
        """
        root = check_root(root, self._world_size)
        value = check_data(data) if root == self._rank else b""
        with self._operation(f"broadcast from rank {root}") as operation:
            return self._broadcast(operation, value, root)

    def _send(self, operation: str, data: bytes, ranks: Sequence[int]) -> None:
        """Send a value to other ranks."""
        raise NotImplementedError

    def _receive(self, operation: str, rank: int) -> bytes | None:
        """Return the value that a rank sent in this operation; None if it sent none in time."""
        raise NotImplementedError

    def _gather(self, operation: str, data: bytes, root: int) -> list[bytes] | None:
        if self._rank != root:
            self._send(operation, data, [root])
            return None
        found, missing = [], []
        for rank in range(self._world_size):
            value = data if rank == root else self._receive(operation, rank)
            if value is None:
                missing.append(str(rank))
            else:
                found.append(value)
        if missing:
            raise self._missing(operation, f"ranks {', '.join(missing)}")
        return found

    def _broadcast(self, operation: str, data: bytes, root: int) -> bytes:
        if self._rank == root:
            self._send(operation, data, range(self._world_size))
            return data
        value = self._receive(operation, root)
        if value is None:
            raise self._missing(operation, f"rank {root}")
        return value

    def _missing(self, operation: str, which: str) -> BusyError:
        return BusyError(
            f"{operation}: {which} did not arrive within {self._timeout:g} s",
            failure="PEERS_MISSING",
        )


class SingleProcess(MessageEngine):
    """The coordinator of a job of one process: rank 0 of 1. No operation waits.

    >>> with ckptfmt.sharded.SingleProcess() as one:
    ...     ckptfmt.sharded.save("model", {"w": np.ones(3)}, {"w": None}, one)
    >>> ckptfmt.load("model")["w"].tolist()
    [1.0, 1.0, 1.0]

    Raises:
        InvalidError: a wrong argument, or use after `close`.
    """

    _rank, _world_size = 0, 1

    def __init__(self) -> None:
        self._state = "open"

    def close(self) -> None:
        """Refuse further operations."""
        self._state = "closed"

    @contextlib.contextmanager
    def _operation(self, call: str) -> Iterator[str]:
        if self._state == "closed":
            raise InvalidError("coordinator is closed")
        yield call  # nothing fails, in any thread

    def _send(self, operation: str, data: bytes, ranks: Sequence[int]) -> None:
        """Do nothing: this process is alone."""

    def __repr__(self) -> str:
        closed = " closed" if self._state == "closed" else ""
        return f"<ckptfmt SingleProcess coordinator{closed}>"


SingleProcess.__module__ = "ckptfmt.sharded"


# ---- arguments, checked by all engines -----------------------------------------------------------


def check_name(name: object) -> str:
    """Return the name of a barrier; raise InvalidError if it is not a str."""
    if not isinstance(name, str):
        raise wrong("the name of a barrier", "a str", name)
    return name


def check_data(data: object) -> bytes:
    """Return a value to send as bytes; raise InvalidError if it has none."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise wrong("data", "bytes", data)


def check_root(root: object, world_size: int) -> int:
    """Return the rank that gathers or broadcasts; raise InvalidError if it does not exist."""
    number = whole("root", root)
    if not 0 <= number < world_size:
        raise InvalidError(f"root must be between 0 and {world_size - 1}, not {number}")
    return number


def check_timeout(timeout: object) -> float:
    """Return a number of seconds to wait; raise InvalidError if it is not positive and finite."""
    if not isinstance(timeout, (int, float)):
        raise wrong("timeout", "a number of seconds", timeout)
    if not 0 < timeout < math.inf:
        raise InvalidError(f"timeout {timeout} is not a positive number of seconds")
    return float(timeout)


def whole(what: str, given: object) -> int:
    """Return an integer argument; raise InvalidError for any other."""
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        raise wrong(what, "a whole number", given) from None
