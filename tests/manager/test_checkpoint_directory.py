# SPDX-License-Identifier: Apache-2.0
"""LocalFolder: what its operations change, and what they must never change."""

from __future__ import annotations

import errno
import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.manager import files
from support.process import open_files
from support.saving import on

import ckptfmt
from ckptfmt.errors import BusyError, InvalidError, StorageError
from ckptfmt.files.local_folder import LocalFolder
from ckptfmt.sharded.coordinator import SingleProcess


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LocalFolder]:
    (tmp_path / "d").mkdir()
    with LocalFolder(str(tmp_path / "d"), durability="none").opened() as opened:
        yield opened


def save(directory: LocalFolder, *names: str) -> None:
    for name in names:
        ckptfmt.save(os.path.join(directory.path, name), {"x": [1, 2]}, durability="none")


def remove(directory: LocalFolder, name: str) -> None:
    for error in directory.remove_all([name]).values():
        raise error


def touch(directory: LocalFolder, *names: str) -> list[str]:
    for name in names:
        Path(directory.path, name).write_bytes(b"another program's")
    return list(names)


@pytest.mark.parametrize("durability", ["full", "rename", "none"])
@pytest.mark.parametrize("kind", ["manager", "saver", "sharded"])
def test_a_new_directory_is_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, durability: str
) -> None:
    """A later durable save relies on the directories that an earlier one created."""
    synced: list[Path] = []
    sync = os.fsync

    def recorded(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        sync(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    options = ckptfmt.tf.CheckpointOptions(durability=durability)

    def make() -> None:
        if kind == "manager":
            place = tmp_path / "a" / "b"
            checkpoint = ckptfmt.Checkpoint(x=[1])
            ckptfmt.CheckpointManager(
                checkpoint, place, 1, options=ckptfmt.tf.CheckpointOptions(durability=durability)
            ).save()
        elif kind == "sharded":
            prefix, team = tmp_path / "a" / "b" / "ckpt", SingleProcess()
            ckptfmt.sharded.save(prefix, {"x": np.ones(1)}, {}, team, durability=durability)
        else:
            parts = {name: on(task, np.ones(1), name) for task, name in enumerate("xy")}
            ckptfmt.Saver({"all": parts}).save(tmp_path / "a" / "b" / "ckpt", options)

    make()
    expected = [] if durability == "none" else [tmp_path, tmp_path / "a"]
    assert sorted(path for path in synced if path in (tmp_path, tmp_path / "a")) == expected
    synced.clear()
    make()
    assert not {tmp_path, tmp_path / "a"}.intersection(synced)


# ---- removing ------------------------------------------------------------------------------------

OTHERS = [
    *("ckpt-1", "ckpt-1.index2", "ckpt-1.indexed", "ckpt-1.data", "ckpt-1.data-00000-of-00001x"),
    *("ckpt-1.data-000000-of-00001", "ckpt-1.data-0000-of-0001", "xckpt-1.index", "ckpt-1.meta"),
    *("ckpt-1.data-00000-of-00001.tempstate0123456789", "ckpt-1.index.tempstatea123456789abcdef"),
    *("ckpt-1.notes", "ckpt-11.index", "ckpt-1-a.index", "ckpt-1-a.data-00000-of-00001"),
    *("CKPT-1.index", "ckpt-1.INDEX", "checkpoint", "ckpt-01.index", "ckpt-?.index", "ckpt-*"),
]


def test_remove_takes_one_checkpoint_and_nothing_else(directory: LocalFolder) -> None:
    save(directory, "ckpt-1", "ckpt-10", "ckpt-2")
    others = touch(directory, *OTHERS)
    ours = ["ckpt-1.data-00003-of-00007", "ckpt-1.data-100000-of-100001", "ckpt-1.merge-intent"]
    touch(directory, *ours)
    (Path(directory.path) / "ckpt-1.data-00001-of-00002").mkdir()
    remove(directory, "ckpt-1")
    kept = [f"ckpt-{n}{end}" for n in (10, 2) for end in (".index", ".data-00000-of-00001")]
    assert files(Path(directory.path)) == sorted([*others, *kept, "ckpt-1.data-00001-of-00002"])
    remove(directory, "ckpt-1")
    remove(directory, "ckpt-3")
    assert ckptfmt.verify(os.path.join(directory.path, "ckpt-10")).ok


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../d/ckpt-1", "/ckpt-1", "a\0b", b"a", None]
)
def test_names_stay_in_the_directory(directory: LocalFolder, name: Any) -> None:
    operations: list[Callable[[], object]] = [
        lambda: directory.remove_all([name]),
        lambda: directory.write_state(name, b""),
        lambda: directory.read(name),
    ]
    for operation in operations:
        with pytest.raises(InvalidError, match=re.escape(f"{name!r} is not the name of a file")):
            operation()


def unlinked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that go, and the syncs between them, as it happens; in brackets the temporary
    ones."""
    calls: list[str] = []
    unlink, rename, sync = os.unlink, os.rename, os.fsync

    def gone(name: str, **more: Any) -> None:
        whole, temporary, _ = name.partition(".tempstate")
        calls.append(f"({whole})" if temporary else name)
        unlink(name, **more)

    def renamed(source: str, target: str, **more: Any) -> None:
        assert re.fullmatch(re.escape(source) + r"\.tempstate[a-f][0-9a-f]{15}", target)
        calls.append(source)
        rename(source, target, **more)

    monkeypatch.setattr(os, "unlink", gone)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("sync"), sync(fd))[1])
    return calls


def test_an_index_that_cannot_be_renamed(
    directory: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unlinked: one with a long name, a symbolic link."""
    where, long = Path(directory.path), "a" * 230 + "-1"
    save(directory, "b-1", "c-1")
    for end in (".index", ".data-00000-of-00001"):
        (where / f"b-1{end}").rename(where / f"{long}{end}")
    (where / "c-1.index").rename(where / "far")
    (where / "c-1.index").symlink_to("far")
    calls = unlinked(monkeypatch)
    assert directory.remove_all([long, "c-1"]) == {}
    assert f"({long}.index)" not in calls
    assert "(c-1.index)" not in calls
    assert files(where) == ["far"]


# ---- the directory -------------------------------------------------------------------------------


def test_a_directory_replaced_meanwhile(directory: LocalFolder, tmp_path: Path) -> None:
    """Another directory has taken its path: operations go to the one that was opened."""
    save(directory, "ckpt-1")
    os.rename(tmp_path / "d", tmp_path / "moved")
    (tmp_path / "trap").mkdir()
    (tmp_path / "d").symlink_to(tmp_path / "trap")
    ckptfmt.save(tmp_path / "trap" / "ckpt-1", {"x": [1]})
    ckptfmt.save(tmp_path / "trap" / "ckpt-2", {"x": [1]})
    (tmp_path / "trap" / "ckpt-2.index").unlink()
    before = files(tmp_path / "trap")
    directory.write_state("checkpoint", b"state")
    assert directory.exists("ckpt-1") and not directory.exists("ckpt-2")
    remove(directory, "ckpt-1")
    assert directory.sweep() == []
    assert files(tmp_path / "moved") == ["checkpoint"]
    assert files(tmp_path / "trap") == before


def test_what_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, number in ((tmp_path / "none", errno.ENOENT), (tmp_path / "file", errno.ENOTDIR)):
        with pytest.raises(StorageError, match="the directory cannot be opened") as caught:
            LocalFolder(str(path)).opened()
        assert caught.value.errno == number
    opened = LocalFolder(str(tmp_path)).opened()
    opened.close()
    opened.close()
    with pytest.raises(InvalidError):
        opened.names()


def test_descriptors_go_with_their_objects(tmp_path: Path) -> None:
    gc.collect()  # what other tests of this process left
    before = open_files()
    for _ in range(10):
        LocalFolder(str(tmp_path)).opened()
    gc.collect()
    assert open_files() == before


# ---- lock ----------------------------------------------------------------------------------------


def test_the_lock_excludes_others_and_can_be_nested(directory: LocalFolder) -> None:
    message = "another process or thread has held the directory's lock for 0 seconds"
    with LocalFolder(directory.path).opened() as other:
        with (
            directory.lock(),
            directory.lock(0),
            pytest.raises(BusyError, match=message),
            other.lock(0),
        ):
            pass
        with other.lock(0), pytest.raises(BusyError), directory.lock(0):
            pass


def test_unlocking_and_closing_raise_nothing_of_the_system(
    directory: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.close

    def close(fd: int) -> None:
        real(fd)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        with directory.lock():
            directory.write_state("checkpoint", b"state")
        LocalFolder(directory.path).opened().close()
        ckptfmt.tf.remove_checkpoint(os.path.join(directory.path, "ckpt-1"))
        ckptfmt.tf.update_checkpoint_state(directory.path, "ckpt-1")
    with directory.lock(0):
        pass


FORKING = """
import os, sys
from ckptfmt.files.local_folder import LocalFolder
from ckptfmt.files.temporary import TemporaryDirectory, make_file
place = LocalFolder(sys.argv[1]).opened()
temporary = TemporaryDirectory(os.path.join(sys.argv[1], "ckpt-1"))
temporary.make()
file = make_file("checkpoint", place._descriptor())
with place.lock():
    if os.fork() == 0:
        print("ready", flush=True)
        sys.stdin.read()
        os._exit(0)
    os.wait()
"""


def test_a_forked_child_does_not_keep_the_locks_of_its_parent(tmp_path: Path) -> None:
    """Killed, the parent leaves nothing locked, though the child lives on."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", FORKING, str(tmp_path)], stdin=pipe, stdout=pipe, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        assert len(files(tmp_path)) == 2
        parent.kill()
        parent.wait()
        with LocalFolder(str(tmp_path)).opened() as place, place.lock(0):
            place.sweep()
        assert files(tmp_path) == []


def test_commits_wait_for_the_lock(directory: LocalFolder) -> None:
    done = threading.Event()

    def work() -> None:
        save(directory, "ckpt-1")
        done.set()

    thread = threading.Thread(target=work)
    with directory.lock():
        thread.start()
        data = os.path.join(directory.path, "ckpt-1.data-00000-of-00001")
        while not os.path.exists(data):
            pass
        assert not done.is_set()
        assert not os.path.exists(os.path.join(directory.path, "ckpt-1.index"))
    thread.join()
    assert ckptfmt.verify(os.path.join(directory.path, "ckpt-1")).ok
