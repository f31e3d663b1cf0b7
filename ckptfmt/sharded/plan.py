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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from ckptfmt._base import dtypes, names
from ckptfmt._base.arguments import wrong
from ckptfmt._base.arrays import Sources
from ckptfmt._base.slices import SliceSpec
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError, about
from ckptfmt.saving.mesh import Layout, Mesh, blocks
from ckptfmt.saving.replicas import element_bytes, sums_of_replicas

Shape = tuple[int, ...]
_Ranks = tuple[int, ...]


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
        shapes = [list(one.shapes.values()) for one in self.held.values()]
        rest = [[its[:1] if len(set(its)) == 1 else its] for its in shapes]
        return _encoded(list(self.placement), self.held, rest, unused=self.unused)

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
        holders = list(dict.fromkeys(one.holders for one in self.tensors.values()))
        groups = {ranks: group for group, ranks in enumerate(holders)}
        rest = [[one.shape, groups[one.holders]] for one in self.tensors.values()]
        meshes, owners = list(self.placement), list(self.placement.values())
        return _encoded(meshes, self.tensors, rest, placement=owners, holders=holders)

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
        one = found.held[name] = _held(name, value, layout, check_replicas)
        if layout is None:
            continue
        positions = list(one.shapes)
        known = found.placement.setdefault(layout.mesh, positions)
        if known != positions:
            different = min(set(known) ^ set(positions))
            device = layout.mesh.devices[different]
            here, there = ("no", "have one") if different in known else ("an", "have none")
            raise InvalidError(
                f"there is {here} array for {device}, but other tensors of its mesh {there}",
                tensor=name,
            )
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
    if not isinstance(value, Mapping):
        if layout is not None and not layout.is_replicated:
            raise InvalidError(
                f"its layout {layout.text} divides it: give its local arrays, {{device: array}}, "
                "not one array",
                tensor=name,
            )
        layout, value = None, {"": value}
    elif not value:
        raise InvalidError("it has no array for any device", tensor=name)
    if layout is None:
        labels = dict(enumerate(value))
    else:
        with about(name):
            labels = dict(sorted((layout.mesh.index_of(device), device) for device in value))
    codes, shapes, arrays = {}, {}, {}
    for position, device in labels.items():
        codes[position], shapes[position], arrays[position] = _facts(name, value[device])
    first = next(iter(codes))
    for position, code in codes.items():
        if code != codes[first]:
            raise InvalidError(
                f"the array of {labels[first]} has dtype {dtypes.name_of(codes[first])}, "
                f"that of {labels[position]} {dtypes.name_of(code)}",
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


# ---- all processes -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Joined:
    """The reports of all processes on one tensor.

    Attributes:
        rank: the first process that has it; code, layout and shape are as it reports them.
        held: groups of processes, with the shapes of the local arrays in each of them.
        sums: the first position of a block -> checksum -> groups of processes.
    """

    rank: int
    code: int
    layout: Layout | None
    shape: Shape
    held: list[tuple[_Ranks, tuple[Shape, ...]]] = field(default_factory=list)
    sums: dict[int, dict[int, list[_Ranks]]] = field(default_factory=dict)


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
        meshes, layouts = _decoded(document)
        for number, mesh in enumerate(meshes):
            positions = by_mesh.setdefault(mesh, [()] * len(placements))
            for rank in ranks:
                positions[rank] = placements[rank][number]
        for name, code, number, given in document["tensors"]:
            shapes = tuple(map(tuple, given))
            report = _Joined(ranks[0], code, layouts[number], shapes[0])
            one = joined.setdefault(name, report)
            _compare(name, one, report)
            one.held.append((ranks, shapes))
        for text, which in _ranks_of(ranks, sums).items():
            for index, position, total in json.loads(text):
                found = joined[document["tensors"][index][0]].sums.setdefault(position, {})
                found.setdefault(total, []).append(which)
    for name in sorted(unused):
        # A misspelt name would make its tensor a replicated one, of which only one block is saved.
        if name not in joined:
            raise InvalidError("it has a layout, but no process has an array of it", tensor=name)
    placement = {mesh: _owners(mesh, parts) for mesh, parts in by_mesh.items()}
    tensors = {}
    # Many tensors have the same layout and local shapes.
    known: dict[Any, Shape] = {}
    for name, one in sorted(joined.items()):
        if one.layout is None:
            holders = _all_ranks(ranks for ranks, _ in one.held)
            tensors[name] = Planned(one.code, None, one.shape, holders)
        else:
            key = one.layout, *one.held
            if key not in known:
                positions = by_mesh[one.layout.mesh]
                known[key] = _global_shape(name, one, one.layout, positions, placement)
            tensors[name] = Planned(one.code, one.layout, known[key], ())
        _check_sums(name, one, by_mesh)
    return Plan(tensors, placement)


def _ranks_of(ranks: Iterable[int], given: Sequence[Any]) -> dict[Any, _Ranks]:
    """Return the processes, of these, that give each value."""
    found: dict[Any, list[int]] = {}
    for rank in ranks:
        found.setdefault(given[rank], []).append(rank)
    return {value: tuple(which) for value, which in found.items()}


def _all_ranks(groups: Iterable[_Ranks]) -> _Ranks:
    return tuple(sorted(itertools.chain.from_iterable(groups)))


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


def _compare(name: str, one: _Joined, other: _Joined) -> None:
    def differ(what: str, here: object, there: object) -> InvalidError:
        return InvalidError(
            f"process {one.rank} has it with {what} {here}, process {other.rank} with {there}",
            tensor=name,
        )

    if other.code != one.code:
        raise differ("dtype", *map(dtypes.name_of, (one.code, other.code)))
    if other.layout != one.layout:
        texts = ["none" if its is None else its.text for its in (one.layout, other.layout)]
        if texts[0] == texts[1]:
            texts = [f"{texts[0]}, with other devices"] * 2
        raise differ("layout", *texts)
    if one.layout is None and other.shape != one.shape:
        raise differ("shape", one.shape, other.shape)


def _check_sums(name: str, one: _Joined, by_mesh: Mapping[Mesh, Sequence[Sequence[int]]]) -> None:
    for first, sums in sorted(one.sums.items()):
        if len(sums) == 1:
            continue
        groups = sorted(map(_all_ranks, sums.values()))
        if one.layout is None:
            raise InvalidError(
                "it is replicated, but its elements differ between these processes: "
                + "; ".join(map(some, groups)),
                tensor=name,
            )
        mesh = one.layout.mesh
        replicas = next(group for group in one.layout._replica_groups if first in group)
        texts = []
        for ranks in groups:
            at = next(at for at in by_mesh[mesh][ranks[0]] if at in replicas)
            texts.append(f"{mesh.devices[at]} (process {some(ranks)})")
        raise InvalidError(
            f"{texts[0]} and {texts[1]} hold the same part of it, but their arrays differ",
            tensor=name,
        )


def _global_shape(
    name: str,
    one: _Joined,
    layout: Layout,
    positions: Sequence[Sequence[int]],
    placement: Mapping[Mesh, Sequence[int]],
) -> Shape:
    """Return the shape of a tensor whose blocks these are; `positions` are those of the devices of
    each process."""
    mesh = layout.mesh
    # For each dimension: block -> its length, and the position of a device that reported it.
    found: list[dict[int, tuple[int, int]]] = [{} for _ in range(layout.rank)]
    missing = set(range(mesh.size))
    for ranks, shapes in one.held:
        local = (zip(positions[rank], itertools.cycle(shapes), strict=False) for rank in ranks)
        for position, shape in itertools.chain.from_iterable(local):
            missing.discard(position)
            blocks_here = zip(layout._block_of(position), shape, strict=True)
            for axis, (block, length) in enumerate(blocks_here):
                known, other = found[axis].setdefault(block, (length, position))
                if known != length:
                    raise InvalidError(
                        f"{mesh.devices[other]} has {known} elements in dimension {axis}, and "
                        f"{mesh.devices[position]}, which shares this block of it, {length}",
                        tensor=name,
                    )
    if missing:
        position = min(missing)
        raise InvalidError(
            f"process {placement[mesh][position]} has no array for {mesh.devices[position]}",
            tensor=name,
        )
    sizes = []
    for axis, parts in enumerate(layout.num_shards):
        lengths = [found[axis][row][0] for row in range(parts)]
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


class _Slice(NamedTuple):
    """A box (None: the whole tensor) of `size` elements, and a position that holds it for each
    process with one."""

    size: int
    box: SliceSpec | None
    holders: dict[int, int]


def parts_of(plan: Plan, rank: int) -> list[Part]:
    """Return what a process has to write, by name. Over all processes each slice that is not empty
    is written once, and a tensor without elements once.

    A slice that one process holds is written by it. Slices that several processes hold are assigned
    the largest first, each to the process with the fewest bytes of such slices so far. That depends
    on layouts, shapes and dtypes only, so every process computes the same.
    """
    # Many tensors have the same layout and shape.
    known: dict[Any, list[_Slice]] = {}
    waiting = []
    for name, one in plan.tensors.items():
        key = one.layout, one.shape, one.holders
        if key not in known:
            every = _slices(one, plan.placement)
            known[key] = [its for its in every if len(its.holders) > 1 or rank in its.holders]
        width = element_bytes(one.code)
        waiting += [
            ((-its.size * width, name, min(its.holders.values())), its) for its in known[key]
        ]
    found: list[Part] = []
    loads: Counter[int] = Counter()
    for (size, name, _), (_, box, holders) in sorted(waiting, key=itemgetter(0)):
        chosen = min(holders, key=lambda one: (loads[one], one))
        if len(holders) > 1:
            loads[chosen] -= size
        if chosen == rank:
            found.append(Part(name, box, holders[rank]))
    return sorted(found, key=lambda part: (part.name, part.box.start if part.box else ()))


def _slices(one: Planned, placement: Mapping[Mesh, Sequence[int]]) -> list[_Slice]:
    """Return the slices to write of a tensor: those that are not empty, or all of a tensor without
    elements."""
    if one.layout is None:
        return [_Slice(one.size, None, dict.fromkeys(one.holders, 0))]
    owners = placement[one.layout.mesh]
    if one.size == 0:
        return [_Slice(0, None, _firsts(owners, range(len(owners))))]
    found = []
    for positions in one.layout._replica_groups:
        box = one.layout._slice_at(one.shape, positions[0])
        if size := math.prod(box.shape):
            whole = box.shape == one.shape
            found.append(_Slice(size, None if whole else box, _firsts(owners, positions)))
    return found


def _firsts(owners: Sequence[int], positions: Sequence[int]) -> dict[int, int]:
    """Return the first of these positions for each process with one."""
    return {owners[position]: position for position in reversed(positions)}


# ---- encoding ------------------------------------------------------------------------------------


def _encoded(
    meshes: list[Mesh],
    tensors: Mapping[str, Held | Planned],
    rest: Iterable[Sequence[Any]],
    **more: Any,
) -> bytes:
    """Encode tensors as rows of name, dtype, number of the layout and what `rest` has for each. No
    layout is the last item of `_decoded`'s list."""
    layouts = dict.fromkeys(one.layout for one in tensors.values() if one.layout is not None)
    numbers: dict[Layout | None, int] = {layout: number for number, layout in enumerate(layouts)}
    numbers[None] = -1
    rows = zip(tensors.items(), rest, strict=True)
    document = {
        "meshes": [[mesh.dim_names, mesh.shape, mesh.devices] for mesh in meshes],
        "layouts": [[meshes.index(one.mesh), one.sharding_specs] for one in layouts],
        "tensors": [[name, one.code, numbers[one.layout], *its] for (name, one), its in rows],
        **more,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _decoded(document: Mapping[str, Any]) -> tuple[list[Mesh], list[Layout | None]]:
    """Decode what `_encoded` encoded. Index -1 is no layout."""
    meshes = [
        Mesh(list(zip(dim_names, shape, strict=True)), devices)
        for dim_names, shape, devices in document["meshes"]
    ]
    layouts = [Layout(specs, meshes[number]) for number, specs in document["layouts"]]
    return meshes, [*layouts, None]
