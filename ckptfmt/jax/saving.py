# SPDX-License-Identifier: Apache-2.0
"""What each process writes of a pytree: every slice once, spread evenly over its replicas.

All processes know the sharding of every global array, so each computes the same assignment, and
they only compare descriptions of their pytrees before they write.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections import Counter
from typing import Any, NamedTuple

import jax
import numpy as np

from ckptfmt._base import names
from ckptfmt._base.adapters import refused
from ckptfmt._base.arrays import Sources, as_source
from ckptfmt.errors import InvalidError, about
from ckptfmt.jax.pytrees import (
    Box,
    box_of,
    is_key,
    key_impl,
    named_leaves,
    optimizer_paths,
    structure_of,
)
from ckptfmt.saving.replicas import COMPARED_BYTES

# Leaves other than arrays, and what objects have that are arrays.
_LEAVES = (bool, int, float, complex, str, bytes, bytearray, memoryview)
_EXPORTS = ("__array__", "__array_interface__", "__dlpack__", "__buffer__")


class Content(NamedTuple):
    """What this process writes.

    Attributes:
        sources: its slices.
        impls: names of PRNG keys, with their implementations.
        states: paths of optimizer states.
        structure: that of the pytree, for the metadata; None if the names say it.
        description: name to what is the same in all processes.
    """

    sources: Sources
    impls: dict[str, str]
    states: list[str]
    structure: str | None
    description: dict[str, str]


class _Piece(NamedTuple):
    """A slice of a tensor. `box` is None for the whole tensor; `data` is that of this process."""

    name: str
    shape: tuple[int, ...]
    box: Box | None
    holders: tuple[int, ...]
    nbytes: int
    data: Any


def content_of(pytree: Any, rank: int, world_size: int) -> Content:
    """Return what this process writes of a pytree.

    Raises:
        InvalidError: a leaf cannot be stored; the error names it.
    """
    impls: dict[str, str] = {}
    pieces: list[_Piece] = []
    description: dict[str, str] = {}
    for name, leaf in named_leaves(pytree).items():
        with about(name):
            _check(leaf)
            value = leaf
            if is_key(leaf):
                impls[name] = key_impl(leaf)[0]
                value = jax.random.key_data(leaf)
            if isinstance(value, jax.Array) and (world_size == 1 or not value.is_fully_addressable):
                found = _global_pieces(name, value)
                text = f"{value.dtype}{list(value.shape)} on {_placement(found)}"
            else:
                found, text = _local_piece(name, value, world_size)
            pieces += found
            description[name] = f"{text} {impls.get(name, '')}".rstrip()
    writers = _assigned(pieces)
    mine = [piece for piece, writer in zip(pieces, writers, strict=True) if writer == rank]
    for piece in mine:
        if isinstance(piece.data, jax.Array):
            piece.data.copy_to_host_async()
    sources = Sources()
    for name, shape, box, _, _, data in mine:
        part = None
        if box is not None:
            part = (shape, [start for start, _ in box], [stop - start for start, stop in box])
        array = np.asarray(data) if isinstance(data, jax.Array) else data
        sources.add(names.user_name(name), array, None, part)
    return Content(sources, impls, optimizer_paths(pytree), structure_of(pytree), description)


def _check(leaf: Any) -> None:
    if isinstance(leaf, jax.core.Tracer):
        raise InvalidError("the value is known only when the traced function runs: save outside")
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise InvalidError("a jax.ShapeDtypeStruct has no elements to save")
    if isinstance(leaf, jax.Array):
        if leaf.is_deleted():
            raise InvalidError("the array was deleted or donated: save the array that replaced it")
    elif not isinstance(leaf, _LEAVES) and not any(hasattr(leaf, name) for name in _EXPORTS):
        raise refused("a leaf must be an array, a Python scalar, str or bytes", leaf)


@functools.lru_cache(maxsize=1024)
def _holders(sharding: Any, shape: tuple[int, ...]) -> dict[Box, tuple[int, ...]]:
    """Return the processes that hold each part of an array."""
    found: dict[Box, set[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        found.setdefault(box_of(index, shape), set()).add(device.process_index)
    return {box: tuple(sorted(processes)) for box, processes in sorted(found.items())}


def _global_pieces(name: str, array: jax.Array) -> list[_Piece]:
    shape = tuple(array.shape)
    holders = _holders(array.sharding, shape)
    if 0 in shape or len(holders) == 1:
        # The parts of an empty tensor are empty as well: one stands for all.
        everyone = tuple(sorted({process for one in holders.values() for process in one}))
        shards = array.addressable_shards
        data = np.empty(shape, array.dtype) if 0 in shape else shards[0].data if shards else None
        return [_Piece(name, shape, None, everyone, array.nbytes, data)]
    local = {box_of(shard.index, shape): shard.data for shard in array.addressable_shards}
    return [
        _Piece(name, shape, box, processes, _nbytes(array, box), local.get(box))
        for box, processes in holders.items()
    ]


def _nbytes(array: jax.Array, box: Box) -> int:
    return int(array.dtype.itemsize * math.prod(stop - start for start, stop in box))


def _placement(pieces: list[_Piece]) -> str:
    holders = [(piece.box, piece.holders) for piece in pieces]
    return f"processes {zlib.crc32(repr(holders).encode()):08x}"


def _local_piece(name: str, leaf: Any, world_size: int) -> tuple[list[_Piece], str]:
    """Return the piece of a value that every process has on its own, and its description."""
    array = np.asarray(leaf) if isinstance(leaf, jax.Array) else as_source(leaf)
    piece = _Piece(name, array.shape, None, tuple(range(world_size)), array.nbytes, array)
    kind = f"{array.dtype}{list(array.shape)} of every process"
    if world_size > 1 and array.nbytes <= COMPARED_BYTES:
        data = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        kind += f" with checksum {zlib.crc32(data):08x}"
    return [piece], kind


def _assigned(pieces: list[_Piece]) -> list[int]:
    """Return the process that writes each piece: the largest first, to the holder with the fewest
    bytes."""
    load: Counter[int] = Counter()
    for piece in pieces:
        if len(piece.holders) == 1:
            load[piece.holders[0]] += piece.nbytes
    writers = [piece.holders[0] for piece in pieces]
    shared = [at for at, piece in enumerate(pieces) if len(piece.holders) > 1]
    for at in sorted(shared, key=lambda at: -pieces[at].nbytes):
        writers[at] = min(pieces[at].holders, key=lambda process: (load[process], process))
        load[writers[at]] += pieces[at].nbytes
    return writers
