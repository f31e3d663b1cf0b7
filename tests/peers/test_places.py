# SPDX-License-Identifier: Apache-2.0
"""What works on a path works on a URL: managers, TrainingState and `ckptfmt.tf` by the same tests,
on disk and on an S3 server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.s3 import S3, running

import ckptfmt
from ckptfmt import stores, tf
from ckptfmt.files.places import names_in
from ckptfmt.manager.pruning import prune


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    yield from running()


@pytest.fixture(params=["disk", "s3"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """An empty directory."""
    if request.param == "disk":
        yield str(tmp_path / "run")
        return
    server: S3 = request.getfixturevalue("server")
    server.bucket("bucket")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    yield "s3://bucket/run"
    stores.mount("s3://bucket", None)


def files(place: str) -> set[str]:
    return set(names_in(place))


def test_managers(place: str) -> None:
    state = ckptfmt.Checkpoint(w=np.zeros(3))
    best = ckptfmt.KeepBest("loss", mode="min")
    manager = ckptfmt.CheckpointManager(state, place, 2, keep_best=best, keep_every_n_steps=4)
    assert manager.restore_or_initialize() is None and manager.all_steps() == []
    for step, loss in enumerate((5.0, 1.0, 3.0, 4.0, 2.0, 2.5), 1):
        state.w[:] = step
        save = manager.save if step % 2 else lambda **more: manager.save_async(**more).result()
        assert save(metrics={"loss": loss}) == f"{place}/ckpt-{step}"
    assert manager.all_steps() == [2, 4, 5, 6]
    assert manager.best_checkpoint == f"{place}/ckpt-2"
    # Another one goes on, and replaces what it did not save with a warning.
    other = ckptfmt.Checkpoint(w=np.zeros(3))
    again = ckptfmt.CheckpointManager(other, place, 1, keep_best=best)
    assert again.restore_latest().path == f"{place}/ckpt-6" and other.w.tolist() == [6, 6, 6]
    with pytest.warns(ckptfmt.CkptfmtWarning):
        again.save(4, metrics={"loss": 9.0})
    assert again.checkpoints == [f"{place}/ckpt-2", f"{place}/ckpt-4"]
    assert ckptfmt.latest_checkpoint(place) == f"{place}/ckpt-4"
    assert prune(place, 1).removed == [] and manager.latest_step() == 4


def test_training_state(place: str) -> None:
    weights = np.zeros(3)
    state = tf.TrainingState({"w": weights}, place)
    assert not state.restore()
    for epoch in range(3):
        weights[:] = epoch
        assert state.back_up(epoch) == f"{place}/chief/ckpt-{epoch + 1}"
        assert {name for name in files(f"{place}/chief") if name.endswith(".index")} == {
            f"ckpt-{epoch + 1}.index"
        }
    later = np.ones(3)
    again = tf.TrainingState({"w": later}, place)
    assert again.restore() and later.tolist() == [2, 2, 2]
    assert again.maybe_load_initial_epoch_from_ckpt(0, "train") == 3
    worker = tf.TrainingState({"w": later}, place, task_id=1)
    assert worker.back_up(3) is None and not files(f"{place}/workertemp_1")
    ckptfmt.save(f"{place}/chief/mine", {"x": np.ones(1)})
    again.delete_backup()
    assert files(f"{place}/chief") == {"mine.index", "mine.data-00000-of-00001"}
    assert not tf.TrainingState({"w": later}, place).restore()


def test_functions_of_tensorflow(place: str) -> None:
    assert tf.latest_checkpoint(place) is None and tf.get_checkpoint_state(place) is None
    manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(w=np.arange(3.0)), place, 3)
    begun = int(time.time())
    one, two = manager.save(), manager.save()
    name = "w/.ATTRIBUTES/VARIABLE_VALUE"
    assert one is not None and two is not None
    assert tf.latest_checkpoint(place) == two
    assert next(tf.checkpoints_iterator(place)) == two
    for path in (place, two):
        assert dict(tf.list_variables(path))[name] == [3]
        assert tf.load_variable(path, name).tolist() == [0, 1, 2]
        assert tf.load_checkpoint(path).has_tensor(name)
    none = f"{place}/none"
    assert [tf.checkpoint_exists(path) for path in (two, none)] == [True, False]
    times = tf.get_checkpoint_mtimes([one, none, two])
    assert len(times) == 2 and begun - 1 <= times[0] <= times[1] <= time.time() + 1
    tf.update_checkpoint_state(place, one, [two, one])
    assert tf.latest_checkpoint(place) == one
    tf.update_checkpoint_state(place, "s3://bucket/elsewhere/ckpt-1", [one, two])
    state = tf.get_checkpoint_state(place)
    assert state is not None and state.all_model_checkpoint_paths[:2] == (one, two)
    assert state.model_checkpoint_path == "s3://bucket/elsewhere/ckpt-1"
    tf.update_checkpoint_state(place, one, [two, one])
    tf.remove_checkpoint(one)
    tf.remove_checkpoint(one)
    with pytest.warns(ckptfmt.CkptfmtWarning):
        assert tf.latest_checkpoint(place) is None
    for part in "ab":
        tf.save_v2(f"{place}/parts/{part}", [part], [""], [np.ones(2)])
    parts = [f"{place}/parts/{part}" for part in "ab"]
    tf.merge_v2_checkpoints(parts, f"{place}/merged")
    assert [name for name, _ in tf.list_variables(f"{place}/merged")] == ["a", "b"]
    tf.remove_checkpoint(f"{place}/merged")
    assert files(place) == {"checkpoint", "ckpt-2.index", "ckpt-2.data-00000-of-00001"}
