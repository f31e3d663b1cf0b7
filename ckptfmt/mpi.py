# SPDX-License-Identifier: Apache-2.0
"""A coordinator over MPI, for jobs started by mpirun, srun or a similar launcher.

Only point-to-point messages are used, without pickle: MPI's collective operations cannot be given
up after a time limit, and do not tell which rank is missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ckptfmt._base.arguments import wrong
from ckptfmt._base.background import wait_for_saves
from ckptfmt.errors import BusyError, InvalidError, StorageError
from ckptfmt.sharded.coordinator import MessageEngine, check_timeout

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # a RuntimeError if there is no MPI library
    raise ImportError(
        f"ckptfmt.mpi needs mpi4py (pip install mpi4py) and an MPI library: {error}"
    ) from error

__all__ = ["MPICoordinator"]


def __dir__() -> list[str]:
    return __all__


# Every message begins with a digest of its operation, or with this, before the text of an error.
_DIGEST_BYTES = 16
_FAILED = bytes(_DIGEST_BYTES)

_POLL_SECONDS_MAX = 0.005

# Requests that were given up: MPI may still use their buffers.
_given_up: list[Any] = []


class MPICoordinator(MessageEngine):
    """A Coordinator over an MPI communicator.

    The constructor is collective: it duplicates the communicator, so that messages never mix with
    the caller's. An operation that fails, and an exception that leaves a `with` block, is reported
    to the other ranks, which fail in their current or next operation without waiting for their
    time-out. `save_async` uses MPI from another thread, which needs MPI.THREAD_MULTIPLE (mpi4py's
    default).

    What MPI cannot do: go on without a rank. Most launchers kill the whole job when a process dies.
    After an error, end the process with an exception; MPI_Finalize at exit waits for all ranks, so
    a rank that hangs keeps the others from ending unless the job runs as `python -m mpi4py`, which
    aborts all ranks on an uncaught exception.

    Args:
        comm: an intracommunicator of mpi4py; ranks are its ranks. None means MPI.COMM_WORLD.
        timeout: seconds that an operation waits for other ranks.

    Raises:
        InvalidError: a wrong argument; in operations, ranks that call different ones.
        BusyError: ranks did not arrive in time or failed (failure "PEERS_MISSING"). Rank 0 and the
            ranks that hear from it name them.
        StorageError: MPI reports an error.
    """

    def __init__(self, comm: Any = None, *, timeout: float = 600.0) -> None:
        self._timeout = check_timeout(timeout)
        if comm is None:
            comm = MPI.COMM_WORLD
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            raise wrong("comm", "an intracommunicator of mpi4py", comm)
        self._rank, self._world_size = int(comm.Get_rank()), int(comm.Get_size())
        self._begin()
        self._comm, request = _called(comm.Idup)
        if not self._wait(request.Test):
            _given_up.append(request)
            raise self._missing("MPICoordinator()", "other ranks")
        self._state = "open"

    def close(self) -> None:
        """Free the duplicate of the communicator, which is a local operation. Never raises."""
        state, self._state = self._state, "closed"
        # Requests of a failed operation may be pending.
        if state == "open" and not MPI.Is_finalized():
            self._comm.Free()

    def __exit__(self, *exc: object) -> None:
        wait_for_saves()  # they use this coordinator
        if exc[1] is not None and self._state == "open":
            self._report(exc[1])
        self.close()

    # ---- operations ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _operation(self, call: str) -> Iterator[str]:
        self._begin()
        with super()._operation(call) as operation:
            try:
                yield operation
            except BaseException as error:
                self._report(error)
                raise

    def _begin(self) -> None:
        """Start the clock of an operation."""
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE and not MPI.Is_thread_main():
            raise InvalidError(
                "MPI was initialised for one thread: initialise it with MPI.THREAD_MULTIPLE, "
                "or do not save in the background"
            )
        self._deadline = time.monotonic() + self._timeout

    def _report(self, error: object) -> None:
        """Tell the ranks that wait for this one about an error, without waiting for them."""
        text = f"rank {self._rank}: {type(error).__name__}: {error}"[:2000]
        ranks = range(self._world_size) if self._rank == 0 else [0]
        with contextlib.suppress(StorageError):  # `error` is the one to raise
            _given_up.extend(self._sent(_FAILED + text.encode("utf-8", "replace"), ranks))

    def _send(self, operation: str, data: bytes, ranks: Sequence[int]) -> None:
        requests = self._sent(_digest(operation) + data, ranks)
        if not self._wait(lambda: MPI.Request.Testall(requests)):
            _given_up.extend(requests)
            raise self._missing(operation, "other ranks")

    def _sent(self, message: bytes, ranks: Sequence[int]) -> list[Any]:
        return [
            _called(self._comm.Isend, [message, MPI.BYTE], rank)
            for rank in ranks
            if rank != self._rank
        ]

    def _receive(self, operation: str, rank: int) -> bytes | None:
        status = MPI.Status()
        if not self._wait(lambda: self._comm.Iprobe(rank, status=status)):
            return None
        message = bytearray(status.Get_count(MPI.BYTE))
        request = _called(self._comm.Irecv, [message, MPI.BYTE], rank)
        if not self._wait(request.Test):
            _given_up.append(request)
            return None
        begin, value = message[:_DIGEST_BYTES], bytes(message[_DIGEST_BYTES:])
        if begin == _digest(operation):
            return value
        if begin == _FAILED:
            reason = value.decode("utf-8", "replace")
            raise BusyError(f"{operation}: failed on {reason}", failure="PEERS_MISSING")
        raise InvalidError(
            f"{operation}: rank {rank} called another operation than rank {self._rank}; "
            "all ranks must call the same"
        )

    def _wait(self, done: Callable[[], bool]) -> bool:
        """Call `done` until it returns True, or return False at the deadline."""
        pause = 0.0
        while not _called(done):
            if time.monotonic() >= self._deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause + 1e-6, _POLL_SECONDS_MAX)
        return True


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call MPI; raise StorageError for its errors."""
    try:
        return function(*arguments)
    except MPI.Exception as error:
        raise StorageError(f"MPI failed: {error}") from error


def _digest(operation: str) -> bytes:
    return hashlib.sha256(operation.encode("utf-8", "surrogatepass")).digest()[:_DIGEST_BYTES]
