# SPDX-License-Identifier: Apache-2.0
"""Restoring the newest sound checkpoint of a directory, in one process or in many together."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptfmt._base.background import wait_for_saves
from ckptfmt._base.names import index_name
from ckptfmt.bundle.completeness import proves_damage
from ckptfmt.bundle.verify import Finding, is_transient, verify_prefix
from ckptfmt.errors import CkptfmtError, CorruptError, StorageError, warn
from ckptfmt.files.places import identity
from ckptfmt.sharded.rounds import Team, compare_all

if TYPE_CHECKING:
    from ckptfmt.sharded.coordinator import Coordinator


# How often a checkpoint is restored again because another process replaced it meanwhile.
RESTORES_MAX = 100


@dataclass(frozen=True)
class Rejected:
    """A checkpoint that `CheckpointManager.restore_latest` did not restore.

    Attributes:
        path: its prefix.
        findings: what is wrong with it: files, offsets, messages.
        error: what restoring it raised; None if that was not tried.
    """

    path: str
    findings: list[Finding] = field(default_factory=list)
    error: CkptfmtError | None = None

    def __str__(self) -> str:
        reasons = [str(finding) for finding in self.findings] or [str(self.error)]
        return f"{self.path}: {'; '.join(reasons)}"


Rejected.__module__ = "ckptfmt.types"


@dataclass(frozen=True)
class Restored:
    """The result of `CheckpointManager.restore_latest`. It is true if something was restored.

    Attributes:
        path: the prefix; None if there was no checkpoint.
        status: what the checkpoint's `restore` returned.
        rejected: newer checkpoints that are damaged, newest first.
    """

    path: str | None
    status: Any = None
    rejected: list[Rejected] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.path is not None


Restored.__module__ = "ckptfmt.types"


class Decisions:
    """What process 0 decides for all processes of a coordinator.

    Args:
        coordinator: joins the processes; None if this one is alone.

    Attributes:
        is_alone: whether there is no coordinator.
        is_first: whether this process is process 0.
    """

    def __init__(self, coordinator: Coordinator | None) -> None:
        self._coordinator = coordinator
        self.is_alone = coordinator is None
        self.is_first = coordinator is None or coordinator.rank == 0

    def agreed(self, decide: Callable[[], str | None]) -> str | None:
        """Return what process 0 decides: a text or None. Its error is raised in all processes."""
        if self._coordinator is None:
            return decide()
        first = self.is_first
        answer = self._round(self._coordinator, decide if first else lambda: None, lambda _: None)
        return os.fsdecode(answer[1:]) if answer else None

    def same(self, decide: Callable[[], str | None]) -> str | None:
        """Return what every process decides by itself.

        Raises:
            InvalidError: they decide differently.
            What `decide` raises in one process, in all.
        """
        if self._coordinator is None:
            return decide()

        def compare(answers: list[bytes]) -> None:
            texts = [os.fsdecode(answer[1:]) or "none" for answer in answers]
            compare_all("would save different checkpoints", texts)

        answer = self._round(self._coordinator, decide, compare)
        return os.fsdecode(answer[1:]) if answer else None

    def _round(
        self,
        coordinator: Coordinator,
        decide: Callable[[], str | None],
        compare: Callable[[list[bytes]], None],
    ) -> bytes:
        """Return the answer of process 0."""
        team = Team(coordinator, "CheckpointManager")
        answer = b""
        with team.guarded() as guard:
            wait_for_saves()  # they use the coordinator
            found = decide()
            answer = b"" if found is None else b"+" + os.fsencode(found)

        def first(answers: list[bytes]) -> bytes:
            compare(answers)
            return answers[0]

        return team.round(guard.error, answer, first)

    def identity(self, path: str) -> str | None:
        """Return the `identity` of a checkpoint for process 0; None if it does not exist."""

        def examine() -> str | None:
            found = identity(index_name(path))
            return None if found is None else repr(found)

        return self.agreed(examine)

    def findings(self, path: str) -> list[Finding]:
        """Return what is wrong with a checkpoint. With a coordinator only process 0 reads it, and
        the first finding is raised in all processes."""
        if self.is_alone:
            return verify_prefix(path).problems

        def check() -> None:
            findings = verify_prefix(path).problems
            _raise_transient(findings)
            for one in findings:
                raise one.error(CorruptError)

        self.agreed(check)
        return []


def restore_newest(
    checkpoint: Any,
    directory: str,
    next_candidate: Callable[[set[str]], str | None],
    decisions: Decisions,
    check_first: bool,
) -> Restored:
    """Restore the newest sound checkpoint; see `CheckpointManager.restore_latest`.

    Args:
        checkpoint: what is restored.
        directory: for errors.
        next_candidate: returns the prefix of the newest checkpoint that was not tried yet.
        decisions: those of process 0.
        check_first: whether a checkpoint is verified before anything of it is restored.
    """
    rejected: list[Rejected] = []
    tried: set[str] = set()
    while (path := decisions.agreed(lambda: next_candidate(tried))) is not None:
        tried.add(path)
        result = _restore(checkpoint, path, decisions, check_first)
        if isinstance(result, Restored):
            return dataclasses.replace(result, rejected=rejected)
        if result is not None:
            rejected.append(result)
            warn(f"not restored: {result}")
    if not rejected:
        return Restored(None)
    newest = rejected[0]
    damaged = CorruptError(
        f"none of the {len(rejected)} checkpoints can be restored",
        failure=newest.error.failure if newest.error else newest.findings[0].failure,
        path=directory,
    )
    for one in rejected:
        damaged.add_note(str(one))
    raise damaged


def _restore(
    checkpoint: Any, path: str, decisions: Decisions, check_first: bool
) -> Restored | Rejected | None:
    """Restore one checkpoint, or return why not; None if it does not exist."""
    why: Rejected | None = None
    for _ in range(RESTORES_MAX):
        before = decisions.identity(path)
        if before is None:
            return None
        try:
            findings = decisions.findings(path) if check_first else []
            if not findings:
                return Restored(path, checkpoint.restore(path))
            why = Rejected(path, findings)
            _raise_transient(findings)
        except CkptfmtError as error:
            if not proves_damage(error):
                raise
            why = Rejected(path, error=error)
        if decisions.identity(path) == before:
            return why
    return why


def _raise_transient(findings: list[Finding]) -> None:
    """Raise the first finding that proves no damage: storage or memory failed just now."""
    for one in findings:
        if one.status == "NO_MEMORY":
            raise MemoryError(one.message)
        if is_transient(one):
            raise one.error(StorageError)
