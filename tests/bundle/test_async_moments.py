# SPDX-License-Identifier: Apache-2.0
"""Background saves and what happens at bad moments: handlers of signals that save in the middle of
a save of the same thread, and callbacks that save while others wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.background import PATIENCE, Gate, forget, waiting_for

import ckptfmt
from ckptfmt import background as line
from ckptfmt import save_async
from ckptfmt.background import Line, wait_for_saves
from ckptfmt.errors import InvalidError, StorageError


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    forget()


def in_time(call: Callable[[], Any]) -> Any:
    """What the call gives, in a thread, which must not wait for itself for ever."""
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(call()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert outcome, "it waits for itself"
    return outcome[0]


def at_once(monkeypatch: pytest.MonkeyPatch, moment: str, handler: Callable[[], Any]) -> None:
    """The handler runs once, at this moment of a save, in the thread of the save, as Python runs
    those of signals."""
    left = [handler]

    def handle() -> None:
        if left:
            left.pop()()

    real_init, real_start = threading.Thread.__init__, threading.Thread.start

    def init(self: threading.Thread, *given: Any, **options: Any) -> None:
        if moment == "made" and options.get("name") == "ckptfmt-background":
            handle()
        real_init(self, *given, **options)

    def start(self: threading.Thread) -> None:
        saves = self.name == "ckptfmt-background"
        if moment == "starts" and saves:
            handle()
        real_start(self)
        if moment == "started" and saves:
            handle()

    monkeypatch.setattr(threading.Thread, "__init__", init)
    monkeypatch.setattr(threading.Thread, "start", start)
    if moment == "waits":
        condition = line._turn.changed
        real = condition.notify_all

        def notify_all() -> None:
            if line._turn.current is not None and not line._turn.writer:
                handle()
            real()

        monkeypatch.setattr(condition, "notify_all", notify_all)


@pytest.mark.parametrize("moment", ["made", "starts", "started", "waits"])
@pytest.mark.parametrize("call", ["save", "save_async", "wait_for_saves"])
def test_a_handler_of_signals_that_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, call: str
) -> None:
    futures: list[Any] = []

    def handler() -> None:
        if call == "save":
            ckptfmt.save(tmp_path / "b", {"x": 2})
        elif call == "save_async":
            futures.append(save_async(tmp_path / "b", {"x": 2}))
        else:
            wait_for_saves()
        futures.append(None)

    at_once(monkeypatch, moment, handler)
    future = in_time(lambda: save_async(tmp_path / "a", {"x": 1}))
    assert future.result(PATIENCE) == str(tmp_path / "a")
    assert futures
    assert ckptfmt.load(tmp_path / "a")["x"] == 1
    if call != "wait_for_saves":
        assert futures[0] is None or futures[0].result(PATIENCE)
        assert ckptfmt.load(tmp_path / "b")["x"] == 2


def test_a_handler_that_hears_of_the_end_before_the_wait_it_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    condition = line._turn.changed
    real, handlers = condition.wait, [1]

    def wait(timeout: float | None = None) -> bool:
        if handlers and threading.current_thread().name == "waits":
            handlers.pop()
            gate.open()
            wait_for_saves()
        return real(timeout)

    save_async(tmp_path / "a", {"x": 1})
    assert gate.reached.wait(PATIENCE)
    monkeypatch.setattr(condition, "wait", wait)
    waiting = threading.Thread(target=wait_for_saves, name="waits", daemon=True)
    waiting.start()
    waiting.join(PATIENCE)
    assert not waiting.is_alive() and not handlers


def test_a_callback_that_saves_while_another_save_waits(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()
    inner: list[Any] = []

    def callback() -> None:
        begun.set()
        assert go.wait(PATIENCE)
        inner.append(save_async(tmp_path / "b", {"x": np.full(3, 2.0)}))

    saver = ckptfmt.Saver({"all": {"x": np.ones(3)}})
    options = ckptfmt.CheckpointOptions(write_callbacks=[callback])
    future = saver.save_async(tmp_path / "a", options)
    assert isinstance(future, Future)
    assert begun.wait(PATIENCE)
    with waiting_for(lambda: Line().begin("c", lambda: lambda: None).result(PATIENCE)) as outcome:
        go.set()
    assert outcome == ["c"]
    assert future.result(PATIENCE) == str(tmp_path / "a")
    assert inner[0].done()
    assert ckptfmt.load(tmp_path / "b")["x"].tolist() == [2, 2, 2]


def test_a_callback_cannot_wait_for_its_own_save(tmp_path: Path) -> None:
    known = threading.Event()
    futures: list[Any] = []

    def callback() -> None:
        assert known.wait(PATIENCE)
        futures[0].result()

    saver = ckptfmt.Saver({"all": {"x": np.ones(3)}})
    options = ckptfmt.CheckpointOptions(write_callbacks=[callback])
    futures.append(saver.save_async(tmp_path / "a", options))
    known.set()
    error = in_time(lambda: futures[0].exception(PATIENCE))
    assert isinstance(error, InvalidError)
    assert error.message == "the save itself waits for this callback"


def test_an_error_that_comes_with_the_end_of_a_wait_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked has waited long enough, and just then the save fails."""
    (tmp_path / "file").write_bytes(b"")
    future = save_async(tmp_path / "file" / "ck", {"x": 1})

    def result(_self: Future[str], _timeout: float | None) -> str:
        wait_for_saves()
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", result)
        with pytest.raises(TimeoutError):
            future.result(0)
    with pytest.raises(StorageError):
        future.result()
