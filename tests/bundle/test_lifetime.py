# SPDX-License-Identifier: Apache-2.0
"""Views outlive what they were made from; what is dropped is freed; nothing piles up."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support.process import SANITIZED, open_files, resident

import ckptfmt


def test_views_outlive_the_reader_and_the_files(tmp_path: Path) -> None:
    values = np.arange(100_000, dtype=np.int64)
    ckptfmt.save(tmp_path / "ck", {"x": values, "y": values[:10]})
    reader = ckptfmt.open(tmp_path / "ck")
    mapped, table, handle = reader["x"].map(), reader.table(), reader["y"]
    loaded = ckptfmt.load(tmp_path / "ck")
    reader.close()
    del reader
    for path in tmp_path.iterdir():
        path.unlink()
    gc.collect()
    assert np.array_equal(mapped, values)
    assert list(table["name"]) == ["x", "y"]
    assert handle.shape == (10,) and handle.name == "y"
    assert np.array_equal(loaded["x"], values)
    part = mapped[5:10]
    del mapped
    gc.collect()
    assert part.tolist() == [5, 6, 7, 8, 9]
    with pytest.raises(ckptfmt.InvalidError, match="closed"):
        handle.read()


def test_mapping_is_read_only(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"x": np.arange(10)})
    with ckptfmt.open(tmp_path / "ck") as reader:
        mapped = reader["x"].map()
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        mapped.setflags(write=True)


@pytest.mark.parametrize("rounds", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_nothing_piles_up(tmp_path: Path, rounds: int) -> None:
    """Memory and descriptors do not grow with the number of opens, loads and saves."""
    tensors = {f"t{i}": np.full(100, i) for i in range(20)} | {"s": np.array(["a", "bc"])}
    large = {"x": np.zeros(1 << 20, np.uint8), "y": np.zeros(1 << 18)}
    ckptfmt.save(tmp_path / "large", large)

    def one_round(number: int) -> None:
        if number % 10 == 0:
            ckptfmt.save(tmp_path / "ck", tensors, durability="none")
        with ckptfmt.open(tmp_path / "ck") as reader:
            assert len(reader) == 21
            reader["t3"].map()
            reader["s"].read()
            with pytest.raises(KeyError):
                reader["missing"]
        assert ckptfmt.load(tmp_path / "ck")["t7"][0] == 7
        if number % 100 == 0:
            assert not ckptfmt.load(tmp_path / "large")["x"].any()

    # Allocators and caches of the interpreter settle first.
    for number in range(200):
        one_round(number)
    gc.collect()
    files, before = open_files(), resident()
    tracemalloc.start()
    for number in range(rounds):
        one_round(number)
    gc.collect()
    python_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    gc.collect()
    print(f"{rounds} rounds: {resident() - before:+} bytes resident, {python_bytes} of Python's")
    assert open_files() == files
    assert python_bytes < 60_000
    assert SANITIZED or resident() - before < 2 << 20


# Prints by how many bytes resident memory exceeds that of the live arrays, after each load and
# after all arrays are freed: less where an array fills a hole of the first load. In a process of
# its own, because earlier tests leave free memory to reuse.
LIVE_ARRAYS = """
import gc, os, sys
import ckptfmt

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def kept(number):
    array = ckptfmt.load(sys.argv[1])["t3"]
    assert array.min() == array.max() == 3
    array[...] = number
    return array

kept(10)
gc.collect()
start = resident()
live = [kept(10)]
gc.collect()
first = resident()
for number in range(11, 17):
    live.append(kept(number))
    gc.collect()
    print(resident() - first - sum(array.nbytes for array in live[1:]))
# None shares memory with another, or with what was freed.
assert [(array.min(), array.max()) for array in live] == [(n, n) for n in range(10, 17)]
live.clear()
gc.collect()
print(resident() - start)
"""


@pytest.mark.skipif(SANITIZED, reason="the sanitizer delays what is freed")
def test_resident_memory_is_that_of_the_live_arrays(tmp_path: Path) -> None:
    """Loads leave the arrays that the caller keeps. The memory around the first kept array, which
    the allocator cannot return, is used again by later loads."""
    tensors = {f"t{i}": np.full(4 << 20, i, np.uint8) for i in range(16)}
    ckptfmt.save(tmp_path / "ck", tensors)
    command = [sys.executable, "-c", LIVE_ARRAYS, str(tmp_path / "ck")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    *loads, end = map(int, ran.stdout.split())
    assert len(loads) == 6 and max(loads) < 1 << 20
    assert end < 4 << 20


def test_unfinished_writer_warns_and_leaves_nothing(tmp_path: Path) -> None:
    writer = ckptfmt.Writer(tmp_path / "ck")
    writer.add("x", np.arange(3))
    with pytest.warns(ResourceWarning, match="ck"):
        del writer
        gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_memory_in_use_is_held(tmp_path: Path) -> None:
    """What a writer took cannot be resized or freed under it; what is read into neither."""
    source = bytearray(np.arange(100_000).tobytes())
    with ckptfmt.Writer(tmp_path / "ck") as writer:
        writer.add("x", np.frombuffer(source, np.int64))
        writer.add("temporary", np.arange(50_000) * 2)
        gc.collect()
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert np.array_equal(reader["x"].read(), np.arange(100_000))
        assert np.array_equal(reader["temporary"].read(), np.arange(50_000) * 2)
        target = bytearray(len(source))
        view = np.frombuffer(target, np.int64)
        reader["x"].read_into(view)
        with pytest.raises(BufferError):
            target.clear()
        assert target == source
    mapped = ckptfmt.open(tmp_path / "ck")["x"].map()  # of a reader that is gone
    gc.collect()
    assert mapped[99_999] == 99_999


def test_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """What is still open then goes quietly, whatever the order in which modules are cleared."""
    code = """
import sys
import numpy as np
import ckptfmt
class Late:
    def __init__(self, what): self.what = what
    def __del__(self): self.what.close()
prefix = sys.argv[1]
ckptfmt.save(prefix, {"x": np.arange(1000)})
reader = ckptfmt.open(prefix)
handle, mapped, late = reader["x"], reader["x"].map(), Late(ckptfmt.open(prefix))
sys.keeps = [reader, handle, mapped, late]
late.itself = late
future = ckptfmt.save_async(prefix + "-2", {"x": np.arange(1000)})
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "ck")], capture_output=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
    assert ckptfmt.verify(tmp_path / "ck-2").ok


INTERRUPTED = """
import os, random, signal, sys
import ckptfmt

def interrupt(*_):
    raise KeyboardInterrupt

def work(reopens):
    if reopens:
        reader["x"].read()
    else:
        with ckptfmt.open(path):
            pass

path, chance = sys.argv[1], random.Random(sys.argv[2])
signal.signal(signal.SIGALRM, interrupt)
reader = ckptfmt.open(path)
hit = 0
for round in range(400):
    reopens = round % 4 == 0
    pid = os.fork() if reopens else 0
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
        continue
    if round < 4:  # what is opened once
        work(False)
    before = set(os.listdir("/proc/self/fd"))  # one of these lists them
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 1e-4))
            while not reopens:
                work(False)
            work(True)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        hit += 1
    if reopens:
        reader.close()
    there = [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
    lost = set(there) - before
    assert not [os.readlink(f"/proc/self/fd/{fd}") for fd in lost]
    if reopens:
        os._exit(0)
assert hit > 100, hit
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="NOT RUN: needs /proc")
def test_an_interrupt_loses_no_descriptor(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "model", {"x": np.arange(1000.0)})
    seed = os.environ["CKPTFMT_TEST_SEED"]
    ran = subprocess.run(
        [sys.executable, "-P", "-c", INTERRUPTED, str(tmp_path / "model"), seed],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr[-3000:]) == (0, "")
