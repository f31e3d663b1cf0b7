# SPDX-License-Identifier: Apache-2.0
"""A coordinator for batch jobs that have no engine: small files in a directory that all processes
share.

It asks of the file system what NFS gives too: a file is created by one only (O_EXCL), a rename is
seen whole or not at all, and opening a directory shows what others renamed into it before. No
locks, no clocks compared, nothing changed in place.

A run is a folder `ckptfmt-run-<run_id>` in the directory. Every rank numbers its operations from 1,
and every file is named after one step of one rank:

    <operation>.<rank>.started     operation 0: the rank has claimed its place; only one can
    <operation>.<rank>.<digest>    the rank has come to this operation: what it calls (the digest is
                                   of the same), and its value where others need it
    <operation>.<rank>.closed      the rank has closed after this operation and comes to no other
    temp-<random>                  not whole yet; nobody looks at it

A rank that has come to operation n has passed all before. So a rank removes its own files below the
lowest operation that any rank is at: nobody will ask for them. When all ranks have closed, one of
them, chosen by who creates `removing`, removes the folder. What a crashed run left stays until
somebody removes it; no other run looks into it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import socket
import time
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from ckptfmt.arguments import wrong
from ckptfmt.errors import BusyError, InvalidError, StorageError
from ckptfmt.names import path_text
from ckptfmt.sharded.coordinator import Closing, check_data, check_name, check_root, whole

__all__ = ["DirectoryCoordinator"]

Path = str | bytes | os.PathLike[Any]

# Seconds between two looks: an eighth of the time waited, so that a wait is at most that much too
# long, within what a process may cost a file server.
PAUSE_MIN, PAUSE_MAX = 0.001, 0.5
NAMED_RANKS_MAX = 8

_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_STEP = re.compile(r"([0-9]{8,18})\.([0-9]{5,10})\.(started|closed|[0-9a-f]{16})")
# What a file server answers for a file that is just being replaced or not known to it yet.
_NOT_YET = (errno.ENOENT, errno.ESTALE)


class DirectoryCoordinator(Closing):
    """A Coordinator over a directory that all processes of the job see.

    Making one waits for nobody. Ranks may start in any order and at any time before the first
    operation times out.

    Args:
        directory: where the run's folder is made; itself made if it is missing. The same on all
            ranks.
        rank: which process this is, 0 to `world_size - 1`. Two processes cannot have the same.
        world_size: how many processes the job has.
        run_id: the name of this start of the job, the same on all ranks and never used again: the
            scheduler's number of the job and how often it was restarted. 1 to 100 letters, digits,
            "_", "-" and ".", not beginning with "-" or ".".
        timeout: seconds that an operation waits for other ranks.

    Raises:
        BusyError: this rank of this run was started before (failure "BUSY"). In operations: ranks
            did not come in time, or closed (failure "PEERS_MISSING"); the message names them and
            where they were last seen.
        InvalidError: wrong arguments; in operations, ranks that disagree about what to do.
        StorageError: the directory cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        world_size: int,
        *,
        run_id: str,
        timeout: float = 600.0,
    ) -> None:
        self._state = "closed"
        self._world_size = whole("world_size", world_size)
        self._rank = whole("rank", rank)
        if self._world_size < 1:
            raise InvalidError(f"world_size {world_size} is not positive")
        if not 0 <= self._rank < self._world_size:
            raise InvalidError(f"rank {rank} is none of a job of {world_size}")
        if not isinstance(timeout, (int, float)):
            raise wrong("timeout", "a number of seconds", timeout)
        if not timeout > 0:
            raise InvalidError(f"timeout {timeout} is not a positive number of seconds")
        self._timeout = float(timeout)
        self._pid = os.getpid()
        self._number = 0  # of the operation that was called last
        self._came = 0  # the last one that the others can see
        self._mine: deque[_Step] = deque()
        self._folder = _Folder(directory, run_id)
        self._folder.claim(self._rank, run_id)
        self._state = "open"

    @property
    def rank(self) -> int:
        """Which process this is."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many processes the job has."""
        return self._world_size

    def barrier(self, name: str) -> None:
        """Returns once every rank has called it; as `Coordinator.barrier`."""
        call = f"barrier {check_name(name)!r} of {self._world_size} ranks"
        with self._operation(call) as step:
            self._come(step, b"")
            self._wait(step, range(self._world_size), values=False)

    def gather(self, data: bytes, root: int = 0) -> list[bytes] | None:
        """Brings one value of each rank to `root`; as `Coordinator.gather`. The others do not wait
        for it."""
        data, root = check_data(data), check_root(root, self._world_size)
        call = f"gather to rank {root} of {self._world_size} ranks"
        with self._operation(call) as step:
            if root != self._rank:
                self._come(step, data)
                self._wait(step, (), values=True)
                return None
            self._come(step, b"")
            others = [rank for rank in range(self._world_size) if rank != root]
            found = self._wait(step, others, values=True)
            found[root] = data
            return [found[rank] for rank in range(self._world_size)]

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        """Gives the value of `root` to all; as `Coordinator.broadcast`. `root` does not wait for
        the others."""
        root = check_root(root, self._world_size)
        value = check_data(data) if root == self._rank else b""
        call = f"broadcast from rank {root} of {self._world_size} ranks"
        with self._operation(call) as step:
            self._come(step, value)
            if root == self._rank:
                self._wait(step, (), values=True)
                return value
            return self._wait(step, (root,), values=True)[root]

    def close(self) -> None:
        """Leaves the run; ranks that still wait for this one learn it at once. The last to close
        removes the run's folder. Never raises."""
        state, self._state = self._state, "closed"
        if state == "closed" or os.getpid() != self._pid:
            return
        with contextlib.suppress(OSError):
            self._folder.create(_Step(self._came, self._rank, "closed").name)
            if len(self._folder.look().closed) == self._world_size:
                self._folder.remove()

    # ---- operations ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _operation(self, call: str) -> Iterator[_Step]:
        """Counts one operation; whatever ends it early leaves the coordinator unusable."""
        if os.getpid() != self._pid:
            raise InvalidError("coordinator was made by another process, before a fork")
        if self._state != "open":
            why = "is closed" if self._state == "closed" else f"has failed in {self._state}"
            raise InvalidError(f"coordinator {why}")
        self._number += 1
        digest = hashlib.sha256(call.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        step = _Step(self._number, self._rank, digest, call)
        self._state = step.told
        try:
            yield step
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise _storage(error, f"{step.told}: the run's folder cannot be used") from error
        self._state = "open"

    def _come(self, step: _Step, value: bytes) -> None:
        self._folder.write(step, value)
        self._came = step.number
        self._mine.append(step)

    def _wait(self, step: _Step, ranks: Collection[int], *, values: bool) -> dict[int, bytes]:
        """Looks until these ranks have come; their values, if they are asked for. Looks once even
        if there are none, to see who disagrees and what can go."""
        began = time.monotonic()
        pending, found = set(ranks), dict[int, bytes]()
        while True:
            view = self._folder.look()
            self._check_agreement(step, view)
            self._remove_passed(view)
            for rank in sorted(pending):
                name = view.steps.get((step.number, rank))
                value = None if name is None else self._folder.read(name) if values else b""
                if value is not None:
                    found[rank] = value
            pending -= found.keys()
            if not pending:
                return found
            left = {rank for rank in pending if view.closed.get(rank, step.number) < step.number}
            if left:
                raise self._missing(step, view, left, None)
            waited = time.monotonic() - began
            if waited >= self._timeout:
                raise self._missing(step, view, pending, self._timeout)
            pause = min(PAUSE_MAX, max(PAUSE_MIN, waited / 8))
            time.sleep(min(pause, self._timeout - waited))

    def _check_agreement(self, step: _Step, view: _View) -> None:
        if view.at and max(view.at) >= self._world_size:
            raise self._invalid(
                f"{step.told}: rank {max(view.at)} has started in this job of {self._world_size}"
            )
        for (number, rank), name in view.steps.items():
            if number == step.number and not name.endswith(step.kind):
                call = self._folder.call(name) or "something else"
                raise self._invalid(
                    f"{step.told}: rank {rank} calls {call} where rank {self._rank} calls "
                    f"{step.call}; all ranks must do the same"
                )

    def _remove_passed(self, view: _View) -> None:
        floor = min(view.at.get(rank, 0) for rank in range(self._world_size))
        while self._mine and self._mine[0].number < floor:
            with contextlib.suppress(OSError):
                os.unlink(self._folder.path_of(self._mine.popleft().name))

    def _missing(
        self, step: _Step, view: _View, ranks: set[int], timeout: float | None
    ) -> BusyError:
        """The error that names the ranks that did not come; without a timeout, because they have
        closed."""
        told = [self._told(rank, step, view) for rank in sorted(ranks)[:NAMED_RANKS_MAX]]
        if len(ranks) > NAMED_RANKS_MAX:
            told.append(f"and {len(ranks) - NAMED_RANKS_MAX} more")
        what = "left before" if timeout is None else f"did not come within {timeout:g} s"
        return BusyError(
            f"{step.told}: {len(ranks)} of {self._world_size} ranks {what}: {', '.join(told)}",
            failure="PEERS_MISSING",
            path=self._folder.path,
        )

    def _told(self, rank: int, step: _Step, view: _View) -> str:
        if (step.number, rank) in view.steps:
            return f"rank {rank} (its file {view.steps[step.number, rank]} cannot be read whole)"
        if rank not in view.at:
            return f"rank {rank} (not started)"
        where = f"{'closed after' if rank in view.closed else 'last at'} operation {view.at[rank]}"
        return f"rank {rank} ({self._folder.claimed_by(rank)}{where})"

    def _invalid(self, message: str) -> InvalidError:
        return InvalidError(message, path=self._folder.path)

    def __repr__(self) -> str:
        state = "" if self._state == "open" else " closed" if self._state == "closed" else " failed"
        return (
            f"<ckptfmt DirectoryCoordinator {self._folder.path!r} "
            f"rank {self._rank} of {self._world_size}{state}>"
        )


@dataclass(frozen=True)
class _Step:
    """One step of one rank, and the file that stands for it."""

    number: int
    rank: int
    kind: str
    call: str = ""

    @property
    def name(self) -> str:
        return f"{self.number:08d}.{self.rank:05d}.{self.kind}"

    @property
    def told(self) -> str:
        return f"operation {self.number}, {self.call}"


@dataclass
class _View:
    """What one look into the folder showed.

    Attributes:
        steps: names of the files of operations, by number and rank.
        at: the highest number that each rank has come to; ranks that did not start are missing.
        closed: the last operation of each rank that has closed.
    """

    steps: dict[tuple[int, int], str] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    closed: dict[int, int] = field(default_factory=dict)


class _Folder:
    """The folder of one run: its files, written whole and read whole."""

    def __init__(self, directory: Path, run_id: str) -> None:
        if not isinstance(run_id, str):
            raise wrong("run_id", "a str", run_id)
        if not _RUN_ID.fullmatch(run_id):
            raise InvalidError(
                f"run_id {run_id!r} is not 1 to 100 letters, digits, '_', '-' and '.', beginning "
                "with none of the last two"
            )
        self.path = os.path.join(path_text(directory), f"ckptfmt-run-{run_id}")

    def path_of(self, name: str) -> str:
        return os.path.join(self.path, name)

    def claim(self, rank: int, run_id: str) -> None:
        """Takes the place of this rank, which only one can."""
        try:
            os.makedirs(self.path, exist_ok=True)
            self.create(
                _Step(0, rank, "started").name,
                json.dumps({"host": socket.gethostname(), "process": os.getpid()}).encode(),
            )
        except FileExistsError:
            raise BusyError(
                f"rank {rank} was started before in the run {run_id!r} "
                f"({self.claimed_by(rank).removesuffix('; ') or 'by an unknown process'}); a job "
                "that starts again needs another run_id",
                path=self.path,
            ) from None
        except OSError as error:
            raise _storage(error, "the run's folder cannot be made") from error

    def claimed_by(self, rank: int) -> str:
        """Who has this rank, for messages: "process 17 on a.example; ", or nothing."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with open(self.path_of(_Step(0, rank, "started").name), "rb") as file:
                found = json.loads(file.read(4096))
            return f"process {found['process']} on {found['host']}; "
        return ""

    def create(self, name: str, content: bytes = b"") -> None:
        """Makes a file that is not there; FileExistsError if it is."""
        descriptor = os.open(self.path_of(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with open(descriptor, "wb") as file:
            file.write(content)

    def write(self, step: _Step, value: bytes) -> None:
        """Makes the file of a step, whole or not at all."""
        head = json.dumps({"call": step.call, "size": len(value)}).encode()
        temporary = f"temp-{secrets.token_hex(8)}"
        try:
            # Closed before the rename: that is when NFS has sent all of it.
            self.create(temporary, head + b"\n" + value)
            os.rename(self.path_of(temporary), self.path_of(step.name))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(self.path_of(temporary))
            raise

    def read(self, name: str) -> bytes | None:
        """The value that a rank left; None while this machine cannot see it whole."""
        head, value = self._parts(name)
        return value if head.get("size") == len(value) else None

    def call(self, name: str) -> str:
        """What a rank calls; nothing if its file cannot be read."""
        return str(self._parts(name)[0].get("call", ""))

    def _parts(self, name: str) -> tuple[dict[str, Any], bytes]:
        try:
            with open(self.path_of(name), "rb") as file:
                content = file.read()
        except OSError as error:
            if error.errno in _NOT_YET:
                return {}, b""
            raise
        text, _, value = content.partition(b"\n")
        with contextlib.suppress(ValueError):
            head = json.loads(text)
            if isinstance(head, dict):
                return head, value
        return {}, b""

    def look(self) -> _View:
        """Lists the folder. Opening a directory anew is what makes NFS ask the server, which
        opening a file that was missing a moment ago does not."""
        view = _View()
        try:
            names = os.listdir(self.path)
        except OSError as error:
            if error.errno == errno.ESTALE:
                return view
            raise
        for name in names:
            match = _STEP.fullmatch(name)
            if match is None:
                continue
            number, rank, kind = int(match[1]), int(match[2]), match[3]
            view.at[rank] = max(number, view.at.get(rank, 0))
            if kind == "closed":
                view.closed[rank] = number
            elif kind != "started":
                view.steps[number, rank] = name
        return view

    def remove(self) -> None:
        """Removes the folder; of several that try, the one that creates `removing`."""
        last = "removing"
        self.create(last)
        for name in os.listdir(self.path):
            if name != last:
                os.unlink(self.path_of(name))
        os.unlink(self.path_of(last))
        os.rmdir(self.path)


def _storage(error: OSError, message: str) -> StorageError:
    path = error.filename
    return StorageError(f"{message}: {error.strerror}", path=path, errno=error.errno)
