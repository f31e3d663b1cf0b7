# SPDX-License-Identifier: Apache-2.0
"""Loading into arrays that exist already, and telling what did not match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ckptfmt.arguments import Verify, check_progress
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.load import Batch, Path, batch_of, can_cast, casts_of, check_used
from ckptfmt.bundle.selecting import (
    Filter,
    Rename,
    by_text,
    check_distinct,
    filter_function,
    near,
    no_match,
    renamed,
    some,
)
from ckptfmt.errors import CkptfmtError, InvalidError, TensorNotFoundError, printable
from ckptfmt.progress import Progress

__all__ = ["MatchReport", "Mismatch", "load_into", "refuse"]


@dataclass(frozen=True)
class Mismatch:
    """A tensor and the array of its name that it cannot be read into.

    Attributes:
        name: the array's.
        stored_name: the tensor's; another one after `rename`.
        stored: shape or dtype in the checkpoint; the dtype that `cast` makes of it.
        wanted: shape or dtype of the array.
    """

    name: str
    stored_name: str
    stored: Any
    wanted: Any

    def __str__(self) -> str:
        origin = "" if self.name == self.stored_name else f" (stored as '{self.stored_name}')"
        return f"'{self.name}'{origin} is {self.stored} and not {self.wanted}"


@dataclass(frozen=True)
class MatchReport:
    """How the tensors of a checkpoint and the arrays for them go together. True if completely.

    Attributes:
        matched: arrays that a tensor fits, by name, in the checkpoint's order.
        missing: arrays that the checkpoint has no tensor for, in the order given.
        unexpected: tensors that there is no array for, by stored name.
        shape_mismatch: tensors whose array has another shape.
        dtype_mismatch: tensors whose array has another dtype, and are not cast to it; one may be
            among the former as well.
        filtered: arrays that the filter leaves as they are; no fault.
    """

    matched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    shape_mismatch: tuple[Mismatch, ...] = ()
    dtype_mismatch: tuple[Mismatch, ...] = ()
    filtered: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every array has its tensor and every tensor its array."""
        return not any(self._faults())

    def __bool__(self) -> bool:
        return self.complete

    def _faults(self) -> Iterator[str]:
        if self.missing:
            yield f"missing in the checkpoint ({len(self.missing)}): {some(self.missing)}"
        if self.unexpected:
            yield f"without an array ({len(self.unexpected)}): {some(self.unexpected)}"
        for what, found in (("shape", self.shape_mismatch), ("dtype", self.dtype_mismatch)):
            if found:
                yield f"of another {what} ({len(found)}): {some(found, quote='')}"

    def __str__(self) -> str:
        wrong = {mismatch.name for mismatch in (*self.shape_mismatch, *self.dtype_mismatch)}
        total = len(self.matched) + len(self.missing) + len(wrong) + len(self.filtered)
        lines = [f"matched: {len(self.matched)} of {total} arrays", *self._faults()]
        if self.filtered:
            lines.append(f"left out by the filter ({len(self.filtered)}): {some(self.filtered)}")
        return "\n".join(map(printable, lines))


def load_into(
    path: Path,
    targets: Mapping[str, Any],
    *,
    strict: bool = True,
    rename: Rename | None = None,
    cast: Any = None,
    filter: Filter | None = None,  # noqa: A002 (as the built-in, it says which ones)
    verify: Verify = "auto",
    progress: Progress | None = None,
    limits: Mapping[str, int] | None = None,
) -> MatchReport:
    """Load the tensors of a checkpoint into the caller's arrays, by name.

    Everything is checked before the first byte is written.

    Args:
        path: any path that `ckptfmt.open` takes.
        targets: name to array of any framework in writable CPU memory (numpy, DLPack, buffers), for
            example a torch state dict. Arrays that share memory are refused, unless they are the
            same elements and their tensors have equal bytes (tied weights).
        strict: True raises an error if anything does not match; False loads what matches.
        rename: stored name to name in `targets`, as in `ckptfmt.load`. It is applied to every
            tensor; one that a function drops needs no target.
        cast: True casts each tensor to its target's dtype, as numpy's `astype` does; or a dtype or
            mapping as in `ckptfmt.load`. Only numbers are cast, and only to numbers.
        filter: which tensors to load, by stored name, as in `ckptfmt.load`. The targets of the
            others stay unchanged, which is not an error.
        verify, limits: as in `ckptfmt.open`.
        progress: as in `ckptfmt.load`.

    Returns:
        What matched and what did not.

    Raises:
        TensorNotFoundError: `strict`, and targets without a tensor are the only problem; or
            `filter` matches no tensor. The error's `report` is the MatchReport.
        InvalidError: `strict`, and something else does not match (with `report`); two tensors have
            the same target; a target is not writable or shares memory with another; an argument of
            a wrong type.
        What `ckptfmt.open` and reading raise; the content of the targets is then unspecified.
    """
    check_progress(progress)
    targets = by_text("targets", targets)
    rename = by_text("rename", rename) if isinstance(rename, Mapping) else rename
    renamed([], rename)  # refuses a wrong type before anything is read
    passes = filter_function(filter)
    cast = by_text("cast", cast) if isinstance(cast, Mapping) else cast
    with reading.open(path, verify=verify, limits=limits) as reader:
        everything = batch_of(reader, None)
        if strict:
            check_used("cast", cast, everything.names)
        new_names = renamed(everything.names, rename)
        kept: dict[int, str] = {}
        unexpected: list[str] = []
        # Names of tensors that there are, though the filter may leave them out.
        present: set[str] = set()
        for position, (old, new) in enumerate(zip(everything.names, new_names, strict=True)):
            if new is None:
                continue
            present.add(new)
            if passes is not None and not passes(old):
                continue
            if new in targets:
                kept[position] = new
            else:
                unexpected.append(old)
        if passes is not None and present and not kept and not unexpected:
            raise no_match(filter, len(everything.names), reader.prefix)
        batch, found = everything.only(list(kept)), list(kept.values())
        check_distinct(batch.names, found)
        fits, shapes, dtypes = _compared(batch, found, targets, cast)
        loaded = set(found)
        report = MatchReport(
            tuple(found[position] for position in fits),
            tuple(name for name in targets if name not in present),
            tuple(unexpected),
            tuple(shapes),
            tuple(dtypes),
            tuple(name for name in targets if name in present and name not in loaded),
        )
        if strict and not report:
            refuse(reader.prefix, report)
        chosen = batch.only(list(fits))
        casts = {}
        for position, (array, dtype) in enumerate(fits.values()):
            if dtype is None:
                chosen.targets[position] = array
            else:
                casts[position] = array
        chosen.check_targets(casts)
        read = chosen.read(progress)
        for position, array in casts.items():
            array[...] = read[position].astype(array.dtype)
    return report


Fits = dict[int, tuple[NDArray[Any], np.dtype[Any] | None]]


def _compared(
    batch: Batch, wanted: list[str], targets: Mapping[str, Any], cast: Any
) -> tuple[Fits, list[Mismatch], list[Mismatch]]:
    """The positions that fit, with their arrays and the dtypes to cast to; and those that do not
    for their shape, and for their dtype."""
    casts = {} if cast is True else casts_of(batch, cast)
    fits: Fits = {}
    shapes, dtypes = [], []
    for position, name in enumerate(wanted):
        handle = batch.handle(position)
        array = handle.borrow(targets[name])
        stored, shape = handle.expected()
        result = casts.get(position, stored)
        if cast is True and handle.dtype is not None and can_cast(stored, array.dtype):
            result = array.dtype
        if array.shape != shape:
            shapes.append(Mismatch(name, handle.name, shape, array.shape))
        if array.dtype != result:
            dtypes.append(Mismatch(name, handle.name, result, array.dtype))
        if array.shape == shape and array.dtype == result:
            fits[position] = array, (None if result == stored else result)
    return fits, shapes, dtypes


def refuse(prefix: str, report: MatchReport) -> NoReturn:
    """Raises what says that not everything matches."""
    faults = list(report._faults())
    message = "; ".join(faults)
    if report.missing and report.unexpected:
        message += near(report.missing[0], report.unexpected)
    others = report.dtype_mismatch
    if others and all(can_cast(other.stored, other.wanted) for other in others):
        message += "; cast=True converts to the dtypes of the targets"
    error: CkptfmtError
    if report.missing and len(faults) == 1:
        error = TensorNotFoundError(message, path=prefix, tensor=report.missing[0])
    else:
        error = InvalidError(message, path=prefix)
    error.report = report
    raise error
