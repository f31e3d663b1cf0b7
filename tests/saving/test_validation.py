# SPDX-License-Identifier: Apache-2.0
"""validate_shards accepts what a policy gives and refuses every change of it, and a save refuses
callbacks that write into memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from support.arrays import bits
from support.saving import one_each, shardable
from support.strategies import (
    boxes,
    counted,
    key_of,
    property_test,
    shapes,
    shardable_tensors,
    text_of,
    tilings,
)

import ckptfmt
from ckptfmt import Saver
from ckptfmt.errors import InvalidError
from ckptfmt.saving import sharding
from ckptfmt.saving.policies import MaxShardSizePolicy
from ckptfmt.saving.sharding import Shard, ShardableTensor, validate_shards
from ckptfmt.tf import CheckpointOptions, ShardingCallback


def accepted(tensors: Sequence[ShardableTensor], shards: Any) -> None:
    validate_shards(shards, tensors, "as given")


@property_test(80, 5000, st.data(), shapes(6, 5, 1).filter(len))
def test_tilings(data: st.DataObject, shape: tuple[int, ...]) -> None:
    """Against a count of every element: pieces that tile are right, and one change is not."""
    array = np.zeros(shape, np.int8)
    found = data.draw(tilings(array.shape))
    change = data.draw(st.sampled_from(["none", "drop", "replace", "add"]))
    if change in ("drop", "replace"):
        del found[data.draw(st.integers(0, len(found) - 1))]
    if change in ("replace", "add"):
        found.append(data.draw(boxes(array.shape)))
    counts = np.zeros(array.shape, int)
    parts = {}
    for box in found:
        counts[key_of(box)] += 1
        parts[text_of(array.shape, box)] = array[key_of(box)]
    assume(len(parts) == len(found))
    right = bool((counts == 1).all())
    counted("tilings", pieces=len(found), **{"right" if right else "wrong": 1})
    if right:
        accepted([shardable("w", array)], [{"w": parts}])
        return
    with pytest.raises(InvalidError) as caught:
        accepted([shardable("w", array)], [{"w": parts}])
    assert caught.value.tensor == "w"


def changed(data: st.DataObject, shards: list[dict[str, dict[str, Any]]]) -> None:
    """Change one piece, or exchange two, as a faulty callback would."""
    pieces = [(shard, key, spec) for shard in shards for key in shard for spec in shard[key]]
    assume(pieces)
    shard, key, spec = data.draw(st.sampled_from(pieces))
    other, other_key, other_spec = data.draw(st.sampled_from(pieces))
    array = shard[key][spec]
    change = data.draw(st.sampled_from(["none", "lose", "exchange", "rename", "fill", "dtype"]))
    if change == "lose":
        del shard[key][spec]
    elif change == "exchange":
        shard[key][spec], other[other_key][other_spec] = other[other_key][other_spec], array
    elif change == "rename":
        del shard[key][spec]
        shard[key][other_spec] = array
    elif change == "fill":
        shard[key][spec] = np.full_like(array, array.flat[0] if array.size else 0)
    elif change == "dtype":
        shard[key][spec] = np.zeros(array.shape, data.draw(st.sampled_from(["i1", "f4"])))


def joined(tensors: Sequence[ShardableTensor], shards: Any) -> bool:
    """Whether each element of each tensor is in exactly one piece, by its box."""
    found = {tensor.checkpoint_key: np.zeros(tensor.shape, int) for tensor in tensors}
    given = {tensor.checkpoint_key: tensor for tensor in tensors}
    seen = set()
    for shard in shards:
        for key, parts in shard.items():
            for spec, piece in parts.items():
                tensor = given[key]
                try:
                    box = shardable("piece", piece, spec).box
                except InvalidError:
                    return False
                if box.full_shape != tensor.box.full_shape:
                    return False
                starts = [a - b for a, b in zip(box.start, tensor.box.start, strict=True)]
                ends = [at + size for at, size in zip(starts, box.shape, strict=True)]
                whole = tensor.tensor
                if min(starts, default=0) < 0 or any(map(int.__gt__, ends, whole.shape)):
                    return False
                where = (*map(slice, starts, ends), ...)
                if bits(piece) != bits(whole[where]) or (key, box[:3]) in seen:
                    return False
                seen.add((key, box[:3]))
                found[key][where] += 1
    kept = {key for key, _ in seen}
    return all(key in kept and (count == 1).all() for key, count in found.items())


@property_test(80, 5000, st.data(), shardable_tensors(4), st.sampled_from([0, 8, 40, 1000]))
def test_every_change_is_found(
    data: st.DataObject, tensors: list[ShardableTensor], size: int
) -> None:
    shards: Any = [
        {key: dict(parts) for key, parts in shard.items()}
        for shard in MaxShardSizePolicy(size)(tensors)
    ]
    changed(data, shards)
    if joined(tensors, shards):
        counted("validation", accepted=1)
        accepted(tensors, shards)
        return
    counted("validation", refused=1)
    with pytest.raises(InvalidError):
        accepted(tensors, shards)


# ---- callbacks that write into memory ------------------------------------------------------------


class Attack(ShardingCallback):
    """Changes the first tensor, and returns all of them."""

    description = "of the test"

    def __init__(self, attack: Callable[[ShardableTensor], object]) -> None:
        self.attack = attack

    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> list[Shard]:
        self.attack(shardable_tensors[0])
        return one_each(shardable_tensors)


def _by_flag(tensor: ShardableTensor) -> None:
    tensor.tensor.flags.writeable = True
    tensor.tensor[...] = tensor.tensor[::-1].copy()


def _by_address(tensor: ShardableTensor) -> None:
    ctypes.memset(tensor.tensor.ctypes.data, 7, tensor.tensor.nbytes)


def _by_base(tensor: ShardableTensor) -> None:
    tensor.tensor.base[:] = tensor.tensor.base[::-1].copy()


def _by_spec(tensor: ShardableTensor) -> None:
    assert tensor.tensor_save_spec is not None
    tensor.tensor_save_spec.fresh().tensor.base[:1] = tensor.tensor[1]


def _by_owner(tensor: ShardableTensor) -> None:
    tensor.trackable.array[:] = tensor.tensor[::-1].copy()


class Owner:
    """What a Saver restores into, with its array."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def restore(self, restored: dict[str, Any]) -> None:
        """Do nothing."""


ATTACKS = [_by_flag, _by_base, _by_spec, _by_owner]
NUMBERS = np.arange(6, dtype=np.float32)


@pytest.mark.parametrize(
    ("attack", "array"),
    [
        *((attack, array) for attack in ATTACKS for array in (NUMBERS, NUMBERS.astype(">i2"))),
        *((attack, NUMBERS.astype(ml_dtypes.bfloat16)) for attack in ATTACKS),
        *((attack, np.array([b"a", b"b"], object)) for attack in ATTACKS),
        (_by_address, NUMBERS),
        (_by_address, NUMBERS.reshape(2, 3).T),
    ],
)
def test_a_callback_that_writes_into_a_tensor(
    attack: Callable[[ShardableTensor], object], array: Any, tmp_path: Path
) -> None:
    array = array.copy(order="K")
    saver = Saver({Owner(array): {"w": array}, None: {"x": NUMBERS}})
    options = CheckpointOptions(experimental_sharding_callback=Attack(attack), durability="none")
    message = r"^tensor 'w': sharding callback 'of the test' wrote into the memory of a tensor: "
    with pytest.raises(ckptfmt.errors.ShardingError, match=message):
        saver.save(tmp_path / "ck", options)
    assert list(tmp_path.iterdir()) == []


def test_a_key_function_that_writes_into_a_tensor(tmp_path: Path) -> None:
    policy = ckptfmt.tf.ShardByDevicePolicy(key_fn=lambda tensor: tensor.tensor.base.fill(9) or 0)
    with pytest.raises(ckptfmt.errors.ShardingError, match="wrote into the memory"):
        Saver({None: {"w": NUMBERS.copy()}}).save(
            tmp_path / "ck", CheckpointOptions(experimental_sharding_callback=policy)
        )


def test_only_callbacks_of_others_cost_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "_content", lambda _: 1 / 0)
    tensors = [shardable("w", NUMBERS)]
    for ours in (
        ckptfmt.tf.ShardByTaskPolicy(),
        ckptfmt.tf.ShardByDevicePolicy(),
        ckptfmt.tf.MaxShardSizePolicy(8),
        ckptfmt.tf.BalancedPolicy(2),
    ):
        sharding.checked_shards(ours, tensors, None)
    with pytest.raises(ZeroDivisionError):
        sharding.checked_shards(Attack(_by_flag), tensors, None)
