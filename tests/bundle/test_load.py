# SPDX-License-Identifier: Apache-2.0
"""Loading many tensors at once: `load` and `restore_v2`."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrays import CODES, NAMES, assert_same, bits, random_array, random_shape
from support.files import flip
from support.process import Spent

import ckptfmt
from ckptfmt import InvalidError, TensorNotFoundError

TENSORS = {
    "d": np.arange(4.0),
    "h": np.arange(4, dtype=np.float16) / 3,
    "i": np.arange(3, dtype=np.int64),
    "s": np.array([b"a", b"b\0"], object),
}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A checkpoint of TENSORS."""
    ckptfmt.save(tmp_path / "ck", TENSORS, durability="none")
    return tmp_path / "ck"


def all_bits(tensors: Any) -> dict[str, Any]:
    return {name: bits(array) for name, array in tensors.items()}


# ---- names ---------------------------------------------------------------------------------------


def test_everything(tmp_path: Path, seed: int) -> None:
    """Every dtype, whole and cut, in key order; arrays are writable and do not overlap."""
    chance = random.Random(seed)
    tensors = {}
    for code in CODES:
        for number in range(3):
            tensors[f"{NAMES[code]}/{number}"] = random_array(chance, code, random_shape(chance))
    tensors["large"] = random_array(chance, 2, (200, 100))
    with ckptfmt.Writer(tmp_path / "ck", durability="none") as writer:
        for name, value in tensors.items():
            if value.ndim and value.shape[0] > 1 and chance.random() < 0.4:
                rest = (0,) * (value.ndim - 1)
                writer.add_slice(name, value[:1], value.shape, (0, *rest))
                writer.add_slice(name, value[1:], value.shape, (1, *rest))
            else:
                writer.add(name, value)
    for verify in ("auto", "full", "off"):
        loaded = ckptfmt.load(tmp_path / "ck", verify=verify)
        assert list(loaded) == sorted(tensors)
        assert all_bits(loaded) == all_bits(tensors)
    assert all(array.flags.writeable and array.flags.c_contiguous for array in loaded.values())
    before = all_bits({name: array for name, array in loaded.items() if name != "large"})
    loaded["large"].view(np.uint8)[...] = 0xAA
    assert all_bits({name: array for name, array in loaded.items() if name != "large"}) == before
    for name in [name for name in loaded if loaded[name].dtype == np.uint8]:
        loaded[name][...] = 0xFF
    plain = {name: array for name, array in tensors.items() if array.dtype != np.uint8}
    del plain["large"]
    assert all_bits({name: loaded[name] for name in plain}) == all_bits(plain)


def test_some_names(prefix: Path) -> None:
    """In the order asked for, repeats left out, and nothing else is read."""
    assert list(ckptfmt.load(prefix, ["i", b"d", "i"])) == ["i", "d"]
    assert list(ckptfmt.load(prefix, {"d": 1})) == ["d"]
    assert ckptfmt.load(prefix, []) == {} and ckptfmt.load(prefix, iter(())) == {}
    index_size = Path(f"{prefix}.index").stat().st_size
    with Spent() as spent:
        assert_same(ckptfmt.load(prefix, ["d"])["d"], TENSORS["d"])
    assert spent.bytes_read <= 2 * index_size + 32
    for name in ("d", b"d"):
        with pytest.raises(InvalidError, match=r"^names must be a list of names, not one$"):
            ckptfmt.load(prefix, name)


def test_reserved_names(tmp_path: Path) -> None:
    """Left out unless asked for."""
    ckptfmt.save(tmp_path / "ck", {"x": [1]}, metadata={"k": 1})
    assert list(ckptfmt.load(tmp_path / "ck")) == ["x"]
    loaded = ckptfmt.load(tmp_path / "ck", ["_CKPTFMT_METADATA"])
    assert loaded["_CKPTFMT_METADATA"].item() == b'{"k":1}'


def test_missing_names(prefix: Path) -> None:
    for wanted in (["d", "z"], ["z", "d"], ["z"], [b"z"]):
        with pytest.raises(TensorNotFoundError) as caught:
            ckptfmt.load(prefix, wanted)
        assert (caught.value.tensor, caught.value.path) == ("z", f"{prefix}.index")


# ---- into arrays ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES, ids=NAMES.get)
def test_into_arrays_of_every_layout(tmp_path: Path, seed: int, code: int) -> None:
    chance = random.Random(seed + code)
    values = {name: random_array(chance, code, (6, 10)) for name in "abcd"}
    ckptfmt.save(tmp_path / "ck", values, durability="none")
    dtype = values["a"].dtype
    out = {
        "a": np.zeros((6, 10), dtype),
        "b": np.zeros((6, 10), dtype, order="F"),
        "c": np.zeros((12, 20), dtype)[::-2, ::2],
    }
    report = ckptfmt.load_into(tmp_path / "ck", out, strict=False)
    assert report.matched == ("a", "b", "c") and report.unexpected == ("d",)
    assert all_bits(out) == all_bits({name: values[name] for name in out})


# ---- progress and damage -------------------------------------------------------------------------


def test_progress(tmp_path: Path) -> None:
    """In file order, batches of 32 MiB; what it raises comes through."""
    mib = np.zeros(1 << 20, np.uint8)
    tensors = {f"t{i}": np.broadcast_to(mib, (12, 1 << 20)) for i in range(5)}
    ckptfmt.save(tmp_path / "ck", tensors, durability="none")
    told: list[tuple[int, int]] = []
    ckptfmt.load(tmp_path / "ck", progress=lambda *at: told.append(at))
    total = 60 << 20
    assert told == [(24 << 20, total), (48 << 20, total), (total, total)]

    def stop(_done: int, _total: int) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        ckptfmt.load(tmp_path / "ck", progress=stop)


def test_progress_counts_strings(tmp_path: Path) -> None:
    """As stored; so are arrays that C cannot write into directly."""
    strings = np.array([b"x" * 100] * 1000, object)
    with ckptfmt.Writer(tmp_path / "ck", level="v2") as writer:
        writer.add("numbers", np.arange(6.0).reshape(2, 3))
        writer.add("texts", strings)
        for row in range(2):
            writer.add_slice("parts", strings[:1], (2,), (row,))
    told: list[tuple[int, int]] = []
    out = {
        "numbers": np.zeros((3, 2)).T,
        "texts": np.full(1000, b"", object),
        "parts": np.full(2, b"", object),
    }
    ckptfmt.load_into(tmp_path / "ck", out, progress=lambda *at: told.append(at))
    assert out["numbers"].tolist() == [[0, 1, 2], [3, 4, 5]] and out["texts"][-1] == b"x" * 100
    texts, parts = 4 + 1000 * 101, 2 * (4 + 101)
    total = 48 + texts + parts
    assert told == [(48, total), (48 + parts, total), (total, total)]
    ckptfmt.load(tmp_path / "ck", ["parts"], progress=lambda *at: told.append(at))
    assert told[3:] == [(parts, parts)]


def test_damage_is_named(prefix: Path) -> None:
    data = Path(f"{prefix}.data-00000-of-00001")
    with ckptfmt.open(prefix) as reader:
        offset = reader["h"].offset
    flip(data, offset + 1)
    with pytest.raises(ckptfmt.CorruptError) as caught:
        ckptfmt.load(prefix)
    error = caught.value
    assert (error.failure, error.tensor, error.path, error.offset) == (
        "CHECKSUM",
        "h",
        str(data),
        offset,
    )
    assert list(ckptfmt.load(prefix, ["d", "i", "s"])) == ["d", "i", "s"]
    assert ckptfmt.load(prefix, verify="off")["h"].shape == (4,)
    with pytest.raises(InvalidError, match="verify must be one of"):
        ckptfmt.load(prefix, verify="some")


# ---- restore_v2 ----------------------------------------------------------------------------------


def test_restore_v2(tmp_path: Path, seed: int) -> None:
    """Whole tensors and slices of every dtype, stored whole and cut, repeats allowed."""
    chance = random.Random(seed)
    values = {NAMES[code]: random_array(chance, code, (4, 6)) for code in CODES}
    with ckptfmt.Writer(tmp_path / "ck", durability="none") as writer:
        for name, value in values.items():
            writer.add(name, value)
            writer.add_slice(f"cut/{name}", value[:, :4], (4, 6), (0, 0))
            writer.add_slice(f"cut/{name}", value[:, 4:], (4, 6), (0, 4))
    names = [name for name in values for _ in range(3)]
    specs = ["", "4 6 1,2:-", b"4 6 0,4:3,2"] * len(values)
    for start in ("", "cut/"):
        got = ckptfmt.restore_v2(tmp_path / "ck", [start + name for name in names], specs)
        assert len(got) == len(names)
        for number, (name, array) in enumerate(zip(names, got, strict=True)):
            value = values[name]
            assert_same(array, (value, value[1:3], value[:, 3:5])[number % 3])
    codes = [code for code in CODES for _ in range(3)]
    assert len(ckptfmt.restore_v2(tmp_path / "ck", names, specs, codes)) == len(names)
    assert len(ckptfmt.restore_v2(tmp_path / "ck", names, specs, names)) == len(names)
    assert ckptfmt.restore_v2(tmp_path / "ck", [], []) == []


def test_restore_v2_is_not_aliased(prefix: Path) -> None:
    first, second = ckptfmt.restore_v2(prefix, ["d", "d"], ["", ""])
    first[:] = -1
    assert_same(second, TENSORS["d"])


TEXTS = "tensor_names and shape_and_slices"
SHAPE = "tensor_name = d; shape in shape_and_slice spec"
STORED = "does not match the shape stored in checkpoint:"


@pytest.mark.parametrize(
    ("names", "specs", "dtypes", "message"),
    [
        ("d", [""], None, "tensor_names must be a sequence of texts, not one"),
        (["d"], "", None, "shape_and_slices must be a sequence of texts, not one"),
        (["d"], ["", ""], None, f"{TEXTS} have different number of elements: 1 vs. 2"),
        (["d"], [""], [], "Got 1 tensor names, but 0 expected dtypes."),
        (
            ["d", "h", "i"],
            ["", "", ""],
            ["float32", "half", "int32"],
            "tensor_name = d; expected dtype float32 does not equal original dtype float64; "
            "tensor_name = i; expected dtype int32 does not equal original dtype int64",
        ),
        (["d"], ["5 1,2"], None, f"{SHAPE} [5] {STORED} [4]"),
        (["d"], ["4 1 0,1:-"], None, f"{SHAPE} [4,1] {STORED} [4]"),
        (
            ["d"],
            ["4 1,9"],
            None,
            'TXT-6: a slice past the end of its dimension in the slice spec "4 1,9"',
        ),
        (["d"], ["4 "], None, 'TXT-4: shape and slice differ in rank in the slice spec "4 "'),
    ],
)
def test_restore_v2_refuses(
    prefix: Path, names: Any, specs: Any, dtypes: Any, message: str
) -> None:
    with pytest.raises(InvalidError) as caught:
        ckptfmt.restore_v2(prefix, names, specs, dtypes)
    assert caught.value.message == message


def test_restore_v2_names_what_is_missing(prefix: Path) -> None:
    with pytest.raises(TensorNotFoundError) as caught:
        ckptfmt.restore_v2(prefix, ["d", "z"], ["", ""])
    assert caught.value.tensor == "z"
    with pytest.raises(ckptfmt.CheckpointNotFoundError) as missing:
        ckptfmt.restore_v2(f"{prefix}2", ["d"], [""])
    assert isinstance(missing.value, FileNotFoundError)


@pytest.mark.parametrize("kind", "?bhilqBHILQefdFD")
def test_targets_in_either_byte_order(tmp_path: Path, kind: str) -> None:
    values = np.arange(12).astype(kind)
    ckptfmt.save(tmp_path / "ck", {"x": values, "y": values[::2]})
    for order, cast in itertools.product("<>", [None, True]):
        dtype = np.dtype("f8" if cast and kind in "hf" else kind).newbyteorder(order)
        targets = {"x": np.zeros(12, dtype), "y": np.zeros(12, dtype)[::2]}
        assert ckptfmt.load_into(tmp_path / "ck", targets, cast=cast)
        assert targets["x"].dtype == dtype
        np.testing.assert_array_equal(targets["x"], values)
        np.testing.assert_array_equal(targets["y"], values[::2])
