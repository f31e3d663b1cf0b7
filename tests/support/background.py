# SPDX-License-Identifier: Apache-2.0
"""Hold a background save up, so that tests do not depend on timing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

from ckptfmt._base import background
from ckptfmt.bundle import writer

# Longer than any machine takes; a test that waits so long has failed.
PATIENCE = 600


class Gate:
    """Saves in the background wait here before they write, until it is opened. Others pass. As a
    context manager it is open in the end, and all has been saved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.writers: list[str] = []
        real = writer.write_sources
        caller = threading.current_thread()

        def write_sources(*given: Any, **options: Any) -> None:
            thread = threading.current_thread()
            if thread is not caller:
                self.writers.append(thread.name)
                self.reached.set()
                assert self.opened.wait(PATIENCE)
            real(*given, **options)

        monkeypatch.setattr(writer, "write_sources", write_sources)

    def open(self) -> None:
        self.opened.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        background.wait_for_saves()


@contextmanager
def waiting_for(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Runs `call` in a thread. Inside, it is waiting for a save in the background; afterwards, the
    list has what it gave or raised."""
    reached = threading.Event()
    outcome: list[Any] = []
    condition = background._queue.changed
    real = condition.wait

    def wait(timeout: float | None = None) -> bool:
        reached.set()
        return real(timeout)

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    condition.wait = wait  # type: ignore[method-assign]
    thread = threading.Thread(target=run)
    try:
        thread.start()
        assert reached.wait(PATIENCE)
        assert not outcome
        yield outcome
        thread.join(PATIENCE)
        assert outcome
    finally:
        del condition.wait
