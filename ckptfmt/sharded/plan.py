# SPDX-License-Identifier: Apache-2.0
"""The plan of a sharded save: what the processes hold together, and which process writes what.

Each process describes its own arrays (`describe`). Process 0 joins the descriptions (`join`): it
computes the global shapes and finds contradictions between processes. From the plan each process
derives what it has to write (`parts_of`). Nothing here does I/O or communicates.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ckptfmt._base import dtypes, names
from ckptfmt._base.arguments import wrong
from ckptfmt._base.arrays import Sources
from ckptfmt._base.slices import SliceSpec
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError, about
from ckptfmt.saving.mesh import Layout, Mesh, blocks
from ckptfmt.sharded.replicas import STRING_BYTES, sums_of_replicas

Shape = tuple[int, ...]
# Block number along a dimension -> its length, and the position of a device that reported it.
_Lengths = dict[int, tuple[int, int]]


class Held(NamedTuple):
    """The part of a tensor in one process. Without a layout there is one array, at position 0.

    Attributes:
        code: the dtype.
        layout: the layout; None if the tensor is replicated.
        shapes, arrays: the local arrays by position in the mesh, and their shapes.
        sums: CRC-32C of blocks that other processes hold as well, by their first position.
    """

    code: int
    layout: Layout | None
    shapes: dict[int, Shape]
    arrays: dict[int, Any]
    sums: dict[int, int]


@dataclass
class Description:
    """The tensors of one process.

    Attributes:
        held: by name, sorted, because processes may list their tensors in different orders.
        unused: names that have a layout and no array in this process.
        placement: for each mesh, the positions of the devices of this process.
        copied: whether the arrays are copies of those described, as NumPy arrays.
    """

    held: dict[str, Held] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    placement: dict[Mesh, list[int]] = field(default_factory=dict)
    copied: bool = False

    def to_bytes(self) -> bytes:
        """Encode the description without placement and checksums: processes with blocks of the same
        shapes have equal bytes, which `join` handles once."""
        numbers = _numbers(self.held.values())
        rows = []
        for name, one in self.held.items():
            shapes = list(one.shapes.values())
            distinct = shapes[:1] if len(set(shapes)) == 1 else shapes
            rows.append([name, one.code, numbers[one.layout], distinct])
        return _packed({**_tables(self.placement, numbers), "tensors": rows, "unused": self.unused})

    def sums_text(self) -> str:
        """Encode the checksums: (index of the tensor, position, checksum). Processes with the same
        blocks have equal texts."""
        rows = [
            (index, position, total)
            for index, one in enumerate(self.held.values())
            for position, total in one.sums.items()
        ]
        return json.dumps(rows, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor of all processes. `holders` are the processes that hold it, if it has no layout."""

    code: int
    layout: Layout | None
    shape: Shape
    holders: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass
class Plan:
    """All tensors of a save, and for each mesh the process of the device at each position."""

    tensors: dict[str, Planned]
    placement: dict[Mesh, list[int]]

    def to_bytes(self) -> bytes:
        """Encode the plan."""
        numbers = _numbers(self.tensors.values())
        holders: dict[tuple[int, ...], int] = {}
        rows = [
            [
                name,
                one.code,
                numbers[one.layout],
                one.shape,
                holders.setdefault(one.holders, len(holders)),
            ]
            for name, one in self.tensors.items()
        ]
        tables = _tables(self.placement, numbers)
        owners = list(self.placement.values())
        return _packed({**tables, "placement": owners, "tensors": rows, "holders": list(holders)})

    @classmethod
    def from_bytes(cls, content: bytes) -> Plan:
        """Decode what `to_bytes` encoded."""
        document = json.loads(content)
        meshes, layouts = _decoded(document)
        holders = [tuple(ranks) for ranks in document["holders"]]
        tensors = {
            name: Planned(code, layouts[number], tuple(shape), holders[group])
            for name, code, number, shape, group in document["tensors"]
        }
        return cls(tensors, dict(zip(meshes, document["placement"], strict=True)))


# ---- one process ---------------------------------------------------------------------------------


def describe(
    tensors: Mapping[Any, Any], layouts: Mapping[Any, Any], check_replicas: bool = False
) -> Description:
    """Return what this process holds; see `ckptfmt.sharded.save`.

    Raises:
        InvalidError: the arguments have a wrong type or contradict each other.
    """
    if not isinstance(tensors, Mapping):
        raise wrong("tensors", "a mapping from names to {device: local array}", tensors)
    by_name = layouts_by_name(layouts)
    found = Description()
    given: dict[str, Any] = {}
    for key, value in tensors.items():
        name = names.saved_name(key)
        if name in given:
            raise InvalidError("the name is given twice", tensor=name)
        given[name] = value
    for name in sorted(given):
        value, layout = given[name], by_name.get(name)
        if isinstance(value, Mapping) and name not in by_name:
            # If these are blocks, all but one would be lost.
            raise InvalidError(
                "there are local arrays, {device: array}, but it has no entry in layouts; one that "
                "is replicated outside any mesh has the layout None",
                tensor=name,
            )
        if isinstance(value, Mapping) and not value and layout is not None:
            continue  # all of its devices are elsewhere
        one = _held(name, value, layout, check_replicas)
        found.held[name] = one
        if layout is not None:
            _check_placement(name, one, layout, found.placement)
    found.unused = sorted(set(by_name) - set(found.held))
    return found


def layouts_by_name(layouts: Mapping[Any, Any]) -> dict[str, Layout | None]:
    """Return the layouts with names as str.

    Raises:
        InvalidError: an item is neither None nor what `Layout.of` takes.
    """
    if not isinstance(layouts, Mapping):
        raise wrong("layouts", "a mapping from names to Layouts or None", layouts)
    found = {}
    for key, layout in layouts.items():
        name = names.tensor_name(key)
        with about(name):
            found[name] = None if layout is None else Layout.of(layout)
    return found


def _held(name: str, value: Any, layout: Layout | None, check_replicas: bool) -> Held:
    arrays: dict[int, Any]
    labels: dict[int, str]
    if not isinstance(value, Mapping):
        if layout is not None and not layout.is_replicated:
            raise InvalidError(
                f"its layout {layout.text} divides it: give its local arrays, {{device: array}}, "
                "not one array",
                tensor=name,
            )
        layout, arrays, labels = None, {0: value}, {0: ""}
    elif not value:
        raise InvalidError("it has no array for any device", tensor=name)
    elif layout is None:
        labels = dict(enumerate(map(str, value)))
        arrays = dict(enumerate(value.values()))
    else:
        try:
            labels = {layout.mesh.index_of(device): device for device in value}
        except InvalidError as error:
            error.tensor = name
            raise
        labels = dict(sorted(labels.items()))
        arrays = {position: value[device] for position, device in labels.items()}
    codes, shapes = {}, {}
    for position, array in arrays.items():
        codes[position], shapes[position], arrays[position] = _facts(name, array)
    first = next(iter(codes))
    for position, code in codes.items():
        if code != codes[first]:
            raise InvalidError(
                f"the array of {labels[first]} has dtype {dtypes.numpy_name_of(codes[first])}, "
                f"that of {labels[position]} {dtypes.numpy_name_of(code)}",
                tensor=name,
            )
        if layout is None and shapes[position] != shapes[first]:
            raise InvalidError(
                f"without layout it is replicated, but the array of {labels[first]} has shape "
                f"{shapes[first]}, that of {labels[position]} {shapes[position]}",
                tensor=name,
            )
        if layout is not None and len(shapes[position]) != layout.rank:
            raise InvalidError(
                f"an array of shape {shapes[position]} does not fit the layout {layout.text}",
                tensor=name,
            )
    sums = sums_of_replicas(name, codes[first], layout, shapes, arrays, labels, check_replicas)
    if layout is None:
        return Held(codes[first], None, {0: shapes[first]}, {0: arrays[first]}, sums)
    return Held(codes[first], layout, shapes, arrays, sums)


def _facts(name: str, data: Any) -> tuple[int, Shape, Any]:
    """Code and shape of an array, and the array. An array that has both is not converted, because
    other processes may write it."""
    if isinstance(data, TensorHandle):
        return data.dtype_code, data.shape, data
    if hasattr(data, "dtype") and hasattr(data, "shape"):
        try:
            return dtypes.code_of(data.dtype), tuple(map(int, data.shape)), data
        except (InvalidError, TypeError, ValueError):
            pass  # a dtype of another library; the array may convert itself to NumPy
    sources = Sources()
    sources.add(names.tensor_bytes(name), data)
    array = sources.arrays[0]
    return sources.codes[0], array.shape, data if sources.elements else array


def _check_placement(
    name: str, one: Held, layout: Layout, placement: dict[Mesh, list[int]]
) -> None:
    """Check that all tensors of a mesh have arrays for the same devices of this process."""
    positions = list(one.shapes)
    known = placement.setdefault(layout.mesh, positions)
    if known != positions:
        different = min(set(known) ^ set(positions))
        device = layout.mesh.devices[different]
        here, there = ("no", "have one") if different in known else ("an", "have none")
        raise InvalidError(
            f"there is {here} array for {device}, but other tensors of its mesh {there}",
            tensor=name,
        )


# ---- all processes -------------------------------------------------------------------------------


class _Joined:
    """The reports of all processes on one tensor; `rank` is the first process that has it."""

    __slots__ = ("code", "holders", "layout", "lengths", "positions", "rank", "shape", "sums")

    def __init__(self, rank: int, code: int, layout: Layout | None, shape: Shape) -> None:
        self.rank, self.code, self.layout, self.shape = rank, code, layout, shape
        self.holders: list[int] = []
        # First position of a block -> checksum -> processes.
        self.sums: dict[int, dict[int, list[int]]] = {}
        self.positions: set[int] = set()
        self.lengths: list[_Lengths] = [{} for _ in shape]


def join(
    descriptions: Sequence[bytes],
    placements: Sequence[Sequence[Sequence[int]]],
    sums: Sequence[str],
) -> Plan:
    """Return the plan of what all processes describe.

    Args:
        descriptions: `Description.to_bytes` of each process.
        placements: for each process and each mesh of its description, the positions of its devices.
        sums: `Description.sums_text` of each process.

    Raises:
        InvalidError: two processes contradict each other about a tensor, its blocks do not make
            up a tensor, or a device of a mesh has no process or two. The message names both
            processes.
    """
    by_mesh: dict[Mesh, list[Sequence[int]]] = {}
    joined: dict[str, _Joined] = {}
    unused: set[str] = set()
    # With even layouts nearly all descriptions are equal, so that each is visited once.
    for content, ranks in _ranks_of(range(len(descriptions)), descriptions).items():
        document = json.loads(content)
        unused.update(document["unused"])
        _add_equal(document, ranks, placements, by_mesh, joined)
        for text, which in _ranks_of(ranks, sums).items():
            for index, position, total in json.loads(text):
                found = joined[document["tensors"][index][0]].sums.setdefault(position, {})
                found.setdefault(total, []).extend(which)
    for name in sorted(unused):
        # A misspelt name would make its tensor a replicated one, of which only one block is saved.
        if name not in joined:
            raise InvalidError("it has a layout, but no process has an array of it", tensor=name)
    placement = {mesh: _owners(mesh, parts) for mesh, parts in by_mesh.items()}
    tensors = {}
    for name, one in sorted(joined.items()):
        _check_sums(name, one, by_mesh)
        if one.layout is None:
            tensors[name] = Planned(one.code, None, one.shape, tuple(sorted(one.holders)))
        else:
            shape = _global_shape(name, one, one.layout, placement)
            tensors[name] = Planned(one.code, one.layout, shape, ())
    return Plan(tensors, placement)


def _ranks_of(ranks: Iterable[int], given: Sequence[Any]) -> dict[Any, list[int]]:
    """Return the processes, of these, that give each value."""
    found: dict[Any, list[int]] = {}
    for rank in ranks:
        found.setdefault(given[rank], []).append(rank)
    return found


def _add_equal(
    document: Mapping[str, Any],
    ranks: list[int],
    placements: Sequence[Sequence[Sequence[int]]],
    by_mesh: dict[Mesh, list[Sequence[int]]],
    joined: dict[str, _Joined],
) -> None:
    """Add the description that these processes have in common to what was joined before."""
    meshes, layouts = _decoded(document)
    for number, mesh in enumerate(meshes):
        positions = by_mesh.setdefault(mesh, [()] * len(placements))
        for rank in ranks:
            positions[rank] = placements[rank][number]
    # Many tensors have the same layout and local shapes.
    known: dict[tuple[int, tuple[Shape, ...]], tuple[list[int], list[_Lengths]]] = {}
    for name, code, number, distinct in document["tensors"]:
        layout, shapes = layouts[number], tuple(tuple(shape) for shape in distinct)
        one = joined.get(name)
        if one is None:
            one = joined[name] = _Joined(ranks[0], code, layout, shapes[0])
        _compare(name, one, ranks[0], code, layout, shapes[0])
        one.holders += ranks
        if layout is None:
            continue
        if (number, shapes) not in known:
            local = [
                pair
                for rank in ranks
                for pair in zip(by_mesh[layout.mesh][rank], itertools.cycle(shapes), strict=False)
            ]
            held = [position for position, _ in local]
            known[number, shapes] = held, _lengths(name, layout, local)
        held, found = known[number, shapes]
        one.positions.update(held)
        for axis, lengths in enumerate(found):
            if not one.lengths[axis]:
                one.lengths[axis] = dict(lengths)
                continue
            for block, length in lengths.items():
                _add_length(name, one.lengths[axis], layout, axis, block, length)


def _owners(mesh: Mesh, parts: Sequence[Sequence[int]]) -> list[int]:
    """Return the process of the device at each position of a mesh."""
    owners = [-1] * mesh.size
    for rank, positions in enumerate(parts):
        for position in positions:
            if owners[position] >= 0:
                raise InvalidError(
                    f"process {owners[position]} and process {rank} both have arrays for "
                    f"{mesh.devices[position]}, a device of the mesh {mesh.text}"
                )
            owners[position] = rank
    if -1 in owners:
        raise InvalidError(
            f"no process has arrays for {mesh.devices[owners.index(-1)]}, a device of the mesh "
            f"{mesh.text}"
        )
    return owners


def _compare(
    name: str, one: _Joined, rank: int, code: int, layout: Layout | None, shape: Shape
) -> None:
    def differ(what: str, here: object, there: object) -> InvalidError:
        return InvalidError(
            f"process {one.rank} has it with {what} {here}, process {rank} with {there}",
            tensor=name,
        )

    if code != one.code:
        first, second = map(dtypes.numpy_name_of, (one.code, code))
        raise differ("dtype", first, second)
    if layout != one.layout:
        texts = ["none" if its is None else its.text for its in (one.layout, layout)]
        if texts[0] == texts[1]:
            texts = [f"{texts[0]}, with other devices"] * 2
        raise differ("layout", *texts)
    if layout is None and shape != one.shape:
        raise differ("shape", one.shape, shape)


def _check_sums(name: str, one: _Joined, by_mesh: Mapping[Mesh, Sequence[Sequence[int]]]) -> None:
    for first, sums in sorted(one.sums.items()):
        if len(sums) == 1:
            continue
        groups = sorted(map(sorted, sums.values()))
        if one.layout is None:
            raise InvalidError(
                "it is replicated, but its elements differ between these processes: "
                + "; ".join(map(some, groups)),
                tensor=name,
            )
        mesh = one.layout.mesh
        replicas = next(group for group in one.layout.replica_groups if first in group)
        devices = [
            next(mesh.devices[at] for at in by_mesh[mesh][ranks[0]] if at in replicas)
            for ranks in groups
        ]
        texts = [
            f"{device} (process {some(ranks)})"
            for device, ranks in zip(devices, groups, strict=True)
        ]
        raise InvalidError(
            f"{texts[0]} and {texts[1]} hold the same part of it, but their arrays differ",
            tensor=name,
        )


def _lengths(name: str, layout: Layout, local: Iterable[tuple[int, Shape]]) -> list[_Lengths]:
    """Return the lengths of blocks in each dimension that these local arrays (position, shape)
    have."""
    found: list[_Lengths] = [{} for _ in range(layout.rank)]
    for position, shape in local:
        for axis, (block, length) in enumerate(zip(layout.block_of(position), shape, strict=True)):
            _add_length(name, found[axis], layout, axis, block, (length, position))
    return found


def _add_length(
    name: str, lengths: _Lengths, layout: Layout, axis: int, block: int, found: tuple[int, int]
) -> None:
    known, other = lengths.setdefault(block, found)
    length, position = found
    if known != length:
        devices = layout.mesh.devices
        raise InvalidError(
            f"{devices[other]} has {known} elements in dimension {axis}, and "
            f"{devices[position]}, which shares this block of it, {length}",
            tensor=name,
        )


def _global_shape(
    name: str, one: _Joined, layout: Layout, placement: Mapping[Mesh, Sequence[int]]
) -> Shape:
    mesh = layout.mesh
    if len(one.positions) != mesh.size:
        position = min(set(range(mesh.size)) - one.positions)
        raise InvalidError(
            f"process {placement[mesh][position]} has no array for {mesh.devices[position]}",
            tensor=name,
        )
    sizes = []
    for axis, parts in enumerate(layout.num_shards):
        lengths = [one.lengths[axis][row][0] for row in range(parts)]
        size = sum(lengths)
        if lengths != blocks(size, parts):
            raise InvalidError(
                f"the blocks of dimension {axis} have {some(lengths)} elements; a layout cuts "
                f"{size} into {some(blocks(size, parts))}",
                tensor=name,
            )
        sizes.append(size)
    return tuple(sizes)


def some(numbers: Sequence[int]) -> str:
    """Return the first few numbers, for a message."""
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown}, ..." if len(numbers) > 8 else shown


# ---- who writes what -----------------------------------------------------------------------------


class Part(NamedTuple):
    """A slice to write, from the local array at `position`. `box` None is the whole tensor."""

    name: str
    box: SliceSpec | None
    position: int


class _Shared(NamedTuple):
    """A slice, and the processes that hold it. `order` sorts by size, the largest first."""

    order: tuple[int, str, int]
    ranks: tuple[int, ...]
    part: Part
    positions: tuple[int, ...]


def parts_of(plan: Plan, rank: int) -> list[Part]:
    """Return what a process has to write, by name. Over all processes each slice that is not empty
    is written once, and a tensor without elements once.

    A slice that one process holds is written by it. Slices that several processes hold are assigned
    the largest first, each to the process with the fewest bytes of such slices so far. That depends
    on layouts, shapes and dtypes only, so every process computes the same.
    """
    found: list[Part] = []
    loads: dict[int, int] = {}
    for order, ranks, part, positions in sorted(_shared(plan, rank)):
        chosen = ranks[0]
        if len(ranks) > 1:
            chosen = min(ranks, key=lambda one: (loads.get(one, 0), one))
            loads[chosen] = loads.get(chosen, 0) - order[0]
        if chosen != rank:
            continue
        layout = plan.tensors[part.name].layout
        if layout is None:
            found.append(part)
            continue
        owners = plan.placement[layout.mesh]
        here = next(position for position in positions if owners[position] == rank)
        found.append(part._replace(position=here))
    return sorted(found, key=lambda part: (part.name, part.box.start if part.box else ()))


def _shared(plan: Plan, rank: int) -> list[_Shared]:
    """Return the slices that several processes hold, and those that only this process holds."""
    found: list[_Shared] = []
    # Many tensors have the same layout and shape.
    known: dict[tuple[Layout, Shape], list[_Group]] = {}
    for name, one in plan.tensors.items():
        info = dtypes.info_of(one.code)
        itemsize = info.size if info is not None and info.size else STRING_BYTES
        if one.layout is None:
            order = (-one.size * itemsize, name, 0)
            found.append(_Shared(order, one.holders, Part(name, None, 0), (0,)))
            continue
        groups = known.get((one.layout, one.shape))
        if groups is None:
            owners = plan.placement[one.layout.mesh]
            groups = [
                group
                for group in _groups(one.layout, one.shape, owners)
                if group.ranks == (rank,) or len(group.ranks) > 1
            ]
            known[one.layout, one.shape] = groups
        for size, ranks, box, positions in groups:
            order = (-size * itemsize, name, positions[0])
            found.append(_Shared(order, ranks, Part(name, box, positions[0]), positions))
    return found


class _Group(NamedTuple):
    """A box (None: the whole tensor) of `size` elements, and the processes and positions that hold
    it."""

    size: int
    ranks: tuple[int, ...]
    box: SliceSpec | None
    positions: tuple[int, ...]


def _groups(layout: Layout, shape: Shape, owners: Sequence[int]) -> list[_Group]:
    """Return the groups to write of a tensor: its boxes that are not empty, or all of a tensor
    without elements."""
    if math.prod(shape) == 0:
        return [_Group(0, tuple(sorted(set(owners))), None, tuple(range(layout.mesh.size)))]
    found = []
    for positions in layout.replica_groups:
        box = layout.slice_at(shape, positions[0])
        size = math.prod(box.shape)
        if size:
            ranks = tuple(sorted({owners[position] for position in positions}))
            found.append(_Group(size, ranks, None if box.shape == shape else box, positions))
    return found


# ---- encoding ------------------------------------------------------------------------------------


def _numbers(tensors: Iterable[Held | Planned]) -> dict[Layout | None, int]:
    """Number the layouts of tensors; no layout is the last item of `_decoded`'s list."""
    layouts = dict.fromkeys(one.layout for one in tensors if one.layout is not None)
    return {**{layout: number for number, layout in enumerate(layouts)}, None: -1}


def _tables(
    placement: Mapping[Mesh, Any], numbers: Mapping[Layout | None, int]
) -> dict[str, list[Any]]:
    """Return the meshes and layouts that tensors refer to by number."""
    meshes = list(placement)
    return {
        "meshes": [[mesh.dim_names, mesh.shape, mesh.devices] for mesh in meshes],
        "layouts": [
            [meshes.index(layout.mesh), layout.sharding_specs]
            for layout in numbers
            if layout is not None
        ],
    }


def _decoded(document: Mapping[str, Any]) -> tuple[list[Mesh], list[Layout | None]]:
    """Decode what `_tables` encoded. Index -1 is no layout."""
    meshes = [
        Mesh(list(zip(dim_names, shape, strict=True)), devices)
        for dim_names, shape, devices in document["meshes"]
    ]
    layouts = [Layout(specs, meshes[number]) for number, specs in document["layouts"]]
    return meshes, [*layouts, None]


def _packed(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
