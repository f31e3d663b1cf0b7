# SPDX-License-Identifier: Apache-2.0
"""Staging of a save of several processes: each writes parts, process 0 merges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckptfmt._base.arguments import Durability
from ckptfmt.bundle.merge import check_seen
from ckptfmt.bundle.staging import Staging
from ckptfmt.saving.shards import remove_emptied
from ckptfmt.sharded.rounds import Team

Error = BaseException | None


class TeamStaging:
    """The temporary directory of a save of several processes. Process 0 creates it, all hold its
    lock while they write, process 0 until it has merged their parts. Process 0 removes it, or after
    a failure the last one to leave.

    Args:
        team: the processes.
        target: the checkpoint's prefix.
        durability: of the checkpoint.
    """

    def __init__(self, team: Team, target: str, durability: Durability) -> None:
        self._team, self._target, self._durability = team, target, durability
        self._staging = Staging(target, durability=durability)

    def start(
        self, error: Error, answer: bytes, decide: Callable[[list[bytes]], bytes | None]
    ) -> bytes:
        """Create the directory, once process 0 has decided on the answers of all; return the
        decision. Arguments and errors as for `Team.round`."""

        def decide_and_start(answers: list[bytes]) -> bytes:
            decision = decide(answers) or b""
            self._staging.start()
            return self._staging.directory.token.encode() + b"\n" + decision

        try:
            decided = self._team.round(error, answer, decide_and_start)
        except BaseException:
            # Process 0 may have created the directory. The others have not learned its name.
            self._staging.directory.leave()
            raise
        token, _, decision = decided.partition(b"\n")
        if self._team.rank != 0:
            self._staging = Staging(self._target, token.decode(), durability=self._durability)
        return decision

    def parts(self, count: int) -> list[str]:
        """Return the prefixes of the parts of this process, which writes this many now.

        Raises:
            StorageError: the directory cannot be locked.
            BusyError: process 0 has left it.
        """
        if count > 0 and self._team.rank != 0:
            self._staging.directory.make()
        return self._parts(self._team.rank, count)

    def _parts(self, rank: int, count: int) -> list[str]:
        world = self._team.world_size
        return [self._staging.part(rank + i * world, world * count) for i in range(count)]

    def merge(self, error: Error, count: int, inputs: Sequence[str] = ()) -> None:
        """Make the checkpoint of the parts of all processes, and remove the directory.

        Args:
            error: why this process has not written its parts, or None.
            count: how many it has written.
            inputs: prefixes of further bundles, in process 0; they come first.

        Raises:
            As `Team.round`.
        """

        def join(answers: list[bytes]) -> bytes:
            written = []
            for rank, answer in enumerate(answers):
                for part in self._parts(rank, int(answer)):
                    check_seen(part, self._target, f"process {rank}", "process 0", "processes")
                    written.append(part)
            self._staging.merge([*inputs, *written])
            remove_emptied(inputs, self._target)
            return b""

        if self._team.rank != 0:
            self._staging.directory.release()
        self._team.round(error, str(count).encode(), join, self._staging.directory.leave)
