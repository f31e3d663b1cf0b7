# SPDX-License-Identifier: Apache-2.0
"""Many threads on one reader, and readers beside a writer that never stops."""

from __future__ import annotations

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


def test_two_writers_of_one_prefix(tmp_path: Path) -> None:
    """Whoever commits last wins, whole; what the other wrote is not mixed in."""
    prefix = tmp_path / "ck"

    def write(number: int) -> None:
        for _ in range(40):
            tensors = {"a": np.full(500, number), "b": np.full(700, number)}
            ckptfmt.save(prefix, tensors, durability="none")

    run_all(3, write)
    loaded = ckptfmt.load(prefix)
    assert len({int(value) for array in loaded.values() for value in np.unique(array)}) == 1
    assert ckptfmt.verify(prefix).ok
    assert not list(tmp_path.glob("*.tempstate*"))


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
