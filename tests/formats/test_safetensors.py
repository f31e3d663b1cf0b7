# SPDX-License-Identifier: Apache-2.0
"""safetensors files, made by hand: what is read, what is written, what is refused."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from support.pages import run_console, run_page
from support.strategies import arrays, property_test

import ckptfmt
from ckptfmt._base import dtypes
from ckptfmt.bundle.comparing import pieces
from ckptfmt.cli import main
from ckptfmt.formats import safetensors as format_
from ckptfmt.safetensors import load_file, safe_open, save_file

CODES = [dtypes.code_of(name) for name in format_._NAMES.values() if "e8m0" not in name]


def file_of(path: Path, header: Any, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def about(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def samples() -> dict[str, np.ndarray[Any, Any]]:
    """A tensor of every dtype, and shapes that are special."""
    found = {}
    for code in CODES:
        dtype = dtypes.numpy_dtype(code)
        found[f"d/{dtypes.name_of(code)}"] = np.arange(8).reshape(2, 4).astype(dtype)
    return found | {
        "scalar": np.array(2.5, np.float32),
        "none": np.zeros((0, 4), np.int16),
        "größe": np.ones(3, np.uint8),
    }


def same(one: Any, other: Any) -> bool:
    return bool(
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


@pytest.mark.parametrize("metadata", [{"step": 5}, {5: "x", "5": "y"}, {"a": None}, {b"a": "b"}])
def test_metadata_that_are_not_texts(tmp_path: Path, metadata: Any) -> None:
    """No loader would read them; nothing is written."""
    with pytest.raises(ckptfmt.InvalidError) as caught:
        save_file(samples(), tmp_path / "a.safetensors", metadata)
    assert caught.value.argument == "metadata"
    assert not list(tmp_path.iterdir())


def test_round_trip(tmp_path: Path) -> None:
    """All dtypes, through a file and through a checkpoint."""
    tensors = samples()
    save_file(tensors, tmp_path / "a.safetensors", {"format": "np"})
    done = ckptfmt.convert(tmp_path / "a.safetensors", tmp_path / "ck")
    assert (done.format, done.tensors, done.dropped, done.casts) == (
        "tensorflow",
        len(tensors),
        (),
        {},
    )
    back = ckptfmt.convert(tmp_path / "ck", tmp_path / "b.safetensors")
    assert back.nbytes == sum(one.nbytes for one in tensors.values())
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    for path in ("a.safetensors", "ck"):
        loaded = load_file(tmp_path / path)
        assert loaded.keys() == tensors.keys()
        assert all(same(loaded[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("kind", ["file", "checkpoint", "URL"])
def test_safe_open(tmp_path: Path, kind: str) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    path: Any = tmp_path / ("x.safetensors" if kind == "file" else "x")
    path = "memory://safe_open/x" if kind == "URL" else path
    if kind == "file":
        save_file({"w": array, "a": array[0]}, path, {"step": "7"})
    else:
        ckptfmt.save(path, {"w": array, "a": array[0]}, metadata={"step": 7})
    with safe_open(path) as file:
        assert file.keys() == ["a", "w"]
        assert file.metadata() == {"step": "7"}
        assert same(file.get_tensor("w"), array)
        part = file.get_slice("w")
        assert (part.get_shape(), part.get_dtype()) == ([2, 3, 4], "F32")
        for key in (0, slice(1, 2), (slice(None), slice(0, 3, 2)), (..., -1), (1, 2, slice(1, 3))):
            assert np.array_equal(part[key], array[key])
        with pytest.raises(ckptfmt.TensorNotFoundError, match="'w'"):
            file.get_tensor("ww")
    assert np.array_equal(safe_open(path).get_slice("w")[1:], array[1:])


def test_by_hand(tmp_path: Path) -> None:
    """A header with spaces, a null of metadata, tensors in another order than their bytes."""
    header = {"__metadata__": None, "b": about("I16", [2], 2, 6), "a": about("U8", [2], 0, 2)}
    text = json.dumps(header).encode() + b"   "
    path = file_of(tmp_path / "x.safetensors", text, bytes([1, 2, 3, 0, 255, 255]))
    with safe_open(path) as file:
        assert file.metadata() is None
        assert file.offset_keys() == ["a", "b"]
        assert file.get_tensor("a").tolist() == [1, 2]
        assert file.get_tensor("b").tolist() == [3, -1]


@pytest.mark.parametrize(
    ("header", "data", "error", "message"),
    [
        ({"a": about("U8", [2], 0, 2)}, b"1", ckptfmt.CorruptError, "end at byte"),
        ({"a": about("U8", [2], 0, 2)}, b"123", ckptfmt.CorruptError, "end at byte"),
        ({"a": about("U8", [2], 1, 3)}, b"123", ckptfmt.CorruptError, "missing before"),
        ({"a": about("U8", [2], 0, 2), "b": about("U8", [2], 1, 3)}, b"123", ckptfmt.CorruptError,
         "overlap"),
        ({"a": about("F32", [2], 0, 4)}, b"1234", ckptfmt.CorruptError, "does not take"),
        ({"a": about("U8", [-1], 0, 1)}, b"1", ckptfmt.CorruptError, "sizes"),
        ({"a": about("U8", [True], 0, 1)}, b"1", ckptfmt.CorruptError, "sizes"),
        ({"a": about("U8", [1 << 62, 1 << 62], 0, 1)}, b"1", ckptfmt.CorruptError, "does not take"),
        ({"a": about("F4", [3], 0, 1)}, b"1", ckptfmt.CorruptError, "does not take"),
        ({"a": about("Q8", [1], 0, 1)}, b"1", ckptfmt.UnsupportedError, "unknown"),
        ({"a": {"dtype": "U8"}}, b"", ckptfmt.CorruptError, "must have dtype"),
        ({"__metadata__": {"a": 1}}, b"", ckptfmt.CorruptError, "texts"),
        (b'{"a":1,"a":2}', b"", ckptfmt.CorruptError, "duplicate"),
        (b"[]", b"", ckptfmt.CorruptError, "JSON object"),
        (b"{", b"", ckptfmt.CorruptError, "not JSON"),
        (b"[" * 100000, b"", ckptfmt.CorruptError, "not JSON"),
        (b'{"a": NaN}', b"", ckptfmt.CorruptError, "not JSON"),
        (b"\xff", b"", ckptfmt.CorruptError, "not JSON"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, header: Any, data: bytes, error: Any, message: str) -> None:
    path = file_of(tmp_path / "x.safetensors", header, data)
    with pytest.raises(error, match=message) as found:
        safe_open(path)
    assert found.value.path == str(path)
    with pytest.raises(error, match=message):
        ckptfmt.convert(path, tmp_path / "ck")
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_what_loaders_ignore(tmp_path: Path) -> None:
    """Keys of a tensor that are not known, which a conversion names, and tensors that the index
    does not list, which loaders read: they are not damage."""
    for name in ("a", "b"):
        header = {name: about("U8", [2], 0, 2) | {"scale": {"of": name}}}
        file_of(tmp_path / f"{name}.safetensors", header, name.encode() * 2)
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors"}}))
    assert load_file(index).keys() == {"a"}, "the index names the files"
    save_file({"a": np.ones(1), "x": np.ones(1)}, tmp_path / "a.safetensors")
    assert load_file(index).keys() == {"a", "x"}
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    for result in ("ck", "y.safetensors"):
        done = ckptfmt.convert(index, tmp_path / result)
        assert load_file(tmp_path / result).keys() == {"a", "b", "x"}
        (dropped,) = done.dropped
        assert "'scale'" in dropped


def test_size_of_the_header(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"\xff" * 8)
    with pytest.raises(ckptfmt.CorruptError, match="header should have"):
        safe_open(path)
    path.write_bytes(b"1234567")
    with pytest.raises(ckptfmt.CorruptError, match="not a safetensors file"):
        safe_open(path)


def test_header_of_too_many_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before a tensor is read, also if it is the header of a later one of several files."""
    ckptfmt.save(tmp_path / "ck", {"a": np.zeros(100, "u1")} | {f"b{n}": [n] for n in range(20)})
    result = tmp_path / "x.safetensors"
    monkeypatch.setattr(format_, "HEADER_MAX", 600)
    read = list[int]()
    options = {"progress": lambda done, _: read.append(done)}
    for most in (None, 100):
        with pytest.raises(ckptfmt.InvalidError) as caught:
            ckptfmt.convert(tmp_path / "ck", result, max_shard_bytes=most, **options)
        assert caught.value.argument == "max_shard_bytes" and not any(read)
    assert main(["convert", str(tmp_path / "ck"), str(result)]) == 2
    assert "600" in (message := capsys.readouterr().err) and "--max-shard-size" in message
    assert not list(tmp_path.glob("x*"))
    ckptfmt.convert(tmp_path / "ck", result, max_shard_bytes=60, **options)
    assert any(read)


def test_types_without_arrays(tmp_path: Path) -> None:
    """They are listed, and refused when they are read."""
    header = {"f": about("F4", [2, 3], 0, 3), "s": about("F6_E2M3", [4], 3, 6)}
    path = file_of(tmp_path / "x.safetensors", header, b"123456")
    with safe_open(path) as file:
        assert file.get_slice("f").get_shape() == [2, 3]
        assert file.get_slice("f").get_dtype() == "F4"
        for name in header:
            with pytest.raises(ckptfmt.UnsupportedError) as caught:
                file.get_tensor(name)
            assert caught.value.tensor == name
    with pytest.raises(ckptfmt.UnsupportedError):
        ckptfmt.convert(path, tmp_path / "ck")
    for shape in ((2, 3), ()):
        with pytest.raises(ckptfmt.InvalidError) as refused:
            save_file({"x": np.zeros(shape, ml_dtypes.float4_e2m1fn)}, tmp_path / "y.safetensors")
        assert refused.value.tensor == "x"


def test_f8_e8m0(tmp_path: Path) -> None:
    """A checkpoint lacks the dtype: it holds the bits as uint8, which the conversion and its
    metadata say, and the other tensors as they are."""
    bits = np.array([[126, 127, 128]], np.uint8)
    scales = bits.view(ml_dtypes.float8_e8m0fnu)  # 0.5, 1, 2
    path = tmp_path / "x.safetensors"
    save_file({"a": np.ones(3), "scales": scales}, path)
    with safe_open(path) as file:
        assert file.get_slice("scales").get_dtype() == "F8_E8M0"
        assert same(file.get_slice("scales")[:, 1:], scales[:, 1:])
    done = ckptfmt.convert(path, tmp_path / "ck")
    assert done.bits == {"scales": ("float8_e8m0fnu", "uint8")}
    assert done.casts == {}
    loaded = ckptfmt.load(tmp_path / "ck")
    assert same(loaded["scales"], scales)
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert same(reader["scales"].read(), bits)
        assert reader["scales"].meaning == "float8_e8m0fnu"
        assert reader["a"].meaning is None
    assert same(loaded["a"], np.ones(3))
    ckptfmt.convert(tmp_path / "ck", tmp_path / "back.safetensors")
    assert same(load_file(tmp_path / "back.safetensors")["scales"], scales)
    for cast in ("float64", {"s*": "float64"}):
        done = ckptfmt.convert(path, tmp_path / "numbers", cast=cast)
        assert done.casts == {"scales": ("float8_e8m0fnu", "float64")}
        assert done.bits == {}
        assert ckptfmt.load(tmp_path / "numbers")["scales"].tolist() == [[0.5, 1, 2]]
    # Between safetensors files the dtype stays.
    ckptfmt.convert(path, tmp_path / "y.safetensors")
    assert (tmp_path / "y.safetensors").read_bytes() == path.read_bytes()
    with pytest.raises(ckptfmt.InvalidError, match=r"npz cannot hold float8_e8m0fnu.*cast"):
        ckptfmt.convert(path, tmp_path / "x.npz")


def test_several_files(tmp_path: Path) -> None:
    tensors = samples()
    ckptfmt.save(tmp_path / "ck", tensors)
    (tmp_path / "out").mkdir()
    done = ckptfmt.convert(
        tmp_path / "ck", tmp_path / "out" / "model.safetensors", max_shard_bytes=64
    )
    assert done.path == str(tmp_path / "out" / "model.safetensors.index.json")
    index = json.loads(Path(done.path).read_text())
    # The file has two of FP4 to a byte.
    assert index["metadata"] == {"total_size": done.nbytes - tensors["d/float4_e2m1fn"].size // 2}
    assert index["weight_map"].keys() == tensors.keys()
    files = {name for name in os.listdir(tmp_path / "out") if name.endswith(".safetensors")}
    assert files == set(index["weight_map"].values())
    assert len(files) > 3
    for source in (done.path, tmp_path / "out"):
        ckptfmt.convert(source, tmp_path / "back")
        loaded = ckptfmt.load(tmp_path / "back")
        assert all(same(loaded[name], tensors[name]) for name in tensors)
    # One file is enough: no index.
    done = ckptfmt.convert(
        tmp_path / "ck", tmp_path / "one" / "model.safetensors", max_shard_bytes=1 << 30
    )
    assert os.listdir(tmp_path / "one") == ["model.safetensors"]


@pytest.mark.parametrize(
    ("places", "error", "message"),
    [
        ({"a": "../x.safetensors"}, ckptfmt.InvalidError, "not a file beside it"),
        ({"a": "x.safetensors", "b": "x.safetensors"}, ckptfmt.CorruptError, "does not have"),
        ({}, ckptfmt.CheckpointNotFoundError, "no such file"),
        ({"a": "y.safetensors"}, ckptfmt.CorruptError, "does not have"),
        (
            {"a": "y.safetensors", "b": "x.safetensors", "c": "y.safetensors"},
            ckptfmt.CorruptError,
            "another file",
        ),
        ({"b": "y.safetensors", "c": "z.safetensors"}, ckptfmt.CorruptError, "another file"),
        ({"a": 1}, ckptfmt.CorruptError, "weight_map"),
    ],
)
def test_wrong_index(tmp_path: Path, places: Any, error: Any, message: str) -> None:
    save_file({"a": np.arange(2)}, tmp_path / "x.safetensors")
    save_file({"b": np.arange(2), "c": np.ones(2)}, tmp_path / "y.safetensors")
    save_file({"b": np.arange(2), "c": np.ones(2)}, tmp_path / "z.safetensors")
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places or {"a": "nosuch.safetensors"}}))
    with pytest.raises(error, match=message):
        safe_open(index)


def slices_of(directory: Path, files: list[dict[str, tuple[Any, Any]]]) -> tuple[Path, list[Path]]:
    """Files with slices, as torch.distributed.checkpoint writes them: name -> (offsets, array)."""
    directory.mkdir()
    paths = []
    for rank, tensors in enumerate(files):
        offsets = {name: {"saved_offsets": start} for name, (start, _) in tensors.items()}
        paths.append(directory / f"shard-{rank + 1:05}-model-00001-of-00001.safetensors")
        metadata = {"DCP_SHARDING_INFO": json.dumps(offsets), "format": "pt"}
        save_file({name: array for name, (_, array) in tensors.items()}, paths[-1], metadata)
    return directory, paths


def test_slices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Slices of all files of a directory make up the tensors; a file alone has none of them."""
    whole, scalar, empty = np.arange(42.0).reshape(6, 7), np.array(2.5), np.zeros((0, 3))
    quarter = {"w": ([0, 0], whole[:4, :5]), "rows": ([0, 0], whole[:0])}
    files = [
        quarter | {"empty": ([0, 0], empty)},
        {"w": ([4, 0], whole[4:, :5]), "rows": ([0, 0], whole[:5]), "scalar": ([], scalar)},
        {"w": ([0, 5], whole[:, 5:]), "rows": ([5, 0], whole[5:]), "empty": ([0, 0], empty)},
    ]
    directory, paths = slices_of(tmp_path / "several", files)
    expected = {"w": whole, "rows": whole, "scalar": scalar, "empty": empty}
    ckptfmt.convert(directory, tmp_path / "ck")
    done = ckptfmt.convert(directory, tmp_path / "one.safetensors")
    assert done.nbytes == sum(one.nbytes for one in expected.values())
    for path in (directory, tmp_path / "ck", tmp_path / "one.safetensors"):
        loaded = load_file(path)
        assert loaded.keys() == expected.keys()
        assert all(same(loaded[name], expected[name]) for name in expected)
    with safe_open(directory) as file, safe_open(tmp_path / "one.safetensors") as one:
        assert file.metadata() == one.metadata() == {"format": "pt"}
        assert file.get_slice("w").get_dtype() == "F64"
        assert same(file.get_slice("w")[3:5, 4:6], whole[3:5, 4:6])
    assert main(["inspect", "--json", str(directory)]) == 0
    tensors = {one["name"]: one for one in json.loads(capsys.readouterr().out)["tensors"]}
    assert tensors["w"]["shape"] == [6, 7]
    assert main(["diff", str(directory), str(tmp_path / "ck")]) == 0
    for path in paths:
        for use in (load_file, lambda path: ckptfmt.convert(path, tmp_path / "part")):
            with pytest.raises(ckptfmt.UnsupportedError, match=str(directory)) as caught:
                use(path)
            assert caught.value.path == str(path)
        for words in (["inspect"], ["show"], ["diff", str(directory)]):
            assert main([*words, str(path), *(["w"] if words == ["show"] else [])]) == 2
    paths[1].rename(tmp_path / "renamed.safetensors")
    with pytest.raises(ckptfmt.UnsupportedError):
        load_file(tmp_path / "renamed.safetensors")
    with pytest.raises(ckptfmt.CorruptError) as damaged:
        load_file(directory)
    assert damaged.value.failure == "BAD_SLICE"


@pytest.mark.parametrize(
    ("slices", "failure"),
    [
        ([([1], np.ones(2))], "BAD_SLICE"),
        ([([0], np.ones(2)), ([3], np.ones(2))], "BAD_SLICE"),
        ([([0], np.ones(2)), ([1], np.ones(2))], "BAD_SLICE"),
        ([([0], np.ones(2)), ([0], np.ones(2))], "BAD_SLICE"),
        ([([], np.ones(())), ([], np.ones(()))], "BAD_SLICE"),
        ([([0], np.ones(2)), ([1], np.ones(2)), ([4], np.ones(1))], "BAD_SLICE"),  # 5 in 5
        ([([0], np.ones(2)), ([2], np.ones(2, "f4"))], "BAD_SLICE"),
        ([([0], np.ones(2)), ([2, 0], np.ones((2, 2)))], "BAD_SLICE"),
        ([([0], np.ones(2)), ([(1 << 63) - 1], np.ones(2))], "UNSUPPORTED"),
        ([([0], np.ones(2)), ([1 << 61], np.ones(2))], "BAD_SLICE"),
        ([([0, 0], np.ones((0, 2))), ([1 << 62, 1 << 62], np.ones((0, 2)))], "UNSUPPORTED"),
        ([([0], np.ones(2, ml_dtypes.float4_e2m1fn))] * 2, "UNSUPPORTED"),
        ([([0, 0], np.ones(2))], "BAD_HEADER"),
        ([([-1], np.ones(2))], "BAD_HEADER"),
        ([([1 << 64], np.ones(2))], "BAD_HEADER"),
        ([(None, np.ones(2))], "BAD_HEADER"),
    ],
)
def test_wrong_slices(tmp_path: Path, slices: list[tuple[Any, Any]], failure: str) -> None:
    directory, _ = slices_of(tmp_path / "several", [{"x": one} for one in slices])
    for use in (load_file, lambda path: ckptfmt.convert(path, tmp_path / "ck")):
        with pytest.raises(ckptfmt.CkptfmtError) as caught:
            use(directory)
        assert (caught.value.failure, caught.value.tensor) == (failure, "x")
    assert os.listdir(tmp_path) == ["several"]


@pytest.mark.parametrize("text", ["[]", "{", '{"x": 1}', "{}", "[" * 9999, "\ud800"])
def test_wrong_offsets(tmp_path: Path, text: str) -> None:
    header = {"__metadata__": {"DCP_SHARDING_INFO": text}, "x": about("U8", [1], 0, 1)}
    path = file_of(tmp_path / "x.safetensors", header, b"1")
    for one in (path, tmp_path):
        with pytest.raises(ckptfmt.CorruptError) as caught:
            load_file(one)
        assert (caught.value.failure, caught.value.path) == ("BAD_HEADER", str(path))


def test_a_directory_without_an_index(tmp_path: Path) -> None:
    """All files are the model, unless two have a tensor, or one is missing by their names."""
    several = tmp_path / "several"
    several.mkdir()
    save_file({"a": np.arange(2)}, several / "x.safetensors", {"of": "x"})
    assert load_file(several).keys() == {"a"}
    save_file({"b": np.ones(3)}, several / "y.safetensors")
    (several / "x.safetensors").rename(several / "X.SAFETENSORS")  # the case makes no difference
    ckptfmt.convert(several, tmp_path / "one.safetensors")
    for path in (several, tmp_path / "one.safetensors"):
        assert {name: one.tolist() for name, one in load_file(path).items()} == {
            "a": [0, 1],
            "b": [1, 1, 1],
        }
    with pytest.raises(ckptfmt.InvalidError):
        ckptfmt.convert(several, several / "y.safetensors")
    sharding = {"DCP_SHARDING_INFO": '{"a": {"saved_offsets": [2]}}'}
    for metadata in ({}, sharding):
        for name in ("w", "z"):
            save_file({"a": np.arange(2)}, several / f"{name}.safetensors", metadata)
            with pytest.raises(ckptfmt.InvalidError, match=r"X\.SAFE") as caught:
                load_file(several)
            assert f"{name}.safetensors" in str(caught.value)
            assert (caught.value.path, caught.value.tensor) == (str(several), "a")
            (several / f"{name}.safetensors").unlink()
    for number in (1, 3, 2):
        save_file({f"c{number}": [1]}, several / f"z-{number:05}-of-00003.safetensors")
        if number != 2:
            with pytest.raises(ckptfmt.errors.ShardMissingError, match="z-00002-of-00003"):
                load_file(several)
    assert load_file(several).keys() == {"a", "b", "c1", "c2", "c3"}


@property_test(40, 5000, st.data())
def test_boxes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any box has the elements that the array has there."""
    array = data.draw(arrays())
    if not format_.holds(array.dtype):
        array = np.zeros(array.shape, np.int32)
    path = tmp_path_factory.getbasetemp() / "box.safetensors"
    if array.dtype == ml_dtypes.float4_e2m1fn and math.prod(array.shape[-1:]) % 2:
        with pytest.raises(ckptfmt.InvalidError):
            save_file({"x": array}, path)
        return
    save_file({"x": array}, path)
    ends = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in array.shape]
    box = tuple(slice(*both) for both in ends)
    with format_.open_tensors(str(path)) as (tensors, _):
        assert same(tensors["x"].read(box), np.asarray(array[box]))
        for one in pieces(array.shape, array.itemsize, 16):
            assert same(tensors["x"].read(one), np.asarray(array[one]))


@property_test(120, 20000, st.data())
def test_damaged_headers(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A changed byte, a cut file or another size: a typed error, or tensors inside of the file."""
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    header = {"a": about("F32", [2, 3], 0, 24), "b": about("U8", [5], 24, 29)}
    file_of(path, header, bytes(range(29)))
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        with safe_open(path) as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                assert file.get_tensor(name).nbytes <= len(raw)
    except ckptfmt.CkptfmtError:
        pass


@pytest.mark.parametrize("file", ["m.safetensors", "m.bin"])
def test_one_file_beside_an_index(tmp_path: Path, file: str) -> None:
    """Loaders prefer one or the other, so that the older of the two could be read for the newer."""
    for value, name in enumerate(("old", "new")):
        arrays = {key: np.full(100, value, "f4") for key in "ab"}
        ckptfmt.save(tmp_path / name, arrays)
    one = tmp_path / file
    index = Path(f"{tmp_path / file.removesuffix('.safetensors')}.safetensors.index.json")
    several = {"max_shard_bytes": 500}
    for old, options, results in (
        (one, {}, [(one, several), *([(index, several)] if file != "m.bin" else [])]),
        (index, several, [(one, {})]),
    ):
        ckptfmt.convert(tmp_path / "old", old, to="safetensors", **options)
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        for new, other in results:
            with pytest.raises(ckptfmt.InvalidError) as caught:
                ckptfmt.convert(tmp_path / "new", new, to="safetensors", **other)
            assert caught.value.path == str(old)
            assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
        if old == index:
            with pytest.raises(ckptfmt.InvalidError) as caught:
                ckptfmt.safetensors.save_file({"a": np.ones(1)}, one)
            assert caught.value.path == str(old)
        ckptfmt.convert(tmp_path / "new", old, to="safetensors", **options)
        assert load_file(old)["a"][0] == 1
        for path in tmp_path.glob("m*"):
            path.unlink()


def test_page(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "a", {"layer/bias": np.ones(2, np.float32), "layer/kernel": np.ones(9)})
    source = str(tmp_path / "a")
    assert main(["convert", "-q", source, str(tmp_path / "model.safetensors")]) == 0
    several = ["--max-shard-size", "75", str(tmp_path / "big.safetensors")]
    assert main(["convert", "-q", source, *several]) == 0
    assert (tmp_path / "big.safetensors.index.json").exists()
    run_console("docs/safetensors.md", tmp_path)
    assert "float32" in run_page("docs/safetensors.md", tmp_path)


def test_an_overwrite_of_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between any two renames there is no index; old files go; permissions stay."""
    for value in (1, 2):
        ckptfmt.save(tmp_path / f"m{value}", {f"t{n}": np.full(9, value) for n in range(6)})
    index = tmp_path / "x.safetensors.index.json"

    def convert(value: int, most: int) -> None:
        ckptfmt.convert(tmp_path / f"m{value}", index, max_shard_bytes=most)

    convert(1, 80)
    for path in tmp_path.glob("x*"):
        path.chmod(0o640)
    real, names, syncs = os.rename, list[str](), list[bool]()
    sync, unlink = os.fsync, os.unlink

    def rename(old: str, new: str, **where: int) -> None:
        names.append(new)
        assert not index.exists() and all(Path(tmp_path, one).exists() for one in names[:-1])
        assert True in syncs, "a power cut does not bring the index back"
        real(old, new, **where)

    def fsync(fd: int) -> None:
        sync(fd)
        syncs.append(stat.S_ISDIR(os.fstat(fd).st_mode) and not index.exists())

    def refuse(path: str, **_: int) -> None:
        raise PermissionError(errno.EACCES, "no")

    with monkeypatch.context() as patch:
        patch.setattr(
            os, "unlink", lambda name, **at: (unlink if ".temp" in name else refuse)(name, **at)
        )
        with pytest.raises(ckptfmt.StorageError):
            convert(2, 160)
    assert all((one == 1).all() for one in load_file(index).values())
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        patch.setattr(os, "fsync", fsync)
        convert(2, 160)
    assert names[-1] == index.name and len(names) == 4
    assert {path.name for path in tmp_path.glob("x*")} == set(names)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("x*")} == {0o640}
    assert all((one == 2).all() for one in load_file(index).values())
