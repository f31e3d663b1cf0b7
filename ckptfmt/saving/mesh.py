# SPDX-License-Identifier: Apache-2.0
"""Meshes of devices and layouts of tensors on them: DTensor's model, without a framework.

A mesh is a grid of devices with named dimensions. A layout maps each dimension of a tensor to the
mesh dimension over which it is cut, or to none. With the tensor's global shape this determines the
box of each device.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from ckptfmt import _core
from ckptfmt._base.arguments import check_sized, invalid, listed, wrong
from ckptfmt._base.slices import SliceSpec
from ckptfmt.errors import InvalidError

# DTensor's name for a dimension that is not cut; None means the same.
UNSHARDED = "unsharded"
# The beginnings of the two parts of the text of a layout.
SPECS, MESH = "sharding_specs:", " mesh:"


class Mesh:
    """A grid of devices with named dimensions, as `tf.experimental.dtensor.Mesh`. Immutable.

    The devices are in row-major order of their coordinates: the last dimension varies fastest.

    >>> mesh = ckptfmt.sharded.Mesh({"x": 2, "y": 2}, ["a", "b", "c", "d"])
    >>> mesh.coordinates("c"), mesh.local_devices(rank=1, world_size=2)
    ((1, 0), ('c', 'd'))

    Args:
        dims: (name, size) of each dimension, or a mapping from names to sizes, in order.
        devices: a distinct name for each device. Default "/job:mesh/task:<i>/device:CPU:0", where i
            counts the devices.

    Attributes:
        dim_names: names of the dimensions.
        shape: sizes of the dimensions.
        size: number of devices.
        devices: names of the devices.

    Raises:
        InvalidError: a name that is empty, repeated or "unsharded", a size below 1, a wrong number
            of devices, or a repeated device.
    """

    __slots__ = ("_hash", "_index", "_strides", "devices", "dim_names", "shape", "size")

    dim_names: tuple[str, ...]
    shape: tuple[int, ...]
    size: int
    devices: tuple[str, ...]

    def __init__(
        self,
        dims: Sequence[tuple[str, int]] | Mapping[str, int],
        devices: Sequence[str] | None = None,
    ) -> None:
        pairs = [_dim(pair) for pair in _dim_pairs(dims)]
        self.dim_names = tuple(name for name, _ in pairs)
        self.shape = tuple(size for _, size in pairs)
        self.size = math.prod(self.shape)
        for position, name in enumerate(self.dim_names):
            if name in self.dim_names[:position]:
                raise invalid("dims", f"two dimensions of the mesh have the name {name!r}")
        if devices is None:
            self.devices = tuple(f"/job:mesh/task:{i}/device:CPU:0" for i in range(self.size))
        else:
            self.devices = tuple(listed("devices", devices, "names of devices"))
        for device in self.devices:
            if not isinstance(device, str):
                raise wrong("the name of a device", "a str", device, "devices")
        if len(self.devices) != self.size:
            raise invalid(
                "devices",
                f"a mesh of shape {self.shape} has {self.size} devices, not {len(self.devices)}",
            )
        self._index = {device: position for position, device in enumerate(self.devices)}
        if len(self._index) != self.size:
            twice = next(d for i, d in enumerate(self.devices) if self._index[d] != i)
            raise invalid("devices", f"the device {twice!r} is in the mesh twice")
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        self._strides = tuple(strides)
        self._hash = hash((self.dim_names, self.shape, self.devices))

    @classmethod
    def of(cls, mesh: Any) -> Mesh:
        """Return a mesh: a Mesh, the text of one, or an object whose `to_string` returns that, as
        `tf.experimental.dtensor.Mesh`.

        Raises:
            InvalidError: anything else, or as `from_string`.
        """
        if isinstance(mesh, Mesh):
            return mesh
        text = mesh if isinstance(mesh, str) else getattr(mesh, "to_string", lambda: None)()
        if not isinstance(text, str):
            raise wrong("mesh", "a Mesh, or TensorFlow's, or its text", mesh)
        return cls.from_string(text)

    @classmethod
    def from_string(cls, mesh_str: str) -> Mesh:
        """Return the mesh of the text that `tf.experimental.dtensor.Mesh.to_string` returns:
        "name|x=2,y=1|0,1|0|<local devices>|<all devices>". The name is ignored; the last part may
        be missing if all devices are local.

        Raises:
            InvalidError: the text is malformed, or does not name all devices.
        """
        return _mesh_of(mesh_str)

    def to_string(self) -> str:
        """Return the text that `from_string` takes, as TensorFlow's if all devices are local.

        Raises:
            InvalidError: a name contains one of the separators.
        """
        dims = [
            f"{_plain(name, '|,=')}={size}"
            for name, size in zip(self.dim_names, self.shape, strict=True)
        ]
        numbers = [str(number) for number in range(self.size)]
        devices = [_plain(device, "|,") for device in self.devices]
        return "|".join(["", *map(",".join, (dims, numbers, numbers, devices))])

    def index_of(self, device: str) -> int:
        """Return the index of a device in `devices`.

        Args:
            device: the name of a device.

        Raises:
            InvalidError: the mesh has no such device.
        """
        position = self._index.get(device) if isinstance(device, str) else None
        if position is None:
            raise invalid("device", f"device {device!r} is not in the mesh {self.text}")
        return position

    def coordinates(self, device: str) -> tuple[int, ...]:
        """Return a device's index in each mesh dimension.

        Args:
            device: the name of a device.

        Raises:
            InvalidError: the mesh has no such device.
        """
        return self._coordinates_at(self.index_of(device))

    def _coordinates_at(self, position: int) -> tuple[int, ...]:
        """Return the coordinates of the device at this index of `devices`."""
        return tuple(
            position // stride % size
            for stride, size in zip(self._strides, self.shape, strict=True)
        )

    def local_devices(self, rank: int, world_size: int) -> tuple[str, ...]:
        """Return the devices of process `rank` if each of `world_size` processes has a contiguous
        block of them.

        Block sizes differ by at most one; larger blocks come first, empty ones last.

        Args:
            rank: the number of the process, from 0.
            world_size: how many processes there are.

        Raises:
            InvalidError: rank is not in [0, world_size).
        """
        if not 0 <= rank < world_size:
            raise invalid("rank", f"rank {rank} is not in [0, {world_size})")
        share, more = divmod(self.size, world_size)
        first = rank * share + min(rank, more)
        return self.devices[first : first + share + (rank < more)]

    @property
    def text(self) -> str:
        """Dimensions for messages: "[x=2, y=3]"."""
        pairs = zip(self.dim_names, self.shape, strict=True)
        return f"[{', '.join(f'{name}={size}' for name, size in pairs)}]"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        return self is other or (
            self._hash == other._hash
            and self.dim_names == other.dim_names
            and self.shape == other.shape
            and self.devices == other.devices
        )

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Mesh, (list(zip(self.dim_names, self.shape, strict=True)), self.devices)

    def __repr__(self) -> str:
        return f"<Mesh {self.text} of {self.size} devices>"


Mesh.__module__ = "ckptfmt.sharded"


class Layout:
    """How a tensor is distributed over a mesh, as `tf.experimental.dtensor.Layout`. Immutable.

    A dimension of n elements over a mesh dimension of k devices is cut into blocks of ceil(n/k)
    elements; the last ones may be shorter or empty (as in torch.chunk and torch's DTensor;
    TensorFlow's DTensor only cuts evenly). Devices that differ only in unused mesh dimensions are
    replicas.

    >>> mesh = ckptfmt.sharded.Mesh({"x": 2}, ["a", "b"])
    >>> layout = ckptfmt.sharded.Layout(["x", None], mesh)  # rows cut in two
    >>> layout.slice_of((3, 4), "b").start, layout.slice_of((3, 4), "b").shape
    ((2, 0), (1, 4))

    Args:
        sharding_specs: for each dimension of the tensor the name of a mesh dimension, or None (or
            "unsharded").
        mesh: the `Mesh`.

    Attributes:
        sharding_specs: as given, with None for "unsharded".
        mesh: the mesh.
        rank: number of dimensions of the tensor.
        num_shards: number of blocks in each dimension; 1 for a dimension that is not cut.
        is_replicated: True if every device has the whole tensor.

    Raises:
        InvalidError: a name that is not a dimension of the mesh, or is used twice.
    """

    __slots__ = (
        "_axes",
        "_blocks",
        "_groups",
        "is_replicated",
        "mesh",
        "num_shards",
        "rank",
        "sharding_specs",
    )

    sharding_specs: tuple[str | None, ...]
    mesh: Mesh
    rank: int
    num_shards: tuple[int, ...]
    is_replicated: bool

    def __init__(self, sharding_specs: Sequence[str | None], mesh: Mesh) -> None:
        if not isinstance(mesh, Mesh):
            raise wrong("mesh", "a Mesh", mesh)
        given = listed("sharding_specs", sharding_specs, "names of mesh dimensions or None")
        found: list[str | None] = []
        for spec in given:
            if spec is not None and not isinstance(spec, str):
                raise wrong(
                    "a sharding spec",
                    "the name of a mesh dimension or None",
                    spec,
                    "sharding_specs",
                )
            name = None if spec == UNSHARDED else spec
            if name is not None and name not in mesh.dim_names:
                raise invalid(
                    "sharding_specs", f"dimension {name!r} is not in the mesh {mesh.text}"
                )
            if name is not None and name in found:
                raise invalid(
                    "sharding_specs", f"the mesh dimension {name!r} is used twice in one layout"
                )
            found.append(name)
        if len(found) > _core.RANK_MAX:
            raise invalid("sharding_specs", f"a tensor has at most {_core.RANK_MAX} dimensions")
        self.mesh = mesh
        self.sharding_specs = tuple(found)
        self.rank = len(found)
        # For each dimension of the tensor the position of its mesh dimension.
        self._axes = tuple(None if n is None else mesh.dim_names.index(n) for n in found)
        self.num_shards = tuple(1 if a is None else mesh.shape[a] for a in self._axes)
        self.is_replicated = all(parts == 1 for parts in self.num_shards)
        # Filled when first needed.
        self._blocks: tuple[tuple[int, ...], ...] | None = None
        self._groups: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def replicated(cls, mesh: Mesh, rank: int) -> Layout:
        """Return the layout of a tensor of `rank` dimensions that is not cut, as
        `tf.experimental.dtensor.Layout.replicated`."""
        try:
            count = operator.index(rank)
        except TypeError:
            raise wrong("rank", "an int", rank) from None
        if count < 0:
            raise invalid("rank", f"rank {rank} is negative")
        return cls([None] * count, mesh)

    @classmethod
    def of(cls, layout: Any) -> Layout:
        """Return a layout: a Layout, the text of one, or an object with `sharding_specs` and
        `mesh`, as `tf.experimental.dtensor.Layout`.

        Raises:
            InvalidError: anything else, or as `from_string`.
        """
        if isinstance(layout, Layout):
            return layout
        if is_foreign_layout(layout) and not hasattr(layout, "to_string"):
            return cls(layout.sharding_specs, Mesh.of(layout.mesh))
        text = layout.to_string() if is_foreign_layout(layout) else layout
        if not isinstance(text, str):
            raise wrong("layout", "a Layout, or TensorFlow's, or its text", layout)
        return cls.from_string(text)

    @classmethod
    def from_string(cls, layout_str: str) -> Layout:
        """Return the layout of the text that `tf.experimental.dtensor.Layout.to_string` returns:
        "sharding_specs:x,unsharded, mesh:<text of the mesh>".

        Raises:
            InvalidError: the text is malformed, or as `Mesh.from_string`.
        """
        if not isinstance(layout_str, str):
            raise wrong("layout_str", "a str", layout_str)
        specs, found, mesh = layout_str.partition(MESH)
        if not found or not specs.startswith(SPECS):
            raise invalid(
                "layout_str",
                f"the text of a layout must be '{SPECS}<names>,{MESH}<mesh>', got {layout_str!r}",
            )
        names = specs.removeprefix(SPECS).split(",")
        return cls([name.strip() for name in names if name.strip()], Mesh.from_string(mesh))

    def to_string(self) -> str:
        """Return the text that `from_string` takes, as TensorFlow's.

        Raises:
            InvalidError: a name contains one of the separators.
        """
        names = "".join(f"{spec or UNSHARDED}," for spec in self.sharding_specs)
        return f"{SPECS}{names}{MESH}{self.mesh.to_string()}"

    def _block_of(self, position: int) -> tuple[int, ...]:
        """Return the block index in each tensor dimension of the device at this index of
        `mesh.devices`."""
        return self._all_blocks()[position]

    def _all_blocks(self) -> tuple[tuple[int, ...], ...]:
        if self._blocks is None:
            every = map(self.mesh._coordinates_at, range(self.mesh.size))
            self._blocks = tuple(
                tuple(0 if axis is None else where[axis] for axis in self._axes) for where in every
            )
        return self._blocks

    @property
    def _replica_groups(self) -> tuple[tuple[int, ...], ...]:
        """Indices in `mesh.devices` of the devices with the same block, ascending; groups in the
        order of their first devices."""
        if self._groups is None:
            groups: dict[tuple[int, ...], list[int]] = {}
            for position, block in enumerate(self._all_blocks()):
                groups.setdefault(block, []).append(position)
            self._groups = tuple(map(tuple, groups.values()))
        return self._groups

    def slice_of(self, global_shape: Sequence[int], device: str) -> SliceSpec:
        """Return the box of a tensor of this global shape on a device.

        `lengths` is `shape` with -1 for whole dimensions, as DTensor writes slices. The box may be
        empty.

        Args:
            global_shape: the shape of the whole tensor, ints.
            device: the name of a device of the mesh.

        Raises:
            InvalidError: a shape of another rank, or a device outside the mesh.
        """
        return self._slice_at(self._checked(global_shape), self.mesh.index_of(device))

    def _slice_at(self, global_shape: tuple[int, ...], position: int) -> SliceSpec:
        """As `slice_of`, for the device at this index of `mesh.devices` and a checked shape."""
        start, shape, lengths = [], [], []
        for size, parts, row in zip(
            global_shape, self.num_shards, self._block_of(position), strict=True
        ):
            block = -(-size // parts)
            first = min(row * block, size)
            length = min(block, size - first)
            start.append(first)
            shape.append(length)
            lengths.append(-1 if length == size else length)
        return SliceSpec(global_shape, tuple(start), tuple(shape), tuple(lengths))

    def _checked(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        check_sized("global_shape", global_shape, "sizes")
        try:
            shape = tuple(map(operator.index, global_shape))
        except TypeError:
            raise invalid(
                "global_shape", f"global_shape must be a sequence of integers, got {global_shape!r}"
            ) from None
        if any(not 0 <= size < 2**63 for size in shape):
            raise invalid("global_shape", f"global_shape {shape} is not in range")
        if len(shape) != self.rank:
            raise invalid(
                "global_shape", f"a layout of rank {self.rank} does not fit the shape {shape}"
            )
        return shape

    @property
    def text(self) -> str:
        """Text for messages: "(x, unsharded) on [x=2, y=3]"."""
        specs = ", ".join(spec or UNSHARDED for spec in self.sharding_specs)
        return f"({specs}) on {self.mesh.text}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self.sharding_specs == other.sharding_specs and self.mesh == other.mesh

    def __hash__(self) -> int:
        return hash((self.sharding_specs, self.mesh))

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout, (self.sharding_specs, self.mesh)

    def __repr__(self) -> str:
        return f"<Layout {self.text}>"


Layout.__module__ = "ckptfmt.sharded"


def is_foreign_layout(layout: object) -> bool:
    """Return whether an object of another library is a layout, such as TensorFlow's."""
    return hasattr(layout, "sharding_specs") and hasattr(layout, "mesh")


@functools.lru_cache(maxsize=64)
def _mesh_of(text: str) -> Mesh:
    """Return the mesh of a text; see `Mesh.from_string`."""
    parts = [part.split(",") if part else [] for part in text.split("|")]
    if len(parts) > 1 and parts[-1] == ["use_xla_spmd"]:
        del parts[-1]
    if len(parts) not in (5, 6):
        raise invalid(
            "mesh",
            "the text of a mesh must be 'name|x=2|0,1|0,1|<devices>' or end with '|<all devices>', "
            f"got {text!r}",
        )
    _, dims, numbers, local, devices, *every = parts
    try:
        sizes = [(name, int(size)) for name, _, size in (dim.rpartition("=") for dim in dims)]
        order = [int(number) - int(numbers[0]) for number in local]
    except ValueError as error:
        raise invalid("mesh", f"the text of a mesh {text!r} is malformed: {error}") from None
    if every:
        return Mesh(sizes, every[0])
    if sorted(order) != list(range(len(numbers))) or len(devices) != len(order):
        raise invalid(
            "mesh",
            f"the text of a mesh {text!r} names {len(devices)} of {len(numbers)} devices: create "
            "the mesh with its global devices, or pass a ckptfmt.sharded.Mesh of all devices",
        )
    return Mesh(sizes, [device for _, device in sorted(zip(order, devices, strict=True))])


def _plain(name: str, separators: str) -> str:
    if any(separator in name for separator in separators):
        raise InvalidError(
            f"a mesh with the name {name!r} has no text: the characters '{separators}' separate "
            "its parts"
        )
    return name


def blocks(size: int, parts: int) -> list[int]:
    """Return the block lengths of a dimension of `size` elements cut into `parts`."""
    block = -(-size // parts)
    return [min(block, max(size - row * block, 0)) for row in range(parts)]


def _dim_pairs(dims: Any) -> list[Any]:
    if isinstance(dims, Mapping):
        return list(dims.items())
    return listed("dims", dims, "pairs of a name and a size")


def _dim(pair: Any) -> tuple[str, int]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise wrong("a mesh dimension", "a pair of a name and a size", pair, "dims")
    name, size = pair
    if not isinstance(name, str):
        raise wrong("the name of a mesh dimension", "a str", name, "dims")
    if not name or name == UNSHARDED:
        raise invalid("dims", f"{name!r} cannot be the name of a mesh dimension")
    try:
        count = operator.index(size)
    except TypeError:
        raise wrong(f"the size of mesh dimension {name!r}", "an int", size, "dims") from None
    if count < 1:
        raise invalid("dims", f"mesh dimension {name!r} has size {count}, which is below 1")
    return name, count
