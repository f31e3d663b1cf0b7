# SPDX-License-Identifier: Apache-2.0
"""Verifiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.border import check, error_of, new_error, path_bytes
from ckptfmt._core.handles import ExclusiveHandle, call, open_options, own
from ckptfmt._core.library import fields_of


class Finding(NamedTuple):
    """One finding of a verifier, and the exception it would be."""

    severity: int
    error: Exception


class VerifierHandle(ExclusiveHandle):
    """`ckptfmt_verifier`. Belongs to one thread at a time: calls queue up."""

    __slots__ = ("path",)

    def __init__(
        self, prefix: str, limits: Mapping[str, int] | None, follow_symlinks: bool
    ) -> None:
        raw = path_bytes(prefix)
        options, _owned = open_options(limits, follow_symlinks)
        out, error = ffi.new("ckptfmt_verifier **"), new_error()
        check(lib.ckptfmt_verifier_open(raw, options, out, error), error, prefix)
        super().__init__(own(out[0], lib.ckptfmt_verifier_close), "verifier")
        self.path = prefix

    def step(self, byte_budget: int) -> dict[str, int]:
        """Works on for about this many bytes; the fields of `ckptfmt_progress`."""
        progress = ffi.new("ckptfmt_progress *")
        call(self, lib.ckptfmt_verifier_step, byte_budget, progress)
        return fields_of(progress)

    def findings(self, first: int = 0) -> Iterator[Finding]:
        """The findings so far, from number `first` on."""
        found: list[Finding] = []
        with self as verifier:
            look = lib.ckptfmt_verifier_finding
            while (finding := look(verifier, first + len(found))) != ffi.NULL:
                found.append(Finding(int(finding.severity), error_of(finding.error, self.path)))
        return iter(found)
