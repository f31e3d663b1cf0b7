# SPDX-License-Identifier: Apache-2.0
"""`prune`: N sound checkpoints stay, with damaged ones at any place in the queue."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files import contents, flip

import ckptfmt
from ckptfmt.bundle import completeness
from ckptfmt.files.local_folder import LocalFolder
from ckptfmt.manager import pruning
from ckptfmt.manager.pruning import Pruned, prune


def index_file(prefix: Path) -> Path:
    return Path(f"{prefix}.index")


def data_file(prefix: Path) -> Path:
    return Path(f"{prefix}.data-00000-of-00001")


def _truncate(prefix: Path) -> None:
    os.truncate(data_file(prefix), 100)


def _clobber_index(prefix: Path) -> None:
    index_file(prefix).write_bytes(b"")


STATES: dict[str, Callable[[Path], object]] = {
    "sound": lambda _: None,
    "damaged bytes": lambda prefix: flip(data_file(prefix), 40),
    "incomplete": _truncate,
    "missing data": lambda prefix: data_file(prefix).unlink(),
    "damaged index": lambda prefix: flip(index_file(prefix), 5),
    "empty index": _clobber_index,
}
# What is only seen by reading tensors.
READ = "damaged bytes"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a manager's four checkpoints."""
    directory = tmp_path_factory.mktemp("run") / "run"
    values = {"w": np.arange(100.0)}
    manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(**values), directory, max_to_keep=9)
    for _ in range(4):
        manager.save()
    return directory


def queues() -> Iterator[tuple[str, ...]]:
    """Oldest first: each state in each position among sound ones, and all mixtures of a sound, a
    damaged and an incomplete one."""
    for state, at in itertools.product(STATES, range(4)):
        yield tuple(state if at == position else "sound" for position in range(4))
    yield from itertools.product(("sound", READ, "missing data"), repeat=4)


def expected(states: tuple[str, ...], keep: int, *, verify: bool) -> tuple[list[int], ...]:
    """The numbers of those that go, that are sound, and that are named."""
    going: list[int] = []
    sound: list[int] = []
    damaged: list[int] = []
    for number, state in reversed(list(enumerate(states, 1))):
        if len(sound) == keep:
            going.insert(0, number)
        elif state == "sound" or (state == READ and not verify):
            sound.insert(0, number)
        else:
            damaged.insert(0, number)
    return going, sound, damaged


def numbers(prefixes: Iterable[str]) -> list[int]:
    return [int(prefix.rpartition("-")[2]) for prefix in prefixes]


def copied(run: Path, to: Path, states: Iterable[str] = ()) -> Path:
    shutil.copytree(run, to)
    for number, state in enumerate(states, 1):
        STATES[state](to / f"ckpt-{number}")
    return to


def found(done: Pruned) -> tuple[list[int], ...]:
    return numbers(done.removed), numbers(done.kept), numbers(done.damaged)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("keep", [1, 2, 5])
@pytest.mark.parametrize("count", [15, pytest.param(1000, marks=pytest.mark.slow)])
def test_each_state_in_each_position(
    run: Path, tmp_path: Path, seed: int, count: int, keep: int, verify: bool
) -> None:
    every = list(dict.fromkeys(queues()))
    drawn = random.Random(f"{seed} {keep} {verify}").sample(every, min(count, len(every)))
    for case, states in enumerate(drawn):
        directory = copied(run, tmp_path / str(case), states)
        before = contents(directory)
        want = expected(states, keep, verify=verify)
        done = prune(str(directory), keep, verify=verify, dry_run=True)
        assert found(done) == want, states
        assert contents(directory) == before
        assert prune(str(directory), keep, verify=verify) == done, states
        _, sound, damaged = want
        left = {path.stem for path in directory.glob("*.index")}
        assert left == {f"ckpt-{number}" for number in (*sound, *damaged)}, states
        for number in (*sound, *damaged):
            assert {name: value for name, value in before.items() if f"ckpt-{number}" in name} == {
                name: value for name, value in contents(directory).items() if f"-{number}." in name
            }
        if verify and "sound" in states:
            assert any(ckptfmt.verify(directory / f"ckpt-{number}").ok for number in sound)
        assert found(prune(str(directory), keep, verify=verify))[0] == [], "nothing more"


def test_the_newest_of_the_state_file_stays_and_is_checked(run: Path, tmp_path: Path) -> None:
    directory = copied(run, tmp_path / "run", ["sound", READ, "sound", "sound"])
    state = directory / "checkpoint"
    state.write_text(state.read_text().replace('path: "ckpt-4"', 'path: "ckpt-2"', 1))
    assert found(prune(str(directory), 1)) == ([1, 3], [4], [2])


def test_older_ones_are_not_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = copied(run, tmp_path / "run")
    read: list[str] = []
    real = completeness.verify_all

    def noted(prefix: str, **options: Any) -> Any:
        read.append(os.path.basename(prefix))
        return real(prefix, **options)

    monkeypatch.setattr(completeness, "verify_all", noted)
    calls: list[tuple[int, int]] = []
    prune(str(directory), 2, progress=lambda *call: calls.append(call))
    assert read == ["ckpt-4", "ckpt-3"]
    assert len(calls) >= 2 and all(done <= total for done, total in calls)


# ---- symbolic links

INDEX, DATA = "index", "data-00000-of-00001"


def _link(directory: Path, link: str, target: str) -> None:
    path = directory / link
    if path.exists() and "ckpt-" in target and "ckpt-4" not in target:
        shutil.copy(path, directory / target)
        path.unlink()
    path.unlink(missing_ok=True)
    path.symlink_to(target)


# By case: links, and the checkpoints that go with keep=1, with the link that others need.
LINKS: dict[str, tuple[list[tuple[str, str]], list[int], dict[int, str]]] = {
    "kept to going": ([(f"ckpt-4.{DATA}", f"ckpt-2.{DATA}")], [1, 3], {2: f"ckpt-4.{DATA}"}),
    "index": ([("ckpt-4.index", "ckpt-1.index")], [2, 3], {1: "ckpt-4.index"}),
    "absolute": ([(f"ckpt-4.{DATA}", f"/ckpt-2.{DATA}")], [1, 3], {2: f"ckpt-4.{DATA}"}),
    "by way of a directory": (
        [(f"ckpt-4.{DATA}", f"self/./self/ckpt-2.{DATA}")],
        [1, 3],
        {2: f"ckpt-4.{DATA}"},
    ),
    "unmanaged": (
        [("best.index", "ckpt-3.index"), (f"best.{DATA}", f"ckpt-3.{DATA}")],
        [1, 2],
        {3: f"best.{DATA}"},
    ),
    "another name": ([("latest", "ckpt-1.index")], [2, 3], {1: "latest"}),
    "chain": (
        [(f"ckpt-4.{DATA}", f"ckpt-3.{DATA}"), (f"ckpt-3.{DATA}", f"ckpt-1.{DATA}")],
        [2],
        {1: f"ckpt-4.{DATA}", 3: f"ckpt-4.{DATA}"},
    ),
    "one after the other": (
        [(f"ckpt-4.{DATA}", f"ckpt-3.{DATA}"), ("ckpt-3.index", "ckpt-1.index")],
        [2],
        {1: "ckpt-3.index", 3: f"ckpt-4.{DATA}"},
    ),
    "chain of others": (
        [("a", "b"), ("b", f"ckpt-2.{DATA}")],
        [1, 3],
        {2: "a"},
    ),
    "going to going": ([(f"ckpt-3.{DATA}", f"ckpt-2.{DATA}")], [1, 2, 3], {}),
    "going to kept": ([(f"ckpt-1.{DATA}", f"ckpt-4.{DATA}")], [1, 2, 3], {}),
    "elsewhere": (
        [(f"ckpt-4.{DATA}", "../shared"), (f"ckpt-2.{DATA}", "../shared")],
        [1, 2, 3],
        {},
    ),
    "loop": ([("a", "b"), ("b", "a")], [1, 2, 3], {}),
}


@pytest.mark.parametrize("case", LINKS)
def test_files_that_links_need_stay(run: Path, tmp_path: Path, case: str) -> None:
    directory = copied(run, tmp_path / "run")
    links, going, needed = LINKS[case]
    shutil.copy(data_file(directory / "ckpt-4"), tmp_path / "shared")
    (directory / "self").symlink_to(".")
    for link, target in links:
        _link(directory, link, str(directory) + target if target[0] == "/" else target)
    wanted = {str(directory / f"ckpt-{n}"): str(directory / one) for n, one in needed.items()}
    done = prune(str(directory), 1, dry_run=True)
    assert (numbers(done.removed), done.linked) == (going, wanted)
    assert prune(str(directory), 1) == done
    assert ckptfmt.verify(directory / "ckpt-4").ok
    for number in range(1, 5):
        assert index_file(directory / f"ckpt-{number}").exists() == (number not in going)
    again = prune(str(directory), 1)
    assert (again.removed, again.linked) == ([], done.linked), "and are still managed"


# ---- errors that prove nothing


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ESTALE, errno.EACCES])
def test_a_transient_error_is_not_damage(
    run: Path, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = copied(run, tmp_path / "run")
    before = contents(directory)
    error = ckptfmt.StorageError("no luck", path="x", errno=number)

    def fails(*_args: object, **_options: object) -> None:
        raise error

    with monkeypatch.context() as patch, pytest.raises(ckptfmt.StorageError, match="no luck"):
        patch.setattr(completeness, "verify_all", fails)
        prune(str(directory), 1)
    with monkeypatch.context() as patch, pytest.raises(ckptfmt.StorageError, match="no luck"):
        patch.setattr(completeness, "Reader", fails)
        prune(str(directory), 1, verify=False)
    assert contents(directory) == before


@pytest.mark.parametrize(
    ("status", "failure", "kind"),
    [
        ("IO", "OS", ckptfmt.StorageError),
        ("UNSUPPORTED", "UNSUPPORTED", ckptfmt.UnsupportedError),
        ("NO_MEMORY", "NO_MEMORY", MemoryError),
    ],
)
def test_a_finding_that_proves_nothing(
    run: Path,
    tmp_path: Path,
    status: str,
    failure: str,
    kind: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = copied(run, tmp_path / "run")
    before = contents(directory)
    damage = ckptfmt.types.Finding("problem", "CORRUPT", "CHECKSUM", "bad", "x", 0, "w")
    finding = ckptfmt.types.Finding("problem", status, failure, "no luck", "x", 0, "w")

    def findings(prefix: str, **_options: object) -> ckptfmt.types.Report:
        return ckptfmt.types.Report(prefix, [damage, finding])

    monkeypatch.setattr(completeness, "verify_all", findings)
    with pytest.raises(kind, match="no luck"):
        prune(str(directory), 1)
    assert contents(directory) == before


# ---- beside a manager


def test_the_directory_is_not_locked_while_tensors_are_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manager saves a fifth one while the fourth is checked, and replaces that one."""
    directory = copied(run, tmp_path / "run")
    real, checked = pruning.why_unsound, list[str]()

    def saves(prefix: str, **options: Any) -> str | None:
        name = os.path.basename(prefix)
        checked.append(name)
        why = real(prefix, **options)
        if checked == ["ckpt-4"]:
            with LocalFolder(str(directory)).opened() as place, place.lock(timeout=0):
                pass
            values = {"w": np.zeros(100)}
            checkpoint = ckptfmt.Checkpoint(**values)
            checkpoint.write(directory / "ckpt-4")
            ckptfmt.CheckpointManager(checkpoint, directory, max_to_keep=9).save(5)
        return why

    monkeypatch.setattr(pruning, "why_unsound", saves)
    assert found(prune(str(directory), 2)) == ([1, 2, 3], [4, 5], [])
    assert checked == ["ckpt-4", "ckpt-5", "ckpt-4"], "the new files of 4"


def test_one_that_keeps_changing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = copied(run, tmp_path / "run")

    def saves(prefix: str, **_options: object) -> None:
        index = index_file(Path(prefix))
        os.utime(index, ns=(0, index.stat().st_mtime_ns + 1))

    monkeypatch.setattr(pruning, "why_unsound", saves)
    with pytest.raises(ckptfmt.errors.BusyError, match="keeps replacing"):
        prune(str(directory), 2)
    assert len(list(directory.glob("*.index"))) == 4


# ---- what managers retain

LOSSES = [3.0, 1.0, 5.0, 4.0, 6.0, 7.0]
# Options of the manager, and the checkpoints that prune leaves with keep=1.
RETAINED: dict[str, tuple[dict[str, Any], list[int]]] = {
    "smallest": ({"keep_best": ckptfmt.KeepBest("loss", "min")}, [2, 6]),
    "two largest": ({"keep_best": ckptfmt.KeepBest("loss", "max", 2)}, [5, 6]),
    "function": ({"keep_best": ckptfmt.KeepBest(lambda it: abs(it["loss"] - 5), "min")}, [3, 6]),
    "either end": ({}, [2, 6]),
    "steps": ({"keep_every_n_steps": 4, "keep_best": ckptfmt.KeepBest("loss", "min")}, [2, 4, 6]),
    "hours": ({"keep_checkpoint_every_n_hours": 1e-9}, [1, 2, 3, 4, 5, 6]),
}


def save_losses(
    directory: Path, losses: list[float] = LOSSES, max_to_keep: int = 9, **options: Any
) -> None:
    checkpoint = ckptfmt.Checkpoint(w=np.ones(3))
    manager = ckptfmt.CheckpointManager(checkpoint, directory, max_to_keep, **options)
    manager.restore_or_initialize()
    for loss in losses:
        manager.save(metrics={"loss": loss})


@pytest.mark.parametrize("case", RETAINED)
def test_what_a_manager_retains_stays(tmp_path: Path, case: str) -> None:
    options, left = RETAINED[case]
    save_losses(tmp_path, **options)
    going = [number for number in range(1, 7) if number not in left]
    assert numbers(prune(str(tmp_path), 1, dry_run=True).removed) == going
    for _ in range(2):
        prune(str(tmp_path), 1)
        assert sorted(int(path.stem[5:]) for path in tmp_path.glob("*.index")) == left
    again = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(w=np.ones(3)), tmp_path, 1)
    assert again.restore_latest().path == str(tmp_path / "ckpt-6")
    again.save(metrics={"loss": 2.0})
    kept = {int(path.stem[5:]) for path in tmp_path.glob("*.index")}
    recorded = {"keep_best", "keep_every_n_steps"} & options.keys()
    assert kept >= {7, *(left[:-1] if recorded else [])}, "by any manager"


def test_a_state_file_without_times(tmp_path: Path) -> None:
    """As tf.train.Saver and tf.train.Checkpoint.save write it."""
    prefixes = [str(tmp_path / f"model-{number}") for number in (10, 9, 30)]
    for prefix in prefixes:
        ckptfmt.save(prefix, {"x": np.ones(3)})
    ckptfmt.tf.update_checkpoint_state(tmp_path, prefixes[-1], prefixes)
    before = contents(tmp_path)
    with pytest.raises(ckptfmt.InvalidError) as caught:
        prune(str(tmp_path), 1)
    assert caught.value.argument == "by_order" and contents(tmp_path) == before
    done = prune(str(tmp_path), 2, by_order=True)
    assert (done.removed, done.kept) == ([prefixes[0]], prefixes[1:])
    state = ckptfmt.tf.get_checkpoint_state(tmp_path)
    assert state is not None and not state.all_model_checkpoint_timestamps
    assert state.last_preserved_timestamp is None
    assert prune(str(tmp_path), 1, by_order=True).removed == [prefixes[1]]


def test_records_that_cannot_be_read(tmp_path: Path) -> None:
    """Nothing says what has to stay: nothing is removed."""
    save_losses(tmp_path, keep_best=ckptfmt.KeepBest("loss", "min"))
    records = tmp_path / "checkpoint.ckptfmt"
    for text in ("{", "", records.read_text().replace(": 1,", ': "1",'), "[]"):
        records.write_text(text)
        before = contents(tmp_path)
        with pytest.warns(ckptfmt.CkptfmtWarning), pytest.raises(ckptfmt.CorruptError):
            prune(str(tmp_path), 1)
        assert contents(tmp_path) == before


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("keep", [1, 5])
def test_a_damaged_checkpoint_is_not_the_best(tmp_path: Path, keep: int, scored: bool) -> None:
    """Neither an older one nor one among the newest."""
    best = ckptfmt.KeepBest("loss", "min") if scored else None
    for loss in [2.0, 9.0, 1.0, 8.0, 7.0, 6.0, 5.0]:
        save_losses(tmp_path, [loss], keep_best=best)
    data_file(tmp_path / "ckpt-3").unlink()
    done = prune(str(tmp_path), keep)
    assert 3 in numbers(done.damaged) and ckptfmt.verify(tmp_path / "ckpt-1").ok, "the next best"
    assert prune(str(tmp_path), keep).removed == []


def test_a_metric_that_says_nothing(tmp_path: Path) -> None:
    """Of equal values the latest is the extreme."""
    save_losses(tmp_path, [1.0] * 5)
    assert numbers(prune(str(tmp_path), 1).removed) == [1, 2, 3, 4]


def test_metrics_that_a_manager_cannot_compare(tmp_path: Path) -> None:
    """It does not say what is best; another manager did."""
    save_losses(tmp_path, [0.5], keep_best=ckptfmt.KeepBest("loss", "min"))
    for loss in (0.1, 0.7, 0.6):
        save_losses(tmp_path, [loss], 1)
    left = {int(path.stem[5:]) for path in tmp_path.glob("*.index")}
    assert left == {1, 2, 3, 4}


def test_options_of_numpy_and_a_later_save_of_the_best(tmp_path: Path) -> None:
    def manager(name: str = "ckpt", **options: Any) -> ckptfmt.CheckpointManager:
        checkpoint = ckptfmt.Checkpoint(w=np.ones(3))
        return ckptfmt.CheckpointManager(checkpoint, tmp_path, 2, checkpoint_name=name, **options)

    best = ckptfmt.KeepBest("loss", "min")
    options: dict[str, Any] = {"keep_best": best, "keep_every_n_steps": np.int64(50)}
    ours = manager(keep_checkpoint_every_n_hours=np.float32(1e6), **options)
    ours.save(1, metrics={"loss": 3})
    ours.save(50, metrics={"loss": 2})
    manager(**options).save(1, metrics={"loss": 0.1})
    ours.save(51, metrics={"loss": 5})
    assert ours.best_checkpoint == str(tmp_path / "ckpt-1")
    others = manager("other")
    for number in range(2, 6):
        others.save(number)
    prune(str(tmp_path), 1)
    left = {path.stem for path in tmp_path.glob("*.index")}
    assert left == {"ckpt-1", "ckpt-50", "other-5"}


def test_a_score_of_a_replaced_checkpoint_does_not_count(tmp_path: Path) -> None:
    """Another manager saves the best again, without metrics, while the first goes on."""

    def manager() -> ckptfmt.CheckpointManager:
        best = ckptfmt.KeepBest("loss", "min")
        checkpoint = ckptfmt.Checkpoint(w=np.random.default_rng().normal(size=3))
        return ckptfmt.CheckpointManager(checkpoint, tmp_path, 9, keep_best=best)

    ours = manager()
    ours.save(1, metrics={"loss": 1})
    manager().save(1)
    ours.save(2, metrics={"loss": 2})
    assert ours.best_checkpoint == str(tmp_path / "ckpt-2")


def test_a_best_one_that_was_edited_stays(tmp_path: Path) -> None:
    best = ckptfmt.KeepBest("loss", "min")
    save_losses(tmp_path, [1.0, 5.0, 4.0], keep_best=best)
    ckptfmt.editing.edit(tmp_path / "ckpt-1", tmp_path / "ckpt-1", metadata={"by": "me"})
    assert numbers(prune(str(tmp_path), 1).removed) == [2]
    save_losses(tmp_path, [6.0, 7.0], 1, keep_best=best)
    assert (tmp_path / "ckpt-1.index").exists() and (tmp_path / "ckpt-3.index").exists()
