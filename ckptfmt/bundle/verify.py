# SPDX-License-Identifier: Apache-2.0
"""Checking everything in a checkpoint that can be checked, and going on after a problem."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckptfmt import _core
from ckptfmt.arguments import check_limits, check_progress
from ckptfmt.bundle.codec import Zstd
from ckptfmt.bundle.locate import locate
from ckptfmt.errors import CkptfmtError

__all__ = ["Finding", "Report", "verify"]

# Bytes between two looks at the clock of the caller: progress, and Ctrl-C.
STEP_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        severity: "problem" (damaged, incomplete, contradictory) or "note" (sound, but no canonical
            writer wrote it).
        status, failure, message, path, offset, tensor: as in `CkptfmtError`; a note of
            what is sound has no status and the failure "NONE".
    """

    severity: str
    status: str
    failure: str
    message: str
    path: str | None
    offset: int | None
    tensor: str | None

    def __str__(self) -> str:
        error = CkptfmtError(
            self.message,
            failure=self.failure,
            path=self.path,
            offset=self.offset,
            tensor=self.tensor,
        )
        return f"{self.severity}: {error}"


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found.

    Attributes:
        prefix: the checkpoint.
        findings: in the order found.
        bytes_checked: bytes of index and data files.
        tensors_checked: tensors, the format's own included; a partitioned one counts once.
        strict: whether notes count against it.
    """

    prefix: str
    findings: list[Finding] = field(default_factory=list)
    bytes_checked: int = 0
    tensors_checked: int = 0
    strict: bool = False

    @property
    def problems(self) -> list[Finding]:
        """What is damaged, incomplete or contradictory."""
        return [finding for finding in self.findings if finding.severity == "problem"]

    @property
    def notes(self) -> list[Finding]:
        """What is sound, but not canonical."""
        return [finding for finding in self.findings if finding.severity == "note"]

    @property
    def ok(self) -> bool:
        """True if nothing counts against the checkpoint."""
        return not (self.findings if self.strict else self.problems)

    def __bool__(self) -> bool:
        return self.ok


def verify(
    path: str | bytes | os.PathLike[Any],
    *,
    strict: bool = False,
    progress: Callable[[int, int], object] | None = None,
    limits: Mapping[str, int] | None = None,
    follow_symlinks: bool = True,
) -> Report:
    """Checks every index block, every entry and every byte of every tensor. A damaged checkpoint is
    no error here.

    Args:
        path: whatever `ckptfmt.open` takes.
        strict: also count against it what a canonical writer would not have written.
        progress: called as `progress(bytes_done, bytes_total)` from this thread.
        limits, follow_symlinks: as in `ckptfmt.open`.

    Raises:
        CheckpointNotFoundError: there is nothing to check.
        StorageError, InvalidError.
    """
    return verify_prefix(
        locate(path),
        strict=strict,
        progress=progress,
        limits=limits,
        follow_symlinks=follow_symlinks,
    )


def verify_prefix(
    prefix: str,
    *,
    strict: bool = False,
    progress: Callable[[int, int], object] | None = None,
    limits: Mapping[str, int] | None = None,
    follow_symlinks: bool = True,
) -> Report:
    """`verify` for a path that is a prefix already."""
    check_limits(limits)
    check_progress(progress)
    verifier = _core.VerifierHandle(prefix, limits, follow_symlinks, Zstd())
    try:
        while True:
            state = verifier.step(STEP_BYTES)
            if progress is not None:
                progress(state["bytes_done"], state["bytes_total"])
            if state["finished"]:
                break
        findings = [_finding(found) for found in verifier.findings()]
    finally:
        verifier.close()
    return Report(prefix, findings, state["bytes_done"], state["tensors_done"], strict)


def _finding(found: _core.Finding) -> Finding:
    severity = "note" if found.severity == _core.SEVERITY_NOTE else "problem"
    error = found.error
    if not isinstance(error, CkptfmtError):
        return Finding(severity, "NO_MEMORY", "NO_MEMORY", str(error), None, None, None)
    return _problem(error, severity)


def _problem(error: CkptfmtError, severity: str = "problem") -> Finding:
    return Finding(
        severity, error.status, error.failure, error.message, error.path, error.offset, error.tensor
    )
