# SPDX-License-Identifier: Apache-2.0
"""Managers with `recycle`: the data files of removed checkpoints are written over, and nobody who
has one of them sees anything of it. What a lease proves, and when there is none, is tested in C."""

from __future__ import annotations

import copy
import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forking import in_child
from support.manager import files, there

import ckptfmt
from ckptfmt import spares as spares_module
from ckptfmt.bundle import writer as writing
from ckptfmt.errors import InvalidError, StorageError
from ckptfmt.manager.directory import CheckpointDirectory
from ckptfmt.manager.manager import CheckpointManager
from ckptfmt.saving import shards
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.spares import Spares

SMALLEST = 4096
SIZE = 100_000


@pytest.fixture(autouse=True)
def small_files_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares_module, "BYTES_MIN", SMALLEST)


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, small_files_count: None) -> None:
    """Skips where the file system of the tests has no leases that count."""
    path = tmp_path / "probe"
    path.write_bytes(bytes(SIZE))
    pool = Spares()
    pool.want([path.stat()])
    if not pool.keep(str(path), path.stat()):
        pytest.skip("no leases here")
    pool.clear()
    assert not path.exists()


class Model:
    """Saved by `Checkpoint` or by `ckptfmt.save`, as one or more data files."""

    def __init__(self, kind: str = "save", size: int = SIZE, **more: Any) -> None:
        self.kind, self.more, self.base = kind, more, ""
        self.value = np.zeros(size, np.uint8)
        self.save_counter = np.array(0)

    def write(self, prefix: str, options: CheckpointOptions | None = None) -> Any:
        assert options is not None
        tensors = {"v": self.value, "n": self.save_counter}
        if self.kind == "saver":
            return ckptfmt.Saver({None: tensors}).save(prefix, options)
        base = {"base": self.base} if self.base else {}
        ckptfmt.save(prefix, tensors, durability="none", spares=options.spares, **base, **self.more)
        options.after_write(prefix)
        return prefix

    def restore(self, path: str, options: CheckpointOptions | None = None) -> None:
        found = ckptfmt.load(path)
        self.value, self.save_counter = found["v"], found["n"]


def manager_of(model: Any, directory: Path, keep: int = 1, **more: Any) -> CheckpointManager:
    return CheckpointManager(model, directory, keep, durability="none", recycle=True, **more)


def data(directory: Path, name: str) -> Path:
    return directory / f"{name}.data-00000-of-00001"


def spare_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.tempstate*"))


def save(manager: CheckpointManager, **more: Any) -> str:
    """Saves random values."""
    model = manager.checkpoint
    model.value[...] = np.random.default_rng(int(model.save_counter)).integers(
        0, 256, model.value.shape, np.uint8
    )
    path: str = manager.save(**more)
    assert ckptfmt.verify(path).ok
    assert np.array_equal(ckptfmt.load(path)["v"], model.value)
    return path


@pytest.mark.parametrize("kind", ["save", "saver"])
def test_the_file_of_a_removed_checkpoint_becomes_that_of_the_next(
    tmp_path: Path, kind: str
) -> None:
    manager, usual = manager_of(Model(kind), tmp_path / "d"), tmp_path / "usual"
    save(manager)
    inodes = [data(tmp_path / "d", "ckpt-1").stat().st_ino]
    save(manager)
    (spare,) = spare_files(tmp_path / "d")
    assert spare.stat().st_ino == inodes[0]
    assert spare.name.startswith("ckpt-1.data-00000-of-00001.tempstate")
    inodes.append(data(tmp_path / "d", "ckpt-2").stat().st_ino)
    for number in range(3, 7):
        save(manager)
        assert data(tmp_path / "d", f"ckpt-{number}").stat().st_ino == inodes[(number - 1) % 2]
        assert len(spare_files(tmp_path / "d")) == 1
    # The same bytes as those of a save without anything to write over.
    other = CheckpointManager(manager.checkpoint, usual, 1, durability="none")
    other.save(6)
    for name in ("ckpt-6.data-00000-of-00001", "ckpt-6.index"):
        if kind == "saver":
            continue  # the counter went on
        assert (usual / name).stat().st_size == (tmp_path / "d" / name).stat().st_size
    assert there(tmp_path / "d") == ["ckpt-6"]


def test_copied_options_have_the_same_files() -> None:
    options = CheckpointOptions(spares=Spares())
    assert copy.deepcopy(options).spares is options.spares


def test_same_bytes(tmp_path: Path) -> None:
    one, two = manager_of(Model(), tmp_path / "a"), Model()
    other = CheckpointManager(two, tmp_path / "b", 1, durability="none")
    for size in (SIZE, SIZE, SIZE + 5000, SIZE // 3, SIZE):
        one.checkpoint.value = np.zeros(size, np.uint8)
        path = save(one)
        two.value = one.checkpoint.value
        other.save()
        for ending in (".index", ".data-00000-of-00001"):
            name = os.path.basename(path) + ending
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert len(spare_files(tmp_path / "a")) <= 1


@pytest.mark.parametrize("way", ["reader", "array", "mapped", "open", "process"])
def test_whoever_has_the_old_checkpoint_keeps_it(tmp_path: Path, way: str) -> None:
    manager = manager_of(Model(), tmp_path)
    path = save(manager)
    held = manager.checkpoint.value.copy()
    file = data(tmp_path, "ckpt-1")
    reader: Any = None
    if way == "reader":
        reader = ckptfmt.open(path)
    elif way == "array":
        with ckptfmt.open(path) as opened:
            array = opened["v"].map()
    elif way == "mapped":
        with open(file, "rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    elif way == "open":
        stream = open(file, "rb")  # noqa: SIM115 (held over the saves)
    else:
        program = "import sys; f = open(sys.argv[1], 'rb'); print(flush=True); input()"
        program += "; sys.stdout.buffer.write(f.read())"
        child = subprocess.Popen(
            [sys.executable, "-c", program, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
    before = file.read_bytes()
    save(manager)
    assert spare_files(tmp_path) == []
    save(manager)
    save(manager)
    if way == "reader":
        assert np.array_equal(reader["v"].read(), held)
        reader.close()
    elif way == "array":
        assert np.array_equal(array, held)
        del array
    elif way == "mapped":
        assert mapped[:] == before
        mapped.close()
    elif way == "open":
        assert stream.read() == before
        stream.close()
    else:
        assert child.communicate(b"\n")[0] == before
    # The later ones were nobody's.
    assert len(spare_files(tmp_path)) == 1


@pytest.mark.parametrize("moment", ["before", "between"])
def test_a_second_name_keeps_its_bytes(tmp_path: Path, moment: str) -> None:
    manager = manager_of(Model(), tmp_path / "d")
    save(manager)
    file, linked = data(tmp_path / "d", "ckpt-1"), tmp_path / "linked"
    before = file.read_bytes()
    if moment == "before":
        os.link(file, linked)
    save(manager)
    assert len(spare_files(tmp_path / "d")) == (moment == "between")
    if moment == "between":
        os.link(spare_files(tmp_path / "d")[0], linked)
    save(manager)
    save(manager)
    assert linked.read_bytes() == before


def test_opened_between(tmp_path: Path) -> None:
    manager = manager_of(Model(), tmp_path)
    save(manager)
    before = data(tmp_path, "ckpt-1").read_bytes()
    save(manager)
    with open(spare_files(tmp_path)[0], "rb") as stream:
        save(manager)
        save(manager)
        assert stream.read() == before
    assert len(spare_files(tmp_path)) == 1


def test_upon_a_base(tmp_path: Path) -> None:
    """Files that a later checkpoint has as well are never written over."""
    model = Model()
    manager = manager_of(model, tmp_path, 2)
    fixed = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)

    def write(prefix: str, options: CheckpointOptions) -> str:
        tensors = {"fixed": fixed, "v": model.value, "n": model.save_counter}
        base = {"base": manager.latest_checkpoint} if manager.latest_checkpoint else {}
        ckptfmt.save(prefix, tensors, durability="none", spares=options.spares, **base)
        options.after_write(prefix)
        return prefix

    model.write = write  # type: ignore[method-assign, assignment]
    inodes: list[int] = []
    again = 0
    for _ in range(8):
        path = save(manager)
        assert np.array_equal(ckptfmt.load(path)["fixed"], fixed)
        for kept in manager.checkpoints:
            assert ckptfmt.verify(kept).ok
        again += any(one.stat().st_ino in inodes for one in spare_files(tmp_path))
        inodes += [one.stat().st_ino for one in tmp_path.glob("*.data-*")]
    assert again


@pytest.mark.parametrize("more", [{"compression": "zstd"}, {"level": "v2"}])
def test_levels(tmp_path: Path, more: dict[str, str]) -> None:
    manager = manager_of(Model(**more), tmp_path)
    for _ in range(4):
        save(manager)
    assert len(spare_files(tmp_path)) == 1


def test_several_data_files(tmp_path: Path) -> None:
    arrays = {f"v{i}": np.zeros(SIZE, np.uint8) for i in range(4)}
    manager = manager_of(ckptfmt.Checkpoint(**arrays), tmp_path, 2)
    options = CheckpointOptions(
        sharding_callback=ckptfmt.MaxShardSizePolicy(SIZE + 1000), durability="none"
    )
    used: set[int] = set()
    for number in range(6):
        for array in arrays.values():
            array[...] = number
        path = manager.save(options=options)
        assert ckptfmt.verify(path).ok
        old = [one.stat().st_ino for one in tmp_path.glob(f"ckpt-{number + 1}.data-*")]
        assert (len(used & set(old)) >= 4) == (number >= 3)
        used |= {one.stat().st_ino for one in spare_files(tmp_path)}
        assert len(spare_files(tmp_path)) == (4 if number >= 2 else 0)


def test_the_disk_holds_one_checkpoint_more(tmp_path: Path) -> None:
    """Also where several go at once, larger ones than the newest among them."""
    model = Model()
    manager = manager_of(model, tmp_path, 4)
    for size in (4 * SIZE, SIZE, 2 * SIZE, 3 * SIZE):
        model.value = np.zeros(size, np.uint8)
        save(manager)
    model.value = np.zeros(SIZE, np.uint8)
    one = CheckpointManager(model, tmp_path, 1, durability="none", recycle=True)
    save(one)
    newest = data(tmp_path, "ckpt-5").stat().st_size
    (spare,) = spare_files(tmp_path)
    assert spare.stat().st_size <= newest
    # Nothing is kept for files that are not worth it, nor of such.
    model.value = np.zeros(10, np.uint8)
    save(one)
    assert spare_files(tmp_path) == []
    model.value = np.zeros(SIZE, np.uint8)
    save(one)
    assert spare_files(tmp_path) == []


def test_usual_sizes_are_not_worth_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    manager = manager_of(Model(), tmp_path)
    for _ in range(3):
        save(manager)
    assert spare_files(tmp_path) == []


def test_without_it_nothing_is_kept(tmp_path: Path) -> None:
    manager = CheckpointManager(Model(), tmp_path, 1, durability="none")
    save(manager)
    save(manager)
    assert files(tmp_path) == ["checkpoint", "ckpt-2.data-00000-of-00001", "ckpt-2.index"]
    with pytest.raises(InvalidError, match="recycle"):
        CheckpointManager(Model(), tmp_path, 1, recycle=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="spares"):
        ckptfmt.save(tmp_path / "x", {"v": [1]}, spares=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="spares"):
        CheckpointOptions(spares=1)  # type: ignore[arg-type]


def test_a_file_of_other_rights_is_not_written_over(tmp_path: Path) -> None:
    manager = manager_of(Model(), tmp_path)
    save(manager)
    data(tmp_path, "ckpt-1").chmod(0o600)
    save(manager)
    assert spare_files(tmp_path) == []
    assert not data(tmp_path, "ckpt-1").exists()


def test_a_file_of_which_somebody_noted_something_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(Model(), tmp_path)
    save(manager)
    with monkeypatch.context() as here:
        try:
            os.setxattr(data(tmp_path, "ckpt-1"), "user.archived", b"yes")
        except OSError:  # a file system that has none: as if it had
            here.setattr(os, "listxattr", lambda *_, **__: ["user.archived"])
        save(manager)
    assert spare_files(tmp_path) == []
    assert not data(tmp_path, "ckpt-1").exists()
    save(manager)
    assert len(spare_files(tmp_path)) == 1


def test_two_managers(tmp_path: Path) -> None:
    """Another one neither removes nor uses what this one keeps."""
    manager = manager_of(Model(), tmp_path)
    save(manager)
    save(manager)
    (spare,) = spare_files(tmp_path)
    inode = spare.stat().st_ino
    other = manager_of(Model(), tmp_path, 3)
    other.checkpoint.save_counter[...] = 100
    with CheckpointDirectory(tmp_path) as directory:
        assert directory.sweep() == []
    save(other)
    assert spare_files(tmp_path) == [spare]
    assert data(tmp_path, "ckpt-101").stat().st_ino != inode
    save(manager)
    assert data(tmp_path, "ckpt-3").stat().st_ino == inode


def test_they_go_with_the_manager(tmp_path: Path) -> None:
    manager = manager_of(Model(), tmp_path)
    save(manager)
    save(manager)
    assert len(spare_files(tmp_path)) == 1
    del manager
    gc.collect()
    assert spare_files(tmp_path) == []


PROGRAM = """
import ctypes, os, signal, sys, numpy as np, ckptfmt
from ckptfmt import spares
spares.BYTES_MIN = 4096
arrays = ckptfmt.Checkpoint(v=np.zeros(100000, np.uint8))
manager = ckptfmt.CheckpointManager(arrays, sys.argv[1], 1, recycle=True)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(manager))  # nobody collects it
background = ckptfmt.CheckpointOptions(enable_async=sys.argv[2] == "async")
for _ in range(3):
    manager.save(options=background)
manager.sync()
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "error":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("way", ["exit", "async", "error", "kill"])
def test_they_go_with_the_process(tmp_path: Path, way: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path, way], check=False)
    assert done.returncode == {"exit": 0, "async": 0, "error": 3, "kill": -9}[way]
    assert len(spare_files(tmp_path)) == (way == "kill")
    manager_of(Model(), tmp_path)
    assert spare_files(tmp_path) == []
    assert there(tmp_path) == ["ckpt-3"]


AT_EXIT = """
import atexit, ctypes, sys
atexit.register(lambda: manager.save())
import numpy as np, ckptfmt
from ckptfmt import spares
spares.BYTES_MIN = 4096
arrays = ckptfmt.Checkpoint(v=np.zeros(100000, np.uint8))
manager = ckptfmt.CheckpointManager(arrays, sys.argv[1], 1, recycle=True, durability="none")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(manager))  # nobody collects it
manager.save()
"""


def test_they_go_with_a_process_that_saves_as_it_exits(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", AT_EXIT, tmp_path], check=True)
    assert spare_files(tmp_path) == []
    assert there(tmp_path) == ["ckpt-2"]


def test_a_failed_save_gives_the_disk_back(tmp_path: Path) -> None:
    manager = manager_of(Model(), tmp_path)
    save(manager)
    save(manager)

    def fail(*_: object, **_more: object) -> None:
        raise StorageError("no space")

    with pytest.raises(StorageError, match="no space"):
        manager.save(options=CheckpointOptions(write_callbacks=[fail], durability="none"))
    assert spare_files(tmp_path) == []
    save(manager)
    assert len(spare_files(tmp_path)) == 1
    write, manager.checkpoint.write = manager.checkpoint.write, fail
    with pytest.raises(StorageError, match="no space"):
        manager.save()
    assert spare_files(tmp_path) == []
    manager.checkpoint.write = write
    save(manager)
    assert np.array_equal(ckptfmt.load(manager.latest_checkpoint)["v"], manager.checkpoint.value)


def test_a_forked_child_has_none(tmp_path: Path) -> None:
    manager = manager_of(Model(), tmp_path)
    save(manager)
    save(manager)
    (spare,) = spare_files(tmp_path)
    inode = spare.stat().st_ino

    def work() -> None:
        assert [one for one in os.listdir("/proc/self/fd") if _leads_to(one, spare)] == []
        manager.checkpoint.save_counter[...] = 50
        path = save(manager)
        assert data(tmp_path, os.path.basename(path)).stat().st_ino != inode
        del path
        gc.collect()
        assert spare.exists()

    assert in_child(work) == 0
    assert spare.stat().st_ino == inode
    # Whoever waits for the parent to end is not kept waiting by a child.
    save(manager)
    assert data(tmp_path, "ckpt-3").stat().st_ino == inode


def _leads_to(descriptor: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    except OSError:
        return False


def test_in_the_background(tmp_path: Path) -> None:
    value = np.zeros(SIZE, np.uint8)
    manager = manager_of(ckptfmt.Checkpoint(v=value), tmp_path, 2)
    options = CheckpointOptions(enable_async=True, durability="none")
    inodes = set()
    again = 0
    for number in range(8):
        value[...] = number
        path = manager.save(options=options).result()
        found = ckptfmt.Checkpoint(v=np.zeros(SIZE, np.uint8))
        found.restore(path)
        assert (found.v == number).all()
        del found
        inode = data(tmp_path, os.path.basename(path)).stat().st_ino
        again += inode in inodes
        inodes |= {one.stat().st_ino for one in spare_files(tmp_path)}
    assert again >= 4


def test_no_room_is_made_for_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stand beside the one that is written over, and go unused."""
    seen: list[int] = []
    recycle = writing.Writer._recycle

    def watch(self: Any, spare: Any) -> None:
        if spare is not None:
            blocks = [one.stat().st_blocks for one in spare_files(tmp_path) if "ckpt-3" in one.name]
            seen.extend(blocks)
        recycle(self, spare)

    monkeypatch.setattr(writing.Writer, "_recycle", watch)
    manager = manager_of(Model(size=32 * SIZE), tmp_path)
    for _ in range(3):
        save(manager)
    assert seen == [0]


def test_nothing_is_kept_that_no_save_takes(tmp_path: Path) -> None:
    class Ignores(Model):
        def write(self, prefix: str, options: CheckpointOptions | None = None) -> Any:
            assert options is not None
            ckptfmt.save(prefix, {"v": self.value, "n": self.save_counter}, durability="none")
            options.after_write(prefix)
            return prefix

    manager = manager_of(Ignores(), tmp_path)
    for number in range(1, 6):
        save(manager)
        assert len(spare_files(tmp_path)) == (1 if number == 2 else 0)


def test_a_save_of_fewer_files_takes_some(tmp_path: Path) -> None:
    """What it leaves goes, but the saves after it use files again."""

    class Parts(Model):
        count = 3

        def write(self, prefix: str, options: CheckpointOptions | None = None) -> Any:
            tensors = {f"v{i}": np.full(SIZE, i, np.uint8) for i in range(self.count)}
            return ckptfmt.Saver({None: tensors}).save(prefix, options)

    manager = manager_of(Parts(), tmp_path)
    policy = ckptfmt.MaxShardSizePolicy(SIZE + 1000)
    options = CheckpointOptions(sharding_callback=policy, durability="none")
    kept = []
    for manager.checkpoint.count in (3, 3, 2, 2, 2):
        assert ckptfmt.verify(manager.save(options=options)).ok
        kept.append(len(spare_files(tmp_path)))
    assert kept == [0, 3, 2, 2, 2]


def test_a_record_that_fails_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the manager itself does what callbacks do: its names may not be on the device."""

    class NoCallbacks(Model):
        def write(self, prefix: str, options: CheckpointOptions | None = None) -> Any:
            assert options is not None
            tensors = {"v": self.value, "n": self.save_counter}
            ckptfmt.save(prefix, tensors, durability="none", spares=options.spares)
            return prefix

    manager = manager_of(NoCallbacks(), tmp_path)
    save(manager)
    save(manager)
    assert len(spare_files(tmp_path)) == 1

    remove_all = CheckpointDirectory.remove_all

    def fail(self: CheckpointDirectory, *arguments: Any) -> None:
        remove_all(self, *arguments)
        assert len(spare_files(tmp_path)) == 1
        raise StorageError("sync failed", path=str(tmp_path))

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointDirectory, "remove_all", fail)
        with pytest.raises(StorageError):
            manager.save()
    assert spare_files(tmp_path) == []


def test_a_power_cut_finds_no_old_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With durability "full" the names are on the device before anything is written."""
    seen: list[list[str]] = []
    sync = CheckpointDirectory.sync

    def watch(self: CheckpointDirectory) -> None:
        seen.append(files(tmp_path))
        sync(self)

    manager = CheckpointManager(Model(), tmp_path, 1, recycle=True)
    save(manager)
    monkeypatch.setattr(CheckpointDirectory, "sync", watch)
    save(manager)
    assert len(seen) == 2
    assert "ckpt-1.index" not in seen[0] and "ckpt-1.data-00000-of-00001" in seen[0]
    assert "ckpt-1.data-00000-of-00001" not in seen[1] and spare_files(tmp_path)[0].name in seen[1]


@pytest.mark.parametrize("durability", ["full", "rename", "none"])
@pytest.mark.parametrize("size", [SMALLEST - 1, SMALLEST])
def test_large_shards_are_synced_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, size: int
) -> None:
    """Past the page cache, that is, and not by the merge."""
    asked: list[str] = []
    write = writing.write_sources

    def watch(*arguments: Any, **options: Any) -> None:
        asked.append(options["durability"])
        write(*arguments, **options)

    monkeypatch.setattr(shards, "BYTES_MIN", SMALLEST)
    monkeypatch.setattr(writing, "write_sources", watch)
    saver = ckptfmt.Saver({None: {"v": np.zeros(size, np.uint8)}})
    saver.save(tmp_path / "ck", CheckpointOptions(durability=durability))
    synced = durability == "full" and size == SMALLEST
    assert asked == ["full" if synced else "none" if durability == "none" else "rename"]
