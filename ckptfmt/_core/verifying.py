# SPDX-License-Identifier: Apache-2.0
"""Verification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from ckptfmt._ckptfmt import ffi, lib
from ckptfmt._core.border import (
    check_stored,
    error_of,
    limits_of,
    open_options,
    path_bytes,
    stored,
)
from ckptfmt._core.callbacks import Callbacks
from ckptfmt._core.codec import Codec, Coder
from ckptfmt._core.storage import Store, storage_of


class Finding(NamedTuple):
    """One finding, as an exception."""

    severity: int
    error: Exception


class Verified(NamedTuple):
    """`ckptfmt_report`."""

    findings: list[Finding]
    bytes_checked: int
    tensors_checked: int


class Watch(Callbacks):
    """A progress function, of which an exception ends the C call. Without one it lets Ctrl-C in."""

    def __init__(self, progress: Callable[[int, int], object] | None) -> None:
        super().__init__()
        self.progress = progress


def _failed(_kind: Any, error: BaseException, traceback: TracebackType | None) -> int:
    """Called by cffi for an exception that leaves the function below."""
    if traceback is not None:
        ffi.from_handle(traceback.tb_frame.f_locals["context"]).failed(error)
    return 1


def _report(context: Any, bytes_done: int, bytes_total: int) -> int:
    progress = ffi.from_handle(context).progress
    if progress is not None:
        progress(bytes_done, bytes_total)
    return 0


ffi.def_extern(name="cf_progress_report", onerror=_failed, error=1)(_report)


def verify(
    prefix: str,
    limits: Mapping[str, int] | None,
    follow_symlinks: bool,
    progress: Callable[[int, int], object] | None = None,
    coder: Coder | None = None,
    store: Store | None = None,
) -> Verified:
    """`ckptfmt_verify`."""
    codec = None if coder is None else Codec(coder)
    storage = storage_of(store)
    raw, values, watch = path_bytes(prefix), limits_of(limits), Watch(progress)
    handle, options = ffi.new_handle(watch), open_options(values, follow_symlinks, codec, storage)
    options.progress.report, options.progress.context = lib.cf_progress_report, handle
    out, error = ffi.new("ckptfmt_report **"), ffi.new("ckptfmt_error *")
    try:
        status = stored(storage, lib.ckptfmt_verify, raw, options, out, error)
        for callbacks in (watch, codec):
            if callbacks is not None and (raised := callbacks.raised()) is not None:
                raise raised
        check_stored(storage, status, error, prefix)
        report = out[0]
        found = (report.findings[row] for row in range(report.finding_count))
        findings = [Finding(int(one.severity), error_of(one.error, prefix)) for one in found]
        return Verified(findings, int(report.bytes_checked), int(report.tensors_checked))
    finally:
        lib.ckptfmt_report_free(out[0])
        if storage is not None:
            storage.release()
