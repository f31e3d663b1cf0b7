# SPDX-License-Identifier: Apache-2.0
"""LocalFolder.sweep: what killed writers left goes, and nothing of those that live, nor of
anybody else (CMT-15)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.child import Forked
from support.manager import files

import ckptfmt
from ckptfmt import _core
from ckptfmt.cli import main
from ckptfmt.errors import BusyError
from ckptfmt.files import orphans
from ckptfmt.files.local_folder import LocalFolder
from ckptfmt.files.temporary import LOCK_NAME, TemporaryDirectory

HEX = "a123456789abcdef"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LocalFolder]:
    with LocalFolder(str(tmp_path), durability="none").opened() as opened:
        yield opened


def touch(directory: LocalFolder, *names: str) -> None:
    for name in names:
        Path(directory.path, name).touch()


def record(directory: LocalFolder) -> None:
    """A state file younger than all that is there."""
    newest = max((os.stat(path).st_ctime_ns for path in Path(directory.path).iterdir()), default=0)
    while True:
        directory.write_state("checkpoint", b"")
        if os.stat(os.path.join(directory.path, "checkpoint")).st_ctime_ns > newest:
            return


def save(directory: LocalFolder, name: str) -> None:
    ckptfmt.save(os.path.join(directory.path, name), {"x": [1]}, durability="none")


def leave(directory: LocalFolder, *names: str) -> list[str]:
    """What writers that were killed before their commit leave of these checkpoints."""
    left = []
    for name in names:
        save(directory, name)
        path = Path(directory.path, f"{name}.index")
        path.rename(f"{path}.tempstate{HEX}")
        left += [f"{name}.data-00000-of-00001", f"{name}.index.tempstate{HEX}"]
    return left


# ---- by name -------------------------------------------------------------------------------------

OURS = [
    f"ckpt-1.index.tempstate{HEX}",
    f"ckpt-1.data-00000-of-00001.tempstate{HEX}",
    f"ckpt-12.merge-intent.tempstate{HEX}",
    "ckpt-5-embedding.claim",
    f"checkpoint.tempstate{HEX}",
    f"checkpoint.ckptfmt.tempstate{HEX}",
]
OTHERS = [
    # TensorFlow's, and temporary names that no program gives.
    *("ckpt-6.index.tempstate1234567890123456", "ckpt-7.data-00000-of-00001.tempstate123"),
    *(f"ckpt-8.tempstate{HEX}", f"ckpt-8.index.tempstate{HEX}0", "ckpt-8.index.tempstateA"),
    *(f"ckpt-8.index.tempstate{HEX.upper()}", "ckpt-8.index.tempstate0123456789abcdef"),
    *("checkpoint.tmp0123456789abcdef0123456789abcdef", f"checkpoint2.tempstate{HEX}"),
    # Of other checkpoints than the manager's.
    *("model-3.data-00000-of-00001", f"model-3.index.tempstate{HEX}", "ckpt.data-00000-of-00001"),
    *("ckpt-a.data-00000-of-00001", "ckpt-03.data-00000-of-00001", "xckpt-3.data-00000-of-00001"),
    *("ckpt-3a.data-00000-of-00001", f"ckpt-b-3.data-00000-of-00001.tempstate{HEX}"),
    # Of an unknown program.
    *("ckpt-9.data-00000-of-00001", "ckpt-10.data-00001-of-00002", "ckpt-9.merge-intent"),
    # Not as writers name data files.
    *("ckpt-3.data-00002-of-00002", "ckpt-3.data-0000-of-0001", "ckpt-3.data-00000-of-00001.txt"),
    *("ckpt-3.notes", "ckpt-3", "ckpt-3.claim", "ckpt-3x.claim", "notes", ".merge-intent"),
]


def test_names(directory: LocalFolder) -> None:
    ours = [*OURS, *leave(directory, "ckpt-3", "ckpt--4"), "ckpt--4.merge-intent"]
    leave(directory, "model-4", "ckpt-04")
    others = [name for name in files(Path(directory.path)) if name not in ours]
    touch(directory, *OURS, *OTHERS, "ckpt--4.merge-intent")
    record(directory)
    assert sorted(directory.sweep()) == sorted(ours)
    assert files(Path(directory.path)) == sorted([*OTHERS, *others, "checkpoint"])
    assert directory.sweep() == []


def test_other_checkpoint_names(directory: LocalFolder) -> None:
    left = [leave(directory, name) for name in ("a*-3", "ab-3")]
    assert directory.sweep("a*") == left[0]
    assert directory.sweep("ab") == left[1]


def test_whole_checkpoints_stay(directory: LocalFolder) -> None:
    save(directory, "ckpt-1")
    touch(directory, "ckpt-1.merge-intent", f"ckpt-1.index.tempstate{HEX}")
    record(directory)
    assert directory.sweep() == [f"ckpt-1.index.tempstate{HEX}"]
    assert ckptfmt.verify(os.path.join(directory.path, "ckpt-1")).ok
    assert "ckpt-1.merge-intent" in files(Path(directory.path))


def test_generations_that_no_index_names(directory: LocalFolder, tmp_path: Path) -> None:
    """Those go that an index under a temporary name names, if that is not the one in force."""
    for name in ("ckpt-1", "ckpt-2", "ckpt-3"):
        ckptfmt.save(tmp_path / "far" / name, {"x": [1]}, durability="none")
        for _ in range(2):
            save(directory, name)
        data = f"{name}.data-00000-of-00001"
        (tmp_path / "far" / data).rename(tmp_path / data)
        index = tmp_path / "far" / f"{name}.index"
        index.rename(tmp_path / f"{name}.index.tempstate{HEX}")
    touch(directory, "ckpt-1.data-00002-of-00003")
    (tmp_path / "ckpt-2.index").write_bytes(b"damaged")
    (tmp_path / f"ckpt-3.index.tempstate{HEX}").unlink()
    before = files(tmp_path)
    gone = ["ckpt-1.data-00000-of-00001", f"ckpt-1.index.tempstate{HEX}"]
    assert directory.sweep() == gone
    assert files(tmp_path) == [name for name in before if name not in gone]
    assert ckptfmt.verify(tmp_path / "ckpt-1").ok
    assert directory.sweep() == []


def test_an_index_that_has_two_names(directory: LocalFolder, tmp_path: Path) -> None:
    """A writer was killed just before it replaced it, and then the user moves it away."""
    save(directory, "ckpt-1")
    index, temporary = tmp_path / "ckpt-1.index", f"ckpt-1.index.tempstate{HEX}"
    (tmp_path / temporary).hardlink_to(index)
    index.rename(tmp_path / "away")
    assert directory.sweep() == []
    (tmp_path / "away").rename(index)
    assert directory.sweep() == [temporary]
    assert ckptfmt.verify(tmp_path / "ckpt-1").ok


def test_what_was_changed_since_stays(directory: LocalFolder, tmp_path: Path) -> None:
    """Another program's file has taken the name of an orphaned one."""
    data, temporary = leave(directory, "ckpt-1")
    since = os.stat(tmp_path / temporary).st_mtime_ns
    os.utime(tmp_path / data, ns=(since + 1, since + 1))
    assert directory.sweep() == [temporary]
    assert files(tmp_path) == [data]


@pytest.mark.parametrize(
    "sign", ["ckpt-1_temp", "ckpt-1.index.tempstate77", f"ckpt-1.index.tempstate{10**19}"]
)
def test_what_tensorflow_may_be_writing_stays(directory: LocalFolder, sign: str) -> None:
    leave(directory, "ckpt-1")
    data = leave(directory, "ckpt-2")
    if sign.endswith("_temp"):
        Path(directory.path, sign).mkdir()
    else:
        touch(directory, sign)
    record(directory)
    assert directory.sweep() == data


def test_what_is_no_file_stays(directory: LocalFolder, tmp_path: Path) -> None:
    far = tmp_path / "far"
    far.mkdir()
    (tmp_path / "ckpt-1.data-00000-of-00001").symlink_to(far)
    (tmp_path / "ckpt-2.data-00000-of-00001").mkdir()
    os.mkfifo(tmp_path / "ckpt-3.data-00000-of-00001")
    (tmp_path / f"ckpt-4_temp_{HEX}").symlink_to(far)
    (tmp_path / f"ckpt-5_temp_{HEX}").touch()
    record(directory)
    before = files(tmp_path)
    assert directory.sweep() == []
    assert files(tmp_path) == before


def test_one_file_that_is_locked_keeps_all_of_its_checkpoint(
    directory: LocalFolder,
) -> None:
    names = leave(directory, "ckpt-1")
    other = leave(directory, "ckpt-2")
    for name in names:
        with open(os.path.join(directory.path, name)) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)
            assert directory.sweep() in (other, [])
            assert set(names) <= set(files(Path(directory.path)))
    assert sorted(directory.sweep()) == sorted(names)


# ---- temporary directories -----------------------------------------------------------------------


def part_files(path: Path) -> None:
    ckptfmt.save(path / "part-00000-of-00002", {"x": [1]}, durability="none")
    (path / f"part-00001-of-00002.index.tempstate{HEX}").touch()
    (path / "part-00001-of-00002.merge-intent").touch()


def test_temporary_directories(directory: LocalFolder, tmp_path: Path) -> None:
    alive, dead = TemporaryDirectory(str(tmp_path / "ckpt-1")), tmp_path / f"ckpt-2_temp_{HEX}"
    alive.make()
    for path in (Path(alive.path), dead):
        part_files(path)
    (dead / LOCK_NAME).touch()
    empty, unowned = (tmp_path / f"ckpt-{n}_temp_{HEX}" for n in (3, 4))
    names = ("notes", "part-00000-of-00003", "x.index", "xpart-00000-of-00003.index")
    strange = {tmp_path / f"ckpt-{n}_temp_{HEX}": name for n, name in enumerate(names, 7)}
    for path in (*strange, empty, unowned, tmp_path / "ckpt-6_temp", tmp_path / f"x-7_temp_{HEX}"):
        path.mkdir()
    part_files(unowned)
    for path, name in strange.items():
        part_files(path)
        (path / LOCK_NAME).touch()
        (path / name).touch()
    before = list(map(files, strange))
    gone = [dead.name, empty.name]
    assert sorted(directory.sweep()) == gone
    assert sorted(set(gone) & set(files(tmp_path))) == []
    assert list(map(files, strange)) == before
    assert len(files(unowned)) == 4
    assert len(files(Path(alive.path))) == 5
    alive.remove()
    assert not os.path.exists(alive.path)


def test_a_removal_that_was_interrupted_lets_go(
    directory: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Ctrl-C left goes with the next look, not only with the process."""
    temporary = TemporaryDirectory(str(tmp_path / "ckpt-1"))
    temporary.make()

    def interrupt(_path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "unlink", interrupt)
        temporary.remove()
    name = os.path.basename(temporary.path)
    assert os.listdir(tmp_path) == [name]
    assert directory.sweep() == [name]


def test_the_last_process_that_leaves_removes_the_directory(
    directory: LocalFolder, tmp_path: Path
) -> None:
    first = TemporaryDirectory(str(tmp_path / "ckpt-1"))
    second = TemporaryDirectory(str(tmp_path / "ckpt-1"), first.token)
    first.make()
    second.make()
    part_files(Path(first.path))
    before = files(Path(first.path))
    first.leave()
    assert directory.sweep() == []
    assert files(Path(first.path)) == before
    second.leave()
    assert not os.path.exists(first.path)


@pytest.mark.parametrize("why", ["no locks", "own locks only"])
def test_where_locks_show_nothing_the_creator_removes_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Whether others still write there or not; the others never remove it."""

    def refuse(_fd: int, _kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if why == "no locks":
        monkeypatch.setattr(fcntl, "flock", refuse)
    else:
        monkeypatch.setattr(_core, "is_local", lambda _fd: False)
    creator = TemporaryDirectory(str(tmp_path / "ckpt-1"))
    others = [TemporaryDirectory(str(tmp_path / "ckpt-1"), creator.token) for _ in range(2)]
    for one in (creator, *others):
        one.make()
    part_files(Path(creator.path))
    before = files(Path(creator.path))
    creator.release()
    others[0].leave()
    assert files(Path(creator.path)) == before
    creator.leave()
    assert files(tmp_path) == []


def test_a_process_never_changes_the_name_that_process_0_has_drawn(tmp_path: Path) -> None:
    first = TemporaryDirectory(str(tmp_path / "ckpt-1"))
    late = TemporaryDirectory(str(tmp_path / "ckpt-1"), first.token)
    first.make()
    first.release()
    with open(os.path.join(first.path, LOCK_NAME)) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # as a sweep does
        with pytest.raises(BusyError) as caught:
            late.make()
    assert caught.value.failure == "PEERS_MISSING"
    assert late.path == first.path
    assert files(tmp_path) == [os.path.basename(first.path)]


def test_a_process_that_comes_while_its_directory_is_removed(
    directory: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes the lock again, so that what it leaves can be swept."""
    first = TemporaryDirectory(str(tmp_path / "ckpt-1"))
    late = TemporaryDirectory(str(tmp_path / "ckpt-1"), first.token)
    first.make()
    rmdir, name = os.rmdir, os.path.basename(first.path)

    def come(path: str, **more: int) -> None:
        monkeypatch.undo()
        late.make()
        part_files(Path(late.path))
        rmdir(path, **more)

    monkeypatch.setattr(os, "rmdir", come)
    first.leave()
    assert late.path == first.path
    assert directory.sweep() == []
    late.release()
    assert directory.sweep() == [name]
    assert files(tmp_path) == []


def test_a_file_that_cannot_be_removed_keeps_the_lock(
    directory: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = TemporaryDirectory(str(tmp_path / "ckpt-1"))
    temporary.make()
    part_files(Path(temporary.path))
    unlink = os.unlink

    def refuse(path: str) -> None:
        if path.endswith("-intent"):
            raise PermissionError(errno.EACCES, "no")
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        temporary.remove()
    assert files(Path(temporary.path)) == ["part-00001-of-00002.merge-intent", LOCK_NAME]
    assert directory.sweep() == [os.path.basename(temporary.path)]


def test_a_part_that_is_being_written_keeps_its_directory(
    directory: LocalFolder, tmp_path: Path
) -> None:
    """Process 0 is dead, and another one of the save is not yet."""
    path = tmp_path / f"ckpt-1_temp_{HEX}"
    path.mkdir()
    (path / LOCK_NAME).touch()
    with ckptfmt.Writer(path / "part-00000-of-00001", durability="none") as writer:
        writer.add("x", [1])
        assert directory.sweep() == []
    assert directory.sweep() == [path.name]


# ---- writers -------------------------------------------------------------------------------------

SAVE = """
import sys, ckptfmt
sys.stdin.readline()
ckptfmt.save(sys.argv[1], {"x": [7]}, durability="none")
"""
SAVER = """
import sys, numpy, ckptfmt
from ckptfmt import _core
def wait(*given, **options):
    print("parts", flush=True)
    sys.stdin.readline()
    real(*given, **options)
real, _core.merge = _core.merge, wait
if sys.argv[2] == "saver":
    parts = {"x": numpy.array([7]), "y": numpy.array([8])}
    device = "/job:worker/task:%d/device:CPU:0"
    specs = {
        name: ckptfmt.SaveSpec(array, "", name, array.dtype, device % task)
        for task, (name, array) in enumerate(parts.items())
    }
    ckptfmt.Saver({"all": specs}).save(sys.argv[1])
else:
    ckptfmt.sharded.save(sys.argv[1], {"x": numpy.array([7])}, {}, ckptfmt.sharded.SingleProcess())
"""


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_a_commit_that_waits(
    directory: LocalFolder, tmp_path: Path, old: bool, killed: bool
) -> None:
    """Its data files have their final names, and no index names them yet."""
    if old:
        save(directory, "ckpt-1")
    before = files(tmp_path)
    with Forked.program(SAVE, tmp_path / "ckpt-1") as child:
        with directory.lock():
            child.go_on()
            named = (
                ["ckpt-1.data-00000-of-00002", "ckpt-1.data-00001-of-00002"]
                if old
                else ["ckpt-1.data-00000-of-00001"]
            )
            while [
                name for name in files(tmp_path) if ".data-" in name and name not in before
            ] != named:
                pass  # a link has both names before it loses the old one
            record(directory)
            new = [name for name in files(tmp_path) if name not in (*before, "checkpoint")]
            assert [name for name in new if ".temp" not in name] == named
            assert directory.sweep() == []
            if killed:
                child.kill()
                assert sorted(directory.sweep()) == new
                assert files(tmp_path) == sorted([*before, "checkpoint"])
        if not killed:
            assert child.end() == 0
    if old or not killed:
        assert ckptfmt.load(tmp_path / "ckpt-1")["x"] == [1 if killed else 7]
    assert directory.sweep() == []


@pytest.mark.parametrize("kind", ["saver", "sharded"])
def test_the_directory_of_a_save(directory: LocalFolder, tmp_path: Path, kind: str) -> None:
    for killed in (True, False):
        with Forked.program(SAVER, tmp_path / "ckpt-1", kind) as child:
            assert child.line() == "parts"
            record(directory)
            (temporary,) = (n for n in files(tmp_path) if "_temp_" in n)
            assert directory.sweep() == []
            if killed:
                child.kill()
                assert directory.sweep() == [temporary]
                assert files(tmp_path) == ["checkpoint"]
            else:
                child.go_on()
                assert child.end() == 0
    assert ckptfmt.load(tmp_path / "ckpt-1")["x"] == [7]
    assert not any("_temp" in name for name in files(tmp_path))


@pytest.mark.parametrize("kind", ["saver", "sharded"])
def test_the_next_save_of_the_prefix_removes_the_directory(tmp_path: Path, kind: str) -> None:
    others = [f"other_temp_{HEX}", f"ckpt-1_temp_{HEX}x", "ckpt-1_temp_mine"]
    for name in others:
        (tmp_path / name).mkdir()
    living = TemporaryDirectory(str(tmp_path / "ckpt-1"))
    living.make()
    with Forked.program(SAVER, tmp_path / "ckpt-1", kind) as child:
        assert child.line() == "parts"
        child.kill()
    assert len([name for name in files(tmp_path) if "ckpt-1_temp_" in name]) == 4
    with Forked.program(SAVER, tmp_path / "ckpt-1", kind) as child:
        assert child.line() == "parts"
        child.go_on()
        assert child.end() == 0
    left = sorted(name for name in files(tmp_path) if "_temp_" in name)
    assert left == sorted([*others, os.path.basename(living.path)])
    living.remove()


def test_a_save_removes_directories_under_the_lock_only(tmp_path: Path) -> None:
    dead = tmp_path / f"ckpt_temp_{HEX}"
    unowned = tmp_path / "ckpt_temp_0123456789abcdef"
    for path in (dead, unowned):
        part_files(path)
    (dead / LOCK_NAME).touch()
    with LocalFolder(str(tmp_path)).opened() as directory, directory.lock():
        _core.sweep_before_save(str(tmp_path / "ckpt"))
    assert dead.exists()
    ckptfmt.save(tmp_path / "source", {"x": [1]})
    ckptfmt.convert(tmp_path / "source", tmp_path / "ckpt")
    assert not dead.exists()
    assert len(files(unowned)) == 4


def test_clean_refuses_where_locks_show_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = tmp_path / f"ckpt_temp_{HEX}"
    dead.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(_core, "is_local", lambda _fd: False)
        assert main(["clean", str(tmp_path)]) == 2
    assert "nothing can be removed here" in capsys.readouterr().err
    for path in ("nul\0byte", "s3://bucket"):
        assert main(["clean", path]) == 2
        assert capsys.readouterr().err.startswith("ckptfmt: ")
    assert main(["clean", f"file://{tmp_path}"]) == 0
    assert files(tmp_path) == []


def test_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything of dead writers, under any name; nothing of others."""
    ckptfmt.save(tmp_path / "kept", {"x": [1]})
    with Forked.program(SAVER, tmp_path / "any", "saver") as child:
        assert child.line() == "parts"
        (dead,) = (name for name in files(tmp_path) if "_temp_" in name)
        assert main(["clean", str(tmp_path)]) == 0
        assert capsys.readouterr().out == ""
        child.kill()
    orphan = f"other.index.tempstatea{'0' * 15}"
    (tmp_path / orphan).touch()
    (tmp_path / "mine.tempstate").touch()
    before = files(tmp_path)
    left = [str(tmp_path / name) for name in sorted([dead, orphan])]
    for arguments in (["--dry-run"], ["-n"], []):
        assert files(tmp_path) == before
        assert main(["clean", str(tmp_path), *arguments]) == 0
        assert capsys.readouterr().out.splitlines() == left
    assert files(tmp_path) == sorted(["kept.data-00000-of-00001", "kept.index", "mine.tempstate"])
    assert main(["clean", str(tmp_path / "nothing")]) == 2
    assert "the directory cannot be opened" in capsys.readouterr().err


MANY = """
import sys, numpy, ckptfmt
prefix, kind = sys.argv[1:]
options = ckptfmt.tf.CheckpointOptions(durability="none")
for turn in range(20):
    sys.stdin.readline()
    path = f"{prefix}-{turn % 3}"
    if kind == "saver":
        ckptfmt.Saver({None: {"x": numpy.array([turn])}}).save(path, options)
    else:
        ckptfmt.save(path, {"x": [turn]}, durability="none")
    assert ckptfmt.load(path)["x"].shape == (1,)
print("done", flush=True)
"""


def test_writers_that_live_lose_nothing(directory: LocalFolder, tmp_path: Path) -> None:
    """Four writers, of one checkpoint or of different ones, and a process that sweeps."""
    with contextlib.ExitStack() as stack:
        kinds = ["save", "saver", "save", "saver"]
        children = [
            stack.enter_context(Forked.program(MANY, tmp_path / "ckpt", kind)) for kind in kinds
        ]
        for turn in range(60):
            for child in children[: 0 if turn % 3 else 4]:
                child.go_on()
            directory.write_state("checkpoint", b"")
            directory.sweep()
        assert [(child.line(), child.end()) for child in children] == [("done", 0)] * 4
    record(directory)
    directory.sweep()
    for number in range(3):
        assert ckptfmt.verify(tmp_path / f"ckpt-{number}").ok
    assert not [name for name in files(tmp_path) if "temp" in name]


def test_a_directory_swept_while_it_is_made(
    directory: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making it and locking it: it is made again."""
    temporary = TemporaryDirectory(str(tmp_path / "ckpt-1"))
    mkdir, flock = os.mkdir, fcntl.flock
    first, swept = os.path.basename(temporary.path), list[list[str]]()

    def made(path: str, mode: int) -> None:
        mkdir(path, mode)
        if not swept:
            swept.append([])
            swept[0] += directory.sweep()

    def locked(fd: int, kind: int) -> None:
        if len(swept) == 1:
            swept.append([])
            swept[1] += directory.sweep()
        flock(fd, kind)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", made)
        temporary.make()
    assert swept == [[first]]
    second = os.path.basename(temporary.path)
    assert second != first
    assert directory.sweep() == []
    temporary.remove()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", locked)
        temporary.make()
    assert swept[1] == [second]
    assert directory.sweep() == []
    assert files(tmp_path) == [os.path.basename(temporary.path)]
    temporary.remove()
    assert files(tmp_path) == []


def test_other_machines(directory: LocalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where their locks may not be seen here nothing goes."""
    touch(directory, *OURS)
    record(directory)
    with monkeypatch.context() as patch:
        patch.setattr(_core, "is_local", lambda _fd: False)
        assert directory.sweep() == []
    assert sorted(directory.sweep()) == sorted(OURS)


def test_what_names_mean() -> None:
    assert orphans.number_of("ckpt-7", "ckpt") == 7
    assert orphans.number_of("ckpt--7", "ckpt") == -7
    assert orphans.number_of("ckpt-0", "ckpt") == 0
    for name in ("ckpt-07", "ckpt--0", "ckpt-", "ckpt-7a", "ckpt", "a-7", "ckpt-٣", "ckpt-7\n"):
        assert orphans.number_of(name, "ckpt") is None, name


EXPORTER = """
import os, sys, numpy, ckptfmt
from ckptfmt.cli import main
def wait(*given, **options):
    print("written", flush=True)
    sys.stdin.readline()
folder, command = sys.argv[1], sys.argv[2:]
ckptfmt.save(folder + "/source", {"x": numpy.ones(4, "f4")})
os.rename = wait
if command:
    main([one.replace("FOLDER", folder) for one in command])
else:
    ckptfmt.safetensors.save_file({"x": numpy.ones(4, "f4")}, folder + "/saved.safetensors")
"""


@pytest.mark.parametrize(
    "command",
    [
        "convert -q FOLDER/source FOLDER/out.npz",
        "convert -q FOLDER/source FOLDER/out.safetensors",
        "convert -q --max-shard-size 1 FOLDER/source FOLDER/out.safetensors.index.json",
        "report -q FOLDER/source -o FOLDER/out.html",
        "",
    ],
)
def test_clean_removes_killed_exports(command: str, tmp_path: Path) -> None:
    with Forked.program(EXPORTER, tmp_path, *command.split()) as child:
        assert child.line() == "written"
        before = files(tmp_path)
        whole = ["source.data-00000-of-00001", "source.index"]
        assert len(before) > len(whole)
        assert main(["clean", str(tmp_path)]) == 0
        assert files(tmp_path) == before
        child.kill()
    assert main(["clean", str(tmp_path)]) == 0
    assert files(tmp_path) == whole
