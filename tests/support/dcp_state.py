# SPDX-License-Identifier: Apache-2.0
"""A state dict for torch.distributed.checkpoint: every kind of shard, with known values."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

# Name, shape, dtype. Of four ranks some have no rows of those with 3 and 5.
TENSORS: list[tuple[str, tuple[int, ...], torch.dtype]] = [
    ("even", (8, 6), torch.float32),
    ("uneven", (7, 5), torch.float64),
    ("few", (3, 4), torch.int64),
    ("five", (5,), torch.bfloat16),
    ("narrow", (6, 4), torch.float8_e4m3fn),
    ("cube", (4, 6, 8), torch.float16),
    ("flags", (9,), torch.bool),
    ("waves", (4, 3), torch.complex64),
    ("empty", (0, 4), torch.float32),
    ("hollow", (4, 0), torch.float32),
    ("unsigned", (5, 5), torch.uint16),
]
VALUES = {
    "step": 7,
    "name": "run \u2713",
    "betas": (0.9, 0.999),
    "list": [1, None, [2.5, float("inf")]],
    "nothing": None,
    "blob": b"\0\xff",
}


def full(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + seed) % 13).reshape(shape).to(torch.float32).to(dtype)


def placements(number: int, mesh: DeviceMesh, shape: tuple[int, ...]) -> list[Any]:
    """Different for each tensor and each mesh."""
    rank = len(shape)
    found: list[Any] = []
    for axis in range(mesh.ndim):
        choice = (number + axis + mesh.size()) % (rank + 1)
        found.append(Replicate() if choice == rank else Shard(choice))
    if mesh.ndim == 1 and isinstance(found[0], Replicate) and number % 2:
        return [Shard(0)]
    return found


def meshes() -> list[DeviceMesh]:
    size = dist.get_world_size()
    found = [init_device_mesh("cpu", (size,))]
    if size % 2 == 0:
        found.append(init_device_mesh("cpu", (2, size // 2)))
    return found


def state(zeroed: bool, flip: int = 0) -> dict[str, Any]:
    """Of this rank: DTensors on each mesh, plain tensors, values. `flip` changes the placements."""
    found: dict[str, Any] = {"plain": {}, "values": {}}
    for number, (name, shape, dtype) in enumerate(TENSORS):
        tensor = full(shape, dtype, number)
        found["plain"][name] = torch.zeros_like(tensor) if zeroed else tensor
    found["plain"]["scalar"] = torch.tensor(0.0 if zeroed else 2.5)
    found["plain"]["transposed"] = full((4, 6), torch.float32).t() * (not zeroed)
    # The meshes of other world sizes have the same names.
    for axis, mesh in enumerate(meshes()):
        group = found.setdefault(f"mesh{axis}", {})
        for number, (name, shape, dtype) in enumerate(TENSORS):
            placed = placements(number + flip, mesh, shape)
            whole = full(shape, dtype, number + axis).view(
                torch.uint8 if dtype.itemsize == 1 else dtype
            )
            tensor = distribute_tensor(whole, mesh, placed, src_data_rank=None)
            local = tensor.to_local().view(dtype)
            group[name] = DTensor.from_local(
                torch.zeros_like(local) if zeroed else local,
                mesh,
                placed,
                shape=torch.Size(shape),
                stride=torch.empty(shape).stride(),
            )
    found["values"] = dict.fromkeys(VALUES) if zeroed else dict(VALUES)
    return found


def check(found: dict[str, Any], flip: int = 0) -> None:
    """Compare what this rank has with what it must have."""
    wanted = state(False, flip)
    assert found["values"] == wanted["values"]
    for group in wanted:
        for name, tensor in wanted[group].items() if group != "values" else ():
            mine, theirs = found[group][name], tensor
            if isinstance(tensor, DTensor):
                mine, theirs = mine.to_local(), tensor.to_local()
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, (group, name)
            same = mine.contiguous().view(-1).view(torch.uint8) if mine.numel() else mine
            other = theirs.contiguous().view(-1).view(torch.uint8) if mine.numel() else theirs
            assert torch.equal(same, other), (group, name)
