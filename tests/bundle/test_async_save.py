# SPDX-License-Identifier: Apache-2.0
"""save_async: what it writes, who waits for whom, and where errors go."""

from __future__ import annotations

import gc
import logging
import os
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.background import PATIENCE, Gate, waiting_for
from support.files import contents
from support.process import SANITIZED, memory_limit
from test_fork import in_child

import ckptfmt
from ckptfmt import _core, save_async
from ckptfmt._base import background
from ckptfmt._base.background import SaveFuture, wait_for_saves
from ckptfmt.bundle import snapshot, writer
from ckptfmt.errors import InvalidError, StorageError

pytestmark = pytest.mark.usefixtures("saves_end")


def fail_in_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next background save fails."""
    real = writer.write_sources
    caller = threading.current_thread()

    def write_sources(*given: Any, **options: Any) -> None:
        if threading.current_thread() is not caller:
            monkeypatch.setattr(writer, "write_sources", real)
            raise StorageError("the disk is full", path=given[0])
        real(*given, **options)

    monkeypatch.setattr(writer, "write_sources", write_sources)


class Foreign:
    """An array of another library: numpy takes it by its protocol, without a copy."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.dtype, self.shape = array.dtype, array.shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


def kinds(seed: int) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    base = chance.standard_normal((70, 90)).astype(np.float32)
    readonly = base.copy()
    readonly.flags.writeable = False
    objects = np.array([b"one", "zwei", bytearray(b"three")], object)
    return {
        "plain": base.copy(),
        "large": chance.integers(0, 99, 3 << 20, dtype=np.int16),
        "transposed": np.asfortranarray(chance.standard_normal((1500, 900))),
        "view": base[3:60:2, 80:5:-3],
        "column": base[:, 7],
        "broadcast": np.broadcast_to(base[0], (5, 90)),
        "readonly": readonly,
        "swapped": base.astype(">f4"),
        "swapped view": base.astype(">f8")[::-2, ::3],
        "half": base.astype(np.float16).T,
        "bfloat16": base.astype(ml_dtypes.bfloat16),
        "int4": np.array([1, -3, 7], ml_dtypes.int4),
        "qint8": np.zeros(5, [("qint8", np.int8)]),
        "complex": base[:9].astype(np.complex128),
        "bool": base > 0,
        "scalar": np.float64(2.5),
        "python": 7,
        "list": [[1, 2], [3, 4]],
        "empty": np.zeros((0, 4), np.uint8),
        "empty view": base[5:5].T,
        "objects": objects,
        "texts": np.array([["a", "bcd"], ["", "é"]]),
        "bytes": b"raw\0",
        "foreign": Foreign(base + 1),
        "foreign view": Foreign((base + 2)[::3].T),
    }


def scribble(value: Any) -> None:
    """Changes an array in place, wherever it can be reached."""
    if isinstance(value, Foreign):
        value = value.array
    if isinstance(value, list):
        value[0][0] = 99
    if not isinstance(value, np.ndarray):
        return
    while isinstance(value.base, np.ndarray):
        value = value.base
    value.flags.writeable = True
    if value.dtype == object:
        if value.ndim and isinstance(value[-1], bytearray):
            value[-1][:] = b"changed"
        value[...] = b"changed"
    elif value.dtype.kind == "U":
        value[...] = "Z"
    else:
        value.ravel(order="K").view(np.uint8)[...] = 0x77


# ---- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_the_bytes_of_save_whatever_becomes_of_the_arrays(
    tmp_path: Path, gate: Gate, seed: int, level: str
) -> None:
    options: dict[str, Any] = {"level": level, "durability": "rename"}
    metadata = {"step": 1, "more": [1, [2]]} if level == "v2+" else None
    ckptfmt.save(tmp_path / "a" / "ck", kinds(seed), metadata=metadata, **options)
    given = kinds(seed)
    future = save_async(tmp_path / "b" / "ck", given, metadata=metadata, **options)
    for value in given.values():
        scribble(value)
    given.clear()
    if metadata is not None:
        metadata["more"][1].append(3)  # type: ignore[index]
    gate.open()
    assert future.result(PATIENCE) == str(tmp_path / "b" / "ck")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_what_cannot_be_told_from_an_array(tmp_path: Path, gate: Gate) -> None:
    """Variants and other handles of a reader, which may be closed meanwhile."""
    ckptfmt.save(tmp_path / "a" / "ck", {"q": np.arange(4, dtype=np.int16)}, durability="none")
    with ckptfmt.Writer(tmp_path / "b" / "ck", durability="none") as one:
        one.add("v", np.array([b"payload"], object), "variant")
        one.add("q", np.arange(4, dtype=np.int8), "qint8")
    with ckptfmt.open(tmp_path / "b" / "ck") as reader:
        future = save_async(tmp_path / "c" / "ck", reader, durability="none")
    gate.open()
    future.result(PATIENCE)
    with ckptfmt.open(tmp_path / "c" / "ck") as reader:
        assert {name: reader[name].dtype_name for name in reader} == {"q": "qint8", "v": "variant"}
        assert reader["v"].read().tolist() == [b"payload"]


def test_nothing_at_all(tmp_path: Path) -> None:
    assert save_async(tmp_path / "ck", {}).result(PATIENCE) == str(tmp_path / "ck")
    assert ckptfmt.load(tmp_path / "ck") == {}
    save_async(tmp_path / "ck", {"s": b"only text", "e": np.zeros(0)}).result(PATIENCE)
    assert ckptfmt.load(tmp_path / "ck")["s"].tolist() == b"only text"


def test_a_relative_prefix_is_one_of_the_call(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    future = save_async("ck", {"x": np.ones(3)})
    monkeypatch.chdir(tmp_path)
    gate.open()
    assert future.result(PATIENCE) == "ck"
    assert os.listdir(tmp_path) == ["here"]
    assert sorted(os.listdir(tmp_path / "here")) == ["ck.data-00000-of-00001", "ck.index"]


def test_progress_is_told_in_the_background(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    threads = set()

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        threads.add(threading.current_thread().name)

    save_async(tmp_path / "ck", {"x": np.ones(3)}, progress=progress).result(PATIENCE)
    assert told == [(24, 24)]
    assert threads == {"ckptfmt-background"}


# ---- the future ----------------------------------------------------------------------------------


def test_the_future(tmp_path: Path, gate: Gate) -> None:
    before = threading.enumerate()
    future = save_async(tmp_path / "ck", {"x": np.ones(3)})
    assert isinstance(future, SaveFuture)
    assert future.prefix == os.fspath(future) == str(tmp_path / "ck")
    assert gate.reached.wait(PATIENCE)
    assert future.running() and not future.done()
    assert not future.cancel() and not future.cancelled()
    with pytest.raises(TimeoutError):
        future.result(0)
    with pytest.raises(TimeoutError):
        future.exception(0)
    assert os.listdir(tmp_path) == []
    done: list[Any] = []
    future.add_done_callback(done.append)
    gate.open()
    assert future.result(PATIENCE) == str(tmp_path / "ck")
    assert future.exception() is None
    wait_for_saves()
    assert done == [future]
    assert not set(threading.enumerate()) - set(before)
    assert ckptfmt.load(future)["x"].tolist() == [1, 1, 1]


# ---- one after the other -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "later", ["save", "save_v2", "save_async", "Saver.save", "Saver.restore", "wait_for_saves"]
)
def test_later_saves_wait(tmp_path: Path, gate: Gate, later: str) -> None:
    prefix = str(tmp_path / "ck")
    new = {"x": np.full(3, 2.0)}
    saver = ckptfmt.Saver({None: new} if later == "Saver.save" else {"all": new})
    first = save_async(prefix, {"x": np.ones(3)})
    assert gate.reached.wait(PATIENCE)
    calls = {
        "save": lambda: ckptfmt.save(prefix, new),
        "save_v2": lambda: ckptfmt.save_v2(prefix, ["x"], [""], [new["x"]]),
        "save_async": lambda: save_async(prefix, new).result(PATIENCE),
        "Saver.save": lambda: saver.save(prefix),
        "Saver.restore": lambda: saver.restore(prefix),
        "wait_for_saves": wait_for_saves,
    }
    with waiting_for(calls[later]) as outcome:
        assert os.listdir(tmp_path) == []
        gate.open()
    assert first.done()
    assert not isinstance(outcome[0], Exception), outcome
    want = 1.0 if later in ("Saver.restore", "wait_for_saves") else 2.0
    assert ckptfmt.load(prefix)["x"].tolist() == [want] * 3
    if later == "Saver.restore":
        assert outcome[0]["x"].tolist() == [1.0] * 3


def test_the_second_is_copied_after_it_has_waited(tmp_path: Path, gate: Gate) -> None:
    values = np.ones(3)
    save_async(tmp_path / "a", {"x": values})
    assert gate.reached.wait(PATIENCE)
    with waiting_for(lambda: save_async(tmp_path / "b", {"x": values}).result(PATIENCE)):
        values[:] = 2
        gate.open()
    assert ckptfmt.load(tmp_path / "a")["x"].tolist() == [1, 1, 1]
    assert ckptfmt.load(tmp_path / "b")["x"].tolist() == [2, 2, 2]


def test_a_save_in_a_callback_does_not_wait_for_itself(tmp_path: Path, gate: Gate) -> None:
    values = {"x": np.arange(4.0)}
    futures: list[SaveFuture] = []

    def again(_future: Any) -> None:
        ckptfmt.save(tmp_path / "b", values)
        futures.append(save_async(tmp_path / "c", values))

    future = save_async(tmp_path / "a", values)
    future.add_done_callback(again)
    gate.open()
    wait_for_saves()
    assert futures[0].done()
    for name in "abc":
        assert ckptfmt.load(tmp_path / name)["x"].tolist() == [0, 1, 2, 3]


def test_many_threads(tmp_path: Path) -> None:
    def work(number: int) -> None:
        for step in range(5):
            values = {"x": np.full(1000, number * 10 + step)}
            save_async(tmp_path / f"{number}", values, durability="none")
            values["x"][:] = -1

    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(work, range(4)))) == 4
    wait_for_saves()
    for number in range(4):
        assert set(ckptfmt.load(tmp_path / f"{number}")["x"].tolist()) == {number * 10 + 4}


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tensors": {"": 1}}, InvalidError, "TAB-12: a tensor's name is empty"),
        ({"tensors": [("a", 1), ("a", 2)]}, InvalidError, "the name is added twice"),
        ({"tensors": {"a": object()}}, InvalidError, "object arrays can store bytes and str"),
        ({"tensors": {"a": np.ones(1, "M8[s]")}}, InvalidError, "cannot be stored"),
        ({"level": "v2", "metadata": {}}, InvalidError, "level 'v2' cannot store metadata: use"),
        ({"compression": "gzip"}, InvalidError, "compression 'gzip' is neither 'zstd' nor"),
        ({"alignment": 0}, InvalidError, "alignment 0 is not a positive number"),
        ({"durability": "maybe"}, InvalidError, "durability"),
        ({"progress": 1}, InvalidError, "progress must be a function of two numbers, not int"),
        ({"prefix": "a\0b"}, InvalidError, "a path cannot contain a NUL byte"),
    ],
)
def test_what_is_wrong_with_the_call_is_raised_by_it(
    tmp_path: Path, arguments: dict[str, Any], error: type, message: str
) -> None:
    given: dict[str, Any] = {"prefix": tmp_path / "ck", "tensors": {"a": 1}, **arguments}
    with pytest.raises(error, match=re.escape(message)):
        save_async(given.pop("prefix"), given.pop("tensors"), **given)
    assert background._queue.current is None
    assert os.listdir(tmp_path) == []
    ckptfmt.save(tmp_path / "ck", {"a": 1})


def test_an_error_is_in_the_future(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    future = save_async(tmp_path / "file" / "ck", {"a": 1})
    error = future.exception(PATIENCE)
    assert isinstance(error, StorageError)
    assert str(tmp_path / "file") in str(error)
    with pytest.raises(StorageError):
        future.result()
    # Who asked is not told again.
    ckptfmt.save(tmp_path / "ck", {"a": 1})
    save_async(tmp_path / "ck", {"a": 1}).result(PATIENCE)


@pytest.mark.parametrize("later", ["save", "save_v2", "save_async"])
def test_a_failed_save_does_not_affect_an_unrelated_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    calls = {
        "save": lambda: ckptfmt.save(tmp_path / "b", {"x": 1}),
        "save_v2": lambda: ckptfmt.save_v2(tmp_path / "b", ["x"], [""], [np.ones(1)]),
        "save_async": lambda: save_async(tmp_path / "b", {"x": 1}).result(PATIENCE),
    }
    fail_in_background(monkeypatch)
    future = save_async(tmp_path / "a", {"x": 1})
    calls[later]()
    assert ckptfmt.load(tmp_path / "b")["x"] == 1
    with pytest.raises(StorageError, match="the disk is full") as caught:
        future.result()
    assert caught.value.path == str(tmp_path / "a")


def test_an_error_that_nobody_can_hear_of_any_more_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_in_background(monkeypatch)
    future = save_async(tmp_path / "a", {"x": 1})
    wait_for_saves()
    gone = weakref.ref(future)
    with caplog.at_level(logging.ERROR, "ckptfmt"):
        del future
        gc.collect()
    assert gone() is None
    assert [record.message for record in caplog.records] == [
        f"the background save of {tmp_path / 'a'} failed and its error was "
        "never asked for: StorageError('the disk is full')"
    ]


# ---- memory --------------------------------------------------------------------------------------


def test_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"x": np.zeros(64 << 20, np.uint8)}
    if not SANITIZED:
        message = "not enough memory for a copy"
        with memory_limit(32 << 20), pytest.raises(MemoryError, match=message):
            save_async(tmp_path / "ck", values)
        assert os.listdir(tmp_path) == []
    monkeypatch.setattr(snapshot, "_available", lambda: 10 << 20)
    with pytest.raises(MemoryError, match="67108864 bytes does not fit the memory: 10485760 is"):
        save_async(tmp_path / "ck", values)
    assert os.listdir(tmp_path) == []
    save_async(tmp_path / "ck", {"x": values["x"][: 1 << 20]}).result(PATIENCE)


def test_the_arrays_are_let_go(tmp_path: Path, gate: Gate) -> None:
    values = np.zeros(1000)
    gone = weakref.ref(values)
    resized = np.zeros(10)
    given = {"x": values, "y": resized}
    future = save_async(tmp_path / "ck", given)
    del values, given
    assert gone() is None
    resized.resize(20)
    gate.open()
    future.result(PATIENCE)


# ---- interrupts, threads, forks ------------------------------------------------------------------


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["copy", "start"])
def test_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    ckptfmt.save(tmp_path / "ck", {"x": 1})
    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        if where == "copy":
            patch.setattr(_core.Memory, "copy", interrupt)
        else:
            patch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            save_async(tmp_path / "ck", {"x": np.ones(5)})
    assert contents(tmp_path) == before
    assert background._queue.current is None
    save_async(tmp_path / "ck", {"x": np.ones(5)}).result(PATIENCE)


def test_a_thread_of_an_interrupted_call_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt came after the thread had been started."""
    started: list[threading.Thread] = []
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        real(self)
        started.append(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            save_async(tmp_path / "ck", {"x": 1})
    started[0].join(PATIENCE)
    assert os.listdir(tmp_path) == []


def test_without_threads_it_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        future = save_async(tmp_path / "ck", {"x": 3})
        assert future.done()
        broken = save_async(tmp_path / "ck.index" / "ck", {"x": 3})
    with pytest.raises(StorageError):
        broken.result()
    assert ckptfmt.load(future.result())["x"] == 3


def test_a_forked_child_has_its_own_saves(tmp_path: Path, gate: Gate) -> None:
    values = np.arange(1 << 20)
    future = save_async(tmp_path / "parent", {"x": values})
    assert gate.reached.wait(PATIENCE)

    def child() -> None:
        with pytest.raises(InvalidError, match="begun before a fork"):
            future.result()
        with pytest.raises(InvalidError, match="begun before a fork"):
            future.exception()
        gate.open()  # of the child
        ckptfmt.save(tmp_path / "child", {"x": values + 1})
        save_async(tmp_path / "child", {"x": values + 2}).result(PATIENCE)

    assert in_child(child) == 0
    assert ckptfmt.load(tmp_path / "child")["x"][0] == 2
    assert not gate.opened.is_set() and not future.done()
    gate.open()
    future.result(PATIENCE)
    np.testing.assert_array_equal(ckptfmt.load(tmp_path / "parent")["x"], values)


def test_a_child_does_not_hear_of_errors_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in_background(monkeypatch)
    future = save_async(tmp_path / "a", {"x": 1})
    wait_for_saves()
    assert in_child(lambda: ckptfmt.save(tmp_path / "b", {"x": 1})) == 0
    assert isinstance(future.exception(), StorageError)


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, KeyboardInterrupt])
def test_a_thread_that_cannot_begin_leaves_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Its future has the error, and the next save does not wait for it."""

    def fails(_future: object) -> bool:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(background._queue, "take_over", fails)
        future = ckptfmt.save_async(tmp_path / "m", {"x": np.ones(3)})
        with pytest.raises(error):
            future.result(600)
    ckptfmt.save(tmp_path / "m", {"x": np.ones(3)})
