# SPDX-License-Identifier: Apache-2.0
"""Sharding callbacks, which decide what goes into each data file, and their validation.

A callback gets the tensors of one task and returns shards. `validate_shards` compares the two, so
that no save loses a tensor or stores other values. It compares boxes, not texts: a tensor given as
"" may be returned as "4 6 0,4:0,6", or in pieces that tile the same box. A piece must be that view
of the tensor, or have equal bytes.

The tensors are read-only views, not copies, so a callback that wants to can still reach the memory.
Checksums before and after the call find changes, and refuse the save: copies would double the
memory.

Pieces tile a box if their volumes, in random coordinates, add up to that of the box (`_tile`).
"""

from __future__ import annotations

import abc
import bisect
import functools
import math
import secrets
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ckptfmt import _core
from ckptfmt._base import dtypes
from ckptfmt._base.arguments import listed, wrong
from ckptfmt._base.arrays import Sources
from ckptfmt._base.names import tensor_bytes, tensor_text
from ckptfmt._base.slices import SaveSliceInfo
from ckptfmt._base.targets import same_elements
from ckptfmt.errors import InvalidError, ShardingError
from ckptfmt.saving.devices import device_in_task, device_of, task_of
from ckptfmt.saving.replicas import same_bytes, stored_bytes
from ckptfmt.saving.specs import ShardableTensor, as_array, parsed_text, whole_box

# The content of one data file in order: {checkpoint key: {slice spec: array}}.
Shard = MutableMapping[str, MutableMapping[str, Any]]


class ShardingCallback(abc.ABC):
    """Splits the tensors of one task into shards; as `tf.train.experimental.ShardingCallback`.

    `validate_shards` checks the shards in every save. Two callbacks are equal if they have the same
    class, description and attributes.

    Attributes:
        all_tasks: whether a saver calls it once with the tensors of all tasks, instead of once for
            each task. A shard still belongs to one task.
    """

    all_tasks: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """A few words for error messages."""

    @abc.abstractmethod
    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> Sequence[Shard]:
        """Return the shards, each a mapping {checkpoint key: {slice spec: array}}.

        Args:
            shardable_tensors: all tensors of one task, in the order of saving. Their arrays are
                read-only views, whose memory must not be changed in other ways either: a save
                compares checksums from before and after the call.

        Returns:
            One mapping for each data file. It must contain every tensor, whole or in pieces that
            tile it, each under its own slice spec, and not changed otherwise.
        """

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, ShardingCallback)
        try:
            return self.description == other.description and vars(self) == vars(other)
        except ValueError:  # an array among the attributes
            return False

    def __hash__(self) -> int:
        return hash((type(self), self.description))

    def __repr__(self) -> str:
        attributes = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({attributes})"


ShardingCallback.__module__ = "ckptfmt.tf"


def checked_shards(
    callback: ShardingCallback, tensors: Sequence[ShardableTensor], alignment: int | None
) -> Sequence[Shard]:
    """Call a sharding callback with read-only views of tensors, and return its shards, validated.

    Args:
        callback: ours or TensorFlow's, which gets TensorFlow's objects.
        tensors: those of one task, or of all if the callback takes all.
        alignment: as `ShardableTensor.alignment`.

    Raises:
        ShardingError: the callback lost or changed a tensor, or wrote into the memory of one.
        InvalidError: TensorFlow has no constants of a tensor's dtype.
        Exception: what the callback raises.
    """
    given = [tensor.for_callback(alignment) for tensor in tensors]
    before = [] if _is_ours(callback) else [_content(tensor.tensor) for tensor in tensors]
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(callback).__mro__}
    shards: Sequence[Shard]
    if ("tensorflow", "ShardingCallback") in bases:
        shards = _from_tensorflow(callback([_to_tensorflow(tensor) for tensor in given]))
    else:
        shards = callback(given)
    for tensor, content in zip(tensors, before, strict=False):
        if _content(tensor.tensor) != content:
            raise ShardingError(
                f"sharding callback '{callback.description}' wrote into the memory of a tensor: "
                f"checkpoint key '{tensor.checkpoint_key}', slice spec '{tensor.slice_spec}'; "
                "nothing is saved, and the tensor keeps the change. A callback must copy what it "
                "wants to change",
                tensor=tensor.checkpoint_key,
            )
    validate_shards(shards, given, callback.description)
    return shards


def _is_ours(callback: ShardingCallback) -> bool:
    """Return whether a callback runs only code of this package, which changes no tensor."""
    module = type(callback).__module__
    return module.startswith("ckptfmt.") and not any(map(callable, vars(callback).values()))


def _content(array: Any) -> Any:
    """Return what differs if an array is changed: a checksum, or the list of its strings."""
    if array.dtype.hasobject:
        return list(array.flat)
    return _core.crc32c(array.ravel(order="K").view(np.uint8), 0)


def _to_tensorflow(tensor: ShardableTensor) -> Any:
    """Return TensorFlow's ShardableTensor of a copy in this process."""
    if tensor.dtype == dtypes.VARIANT:
        raise InvalidError(
            "a variant cannot be passed to a callback of TensorFlow: use one of ckptfmt",
            tensor=tensor.checkpoint_key,
        )
    tf = sys.modules["tensorflow"]
    sources = Sources()
    sources.add(tensor_bytes(tensor.name), tensor.tensor, tensor.dtype)
    array = sources.arrays[0]
    if sources.elements:
        array = np.array(sources.elements[0], object).reshape(tensor.shape)
    with tf.init_scope(), tf.device("/device:CPU:0"):
        value = tf.constant(array, tf.as_dtype(sources.codes[0]))
    spec = tensor.tensor_save_spec
    return tf.train.experimental.ShardableTensor(
        _tensor_save_spec=None if spec is None else spec.with_tensor(value),
        tensor=value,
        dtype=value.dtype,
        device=tf.DeviceSpec.from_string(device_in_task(tensor.device)),
        name=tensor.name,
        shape=value.shape,
        slice_spec=tensor.slice_spec,
        checkpoint_key=tensor.checkpoint_key,
        trackable=tensor.trackable,
    )


def _from_tensorflow(given: Any) -> Any:
    """Return the shards of a callback of TensorFlow, with numpy arrays."""
    if isinstance(given, Mapping):
        return {key: _from_tensorflow(value) for key, value in given.items()}
    if isinstance(given, (list, tuple)):
        return list(map(_from_tensorflow, given))
    if not hasattr(given, "numpy"):
        return given
    dtype = dtypes.numpy_dtype(given.dtype.as_datatype_enum)
    array = np.asarray(given)
    # Quantized types come as plain integers.
    return array if dtype is None or dtype.hasobject else array.view(dtype)


# ---- boxes ---------------------------------------------------------------------------------------


class Box(NamedTuple):
    """Part of a tensor: first index and length in each dimension."""

    start: tuple[int, ...]
    shape: tuple[int, ...]


@functools.lru_cache(maxsize=8192)
def _whole_text(shape: tuple[int, ...]) -> str:
    """Return the slice spec of a whole tensor, spelled out as policies write it."""
    return SaveSliceInfo(None, shape, (0,) * len(shape), shape).stripped_spec


def _inside(box: Box, whole: Box) -> bool:
    return all(
        outer <= start and start + size <= outer + outer_size
        for start, size, outer, outer_size in zip(*box, *whole, strict=True)
    )


def _tile(pieces: Iterable[Box], whole: Box) -> bool:
    """Return whether each element of `whole` is in exactly one of these boxes inside it.

    Each start or end on an axis is replaced by a random number. With these, the volume of a box is
    a polynomial, and those of the pieces add up to that of the whole exactly if every element is
    counted once. Polynomials that differ are equal at a random place with a probability below
    rank / 2^64 (Schwartz and Zippel). A dimension of size 0 counts as 1.
    """
    numbers: defaultdict[tuple[int, int], int] = defaultdict(lambda: secrets.randbits(64))

    def volume(box: Box) -> int:
        return math.prod(
            numbers[axis, start + max(size, 1)] - numbers[axis, start]
            for axis, (start, size) in enumerate(zip(*box, strict=True))
        )

    return sum(map(volume, pieces)) == volume(whole)


def overlapping(pieces: Sequence[Box]) -> tuple[int, int] | None:
    """Return the indices of two boxes that overlap; None if no boxes do."""
    rank = len(pieces[0].start) if pieces else 0
    if rank == 0:
        return (0, 1) if len(pieces) > 1 else None
    axis = max(range(rank), key=lambda axis: len({piece.start[axis] for piece in pieces}))
    starts = [piece.start[axis] for piece in pieces]
    active: list[int] = []
    for row in sorted(range(len(pieces)), key=starts.__getitem__):
        active = [at for at in active if starts[at] + pieces[at].shape[axis] > starts[row]]
        for other in active:
            boxes = zip(*pieces[other], *pieces[row], strict=True)
            if all(max(a, b) < min(a + a_size, b + b_size) for a, a_size, b, b_size in boxes):
                return other, row
        active.append(row)
    return None


# ---- validation ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Origin:
    """One tensor given to a callback, and the boxes of its returned pieces with their specs."""

    tensor: ShardableTensor
    full_shape: tuple[int, ...]
    box: Box
    pieces: dict[Box, str] = field(default_factory=dict)


class _Key:
    """The tensors given to a callback under one key; `ordered` sorts them by first index, from the
    axis with the most different ones on."""

    def __init__(self, origins: list[_Origin]) -> None:
        self.origins = origins
        starts = zip(*(origin.box.start for origin in origins), strict=False)
        counts = [len(set(column)) for column in starts]
        self.axis = max(range(len(counts)), key=counts.__getitem__, default=0)
        self.ordered = sorted(origins, key=lambda origin: self.order(origin.box))

    def order(self, box: Box) -> tuple[int, ...]:
        return box.start[self.axis :] + box.start[: self.axis]

    def find(self, full_shape: tuple[int, ...], box: Box) -> _Origin | None:
        """Return the tensor that contains a box: usually the last one that is not after it."""
        count = bisect.bisect_right(
            self.ordered, self.order(box), key=lambda origin: self.order(origin.box)
        )
        for row in reversed(range(count)):
            origin = self.ordered[row]
            if origin.full_shape == full_shape and _inside(box, origin.box):
                return origin
        return None


def validate_shards(
    shards: Sequence[Shard],
    shardable_tensors: Sequence[ShardableTensor],
    callback_description: str,
) -> None:
    """Check that a sharding callback returned the tensors that it was given, possibly cut.

    As TensorFlow's `sharding_util.validate_shards`, but it accepts the pieces of cut tensors. The
    rules:

    1. no key has the same slice twice;
    2. no key is added;
    3. no tensor is lost;
    4. no dtype is changed;
    5. a tensor keeps its shape, or its pieces tile its box exactly;
    6. an array with a device is on the task of its tensor;
    7. the tensors of one shard belong to one task;
    8. each piece is that view of its tensor, or has the same bytes.

    A slice is a box: "" and "4 6 0,4:0,6" are the same slice of a tensor of shape (4, 6).

    Args:
        shards: the shards that the callback returned.
        shardable_tensors: the tensors that it was given.
        callback_description: its description, for messages.

    Raises:
        ShardingError: an InvalidError and a RuntimeError. A rule is broken; the message names the
            callback's description, the key and the slice. Or two of `shardable_tensors` are the
            same slice of one key.
        InvalidError: `shardable_tensors` is something else.
    """
    check = _Check(callback_description, _indexed(shardable_tensors))
    if not isinstance(shards, Sequence) or isinstance(shards, (str, bytes)):
        raise check.malformed(f"gave a {type(shards).__name__}, not a sequence of shards")
    for shard in shards:
        if not isinstance(shard, Mapping):
            raise check.malformed(f"gave a {type(shard).__name__} among its shards, not a mapping")
        check.shard(shard)
    check.complete()


def _indexed(shardable_tensors: Sequence[ShardableTensor]) -> dict[str, _Key]:
    keys: dict[str, dict[Box, _Origin]] = {}
    for tensor in listed("shardable_tensors", shardable_tensors, "ShardableTensor"):
        if not isinstance(tensor, ShardableTensor):
            raise wrong("each tensor", "a ShardableTensor", tensor, "shardable_tensors")
        full_shape, start, shape, _ = tensor.box
        box = Box(start, shape)
        origins = keys.setdefault(tensor.checkpoint_key, {})
        if box in origins:
            raise ShardingError(
                "Received multiple tensors with the same checkpoint key and slice spec: "
                f"'{tensor.slice_spec}'",
                tensor=tensor.checkpoint_key,
            )
        origins[box] = _Origin(tensor, full_shape, box)
    return {name: _Key(list(origins.values())) for name, origins in keys.items()}


class _Check:
    """One validation of the shards of a callback; `place` is the key and the slice spec that is
    being checked."""

    def __init__(self, description: str, keys: dict[str, _Key]) -> None:
        self.description = description
        self.keys = keys
        self.place: tuple[str, str] = "", ""

    def malformed(self, what: str) -> ShardingError:
        return ShardingError(f"sharding callback '{self.description}' {what}")

    def broken(self, what: str) -> ShardingError:
        key, spec = self.place
        text = tensor_text(key) if isinstance(key, (str, bytes)) else repr(key)
        error = self.malformed(f"{what}: checkpoint key '{text}', slice spec '{spec}'")
        error.tensor = text
        return error

    def shard(self, shard: Mapping[str, Mapping[str, Any]]) -> None:
        first: tuple[str, str, str] | None = None  # task, key, slice
        for name, parts in shard.items():
            if not isinstance(parts, Mapping):
                raise self.malformed(
                    f"gave a {type(parts).__name__} for key '{name}', not a mapping from slice "
                    "specs to arrays"
                )
            for spec, array in parts.items():
                self.place = name, spec
                task = task_of(self.piece(name, spec, array).tensor.device)
                first = first or (task, name, spec)
                if task != first[0]:
                    raise self.broken(
                        f"put tensors of different tasks into one shard: '{first[0]}' (checkpoint "
                        f"key '{first[1]}', slice spec '{first[2]}') and '{task}'"
                    )

    def piece(self, name: str, spec: str, array: Any) -> _Origin:
        """Check one array and record it with the tensor that contains it."""
        key = self.keys.get(name)
        if key is None:
            raise self.broken("added a tensor that was not there")
        origin, box = self.located(key, spec)
        if box in origin.pieces:
            other = origin.pieces[box]
            also = f" (also as '{other}')" if other != spec else ""
            raise self.broken(f"gave the same slice of a tensor twice{also}")
        origin.pieces[box] = spec
        tensor = origin.tensor
        kinds = [getattr(one, "dtype", None) for one in (tensor.tensor, array)]
        if not _same_dtype(*kinds):
            raise self.broken(f"changed a tensor's dtype from {kinds[0]} to {kinds[1]}")
        shape = getattr(array, "shape", None)
        shape = None if shape is None else tuple(shape)
        if shape != box.shape:
            raise self.broken(
                f"changed a tensor's shape: an array of shape {shape} for a slice of shape "
                f"{box.shape}"
            )
        tasks = [task_of(tensor.device), task_of(device_of(array) or tensor.device)]
        if tasks[0] != tasks[1]:
            raise self.broken(f"changed a tensor's task from '{tasks[0]}' to '{tasks[1]}'")
        if not (array is tensor.tensor and box == origin.box):
            self.values(name, array, origin, box)
        return origin

    def values(self, name: str, array: Any, origin: _Origin, box: Box) -> None:
        """Check that an array of the right shape and dtype has the elements of its slice."""
        tensor = origin.tensor
        given = tensor.tensor
        if not isinstance(given, np.ndarray):
            given = as_array(name, given, tensor.dtype)[0]
        if box != origin.box:
            inner = zip(box.start, box.shape, origin.box.start, strict=True)
            given = given[tuple(slice(at - first, at - first + n) for at, n, first in inner)]
        if isinstance(array, np.ndarray) and same_elements(array, given):
            return
        try:
            one, other = (stored_bytes(name, each, tensor.dtype) for each in (array, given))
        except InvalidError as error:
            raise self.broken(f"gave something other than an array ({error.message})") from None
        if not same_bytes(one, other):
            raise self.broken("changed a tensor's values")

    def located(self, key: _Key, spec: str) -> tuple[_Origin, Box]:
        """Return the tensor that contains the box of a slice spec, and the box."""
        if not isinstance(spec, str):
            raise self.broken(f"gave a slice spec that is a {type(spec).__name__}")
        origin = key.origins[0]
        whole = len(key.origins) == 1 and not origin.tensor.slice_spec
        if whole and (not spec or spec == _whole_text(origin.full_shape)):
            return origin, origin.box  # fast path: a whole tensor stays whole
        try:
            parsed = parsed_text(spec.strip()) or whole_box(origin.full_shape)
        except InvalidError as error:
            raise self.broken(f"gave a slice spec that says no slice ({error.message})") from None
        box = Box(parsed.start, parsed.shape)
        found = key.find(parsed.full_shape, box)
        if found is None:
            given = ", ".join(f"'{origin.tensor.slice_spec}'" for origin in key.origins[:3])
            given += ", ..." if len(key.origins) > 3 else ""
            raise self.broken(
                "changed a tensor's shape: the slice is inside none of those that it was given "
                f"({given} of shape {origin.full_shape})"
            )
        return found, box

    def complete(self) -> None:
        """Check that every tensor was returned."""
        lost = []
        for name, key in self.keys.items():
            for origin in key.origins:
                self.place = name, origin.tensor.slice_spec
                if not origin.pieces:
                    lost.append(self.place)
                elif list(origin.pieces) != [origin.box] and not _tile(origin.pieces, origin.box):
                    raise self.broken(f"changed a tensor's shape: its {_fault(origin)}")
        if lost:
            self.place = lost[0]
            more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
            raise self.broken(f"lost a tensor{more}")


def _fault(origin: _Origin) -> str:
    """Say why the pieces of a tensor do not tile it."""
    pieces = list(origin.pieces)
    overlap = overlapping(pieces)
    if overlap is not None:
        first, second = (origin.pieces[pieces[row]] for row in overlap)
        return f"pieces '{first}' and '{second}' overlap"
    present = sum(math.prod(piece.shape) for piece in pieces)
    elements = math.prod(origin.box.shape)
    return f"{len(pieces)} pieces have {present} of its {elements} elements"


def _same_dtype(ours: Any, theirs: Any) -> bool:
    if ours is theirs or ours is None or theirs is None:
        return ours is theirs
    try:
        # Byte order and the sizes of numpy's strings do not matter.
        return bool(ours == theirs) or dtypes.code_of(ours) == dtypes.code_of(theirs)
    except (TypeError, InvalidError):
        return False
