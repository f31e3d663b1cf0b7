# SPDX-License-Identifier: Apache-2.0
"""What the tests of Saver share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ckptfmt._base.slices import SliceSpec
from ckptfmt.saving.mesh import Layout
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.saver import Saver
from ckptfmt.saving.sharding import Shard, ShardableTensor, ShardingCallback
from ckptfmt.saving.specs import SaveSpec

TASK = "/job:worker/replica:0/task:{}/device:{}"
QUICK = CheckpointOptions(durability="rename")


class Thing:
    """An object that notes what it is restored from."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.restored: list[dict[str, Any]] = []

    def restore(self, restored: dict[str, Any]) -> Any:
        self.restored.append(restored)
        return self.answer


class Given(ShardingCallback):
    """A policy that calls a function, and notes what it was called with."""

    def __init__(self, function: Callable[[Sequence[ShardableTensor]], Any]) -> None:
        self.function = function
        self.calls: list[list[ShardableTensor]] = []

    @property
    def description(self) -> str:
        return "as given"

    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> Sequence[Shard]:
        self.calls.append(list(shardable_tensors))
        result: Sequence[Shard] = self.function(shardable_tensors)
        return result


def one_each(tensors: Sequence[ShardableTensor]) -> list[Shard]:
    return [{tensor.checkpoint_key: {tensor.slice_spec: tensor.tensor}} for tensor in tensors]


def on(task: int, value: Any, key: str, kind: str = "GPU:0", slice_spec: str = "") -> SaveSpec:
    return SaveSpec(value, slice_spec, key, device=TASK.format(task, kind))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def with_policy(policy: ShardingCallback, **more: Any) -> CheckpointOptions:
    return CheckpointOptions(experimental_sharding_callback=policy, durability="rename", **more)


def previous(tmp_path: Path) -> list[str]:
    """Saves a checkpoint that failures must leave, and names its files."""
    Saver({"all": {"old": [1.0] * 3}}).save(tmp_path / "ckpt", QUICK)
    return files(tmp_path)


def shardable(
    key: str, array: Any, spec: str = "", device: str = "", dtype: Any = None
) -> ShardableTensor:
    found = ShardableTensor.from_spec(SaveSpec(array, spec, key, dtype, device))
    assert found is not None
    return found


def distinct_boxes(layout: Layout, shape: Sequence[int]) -> dict[SliceSpec, list[str]]:
    """Each box of a tensor of this shape, with its devices."""
    found: dict[SliceSpec, list[str]] = {}
    for device in layout.mesh.devices:
        found.setdefault(layout.slice_of(shape, device), []).append(device)
    return found
