# SPDX-License-Identifier: Apache-2.0
"""Save and load pytrees."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ckptfmt._base.arguments import Durability, Level, Verify, check_metadata, check_order
from ckptfmt._base.arrays import Columns
from ckptfmt._base.background import SaveFuture, SaveQueue, Work, wait_for_saves
from ckptfmt._base.names import (
    OBJECT_GRAPH_KEY,
    absolute,
    index_name,
    path_text,
    prefix_text,
    tensor_bytes,
)
from ckptfmt._base.patterns import Filter
from ckptfmt._base.renaming import Rename, Transform, transformed, transformed_kind
from ckptfmt._base.save_options import SaveOptions, of_part, shared
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.batch import BATCH_BYTES, select_batch
from ckptfmt.bundle.meanings import PRNG_KEYS
from ckptfmt.bundle.snapshot import Snapshot
from ckptfmt.bundle.state_tree import PYTREE
from ckptfmt.bundle.writer import metadata_json, write_sources
from ckptfmt.errors import CorruptError, InvalidError, about
from ckptfmt.files.locate import locate
from ckptfmt.files.places import opened
from ckptfmt.jax.coordinator import JaxCoordinator
from ckptfmt.jax.pytrees import (
    Box,
    Wanted,
    check_pytree,
    check_shardings,
    is_of_jax,
    keys_of,
    named_leaves,
    wanted,
)
from ckptfmt.jax.saving import content_of
from ckptfmt.naming.roles import OPTIMIZER_STATES
from ckptfmt.objects.build import pytree_of
from ckptfmt.objects.nodes import holds_scalar
from ckptfmt.recipe.changes import Cast, Changes, Names
from ckptfmt.recipe.load import MatchReport, Mismatch, refuse, without_bookkeeping
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.sharded.coordinator import Coordinator, SingleProcess
from ckptfmt.sharded.rounds import Team, compare_contents
from ckptfmt.sharded.sharded import compare_seen, fail
from ckptfmt.sharded.staging import TeamStaging

Path = str | bytes | os.PathLike[Any]


# ---- saving --------------------------------------------------------------------------------------


def save(
    prefix: Path,
    pytree: Any,
    *,
    metadata: Mapping[str, Any] | None = None,
    level: Level = "v2+",
    alignment: int | None = None,
    durability: Durability = "full",
    compression: str | None = None,
    coordinator: Coordinator | None = None,
) -> None:
    """Save a pytree as one checkpoint, all or nothing.

    The name of a leaf is its path: "params/dense/kernel". Leaves are arrays of JAX, of NumPy or of
    any other framework, Python scalars, str and bytes. Typed PRNG keys are stored as their key data
    (uint32); the implementation is noted in the metadata, and so are the paths of the states of
    Optax, which `ckptfmt.editing.edit` can drop.

    If JAX runs in several processes, all of them call it. Each writes slices that are on its
    devices; a slice with several replicas is written once, and these are spread evenly by bytes.
    Values that every process has on its own (NumPy arrays, scalars, arrays on local devices) must
    be equal, which is checked up to 1 MiB, and are spread as well. Process 0 merges what all wrote.

    Args:
        prefix: the checkpoint's prefix, on a file system that all processes share.
        pytree: the pytree.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it. Only that of
            process 0 is used.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses. At "v2" there is no
            metadata, and nothing says what implementation keys are of or which tensors are the
            state of an optimizer.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        coordinator: joins the processes instead of a JaxCoordinator; its ranks must be the process
            indices of JAX.

    Raises:
        InvalidError: a leaf that cannot be stored, or two leaves of one name; an argument of
            another type; the processes have different pytrees. All processes raise it, and it names
            the leaf.
        CheckpointNotFoundError, StorageError, BusyError: as in `ckptfmt.sharded.save`.
    """
    options = functools.partial(
        CheckpointOptions,
        level=level,
        alignment=alignment,
        durability=durability,
        compression=compression,
    )
    Save(prefix, pytree, metadata, options, coordinator).run()


def save_async(
    prefix: Path,
    pytree: Any,
    *,
    metadata: Mapping[str, Any] | None = None,
    level: Level = "v2+",
    alignment: int | None = None,
    durability: Durability = "full",
    compression: str | None = None,
    coordinator: Coordinator | None = None,
) -> SaveFuture:
    """Save as `save` does, in the background; return once the slices of this process are copied, so
    that the arrays may be donated or changed.

    The next save of this process waits for this one.

    Args:
        prefix: the checkpoint's prefix, on a file system that all processes share.
        pytree: the pytree.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it. Only that of
            process 0 is used.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses. At "v2" there is no
            metadata, and nothing says what implementation keys are of or which tensors are the
            state of an optimizer.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        coordinator: joins the processes instead of a JaxCoordinator; its ranks must be the process
            indices of JAX.

    Returns:
        A future: its `result()` is the prefix, once the checkpoint is in place.

    Raises:
        InvalidError, MemoryError: the pytree cannot be saved, or not copied.
        All other errors of `save` are raised by the future.
    """
    options = functools.partial(
        CheckpointOptions,
        level=level,
        alignment=alignment,
        durability=durability,
        compression=compression,
    )
    return Save(prefix, pytree, metadata, options, coordinator).run_async()


class Save:
    """A save in which the processes have agreed to write their parts.

    Args:
        prefix, pytree, metadata, coordinator: as `save` has them.
        options: returns how to save.
        queue: that of a Checkpoint, of which all processes call the write callbacks.

    Attributes:
        content: what this process writes.
    """

    def __init__(
        self,
        prefix: Path,
        pytree: Any,
        metadata: Mapping[str, Any] | None,
        options: Callable[[], CheckpointOptions],
        coordinator: Coordinator | None,
        queue: SaveQueue | None = None,
    ) -> None:
        wait_for_saves()
        self._queue = queue
        self._own = None if coordinator is not None else own_coordinator()
        self._team = _team(coordinator or self._own, "ckptfmt.jax.save")
        with self._team.guarded() as guard:
            self._options = options()
            check_order("save(prefix, pytree)", "prefix", prefix, pytree)
            check_pytree("pytree must be a pytree of arrays", pytree)
            self._path = prefix_text(prefix, urls=True)
            self._target = absolute(self._path)
            self.content = content_of(pytree, self._team.rank, self._team.world_size)
            self._metadata = self._stored_metadata(metadata)
            common = {**shared(self._options), "prefix": self._target}
            described = {**self.content.description, "": json.dumps(common)}
            answer = zlib.compress(json.dumps(described).encode(), 1)
        if guard.error is not None:
            fail(self._team, guard.error)
        if self._team.world_size > 1:
            self._staging = TeamStaging(self._team, self._target, self._options.durability)
            self._staging.start(None, answer, compare_contents)

    def _stored_metadata(self, given: Mapping[str, Any] | None) -> bytes | None:
        """Return the metadata of the checkpoint as process 0 stores them."""
        check_metadata(given)
        level, noted = self._options.level, dict[str, Any]()
        if self._team.rank == 0 and level != "v2":
            if self.content.impls:
                noted[PRNG_KEYS] = [list(pair) for pair in self.content.impls.items()]
            if self.content.states:
                noted[OPTIMIZER_STATES] = self.content.states
            if self.content.structure is not None:
                noted[PYTREE] = self.content.structure
        text = metadata_json({**given, **noted} if given else noted or None, level)
        return text if self._team.rank == 0 else None

    def run(self) -> str:
        """Save, and return the prefix."""
        if self._options.enable_async:
            return self.run_async().prefix
        self._finish(self.content.sources)
        return self._path

    def run_async(self) -> SaveFuture:
        """Save in the background; return once the slices of this process are copied."""

        def prepare() -> Work:
            try:
                snapshot = Snapshot([self.content.sources], self._queue)
            except BaseException as error:
                return functools.partial(self._finish, error)

            def work() -> None:
                with snapshot:
                    self._finish(snapshot.copied[0])

            return work

        return (self._queue or SaveQueue()).begin(self._path, prepare)

    def _finish(self, columns: Columns | BaseException) -> None:
        """Write the part of this process, and merge those of all. An error instead of the part is
        reported to the other processes and raised."""
        try:
            if self._team.world_size == 1:
                self._write(self._target, columns, self._options)
                self._options.after_write(self._path)
                return
            # Process 0 has the metadata, and makes a checkpoint of an empty pytree as well.
            count = int(len(self.content.sources) > 0 or self._team.rank == 0)
            with self._team.guarded() as guard:
                for part in self._staging.parts(count):
                    self._write(part, columns, of_part(self._options))
            self._staging.merge(guard.error, count)
            if self._queue is not None:
                with self._team.guarded() as guard:
                    self._options.after_write(self._path)
                self._team.round(guard.error, b"", lambda _: b"")
        finally:
            if self._own is not None:
                self._own.close()

    def _write(self, prefix: str, columns: Columns | BaseException, options: SaveOptions) -> None:
        if isinstance(columns, BaseException):
            raise columns
        write_sources(prefix, columns, None, options, metadata=self._metadata)


def own_coordinator() -> Coordinator:
    """Return a coordinator of the processes of JAX."""
    return SingleProcess() if jax.process_count() == 1 else JaxCoordinator()


def _team(coordinator: Any, operation: str) -> Team:
    team = Team(coordinator, operation)
    if (team.rank, team.world_size) != (jax.process_index(), jax.process_count()):
        raise InvalidError(
            f"this is process {jax.process_index()} of {jax.process_count()} of JAX, but rank "
            f"{team.rank} of {team.world_size} of the coordinator: the two must be equal"
        )
    return team


_OWN = object()
_AS_SAVED: Any = object()


# ---- loading -------------------------------------------------------------------------------------


def load(
    path: Path,
    like: Any = _AS_SAVED,
    *,
    sharding: Any = None,
    names: Names | None = None,
    filter: Filter | None = None,  # noqa: A002 (as in `ckptfmt.load_into`)
    rename: Rename | None = None,
    cast: Cast | None = None,
    allow_loss: bool = False,
    strict: bool = True,
    verify: Verify = "auto",
    coordinator: Coordinator | None = None,
) -> Any:
    """Load a checkpoint as a pytree with the structure of `like`; without it, as it was saved.

    Each process reads the slices that its devices need, equal ones once, whatever the sharding was
    when the checkpoint was saved. Any checkpoint can be loaded, also those of `ckptfmt.save` and
    TensorFlow, if its names are the paths of the leaves. If JAX runs in several processes, all of
    them call it.

    Args:
        path: what `ckptfmt.open` takes.
        like: a pytree whose leaves say what to load: jax.ShapeDtypeStruct (`jax.eval_shape` returns
            these) and jax.Array become a jax.Array with their shape, dtype and sharding, typed PRNG
            keys such keys; NumPy arrays, Python scalars, str and bytes become new ones.
            Nothing is read from these arrays, which may have been donated, or written to them.
            Without `like`, lists, tuples, dicts with their keys, None, PRNG keys, arrays of NumPy
            and Python scalars come back as such, and other containers as dicts; of level "v2",
            which has no metadata, everything as dicts of arrays. What JAX has no array of (text,
            64 bits without jax_enable_x64) is an array of NumPy.
        sharding: a jax.sharding.Sharding or device for all jax.Arrays instead of their own; or a
            pytree of these that is a prefix of `like`, in which None leaves the own one. Without
            any, an array is not committed to a device.
        names: the tensors to load, str or bytes; None: all. A missing one is an error.
        filter: which tensors to load: a name, a glob pattern (`*` matches slashes too), `/REGEX/`
            or a compiled pattern found anywhere in the name, or a function of it; None: all.
        rename: stored name to new name: a mapping, a function, or a list of pairs (regular
            expression, replacement) applied in order, as `re.sub` does. None from a function or a
            pair drops the tensor. A transform, a function of the array such as `numpy.transpose`,
            may follow the new name.
        cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at least
            one dimension, or a mapping of filters to dtypes: the first that matches counts, None
            changes nothing. True: numbers become what their targets are.
        allow_loss: True allows casts that change values by more than rounding: overflow, lost
            fractions.
        strict: True: anything that does not match is an error. False: load what matches. A leaf
            that is left out, or does not match, is returned as it is in `like`, and must have a
            value: a jax.ShapeDtypeStruct has none.
        verify: "auto": check whole reads, and parts where that is cheap; "full": all; "off": none.
        coordinator: joins the processes instead of a JaxCoordinator; its ranks must be the process
            indices of JAX.

    Raises:
        TensorNotFoundError: leaves have no tensor, and nothing else is wrong. The attribute
            `report` of the error is a MatchReport with all names.
        InvalidError: something else does not match (with `report`): shapes, dtypes,
            implementations of PRNG keys, tensors without a leaf; or an argument is wrong. One
            error, before anything is read, names all leaves that their sharding does not fit.
        GenerationGoneError: the checkpoint was replaced meanwhile, so that two processes did not
            read the same.
        What `ckptfmt.open` and reading raise. If one process fails, all raise.
    """
    own = None if coordinator is not None else own_coordinator()
    with own if own is not None else contextlib.nullcontext():
        team = _team(coordinator or own, "ckptfmt.jax.load")
        seen, result, text = b"", None, ""
        with team.guarded() as guard:
            wait_for_saves()
            has_like = like is not _AS_SAVED
            if has_like:
                check_order("load(path, like)", "path", path, like)
            text = path_text(path, "path", urls=True)
            choice = Changes.of(
                names, filter, rename, cast, allow_loss, strict, has_targets=has_like
            )
            leaves = _wanted(like, sharding) if has_like else {}
            prefix = locate(path)
            with contextlib.ExitStack() as stack:
                digest = stack.enter_context(opened(index_name(prefix)))
                reader = stack.enter_context(reading.Reader(prefix, verify=verify))
                seen = digest() if team.world_size > 1 else b""
                if not has_like:
                    like, own_names = _as_saved(reader, choice)
                    leaves = _wanted(like, sharding, own_names)
                found = _read(reader, leaves, _matched(reader, leaves, choice), choice)
            result = jax.tree.unflatten(jax.tree.structure(like), found)
            choice.warn()
        team.round(guard.error, seen, lambda answers: compare_seen(answers, text))
        return result


@dataclass(frozen=True, eq=False)
class _Saved:
    """A stored tensor in the place of its leaf."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    kind: str = "tensor"
    scalar: str = ""

    def leaf(self, impl: str | None) -> Any:
        """Return what says how the leaf is loaded."""
        if self.kind == "scalar" and holds_scalar(self.scalar, self.dtype, self.shape):
            return {"str": "", "bytes": b""}.get(self.scalar, np.zeros((), self.dtype).item())
        if self.kind != "tensor" or not is_of_jax(self.dtype):
            empty = np.broadcast_to(np.zeros((), self.dtype), self.shape)
            return empty[()] if self.kind == "scalar" else empty
        array = jax.ShapeDtypeStruct(self.shape, self.dtype)
        return array if impl is None else keys_of(array, impl)


def _as_saved(reader: reading.Reader, choice: Changes) -> tuple[Any, list[str]]:
    """Return a `like` with the structure that was saved, and the names of its leaves."""
    loaded, _, transforms = choice.chosen(list(reader), reader.prefix)
    if OBJECT_GRAPH_KEY in reader:
        raise InvalidError(
            "the checkpoint has an object graph, not a pytree: ckptfmt.load_tree loads it",
            path=reader.prefix,
        )
    select_batch(reader, list(map(tensor_bytes, loaded))).refuse_meant()
    kinds = _kinds(reader, list(loaded), transforms, choice)
    tree = pytree_of(
        {new: _Saved(new, *kinds[old][1:]) for old, new in loaded.items()},
        reader.metadata,
        reader.prefix,
        lambda one, kind, scalar: replace(one, kind=kind, scalar=scalar),
    )
    impls = _impls_of(reader)
    leaves, structure = jax.tree.flatten(tree)
    origin = {new: old for old, new in loaded.items()}
    found = []
    for one in leaves:
        if not isinstance(one, _Saved):
            raise InvalidError(
                "a tensor has the name that the names of others begin with: give `like`",
                path=reader.prefix,
                tensor=next(iter(one), None),
            )
        with about(one.name):
            found.append(one.leaf(impls.get(origin[one.name])))
    return jax.tree.unflatten(structure, found), [one.name for one in leaves]


def _wanted(like: Any, sharding: Any, names: list[str] | None = None) -> dict[str, Wanted]:
    """Return what the leaves of `like` ask for.

    Args:
        names: of the leaves; None for their paths.

    Raises:
        InvalidError: a leaf or a sharding of another type; shardings that do not fit their leaves.
    """
    check_pytree(
        "like must be a pytree with the structure of what is loaded, for example what "
        "jax.eval_shape returns",
        like,
        ": leave it out to load what was saved",
    )
    leaves = (
        named_leaves(like)
        if names is None
        else dict(zip(names, jax.tree.leaves(like), strict=True))
    )
    # None is an empty pytree for JAX.
    given = jax.tree.map(
        lambda one: _OWN if one is None else one, sharding, is_leaf=lambda one: one is None
    )
    expected = "sharding must be a jax.sharding.Sharding, a device, or a pytree of these"
    for one in jax.tree.leaves(given):
        if one is not _OWN and not isinstance(one, (jax.sharding.Sharding, jax.Device)):
            found = type(one).__name__
            if isinstance(one, jax.sharding.PartitionSpec):  # named P in some versions
                found = "PartitionSpec"
            if isinstance(one, (jax.sharding.PartitionSpec, jax.sharding.Mesh)):
                found += ": NamedSharding(mesh, spec) makes one"
            raise InvalidError(f"{expected}, not {found}")
    try:
        chosen = jax.tree.leaves(jax.tree.broadcast(given, like))
    except ValueError as error:
        text = " ".join(str(error).replace("broadcast_prefix prefix_tree", "sharding").split())
        raise InvalidError(f"{expected} that is a prefix of like: {text}") from None
    result = {}
    for (name, leaf), one in zip(leaves.items(), chosen, strict=True):
        with about(name):
            result[name] = wanted(leaf, None if one is _OWN else one)
    check_shardings(result)
    return result


class _Source(NamedTuple):
    """What a leaf is loaded from: a stored tensor, the dtype that it is cast to, and the transform
    that `rename` gave."""

    name: str
    dtype: np.dtype[Any]
    transform: Transform | None


def _impls_of(reader: reading.Reader) -> dict[str, str]:
    """Return the implementations of PRNG keys by name. The metadata are not trusted."""
    try:
        pairs = {str(name): str(impl) for name, impl in reader.metadata.get(PRNG_KEYS, [])}
    except (TypeError, ValueError):
        raise CorruptError(
            f"the metadata {PRNG_KEYS!r} are not pairs of names",
            failure="BAD_ENTRY",
            path=reader.prefix,
        ) from None
    return pairs


def _kinds(
    reader: reading.Reader,
    names: list[str],
    transforms: Mapping[str, Transform],
    choice: Changes,
) -> dict[str, tuple[_Source, np.dtype[Any], tuple[int, ...]]]:
    """Return the sources of stored tensors, and the dtypes and shapes that leaves get of them."""
    handles = [reader[name] for name in names]
    casts = choice.casts(
        names, [one.dtype for one in handles], lambda: [one.shape for one in handles]
    )
    found = {}
    for at, (name, handle) in enumerate(zip(names, handles, strict=True)):
        dtype, shape = handle._expected()
        source = _Source(name, casts.get(at, dtype), transforms.get(name))
        dtype = source.dtype
        if source.transform is not None:
            dtype, shape = transformed_kind(name, dtype, shape, source.transform)
        found[name] = source, dtype, shape
    return found


def _matched(
    reader: reading.Reader, leaves: Mapping[str, Wanted], choice: Changes
) -> dict[str, _Source]:
    """Return what leaves are loaded from; the others stay as they are.

    Raises:
        TensorNotFoundError, InvalidError: as `load`.
    """
    loaded, left_out, transforms = choice.chosen(list(reader), reader.prefix)
    origin = {new: old for old, new in loaded.items()}
    kept = frozenset(left_out.values())
    impls = _impls_of(reader)
    read = [origin[name] for name in leaves if name in origin]
    select_batch(reader, list(map(tensor_bytes, read))).refuse_meant()
    kinds_of = _kinds(reader, read, transforms, choice)
    found: dict[str, _Source] = {}
    missing, filtered = list[str](), list[str]()
    shapes, kinds = list[Mismatch](), list[Mismatch]()
    for name, one in leaves.items():
        old = origin.get(name)
        if old is None:
            (filtered if name in kept else missing).append(name)
            continue
        source, dtype, shape = kinds_of[old]
        before = len(shapes) + len(kinds)
        if shape != one.shape:
            shapes.append(Mismatch(name, old, shape, one.shape))
        impl = impls.get(old)
        if one.impl is not None and impl not in (None, one.impl):
            kinds.append(Mismatch(name, old, f"PRNG keys of {impl}", one.impl))
        elif not one.accepts(dtype, choice.cast is True):
            kinds.append(Mismatch(name, old, dtype, one.dtype))
        elif one.is_jax and not is_of_jax(one.dtype):
            given = f"{jax.dtypes.canonicalize_dtype(one.dtype)} (jax_enable_x64 is off)"
            kinds.append(Mismatch(name, old, dtype, given))
        if len(shapes) + len(kinds) == before:
            found[name] = source
    unexpected = without_bookkeeping(
        [old for old, new in loaded.items() if new not in leaves], loaded
    )
    report = MatchReport(
        tuple(found),
        tuple(missing),
        unexpected if choice.strict else (),
        tuple(shapes),
        tuple(kinds),
        tuple(filtered),
    )
    without = [name for name, one in leaves.items() if name not in found and not one.has_value]
    if (choice.strict and not report) or set(without).difference(filtered):
        refuse(reader.prefix, report, present=unexpected)
    if without:
        raise InvalidError(
            "the leaf of like has no value to keep: give an array for what is not loaded",
            path=reader.prefix,
            tensor=without[0],
        )
    return found


def _read(
    reader: reading.Reader,
    leaves: Mapping[str, Wanted],
    sources: Mapping[str, _Source],
    choice: Changes,
) -> list[Any]:
    """Return the leaves, read in batches, so that few bytes are in memory twice."""
    found: dict[str, Any] = {name: one.leaf for name, one in leaves.items()}
    group: dict[str, Wanted] = {}
    size = 0
    for name in sources:
        one = group[name] = leaves[name]
        size += sum(math.prod(_shape(box)) for box in one.reads) * one.dtype.itemsize
        if size >= BATCH_BYTES:
            found |= _fill(reader, group, sources, choice)
            group, size = {}, 0
    return list((found | _fill(reader, group, sources, choice)).values())


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def _fill(
    reader: reading.Reader,
    group: Mapping[str, Wanted],
    sources: Mapping[str, _Source],
    choice: Changes,
) -> dict[str, Any]:
    """Read some of the leaves. A tensor with a transform is read whole, once."""
    wanted: list[tuple[str, Box | None]] = []
    for name, one in group.items():
        wanted += [(name, box) for box in one.reads if sources[name].transform is None]
        wanted += [(name, None)] * (sources[name].transform is not None and len(one.reads) > 0)
    batch = select_batch(reader, [tensor_bytes(sources[name].name) for name, _ in wanted])
    for position, (_, box) in enumerate(wanted):
        if box is not None and _shape(box) != batch.handle(position).shape:
            starts = [start for start, _ in box]
            batch.boxes[position] = np.array([*starts, *_shape(box), 0], np.int64)
    arrays = dict(zip(wanted, batch.read(None), strict=True))
    found = {}
    for name, one in group.items():
        source = sources[name]
        with about(name):
            parts: dict[Box, Any] = {}
            for box in one.reads:
                part = box if source.transform is None else None
                array = choice.converted(arrays[name, part], source.dtype, source.name, part)
                if source.transform is not None:
                    array = transformed(source.name, array, source.transform, one.shape)
                    cut: tuple[Any, ...] = tuple(slice(*side) for side in box)
                    array = array[(*cut, ...)]
                if not (one.is_int and array.dtype.kind in "iu"):
                    array = choice.converted(array, one.dtype, source.name, box)
                parts[box] = array
            found[name] = one.leaf_of(parts)
    return found
