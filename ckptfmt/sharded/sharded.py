# SPDX-License-Identifier: Apache-2.0
"""Save and restore tensors that are distributed over the devices of many processes.

A save has rounds over the coordinator (`rounds`), so that a failure in one process ends it in all:

  1 each process describes what it holds; process 0 joins the descriptions into one plan (`plan`)
    and creates the temporary directory
  2 each process writes its bundles `<prefix>_temp_<hex>/part-SSSSS-of-NNNNN`: one, none if it has
    no part, or the shards of a policy; process 0 merges the bundles and removes the directory
  3 of a Checkpoint: each process calls the callbacks after a save; process 0 records the save

In a restore each process reads its own boxes. One round at the end checks that all processes
succeeded and read the same checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes, names
from ckptfmt._base.arguments import Durability, Level, Verify, check_order, invalid, listed
from ckptfmt._base.arrays import Sources
from ckptfmt._base.background import SaveFuture, SaveQueue, Work, wait_for_saves
from ckptfmt._base.names import absolute, path_text, prefix_text
from ckptfmt._base.save_options import of_part, shared
from ckptfmt._base.slices import SliceSpec
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.batch import Batch, select_batch
from ckptfmt.bundle.snapshot import Snapshot
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.bundle.writer import BATCH_BYTES, Writer, metadata_json
from ckptfmt.errors import (
    GenerationGoneError,
    InvalidError,
)
from ckptfmt.files.locate import locate
from ckptfmt.files.places import opened
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.shards import cut
from ckptfmt.saving.specs import SaveSpec, ShardableTensor, text_of
from ckptfmt.sharded.plan import (
    Description,
    Part,
    Plan,
    Planned,
    describe,
    join,
    layouts_by_name,
    parts_of,
)
from ckptfmt.sharded.rounds import Team, compare_all, unpacked
from ckptfmt.sharded.staging import TeamStaging

if TYPE_CHECKING:
    from ckptfmt.sharded.coordinator import Coordinator


Path = str | bytes | os.PathLike[Any]


def save(
    prefix: Path,
    tensors: Mapping[str, Any] | Mapping[bytes, Any],
    layouts: Mapping[str, Layout | None] | Mapping[bytes, Layout | None],
    coordinator: Coordinator,
    *,
    metadata: Mapping[str, Any] | None = None,
    level: Level = "v2+",
    alignment: int | None = None,
    durability: Durability = "full",
    compression: str | None = None,
    check_replicas: bool = False,
) -> None:
    """Save tensors on the devices of many processes as one checkpoint, all or nothing.

    Every process of the coordinator calls it with its own part of the tensors. Each slice is
    written once, by a process that holds it; slices that several processes hold are distributed
    evenly by bytes (a string counts 16). Empty blocks are not written. The global shapes follow
    from the local arrays. Slices are stored as TensorFlow's DTensor stores them
    (`tf.train.Checkpoint` on a mesh), and TensorFlow restores the result.

    >>> mesh = ckptfmt.sharded.Mesh({"x": 2}, ["a", "b"])
    >>> layout = ckptfmt.sharded.Layout(["x", None], mesh)
    >>> local = {"a": np.zeros((2, 3)), "b": np.ones((2, 3))}
    >>> with ckptfmt.sharded.SingleProcess() as one:  # in a real job: that of its engine
    ...     ckptfmt.sharded.save("model", {"w": local}, {"w": layout}, one)
    >>> ckptfmt.load("model")["w"].shape
    (4, 3)

    Args:
        prefix: the checkpoint's path without extension, on a file system that all processes share,
            or a URL.
        tensors: name to {device: local array}, for the devices of this process in the mesh of the
            tensor's layout, the same devices for all tensors of one mesh: arrays of any framework
            in CPU memory, in the shape of the layout (`Layout.slice_of`). Or to a plain array,
            replicated: equal and whole in every process that gives it. A process without devices in
            the mesh gives {} or omits the tensor.
        layouts: name to `Layout`, the same in all processes; None means replicated, as does a plain
            array without an entry.
        coordinator: the `Coordinator` of this process.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it. Only that of
            process 0 is used.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back. Data
            files are synced by the merge.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        check_replicas: True compares everything that several devices hold, by checksum between
            processes; a difference is a fault of the training. Without it, blocks of at most 1 MiB
            are compared (a string counts 16 bytes), and blocks of any size between devices of one
            process if they are NumPy arrays.

    Raises:
        InvalidError: the processes disagree about a tensor's dtype, layout, shape or replicas or
            about the arguments, not all of them call this, or their parts do not add up to the
            tensors; all processes raise it, and it names the tensor or argument and the processes.
        CheckpointNotFoundError: process 0 does not see what another process wrote: they do not
            share the file system.
        StorageError: writing failed. The process that failed raises its own error, all others raise
            one of the same class (StorageError for an error that is not ckptfmt's) that names that
            process. What was written is removed, and a previous checkpoint of the prefix is
            unchanged.
        BusyError: a process did not arrive in time, or another one works on the prefix. Temporary
            files (`<prefix>_temp_<hex>`) may remain; a later save never uses them, and removes them
            on a local file system.
        DurabilityUnknownError: it is in place, but a power cut may bring the older one back.
    """
    team = Team(coordinator, "sharded.save")
    with team.guarded() as guard:
        wait_for_saves()
        check_order("save(prefix, tensors, layouts, coordinator)", "prefix", prefix, tensors)
        options = CheckpointOptions(
            level=level,
            alignment=alignment,
            durability=durability,
            compression=compression,
            check_replicas=check_replicas,
        )
        own = metadata_json(metadata, level) if team.rank == 0 else None
        job = Job(prefix_text(prefix, urls=True), options, own)
        description = describe(tensors, layouts, check_replicas)
    if guard.error is not None:
        fail(team, guard.error)
    save_job(team, job, description)


def save_async(
    prefix: Path,
    tensors: Mapping[str, Any] | Mapping[bytes, Any],
    layouts: Mapping[str, Layout | None] | Mapping[bytes, Layout | None],
    coordinator: Coordinator,
    *,
    metadata: Mapping[str, Any] | None = None,
    level: Level = "v2+",
    alignment: int | None = None,
    durability: Durability = "full",
    compression: str | None = None,
    check_replicas: bool = False,
) -> SaveFuture:
    """Save as `save` does, in the background; return once the arrays of this process are
    copied (one of several local replicas). The processes agree in the background, too.

    The coordinator belongs to the save until the future is done: nothing else may use it. The next
    save waits for this one, and so does a `restore`; all processes make their saves in the
    same order. Every process has its own future of the whole save.

    >>> one = ckptfmt.sharded.SingleProcess()
    >>> future = ckptfmt.sharded.save_async("model", {"w": np.ones(3)}, {"w": None}, one)
    >>> future.result()  # waits, and raises what failed
    'model'

    Args:
        prefix: the checkpoint's path without extension, on a file system that all processes share,
            or a URL.
        tensors: name to {device: local array}, for the devices of this process in the mesh of the
            tensor's layout; or to a plain array, replicated: equal and whole in every process that
            gives it.
        layouts: name to `Layout`, the same in all processes; None means replicated, as does a plain
            array without an entry.
        coordinator: the `Coordinator` of this process.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it. Only that of
            process 0 is used.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back. Data
            files are synced by the merge.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        check_replicas: True compares everything that several devices hold; without it, blocks of at
            most 1 MiB, and those of devices of one process.

    Returns:
        A future: its `result()` is the prefix, once the checkpoint is in place.

    Raises:
        InvalidError, MemoryError: what this process gives cannot be saved, or not copied. The
            others get the error in the background. All other errors are raised by the future.
    """
    team = Team(coordinator, "sharded.save")
    with team.guarded() as guard:
        wait_for_saves()
        check_order("save(prefix, tensors, layouts, coordinator)", "prefix", prefix, tensors)
        options = CheckpointOptions(
            level=level,
            alignment=alignment,
            durability=durability,
            compression=compression,
            check_replicas=check_replicas,
        )
        own = metadata_json(metadata, level) if team.rank == 0 else None
        job = Job(prefix_text(prefix, urls=True), options, own)
        description = describe(tensors, layouts, check_replicas)
    if guard.error is not None:
        return fail_async(team, guard.error, SaveQueue())
    return save_job_async(team, job, description, SaveQueue())


def restore(
    prefix: Path,
    layouts: Mapping[str, Layout | None] | Mapping[bytes, Layout | None],
    coordinator: Coordinator,
    *,
    devices: Iterable[str] | None = None,
    verify: Verify = "auto",
    limits: Mapping[str, int] | None = None,
    follow_symlinks: bool = True,
) -> dict[str, Any]:
    """Restore tensors onto the devices of many processes, each of which reads only its own slices.

    The layouts, meshes and processes may differ from those of the save, and any checkpoint can be
    restored, including those of `ckptfmt.save` and TensorFlow. As TensorFlow's restore of DTensors,
    but for every dtype and uneven blocks. Every process of the coordinator calls it; the names may
    differ between processes.

    >>> ckptfmt.save("model", {"w": np.arange(8.0).reshape(4, 2)})
    >>> mesh = ckptfmt.sharded.Mesh({"x": 2}, ["a", "b"])
    >>> layouts = {"w": ckptfmt.sharded.Layout(["x", None], mesh)}
    >>> with ckptfmt.sharded.SingleProcess() as one:  # in a real job: that of its engine
    ...     local = ckptfmt.sharded.restore("model", layouts, one)
    >>> local["w"]["b"].tolist()
    [[4.0, 5.0], [6.0, 7.0]]

    Args:
        prefix: a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of these.
        layouts: name to `Layout`, or to None for a tensor that is replicated outside any mesh. The
            global shapes are those of the checkpoint.
        coordinator: the `Coordinator` of this process.
        devices: the devices of this process, of all meshes; default
            `mesh.local_devices(coordinator.rank, coordinator.world_size)` of each.
        verify: "auto": check whole reads, and parts where that is cheap; "full": all; "off": none.
        limits: what a file may ask of this process: a mapping of names of `ckptfmt_limits` in
            `ckptfmt.h` to int, such as {"index_bytes_max": 1 << 30}; None: the defaults there.
        follow_symlinks: False refuses an index or data file that is a symbolic link.

    Returns:
        Name to {device: array} for the devices of this process, in the order of `layouts`; name to
        array for a tensor with the layout None. Devices that hold the same slice get the same
        array (one object): it is read once. Small arrays are views of one common piece of memory.

    Raises:
        TensorNotFoundError: the checkpoint has no tensor of a name in `layouts`.
        InvalidError: a layout of another rank than the tensor, or a device outside every mesh.
        GenerationGoneError: the checkpoint was replaced meanwhile, so that two processes did not
            read the same; all processes raise it.
        BusyError: a process did not arrive in time.
        CheckpointNotFoundError: there is no checkpoint at `prefix`.
        CorruptError, UnsupportedError, LimitError, StorageError: it is damaged, of an unknown
            version, beyond `limits`, or cannot be read now.
    """
    team = Team(coordinator, "sharded.restore")
    result: dict[str, Any] = {}
    seen = b""
    with team.guarded() as guard:
        wait_for_saves()
        check_order("restore(prefix, layouts, coordinator)", "prefix", prefix, layouts)
        request = _Request.of(layouts, devices, team)
        path = locate(prefix, "prefix")
        with contextlib.ExitStack() as stack:
            digest = stack.enter_context(opened(names.index_name(path)))
            reader = reading.Reader(
                path, verify=verify, limits=limits, follow_symlinks=follow_symlinks
            )
            stack.enter_context(reader)
            seen = digest()
            result = _read(reader, request)

    def compare(answers: list[bytes]) -> bytes:
        return compare_seen(answers, path_text(prefix, urls=True))

    team.round(guard.error, seen, compare)
    return result


# ---- saving --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What a process gives to a save besides its tensors.

    Attributes:
        path: the prefix, as the callbacks get it.
        options: how to save. The sharding callback cuts what this process writes into shards.
        metadata: those of process 0, as they are stored; None in the others.
        agree: called in every process before everything else; it may use the coordinator.
        inputs: prefixes of further bundles for the merge, in process 0.
        release: called in process 0 after the merge, or if the save fails.
        record: called in process 0 once the callbacks after the save have been called in all
            processes. Given in all processes or in none: without it no callbacks are called.
    """

    path: str
    options: CheckpointOptions
    metadata: bytes | None = None
    agree: Work | None = None
    inputs: Sequence[str] = ()
    release: Work | None = None
    record: Work | None = None

    def common(self, target: str) -> dict[str, str]:
        """Return the arguments that must be equal in all processes."""
        return {
            "prefixes": target,
            "values of check_replicas": str(self.options.check_replicas),
            **{f"values of {name}": str(one) for name, one in shared(self.options).items()},
        }


def fail(team: Team, error: BaseException) -> NoReturn:
    """Raise the error here and in all other processes."""
    team.round(error, b"", lambda _: b"")
    raise error


def fail_async(team: Team, error: BaseException, queue: SaveQueue) -> NoReturn:
    """Raise the error here, and in the background in all other processes."""
    queue.begin("", lambda: functools.partial(fail, team, error)).mark_heard()
    raise error


def save_job(team: Team, job: Job, description: Description, target: str | None = None) -> None:
    """Run the rounds of a save and write between them.

    Args:
        team: the processes.
        job, description: what this process gives.
        target: the prefix, if the working directory may have changed since `job.path` was given.
    """
    with contextlib.ExitStack() as stack:
        if job.release is not None:
            stack.callback(job.release)
        if job.agree is not None:
            job.agree()
        _write_and_merge(team, job, description, target or job.path)
    if job.record is None:
        return
    with team.guarded() as guard:
        job.options.after_write(job.path)
    record = job.record

    def recorded(_: list[bytes]) -> bytes:
        record()
        return b""

    team.round(guard.error, b"", recorded)


def save_job_async(team: Team, job: Job, description: Description, queue: SaveQueue) -> SaveFuture:
    """Run a save in the background; return once what this process holds is copied."""
    failed: BaseException | None = None

    def prepare() -> Work:
        nonlocal failed
        try:
            target = absolute(job.path)
            inputs = [absolute(path) for path in job.inputs]
            snapshot, copies = _copied(description, queue)
        except BaseException as error:
            if job.release is not None:
                job.release()
            failed = error
            return functools.partial(fail, team, error)

        def work() -> None:
            with snapshot:
                save_job(team, replace(job, inputs=inputs), copies, target)

        return work

    future = queue.begin(job.path, prepare)
    if failed is not None:
        future.mark_heard()
        raise failed
    return future


def _write_and_merge(team: Team, job: Job, description: Description, target: str) -> None:
    staging = TeamStaging(team, target, job.options.durability)
    plan = _agree(team, staging, description, job.common(target))
    count = 0
    with team.guarded() as guard:
        parts = parts_of(plan, team.rank)
        # An empty save makes a checkpoint as well, and metadata needs a bundle.
        needed = team.rank == 0 and (job.metadata is not None or not plan.tensors)
        policy = job.options.experimental_sharding_callback
        shards: list[Sources] | None = None
        if policy is not None:
            shards = cut(_shardable(parts, plan, description), job.options)
            count = max(len(shards), int(needed))
        else:
            count = int(bool(parts) or needed)
        for number, bundle in enumerate(staging.parts(count)):
            metadata = None if number else job.metadata
            with Writer._of(bundle, of_part(job.options), metadata) as writer:
                if shards is None:
                    _write_parts(writer, parts, plan, description)
                elif number < len(shards):
                    writer._add(shards[number])
    staging.merge(guard.error, count, job.inputs)


def _copied(description: Description, queue: SaveQueue) -> tuple[Snapshot, Description]:
    """Copy the arrays of this process; return the copies and their description."""
    sources = Sources()
    rows: dict[tuple[str, int], int] = {}
    for name, one in description.held.items():
        blocks: dict[Any, int] = {}
        for position, array in one.arrays.items():
            shape = one.shapes[position]
            block = () if one.layout is None else one.layout._block_of(position)
            # Local replicas are equal, so any of them can be written.
            row = rows[name, position] = blocks.setdefault((block, shape), len(sources))
            if row == len(sources):
                sources.add(names.tensor_bytes(name), array)
                _check_added(sources, name, shape, one.code)
    snapshot = Snapshot([sources], queue)
    arrays = snapshot.arrays(sources)
    held = {
        name: one._replace(
            arrays={position: arrays[rows[name, position]] for position in one.arrays}
        )
        for name, one in description.held.items()
    }
    return snapshot, replace(description, held=held, copied=True)


def _agree(team: Team, staging: TeamStaging, mine: Description, options: dict[str, str]) -> Plan:
    """Create the temporary directory in process 0; return the common plan."""

    def decide(answers: list[bytes]) -> bytes:
        heads, descriptions = [], []
        distinct: dict[bytes, bytes] = {}  # most processes give the same description
        for answer in answers:
            size = int.from_bytes(answer[:8])
            heads.append(json.loads(unpacked(answer[8 : 8 + size])))
            packed = answer[8 + size :]
            if packed not in distinct:
                distinct[packed] = unpacked(packed)
            descriptions.append(distinct[packed])
        for what in options:
            compare_all(f"give different {what}", [given[what] for given, _, _ in heads])
        plan = join(descriptions, [head[1] for head in heads], [head[2] for head in heads])
        return zlib.compress(plan.to_bytes(), 1)

    placements = list(mine.placement.values())
    head = zlib.compress(json.dumps([options, placements, mine.sums_text()]).encode(), 1)
    answer = len(head).to_bytes(8) + head + zlib.compress(mine.to_bytes(), 1)
    return Plan.from_bytes(unpacked(staging.start(None, answer, decide)))


def _write_parts(
    writer: Writer, parts: Sequence[Part], plan: Plan, description: Description
) -> None:
    """Write in batches: one call into C for many small slices, one for a large one."""
    sources, size = Sources(), 0
    for part in parts:
        one, box = plan.tensors[part.name], part.box
        array, dtype = _array_of(part, one, description)
        sources.add(
            names.tensor_bytes(part.name),
            array,
            dtype,
            None if box is None else (box.full_shape, box.start, box.lengths),
        )
        _check_added(sources, part.name, one.shape if box is None else box.shape, one.code)
        size += sources.sizes[-1]
        if size >= BATCH_BYTES:
            writer._add(sources)
            sources, size = Sources(), 0
    if len(sources):
        writer._add(sources)


def _shardable(
    parts: Sequence[Part], plan: Plan, description: Description
) -> Iterator[ShardableTensor]:
    """Yield what this process writes, for a sharding policy."""
    for part in parts:
        one = plan.tensors[part.name]
        array, dtype = _array_of(part, one, description)
        device = "" if one.layout is None else one.layout.mesh.devices[part.position]
        text = "" if part.box is None else text_of(part.box)
        spec = SaveSpec(array, text, part.name, one.code if dtype is None else dtype, device)
        tensor = ShardableTensor.from_spec(spec)
        assert tensor is not None
        yield tensor


def _array_of(part: Part, one: Planned, description: Description) -> tuple[Any, int | None]:
    """Return the array of a part, and its dtype where the array does not say it."""
    if one.layout is not None and one.size == 0:
        # The local block is empty as well, but has another shape.
        shape = one.shape if part.box is None else part.box.shape
        return np.zeros(shape, dtypes.numpy_dtype(one.code)), one.code
    # The dtype of a copy, a plain array, may be ambiguous.
    array = description.held[part.name].arrays[part.position]
    return array, one.code if description.copied else None


def _check_added(sources: Sources, name: str, shape: tuple[int, ...], code: int) -> None:
    """Refuse an array whose NumPy view differs from its description."""
    if sources.arrays[-1].shape != shape or sources.codes[-1] != code:
        raise InvalidError(
            f"the array has shape {sources.arrays[-1].shape} and dtype "
            f"{dtypes.name_of(sources.codes[-1])} now, and was described as "
            f"{shape}, {dtypes.name_of(code)}",
            tensor=name,
        )


# ---- restoring -----------------------------------------------------------------------------------


@dataclass
class _Request:
    """The request of this process: layouts by name, and its devices by mesh."""

    layouts: dict[str, Layout | None]
    local: dict[Mesh, list[str]]

    @classmethod
    def of(cls, layouts: Any, devices: Iterable[str] | None, team: Team) -> _Request:
        found = layouts_by_name(layouts)
        meshes = dict.fromkeys(one.mesh for one in found.values() if one is not None)
        if devices is None:
            local = {m: list(m.local_devices(team.rank, team.world_size)) for m in meshes}
            return cls(found, local)
        wanted = dict.fromkeys(listed("devices", devices, "names of devices"))
        local = {mesh: [device for device in mesh.devices if device in wanted] for mesh in meshes}
        known = {device for chosen in local.values() for device in chosen}
        for device in wanted:
            if meshes and device not in known:
                raise invalid("devices", f"{device!r} is not a device of any mesh of these layouts")
        return cls(found, local)


def _read(reader: reading.Reader, request: _Request) -> dict[str, Any]:
    """Read the arrays of this process."""
    wanted = list(request.layouts)
    # Look up all names, also those without a part here, so that all processes fail alike.
    batch = select_batch(reader, [names.tensor_bytes(name) for name in wanted])
    batch.refuse_meant()
    selection = batch.selection
    shapes, codes = selection.shapes(), selection.rows["dtype"].tolist()
    result: dict[str, Any] = {}
    # What is read: rows, names, boxes by position (not of whole tensors), and where it is put.
    rows: list[int] = []
    boxes: dict[int, NDArray[np.int64]] = {}
    targets: list[tuple[dict[str, Any], Sequence[str]]] = []
    # Many tensors share a layout and shape, so their boxes are computed once.
    known: dict[tuple[Layout, tuple[int, ...]], list[_LocalBox]] = {}
    for row, (name, layout) in enumerate(request.layouts.items()):
        result[name] = None if layout is None else {}
        if layout is None:
            rows.append(row)
            targets.append((result, [name]))
            continue
        shape = shapes[row]
        if (layout, shape) not in known:
            known[layout, shape] = _local_boxes(name, layout, shape, request)
        for box in known[layout, shape]:
            result[name].update(dict.fromkeys(box.devices))
            if box.extents is not None and dtypes.numpy_dtype(codes[row]) is None:
                handle = TensorHandle(reader, selection, row, name)
                raise handle._unsupported(
                    f"elements of {handle.dtype_name} are not known: it can only be restored whole"
                )
            if box.empty:
                array = np.empty(box.shape, dtypes.numpy_dtype(codes[row]))
                result[name].update(dict.fromkeys(box.devices, array))
            else:
                if box.extents is not None:
                    boxes[len(rows)] = box.extents
                rows.append(row)
                targets.append((result[name], box.devices))
    batch = Batch(reader, selection, rows, [wanted[row] for row in rows], boxes)
    for (target, keys), array in zip(targets, batch.read(None), strict=True):
        target.update(dict.fromkeys(keys, array))
    return result


class _LocalBox(NamedTuple):
    """A box of devices of this process; `extents` is in the form of the reader, None for the whole
    tensor."""

    shape: tuple[int, ...]
    extents: NDArray[np.int64] | None
    empty: bool
    devices: tuple[str, ...]


def _local_boxes(
    name: str, layout: Layout, shape: tuple[int, ...], request: _Request
) -> list[_LocalBox]:
    if len(shape) != layout.rank:
        raise InvalidError(
            f"the layout {layout.text} does not fit the shape {shape} in the checkpoint",
            tensor=name,
        )
    by_box: dict[SliceSpec, list[str]] = {}
    for device in request.local[layout.mesh]:
        box = layout._slice_at(shape, layout.mesh.index_of(device))
        by_box.setdefault(box, []).append(device)
    found = []
    for box, devices in by_box.items():
        whole = box.shape == shape
        extents = None if whole else np.array([*box.start, *box.shape, 0], np.int64)
        empty = not whole and math.prod(box.shape) == 0
        found.append(_LocalBox(box.shape, extents, empty, tuple(devices)))
    return found


def compare_seen(answers: list[bytes], path: str) -> bytes:
    """Raise GenerationGoneError unless all processes saw the same index."""
    for rank, answer in enumerate(answers):
        if answer != answers[0]:
            raise GenerationGoneError(
                f"process 0 and process {rank} found different checkpoints here: it was "
                "replaced while it was being restored; restore it again",
                path=path,
            )
    return b""
