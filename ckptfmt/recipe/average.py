# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt.editing.average`: the mean of the weights of several checkpoints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.arguments import (
    Durability,
    check_order,
    check_progress,
    check_switch,
    invalid,
    listed,
)
from ckptfmt._base.background import wait_for_saves
from ckptfmt._base.casting import dtype_text, kind_of
from ckptfmt._base.hints import some
from ckptfmt._base.names import path_text, prefix_text
from ckptfmt._base.patterns import Filters, Passing
from ckptfmt._base.progress import Progress
from ckptfmt._base.renaming import Rename
from ckptfmt._base.save_options import SaveOptions
from ckptfmt.bundle.comparing import pieces
from ckptfmt.bundle.completeness import check_complete, check_covered
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.bundle.meanings import COMPLEX, alike
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.state_tree import PARTS
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError, masked_repr
from ckptfmt.files.locate import locate
from ckptfmt.files.outputs import output_path
from ckptfmt.formats.tensors import Box
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.recipe.changes import Cast, Changes
from ckptfmt.recipe.checkpoint import (
    Rewrite,
    check_taken,
    count_losses,
    rewrite,
    write_checkpoint,
)
from ckptfmt.recipe.convert import files_in, most_of
from ckptfmt.recipe.edit import edited
from ckptfmt.recipe.export import Export
from ckptfmt.recipe.plan import new_names
from ckptfmt.recipe.sources import Made, Taken, format_of, opened, refuse_unreadable, take
from ckptfmt.recipe.values import (
    STEP_BYTES,
    Piece,
    Result,
    equal_values,
    new_array,
    pieces_of,
    scratch_of,
)

Path = str | bytes | os.PathLike[Any]


@dataclass(frozen=True)
class Average:
    """What `average` did, or would do.

    Attributes:
        path: of the result; of a TensorFlow checkpoint its prefix.
        averaged: number of tensors that are means.
        taken: stored names of tensors that are not numbers with fractions, and differ between the
            sources: they are those of the first.
        missing: keys of the first source's object graph without a tensor; the result has the same
            graph.
        losses: by name, how many elements casts changed by more than rounding (`allow_loss`).
        zeros: by name, how many elements casts rounded to 0.
        uncast: 0-d tensors of the kind of `cast=DTYPE`, which leaves them.
        dropped: what the first source has and the result has no place for, in words; only if one
            of them is a file of another format.
    """

    path: str
    averaged: int
    taken: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    losses: dict[str, int] = field(default_factory=dict)
    zeros: dict[str, int] = field(default_factory=dict)
    uncast: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    __repr__ = masked_repr


Average.__module__ = "ckptfmt.types"


def average(
    sources: Iterable[Path],
    destination: Path,
    *,
    rename: Rename | None = None,
    drop: Filters | None = None,
    keep: Filters | None = None,
    cast: Cast | None = None,
    allow_loss: bool = False,
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
    others must have equal bits and quantizers in all sources, but for complex32; of files of other
    formats, and for such a result, their values are averaged. Every checkpoint is verified. Memory
    is bounded: values above 256 MiB go through unnamed temporary files beside the destination.

    The sources and the destination may also be files of the formats of `ckptfmt.convert`, each by
    its extension; the result has then what a conversion of the first source has.

    >>> for n in range(3):
    ...     ckptfmt.save(f"model-{n}", {"w": np.full(2, n, "float32"), "step": n})
    >>> done = ckptfmt.editing.average([f"model-{n}" for n in range(3)], "mean")
    >>> done.averaged, done.taken, ckptfmt.load("mean")["w"].tolist()
    (1, ('step',), [1.0, 1.0])

    Args:
        sources: two or more checkpoints (prefixes, directories, URLs), or files of other formats.
        destination: prefix or path of the result, which may be that of a source: str, bytes or
            os.PathLike, or a URL.
        rename: stored name to new name: a mapping, a function, or a list of pairs (regular
            expression, replacement) applied in order, as `re.sub` does. None from a function or a
            pair drops the tensor. A transform, a function of the array such as `numpy.transpose`,
            may follow the new name.
        drop: which tensors to leave out: a name, a glob pattern, `/REGEX/`, a compiled pattern or a
            function, or a list of these. Weights as well. The sources may differ in those.
        keep: which tensors to keep, in the same forms; the others are dropped.
        cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at least
            one dimension, or a mapping of filters to dtypes: the first that matches counts, None
            changes nothing. Applies to the mean.
        allow_loss: True allows casts that change values by more than rounding: overflow, lost
            fractions. The result counts them.
        dry_run: True checks the sources and writes nothing. Tensors that would be averaged are only
            read to be cast; the sizes of all data files are checked.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        progress: called as `progress(done, total)` with two ints, of bytes of the arrays of the
            result.
        limits: what a file may ask of this process: a mapping of names of `ckptfmt_limits` in
            `ckptfmt.h` to int, such as {"index_bytes_max": 1 << 30}; None: the defaults there. Of a
            file of another format, `expansion_max` times its bytes (default 1100), or 1 GiB if that
            is more, are the limit of all arrays that it becomes.

    Raises:
        InvalidError: fewer than two sources, or other names, dtypes or shapes than in the first; a
            tensor whose name or dtype the result cannot hold; a cast that loses values, without
            `allow_loss`.
        TensorNotFoundError: a filter, or a name of a mapping `rename`, matches nothing.
        UnsupportedError: a source of an unknown version, or bits of a dtype of torch that differ
            between the sources.
        CheckpointNotFoundError: a source is missing.
        CorruptError, LimitError: a source is damaged, or beyond `limits`.
        StorageError: it could not be written; a checkpoint that was there is unchanged.
        BusyError: another process holds the lock of the directory.
        DurabilityUnknownError: it is in place, but a power cut may bring the older one back.
    """
    check_order("average(sources, destination)", "destination", destination, sources)
    check_progress(progress)
    options = SaveOptions(durability=durability)
    if isinstance(sources, os.PathLike):
        raise invalid("sources", "sources must be a list of checkpoints, not one")
    check_switch("dry_run", dry_run)
    paths = [path_text(one, "sources", urls=True) for one in listed("sources", sources, "paths")]
    if len(paths) < 2:
        raise invalid(
            "sources", f"sources: an average needs at least two checkpoints, not {len(paths)}"
        )
    target = path_text(destination, "destination", urls=True)
    changes = Changes.of(
        None, None, rename, cast, allow_loss, drop=drop, keep=keep, has_targets=False
    )
    kinds, result = [format_of(one, exists=True) for one in paths], format_of(target, exists=False)
    wait_for_saves()
    with contextlib.ExitStack() as stack:
        if result == "tensorflow":
            target = prefix_text(target, "destination", urls=True)
        if {*kinds, result} == {"tensorflow"}:
            readers = [
                stack.enter_context(Reader(locate(path, "sources"), verify="full", limits=limits))
                for path in paths
            ]
            mean = _Mean(readers, changes, dry_run)
            done = edited(
                readers[0],
                target,
                changes,
                mean.write,
                options,
                metadata=None,
                drop_weights=True,
                level=None,
                is_fresh=True,
                progress=progress,
            )
            return Average(
                target,
                len(mean.averaged),
                tuple(mean.taken),
                done.missing,
                done.losses,
                done.zeros,
                done.uncast,
            )
        every = [
            stack.enter_context(
                opened(
                    kind,
                    path,
                    limits,
                    keeps=result in ("safetensors", "tensorflow"),
                    as_state=result == "tensorflow",
                    way_out="",
                )
            )
            for kind, path in zip(kinds, paths, strict=True)
        ]
        averaged, differ = _take_means(every, changes)
        taken, most = take(every[0], changes), most_of(kinds[0], paths[0], limits)
        out = None
        if result != "tensorflow":
            files = (file for one in zip(kinds, paths, strict=True) for file in files_in(*one))
            target = output_path(target, files, regular=True)
            out = Export(result, target, durability, None)
        if dry_run:
            out.check(taken, most) if out is not None else check_taken(taken, most)
            for one in taken.tensors.values():
                for box in pieces(one.shape, one.dtype.itemsize) if isinstance(one, Made) else ():
                    one.read(box)
        elif out is None:
            write_checkpoint(taken, Result(target, options, limits), False, progress, None, most)
        else:
            target, _ = out.write(taken, False, progress, most)
        done_casts = changes.results()
        return Average(
            target,
            averaged,
            tuple(differ),
            taken.missing,
            done_casts["losses"],
            done_casts["zeros"],
            taken.uncast,
            tuple(taken.dropped),
        )


def _check_alike(
    changes: Changes,
    columns: Sequence[tuple[Collection[str], Callable[[str], tuple[Any, ...]], str, Passing]],
) -> list[str]:
    """Return the names of the tensors that changes leave of several sources; refuse a source that
    has other names, dtypes or shapes than the first.

    Args:
        columns: of each source the names, what returns dtype and shape of one, its path, and its
            names for filters.
    """
    _, first, path, _ = columns[0]
    ours: dict[str, None] = {}
    for stored, kind_of_one, own_path, passing in columns:
        names, _ = new_names(changes, list(stored), passing, own_path)
        theirs = {old: None for old, new in zip(stored, names, strict=True) if new is not None}
        theirs.pop(OBJECT_GRAPH_KEY, None)
        ours = ours if kind_of_one is not first else theirs
        for missing, what in (
            (ours.keys() - theirs.keys(), "lacks"),
            (theirs.keys() - ours.keys(), "also has"),
        ):
            if missing:
                raise InvalidError(
                    f"only checkpoints with the same tensors can be averaged: it {what} "
                    f"{some(sorted(missing))}, compared with {path}",
                    path=own_path,
                )
        for name in ours:
            if (one := kind_of_one(name)) != (wanted := first(name)):
                raise InvalidError(
                    "only checkpoints with the same tensors can be averaged: it is "
                    f"{_text(one)}, and {_text(wanted)} in {path}",
                    path=own_path,
                    tensor=name,
                )
    return list(ours)


def _text(kind: tuple[Any, ...]) -> str:
    return f"{kind[0]}{list(kind[1])}"


# ---- of checkpoints ------------------------------------------------------------------------------


class _Mean:
    """The mean of checkpoints with the same tensors.

    Attributes:
        averaged: names of the tensors that are means.
        taken: as in an Average.
    """

    def __init__(self, readers: list[Reader], changes: Changes, dry_run: bool) -> None:
        self._readers, self._dry_run = readers, dry_run
        rows = [one.table()[["dtype", "shape"]].tolist() for one in readers]
        self._names = _check_alike(
            changes,
            [
                (
                    list(one),
                    dict(zip(one, kinds, strict=True)).__getitem__,
                    one.prefix,
                    TensorNames(one).passing,
                )
                for one, kinds in zip(readers, rows, strict=True)
            ],
        )
        for reader in readers:
            check_covered(reader, self._names)
        for reader in readers[1:]:
            for name in {*readers[0]._notes, *reader._notes}.intersection(self._names):
                self._check_notes(readers[0][name], reader[name])
        self.averaged, self.taken = set[str](), list[str]()
        # Bits of dtypes of torch, with the parts of quantizers. complex32 is stored as its parts.
        notes = {name: one for name, one in readers[0]._notes.items() if one["dtype"] != COMPLEX}
        parts = (one.get(part) for one in notes.values() for part in PARTS)
        self._bits = notes.keys() | {part for part in parts if part is not None}

    def _check_notes(self, first: TensorHandle, other: TensorHandle) -> None:
        if not alike(first, other):
            kinds = [handle.meaning or handle.dtype_name for handle in (other, first)]
            raise InvalidError(
                "only checkpoints with the same tensors can be averaged: its elements are bits of "
                f"{kinds[0]}, and of {kinds[1]}, or of another quantizer, in "
                f"{self._readers[0].prefix}",
                path=other._reader.prefix,
                tensor=other.name,
            )

    def write(self, first: Reader, target: str, plan: Rewrite, progress: Progress | None) -> int:
        """Write the mean, or count what casts of it lose. Return the bytes of its arrays."""
        folder = scratch_of(target)  # of a new destination it does not exist yet
        folder = folder if folder is not None and os.path.isdir(folder) else None
        for name in self._names:
            handle = first[name]
            if _has_fractions(handle.dtype) and name not in self._bits:
                self.averaged.add(name)
            elif not self._is_same(handle, folder):
                if name in self._bits:
                    raise handle._unsupported(
                        f"bits of {handle.meaning or 'a quantizer'} that differ between the "
                        "sources are not averaged: ckptfmt.torch.load returns the tensors"
                    )
                self.taken.append(name)
        for reader in self._readers if self._dry_run else ():
            check_complete(reader.prefix, self._names)
        do = count_losses if self._dry_run else rewrite
        return do(first, target, plan._replace(read=self._read), progress)

    def _is_same(self, handle: TensorHandle, folder: str | None) -> bool:
        """Return whether the tensor is the same in all sources."""
        for piece in pieces_of(handle):
            first, *others = self._reads(piece, folder)
            ours = first()
            if not all(equal_values(ours, other()) for other in others):
                return False
        return True

    def _reads(self, piece: Piece, folder: str | None) -> list[Callable[[], NDArray[Any]]]:
        """Return what reads a stored value of the first source, and the same box of the others."""
        handles = [reader[piece.handle.raw_name] for reader in self._readers[1:]]
        others = [piece, *(Piece(one, piece.shape, piece.box, None) for one in handles)]
        return [partial(one.read, folder) for one in others]

    def _read(self, piece: Piece, folder: str | None) -> NDArray[Any]:
        name, dtype = piece.handle.name, piece.handle.dtype
        if name not in self.averaged or dtype is None:
            return piece.read(folder)
        result = new_array(name, piece.shape, dtype, folder)
        wide = new_array(name, piece.shape, _wide(dtype), folder)
        _fill_mean(result, wide, self._reads(piece, folder))
        return result


# ---- of files ------------------------------------------------------------------------------------


def _take_means(every: list[Taken], changes: Changes) -> tuple[int, list[str]]:
    """Replace tensors of the first source by means. Return how many, and the names of others that
    differ between the sources."""
    columns = [
        (one.tensors, partial(_kind_of, one.tensors), one.path, one.passing) for one in every
    ]
    averaged, differ, first = 0, list[str](), every[0].tensors
    for name in _check_alike(changes, columns):
        tensors = [one.tensors[name] for one in every]
        if _has_fractions(_dtype_of(tensors[0])):
            first[name] = _Averaged(tensors)
            averaged += 1
        elif _dtype_of(tensors[0]) is not None:
            for box in pieces(tensors[0].shape, max(tensors[0].dtype.itemsize, 1)):
                ours, *others = (one.read(box) for one in tensors)
                if not all(equal_values(ours, other) for other in others):
                    differ.append(name)
                    break
    return averaged, differ


def _dtype_of(tensor: Any) -> np.dtype[Any] | None:
    """Return the dtype of a tensor of a file; None if it cannot be read."""
    return tensor.dtype if getattr(tensor, "left_out", None) is None else None


def _kind_of(tensors: Mapping[str, Any], name: str) -> tuple[str, tuple[int, ...]]:
    tensor = tensors[name]
    refuse_unreadable({name: tensor})
    dtype = _dtype_of(tensor)
    return tensor.left_out if dtype is None else dtype_text(dtype), tuple(tensor.shape)


class _Averaged:
    """The mean of the tensors of several sources.

    Attributes:
        meaning: the dtype of torch that the tensor of the first source is the bits of, or None.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors, first = tensors, tensors[0]
        self.name, self.dtype, self.shape = first.name, first.dtype, first.shape
        self.meaning = getattr(first, "meaning", None)

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box of the mean."""
        shape = (*(side.stop - side.start for side in box), *self.shape[len(box) :])
        result, wide = np.empty(shape, self.dtype), np.empty(shape, _wide(self.dtype))
        _fill_mean(result, wide, [partial(one.read, box) for one in self._tensors])
        return result


# ---- numbers -------------------------------------------------------------------------------------


def _fill_mean(
    result: NDArray[Any], wide: NDArray[Any], reads: Sequence[Callable[[], NDArray[Any]]]
) -> None:
    """Store the mean of several arrays.

    Args:
        wide: an array of the same shape, of the dtype in which values are added.
        reads: each returns an array. They are called one after the other.
    """
    count, step = len(reads), STEP_BYTES // wide.itemsize
    # At most 1 / count, and a power of two: scaling rounds only subnormal numbers.
    scale = 0.5 ** (count - 1).bit_length()
    flat, total, scaled = result.reshape(-1), wide.reshape(-1), None
    with np.errstate(all="ignore"):
        _add(total, reads)
        for at in range(0, len(total), step):
            mean = total[at : at + step].view(np.float64) / count
            lost = ~np.isfinite(mean)
            if flat.dtype == total.dtype and lost.any():  # sums of smaller dtypes do not overflow
                if scaled is None:
                    scaled = np.empty_like(total)
                    _add(scaled, reads, scale)
                again = scaled[at : at + step].view(np.float64)[lost]
                most = np.where(np.isfinite(again), np.finfo(np.float64).max, np.inf)
                mean[lost] = np.clip(again / (count * scale), -most, most)
            flat[at : at + step] = mean.view(total.dtype).astype(flat.dtype)


def _add(
    total: NDArray[Any], reads: Sequence[Callable[[], NDArray[Any]]], scale: float = 1.0
) -> None:
    """Store the sum of arrays, each times `scale`."""
    step = STEP_BYTES // total.itemsize
    for number, read in enumerate(reads):
        value = read().reshape(-1)
        for at in range(0, len(total), step):
            # Real and imaginary parts are scaled one by one: a product of complex numbers is
            # NaN where one part is infinite.
            part = value[at : at + step].astype(total.dtype).view(np.float64) * scale
            into = total[at : at + step].view(np.float64)
            into[:] = part if number == 0 else into + part


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which values are added."""
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def _has_fractions(dtype: np.dtype[Any] | None) -> bool:
    return dtype is not None and kind_of(dtype) in ("f", "c")
