# SPDX-License-Identifier: Apache-2.0
"""What the processes of a sharded save hold, joined into one plan, and who writes what.

A process describes what it holds without looking at others (`describe`). Process 0 joins the
descriptions (`join`), which finds the global shapes and every contradiction. From the plan each
process knows what it has to write (`parts_of`). Nothing here does I/O or talks to anybody.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ckptfmt import dtypes, names
from ckptfmt.arguments import wrong
from ckptfmt.arrays import Sources
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError
from ckptfmt.saving.mesh import Layout, Mesh, blocks
from ckptfmt.sharded.replicas import STRING_BYTES, sum_of_replicas
from ckptfmt.slices import SliceSpec

__all__ = [
    "Description",
    "Part",
    "Plan",
    "describe",
    "join",
    "layouts_by_name",
    "parts_of",
    "plan_of_equals",
    "some",
]

Shape = tuple[int, ...]
# For each block of a dimension its length, and the position of a device that says so.
_Lengths = dict[int, tuple[int, int]]


class Held(NamedTuple):
    """What one process holds of a tensor. Without layout there is one array, at position 0."""

    code: int
    layout: Layout | None
    shapes: dict[int, Shape]  # by position in the mesh
    arrays: dict[int, Any]
    sum: int | None  # CRC-32C of a replicated tensor, where it is small


@dataclass
class Description:
    """What one process holds, and how it tells the others.

    Attributes:
        held: by name, sorted: two processes may go through their tensors in different orders.
        unused: names that have a layout, but nothing here.
        placement: for each mesh, the positions of the devices of this process.
        copied: the arrays are copies of those described, as numpy has them.
    """

    held: dict[str, Held] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    placement: dict[Mesh, list[int]] = field(default_factory=dict)
    copied: bool = False

    @property
    def uniform(self) -> bool:
        """True if all local arrays of each tensor have one shape."""
        return all(len(set(one.shapes.values())) == 1 for one in self.held.values())

    def common(self) -> bytes:
        """All but the placement, as text: the same for all processes of an even layout."""
        layouts: dict[Layout | None, int] = {}
        rows = []
        for name, one in self.held.items():
            shapes = list(one.shapes.values())
            told = shapes[:1] if len(set(shapes)) == 1 else shapes
            number = -1 if one.layout is None else layouts.setdefault(one.layout, len(layouts))
            rows.append([name, one.code, number, told, one.sum])
        text = {
            "meshes": [_mesh_json(mesh) for mesh in self.placement],
            "layouts": [
                [list(self.placement).index(layout.mesh), layout.sharding_specs]
                for layout in layouts
                if layout is not None
            ],
            "tensors": rows,
            "unused": self.unused,
        }
        return _packed(text)


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor as all processes see it: `holders` are the processes that hold one without
    layout."""

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
    """All tensors of a save, and for each mesh the process that has the device at each position."""

    tensors: dict[str, Planned]
    placement: dict[Mesh, list[int]]

    def to_bytes(self) -> bytes:
        """The plan as text."""
        layouts: dict[Layout | None, int] = {}
        holders: dict[tuple[int, ...], int] = {}
        meshes = list(self.placement)
        rows = [
            [
                name,
                one.code,
                -1 if one.layout is None else layouts.setdefault(one.layout, len(layouts)),
                one.shape,
                holders.setdefault(one.holders, len(holders)),
            ]
            for name, one in self.tensors.items()
        ]
        text = {
            "meshes": [_mesh_json(mesh) for mesh in meshes],
            "placement": list(self.placement.values()),
            "layouts": [
                [meshes.index(layout.mesh), layout.sharding_specs]
                for layout in layouts
                if layout is not None
            ],
            "tensors": rows,
            "holders": list(holders),
        }
        return _packed(text)

    @classmethod
    def from_bytes(cls, text: bytes) -> Plan:
        """The inverse of `to_bytes`."""
        document = json.loads(text)
        meshes = [_mesh_of(row) for row in document["meshes"]]
        layouts = [Layout(specs, meshes[number]) for number, specs in document["layouts"]]
        holders = [tuple(ranks) for ranks in document["holders"]]
        tensors = {
            name: Planned(
                code, None if number < 0 else layouts[number], tuple(shape), holders[group]
            )
            for name, code, number, shape, group in document["tensors"]
        }
        return cls(tensors, dict(zip(meshes, document["placement"], strict=True)))


# ---- one process ---------------------------------------------------------------------------------


def describe(tensors: Mapping[Any, Any], layouts: Mapping[Any, Any]) -> Description:
    """What this process holds. Raises InvalidError where that contradicts itself."""
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
            # Blocks taken for replicas would be lost, all but one.
            raise InvalidError(
                "there are local arrays, {device: array}, but it has no entry in layouts; one that "
                "is replicated outside any mesh has the layout None",
                tensor=name,
            )
        if isinstance(value, Mapping) and not value and layout is not None:
            continue  # all of its devices are elsewhere
        one = _held(name, value, layout)
        found.held[name] = one
        if layout is not None:
            _check_placement(name, one, layout, found.placement)
    found.unused = sorted(set(by_name) - set(found.held))
    return found


def layouts_by_name(layouts: Mapping[Any, Any]) -> dict[str, Layout | None]:
    """The layouts with names as str; InvalidError for what is none."""
    if not isinstance(layouts, Mapping):
        raise wrong("layouts", "a mapping from names to Layouts or None", layouts)
    found = {}
    for key, layout in layouts.items():
        name = names.tensor_name(key)
        if layout is not None and not isinstance(layout, Layout):
            raise InvalidError(
                f"the layout is a Layout or None, not {type(layout).__name__}", tensor=name
            )
        found[name] = layout
    return found


def _held(name: str, value: Any, layout: Layout | None) -> Held:
    arrays: dict[int, Any]
    labels: dict[int, str]
    if not isinstance(value, Mapping):
        if layout is not None and not layout.is_replicated:
            raise InvalidError(
                f"its layout {layout.text} cuts it: give its local arrays, {{device: array}}, "
                "not one array",
                tensor=name,
            )
        layout, arrays, labels = None, {0: value}, {0: ""}
    elif not value:
        raise InvalidError("there is no array for any device", tensor=name)
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
    total = sum_of_replicas(name, codes[first], layout, shapes, arrays, labels)
    if layout is None:
        return Held(codes[first], None, {0: shapes[first]}, {0: arrays[first]}, total)
    return Held(codes[first], layout, shapes, arrays, total)


def _facts(name: str, data: Any) -> tuple[int, Shape, Any]:
    """Code and shape of an array, and the array; what knows both is not converted, since much of it
    is a replica that others write."""
    if isinstance(data, TensorHandle):
        return data.dtype_code, data.shape, data
    if hasattr(data, "dtype") and hasattr(data, "shape"):
        try:
            return dtypes.code_of(data.dtype), tuple(map(int, data.shape)), data
        except (InvalidError, TypeError, ValueError):
            pass  # another library's name of a dtype: numpy may know how to convert the array
    sources = Sources()
    sources.add(names.tensor_bytes(name), data)
    array = sources.arrays[0]
    return sources.codes[0], array.shape, data if sources.elements else array


def _check_placement(
    name: str, one: Held, layout: Layout, placement: dict[Mesh, list[int]]
) -> None:
    """All tensors of a mesh lie on the same devices of this process."""
    positions = list(one.shapes)
    known = placement.setdefault(layout.mesh, positions)
    if known != positions:
        odd = min(set(known) ^ set(positions))
        device = layout.mesh.devices[odd]
        here, there = ("no", "have one") if odd in known else ("an", "have none")
        raise InvalidError(
            f"there is {here} array for {device}, but other tensors of its mesh {there}",
            tensor=name,
        )


# ---- all processes -------------------------------------------------------------------------------


class _Claim:
    """What the processes say about one tensor."""

    __slots__ = ("code", "holders", "layout", "lengths", "positions", "rank", "shape", "sums")

    def __init__(self, rank: int, code: int, layout: Layout | None, shape: Shape) -> None:
        self.rank, self.code, self.layout, self.shape = rank, code, layout, shape
        self.holders: list[int] = []
        self.sums: dict[int | None, list[int]] = {}
        self.positions: set[int] = set()
        self.lengths: list[_Lengths] = [{} for _ in shape]


def plan_of_equals(mine: Description, placements: Sequence[Sequence[Sequence[int]]]) -> Plan:
    """The plan where all processes describe the same, with one local shape a tensor.

    `placements`: for each process, for each mesh in the order of the description, its positions.
    """
    placement = {
        mesh: _owners(mesh, [positions[number] for positions in placements])
        for number, mesh in enumerate(mine.placement)
    }
    everybody = tuple(range(len(placements)))
    tensors = {}
    for name, one in mine.held.items():
        local = next(iter(one.shapes.values()))
        if one.layout is None:
            tensors[name] = Planned(one.code, None, local, everybody)
        else:
            pairs = zip(local, one.layout.num_shards, strict=True)
            shape = tuple(size * parts for size, parts in pairs)
            tensors[name] = Planned(one.code, one.layout, shape, ())
    _check_unused(mine.unused, tensors)
    return Plan(tensors, placement)


def join(descriptions: Sequence[bytes], placements: Sequence[Sequence[Sequence[int]]]) -> Plan:
    """The plan of what all processes describe.

    Args:
        descriptions: `Description.common` of each process.
        placements: as in `plan_of_equals`.

    Raises:
        InvalidError: two processes contradict each other about a tensor, its blocks do not make
            up a tensor, or a device of a mesh has no process or two; both processes are named.
    """
    by_mesh: dict[Mesh, list[Sequence[int]]] = {}
    claims: dict[str, _Claim] = {}
    unused: set[str] = set()
    for rank, text in enumerate(descriptions):
        document = json.loads(text)
        meshes = [_mesh_of(row) for row in document["meshes"]]
        layouts = [Layout(specs, meshes[number]) for number, specs in document["layouts"]]
        unused.update(document["unused"])
        own: dict[Mesh, Sequence[int]] = {}
        # Many tensors have one layout and local shapes.
        known: dict[tuple[int, tuple[Shape, ...]], list[_Lengths]] = {}
        for number, mesh in enumerate(meshes):
            own[mesh] = placements[rank][number]
            by_mesh.setdefault(mesh, [()] * len(descriptions))[rank] = own[mesh]
        for name, code, number, told, total in document["tensors"]:
            layout = None if number < 0 else layouts[number]
            positions = [0] if layout is None else own[layout.mesh]
            shapes = [tuple(shape) for shape in told]
            if len(shapes) != len(positions):
                shapes *= len(positions)
            claim = claims.get(name)
            if claim is None:
                claim = claims[name] = _Claim(rank, code, layout, shapes[0])
            _compare(name, claim, rank, code, layout, shapes[0])
            claim.holders.append(rank)
            claim.sums.setdefault(total, []).append(rank)
            if layout is not None:
                told_here = (number, tuple(shapes))
                if told_here not in known:
                    known[told_here] = _lengths(name, layout, zip(positions, shapes, strict=True))
                claim.positions.update(positions)
                for axis, lengths in enumerate(known[told_here]):
                    for row, length in lengths.items():
                        _note(name, claim.lengths[axis], layout, axis, row, length)
    _check_unused(sorted(unused), claims)
    placement = {mesh: _owners(mesh, parts) for mesh, parts in by_mesh.items()}
    tensors = {}
    for name in sorted(claims):
        claim = claims[name]
        _check_sums(name, claim)
        if claim.layout is None:
            tensors[name] = Planned(claim.code, None, claim.shape, tuple(claim.holders))
        else:
            shape = _global_shape(name, claim, claim.layout, placement)
            tensors[name] = Planned(claim.code, claim.layout, shape, ())
    return Plan(tensors, placement)


def _owners(mesh: Mesh, parts: Sequence[Sequence[int]]) -> list[int]:
    """The process of each device of a mesh."""
    owners = [-1] * mesh.size
    for rank, positions in enumerate(parts):
        for position in positions:
            if owners[position] >= 0:
                raise InvalidError(
                    f"process {owners[position]} and process {rank} both give arrays for "
                    f"{mesh.devices[position]}, a device of the mesh {mesh.text}"
                )
            owners[position] = rank
    if -1 in owners:
        raise InvalidError(
            f"no process gives arrays for {mesh.devices[owners.index(-1)]}, a device of the mesh "
            f"{mesh.text}"
        )
    return owners


def _check_unused(unused: Sequence[str], known: Mapping[str, Any]) -> None:
    # A misspelt name would turn its tensor into a replicated one, and all but one block be lost.
    for name in unused:
        if name not in known:
            raise InvalidError("it has a layout, but no process holds it", tensor=name)


def _compare(
    name: str, claim: _Claim, rank: int, code: int, layout: Layout | None, shape: Shape
) -> None:
    def differ(what: str, here: object, there: object) -> InvalidError:
        return InvalidError(
            f"process {claim.rank} has it with {what} {here}, process {rank} with {there}",
            tensor=name,
        )

    if code != claim.code:
        first, second = map(dtypes.numpy_name_of, (claim.code, code))
        raise differ("dtype", first, second)
    if layout != claim.layout:
        texts = ["none" if one is None else one.text for one in (claim.layout, layout)]
        if texts[0] == texts[1]:
            texts = [f"{texts[0]}, with other devices"] * 2
        raise differ("layout", *texts)
    if layout is None and shape != claim.shape:
        raise differ("shape", claim.shape, shape)


def _check_sums(name: str, claim: _Claim) -> None:
    if len(claim.sums) > 1:
        groups = "; ".join(some(ranks) for ranks in claim.sums.values())
        raise InvalidError(
            f"it is replicated, but these processes hold different elements: {groups}", tensor=name
        )


def _lengths(name: str, layout: Layout, local: Iterable[tuple[int, Shape]]) -> list[_Lengths]:
    """What local arrays (position and shape) say about the blocks of each dimension."""
    found: list[_Lengths] = [{} for _ in range(layout.rank)]
    for position, shape in local:
        for axis, (row, length) in enumerate(zip(layout.block_of(position), shape, strict=True)):
            _note(name, found[axis], layout, axis, row, (length, position))
    return found


def _note(
    name: str, lengths: _Lengths, layout: Layout, axis: int, row: int, said: tuple[int, int]
) -> None:
    known, other = lengths.setdefault(row, said)
    length, position = said
    if known != length:
        devices = layout.mesh.devices
        raise InvalidError(
            f"{devices[other]} has {known} elements in dimension {axis}, and "
            f"{devices[position]}, which shares this block of it, {length}",
            tensor=name,
        )


def _global_shape(
    name: str, claim: _Claim, layout: Layout, placement: Mapping[Mesh, Sequence[int]]
) -> Shape:
    mesh = layout.mesh
    if len(claim.positions) != mesh.size:
        position = min(set(range(mesh.size)) - claim.positions)
        raise InvalidError(
            f"process {placement[mesh][position]} has no array for {mesh.devices[position]}",
            tensor=name,
        )
    sizes = []
    for axis, parts in enumerate(layout.num_shards):
        lengths = [claim.lengths[axis][row][0] for row in range(parts)]
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
    """The first few numbers, for a message."""
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown}, ..." if len(numbers) > 8 else shown


# ---- who writes what -----------------------------------------------------------------------------


class Part(NamedTuple):
    """A slice to write: the local array at `position`; the whole tensor where `box` is None."""

    name: str
    box: SliceSpec | None
    position: int


class _Shared(NamedTuple):
    """A slice that several processes hold."""

    order: tuple[int, str, int]
    ranks: tuple[int, ...]
    part: Part
    positions: tuple[int, ...]


def parts_of(plan: Plan, rank: int) -> list[Part]:
    """What a process has to write, by name. Over all processes each slice that is not empty comes
    once, and a tensor without elements once.

    A slice that one process holds is written by it. Those that several hold are spread over these
    by bytes, the largest first, each to the one that has the least of such slices by then. This
    follows from layouts, shapes and dtypes only, so that every process finds the same.
    """
    shared = _shared(plan, rank)
    shared.sort()
    found: list[Part] = []
    loads: dict[int, int] = {}
    queues: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for order, ranks, part, positions in shared:
        chosen = ranks[0]
        if len(ranks) > 1:
            queue = queues.setdefault(ranks, [])
            if not queue:
                queue.extend(sorted((loads.get(one, 0), one) for one in ranks))
            chosen = _least(queue, loads)
            loads[chosen] = loads.get(chosen, 0) - order[0]
        if chosen != rank:
            continue
        layout = plan.tensors[part.name].layout
        if layout is not None:
            owners = plan.placement[layout.mesh]
            first = next(p for p in positions if owners[p] == rank)
            part = part._replace(position=first)  # noqa: PLW2901 (the array that is here)
        found.append(part)
    return sorted(found, key=lambda part: (part.name, part.box.start if part.box else ()))


def _least(queue: list[tuple[int, int]], loads: Mapping[int, int]) -> int:
    """The process of a heap of (load, process) that has the least load, the first of several.

    Loads only grow, also by slices of other heaps: what the first says may be too little, and is
    put right until it is not.
    """
    while True:
        load, rank = queue[0]
        now = loads.get(rank, 0)
        if load == now:
            return rank
        heapq.heapreplace(queue, (now, rank))


def _shared(plan: Plan, rank: int) -> list[_Shared]:
    """The slices that several processes hold, and those that only this one does."""
    found: list[_Shared] = []
    # Many tensors have one layout and shape: what follows from these is found once.
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
    """A box (None: the whole tensor) of `size` elements, and who holds it."""

    size: int
    ranks: tuple[int, ...]
    box: SliceSpec | None
    positions: tuple[int, ...]


def _groups(layout: Layout, shape: Shape, owners: Sequence[int]) -> list[_Group]:
    """What has to be written of a tensor: the boxes that are not empty; of one without elements
    itself."""
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


# ---- as text -------------------------------------------------------------------------------------


def _mesh_json(mesh: Mesh) -> list[Any]:
    return [mesh.dim_names, mesh.shape, mesh.devices]


def _mesh_of(row: Sequence[Any]) -> Mesh:
    dim_names, shape, devices = row
    return Mesh(list(zip(dim_names, shape, strict=True)), devices)


def _packed(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
