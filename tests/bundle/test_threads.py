# SPDX-License-Identifier: Apache-2.0
"""Many threads on one reader, and readers beside a writer that never stops."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.sharded.coordinator import SingleProcess


def run_all(count: int, work: object) -> list[object]:
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(work, i) for i in range(count)]]


@pytest.mark.parametrize("open_files_max", [128, 3])
def test_eight_threads_on_one_reader(tmp_path: Path, seed: int, open_files_max: int) -> None:
    """Every thread gets its bytes, with all data files open and with fewer than there are."""
    parts = []
    values = np.arange(12 * 64, dtype=np.float32).reshape(12, 64)
    for i in range(12):
        parts.append(str(tmp_path / f"p{i}"))
        with ckptfmt.Writer(parts[-1], durability="none") as writer:
            writer.add(f"own/{i:02d}", np.full(1000, i))
            writer.add_slice("cut", values[i : i + 1], shape=(12, 64), offset=(i, 0))
    ckptfmt.merge(parts, tmp_path / "m", durability="none")
    with ckptfmt.open(tmp_path / "m", limits={"open_files_max": open_files_max}) as reader:

        def work(number: int) -> int:
            chance = random.Random(seed + number)
            for _ in range(200):
                i = chance.randrange(12)
                assert (reader[f"own/{i:02d}"].read() == i).all()
                low, high = sorted(chance.sample(range(13), 2))
                assert np.array_equal(reader["cut"][low:high, 3:9], values[low:high, 3:9])
            return number

        assert run_all(8, work) == list(range(8))


def test_readers_beside_a_writer(tmp_path: Path) -> None:
    """Each load is entirely one generation, and none fails, while generations are replaced."""
    prefix = tmp_path / "ck"
    names = [f"t{i}" for i in range(6)]

    def save(generation: int) -> None:
        tensors = {name: np.full(3000, generation, np.int32) for name in names}
        ckptfmt.save(prefix, tensors, durability="none")

    save(0)
    begun, stop = threading.Barrier(5), threading.Event()
    seen: set[int] = set()

    def read(_number: int) -> int:
        loads, is_last = 0, False
        while not is_last:
            is_last = stop.is_set() and loads >= 20
            loaded = ckptfmt.load(prefix)
            generations = {int(value) for array in loaded.values() for value in np.unique(array)}
            assert len(generations) == 1, generations
            seen.update(generations)
            loads += 1
            if loads == 1:
                begun.wait()
        return loads

    def write() -> None:
        try:
            begun.wait()
            for generation in range(1, 60):
                save(generation)
        finally:
            stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    loads = run_all(4, read)
    writer.join()
    assert min(loads) >= 20 and {0, 59} <= seen
    assert sorted(path.name for path in tmp_path.iterdir())[-1] == "ck.index"
    assert len(list(tmp_path.iterdir())) <= 3


USES: dict[str, Callable[[ckptfmt.Reader], Any]] = {
    "slice": lambda reader: reader["x"][5:7].tolist() == [5, 6],
    "read": lambda reader: reader["x"].read()[99_999] == 99_999,
    "map": lambda reader: reader["x"].map()[7] == 7,
    "strings": lambda reader: reader["s"].read().tolist() == [b"a", b"bc"] * 50,
    "compressed": lambda reader: not reader["z"].read().any(),
    "list": lambda reader: list(reader) == ["s", "x", "z"],
    "table": lambda reader: len(reader.table()) == 3,
    "verify": lambda reader: reader.verify().ok,
    "digest": lambda reader: len(reader.digest()) == 64,
    "metadata": lambda reader: reader.metadata["a"] == 1,
}


@pytest.mark.parametrize("use", USES)
def test_close_while_others_read(tmp_path: Path, use: str) -> None:
    """A reader closed under its users ends their calls with results or "closed", never worse."""
    values = {"x": np.arange(100_000), "s": np.array([b"a", b"bc"] * 50, object)}
    with ckptfmt.Writer(tmp_path / "ck", metadata={"a": 1}, compression="zstd") as writer:
        writer.add("z", np.zeros(100_000))
    ckptfmt.save(tmp_path / "plain", values, durability="none")
    ckptfmt.merge([tmp_path / "ck", tmp_path / "plain"], tmp_path / "all", durability="none")
    for _ in range(5):
        reader = ckptfmt.open(tmp_path / "all")
        assert USES[use](reader)
        view = reader["x"].map()
        begun = threading.Barrier(4)

        def work(_number: int, reader: ckptfmt.Reader, begun: threading.Barrier) -> str:
            begun.wait()
            for _ in range(50):
                try:
                    assert USES[use](reader)
                except ckptfmt.InvalidError as error:
                    assert "closed" in str(error)
                    return "closed"
            return "read"

        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(work, i, reader, begun) for i in range(3)]
            begun.wait()
            reader.close()
            assert {future.result() for future in futures} <= {"closed", "read"}
        assert view[99_999] == 99_999  # a mapping outlives its reader


def test_daemon_threads_that_read_at_exit(tmp_path: Path) -> None:
    """Before Python 3.12 such a thread is unwound where it waits for the GIL: in C++ code that ends
    the process with SIGABRT."""
    ckptfmt.save(tmp_path / "ck", {"x": np.ones(3000)}, durability="none")
    program = """
import sys, threading, time, ckptfmt
load = ckptfmt.load
def reads():
    while True:
        load(sys.argv[1])
for _ in range(4):
    threading.Thread(target=reads, daemon=True).start()
time.sleep(0.1)
"""
    for _ in range(2):
        command = [sys.executable, "-c", program, str(tmp_path / "ck")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def _write_slices(prefix: Path, values: Any, **options: Any) -> None:
    with ckptfmt.Writer(prefix, **options) as writer:
        for begin in (0, len(values) // 2):
            part = values[begin : begin + len(values) // 2]
            writer.add_slice("w", part, shape=values.shape, offset=(begin,))


def _save_on_devices(prefix: Path, values: Any) -> None:
    mesh = Mesh({"x": 2})
    halves = dict(zip(mesh.devices, np.split(values, 2), strict=True))
    ckptfmt.sharded.save(prefix, {"w": halves}, {"w": Layout(["x"], mesh)}, SingleProcess())


# Each way of saving; the values are of 2 MiB.
SAVES: dict[str, Callable[[Path, Any], object]] = {
    "save": lambda prefix, values: ckptfmt.save(prefix, {"w": values}),
    "level v2": lambda prefix, values: ckptfmt.save(prefix, {"w": values}, level="v2"),
    "compressed": lambda prefix, values: ckptfmt.save(prefix, {"w": values}, compression="zstd"),
    "shards": lambda prefix, values: ckptfmt.save(prefix, {"w": values, "v": values}, shards=2),
    "strided": lambda prefix, values: ckptfmt.save(prefix, {"w": values[::2]}),
    "strided, compressed": lambda prefix, values: ckptfmt.save(
        prefix, {"w": values[::2]}, compression="zstd"
    ),
    "base": lambda prefix, values: ckptfmt.save(prefix, {"w": values}, base=prefix),
    "save_async": lambda prefix, values: ckptfmt.save_async(prefix, {"w": values}).result(),
    "save_v2": lambda prefix, values: ckptfmt.save_v2(prefix, ["w"], [""], [values]),
    "save_tree": lambda prefix, values: ckptfmt.save_tree(prefix, [values]),
    "slices": _write_slices,
    "slices, compressed": lambda prefix, values: _write_slices(prefix, values, compression="zstd"),
    "object": lambda prefix, values: ckptfmt.Checkpoint(w=values).write(prefix),
    "devices": _save_on_devices,
}


@pytest.mark.parametrize("name", SAVES)
def test_values_that_change_while_they_are_saved(tmp_path: Path, name: str) -> None:
    """They may be torn, but what is stored can be read."""
    values, prefix = np.zeros(1 << 18), tmp_path / "ck"
    ckptfmt.save(prefix, {"w": values})
    is_over = threading.Event()

    def train() -> None:
        for number in itertools.count():
            values[:] = number
            if is_over.is_set():
                return

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(2):
            SAVES[name](prefix, values)
            assert ckptfmt.verify(prefix).ok
    finally:
        is_over.set()
        thread.join()
