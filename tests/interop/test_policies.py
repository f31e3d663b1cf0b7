# SPDX-License-Identifier: Apache-2.0
"""The sharding policies partition as TensorFlow's, and device names are read as TensorFlow does.

Shards, slices and their order are compared, and the bytes of every piece. Where TensorFlow does not
end, or drops what has no elements, ours must keep every tensor.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import ckptfmt
from ckptfmt.saving.devices import canonical, task_of
from ckptfmt.saving.policies import MaxShardSizePolicy, ShardByDevicePolicy, ShardByTaskPolicy
from ckptfmt.saving.sharding import Shard, ShardableTensor, validate_shards
from ckptfmt.saving.specs import SaveSpec

from . import values
from .generate import seed_from_environment
from .oracle import environment, interpreter
from .workers import SECONDS, ask, command

SETS = int(os.environ.get("CKPTFMT_TEST_PARTITIONS", "600"))
DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# One to sixteen bytes an element.
CODES = (1, 2, 3, 4, 5, 6, 8, 9, 10, 14, 17, 18, 19, 22, 23)

Case = dict[str, Any]


# ---- sets of tensors -----------------------------------------------------------------------------


def random_tensor(rng: random.Random, key: str) -> Case:
    code = values.STRING if rng.random() < 0.15 else rng.choice(CODES)
    # TensorFlow measures strings row by row: of rank two and more it can do only those of one row.
    rank = rng.choice((0, 1, 1, 1)) if code == values.STRING else rng.randint(0, 4)
    shape = [rng.choice((1, 2, 3, 4, 5, 7, 10, 16)) for _ in range(rank)]
    if rank and rng.random() < 0.04:
        shape[rng.randrange(rank)] = 0
    count = math.prod(shape)
    spec = ""
    if rank and count and rng.random() < 0.25:
        full = [size + rng.choice((0, 0, 1, 5)) for size in shape]
        starts = [rng.randint(0, f - size) for f, size in zip(full, shape, strict=True)]
        pairs = zip(starts, shape, strict=True)
        spec = f"{' '.join(map(str, full))} {':'.join(f'{at},{size}' for at, size in pairs)}"
    case: Case = {"key": key, "dtype": code, "shape": shape, "spec": spec}
    if code == values.STRING:
        case["strings"] = ["x" * rng.choice((0, 1, 2, 5, 30)) for _ in range(count)]
    else:
        size = values.KINDS[code].size
        content = rng.randbytes(size * count)
        # Truth values have one bit.
        case["content"] = (bytes(b & 1 for b in content) if code == 10 else content).hex()
    return case


def random_set(rng: random.Random) -> Case:
    tensors = [random_tensor(rng, f"t{row}") for row in range(rng.randint(1, 8))]
    if rng.random() < 0.4:
        graph = {"key": OBJECT_GRAPH, "dtype": values.STRING, "shape": [], "spec": ""}
        tensors.append({**graph, "strings": ["g" * rng.randint(0, 200)]})
    sizes = [math.prod(t["shape"]) * max(1, values.KINDS[t["dtype"]].size) for t in tensors]
    around = max(1, rng.choice([sum(sizes), max(sizes), rng.choice(sizes), 64]))
    limit = rng.choice(
        (around, around // 2, around // 3 + 1, around + 1, rng.randint(0, 2 * around))
    )
    return {"max_shard_size": limit, "tensors": tensors}


# The worked examples, and the ends of the rules.
def tensor(key: str, shape: Sequence[int], code: int = 1, spec: str = "") -> Case:
    size = values.KINDS[code].size * math.prod(shape)
    content = bytes(row % 251 for row in range(size)).hex()
    return {"key": key, "dtype": code, "shape": list(shape), "spec": spec, "content": content}


def strings(key: str, *elements: str, shape: Sequence[int] | None = None) -> Case:
    found = [len(elements)] if shape is None else list(shape)
    described = {"key": key, "dtype": values.STRING, "shape": found, "spec": ""}
    return {**described, "strings": elements}


KNOWN = [
    (40, [tensor("w", [4, 6]), tensor("v", [2])]),
    (36, [tensor("w", [10])]),
    (8, [tensor("w", [3, 5])]),
    (3, [tensor("w", [3])]),
    (0, [tensor("w", [3])]),
    (0, [tensor("s", [])]),
    (0, [tensor("e", [0, 3])]),
    (8, [tensor("e", [0, 3]), tensor("w", [4])]),
    (8, [tensor("w", [2]), tensor("v", [2]), tensor("s", [])]),
    (6, [strings("s", "a", "bb", "ccc", "")]),
    (5, [strings("s", "a", "bb", "ccc", "")]),
    (2, [strings("s", "a", "bb", "ccc", "")]),
    (0, [strings("s", "", "")]),
    (5, [strings("s")]),
    (5, [strings("s", "a", "bb", "ccc", "d", shape=[2, 2])]),
    (5, [strings("s", "a", "bb", "ccc", "d", shape=[4, 1])]),
    (3, [strings(OBJECT_GRAPH, "ggggg", shape=[])]),
    (3, [strings("s", "ggggg", shape=[]), strings("r", "ggg", shape=[])]),
    (16, [tensor("w", [2, 4], spec="6 4 2,2:0,4"), tensor("w", [1, 4], spec="6 4 5,1:0,4")]),
    (2**62, [tensor("w", [4, 6]), tensor("v", [])]),
]


# ---- ours ----------------------------------------------------------------------------------------


def shardable(case: Case) -> ShardableTensor:
    code = case["dtype"]
    content: Any = (
        tuple(text.encode() for text in case["strings"])
        if code == values.STRING
        else bytes.fromhex(case["content"])
    )
    array = values.Value(code, tuple(case["shape"]), content).array()
    spec = SaveSpec(array, case["spec"], case["key"], code, DEVICE)
    found = ShardableTensor.from_spec(spec)
    assert found is not None
    return found


def described(shards: Sequence[Shard], codes: dict[str, int]) -> list[Any]:
    return [
        [
            [key, spec, list(array.shape), values.from_array(codes[key], array).digest()]
            for key, parts in shard.items()
            for spec, array in parts.items()
        ]
        for shard in shards
    ]


def kept(found: list[Any], empty: set[str]) -> list[Any]:
    """Without the tensors that have no elements, which TensorFlow drops."""
    shards = [[piece for piece in shard if piece[0] not in empty] for shard in found]
    return [shard for shard in shards if shard]


def tensorflow_cannot_measure(case: Case) -> bool:
    return any(
        t["dtype"] == values.STRING and (0 in t["shape"] or len(t["shape"]) > 1)
        for t in case["tensors"]
    )


def compare(case: Case, theirs: dict[str, Any], count: Counter[str]) -> None:
    tensors = [shardable(t) for t in case["tensors"]]
    codes = {t["key"]: t["dtype"] for t in case["tensors"]}
    by_task = ShardByTaskPolicy()(tensors)
    validate_shards(by_task, tensors, "by task")
    assert described(by_task, codes) == theirs["task"]

    policy = MaxShardSizePolicy(case["max_shard_size"])
    shards = policy(tensors)
    # Nothing may be missing, whatever TensorFlow does.
    validate_shards(shards, tensors, policy.description)
    ours = described(shards, codes)
    pieces = Counter(piece[0] for shard in ours for piece in shard)
    assert pieces.keys() == codes.keys()
    empty = {t["key"] for t in case["tensors"] if 0 in t["shape"]}
    count["sets"] += 1
    count["with cuts"] += sum(pieces.values()) > len(tensors)
    count["with several shards"] += len(shards) > 1
    if "endless" in theirs:
        count["endless in TensorFlow"] += 1
    elif "error" in theirs:
        assert tensorflow_cannot_measure(case), theirs
        count["TensorFlow raises"] += 1
    else:
        count["compared"] += 1
        count["compared with cuts"] += sum(pieces.values()) > len(tensors)
        count["with tensors that TensorFlow drops"] += bool(empty)
        assert kept(ours, empty) == theirs["size"]
        assert empty or ours == theirs["size"]


@pytest.fixture(scope="module")
def answers() -> tuple[list[Case], dict[str, Any]]:
    seed = seed_from_environment()
    rng = random.Random(seed)
    cases = [{"max_shard_size": size, "tensors": tensors} for size, tensors in KNOWN]
    cases += [random_set(rng) for _ in range(SETS)]
    question = {"partitions": cases, "devices": DEVICES}
    return cases, ask("tf_policies.py", question=question)


def test_partitions(answers: tuple[list[Case], dict[str, Any]]) -> None:
    cases, answer = answers
    count: Counter[str] = Counter()
    for row, (case, theirs) in enumerate(zip(cases, answer["partitions"], strict=True)):
        try:
            compare(case, theirs, count)
        except AssertionError as error:
            error.add_note(f"set {row} of seed {seed_from_environment()}")
            raise
    print()
    print("MaxShardSizePolicy and TensorFlow's: " + ", ".join(f"{n} {k}" for k, n in count.items()))
    if len(cases) >= 600:
        assert count["compared"] >= 300
        assert count["compared with cuts"] >= 100
        assert count["endless in TensorFlow"] >= 10
        assert count["with tensors that TensorFlow drops"] >= 10


# ---- devices -------------------------------------------------------------------------------------

PARTS = (
    *("", "/job:w", "/job:", "/replica:1", "/task:02", "/task:x", "/task:*", "/cpu:0", "/GPU:3"),
    *("/gpu", "/gpu:*", "/Tpu:1", "/device:cpu:0", "/device:Gpu:1", "/device:TPU:*", "/device:X:9"),
    *("/device:GPU", "/shelf:1", "/epu:1", "/custom:0", "gpu:1", "/", "/:1", "/xla_cpu:0"),
)
DEVICES = ["".join(parts) for parts in itertools.product(PARTS, repeat=2)] + [
    "/job:worker/replica:0/task:1/device:GPU:3",
    "/task:1/job:worker/cpu:0",
    "my accelerator",
]


def test_devices(answers: tuple[list[Case], dict[str, Any]]) -> None:
    right = 0
    for name, (full, task) in zip(DEVICES, answers[1]["devices"], strict=True):
        if full is None:
            assert (canonical(name), task_of(name)) == (name, name), name
        elif name:
            assert (canonical(name), task_of(name)) == (full, task), name
            right += 1
    print()
    print(f"{right} device names as TensorFlow, and {len(DEVICES) - right} that are none")
    assert right > 100


# ---- TensorFlow's own callbacks ------------------------------------------------------------------

PLACES = (
    *("/gpu:10", "/job:ps/task:1", "", "/job:ps/task:0/cpu:0", "/GPU:2", "/job:ps/task:1/gpu:0"),
    *("/device:GPU:10", "/job:a/replica:1/task:3/device:TPU:0", "/job:ps/task:10/cpu:0", "/cpu:0"),
)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process with TensorFlow and ckptfmt answers."""
    root = str(Path(ckptfmt.__file__).parents[1])
    run = functools.partial(
        subprocess.run, env=environment() | {"PYTHONPATH": root}, stdout=subprocess.PIPE
    )
    if run([interpreter(), "-c", "import ckptfmt._core"], check=False).returncode:
        pytest.skip("the Python that has TensorFlow lacks what ckptfmt needs")
    folder = tmp_path_factory.mktemp("together")
    found = run(command("tf_callbacks.py", folder, *PLACES), check=True, timeout=SECONDS)
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def test_callbacks_of_tensorflow(together: dict[str, Any]) -> None:
    """Its policies give what ours give; a callback of its class gets its objects."""
    shards = together["shards"]
    for name in ("task", "size"):
        theirs, ours = shards[name]
        assert theirs == ours
    assert len(shards["task"][0]) == 2 and len(shards["size"][0]) > 6
    small, large, other_task = shards["own"][0]
    assert [name for _, name, _ in small] == ["quantized", "scalar", "strings", "text"]
    assert [name for _, name, _ in large] == ["float", "swapped", "slice"]
    assert [name for _, name, _ in other_task] == ["bool", "bfloat16"]
    assert together["refused"] == (
        "ShardingError: tensor 'float': sharding callback 'large and small' changed a tensor's "
        "values: checkpoint key 'float', slice spec ''"
    )


def test_devices_in_the_order_of_v1_savers(together: dict[str, Any]) -> None:
    tensors = [
        ShardableTensor.from_spec(SaveSpec(0.0, "", f"v{number:02}", device=device))
        for number, device in enumerate(PLACES)
    ]
    shards = ShardByDevicePolicy()([tensor for tensor in tensors if tensor is not None])
    assert [sorted(shard) for shard in shards] == together["grouped"]
