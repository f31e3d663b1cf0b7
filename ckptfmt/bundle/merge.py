# SPDX-License-Identifier: Apache-2.0
"""Merging bundles into one checkpoint by their indexes, without reading tensor bytes."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from ckptfmt import _core
from ckptfmt._base.arguments import (
    Durability,
    check_choice,
    check_limits,
    check_order,
    check_progress,
    check_switch,
    check_switches,
    invalid,
    listed,
)
from ckptfmt._base.names import METADATA, index_name, parse_data_name, path_text, prefix_text
from ckptfmt._base.progress import Progress
from ckptfmt.bundle.completeness import missing_data
from ckptfmt.bundle.meanings import PRNG_KEYS
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.state_tree import PYTREE
from ckptfmt.errors import (
    RESCUE,
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    MergeConflictError,
    ShardMissingError,
)
from ckptfmt.files.locate import located
from ckptfmt.files.places import canonical, elsewhere, is_file, store_of

Path = str | bytes | os.PathLike[Any]

LISTED_MIN = 16
# Inputs that an error names.
NAMED_MAX = 8


def merge(
    prefixes: Iterable[Path],
    destination: Path,
    *,
    inputs: Literal["keep", "consume"] = "keep",
    partial: bool = False,
    metadata_from: Path | None = None,
    durability: Durability = "full",
    progress: Progress | None = None,
    limits: Mapping[str, int] | None = None,
) -> None:
    """Merge checkpoints into one. Slices of one tensor in different inputs become one tensor.

    Everything is checked before the first change on disk, so that a conflict changes nothing. If
    the process is killed, all inputs or the result can be read, and the same call made again
    finishes the merge. If all inputs were removed already, that call raises
    CheckpointNotFoundError, and the message says that the destination is whole. An input that is
    saved again during the merge is not lost if its writer commits by renaming an index, as `Writer`
    does (TensorFlow overwrites data files first). No tensor bytes are read. Memory: the merged
    index, and one block of each input's index.

    >>> for part in range(2):
    ...     with ckptfmt.Writer(f"part-{part}") as writer:
    ...         writer.add_slice("w", np.full((2, 3), part), shape=(4, 3), offset=(2 * part, 0))
    >>> ckptfmt.merge(["part-0", "part-1"], "model")
    >>> ckptfmt.load("model")["w"].shape
    (4, 3)

    Args:
        prefixes: the inputs, an iterable of paths of checkpoints (prefixes, directories, URLs).
            Their order determines the numbers of the data files.
        destination: the result's path without extension, str, bytes or os.PathLike, or a URL.
        inputs: "keep" leaves the inputs as they are and hard-links their data files; "consume"
            removes the inputs afterwards, so that their data files have moved. Where the file
            system has no links the data files are copied.
        partial: True allows a result with tensors that its slices do not cover, such as a part of a
            later merge. Without it a part that was forgotten is an error, unless the call finishes
            a merge that was killed.
        metadata_from: one of the inputs: the result has its metadata, or none if it has none.
            Without it, metadata of several inputs must be equal. What `ckptfmt.torch` and
            `ckptfmt.jax` note of tensors in the metadata must be equal in any case.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        progress: called as `progress(done, total)` with two ints, of bytes of the data files, which
            are only read where they are copied.
        limits: what a file may ask of this process: a mapping of names of `ckptfmt_limits` in
            `ckptfmt.h` to int, such as {"index_bytes_max": 1 << 30}; None: the defaults there.

    Raises:
        MergeConflictError: two inputs have the same tensor or slice, or different dtypes or shapes
            of one tensor, or different metadata (`metadata_from`).
        BusyError: an input was saved again during the merge, or another process held the lock of
            the destination's directory for minutes.
        InvalidError: no inputs, a repeated input, an input that is the destination, or a name of
            the destination that a prefix cannot have; `metadata_from` is not an input, or would
            lose notes on tensors.
        CheckpointNotFoundError: an input is missing.
        CorruptError: an input is damaged; or, with the failure BAD_SLICE, elements of a tensor are
            in no input.
        UnsupportedError, LimitError: an input of an unknown version, or beyond `limits`.
        StorageError: reading or writing failed; with the failure NOT_REMOVED, the result is in
            place and an input could not be removed.
    """
    check_order("merge(prefixes, destination)", "destination", destination, prefixes)
    check_choice("inputs", inputs, ("keep", "consume"))
    check_choice("durability", durability, get_args(Durability))
    check_switch("partial", partial)
    check_progress(progress)
    check_limits(limits)
    merge_located(
        prefixes,
        destination,
        inputs == "consume",
        durability,
        partial=partial,
        metadata_from=metadata_from,
        progress=progress,
        limits=limits,
    )


def merge_located(
    prefixes: Iterable[Path],
    destination: Path,
    consume: bool,
    durability: Durability,
    *,
    allow_missing: bool = False,
    partial: bool = False,
    metadata_from: Path | None = None,
    progress: Progress | None = None,
    limits: Mapping[str, int] | None = None,
) -> None:
    """As `merge`; `allow_missing` leaves out inputs that do not exist, unless an earlier call of
    this merge has moved them."""
    missing: list[CheckpointNotFoundError] = []
    given = _listed(prefixes, "prefixes")
    target = prefix_text(destination, "destination", urls=True)
    there = _indexes(given)
    located = [_locate(prefix, there, missing) for prefix in given]
    if missing and not (consume or allow_missing):
        raise missing[0]
    described = None
    if metadata_from is not None:
        text = path_text(metadata_from, "metadata_from", urls=True)
        described = _described(located, _locate(text, there, []), limits)
    try:
        _core.merge(
            located,
            target,
            consume=consume,
            allow_missing=allow_missing,
            durability=durability,
            limits=limits,
            partial=partial,
            metadata_from=described,
            store=common_store(located, target),
            progress=progress,
        )
    except CorruptError as error:
        if error.rule == "SLC-11":  # of the result, which does not exist: nothing to rescue
            error.__notes__.remove(RESCUE)
        raise
    except MergeConflictError as error:
        if error.rule == "MRG-16":
            error.hint("; metadata_from= says whose the result has")
            error.argument = "metadata_from"
        raise
    except CheckpointNotFoundError as error:
        # Missing inputs are right only where a merge that was killed had consumed them.
        reported = missing[0] if missing else error
        if consume:
            add_finished(reported, located, target)
        raise reported from None


def merge_v2_checkpoints(
    checkpoint_prefixes: Iterable[Path],
    destination_prefix: Path,
    delete_old_dirs: bool = True,
    allow_missing_files: bool = False,
) -> None:
    """Merge bundles as TensorFlow's MergeV2Checkpoints op (`tf.raw_ops.MergeV2Checkpoints`): on a
    fresh destination the result has the same bytes.

    The data files move and the inputs are removed. Unlike in TensorFlow, everything is checked
    first, the result appears atomically, and a call that was killed can be made again. As in
    TensorFlow, slices need not cover their tensor.

    >>> ckptfmt.save_v2("tmp/part-0", ["a"], [""], [np.ones(2)])
    >>> ckptfmt.save_v2("tmp/part-1", ["b"], [""], [np.zeros(2)])
    >>> ckptfmt.merge_v2_checkpoints(["tmp/part-0", "tmp/part-1"], "model")
    >>> sorted(ckptfmt.load("model"))
    ['a', 'b']

    Args:
        checkpoint_prefixes: an iterable of the inputs' prefixes, taken literally.
        destination_prefix: the result's path without extension, str, bytes or os.PathLike, or a
            URL.
        delete_old_dirs: True also removes the inputs' directories that are empty afterwards.
        allow_missing_files: True leaves out inputs that do not exist (at least one must exist).

    Raises:
        MergeConflictError: two inputs have the same tensor or slice, or different dtypes or shapes
            of one tensor, or different metadata.
        CheckpointNotFoundError: an input is missing, or all of them.
        CorruptError, UnsupportedError, LimitError: an input is damaged, of an unknown version, or
            too large.
        InvalidError: no inputs, a repeated input, or an input that is the destination.
        BusyError: an input was saved again during the merge, or another process held the lock of
            the destination's directory for minutes.
        StorageError: reading or writing failed, or an input could not be removed.
    """
    check_switches(delete_old_dirs=delete_old_dirs, allow_missing_files=allow_missing_files)
    prefixes = _listed(checkpoint_prefixes, "checkpoint_prefixes")
    destination = path_text(destination_prefix, "destination_prefix", urls=True)
    try:
        _core.merge(
            prefixes,
            destination,
            consume=True,
            allow_missing=allow_missing_files,
            durability="full",
            limits=None,
            remove_directories=delete_old_dirs,
            store=common_store(prefixes, destination),
        )
    except CheckpointNotFoundError as error:
        add_finished(error, prefixes, destination)
        raise


def check_seen(bundle: str, target: str, writer: str, reader: str, everyone: str) -> None:
    """Refuse a bundle that its writer, another process, has finished and that is not there.

    Args:
        bundle: its prefix.
        target: the checkpoint that it is a part of.
        writer, reader, everyone: the processes, for the message.
    """
    index = index_name(bundle)
    if not is_file(index):
        raise CheckpointNotFoundError(
            f"{writer} wrote its part here, but {reader} does not see it: is {target} on a file "
            f"system that all {everyone} share?",
            path=index,
        )


def add_finished(error: CheckpointNotFoundError, prefixes: list[str], destination: str) -> None:
    """Add to the error of a merge that removes its inputs that an earlier call may have finished:
    no input exists, and the destination is whole. If only some are missing, an earlier call of the
    same merge has not finished."""
    try:
        if any(is_file(index_name(prefix)) for prefix in prefixes) or missing_data(destination):
            return
    except CkptfmtError:  # it cannot be read now, or not by this version
        return
    inputs = ""
    if len(prefixes) > 1:
        more = f" and {len(prefixes) - NAMED_MAX} more" * (len(prefixes) > NAMED_MAX)
        inputs = f"; {', '.join(prefixes[:NAMED_MAX])}{more} do not exist"
    error.hint(f"{inputs}; {destination} exists and is whole; an earlier call may have finished")


def check_one_store(prefixes: Sequence[str], destination: str) -> None:
    """Check that the inputs of a merge are where its result is.

    Raises:
        InvalidError: they are not.
    """
    prefix = elsewhere(destination, prefixes)
    if prefix is not None:
        raise invalid(
            "destination",
            "a merge copies no bytes, so that all its checkpoints must be in one store: "
            f"{prefix} and {destination} are not",
        )


def common_store(prefixes: Sequence[str], destination: str) -> _core.Store | None:
    """Return the object store of a merge's inputs and result, None in the file system; errors as
    `check_one_store`."""
    check_one_store(prefixes, destination)
    return store_of(destination)


def _described(prefixes: list[str], chosen: str, limits: Mapping[str, int] | None) -> int:
    """Return the index of the input whose metadata the result has. Refuse to lose what metadata
    note of tensors: the structure of a torch state, or dtypes that the format lacks."""
    spelled = [*map(canonical, prefixes)]
    if canonical(chosen) not in spelled:
        raise invalid("metadata_from", f"metadata_from: {chosen} is not an input")
    index = spelled.index(canonical(chosen))
    chosen = prefixes[index]
    found: dict[str, dict[str, Any]] = {}
    for prefix in prefixes:
        # What an earlier call of this merge has moved is missing.
        gone = CheckpointNotFoundError, ShardMissingError
        with contextlib.suppress(*gone), Reader(prefix, limits=limits) as reader:
            if METADATA in reader or prefix == chosen:
                found[prefix] = reader.metadata
    for prefix, metadata in found.items() if chosen in found else ():
        for key in sorted({*metadata, *found[chosen]}):
            # Names say enough without the structure of a pytree.
            is_note = (key.startswith("ckptfmt.") and key != PYTREE) or key == PRNG_KEYS
            if is_note and metadata.get(key) != found[chosen].get(key):
                raise invalid(
                    "metadata_from",
                    f"the metadata {key!r} are about tensors, and differ in {chosen} and {prefix}: "
                    f"`ckptfmt edit --set-metadata {key}=` removes them in a copy of each",
                    path=prefix,
                )
    return index


def _indexes(prefixes: list[str]) -> set[str]:
    """Index files in directories that contain many of the prefixes: to list such a directory
    is less than to look for each. What is not found here is looked for."""
    found: set[str] = set()
    for directory, count in collections.Counter(map(os.path.dirname, prefixes)).items():
        if count < LISTED_MIN:
            continue
        with contextlib.suppress(OSError), os.scandir(directory or ".") as entries:
            # An input is two files. One where most are others' is not gone through.
            for entry in itertools.islice(entries, 4 * count):
                if entry.name.endswith(".index") and entry.is_file():
                    found.add(os.path.join(directory, entry.name))
    return found


def _locate(prefix: str, there: set[str], missing: list[CheckpointNotFoundError]) -> str:
    if index_name(prefix) in there:
        return prefix
    try:
        return located(prefix)
    except CheckpointNotFoundError as error:
        error.hint("; an input of the merge did not exist")  # TensorFlow's words
        missing.append(error)
        base = prefix.removesuffix(".index")
        data = parse_data_name(base)
        return base if data is None else data.prefix


def _listed(prefixes: Iterable[Path], what: str) -> list[str]:
    if isinstance(prefixes, os.PathLike):
        raise invalid(what, f"{what} must be a list of prefixes, not one")
    found = listed(what, prefixes, "prefixes")
    if not found:
        raise invalid(what, f"{what} is empty: there is nothing to merge")
    return [path_text(one, what, urls=True) for one in found]
