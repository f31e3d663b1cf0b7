# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt prune`, `clean`, `latest` and `digest`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from support.dict_client import DictClient, mount
from support.files import flip

import ckptfmt
from ckptfmt.files.local_folder import LocalFolder
from cli.commands import Command, data_file, small

URL = "dict://bucket/run"
LEFT = "run/m.data-00000-of-00002"


def run_of(directory: Path | str, count: int) -> ckptfmt.CheckpointManager:
    values = {"v": np.arange(1000.0)}
    manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(**values), directory, max_to_keep=10)
    for _ in range(count):
        manager.save()
    return manager


def names(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.index"))


def test_what_clean_cannot_remove(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a file of another user in a directory with the sticky bit."""
    left = tmp_path / f"ck.index.tempstatea{'0' * 15}"
    left.touch()
    sweep = LocalFolder.sweep
    with monkeypatch.context() as patch:
        look = lambda place, name, **_: sweep(place, name, dry_run=True)  # noqa: E731
        patch.setattr(LocalFolder, "sweep", look)
        ran = command("clean", tmp_path)
    assert ran.status == 2 and str(left) in ran.err and left.exists()
    ran = command("clean", tmp_path)
    assert ran.status == 0 and ran.out == f"{left}\n" and not left.exists()


# ---- clean of a store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> DictClient:
    """A checkpoint, a data file that is left, and one that is young."""
    client = mount(monkeypatch)
    ckptfmt.save(f"{URL}/m", {"w": np.ones(3)})
    for number in (2, 3):
        client.set(f"run/m.data-00000-of-{number:05d}", b"")
    client.times[LEFT] = 0.0
    return client


def test_clean_of_a_store(command: Command, store: DictClient) -> None:
    before = set(store.objects)
    for options in ([], ["-n"], ["--dry-run"], ["--remove"], []):
        ran = command("clean", "--older-than", "0.5", *options, URL)
        listed = [] if LEFT not in before else [f"dict://bucket/{LEFT}"]
        assert (ran.status, ran.out.splitlines(), ran.err) == (0, listed, "")
        if "--remove" in options:
            before.remove(LEFT)
        assert set(store.objects) == before
    assert ckptfmt.verify(f"{URL}/m").ok


@pytest.mark.parametrize("remove", [[], ["--remove"]])
def test_clean_of_a_store_beside_a_damaged_index(
    remove: list[str], command: Command, store: DictClient
) -> None:
    store.set("run/m.index", b"damaged")
    ran = command("clean", "--older-than", "0.5", *remove, URL)
    assert (ran.status, ran.out) == (2, "") and f"dict://bucket/{LEFT} stays: " in ran.err
    assert LEFT in store.objects


def test_clean_of_a_store_that_refuses(command: Command, store: DictClient) -> None:
    def before(method: str, key: str) -> None:
        if method == "remove":
            raise PermissionError(13, "denied")

    store.before = before
    ran = command("clean", "--older-than", "0.5", "--remove", URL)
    assert (ran.status, ran.out) == (2, "") and f"dict://bucket/{LEFT} stays: " in ran.err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ([URL], "--older-than HOURS"),
        (["--remove", URL], "--older-than HOURS"),
        (["--older-than", "0", URL], "--older-than"),
        (["--older-than", "-1", URL], "--older-than"),
        (["--older-than", "nan", URL], "--older-than"),
        (["--older-than", "1", "--remove", "-n", URL], "--remove"),
        (["--older-than", "1", "."], "--older-than"),
        (["--remove", "."], "--remove"),
    ],
)
def test_what_clean_refuses(
    arguments: list[str], option: str, command: Command, store: DictClient
) -> None:
    before = dict(store.objects)
    ran = command("clean", *arguments)
    assert (ran.status, ran.out) == (2, "") and option in ran.err
    assert store.objects == before


# ---- prune


def test_prune(command: Command, tmp_path: Path) -> None:
    run_of(tmp_path, 5)
    ckptfmt.save(tmp_path / "mine", {"w": np.ones(3)})
    before = sorted(tmp_path.iterdir())
    ran = command("prune", "--keep", 2, "--dry-run", tmp_path)
    removed = [str(tmp_path / f"ckpt-{number}") for number in (1, 2, 3)]
    assert (ran.status, ran.out.splitlines(), ran.err) == (0, removed, "")
    assert sorted(tmp_path.iterdir()) == before
    assert command("prune", "--keep", 2, tmp_path).out.splitlines() == removed
    assert names(tmp_path) == ["ckpt-4", "ckpt-5", "mine"]
    assert not list(tmp_path.glob("ckpt-1*"))
    state = ckptfmt.tf.get_checkpoint_state(tmp_path)
    assert state is not None
    assert list(state.all_model_checkpoint_paths) == [
        str(tmp_path / "ckpt-4"),
        str(tmp_path / "ckpt-5"),
    ]
    assert command("prune", "--keep", 2, tmp_path).out == ""
    assert run_of(tmp_path, 0).checkpoints == list(state.all_model_checkpoint_paths)


def test_prune_names_what_links_need(command: Command, tmp_path: Path) -> None:
    manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(w=np.ones(3)), tmp_path, max_to_keep=9)
    for _ in range(3):
        manager.save()
    (tmp_path / "best.index").symlink_to("ckpt-1.index")
    for options in (["--dry-run"], []):
        ran = command("prune", "--keep", 1, *options, tmp_path)
        assert (ran.status, ran.out) == (0, f"{tmp_path}/ckpt-2\n")
        assert ran.err == (
            f"ckptfmt: '{tmp_path}/ckpt-1' stays: the symbolic link '{tmp_path}/best.index' leads "
            "to one of its files\n"
        )


def test_prune_leaves_something_to_restore(command: Command, tmp_path: Path) -> None:
    run_of(tmp_path, 4)
    data_file(tmp_path / "ckpt-4").unlink()
    flip(data_file(tmp_path / "ckpt-3"), 4000)
    for options in (["--dry-run"], []):
        ran = command("prune", "--keep", 1, *options, tmp_path)
        assert (ran.status, ran.out) == (1, f"{tmp_path / 'ckpt-1'}\n")
        first, second = ran.err.splitlines()
        assert f"'{tmp_path / 'ckpt-3'}' is not sound, and stays: " in first
        assert "CHECKSUM" in first
        assert f"'{tmp_path / 'ckpt-4'}' is not sound, and stays: " in second
    assert names(tmp_path) == ["ckpt-2", "ckpt-3", "ckpt-4"]
    ran = command("prune", "--keep", 1, "--no-verify", tmp_path)
    assert (ran.status, ran.out) == (1, f"{tmp_path / 'ckpt-2'}\n"), "by sizes 3 is complete"
    (line,) = ran.err.splitlines()
    assert "ckpt-4' is not complete, and stays: " in line
    ran = command("prune", "--keep", 1, tmp_path)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.splitlines()[-1] == "ckptfmt: no checkpoint is sound: nothing is removed"
    assert names(tmp_path) == ["ckpt-3", "ckpt-4"]


def test_the_newest_of_the_state_file_stays(command: Command, tmp_path: Path) -> None:
    run_of(tmp_path, 3)
    state = tmp_path / "checkpoint"
    state.write_text(state.read_text().replace('path: "ckpt-3"', 'path: "ckpt-1"', 1))
    assert command("prune", "--keep", 1, tmp_path).out.splitlines() == [str(tmp_path / "ckpt-2")]
    assert ckptfmt.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-1")


def test_prune_a_url(command: Command) -> None:
    pytest.importorskip("obstore")
    run_of("memory://prune/run", 3)
    assert command("prune", "--keep", 2, "memory://prune/run").out == "memory://prune/run/ckpt-1\n"
    assert command("latest", "memory://prune/run").out == "memory://prune/run/ckpt-3\n"
    assert command("verify", "-r", "memory://prune/run").out.splitlines()[-1].startswith("2 ")


def test_prune_needs_a_sound_state_file(command: Command, tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "model", {"w": np.ones(3)})
    (tmp_path / "checkpoint").write_bytes(b"\xff")
    ran = command("prune", "--keep", 1, tmp_path)
    assert ran.status == 2 and names(tmp_path) == ["model"]
    assert all(line.startswith("ckptfmt: ") for line in ran.err.splitlines())
    assert "not UTF-8" in ran.err.splitlines()[0]


def test_prune_names_a_newest_without_an_index(command: Command, tmp_path: Path) -> None:
    run_of(tmp_path, 5)
    (tmp_path / "ckpt-5.index").unlink()
    ran = command("prune", "--keep", 2, tmp_path)
    assert ran.status == 0 and names(tmp_path) == ["ckpt-3", "ckpt-4"]
    assert "ckpt-5' is not complete" in ran.err


# ---- latest


def test_latest(command: Command, tmp_path: Path) -> None:
    run_of(tmp_path, 2)
    ran = command("latest", tmp_path)
    assert (ran.out, ran.err) == (f"{tmp_path / 'ckpt-2'}\n", "")
    (tmp_path / "ckpt-2.index").unlink()
    ran = command("latest", tmp_path)
    assert (ran.status, ran.out) == (0, f"{tmp_path / 'ckpt-1'}\n")
    assert ran.err.startswith("ckptfmt: ") and "ckpt-2" in ran.err


def test_latest_sound(command: Command, tmp_path: Path) -> None:
    run_of(tmp_path, 3)
    flip(data_file(tmp_path / "ckpt-3"), 4000)
    data_file(tmp_path / "ckpt-2").unlink()
    assert command("latest", tmp_path).out == f"{tmp_path / 'ckpt-3'}\n"
    ran = command("latest", "--verify", tmp_path)
    assert (ran.status, ran.out) == (0, f"{tmp_path / 'ckpt-1'}\n")
    first, second = ran.err.splitlines()
    assert "'" + str(tmp_path / "ckpt-3") + "' is not sound" in first and "CHECKSUM" in first
    assert "ckpt-2" in second
    flip(data_file(tmp_path / "ckpt-1"), 4000)
    ran = command("latest", "--verify", tmp_path)
    assert (ran.status, ran.out) == (2, "") and "no sound checkpoint" in ran.err


# ---- digest


def test_digest(command: Command, tmp_path: Path) -> None:
    arrays = {"w": np.arange(100.0), "b": np.ones(3, np.int8)}
    ckptfmt.save(tmp_path / "a", arrays)
    ckptfmt.save_v2(tmp_path / "b", list(arrays), ["", ""], list(arrays.values()))
    small(tmp_path)
    ran = command("digest", tmp_path / "a", tmp_path / "b", tmp_path / "small")
    assert ran.status == 0
    first, second, third = (line.split("  ") for line in ran.out.splitlines())
    assert first[0] == second[0] != third[0] and len(first[0]) == hashlib.sha256().digest_size * 2
    assert [first[1], second[1]] == [str(tmp_path / "a"), str(tmp_path / "b")]
    flip(data_file(tmp_path / "a"), 100)
    ran = command("digest", tmp_path / "a", tmp_path / "nothing", tmp_path / "b")
    assert (ran.status, ran.out.splitlines()) == (2, ["  ".join(second)])
    assert command("digest", tmp_path / "a").status == 1
