# SPDX-License-Identifier: Apache-2.0
"""Checkpoints saved upon others: TensorFlow reads and merges them, and ours may be saved upon its.

Whatever TensorFlow does to one of them leaves those alone that share data files with it.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt

from . import ours, table
from .generate import mixed_save, random_value, seed_from_environment
from .oracle import Oracle
from .test_ours_in_tf import arrays, assert_tensorflow_reads
from .values import CODES, Value

Tensors = dict[bytes, Value]


def changed(rng: random.Random, tensors: Tensors) -> Tensors:
    """Some tensors with other values, one less, one more."""
    features: Counter[str] = Counter()
    after: Tensors = {}
    for name, value in tensors.items():
        if rng.random() > 0.1:
            other = random_value(rng, value.code, value.shape, features)
            after[name] = other if rng.random() < 0.3 else value
    after[b"new%d" % rng.randrange(1 << 30)] = random_value(rng, rng.choice(CODES), (3,), features)
    return after


def remove(prefix: Path) -> None:
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        path.unlink()


def data_links(prefix: Path) -> list[int]:
    return [path.stat().st_nlink for path in sorted(prefix.parent.glob(f"{prefix.name}.data-*"))]


def referenced(prefix: Path) -> set[int]:
    """The data files that entries name."""
    entries = table.read_index(table.index_path(prefix))
    return {table.Entry.parse(stored).shard for key, stored in entries if key}


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_chains(oracle: Oracle, tmp_path: Path, level: str) -> None:
    """Each save upon the one before, which then goes, sometimes at the same prefix."""
    rng = random.Random(f"chain {level} {seed_from_environment()}")
    save = mixed_save(rng, rng.choices(CODES, k=20))
    tensors = {tensor.name: tensor.full for tensor in save.tensors}
    base = tmp_path / "ck"
    ckptfmt.save(base, arrays(tensors), level=level)
    for step in range(25):
        tensors = changed(rng, tensors)
        prefix = base if rng.random() < 0.3 else tmp_path / f"ck{step}"
        ckptfmt.save(prefix, arrays(tensors), level=level, base=base)
        if prefix != base:
            remove(base)
        base = prefix
        assert_tensorflow_reads(oracle, base, tensors)
        assert referenced(base) == set(range(len(data_links(base))))


def make_pair(tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A checkpoint "a" of ten tensors, and "b" upon it, of which two data files come of it."""
    first = {f"t{i}": np.full(1000, i, np.float32) for i in range(10)}
    second = {**first, "t3": np.arange(700_000, dtype=np.int32), "t4": np.ones(2, np.int8)}
    ckptfmt.save(tmp_path / "a", first)
    ckptfmt.save(tmp_path / "b", second, base=tmp_path / "a")
    assert data_links(tmp_path / "b") == [2, 1]
    return first, second


def assert_holds(prefix: Path, tensors: dict[str, Any]) -> None:
    found = ckptfmt.load(prefix, verify="full")
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert np.array_equal(found[name], array), name


@pytest.mark.parametrize("delete", [False, True])
def test_tensorflow_merges_them(oracle: Oracle, tmp_path: Path, delete: bool) -> None:
    """TensorFlow renames data files; names of the same files elsewhere stay."""
    first, second = make_pair(tmp_path)
    (tmp_path / "other").mkdir()
    ckptfmt.save(tmp_path / "other" / "x", {"x": np.ones(5)})
    inputs = [tmp_path / "b", tmp_path / "other" / "x"]
    oracle.merge_v2_checkpoints(inputs, tmp_path / "out" / "m", delete_old_dirs=delete)
    assert_holds(tmp_path / "a", first)
    assert data_links(tmp_path / "out" / "m") == [2, 1, 1]
    assert_holds(tmp_path / "out" / "m", {**second, "x": np.ones(5)})
    remove(tmp_path / "a")
    assert_holds(tmp_path / "out" / "m", {**second, "x": np.ones(5)})
    value = oracle.get_tensor(tmp_path / "out" / "m", b"t9")
    assert np.array_equal(value.array(), first["t9"])


def test_one_data_file_in_both_inputs(oracle: Oracle, tmp_path: Path) -> None:
    """Two checkpoints that share a data file, merged by TensorFlow: both have it under a name."""
    shared = {"x": np.arange(1000.0)}
    ckptfmt.save(tmp_path / "a", shared)
    ckptfmt.save(tmp_path / "b", {"x": shared["x"], "y": np.ones(3)}, base=tmp_path / "a")
    renamed = {"z": np.ones(4), "x2": np.ones(1)}
    ckptfmt.save(tmp_path / "c", renamed)
    oracle.merge_v2_checkpoints(
        [tmp_path / "b", tmp_path / "c"], tmp_path / "m" / "m", delete_old_dirs=False
    )
    assert_holds(tmp_path / "m" / "m", {"x": shared["x"], "y": np.ones(3), **renamed})
    assert_holds(tmp_path / "a", shared)


def test_tensorflow_saves_over_one(oracle: Oracle, tmp_path: Path) -> None:
    """SaveV2 at the prefix of one of two that share a data file: the other is none the worse."""
    _, second = make_pair(tmp_path)
    value = Value(1, (2,), np.array([7, 8], np.float32).tobytes())
    oracle.save_v2(tmp_path / "a", [b"t0"], [b""], [value])
    assert_holds(tmp_path / "b", second)
    assert_holds(tmp_path / "a", {"t0": np.array([7, 8], np.float32)})


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_upon_a_checkpoint_of_tensorflow(oracle: Oracle, tmp_path: Path, level: str) -> None:
    rng = random.Random(f"upon {level} {seed_from_environment()}")
    save = mixed_save(rng, list(CODES))
    tensors = {tensor.name: tensor.full for tensor in save.tensors}
    names = list(tensors)
    oracle.save_v2(tmp_path / "tf", names, [b""] * len(names), list(tensors.values()))
    ckptfmt.save(tmp_path / "same", arrays(tensors), level=level, base=tmp_path / "tf")
    # All that has bytes is what TensorFlow wrote.
    assert data_links(tmp_path / "same")[0] == 2
    after = changed(rng, tensors)
    ckptfmt.save(tmp_path / "new", arrays(after), level=level, base=tmp_path / "tf")
    remove(tmp_path / "tf")
    for prefix, held in (("same", tensors), ("new", after)):
        assert_tensorflow_reads(oracle, tmp_path / prefix, held)
        codes = {name: value.code for name, value in held.items()}
        assert ours.read_all(tmp_path / prefix, codes) == held
