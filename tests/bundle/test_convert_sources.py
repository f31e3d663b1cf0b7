# SPDX-License-Identifier: Apache-2.0
"""Converting what others wrote: sound sources of forms that no writer of ours has, and sources that
can be read, but not written again."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from support import index as ix
from support.files import flip

import ckptfmt
from ckptfmt import CorruptError, InvalidError
from ckptfmt.cli import main

LEVELS = ("v2", "v2+", "ckptfmt")
FLOAT, STRING, BOOL, UINT16, VARIANT, INT4, UINT4, INT2 = 1, 7, 10, 17, 21, 29, 30, 31
THREE = np.arange(3, dtype="<f4").tobytes()
METADATA = b"_CKPTFMT_METADATA"

Value = tuple[int, list[int], bytes, int]  # dtype, shape, bytes, masked checksum


def write(prefix: Path, *rows: ix.Row, data: bytes = b"", **header: int) -> Path:
    return ix.write(prefix, ix.index_of([(b"", ix.header(**header)), *rows]), data)


def one(prefix: Path, value: Value, **header: int) -> Path:
    """A checkpoint of this tensor `x`."""
    code, dims, data, crc = value
    entry = ix.entry(code, dims, size=len(data), masked_crc=crc)
    return write(prefix, (b"x", entry), data=data, **header)


def fixed(code: int, dims: list[int], data: bytes) -> Value:
    return code, dims, data, ix.mask(ix.crc32c(data))


def overlong_strings() -> Value:
    """Sizes of more bytes than they need."""
    elements = [b"hello", b"", b"x" * 200]
    plain, crc = ix.string_value(elements)
    after = len(b"".join(ix.varint(len(element)) for element in elements))
    sizes = b"".join(ix.varint(len(element), 4) for element in elements)
    return STRING, [3], sizes + plain[after:], crc


def overlong_variant() -> Value:
    plain, crc = ix.variant_value([b"abc"])
    return VARIANT, [1], ix.varint(3, 5) + plain[1:], crc


def big_endian_strings() -> Value:
    """The numbers under its checksums are of that order as well."""
    sizes = ix.crc32c(struct.pack(">II", 2, 1))
    stored = struct.pack(">I", ix.mask(sizes))
    return (
        STRING,
        [2],
        b"\2\1" + stored + b"abc",
        ix.mask(ix.crc32c(b"abc", ix.crc32c(stored, sizes))),
    )


ODD = {
    "int4": (fixed(INT4, [3], b"\xff\xf8\x07"), [-1, -8, 7]),
    "uint4": (fixed(UINT4, [3], b"\xff\xf8\x07"), [15, 8, 7]),
    "int2": (fixed(INT2, [3], b"\xff\xfe\x05"), [-1, -2, 1]),
    "large int4": (fixed(INT4, [5000, 2000], b"\xf1" * 10_000_000), None),
    "bool": (fixed(BOOL, [3], b"\2\1\0"), [True, True, False]),
    "no strings": ((STRING, [0], b"", ix.mask(0)), []),
    "overlong strings": (overlong_strings(), [b"hello", b"", b"x" * 200]),
    "overlong variant": (overlong_variant(), [b"abc"]),
}
BIG_ENDIAN = {
    "numbers": (fixed(UINT16, [2], b"\1\2\3\4"), [0x102, 0x304]),
    "bytes": (fixed(INT4, [2], b"\xf1\x02"), [1, 2]),
    "words": (big_endian_strings(), [b"ab", b"c"]),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ODD)
def test_odd_but_sound(tmp_path: Path, kind: str, level: str) -> None:
    value, expected = ODD[kind]
    one(tmp_path / "a", value)
    assert ckptfmt.verify(tmp_path / "a").ok
    ckptfmt.convert(tmp_path / "a", tmp_path / "b", level=level)
    with ckptfmt.open(tmp_path / "b") as reader:
        array = reader["x"].read()
    if expected is None:
        assert (array == 1).all()
    else:
        assert array.tolist() == expected
    if level == "v2":  # what a writer makes of the same values
        with ckptfmt.Writer(tmp_path / "c", level="v2") as writer:
            writer.add("x", array, value[0])
        name = ".data-00000-of-00001"
        assert Path(f"{tmp_path}/b{name}").read_bytes() == Path(f"{tmp_path}/c{name}").read_bytes()


@pytest.mark.parametrize("kind", BIG_ENDIAN)
def test_the_other_byte_order(tmp_path: Path, kind: str) -> None:
    value, expected = BIG_ENDIAN[kind]
    one(tmp_path / "a", value, endianness=1)
    ckptfmt.convert(tmp_path / "a", tmp_path / "b", level="v2")
    with ckptfmt.open(tmp_path / "b") as reader:
        assert not reader.header.big_endian
        assert reader["x"].read().tolist() == expected


@pytest.mark.parametrize(
    "value", [ODD["int4"][0], ODD["overlong strings"][0], BIG_ENDIAN["words"][0]]
)
def test_a_wrong_value_is_found_where_no_checksum_can_tell(
    tmp_path: Path, value: Value, monkeypatch: pytest.MonkeyPatch
) -> None:
    one(tmp_path / "a", value, endianness=int(value == BIG_ENDIAN["words"][0]))
    usual = ckptfmt.Writer._add

    def wrong(self, sources, *rest):  # type: ignore[no-untyped-def]
        for row, array in enumerate(sources.arrays):
            sources.arrays[row] = array[::-1]
            if row in sources.elements:
                sources.elements[row] = sources.elements[row][::-1]
        usual(self, sources, *rest)

    monkeypatch.setattr(ckptfmt.Writer, "_add", wrong)
    with pytest.raises(
        CorruptError, match="the result does not hold what the source does"
    ) as found:
        ckptfmt.convert(tmp_path / "a", tmp_path / "b")
    assert found.value.failure == "CHECKSUM" and found.value.tensor == "x"
    assert not list(tmp_path.glob("b*"))


# ---- reserved names


@pytest.mark.parametrize(
    ("name", "dims", "data"),
    [
        (b"_CKPTFMT_OTHER", [3], THREE),
        (b"_CKPTFMT_", [3], THREE),
        (b"_CKPTFMT_SHARD_7", [3], THREE),
        (b"_CKPTFMT_SHARD_7", [0, 2], b""),
        (b"_CKPTFMT_SHARD_", [0], b""),
        (b"_CKPTFMT_SHARD_7a", [0], b""),
    ],
)
def test_tensors_of_reserved_names_are_refused(
    tmp_path: Path, name: bytes, dims: list[int], data: bytes
) -> None:
    rows = [(name, ix.stored_entry(FLOAT, dims, data)), (b"x", ix.stored_entry(FLOAT, [3], THREE))]
    write(tmp_path / "a", *rows, data=THREE)
    for level in LEVELS:
        with pytest.raises(InvalidError, match="EXT-8: names beginning with _CKPTFMT_") as found:
            ckptfmt.convert(tmp_path / "a", tmp_path / "b", level=level, drop_metadata=True)
        assert found.value.tensor == name.decode()
        assert found.value.path == str(tmp_path / "a")
    assert not list(tmp_path.glob("b*"))
    assert main(["convert", str(tmp_path / "a"), str(tmp_path / "b")]) == 2


def test_what_stands_in_for_a_shard_is_left_out(tmp_path: Path) -> None:
    for _ in range(2):  # another data file than that of the one before, of the same number
        ckptfmt.save(tmp_path / "a", {"x": np.ones(3)})
    with ckptfmt.open(tmp_path / "a") as reader:
        there = reader.table(reserved=True)["name"].tolist()
    assert len(there) == 2 and there[0].startswith("_CKPTFMT_SHARD_")
    ckptfmt.convert(tmp_path / "a", tmp_path / "b", level="v2")
    with ckptfmt.open(tmp_path / "b") as reader:
        assert reader.table(reserved=True)["name"].tolist() == ["x"]
    # One that TensorFlow's merge has put into another data file keeps its name.
    stand_in = b"_CKPTFMT_SHARD_1", ix.entry(FLOAT, [0], shard=0)
    write(tmp_path / "c", stand_in, (b"x", ix.stored_entry(FLOAT, [3], THREE)), data=THREE)
    ckptfmt.convert(tmp_path / "c", tmp_path / "d")
    with ckptfmt.open(tmp_path / "d") as reader:
        assert reader.table(reserved=True)["name"].tolist() == ["x"]


# ---- parts of checkpoints


def sliced(extents: list[ix.Extent], *stored: ix.Extent) -> list[ix.Row]:
    """The partitioned float tensor `x` of 6 elements, of which these slices are stored."""
    slices = [ix.slice_message([extent]) for extent in extents]
    return [
        *((ix.slice_key(b"x", [one]), ix.stored_entry(FLOAT, [3], THREE)) for one in stored),
        (b"x", ix.entry(FLOAT, [6], slices=slices)),
    ]


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize(
    ("rows", "tensor", "message"),
    [
        (sliced([(0, 3)], (0, 3)), "x", "SLC-11: 3 of the 6 elements are missing"),
        (sliced([(0, 3), (3, 3)], (0, 3)), "x", "SLC-7: slice 1 of 2 has no entry of its own"),
        (
            [
                (ix.slice_key(b"q", [(0, 3)]), ix.stored_entry(FLOAT, [3], THREE)),
                (b"x", ix.stored_entry(FLOAT, [3], THREE)),
            ],
            "q",
            "KEY-7: the index holds a slice of rank 1 of this tensor",
        ),
    ],
    ids=["slices that leave a hole", "a slice that is missing", "a slice of no tensor"],
)
def test_parts_of_checkpoints_are_named(
    tmp_path: Path, rows: list[ix.Row], tensor: str, message: str, checks: bool
) -> None:
    write(tmp_path / "a", *rows, data=THREE)
    with pytest.raises(CorruptError) as found:
        ckptfmt.convert(tmp_path / "a", tmp_path / "b", check_result=checks)
    assert found.value.message.startswith(message)
    assert (found.value.tensor, found.value.failure) == (tensor, "BAD_SLICE")
    assert found.value.path == f"{tmp_path}/a.index"
    assert not list(tmp_path.glob("b*"))


def test_names_that_only_look_like_slices_are_names(tmp_path: Path) -> None:
    write(tmp_path / "a", (b"\0abc", ix.stored_entry(FLOAT, [3], THREE)), data=THREE)
    ckptfmt.convert(tmp_path / "a", tmp_path / "b", level="v2")
    with ckptfmt.open(tmp_path / "b") as reader:
        assert list(reader) == ["\0abc"]


# ---- metadata


def told(prefix: Path, text: bytes) -> Path:
    """A checkpoint with this as its metadata."""
    value, crc = ix.string_value([text])
    entry = ix.entry(STRING, [], size=len(value), masked_crc=crc, offset=12)
    row = b"x", ix.stored_entry(FLOAT, [3], THREE)
    return write(prefix, (METADATA, entry), row, data=THREE + value)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (b"[1]", CorruptError, "EXT-7: the metadata is not a JSON object"),
        (b'{"a":' + b"9" * 5000 + b"}", CorruptError, "EXT-7: the metadata is not a JSON object"),
        (b'{"a":null}', InvalidError, "metadata 'a' cannot be stored: values must be str"),
        (b'{"a":{}}', InvalidError, "metadata 'a' cannot be stored: values must be str"),
    ],
)
def test_metadata_that_cannot_be_written_can_be_dropped(
    tmp_path: Path,
    text: bytes,
    kind: type[CorruptError | InvalidError],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told(tmp_path / "a", text)
    with pytest.raises(kind) as found:
        ckptfmt.convert(tmp_path / "a", tmp_path / "b")
    assert found.value.message.startswith(message)
    assert found.value.message.endswith(" (drop_metadata=True leaves the metadata out)")
    assert found.value.path == str(tmp_path / "a")
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["convert", *paths]) == (1 if kind is CorruptError else 2)
    assert found.value.argument == "drop_metadata"
    said = str(found.value).replace("drop_metadata=True", "--drop-metadata")
    assert capsys.readouterr().err.splitlines()[0] == f"ckptfmt: {said}"
    assert not list(tmp_path.glob("b*"))
    assert main(["convert", "-q", "--drop-metadata", *paths]) == 0
    with ckptfmt.open(tmp_path / "b") as reader:
        assert reader.metadata == {} and METADATA not in reader
        assert reader["x"].read().tolist() == [0, 1, 2]


def test_metadata_of_another_type_can_be_dropped(tmp_path: Path) -> None:
    value = ix.stored_entry(FLOAT, [3], THREE)
    write(tmp_path / "a", (METADATA, value), (b"x", value), data=THREE)
    with pytest.raises(CorruptError, match="EXT-7"):
        ckptfmt.convert(tmp_path / "a", tmp_path / "b")
    ckptfmt.convert(tmp_path / "a", tmp_path / "b", drop_metadata=True)
    with ckptfmt.open(tmp_path / "b") as reader:
        assert METADATA not in reader and list(reader) == ["x"]


@pytest.mark.parametrize("damage", ["flipped", "cut", "its file is missing"])
@pytest.mark.parametrize("to", ["b", "b.safetensors", "b.npz", "edit"])
def test_damaged_metadata_can_be_dropped(
    tmp_path: Path, damage: str, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ckptfmt.save("part", {"x": np.arange(3), "y": np.ones(9)})
    ckptfmt.save("other", {}, metadata={"a": "hello"})
    ckptfmt.merge(["part", "other"], "a")
    data = Path("a.data-00001-of-00002")
    if damage == "its file is missing":
        data.unlink()
    elif damage == "flipped":
        flip(data, 5)
    else:
        os.truncate(data, 5)
    command = "edit" if to == "edit" else "convert"
    words = [command, "-q", "a", to, "--drop", "y", *(["--drop-weights"] if to == "edit" else [])]
    assert main(words) in (1, 2)
    assert main([*words, "--drop-metadata"]) == 0
    assert main(["convert", "-q", "--overwrite", to, "again"]) == 0
    with ckptfmt.open("again") as reader:
        assert not reader.metadata and reader["x"].read().tolist() == [0, 1, 2]


# ---- the destination of the command


def test_a_prefix_without_a_name_can_only_be_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ckptfmt.save_v2("in/", ["x"], [""], [np.ones(3)])
    for options in ([], ["--overwrite"]):
        assert main(["convert", "-q", *options, "in/", "in/"]) == 2
        assert "prefix 'in/' ends with '/'" in capsys.readouterr().err
    assert main(["convert", "-q", "in/", "out"]) == 0
    assert list(ckptfmt.load("out")) == ["x"]
