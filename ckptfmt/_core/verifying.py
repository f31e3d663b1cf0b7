# SPDX-License-Identifier: Apache-2.0
"""Handles of verifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.border import ExclusiveHandle, error_of, fields_of, open_checkpoint
from ckptfmt._core.codec import Codec, Coder
from ckptfmt._core.storage import Storage, Store


class Finding(NamedTuple):
    """One finding of a verifier, as an exception."""

    severity: int
    error: Exception


class VerifierHandle(ExclusiveHandle):
    """`ckptfmt_verifier`."""

    __slots__ = ()

    def __init__(
        self,
        prefix: str,
        limits: Mapping[str, int] | None,
        follow_symlinks: bool,
        coder: Coder | None = None,
        store: Store | None = None,
    ) -> None:
        functions = lib.ckptfmt_verifier_open, lib.ckptfmt_verifier_close
        codec = None if coder is None else Codec(coder)
        storage = None if store is None else Storage(store)
        pointer = open_checkpoint(
            "ckptfmt_verifier", functions, prefix, limits, follow_symlinks, codec, storage
        )
        super().__init__(pointer, "verifier", prefix, codec, storage)

    def step(self, byte_budget: int) -> dict[str, int]:
        """Check about this many bytes more; return the fields of `ckptfmt_progress`."""
        progress = ffi.new("ckptfmt_progress *")
        self.call(lib.ckptfmt_verifier_step, byte_budget, progress)
        return fields_of(progress)

    def findings(self) -> list[Finding]:
        """Return the findings so far."""
        found: list[Finding] = []

        def collect(verifier: Any, _error: Any) -> int:
            while (finding := lib.ckptfmt_verifier_finding(verifier, len(found))) != ffi.NULL:
                found.append(Finding(int(finding.severity), error_of(finding.error, self.path)))
            return int(lib.CKPTFMT_OK)

        self.call(collect)
        return found
