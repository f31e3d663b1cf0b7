# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt.editing.edit`: rename, drop and cast tensors, and set metadata."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import (
    Durability,
    check_limits,
    check_progress,
    check_switches,
    invalid,
)
from ckptfmt._base.background import wait_for_saves
from ckptfmt._base.casting import (
    cast_dtype,
    cast_dtypes,
    check_castable,
    counts_of,
    dtype_text,
    of_kind,
)
from ckptfmt._base.hints import some
from ckptfmt._base.names import prefix_text, saved_name
from ckptfmt._base.patterns import Filter, by_filters, matched, no_match
from ckptfmt._base.progress import Progress
from ckptfmt._base.renaming import Rename, check_distinct, of_stored, renamed
from ckptfmt._base.save_options import SaveOptions
from ckptfmt.bundle.completeness import check_complete, check_covered
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY, ObjectGraph, encode_graph
from ckptfmt.bundle.graph_keys import graph_of, missing_keys
from ckptfmt.bundle.meanings import notes_of
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
from ckptfmt.recipe.changes import Cast
from ckptfmt.recipe.linking import Rewrite, Rewritten, cast_losses, rewrite

Path = str | bytes | os.PathLike[Any]
Filters = Filter | Sequence[Filter]


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
        kept: by role ("weight", "optimizer", "other", "unknown"), how many stored tensors stay and
            the bytes of their arrays before.
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
    durability: Durability = "full",
    progress: Progress | None = None,
    limits: Mapping[str, int] | None = None,
) -> Edit:
    """Write a checkpoint again with other names, fewer tensors, other dtypes or other metadata, all
    or nothing.

    Data files whose bytes stay are shared with the source by hard links and not read, so that
    renaming writes an index and nothing else. Where links are impossible (in object stores, to
    another file system), and in data files that lose more than a tenth of their bytes, the tensors
    that stay are copied, and verified. The level of the format stays.

    In a checkpoint with an object graph of TensorFlow, the graph is rewritten: it refers to the new
    names; objects are renamed with their tensors if the new names are keys of objects at another
    path with as many parts (`model/w/.ATTRIBUTES/VARIABLE_VALUE` to
    `net/w/.ATTRIBUTES/VARIABLE_VALUE`); objects without any tensors left are removed.

    In a state that `ckptfmt.torch` saved, dropped tensors are removed from their dicts, or are None
    in a list. The key of a renamed tensor changes with its name where the rest of the path stays
    (`model.conv.weight` to `model.c.weight` of a state dict `model`); otherwise the tensor keeps
    its place in what `ckptfmt.torch.load` returns. The paths that `ckptfmt.jax` notes follow the
    names.

    All arguments refer to the names before the edit. A filter also takes the paths of a variable's
    object, without `/.ATTRIBUTES/VARIABLE_VALUE`: `model/*` has the weights that Keras 3 stores
    under `optimizer/`.

    Args:
        source: any path that `ckptfmt.open` takes.
        destination: prefix of the result. It may be that of the source, which is then replaced in
            one step.
        rename: stored name to new name: a mapping, a function, or pairs (regular expression,
            replacement), as in `ckptfmt.load_into`, without transforms. None drops a tensor.
        drop: which tensors to leave out: a glob pattern for the whole name (`*` matches slashes
            too), `/REGEX/` or a compiled regular expression that is found anywhere in the name, a
            function, or a list of these. The object graph is only dropped by its own name.
        keep: which tensors to keep, in the same forms; the others are dropped.
        cast: as in `ckptfmt.load_into`, a dtype or a mapping. In a state of `ckptfmt.torch`, arrays
            of NumPy and the scales of quantized tensors are only cast if a filter matches them, and
            not to what cannot be loaded.
        allow_loss: as in `ckptfmt.load_into`; the result says how many values were lost.
        metadata: replaces the stored metadata (see `ckptfmt.Writer`); empty removes it.
        strip_optimizer: True drops the state of optimizers, and optimizers of which nothing is
            left: by the object graph if there is one,
            else by the metadata of `ckptfmt.torch`, or by the names that TensorFlow 1 gives slot
            variables (`w/Adam`, `w/Momentum`, `beta1_power`). What may be state or not stays.
            Weights that Keras 3 stores under the path of the optimizer get the names of their paths
            in the model. Of the variables of a SavedModel it warns: the model cannot be loaded with
            what is left.
        drop_weights: True allows the other arguments to drop weights of the model, and tensors that
            may be.
        drop_missing: True drops what the object graph, or the state of `ckptfmt.torch`, says of
            tensors that are missing. Without it, such a checkpoint can only get other metadata.
        compact: True copies the tensors that stay in every data file that loses one.
        dry_run: True writes nothing; what is cast is read, and what that loses is counted.
        durability: as in Writer.
        progress: as in `ckptfmt.load`, with bytes of copied arrays.
        limits: as in `ckptfmt.open`.

    Raises:
        TensorNotFoundError: a filter matches no tensor, or `rename` none.
        InvalidError: two tensors with the same name, an invalid name, nothing left, weights that
            would be dropped without `drop_weights`, a cast that is not possible, or that loses
            values without `allow_loss`; a tensor of the
            object graph or of a state of `ckptfmt.torch` is missing, or its metadata cannot be
            edited; only some of the tensors of an object are renamed or dropped
            where the object graph needs all; other edits than of names and metadata in a
            SavedModel.
        CheckpointNotFoundError, CorruptError, LimitError, UnsupportedError: of the source.
        CorruptError: also if slices of a tensor that stays are missing; `drop` leaves it out.
        StorageError, BusyError, DurabilityUnknownError: as in Writer.
    """
    check_progress(progress)
    options = SaveOptions(durability=durability)
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
    of_tensors = strip_optimizer or drop_missing
    of_tensors |= any(one is not None for one in (rename, drop, keep, cast))
    if not of_tensors and metadata is None:
        raise InvalidError(
            "nothing to edit: give rename=, drop=, keep=, cast=, strip_optimizer=True, "
            "drop_missing=True or other metadata"
        )
    wait_for_saves()
    with Reader(locate(source, "source"), limits=limits) as reader:
        stored = list(reader)
        graph = graph_of(reader)
        roles = model_roles(reader)
        names = TensorNames(reader)
        described = NamedInMetadata(
            stored, reader.metadata if of_tensors else {}, reader.prefix, metadata
        )
        left_out = _left_out(names, stored, drop, keep)
        undecided: tuple[str, ...] = ()
        if strip_optimizer:
            undecided = tuple(name for name in stored if roles[name] == "unknown")
            left_out |= _optimizer_state(reader, roles, undecided)
        new_names = _new_names(reader, stored, left_out, rename)
        rest = {old: new for old, new in new_names.items() if new is not None}
        if {*stored} - {OBJECT_GRAPH_KEY} and not rest.keys() - {OBJECT_GRAPH_KEY}:
            raise _nothing_left(reader, {"drop": drop, "keep": keep, "rename": rename})
        dropped = tuple(old for old, new in new_names.items() if new is None)
        if not drop_weights:
            _check_weights(reader, dropped, roles)
        casts, uncast = _casts(reader, names, list(rest), cast, described)
        differs = any(old != new for old, new in new_names.items())
        missing = _missing_of(reader, rest, graph, described)
        if not drop_missing and (differs or casts):
            _check_missing(reader, missing)
        gone = dict.fromkeys([*missing.graph, *missing.tree] if drop_missing else [])
        texts, moved = {}, False
        if graph is not None and OBJECT_GRAPH_KEY in rest and (differs or gone):
            changed = edited_graph(graph, {**new_names, **gone}, cut_optimizers=strip_optimizer)
            if strip_optimizer:
                rest = _relocated(rest, relocate_keys(graph, changed, rest.values()))
            texts[OBJECT_GRAPH_KEY] = encode_graph(changed)
            moved = paths_differ(graph, changed)
        new_metadata = described.edited(
            {**new_names, **rest, **gone}, cut=strip_optimizer, rename=rename
        )
        changed_objects = moved or bool(casts) or len(rest) < len(stored)
        _check_saved_model(reader.prefix, target, changed_objects, strip_optimizer)
        plan = Rewrite(
            rest,
            {name: to for name, (_, to) in casts.items()},
            texts,
            _checked_metadata(reader, rest, metadata, new_metadata),
            compact,
            options,
            allow_loss,
        )
        done = _planned(reader, plan) if dry_run else rewrite(reader, target, plan, progress)
        sizes = dict(zip(stored, reader.table()["nbytes"].tolist(), strict=True))
    return Edit(
        target,
        len(rest),
        {old: new for old, new in rest.items() if old != new},
        dropped,
        {name: (dtype_text(before), dtype_text(to)) for name, (before, to) in casts.items()},
        done.copied_nbytes,
        *counts_of(done.losses),
        _totals(rest, roles, sizes),
        _totals(dropped, roles, sizes),
        tuple(name for name in undecided if name in rest),
        tuple(gone) or missing.graph,
        uncast,
    )


def _planned(reader: Reader, plan: Rewrite) -> Rewritten:
    """Return the result of a dry run, if these tensors can be read, and cast."""
    check_complete(reader.prefix, plan.renamed)
    check_covered(reader, plan.renamed)
    return Rewritten(0, cast_losses(reader, plan.casts, allow_loss=plan.allow_loss))


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
        raise InvalidError(
            f"{len(weights)} of the {len(dropped)} tensors that would be dropped are weights, "
            f"or may be: {some(weights)}; drop_weights=True drops them",
            path=reader.prefix,
        )


def _nothing_left(reader: Reader, dropping: Mapping[str, Any]) -> InvalidError:
    changed_by = " and ".join(f"{what}=" for what, one in dropping.items() if one is not None)
    return InvalidError(
        f"no tensor is left: change {changed_by} so that at least one stays",
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


def _check_missing(reader: Reader, missing: _Missing) -> None:
    for names, refers in (
        (missing.graph, "the object graph refers"),
        (missing.tree, "the metadata 'ckptfmt.torch' refer"),
    ):
        if names:
            raise InvalidError(
                f"{refers} to tensors that are missing: {some(names)}. An edit has lost them, or "
                "their variables were never initialised; drop_missing=True removes what is said "
                "of them",
                path=reader.prefix,
            )


def _totals(
    names: Iterable[str], roles: Mapping[str, ModelRole], sizes: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """Return by role how many tensors these are, and the bytes of their arrays."""
    found: dict[str, tuple[int, int]] = {}
    for name in names:
        count, nbytes = found.get(roles[name], (0, 0))
        found[roles[name]] = count + 1, nbytes + sizes[name]
    return found


def _relocated(rest: dict[str, str], keys: Mapping[str, str]) -> dict[str, str]:
    """Return the new names after some got the keys of other paths."""
    return {old: keys.get(new, new) for old, new in rest.items()}


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
) -> Mapping[str, Any] | None:
    """Return the metadata of the result, None if they stay; refuse those that are given without the
    notes of what the bits of tensors are, which would be numbers."""
    metadata = given if edited is None else edited
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
                "metadata",
                f"it has the bits of {reader[name].meaning}, which only the metadata {KEY!r} say: "
                "keep them, drop the tensor, or load the state with ckptfmt.torch.load and save "
                "what you need",
                tensor=name,
            )
    return metadata


def _left_out(
    all_names: TensorNames, stored: list[str], drop: Filters | None, keep: Filters | None
) -> set[str]:
    """Return the names that `drop` matches, or `keep` does not."""
    prefix = all_names.reader.prefix
    names = [name for name in stored if name != OBJECT_GRAPH_KEY]
    is_named = drop == OBJECT_GRAPH_KEY or (
        isinstance(drop, (list, tuple)) and OBJECT_GRAPH_KEY in drop
    )
    some_out = stored if is_named else names
    left_out = matched("drop", drop, some_out, partial(all_names.passing, what="drop"), prefix)
    if keep is not None:
        kept = matched("keep", keep, names, partial(all_names.passing, what="keep"), prefix)
        left_out |= {*names} - kept
    return left_out


def _new_names(
    reader: Reader, stored: list[str], left_out: set[str], rename: Rename | None
) -> dict[str, str | None]:
    """Return the new name of every stored tensor; None if it is dropped."""
    rest = [name for name in stored if name not in left_out and name != OBJECT_GRAPH_KEY]
    rename = of_stored(rename, stored, reader.prefix)
    if isinstance(rename, Mapping) and OBJECT_GRAPH_KEY in rename:
        raise InvalidError("the object graph cannot be renamed", tensor=OBJECT_GRAPH_KEY)
    given, transforms = renamed(rest, rename)
    if transforms:
        raise invalid("rename", "rename: transforms are for ckptfmt.load_into and ckptfmt.convert")
    result: dict[str, str | None] = dict.fromkeys(stored)
    if OBJECT_GRAPH_KEY in result and OBJECT_GRAPH_KEY not in left_out:
        result[OBJECT_GRAPH_KEY] = OBJECT_GRAPH_KEY
    for old, new in zip(rest, given, strict=True):
        result[old] = new if new is None or new == old else saved_name(new)
    if rename is not None and all(result[name] == name for name in rest):
        raise TensorNotFoundError(
            f"rename changes none of the {len(rest)} names", path=reader.prefix
        )
    kept = [(old, new) for old, new in result.items() if new is not None]
    check_distinct([old for old, _ in kept], [new for _, new in kept])
    return result


def _casts(
    reader: Reader,
    all_names: TensorNames,
    names: list[str],
    cast: Cast | None,
    described: NamedInMetadata,
) -> tuple[dict[str, tuple[np.dtype[Any], np.dtype[Any]]], tuple[str, ...]]:
    """Return the dtypes before and after of the tensors that are cast, and the names of the 0-d
    tensors that a dtype leaves."""
    if cast is None:
        return {}, ()
    found: dict[str, tuple[np.dtype[Any], np.dtype[Any]]] = {}
    table = reader.table()
    kinds = map(dtypes.numpy_dtype, table["dtype_code"].tolist())
    stored = dict(zip(table["name"].tolist(), kinds, strict=True))
    shapes = dict(zip(table["name"].tolist(), table["shape"].tolist(), strict=True))
    chosen: dict[str, np.dtype[Any]] = {}
    uncast: tuple[str, ...] = ()
    if isinstance(cast, Mapping):
        rules, tensors = cast_dtypes(cast), [name for name in names if name != OBJECT_GRAPH_KEY]
        passing = partial(all_names.passing, what="cast")
        chosen, unused = by_filters("cast", rules, tensors, passing)
        if unused:
            raise no_match("cast", unused[0], tensors, reader.prefix)
    else:
        everything = cast_dtype(cast)
        others = [name for name in names if not described.stays_as_it_is(name)]
        before, sizes = [stored[name] for name in others], [shapes[name] for name in others]
        positions, uncast = of_kind(everything, others, before, sizes)
        chosen = {others[i]: everything for i in positions}
    for name, to in chosen.items():
        one = stored[name]
        if one != to:
            _check_cast(name, one, to, described)
            assert one is not None
            found[name] = one, to
    if not found:
        raise TensorNotFoundError(
            f"cast: no tensor changes by {cast!r}", path=reader.prefix, argument="cast"
        )
    return found, uncast


def _check_cast(
    name: str,
    before: np.dtype[Any] | None,
    to: np.dtype[Any],
    described: NamedInMetadata,
) -> None:
    check_castable(name, before, to)
    assert before is not None
    reason = described.why_not_cast(name, to)
    if reason is not None:
        raise InvalidError(
            f"a cast from {dtype_text(before)} to {dtype_text(to)} would change what "
            f"ckptfmt.torch.load returns, or make it fail: {reason}",
            tensor=name,
        )
