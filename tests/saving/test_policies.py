# SPDX-License-Identifier: Apache-2.0
"""Which tensors, and which pieces of them, the policies put into which shard.

That MaxShardSizePolicy cuts as TensorFlow's does is shown by tests/interop/test_policies.py.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support.saving import shardable, with_policy
from support.strategies import SEEDS, counted, property_test, shardable_tensors

import ckptfmt
from ckptfmt.errors import InvalidError
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.policies import (
    BalancedPolicy,
    MaxShardSizePolicy,
    ShardByDevicePolicy,
    ShardByTaskPolicy,
)
from ckptfmt.saving.saver import Saver
from ckptfmt.saving.sharding import Shard, ShardableTensor, ShardingCallback, validate_shards

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def floats(key: str, *shape: int, spec: str = "") -> ShardableTensor:
    size = math.prod(shape)
    return shardable(key, np.arange(size, dtype=np.float32).reshape(shape), spec)


def texts(shards: Sequence[Shard]) -> list[dict[str, list[str]]]:
    return [{key: list(parts) for key, parts in shard.items()} for shard in shards]


def bytes_of(shard: Shard) -> int:
    return sum(array.nbytes for parts in shard.values() for array in parts.values())


def checked(
    policy: ShardingCallback, tensors: Sequence[ShardableTensor]
) -> list[dict[str, list[str]]]:
    shards = policy(tensors)
    validate_shards(shards, tensors, policy.description)
    assert all(shards)
    return texts(shards)


# ---- by task, by device --------------------------------------------------------------------------


def placed() -> list[ShardableTensor]:
    devices = {
        "a": "/job:w/task:1/device:GPU:0",
        "b": "/job:w/task:0/gpu:1",
        "c": "/job:w/task:1/device:GPU:1",
        "d": "/job:w/task:0/device:GPU:1",
        "e": "",
    }
    return [shardable(key, 1.0, device=device) for key, device in devices.items()]


def whole(*groups: Sequence[str]) -> list[dict[str, list[str]]]:
    return [{key: [""] for key in group} for group in groups]


def test_by_task() -> None:
    assert checked(ShardByTaskPolicy(), placed()) == whole("ac", "bd", "e")
    assert checked(ShardByTaskPolicy(), [floats("w", 2, 3), floats("v", 1)]) == whole("wv")
    assert checked(ShardByTaskPolicy(), []) == []


def test_by_task_keeps_slices() -> None:
    tensors = [floats("w", 1, 2, spec="4 2 3,1:0,2"), floats("w", 1, 2, spec="4 2 0,1:0,2")]
    assert checked(ShardByTaskPolicy(), tensors) == [{"w": ["4 2 3,1:0,2", "4 2 0,1:0,2"]}]


def test_by_device() -> None:
    assert checked(ShardByDevicePolicy(), placed()) == whole("e", "bd", "a", "c")
    assert checked(ShardByDevicePolicy("first seen"), placed()) == whole("a", "bd", "c", "e")
    assert checked(ShardByDevicePolicy(), []) == []


@pytest.mark.parametrize(
    ("order", "expected"),
    [("sorted", ["e", "bd", "a", "c"]), ("first seen", ["a", "bd", "c", "e"])],
)
def test_by_device_over_all_tasks(tmp_path: Path, order: Any, expected: list[str]) -> None:
    """The data files of all tasks are in one order; a task has its own file for equal keys."""

    def saved(policy: ShardByDevicePolicy) -> list[str]:
        specs = {t.checkpoint_key: t.tensor_save_spec for t in placed()}
        Saver({"all": specs}).save(tmp_path / "ckpt", with_policy(policy))
        with ckptfmt.open(tmp_path / "ckpt") as reader:
            shards = [reader[name].shard for name in "abcde"]
        found = [
            "".join(n for n, s in zip("abcde", shards, strict=True) if s == i) for i in range(5)
        ]
        return [names for names in found if names]

    assert saved(ShardByDevicePolicy(order)) == expected
    assert saved(ShardByDevicePolicy(order, lambda _: 0)) == ["ac", "bd", "e"]


def test_by_key_fn() -> None:
    def odd(tensor: ShardableTensor) -> tuple[str, bool]:
        return tensor.device[:13], tensor.name in "ace"

    assert checked(ShardByDevicePolicy(key_fn=odd), placed()) == whole("e", "bd", "ac")
    assert checked(ShardByDevicePolicy("first seen", odd), placed()) == whole("ac", "bd", "e")


@pytest.mark.parametrize("order", ["sorted", "first seen"])
def test_key_fn_gives_what_cannot_be_grouped(order: str) -> None:
    with pytest.raises(InvalidError) as caught:
        ShardByDevicePolicy(order, lambda tensor: [tensor])(placed())
    assert caught.value.message == (
        "key_fn gave what cannot be grouped and sorted: unhashable type: 'list'"
    )


def test_key_fn_gives_what_cannot_be_sorted() -> None:
    def mixed(tensor: ShardableTensor) -> Any:
        return tensor.name if tensor.name == "a" else 1

    assert checked(ShardByDevicePolicy("first seen", mixed), placed()[::2][:1]) == whole("a")
    with pytest.raises(InvalidError) as caught:
        ShardByDevicePolicy("sorted", mixed)(placed())
    assert caught.value.message.startswith("key_fn gave what cannot be grouped and sorted: '<' not")


@pytest.mark.parametrize(
    ("policy", "argument", "values"),
    [
        (ShardByDevicePolicy, "order", ["random"]),
        (ShardByDevicePolicy, "key_fn", ["x"]),
        (MaxShardSizePolicy, "max_shard_size", [-1, True, 1.5]),
        (BalancedPolicy, "num_shards", [0, "2"]),
    ],
)
def test_refused(policy: Any, argument: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidError) as caught:
            policy(**{argument: value})
        assert caught.value.argument == argument


def test_descriptions() -> None:
    assert [
        policy.description
        for policy in (
            *(ShardByTaskPolicy(), ShardByDevicePolicy()),
            *(MaxShardSizePolicy(np.int64(7)), BalancedPolicy(3)),  # type: ignore[arg-type]
        )
    ] == [
        "Split tensors into shards based on their device spec task.",
        "Split tensors into shards based on their device.",
        "Split tensors into shards with a max shard size.",
        "Split tensors into 3 shards of nearly equal size.",
    ]


# ---- up to a size: as TensorFlow -----------------------------------------------------------------


def test_the_room_left_is_used() -> None:
    """4x6 floats into 40 bytes: the first later axis is taken where it makes fewer slabs."""
    assert checked(MaxShardSizePolicy(40), [floats("w", 4, 6), floats("v", 2)]) == [
        {"w": ["4 6 0,4:0,2"]},
        {"w": ["4 6 0,2:2,4", "4 6 2,2:2,1"]},
        {"w": ["4 6 2,2:3,3"], "v": ["2 0,2"]},
    ]


def test_variants_count_nothing() -> None:
    payloads = np.array([b"x" * 100, b"y"], object)
    tensors = [floats("a"), shardable("v", payloads, dtype="variant"), floats("b", 1)]
    assert checked(MaxShardSizePolicy(4), tensors) == [
        {"a": [""], "v": ["2 0,2"]},
        {"b": ["1 0,1"]},
    ]


# ---- up to a size: where TensorFlow does not end, or loses something -----------------------------


def test_slabs_that_never_fit() -> None:
    """[3, 5] floats into 8 bytes: a column has 12, a row 20."""
    assert checked(MaxShardSizePolicy(8), [floats("a"), floats("w", 3, 5), floats("b")]) == [
        {"a": [""]},
        {"w": ["3 5 1,2:2,1"]},
        {"w": ["3 5 1,1:3,2"]},
        {"w": ["3 5 2,1:3,2"]},
        {"b": [""]},
        # Once two columns and a row of what is left are gone, slabs of the rest fit.
        {"w": ["3 5 0,3:0,1"]},
        {"w": ["3 5 0,3:1,1"]},
        {"w": ["3 5 0,1:2,3"]},
    ]


def test_strings_that_never_fit() -> None:
    strings = np.array([b"a" * 10, b"b", b"c"], object)
    tensors = [floats("v"), shardable("s", strings)]
    assert checked(MaxShardSizePolicy(9), tensors) == [{"v": [""]}, {"s": ["3 0,3"]}]
    grid = shardable("g", np.array([[b"aa", b"b", b"c"], [b"d", b"", b"ff"]], object))
    assert checked(MaxShardSizePolicy(4), [grid]) == [
        {"g": ["2 3 0,2:0,1"]},
        {"g": ["2 3 0,1:1,2"]},
        {"g": ["2 3 1,1:1,2"]},
    ]


def test_a_huge_size() -> None:
    tensors = [floats("w", 4, 6), floats("v", 2)]
    assert checked(MaxShardSizePolicy(2**70), tensors) == [{"w": ["4 6 0,4:0,6"], "v": ["2 0,2"]}]


def put_together(tensors: Sequence[ShardableTensor], shards: Sequence[Shard]) -> None:
    """Every tensor, from the pieces at the places that their specs say."""
    for tensor in tensors:
        box = tensor.box
        found = np.empty(tensor.shape, object)
        times = np.zeros(tensor.shape, int)
        for shard in shards:
            for spec, piece in shard.get(tensor.checkpoint_key, {}).items():
                part = shardable("piece", piece, spec).box
                starts = [a - b for a, b in zip(part.start, box.start, strict=True)]
                key = tuple(
                    slice(at, at + size) for at, size in zip(starts, part.shape, strict=True)
                )
                times[key] += 1
                found[key] = piece if piece.ndim else piece.item()
        assert np.all(times == 1)
        assert found.tolist() == tensor.tensor.tolist()


SIZES = st.sampled_from([0, 1, 3, 8, 17, 40, 100, 1000, 10**6])


@property_test(40, 5000, shardable_tensors(), SIZES)
def test_nothing_is_lost_whatever_the_size(tensors: list[ShardableTensor], size: int) -> None:
    policy = MaxShardSizePolicy(size)
    shards = policy(tensors)
    validate_shards(shards, tensors, policy.description)
    put_together(tensors, shards)
    assert texts(shards) == texts(policy(tensors))
    for shard in shards:
        pieces = [piece for parts in shard.values() for piece in parts.values()]
        counted("policies", shards=1, pieces=len(pieces))
        if any(piece.dtype == object for piece in pieces):
            continue
        # Only a piece that cannot be cut any further is too large, and it is alone.
        if bytes_of(shard) > size:
            counted("policies", shards_of_one_large_piece=1)
            assert len(pieces) == 1


# ---- up to a size: of data files -----------------------------------------------------------------


def data_files(tmp_path: Path, tensors: Sequence[ShardableTensor], **options: Any) -> list[int]:
    """Bytes of each data file of a checkpoint of these."""
    specs = {t.checkpoint_key: t.tensor_save_spec for t in tensors}
    prefix = tmp_path / "ckpt"
    for old in tmp_path.glob("ckpt.*"):
        old.unlink()
    Saver({"all": specs}).save(prefix, CheckpointOptions(durability="none", **options))
    return [path.stat().st_size for path in sorted(tmp_path.glob("ckpt.data-*"))]


def test_padding_counts(tmp_path: Path) -> None:
    """Tensors of 16 bytes take 64 each at the default alignment, and 16 at level "v2"."""
    tensors = [floats(f"t{row}", 4) for row in range(1024)]
    policy = MaxShardSizePolicy(1 << 14)
    assert data_files(tmp_path, tensors, experimental_sharding_callback=policy) == [1 << 14] * 4
    at_v2 = data_files(tmp_path, tensors, experimental_sharding_callback=policy, level="v2")
    assert at_v2 == [1 << 14]


@property_test(
    *(15, 1000),
    shardable_tensors(),
    SEEDS,
    st.sampled_from([0, 8, 70, 200, 1000, 10**5]),
    st.sampled_from([None, 1, 24, 64]),
)
def test_files_are_as_large_as_counted(
    tmp_path: Path, tensors: list[ShardableTensor], seed: int, limit: int, alignment: int | None
) -> None:
    """Only pieces of one index are larger, and alone."""
    rng = random.Random(seed)
    variants = np.array([bytes(rng.randint(0, 200)) for _ in range(rng.randint(0, 3))], object)
    tensors.append(shardable("variant", variants, dtype="variant"))
    tensors.append(shardable(OBJECT_GRAPH, bytes(rng.randint(0, 300))))

    def sizes_at(size: int) -> list[int]:
        policy = MaxShardSizePolicy(size)
        return data_files(
            tmp_path, tensors, experimental_sharding_callback=policy, alignment=alignment
        )

    (whole,) = sizes_at(2**40)
    assert sizes_at(whole) == [whole]
    given = [tensor.for_callback(alignment or 64) for tensor in tensors]
    pieces = [sum(map(len, shard.values())) for shard in MaxShardSizePolicy(limit)(given)]
    for size, count in zip(sizes_at(limit), pieces, strict=True):
        assert size <= limit or count == 1


# ---- balanced ------------------------------------------------------------------------------------


def piece_count(shards: Sequence[Shard]) -> int:
    return sum(len(parts) for shard in shards for parts in shard.values())


def test_slices_are_cut_too() -> None:
    tensors = [floats("w", 2, 2, spec="4 2 2,2:0,2")]
    assert checked(BalancedPolicy(2), tensors) == [{"w": ["4 2 2,1:0,2"]}, {"w": ["4 2 3,1:0,2"]}]
    whole_slice = [floats("w", 2, 2, spec="4 2 2,2:-"), floats("v", 2, 2)]
    assert checked(BalancedPolicy(2), whole_slice) == [{"w": ["4 2 2,2:-"]}, {"v": [""]}]


def test_what_is_a_hundredth_too_large_is_not_cut() -> None:
    assert checked(BalancedPolicy(2), [floats("a", 101), floats("b", 99)]) == whole("a", "b")
    assert piece_count(BalancedPolicy(2)([floats("a", 103), floats("b", 97)])) == 3


def test_no_shard_is_empty() -> None:
    """Where there are elements enough, however uneven their sizes; else there are fewer shards."""
    big = shardable("big", b"x" * 1000)
    tiny = [shardable(f"t{row}", np.int8(row)) for row in range(3)]
    pair = shardable("pair", np.zeros(2, np.int8))
    assert checked(BalancedPolicy(3), [big, pair]) == [
        {"big": [""]},
        {"pair": ["2 0,1"]},
        {"pair": ["2 1,1"]},
    ]
    assert checked(BalancedPolicy(4), [big, *tiny]) == whole(["big"], ["t0"], ["t1"], ["t2"])
    assert checked(BalancedPolicy(9), [big, *tiny]) == whole(["big"], ["t0"], ["t1"], ["t2"])
    assert checked(BalancedPolicy(2), [floats("s"), floats("e", 0)]) == whole("s", "e")
    nothing = [floats(f"e{row}", 0) for row in range(4)]
    assert checked(BalancedPolicy(2), nothing) == whole(["e0", "e2"], ["e1", "e3"])
    assert checked(BalancedPolicy(2), []) == []


def test_strings_are_cut_by_their_mean() -> None:
    strings = np.array([b"a" * 10, b"b", b"c", b""], object)
    assert checked(BalancedPolicy(2), [shardable("s", strings)]) == [
        {"s": ["4 0,2"]},
        {"s": ["4 2,2"]},
    ]
    strings[:] = b""
    assert checked(BalancedPolicy(3), [shardable("s", strings)]) == [
        {"s": ["4 0,1"]},
        {"s": ["4 2,2"]},
        {"s": ["4 1,1"]},
    ]


def test_balance(seed: int) -> None:
    """Nearly equal shards, and few cuts: of 400,000 such cases none took more than 3.9 a shard, and
    no 200 of them together more than 1.8."""
    rng = random.Random(seed)
    cut = cuts = made = 0
    for _ in range(200):
        count = rng.choice((1, 2, 3, 7, 16, 40))
        tensors = [
            floats(f"t{row}", *[rng.randint(1, 20) for _ in range(rng.randint(0, 3))])
            for row in range(rng.choice((1, 3, 10, 60)))
        ]
        policy = BalancedPolicy(count)
        shards = policy(tensors)
        validate_shards(shards, tensors, policy.description)
        put_together(tensors, shards)
        sizes = [bytes_of(shard) for shard in shards]
        total = sum(sizes)
        assert len(shards) == min(count, total // 4), seed
        assert max(sizes) <= math.ceil(total / count) * 1.01 + 4, seed
        assert piece_count(shards) - len(tensors) <= 4 * count, seed
        cuts += piece_count(shards) - len(tensors)
        made += len(shards)
        cut += piece_count(shards) > len(tensors)
        assert texts(shards) == texts(policy(list(tensors))), seed
        for shard in shards:
            rows = [int(key[1:]) for key in shard]
            assert rows == sorted(rows), seed
    assert cut > 50
    assert cuts <= 2 * made, seed


@property_test(60, 5000, shardable_tensors(), st.sampled_from([1, 2, 5, 30]))
def test_anything_is_balanced_without_loss(tensors: list[ShardableTensor], count: int) -> None:
    policy = BalancedPolicy(count)
    shards = policy(tensors)
    validate_shards(shards, tensors, policy.description)
    put_together(tensors, shards)
    elements = sum(max(1, tensor.tensor.size) for tensor in tensors)
    assert len(shards) == min(count, elements)


@pytest.mark.parametrize("policy", [MaxShardSizePolicy(4096), BalancedPolicy(64)])
def test_many_tensors_take_seconds(policy: ShardingCallback) -> None:
    tensors = [floats(f"t{row}", 3, row % 7 + 1) for row in range(10_000)]
    start = time.process_time()
    policy(tensors)
    assert time.process_time() - start < 5
