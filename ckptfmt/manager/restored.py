# SPDX-License-Identifier: Apache-2.0
"""What `CheckpointManager.restore_latest` tells: which checkpoint it restored, and what is wrong
with those that it passed over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ckptfmt.bundle.verify import Finding
from ckptfmt.errors import CkptfmtError

__all__ = ["Rejected", "Restored"]


@dataclass(frozen=True)
class Rejected:
    """A checkpoint that `CheckpointManager.restore_latest` passed over.

    Attributes:
        path: its prefix.
        findings: what is wrong with it: files, offsets, messages.
        error: what restoring it raised; None if it was not tried.
    """

    path: str
    findings: list[Finding] = field(default_factory=list)
    error: CkptfmtError | None = None

    def __str__(self) -> str:
        why = [str(finding) for finding in self.findings] or [str(self.error)]
        return f"{self.path}: {'; '.join(why)}"


@dataclass(frozen=True)
class Restored:
    """What `CheckpointManager.restore_latest` restored.

    Attributes:
        path: the prefix; None if there was no checkpoint.
        status: what the checkpoint's `restore` returned.
        rejected: newer ones that are damaged, newest first.
    """

    path: str | None
    status: Any = None
    rejected: list[Rejected] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.path is not None
