# SPDX-License-Identifier: Apache-2.0
"""Metadata: what may be stored, the form in which it is, and what is only read (EXT-7, EXT-12)."""

from __future__ import annotations

import enum
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index as ix
from support.files import listing

import ckptfmt
from ckptfmt import InvalidError, editing
from ckptfmt.cli import main
from ckptfmt.sharded.coordinator import SingleProcess

Save = Callable[[Path, Any], object]


def nested(depth: int, value: Any = 1) -> Any:
    """The value in so many lists."""
    for _ in range(depth):
        value = [value]
    return value


def stored(prefix: Path) -> bytes:
    with ckptfmt.open(prefix) as reader:
        text: bytes = reader["_CKPTFMT_METADATA"].read().item()
    return text


def written_by_others(prefix: Path, text: bytes) -> None:
    value, masked = ix.string_value([text])
    entry = ix.entry(ix.STRING, [], size=len(value), masked_crc=masked)
    ix.write(prefix, ix.index_of([(b"", ix.header()), (b"_CKPTFMT_METADATA", entry)]), value)


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({}, b"{}"),
        (
            {"step": 12345678901234567890, "loss": 0.1, "done": False},
            b'{"done":false,"loss":0.1,"step":12345678901234567890}',
        ),
        (
            {"b": [1, ["c", []]], "a": '\u00e9\U0001f600\0\n"\\\x7f'},
            b'{"a":"\\u00e9\\ud83d\\ude00\\u0000\\n\\"\\\\\\u007f","b":[1,["c",[]]]}',
        ),
        (
            {"n": [0.0, -0.0, 1e16, 1e15, 1e-4, 1.5e-7, 1e100], "i": -(2**70)},
            b'{"i":-1180591620717411303424,'
            b'"n":[0.0,-0.0,1e+16,1000000000000000.0,0.0001,1.5e-07,1e+100]}',
        ),
        ({"\uffff": 1, "\U00010000": 2}, b'{"\\uffff":1,"\\ud800\\udc00":2}'),
        ({"deep": nested(99)}, b'{"deep":' + b"[" * 99 + b"1" + b"]" * 99 + b"}"),
        ({"long": 10**4300 - 1}, b'{"long":' + b"9" * 4300 + b"}"),
    ],
)
def test_round_trip(tmp_path: Path, metadata: dict[str, Any], text: bytes) -> None:
    ckptfmt.save(tmp_path / "ck", {"x": [1]}, metadata=metadata)
    assert stored(tmp_path / "ck") == text
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert reader.metadata == metadata
        assert reader.level == "v2+"
        assert list(reader) == ["x"] and len(reader) == 1
        assert reader["_CKPTFMT_METADATA"].dtype_name == "string"
        assert list(reader.table(reserved=True)["name"]) == ["_CKPTFMT_METADATA", "x"]
    assert list(ckptfmt.load(tmp_path / "ck")) == ["x"]
    assert ckptfmt.verify(tmp_path / "ck", strict=True).ok


def test_values_of_other_classes(tmp_path: Path) -> None:
    """Subclasses count as what they are; a tuple is a list."""

    class Word(str):
        __slots__ = ()

    metadata = {
        Word("a"): Word("b"),
        "n": enum.IntEnum("E", "ONE").ONE,  # type: ignore[attr-defined]
        "f": np.float64(0.5),
        "t": (1, (2,)),
        "numpy": [np.float32(0.5), np.bool_(True), np.uint8(1), np.str_("b")],
    }
    ckptfmt.save(tmp_path / "ck", {}, metadata=metadata)
    text = b'{"a":"b","f":0.5,"n":1,"numpy":[0.5,true,1,"b"],"t":[1,[2]]}'
    assert stored(tmp_path / "ck") == text


def test_none(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"x": [1]})
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert reader.metadata == {} and "_CKPTFMT_METADATA" not in reader


KINDS = "values must be str, numbers, bool, or lists of these, not"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"a": None}, f"metadata 'a' cannot be stored: {KINDS} None"),
        ({"a": {"b": 1}}, f"metadata 'a' cannot be stored: {KINDS} dict"),
        ({"a": [1, [{}]]}, f"metadata 'a' cannot be stored: {KINDS} dict"),
        ({"a": {1}}, f"metadata 'a' cannot be stored: {KINDS} set"),
        ({"a": b"b"}, f"metadata 'a' cannot be stored: {KINDS} bytes"),
        ({"a": np.float32("nan")}, "metadata 'a' cannot be stored: JSON has no nan"),
        ({"a": np.ones(1)}, f"metadata 'a' cannot be stored: {KINDS} ndarray"),
        ({"a": float("nan")}, "metadata 'a' cannot be stored: JSON has no nan"),
        ({"a": [-float("inf")]}, "metadata 'a' cannot be stored: JSON has no -inf"),
        ({"a": "\ud800"}, "metadata 'a' cannot be stored: text with half of a surrogate pair"),
        ({"\udfff": 1}, "metadata '\\udfff' cannot be stored: text with half of a surrogate pair"),
        ({"a": nested(100)}, "metadata 'a' cannot be stored: lists are nested more than 100 deep"),
        ({"a": -(10**4300)}, "metadata 'a' cannot be stored: a number of more than 4300 digits"),
        ({1: 1}, "a name in metadata must be str, not int"),
        ({(1,): 1}, "a name in metadata must be str, not tuple"),
        ([("a", 1)], "metadata must be a mapping of names to values, not list"),
    ],
)
@pytest.mark.parametrize(
    "save",
    [
        lambda p, m: ckptfmt.Writer(p, metadata=m),
        lambda p, m: ckptfmt.save(p, {"x": [1]}, metadata=m),
        lambda p, m: ckptfmt.save_async(p, {"x": [1]}, metadata=m),
        lambda p, m: ckptfmt.save_tree(p, {"x": 1}, metadata=m),
        lambda p, m: ckptfmt.sharded.save(
            p, {"x": np.ones(1)}, {"x": None}, SingleProcess(), metadata=m
        ),
    ],
    ids=["Writer", "save", "save_async", "save_tree", "sharded_save"],
)
def test_refused(tmp_path: Path, save: Save, metadata: Any, message: str) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidError) as caught:
        save(tmp_path / "ck", metadata)
    assert caught.value.message == message
    assert listing(tmp_path) == []


def test_a_lower_limit_of_digits(tmp_path: Path) -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(1000)
    try:
        with pytest.raises(InvalidError, match="metadata cannot be stored: "):
            ckptfmt.save(tmp_path / "ck", {}, metadata={"a": 10**2000})
    finally:
        sys.set_int_max_str_digits(before)
    assert listing(tmp_path) == []


def test_what_is_only_read(tmp_path: Path) -> None:
    """Another form is given as it is; a conversion writes it no more."""
    written_by_others(tmp_path / "a", b' {"a": {"b": null}, "s": "\\ud800"} ')
    with ckptfmt.open(tmp_path / "a") as reader:
        assert reader.metadata == {"a": {"b": None}, "s": "\ud800"}
    before = listing(tmp_path)
    with pytest.raises(InvalidError) as caught:
        ckptfmt.convert(tmp_path / "a", tmp_path / "b", level="ckptfmt")
    assert caught.value.message == (
        f"metadata 'a' cannot be stored: {KINDS} dict (drop_metadata=True leaves the metadata out)"
    )
    assert caught.value.path == str(tmp_path / "a")
    assert listing(tmp_path) == before
    ckptfmt.convert(tmp_path / "a", tmp_path / "b", drop_metadata=True)
    with ckptfmt.open(tmp_path / "b") as reader:
        assert reader.metadata == {}


def test_a_number_beyond_float64(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has it, Python reads an infinity; what we print of it stays JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    prefix = tmp_path / "ck"
    written_by_others(prefix, b'{"loss": [1e999, -1e999]}')
    assert main(["inspect", "--json", str(prefix)]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert document["metadata"] == {"loss": ["Infinity", "-Infinity"]}
    assert main(["report", str(prefix), "-o", str(tmp_path / "r.html")]) == 0


# ---- where they are ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["save", "shards", "zstd", "base", "Writer", "edit"])
def test_a_file_that_is_cut_short_keeps_them(how: str, tmp_path: Path) -> None:
    path, told = tmp_path / "ckpt", {"said": "x" * 200}
    tensors = {name: np.full(50_000, number) for number, name in enumerate("abcd")}
    if how == "Writer":
        with ckptfmt.Writer(path, metadata=told) as writer:
            for name, array in tensors.items():
                writer.add(name, array)
    elif how == "edit":
        ckptfmt.save(tmp_path / "one", tensors, metadata=told)
        editing.edit(tmp_path / "one", path, drop="a", drop_weights=True, compact=True)
    else:
        ckptfmt.save(tmp_path / "base", tensors)
        changed = tensors if how != "base" else {**tensors, "d": np.arange(50_000)}
        options: dict[str, Any] = {
            "shards": {"shards": 3},
            "zstd": {"compression": "zstd"},
            "base": {"base": tmp_path / "base"},
        }.get(how, {})
        ckptfmt.save(path, changed, metadata=told, **options)
    with ckptfmt.open(path) as reader:
        rows = reader.table(reserved=True)
        (row,) = np.flatnonzero(rows["name"] == "_CKPTFMT_METADATA")
        shard, size = rows["shard"][row], rows["stored_nbytes"][row]
        assert rows["offset"][row] == 0 and (rows["shard"] == shard).sum() > 1
        count = reader.header.num_shards
    os.truncate(f"{path}.data-{shard:05}-of-{count:05}", size)
    with ckptfmt.open(path) as reader:
        assert reader.metadata == told
