# SPDX-License-Identifier: Apache-2.0
"""Tensors read one by one give the same values and errors as tensors of a listing."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrays import CODES, assert_same, random_array, random_key
from support.process import Spent, open_files

import ckptfmt
from ckptfmt._core import reading
from ckptfmt.types import TensorHandle

TOLD = (
    *("name", "raw_name", "shape", "dtype_code", "dtype", "dtype_name", "ndim", "size", "nbytes"),
    *("slices", "partitioned", "shard", "offset", "crc32c", "chunk_size", "compressed"),
    *("stored_nbytes", "partial_reads_verified"),
)


def told(handle: TensorHandle) -> dict[str, Any]:
    """All that a handle says of its tensor."""
    return {name: getattr(handle, name) for name in TOLD}


@pytest.mark.parametrize("options", [{"level": "v2"}, {}, {"compression": "zstd"}])
def test_found_and_listed_are_the_same(tmp_path: Path, seed: int, options: dict[str, Any]) -> None:
    chance = random.Random(seed)
    shapes = [(), (3,), (2, 3), (0, 4), (1,) * 8, (2,) * 9, (30, 20)]
    tensors = {
        f"{code}/{number}": random_array(chance, code, shape)
        for code, (number, shape) in itertools.product(CODES, enumerate(shapes))
    }
    tensors["long"] = np.arange(300_000, dtype=np.uint8).reshape(3, -1)
    ckptfmt.save(tmp_path / "ck", tensors, durability="none", **options)
    with ckptfmt.open(tmp_path / "ck") as reader:
        for listed in reader.values():
            name = listed.name
            found = reader[name]
            assert told(found) == told(listed)
            for handle in (found, listed):
                assert_same(handle.read(), tensors[name])
                assert_same(handle.read(verify="full"), tensors[name])
            assert_same(reader.read(name), tensors[name])
            assert_same(reader.read(listed.raw_name, verify="off"), tensors[name])
            for handle in (found, listed):
                into = np.empty(handle.shape, handle.dtype)
                assert handle.read_into(into) is into
                assert_same(into, tensors[name])
            for _ in range(3):
                key = random_key(chance, found.shape)
                assert_same(found[key], tensors[name][key])


def test_a_read_is_one_system_call(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {f"t{i}": np.full(256, i, np.float32) for i in range(100)})
    with ckptfmt.open(tmp_path / "ck") as reader:
        reader["t0"].read()
        with Spent() as spent:
            for i in range(100):
                assert reader[f"t{i}"].read()[255] == i
        assert (spent.reads, spent.bytes_read, spent.opens) == (100, 100 * 1024, 0)
        with Spent() as spent:
            for i in range(100):
                assert reader.read(f"t{i}")[255] == i
        assert (spent.reads, spent.bytes_read, spent.opens) == (100, 100 * 1024, 0)


def test_damage_is_told_in_full(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"a": np.arange(8.0), "b": np.arange(8.0)})
    data = tmp_path / "ck.data-00000-of-00001"
    with ckptfmt.open(tmp_path / "ck") as reader:
        handle, place = reader["b"], int(reader["b"].offset or 0)
        with open(data, "r+b") as stream:
            stream.seek(place + 9)
            stream.write(b"\xff")
        into = np.empty(8)
        for read in (
            handle.read,
            lambda: handle.read_into(into),
            lambda: handle[1:3],
            lambda: reader.read("b"),
        ):
            with pytest.raises(ckptfmt.CorruptError, match="DAT-6") as caught:
                read()
            assert (caught.value.tensor, caught.value.offset) == ("b", place)
            assert caught.value.path == str(data)
        assert np.array_equal(handle.read(verify="off")[2:], np.arange(2.0, 8.0))
        assert np.array_equal(reader["a"].read(), np.arange(8.0))
        assert np.array_equal(reader.read("b", verify="off"), handle.read(verify="off"))
        for read in (handle.read, functools.partial(reader.read, "b")):
            with pytest.raises(ckptfmt.InvalidError, match="verify"):
                read(verify="some")


@pytest.mark.parametrize("listed", [False, True])
def test_handles_pickle_by_name(listed: bool, tmp_path: Path) -> None:
    """Before a read and after one, whatever it took; what is saved there since is what is found."""
    tensors = {"a": np.arange(8.0), "large": np.arange(600_000.0), b"\xff": np.ones(3)}
    ckptfmt.save(tmp_path / "ck", tensors, durability="none")
    with ckptfmt.open(tmp_path / "ck", verify="off") as reader:
        handles = list(reader.values()) if listed else [reader[name] for name in tensors]
        for handle in handles:
            before = pickle.dumps(handle)
            value = handle.read()
            for again in (pickle.loads(before), pickle.loads(pickle.dumps(handle))):
                assert_same(again.read(), value)
        kept = pickle.dumps(reader["a"])
    ckptfmt.save(tmp_path / "ck", {"0": np.ones(80), "a": np.zeros(9)}, durability="none")
    assert_same(pickle.loads(kept).read(), np.zeros(9))


def test_a_copy_of_a_handle_is_the_handle(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"x": np.arange(8.0)})
    with ckptfmt.open(tmp_path / "ck") as reader:
        handle = reader["x"]
    assert copy.copy(handle) is handle


# ---- closing -------------------------------------------------------------------------------------


def test_closing_frees_at_once(tmp_path: Path) -> None:
    """Whatever handles, arrays and errors are still about."""
    ckptfmt.save(tmp_path / "ck", {"x": np.arange(8.0), "s": np.array([b"a"], object)})
    gc.disable()
    try:
        before = open_files()
        reader = ckptfmt.open(tmp_path / "ck")
        kept: list[Any] = [reader["x"], reader["s"], reader["x"].read(), list(reader)]
        number: Any = 3
        wrongs = (lambda: reader["y"], reader["s"].map, lambda: reader[number])
        for wrong in wrongs:
            with pytest.raises((KeyError, ckptfmt.InvalidError)) as caught:
                wrong()
            kept.append(caught.value)
        assert open_files() > before
        reader.close()
        assert open_files() == before
        told(kept[0])
        uses = kept[0].read, lambda: kept[0][1:2], kept[1].read, lambda: reader["x"]
        for use in (*uses, lambda: reader.read("x"), lambda: reader.read("s")):
            with pytest.raises(ckptfmt.InvalidError, match="checkpoint is closed"):
                use()
        assert len(kept) == 7
    finally:
        gc.enable()


def test_the_last_call_frees_what_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that is under way when the reader is closed ends well, and its files close with it."""
    ckptfmt.save(tmp_path / "ck", {"x": np.arange(8.0)})
    before, reader = open_files(), ckptfmt.open(tmp_path / "ck")
    handle, inside, closed = reader["x"], threading.Event(), threading.Event()
    read = reading.read_small

    def slow(*arguments: Any) -> Any:
        inside.set()
        assert closed.wait(600)
        return read(*arguments)

    monkeypatch.setattr(reading, "read_small", slow)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(handle.read)
        assert inside.wait(600)
        reader.close()
        assert open_files() > before
        closed.set()
        assert pending.result(600).tolist() == list(range(8))
    assert open_files() == before
