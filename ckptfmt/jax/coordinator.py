# SPDX-License-Identifier: Apache-2.0
"""A coordinator over the runtime of JAX itself, for jobs that call jax.distributed.initialize.

Values pass through the key-value store of JAX's coordination service, so that no device is needed
and a background thread can use it while the devices compute.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax._src import distributed  # the only way to the store, which orbax uses as well

from ckptfmt.errors import InvalidError, StorageError
from ckptfmt.sharded.coordinator import MessageEngine, check_timeout

# Every value begins with a digest of the operations so far.
_DIGEST_BYTES = 16
_numbers = itertools.count(1)


class JaxCoordinator(MessageEngine):
    """A Coordinator over all processes of jax.distributed; ranks are the process indices.

    All processes make their coordinators in the same order.

    Args:
        timeout: seconds that an operation waits for other ranks.

    Raises:
        InvalidError: jax.distributed is not initialised; in operations, ranks that call different
            ones.
        BusyError: in operations, ranks did not arrive in time or ended (failure "PEERS_MISSING").
            `root` names those that it misses. Once JAX itself notices that a process ended, it
            ends the others.
        StorageError: the coordination service fails.
    """

    def __init__(self, *, timeout: float = 600.0) -> None:
        self._timeout = check_timeout(timeout)
        self._client: Any = distributed.global_state.client
        if self._client is None:
            raise InvalidError("call jax.distributed.initialize first")
        self._rank, self._world_size = int(jax.process_index()), int(jax.process_count())
        self._space = f"ckptfmt/{next(_numbers)}"
        self._sent: list[str] = []  # broadcasts that other ranks may not have read yet
        self._history = b""
        self._state = "open"

    def close(self) -> None:
        """Refuse further operations. Never raises."""
        self._state = "closed"

    # ---- operations ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _operation(self, call: str) -> Iterator[str]:
        self._deadline = time.monotonic() + self._timeout
        with super()._operation(call) as operation:
            text = self._history + operation.encode("utf-8", "surrogatepass")
            self._history = hashlib.sha256(text).digest()[:_DIGEST_BYTES]
            yield operation

    def _gather(self, operation: str, data: bytes, root: int) -> list[bytes] | None:
        found = super()._gather(operation, data, root)
        if found is not None:
            # All ranks are here, so they have read what this one sent before.
            read = [self._key(rank) for rank in range(self._world_size) if rank != root]
            for key in [*read, *self._sent]:
                self._delete(key)
            self._sent.clear()
        return found

    def _broadcast(self, operation: str, data: bytes, root: int) -> bytes:
        value = super()._broadcast(operation, data, root)
        if self._rank == root:
            self._sent.append(self._key(root))
        return value

    def _key(self, rank: int) -> str:
        return f"{self._space}/{self._number}/{rank}"

    def _send(self, operation: str, data: bytes, ranks: Sequence[int]) -> None:
        try:
            self._client.key_value_set_bytes(self._key(self._rank), self._history + data)
        except jax.errors.JaxRuntimeError as error:
            raise StorageError(f"{operation}: JAX's coordination service failed: {error}") from None

    def _receive(self, operation: str, rank: int) -> bytes | None:
        left = max(self._deadline - time.monotonic(), 0.001)
        try:
            message = self._client.blocking_key_value_get_bytes(self._key(rank), int(left * 1000))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise StorageError(f"{operation}: JAX's coordination service failed: {error}") from None
        if message[:_DIGEST_BYTES] != self._history:
            raise InvalidError(
                f"{operation}: rank {rank} called another operation than rank {self._rank}, now or "
                "before; all ranks must call the same"
            )
        return bytes(message[_DIGEST_BYTES:])

    def _delete(self, key: str) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_delete(key)


JaxCoordinator.__module__ = "ckptfmt.jax"
