# SPDX-License-Identifier: Apache-2.0
"""Waiting for new checkpoints, on a clock that moves only when the code sleeps."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt import tf
from ckptfmt.manager import latest

Iterate = Callable[..., Iterator[str]]


class Clock:
    """Replaces the module `time`. `plan` holds what happens when, as (time, function)."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []
        self.plan: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        assert len(self.sleeps) < 1000, "it waits for ever"
        self.sleeps.append(seconds)
        self.now += seconds
        while self.plan and self.plan[0][0] <= self.now:
            self.plan.pop(0)[1]()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(latest, "time", clock)
    return clock


@pytest.fixture
def iterate() -> Iterate:
    return ckptfmt.tf.checkpoints_iterator


def save(directory: Path, name: str) -> None:
    ckptfmt.save(directory / name, {"x": np.arange(4)}, durability="rename")
    ckptfmt.tf.update_checkpoint_state(directory, name, durability="rename")


def names(found: Iterator[str]) -> list[str]:
    return [os.path.basename(path) for path in found]


# ---- as TensorFlow's -----------------------------------------------------------------------------


def test_what_is_there_comes_at_once(tmp_path: Path, clock: Clock, iterate: Iterate) -> None:
    save(tmp_path, "ckpt-1")
    assert list(iterate(tmp_path, timeout=0)) == [f"{tmp_path}/ckpt-1"]
    assert clock.sleeps == []


@pytest.mark.parametrize("form", [str, os.fsencode, Path])
def test_new_ones_come_when_they_are_there(
    tmp_path: Path, clock: Clock, iterate: Iterate, form: Callable[[Path], Any]
) -> None:
    directory = tmp_path / "later"
    clock.plan = [
        (1003.0, directory.mkdir),
        (1005.0, lambda: save(directory, "ckpt-1")),
        (1009.0, lambda: save(directory, "ckpt-2")),
    ]
    found = []
    for path in iterate(form(directory), timeout=10):
        found.append((os.path.basename(path), clock.now))
    assert found == [("ckpt-1", 1005.0), ("ckpt-2", 1009.0)]
    assert clock.now == 1019.0
    assert set(clock.sleeps) == {1.0}


def test_those_between_are_passed_over(tmp_path: Path, clock: Clock, iterate: Iterate) -> None:
    save(tmp_path, "ckpt-1")
    found = iterate(tmp_path, timeout=3)
    assert os.path.basename(next(found)) == "ckpt-1"
    save(tmp_path, "ckpt-2")
    save(tmp_path, "ckpt-3")
    assert names(found) == ["ckpt-3"]


def test_an_older_one_is_another_one(tmp_path: Path, clock: Clock, iterate: Iterate) -> None:
    """Training began anew from there."""
    save(tmp_path, "ckpt-1")
    save(tmp_path, "ckpt-2")
    clock.plan = [
        (
            1002.0,
            lambda: ckptfmt.tf.update_checkpoint_state(tmp_path, "ckpt-1", durability="rename"),
        )
    ]
    assert names(iterate(tmp_path, timeout=3)) == ["ckpt-2", "ckpt-1"]


def test_the_same_one_saved_anew_is_no_other(
    tmp_path: Path, clock: Clock, iterate: Iterate
) -> None:
    save(tmp_path, "ckpt-1")
    clock.plan = [(1002.0, lambda: save(tmp_path, "ckpt-1"))]
    assert names(iterate(tmp_path, timeout=5)) == ["ckpt-1"]


@pytest.mark.parametrize(
    ("timeout", "waited"), [(0, 0.0), (0.5, 0.0), (1, 1.0), (1.5, 1.0), (10, 10.0)]
)
def test_timeout(
    tmp_path: Path, clock: Clock, iterate: Iterate, timeout: float, waited: float
) -> None:
    assert list(iterate(tmp_path, timeout=timeout)) == []
    assert clock.now - 1000 == waited


def test_timeout_fn(tmp_path: Path, clock: Clock, iterate: Iterate) -> None:
    """Asked after each timeout and each checkpoint; a true answer ends it."""
    asked: list[float] = []

    def done() -> bool:
        asked.append(clock.now)
        return clock.now >= 1009

    clock.plan = [(1005.0, lambda: save(tmp_path, "ckpt-1"))]
    found = [(os.path.basename(p), clock.now) for p in iterate(tmp_path, 0, 2, done)]
    assert found == [("ckpt-1", 1005.0)]
    assert asked == [1002.0, 1004.0, 1005.0, 1007.0, 1009.0]


def test_timeout_fn_after_a_checkpoint(tmp_path: Path, clock: Clock, iterate: Iterate) -> None:
    save(tmp_path, "ckpt-1")
    assert names(iterate(tmp_path, timeout=None, timeout_fn=lambda: True)) == ["ckpt-1"]


def test_interval(tmp_path: Path, clock: Clock, iterate: Iterate) -> None:
    """What the caller takes counts."""
    found = []
    for number in range(4):
        clock.plan.append((1000.0 + number, functools.partial(save, tmp_path, f"c-{number}")))
    clock.sleep(0.5)
    for path in iterate(tmp_path, min_interval_secs=10, timeout=1):
        found.append((os.path.basename(path), clock.now))
        clock.sleep(4)
    assert found == [("c-0", 1000.5), ("c-3", 1010.5)]
    assert 6.0 in clock.sleeps


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("min_interval_secs", None),
        ("min_interval_secs", "1"),
        ("timeout", "1"),
        ("timeout", float("nan")),
        ("timeout_fn", 5),
        ("checkpoint_dir", 5),
    ],
)
def test_wrong_arguments(tmp_path: Path, iterate: Iterate, argument: str, value: Any) -> None:
    """At once, not when the first one is asked for."""
    with pytest.raises(ckptfmt.InvalidError) as caught:
        iterate(**{"checkpoint_dir": tmp_path, argument: value})
    assert caught.value.argument == argument


# ---- beyond TensorFlow's -------------------------------------------------------------------------


def test_a_transient_error_is_warned_of_and_waited_out(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, "ckpt-1")
    real = latest.why_incomplete

    def busy(prefix: str) -> str | None:
        if clock.now < 1002:
            raise ckptfmt.StorageError("Too many open files", path=prefix, errno=errno.EMFILE)
        return real(prefix)

    monkeypatch.setattr(latest, "why_incomplete", busy)
    with pytest.warns(ckptfmt.CkptfmtWarning, match="Too many open files") as caught:
        assert names(ckptfmt.tf.checkpoints_iterator(tmp_path, timeout=3)) == ["ckpt-1"]
    assert len(caught) == 1


def test_a_checkpoint_that_is_still_being_copied(tmp_path: Path, clock: Clock) -> None:
    """Its data file grows, and no directory tells."""
    save(tmp_path, "ckpt-1")
    save(tmp_path, "ckpt-2")
    data = tmp_path / "ckpt-2.data-00000-of-00001"
    content = data.read_bytes()
    os.truncate(data, 4)
    clock.plan = [(1005.0, lambda: data.write_bytes(content))]
    with pytest.warns(ckptfmt.CkptfmtWarning) as caught:
        found = names(ckptfmt.tf.checkpoints_iterator(tmp_path, timeout=10))
    assert found == ["ckpt-1", "ckpt-2"]
    assert len(caught) == 1  # warned once


def test_without_a_state_file(tmp_path: Path, clock: Clock) -> None:
    for number in (1, 2):
        save(tmp_path, f"ckpt-{number}")
        os.unlink(tmp_path / "checkpoint")
    with pytest.warns(ckptfmt.CkptfmtWarning, match=r"there is no state file; .*ckpt-2' is taken"):
        assert names(ckptfmt.tf.checkpoints_iterator(tmp_path, timeout=2)) == ["ckpt-2"]


# ---- tf.latest_checkpoint ------------------------------------------------------------------------


def test_latest_as_tensorflow_has_it(tmp_path: Path) -> None:
    """What the state file names, wherever that is and whether it is complete or not; or nothing."""
    directory = tmp_path / "d"
    directory.mkdir()
    assert tf.latest_checkpoint(directory) is None
    save(directory, "ckpt-1")
    os.unlink(directory / "ckpt-1.data-00000-of-00001")
    assert tf.latest_checkpoint(directory) == f"{directory}/ckpt-1"
    save(tmp_path, "out")
    ckptfmt.tf.update_checkpoint_state(directory, "../out")
    assert tf.latest_checkpoint(directory) == f"{directory}/../out"
    ckptfmt.tf.update_checkpoint_state(directory, "ckpt-[1]")
    with pytest.warns(ckptfmt.CkptfmtWarning) as caught:
        assert tf.latest_checkpoint(directory) is None
    (warning,) = caught
    assert str(warning.message) == f"Couldn't match files for checkpoint {directory}/ckpt-[1]"
    assert warning.filename == __file__
    (directory / "checkpoint").write_bytes(b"\xff")
    with pytest.warns(ckptfmt.CkptfmtWarning, match="the state file is ignored"):
        assert tf.latest_checkpoint(directory) is None
    (directory / "checkpoint").write_bytes(b"")
    with pytest.raises(ckptfmt.InvalidError, match="Invalid checkpoint state loaded from"):
        tf.latest_checkpoint(directory)
