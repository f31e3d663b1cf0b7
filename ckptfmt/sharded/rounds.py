# SPDX-License-Identifier: Apache-2.0
"""Rounds of a collective operation: every process reports to process 0, process 0 decides, and all
processes get the decision, so that a failure in one process ends the operation in all."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ckptfmt import errors
from ckptfmt._base.arguments import wrong
from ckptfmt._base.untrusted import inflated
from ckptfmt.errors import CkptfmtError, GenerationGoneError, InvalidError, StorageError
from ckptfmt.sharded.plan import some

if TYPE_CHECKING:
    from ckptfmt.sharded.coordinator import Coordinator


_GOOD, _BAD = b"+", b"-"
T = TypeVar("T")


class Guard:
    """Catches what is raised inside, so that the next round can report it to the others."""

    error: BaseException | None = None

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self.error = error
        return error is not None


class Team:
    """The processes of a save or a restore."""

    def __init__(self, coordinator: Coordinator, operation: str) -> None:
        for what in ("rank", "world_size", "gather", "broadcast"):
            if not hasattr(coordinator, what):
                raise wrong("coordinator", "a Coordinator", coordinator)
        self._coordinator = coordinator
        self.rank = coordinator.rank
        self.world_size = coordinator.world_size
        self._operation, self._round = operation, 0

    def guarded(self) -> Guard:
        """Return a context whose failure the next round reports to the others."""
        return Guard()

    def round(
        self,
        error: BaseException | None,
        answer: bytes,
        decide: Callable[[list[bytes]], bytes],
        clean: Callable[[], None] | None = None,
    ) -> bytes:
        """Let process 0 decide on the answers of all; return the decision in every process.

        Args:
            error: why this process has no answer, or None.
            answer: the answer of this process.
            decide: called in process 0 with the answers by rank, if all have answered.
            clean: called in process 0 before the others continue, and in the others if the
                operation failed or the decision is lost. Then process 0 may still be working:
                `clean` must not remove what process 0 uses.

        Raises:
            `error`, or the error of the process that failed.
        """
        self._round += 1
        message = _GOOD + answer if error is None else _BAD + _reported(error, self.rank)
        message = _framed(f"round {self._round} of {self._operation}\n".encode() + message)
        try:
            if self.rank == 0:
                try:
                    decision, failed = self._decided(message, decide)
                finally:
                    if clean is not None:
                        clean()
                error = error or failed
                self._coordinator.broadcast(_framed(decision))
            else:
                try:
                    self._coordinator.gather(message)
                    decision = _decision(self._coordinator.broadcast(None))
                except BaseException:
                    if clean is not None:
                        clean()
                    raise
                # Process 0 removed what it sees; on another file system that is not all.
                if clean is not None and decision[:1] == _BAD:
                    clean()
        except BaseException as lost:
            if error is not None and error is not lost:
                raise error from lost
            raise
        if error is not None:
            raise error
        if decision[:1] == _BAD:
            raise _rebuilt(decision[1:], self.world_size)
        return decision[1:]

    def _decided(
        self, message: bytes, decide: Callable[[list[bytes]], bytes]
    ) -> tuple[bytes, BaseException | None]:
        answers = self._coordinator.gather(message)
        if answers is None:
            raise InvalidError("the coordinator's gather gave process 0 nothing")
        try:
            answers = _untagged(answers)
            for answer in answers:
                if answer[:1] == _BAD:
                    return answer, None
            return _GOOD + decide([answer[1:] for answer in answers]), None
        except BaseException as error:  # the others must learn of an interrupt, too
            # A comparison that fails is not the failure of one process.
            rank = None if isinstance(error, _ABOUT_ALL) else 0
            return _BAD + _reported(error, rank), error


def agreed(
    team: Team,
    work: Callable[[], T],
    answer: Callable[[T], bytes] = lambda _: b"",
    compare: Callable[[list[bytes]], object] = lambda _: None,
) -> T:
    """Return the result of `work` once it ended in all processes; if it failed in one, all raise:
    otherwise the others would wait for that process in the next round.

    Args:
        team: the processes.
        work: what each does.
        answer: returns what is compared of a result.
        compare: called in process 0 with the answers by rank; raises if they must not differ.
    """
    results, said = list[T](), b""
    with team.guarded() as guard:
        results.append(work())
        said = answer(results[0])

    def decide(answers: list[bytes]) -> bytes:
        compare(answers)
        return b""

    team.round(guard.error, said, decide)
    return results[0]


def _framed(content: bytes) -> bytes:
    """Return a message that shows whether it arrives as it is."""
    return zlib.crc32(content).to_bytes(4) + content


def _content(message: bytes) -> bytes | None:
    """Return the content of a message; None if it was damaged, or is not one of this library."""
    content = bytes(message[4:])
    return content if zlib.crc32(content).to_bytes(4) == bytes(message[:4]) else None


def _decision(message: bytes) -> bytes:
    content = _content(message)
    if content is None:
        raise StorageError("the message of process 0 is damaged, or not of this library")
    return content


def unpacked(message: bytes) -> bytes:
    """Return what a process has packed with zlib, at most MESSAGE_MAX bytes."""
    return inflated(message, _damaged)


def _damaged(why: str) -> StorageError:
    return StorageError(f"a message between processes is damaged: {why}")


def _untagged(answers: list[bytes]) -> list[bytes]:
    """Return the answers, if all processes are in the same round of the same operation."""
    parts = [(_content(answer) or b"").partition(b"\n") for answer in answers]
    other = "a message that is damaged, or not of this library"
    tags = [tag.decode("ascii", "replace") if mark else other for tag, mark, _ in parts]
    compare_all("are at different places", tags)
    return [answer for _, _, answer in parts]


def compare_all(what: str, reported: Sequence[Any]) -> None:
    """Raise InvalidError with the processes that report each value, unless all are equal."""
    ranks: dict[Any, list[int]] = {}
    for rank, one in enumerate(reported):
        ranks.setdefault(one, []).append(rank)
    if len(ranks) > 1:
        groups = "; ".join(f"{one} (process {some(who)})" for one, who in ranks.items())
        raise InvalidError(f"the processes {what}: {groups}")


def compare_contents(answers: list[bytes], what: str = "have different values") -> None:
    """Raise InvalidError, by name, unless the processes describe the same content: JSON of a text
    for each name, compressed."""
    if len(set(answers)) == 1:
        return
    found: list[Mapping[str, str]] = [json.loads(unpacked(answer)) for answer in answers]
    for name in dict.fromkeys(name for one in found for name in one):
        with errors.about(name):
            compare_all(what, [one.get(name, "no value") for one in found])


# Errors of a decision that name the processes concerned.
_ABOUT_ALL = (InvalidError, GenerationGoneError)


_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def _reported(error: BaseException, rank: int | None) -> bytes:
    """Encode an error for the other processes."""
    kind, details = type(error).__name__, {}
    if isinstance(error, CkptfmtError):
        message, details = error.message, error.details()
    else:
        text = str(error)
        kind, message = "", f"{kind}: {text}" if text else kind
        # No process may take a file that user code misses for a missing checkpoint.
        if isinstance(error, OSError) and not isinstance(error, _MISSING):
            details["errno"] = error.errno
    return json.dumps([kind, message, details, rank]).encode()


def _rebuilt(report: bytes, world_size: int) -> CkptfmtError:
    kind, message, details, rank = json.loads(report)
    if rank is not None:
        message = f"process {rank} of {world_size} failed: {message}"
    found = {one.__name__: one for one in errors.classes()[0].values()}.get(kind, StorageError)
    return found(message, **details)
