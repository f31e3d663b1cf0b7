# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt.editing.average`: the mean of the weights of several checkpoints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import names
from ckptfmt._base.arguments import (
    Durability,
    check_order,
    check_progress,
    check_switch,
    invalid,
    listed,
)
from ckptfmt._base.background import wait_for_saves
from ckptfmt._base.casting import kind_of
from ckptfmt._base.hints import some
from ckptfmt._base.names import prefix_text
from ckptfmt._base.progress import Meter, Progress
from ckptfmt._base.save_options import SaveOptions, at_level
from ckptfmt.bundle.completeness import check_complete, check_covered
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.bundle.graph_keys import missing_tensors
from ckptfmt.bundle.meanings import COMPLEX, alike
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.state_tree import PARTS
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.bundle.writer import Writer
from ckptfmt.errors import InvalidError, masked_repr
from ckptfmt.files.locate import locate
from ckptfmt.recipe.values import (
    STEP_BYTES,
    Piece,
    Value,
    equal_values,
    new_array,
    pieces_of,
    rewrite,
    scratch_of,
)

Path = str | bytes | os.PathLike[Any]


@dataclass(frozen=True)
class Average:
    """What `average` did, or would do.

    Attributes:
        path: prefix of the result.
        averaged: number of tensors that are means.
        taken: names of tensors that are not numbers with fractions, and differ between the sources:
            they are those of the first.
        missing: keys of the first source's object graph without a tensor; the result has the same
            graph.
    """

    path: str
    averaged: int
    taken: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    __repr__ = masked_repr


Average.__module__ = "ckptfmt.types"


def average(
    sources: Iterable[Path],
    destination: Path,
    *,
    dry_run: bool = False,
    durability: Durability = "full",
    progress: Progress | None = None,
    limits: Mapping[str, int] | None = None,
) -> Average:
    """Write the mean of several checkpoints with the same tensors, all or nothing.

    Floating-point and complex tensors are added in float64 (complex128) in the order of the
    sources, divided by their number and rounded to the stored dtype; the mean of finite numbers is
    finite, and infinities and NaN are propagated as in any sum. Everything else (integers such
    as steps, bools, strings, the object graph, the metadata, the level of the format, the division
    of tensors into slices) is that of the first source. Dtypes of torch that are stored as bits of
    others must have equal bits and quantizers in all sources, but for complex32. Every source is
    verified. Memory is bounded: values above 256 MiB go through unnamed temporary files beside the
    destination.

    Args:
        sources: two or more of the paths that `ckptfmt.open` takes.
        destination: prefix of the result, which may be that of a source.
        dry_run: True checks the sources and writes nothing. Tensors that would be averaged are not
            read; the sizes of all data files are checked.
        durability: as in Writer.
        progress: as in `ckptfmt.load`, with bytes of the arrays of all sources.
        limits: as in `ckptfmt.open`.

    Raises:
        InvalidError: fewer than two sources, or other names, dtypes or shapes than in the first.
        UnsupportedError: bits of a dtype of torch differ between the sources.
        CheckpointNotFoundError, CorruptError, LimitError, UnsupportedError: of a source.
        StorageError, BusyError, DurabilityUnknownError: as in Writer.
    """
    check_order("average(sources, destination)", "destination", destination, sources)
    check_progress(progress)
    options = SaveOptions(durability=durability)
    if isinstance(sources, os.PathLike):
        raise invalid("sources", "sources must be a list of checkpoints, not one")
    check_switch("dry_run", dry_run)
    paths = listed("sources", sources, "paths")
    if len(paths) < 2:
        raise invalid(
            "sources", f"sources: an average needs at least two checkpoints, not {len(paths)}"
        )
    target = prefix_text(destination, "destination", urls=True)
    wait_for_saves()
    with contextlib.ExitStack() as opened:
        readers = [
            opened.enter_context(Reader(locate(path, "sources"), verify="full", limits=limits))
            for path in paths
        ]
        for reader in readers[1:]:
            _check_alike(readers[0], reader)
        for reader in readers:
            check_covered(reader)
        mean = _Mean(readers, target, progress)
        return mean.plan() if dry_run else mean.write(options)


def _check_alike(first: Reader, other: Reader) -> None:
    """Refuse another checkpoint with other names, dtypes or shapes."""
    ours, theirs = set(first), set(other)
    for missing, what in ((ours - theirs, "lacks"), (theirs - ours, "also has")):
        if missing:
            raise InvalidError(
                f"only checkpoints with the same tensors can be averaged: it {what} "
                f"{some(sorted(missing))}, compared with {first.prefix}",
                path=other.prefix,
            )
    fields = ["dtype", "shape"]
    before, after = first.table()[["name", *fields]], other.table()[["name", *fields]]
    for one, two in zip(before.tolist(), after.tolist(), strict=True):
        if one != two:
            raise InvalidError(
                f"only checkpoints with the same tensors can be averaged: it is {two[1]}"
                f"{list(two[2])}, and {one[1]}{list(one[2])} in {first.prefix}",
                path=other.prefix,
                tensor=one[0],
            )
    for name in {*first._notes, *other._notes} & ours:
        if not alike(first[name], other[name]):
            kinds = [reader[name].meaning or reader[name].dtype_name for reader in (other, first)]
            raise InvalidError(
                "only checkpoints with the same tensors can be averaged: its elements are bits of "
                f"{kinds[0]}, and of {kinds[1]}, or of another quantizer, in {first.prefix}",
                path=other.prefix,
                tensor=name,
            )


class _Mean:
    """The mean of checkpoints with the same tensors."""

    def __init__(self, readers: list[Reader], target: str, progress: Progress | None) -> None:
        self._readers, self._target = readers, target
        self._folder = scratch_of(target)
        total = sum(handle.nbytes for handle in readers[0].values()) * len(readers)
        self._meter = Meter(progress, total)
        self._averaged, self._taken = 0, list[str]()
        # Bits of dtypes of torch, with the parts of quantizers. complex32 is stored as its parts.
        notes = {name: one for name, one in readers[0]._notes.items() if one["dtype"] != COMPLEX}
        parts = (one.get(part) for one in notes.values() for part in PARTS)
        self._bits = notes.keys() | {part for part in parts if part is not None}

    def plan(self) -> Average:
        """Check the sources and return what `write` would do."""
        for reader in self._readers:
            check_complete(reader.prefix)
        self._folder = None  # the destination's directory may not exist
        for handle in self._readers[0].values():
            self._classify(handle, self._others(handle))
            self._report(handle.nbytes)
        return self._result()

    def write(self, options: SaveOptions) -> Average:
        first = self._readers[0]
        with Writer._of(self._target, at_level(options, first.level)) as writer:
            rewrite(writer, self._values(), self._report)
            if names.METADATA in first:
                writer._open_handle().add_metadata(first[names.METADATA].read().item())
        return self._result()

    def _values(self) -> Iterator[Value]:
        for handle in self._readers[0].values():
            others = self._others(handle)
            mean = self._classify(handle, others)
            for piece in pieces_of(handle):
                read = partial(self._mean, piece, others) if mean else partial(self._value, piece)
                yield piece.value(read)

    def _report(self, size: int) -> None:
        self._meter.add(size * len(self._readers))

    def _result(self) -> Average:
        missing = missing_tensors(self._readers[0])
        return Average(self._target, self._averaged, tuple(self._taken), missing)

    def _others(self, handle: TensorHandle) -> list[TensorHandle]:
        return [reader[handle.raw_name] for reader in self._readers[1:]]

    def _classify(self, handle: TensorHandle, others: list[TensorHandle]) -> bool:
        """Count a tensor, and return whether it is averaged."""
        mean = handle.dtype is not None and _has_fractions(handle.dtype)
        mean = mean and handle.name not in self._bits
        self._averaged += mean
        if not mean:
            self._compare(handle, others)
        return mean

    def _value(self, piece: Piece) -> NDArray[Any]:
        return piece.read(self._folder)

    def _compare(self, handle: TensorHandle, others: list[TensorHandle]) -> None:
        """Note a tensor that is taken from the first source and differs in another."""
        if handle.name == OBJECT_GRAPH_KEY:
            return
        for piece in pieces_of(handle):
            ours = self._value(piece)
            for other in others:
                if not equal_values(ours, self._value(Piece(other, piece.shape, piece.box, None))):
                    if handle.name in self._bits:
                        raise handle._unsupported(
                            f"bits of {handle.meaning or 'a quantizer'} that differ between the "
                            "sources are not averaged: ckptfmt.torch.load returns the tensors"
                        )
                    self._taken.append(handle.name)
                    return

    def _mean(self, piece: Piece, others: list[TensorHandle]) -> NDArray[Any]:
        """Return the mean of a stored value of the first source and the same box of the others."""
        dtype = piece.handle.dtype
        assert dtype is not None
        wide = _wide(dtype)
        count, step = 1 + len(others), STEP_BYTES // wide.itemsize
        # At most 1 / count, and a power of two: scaling rounds only subnormal numbers.
        scale = 0.5 ** len(others).bit_length()
        result = self._array(piece, dtype)
        flat = result.reshape(-1)
        with np.errstate(all="ignore"):
            total, scaled = self._sum(piece, others), None
            for at in range(0, len(total), step):
                mean = total[at : at + step].view(np.float64) / count
                lost = ~np.isfinite(mean)
                if dtype == wide and lost.any():  # sums of smaller dtypes do not overflow
                    if scaled is None:
                        scaled = self._sum(piece, others, scale)
                    again = scaled[at : at + step].view(np.float64)[lost]
                    most = np.where(np.isfinite(again), np.finfo(np.float64).max, np.inf)
                    mean[lost] = np.clip(again / (count * scale), -most, most)
                flat[at : at + step] = mean.view(wide).astype(dtype)
        return result

    def _sum(
        self, piece: Piece, others: list[TensorHandle], scale: float = 1.0
    ) -> NDArray[np.float64] | NDArray[np.complex128]:
        """Return the sum of the first source's value and the others', each times `scale`."""
        assert piece.handle.dtype is not None
        wide = _wide(piece.handle.dtype)
        total = self._array(piece, wide).reshape(-1)
        step = STEP_BYTES // wide.itemsize
        for number, handle in enumerate([piece.handle, *others]):
            value = self._value(Piece(handle, piece.shape, piece.box, None)).reshape(-1)
            for at in range(0, len(total), step):
                # Real and imaginary parts are scaled one by one: a product of complex numbers is
                # NaN where one part is infinite.
                part = value[at : at + step].astype(wide).view(np.float64) * scale
                into = total[at : at + step].view(np.float64)
                into[:] = part if number == 0 else into + part
        return total

    def _array(self, piece: Piece, dtype: np.dtype[Any]) -> NDArray[Any]:
        return new_array(piece.handle.name, piece.shape, dtype, self._folder)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which values are added."""
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def _has_fractions(dtype: np.dtype[Any]) -> bool:
    return kind_of(dtype) in ("f", "c")
