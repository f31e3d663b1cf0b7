# SPDX-License-Identifier: Apache-2.0
"""What property tests draw: arrays, tilings, tensors for policies, sharded saves, object graphs.

A property runs few examples in `make test` and many in `make properties`, which prints the counts
of the shapes drawn. Hypothesis gets its seed from conftest.py.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.saving.sharding import ShardableTensor

from .arrays import CODES, random_array
from .saving import distinct_boxes, shardable

# The part of the long form that runs: 1 in `make properties`, 0 in `make test`.
LONG = float(os.environ.get("CKPTFMT_PROPERTIES", "0"))
SEEDS = st.integers(0, 2**32)

DRAWN: dict[str, Counter[str]] = {}


def counted(group: str, **counts: int) -> None:
    """Add to the counts that `make properties` prints."""
    DRAWN.setdefault(group, Counter()).update(counts)


def property_test(examples: int, long: int, *strategies: Any, **named: Any) -> Any:
    """Mark a test as a property of what is drawn, and set its numbers of examples."""

    def decorate(test: Callable[..., Any]) -> Any:
        rounds = settings(
            max_examples=max(examples, round(long * LONG)),
            deadline=None,
            database=None,  # the seed repeats a failure
            suppress_health_check=list(HealthCheck),
        )
        return pytest.mark.properties(rounds(given(*strategies, **named)(test)))

    return decorate


# ---- boxes and arrays ----------------------------------------------------------------------------

Extents = list[tuple[int, int]]


def shapes(rank_max: int = 4, size_max: int = 7, size_min: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(st.integers(size_min, size_max), max_size=rank_max).map(tuple)


@st.composite
def arrays(draw: st.DrawFn, *, views: bool = False) -> Any:
    """Random bits of any dtype; with `views`, sometimes with other strides."""
    code, shape = draw(st.sampled_from(CODES)), draw(shapes())
    array = random_array(random.Random(draw(SEEDS)), code, shape)
    layout = draw(
        st.sampled_from(["contiguous", "transposed", "reversed", "stepped"] if views else [""])
    )
    if layout == "transposed":
        return array.T
    if layout == "reversed" and shape:
        return array[::-1]
    return array[..., ::2] if layout == "stepped" and shape else array


def key_of(box: Extents) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in box)


def text_of(shape: Sequence[int], box: Extents) -> str:
    return " ".join(map(str, shape)) + " " + ":".join(f"{at},{size}" for at, size in box)


@st.composite
def boxes(draw: st.DrawFn, shape: Sequence[int]) -> Extents:
    """One box that is not empty of a shape that is not empty."""
    starts = [draw(st.integers(0, size - 1)) for size in shape]
    return [(at, draw(st.integers(1, n - at))) for at, n in zip(starts, shape, strict=True)]


@st.composite
def tilings(draw: st.DrawFn, shape: Sequence[int], cuts_max: int = 8) -> list[Extents]:
    """Disjoint boxes that make up a shape."""
    found = [[(0, size) for size in shape]]
    for _ in range(draw(st.integers(0, cuts_max))):
        piece = found.pop(draw(st.integers(0, len(found) - 1)))
        wide = [axis for axis, (_, size) in enumerate(piece) if size > 1]
        if not wide:
            found.append(piece)
            continue
        axis = draw(st.sampled_from(wide))
        start, size = piece[axis]
        first = draw(st.integers(1, size - 1))
        for part in ((start, first), (start + first, size - first)):
            found.append([*piece[:axis], part, *piece[axis + 1 :]])
    return found


# ---- tensors for policies ------------------------------------------------------------------------

POLICY_DTYPES: tuple[Any, ...] = (
    *(np.float32, np.float64, np.float16, np.int8, np.uint16, np.complex128, np.bool_),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4),
)
SIDES = st.one_of(st.integers(1, 12), st.sampled_from([0, 1, 1, 2, 3, 5, 8, 20]))


@st.composite
def shardable_tensors(draw: st.DrawFn, count_max: int = 8) -> list[ShardableTensor]:
    """Whole tensors and slices of larger ones."""
    tensors = []
    for row in range(draw(st.integers(0, count_max))):
        shape = tuple(draw(st.lists(SIDES, max_size=4)))
        spec = ""
        if shape and all(shape) and draw(st.integers(0, 2)) == 0:
            room = [draw(st.tuples(st.integers(0, 3), st.integers(0, 3))) for _ in shape]
            full = [a + size + b for (a, b), size in zip(room, shape, strict=True)]
            spec = text_of(full, [(a, size) for (a, _), size in zip(room, shape, strict=True)])
        count = math.prod(shape)
        if draw(st.integers(0, 6)) == 0:
            chance = random.Random(draw(SEEDS))
            array = np.empty(count, object)
            array[:] = [bytes(chance.randint(0, 9)) for _ in range(count)]
            kind = "strings"
        else:
            numbers = np.arange(count) % 60_000  # float16 holds no more
            array = numbers.astype(draw(st.sampled_from(POLICY_DTYPES)))
            kind = "numbers"
        counted("policies", tensors=1, slices=bool(spec), empty=not count, **{kind: 1})
        tensors.append(shardable(f"t{row}", array.reshape(shape), spec))
    return tensors


# ---- sharded saves -------------------------------------------------------------------------------


class Job(NamedTuple):
    """A mesh and the process of each of its devices."""

    mesh: Mesh
    owners: list[int]
    world_size: int

    def devices(self, rank: int) -> list[str]:
        pairs = zip(self.mesh.devices, self.owners, strict=True)
        return [device for device, owner in pairs if owner == rank]


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    sizes = draw(st.lists(st.sampled_from([1, 2, 2, 3]), min_size=1, max_size=3))
    return Mesh(list(zip("xyz", sizes, strict=False)))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    mesh, world_size = draw(meshes()), draw(st.integers(1, 4))
    if draw(st.booleans()):
        owners = [draw(st.integers(0, world_size - 1)) for _ in mesh.devices]
    else:
        local = [mesh.local_devices(rank, world_size) for rank in range(world_size)]
        owners = [rank for rank, devices in enumerate(local) for _ in devices]
    return Job(mesh, owners, world_size)


@st.composite
def layouts(draw: st.DrawFn, mesh: Mesh, rank: int) -> Layout:
    names = draw(st.permutations([*mesh.dim_names, None, None]))
    return Layout([*names, None, None, None, None][:rank], mesh)


def expected_slice(whole: np.ndarray[Any, Any], layout: Layout, device: str) -> Any:
    """The part of an array on one device, by numpy's slices, which end where the array ends."""
    where = dict(zip(layout.mesh.dim_names, layout.mesh.coordinates(device), strict=True))
    sizes = dict(zip(layout.mesh.dim_names, layout.mesh.shape, strict=True))
    key = []
    for size, name in zip(whole.shape, layout.sharding_specs, strict=True):
        block = size if name is None else -(-size // sizes[name])
        first = 0 if name is None else where[name] * block
        key.append(slice(first, first + block))
    return whole[(*key, ...)]


class Share(NamedTuple):
    """A job and the layouts of its tensors; None for a tensor that every process has whole."""

    job: Job
    layouts: dict[str, Layout | None]

    def parts(self, whole: dict[str, Any], rank: int) -> dict[str, Any]:
        """What one process holds of these arrays."""
        devices = self.job.devices(rank)
        return {
            name: whole[name]
            if layout is None
            else {device: expected_slice(whole[name], layout, device) for device in devices}
            for name, layout in self.layouts.items()
        }


@st.composite
def shares(draw: st.DrawFn, whole: dict[str, Any]) -> Share:
    job = draw(jobs())
    chosen: dict[str, Layout | None] = {
        name: None if draw(st.integers(0, 9)) == 0 else draw(layouts(job.mesh, array.ndim))
        for name, array in whole.items()
    }
    return Share(job, chosen)


@st.composite
def sharded_tensors(draw: st.DrawFn, count_max: int = 6) -> dict[str, Any]:
    whole = {f"t{row}": draw(arrays()) for row in range(draw(st.integers(0, count_max)))}
    for array in whole.values():
        counted("ranks", **{str(array.ndim): 1})
        counted("dtypes", **{str(array.dtype): 1})
    return whole


def count_share(share: Share, whole: dict[str, Any]) -> None:
    """Count the pieces of a sharded save."""
    pieces = 0
    for name, layout in share.layouts.items():
        pieces += 1 if layout is None else len(distinct_boxes(layout, whole[name].shape))
    counted(
        "sharded saves",
        saves=1,
        tensors=len(whole),
        processes=share.job.world_size,
        devices=share.job.mesh.size,
        replicated=sum(one is None or one.is_replicated for one in share.layouts.values()),
        pieces=pieces,
    )


# ---- object graphs -------------------------------------------------------------------------------

# As support/graphs.py builds them.
Tree = dict[str, Any]

GRAPH_DTYPES = (
    *("float32", "float64", "int32", "int64", "bool", "uint8", "bfloat16", "complex64"),
    "string",
)
OBJECTS = ("module", "checkpoint", "optimizer")
CONTAINERS = (*OBJECTS, "dict", "list", "tuple")
KINDS = st.sampled_from(["variable"] * 5 + ["state", *CONTAINERS])
ATTRIBUTES = ["w", "b", "layer", "x"]
KEYS = [*ATTRIBUTES, "x/y", "k.1", "", "é"]
SLOTS = ["momentum", "m", "x/y"]


def random_variable(seed: int) -> Tree:
    chance = random.Random(seed)
    dtype = chance.choice(GRAPH_DTYPES)
    shape = [chance.randint(0, 3) for _ in range(chance.randint(0, 2))]
    size = math.prod(shape)
    if dtype == "string":
        data: Any = [
            "".join(chance.choices("ab\0\xff", k=chance.randint(0, 4))) for _ in [0] * size
        ]
    elif dtype == "bool":
        data = bytes(chance.randrange(2) for _ in range(size)).hex()
    else:
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        data = np.array([chance.randrange(100) for _ in range(size)]).astype(kind).tobytes().hex()
    return {"kind": "variable", "dtype": dtype, "shape": shape, "data": data}


# Hypothesis shrinks the graph; the values of its variables are one number each.
VARIABLES = SEEDS.map(random_variable)


@st.composite
def object_graphs(
    draw: st.DrawFn, *, back_to: Sequence[str] = CONTAINERS, roots: bool = True
) -> dict[str, Any]:
    """A job for support/graphs.py: nodes that refer to each other by number, the names of some of
    them, and perhaps a root. Only nodes that are reached are in it.

    Args:
        back_to: the kinds of objects that later ones may refer to, which makes cycles. Tuples
            cannot: they are complete when they are made.
        roots: whether a Checkpoint may have a root.
    """
    count = draw(st.integers(1, 12))
    kinds = [draw(KINDS) for _ in range(count)]
    nodes = [draw(_node(row, kinds, back_to)) for row in range(count)]
    numbers = st.integers(0, count - 1)
    names = draw(
        st.lists(st.sampled_from(["model", "opt", "a", "step", "zz"]), min_size=1, unique=True)
    )
    job: dict[str, Any] = {"objects": {name: {"is": draw(numbers)} for name in names}}
    modules = [row for row, kind in enumerate(kinds) if kind == "module"]
    if roots and modules and draw(st.integers(0, 2)) == 0:
        job["root"] = {"is": draw(st.sampled_from(modules))}
    reached = _reached([*job["objects"].values(), *([job["root"]] if "root" in job else [])], nodes)
    owners = [row for row in sorted(reached) if kinds[row] == "variable"]
    for row in sorted(reached):
        if kinds[row] == "optimizer" and owners:
            pairs = st.tuples(st.sampled_from(owners), st.sampled_from(SLOTS))
            nodes[row]["slots"] = []
            for owner, name in draw(st.lists(pairs, max_size=3, unique=True)):
                slot = {"is": len(nodes)}
                nodes.append({**draw(VARIABLES), **slot})
                reached.add(slot["is"])
                nodes[row]["slots"].append([{"is": owner}, name, slot])
    job["nodes"] = [nodes[row] for row in sorted(reached)]
    return job


@st.composite
def _node(draw: st.DrawFn, row: int, kinds: list[str], back_to: Sequence[str]) -> Tree:
    kind = kinds[row]
    if kind == "variable":
        return {**draw(VARIABLES), "is": row}
    if kind == "state":
        return {"kind": kind, "text": f"state {row}", "is": row}
    leaves = ("variable", "state")
    allowed = [
        other
        for other, its in enumerate(kinds)
        if other > row or its in leaves or (its in back_to and its != "tuple")
    ]
    edges = st.sampled_from(allowed or [row]).map(lambda other: {"is": other})
    most = 3 if allowed else 0
    if kind in ("list", "tuple"):
        # TensorFlow tracks a tuple only if it contains an object to track.
        least = int(kind == "tuple" and bool(allowed))
        kind = kind if least else "list"
        return {
            "kind": kind,
            "items": draw(st.lists(edges, min_size=least, max_size=most)),
            "is": row,
        }
    names = st.sampled_from(KEYS if kind == "dict" else ATTRIBUTES)
    items = draw(st.dictionaries(names, edges, max_size=most))
    return {"kind": kind, "items": items, "is": row}


def _below(node: Tree) -> list[int]:
    items = node.get("items", [])
    found = items.values() if isinstance(items, dict) else items
    return [one["is"] for one in found]


def _reached(start: list[Tree], nodes: list[Tree]) -> set[int]:
    waiting, found = [one["is"] for one in start], set()
    while waiting:
        row = waiting.pop()
        if row not in found:
            found.add(row)
            waiting += _below(nodes[row])
    return found


def count_graph(job: dict[str, Any]) -> None:
    """Count the shapes in an object graph."""
    nodes = {node["is"]: node for node in job["nodes"]}
    kinds = Counter(node["kind"] for node in nodes.values())
    references = Counter(row for node in nodes.values() for row in _below(node))
    references.update(one["is"] for one in job["objects"].values())
    cyclic = sum(
        row in _reached([{"is": below} for below in _below(node)], nodes)  # type: ignore[arg-type]
        for row, node in nodes.items()
    )
    counted(
        "object graphs",
        graphs=1,
        with_cycles=bool(cyclic),
        nodes=len(nodes),
        shared=sum(times > 1 for times in references.values()),
        on_cycles=cyclic,
        slots=sum(len(node.get("slots", ())) for node in nodes.values()),
        **{f"{kind}s" if kind[-1] != "y" else kind: n for kind, n in kinds.items()},
    )
