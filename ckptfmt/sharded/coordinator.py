# SPDX-License-Identifier: Apache-2.0
"""Coordination of the processes of one job: the protocol, and the coordinator of one process.

An engine implements the protocol over what the job uses anyway, as `ckptfmt.torch.coordinator` does
over torch.distributed. Only prefixes, decisions and short reports pass through it, never tensors.
"""

from __future__ import annotations

import operator
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from ckptfmt.arguments import wrong
from ckptfmt.errors import InvalidError

__all__ = ["Coordinator", "SingleProcess"]


@runtime_checkable
class Coordinator(Protocol):
    """What every process of a job holds one of; the processes are its ranks.

    All operations are collective: every rank calls the same ones in the same order, as with MPI and
    with TensorFlow's `tf.experimental.dtensor.barrier`. Ranks that call different ones get an
    InvalidError or a time-out, never somebody else's bytes. An operation that failed leaves the
    ranks at different places: nothing but `close` can follow it. A coordinator belongs to one
    thread at a time. It is a context manager, which closes and nothing else: no exit waits for
    ranks that died.

    Engines raise:
        InvalidError: wrong arguments, a closed or failed coordinator, ranks that disagree about the
            operation.
        BusyError: ranks did not come in time; the message names those that the engine knows to be
            missing.
        StorageError: the engine's own means failed.
    """

    @property
    def rank(self) -> int:
        """Which process this is: 0 to `world_size - 1`."""

    @property
    def world_size(self) -> int:
        """How many processes the job has; at least 1."""

    def barrier(self, name: str) -> None:
        """Returns once every rank has called it.

        Args:
            name: what the barrier is for; the same on all ranks. It stands in messages.
        """

    def gather(self, data: bytes, root: int = 0) -> list[bytes] | None:
        """Brings one value of each rank to one of them.

        Args:
            data: this rank's value: any bytes, up to some MiB.
            root: the rank that gets them; the same on all ranks.

        Returns:
            The values in the order of ranks on `root`, None elsewhere. Ranks other than `root` may
            return before the others have called.
        """

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        """Gives one rank's value to all.

        Args:
            data: on `root` the value: any bytes, up to some MiB. Ignored elsewhere; None will do.
            root: the rank whose value it is; the same on all ranks.

        Returns:
            The value, on every rank. `root` may return before the others have called.
        """

    def close(self) -> None:
        """Gives up what the engine holds. Waits for nobody; harmless when called again."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Closing:
    """What makes an engine a context manager: leaving it closes and nothing else."""

    def close(self) -> None:
        """Gives up what the engine holds; as `Coordinator.close`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class SingleProcess(Closing):
    """The coordinator of a job that is one process: rank 0 of 1. Every operation returns at once.

    Raises:
        InvalidError: what every engine refuses: a wrong argument, or use after `close`.
    """

    def __init__(self) -> None:
        self._closed = False

    @property
    def rank(self) -> int:
        """0."""
        return 0

    @property
    def world_size(self) -> int:
        """1."""
        return 1

    def barrier(self, name: str) -> None:
        """Returns: everybody has come."""
        self._check_open()
        check_name(name)

    def gather(self, data: bytes, root: int = 0) -> list[bytes] | None:
        """The value, as the only one."""
        self._check_open()
        check_root(root, 1)
        return [check_data(data)]

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        """The value."""
        self._check_open()
        check_root(root, 1)
        return check_data(data)

    def close(self) -> None:
        """Further operations are refused."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidError("coordinator is closed")

    def __repr__(self) -> str:
        return f"<ckptfmt SingleProcess coordinator{' closed' if self._closed else ''}>"


# ---- what all engines check ------------------------------------------------------------------


def check_name(name: object) -> str:
    """The name of a barrier; InvalidError if it is no text."""
    if not isinstance(name, str):
        raise wrong("the name of a barrier", "a str", name)
    return name


def check_data(data: object) -> bytes:
    """A value to hand over, as bytes of its own; InvalidError if it has none."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise wrong("data", "bytes", data)


def check_root(root: object, world_size: int) -> int:
    """The rank that gathers or broadcasts; InvalidError if there is no such rank."""
    number = whole("root", root)
    if not 0 <= number < world_size:
        raise InvalidError(f"root {number} is no rank of {world_size}")
    return number


def whole(what: str, given: object) -> int:
    """An argument that is a whole number; InvalidError if it is none."""
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        raise wrong(what, "a whole number", given) from None
