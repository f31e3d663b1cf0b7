# SPDX-License-Identifier: Apache-2.0
"""Storage for torch.distributed.checkpoint: `dcp.save(..., storage_writer=StorageWriter(prefix))`.

A chunk of a tensor is stored as a slice. Each rank writes one bundle,
`<prefix>_temp_<hex>/part-00000-of-00001`; the coordinator merges them into `<prefix>`, which moves
the data files and commits. Values that are not tensors, and the nesting, are stored as
`ckptfmt.torch.save` stores them, so that `ckptfmt.torch.load` loads the checkpoint without DCP. The
metadata of DCP are made from that and the index; nothing is pickled.

Each rank has a temporary directory of its own: a planner that caches plans may skip the exchange
in which ranks could agree on one. The names reach the coordinator with the results of the writes.
"""

from __future__ import annotations

import io
import os
import uuid
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint._traverse import traverse_state_dict
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.futures import Future

from ckptfmt import _core
from ckptfmt._base import names
from ckptfmt._base.arguments import Durability, Level, Verify, invalid
from ckptfmt._base.arrays import Sources
from ckptfmt._base.save_options import SaveOptions, of_part
from ckptfmt._base.targets import as_target
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.batch import select_batch
from ckptfmt.bundle.merge import check_seen
from ckptfmt.bundle.staging import Staging
from ckptfmt.bundle.state_tree import KEY, WHOLE, dict_node, text_of
from ckptfmt.bundle.writer import BATCH_BYTES, Writer, metadata_json
from ckptfmt.errors import InvalidError, about
from ckptfmt.files.state_file import checkpoint_exists
from ckptfmt.torch import tensors
from ckptfmt.torch.making import New
from ckptfmt.torch.structure import Packed, Stored, structure_of

Path = str | os.PathLike[str]


class StorageWriter(storage.StorageWriter):  # type: ignore[misc]
    """Writes checkpoints of torch.distributed.checkpoint in this package's format.

    An existing checkpoint of the same prefix is replaced by the commit, when all ranks have
    written; until then it stays as it is. If a rank fails, the parts of the others are removed when
    their writers are used again or freed. What a killed save leaves is removed by the next save.

    Args:
        checkpoint_id: the checkpoint's prefix, on a file system that all ranks share, or a URL. The
            `checkpoint_id` of `dcp.save` replaces it.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it. That of the
            coordinator is stored.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".

    Raises:
        InvalidError: a wrong argument; in a save, a value that would need pickle, or a tensor that
            cannot be stored, by name.
        MergeConflictError: in a save, two ranks write the same slice (a planner without
            deduplication).
        StorageError, BusyError: in a save. DCP raises its CheckpointException on all ranks, which
            has the errors by rank.
    """

    def __init__(
        self,
        checkpoint_id: Path | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        level: Level = "v2+",
        alignment: int | None = None,
        durability: Durability = "full",
        compression: str | None = None,
    ) -> None:
        self._options = SaveOptions(
            level=level, alignment=alignment, durability=durability, compression=compression
        )
        metadata_json(metadata, level)
        self._metadata = dict(metadata or {})
        self._prefix: str | None = None
        self._rank: int | None = None
        self._staging: Staging | None = None
        self._finalizer: Any = None
        self.reset(checkpoint_id)

    def __getstate__(self) -> dict[str, Any]:
        # For `async_save` in another process.
        return {**self.__dict__, "_staging": None, "_finalizer": None}

    @property
    def checkpoint_id(self) -> str | None:
        """The prefix, absolute."""
        return self._prefix

    def reset(self, checkpoint_id: Path | None = None) -> None:
        """Begin a save of this prefix, or of the one before."""
        if checkpoint_id is not None:
            self._prefix = names.absolute(
                names.prefix_text(checkpoint_id, "checkpoint_id", urls=True)
            )
        self._save_id = str(uuid.uuid4())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """Return whether it can be the prefix of a checkpoint."""
        try:
            return bool(names.prefix_text(checkpoint_id, "checkpoint_id", urls=True))
        except InvalidError:
            return False

    def storage_meta(self) -> dcp.StorageMeta:
        """Return the prefix and the id of this save."""
        return dcp.StorageMeta(checkpoint_id=self._prefix, save_id=self._save_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin a save on this rank."""
        if self._prefix is None:
            raise invalid("checkpoint_id", "give the prefix: dcp.save(..., checkpoint_id=PREFIX)")
        self._rank = None if kwargs.get("use_collectives", True) else kwargs.get("rank")
        if self._rank is not None and checkpoint_exists(self._prefix):
            raise invalid(
                "checkpoint_id",
                "a save of all ranks has this prefix, and a load would read that: remove it, or "
                "use another prefix with use_collectives=False",
            )
        self.discard()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Remove what killed saves left; return the plans."""
        _core.sweep_before_save(self._target())
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[storage.WriteResult]]:
        """Write the bundle of this rank, if it has any tensors."""
        packed = [_pack(item, planner) for item in plan.items]
        written = [_Written() for _ in packed]
        if any(one is None or one.tensors for one in packed):
            self._staging = Staging(self._target(), durability=self._options.durability)
            self._remove_if_dropped(self._staging)
            try:
                with self._part_in(self._staging, {}) as writer:
                    sizes = _write(writer, plan.items, packed, planner)
            except BaseException:
                self.discard()
                raise
            written = [_Written(self._staging.directory.token, size) for size in sizes]
        results = [
            storage.WriteResult(
                item.index, one.size, one._replace(value=None if value is None else value.packed)
            )
            for item, one, value in zip(plan.items, written, packed, strict=True)
        ]
        future: Future[list[storage.WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: dcp.Metadata, results: list[list[storage.WriteResult]]) -> None:
        """Merge the bundles of all ranks into the checkpoint."""
        written = [(rank, one) for rank, found in enumerate(results) for one in found]
        tokens = {one.storage_data.token: rank for rank, one in written if one.storage_data.token}
        durability = self._options.durability
        made = [Staging(self._target(), token, durability=durability) for token in tokens]
        try:
            parts = [one.part() for one in made]
            for rank, part in zip(tokens.values(), parts, strict=True):
                check_seen(part, self._target(), f"rank {rank}", "the coordinator", "ranks")
            values = {one.index.fqn: one.storage_data.value for _, one in written}
            more = {**self._metadata, **_structure(metadata, values)}
            if more or not parts:  # an empty state dict is a checkpoint as well
                made.append(Staging(self._target(), durability=durability))
                with self._part_in(made[-1], more):
                    parts.append(made[-1].part())
            made[-1].merge(parts)
        finally:
            for one in made:
                one.directory.remove()
            self.discard()
        metadata.storage_meta = self.storage_meta()

    def _target(self) -> str:
        # Without collectives each rank has a checkpoint of its own.
        return f"{self._prefix}" if self._rank is None else _of_rank(f"{self._prefix}", self._rank)

    def discard(self) -> None:
        """Remove what this rank has written of a save that did not end."""
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.directory.remove()
            self._finalizer.detach()

    def _remove_if_dropped(self, staging: Staging) -> None:
        """If another rank refuses, DCP ends the save on this one without a call to the writer:
        remove the directory when the writer is freed, or the process exits."""
        self._finalizer = weakref.finalize(self, _remove, staging, os.getpid())

    def _part_in(self, staging: Staging, metadata: Mapping[str, Any]) -> Writer:
        """Return the writer of a part in a temporary directory, which is made."""
        text = metadata_json(metadata, self._options.level) if metadata else None
        staging.directory.make()
        return Writer._of(staging.part(), of_part(self._options), text)


def _remove(staging: Staging, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has a copy of the writer
        staging.directory.remove()


class _Written(NamedTuple):
    """What a rank reports of an item: where it wrote the bundle, the bytes of the item, and a value
    in JSON."""

    token: str | None = None
    size: int = 0
    value: Any = None


class _Value(NamedTuple):
    packed: Any
    tensors: dict[str, Any]


def _of_rank(prefix: str, rank: int) -> str:
    return f"{prefix}-rank-{rank:05d}"


def _pack(item: WriteItem, planner: Any) -> _Value | None:
    """Return the value of an item as JSON and tensors; None for a chunk of a tensor."""
    if item.type != WriteItemType.BYTE_IO:
        return None
    name = item.index.fqn
    if not hasattr(planner, "lookup_object"):
        raise InvalidError(
            f"{type(planner).__name__} gives this value only pickled: derive the planner from "
            "DefaultSavePlanner, which has lookup_object",
            tensor=name,
        )
    packer = Packed({}, takes_default=False)
    try:
        return _Value(packer._pack(planner.lookup_object(item.index), (name,)), packer.tensors)
    except RecursionError:
        raise InvalidError(
            "the value contains itself, or is nested too deeply", tensor=name
        ) from None


def _write(
    writer: Writer, items: Iterable[WriteItem], values: Iterable[_Value | None], planner: Any
) -> list[int]:
    """Write tensors in batches; return the bytes of each item."""
    found: list[int] = []
    sources, size = Sources(), 0
    for item, value in zip(items, values, strict=True):
        count = len(sources)
        if value is None:
            _add_chunk(sources, item, planner)
        else:
            for name, array in value.tensors.items():
                sources.add(names.user_name(name), array)
        found.append(sum(sources.sizes[count:]))
        size += found[-1]
        if size >= BATCH_BYTES:
            writer._add(sources)
            sources, size = Sources(), 0
    writer._add(sources)
    return found


def _add_chunk(sources: Sources, item: WriteItem, planner: Any) -> None:
    name, raw_name = item.index.fqn, names.user_name(item.index.fqn)
    shape, chunk = tuple(item.tensor_data.size), item.tensor_data.chunk
    offset, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
    if 0 in sizes and (0 not in shape or any(offset)):
        # A rank whose part is empty. Of an empty tensor, the first part stands for all.
        return
    tensor = planner.resolve_data(item).detach()
    given, dtype = tuple(tensor.shape), item.tensor_data.properties.dtype
    with about(name):
        note = tensors.note_of(tensor)
        if tensor.is_quantized:
            raise InvalidError("StorageWriter takes no quantized tensors: use ckptfmt.torch.save")
        if given != sizes or note.get("dtype", str(dtype)) not in str(dtype):
            raise InvalidError(
                f"the planner gives a tensor of shape {given} and {tensor.dtype} for a chunk of "
                f"shape {sizes} and {dtype}"
            )
        if 0 in shape:
            tensor, sizes = tensor.new_empty(shape), shape
        plain = tensors.carrier(tensor).cpu()
    # The carrier of a complex number is a pair.
    pair = tuple(plain.shape[len(shape) :])
    part = (shape + pair, offset + (0,) * len(pair), sizes + pair)
    sources.add(raw_name, plain, None, None if sizes == shape else part)


def _structure(metadata: dcp.Metadata, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what only a state dict with nesting, values or unusual dtypes needs: the metadata that
    `ckptfmt.bundle.state_tree` reads."""
    stored, paths = metadata.state_dict_metadata, metadata.planner_data
    if paths is None:
        paths = {name: (name,) for name in stored}
    order = {name: at for at, name in enumerate(paths)} if isinstance(paths, Mapping) else {}
    flat: dict[str, _Leaf] = {}
    is_plain = True
    for name in sorted(stored, key=lambda one: order.get(one, 0)):
        path = paths[name] if name in order else None
        if not isinstance(path, tuple) or ".".join(map(str, path)) != name:
            raise InvalidError(
                "the planner has planner_data other than the paths of the keys, which would need "
                f"pickle: {path!s:.80}",
                tensor=name,
            )
        one = stored[name]
        if isinstance(one, dcp.BytesStorageMetadata):
            flat[name] = _Leaf(values[name])
        else:
            dtype = one.properties.dtype
            note = {} if dtype in tensors.PLAIN else {"dtype": str(dtype).removeprefix("torch.")}
            flat[name] = _Leaf({"$tensor": True, **note})
            is_plain &= len(path) == 1 and not note
        is_plain &= not isinstance(one, dcp.BytesStorageMetadata)
    if is_plain:
        return {}
    state = _json_of(unflatten_state_dict(flat, paths))
    text = text_of(state=state)
    return {KEY: text} if metadata.planner_data is not None else {KEY: text, WHOLE: True}


class _Leaf(NamedTuple):
    json: Any


def _json_of(value: Any) -> Any:
    if isinstance(value, _Leaf):
        return value.json
    if isinstance(value, list):
        return list(map(_json_of, value))
    if value is None:
        return None  # an element of a list that is not in the checkpoint
    return dict_node([[key, _json_of(one)] for key, one in value.items()])


# ---- reading -------------------------------------------------------------------------------------


class StorageReader(storage.StorageReader):  # type: ignore[misc]
    """Reads checkpoints for torch.distributed.checkpoint: those of StorageWriter, and the tensors
    of any other that `ckptfmt.open` opens.

    Each rank reads the bytes that its part of the state dict needs, straight into the tensors if
    these are contiguous, on the CPU and of the stored dtype. However a tensor was sharded when it
    was saved, DCP sees it as one chunk, since any box of it can be read.

    Args:
        checkpoint_id: what `ckptfmt.open` opens. The `checkpoint_id` of `dcp.load` replaces it.
        verify: "auto": check whole reads, and parts where that is cheap; "full": all; "off": none.

    Raises:
        CorruptError, StorageError, ...: in a load, what reading raises. DCP raises its
            CheckpointException on all ranks, which has the errors by rank. If `ckptfmt.open`
            fails, it has an AssertionError of DCP with the text of our error.
    """

    def __init__(self, checkpoint_id: Path | None = None, *, verify: Verify = "auto") -> None:
        self._path: str | None = None
        self._verify = verify
        self._opened: _Opened | None = None
        self.reset(checkpoint_id)

    @property
    def checkpoint_id(self) -> str | None:
        """The path that is opened."""
        return self._path

    def reset(self, checkpoint_id: Path | None = None) -> None:
        """Begin a load from this path, or from the one before."""
        self._close()
        if checkpoint_id is not None:
            self._path = names.path_text(checkpoint_id, "checkpoint_id", urls=True)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """Return whether it can be the path of a checkpoint."""
        try:
            return bool(names.path_text(checkpoint_id, "checkpoint_id", urls=True))
        except InvalidError:
            return False

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp.Metadata:
        """Open the checkpoint and return its contents in the terms of DCP."""
        if self._path is None:
            raise invalid(
                "checkpoint_id", "give the checkpoint: dcp.load(..., checkpoint_id=PREFIX)"
            )
        self._close()
        rank = kwargs.get("rank")
        path = self._path if rank is None else _of_rank(self._path, rank)
        opened = reading.open(path, verify=self._verify)
        self._opened = _Opened(opened, self._structure(opened))
        return self._opened.metadata

    def _structure(self, reader: reading.Reader) -> Any:
        return structure_of(reader)

    def set_up_storage_reader(
        self, metadata: dcp.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: `read_metadata` has opened the checkpoint."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan asks for."""
        assert self._opened is not None
        try:
            self._opened.read(plan.items, planner)
        finally:
            self._close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.reader.close()


class _Opened:
    """An open checkpoint, as DCP sees it: tensors and values by their keys.

    Attributes:
        metadata: for DCP.
        leaves: of the structure, by key.
    """

    def __init__(self, reader: reading.Reader, structure: Any) -> None:
        self.reader = reader
        self.leaves: dict[str, Any] = {}
        paths: dict[str, Any] = {}

        def visit(path: tuple[Any, ...], leaf: Any) -> None:
            name = ".".join(map(str, path))
            self.leaves[name], paths[name] = leaf, path

        if WHOLE in reader.metadata:
            self.leaves = structure
        else:
            traverse_state_dict(structure, visit, _is_tensor)
        table = reader.table()
        columns = [table[name].tolist() for name in ("name", "dtype_code", "shape")]
        kinds = {name: (code, shape) for name, code, shape in zip(*columns, strict=True)}
        found = {name: _described(leaf, kinds) for name, leaf in self.leaves.items()}
        self.metadata = dcp.Metadata(found, planner_data=paths or None)

    def read(self, items: Iterable[ReadItem], planner: LoadPlanner) -> None:
        values = [item for item in items if item.type == LoadItemType.BYTE_IO]
        self._read_values(values, planner)
        reads: list[_Read] = []
        staged = 0
        for item in items:
            if item.type == LoadItemType.TENSOR:
                reads.append(_Read(self.reader, self.leaves, item, planner))
                staged += reads[-1].staged
            if staged >= BATCH_BYTES:
                _fill(self.reader, reads, planner)
                reads, staged = [], 0
        _fill(self.reader, reads, planner)

    def _read_values(self, items: list[ReadItem], planner: LoadPlanner) -> None:
        new = New(torch.device("cpu"))
        leaves = [self.leaves[one.storage_index.fqn] for one in items]
        for leaf in leaves:
            new.add(leaf)
        new.read(self.reader, [], None)
        for item, leaf in zip(items, leaves, strict=True):
            # What planners take, in memory.
            value = io.BytesIO()
            torch.save(new.build(leaf), value)
            value.seek(0)
            planner.load_bytes(item, value)


def _is_tensor(value: Any) -> bool:
    # DCP visits the elements of a list that has tensors; one of NumPy arrays alone is a value.
    return isinstance(value, Stored) and value.kind == "tensor"


def _described(leaf: Any, kinds: Mapping[str, tuple[int, tuple[int, ...]]]) -> dcp.STORAGE_TYPES:
    if _is_tensor(leaf) and leaf.note.keys() <= {"dtype"}:
        dtype, shape = tensors.kind_of(*kinds[leaf.name], leaf.note)
        if dtype is not None and (leaf.note or dtype in tensors.PLAIN):
            # Any box can be read, however it is stored: for DCP it is one chunk.
            size = torch.Size(shape)
            chunk = dcp.ChunkStorageMetadata(torch.Size([0] * len(size)), size)
            return dcp.TensorStorageMetadata(dcp.TensorProperties(dtype=dtype), size, [chunk])
    return dcp.BytesStorageMetadata()


class _Read:
    """One item of a plan, with the tensor that DCP wants filled."""

    def __init__(
        self, reader: reading.Reader, leaves: dict[str, Any], item: ReadItem, planner: LoadPlanner
    ) -> None:
        leaf = leaves[item.storage_index.fqn]
        self.item, self.name = item, leaf.name
        stored = reader[self.name]
        dtype, _ = tensors.kind_of(stored.dtype_code, stored.shape, leaf.note)
        self.target = planner.resolve_tensor(item)
        place, lengths = self.target.detach(), tuple(item.lengths)
        if tuple(place.shape) != lengths:
            raise InvalidError(
                f"the planner gives a tensor of shape {tuple(place.shape)} for {lengths}",
                tensor=self.name,
            )
        can = tensors.can_cast(dtype, place.dtype)
        can = (
            can and dtype is not None and (place.dtype.is_complex or not dtype.is_complex)
        )  # torch drops a part
        if place.dtype != dtype and not can:
            raise InvalidError(
                f"stored as {dtype}, and values cannot be converted to {place.dtype}",
                tensor=self.name,
            )
        self.staging: torch.Tensor | None = None
        if place.device.type != "cpu" or place.dtype != dtype or place.is_conj() or place.is_neg():
            # Read into memory of the CPU, and let torch convert or move it.
            pinned = place.device.type == "cuda"
            self.staging = place = torch.empty(lengths, dtype=dtype, pin_memory=pinned)
        self.memory = as_target(tensors.carrier(place))
        array = self.memory.array
        self.staged = 0 if self.staging is None else array.nbytes
        chunk = item.storage_index.offset or [0] * len(lengths)
        start = [a + b for a, b in zip(chunk, item.storage_offsets, strict=True)]
        start += [0] * (array.ndim - len(start))
        self.box = None
        if array.shape != stored.shape:
            self.box = np.array([*start, *array.shape, 0], np.int64)


def _fill(reader: reading.Reader, reads: list[_Read], planner: LoadPlanner) -> None:
    batch = select_batch(reader, [names.tensor_bytes(one.name) for one in reads])
    batch.targets.update(enumerate(one.memory for one in reads))
    batch.boxes.update({at: one.box for at, one in enumerate(reads) if one.box is not None})
    batch.read(None)
    for one in reads:
        if one.staging is not None:
            one.target.detach().copy_(one.staging)
        planner.commit_tensor(one.item, one.target)
