# SPDX-License-Identifier: Apache-2.0
"""Verify a checkpoint: check everything, and continue after a problem."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckptfmt import _core
from ckptfmt._base.arguments import check_limits, check_progress, check_switches
from ckptfmt._base.foreign import LFS
from ckptfmt._base.progress import Progress
from ckptfmt.bundle import graph_keys
from ckptfmt.bundle.codec import Zstd
from ckptfmt.bundle.graph import decode_graph
from ckptfmt.errors import CkptfmtError, masked_repr
from ckptfmt.files.locate import explained, kind_of_file, locate, unmasked
from ckptfmt.files.places import store_of

# The failure of a tensor that only the object graph knows, and its message.
MISSING_TENSOR = "MISSING_TENSOR"
MISSING_MESSAGE = (
    "the object graph has this tensor and the checkpoint does not: an edit lost it, or its "
    "variable was never initialised; restoring its object fails (`ckptfmt edit --drop-missing` "
    "repairs the graph)"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem or deviation that `verify` found.

    Attributes:
        severity: "problem" (damaged, incomplete, contradictory) or "note" (sound, but not what a
            canonical writer writes).
        status: who must act: "CORRUPT", "IO" and others, those of `CkptfmtError`; "" for a note
            about sound data.
        failure: what was wrong: "CHECKSUM", "TRUNCATED", ...; "NONE" for a note about sound data.
        message: one sentence, which starts with the rule of `spec/format.md`.
        path: the file, or None.
        offset: bytes from its start, or None.
        tensor: name of the tensor, or None.
    """

    severity: str
    status: str
    failure: str
    message: str
    path: str | None = None
    offset: int | None = None
    tensor: str | None = None

    def error(self, kind: type[CkptfmtError] = CkptfmtError, before: str = "") -> CkptfmtError:
        """Return the finding as an error of this class, with text before its message."""
        return kind(
            before + self.message,
            failure=self.failure,
            path=self.path,
            offset=self.offset,
            tensor=self.tensor,
        )

    def __str__(self) -> str:
        return f"{self.severity}: {self.error()}"


Finding.__module__ = "ckptfmt.types"
# Failures that a missing file causes.
_MISSING = ("CHECKPOINT_NOT_FOUND", "GENERATION_GONE", "SHARD_MISSING")


def is_transient(finding: Finding) -> bool:
    """Return whether a finding proves no damage: storage or memory failed just now."""
    return finding.status == "NO_MEMORY" or (
        finding.status == "IO" and finding.failure not in _MISSING
    )


def only_unread(problems: Sequence[Finding]) -> bool:
    """Return whether there are problems, none of which proves damage: some are transient, or
    another save replaced the checkpoint meanwhile."""
    return bool(problems) and all(
        one.failure == "GENERATION_GONE" or is_transient(one) for one in problems
    )


@dataclass(frozen=True, slots=True)
class Report:
    """Result of `verify`.

    Attributes:
        prefix: the checkpoint.
        findings: in the order found.
        bytes_checked: bytes of index and data files.
        tensors_checked: number of tensors, reserved ones included; a partitioned one counts once.
        strict: whether notes make `ok` False.
    """

    prefix: str
    findings: list[Finding] = field(default_factory=list)
    bytes_checked: int = 0
    tensors_checked: int = 0
    strict: bool = False

    __repr__ = masked_repr

    @property
    def problems(self) -> list[Finding]:
        """Findings of severity "problem"."""
        return [finding for finding in self.findings if finding.severity == "problem"]

    @property
    def notes(self) -> list[Finding]:
        """Findings of severity "note"."""
        return [finding for finding in self.findings if finding.severity == "note"]

    @property
    def ok(self) -> bool:
        """True without problems (strict: without any findings)."""
        return not (self.findings if self.strict else self.problems)

    def __bool__(self) -> bool:
        return self.ok


Report.__module__ = "ckptfmt.types"


def verify(
    path: str | bytes | os.PathLike[Any],
    *,
    strict: bool = False,
    progress: Progress | None = None,
    limits: Mapping[str, int] | None = None,
    follow_symlinks: bool = True,
) -> Report:
    """Check every index block, every entry and every byte of every tensor, and that the tensors of
    the object graph are there. Damage is in the report, not raised.

    >>> ckptfmt.save("model", {"w": np.ones(3)})
    >>> report = ckptfmt.verify("model")
    >>> report.ok, report.tensors_checked, report.findings
    (True, 1, [])

    Args:
        path: a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of these.
        strict: True: notes of what a canonical writer does not write make `ok` False as well.
        progress: called as `progress(done, total)` with two ints, of bytes of the files.
        limits: what a file may ask of this process: a mapping of names of `ckptfmt_limits` in
            `ckptfmt.h` to int, such as {"index_bytes_max": 1 << 30}; None: the defaults there.
        follow_symlinks: False refuses an index or data file that is a symbolic link.

    Raises:
        CheckpointNotFoundError: there is no checkpoint at `path`.
        StorageError: a file exists and cannot be read.
        InvalidError: an argument of the wrong type or value.
    """
    return verify_all(
        locate(path),
        strict=strict,
        progress=progress,
        limits=limits,
        follow_symlinks=follow_symlinks,
    )


def verify_all(
    prefix: str,
    *,
    limits: Mapping[str, int] | None = None,
    follow_symlinks: bool = True,
    **options: Any,
) -> Report:
    """Verify the checkpoint at a prefix and its object graph; see `verify`."""
    report = verify_prefix(prefix, limits=limits, follow_symlinks=follow_symlinks, **options)
    report.findings.extend(_graph_findings(prefix, limits, follow_symlinks))
    return report


def _graph_findings(
    prefix: str, limits: Mapping[str, int] | None, follow_symlinks: bool
) -> Iterator[Finding]:
    """Yield what is wrong with the object graph, apart from damage of its tensor."""
    try:
        opened = _core.ReaderHandle(prefix, limits, follow_symlinks, Zstd(), store_of(prefix))
        with contextlib.closing(opened) as handle:
            content = graph_keys.graph_bytes(handle, prefix, _core.VERIFY["auto"])
            if content is None:
                return
            try:
                graph = decode_graph(content, prefix)
                missing = graph_keys.missing_keys(handle.names(), graph)
            except CkptfmtError as error:
                yield _finding(_core.Finding(_core.SEVERITY_NOTE + 1, error), prefix)
                return
    except CkptfmtError as error:
        if (error.rule or "").startswith("OBJ-"):  # other damage is a finding of the verifier
            yield _finding(_core.Finding(_core.SEVERITY_NOTE + 1, error), prefix)
        return
    for name in missing:
        yield Finding("problem", "CORRUPT", MISSING_TENSOR, MISSING_MESSAGE, prefix, None, name)


def verify_prefix(
    prefix: str,
    *,
    strict: bool = False,
    progress: Callable[[int, int], object] | None = None,
    limits: Mapping[str, int] | None = None,
    follow_symlinks: bool = True,
) -> Report:
    """Verify the bytes of the checkpoint at a prefix; see `verify`."""
    check_switches(strict=strict, follow_symlinks=follow_symlinks)
    check_limits(limits)
    check_progress(progress)
    store = store_of(prefix)
    done = _core.verify(prefix, limits, follow_symlinks, progress, Zstd(), store)
    findings = _one_for_a_pointer([_finding(found, prefix) for found in done.findings], prefix)
    return Report(prefix, findings, done.bytes_checked, done.tensors_checked, strict)


def _one_for_a_pointer(findings: list[Finding], prefix: str) -> list[Finding]:
    """Return the findings, with one for each file that is a Git LFS pointer."""
    paths = dict.fromkeys(one.path for one in findings if one.severity == "problem" and one.path)
    pointers = [
        shown
        for shown in paths
        if (path := unmasked(shown, prefix)) is not None and kind_of_file(path) is LFS
    ]
    message = f"this is {LFS.what}"
    return [
        *(Finding("problem", "CORRUPT", "BAD_MAGIC", message, one) for one in pointers),
        *(one for one in findings if one.path not in pointers),
    ]


def _finding(found: _core.Finding, prefix: str) -> Finding:
    severity = "note" if found.severity == _core.SEVERITY_NOTE else "problem"
    error = found.error
    if not isinstance(error, CkptfmtError):
        return Finding(severity, "NO_MEMORY", "NO_MEMORY", str(error))
    return finding_of(explained(error, prefix), severity)


def finding_of(error: CkptfmtError, severity: str = "problem") -> Finding:
    """Return an error as a finding."""
    return Finding(
        severity, error.status, error.failure, error.message, error.path, error.offset, error.tensor
    )
