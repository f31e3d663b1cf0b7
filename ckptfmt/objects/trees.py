# SPDX-License-Identifier: Apache-2.0
"""Trees: nested dicts, lists and tuples of arrays and Python scalars, saved and loaded as one.

A tree is saved as TensorFlow saves objects: an object graph, and one tensor a leaf under the key
`<path>/.ATTRIBUTES/VARIABLE_VALUE`. `tf.train.Checkpoint(**objects)` with objects of the same
structure restores it, and what it saved is loaded as a tree.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptfmt import dtypes, names
from ckptfmt.arguments import check_progress
from ckptfmt.arrays import Sources
from ckptfmt.background import SaveFuture
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.load import Batch, casts_of, check_used, select_batch
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.selecting import (
    Filter,
    Rename,
    by_text,
    check_distinct,
    filter_function,
    renamed,
)
from ckptfmt.bundle.writer import user_name, write_sources
from ckptfmt.errors import GenerationGoneError, InvalidError, UnsupportedError
from ckptfmt.names import path_text, prefix_text
from ckptfmt.objects.build import (
    build,
    from_names,
    key_groups,
    reachable,
    read_graph_bytes,
    wanted_keys,
)
from ckptfmt.objects.graph import (
    OBJECT_GRAPH_KEY,
    ObjectGraph,
    decode_graph,
    encode_graph,
)
from ckptfmt.objects.nodes import VARIANTS, TreeNode, is_variants, leaf_name
from ckptfmt.objects.tree_flatten import Flat, flatten, layouts_by_path
from ckptfmt.objects.tree_into import load_into_tree
from ckptfmt.progress import Progress
from ckptfmt.saving.mesh import Layout
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.saver import Saver
from ckptfmt.saving.specs import SaveSpec
from ckptfmt.sharded.rounds import Team
from ckptfmt.sharded.sharded import sharded_restore, sharded_save

if TYPE_CHECKING:
    from ckptfmt.sharded.coordinator import Coordinator

__all__ = ["TreeNode", "load_tree", "save_tree"]

Path = str | bytes | os.PathLike[Any]

# Up to this many tensors are looked up one by one.
LOOKUPS_MAX = 64


# ---- saving --------------------------------------------------------------------------------------


def save_tree(
    prefix: Path,
    tree: Any,
    *,
    options: CheckpointOptions | None = None,
    metadata: Mapping[str, Any] | None = None,
    level: str | None = None,
    alignment: int | None = None,
    durability: str | None = None,
    progress: Progress | None = None,
    layouts: Any = None,
    coordinator: Coordinator | None = None,
    compression: str | None = None,
) -> str | SaveFuture:
    """Saves a tree as one checkpoint, all or nothing, and returns its prefix (a SaveFuture, if the
    options say `enable_async`).

    A tree is made of mappings, lists and tuples; of named tuples and dataclasses, which are saved
    as dicts of their fields; of arrays (whatever `Writer.add` takes that has a dtype and a shape),
    `ParallelVariable`s, and Python's int (up to 64 bits), float, bool, str, bytes and None; and of
    `TreeNode`s. Keys are str. Everything comes back from `load_tree` as what it was. An object
    that is in the tree twice is saved once, under the first of its shortest paths; cycles are
    fine.

    Args:
        prefix: the checkpoint's prefix.
        tree: the tree.
        options: how it is saved, with a sharding policy and callbacks, instead of the next four.
        metadata, level, alignment, durability, progress, compression: as in `ckptfmt.save`.
        layouts: with a coordinator, how leaves lie on meshes: a tree of Layout and None of the
            shape of this tree, or a mapping from paths ("model/kernel") to these. A leaf with a
            Layout is {device: array}, for the devices of this process. All others are replicated:
            the same in all processes.
        coordinator: joins the processes that save one tree together, as in `sharded_save`.

    Raises:
        InvalidError: a key that is no str, an object that is no part of trees, an int of more than
            64 bits, or arguments that do not go together; the path is named. With a coordinator,
            in all processes: they do not have the same structure.
        UnsupportedError: an object that was saved by a registered saver.
        What `ckptfmt.save`, with `options` `Saver.save`, with a coordinator `sharded_save` raise.
    """
    asked = {
        "metadata": metadata,
        "level": level,
        "alignment": alignment,
        "durability": durability,
        "compression": compression,
    }
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    _check_together("options", options, given)
    if coordinator is not None:
        _check_together("coordinator", coordinator, {"options": options, "progress": progress})
        _save_on_mesh(prefix, tree, layouts, coordinator, given)
        return path_text(prefix)
    if layouts is not None:
        raise InvalidError("layouts need a coordinator, which knows the processes")
    flat = flatten(tree)
    content = encode_graph(flat.graph)
    if options is not None:
        _check_together("options", options, {"progress": progress})
        tensors = {
            key: SaveSpec(value, "", key, dtypes.VARIANT) if is_variants(value) else value
            for key, value in flat.tensors.items()
        }
        return Saver({None: {**tensors, OBJECT_GRAPH_KEY: _scalar(content)}}).save(prefix, options)
    check_progress(progress)
    sources = Sources()
    for key, value in flat.tensors.items():
        sources.add(user_name(key), value, dtypes.VARIANT if is_variants(value) else None)
    sources.add(OBJECT_GRAPH_KEY.encode(), content)
    target = prefix_text(prefix)
    write_sources(target, sources, progress, **given)
    return target


def _check_together(what: str, value: object, others: Mapping[str, object]) -> None:
    names = [name for name, other in others.items() if other is not None]
    if value is not None and names:
        raise InvalidError(f"{what} and {names[0]} are given; they do not go together")


def _scalar(content: bytes) -> Any:
    array = np.empty((), object)
    array[()] = content
    return array


def _save_on_mesh(
    prefix: Path, tree: Any, layouts: Any, coordinator: Coordinator, given: Mapping[str, Any]
) -> None:
    team = Team(coordinator, "save_tree")
    flat, content = Flat(ObjectGraph()), b""
    with team.guarded() as guard:
        flat = flatten(tree, None if layouts is None else layouts_by_path(layouts))
        content = encode_graph(flat.graph)
        if variants := [key for key, value in flat.tensors.items() if is_variants(value)]:
            raise UnsupportedError("variants cannot be saved on meshes", tensor=variants[0])
    digest = hashlib.sha256(content).digest()
    # What differs is looked for only where something does.
    same = team.round(guard.error, digest, lambda told: b"1" if len(set(told)) == 1 else b"0")
    if same != b"1":
        team.round(None, content, _refuse_different)
    tensors = dict(flat.tensors)
    if coordinator.rank == 0:
        tensors[OBJECT_GRAPH_KEY] = content
    sharded_save(prefix, tensors, flat.layouts, coordinator, **given)


def _refuse_different(contents: list[bytes]) -> bytes:
    """Says where the trees of two processes differ first."""
    rank = next(rank for rank, content in enumerate(contents) if content != contents[0])
    ours, theirs = (_leaves(decode_graph(contents[one])) for one in (0, rank))
    different = sorted(ours.items() ^ theirs.items())
    where = f", first at {leaf_name(different[0][0])!r}" if different else ""
    raise InvalidError(f"the trees of process 0 and process {rank} have other structures{where}")


def _leaves(graph: ObjectGraph) -> dict[str, str]:
    return {one.checkpoint_key: node.kind or "" for node in graph.nodes for one in node.attributes}


# ---- loading -------------------------------------------------------------------------------------


def load_tree(
    path: Path,
    into: Any = None,
    *,
    layouts: Any = None,
    coordinator: Coordinator | None = None,
    verify: str = "auto",
    strict: bool = True,
    rename: Rename | None = None,
    cast: Any = None,
    filter: Filter | None = None,  # noqa: A002 (as the built-in, it says which ones)
    limits: Mapping[str, int] | None = None,
) -> Any:
    """Loads a checkpoint as a tree, what `save_tree` saved as what it was.

    Of a checkpoint with an object graph the tree is that of the graph. Objects that it has twice
    are one object; cycles are cycles. Where TensorFlow wrote it: children named 0, 1, ... come
    back as a list, others as a dict; a variable is an array; an object that has tensors and
    children, several tensors, slot variables or a registered saver is a `TreeNode`, which
    `save_tree` saves as it was.

    Of a checkpoint without a graph the names are split at slashes. Where `w` and `w/Adam` are both
    names, `w` is a TreeNode with the tensor as its value.

    With `into`, what is in that tree stays the same objects with new values, and a MatchReport is
    the result. The tree and the graph are gone through side by side, from name to name, so that an
    array finds its tensor whatever the path that the checkpoint has it under. Arrays must be
    writable and have the tensor's shape and (after `cast`) dtype; Python's scalars are replaced in
    what holds them. All is checked before anything is written.

    A leaf has a name, for `rename`, `cast`, `filter` and `layouts`: its path ("model/kernel"), of a
    tensor that is not the value of a variable its key, without a graph its name.

    Args:
        path: whatever `ckptfmt.open` takes.
        into: a tree to load into; None makes a new one.
        layouts: with a coordinator, how leaves are to lie on meshes, as in `save_tree`; a leaf
            with a Layout is {device: array}.
        coordinator: joins the processes, each of which reads its own blocks.
        verify, limits: as in `ckptfmt.open`.
        strict: True makes a tensor that the graph names and the checkpoint does not have an error;
            False leaves it out, as `filter` does. With `into`, as in `load_into`.
        rename: with `into` or without a graph: name of a leaf in the checkpoint to name in the
            tree, in the forms that `ckptfmt.load` takes.
        cast: a dtype for all floating-point arrays, or a mapping from names of leaves to dtypes;
            with `into`, True for the dtype of each array. Python scalars stay what they are.
        filter: which leaves to load, by name, in the forms that `ckptfmt.load` takes. The others
            are not read: containers do not have them, lists and tuples None in their place. With
            `into` they stay as they are.

    Raises:
        TensorNotFoundError: the graph names a tensor that is not there (`strict`); with `into`, as
            in `load_into`.
        CorruptError, LimitError: a damaged or oversized graph, or one whose kinds contradict its
            nodes or tensors.
        InvalidError: a layout or cast for what is no leaf, arguments that do not go together, or
            one of another type; with `into`, as in `load_into`, and a scalar where it cannot be
            replaced.
        GenerationGoneError: the checkpoint was replaced meanwhile (with a coordinator or `into`).
        What `ckptfmt.open` and reading, with a coordinator `sharded_restore` raise.
    """
    passes = filter_function(filter)
    if coordinator is not None:
        others = {"into": into, "cast": cast, "rename": rename}
        _check_together("coordinator", coordinator, others)
        return _load_on_mesh(path, layouts, coordinator, verify, strict, passes, limits)
    if layouts is not None:
        raise InvalidError("layouts need a coordinator, which knows the processes")
    if into is not None:
        return load_into_tree(
            path,
            into,
            strict=strict,
            rename=rename,
            cast=cast,
            filter=filter,
            verify=verify,
            limits=limits,
        )
    with reading.open(path, verify=verify, limits=limits) as reader:
        stored = _Stored(reader, strict, passes)
        new_names = stored.renamed(rename)
        batch = _batch_of(reader, stored)
        by_key = cast
        if isinstance(cast, Mapping):
            keys = {leaf_name(key): key for key in stored.keys}
            check_used("cast", cast, list(keys))
            by_key = {keys[name]: wish for name, wish in cast.items()}
        casts = casts_of(batch, by_key)
        tensors = dict(zip(stored.keys, batch.read(None), strict=True))
    mark_variants(batch, tensors)
    for position, dtype in casts.items():
        key = stored.keys[position]
        if key not in stored.scalars:
            tensors[key] = tensors[key].astype(dtype)
    if new_names is not None:
        tensors = {new_names[key]: array for key, array in tensors.items()}
    return stored.built(tensors)


def mark_variants(batch: Batch, tensors: dict[str, Any]) -> None:
    """Gives arrays of variant payloads the dtype by which they are known."""
    code = dtypes.code_of(dtypes.VARIANT)
    for name, found in zip(batch.names, batch.codes, strict=True):
        if found == code and isinstance(tensors[name], np.ndarray):
            tensors[name] = tensors[name].view(VARIANTS)


def _batch_of(reader: Reader, stored: _Stored) -> Batch:
    return select_batch(reader, [names.tensor_bytes(key) for key in stored.keys])


class _Stored:
    """The structure that a checkpoint has, and the tensors that are wanted of it."""

    def __init__(
        self, reader: Reader, strict: bool, wanted: Callable[[str], object] | None
    ) -> None:
        self.prefix = reader.prefix
        self.content = b""
        self.graph: ObjectGraph | None = None
        self.scalars: set[str] = set()
        self.groups: dict[str, list[str]] = {}
        if OBJECT_GRAPH_KEY in reader:
            self.content = read_graph_bytes(reader)
            self.graph = decode_graph(self.content, reader.prefix)
            self.found = reachable(self.graph)
            nodes = (self.graph.nodes[node_id] for node_id in self.found)
            self.scalars = {
                one.checkpoint_key for node in nodes if node.kind for one in node.attributes
            }
            keys = self._tensors(reader, strict)
        else:
            keys = list(reader)
        if wanted is not None:
            keys = [key for key in keys if wanted(leaf_name(key))]
        self.keys = keys

    def _tensors(self, reader: Reader, strict: bool) -> list[str]:
        assert self.graph is not None
        keys = wanted_keys(self.graph, self.found)
        # For many one listing is faster.
        stored = reader if len(keys) <= LOOKUPS_MAX else set(reader)
        missing = [key for key in keys if key not in stored]
        if not missing:
            return keys
        known = set(keys)
        self.groups = key_groups(missing, (name for name in reader if name not in known))
        if not strict:
            keys = [key for key in keys if key in stored or key in self.groups]
        return [name for key in keys for name in self.groups.get(key, [key])]

    def renamed(self, rename: Rename | None) -> dict[str, str] | None:
        """New names by old; what is dropped is no longer wanted."""
        if rename is None:
            return None
        if self.graph is not None:
            raise InvalidError(
                "rename is for checkpoints without an object graph, and for loading into a tree"
            )
        rename = by_text("rename", rename) if isinstance(rename, Mapping) else rename
        pairs = zip(self.keys, renamed(self.keys, rename), strict=True)
        found = {old: new for old, new in pairs if new is not None}
        check_distinct(list(found), list(found.values()))
        self.keys = list(found)
        return found

    def built(self, tensors: Mapping[str, Any]) -> Any:
        if self.graph is None:
            return from_names(tensors)
        return build(self.graph, self.found, tensors, self.groups, self.prefix)


def _load_on_mesh(
    path: Path,
    layouts: Any,
    coordinator: Coordinator,
    verify: str,
    strict: bool,
    wanted: Callable[[str], object] | None,
    limits: Mapping[str, int] | None,
) -> Any:
    team = Team(coordinator, "load_tree")
    stored: _Stored | None = None
    batch: Batch | None = None
    wishes: dict[str, Layout | None] = {}
    with team.guarded() as guard:
        by_name = {} if layouts is None else layouts_by_path(layouts)
        with reading.open(path, verify=verify, limits=limits) as reader:
            stored = _Stored(reader, strict, wanted)
            batch = _batch_of(reader, stored)
        if unknown := sorted(set(by_name).difference(map(leaf_name, stored.keys))):
            raise InvalidError(f"layouts names {unknown[0]!r}, which is no leaf of the tree")
        wishes = {key: by_name.get(leaf_name(key)) for key in stored.keys}
        if scalars := sorted(key for key in stored.scalars if wishes.get(key) is not None):
            raise InvalidError(f"a layout for the Python scalar {leaf_name(scalars[0])!r}")
        if stored.graph is not None:
            # Read again, so that a checkpoint that was replaced in between is noticed.
            wishes[OBJECT_GRAPH_KEY] = None
    digest = hashlib.sha256(b"" if stored is None else stored.content).digest()
    team.round(guard.error, digest, lambda told: _check_same(told, path))
    assert stored is not None
    assert batch is not None
    tensors = sharded_restore(path, wishes, coordinator, verify=verify, limits=limits)
    if stored.graph is not None and tensors[OBJECT_GRAPH_KEY].item() != stored.content:
        raise _replaced(path)
    mark_variants(batch, tensors)
    return stored.built(tensors)


def _check_same(told: list[bytes], path: Path) -> bytes:
    if len(set(told)) > 1:
        raise _replaced(path)
    return b""


def _replaced(path: Path) -> GenerationGoneError:
    return GenerationGoneError(
        "the checkpoint was replaced while it was being loaded; load it again", path=path
    )
