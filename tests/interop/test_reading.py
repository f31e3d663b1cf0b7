# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of TensorFlow, of this and other machines and ages, read the same here."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckptfmt

from . import ours, table
from .generate import Tensor, finish, random_value, seed_from_environment, sliced_tensor
from .oracle import Oracle, OracleError
from .values import CODES, KINDS, STRING, Value, from_array

Features = Counter[str]


def one_of_each(rng: random.Random, shape: tuple[int, ...] = (3, 2)) -> dict[bytes, Value]:
    features: Features = Counter()
    found = {KINDS[code].name.encode(): random_value(rng, code, shape, features) for code in CODES}
    found[b"scalar"] = random_value(rng, 2, (), features)
    found[b"scalar string"] = Value(STRING, (), (b"tail\0",))
    found[b"nothing"] = Value(9, (0, 3), b"")
    found[b"no strings"] = Value(STRING, (2, 0), ())
    return found


def write(oracle: Oracle, prefix: Path, tensors: dict[bytes, Value]) -> None:
    oracle.save_v2(prefix, list(tensors), [b""] * len(tensors), list(tensors.values()))


def read_whole(prefix: Path, tensors: dict[bytes, Value]) -> dict[bytes, Value]:
    return ours.read_all(prefix, {name: value.code for name, value in tensors.items()})


def random_key(rng: random.Random, shape: tuple[int, ...]) -> tuple[object, ...]:
    """A key of basic indexing: runs, positions from either end, steps, an ellipsis."""
    key: list[object] = []
    for size in shape[: rng.randint(0, len(shape))]:
        kind = rng.random()
        if kind < 0.25 and size:
            key.append(rng.randint(-size, size - 1))
        elif kind < 0.35:
            key.append(slice(None))
        elif kind < 0.45:
            at = rng.randint(0, size)
            key.append(slice(at, at))
        elif kind < 0.6:
            step = rng.choice((None, 1, 2, 3, -1, -2))
            bounds = [rng.choice((None, rng.randint(-size - 2, size + 2))) for _ in range(2)]
            key.append(slice(*bounds, step))
        else:
            key.append(slice(*sorted((rng.randint(0, size), rng.randint(0, size)))))
    if rng.random() < 0.3:
        key.append(...)
    return tuple(key)


@pytest.mark.parametrize("code", CODES, ids=lambda code: KINDS[code].name)
def test_every_box_of_a_partitioned_tensor(oracle: Oracle, tmp_path: Path, code: int) -> None:
    """Also of the dtypes and ranks that TensorFlow itself cannot put together."""
    seed = seed_from_environment()
    rng = random.Random(f"boxes {seed} {code}")
    features: Features = Counter()
    tensors: list[Tensor] = []
    while len(tensors) < 3:
        tensor = sliced_tensor(rng, b"partitioned%d" % len(tensors), code, features)
        if tensor.complete and (len(tensor.slices) > 1 or len(tensors) == 2):
            tensors.append(tensor)
    tensors.append(Tensor(b"whole", random_value(rng, code, (5, 4, 3), features)))
    tensors.append(Tensor(b"scalar", random_value(rng, code, (), features)))
    save = finish(rng, tensors, features)
    oracle.save_v2(tmp_path / "p", save.names, save.specs, save.values)
    with ckptfmt.open(tmp_path / "p") as reader:
        for tensor in tensors:
            handle = reader[tensor.name]
            for _ in range(60):
                key = random_key(rng, tensor.full.shape)
                bits = tensor.full.bits()[key]
                expected = np.asarray(bits, dtype=bits.dtype if code != STRING else object)
                found = ours.part(handle, code, key)
                assert found.shape == expected.shape, (tensor.name, key)
                assert found.content == from_array(code, expected).content, (tensor.name, key)


def test_rank_above_eight(oracle: Oracle, tmp_path: Path) -> None:
    """TensorFlow dies putting such a tensor together; we do not."""
    full = Value(1, (2, 1, 2, 1, 1, 2, 1, 1, 1, 3), random.Random(1).randbytes(96))
    dims = " ".join(map(str, full.shape))
    rest = ":".join("-" * 9)
    specs = [f"{dims} {start},1:{rest}".encode() for start in (0, 1)]
    oracle.save_v2(
        tmp_path / "p",
        [b"v", b"v"],
        specs,
        [full.box((slice(0, 1),)), full.box((slice(1, 2),))],
    )
    assert ours.restore_v2(tmp_path / "p", [b"v"], [b""], [1]) == [full]
    assert ours.restore_v2(tmp_path / "p", [b"v"], [specs[1]], [1]) == [full.box((slice(1, 2),))]


def test_merged_shards(oracle: Oracle, tmp_path: Path) -> None:
    """Three shards of one merge, the slices of a tensor in all of them."""
    rng = random.Random(2)
    features: Features = Counter()
    full = {code: random_value(rng, code, (6, 4), features) for code in CODES}
    prefixes = []
    for shard in range(3):
        names, specs, values = [], [], []
        for code, value in full.items():
            names.append(b"sliced/%02d" % code)
            specs.append(b"6 4 %d,2:-" % (2 * shard))
            values.append(value.box((slice(2 * shard, 2 * shard + 2),)))
        names.append(b"only/%d" % shard)
        specs.append(b"")
        values.append(Value(9, (1,), bytes([shard] * 8)))
        prefixes.append(tmp_path / "p_temp" / f"part-{shard:05d}-of-00003")
        prefixes[-1].parent.mkdir(exist_ok=True)
        oracle.save_v2(prefixes[-1], names, specs, values)
    oracle.merge_v2_checkpoints(prefixes, tmp_path / "p")
    expected = {b"sliced/%02d" % code: value for code, value in full.items()}
    expected |= {b"only/%d" % shard: Value(9, (1,), bytes([shard] * 8)) for shard in range(3)}
    assert read_whole(tmp_path / "p", expected) == expected
    with ckptfmt.open(tmp_path / "p") as reader:
        assert reader["only/2"].shard == 2
        for code, value in full.items():
            handle = reader[f"sliced/{code:02d}"]
            assert ours.part(handle, code, (slice(1, 5), 3)) == value.box((slice(1, 5), 3))


@pytest.mark.parametrize("partitioned", [False, True])
def test_big_endian(oracle: Oracle, tmp_path: Path, partitioned: bool) -> None:
    rng = random.Random(3)
    tensors = one_of_each(rng)
    names, specs, values = [], [], []
    for name, value in tensors.items():
        if partitioned and value.shape == (3, 2):
            names += [name, name]
            specs += [b"3 2 -:0,1", b"3 2 -:1,1"]
            values += [value.box((slice(None), slice(at, at + 1))) for at in (0, 1)]
        else:
            names.append(name)
            specs.append(b"")
            values.append(value)
    oracle.save_v2(tmp_path / "little", names, specs, values)
    table.to_big_endian(tmp_path / "little", tmp_path / "big")
    for name, spec, value in zip(names, specs, values, strict=True):
        if value.kind.swappable:
            assert oracle.restore_v2(tmp_path / "big", [name], [spec], [value.code]) == [value]
        else:
            with pytest.raises(OracleError) as caught:
                oracle.restore_v2(tmp_path / "big", [name], [spec], [value.code])
            assert caught.value.kind == "UnimplementedError"
    assert read_whole(tmp_path / "big", tensors) == tensors
    codes = [value.code for value in values]
    assert ours.restore_v2(tmp_path / "big", names, specs, codes) == values
    with ckptfmt.open(tmp_path / "big") as reader:
        for name, value in tensors.items():
            if value.shape == (3, 2):
                key = (slice(1, 3), 1)
                assert ours.part(reader[name], value.code, key) == value.box(key)


def header(*fields: tuple[int, int, int | bytes]) -> bytes:
    return table.build_message(list(fields))


ODD_HEADERS = {
    "no version": header((1, 0, 1)),
    "empty version": header((1, 0, 1), (3, 2, b"")),
    "newer producer": header((1, 0, 1), (3, 2, header((1, 0, 7)))),
    "min consumer 1": header((1, 0, 1), (3, 2, header((1, 0, 1), (2, 0, 1)))),
    "min consumer 2": header((1, 0, 1), (3, 2, header((1, 0, 2), (2, 0, 2)))),
    "bad consumer 1": header((1, 0, 1), (3, 2, header((1, 0, 2), (3, 0, 1)))),
    "bad consumer 1 packed": header((1, 0, 1), (3, 2, header((1, 0, 2), (3, 2, b"\x05\x01")))),
    "min consumer 3": header((1, 0, 1), (3, 2, header((1, 0, 3), (2, 0, 3)))),
    "bad consumers 1 and 2": header((1, 0, 1), (3, 2, header((1, 0, 2), (3, 2, b"\x01\x02")))),
    "bad consumer 5": header((1, 0, 1), (3, 2, header((1, 0, 2), (3, 0, 5)))),
    "unknown field": header((1, 0, 1), (3, 2, header((1, 0, 1))), (99, 2, b"what")),
}
# TensorFlow's reader is consumer 1, this one 2.
FOR_CONSUMER_2 = ("min consumer 2", "bad consumer 1", "bad consumer 1 packed")
FOR_NEITHER = ("min consumer 3", "bad consumers 1 and 2")


@pytest.mark.parametrize("kind", ODD_HEADERS)
def test_headers_of_other_ages(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    tensors = one_of_each(random.Random(4))
    write(oracle, tmp_path / "p", tensors)
    index = table.index_path(tmp_path / "p")
    entries = table.read_index(index)
    index.write_bytes(table.build_index([(b"", ODD_HEADERS[kind]), *entries[1:]]))
    try:
        codes = [value.code for value in tensors.values()]
        specs = [b""] * len(tensors)
        assert oracle.restore_v2(tmp_path / "p", list(tensors), specs, codes) == list(
            tensors.values()
        )
    except OracleError as error:
        assert error.kind == "InvalidArgumentError"
        assert kind in FOR_CONSUMER_2 + FOR_NEITHER
    else:
        assert kind not in FOR_CONSUMER_2 + FOR_NEITHER
    if kind in FOR_NEITHER:
        with pytest.raises(ckptfmt.UnsupportedError) as caught:
            ckptfmt.open(tmp_path / "p")
        assert caught.value.path == str(index)
    else:
        assert read_whole(tmp_path / "p", tensors) == tensors


@pytest.mark.parametrize("per_block", [1, 3, 1000])
@pytest.mark.parametrize("compress", [None, table.snappy_literal, table.snappy_copies])
def test_blocks_of_other_writers(
    oracle: Oracle,
    tmp_path: Path,
    compress: Callable[[bytes], bytes] | None,
    per_block: int,
) -> None:
    """Old releases compressed with Snappy; other table writers cut blocks elsewhere."""
    tensors = one_of_each(random.Random(5))
    write(oracle, tmp_path / "p", tensors)
    index = table.index_path(tmp_path / "p")
    entries = table.read_index(index)
    index.write_bytes(table.build_index(entries, compress=compress, per_block=per_block))
    codes = [value.code for value in tensors.values()]
    specs = [b""] * len(tensors)
    expected = list(tensors.values())
    assert oracle.restore_v2(tmp_path / "p", list(tensors), specs, codes) == expected
    assert ours.restore_v2(tmp_path / "p", list(tensors), specs, codes) == expected
    assert read_whole(tmp_path / "p", tensors) == tensors


def test_bits_that_no_value_has(oracle: Oracle, tmp_path: Path) -> None:
    """A bool that is neither 0 nor 1, and high bits of an int4, come back as TensorFlow's bytes."""
    tensors = one_of_each(random.Random(6))
    write(oracle, tmp_path / "p", tensors)
    index = table.index_path(tmp_path / "p")
    data = bytearray(table.data_path(tmp_path / "p", 0, 1).read_bytes())
    entries = []
    for key, stored in table.read_index(index):
        entry = table.Entry.parse(stored)
        if key and KINDS[entry.dtype].used_bits:
            data[entry.offset : entry.offset + entry.size] = b"\xfd" * entry.size
            entry.set_crc(table.mask(table.crc32c(b"\xfd" * entry.size)))
            tensors[key] = Value(entry.dtype, entry.shape, b"\xfd" * entry.size)
        entries.append((key, entry.build() if key else stored))
    index.write_bytes(table.build_index(entries))
    table.data_path(tmp_path / "p", 0, 1).write_bytes(data)
    codes = [value.code for value in tensors.values()]
    specs = [b""] * len(tensors)
    expected = list(tensors.values())
    assert oracle.restore_v2(tmp_path / "p", list(tensors), specs, codes) == expected
    assert ours.restore_v2(tmp_path / "p", list(tensors), specs, codes) == expected


def test_object_based_checkpoint(oracle: Oracle, tmp_path: Path) -> None:
    rng = random.Random(7)
    features: Features = Counter()
    tensors = {
        "kernel": random_value(rng, 1, (3, 4), features),
        "step": random_value(rng, 9, (), features),
        "half": random_value(rng, 19, (2,), features),
    }
    oracle.save_checkpoint(tmp_path / "ckpt-1", tensors)
    listed = oracle.list_variables(tmp_path / "ckpt-1")
    assert len(listed) == 4
    with ckptfmt.open(tmp_path / "ckpt-1") as reader:
        for name, code, shape in listed:
            value = oracle.get_tensor(tmp_path / "ckpt-1", name)
            assert value.shape == shape
            assert ours.part(reader[name], code, ...) == value
        assert ours.part(reader["half/.ATTRIBUTES/VARIABLE_VALUE"], 19, ...) == tensors["half"]


def test_listing_as_tensorflow(oracle: Oracle, tmp_path: Path) -> None:
    """ckptfmt.tf.list_variables and load_variable answer what tf.train's answer."""
    rng = random.Random(8)
    features: Features = Counter()
    tensors = [Tensor(name, value) for name, value in one_of_each(rng).items()]
    while len(tensors) < 40:
        tensors.append(sliced_tensor(rng, b"sliced%d" % len(tensors), 1, features))
    save = finish(rng, tensors, features)
    oracle.save_v2(tmp_path / "p", save.names, save.specs, save.values)
    listed = oracle.list_variables(tmp_path / "p")
    found = ckptfmt.tf.list_variables(str(tmp_path / "p"))
    assert [(name.encode(), tuple(shape)) for name, shape in found] == [
        (name, shape) for name, _, shape in listed
    ]
    for tensor in tensors:
        if not tensor.slices:
            array = np.asarray(ckptfmt.tf.load_variable(str(tmp_path / "p"), tensor.name.decode()))
            if tensor.full.code == STRING and not tensor.full.shape:
                continue  # TensorFlow hands out a bytes object, which numpy would cut
            assert from_array(tensor.full.code, array) == tensor.full
