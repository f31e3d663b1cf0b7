# SPDX-License-Identifier: Apache-2.0
"""What only we write (padding, chunk checksums, metadata, generations) TensorFlow reads whole."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt

from . import ours, table
from .generate import (
    Save,
    Tensor,
    box,
    large_save,
    mixed_save,
    random_value,
    seed_from_environment,
    sliced_save,
)
from .oracle import Oracle, OracleError
from .test_byte_identity import files
from .values import CODES, STRING, Value

METADATA = b"_CKPTFMT_METADATA"
CHUNK_SIZE = 256 << 10


def some_tensors(seed: int) -> dict[bytes, Value]:
    """A few small tensors and two of several chunks."""
    rng = random.Random(seed)
    features: Counter[str] = Counter()
    return {
        b"small": random_value(rng, 1, (3, 5), features),
        b"chunks": random_value(rng, 19, (700, 512), features),
        b"odd chunks": random_value(rng, 4, (CHUNK_SIZE * 2 + 17,), features),
        b"one chunk": random_value(rng, 6, (CHUNK_SIZE,), features),
        b"scalar": random_value(rng, 9, (), features),
        b"empty": Value(2, (0, 4), b""),
        b"strings": random_value(rng, STRING, (2, 3), features),
        b"bfloat16": random_value(rng, 14, (7,), features),
    }


def arrays(tensors: dict[bytes, Value]) -> dict[bytes, np.ndarray]:
    return {name: value.array() for name, value in tensors.items()}


def assert_tensorflow_reads(oracle: Oracle, prefix: Path, tensors: dict[bytes, Value]) -> None:
    codes = [value.code for value in tensors.values()]
    found = oracle.restore_v2(prefix, list(tensors), [b""] * len(tensors), codes)
    assert found == list(tensors.values())


def user_variables(oracle: Oracle, prefix: Path) -> list[tuple[bytes, int, tuple[int, ...]]]:
    """What TensorFlow lists, but for our reserved tensors."""
    return [row for row in oracle.list_variables(prefix) if not row[0].startswith(b"_CKPTFMT_")]


def listing(tensors: dict[bytes, Value]) -> list[tuple[bytes, int, tuple[int, ...]]]:
    return [(name, value.code, value.shape) for name, value in sorted(tensors.items())]


def chunked_entries(prefix: Path) -> list[bytes]:
    """Keys of the entries that hold a field which TensorFlow does not know."""
    entries = table.read_index(table.index_path(prefix))
    return [
        key
        for key, stored in entries
        if key and any(number > 7 for number, _, _ in table.parse_message(stored))
    ]


@pytest.mark.parametrize(("alignment", "shards"), [(1, 1), (42, 1), (64, 3), (4096, 1)])
@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_save(oracle: Oracle, tmp_path: Path, level: str, alignment: int, shards: int) -> None:
    tensors = some_tensors(1)
    options: dict[str, Any] = {"metadata": {"step": 7}} if level == "v2+" else {}
    options["shards"] = shards
    ckptfmt.save(tmp_path / "p", arrays(tensors), level=level, alignment=alignment, **options)
    assert_tensorflow_reads(oracle, tmp_path / "p", tensors)
    assert user_variables(oracle, tmp_path / "p") == listing(tensors)
    expected_chunks = [b"chunks", b"odd chunks"] if level == "v2+" else []
    assert chunked_entries(tmp_path / "p") == expected_chunks
    for key, stored in table.read_index(table.index_path(tmp_path / "p"))[1:]:
        assert table.Entry.parse(stored).offset % alignment == 0, key
    if level == "v2+":
        value = oracle.get_tensor(tmp_path / "p", METADATA)
        assert value == Value(STRING, (), (b'{"step":7}',))
    assert ours.read_all(tmp_path / "p", {n: v.code for n, v in tensors.items()}) == tensors


def test_random_saves(oracle: Oracle, tmp_path: Path) -> None:
    seed = seed_from_environment()
    rng = random.Random(f"ours {seed}")
    for number in range(150):
        save = large_save(rng) if number == 0 else mixed_save(rng, rng.choices(CODES, k=6))
        tensors = {tensor.name: tensor.full for tensor in save.tensors}
        alignment = rng.choice((1, 8, 64, 100))
        shards = rng.choice((1, 1, 2, 5))
        ckptfmt.save(tmp_path / "p", arrays(tensors), alignment=alignment, shards=shards)
        assert_tensorflow_reads(oracle, tmp_path / "p", tensors)
    print("generations of one prefix:", number + 1)


def write_with_writer(prefix: Path, save: Save, **options: Any) -> None:
    with ckptfmt.Writer(prefix, **options) as writer:
        for name, spec, value in zip(save.names, save.specs, save.values, strict=True):
            if spec:
                writer.add_slice(name, value.array(), spec=spec.decode())
            else:
                writer.add(name, value.array())


def requests(tensors: list[Tensor]) -> tuple[list[bytes], list[bytes], list[Value]]:
    """Everything that TensorFlow can restore of these tensors."""
    names, specs, values = [], [], []
    for tensor in tensors:
        if not tensor.slices or (tensor.complete and tensor.full.kind.stitchable):
            names.append(tensor.name)
            specs.append(b"")
            values.append(tensor.full)
        for extents, spec in tensor.slices:
            names.append(tensor.name)
            specs.append(spec)
            values.append(tensor.full.box(box(extents)))
    return names, specs, values


def test_writer_with_slices(oracle: Oracle, tmp_path: Path) -> None:
    seed = seed_from_environment()
    rng = random.Random(f"writer {seed}")
    for number in range(80):
        save = sliced_save(rng, rng.choices(CODES, k=4))
        prefix = tmp_path / f"{number}" / "p"
        level = rng.choice(("v2", "v2+"))
        write_with_writer(prefix, save, level=level, alignment=rng.choice((1, 64)))
        names, specs, values = requests(save.tensors)
        codes = [value.code for value in values]
        assert oracle.restore_v2(prefix, names, specs, codes) == values, (number, seed)
        assert ours.restore_v2(prefix, names, specs, codes) == values, (number, seed)


def test_slices_by_shape_and_offset(oracle: Oracle, tmp_path: Path) -> None:
    full = random_value(random.Random(3), 1, (600, 300), Counter())
    with ckptfmt.Writer(tmp_path / "p") as writer:
        for start in (300, 0):
            part = full.box((slice(start, start + 300),))
            writer.add_slice("v", part.array(), shape=(600, 300), offset=(start, 0))
    assert_tensorflow_reads(oracle, tmp_path / "p", {b"v": full})
    # TensorFlow finds any box, in any spelling of the stored slices.
    spec = b"600 300 299,2:1,5"
    assert oracle.restore_v2(tmp_path / "p", [b"v"], [spec], [1]) == [
        full.box((slice(299, 301), slice(1, 6)))
    ]
    assert len(chunked_entries(tmp_path / "p")) == 2


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_generations(oracle: Oracle, tmp_path: Path, level: str) -> None:
    """An overwritten prefix holds its new values whole each time, with no file left over."""
    options: dict[str, Any] = {"level": level}
    seen = set()
    for generation in range(1, 6):
        tensors = some_tensors(generation)
        ckptfmt.save(tmp_path / "p", arrays(tensors), **options)
        assert_tensorflow_reads(oracle, tmp_path / "p", tensors)
        assert user_variables(oracle, tmp_path / "p") == listing(tensors)
        assert ours.read_all(tmp_path / "p", {n: v.code for n, v in tensors.items()}) == tensors
        shards = table.shard_count(tmp_path / "p")
        names = {table.data_path(tmp_path / "p", shard, shards).name for shard in range(shards)}
        assert set(files(tmp_path)) == names | {"p.index"}
        used = {
            table.Entry.parse(stored).shard
            for key, stored in table.read_index(table.index_path(tmp_path / "p"))
            if key
        }
        assert used == set(range(shards))
        seen.add(shards)
    assert len(seen) >= 2, "two generations in a row had data files of the same names"


def test_generation_of_one_scalar(oracle: Oracle, tmp_path: Path) -> None:
    """Nothing to spread over two data files."""
    for generation in range(1, 4):
        value = Value(3, (), bytes([generation, 0, 0, 0]))
        ckptfmt.save(tmp_path / "p", {"step": value.array()})
        assert_tensorflow_reads(oracle, tmp_path / "p", {b"step": value})
        assert user_variables(oracle, tmp_path / "p") == [(b"step", 3, ())]


def test_tensorflow_over_ours_and_back(oracle: Oracle, tmp_path: Path) -> None:
    """TensorFlow may save over our second generation, and we over TensorFlow's."""
    for generation in range(1, 4):
        tensors = some_tensors(generation)
        ckptfmt.save(tmp_path / "p", arrays(tensors))
    theirs = some_tensors(9)
    oracle.save_v2(tmp_path / "p", list(theirs), [b""] * len(theirs), list(theirs.values()))
    codes = {name: value.code for name, value in theirs.items()}
    assert ours.read_all(tmp_path / "p", codes) == theirs
    tensors = some_tensors(10)
    ckptfmt.save(tmp_path / "p", arrays(tensors))
    assert_tensorflow_reads(oracle, tmp_path / "p", tensors)


def two_bundles(directory: Path, generations: int) -> tuple[list[Path], dict[bytes, Value]]:
    """Two v2+ bundles with the halves of one tensor, chunked, and tensors of their own."""
    whole = random_value(random.Random(4), 1, (400, 512), Counter())
    prefixes = [directory / "p_temp" / f"part-{shard:05d}-of-00002" for shard in (0, 1)]
    expected = {b"shared": whole}
    for shard, prefix in enumerate(prefixes):
        own = {name + b"/%d" % shard: value for name, value in some_tensors(20 + shard).items()}
        expected |= own
        half = whole.box((slice(200 * shard, 200 * shard + 200),))
        for _ in range(generations):
            with ckptfmt.Writer(prefix, metadata={"run": 3}) as writer:
                writer.add_slice("shared", half.array(), shape=(400, 512), offset=(200 * shard, 0))
                for name, value in own.items():
                    writer.add(name, value.array())
    return prefixes, expected


@pytest.mark.parametrize("generations", [1, 2])
@pytest.mark.parametrize("inputs", ["keep", "consume"])
def test_our_merge(oracle: Oracle, tmp_path: Path, inputs: str, generations: int) -> None:
    prefixes, expected = two_bundles(tmp_path, generations)
    ckptfmt.merge(prefixes, tmp_path / "p", inputs=inputs)
    assert_tensorflow_reads(oracle, tmp_path / "p", expected)
    assert user_variables(oracle, tmp_path / "p") == listing(expected)
    codes = {name: value.code for name, value in expected.items()}
    assert ours.read_all(tmp_path / "p", codes) == expected
    if inputs == "keep":
        own = {name: value for name, value in expected.items() if name.endswith(b"/0")}
        assert_tensorflow_reads(oracle, prefixes[0], own)
    # A second merge over the first.
    ckptfmt.merge([tmp_path / "p"], tmp_path / "q", inputs=inputs)
    assert_tensorflow_reads(oracle, tmp_path / "q", expected)


@pytest.mark.parametrize("generations", [1, 2])
def test_merge_with_tensorflows_bundle(oracle: Oracle, tmp_path: Path, generations: int) -> None:
    prefixes, expected = two_bundles(tmp_path, generations)
    theirs = {b"theirs/" + name: value for name, value in some_tensors(30).items()}
    third = tmp_path / "p_temp" / "third"
    oracle.save_v2(third, list(theirs), [b""] * len(theirs), list(theirs.values()))
    ckptfmt.merge([third, *prefixes], tmp_path / "p")
    assert_tensorflow_reads(oracle, tmp_path / "p", expected | theirs)
    assert user_variables(oracle, tmp_path / "p") == listing(expected | theirs)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("generations", [1, 2])
def test_tensorflows_merge_of_ours(
    oracle: Oracle, tmp_path: Path, generations: int, shards: int
) -> None:
    """Readable by both afterwards, chunk checksums included; one input only has metadata."""
    prefixes, expected = two_bundles(tmp_path, generations)
    shutil.rmtree(tmp_path / "p_temp")
    whole = expected[b"shared"]
    for shard, prefix in enumerate(prefixes):
        metadata = {"metadata": {"run": 3}} if shard == 0 else {}
        half = whole.box((slice(200 * shard, 200 * shard + 200),))
        for _ in range(generations):
            with ckptfmt.Writer(prefix, shards=shards, **metadata) as writer:
                writer.add_slice("shared", half.array(), shape=(400, 512), offset=(200 * shard, 0))
                for name, value in expected.items():
                    if name.endswith(b"/%d" % shard):
                        writer.add(name, value.array())
    before = sum(len(chunked_entries(prefix)) for prefix in prefixes)
    try:
        oracle.merge_v2_checkpoints(prefixes, tmp_path / "p")
    except OracleError as error:
        raise AssertionError(
            f"TensorFlow cannot merge generation {generations}: {error}"
        ) from error
    assert_tensorflow_reads(oracle, tmp_path / "p", expected)
    codes = {name: value.code for name, value in expected.items()}
    assert ours.read_all(tmp_path / "p", codes) == expected
    assert len(chunked_entries(tmp_path / "p")) == before == 6
    with ckptfmt.open(tmp_path / "p") as reader:
        assert reader.metadata == {"run": 3}
        handle = reader["shared"]
        assert handle.partial_reads_verified
        assert ours.part(handle, 1, (slice(150, 250), 5)) == whole.box((slice(150, 250), 5))
