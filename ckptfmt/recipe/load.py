# SPDX-License-Identifier: Apache-2.0
"""Load many tensors at once: `load` into new arrays, `load_into` into the caller's, `restore_v2`
as TensorFlow does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from ckptfmt._base import slices
from ckptfmt._base.arguments import Verify, check_order, check_progress, check_sized, invalid
from ckptfmt._base.casting import can_cast
from ckptfmt._base.hints import near, some
from ckptfmt._base.names import OBJECT_GRAPH_KEY, VALUE_SUFFIX, path_text, tensor_bytes
from ckptfmt._base.patterns import Filter, by_text
from ckptfmt._base.progress import Progress
from ckptfmt._base.renaming import Rename, Transform, transformed, transformed_kind
from ckptfmt._base.targets import Target
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.batch import Batch, box_of_text, check_dtypes, select_batch, whole_batch
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import CkptfmtError, InvalidError, TensorNotFoundError, printable
from ckptfmt.recipe.changes import Cast, Changes, Names

Path = str | bytes | os.PathLike[Any]


def load(
    path: Path,
    names: Names | None = None,
    *,
    filter: Filter | None = None,  # noqa: A002 (named as the built-in)
    rename: Rename | None = None,
    cast: Cast | None = None,
    allow_loss: bool = False,
    verify: Verify = "auto",
    progress: Progress | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Load tensors of a checkpoint as new numpy arrays; `load_into` fills arrays that exist.

    >>> ckptfmt.save("model", {"layer/kernel": np.ones((2, 3)), "step": 7})
    >>> ckptfmt.load("model", filter="layer/*", cast="float16")["layer/kernel"].dtype
    dtype('float16')

    Args:
        path: a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of these.
        names: the tensors to load, str or bytes; None: all. A missing one is an error. The result
            has them as given: stored names, or those that `ckptfmt inspect` prints.
        filter: which tensors to load: a name, a glob pattern (`*` matches slashes too), `/REGEX/`
            or a compiled pattern found anywhere in the name, or a function of it; None: all. The
            path of the variable's object matches as well.
        rename: stored name to new name: a mapping, a function, or a list of pairs (regular
            expression, replacement) applied in order, as `re.sub` does. None from a function or a
            pair drops the tensor. A transform, a function of the array such as `numpy.transpose`,
            may follow the new name.
        cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at least
            one dimension, or a mapping of filters to dtypes: the first that matches counts, None
            changes nothing.
        allow_loss: True allows casts that change values by more than rounding: overflow, lost
            fractions. A CkptfmtWarning counts them.
        verify: "auto": check whole reads, and parts where that is cheap; "full": all; "off": none.
        progress: called as `progress(done, total)` with two ints, from this thread, of bytes of the
            arrays; strings count as stored.

    Returns:
        Name to array, in the order of `names`. Small arrays are views of a common allocation.

    Raises:
        TensorNotFoundError: one of `names` is missing, or `filter`, or a key of `cast` or `rename`,
            matches nothing.
        InvalidError: an argument of a wrong type; two tensors get the same name; a cast loses
            values, without `allow_loss`.
        CheckpointNotFoundError: there is no checkpoint at `path`.
        CorruptError, UnsupportedError, LimitError, StorageError: it is damaged, of an unknown
            version, too large, or cannot be read now.
    """
    check_order("load(path, names)", "path", path, names)
    check_progress(progress)
    choice = Changes.of(names, filter, rename, cast, allow_loss, has_targets=False)
    with reading.open(path, verify=verify) as reader:
        choice, batch = _selected(choice, reader)
        if filter is rename is cast is None and not batch.meant:
            asked = map(choice.asked.get, batch.names, batch.names) if choice.asked else batch.names
            return dict(zip(asked, batch.read_each(progress), strict=True))
        new_names, _, transforms = choice.chosen(batch.names, reader.prefix)
        if list(new_names) != batch.names:
            positions = {name: position for position, name in enumerate(batch.names)}
            batch = batch.only([positions[name] for name in new_names])
        casts = _casts(choice, batch)
        meant = {p: one.taken(is_cast=p in casts) for p, one in batch.meant.items()}
        changes = [n for n, name in enumerate(batch.names) if name in transforms]
        found = {new_names[name]: np.empty(0) for name in batch.names}
        for position, array in batch.read_in_parts({*casts, *meant, *changes}, progress):
            name = batch.names[position]
            if position in meant:
                array = meant[position].values(array)  # noqa: PLW2901
            if position in casts:
                array = choice.converted(array, casts[position], name)  # noqa: PLW2901
            if name in transforms:
                array = transformed(name, array, transforms[name])  # noqa: PLW2901
            found[new_names[name]] = array
        choice.warn()
        return found


def _selected(choice: Changes, reader: Reader) -> tuple[Changes, Batch]:
    """Return the choice with stored names, and the tensors of a load.

    Raises:
        TensorNotFoundError, InvalidError: as `Changes.by_names_of`.
    """
    wanted = choice.names
    # A key of a mapping may match tensors that are not loaded.
    if wanted is None or isinstance(choice.cast, Mapping) or isinstance(choice.rename, Mapping):
        batch = whole_batch(reader)
        return choice.by_names_of(reader, frozenset(batch.names if wanted else ())), batch
    try:
        selection = reader._handle.select(list(map(tensor_bytes, wanted)))
    except TensorNotFoundError:  # some are other names than the stored ones, or of no tensor
        choice = choice.by_names_of(reader, reader)
        return choice, select_batch(reader, list(map(tensor_bytes, choice.names or ())))
    batch = Batch(reader, selection, range(len(wanted)), list(wanted))
    return choice.by_names_of(reader, frozenset(wanted)), batch


@dataclass(frozen=True)
class Mismatch:
    """A tensor that cannot be read into the array of its name.

    Attributes:
        name: name of the array.
        stored_name: name of the tensor, which differs after `rename`.
        stored: shape or dtype in the checkpoint.
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
    """Which tensors of a checkpoint match which target arrays. True if all match.

    Attributes:
        matched: names of arrays with a matching tensor, in the checkpoint's order.
        missing: names of arrays without a tensor in the checkpoint, in the order given.
        unexpected: stored names of tensors without an array. The object graph and the save counter
            of a `tf.train.Checkpoint` are not among them.
        shape_mismatch: tensors whose array has another shape.
        dtype_mismatch: tensors whose array has another dtype that they are not cast to. A tensor
            may be in `shape_mismatch` too.
        filtered: names of arrays that the filter leaves unchanged; not a problem.
        structure_mismatch: objects that cannot take the stored value, for example an optimizer with
            another number of parameters (`ckptfmt.torch`).
        unused: keys of the mappings `cast` and `rename` that match no tensor.
        losses: by stored name, how many elements casts changed by more than rounding
            (`allow_loss`).
        zeros: by stored name, how many elements casts rounded to 0.
        uncast: stored names of the 0-d tensors of the kind of `cast=DTYPE`, which leaves them; not
            a problem.
        left: parts of the target whose state the checkpoint does not have, such as the vocabulary
            of a layer (`ckptfmt.keras`) or a buffer that stays on the meta device
            (`ckptfmt.torch`); not a problem.
    """

    matched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    shape_mismatch: tuple[Mismatch, ...] = ()
    dtype_mismatch: tuple[Mismatch, ...] = ()
    filtered: tuple[str, ...] = ()
    structure_mismatch: tuple[Mismatch, ...] = ()
    unused: tuple[str, ...] = ()
    losses: dict[str, int] = field(default_factory=dict)
    zeros: dict[str, int] = field(default_factory=dict)
    uncast: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every array has its tensor, every tensor its array and every key a tensor."""
        return not any(self._faults())

    def __bool__(self) -> bool:
        return self.complete

    def _faults(self) -> Iterator[str]:
        if self.missing:
            yield f"missing in the checkpoint ({len(self.missing)}): {some(self.missing)}"
        if self.unexpected:
            yield (
                f"unexpected in the checkpoint, without a target ({len(self.unexpected)}): "
                f"{some(self.unexpected)}"
            )
        for what, found in self._mismatches():
            if found:
                yield f"of another {what} ({len(found)}): {some(found, quote='')}"
        if self.unused:
            yield f"keys that match no tensor ({len(self.unused)}): {some(self.unused)}"

    def _mismatches(self) -> Iterator[tuple[str, tuple[Mismatch, ...]]]:
        yield "shape", self.shape_mismatch
        yield "dtype", self.dtype_mismatch
        yield "structure", self.structure_mismatch

    def __str__(self) -> str:
        wrong = {one.name for _, found in self._mismatches() for one in found}
        total = len(self.matched) + len(self.missing) + len(wrong) + len(self.filtered)
        lines = [f"matched: {len(self.matched)} of {total} tensors", *self._faults()]
        if self.filtered:
            lines.append(f"left out by the filter ({len(self.filtered)}): {some(self.filtered)}")
        if self.losses:
            total = sum(self.losses.values())
            lines.append(f"changed by casts, beyond rounding ({total}): {some(self.losses)}")
        if self.uncast:
            lines.append(f"0-d, left by the cast ({len(self.uncast)}): {some(self.uncast)}")
        if self.left:
            lines.append(f"without a state in the checkpoint ({len(self.left)}): {some(self.left)}")
        return "\n".join(map(printable, lines))


MatchReport.__module__ = "ckptfmt.types"


def load_into(
    path: Path,
    targets: Mapping[str, Any],
    *,
    names: Names | None = None,
    filter: Filter | None = None,  # noqa: A002 (named as the built-in)
    rename: Rename | None = None,
    cast: Cast | None = None,
    allow_loss: bool = False,
    strict: bool = True,
    verify: Verify = "auto",
    progress: Progress | None = None,
) -> MatchReport:
    """Load the tensors of a checkpoint into the caller's arrays, by name. Everything is checked
    before the first byte is written.

    >>> ckptfmt.save("model", {"w": np.ones(3), "b": np.zeros(2)})
    >>> weights = {"w": np.empty(3, "float32")}
    >>> report = ckptfmt.load_into("model", weights, names=["w"], cast=True)
    >>> report.matched, weights["w"].tolist()
    (('w',), [1.0, 1.0, 1.0])

    Args:
        path: a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of these.
        targets: name to array of any framework in writable CPU memory (numpy, DLPack, buffers), for
            example a torch state dict. Arrays that share memory are refused, unless they are the
            same elements and their tensors have equal bytes (tied weights).
        names: the tensors to load, str or bytes; None: all. A missing one is an error. They are
            then the names in `targets`: stored names, or those that `ckptfmt inspect` prints.
            Targets of the others stay as they are.
        filter: which tensors to load: a name, a glob pattern (`*` matches slashes too), `/REGEX/`
            or a compiled pattern found anywhere in the name, or a function of it; None: all. The
            path of the variable's object matches as well. Targets of the others stay as they are.
        rename: stored name to new name: a mapping, a function, or a list of pairs (regular
            expression, replacement) applied in order, as `re.sub` does. None from a function or a
            pair drops the tensor. A transform, a function of the array such as `numpy.transpose`,
            may follow the new name. A transform is also called with zeros before anything is read,
            to learn the shape and dtype of its result.
        cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at least
            one dimension, or a mapping of filters to dtypes: the first that matches counts, None
            changes nothing. True: numbers become what their targets are.
        allow_loss: True allows casts that change values by more than rounding: overflow, lost
            fractions. The result counts them.
        strict: True: anything that does not match is an error. False: load what matches.
        verify: "auto": check whole reads, and parts where that is cheap; "full": all; "off": none.
        progress: called as `progress(done, total)` with two ints, from this thread, of bytes of the
            arrays; strings count as stored.

    Returns:
        What matched and what did not, and what casts lost.

    Raises:
        TensorNotFoundError: `strict`, and targets without a tensor are the only problem; or one of
            `names` is missing, or `filter` or a key of `cast` or `rename` matches no tensor. The
            first has the MatchReport as its attribute `report`.
        InvalidError: `strict`, and something else does not match (with `report`); two tensors have
            the same target; a target is not writable or shares memory with another; an argument of
            a wrong type; or a cast loses values, without `allow_loss` (targets then have
            unspecified contents).
        CheckpointNotFoundError: there is no checkpoint at `path`.
        CorruptError, UnsupportedError, LimitError, StorageError: it is damaged, of an unknown
            version, too large, or cannot be read now. Targets then have unspecified contents.
    """
    check_order("load_into(path, targets)", "path", path, targets)
    check_progress(progress)
    targets = by_text("targets", targets)
    choice = Changes.of(names, filter, rename, cast, allow_loss, strict)
    with reading.open(path, verify=verify) as reader:
        everything = whole_batch(reader)
        choice = choice.by_names_of(reader, frozenset(everything.names if choice.names else ()))
        new_names, left_out, transforms = choice.chosen(everything.names, reader.prefix)
        kept = {
            position: new_names[old]
            for position, old in enumerate(everything.names)
            if new_names.get(old) in targets
        }
        unexpected = [old for old, new in new_names.items() if new not in targets]
        present = {*new_names.values(), *left_out.values()}
        batch, found = everything.only(list(kept)), list(kept.values())
        casts, casts_all = _casts(choice, batch), choice.cast is True
        meant = {p: one.dequantized() if casts_all else one for p, one in batch.meant.items()}
        fits, shapes, dtypes = _compared(batch, found, targets, meant, casts_all, casts, transforms)
        meant = {p: meant[p].taken(is_cast=p in casts) for p in fits if p in meant}
        loaded = set(found)
        report = MatchReport(
            tuple(found[position] for position in fits),
            tuple(name for name in targets if name not in present),
            without_bookkeeping(unexpected, everything.names),
            tuple(shapes),
            tuple(dtypes),
            tuple(name for name in targets if name in present and name not in loaded),
        )
        if strict and not report:
            refuse(reader.prefix, report, remedy=rename_remedy if rename is None else None)
        chosen = batch.only(list(fits))
        converted: dict[int, Target] = {}
        for position, (target, is_direct) in enumerate(fits.values()):
            (chosen.targets if is_direct else converted)[position] = target
        origins = list(fits)
        ways = {
            position: (
                casts.get(at := origins[position]),
                id(transforms.get(chosen.names[position])),
                repr(meant[at].note) if at in meant else None,
            )
            for position in converted
        }
        chosen.check_targets(converted, ways)
        for position, stored in chosen.read_in_parts(converted, progress):
            if position not in converted:
                continue
            name, at, target = chosen.names[position], origins[position], converted[position]
            array = target.array
            result = meant[at].values(stored) if at in meant else stored
            if at in casts:
                result = choice.converted(result, casts[at], name)
            if name in transforms:
                transform = transforms[name]
                dtype, _ = transformed_kind(name, result.dtype, result.shape, transform)
                result = transformed(name, result, transform, array.shape, dtype)
            target.mark_written()
            array[...] = choice.converted(result, array.dtype, name)
            del stored, result  # before the next is read
    return choice.reported(report)


def _casts(choice: Changes, batch: Batch) -> dict[int, np.dtype[Any]]:
    """Return the casts of the values of a batch; refuse tensors without any."""
    for one in batch.meant.values():
        one.taken(is_cast=True)
    return choice.casts(batch.names, batch.meant_dtypes(), batch.meant_shapes)


# What `tf.train.Checkpoint.save` adds to the variables of the program.
_BOOKKEEPING = {OBJECT_GRAPH_KEY, f"save_counter{VALUE_SUFFIX}"}


def without_bookkeeping(unexpected: Collection[str], stored: Collection[str]) -> tuple[str, ...]:
    """Return the unexpected names without the object graph and the save counter, if the checkpoint
    with these stored names has an object graph."""
    ignored = _BOOKKEEPING if OBJECT_GRAPH_KEY in stored else ()
    return tuple(name for name in unexpected if name not in ignored)


# The target by position, and whether the tensor is read into it directly.
Fits = dict[int, tuple[Target, bool]]


def _compared(
    batch: Batch,
    wanted: list[str],
    targets: Mapping[str, Any],
    meant: Mapping[int, TensorHandle],
    casts_all: bool,
    casts: Mapping[int, np.dtype[Any]],
    transforms: Mapping[str, Transform],
) -> tuple[Fits, list[Mismatch], list[Mismatch]]:
    """Compare tensors with their targets. Return the positions that fit, with the target and
    whether the tensor is read into it directly; the mismatches of shape; those of dtype."""
    fits: Fits = {}
    shapes, dtypes = [], []
    for position, name in enumerate(wanted):
        handle = meant[position] if position in meant else batch.handle(position)
        target = handle._borrow(targets[name])
        array = target.array
        stored, shape = handle._expected()
        given = casts.get(position, stored)
        transform = transforms.get(handle.name)
        if transform is not None:
            given, shape = transformed_kind(handle.name, given, shape, transform)
        can = casts_all and handle.dtype is not None and can_cast(given, array.dtype)
        # The target's byte order is its own.
        is_same = given == (array.dtype if array.dtype.isnative else array.dtype.newbyteorder("="))
        result = array.dtype if can or is_same else given
        if array.shape != shape:
            shapes.append(Mismatch(name, handle.name, shape, array.shape))
        if array.dtype != result:
            dtypes.append(Mismatch(name, handle.name, result, array.dtype))
        if array.shape == shape and array.dtype == result:
            is_direct = transform is None and result == stored and position not in meant
            fits[position] = target, is_direct
    return fits, shapes, dtypes


def refuse(
    prefix: str,
    report: MatchReport,
    *,
    casts: Callable[[Any, Any], bool] = can_cast,
    present: Collection[str] = (),
    remedy: Callable[[str, str], str] | None = None,
) -> NoReturn:
    """Raise the error for a report with problems.

    Args:
        prefix: of the checkpoint.
        report: with its problems.
        casts: whether `cast=True` would convert the first dtype to the second.
        present: more names that a missing one may mean.
        remedy: what to do if the names that begin with the first text, in the checkpoint, are to
            begin with the second.
    """
    faults = list(report._faults())
    message = "; ".join(faults)
    starts = _starts(report) if remedy is not None else None
    if remedy is not None and starts is not None:
        before, after = starts
        message += (
            f"; these names differ only in how they begin ('{before}' in the checkpoint, "
            f"'{after}' in the target): {remedy(before, after)}"
        )
    elif report.missing:
        message += near(report.missing[0], report.unexpected or present)
    others = report.dtype_mismatch
    if others and all(casts(other.stored, other.wanted) for other in others):
        message += "; cast=True converts to the dtypes of the targets"
    error: CkptfmtError
    if report.missing and len(faults) == 1:
        error = TensorNotFoundError(message, path=prefix, tensor=report.missing[0])
    else:
        error = InvalidError(message, path=prefix)
    error.report = report
    raise error


def _starts(report: MatchReport) -> tuple[str, str] | None:
    """Return with what the unexpected names begin, and the missing ones, if these are else equal
    ("module." and "", "model." and "model._orig_mod."); None if not, or if a rename of all that
    begin so would move a name that matches."""
    stored, wanted = sorted(report.unexpected), sorted(report.missing)
    if not wanted or len(stored) != len(wanted):
        return None
    for at in (0, *(found.end() for found in re.finditer("[./]", stored[0]))):
        before, rest = stored[0][:at], stored[0][at:]
        after = wanted[0].removesuffix(rest)
        if after[-1:] not in ("", ".", "/") or any(n.startswith(before) for n in report.matched):
            continue
        pairs = zip(stored, wanted, strict=True)
        if all(one.startswith(before) and other == after + one[at:] for one, other in pairs):
            return before, after
    return None


def rename_remedy(before: str, after: str) -> str:
    """Return the argument that renames all that begins with one text, for a message."""
    pattern = "^" + re.escape(before).replace("\\.", "[.]").replace("\\-", "-")
    return f"pass rename={[(pattern, after)]!r}"


def restore_v2(
    prefix: Path,
    tensor_names: Sequence[str | bytes],
    shape_and_slices: Sequence[str | bytes],
    dtypes: Sequence[Any] | None = None,
    *,
    verify: Verify = "auto",
) -> list[np.ndarray[Any, Any]]:
    """Restore as TensorFlow's RestoreV2 op (`tf.raw_ops.RestoreV2`). Unlike there, slices of every
    dtype and rank can be stitched.

    >>> ckptfmt.save("model", {"w": np.arange(6.0).reshape(3, 2)})
    >>> ckptfmt.restore_v2("model", ["w", "w"], ["", "3 2 1,2:0,1"])[1].tolist()
    [[2.0], [4.0]]

    Args:
        prefix: a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of these.
        tensor_names: str or bytes; repeats are allowed.
        shape_and_slices: str or bytes, one for each name: "" for the whole tensor, else its full
            shape and the slice: "4 6 0,2:-" is rows 0 and 1 of 4, all 6 columns.
        dtypes: the dtypes expected, one a name; None takes what is stored. Nothing is ever cast.
        verify: "auto": check whole reads, and parts where that is cheap; "full": all; "off": none.

    Returns:
        One array a name, of the slice's shape.

    Raises:
        TensorNotFoundError: a tensor is missing.
        InvalidError: different numbers of arguments, another dtype than expected (all of them are
            named), a text that is malformed or whose shape is not the stored one.
        CheckpointNotFoundError: there is no checkpoint at `prefix`.
        CorruptError, UnsupportedError, LimitError, StorageError: it is damaged, of an unknown
            version, too large, or cannot be read now.
    """
    slices.check_texts(tensor_names, shape_and_slices)
    if dtypes is not None:
        check_sized("dtypes", dtypes, "dtypes")
        if len(dtypes) != len(tensor_names):
            raise invalid(
                "dtypes",
                f"Got {len(tensor_names)} tensor names, but {len(dtypes)} expected dtypes.",
            )
    with reading.open(path_text(prefix, "prefix", urls=True), verify=verify) as reader:
        batch = select_batch(reader, [tensor_bytes(name, "tensor_names") for name in tensor_names])
        if dtypes is not None:
            check_dtypes(batch, dtypes)
        for position, spec in enumerate(shape_and_slices):
            if spec:
                batch.boxes[position] = box_of_text(batch.handle(position), spec)
        return batch.read(None)
