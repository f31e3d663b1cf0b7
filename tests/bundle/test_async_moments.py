# SPDX-License-Identifier: Apache-2.0
"""Background saves whose callbacks save or wait, and waits that end as the save fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.background import PATIENCE, waiting_for

import ckptfmt
from ckptfmt import save_async
from ckptfmt._base.background import SaveQueue, wait_for_saves
from ckptfmt.errors import InvalidError, StorageError

pytestmark = pytest.mark.usefixtures("saves_end")


def in_time(call: Callable[[], Any]) -> Any:
    """Return the result of the call, which must not wait for itself for ever."""
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(call()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert outcome, "it waits for itself"
    return outcome[0]


def test_a_callback_that_saves_while_another_save_waits(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()
    inner: list[Any] = []

    def callback() -> None:
        begun.set()
        assert go.wait(PATIENCE)
        inner.append(save_async(tmp_path / "b", {"x": np.full(3, 2.0)}))

    saver = ckptfmt.Saver({"all": {"x": np.ones(3)}})
    options = ckptfmt.tf.CheckpointOptions(experimental_write_callbacks=[callback])
    future = saver.save_async(tmp_path / "a", options)
    assert isinstance(future, Future)
    assert begun.wait(PATIENCE)
    with waiting_for(
        lambda: SaveQueue().begin("c", lambda: lambda: None).result(PATIENCE)
    ) as outcome:
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
    options = ckptfmt.tf.CheckpointOptions(experimental_write_callbacks=[callback])
    futures.append(saver.save_async(tmp_path / "a", options))
    known.set()
    error = in_time(lambda: futures[0].exception(PATIENCE))
    assert isinstance(error, InvalidError)
    assert error.message == "the save itself waits for this callback"


def test_an_error_that_comes_with_the_end_of_a_wait_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout ends the wait in the moment when the save fails."""
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
