# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt.editing.edit`: rename, drop and cast tensors, and set metadata."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import (
    Durability,
    Level,
    check_limits,
    check_progress,
    check_switches,
    invalid,
)
from ckptfmt._base.background import wait_for_saves
from ckptfmt._base.casting import dtype_text
from ckptfmt._base.hints import some
from ckptfmt._base.names import check_saved, prefix_text
from ckptfmt._base.patterns import Filters
from ckptfmt._base.progress import Progress
from ckptfmt._base.renaming import Rename
from ckptfmt._base.save_options import SaveOptions
from ckptfmt.bundle.completeness import check_complete, check_covered
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY, ObjectGraph, encode_graph
from ckptfmt.bundle.graph_keys import graph_of, missing_keys
from ckptfmt.bundle.meanings import PRNG_KEYS, notes_of
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.state_tree import KEY
from ckptfmt.bundle.writer import metadata_json
from ckptfmt.errors import CkptfmtError, InvalidError, TensorNotFoundError, masked_repr, warn
from ckptfmt.files.locate import locate
from ckptfmt.files.places import is_file
from ckptfmt.naming.graphs import edited_graph, paths_differ, relocate_keys
from ckptfmt.naming.metadata import NamedInMetadata
from ckptfmt.naming.roles import ModelRole, model_roles
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.recipe.changes import Cast, Changes
from ckptfmt.recipe.checkpoint import Rewrite, count_losses, rewrite
from ckptfmt.recipe.plan import Tensors, plan

Path = str | bytes | os.PathLike[Any]


@dataclass(frozen=True)
class Edit:
    """What `edit` did.

    Attributes:
        path: prefix of the result.
        tensors: number of tensors in it.
        renamed: new names by stored name, of those that changed.
        dropped: stored names of dropped tensors.
        casts: by stored name, the dtypes before and after.
        copied_nbytes: bytes of arrays that were copied or changed; the rest is linked.
        losses: by stored name, how many elements casts changed by more than rounding
            (`allow_loss`).
        zeros: by stored name, how many elements casts rounded to 0.
        kept: of an edit that drops tensors, by role ("weight", "optimizer", "other", "unknown") how
            many stay, and the bytes of their arrays before.
        lost: by role, the same of those that were dropped.
        undecided: stored names of tensors that stay because it is not known whether they are the
            state of an optimizer, with `strip_optimizer`.
        missing: keys of the object graph without a tensor: dropped from it with `drop_missing`,
            else still there. With `drop_missing`, also those of the metadata of `ckptfmt.torch`.
        uncast: 0-d tensors of the kind of `cast=DTYPE`, which leaves them.
    """

    path: str
    tensors: int
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    casts: dict[str, tuple[str, str]] = field(default_factory=dict)
    copied_nbytes: int = 0
    losses: dict[str, int] = field(default_factory=dict)
    zeros: dict[str, int] = field(default_factory=dict)
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)
    lost: dict[str, tuple[int, int]] = field(default_factory=dict)
    undecided: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    uncast: tuple[str, ...] = ()

    __repr__ = masked_repr


Edit.__module__ = "ckptfmt.types"


def edit(
    source: Path,
    destination: Path,
    *,
    rename: Rename | None = None,
    drop: Filters | None = None,
    keep: Filters | None = None,
    cast: Cast | None = None,
    allow_loss: bool = False,
    metadata: Mapping[str, Any] | None = None,
    strip_optimizer: bool = False,
    drop_weights: bool = False,
    drop_missing: bool = False,
    compact: bool = False,
    dry_run: bool = False,
    level: Level | None = None,
    compression: str | None = None,
    alignment: int | None = None,
    durability: Durability = "full",
    progress: Progress | None = None,
    limits: Mapping[str, int] | None = None,
) -> Edit:
    """Write a checkpoint again with other names, fewer tensors, other dtypes or other metadata, all
    or nothing.

    Data files whose bytes stay are shared with the source by hard links and not read, so that
    renaming writes an index and nothing else. Where links are impossible (in object stores, to
    another file system), and in data files that lose more than a tenth of their bytes, the tensors
    that stay are copied, and verified.

    In a checkpoint with an object graph of TensorFlow, the graph is rewritten: it refers to the new
    names; objects are renamed with their tensors if the new names are keys of objects at another
    path with as many parts (`model/w/.ATTRIBUTES/VARIABLE_VALUE` to
    `net/w/.ATTRIBUTES/VARIABLE_VALUE`); objects without any tensors left are removed.

    In a state that `ckptfmt.torch` saved, dropped tensors are removed from their dicts, or are None
    in a list; an optimizer of whose state nothing is left is removed. The key of a renamed tensor
    changes with its name where the rest of the path stays (`model.conv.weight` to `model.c.weight`
    of a state dict `model`); otherwise the tensor keeps its place in what `ckptfmt.torch.load`
    returns. The paths that `ckptfmt.jax` notes follow the names.

    All arguments refer to the names before the edit. A filter also takes the paths of a variable's
    object, without `/.ATTRIBUTES/VARIABLE_VALUE`: `model/*` has the weights that Keras 3 stores
    under `optimizer/`.

    >>> ckptfmt.save("model", {"old/w": np.ones(2), "loss": np.float32(3)})
    >>> done = ckptfmt.editing.edit(
    ...     "model", "small", rename=[("^old/", "new/")], drop="loss", drop_weights=True
    ... )
    >>> done.renamed, done.dropped
    ({'old/w': 'new/w'}, ('loss',))

    Args:
        source: a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of these.
        destination: prefix of the result: str, bytes or os.PathLike, or a URL. It may be that of
            the source, which is then replaced in one step.
        rename: stored name to new name: a mapping, a function, or a list of pairs (regular
            expression, replacement) applied in order, as `re.sub` does. None from a function or a
            pair drops the tensor. A transform, a function of the array such as `numpy.transpose`,
            may follow the new name. A tensor with a transform is in memory, and becomes whole if it
            is partitioned.
        drop: which tensors to leave out: a name, a glob pattern, `/REGEX/`, a compiled pattern or a
            function, or a list of these. The object graph is only dropped by its own name.
        keep: which tensors to keep, in the same forms; the others are dropped.
        cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at least
            one dimension, or a mapping of filters to dtypes: the first that matches counts, None
            changes nothing. Arrays of NumPy and scales of quantized tensors in a state of
            `ckptfmt.torch` are only cast if a filter of a mapping matches them.
        allow_loss: True allows casts that change values by more than rounding: overflow, lost
            fractions. The result counts them.
        metadata: replaces the stored metadata: a mapping of str to texts, finite numbers, bools and
            lists of these; empty removes it, also damaged metadata. None: it stays. Metadata
            that lacks members of ours, such as the structure of a state of `ckptfmt.torch`, is
            refused.
        strip_optimizer: True drops the state of optimizers, and optimizers of which nothing is
            left: by the object graph if there is one, else by the metadata of `ckptfmt.torch` or
            `ckptfmt.jax`, or by the names that TensorFlow 1 gives slot variables (`w/Adam`,
            `w/Momentum`, `beta1_power`). What may be state or not stays.
            Weights that Keras 3 stores under the path of the optimizer get the names of their paths
            in the model. Of the variables of a SavedModel it warns: the model cannot be loaded with
            what is left.
        drop_weights: True allows the other arguments to drop weights of the model, and tensors that
            may be.
        drop_missing: True drops what the object graph, or the state of `ckptfmt.torch`, says of
            tensors that are missing. Without it, such a checkpoint can only get other metadata.
        compact: True copies the tensors that stay in every data file that loses one.
        dry_run: True writes nothing; what is cast is read, and what that loses is counted.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses. None: that of the
            source, "v2+" for metadata in one of level "v2". If a level, compression or alignment is
            given, every tensor is copied.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
            Linked tensors keep their places.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        progress: called as `progress(done, total)` with two ints, of bytes of copied arrays.
        limits: what a file may ask of this process: a mapping of names of `ckptfmt_limits` in
            `ckptfmt.h` to int, such as {"index_bytes_max": 1 << 30}; None: the defaults there.

    Raises:
        TensorNotFoundError: a filter matches no tensor, or `rename` none.
        InvalidError: two tensors with the same name, an invalid name, nothing left, weights that
            would be dropped without `drop_weights`, a cast that is not possible, or that loses
            values without `allow_loss`; a tensor of the object graph or of a state of
            `ckptfmt.torch` is missing, or its metadata cannot be edited; only some of the tensors
            of an object are renamed or dropped where the object graph needs all; other edits than
            of names and metadata in a SavedModel.
        CheckpointNotFoundError: there is no checkpoint at `source`.
        CorruptError: the source is damaged, or slices of a tensor that stays are missing (`drop`
            leaves it out).
        LimitError, UnsupportedError: the source is beyond `limits`, or of an unknown version.
        StorageError: it could not be written; a checkpoint that was there is unchanged.
        BusyError: another process holds the lock of the directory.
        DurabilityUnknownError: it is in place, but a power cut may bring the older one back.
    """
    check_progress(progress)
    options = SaveOptions(
        level="v2+" if level is None else level,
        compression=compression,
        alignment=alignment,
        durability=durability,
    )
    is_fresh = level is not None or bool(options.of_format())
    target = prefix_text(destination, "destination", urls=True)
    if metadata is not None:
        metadata_json(metadata, "v2+")
    check_switches(
        allow_loss=allow_loss,
        strip_optimizer=strip_optimizer,
        drop_weights=drop_weights,
        drop_missing=drop_missing,
        compact=compact,
        dry_run=dry_run,
    )
    check_limits(limits)
    changes = Changes.of(
        None, None, rename, cast, allow_loss, keep=keep, drop=drop, has_targets=False
    )
    wait_for_saves()
    with Reader(locate(source, "source"), limits=limits) as reader:
        if metadata and not reader._settle_metadata(replaced=True, way_out=""):
            ours = {one for one in reader.metadata if one.startswith("ckptfmt.")} | {PRNG_KEYS}
            if lacks := sorted(ours & reader.metadata.keys() - metadata.keys()):
                raise invalid(
                    "metadata",
                    f"it lacks {some(lacks)}, without which what was saved is not restored as it "
                    "was: give {**reader.metadata, ...}, or {} to remove all metadata",
                )
        return edited(
            reader,
            target,
            changes,
            count_losses if dry_run else rewrite,
            options,
            metadata=metadata,
            strip_optimizer=strip_optimizer,
            drop_weights=drop_weights,
            drop_missing=drop_missing,
            compact=compact,
            level=level or (None if compression is None else "v2+"),
            is_fresh=is_fresh,
            progress=progress,
        )


def edited(
    reader: Reader,
    target: str,
    changes: Changes,
    write: Callable[[Reader, str, Rewrite, Progress | None], int],
    options: SaveOptions,
    *,
    metadata: Mapping[str, Any] | None,
    strip_optimizer: bool = False,
    drop_weights: bool = False,
    drop_missing: bool = False,
    damaged: Set[str] = frozenset(),
    compact: bool = False,
    level: Level | None,
    is_fresh: bool,
    way_out: str = "",
    progress: Progress | None = None,
) -> Edit:
    """Write a checkpoint again; see `edit`.

    Args:
        write: writes the result, and returns the bytes of arrays that it copied.
        damaged: stored names of more tensors to drop, which cannot be read.
        is_fresh: whether all is copied.
        way_out: what removes the metadata, for errors; default an option of `edit`.
    """
    rename = changes.rename
    of_tensors = strip_optimizer or drop_missing
    of_tensors |= any(one is not None for one in (rename, changes.drop, changes.keep, changes.cast))
    if not of_tensors and metadata is None and not is_fresh:
        raise InvalidError(
            "nothing to edit: give rename=, drop=, keep=, cast=, strip_optimizer=True, "
            "drop_missing=True, other metadata, level=, compression= or alignment="
        )
    if of_tensors or metadata is not None:
        reader._settle_metadata(replaced=metadata is not None, way_out=way_out or "metadata={}")
    stored, graph = list(reader), graph_of(reader)
    described = NamedInMetadata(
        stored, reader.metadata if of_tensors else {}, reader.prefix, metadata, way_out=way_out
    )
    passing = TensorNames(reader).passing
    tensors = Tensors(stored, partial(_kinds, reader), reader.prefix, described, passing)
    roles = model_roles(reader, graph=graph) if strip_optimizer else {}
    undecided = tuple(name for name, role in roles.items() if role == "unknown")
    state = _optimizer_state(reader, roles, undecided) if strip_optimizer else set()
    planned = plan(changes, tensors, state | damaged)
    if changes.cast is not None and not planned.casts and not is_fresh:
        raise TensorNotFoundError(
            f"cast: no tensor changes by {changes.cast!r}", path=reader.prefix, argument="cast"
        )
    new_names = planned.new_names()
    rest = {old: new for old, new in new_names.items() if new is not None}
    dropped = tuple(old for old, new in new_names.items() if new is None)
    roles = roles or (model_roles(reader, graph=graph) if dropped else {})
    check_saved(planned.names)
    _check_weights(reader, () if drop_weights else dropped, roles)
    renames, remakes = planned.names != stored, bool(planned.casts or planned.transforms)
    missing = _missing_of(reader, rest, graph, described)
    _check_missing(reader, missing, drop_missing or not (renames or remakes))
    gone = [*missing.graph, *missing.tree] if drop_missing else []
    texts, moved = dict[str, bytes](), False
    if graph is not None and OBJECT_GRAPH_KEY in rest and (renames or gone):
        texts, moved = _graph_after(graph, new_names, gone, strip_optimizer, rest)
    new_metadata = described.edited(
        {**new_names, **rest, **dict.fromkeys(gone)}, cut=strip_optimizer, rename=rename
    )
    moved |= remakes or is_fresh or bool(dropped)
    _check_saved_model(reader.prefix, target, moved, strip_optimizer)
    rewriting = Rewrite(
        [rest.get(name) for name in stored],
        planned.only_cast(),
        planned.transforms,
        changes,
        texts,
        _checked_metadata(reader, rest, metadata, new_metadata, level, way_out),
        compact,
        options,
        level,
        is_fresh,
    )
    check_covered(reader, rest)
    if write is count_losses:
        check_complete(reader.prefix, rest)
    copied_nbytes = write(reader, target, rewriting, progress)
    kept, lost = _totals(reader, roles, rest) if dropped else ({}, {})
    done = changes.results()
    return Edit(
        target,
        len(rest),
        {old: new for old, new in rest.items() if old != new},
        dropped,
        {n: (dtype_text(before), dtype_text(to)) for n, (before, to) in planned.casts.items()},
        copied_nbytes,
        done["losses"],
        done["zeros"],
        kept,
        lost,
        tuple(name for name in undecided if name in rest),
        tuple(gone) or missing.graph,
        done["uncast"],
    )


def _graph_after(
    graph: ObjectGraph,
    new_names: Mapping[str, str | None],
    gone: Sequence[str],
    strips: bool,
    rest: dict[str, str],
) -> tuple[dict[str, bytes], bool]:
    """Return the object graph after the edit by its name, and whether objects have other paths.
    Tensors in `rest` may get the keys of other paths for new names."""
    edited = edited_graph(graph, {**new_names, **dict.fromkeys(gone)}, cut_optimizers=strips)
    if strips:
        keys = relocate_keys(graph, edited, rest.values())
        rest |= {old: keys[new] for old, new in rest.items() if new in keys}
    return {OBJECT_GRAPH_KEY: encode_graph(edited)}, paths_differ(graph, edited)


def _kinds(reader: Reader, rows: Sequence[int]) -> tuple[Sequence[Any], Sequence[Any]]:
    table = reader.table()[["dtype_code", "shape"]]
    chosen = table if len(rows) == len(table) else table[list(rows)]
    found = list(map(dtypes.numpy_dtype, chosen["dtype_code"].tolist()))
    return found, chosen["shape"].tolist()


def _optimizer_state(
    reader: Reader, roles: Mapping[str, ModelRole], undecided: Sequence[str]
) -> set[str]:
    """Return the tensors that `strip_optimizer` drops."""
    state = {name for name, role in roles.items() if role == "optimizer"}
    not_known = ""
    if undecided:
        glob = _glob(undecided, roles) or "FILTER"
        not_known = (
            f"; it is not known of {some(undecided)}: drop={glob!r}, drop_weights=True drops those "
            "that are state"
        )
    if not state:
        raise TensorNotFoundError(
            f"strip_optimizer: no tensor is known to be the state of an optimizer{not_known}",
            path=reader.prefix,
            argument="strip_optimizer",
        )
    if "weight" not in roles.values():
        raise InvalidError(
            f"strip_optimizer: no weight would be left{not_known}",
            path=reader.prefix,
            argument="strip_optimizer",
        )
    return state


def _glob(undecided: Sequence[str], roles: Mapping[str, ModelRole]) -> str | None:
    """Return the glob FIRST/* if exactly the undecided tensors are below FIRST, and others are
    not."""
    first = {name.partition("/")[0] for name in undecided}
    if len(first) != 1 or "weight" not in roles.values():
        return None
    (folder,) = first
    below = [name for name in roles if name.startswith(f"{folder}/")]
    plain = folder and not set(folder) & set("*?[")
    return f"{folder}/*" if plain and len(below) == len(undecided) else None


def _check_weights(reader: Reader, dropped: Sequence[str], roles: Mapping[str, ModelRole]) -> None:
    weights = [name for name in dropped if roles[name] in ("weight", "unknown")]
    if weights:
        shown = TensorNames(reader).shown
        raise InvalidError(
            f"{len(weights)} of the {len(dropped)} tensors that would be dropped are weights, "
            f"or may be: {some(list(map(shown, weights)))}; drop_weights=True drops them",
            path=reader.prefix,
        )


class _Missing(NamedTuple):
    """Names that no tensor has: keys of the object graph, and of the tree of `ckptfmt.torch`."""

    graph: tuple[str, ...]
    tree: tuple[str, ...]


def _missing_of(
    reader: Reader, rest: Container[str], graph: ObjectGraph | None, described: NamedInMetadata
) -> _Missing:
    keys = missing_keys(reader, graph) if graph is not None and OBJECT_GRAPH_KEY in rest else ()
    return _Missing(tuple(keys), tuple(described.missing))


def _check_missing(reader: Reader, missing: _Missing, may_be_missing: bool) -> None:
    for names, refers in (
        (missing.graph, "the object graph refers"),
        (missing.tree, "the metadata 'ckptfmt.torch' refer"),
    ):
        if names and not may_be_missing:
            raise InvalidError(
                f"{refers} to tensors that are missing: {some(names)}. An edit has lost them, or "
                "their variables were never initialised; `ckptfmt edit --drop-missing` (of "
                "`ckptfmt.editing.edit` drop_missing=True) removes what is said of them",
                path=reader.prefix,
            )


_Totals = dict[str, tuple[int, int]]


def _totals(
    reader: Reader, roles: Mapping[str, ModelRole], rest: Container[str]
) -> tuple[_Totals, _Totals]:
    """Return by role how many tensors stay, and the bytes of their arrays; and the same of the
    others."""
    kept: _Totals = {}
    lost: _Totals = {}
    for (name, role), nbytes in zip(roles.items(), reader.table()["nbytes"].tolist(), strict=True):
        found = kept if name in rest else lost
        count, size = found.get(role, (0, 0))
        found[role] = count + 1, size + nbytes
    return kept, lost


def _in_saved_model(prefix: str) -> bool:
    """Return whether these are the variables of a SavedModel."""
    folder, name = os.path.split(os.path.abspath(prefix))
    model, inner = os.path.split(folder)
    return name == inner == "variables" and is_file(os.path.join(model, "saved_model.pb"))


def _check_saved_model(source: str, target: str, is_changed: bool, strips: bool) -> None:
    if is_changed and _in_saved_model(target):
        raise InvalidError(
            "the destination belongs to a SavedModel, whose saved_model.pb has the objects and "
            "their dtypes: only names and metadata can be edited there; give another one",
            path=target,
        )
    if strips and _in_saved_model(source):
        warn(
            f"'{target}' cannot replace the variables of the SavedModel '{source}', which needs "
            "the state of its optimizer to be loaded"
        )


def _checked_metadata(
    reader: Reader,
    kept: Mapping[str, str],
    given: Mapping[str, Any] | None,
    edited: Mapping[str, Any] | None,
    level: Level | None,
    way_out: str,
) -> Mapping[str, Any] | None:
    """Return the metadata of the result, None if they stay; refuse those that are given without the
    notes of what the bits of tensors are, which would be numbers, and any at a level without
    them."""
    metadata = given if edited is None else edited
    if level == "v2" and (reader.metadata if metadata is None else metadata):
        raise invalid(
            "level",
            f"level 'v2' has no place for the metadata: {way_out or 'metadata={}'} leaves them out",
        )
    if given is None or metadata is None:
        return metadata
    # Of damaged metadata nothing is known.
    noted = {} if isinstance(reader._noted, CkptfmtError) else reader._noted
    bits = [name for name in noted if name in kept and reader[name].meaning is not None]
    left = {}
    if bits:
        with contextlib.suppress(CkptfmtError):
            left = notes_of(metadata, reader.prefix)
    for name in bits:
        if kept[name] not in left:
            raise invalid(
                "drop_metadata" if way_out else "metadata",
                f"it has the bits of {reader[name].meaning}, which only the metadata {KEY!r} say: "
                "keep them, drop the tensor, or load the state with ckptfmt.torch.load and save "
                "what you need",
                tensor=name,
            )
    return metadata
