# SPDX-License-Identifier: Apache-2.0
"""Sharding policies: by task, by device, up to a size, and balanced.

Policies that cut tensors work on boxes: first index and length in each dimension, relative to the
array. MaxShardSizePolicy counts bytes of the data file, BalancedPolicy those of the elements.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ckptfmt._base.arguments import check_choice, invalid, wrong
from ckptfmt._base.arrays import Sources
from ckptfmt._base.dtypes import VARIANT
from ckptfmt._base.names import OBJECT_GRAPH_KEY, tensor_bytes
from ckptfmt._base.slices import SaveSliceInfo
from ckptfmt.saving.devices import canonical, task_of
from ckptfmt.saving.sharding import Shard, ShardingCallback
from ckptfmt.saving.specs import ShardableTensor


class ShardByTaskPolicy(ShardingCallback):
    """One shard for each task, in the order of first tensors; as
    `tf.train.experimental.ShardByTaskPolicy`, the default.

    Savers call a policy for one task at a time.
    """

    @property
    def description(self) -> str:
        """TensorFlow's text."""
        return "Split tensors into shards based on their device spec task."

    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> list[Shard]:
        """Return one shard for each task, with whole tensors."""
        tasks = [task_of(tensor.device) for tensor in shardable_tensors]
        return list(_grouped(shardable_tensors, tasks).values())


ShardByTaskPolicy.__module__ = "ckptfmt.tf"


class ShardByDevicePolicy(ShardingCallback):
    """One shard for each device; as `tf.compat.v1.train.Saver(sharded=True)`, which sorts the
    devices of all tasks.

    Args:
        order: "sorted" by device name (or by the keys of `key_fn`) over all tasks, or "first seen",
            in the order of first tensors.
        key_fn: called with each ShardableTensor; tensors of one task with equal keys go into one
            shard. Keys must be hashable, and comparable to be sorted. Default: the full name of the
            device, so that "/gpu:0" and "/device:GPU:0" are equal.

    Raises:
        InvalidError: another order, or `key_fn` is not callable.
    """

    all_tasks = True

    def __init__(
        self,
        order: Literal["sorted", "first seen"] = "sorted",
        key_fn: Callable[[ShardableTensor], Hashable] | None = None,
    ) -> None:
        check_choice("order", order, ("sorted", "first seen"))
        if key_fn is not None and not callable(key_fn):
            raise wrong("key_fn", "a function of a ShardableTensor", key_fn)
        self.order = order
        self.key_fn = key_fn

    @property
    def description(self) -> str:
        """Text for error messages."""
        return "Split tensors into shards based on their device."

    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> list[Shard]:
        """Return one shard for each device, with whole tensors.

        Raises:
            InvalidError: keys that cannot be hashed or sorted.
        """
        key_fn = self.key_fn or (lambda tensor: canonical(tensor.device))
        try:
            keys = [(key_fn(tensor), task_of(tensor.device)) for tensor in shardable_tensors]
            shards = _grouped(shardable_tensors, keys)
            if self.order == "sorted":
                return [shards[key] for key in sorted(shards, key=operator.itemgetter(0))]
        except TypeError as error:
            raise invalid(
                "key_fn", f"key_fn gave what cannot be grouped and sorted: {error}"
            ) from error
        return list(shards.values())


ShardByDevicePolicy.__module__ = "ckptfmt.tf"


def _grouped(tensors: Iterable[ShardableTensor], keys: Iterable[Any]) -> dict[Any, Shard]:
    shards: dict[Any, Shard] = {}
    for tensor, key in zip(tensors, keys, strict=True):
        _put(shards.setdefault(key, {}), tensor, tensor.slice_spec, tensor.tensor)
    return shards


def _put(shard: Shard, tensor: ShardableTensor, spec: str, array: Any) -> None:
    shard.setdefault(tensor.checkpoint_key, {})[spec] = array


# ---- pieces --------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A box in the array of a tensor."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    def cut(self, axis: int, count: int) -> tuple[_Part, _Part]:
        """Return the first `count` indexes along an axis, and the rest."""
        return (
            _Part(self.start, _with(self.shape, axis, count)),
            _Part(
                _with(self.start, axis, self.start[axis] + count),
                _with(self.shape, axis, self.shape[axis] - count),
            ),
        )


def _with(numbers: tuple[int, ...], at: int, number: int) -> tuple[int, ...]:
    return (*numbers[:at], number, *numbers[at + 1 :])


def _whole(tensor: ShardableTensor) -> _Part:
    return _Part((0,) * len(tensor.shape), tuple(tensor.shape))


def _spelled(tensor: ShardableTensor, part: _Part) -> str:
    """Return the slice spec of a part, spelled out even for the whole, as TensorFlow."""
    box = tensor.box
    offset = list(map(operator.add, box.start, part.start))
    return SaveSliceInfo(tensor.checkpoint_key, box.full_shape, offset, part.shape).stripped_spec


def _array(tensor: ShardableTensor, part: _Part) -> Any:
    if part.shape == tuple(tensor.shape):
        return tensor.tensor
    pairs = zip(part.start, part.shape, strict=True)
    return tensor.tensor[tuple(slice(start, start + size) for start, size in pairs)]


def _string_sizes(tensor: ShardableTensor) -> list[int]:
    """Return the bytes of each element of an array of strings."""
    sources = Sources()
    sources.add(tensor_bytes(tensor.checkpoint_key), tensor.tensor, tensor.dtype)
    return list(map(len, sources.elements[0]))


def _is_string(tensor: ShardableTensor) -> bool:
    return tensor.dtype == VARIANT or np.dtype(tensor.dtype).kind == "O"


# ---- up to a size --------------------------------------------------------------------------------


class MaxShardSizePolicy(ShardingCallback):
    """Shards of at most so many bytes; as `tf.train.experimental.MaxShardSizePolicy`.

    Tensors are taken in order. A tensor that does not fit into the current shard is cut along the
    axis that needs the fewest cuts, into slabs of equal size, and continues in the next shard.

    Sizes are those in the data file, with padding and with what the format adds to strings, before
    compression. At level "v2" without `alignment` they are TensorFlow's: strings count without
    their lengths, the object graph and variants as 0 bytes. There the result equals TensorFlow's,
    except where TensorFlow fails:

    - an empty tensor is put whole into the current shard (TensorFlow drops it);
    - if a slab of one index is larger than a shard along every axis, the smallest such slab becomes
      an oversize shard, and the rest is tried again (TensorFlow loops). If one element is larger
      than a shard, the rest of the tensor is one oversize shard;
    - arrays of strings of rank two and more are cut as those of rank one (TensorFlow raises).

    Oversize shards come last. TensorFlow cannot restore cut tensors of some dtypes, such as half
    and strings; this library can.

    Args:
        max_shard_size: bytes; 0 gives each tensor that is not empty its own shard. In a cut array
            of strings each element counts as much as the longest.

    Raises:
        InvalidError: `max_shard_size` is not an integer, or negative.
    """

    def __init__(self, max_shard_size: int) -> None:
        self.max_shard_size = _count("max_shard_size", max_shard_size, 0)

    @property
    def description(self) -> str:
        """TensorFlow's text."""
        return "Split tensors into shards with a max shard size."

    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> list[Shard]:
        """Return the shards; none is empty."""
        filler = _Filler(self.max_shard_size)
        for tensor in shardable_tensors:
            filler.add(tensor)
        return [shard for shard in (*filler.shards, *filler.oversize) if shard]


MaxShardSizePolicy.__module__ = "ckptfmt.tf"


class _Bytes(NamedTuple):
    """Size of a tensor in a data file."""

    whole: int
    unit: int  # of the largest element
    more: int  # of each piece, besides its elements
    alignment: int

    @classmethod
    def of(cls, tensor: ShardableTensor) -> _Bytes:
        alignment, variant = tensor.alignment, tensor.dtype == VARIANT
        if alignment is None and (variant or tensor.checkpoint_key == OBJECT_GRAPH_KEY):
            return cls(0, 0, 0, 1)
        more = 0
        if _is_string(tensor):
            sizes = _string_sizes(tensor)
            if alignment is not None:
                # A varint of the length, and a checksum of the array or of each variant.
                sizes = [size + max(1, -(-size.bit_length() // 7)) + 4 * variant for size in sizes]
                more = 0 if variant else 4
            unit, whole = max(sizes, default=0), sum(sizes) + more
        else:
            unit = np.dtype(tensor.dtype).itemsize
            whole = math.prod(tensor.shape) * unit
        found = cls(0, unit, more, alignment or 1)
        return found._replace(whole=found.padded(whole))

    def padded(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment

    def part(self, part: _Part) -> int:
        """Bytes of a part; of strings at most so many."""
        return self.padded(math.prod(part.shape) * self.unit + self.more)


class _Filler:
    """Fills shards one after the other; `left` is the free bytes of the last one."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.left = capacity
        self.shards: list[Shard] = [{}]
        self.oversize: list[Shard] = []

    def next_shard(self) -> None:
        self.shards.append({})
        self.left = self.capacity

    def add(self, tensor: ShardableTensor) -> None:
        if 0 in tensor.shape or not tensor.shape:
            self.add_uncut(tensor, _Bytes.of(tensor).whole)
        else:
            self.add_array(tensor, _Bytes.of(tensor))

    def add_uncut(self, tensor: ShardableTensor, size: int) -> None:
        if size > self.capacity:
            self.oversize.append({})
            _put(self.oversize[-1], tensor, tensor.slice_spec, tensor.tensor)
            return
        if size > self.left:
            self.next_shard()
        _put(self.shards[-1], tensor, tensor.slice_spec, tensor.tensor)
        self.left -= size

    def add_array(self, tensor: ShardableTensor, stored: _Bytes) -> None:
        rest, size = _whole(tensor), stored.whole
        while size > self.left:
            axis, count = self.widest(rest, stored)
            if not count and self.left < self.capacity:
                self.next_shard()
                continue  # with the same size: that of strings depends on whether they are cut
            if count:
                slab, rest = rest.cut(axis, count)
                self.put(tensor, slab)
                self.left -= stored.part(slab)
            elif stored.padded(stored.unit + stored.more) > self.capacity:
                self.put_alone(tensor, rest)
                return
            else:
                # Every slab is too large for an empty shard. Along the longest axis they are the
                # smallest.
                axis = max(range(len(rest.shape)), key=rest.shape.__getitem__)
                slab, rest = rest.cut(axis, 1)
                self.put_alone(tensor, slab)
            size = stored.part(rest)
        self.put(tensor, rest)
        self.left -= size

    def widest(self, part: _Part, stored: _Bytes) -> tuple[int, int]:
        """Return the axis along which the fewest slabs hold a part, and how many indexes each has;
        the first such axis. 0 indexes if no slab fits into the room left."""
        best, fewest = 0, 0
        elements = math.prod(part.shape)
        room = max(self.left // stored.alignment * stored.alignment - stored.more, 0)
        for axis, count in enumerate(part.shape):
            indexes = room // (elements // count * stored.unit)
            slabs = -(-count // indexes) if indexes else 0
            if slabs and (not fewest or slabs < fewest):
                best, fewest = axis, slabs
        return best, -(-part.shape[best] // fewest) if fewest else 0

    def put(self, tensor: ShardableTensor, part: _Part) -> None:
        _put(self.shards[-1], tensor, _spelled(tensor, part), _array(tensor, part))

    def put_alone(self, tensor: ShardableTensor, part: _Part) -> None:
        self.oversize.append({})
        _put(self.oversize[-1], tensor, _spelled(tensor, part), _array(tensor, part))


# ---- balanced ------------------------------------------------------------------------------------


class BalancedPolicy(ShardingCallback):
    """A given number of shards of nearly equal bytes, with few cuts. TensorFlow has no such policy.

    Tensors go to the smallest shard, largest tensor first. A tensor that would make the shard more
    than 1% larger than the mean is cut along its first dimension with more than one index, so that
    pieces are contiguous; the piece brings the shard closest to the mean, and the rest is treated
    as another tensor. A single index that is too large is cut along the next dimension. No shard
    exceeds the mean by more than 1% and one element.

    The result is deterministic. A shard lists its tensors in the order given.

    Args:
        num_shards: number of shards for each task; fewer only if there are fewer elements.

    Raises:
        InvalidError: `num_shards` is not an integer, or not positive.
    """

    def __init__(self, num_shards: int) -> None:
        self.num_shards = _count("num_shards", num_shards, 1)

    @property
    def description(self) -> str:
        """Text for error messages."""
        return f"Split tensors into {self.num_shards} shards of nearly equal size."

    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> list[Shard]:
        """Return the shards; none is empty."""
        items = [
            _Item(row, tensor, _whole(tensor), *_weights(tensor))
            for row, tensor in enumerate(shardable_tensors)
        ]
        shards = _spread(items, self.num_shards)
        _fill_empty(shards)
        return [_shard_of(held) for held in shards if held]


BalancedPolicy.__module__ = "ckptfmt.tf"


@dataclass(frozen=True)
class _Item:
    """A piece of tensor number `row`, which has `total` bytes."""

    row: int
    tensor: ShardableTensor
    part: _Part
    total: int
    elements: int

    @property
    def size(self) -> int:
        """Bytes; for strings, by the mean of the whole array."""
        return self.sized(self.part)

    @property
    def axis(self) -> int | None:
        """The first axis that can be cut."""
        if 0 in self.part.shape:
            return None
        return next((axis for axis, count in enumerate(self.part.shape) if count > 1), None)

    def sized(self, part: _Part) -> int:
        return self.total * math.prod(part.shape) // self.elements if self.elements else 0

    def cut(self, axis: int, count: int) -> tuple[_Item, _Item]:
        first, rest = self.part.cut(axis, count)
        return self.of(first), self.of(rest)

    def of(self, part: _Part) -> _Item:
        return _Item(self.row, self.tensor, part, self.total, self.elements)

    @property
    def order(self) -> tuple[Any, ...]:
        """Largest first; of equals those given first."""
        return -self.size, self.row, self.part.start


def _weights(tensor: ShardableTensor) -> tuple[int, int]:
    elements = math.prod(tensor.shape)
    if _is_string(tensor):
        return sum(_string_sizes(tensor)), elements
    return elements * np.dtype(tensor.dtype).itemsize, elements


def _spread(items: Sequence[_Item], count: int) -> list[list[_Item]]:
    mean = -(-sum(item.total for item in items) // count)
    slack = mean // 100
    waiting = [(item.order, item) for item in items]
    heapq.heapify(waiting)
    loads = [(0, 0, number) for number in range(count)]  # bytes, things, which one
    shards: list[list[_Item]] = [[] for _ in range(count)]
    while waiting:
        _, item = heapq.heappop(waiting)
        load, held, number = loads[0]
        while (axis := item.axis) is not None and item.size > mean - load + slack:
            each = item.sized(_Part(item.part.start, _with(item.part.shape, axis, 1)))
            # As near to the mean as may be: what stays below it takes another cut. At least one
            # index, for there must be progress; too large, it is split later.
            room = mean - load + min(slack, each // 2)
            indexes = max(1, min(room // max(each, 1), item.part.shape[axis] - 1))
            item, rest = item.cut(axis, indexes)
            heapq.heappush(waiting, (rest.order, rest))
        shards[number].append(item)
        heapq.heapreplace(loads, (load + item.size, held + 1, number))
    return shards


def _fill_empty(shards: list[list[_Item]]) -> None:
    """Move or cut something into each empty shard, if others have more than one element."""
    for empty in shards:
        if empty:
            continue
        crowded = [held for held in shards if len(held) > 1]
        if crowded:
            # Move the smallest item; nothing is cut.
            donor = min(crowded, key=lambda held: min(item.size for item in held))
            empty.append(donor.pop(donor.index(min(donor, key=lambda item: item.size))))
            continue
        donors = [held for held in shards if held and held[0].axis is not None]
        if not donors:
            return
        donor = max(donors, key=lambda held: held[0].size)
        axis = donor[0].axis
        assert axis is not None
        donor[0], rest = donor[0].cut(axis, -(-donor[0].part.shape[axis] // 2))
        empty.append(rest)


def _shard_of(held: Iterable[_Item]) -> Shard:
    shard: Shard = {}
    for item in sorted(held, key=lambda item: (item.row, item.part.start)):
        tensor, part = item.tensor, item.part
        whole = part.shape == tuple(tensor.shape)
        spec = tensor.slice_spec if whole else _spelled(tensor, part)
        _put(shard, tensor, spec, _array(tensor, part))
    return shard


def _count(what: str, given: Any, smallest: int) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        raise wrong(what, "an integer", given) from None
    if isinstance(given, bool) or number < smallest:
        raise invalid(what, f"{what} must be an integer of at least {smallest}, got {given!r}")
    return number
