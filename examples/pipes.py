# SPDX-License-Identifier: Apache-2.0
"""A coordinator for the processes of one machine, over `multiprocessing.connection`.

It shows how little an engine needs: every process has a connection to process 0, which collects and
distributes. A process that ends closes its connection, so the others do not wait for it.
"""

import contextlib
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection
from pathlib import Path

import ckptfmt


class PipeCoordinator:
    """One process of a job.

    Args:
        address: a path for the socket where the processes meet; new for each start of the job.
        rank, world_size: which process this is, and how many there are.
        timeout: seconds to wait for the other processes.
    """

    def __init__(self, address: str, rank: int, world_size: int, timeout: float = 60) -> None:
        self.rank, self.world_size, self.timeout = rank, world_size, timeout
        self._peers: dict[int, Connection] = {}  # by rank
        with self._others():
            if rank:
                self._peers[0] = self._connected(address)
                self._peers[0].send(rank)
            else:
                self._accept(address)

    def _connected(self, address: str) -> Connection:
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return Client(address, "AF_UNIX")
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > deadline:
                    raise TimeoutError("process 0 did not start") from None
                time.sleep(0.01)

    def _accept(self, address: str) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(self.timeout)
            server.bind(address)
            server.listen(self.world_size)
            while len(self._peers) < self.world_size - 1:
                accepted, _ = server.accept()
                accepted.setblocking(True)
                connection = Connection(accepted.detach())
                self._peers[connection.recv()] = connection
        Path(address).unlink()

    @contextlib.contextmanager
    def _others(self) -> Iterator[None]:
        """Report a process that ended or does not answer as ckptfmt's engines do."""
        try:
            yield
        except (EOFError, OSError) as error:
            message = f"another process ended or did not answer: {error!r}"
            raise ckptfmt.errors.BusyError(message, failure="PEERS_MISSING") from error

    def _receive(self, rank: int) -> bytes:
        if not self._peers[rank].poll(self.timeout):
            raise TimeoutError(f"process {rank}")
        return self._peers[rank].recv_bytes()

    def barrier(self, name: str) -> None:
        """Wait until every process has called it."""
        self.gather(name.encode())
        self.broadcast(b"")

    def gather(self, data: bytes, root: int = 0) -> list[bytes] | None:
        """Return the data of all processes by rank in process 0, None in the others."""
        with self._others():
            if self.rank == root == 0:
                return [bytes(data), *(self._receive(rank) for rank in range(1, self.world_size))]
            self._peers[root].send_bytes(data)
            return None

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        """Return the data of process 0 in all processes."""
        with self._others():
            if self.rank:
                return self._receive(root)
            for connection in self._peers.values():
                connection.send_bytes(data or b"")
            return bytes(data or b"")

    def close(self) -> None:
        """Close the connections."""
        for connection in self._peers.values():
            connection.close()

    def __enter__(self) -> "PipeCoordinator":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
