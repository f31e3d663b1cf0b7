# SPDX-License-Identifier: Apache-2.0
"""ShardableTensor, ShardingCallback, and validate_shards: each rule broken by a callback."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.saving import shardable

from ckptfmt.errors import InvalidError
from ckptfmt.saving import sharding
from ckptfmt.saving.policies import MaxShardSizePolicy, ShardByDevicePolicy
from ckptfmt.saving.sharding import Shard, ShardableTensor, ShardingCallback, validate_shards
from ckptfmt.saving.specs import SaveSpec

TASK_1, TASK_2 = "/job:worker/task:1/device:GPU:0", "/job:worker/task:2/device:GPU:0"


class Callback(ShardingCallback):
    """Gives what its function makes of the tensors."""

    def __init__(self, function: Callable[[Sequence[ShardableTensor]], Any]) -> None:
        self.function = function

    @property
    def description(self) -> str:
        return "a test's own"

    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> Any:
        return self.function(shardable_tensors)


def accepted(tensors: Sequence[ShardableTensor], shards: Any) -> None:
    validate_shards(shards, tensors, "a test's own")


def refused(tensors: Sequence[ShardableTensor], shards: Any, message: str, key: str | None) -> None:
    with pytest.raises(InvalidError) as caught:
        accepted(tensors, shards)
    assert caught.value.message == message
    assert caught.value.tensor == key


# ---- ShardableTensor -----------------------------------------------------------------------------


def test_from_spec() -> None:
    array = np.zeros((2, 6), np.float32)
    spec = SaveSpec(array, " ", "w", device="/cpu:0")
    trackable = object()
    found = ShardableTensor.from_spec(spec, trackable)
    assert found is not None
    assert found.tensor_save_spec is spec
    assert found.tensor is array
    assert (found.dtype, found.device, found.name, found.shape) == (
        *(np.float32, "/cpu:0", "w"),
        (2, 6),
    )
    assert (found.slice_spec, found.checkpoint_key) == ("", "w")
    assert found.trackable is trackable
    assert found._tensor_save_spec is spec
    assert repr(found).splitlines()[:5] == [
        "ShardableTensor:",
        f"  tensor_save_spec={spec!r}",
        *f"  tensor={array!r}".splitlines(),
        "  dtype=dtype('float32')",
    ]
    for field in dataclasses.fields(found):
        assert f"\n  {field.name}={getattr(found, field.name)!r}" in repr(found)
    again = ShardableTensor.from_spec(spec, trackable)
    assert hash(again) == hash(found) and again != found
    assert hash(dataclasses.replace(found, device="/gpu:0")) != hash(found)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.name = "v"  # type: ignore[misc]


def test_from_spec_of_a_function() -> None:
    spec = SaveSpec(lambda: [1, 2], "4 1,2", "w", "float32", "/cpu:0")
    found = ShardableTensor.from_spec(spec)
    assert found is not None
    assert found.tensor.dtype == np.float32
    assert found.checkpoint_key == "w"
    assert (found.box.full_shape, found.box.start, found.box.shape) == ((4,), (1,), (2,))
    assert ShardableTensor.from_spec(SaveSpec(lambda: None, "", "w", "float32", "")) is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            SaveSpec(lambda: np.zeros(2), "", "w", "float32", ""),
            "the array must have dtype float32, not float64",
        ),
        (
            SaveSpec(np.zeros(3), "4 1,2", "w"),
            "slice spec '4 1,2' and an array of shape (3,) do not fit",
        ),
    ],
)
def test_from_spec_refuses(spec: SaveSpec, message: str) -> None:
    with pytest.raises(InvalidError) as caught:
        ShardableTensor.from_spec(spec)
    assert caught.value.message == message
    assert caught.value.tensor == "w"


# ---- ShardingCallback ----------------------------------------------------------------------------


@pytest.mark.parametrize("tensors", [3, "w", [3]])
def test_what_is_no_tensors_is_refused(tensors: Any) -> None:
    with pytest.raises(InvalidError) as caught:
        validate_shards([], tensors, "a test's own")
    assert caught.value.argument == "shardable_tensors"


def test_equality_of_callbacks() -> None:
    assert MaxShardSizePolicy(3) == MaxShardSizePolicy(3)
    assert hash(MaxShardSizePolicy(3)) == hash(MaxShardSizePolicy(3))
    assert MaxShardSizePolicy(3) != MaxShardSizePolicy(4)
    assert ShardByDevicePolicy() != ShardByDevicePolicy("first seen")
    assert MaxShardSizePolicy(3) != 3
    assert repr(MaxShardSizePolicy(3)) == "MaxShardSizePolicy(max_shard_size=3)"


def test_callbacks_are_abstract() -> None:
    class Half(ShardingCallback):
        @property
        def description(self) -> str:
            return ""

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


# ---- validate_shards: what is right --------------------------------------------------------------

W = np.arange(24, dtype=np.float32).reshape(4, 6)
V = np.arange(3, dtype=np.int64)
S = np.float32(1)


def both() -> list[ShardableTensor]:
    return [shardable("w", W), shardable("v", V)]


@pytest.mark.parametrize(
    "shards",
    [
        [{"w": {"": W}, "v": {"": V}}],
        [{"w": {"4 6 0,4:0,6": W}}, {"v": {"3 0,3": V}}],
        [{"w": {"4 6 -:-": W}}, {}, {"v": {" ": V}}],
        [{"v": {"3 0,1": V[:1], "3 2,1": V[2:]}}, {"v": {"3 1,1": V[1:2]}, "w": {"": W}}],
        [
            {"w": {"4 6 0,4:0,2": W[:, :2], "4 6 0,2:2,4": W[:2, 2:]}},
            {"w": {"4 6 2,2:2,4": W[2:, 2:]}, "v": {"": V}},
        ],
        ({"w": {"": W.astype(">f4")}, "v": {"": V}},),
    ],
)
def test_right(shards: Any) -> None:
    accepted(both(), shards)


def test_right_without_anything() -> None:
    accepted([], [])


def test_right_scalars_and_nothing() -> None:
    empty = np.zeros((0, 3), np.int8)
    tensors = [shardable("s", S), shardable("e", empty)]
    accepted(tensors, [{"s": {"": tensors[0].tensor}, "e": {"": empty}}])
    accepted(tensors, [{"s": {" ": tensors[0].tensor}, "e": {"0 3 -:-": empty}}])


def test_right_slices() -> None:
    tensors = [shardable("w", W[row : row + 1], f"4 6 {row},1:0,6") for row in (3, 0, 1)]
    accepted(
        tensors,
        [
            {"w": {"4 6 3,1:0,3": W[3:, :3], "4 6 0,1:-": W[:1]}},
            {"w": {"4 6 3,1:3,3": W[3:, 3:], "4 6 1,1:0,6": W[1:2]}},
        ],
    )


def test_right_strings() -> None:
    """NumPy's own string types differ in size from part to part."""
    strings = np.array(["a", "bcd"])
    tensors = [shardable("s", strings)]
    parts = {"2 0,1": np.array(["a"]), "2 1,1": np.array([b"bcd"], object)}
    accepted(tensors, [{"s": parts}])


class Placed:
    """The tensor V on a device."""

    shape, dtype = V.shape, V.dtype

    def __init__(self, device: str) -> None:
        self.device = device

    def __array__(self, *_arguments: Any, **_options: Any) -> Any:
        return V


def test_right_tasks() -> None:
    accepted([shardable("v", V, device=TASK_1)], [{"v": {"": Placed("/job:worker/task:1/cpu:0")}}])
    tensors = [shardable("v", V, device=TASK_1), shardable("w", W, device=TASK_2)]
    accepted(tensors, [{"v": {"": V}}, {"w": {"": W}}])


# ---- validate_shards: one rule broken after the other --------------------------------------------

NUMBERS = np.array([1.0, -0.0, np.nan])
SQUARE = np.arange(9.0).reshape(3, 3)
TEXTS = np.array([b"a", "b"], object)
HALVES = [shardable("w", W[:2], "4 6 0,2:0,6"), shardable("w", W[2:], "4 6 2,2:0,6")]
EMPTY = shardable("e", np.zeros((0, 3)))
ON_TASK_1 = shardable("v", V, device=TASK_1)

# The tensors, the shards, the words of the rule that they break, and the key.
BROKEN: list[tuple[list[ShardableTensor], Any, str, str]] = [
    # Nothing twice.
    (both(), [{"w": {"": W}, "v": {"": V}}, {"v": {"": V}}], "gave the same slice", "v"),
    (both(), [{"w": {"": W}, "v": {"": V, "3 -": V}}], "twice (also as '')", "v"),
    # Nothing new, nothing lost.
    (both(), [{"w": {"": W}, "v": {"": V}, "x": {"3 0,3": V}}], "added a tensor", "x"),
    (both(), [{"w": {"": W}}], "lost a tensor: ", "v"),
    (both(), [], "lost a tensor (and 1 more)", "w"),
    (HALVES, [{"w": {"4 6 0,2:0,6": W[:2]}}], "lost a tensor", "w"),
    ([EMPTY], [{"e": {}}], "lost a tensor", "e"),
    # The same dtype and shape.
    (both(), [{"w": {"": W}, "v": {"": V.astype(np.int32)}}], "dtype from int64 to int32", "v"),
    (both(), [{"w": {"": W}, "v": {"": [0, 1, 2]}}], "dtype from int64 to None", "v"),
    (both(), [{"w": {"": W[:2]}, "v": {"": V}}], "shape (2, 6) for a slice of shape (4, 6)", "w"),
    (both(), [{"w": {"24 0,24": W.ravel()}, "v": {"": V}}], "is inside none of those", "w"),
    (HALVES, [{"w": {"4 6 1,2:0,6": W[1:3]}}], "is inside none of those", "w"),
    (both(), [{"w": {"4 6 0,2:-": W[:2]}, "v": {"": V}}], "have 12 of its 24 elements", "w"),
    (
        both(),  # as many elements as there should be, some of them twice
        [{"w": {"4 6 0,2:0,6": W[:2], "4 6 1,2:0,6": W[1:3]}, "v": {"": V}}],
        *("'4 6 0,2:0,6' and '4 6 1,2:0,6' overlap", "w"),
    ),
    (
        both(),
        [{"w": {"4 6 0,2:-": W[:2], "4 6 2,2:0,3": W[2:, :3], "4 6 1,2:3,3": W[1:3, 3:]}}],
        *("'4 6 0,2:-' and '4 6 1,2:3,3' overlap", "w"),
    ),
    (both(), [{"w": {"4 6 0,5:-": W}, "v": {"": V}}], "slice spec that says no slice", "w"),
    (both(), [{"w": {3: W}, "v": {"": V}}], "a slice spec that is a int", "w"),
    # The same task, and one task in a shard.
    ([ON_TASK_1], [{"v": {"": Placed(TASK_2)}}], "changed a tensor's task", "v"),
    ([shardable("v", V)], [{"v": {"": Placed(TASK_2)}}], "changed a tensor's task from ''", "v"),
    (
        [ON_TASK_1, shardable("w", W, device=TASK_2)],
        [{"v": {"3 0,3": V}, "w": {"": W}}],
        *("tensors of different tasks into one shard", "w"),
    ),
    # The same values.
    (both(), [{"w": {"": W}, "v": {"3 0,3": V[::-1]}}], "changed a tensor's values", "v"),
    (HALVES, [{"w": {"4 6 0,2:-": W[:2], "4 6 2,2:-": W[:2]}}], "changed a tensor's values", "w"),
    ([shardable("n", NUMBERS)], [{"n": {"": np.abs(NUMBERS)}}], "changed a tensor's values", "n"),
    ([shardable("q", SQUARE)], [{"q": {"": SQUARE.T}}], "changed a tensor's values", "q"),
    ([shardable("t", TEXTS)], [{"t": {"": TEXTS[::-1]}}], "changed a tensor's values", "t"),
]


@pytest.mark.parametrize(("tensors", "shards", "words", "key"), BROKEN)
def test_rules(tensors: list[ShardableTensor], shards: Any, words: str, key: str) -> None:
    """test_validation.py has random changes of these kinds."""
    with pytest.raises(InvalidError, match=re.escape(words)) as caught:
        accepted(tensors, shards)
    assert caught.value.tensor == key
    assert caught.value.message.startswith("sharding callback 'a test's own' ")
    assert f"key '{key}'" in caught.value.message


def test_copies_have_the_same_values() -> None:
    tensors = [shardable(*pair) for pair in (("n", NUMBERS), ("q", SQUARE), ("t", TEXTS))]
    copies: Any = {
        "n": {"3 0,1": NUMBERS[:1].astype(">f8"), "3 1,2": NUMBERS[1:].copy()},
        "q": {"3 3 0,3:0,1": SQUARE[:, :1], "3 3 0,3:1,2": np.asfortranarray(SQUARE[:, 1:])},
        "t": {"": np.array(["a", b"b"], object)},
    }
    accepted(tensors, [copies])
    told = SimpleNamespace(shape=(3,), dtype=V.dtype)
    with pytest.raises(InvalidError, match=r"gave something other than an array .*key 'v'"):
        accepted([shardable("v", V)], [{"v": {"": told}}])


@pytest.mark.parametrize(
    ("shards", "what"),
    [
        (None, "gave a NoneType, not a sequence of shards"),
        ({"w": {"": W}}, "gave a dict, not a sequence of shards"),
        ("text", "gave a str, not a sequence of shards"),
        ([W], "gave a ndarray among its shards, not a mapping"),
        ([{"w": W}], "gave a ndarray for key 'w', not a mapping from slice specs to arrays"),
    ],
)
def test_no_shards(shards: Any, what: str) -> None:
    refused(both(), shards, f"sharding callback 'a test's own' {what}", None)


def test_tensors_given_twice() -> None:
    tensors = [shardable("w", W), shardable("w", W, "4 6 0,4:0,6")]
    refused(
        tensors,
        [],
        "Received multiple tensors with the same checkpoint key and slice spec: '4 6 0,4:0,6'",
        "w",
    )


# ---- size and time ------------------------------------------------------------------------------


def test_many_cut_axes() -> None:
    """512 pieces, none of which is as long as the tensor on any axis."""
    shape = (2,) * 9
    array = np.zeros(shape, np.int8)
    text = " ".join("2" * 9) + " "
    parts = {
        text + ":".join(f"{at},1" for at in corner): array[np.ix_(*([at] for at in corner))]
        for corner in itertools.product((0, 1), repeat=9)
    }
    tensors = [shardable("w", array)]
    accepted(tensors, [{"w": parts}])
    spec, piece = parts.popitem()
    refused(
        tensors,
        [{"w": parts}],
        "sharding callback 'a test's own' changed a tensor's shape: its 511 pieces have 511 of its "
        "512 elements: checkpoint key 'w', slice spec ''",
        "w",
    )
    parts[spec.replace("1,1", "0,2", 1)] = np.zeros((2, *piece.shape[1:]), np.int8)
    with pytest.raises(InvalidError, match="overlap"):
        accepted(tensors, [{"w": parts}])


@pytest.mark.parametrize("whole", ["", "2 3 0,2:0,3"])
def test_many_tensors_take_seconds(whole: str) -> None:
    array = np.zeros((2, 3), np.float32)
    tensors = [shardable(f"layer_{row}/kernel", array) for row in range(10_000)]
    shards: list[Shard] = [{tensor.checkpoint_key: {whole: array}} for tensor in tensors]
    assert _seconds(tensors, shards) < 3


def test_many_pieces_take_seconds() -> None:
    """Neither many slices of one key nor a fine grid makes it quadratic."""
    rows = np.zeros((2_500, 2), np.int8)
    tensors = [shardable("w", rows[i : i + 1], f"2500 2 {i},1:0,2") for i in range(2_500)]
    parts = {
        f"2500 2 {i},1:{j},1": rows[i : i + 1, j : j + 1] for i in range(2_500) for j in (0, 1)
    }
    grid = np.zeros((100, 100), np.int8)
    squares = {
        f"100 100 {i},1:{j},1": grid[i : i + 1, j : j + 1] for i in range(100) for j in range(100)
    }
    assert _seconds(tensors, [{"w": parts}]) < 3
    columns = [shardable("w", rows[i : i + 1].T, f"2 2500 0,2:{i},1") for i in range(2_500)]
    parts = {
        f"2 2500 {j},1:{i},1": rows[i : i + 1, j : j + 1] for j in (1, 0) for i in range(2_500)
    }
    assert _seconds(columns, [{"w": parts}]) < 3
    assert _seconds([shardable("g", grid)], [{"g": squares}]) < 5


def _seconds(tensors: Sequence[ShardableTensor], shards: Any) -> float:
    start = time.process_time()
    accepted(tensors, shards)
    return time.process_time() - start


@pytest.mark.parametrize("order", ["as given", "reversed", "random"])
def test_many_slices_of_one_key(seed: int, order: str) -> None:
    """In any order they are found among thousands without looking at all for each."""
    count = 5_000
    given = [
        ShardableTensor.from_spec(
            SaveSpec(np.zeros((1, 2), np.float32), f"{count} 2 {row},1:0,2", "k")
        )
        for row in range(count)
    ]
    tensors = [tensor for tensor in given if tensor is not None]
    rows = list(range(count))
    if order == "reversed":
        rows.reverse()
    elif order == "random":
        random.Random(seed).shuffle(rows)
    shard = {"k": {tensors[row].slice_spec: tensors[row].tensor for row in rows}}
    looked = 0
    inside = sharding._inside

    def counted(box: Any, whole: Any) -> bool:
        nonlocal looked
        looked += 1
        return inside(box, whole)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "_inside", counted)
        validate_shards([shard], tensors, "by task")
    assert count <= looked <= 5 * count
