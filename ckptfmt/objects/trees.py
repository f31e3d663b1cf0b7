# SPDX-License-Identifier: Apache-2.0
"""Trees: nested dicts, lists and tuples of arrays and Python scalars, saved and loaded as one.

A tree is saved as TensorFlow saves objects: an object graph, and one tensor a leaf under the key
`<path>/.ATTRIBUTES/VARIABLE_VALUE`. `tf.train.Checkpoint(**objects)` with objects of the same
structure restores it, and `load_tree` loads what it saved.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptfmt._base import dtypes, names
from ckptfmt._base.arguments import (
    Durability,
    Level,
    Verify,
    check_order,
    check_progress,
    check_switch,
    invalid,
)
from ckptfmt._base.arrays import Sources
from ckptfmt._base.background import SaveFuture, SaveQueue, wait_for_saves
from ckptfmt._base.names import prefix_text
from ckptfmt._base.patterns import Filter
from ckptfmt._base.progress import Progress
from ckptfmt._base.renaming import Rename, transformed
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.batch import Batch, select_batch
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY, ObjectGraph, decode_graph, leaf_name
from ckptfmt.bundle.graph_keys import reachable, read_graph_bytes, stored_keys
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.saving import collect, save_sources_async
from ckptfmt.bundle.writer import metadata_json, write_sources
from ckptfmt.errors import CorruptError, GenerationGoneError
from ckptfmt.objects.build import build, pytree_of, to_names
from ckptfmt.objects.choice import refuse_casts_of_scalars, value_name
from ckptfmt.objects.layouts import layouts_by_path
from ckptfmt.objects.nodes import VARIANTS, holds_scalar, scalar_value
from ckptfmt.objects.saves import Together
from ckptfmt.objects.serializing import content_of
from ckptfmt.objects.status import restored
from ckptfmt.objects.traversal import TreeView, View
from ckptfmt.recipe.changes import Cast, Changes, Names
from ckptfmt.recipe.load import MatchReport
from ckptfmt.saving.mesh import Layout
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.parallel import is_further_component
from ckptfmt.sharded import sharded
from ckptfmt.sharded.rounds import Team

if TYPE_CHECKING:
    from ckptfmt.sharded.coordinator import Coordinator


Path = str | bytes | os.PathLike[Any]


# ---- saving --------------------------------------------------------------------------------------


def save_tree(
    prefix: Path,
    tree: Any,
    *,
    metadata: Mapping[str, Any] | None = None,
    level: Level = "v2+",
    alignment: int | None = None,
    durability: Durability = "full",
    compression: str | None = None,
    progress: Progress | None = None,
    layouts: Any = None,
    coordinator: Coordinator | None = None,
    graph: bool = True,
) -> str:
    """Save a tree as one checkpoint, all or nothing, and return its prefix as str.

    A tree consists of mappings, lists and tuples; of named tuples and dataclasses, which are saved
    as dicts of their fields; of arrays of any framework, `ParallelVariable`s, and Python's int (up
    to 64 bits), float, bool, str, bytes and None; and of `TreeNode`s. Keys must be str. `load_tree`
    returns dicts, lists, tuples, arrays and Python's values. An object that is in the tree twice is
    saved once, under the first of its shortest paths in the order of the dicts, so that a tree that
    was loaded keeps its names; cycles are allowed.

    >>> ckptfmt.save_tree("model", {"layers": [np.ones(2), np.zeros(3)], "step": 7})
    'model'
    >>> ckptfmt.load_tree("model")["step"]
    7

    Args:
        prefix: path without extension: str, bytes, os.PathLike or URL; directories are made.
        tree: the tree, as above.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        progress: called as `progress(done, total)` with two ints, of bytes of the arrays; not with
            a coordinator.
        layouts: with a coordinator, the layouts of leaves on meshes: a tree of Layout and None with
            the shape of this tree, or a mapping from paths ("model/kernel") to these. A leaf with a
            Layout is {device: array}, for the devices of this process. All other leaves are
            replicated: equal in all processes.
        coordinator: a `sharded.Coordinator`, which joins the processes that save one tree together.
        graph: False saves arrays and scalars by the names of their paths ("model/kernel"), without
            an object graph: for what `load_tree` loaded from such a checkpoint. The tree then has
            dicts only, and no coordinator.

    Raises:
        InvalidError: a key that is not a str, an object that a tree cannot contain, an int of more
            than 64 bits, or arguments that exclude each other; the message names the path. With a
            coordinator, in all processes: their trees have different structures.
        UnsupportedError: a TreeNode that was saved by a registered saver.
        StorageError: it could not be written; an older checkpoint there is unchanged.
        DurabilityUnknownError: it is in place, but a power cut may bring the older one back.
        CheckpointNotFoundError, BusyError: with a coordinator: the processes do not share the file
            system, or a process did not arrive in time.
    """
    check_order("save_tree(prefix, tree)", "prefix", prefix, tree)
    check_switch("graph", graph)
    check_progress(progress)
    options = CheckpointOptions(
        level=level, alignment=alignment, durability=durability, compression=compression
    )
    if coordinator is not None:
        together = _together(prefix, tree, metadata, options, layouts, coordinator, progress, graph)
        return together.run()
    _check_layouts_alone(layouts)
    text = metadata_json(metadata, level)
    wait_for_saves()
    target, sources = prefix_text(prefix, urls=True), _sources_of(tree, graph)
    write_sources(target, sources, progress, options, metadata=text)
    return target


def _sources_of(tree: Any, graph: bool) -> Sources:
    return content_of(TreeView(tree)).sources() if graph else collect(to_names(tree))


def _together(
    prefix: Path,
    tree: Any,
    metadata: Mapping[str, Any] | None,
    options: CheckpointOptions,
    layouts: Any,
    coordinator: Coordinator,
    progress: Progress | None,
    graph: bool,
) -> Together:
    """Return the save of several processes, whose parts are collected."""
    together = Together(coordinator, "save_tree", SaveQueue())
    with together.guarded():
        unused = {"progress": progress, "graph=False": None if graph else True}
        _check_exclusive("coordinator", unused)
        target = prefix_text(prefix, urls=True)
        text = metadata_json(metadata, options.level)
        view = TreeView(tree, None, {} if layouts is None else layouts_by_path(layouts))
        together.collect(view, target, options, metadata=text)
    return together


def save_tree_async(
    prefix: Path,
    tree: Any,
    *,
    metadata: Mapping[str, Any] | None = None,
    level: Level = "v2+",
    alignment: int | None = None,
    durability: Durability = "full",
    compression: str | None = None,
    progress: Progress | None = None,
    layouts: Any = None,
    coordinator: Coordinator | None = None,
    graph: bool = True,
) -> SaveFuture:
    """Save a tree as `save_tree` does, in the background, and return a future of the prefix once
    all arrays are copied.

    >>> future = ckptfmt.save_tree_async("model", {"layers": [np.ones(2)], "step": 7})
    >>> future.result()  # waits, and raises what failed
    'model'

    Args:
        prefix: path without extension: str, bytes, os.PathLike or URL; directories are made.
        tree: the tree, as above.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        progress: called as `progress(done, total)` with two ints, of bytes of the arrays, from the
            background thread; not with a coordinator.
        layouts: with a coordinator, a tree of `sharded.Layout` and None with the shape of this
            tree, or a mapping from paths ("model/kernel") to these. A leaf with a Layout is
            {device: array}; all others are equal in all processes.
        coordinator: a `sharded.Coordinator`, which joins the processes that save one tree together.
            It belongs to the save until the future is done.
        graph: False saves arrays and scalars of a tree of dicts by the names of their paths,
            without an object graph; not with a coordinator.

    Returns:
        A `types.SaveFuture` of the prefix.

    Raises:
        InvalidError: a key that is not a str, an object that a tree cannot contain, an int of more
            than 64 bits, or arguments that exclude each other; the message names the path.
        UnsupportedError: a TreeNode that was saved by a registered saver.
        MemoryError: not enough memory for the copies. Errors of the write itself are raised by the
            future.
    """
    check_order("save_tree_async(prefix, tree)", "prefix", prefix, tree)
    check_switch("graph", graph)
    options = CheckpointOptions(
        level=level, alignment=alignment, durability=durability, compression=compression
    )
    if coordinator is not None:
        together = _together(prefix, tree, metadata, options, layouts, coordinator, progress, graph)
        return together.run_async()
    _check_layouts_alone(layouts)
    text = metadata_json(metadata, level)
    return save_sources_async(
        prefix, lambda: _sources_of(tree, graph), progress, options, metadata=text
    )


def _check_layouts_alone(layouts: Any) -> None:
    if layouts is not None:
        raise invalid("layouts", "layouts need a coordinator, which knows the processes")


def _check_exclusive(what: str, others: Mapping[str, object]) -> None:
    names = [name for name, other in others.items() if other is not None]
    if names:
        raise invalid(what, f"{what} and {names[0]} exclude each other")


# ---- loading -------------------------------------------------------------------------------------


def load_tree(
    path: Path,
    *,
    names: Names | None = None,
    filter: Filter | None = None,  # noqa: A002 (the name of the built-in)
    rename: Rename | None = None,
    cast: Cast | None = None,
    allow_loss: bool = False,
    strict: bool = True,
    verify: Verify = "auto",
    limits: Mapping[str, int] | None = None,
    layouts: Any = None,
    coordinator: Coordinator | None = None,
) -> Any:
    """Load a checkpoint as a tree: what `save_tree` saved, with its types.

    If the checkpoint has an object graph, the tree has its structure: objects that it has twice are
    one object, cycles are cycles. If TensorFlow wrote it: children named 0, 1, ... become a list,
    others a dict; a variable becomes an array; an object with both tensors and children, several
    tensors, slot variables or a registered saver becomes a `TreeNode`, which `save_tree` saves as
    it was.

    Otherwise the names are split at slashes, into dicts with their keys in natural order; a pytree
    of `ckptfmt.jax` has its lists, tuples, keys, None and Python scalars, unless its level is "v2".
    If `w` and `w/Adam` are both names, `w` becomes a TreeNode with the tensor as its value.

    The name of a leaf, for all options, is its path ("model/kernel"); of a tensor that is not the
    value of a variable, its key; without a graph, the tensor's name.

    >>> ckptfmt.save_tree("model", {"layers": [np.ones(2), np.zeros(3)], "step": 7})
    'model'
    >>> ckptfmt.load_tree("model", filter="layers/*")
    {'layers': [array([1., 1.]), array([0., 0., 0.])]}

    Args:
        path: a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of these.
        names: the tensors to load, str or bytes; None: all. A missing one is an error. A leaf has
            its path as its name ("model/kernel").
        filter: which tensors to load: a name, a glob pattern (`*` matches slashes too), `/REGEX/`
            or a compiled pattern found anywhere in the name, or a function of it; None: all.
            Containers omit leaves that are left out; lists and tuples have None in their place.
        rename: stored name to new name: a mapping, a function, or a list of pairs (regular
            expression, replacement) applied in order, as `re.sub` does. None from a function or a
            pair drops the tensor. A transform, a function of the array such as `numpy.transpose`,
            may follow the new name. Of checkpoints without a graph, and not with a coordinator.
        cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at least
            one dimension, or a mapping of filters to dtypes: the first that matches counts, None
            changes nothing. Python scalars keep their types, and a mapping must not match them. Not
            with a coordinator.
        allow_loss: True allows casts that change values by more than rounding: overflow, lost
            fractions. A CkptfmtWarning counts them.
        strict: True: anything that does not match is an error. False: load what matches. A missing
            tensor that the graph names, such as a variable that TensorFlow saved uninitialised, is
            then omitted.
        verify: "auto": check whole reads, and parts where that is cheap; "full": all; "off": none.
        limits: what a file may ask of this process: a mapping of names of `ckptfmt_limits` in
            `ckptfmt.h` to int, such as {"index_bytes_max": 1 << 30}; None: the defaults there.
        layouts: with a coordinator, the layouts of leaves on meshes: a tree of `sharded.Layout` and
            None, or a mapping from paths ("model/kernel") to these. A leaf with a Layout is loaded
            as {device: array}.
        coordinator: a `sharded.Coordinator`, which joins the processes, each of which reads its own
            blocks.

    Raises:
        TensorNotFoundError: the graph names a missing tensor (`strict`), a leaf in `names` is
            missing, or `filter` matches none.
        InvalidError: a layout or cast for a name that is not a leaf, arguments that exclude each
            other, an argument of the wrong type, or a cast that loses values, without `allow_loss`.
        CheckpointNotFoundError: there is no checkpoint at `path`.
        CorruptError, LimitError: the checkpoint is damaged or beyond `limits`; or its graph is, has
            kinds that contradict its nodes or tensors, or names two tensors for one leaf.
        UnsupportedError, StorageError: it is of an unknown version, or cannot be read now.
        GenerationGoneError: the checkpoint was replaced meanwhile (with a coordinator).
    """
    choice = Changes.of(names, filter, rename, cast, allow_loss, strict, has_targets=False)
    if coordinator is not None:
        _check_exclusive("coordinator", {"cast": cast, "rename": rename})
        return _load_on_mesh(path, layouts, coordinator, verify, choice, limits)
    _check_layouts_alone(layouts)
    with reading.open(path, verify=verify, limits=limits) as reader:
        stored = _Stored(reader, choice)
        scalars = (stored.name_of(key) for key in stored.keys if key in stored.scalars)
        refuse_casts_of_scalars(choice, scalars)
        batch = _batch_of(reader, stored)
        arrays = [i for i, key in enumerate(stored.keys) if key not in stored.scalars]
        chosen = batch.only(arrays)
        casts = choice.casts(
            [stored.name_of(stored.keys[i]) for i in arrays],
            chosen.meant_dtypes(),
            chosen.meant_shapes,
        )
        is_cast = {arrays[position] for position in casts}
        meant = {i: one.taken(is_cast=i in is_cast) for i, one in batch.meant.items()}
        tensors = dict(zip(stored.keys, batch.read(None), strict=True))
        for i, one in meant.items():
            tensors[stored.keys[i]] = one.values(tensors[stored.keys[i]])
    mark_variants(batch, tensors)
    for position, dtype in casts.items():
        key = stored.keys[arrays[position]]
        tensors[key] = choice.converted(tensors[key], dtype, stored.name_of(key))
    choice.warn()
    for key, transform in stored.transforms.items():
        tensors[key] = transformed(key, tensors[key], transform)
    if stored.graph is None:
        tensors = {stored.new_names[key]: array for key, array in tensors.items()}
    return stored.built(tensors)


def load_tree_into(
    path: Path,
    tree: Any,
    *,
    names: Names | None = None,
    filter: Filter | None = None,  # noqa: A002 (the name of the built-in)
    rename: Rename | None = None,
    cast: Cast | None = None,
    allow_loss: bool = False,
    strict: bool = True,
    verify: Verify = "auto",
    limits: Mapping[str, int] | None = None,
) -> MatchReport:
    """Load a checkpoint into the arrays and scalars of an existing tree.

    Tree and checkpoint are matched as by `Checkpoint.read`: from the root, by the names of
    children, so that an array finds its tensor under any path of the checkpoint. Arrays are read
    into; scalars, read-only arrays, and the tuples and frozen dataclasses around them are replaced
    in their places. If two arrays have one tensor in the checkpoint, both get it. Everything,
    also what casts lose, is checked before anything is written.

    >>> ckptfmt.save_tree("model", {"layers": [np.ones(2)], "step": 7})
    'model'
    >>> tree = {"layers": [np.zeros(2)], "step": 0}
    >>> report = ckptfmt.load_tree_into("model", tree)
    >>> tree
    {'layers': [array([1., 1.])], 'step': 7}

    Args:
        path: a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of these.
        tree: what to load into: dicts, lists, tuples, dataclasses and `ckptfmt.Trackable` objects,
            of writable arrays and Python scalars.
        names: the tensors to load, str or bytes; None: all. A missing one is an error. A leaf has
            its path as its name ("model/kernel"). Targets of the others stay as they are.
        filter: which tensors to load: a name, a glob pattern (`*` matches slashes too), `/REGEX/`
            or a compiled pattern found anywhere in the name, or a function of it; None: all.
            Targets of the others stay as they are.
        rename: stored name to new name: a mapping, a function, or a list of pairs (regular
            expression, replacement) applied in order, as `re.sub` does. None from a function or a
            pair drops the tensor. A transform, a function of the array such as `numpy.transpose`,
            may follow the new name.
        cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at least
            one dimension, or a mapping of filters to dtypes: the first that matches counts, None
            changes nothing. True: numbers become what their targets are. Python scalars keep their
            types, and a mapping must not match them.
        allow_loss: True allows casts that change values by more than rounding: overflow, lost
            fractions. The result counts them.
        strict: True: anything that does not match is an error. False: load what matches.
        verify: "auto": check whole reads, and parts where that is cheap; "full": all; "off": none.
        limits: what a file may ask of this process: a mapping of names of `ckptfmt_limits` in
            `ckptfmt.h` to int, such as {"index_bytes_max": 1 << 30}; None: the defaults there.

    Returns:
        What matched and what did not, by the paths of objects.

    Raises:
        TensorNotFoundError: `strict`, and objects have no tensor, and nothing else is wrong. The
            attribute `report` of the error is the MatchReport.
        InvalidError: `strict`, and something else does not match (`report` as well); an object that
            cannot be saved, a value that cannot be replaced in its place, an argument of the wrong
            type, or a cast that loses values, without `allow_loss`.
        CheckpointNotFoundError: there is no checkpoint at `path`.
        CorruptError, UnsupportedError, LimitError, StorageError: it is damaged, of an unknown
            version, beyond `limits`, or cannot be read now. Arrays then have unspecified contents.
    """
    check_order("load_tree_into(path, tree)", "path", path, tree)
    choice = Changes.of(names, filter, rename, cast, allow_loss, strict)
    with reading.open(path, verify=verify, limits=limits) as reader:
        return restored(reader, View(tree), choice, once=True)[1].report


def mark_variants(batch: Batch, tensors: dict[str, Any]) -> None:
    """Mark arrays of variant payloads by their dtype."""
    code = dtypes.code_of(dtypes.VARIANT)
    for name, found in zip(batch.names, batch.codes, strict=True):
        if found == code and isinstance(tensors[name], np.ndarray):
            tensors[name] = tensors[name].view(VARIANTS)


def _batch_of(reader: Reader, stored: _Stored) -> Batch:
    return select_batch(reader, [names.tensor_bytes(key) for key in stored.keys])


class _Stored:
    """The structure of a checkpoint, and the tensors of it that are loaded."""

    def __init__(self, reader: Reader, choice: Changes) -> None:
        self.prefix = reader.prefix
        self.graph: ObjectGraph | None = None
        self.scalars: set[str] = set()
        self.groups: dict[str, list[str]] = {}
        self.content = read_graph_bytes(reader)
        if self.content is not None:
            self.graph = decode_graph(self.content, reader.prefix)
            self.found = reachable(self.graph)
            nodes = (self.graph.nodes[node_id] for node_id in self.found)
            self.scalars = {
                one.checkpoint_key for node in nodes if node.kind for one in node.attributes
            }
            keys, self.groups = stored_keys(reader, self.graph, self.found, bool(choice.strict))
        else:
            keys = list(reader)
            self.metadata = reader.metadata
        by_name: dict[str, list[str]] = {}
        for key in keys:
            same = by_name.setdefault(self.name_of(key), [])
            same.append(key)
            other = same[0]
            if other != key and not is_further_component(key.rpartition("/")[2]):
                raise CorruptError(
                    f"the object graph names the tensors {other!r} and {key!r}, which are the same "
                    "leaf of a tree: load them by ckptfmt.load",
                    failure="BAD_PROTO",
                    path=reader.prefix,
                    tensor=OBJECT_GRAPH_KEY,
                )
        loaded, _, transforms = choice.chosen(list(by_name), reader.prefix)
        self.keys = [key for name in loaded for key in by_name[name]]
        self.transforms = {key: one for name, one in transforms.items() for key in by_name[name]}
        if choice.rename is not None and self.graph is not None:
            raise invalid(
                "rename",
                "the checkpoint has an object graph: rename applies to names without a graph, and "
                "to load_tree_into",
            )
        self.new_names = {key: new for name, new in loaded.items() for key in by_name[name]}

    def name_of(self, key: str) -> str:
        """Return the name that a tensor has in the options."""
        return key if self.graph is None else value_name(key)

    def built(self, tensors: Mapping[str, Any]) -> Any:
        if self.graph is None:
            return pytree_of(tensors, self.metadata, self.prefix, _pytree_leaf)
        return build(self.graph, self.found, tensors, self.groups, self.prefix)


def _pytree_leaf(array: Any, kind: str, scalar: str) -> Any:
    if kind != "scalar":
        return array
    if holds_scalar(scalar, array.dtype, array.shape):
        return scalar_value(scalar, array)
    return array[()]


def _load_on_mesh(
    path: Path,
    layouts: Any,
    coordinator: Coordinator,
    verify: Verify,
    choice: Changes,
    limits: Mapping[str, int] | None,
) -> Any:
    team = Team(coordinator, "load_tree")
    stored: _Stored | None = None
    batch: Batch | None = None
    by_key: dict[str, Layout | None] = {}
    with team.guarded() as guard:
        by_name = {} if layouts is None else layouts_by_path(layouts)
        with reading.open(path, verify=verify, limits=limits) as reader:
            stored = _Stored(reader, choice)
            batch = _batch_of(reader, stored)
        if unknown := sorted(set(by_name).difference(map(stored.name_of, stored.keys))):
            raise invalid(
                "layouts", f"layouts names {unknown[0]!r}, which is not a leaf of the tree"
            )
        by_key = {key: by_name.get(stored.name_of(key)) for key in stored.keys}
        if scalars := sorted(key for key in stored.scalars if by_key.get(key) is not None):
            raise invalid(
                "layouts", f"the Python scalar {leaf_name(scalars[0])!r} cannot have a layout"
            )
        if stored.graph is not None:
            # Read it again to notice a checkpoint that was replaced in between.
            by_key[OBJECT_GRAPH_KEY] = None
    digest = hashlib.sha256(b"" if stored is None else stored.content or b"").digest()
    team.round(guard.error, digest, lambda digests: _check_same(digests, path))
    assert stored is not None
    assert batch is not None
    tensors = sharded.restore(path, by_key, coordinator, verify=verify, limits=limits)
    if stored.graph is not None and tensors[OBJECT_GRAPH_KEY].item() != stored.content:
        raise _replaced(path)
    mark_variants(batch, tensors)
    return stored.built(tensors)


def _check_same(digests: list[bytes], path: Path) -> bytes:
    if len(set(digests)) > 1:
        raise _replaced(path)
    return b""


def _replaced(path: Path) -> GenerationGoneError:
    return GenerationGoneError(
        "the checkpoint was replaced while it was being loaded; load it again", path=path
    )
