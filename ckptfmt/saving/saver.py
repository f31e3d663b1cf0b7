# SPDX-License-Identifier: Apache-2.0
"""Saver: saves and restores the tensors of many objects and devices as one checkpoint, as
TensorFlow's `functional_saver.MultiDeviceSaver`.

A save has these steps; those before the merge do not touch the previous checkpoint.
A background save returns after 3, when the shards are copied; 4 to 7 are done in the background:

    1  check the options
    2  claim the names of registered savers, until 6; they write their bundles and return prefixes
    3  call the callables for their tensors; the policy cuts those of each task into shards, which
       are validated
    4  write the shards in parallel under <prefix>_temp_<hex>/part-SSSSS-of-NNNNN
    5  merge all bundles into the checkpoint, all or nothing
    6  remove the temporary directory, after a failure as well
    7  call the callbacks after the save
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes, names
from ckptfmt._base.adapters import refused
from ckptfmt._base.arguments import invalid, wrong
from ckptfmt._base.arrays import Sources
from ckptfmt._base.background import SaveFuture, SaveQueue, wait_for_saves
from ckptfmt._base.names import path_text, prefix_text
from ckptfmt._base.slices import parse_spec
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.batch import box_of_text, check_dtypes, select_batch
from ckptfmt.bundle.reader import Reader
from ckptfmt.errors import (
    CheckpointNotFoundError,
    InvalidError,
    about,
)
from ckptfmt.files.locate import locate
from ckptfmt.saving.devices import task_of
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.registration import RegisteredSaver, claimed, get_registered_saver
from ckptfmt.saving.replicas import COMPARED_BYTES, same_bytes, stored_bytes
from ckptfmt.saving.sharding import Box, overlapping
from ckptfmt.saving.shards import Save, cut
from ckptfmt.saving.specs import DSaveSpec, SaveableObject, SaveSpec, ShardableTensor

Path = str | bytes | os.PathLike[Any]
RestoreFn = Callable[[Mapping[str, Any]], Any]


class Saver:
    """Save and restore the tensors of objects, which may be on many devices; as TensorFlow's
    `MultiDeviceSaver`.

    Tensors are grouped by the task of their device, and the sharding policy of the options cuts
    each group into shards (default: one per task). Every save calls the callables of the save specs
    once; None omits a tensor from the checkpoint. A restore still looks for it, and raises
    TensorNotFoundError if it is missing (except for `may_be_missing` below).

    >>> saver = ckptfmt.Saver({"model": {"w": np.ones(3), "b": np.zeros(2)}})
    >>> saver.save("model")
    'model'
    >>> saver.restore("model")["w"].tolist()
    [1.0, 1.0, 1.0]

    Args:
        serialized_tensors: object -> checkpoint key -> an array, a SaveSpec, or a mapping from
            shape_and_slice text ("4 6 0,2:-") to one of these. Any objects may be keys. Arrays
            without a device belong to the task "".

            An object's `restore(restored)` gets checkpoint key -> array, or -> slice text -> array
            where the text is not "". A mapping that it returns is added to the results of the
            restore. The arrays of an object without such a method are results themselves. The
            tensors of None are saved and not restored.

            An object with a method `may_be_missing(key)` is restored without a missing key for
            which that method returns true.
        registered_savers: name of a registered saver -> name of an object -> object; see
            `tf.register_checkpoint_saver`.
        restore_fns: object -> function to call instead of its `restore`.
        queue: the queue of background saves. The next save through the same queue raises an error
            that no caller has retrieved. Default: a queue of this Saver's own.

    Raises:
        InvalidError: a key that is empty or reserved, a key and slice given twice (unless as
            DSaveSpecs of one layout for several devices, of which one is saved), slices of one
            key that overlap or differ in dtype or full shape, a malformed slice text, a save spec
            under another key or slice than its own, a saver that is not registered, or an argument
            of another type.
    """

    def __init__(
        self,
        serialized_tensors: Mapping[Any, Mapping[str, Any]],
        registered_savers: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        restore_fns: Mapping[Any, RestoreFn] | None = None,
        queue: SaveQueue | None = None,
    ) -> None:
        self._items: list[_Item] = []
        if not isinstance(serialized_tensors, Mapping):
            wanted = "serialized_tensors must be a mapping from objects to their tensors"
            raise refused(wanted, serialized_tensors, "serialized_tensors")
        functions = _functions(restore_fns, serialized_tensors)
        seen: dict[tuple[str, str], _Item] = {}
        for trackable, tensors in serialized_tensors.items():
            if not isinstance(tensors, Mapping):
                wanted = "a mapping from checkpoint keys"
                raise wrong(f"the tensors of {trackable!r}", wanted, tensors, "serialized_tensors")
            own = None if trackable is None else getattr(trackable, "restore", None)
            owner = _Owner(trackable, functions.get(trackable, own) if functions else own)
            for key, slice_spec, spec in _specs(tensors):
                item = _Item(key, slice_spec, spec, owner)
                first = seen.setdefault((key, slice_spec), item)
                if first is not item and not spec.is_empty:
                    if not _are_replicas(first.spec, spec):
                        raise InvalidError(
                            f"the slice '{slice_spec}' is given twice: one would overwrite the "
                            "other",
                            tensor=key,
                        )
                    item = replace(item, is_replica=True)
                self._items.append(item)
        _check_slices(self._items)
        self._tasks: dict[str, list[_Item]] = {}
        for item in self._items:
            self._tasks.setdefault(task_of(item.spec.device), []).append(item)
        self._registered = _registered(registered_savers)
        if queue is not None and not isinstance(queue, SaveQueue):
            raise wrong("queue", "a SaveQueue", queue)
        self._queue = queue or SaveQueue()

    @property
    def staging_bytes(self) -> int:
        """Bytes of memory that background saves of this saver keep for their copies. It is freed
        with the saver; 0 while a save uses it."""
        return self._queue.staging_bytes

    @classmethod
    def from_saveables(
        cls,
        saveables: Sequence[SaveableObject],
        registered_savers: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Saver:
        """Return a saver of SaveableObjects.

        Each is restored by `restore(restored_tensors, None)`, with the arrays in the order of its
        specs; the returned value is the result of its name. For a name with several saveables (the
        slices of a partitioned variable) the result is a list of theirs, in the order given.

        Raises:
            InvalidError: as the constructor, or not a SaveableObject.
        """
        if isinstance(saveables, (SaveableObject, Mapping)) or not hasattr(saveables, "__iter__"):
            raise wrong("saveables", "a list of SaveableObjects", saveables)
        converted: list[_Saveable] = []
        named: dict[str, list[_Saveable]] = {}
        for saveable in saveables:
            if not isinstance(saveable, SaveableObject):
                raise wrong("a saveable", "a ckptfmt.tf.SaveableObject", saveable, "saveables")
            converted.append(_Saveable(saveable, named.setdefault(saveable.name, [])))
        return cls({one: one.serialize() for one in converted}, registered_savers)

    def save(self, prefix: Path, options: CheckpointOptions | None = None) -> str:
        """Save everything as one checkpoint, all or nothing, and return its prefix as str.

        With `enable_async` it returns once everything is copied, as in TensorFlow, and the next
        save of this saver raises what failed; `save_async` returns a future.

        After a failure the previous checkpoint of the prefix is unchanged (after a
        DurabilityUnknownError, or an error of a write callback, the new one is in place), and there
        is no temporary directory; what registered savers wrote remains. If several savers save to
        one prefix at the same time, the whole checkpoint of one of them remains; if they share a
        registered saver, whose files would have the same names, the second one raises BusyError.
        (The claim is a lock on the file `<prefix>-<name>.claim`, which ends with the process.)

        A save never writes into the data files of the previous checkpoint. Where the names would be
        the same, the new checkpoint has one data file more, without tensors: the number alternates
        from save to save.

        Args:
            prefix: path without extension: str, bytes, os.PathLike or URL; directories are made.
            options: `tf.CheckpointOptions` (level, durability, callbacks ...); None: the defaults.

        Raises:
            InvalidError: a tensor that does not match its spec, a policy whose shards are not the
                tensors that it was given, a registered saver that returned something else than
                prefixes, a prefix without a file name, or `experimental_io_device` for tensors on a
                mesh.
            BusyError: another save to this prefix runs one of the same registered savers.
            CheckpointNotFoundError: a registered saver returned a prefix without a checkpoint.
            MergeConflictError: a registered saver saved a tensor that is saved here as well.
            StorageError: it could not be written; an older checkpoint there is unchanged.
            DurabilityUnknownError: it is in place, but a power cut may bring the older one back.
            MemoryError: with `enable_async`, not enough memory for the copies.
            Exception: what the callables, the policy, the registered savers and the callbacks
                raise; and what ended the last background save of this saver, if no caller asked its
                future.
        """
        return self._begun(prefix, options).run()

    def save_async(self, prefix: Path, options: CheckpointOptions | None = None) -> SaveFuture:
        """Save as `save` does, in the background, and return a future of the prefix once everything
        is copied.

        The callables, the policy and the registered savers are called here, the callbacks in the
        background. Other saves and restores wait for this one.

        Args:
            prefix: path without extension: str, bytes, os.PathLike or URL; directories are made.
            options: `tf.CheckpointOptions` (level, durability, callbacks ...); None: the defaults.

        Raises:
            InvalidError, MemoryError: a tensor or an argument that cannot be saved, or not copied.
                Errors of writing and of the callbacks after it are raised by the future.
        """
        return self._begun(prefix, options).run_async()

    def _begun(self, prefix: Path, options: CheckpointOptions | None) -> Save:
        options = self._options(options)
        path = prefix_text(prefix, urls=True)
        self._queue.settle()
        return Save(self._collected, path, options, self._queue)

    def _collected(
        self, claims: contextlib.ExitStack, path: str, options: CheckpointOptions
    ) -> tuple[list[str], list[Sources]]:
        """Return the bundles that the registered savers wrote, whose claims `claims` holds from now
        on, and the shards.

        Args:
            claims: gets the claims of the registered savers.
            path: where the checkpoint is saved, absolute.
            options: how it is saved.
        """
        if self._registered:
            claims.enter_context(claimed(path, [saver.name for saver, _ in self._registered]))
        inputs = self._save_registered(path)
        return inputs, cut(self._tensors(options), options, self._tasks)

    def restore(self, prefix: Path, options: CheckpointOptions | None = None) -> dict[str, Any]:
        """Read the tensors of all objects, one batch per task, and pass them to the objects.

        Each object is restored when all its tensors are read, registered savers after all objects.
        Everything is read from one generation of the checkpoint. An error in a later task or object
        leaves the earlier ones restored.

        Args:
            prefix: a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of
                these.
            options: `tf.CheckpointOptions`, of which only `experimental_io_device` is used; None:
                the defaults.

        Returns:
            The results by name: the mappings that the `restore` of the objects returned, and the
            arrays of objects without a `restore` by checkpoint key. For saveables see
            `from_saveables`.

        Raises:
            TensorNotFoundError: the checkpoint does not have a tensor.
            InvalidError: a tensor of another dtype or full shape than its spec says, or
                `experimental_io_device` for tensors on a mesh.
            CheckpointNotFoundError: there is no checkpoint at `prefix`.
            CorruptError, UnsupportedError, LimitError, StorageError: it is damaged, of an unknown
                version, too large, or cannot be read now.
            Exception: what the objects' functions raise.
        """
        self._options(options)
        wait_for_saves()
        results: dict[str, Any] = {}
        with reading.open(path_text(prefix, "prefix", urls=True)) as reader:
            batches = [
                [item for item in items if item.is_wanted(reader)] for items in self._tasks.values()
            ]
            missing: dict[int, int] = {}
            for item in (item for batch in batches for item in batch):
                missing[id(item.owner)] = missing.get(id(item.owner), 0) + 1
            arrived: dict[int, dict[str, Any]] = {}
            for batch in batches:
                for item, array in zip(batch, _read(reader, batch), strict=True):
                    owner = id(item.owner)
                    item.put(arrived.setdefault(owner, {}), array)
                    missing[owner] -= 1
                    if not missing[owner]:
                        item.owner.restore(arrived.pop(owner), results)
            merged = reader.prefix
        for saver, trackables in self._registered:
            saver.restore_fn(trackables=dict(trackables), merged_prefix=merged)
        return results

    def _options(self, options: CheckpointOptions | None) -> CheckpointOptions:
        options = CheckpointOptions.of(options)
        meshed = (item.key for item in self._items if isinstance(item.spec, DSaveSpec))
        options.check_meshed(meshed)
        return options

    def _save_registered(self, prefix: str) -> list[str]:
        """Run the registered savers; return the prefixes of what they saved, in order."""
        found: list[str] = []
        for saver, trackables in self._registered:
            path = f"{prefix}-{saver.name}"
            returned = saver.save_fn(trackables=dict(trackables), file_prefix=path)
            try:
                prefixes = [path_text(one, urls=True) for one in _flattened(returned)]
                if "" in prefixes:
                    raise InvalidError("an empty prefix")
            except InvalidError:
                raise InvalidError(
                    f"the registered saver '{saver.name}' must return None, a prefix or a list of "
                    f"prefixes, not {returned!r}"
                ) from None
            for one in prefixes:
                try:
                    found.append(locate(one))
                except CheckpointNotFoundError as error:
                    error.hint(f"; the registered saver '{saver.name}' returned this prefix")
                    raise
        return found

    def _tensors(self, options: CheckpointOptions) -> list[ShardableTensor]:
        """Return what is saved now; one of replicas, which are compared."""
        kept: dict[tuple[str, str], ShardableTensor] = {}
        for item in self._items:
            tensor = item.shardable()
            if tensor is not None and item.is_replica:
                first = kept.get((item.key, item.slice_spec))
                _compare(first, tensor, options.check_replicas)
            elif tensor is not None:
                kept[item.key, item.slice_spec] = tensor
        return list(kept.values())


Saver.__module__ = "ckptfmt"


# ---- what is saved -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Owner:
    """An object in a restore; without a function its arrays are results."""

    trackable: Any
    function: RestoreFn | None

    def restore(self, restored: dict[str, Any], results: dict[str, Any]) -> None:
        if isinstance(self.trackable, _Saveable):
            self.trackable.restore_into(results, restored)
            return
        if self.function is not None:
            result = self.function(restored)
            results.update(result if isinstance(result, Mapping) else {})
            return
        for key, value in restored.items():
            if isinstance(value, dict):
                results.setdefault(key, {}).update(value)  # from several objects
            else:
                results[key] = value


@dataclass(frozen=True, slots=True)
class _Item:
    """One save spec under its key and (stripped) slice text. Of replicas on several devices the
    first is saved, and all are restored."""

    key: str
    slice_spec: str
    spec: SaveSpec
    owner: _Owner
    is_replica: bool = False

    def shardable(self) -> ShardableTensor | None:
        """Return the tensor for a policy, calling its callable; None if it has no value."""
        if self.spec.is_empty:
            return None
        # A spec keeps what its callable returned. The copy lets the next save call it again, and
        # lets the memory go meanwhile.
        return ShardableTensor.from_spec(self.spec.fresh(), trackable=self.owner.trackable)

    def is_wanted(self, reader: Reader) -> bool:
        """Return whether a restore from this checkpoint reads it."""
        if self.owner.trackable is None:
            return False
        may_be_missing = getattr(self.owner.trackable, "may_be_missing", None)
        return may_be_missing is None or not may_be_missing(self.key) or self.key in reader

    def put(self, restored: dict[str, Any], array: Any) -> None:
        """Add the array in the place where the object's `restore` expects it."""
        if self.slice_spec:
            restored.setdefault(self.key, {})[self.slice_spec] = array
        else:
            restored[self.key] = array


class _Saveable:
    """A SaveableObject as an object with tensors. `namesakes` are all saveables of its name, to
    which it adds itself."""

    def __init__(self, saveable: SaveableObject, namesakes: list[_Saveable]) -> None:
        self.saveable = saveable
        self.row, self.namesakes = len(namesakes), namesakes
        namesakes.append(self)
        self.places = [(names.tensor_text(s.name), s.slice_spec.strip()) for s in saveable.specs]

    def serialize(self) -> dict[str, dict[str, SaveSpec]]:
        found: dict[str, dict[str, SaveSpec]] = {}
        for (name, text), spec in zip(self.places, self.saveable.specs, strict=True):
            if found.setdefault(name, {}).setdefault(text, spec) is not spec:
                raise InvalidError(f"a saveable has two specs of the slice '{text}'", tensor=name)
        return found

    def restore_into(self, results: dict[str, Any], restored: Mapping[str, Any]) -> None:
        arrays = [restored[name][text] if text else restored[name] for name, text in self.places]
        result, name = self.saveable.restore(arrays, None), self.saveable.name
        if len(self.namesakes) == 1:
            results[name] = result
        else:
            results.setdefault(name, [None] * len(self.namesakes))[self.row] = result

    def __repr__(self) -> str:
        return repr(self.saveable)


def _functions(
    given: Mapping[Any, RestoreFn] | None, serialized_tensors: Mapping[Any, Any]
) -> Mapping[Any, RestoreFn]:
    """Return the functions that restore objects, checked."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise wrong("restore_fns", "a mapping from objects to functions", given)
    for trackable, function in given.items():
        if not callable(function):
            raise wrong(
                f"the restore function of {trackable!r}", "a function", function, "restore_fns"
            )
        if trackable is None or trackable not in serialized_tensors:
            raise invalid(
                "restore_fns", f"restore_fns has a function for {trackable!r}, which has no tensors"
            )
    return given


def _specs(tensors: Mapping[str, Any]) -> Iterator[tuple[str, str, SaveSpec]]:
    """Yield (key, slice text, spec) of the tensors of one object."""
    for raw_key, given in tensors.items():
        key = names.saved_name(raw_key)
        if isinstance(given, SaveSpec):
            slices: Mapping[Any, Any] = {given.slice_spec: given}
        else:
            slices = given if isinstance(given, Mapping) else {"": given}
        for slice_spec, value in slices.items():
            if not isinstance(slice_spec, str):
                raise InvalidError(f"a slice text must be a str, not {slice_spec!r}", tensor=key)
            text = slice_spec.strip()
            if text and not (isinstance(value, SaveSpec) and value.is_empty):
                with about(key):
                    parse_spec(text)
            if not isinstance(value, SaveSpec):
                yield key, text, SaveSpec(value, text, key)
                continue
            if names.tensor_text(value.name) != key or value.slice_spec.strip() != text:
                raise InvalidError(
                    f"the slice '{text}' has the SaveSpec of '{names.tensor_text(value.name)}', "
                    f"slice '{value.slice_spec}'",
                    tensor=key,
                )
            yield key, text, value


def _check_slices(items: Iterable[_Item]) -> None:
    """Refuse pieces of one tensor that overlap, or differ in dtype or full shape."""
    keys: dict[str, list[_Item]] = {}
    for item in items:
        keys.setdefault(item.key, []).append(item)
    for key, pieces in keys.items():
        first = pieces[0]
        for item in pieces[1:]:
            if _code(item.spec) != _code(first.spec):
                raise InvalidError(
                    f"the slices '{first.slice_spec}' and '{item.slice_spec}' of one tensor are of "
                    f"different dtypes, {first.spec.dtype} and {item.spec.dtype}",
                    tensor=key,
                )
        if len(pieces) > 1:
            _check_boxes(key, [one for one in pieces if not (one.spec.is_empty or one.is_replica)])


def _check_boxes(key: str, pieces: Sequence[_Item]) -> None:
    boxes: list[Box] = []
    first: tuple[int, ...] | None = None
    for item in pieces:
        spec = parse_spec(item.slice_spec)
        if spec is None:
            if len(pieces) == 1:
                return
            other = next(other for other in pieces if other is not item)
            raise _overlap(key, item, other)
        if first is not None and spec.full_shape != first:
            raise InvalidError(
                f"the slices '{pieces[0].slice_spec}' and '{item.slice_spec}' are of tensors of "
                "different shapes",
                tensor=key,
            )
        first = spec.full_shape
        boxes.append(Box(spec.start, spec.shape))
    twice = _repeated(boxes) or overlapping(boxes)
    if twice is not None:
        raise _overlap(key, *(pieces[row] for row in twice))


def _are_replicas(first: SaveSpec, second: SaveSpec) -> bool:
    """Return whether these are one block of a layout on two devices."""
    return (
        isinstance(first, DSaveSpec)
        and isinstance(second, DSaveSpec)
        and first.layout == second.layout
        and first.global_shape == second.global_shape
        and first.device != second.device
    )


def _compare(first: ShardableTensor | None, replica: ShardableTensor, of_any_size: bool) -> None:
    """Raise InvalidError if two replicas differ."""
    if not of_any_size and replica.tensor.nbytes > COMPARED_BYTES:
        return
    if first is None or not same_bytes(
        *(stored_bytes(one.name, one.tensor, one.dtype) for one in (first, replica))
    ):
        raise InvalidError(
            f"the devices '{first and first.device}' and '{replica.device}' hold the same part of "
            "it, but their arrays differ",
            tensor=replica.checkpoint_key,
        )


def _repeated(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """Return the indices of two equal boxes, which need not overlap if they are empty."""
    rows: dict[Box, int] = {}
    for row, box in enumerate(boxes):
        if rows.setdefault(box, row) != row:
            return rows[box], row
    return None


def _overlap(key: str, first: _Item, second: _Item) -> InvalidError:
    return InvalidError(
        f"the slices '{first.slice_spec}' and '{second.slice_spec}' overlap: one element would be "
        "saved twice",
        tensor=key,
    )


def _code(spec: SaveSpec) -> int:
    return dtypes.code_of(spec.dtype)


def _registered(
    given: Mapping[str, Mapping[str, Any]] | None,
) -> list[tuple[RegisteredSaver, Mapping[str, Any]]]:
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise wrong("registered_savers", "a mapping from names of savers to their objects", given)
    found = []
    for name, trackables in given.items():
        if not isinstance(trackables, Mapping):
            raise wrong(
                f"the objects of the registered saver '{name}'",
                "a mapping",
                trackables,
                "registered_savers",
            )
        found.append((get_registered_saver(name), trackables))
    return found


def _flattened(returned: Any) -> Iterator[Any]:
    """Yield the prefixes that a registered saver returned: of nested lists, dicts (in the order of
    their keys, as `tf.nest`), arrays, and eager tensors of strings."""
    if isinstance(returned, Mapping):
        returned = [returned[key] for key in sorted(returned)]
    elif callable(getattr(returned, "numpy", None)):
        returned = returned.numpy()
    if isinstance(returned, np.ndarray):
        returned = returned.tolist()
    if isinstance(returned, (list, tuple)):
        for one in returned:
            if one is None:
                raise InvalidError("None in a list")
            yield from _flattened(one)
    elif returned is not None:
        yield returned


# ---- reading -------------------------------------------------------------------------------------


def _read(reader: Reader, items: Sequence[_Item]) -> list[Any]:
    """Read the arrays of these items in one batch, with RestoreV2's checks."""
    if any(item.spec.is_empty for item in items):
        found = iter(_read(reader, [item for item in items if not item.spec.is_empty]))
        return [_nothing(item.spec) if item.spec.is_empty else next(found) for item in items]
    batch = select_batch(reader, [names.tensor_bytes(item.key) for item in items])
    batch.refuse_meant()
    check_dtypes(batch, [item.spec.dtype for item in items])
    for position, item in enumerate(items):
        if item.slice_spec:
            batch.boxes[position] = box_of_text(batch.handle(position), item.slice_spec)
    return batch.read(None)


def _nothing(spec: SaveSpec) -> NDArray[Any]:
    assert isinstance(spec, DSaveSpec)
    return np.empty(spec.block_shape, object if isinstance(spec.dtype, str) else spec.dtype)
