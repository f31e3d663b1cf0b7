# SPDX-License-Identifier: Apache-2.0
"""CheckpointManager: failures, crashes, damage, other managers, and retention beyond TensorFlow's
rules."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.files import flip
from support.manager import Checkpoint, files, manager_of, number_names, there

import ckptfmt
from ckptfmt.bundle.verify import Finding, Report
from ckptfmt.errors import CkptfmtWarning, CorruptError, InvalidError, StorageError
from ckptfmt.files.local_folder import LocalFolder
from ckptfmt.files.state_file import format_state
from ckptfmt.manager import restoring as managing
from ckptfmt.manager.retention import KeepBest


def state_names(path: Path) -> list[str]:
    state = ckptfmt.tf.get_checkpoint_state(path)
    assert state is not None
    return number_names(list(state.all_model_checkpoint_paths))


class KilledError(BaseException):
    """Stands for a kill: nothing may catch it and clean up."""


# ---- retention -----------------------------------------------------------------------------------


def test_retention_removes_files_of_exactly_its_names(tmp_path: Path) -> None:
    """N07, N02"""
    manager = manager_of(tmp_path, 1)
    manager.save()
    others = ["ckpt-1.meta", "ckpt-1.data-00000-of-00001x", "ckpt-1", "ckpt-10.index", "ckpt-*"]
    for name in others:
        (tmp_path / name).touch()
    manager.save()
    assert [name for name in files(tmp_path) if name.startswith("ckpt-1")] == sorted(others[:-1])
    assert "ckpt-*" in files(tmp_path)


def test_a_checkpoint_behind_links(tmp_path: Path) -> None:
    """N08"""
    manager = manager_of(tmp_path / "d", 1)
    manager.save()
    for end in (".index", ".data-00000-of-00001"):
        os.rename(tmp_path / "d" / f"ckpt-1{end}", tmp_path / f"far{end}")
        (tmp_path / "d" / f"ckpt-1{end}").symlink_to(tmp_path / f"far{end}")
    manager.save()
    assert there(tmp_path / "d") == ["ckpt-2"]
    assert ckptfmt.verify(tmp_path / "far").ok


def test_names_that_differ_in_case(tmp_path: Path) -> None:
    """N09"""
    upper = manager_of(tmp_path, 1, checkpoint_name="CKPT", checkpoint=Checkpoint())
    upper.save()
    (tmp_path / "checkpoint").unlink()
    lower = manager_of(tmp_path, 1)
    lower.save()
    lower.save()
    assert there(tmp_path) == ["CKPT-1", "ckpt-2"]


def test_a_directory_replaced_by_a_link(tmp_path: Path) -> None:
    """N10: the manager goes on with what it finds there, and touches nothing at the old place."""
    manager = manager_of(tmp_path / "d", 1)
    manager.save()
    os.rename(tmp_path / "d", tmp_path / "moved")
    others = tmp_path / "others"
    ckptfmt.save(others / "ckpt-1", {"v": [1]}, durability="none")  # no manager made it
    (tmp_path / "d").symlink_to(others)
    assert number_names([manager.save()]) == ["ckpt-2"]
    assert there(others) == ["ckpt-1", "ckpt-2"]
    assert there(tmp_path / "moved") == state_names(tmp_path / "moved") == ["ckpt-1"]


def test_a_directory_replaced_during_a_save(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    manager = manager_of(tmp_path / "d", 1, checkpoint=checkpoint)
    manager.save()
    real = checkpoint.write

    def write(prefix: str, options: Any = None) -> Any:
        written = real(prefix, options)
        os.rename(tmp_path / "d", tmp_path / "moved")
        (tmp_path / "d").mkdir()
        return written

    checkpoint.write = write  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="it is not in the directory, which must have been"):
        manager.save()
    assert there(tmp_path / "moved") == ["ckpt-1", "ckpt-2"]
    assert state_names(tmp_path / "moved") == ["ckpt-1"]


@pytest.mark.parametrize("path", ["/elsewhere/ckpt-1", "../d2/ckpt-1", "sub/ckpt-1", ".."])
def test_paths_out_of_the_directory_are_never_removed(tmp_path: Path, path: str) -> None:
    """N01"""
    path = path.replace("/elsewhere", str(tmp_path / "elsewhere"))
    manager = manager_of(tmp_path / "d", 1)
    manager.save()
    for other in ("elsewhere", "d2", "d/sub"):
        ckptfmt.save(tmp_path / other / "ckpt-1", {"x": [1]})
    now = time.time()
    state = ckptfmt.tf.CheckpointState("ckpt-1", (path, "ckpt-1"), (now, now), now - 9)
    (tmp_path / "d" / "checkpoint").write_bytes(format_state(state))
    again = manager_of(tmp_path / "d", 1)
    assert number_names(again.checkpoints) == ["ckpt-1"]
    again.save(7)
    assert there(tmp_path / "d") == ["ckpt-7"]
    for other in ("elsewhere", "d2", "d/sub"):
        assert ckptfmt.verify(tmp_path / other / "ckpt-1").ok


# ---- order and failures --------------------------------------------------------------------------


def test_the_order_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N13: the checkpoint, the state file with all, the indexes, the data files, the state file."""
    manager = manager_of(tmp_path, 1, options=ckptfmt.tf.CheckpointOptions(durability="full"))
    manager.save()
    calls: list[str] = []
    unlink, rename, sync = os.unlink, os.rename, os.fsync

    def renamed(source: str, target: str, **more: Any) -> None:
        rename(source, target, **more)
        calls.append(source if ".index" in source else f"state {' '.join(state_names(tmp_path))}")

    def unlinked(name: str, **more: Any) -> None:
        calls.append(name.partition(".tempstate")[0])
        unlink(name, **more)

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "unlink", unlinked)
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("sync"), sync(fd))[1])
    manager.save()
    assert calls == [
        *("sync", "state ckpt-1 ckpt-2", "sync"),
        *("ckpt-1.index", "sync", "ckpt-1.data-00000-of-00001", "ckpt-1.index"),
        *("sync", "state ckpt-2", "sync"),
    ]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EBUSY, errno.EIO])
@pytest.mark.parametrize("part", ["ckpt-1.index", "ckpt-1.data"])
def test_removals_that_fail_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, number: int
) -> None:
    """N15: the save succeeds; a later one, of another manager too, removes what stayed."""
    manager = manager_of(tmp_path, 2)
    manager.save()
    manager.save()
    unlink, rename = os.unlink, os.rename

    def check(name: str) -> None:
        if name.startswith(part):
            raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda n, **k: (check(n), unlink(n, **k))[1])
        patch.setattr(os, "rename", lambda n, t, **k: (check(n), rename(n, t, **k))[1])
        for one in (3, 4):
            if part.endswith("index") or one == 3:
                with pytest.warns(CkptfmtWarning, match="'ckpt-1' is removed after a later save"):
                    assert number_names([manager.save(one) or ""]) == [f"ckpt-{one}"]
            else:
                manager.save(one)
            # The next save removes data files in a second way, by the proof that is beside them.
            stays = any(name.startswith("ckpt-1.data") for name in files(tmp_path))
            assert stays == (part.endswith("index") or one == 3)
    stuck = ["ckpt-1"] if part.endswith("index") else []
    assert there(tmp_path) == [*stuck, "ckpt-3", "ckpt-4"]
    assert state_names(tmp_path) == [*stuck, "ckpt-3", "ckpt-4"]
    again = manager_of(tmp_path, 2)
    again.save(5)
    assert there(tmp_path) == ["ckpt-4", "ckpt-5"]
    assert not any(name.startswith("ckpt-1") for name in files(tmp_path))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_state_file_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """N19: the checkpoint is in place, and nothing was removed."""
    manager = manager_of(tmp_path, 1)
    manager.save()

    def refuse(*_arguments: object, **_more: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(StorageError) as caught:
            manager.save()
    assert caught.value.errno == number
    assert there(tmp_path) == ["ckpt-1", "ckpt-2"]
    assert state_names(tmp_path) == ["ckpt-1"]
    manager.save()
    assert there(tmp_path) == ["ckpt-3"]
    assert state_names(tmp_path) == ["ckpt-3"]


class Deadly:
    """Raises KilledError in the `point`-th of these system calls, and in all later ones."""

    def __init__(self, patch: pytest.MonkeyPatch, point: int) -> None:
        self.left, self.hits = point, 0
        for name in ("rename", "unlink", "fsync"):
            patch.setattr(os, name, self.deadly(getattr(os, name)))

    def deadly(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                self.hits += 1
                raise KilledError
            return real(*arguments, **more)

        return call


def kill_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Ends a save at each of its renames, unlinks and syncs in turn; how many there are."""
    for point in range(1, 100):
        path = tmp_path / str(point)
        manager_of(path, 2, options=ckptfmt.tf.CheckpointOptions(durability="full")).save(1)
        manager = manager_of(path, 2, options=ckptfmt.tf.CheckpointOptions(durability="full"))
        manager.save(2)
        with monkeypatch.context() as patch:
            deadly = Deadly(patch, point)
            with contextlib.suppress(KilledError):
                manager.save(3)
        check_after_kill(path)
        if not deadly.hits:
            return point - 1
    raise AssertionError("it does not end")


def check_after_kill(path: Path) -> None:
    """A new manager finds a complete checkpoint, and after its next save no orphaned file.
    (N11, N14)"""
    latest = ckptfmt.latest_checkpoint(path)
    assert latest is not None
    assert ckptfmt.verify(latest).ok
    checkpoint = Checkpoint()
    manager = manager_of(path, 2, checkpoint=checkpoint)
    assert manager.restore_or_initialize() == latest
    assert os.path.basename(latest) in ("ckpt-2", "ckpt-3")
    manager.save(7)
    manager.save(8)
    assert [n for n in there(path) if n != "ckpt-3"] == ["ckpt-7", "ckpt-8"]
    for name in there(path):
        assert ckptfmt.verify(path / name).ok
    allowed = {f"{n}{e}" for n in there(path) for e in (".index", ".data-00000-of-00001")}
    assert set(files(path)) == {*allowed, "checkpoint"}


def test_crashes_between_any_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kill_points(tmp_path, monkeypatch) > 8


# ---- state files that are wrong ------------------------------------------------------------------


def test_a_state_file_that_names_what_is_not_there(tmp_path: Path) -> None:
    """N03"""
    manager = manager_of(tmp_path, 3)
    paths = [manager.save() for _ in range(3)]
    (tmp_path / "ckpt-3.index").unlink()
    with pytest.warns(CkptfmtWarning, match="'ckpt-3'|ckpt-3"):
        again = manager_of(tmp_path, 3)
    assert again.latest_checkpoint == paths[1]
    assert again.checkpoints == paths[:2]


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", b"model_checkpoint_path: 3", b'model_checkpoint_path: ""\n', b"\0" * 99],
)
def test_a_damaged_state_file(tmp_path: Path, content: bytes) -> None:
    """N04, N12: what is there is found; nothing of it is managed, so nothing is removed."""
    manager = manager_of(tmp_path, 2)
    paths = [manager.save(), manager.save()]
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.warns(CkptfmtWarning, match="the state file is ignored"):
        again = manager_of(tmp_path, 1)
    assert again.latest_checkpoint == paths[1]
    assert again.checkpoints == []
    again.save(5)
    assert there(tmp_path) == ["ckpt-1", "ckpt-2", "ckpt-5"]
    # One that knew them goes on with them.
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.warns(CkptfmtWarning, match="the state file is ignored"):
        manager.save(6)
    assert there(tmp_path) == ["ckpt-2", "ckpt-5", "ckpt-6"]


# ---- several managers ----------------------------------------------------------------------------


def test_what_another_manager_keeps_permanently_stays(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    ours = manager_of(tmp_path, 2, checkpoint=checkpoint)
    others = manager_of(tmp_path, 2, checkpoint=checkpoint, keep_every_n_steps=2)
    for turn in range(8):
        (others if turn in (3, 4, 5) else ours).save()
    assert there(tmp_path) == sorted(["ckpt-2", "ckpt-4", "ckpt-6", "ckpt-7", "ckpt-8"])


def test_managers_of_many_threads(tmp_path: Path) -> None:
    # Made first: one that finds the checkpoints of others warns before it removes larger numbers.
    managers = [manager_of(tmp_path, 3) for _ in range(4)]

    def work(number: int) -> None:
        for turn in range(10):
            managers[number].save(10 * number + turn)

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = state_names(tmp_path)
    assert len(names) == 3
    assert there(tmp_path) == sorted(names)
    allowed = {f"{n}{e}" for n in names for e in (".index", ".data-00000-of-00001")}
    assert set(files(tmp_path)) == {*allowed, "checkpoint"}


def test_removing_while_a_reader_is_open(tmp_path: Path) -> None:
    """N17"""
    manager = manager_of(tmp_path, 1)
    path = manager.save()
    with ckptfmt.open(path) as reader:
        manager.save()
        assert there(tmp_path) == ["ckpt-2"]
        assert reader["v/.ATTRIBUTES/VARIABLE_VALUE"].read() == 1.0


# ---- best, steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "best"),
    [
        (KeepBest("accuracy", mode="max"), ["ckpt-2"]),
        (KeepBest("accuracy", "max", 2), ["ckpt-2", "ckpt-5"]),
        (KeepBest("accuracy", "min"), ["ckpt-3"]),
        (KeepBest(lambda m: -abs(m["accuracy"] - 0.5), "max"), ["ckpt-4"]),
    ],
)
def test_the_best_stay(tmp_path: Path, keep: Any, best: list[str]) -> None:
    manager = manager_of(tmp_path, 2, keep_best=keep)
    for accuracy in (0.3, 0.9, 0.1, 0.5, 0.8, 0.2, 0.3):
        manager.save(metrics={"accuracy": accuracy, "loss": 1 - accuracy})
    assert there(tmp_path) == sorted([*best, "ckpt-6", "ckpt-7"])
    assert number_names(manager.checkpoints) == [*best, "ckpt-6", "ckpt-7"]
    assert manager.best_checkpoint == str(tmp_path / best[0])
    # A new manager knows it, and a better one takes its place.
    again = manager_of(tmp_path, 2, keep_best=keep)
    assert again.best_checkpoint == manager.best_checkpoint
    assert again.checkpoints == manager.checkpoints
    for number in (8, 9, 10):
        again.save(number)
    assert there(tmp_path) == sorted([*best, "ckpt-9", "ckpt-10"])


def test_metrics_go_with_their_checkpoints(tmp_path: Path) -> None:
    manager = manager_of(tmp_path, 2, keep_best=KeepBest("a", "max"))
    manager.save(metrics={"a": 9})
    for one in range(3):
        manager.save(metrics={"a": one})
    assert manager.best_checkpoint == str(tmp_path / "ckpt-1")
    # Replaced by another program: nothing says how good it is, and it stays.
    ckptfmt.save(tmp_path / "ckpt-1", {"v": [1]}, durability="none")
    again = manager_of(tmp_path, 2, keep_best=KeepBest("a", "max"))
    assert again.best_checkpoint == str(tmp_path / "ckpt-4")
    again.save(9)
    assert there(tmp_path) == ["ckpt-1", "ckpt-4", "ckpt-9"]
    (tmp_path / "ckpt-1.index").unlink()
    manager_of(tmp_path, 2).save(10)
    content = (tmp_path / "checkpoint.ckptfmt").read_text()
    assert "ckpt-4" in content
    assert "ckpt-1" not in content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"ckptfmt_metrics": 2}',
        b"[" * 10000,
        b'{"ckptfmt_metrics": 1}',
        b"\xff",
        b'{"ckptfmt_metrics": 1, "checkpoints": {"ckpt-1": {"metrics": {"a": "x"}, "index": ""}}}',
    ],
)
def test_damaged_metrics(tmp_path: Path, content: bytes) -> None:
    manager = manager_of(tmp_path, 2, keep_best=KeepBest("a", "max"))
    manager.save(metrics={"a": 1})
    (tmp_path / "checkpoint.ckptfmt").write_bytes(content)
    with pytest.warns(CkptfmtWarning, match="no checkpoint that was saved before is removed"):
        again = manager_of(tmp_path, 1, keep_best=KeepBest("a", "max"))
    assert again.best_checkpoint is None
    for number in (2, 3):
        again.save(number, metrics={"a": 0})
    manager_of(tmp_path, 1).save(4)
    assert there(tmp_path) == ["ckpt-1", "ckpt-3", "ckpt-4"]


def test_a_misspelt_metric(tmp_path: Path) -> None:
    manager = manager_of(tmp_path, 1, keep_best=KeepBest("loss", mode="min"))
    message = "keep_best compares the metric 'loss', which metrics does not have; it has 'Loss'"
    with pytest.raises(InvalidError, match=message):
        manager.save(metrics={"Loss": 1})
    assert files(tmp_path) == []
    assert manager.save() is not None  # without metrics it is not compared


def test_steps(tmp_path: Path) -> None:
    manager = manager_of(tmp_path / "d", 2, keep_every_n_steps=10)
    assert (manager.all_steps(), manager.latest_step()) == ([], None)
    for step in (9, 10, 11, 12):
        manager.save(step)
    other = manager_of(tmp_path / "d", 2)
    other.save(13)
    assert manager.all_steps() == [10, 12, 13]
    assert manager.latest_step() == 13
    ckptfmt.save(tmp_path / "d" / "best", {"v": [1]}, durability="none")
    assert manager.all_steps() == [10, 12, 13]


# ---- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_restoring_falls_back_to_what_is_sound(tmp_path: Path, first: bool) -> None:
    """N20"""
    checkpoint = Checkpoint()
    manager = manager_of(tmp_path, 4, checkpoint=checkpoint)
    paths = []
    for value in range(1, 5):
        checkpoint.value[...] = value
        paths.append(manager.save())
    flip(tmp_path / "ckpt-4.data-00000-of-00001", 3)
    (tmp_path / "ckpt-3.data-00000-of-00001").unlink()
    with pytest.warns(CkptfmtWarning, match="not restored: ") as caught:
        found = manager_of(tmp_path, 4, checkpoint=checkpoint).restore_latest(check_first=first)
    assert [one.filename for one in caught if "not restored" in str(one.message)] == [__file__] * 2
    assert found
    assert (found.path, found.status) == (paths[1], "status of ckpt-2")
    assert (checkpoint.value, checkpoint.save_counter) == (2.0, 2)
    assert [one.path for one in found.rejected] == [paths[3], paths[2]]
    if first:
        (finding,) = found.rejected[0].findings
        assert (finding.failure, finding.tensor) == ("CHECKSUM", "v/.ATTRIBUTES/VARIABLE_VALUE")
        assert finding.path is not None
        assert finding.path.endswith("ckpt-4.data-00000-of-00001")
        assert finding.offset is not None
        assert "CHECKSUM" in str(found.rejected[0])
        assert "SHARD_MISSING" in str(found.rejected[1])
        assert checkpoint.restored == [paths[1]]
    else:
        assert isinstance(found.rejected[0].error, CorruptError)
        assert isinstance(found.rejected[1].error, ckptfmt.errors.ShardMissingError)


def test_nothing_at_all(tmp_path: Path) -> None:
    found = manager_of(tmp_path).restore_latest()
    assert not found
    assert (found.path, found.rejected) == (None, [])
    assert not manager_of(tmp_path / "none").restore_latest()
    with pytest.raises(InvalidError, match="check_first"):
        manager_of(tmp_path).restore_latest(check_first="some")  # type: ignore[arg-type]


def test_permanent_checkpoints_are_restored_last(tmp_path: Path) -> None:
    """Checkpoints that no manager lists any more are tried last, the largest number first."""
    manager = manager_of(tmp_path, 1, keep_every_n_steps=10)
    for step in (10, 20, 30, 35):
        manager.save(step)
    flip(tmp_path / "ckpt-35.data-00000-of-00001", 3)
    with pytest.warns(CkptfmtWarning, match="not restored"):
        found = manager.restore_latest()
    assert found.path == str(tmp_path / "ckpt-30")


def test_a_state_of_a_million(tmp_path: Path) -> None:
    """N05: paths whose checkpoints are gone are forgotten, and looked for in one listing."""
    ckptfmt.save(tmp_path / "ckpt-1", {"v": [1]})
    count, now = 20000, time.time()
    state = ckptfmt.tf.CheckpointState(
        "ckpt-1", (*(f"ckpt-{n}" for n in range(2, count)), "ckpt-1"), (now,) * (count - 1), 1.0
    )
    (tmp_path / "checkpoint").write_bytes(format_state(state))
    calls = 0

    def count_call(frame: FrameType, *_: object) -> None:
        nonlocal calls
        calls += not frame.f_code.co_filename.endswith("state_file.py")  # parses line by line

    sys.setprofile(count_call)
    try:
        manager = manager_of(tmp_path, 1)
    finally:
        sys.setprofile(None)
    assert calls < count / 5, "not a call for each path"
    assert number_names(manager.checkpoints) == ["ckpt-1"]


TRANSIENT = [errno.EMFILE, errno.EIO, errno.ESTALE]


@pytest.mark.parametrize("number", TRANSIENT)
@pytest.mark.parametrize("first", [True, False])
def test_a_transient_error_does_not_restore_an_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, first: bool
) -> None:
    checkpoint = Checkpoint()
    manager = manager_of(tmp_path, 2, checkpoint=checkpoint)
    paths = [manager.save(), manager.save()]

    def fail(path: str) -> Any:
        raise StorageError(os.strerror(number), path=path, errno=number)

    def finding(path: str) -> Any:
        found = Finding("problem", "IO", "OS", os.strerror(number), path, None, None)
        return Report(path, [found])

    with monkeypatch.context() as patch:
        if not first:
            patch.setattr(checkpoint, "restore", fail)
        else:
            patch.setattr(managing, "verify_prefix", finding)
        with pytest.raises(StorageError, match=re.escape(os.strerror(number))):
            manager.restore_latest(check_first=first)
        patch.setattr(managing, "verify_prefix", fail)
        with pytest.raises(StorageError, match=re.escape(os.strerror(number))):
            manager.restore_latest()
    assert manager.restore_latest(check_first=first).path == paths[1]  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [True, False])
def test_a_checkpoint_replaced_while_it_is_restored_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """The index is of one generation and the data files are of the next: that is no damage."""
    checkpoint = Checkpoint()
    manager = manager_of(tmp_path, 1, checkpoint=checkpoint)
    path = manager.save(7)
    left = 3

    def replaced(real: Callable[[str], Any], path: str) -> Any:
        nonlocal left
        if left == 0:
            return real(path)
        left -= 1
        Checkpoint(left).write(path)
        raise ckptfmt.errors.ShardMissingError("the data file is missing", path=path)

    if not first:
        monkeypatch.setattr(checkpoint, "restore", partial(replaced, checkpoint.restore))
    else:
        monkeypatch.setattr(managing, "verify_prefix", partial(replaced, managing.verify_prefix))
    found = manager.restore_latest(check_first=first)
    assert (found.path, found.rejected, left) == (path, [], 0)


def test_a_closed_directory_is_not_used(tmp_path: Path) -> None:
    with LocalFolder(str(tmp_path)).opened() as directory:
        pass
    with pytest.raises(InvalidError):
        directory.sweep()
