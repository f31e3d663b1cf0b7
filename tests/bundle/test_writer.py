# SPDX-License-Identifier: Apache-2.0
"""What the writer takes, what it refuses, and what it leaves on disk."""

from __future__ import annotations

import array as plain_array
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from interop.values import KINDS
from support.arrays import NAMES, NUMERIC, assert_same, bits, random_array
from support.files import contents, listing
from support.process import Spent

import ckptfmt
from ckptfmt import InvalidError, Writer

CHUNK = 262_144


def stored(prefix: Path, data: Any, dtype: Any = None) -> Any:
    """The array that comes back."""
    with Writer(prefix, durability="none") as writer:
        writer.add("x", data, dtype)
    with ckptfmt.open(prefix, verify="full") as reader:
        return reader["x"].read()


# ---- what is taken -------------------------------------------------------------------------------


def layouts(base: Any) -> dict[str, Any]:
    """An array of shape (4, 5, 6) in every layout that numpy has."""
    read_only = base.copy()
    read_only.setflags(write=False)
    return {
        "contiguous": base,
        "stepped": base[::2, 1:4, ::3],
        "rows": base[1:3],
        "column": base[:, :, 2],
        "fortran": np.asfortranarray(base),
        "transposed": base.transpose(2, 0, 1),
        "reversed": base[::-1, ::-1, ::-1],
        "backwards": base[::-2, :, ::-4],
        "repeated": np.broadcast_to(base[:1], (3, 5, 6)),
        "one element everywhere": np.broadcast_to(base[1, 2, 3], (2, 3)),
        "repeated inside": np.broadcast_to(base[:, :, :1], (4, 5, 7)),
        "empty": base[2:2],
        "empty inside": base[:, 5:, ::2],
        "no dimensions": base[1, 2, 3].reshape(()),
        "read-only": read_only,
        "new dimensions": base[None, :, None, ::2],
    }


@pytest.mark.parametrize("code", NUMERIC, ids=NAMES.get)
def test_every_layout_of_every_dtype(tmp_path: Path, seed: int, code: int) -> None:
    base = random_array(random.Random(seed + code), code, (4, 5, 6))
    given = layouts(base)
    before = {name: bits(array) for name, array in given.items()}
    ckptfmt.save(tmp_path / "ck", given, durability="none")
    with ckptfmt.open(tmp_path / "ck", verify="full") as reader:
        assert {name: bits(handle.read()) for name, handle in reader.items()} == before
        assert {handle.dtype_code for handle in reader.values()} == {code}
        assert {handle.dtype_name for handle in reader.values()} == {NAMES[code]}
        assert {handle.dtype for handle in reader.values()} == {base.dtype}
    assert {name: bits(array) for name, array in given.items()} == before


def test_every_layout_above_a_chunk(tmp_path: Path, seed: int) -> None:
    """Gathering strided data goes through buffers, whose borders lie inside rows."""
    base = random_array(random.Random(seed), 1, (70, 90, 110))
    given = {
        "fortran": np.asfortranarray(base),
        "backwards": base[::-1, :, ::-1],
        "repeated": np.broadcast_to(base[:1], (40, 90, 110)),
        "stepped": base[:, ::2, 1::3],
        "odd bytes": base.view(np.uint8)[:, :, 1:-2],
    }
    ckptfmt.save(tmp_path / "ck", given, durability="none")
    with ckptfmt.open(tmp_path / "ck", verify="full") as reader:
        for name, value in given.items():
            assert_same(reader[name].read(), value)
            assert reader[name].chunk_size == CHUNK


SWAPPABLE = [code for code in NUMERIC if KINDS[code].unit > 1]


@pytest.mark.parametrize("code", SWAPPABLE, ids=NAMES.get)
def test_the_other_byte_order(tmp_path: Path, seed: int, code: int) -> None:
    value = random_array(random.Random(seed + code), code, (3, 4, 5))
    swapped = value.byteswap().view(value.dtype.newbyteorder("S"))
    assert_same(stored(tmp_path / "all", swapped), value)
    part = swapped[::-1, 1:3, ::2]
    assert_same(stored(tmp_path / "part", part), value[::-1, 1:3, ::2])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.array([b"a", b"", b"bcd"]), [b"a", b"", b"bcd"]),
        (np.array(["a", "", "\u00e9\U0001f600"]), [b"a", b"", b"\xc3\xa9\xf0\x9f\x98\x80"]),
        (np.array([b"a\0", "b\0", b"\xff\0\xfe"], object), [b"a\0", b"b\0", b"\xff\0\xfe"]),
        (np.array(["\udcff", "\udc80a"], object), [b"\xff", b"\x80a"]),
        (["end\0", b"end\0\0"], [b"end\0", b"end\0\0"]),
        (np.array(["abc", "d", "ef"])[::-2], [b"ef", b"abc"]),
        (np.array([], "S3"), []),
        (np.array([b"x" * 127, b"y" * 128, b"z" * 70_000], object), None),
    ],
    ids=["S", "U", "objects", "escapes", "list", "backwards", "empty", "long"],
)
def test_strings(tmp_path: Path, given: Any, expected: list[bytes] | None) -> None:
    found = stored(tmp_path / "ck", given)
    assert found.dtype == np.dtype(object)
    assert found.tolist() == (list(given) if expected is None else expected)


def test_strings_of_other_kinds(tmp_path: Path) -> None:
    mixed = np.empty((1, 2), object)
    mixed[0] = [bytearray(b"ab"), memoryview(b"cd")]
    assert stored(tmp_path / "a", mixed).tolist() == [[b"ab", b"cd"]]
    for number, text in enumerate(("a\0", b"a\0", np.str_("a"), np.bytes_(b"a"))):
        found = stored(tmp_path / f"scalar{number}", text)
        raw = text.encode() if isinstance(text, str) else bytes(text)
        assert found.shape == () and found.item() == raw
    grid = np.array([[b"a", b"b"], [b"c", b"d"]], object)
    assert stored(tmp_path / "turned", grid.T).tolist() == [[b"a", b"c"], [b"b", b"d"]]


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 1 has no StringDType")
def test_variable_width_strings(tmp_path: Path) -> None:
    given = np.array([["a", "\u00e9\0"], ["", "x" * 300]], np.dtypes.StringDType())
    found = stored(tmp_path / "ck", given)
    assert found.tolist() == [[b"a", b"\xc3\xa9\0"], [b"", b"x" * 300]]


def test_variants_are_payloads(tmp_path: Path) -> None:
    payloads = np.array([b"", b"\0\xff" * 5, b"p" * 200], object)
    with Writer(tmp_path / "ck", durability="none") as writer:
        writer.add("v", payloads, "variant")
        writer.add("one", b"alone", dtype="variant")
        writer.add("s", payloads)
    with ckptfmt.open(tmp_path / "ck", verify="full") as reader:
        assert {name: handle.dtype_name for name, handle in reader.items()} == {
            "one": "variant",
            "s": "string",
            "v": "variant",
        }
        assert_same(reader["v"].read(), payloads)
        assert_same(reader["s"].read(), payloads)
        assert reader["one"].read().item() == b"alone"
        assert reader["v"][1:].tolist() == [b"\0\xff" * 5, b"p" * 200]


@pytest.mark.parametrize("name", ["qint8", "quint8", "qint16", "quint16", "qint32"])
def test_plain_integers_as_quantized(tmp_path: Path, name: str) -> None:
    plain = np.dtype(name.removeprefix("q"))
    value = np.array([1, 2, 100], plain)
    found = stored(tmp_path / "ck", value, name)
    assert found.dtype == np.dtype([(name, plain)])
    assert found[name].tolist() == [1, 2, 100]
    with pytest.raises(InvalidError) as caught:
        stored(tmp_path / "no", value.astype(np.float32), name)
    assert caught.value.tensor == "x"


class HasArray:
    """Something that numpy can convert."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.arange(3, dtype=np.int16 if dtype is None else dtype)


@pytest.mark.parametrize(
    ("given", "dtype", "expected"),
    [
        (7, None, np.array(7, np.int64)),
        (True, None, np.array(True)),
        (1.5, None, np.array(1.5)),
        (1 + 2j, None, np.array(1 + 2j)),
        ([[1, 2], [3, 4]], None, np.array([[1, 2], [3, 4]], np.int64)),
        ([], None, np.array([], np.float64)),
        ([1, 2], "float32", np.array([1, 2], np.float32)),
        ([1, 2], "float", np.array([1, 2], np.float32)),
        ([1, 2], 14, np.array([1, 2], ml_dtypes.bfloat16)),
        ([1, 2], np.uint16, np.array([1, 2], np.uint16)),
        (np.float32(2.5), None, np.array(2.5, np.float32)),
        (HasArray(), None, np.arange(3, dtype=np.int16)),
        (plain_array.array("h", [1, -2]), None, np.array([1, -2], np.int16)),
        (memoryview(b"abc"), None, np.frombuffer(b"abc", np.uint8)),
        (np.array([1, 2], np.int32), "int32", np.array([1, 2], np.int32)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_numpy_makes_an_array(tmp_path: Path, given: Any, dtype: Any, expected: Any) -> None:
    assert_same(stored(tmp_path / "ck", given, dtype), expected)


def test_rank_64(tmp_path: Path) -> None:
    value = np.arange(6, dtype=np.int8).reshape((1,) * 62 + (2, 3))
    assert_same(stored(tmp_path / "c", value), value)
    assert_same(stored(tmp_path / "t", value.T[::-1]), value.T[::-1])
    assert_same(stored(tmp_path / "z", value[..., 3:]), value[..., 3:])
    strings = np.full((1,) * 64, b"s", object)
    assert_same(stored(tmp_path / "s", strings), strings)


# ---- slices --------------------------------------------------------------------------------------


def test_slices_make_the_tensor(tmp_path: Path, seed: int) -> None:
    value = random_array(random.Random(seed), 3, (5, 7))
    with Writer(tmp_path / "ck", durability="none") as writer:
        writer.add_slice("x", value[:2, ::-1][:, ::-1], (5, 7), (0, 0))
        writer.add_slice("x", np.asfortranarray(value[2:, :3]), spec="5 7 2,3:0,3")
        writer.add_slice("x", value[2:, 3:], [5, 7], np.array([2, 3]))
        writer.add_slice("whole", value, spec="")
        writer.add_slice("scalar", 7, (), ())
    with ckptfmt.open(tmp_path / "ck", verify="full") as reader:
        handle = reader["x"]
        assert_same(handle.read(), value)
        assert handle.partitioned and handle.offset is handle.shard is handle.crc32c is None
        assert [(part.start, part.shape) for part in handle.slices] == [
            ((0, 0), (2, 7)),
            ((2, 0), (3, 3)),
            ((2, 3), (3, 4)),
        ]
        assert not reader["whole"].partitioned and not reader["scalar"].partitioned
        assert_same(reader["whole"].read(), value)
        assert reader["scalar"].read().item() == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (4,)}, "a slice needs shape and offset, or spec"),
        ({"shape": (4,), "offset": (0,), "spec": "4 0,2"}, "give either spec or shape and offset"),
        (
            {"shape": (4, 5), "offset": (0,)},
            "shape (4, 5), offset (0,) and an array of shape (2,) have different ranks",
        ),
        ({"shape": (4,), "offset": (-1,)}, "shape (4,) and offset (-1,) are not both in range"),
        (
            {"spec": "4 0,3"},
            "Slice in shape_and_slice specification does not match the shape of the tensor to "
            "save: 4 0,3, tensor: [2]",
        ),
        (
            {"shape": (4,), "offset": (3,)},
            "SLC-4: dimension 0 of a slice has start 3 and length 2 in a size of 4",
        ),
        ({"shape": (6,), "offset": (0,)}, "slices of one tensor disagree on its dtype or shape"),
        ({"shape": (4,), "offset": (0,)}, "the slice is added twice"),
    ],
)
def test_refused_slices(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    """The refusal names the tensor, and the writer does not commit without it."""
    writer = Writer(tmp_path / "ck")
    writer.add_slice("s", np.arange(2), (4,), (0,))
    with pytest.raises(InvalidError) as caught:
        writer.add_slice("s", np.arange(2), **options)
    assert (caught.value.message, caught.value.tensor) == (message, "s")
    with pytest.raises(InvalidError, match="an earlier add to this writer failed"):
        writer.commit()
    assert listing(tmp_path) == []


def test_slices_that_disagree_with_the_tensor(tmp_path: Path) -> None:
    cases: list[tuple[str, str, Any]] = [
        (
            "s",
            "disagree on its dtype or shape",
            lambda writer: writer.add_slice("s", np.arange(4, dtype=np.int32), (8,), (4,)),
        ),
        ("s", "the name is added twice", lambda writer: writer.add("s", np.arange(8))),
        (
            "w",
            "added to a tensor that was added whole",
            lambda writer: writer.add_slice("w", np.arange(4), (8,), (0,)),
        ),
    ]
    for tensor, message, call in cases:
        writer = Writer(tmp_path / "ck")
        writer.add_slice("s", np.arange(4), (8,), (0,))
        writer.add("w", np.arange(8))
        with pytest.raises(InvalidError, match=message) as caught:
            call(writer)
        assert caught.value.tensor == tensor
        with pytest.raises(InvalidError, match="an earlier call of this writer failed"):
            writer.add("x", np.arange(8))
        writer.abandon()
    assert listing(tmp_path) == []


# ---- what is refused -----------------------------------------------------------------------------

OBJECTS = np.array([b"a", None], object)
HALF_TEXT = np.array(["\ud800"], object)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x", np.zeros(2, "M8[s]"), "dtype datetime64[s] cannot be stored"),
        ("x", np.zeros(2, "m8[s]"), "dtype timedelta64[s] cannot be stored"),
        ("x", np.zeros(2, [("a", "i4")]), "dtype [('a', '<i4')] cannot be stored"),
        ("x", np.zeros(2, "V3"), "dtype |V3 cannot be stored"),
        ("x", OBJECTS, "object arrays can store bytes and str, not NoneType"),
        ("x", object(), "object arrays can store bytes and str, not object"),
        ("x", HALF_TEXT, "a string cannot be encoded: surrogates not allowed"),
        ("_CKPTFMT_METADATA", [1], "names beginning with _CKPTFMT_ are reserved"),
        (b"_CKPTFMT_", [1], "names beginning with _CKPTFMT_ are reserved"),
    ],
)
def test_refused_data(tmp_path: Path, name: str | bytes, data: Any, message: str) -> None:
    """By `save` before anything is written; by a writer, which then does not commit."""
    text = name if isinstance(name, str) else name.decode()
    with Spent() as spent, pytest.raises(InvalidError) as caught:
        ckptfmt.save(tmp_path / "ck", [("good", [1]), (name, data)])
    assert (caught.value.message, caught.value.tensor) == (message, text)
    assert str(caught.value) == f"tensor '{text}': {message}"
    assert spent.opens == spent.writes == 0 and listing(tmp_path) == []
    with (
        pytest.raises(InvalidError, match="an earlier add to this writer failed"),
        Writer(tmp_path / "ck") as writer,
    ):
        with pytest.raises(InvalidError) as caught:
            writer.add(name, data)
        assert (caught.value.message, caught.value.tensor) == (message, text)
        writer.add("x", [2])
    assert listing(tmp_path) == []


@pytest.mark.parametrize(
    ("data", "dtype", "message"),
    [
        (np.zeros(2), "float32", "the array must have dtype float32, not float64"),
        (np.zeros(2), "string", "the array must have dtype string, not float64"),
        (np.zeros(2), "variant", "the array must have dtype variant, not float64"),
        (np.array(["a"]), "float", "the array must have dtype float32, not <U1"),
        (np.zeros(2, np.int32), "qint8", "the array must have dtype qint8, not int32"),
    ],
)
def test_refused_dtypes(tmp_path: Path, data: Any, dtype: str, message: str) -> None:
    with Writer(tmp_path / "ck") as writer:
        with pytest.raises(InvalidError) as caught:
            writer.add("x", data, dtype)
        assert (caught.value.message, caught.value.tensor) == (message, "x")
        writer.abandon()


def test_ragged_lists(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="list is not an array: ") as caught:
        ckptfmt.save(tmp_path / "ck", {"ragged": [[1], [2, 3]]})
    assert caught.value.tensor == "ragged" and listing(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "v2", "compression": "zstd"}, "level 'v2' has no place for compressed values"),
        ({"alignment": 0}, "alignment 0 is not a positive number of bytes"),
        ({"alignment": -8}, "alignment -8 is not a positive number of bytes"),
        ({"alignment": 2**63}, f"alignment {2**63} is not a positive number of byte"),
        ({"alignment": 2**30 + 1}, "the alignment 1073741825 is not within 1 and 2^"),
        ({"level": "v2", "metadata": {}}, "level 'v2' cannot store metadata: use 'v2+'"),
    ],
)
def test_refused_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    for make in (Writer, lambda prefix, **more: ckptfmt.save(prefix, {"x": [1]}, **more)):
        with pytest.raises(InvalidError) as caught:
            make(tmp_path / "ck", **options)
        assert caught.value.message.startswith(message)
    assert listing(tmp_path) == []


# ---- commit and abandon --------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["full", "rename", "none"])
def test_nothing_is_left_of_an_exception(tmp_path: Path, durability: str) -> None:
    def interrupted() -> None:
        with Writer(tmp_path / "ck", durability=durability) as writer:
            writer.add("x", np.zeros(100_000))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert listing(tmp_path) == []
    ckptfmt.save(tmp_path / "ck", {"x": np.arange(3)}, durability=durability)
    before = contents(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert contents(tmp_path) == before


def test_generations(tmp_path: Path) -> None:
    """Each replaces the one before, under data file names that the one before did not have."""
    one = ["ck.data-00000-of-00001", "ck.index"]
    two = ["ck.data-00000-of-00002", "ck.data-00001-of-00002", "ck.index"]
    for generation, files in enumerate([one, two, one, two]):
        value = np.full(1000 + generation, generation)
        ckptfmt.save(tmp_path / "ck", {f"g{generation}": value, "x": value})
        assert listing(tmp_path) == files
        loaded = ckptfmt.load(tmp_path / "ck", verify="full")
        assert {name: bits(array) for name, array in loaded.items()} == {
            f"g{generation}": bits(value),
            "x": bits(value),
        }
        assert ckptfmt.verify(tmp_path / "ck", strict=True).ok


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_durability(tmp_path: Path, level: str) -> None:
    """The modes write the same bytes; only "full" syncs, and only "none" does not read back."""
    files, spent = {}, {}
    for durability in ("full", "rename", "none"):
        folder = tmp_path / durability
        folder.mkdir()
        with Spent() as spent[durability]:
            ckptfmt.save(folder / "ck", {"x": np.arange(9)}, level=level, durability=durability)
        files[durability] = contents(folder)
    assert files["full"] == files["rename"] == files["none"]
    assert spent["full"].syncs >= 3
    assert spent["rename"].syncs == spent["none"].syncs == 0
    index_size = len(files["full"]["ck.index"])
    assert spent["full"].bytes_read == spent["rename"].bytes_read >= index_size
    assert spent["none"].bytes_read == 0


def test_a_closed_writer(tmp_path: Path) -> None:
    uses: list[Callable[[Writer], object]] = [
        lambda writer: writer.commit(),
        lambda writer: writer.add("y", [1]),
        lambda writer: writer.add_slice("y", [1], (2,), (0,)),
    ]
    for end in (Writer.commit, Writer.abandon):
        writer = Writer(tmp_path / "ck")
        assert repr(writer) == f"<ckptfmt.Writer '{tmp_path}/ck'>"
        writer.add("x", [1])
        end(writer)
        for use in uses:
            with pytest.raises(InvalidError, match=r"^writer is closed$"):
                use(writer)
        writer.abandon()
        assert repr(writer) == f"<ckptfmt.Writer '{tmp_path}/ck' closed>"
        with writer:
            pass
    assert ckptfmt.load(tmp_path / "ck")["x"].tolist() == [1]


# ---- level and alignment -------------------------------------------------------------------------


def test_levels(tmp_path: Path) -> None:
    """Level "v2+" adds checksums to tensors above a chunk and aligns them."""
    tensors = {"a": np.arange(3, dtype=np.uint8), "b": np.zeros(CHUNK, np.uint8)}
    large = {**tensors, "c": np.ones(CHUNK + 1, np.uint8)}
    for level in ("v2", "v2+"):
        ckptfmt.save(tmp_path / level, large, level=level)
        ckptfmt.save(tmp_path / f"{level}small", tensors, level=level)
    with ckptfmt.open(tmp_path / "v2") as reader, ckptfmt.open(tmp_path / "v2+") as plus:
        assert (reader.level, plus.level) == ("v2", "v2+")
        assert reader.table()["offset"].tolist() == [0, 3, 3 + CHUNK]
        assert plus.table()["offset"].tolist() == [0, 64, 64 + CHUNK]
        assert reader.table()["chunk_size"].tolist() == [0, 0, 0]
        assert plus.table()["chunk_size"].tolist() == [0, 0, CHUNK]
        assert reader.table()["crc32c"].tolist() == plus.table()["crc32c"].tolist()
        assert reader.digest() == plus.digest()
        assert reader.header.min_consumer == plus.header.min_consumer == 0
    with ckptfmt.open(tmp_path / "v2small") as reader, ckptfmt.open(tmp_path / "v2+small") as plus:
        assert (reader.level, plus.level) == ("v2", "v2")


@pytest.mark.parametrize("level", ["v2", "v2+"])
@pytest.mark.parametrize("alignment", [1, 2, 7, 64, 4096, 10_000])
def test_alignment(tmp_path: Path, seed: int, alignment: int, level: str) -> None:
    """Every tensor starts at the next multiple, the file ends at one, and zeros lie between."""
    chance = random.Random(seed)
    tensors = {
        f"t{i:02d}": np.frombuffer(chance.randbytes(chance.randint(0, 9000)), np.uint8)
        for i in range(20)
    }
    ckptfmt.save(tmp_path / "ck", tensors, level=level, alignment=alignment, durability="none")
    data = (tmp_path / "ck.data-00000-of-00001").read_bytes()
    expected = bytearray()
    with ckptfmt.open(tmp_path / "ck") as reader:
        for name, value in tensors.items():
            assert reader[name].offset == len(expected)
            expected += value.tobytes()
            expected += bytes(-len(expected) % alignment)
    assert data == bytes(expected)


# ---- progress and save_v2 ------------------------------------------------------------------------


def test_progress(tmp_path: Path) -> None:
    """With a progress callback, batches are 32 MiB; its exception abandons the checkpoint."""
    told: list[tuple[int, int]] = []
    mib = np.zeros(1 << 20, np.uint8)
    tensors = {f"t{i}": np.broadcast_to(mib, (12, 1 << 20)) for i in range(5)}
    total = 60 << 20
    ckptfmt.save(tmp_path / "ck", tensors, durability="none", progress=lambda *at: told.append(at))
    assert told == [(24 << 20, total), (48 << 20, total), (total, total)]
    before = contents(tmp_path)

    def stop(_done: int, _total: int) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        ckptfmt.save(tmp_path / "ck", tensors, durability="none", progress=stop)
    assert contents(tmp_path) == before


def test_save_v2(tmp_path: Path) -> None:
    """Whole tensors and slices of one, in the order given, without padding."""
    value = np.arange(24, dtype=np.int16).reshape(4, 6)
    names = ["x", "part", "part", b"y"]
    specs = ["", "4 6 0,2:-", b"4 6 2,2:-", ""]
    ckptfmt.save_v2(tmp_path / "ck", names, specs, [np.uint8(1), value[:2], value[2:], ["s"]])
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert reader.level == "v2"
        assert_same(reader["part"].read(), value)
        assert [part.offset for part in reader["part"].slices] == [1, 25]
        assert (reader["x"].offset, reader["y"].offset) == (0, 49)
        assert reader["y"].read().tolist() == [b"s"]


@pytest.mark.parametrize(
    ("names", "specs", "tensors", "message"),
    [
        ("x", [""], [1], "tensor_names must be a sequence of texts, not one"),
        (["x"], b"", [1], "shape_and_slices must be a sequence of texts, not one"),
        (
            ["x"],
            ["", ""],
            [1],
            "tensor_names and shape_and_slices have different number of elements: 1 vs. 2",
        ),
        (["x"], [""], [1, 2], "Got 1 tensor names but 2 tensors."),
        ([], [], [], "save_v2 needs at least one tensor, as SaveV2 does"),
    ],
)
def test_save_v2_refuses(
    tmp_path: Path, names: Any, specs: Any, tensors: Any, message: str
) -> None:
    with pytest.raises(InvalidError) as caught:
        ckptfmt.save_v2(tmp_path / "ck", names, specs, tensors)
    assert caught.value.message == message and listing(tmp_path) == []
