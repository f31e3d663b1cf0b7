# SPDX-License-Identifier: Apache-2.0
"""Saves in the background by a Saver, and of tensors that lie on meshes."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import job
from support.background import PATIENCE, Gate, waiting_for
from support.forking import in_child
from support.jobs import finish, good, loads_as, start
from support.saving import Given, files, on, one_each, previous
from support.team import Member, Shared

import ckptfmt
from ckptfmt import _core
from ckptfmt._base.background import SaveFuture, wait_for_saves
from ckptfmt.bundle import snapshot
from ckptfmt.errors import BusyError, InvalidError, StorageError
from ckptfmt.saving import registration
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.registration import claimed
from ckptfmt.saving.saver import Saver
from ckptfmt.saving.specs import SaveSpec
from ckptfmt.sharded import restore as sharded_restore
from ckptfmt.sharded import save as sharded_save
from ckptfmt.sharded import save_async as sharded_save_async
from ckptfmt.sharded.coordinator import SingleProcess

pytestmark = pytest.mark.usefixtures("saves_end")

ASYNC = CheckpointOptions(durability="rename", enable_async=True)


def failing_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next merge fails."""
    real = _core.merge

    def merge(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(_core, "merge", real)
        raise StorageError("no room")

    monkeypatch.setattr(_core, "merge", merge)


# ---- Saver ---------------------------------------------------------------------------------------


def test_the_same_checkpoint_whatever_becomes_of_the_arrays(tmp_path: Path, gate: Gate) -> None:
    arrays = [np.full((300, 7), i, np.float32)[:, ::2] for i in range(4)]
    words = np.array([b"a", b"b"], object)
    tensors = {f"t{i}": on(i % 2, array, f"t{i}") for i, array in enumerate(arrays)}
    tensors["words"] = on(1, words, "words")
    tensors["slice"] = on(0, arrays[0], "slice", slice_spec="300 8 -:0,4")
    saver = Saver({"all": tensors})
    want = CheckpointOptions(durability="rename")
    (tmp_path / "a").mkdir()
    gate.open()
    assert saver.save(tmp_path / "a" / "ck", want) == str(tmp_path / "a" / "ck")
    gate.opened.clear()
    gate.reached.clear()
    future = saver.save_async(tmp_path / "b" / "ck", ASYNC)
    assert isinstance(future, SaveFuture)
    assert gate.reached.wait(PATIENCE)
    for array in arrays:
        array[...] = -1
    words[...] = b"changed"
    assert not list(tmp_path.glob("b/ck.*"))
    gate.open()
    assert future.result(PATIENCE) == str(tmp_path / "b" / "ck")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    for name in files(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_who_is_called_where(tmp_path: Path, gate: Gate) -> None:
    """All that asks for tensors in the thread that saves, before the call returns."""
    here = threading.current_thread().name
    seen: list[tuple[str, str]] = []

    def note(what: str, result: Any = None) -> Any:
        seen.append((what, threading.current_thread().name))
        return result

    def policy(tensors: Sequence[Any]) -> list[Any]:
        note("policy")
        return one_each(tensors)

    options = CheckpointOptions(
        enable_async=True,
        durability="rename",
        experimental_sharding_callback=Given(policy),
        experimental_write_callbacks=[
            lambda path: note("after " + path, os.path.exists(path + ".index") or 1 / 0),
            lambda: note("last"),
        ],
    )
    spec = SaveSpec(lambda: note("callable", np.ones(2)), "", "x", np.float64, "")
    future = Saver({"all": {"x": spec}}).save_async(tmp_path / "ck", options)
    assert seen == [(what, here) for what in ("callable", "policy")]
    gate.open()
    future.result(PATIENCE)  # type: ignore[union-attr]
    there = "ckptfmt-background"
    assert seen[2:] == [(f"after {tmp_path / 'ck'}", there), ("last", there)]


def test_an_error_of_a_callback_is_in_the_future(tmp_path: Path) -> None:
    def fails() -> None:
        raise KeyError("mine")

    saver = Saver({"all": {"x": np.ones(2)}})
    options = CheckpointOptions(enable_async=True, experimental_write_callbacks=[fails])
    future = saver.save_async(tmp_path / "ck", options)
    with pytest.raises(KeyError, match="mine"):
        future.result(PATIENCE)  # type: ignore[union-attr]
    assert ckptfmt.load(tmp_path / "ck")["x"].tolist() == [1, 1]


@pytest.mark.parametrize("later", ["save", "async"])
def test_an_error_is_for_its_own_saver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    before = previous(tmp_path)
    failing_merge(monkeypatch)
    parts = {name: on(task, np.zeros(3), name) for task, name in enumerate(("old", "more"))}
    ours, other = (Saver({"all": parts}) for _ in range(2))
    ours.save_async(tmp_path / "ckpt", ASYNC)
    wait_for_saves()
    assert files(tmp_path) == before  # and no temporary directory
    calls: dict[str, Callable[[Saver], Any]] = {
        "save": lambda saver: saver.save(tmp_path / "ckpt"),
        "async": lambda saver: saver.save_async(tmp_path / "ckpt", ASYNC),
    }
    calls[later](other)
    wait_for_saves()
    ours.restore(tmp_path / "ckpt")  # a restore is not affected
    ckptfmt.save(tmp_path / "else", {"x": 1})
    with pytest.raises(StorageError, match="no room"):
        calls[later](ours)
    calls[later](ours)


def test_shards_of_one_save_share_the_memory(tmp_path: Path) -> None:
    tensors = {f"{i}": on(i, np.full(1 << 18, i, np.float32), f"{i}") for i in range(6)}
    saver = Saver({"all": tensors})
    saver.save_async(tmp_path / "ck", ASYNC)
    wait_for_saves()
    assert saver.staging_bytes == 6 << 20
    for name, array in ckptfmt.load(tmp_path / "ck").items():
        assert (array == int(name)).all()


def test_registered_savers(tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """They write before the call returns; their names are claimed until all is in place."""
    monkeypatch.setattr(registration, "_registry", {})
    threads = []

    def save(trackables: Mapping[str, Any], file_prefix: str) -> str:
        threads.append(threading.current_thread())
        ckptfmt.save(file_prefix, dict(trackables))
        return file_prefix

    ckptfmt.tf.register_checkpoint_saver(
        package="Async",
        name="Mine",
        predicate=lambda _: False,
        save_fn=save,
        restore_fn=lambda trackables, merged_prefix: None,
    )
    tensors = {"all": {"x": np.ones(2)}}
    saver = Saver(tensors, {"Async.Mine": {"own": np.zeros(3)}})
    future = saver.save_async(tmp_path / "ck", ASYNC)
    assert threads == [threading.current_thread()]
    assert gate.reached.wait(PATIENCE)
    assert (tmp_path / "ck-Async.Mine.claim").exists()
    with pytest.raises(BusyError), claimed(str(tmp_path / "ck"), ["Async.Mine"]):
        pass
    gate.open()
    future.result(PATIENCE)  # type: ignore[union-attr]
    assert files(tmp_path) == ["ck.data-00000-of-00002", "ck.data-00001-of-00002", "ck.index"]
    assert sorted(ckptfmt.load(tmp_path / "ck")) == ["own", "x"]


# ---- tensors on meshes ---------------------------------------------------------------------------

MESH = Mesh({"x": 2}, ["a", "b"])


def mesh_tensors() -> tuple[dict[str, Any], dict[str, Any]]:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    same = np.arange(4)
    words = np.array([b"one", b"two"], object)
    tensors = {
        "rows": {"a": whole[:2], "b": whole[2:]},
        "same": {"a": same, "b": same.copy()},
        "words": {"a": words[:1], "b": words[1:]},
        "uneven": {"a": whole[:1], "b": whole[:0]},
        "empty": {"a": whole[:0], "b": whole[:0]},
        "swapped": {"a": whole.astype(">f8")[:2, ::-1], "b": whole.astype(">i8")[2:].view(">f8")},
        "plain": whole.T,
        "narrow": np.zeros(3, [("qint8", np.int8)]),
    }
    rows = Layout(["x", None], MESH)
    layouts: dict[str, Any] = dict.fromkeys(("rows", "uneven", "empty", "swapped"), rows)
    layouts |= {"same": Layout([None], MESH), "words": Layout(["x"], MESH)}
    return tensors, layouts


def test_one_process_of_a_mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, layouts = mesh_tensors()
    sharded_save(tmp_path / "a" / "ck", tensors, layouts, SingleProcess(), metadata={"step": 1})
    tensors, layouts = mesh_tensors()
    coordinator, metadata = Held(), {"step": 1}
    future = sharded_save_async(
        tmp_path / "b" / "ck", tensors, layouts, coordinator, metadata=metadata
    )
    for value in tensors.values():
        for array in value.values() if isinstance(value, dict) else [value]:
            array[...] = np.zeros((), array.dtype) if array.dtype != object else b"changed"
    tensors.clear()
    layouts.clear()
    metadata["step"] = 2
    assert coordinator.reached.wait(PATIENCE)
    assert not future.done()
    coordinator.opened.set()
    assert future.result(PATIENCE) == str(tmp_path / "b" / "ck")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    for name in files(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


class Held(SingleProcess):
    """A coordinator whose first round waits until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.opened = threading.Event(), threading.Event()

    def gather(self, data: bytes, root: int = 0) -> list[bytes] | None:
        self.reached.set()
        assert self.opened.wait(PATIENCE)
        return super().gather(data, root)


def test_the_staging_memory_belongs_to_the_saver(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[int] = []
    real = _core.Memory.__init__

    def noted(self: Any, size: int, threads: int) -> None:
        real(self, size, threads)
        alive.append(size)
        weakref.finalize(self, alive.remove, size)

    monkeypatch.setattr(_core.Memory, "__init__", noted)
    unit = snapshot.UNIT
    values = np.zeros(unit, np.uint8)
    saver = Saver({"all": {"x": SaveSpec(lambda: values, "", "x", np.uint8, "")}})
    future = saver.save_async(tmp_path / "ck", ASYNC)
    assert saver.staging_bytes == 0  # in use
    gate.open()
    future.result(PATIENCE)
    wait_for_saves()
    assert saver.staging_bytes == unit and alive == [unit]
    for size in (10, unit + 1, 3, 2 * unit):
        values = np.zeros(size, np.uint8)
        saver.save_async(tmp_path / "ck", ASYNC).result(PATIENCE)
        wait_for_saves()
        assert alive == [saver.staging_bytes]
        assert size <= saver.staging_bytes <= 2 * unit
    ckptfmt.save_async(tmp_path / "other", {"x": values}).result(PATIENCE)
    wait_for_saves()
    assert alive == [2 * unit]
    del saver, future
    gc.collect()
    assert alive == []


def test_a_forked_child_has_no_staging_memory(tmp_path: Path) -> None:
    saver = Saver({"all": {"x": np.ones(1000)}})

    def save_and_look() -> None:
        saver.save_async(tmp_path / "ck", ASYNC).result(PATIENCE)
        wait_for_saves()
        assert saver.staging_bytes == snapshot.UNIT

    save_and_look()

    def child() -> None:
        assert saver.staging_bytes == 0
        save_and_look()

    assert in_child(child) == 0
    save_and_look()


def test_of_equal_replicas_one_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.zeros((1 << 20) - 1, np.uint8)
    copies = {"a": values, "b": values.copy()}
    mesh = Layout([None], MESH)
    future = sharded_save_async(tmp_path / "ck", {"x": copies}, {"x": mesh}, SingleProcess())
    future.result(PATIENCE)
    monkeypatch.setattr(snapshot, "_available", lambda: snapshot.UNIT)
    sharded_save_async(tmp_path / "ck", {"x": copies}, {"x": mesh}, SingleProcess()).result()


@pytest.mark.parametrize("later", ["save", "restore", "async"])
def test_calls_on_meshes_wait(tmp_path: Path, later: str) -> None:
    tensors, layouts = {"x": np.ones(3)}, {"x": None}
    held = Held()
    sharded_save_async(tmp_path / "ck", tensors, layouts, held)
    assert held.reached.wait(PATIENCE)
    calls: dict[str, Callable[[], Any]] = {
        "save": lambda: sharded_save(tmp_path / "b", tensors, layouts, SingleProcess()),
        "restore": lambda: sharded_restore(tmp_path / "ck", layouts, SingleProcess()),
        "async": lambda: sharded_save_async(
            tmp_path / "b", tensors, layouts, SingleProcess()
        ).result(PATIENCE),
    }
    with waiting_for(calls[later]) as outcome:
        assert os.listdir(tmp_path) == []
        held.opened.set()
    assert not isinstance(outcome[0], Exception), outcome


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ({"tensors": {"": np.ones(1)}}, InvalidError, "TAB-12: a tensor's name is empty"),
        ({"level": "v3"}, InvalidError, "level"),
        ({"alignment": -1}, InvalidError, "alignment -1 is not a positive number of bytes"),
        ({"prefix": 3}, InvalidError, "prefix"),
        ({"available": 10}, MemoryError, "does not fit the memory: 10 is left"),
    ],
)
def test_what_one_process_does_wrong_is_told_to_the_others(
    tmp_path: Path, what: dict[str, Any], error: type, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process is process 1, in whose background the others hear of it."""
    shared = Shared(2)
    given = {"prefix": tmp_path / "ck", "tensors": {"x": np.ones(4)}, **what}
    available = given.pop("available", None)
    monkeypatch.setattr(snapshot, "_available", lambda: available)
    with pytest.raises(error, match=message):
        sharded_save_async(
            given.pop("prefix"), given.pop("tensors"), {}, Member(shared, 1), **given
        )
    # Process 0, without the line, which is that of another process.
    team = ckptfmt.sharded.rounds.Team(Member(shared, 0), "sharded.save")
    with pytest.raises((InvalidError, StorageError), match=f"process 1 of 2 failed.*{message}"):
        team.round(None, b"", lambda _: b"")
    wait_for_saves()
    # Nobody is told twice.
    ckptfmt.save(tmp_path / "ck", {"x": 1})


def test_processes(tmp_path: Path) -> None:
    """Saves of two processes, one after the other, the last of which is restored."""
    prefix = tmp_path / "ck"
    actions = [f"async={prefix}={number}" for number in range(4)]
    good(start(tmp_path, "run", 2, *actions, "finish", f"restore={prefix}=3", f"save={prefix}=9"))
    assert loads_as(prefix) == 9
    good(start(tmp_path, "more", 2, *actions, "finish"))
    assert loads_as(prefix) == 3


def test_a_process_that_cannot_write(tmp_path: Path) -> None:
    prefix = tmp_path / "ck"
    job_of = start(tmp_path, "run", 2, f"async={prefix}=1", "finish", f"async={prefix}=2", "finish")
    assert [status for status, _ in finish(job_of)] == [0, 0]
    (tmp_path / "file").write_bytes(b"")
    failed = finish(start(tmp_path, "bad", 2, f"async={tmp_path / 'file' / 'ck'}=1", "finish"))
    assert [status for status, _ in failed] == [1, 1]
    for rank, (_, told) in enumerate(failed):
        assert told.startswith("StorageError: "), (rank, told)
    assert loads_as(prefix) == 2
    assert job.model(2)["scalar"] == 2
