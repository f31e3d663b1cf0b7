# SPDX-License-Identifier: Apache-2.0
"""TensorFlow restores what Saver wrote, whole and by slice, and Saver what tf.train.Checkpoint
wrote under its sharding policies."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.parallel import ParallelVariable
from ckptfmt.saving.policies import BalancedPolicy, MaxShardSizePolicy, ShardByTaskPolicy
from ckptfmt.saving.saver import Saver
from ckptfmt.saving.specs import SaveSpec

from .generate import random_value, seed_from_environment
from .oracle import Oracle
from .test_ours_in_tf import listing, user_variables
from .values import KINDS, STRING, Value
from .workers import ask

# What TensorFlow puts together again where a policy cut it.
STITCHABLE = [code for code, kind in KINDS.items() if kind.stitchable]
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
ROUNDS = 25


def sliced(rng: random.Random, shape: tuple[int, ...]) -> tuple[str, tuple[slice, ...]]:
    """A random box of a tensor: as text and as numpy's index."""
    starts = [rng.randrange(size) for size in shape]
    lengths = [rng.randint(1, size - first) for size, first in zip(shape, starts, strict=True)]
    pairs = list(zip(starts, lengths, strict=True))
    text = " ".join(map(str, shape)) + " " + ":".join(f"{first},{n}" for first, n in pairs)
    return text, tuple(slice(first, first + n) for first, n in pairs)


def random_tensors(rng: random.Random, features: Counter[str]) -> dict[bytes, Value]:
    found = {}
    for number in range(rng.randint(1, 8)):
        shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(0, 4)))
        found[b"t%d" % number] = random_value(rng, rng.choice(STITCHABLE), shape, features)
    return found


def given(rng: random.Random, value: Value, name: str) -> Any:
    """A tensor as a user would hand it in: whole or in slices, on some device, now or late."""
    device = f"/job:worker/task:{rng.randrange(3)}/device:GPU:{rng.randrange(2)}"
    array = value.array()
    if not value.shape or value.shape[0] < 2 or rng.random() < 0.5:
        return SaveSpec(lambda: array, "", name, array.dtype, device)
    middle, size = rng.randint(1, value.shape[0] - 1), value.shape[0]
    rest = "".join(f":0,{extent}" for extent in value.shape[1:])
    full = " ".join(map(str, value.shape))
    texts = [
        f"{full} {first},{last - first}{rest}" for first, last in ((0, middle), (middle, size))
    ]
    return {
        texts[0]: SaveSpec(array[:middle], texts[0], name, array.dtype, device),
        texts[1]: array[middle:],
    }


@pytest.mark.parametrize("level", ["v2", "v2+"])
@pytest.mark.parametrize("kind", ["task", "size", "balanced"])
def test_tensorflow_restores_what_saver_wrote(
    oracle: Oracle, tmp_path: Path, kind: str, level: str
) -> None:
    rng = random.Random(f"saver {kind} {level} {seed_from_environment()}")
    features: Counter[str] = Counter()
    cut = shards = 0
    for number in range(ROUNDS):
        tensors = random_tensors(rng, features)
        total = sum(len(value.packed()) for value in tensors.values())
        policy = {
            "task": ShardByTaskPolicy(),
            "size": MaxShardSizePolicy(max(64, rng.randint(1, total))),
            "balanced": BalancedPolicy(rng.randint(1, 5)),
        }[kind]
        objects = {
            name: {name.decode(): given(rng, v, name.decode())} for name, v in tensors.items()
        }
        options = CheckpointOptions(
            experimental_sharding_callback=policy, level=level, durability="rename"
        )
        with warnings.catch_warnings():
            # A scalar larger than the largest shard is told of.
            warnings.simplefilter("ignore", UserWarning)
            prefix = Saver(objects).save(tmp_path / f"{number}" / "ckpt", options)
        assert user_variables(oracle, prefix) == listing(tensors)
        for name, value in tensors.items():
            assert oracle.get_tensor(prefix, name) == value
        specs, wanted = [], []
        for value in tensors.values():
            text, index = sliced(rng, value.shape) if value.shape else ("", ())
            specs.append(text.encode())
            wanted.append(value.box(index) if value.shape else value)
        codes = [value.code for value in tensors.values()]
        assert oracle.restore_v2(prefix, list(tensors), specs, codes) == wanted
        with ckptfmt.open(prefix) as reader:
            cut += sum(len(reader[name].slices) > 1 for name in tensors)
            shards += reader.header.num_shards
    assert cut > ROUNDS // 2, f"only {cut} tensors were cut"
    assert shards > ROUNDS * 3 // 2, f"only {shards} data files"


def test_tensorflow_reads_component_0(oracle: Oracle, tmp_path: Path) -> None:
    parallel = ParallelVariable([np.full(3, i, np.float32) for i in range(3)])
    prefix = Saver({parallel: parallel.serialize("v")}).save(tmp_path / "ckpt")
    key = b"v/.ATTRIBUTES/VARIABLE_VALUE"
    assert oracle.get_tensor(prefix, key).array().tolist() == [0, 0, 0]
    assert [name for name, _, _ in user_variables(oracle, prefix)] == [
        key,
        b"v/.ATTRIBUTES/parallel_component_1",
        b"v/.ATTRIBUTES/parallel_component_2",
    ]


# ---- what TensorFlow wrote -----------------------------------------------------------------------

# With a largest size below that of the smallest slab of one of the tensors TensorFlow never ends.
POLICIES = ("task", "100", "160", "333", "100000")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A folder with one checkpoint a policy, and the arrays in each."""
    folder = tmp_path_factory.mktemp("theirs")
    rng = np.random.default_rng(seed_from_environment())
    arrays: dict[str, np.ndarray] = {
        "matrix": rng.standard_normal((6, 10)).astype(np.float32),
        "half": rng.standard_normal((5, 7)).astype(np.float16),
        "cube": rng.integers(0, 99, (3, 4, 5)),
        "short": rng.integers(0, 99, (50,)).astype(np.uint16),
        "scalar": np.array(2.5),
    }
    np.savez(folder / "tensors.npz", **arrays)
    assert ask("tf_saver.py", folder, *POLICIES) == list(POLICIES)
    arrays["text"] = np.array([b"a" * 40, b"", b"\0b\0", b"c" * 39], object)
    return folder, arrays


def key_of(name: str) -> str:
    return f"{name}/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.mark.parametrize("policy", POLICIES)
def test_saver_restores_what_tensorflow_wrote(
    theirs: tuple[Path, dict[str, np.ndarray]], policy: str
) -> None:
    folder, arrays = theirs
    prefix = folder / policy
    with ckptfmt.open(prefix) as reader:
        shards = reader.header.num_shards
        cut = [name for name in arrays if len(reader[key_of(name)].slices) > 1]
    assert (shards > 1) == (policy not in ("task", "100000"))
    assert (len(cut) > 1) == (policy not in ("task", "100000"))

    class Thing:
        def __init__(self, name: str) -> None:
            self.name = name

        def restore(self, restored: dict[str, Any]) -> dict[str, Any]:
            return {self.name: restored[key_of(self.name)]}

    whole = {Thing(name): {key_of(name): array} for name, array in arrays.items()}
    found = Saver(whole).restore(prefix)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=True)

    rng = random.Random(f"{policy} {seed_from_environment()}")
    for _ in range(ROUNDS):
        boxes = {name: sliced(rng, array.shape) for name, array in arrays.items() if array.ndim}
        parts = {
            name: {key_of(name): {text: arrays[name][index]}}
            for name, (text, index) in boxes.items()
        }
        found = Saver(parts).restore(prefix)
        for name, (text, index) in boxes.items():
            np.testing.assert_array_equal(
                found[key_of(name)][text], arrays[name][index], strict=True
            )


def test_saver_writes_anew_what_tensorflow_wrote(
    oracle: Oracle, theirs: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    folder, arrays = theirs
    loaded = ckptfmt.load(folder / "100")
    assert set(loaded) == {GRAPH, *map(key_of, arrays)}
    prefix = Saver({None: loaded}).save(tmp_path / "ckpt")
    text = oracle.get_tensor(prefix, key_of("text").encode())
    assert text == Value(STRING, (4,), tuple(arrays["text"].tolist()))
    graph = oracle.get_tensor(prefix, GRAPH.encode())
    assert graph == oracle.get_tensor(folder / "task", GRAPH.encode())
