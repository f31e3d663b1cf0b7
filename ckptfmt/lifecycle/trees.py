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

from ckptfmt import names, writer
from ckptfmt import reader as reading
from ckptfmt.arguments import wrong
from ckptfmt.errors import CorruptError, GenerationGoneError, InvalidError
from ckptfmt.lifecycle.graph import (
    OBJECT_GRAPH_KEY,
    ObjectGraph,
    decode_graph,
    encode_graph,
)
from ckptfmt.lifecycle.tree_build import build, from_names, reachable, wanted_keys
from ckptfmt.lifecycle.tree_flatten import Flat, flatten, layouts_by_path
from ckptfmt.lifecycle.tree_nodes import TreeNode, leaf_name
from ckptfmt.line import SaveFuture
from ckptfmt.load import _casts, _check_used, select_batch
from ckptfmt.locate import path_text
from ckptfmt.reader import Reader
from ckptfmt.saving.mesh import Layout
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.rounds import Team
from ckptfmt.saving.saver import Saver
from ckptfmt.saving.sharded import sharded_restore, sharded_save

if TYPE_CHECKING:
    from ckptfmt.distributed.coordinator import Coordinator

__all__ = ["TreeNode", "load_tree", "save_tree"]

Path = str | bytes | os.PathLike[Any]
Progress = Callable[[int, int], object]


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
        metadata, level, alignment, durability, progress: as in `ckptfmt.save`.
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
    asked = {"metadata": metadata, "level": level, "alignment": alignment, "durability": durability}
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
        return Saver({None: {**flat.tensors, OBJECT_GRAPH_KEY: _scalar(content)}}).save(
            prefix, options
        )
    tensors = [*flat.tensors.items(), (OBJECT_GRAPH_KEY, content)]
    writer.save(prefix, tensors, progress=progress, **given)
    return path_text(prefix)


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
    *,
    layouts: Any = None,
    coordinator: Coordinator | None = None,
    verify: str = "auto",
    strict: bool = True,
    cast: Any = None,
    filter: Callable[[str], object] | None = None,  # noqa: A002 (as in `load_into`)
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

    A leaf has a name, for `cast`, `filter` and `layouts`: its path ("model/kernel"), of a tensor
    that is not the value of a variable its key, without a graph its name.

    Args:
        path: whatever `ckptfmt.open` takes.
        layouts: with a coordinator, how leaves are to lie on meshes, as in `save_tree`; a leaf
            with a Layout is {device: array}.
        coordinator: joins the processes, each of which reads its own blocks.
        verify, limits: as in `ckptfmt.open`.
        strict: True makes a tensor that the graph names and the checkpoint does not have an error;
            False leaves it out, as `filter` does.
        cast: a dtype for all floating-point arrays, or a mapping from names of leaves to dtypes.
            Python scalars stay what they are.
        filter: called with the name of a leaf; false leaves it out, unread: containers do not have
            it, lists and tuples None in its place.

    Raises:
        TensorNotFoundError: the graph names a tensor that is not there (`strict`).
        CorruptError, LimitError: a damaged or oversized graph, or one whose kinds contradict its
            nodes or tensors.
        InvalidError: a layout or cast for what is no leaf, or an argument of another type.
        GenerationGoneError: the checkpoint was replaced meanwhile (with a coordinator).
        What `ckptfmt.open` and reading, with a coordinator `sharded_restore` raise.
    """
    if filter is not None and not callable(filter):
        raise wrong("filter", "a function of a name", filter)
    if coordinator is not None:
        if cast is not None:
            raise InvalidError("cast and coordinator are given; they do not go together")
        return _load_on_mesh(path, layouts, coordinator, verify, strict, filter, limits)
    if layouts is not None:
        raise InvalidError("layouts need a coordinator, which knows the processes")
    with reading.open(path, verify=verify, limits=limits) as reader:
        stored = _Stored(reader, strict, filter)
        batch = select_batch(reader, [names.tensor_bytes(key) for key in stored.keys])
        by_key = cast
        if isinstance(cast, Mapping):
            keys = {leaf_name(key): key for key in stored.keys}
            _check_used("cast", cast, list(keys))
            by_key = {keys[name]: wish for name, wish in cast.items()}
        casts = _casts(batch, by_key)
        arrays = batch.read(None)
    for position, dtype in casts.items():
        if stored.keys[position] not in stored.scalars:
            arrays[position] = arrays[position].astype(dtype)
    return stored.built(dict(zip(stored.keys, arrays, strict=True)))


class _Stored:
    """The structure that a checkpoint has, and the tensors that are wanted of it."""

    def __init__(
        self, reader: Reader, strict: bool, wanted: Callable[[str], object] | None
    ) -> None:
        self.prefix = reader.prefix
        self.content = b""
        self.graph: ObjectGraph | None = None
        self.scalars: set[str] = set()
        if OBJECT_GRAPH_KEY in reader:
            self.content = read_graph_bytes(reader)
            self.graph = decode_graph(self.content, reader.prefix)
            self.found = reachable(self.graph)
            keys = wanted_keys(self.graph, self.found)
            nodes = (self.graph.nodes[node_id] for node_id in self.found)
            self.scalars = {
                one.checkpoint_key for node in nodes if node.kind for one in node.attributes
            }
            if not strict:
                keys = [key for key in keys if key in reader]
        else:
            keys = list(reader)
        if wanted is not None:
            keys = [key for key in keys if wanted(leaf_name(key))]
        self.keys = keys

    def built(self, tensors: Mapping[str, Any]) -> Any:
        if self.graph is None:
            return from_names(tensors)
        return build(self.graph, self.found, tensors, self.prefix)


def read_graph_bytes(reader: Reader) -> bytes:
    """The object graph of a checkpoint that has one, undecoded.

    Raises:
        CorruptError: the tensor of its name is no string.
    """
    array = reader[OBJECT_GRAPH_KEY].read()
    content = array.item() if array.shape == () else None
    if not isinstance(content, bytes):
        raise CorruptError(
            f"the object graph is a tensor of dtype {array.dtype} and shape {array.shape}, "
            "not one string",
            failure="BAD_ENTRY",
            path=reader.prefix,
            tensor=OBJECT_GRAPH_KEY,
        )
    return content


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
    wishes: dict[str, Layout | None] = {}
    with team.guarded() as guard:
        by_name = {} if layouts is None else layouts_by_path(layouts)
        with reading.open(path, verify=verify, limits=limits) as reader:
            stored = _Stored(reader, strict, wanted)
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
    tensors = sharded_restore(path, wishes, coordinator, verify=verify, limits=limits)
    if stored.graph is not None and tensors[OBJECT_GRAPH_KEY].item() != stored.content:
        raise _replaced(path)
    return stored.built(tensors)


def _check_same(told: list[bytes], path: Path) -> bytes:
    if len(set(told)) > 1:
        raise _replaced(path)
    return b""


def _replaced(path: Path) -> GenerationGoneError:
    return GenerationGoneError(
        "the checkpoint was replaced while it was being loaded; load it again", path=path
    )
