# SPDX-License-Identifier: Apache-2.0
"""The reader as a mapping, its handles, and what reading costs."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import re
from collections.abc import Callable, ItemsView, KeysView, Mapping, ValuesView
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interop.values import STRING
from support import index as ix
from support.arrays import CODES, NAMES, assert_same, bits, random_array, random_key
from support.dict_client import mount
from support.files import flip
from support.process import Spent

import ckptfmt
from ckptfmt import CorruptError, InvalidError, TensorNotFoundError
from ckptfmt.bundle import tensor

VARIANT = 21
CHUNK = 262_144
MIB = 1 << 20


def save(prefix: Path, tensors: Any, **options: Any) -> Path:
    ckptfmt.save(prefix, tensors, durability="none", **options)
    return prefix


def cut(writer: ckptfmt.Writer, name: str, value: Any, chance: random.Random) -> None:
    """Adds a tensor in random slices along its first dimension."""
    rows = value.shape[0]
    cuts = sorted({0, rows, *(chance.randint(0, rows) for _ in range(3))})
    for low, high in itertools.pairwise(cuts):
        middle = chance.randint(0, value.shape[1])
        for left, right in ((0, middle), (middle, value.shape[1])):
            if left < right:
                writer.add_slice(
                    name, value[low:high, left:right], value.shape, (low, left, 0, 0)[: value.ndim]
                )


# ---- mapping -------------------------------------------------------------------------------------


def test_mapping(tmp_path: Path) -> None:
    tensors = {"b": np.zeros((2, 3), np.float32), "a/x": np.array([b"s"], object), "a": np.int8(1)}
    with ckptfmt.open(save(tmp_path / "ck", tensors)) as reader:
        assert isinstance(reader, Mapping)
        assert list(reader) == ["a", "a/x", "b"] and len(reader) == 3
        assert isinstance(reader.keys(), KeysView) and list(reader.keys()) == list(reader)
        assert isinstance(reader.items(), ItemsView) and isinstance(reader.values(), ValuesView)
        assert [(name, handle.name) for name, handle in reader.items()] == [
            (name, name) for name in reader
        ]
        assert [handle.name for handle in reader.values()] == list(reader)
        assert len(reader.items()) == len(reader.values()) == len(reader.keys()) == 3
        assert reader.keys() & {"a", "z"} == {"a"}
        chosen = reader.keys(prefix="a", glob="*x*", regex=re.compile("X$", re.IGNORECASE))
        assert isinstance(chosen, KeysView) and list(chosen) == ["a/x"] and "a" not in chosen
        assert "a" in reader and b"a" in reader and "a/" not in reader and "" not in reader
        assert 3 not in reader and None not in reader and "\ud800" not in reader
        assert reader.get("z") is None and reader.get("z", 5) == 5
        assert reader["b"].shape == (2, 3)
        assert reader != dict(reader) and hash(reader) == id(reader)
        assert repr(reader) == f"<ckptfmt.Reader '{tmp_path}/ck'>"
        assert repr(reader["b"]) == "<TensorHandle 'b' float32 (2, 3)>"


@pytest.mark.parametrize("name", ["z", b"z", "a\0", "", "aa"])
def test_a_missing_tensor(tmp_path: Path, name: str | bytes) -> None:
    prefix = save(tmp_path / "ck", {"a": [1]})
    with ckptfmt.open(prefix) as reader:
        with pytest.raises(TensorNotFoundError) as caught:
            reader[name]
        assert isinstance(caught.value, KeyError)
        expected = name if isinstance(name, str) else name.decode()
        assert (caught.value.tensor or "") == expected
        assert caught.value.path == f"{prefix}.index"


def test_table(tmp_path: Path) -> None:
    with ckptfmt.Writer(tmp_path / "ck", metadata={"k": 1}, alignment=64) as writer:
        writer.add("big", np.zeros(CHUNK + 2, np.int16))
        writer.add("s", ["ab", "cde"])
        writer.add_slice("cut", np.zeros((1, 3), np.float32), (2, 3), (0, 0))
        writer.add_slice("cut", np.ones((1, 3), np.float32), (2, 3), (1, 0))
    with ckptfmt.open(tmp_path / "ck") as reader:
        table = reader.table()
        size = 2 * (CHUNK + 2)
        string, _ = ix.string_value([b"ab", b"cde"])
        at = 64 + -(-size // 64) * 64  # after the metadata
        assert table["name"].tolist() == ["big", "cut", "s"]
        assert table["dtype"].tolist() == ["int16", "float32", "string"]
        assert table["dtype_code"].tolist() == [5, 1, 7]
        assert table["shape"].tolist() == [(CHUNK + 2,), (2, 3), (2,)]
        assert table["nbytes"].tolist() == table["stored_nbytes"].tolist() == [size, 24, 11]
        assert len(string) == 11
        assert table["shard"].tolist() == [0, -1, 0]
        assert table["offset"].tolist() == [64, 0, at]
        assert table["chunk_size"].tolist() == [CHUNK, 0, 0]
        assert table["slices"].tolist() == [0, 2, 0]
        assert table["crc32c"][0] == ix.crc32c(bytes(size)) == reader["big"].crc32c
        names = reader.table(reserved=True)["name"].tolist()
        assert names == ["_CKPTFMT_METADATA", "big", "cut", "s"]
        assert reader["big"].nbytes == size and reader["s"].nbytes == 11
        assert (reader["cut"].size, reader["cut"].ndim, len(reader["cut"])) == (6, 2, 2)


# ---- what it costs -------------------------------------------------------------------------------


def test_opening_and_looking_reads_no_tensor(tmp_path: Path) -> None:
    """Without its data file's bytes nothing but the index can have been read."""
    tensors = {f"t{i:03d}": np.full(1000, i, np.float64) for i in range(300)}
    prefix = save(tmp_path / "ck", {**tensors, "s": np.full(900, b"text", object)})
    index_size = os.path.getsize(f"{prefix}.index")
    with Spent() as spent, ckptfmt.open(prefix) as reader:
        assert len(reader) == 301 and "t007" in reader
        assert all(handle.shape in ((1000,), (900,)) for handle in reader.values())
        assert reader["t007"].dtype == np.float64 and reader["s"].nbytes > 900
        assert len(reader.table()) == 301 and reader.metadata == {} and reader.level == "v2"
    assert spent.bytes_read <= 2 * index_size
    assert spent.writes == spent.maps == 0 and spent.opens <= 3
    with ckptfmt.open(prefix) as reader:
        handle = reader["t007"]
        with Spent() as spent:
            assert handle.read()[0] == 7
        assert spent.bytes_read == 8000
        with Spent() as spent:
            assert handle[:0].shape == (0,)
        assert spent.bytes_read == 0


# ---- indexing ------------------------------------------------------------------------------------


def check_key(handle: ckptfmt.types.TensorHandle, value: Any, key: Any) -> None:
    """The handle gives what numpy does: the same elements in the same type, or IndexError."""
    try:
        expected = value[key]
    except IndexError:
        with pytest.raises(IndexError):
            handle[key]
        return
    got = handle[key]
    assert type(got) is type(expected), (handle, key)
    assert bits(got) == bits(expected), (handle, key)


@pytest.mark.parametrize("code", CODES, ids=NAMES.get)
def test_indexing_is_numpys(tmp_path: Path, seed: int, code: int) -> None:
    """On whole and on partitioned tensors, in every verify mode; scalars where numpy gives them."""
    chance = random.Random(seed + code)
    shapes = [(), (0,), (1,), (7,), (4, 6), (5, 1, 3), (2, 3, 4, 2), (3, 0, 2)]
    values = {f"w{i}": random_array(chance, code, shape) for i, shape in enumerate(shapes)}
    parts = {
        f"p{i}": random_array(chance, code, shape) for i, shape in enumerate([(6, 5), (4, 3, 2)])
    }
    with ckptfmt.Writer(tmp_path / "ck", level="v2", durability="none") as writer:
        for name, value in values.items():
            writer.add(name, value)
        for name, value in parts.items():
            cut(writer, name, value, chance)
    readers = [ckptfmt.open(tmp_path / "ck", verify=verify) for verify in ("auto", "full", "off")]
    for name, value in (values | parts).items():
        for reader in readers:
            assert_same(reader[name].read(), value)
        for _ in range(25):
            check_key(chance.choice(readers)[name], value, random_key(chance, value.shape))
    for reader in readers:
        reader.close()


def test_what_indexing_returns_is_the_callers(tmp_path: Path) -> None:
    value = np.arange(1000)
    with ckptfmt.open(save(tmp_path / "ck", {"x": value})) as reader:
        handle = reader["x"]
        got = handle[::500]
        assert got.base is None and got.flags.writeable and got.tolist() == [0, 500]
        got[:] = -1
        assert handle[::500].tolist() == [0, 500]
        assert handle.read().flags.writeable and handle.read() is not handle.read()


INDICES = "indices must be integers, slices or an ellipsis"


@pytest.mark.parametrize(
    ("key", "kind", "message"),
    [
        (4, IndexError, "index 4 is out of bounds for dimension 0 of size 4"),
        ((0, -7), IndexError, "index -7 is out of bounds for dimension 1 of size 6"),
        ((0, 0, 0), IndexError, "too many indices: 3 for a tensor of 2 dimensions"),
        ((..., ...), IndexError, "an index can only have a single ellipsis ('...')"),
        (None, InvalidError, "None (a new dimension) cannot be an index here"),
        ([1], InvalidError, f"{INDICES}, not list"),
        (np.array([1]), InvalidError, f"{INDICES}, not ndarray"),
        (np.array(1), InvalidError, f"{INDICES}, not ndarray"),
        (True, InvalidError, f"{INDICES}, not bool"),
        (np.True_, InvalidError, f"{INDICES}, not bool"),
        (1.0, InvalidError, f"{INDICES}, not float"),
        ("x", InvalidError, f"{INDICES}, not str"),
        (slice(None, None, 0), InvalidError, "slice(None, None, 0): slice step cannot be zero"),
        (slice(0.5), InvalidError, "slice(None, 0.5, None): slice indices must be integers"),
    ],
    ids=repr,
)
def test_refused_keys(tmp_path: Path, key: Any, kind: type[Exception], message: str) -> None:
    with ckptfmt.open(save(tmp_path / "ck", {"x": np.zeros((4, 6))})) as reader:
        handle = reader["x"]
        with Spent() as spent, pytest.raises(kind) as caught:
            handle[key]
        assert str(caught.value).startswith(message)
        assert spent.reads == 0
        assert handle[np.int64(3), np.uint8(2)] == 0.0


# ---- other ways to read --------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES, ids=NAMES.get)
def test_read_into(tmp_path: Path, seed: int, code: int) -> None:
    value = random_array(random.Random(seed + code), code, (3, 4))
    with ckptfmt.Writer(tmp_path / "ck", durability="none") as writer:
        writer.add("x", value)
        writer.add_slice("p", value[:, :2], (3, 4), (0, 0))
        writer.add_slice("p", value[:, 2:], (3, 4), (0, 2))
    blank = np.zeros((6, 8), value.dtype)
    targets: list[Callable[[], Any]] = [
        lambda: np.zeros_like(value),
        lambda: np.zeros((3, 4), value.dtype, order="F"),
        lambda: blank.copy()[::2, ::2],
        lambda: blank.copy()[2::-1, 3::-1],
    ]
    with ckptfmt.open(tmp_path / "ck", verify="full") as reader:
        for name in ("x", "p"):
            for make in targets:
                target = make()
                assert reader[name].read_into(target) is target
                assert_same(target, value)
        strided = blank.copy()
        reader["x"].read_into(strided[::2, 1::2])
        assert_same(strided[::2, 1::2], value)
        assert_same(strided[1::2], blank[1::2])
        assert_same(strided[:, ::2], blank[:, ::2])


@pytest.mark.parametrize("name", ["x", "p", "s"])
def test_read_into_refuses(tmp_path: Path, name: str) -> None:
    """Before anything is read or written."""
    value = np.arange(6, dtype=np.int32).reshape(2, 3)
    with ckptfmt.Writer(tmp_path / "ck", durability="none") as writer:
        writer.add("x", value)
        writer.add("s", value.astype("S"))
        writer.add_slice("p", value[:1], (2, 3), (0, 0))
        writer.add_slice("p", value[1:], (2, 3), (1, 0))
    dtype = np.dtype(object if name == "s" else np.int32)
    other = np.dtype(np.int64)
    read_only = np.zeros((2, 3), dtype)
    read_only.setflags(write=False)
    cases: list[tuple[Any, str]] = [
        (np.zeros((2, 3), other), f"cannot read dtype {dtype} into an array of dtype {other}"),
        (np.full((2, 3), "", np.dtypes.StringDType()), f"cannot read dtype {dtype} into"),
        (np.zeros((3, 2), dtype), "cannot read shape (2, 3) into an array of shape (3, 2)"),
        (np.zeros(6, dtype), "cannot read shape (2, 3) into an array of shape (6,)"),
        (np.zeros((), dtype), "cannot read shape (2, 3) into an array of shape ()"),
        (read_only, f"cannot read into numpy.ndarray of dtype {read_only.dtype}: it is read-only"),
        ([[0] * 3] * 2, "cannot read into list: "),
        ("text", "cannot read into str: "),
        (b"x" * 24, "cannot read into bytes: "),
    ]
    with ckptfmt.open(tmp_path / "ck") as reader:
        handle = reader[name]
        if name != "s":
            swapped = np.zeros((2, 3), dtype.newbyteorder())
            assert handle.read_into(swapped) is swapped and np.array_equal(swapped, value)
        for target, message in cases:
            with Spent() as spent, pytest.raises(InvalidError) as caught:
                handle.read_into(target)
            assert caught.value.message.startswith(message) and caught.value.tensor == name
            assert spent.reads == 0
            if isinstance(target, np.ndarray):
                assert not target.any()


def test_map(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    values = {
        NAMES[code]: random_array(chance, code, chance.choice([(), (3, 5), (0, 2), (70_000,)]))
        for code in CODES
        if code != STRING
    }
    for alignment in (1, 64):
        prefix = save(tmp_path / f"ck{alignment}", values, alignment=alignment)
        with ckptfmt.open(prefix) as reader:
            for name, value in values.items():
                for verify in (None, "full", "off"):
                    mapped = reader[name].map(verify=verify)
                    assert_same(mapped, value)
                    assert not mapped.flags.writeable
            with Spent() as spent:
                large = reader["float64"].map(verify="off")
            assert spent.bytes_read == 0 and spent.maps == (1 if large.size else 0)


def test_map_refuses(tmp_path: Path) -> None:
    with ckptfmt.Writer(tmp_path / "ck") as writer:
        writer.add("s", ["text"])
        writer.add_slice("p", [1], (2,), (0,))
        writer.add_slice("p", [2], (2,), (1,))
    with ckptfmt.open(tmp_path / "ck") as reader:
        for name, message in (
            ("s", "a tensor of this data type cannot be mapped"),
            ("p", "a partitioned tensor is not in one piece and cannot be mapped"),
        ):
            with pytest.raises(InvalidError) as caught:
                reader[name].map()
            assert (caught.value.message, caught.value.tensor) == (message, name)


def test_as_array(tmp_path: Path) -> None:
    value = np.arange(6).reshape(2, 3)
    with ckptfmt.open(save(tmp_path / "ck", {"x": value, "zero": np.float32(5)})) as reader:
        handle = reader["x"]
        assert_same(np.asarray(handle), value)
        assert_same(np.asarray(handle, np.float32), value.astype(np.float32))
        assert_same(np.array(handle, copy=True), value)
        assert np.sum(handle) == 15 and np.array_equal(handle, value)
        with pytest.raises(ValueError, match="a TensorHandle is not in memory"):
            handle.__array__(copy=False)
        assert_same(np.asarray(reader["zero"]), np.array(5, np.float32))
        assert len(handle) == 2
        with pytest.raises(TypeError, match="of a tensor without dimensions"):
            len(reader["zero"])


# ---- verifying -----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_verify_modes(tmp_path: Path, level: str) -> None:
    """A flipped bit in the fourth of ten chunks: what notices it, and where it says it is."""
    value = np.zeros(10 * CHUNK, np.uint8)
    prefix = save(tmp_path / "ck", {"x": value}, level=level)
    at = 3 * CHUNK + 1000
    flip(tmp_path / "ck.data-00000-of-00001", at)
    damaged = value.copy()
    damaged[at] = 0x10
    offset = 3 * CHUNK if level == "v2+" else 0

    def refuses(read: Callable[[], object]) -> None:
        with pytest.raises(CorruptError, match=r"DAT-|EXT-") as caught:
            read()
        error = caught.value
        assert (error.failure, error.tensor, error.path) == (
            "CHECKSUM",
            "x",
            f"{prefix}.data-00000-of-00001",
        )
        assert error.offset in (0, offset)

    with ckptfmt.open(prefix) as reader:
        handle = reader["x"]
        assert handle.partial_reads_verified == (level == "v2+")
        refuses(handle.read)
        refuses(lambda: handle.read(verify="full"))
        refuses(handle.map)
        refuses(lambda: handle.read_into(np.zeros_like(value)))
        assert_same(handle.read(verify="off"), damaged)
        assert_same(handle.map(verify="off"), damaged)
        assert_same(handle.read_into(np.zeros_like(value), verify="off"), damaged)
        assert_same(handle[: 3 * CHUNK], value[: 3 * CHUNK])
        assert_same(handle[4 * CHUNK : 4 * CHUNK + 9], value[:9])
        if level == "v2+":
            refuses(lambda: handle[at + 5])
            refuses(lambda: handle[3 * CHUNK - 1 : 3 * CHUNK + 1])
        else:
            assert handle[at] == 0x10
    with ckptfmt.open(prefix, verify="full") as reader:
        refuses(lambda: reader["x"][-1])
    with ckptfmt.open(prefix, verify="off") as reader:
        assert reader["x"][at] == 0x10
        assert_same(reader["x"].read(), damaged)
        refuses(lambda: reader["x"].read(verify="auto"))


def test_small_tensors_are_checked_whole(tmp_path: Path) -> None:
    """Up to 1 MiB a part is read with all the rest, and checked; of strings always."""
    tensors = {
        "edge": np.zeros(MIB, np.uint8),
        "over": np.zeros(MIB + 1, np.uint8),
        "text": np.array([b"x" * MIB, b"y"]),
    }
    prefix = save(tmp_path / "ck", tensors, level="v2")
    with ckptfmt.Writer(tmp_path / "cut", level="v2") as writer:
        for name, size in (("edge", MIB), ("over", MIB + 1)):
            writer.add_slice(name, np.zeros(size, np.uint8), (2 * MIB + 1,), (0,))
            rest = 2 * MIB + 1 - size
            writer.add_slice(name, np.zeros(rest, np.uint8), (2 * MIB + 1,), (size,))
    for offset in (100, MIB + 100, 2 * MIB + 100):
        flip(tmp_path / "ck.data-00000-of-00001", offset)
    with ckptfmt.open(prefix) as reader:
        assert reader["edge"].partial_reads_verified
        assert not reader["over"].partial_reads_verified
        with pytest.raises(CorruptError) as caught:
            reader["edge"][500:]
        assert (caught.value.failure, caught.value.tensor) == ("CHECKSUM", "edge")
        assert not reader["over"][500:].any()
        assert reader["text"].partial_reads_verified
        with pytest.raises(CorruptError):
            reader["text"][1:]
    with ckptfmt.open(tmp_path / "cut") as reader:
        assert not reader["edge"].partial_reads_verified
        assert not reader["over"].partial_reads_verified


# ---- the whole -----------------------------------------------------------------------------------


def test_digest(tmp_path: Path, seed: int) -> None:
    """The same for the same contents, however stored; another for whatever differs."""
    chance = random.Random(seed)
    tensors = {NAMES[code]: random_array(chance, code, (3, 4)) for code in CODES}
    tensors["big"] = random_array(chance, 1, (300, 400))

    def digest(name: str, given: Any, **options: Any) -> str:
        with ckptfmt.open(save(tmp_path / name, given, **options)) as reader:
            return reader.digest()

    expected = digest("v2", tensors, level="v2")
    assert re.fullmatch("[0-9a-f]{64}", expected)
    assert digest("v2+", tensors) == expected
    assert digest("v2", tensors, level="v2") == expected
    backwards = list(tensors.items())[::-1]
    assert digest("order", backwards, alignment=4096) == expected
    with ckptfmt.Writer(tmp_path / "cut") as writer:
        for name, value in tensors.items():
            cut(writer, name, value, chance)
    with ckptfmt.open(tmp_path / "cut") as reader:
        assert reader.digest() == expected
    halves = [dict(backwards[:10]), dict(backwards[10:])]
    for number, half in enumerate(halves):
        save(tmp_path / f"half{number}", half)
    ckptfmt.merge([tmp_path / "half0", tmp_path / "half1"], tmp_path / "merged")
    with ckptfmt.open(tmp_path / "merged") as reader:
        assert reader.digest() == expected
    others = [
        {**tensors, "float32": tensors["float32"].reshape(4, 3)},
        {**tensors, "int32": tensors["int32"].view(np.uint32)},
        {**tensors, "bool": ~tensors["bool"]},
        {name + "x" if name == "float16" else name: value for name, value in tensors.items()},
        {name: value for name, value in tensors.items() if name != "float16"},
    ]
    digests = {digest(f"other{i}", other) for i, other in enumerate(others)}
    digests.add(digest("metadata", tensors, metadata={"k": 1}))
    assert len(digests | {expected}) == len(others) + 2


def test_pickling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "ck", {"x": np.zeros(2 * MIB, np.uint8)}, level="v2")
    monkeypatch.chdir(tmp_path)
    with ckptfmt.open("ck", verify="off", limits={"open_files_max": 3}) as reader:
        pickled = pickle.dumps(reader)
    monkeypatch.chdir("/")
    flip(tmp_path / "ck.data-00000-of-00001", 5)
    with pickle.loads(pickled) as again:
        assert again.prefix == str(tmp_path / "ck") and not again.closed
        assert again["x"].read()[5] == 0x10  # as told, nothing is verified
    os.rename(tmp_path / "ck.index", tmp_path / "other.index")
    with pytest.raises(ckptfmt.CheckpointNotFoundError):
        pickle.loads(pickled)


def test_a_closed_reader(tmp_path: Path) -> None:
    reader = ckptfmt.open(save(tmp_path / "ck", {"x": np.arange(3)}))
    handle, mapped = reader["x"], reader["x"].map()
    assert not reader.closed
    reader.close()
    reader.close()
    assert reader.closed and repr(reader) == f"<ckptfmt.Reader '{tmp_path}/ck' closed>"
    uses: list[Callable[[], object]] = [
        lambda: list(reader),
        lambda: len(reader),
        lambda: "x" in reader,
        lambda: reader["x"],
        lambda: reader.get("x"),
        lambda: list(reader.values()),
        lambda: reader.keys(prefix="x"),
        reader.table,
        lambda: reader.metadata,
        lambda: reader.level,
        reader.digest,
        reader.regions,
        handle.read,
        lambda: handle[0],
        handle.map,
        lambda: handle.read_into(np.zeros(3, np.int64)),
    ]
    for use in uses:
        with pytest.raises(InvalidError, match=r"^checkpoint is closed$"):
            use()
    assert reader.header.num_shards == 1 and handle.shape == (3,)
    assert mapped.tolist() == [0, 1, 2]
    with pytest.raises(InvalidError, match="closed"), reader:
        len(reader)


def test_limits(tmp_path: Path) -> None:
    prefix = save(tmp_path / "ck", {"x": np.zeros(100)})
    with pytest.raises(InvalidError, match="unknown limit 'nothing'; the limits are index_bytes_m"):
        ckptfmt.open(prefix, limits={"nothing": 1})
    with pytest.raises(InvalidError, match="limit 'entries_max': "):
        ckptfmt.open(prefix, limits={"entries_max": -1})
    with pytest.raises(ckptfmt.errors.LimitError) as caught:
        ckptfmt.open(prefix, limits={"index_bytes_max": 10})
    assert caught.value.path == f"{prefix}.index"


def _cut(prefix: Path, value: Any, compression: Any) -> None:
    with ckptfmt.Writer(prefix, compression=compression) as writer:
        for row in (0, 5):
            writer.add_slice("x", value[row : row + 5], value.shape, (row, 0))


def _variants(prefix: Path) -> None:
    data, crc = ix.variant_value([b"v" * 100] * 10)
    entry = ix.stored_entry(VARIANT, (10,), data, masked_crc=crc)
    ix.write(prefix, ix.index_of([(b"", ix.header()), (b"x", entry)]), data)


NUMBERS = np.zeros((10, 20_000), np.float32)
TEXTS = np.array([b"t" * 100] * 1000, object).reshape(10, 100)


def _texts(count: int) -> int:
    return 4 + count * 101  # a checksum, and a byte of length for each


N, ROW = NUMBERS.nbytes, NUMBERS.nbytes // 10


def _empty(handle: ckptfmt.types.TensorHandle) -> Any:
    assert handle.dtype is not None
    return np.empty(handle.shape, handle.dtype)


def _raise_problem(report: ckptfmt.types.Report) -> None:
    for problem in report.problems:
        is_limit = problem.status == "LIMIT"
        raise problem.error(ckptfmt.errors.LimitError if is_limit else CorruptError)


# What writes a tensor, and the lowest `tensor_bytes_max` with which it is read whole, its first row
# is read, it is verified, and mapped. 0: never refused; None: such a tensor cannot be mapped.
Stored = tuple[Callable[[Path], object], int, int, int, int | None]
STORED: dict[str, Stored] = {
    "fixed": (lambda p: ckptfmt.save(p, {"x": NUMBERS}), N, ROW, 0, N),
    "fixed, compressed": (
        lambda p: ckptfmt.save(p, {"x": NUMBERS}, compression="zstd"),
        *(N, N, N, None),
    ),
    "fixed, in slices": (lambda p: _cut(p, NUMBERS, None), N, ROW, 0, None),
    "fixed, in compressed slices": (
        lambda p: _cut(p, NUMBERS, "zstd"),
        *(N, N // 2, N // 2, None),
    ),
    "strings": (lambda p: ckptfmt.save(p, {"x": TEXTS}), *[_texts(1000)] * 3, None),
    "strings, compressed": (
        lambda p: ckptfmt.save(p, {"x": TEXTS}, compression="zstd"),
        *(*[_texts(1000)] * 3, None),
    ),
    "strings, in slices": (lambda p: _cut(p, TEXTS, None), *[_texts(500)] * 3, None),
    "strings, in compressed slices": (
        lambda p: _cut(p, TEXTS, "zstd"),
        *(*[_texts(500)] * 3, None),
    ),
    "variants": (_variants, *[10 * 105] * 3, None),
}
DOORS: dict[str, tuple[int, Callable[[ckptfmt.Reader], object]]] = {
    "read": (1, lambda reader: reader.read("x")),
    "handle": (1, lambda reader: reader["x"].read()),
    "into": (1, lambda reader: reader["x"].read_into(_empty(reader["x"]))),
    "whole": (1, lambda reader: reader["x"][...]),
    "digest": (1, lambda reader: reader.digest()),
    "row": (2, lambda reader: reader["x"][0]),
    "verify": (3, lambda reader: _raise_problem(reader.verify())),
    "map": (4, lambda reader: reader["x"].map()),
    "map unverified": (4, lambda reader: reader["x"].map(verify="off")),
}


def at_place(directory: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The prefix of the checkpoint "ck" in a directory, or in a store with the same objects."""
    if place == "file":
        return str(directory / "ck")
    client = mount(monkeypatch)
    for path in directory.iterdir():
        client.set(path.name, path.read_bytes())
    return "dict://bucket/ck"


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("place", ["file", "store"])
def test_a_value_has_at_most_so_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str, place: str
) -> None:
    row = STORED[stored]
    row[0](tmp_path / "ck")
    prefix = at_place(tmp_path, place, monkeypatch)
    for door, (column, use) in DOORS.items():
        limit = row[column]
        for given in () if limit is None else (limit, limit - 1):
            with ckptfmt.open(prefix, limits={"tensor_bytes_max": max(given, 1)}) as reader:
                if limit in (given, 0):
                    use(reader)
                    continue
                with pytest.raises(ckptfmt.errors.LimitError) as caught:
                    use(reader)
            assert caught.value.tensor == "x", door


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("place", ["file", "store"])
def test_damage_is_noticed_at_every_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str, place: str
) -> None:
    write, *columns = STORED[stored]
    write(tmp_path / "ck")
    flip(tmp_path / "ck.data-00000-of-00001", 3)
    with ckptfmt.open(at_place(tmp_path, place, monkeypatch)) as reader:
        for door, (column, use) in DOORS.items():
            if columns[column - 1] is None or door == "map unverified":
                continue
            with pytest.raises(CorruptError) as caught:
                use(reader)
            assert caught.value.tensor == "x", door


def test_an_unknown_dtype_gives_its_bytes(tmp_path: Path) -> None:
    data = bytes(range(24))
    rows = [(b"", ix.header()), (b"odd", ix.stored_entry(99, (2, 3), data))]
    ix.write(tmp_path / "ck", ix.index_of(rows), data)
    expected = np.frombuffer(data, np.uint8)
    with ckptfmt.open(tmp_path / "ck") as reader:
        handle = reader["odd"]
        assert handle.dtype is None and handle.dtype_code == 99
        assert (handle.dtype_name, handle.shape, handle.nbytes) == ("dtype 99", (2, 3), 24)
        assert_same(handle.read(), expected)
        assert_same(handle.read_into(np.zeros(24, np.uint8)), expected)
        with pytest.raises(ckptfmt.UnsupportedError, match="element size of dtype 99 is not known"):
            handle[0]
        with pytest.raises(InvalidError, match="into an array of shape"):
            handle.read_into(np.zeros((2, 3), np.uint8))
        assert reader.table()["nbytes"].tolist() == [24]
    assert_same(ckptfmt.load(tmp_path / "ck")["odd"], expected)


def test_rank_above_numpys(tmp_path: Path) -> None:
    rows = [(b"", ix.header()), (b"deep", ix.stored_entry(ix.UINT8, (1,) * 65, b"a"))]
    ix.write(tmp_path / "ck", ix.index_of(rows), b"a")
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert reader["deep"].shape == (1,) * 65
        for read in (reader["deep"].read, reader["deep"].map, lambda: reader["deep"][...]):
            with pytest.raises(ckptfmt.UnsupportedError) as caught:
                read()
            assert caught.value.tensor == "deep"
            assert caught.value.message == "65 dimensions are more than the 64 of numpy arrays"


@pytest.mark.parametrize("large", [False, True])
def test_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """A part that the slices hold can be read; what reaches into a hole cannot. Of what is large
    that is found out before memory is taken."""
    if large:
        monkeypatch.setattr(tensor, "PROBED_BYTES", 0)
    with ckptfmt.Writer(tmp_path / "ck") as writer:
        writer.add_slice("x", [[1, 2]], (3, 2), (0, 0))
        writer.add_slice("x", [[5, 6]], (3, 2), (2, 0))
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert reader["x"][0].tolist() == [1, 2] and reader["x"][2, ::-1].tolist() == [6, 5]
        for read in (reader["x"].read, lambda: reader["x"][1:], lambda: reader["x"][::2]):
            with pytest.raises(CorruptError, match="SLC-11: 2 of") as caught:
                read()
            assert (caught.value.failure, caught.value.tensor) == ("BAD_SLICE", "x")
