# SPDX-License-Identifier: Apache-2.0
"""The functions around the state file, as the tests of TensorFlow's checkpoint_management have them
and beyond: damaged files, disks that fail, names that others would take for patterns."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt import tf
from ckptfmt.files.state_file import CheckpointState

EXPECTED = "expected a line 'field: value' of a CheckpointState, found "


def text_of(directory: Path | str, name: str = "checkpoint") -> str:
    return Path(directory, name).read_text()


def read(directory: Path | str) -> CheckpointState:
    state = ckptfmt.tf.get_checkpoint_state(directory)
    assert state is not None
    return state


def save(prefix: Path | str) -> None:
    ckptfmt.save(prefix, {"x": np.arange(4)}, durability="rename")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_answers() -> None:
    """TensorFlow's believes the state file; ours falls back to what is there."""
    assert tf.latest_checkpoint is not ckptfmt.latest_checkpoint


# ---- paths, as TensorFlow writes and reads them --------------------------------------------------


@pytest.mark.parametrize("given", [None, [], ["/d/m-1"], ["/d/m-1", "/d/m-2"]])
def test_the_newest_is_added_to_all(tmp_path: Path, given: list[str] | None) -> None:
    before = list(given) if given is not None else None
    ckptfmt.tf.update_checkpoint_state(tmp_path, "/d/m-2", given)
    assert given == before
    state = read(tmp_path)
    assert state.model_checkpoint_path == state.all_model_checkpoint_paths[-1] == "/d/m-2"
    assert list(state.all_model_checkpoint_paths[:-1]) == [p for p in given or () if p != "/d/m-2"]


@pytest.mark.parametrize("relative_directory", [False, True])
def test_relative_paths_wanted(here: Path, relative_directory: bool) -> None:
    (here / "train").mkdir()
    ckptfmt.tf.update_checkpoint_state(
        "train" if relative_directory else here / "train",
        here / "train" / "model-2",
        [here / "model-0", here / "train" / "s" / "model-1", here / "train" / "model-2"],
        save_relative_paths=True,
    )
    assert text_of("train") == (
        'model_checkpoint_path: "model-2"\n'
        'all_model_checkpoint_paths: "../model-0"\n'
        'all_model_checkpoint_paths: "s/model-1"\n'
        'all_model_checkpoint_paths: "model-2"\n'
    )


@pytest.mark.parametrize("form", [str, os.fsencode, Path])
def test_forms_of_paths(tmp_path: Path, form: Callable[[Path], Any]) -> None:
    ckptfmt.tf.update_checkpoint_state(
        form(tmp_path), form(tmp_path / "m"), [form(tmp_path / "m")], form(Path("other"))
    )
    state = ckptfmt.tf.get_checkpoint_state(form(tmp_path), form(Path("other")))
    assert state == CheckpointState(f"{tmp_path}/m", (f"{tmp_path}/m",))


def test_names_of_every_kind(tmp_path: Path) -> None:
    odd = [
        "größe",
        "日",
        "'",
        '"',
        "a\\b",
        "line\nbreak",
        "\x1b",
        "*[?]",
        "#",
        "a b",
        "\udcff\udcfe",
    ]
    ckptfmt.tf.update_checkpoint_state(tmp_path, odd[-1], odd)
    assert [os.path.basename(p) for p in read(tmp_path).all_model_checkpoint_paths] == odd


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "the path of a checkpoint is empty"),
        (("m", ["", "m"]), "the path of a checkpoint is empty"),
        (("m", "m"), "all_model_checkpoint_paths must be a list of paths, not one"),
        (("m", 5), "all_model_checkpoint_paths must be a list of paths, not int"),
        (("m", [5]), "a path must be str, bytes or os.PathLike, not int"),
        ((None,), "a path must be str, bytes or os.PathLike, not NoneType"),
        (("m\0",), "a path cannot contain a NUL byte"),
        (("m", None, ""), "latest_filename '' has no file name"),
        (("m", None, "a/"), "latest_filename 'a/' has no file name"),
        (("m", ["m"], None, ["5"]), "a timestamp must be a number of seconds, not str"),
        (("m", ["m"], None, [None]), "a timestamp must be a number of seconds, not NoneType"),
        (
            ("m", ["m"], None, 5),
            "all_model_checkpoint_timestamps must be a list of numbers, not int",
        ),
        (("m", ["m"], None, None, "1"), "a timestamp must be a number of seconds, not str"),
        (
            ("m", ["l"], None, [1.0]),
            "Checkpoint timestamps, if provided, must match checkpoint paths "
            "(got paths ['l', 'm'] and timestamps [1.0])",
        ),
        (
            ("m", ["m"], None, [1.0] * 9),
            "Checkpoint timestamps, if provided, must match checkpoint paths (got paths ['m'] and "
            "timestamps [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, ... 9])",
        ),
    ],
)
def test_wrong_arguments(here: Path, arguments: tuple[Any, ...], message: str) -> None:
    for directory in ("", "."):
        with pytest.raises(ckptfmt.InvalidError) as caught:
            ckptfmt.tf.update_checkpoint_state(directory, *arguments)
        assert caught.value.message == message
    assert os.listdir(here) == []


def test_a_name_that_collides_with_the_state_file(tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.InvalidError, match="conflicts with path used for checkpoint state"):
        ckptfmt.tf.update_checkpoint_state(tmp_path, tmp_path / "checkpoint")
    ckptfmt.tf.update_checkpoint_state(tmp_path, tmp_path / "checkpoint", latest_filename="other")
    assert os.listdir(tmp_path) == ["other"]


def test_a_checkpoint_named_like_the_state_file_in_a_relative_directory(here: Path) -> None:
    """As in TensorFlow, which compares the paths as they are written: no file has that name."""
    os.mkdir("train")
    ckptfmt.tf.update_checkpoint_state("train", "train/checkpoint")
    assert text_of(Path("train")).startswith('model_checkpoint_path: "checkpoint"\n')
    with pytest.raises(ckptfmt.InvalidError, match="conflicts with path used for checkpoint state"):
        ckptfmt.tf.update_checkpoint_state("", "checkpoint")


def test_no_such_durability(tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.InvalidError, match="durability must be one of"):
        ckptfmt.tf.update_checkpoint_state(tmp_path, "m", durability="half")


def test_no_state_file(tmp_path: Path) -> None:
    assert ckptfmt.tf.get_checkpoint_state(tmp_path) is None
    assert ckptfmt.tf.get_checkpoint_state(tmp_path / "none") is None


@pytest.mark.parametrize(
    "content", ["", "# nothing\n", 'model_checkpoint_path: ""', 'all_model_checkpoint_paths: "a"']
)
def test_a_state_that_names_no_checkpoint(tmp_path: Path, content: str) -> None:
    """TensorFlow: a ValueError of these words."""
    (tmp_path / "checkpoint").write_text(content)
    with pytest.raises(ValueError, match="Invalid checkpoint state loaded from ") as caught:
        ckptfmt.tf.get_checkpoint_state(tmp_path)
    assert isinstance(caught.value, ckptfmt.InvalidError)
    assert caught.value.message == f"Invalid checkpoint state loaded from {tmp_path}"
    assert caught.value.path == f"{tmp_path}/checkpoint"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"unknown: 1", "BAD_PROTO in {} at offset 0: " + EXPECTED + "'unknown: 1'"),
        (b"\xff", "BAD_PROTO in {} at offset 0: not UTF-8"),
        (b"\n<html>", "BAD_PROTO in {} at offset 1: " + EXPECTED + "'<html>'"),
    ],
)
def test_a_damaged_state_file(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.warns(ckptfmt.CkptfmtWarning) as caught:
        assert ckptfmt.tf.get_checkpoint_state(tmp_path) is None
    (warning,) = caught
    message = told.format(tmp_path / "checkpoint") + "; the state file is ignored"
    assert str(warning.message) == message
    assert warning.filename == __file__


# ---- how it is written ---------------------------------------------------------------------------


def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that make a write durable, in order, as they happen."""
    calls: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def sync(descriptor: int) -> None:
        calls.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real_sync(descriptor)

    def rename(source: str, target: str, **more: Any) -> None:
        calls.append(f"{source[:20]} to {target}")
        assert re.fullmatch(r"checkpoint\.tempstate[a-f][0-9a-f]{15}", source)
        real_rename(source, target, **more)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    return calls


@pytest.mark.parametrize("durability", ["full", "rename", "none"])
def test_steps_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str) -> None:
    calls = watched(monkeypatch)
    ckptfmt.tf.update_checkpoint_state(tmp_path, "m", durability=durability)
    rename = ["checkpoint.tempstate to checkpoint"]
    assert calls == (["file", *rename, "directory"] if durability == "full" else rename)
    assert os.listdir(tmp_path) == ["checkpoint"]


def failing(number: int) -> Callable[..., Any]:
    def fail(*_arguments: object, **_more: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", ["fsync", "rename", "open"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_write_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """The state file that was there stays, and nothing beside it."""
    ckptfmt.tf.update_checkpoint_state(tmp_path, "old")
    before = text_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(number))
        with pytest.raises(ckptfmt.StorageError) as caught:
            ckptfmt.tf.update_checkpoint_state(tmp_path, "new")
    assert type(caught.value) is ckptfmt.StorageError
    assert caught.value.errno == number
    assert os.strerror(number) in caught.value.message
    assert text_of(tmp_path) == before
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_last_sync_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ckptfmt.tf.update_checkpoint_state(tmp_path, "old")
    with monkeypatch.context() as patch:
        real, numbers = os.fsync, itertools.count()
        patch.setattr(
            os, "fsync", lambda fd: real(fd) if next(numbers) == 0 else failing(errno.EIO)()
        )
        with pytest.raises(ckptfmt.errors.DurabilityUnknownError) as caught:
            ckptfmt.tf.update_checkpoint_state(tmp_path, "new")
    assert caught.value.path == f"{tmp_path}/checkpoint"
    assert caught.value.errno == errno.EIO
    assert read(tmp_path).model_checkpoint_path == f"{tmp_path}/new"
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_an_interrupted_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ckptfmt.tf.update_checkpoint_state(tmp_path, "new")
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.StorageError) as caught:
        ckptfmt.tf.update_checkpoint_state(tmp_path / "none", "m")
    assert (caught.value.errno, caught.value.path) == (errno.ENOENT, f"{tmp_path}/none")


def test_a_linked_state_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "checkpoint").symlink_to(tmp_path / "mine")
    ckptfmt.tf.update_checkpoint_state(tmp_path / "d", "m")
    assert text_of(tmp_path, "mine") == "precious"
    assert not (tmp_path / "d" / "checkpoint").is_symlink()


# ---- checkpoint_exists, get_checkpoint_mtimes ----------------------------------------------------

PATTERNS = ["*", "m[1]", "m?", "{a,b}", "a\\b"]


def test_checkpoint_exists(tmp_path: Path) -> None:
    save(tmp_path / "m-1")
    (tmp_path / "old").write_bytes(b"a file of the V1 format")
    assert ckptfmt.tf.checkpoint_exists(tmp_path / "m-1")
    assert ckptfmt.tf.checkpoint_exists(os.fsencode(tmp_path / "m-1"))
    assert ckptfmt.tf.checkpoint_exists(tmp_path / "old")
    for name in ("m", "m-", "m-?", "m-*", "m-[1]", "m-1.data", "none/m"):
        assert not ckptfmt.tf.checkpoint_exists(tmp_path / name)


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_are_names(tmp_path: Path, name: str) -> None:
    save(tmp_path / name)
    for other in ("m1", "mm", "a", "b", "x"):
        save(tmp_path / other)
    assert ckptfmt.tf.checkpoint_exists(tmp_path / name)
    assert len(ckptfmt.tf.get_checkpoint_mtimes([tmp_path / name])) == 1
    before = len(os.listdir(tmp_path))
    ckptfmt.tf.remove_checkpoint(tmp_path / name)
    assert len(os.listdir(tmp_path)) == before - 2
    assert not ckptfmt.tf.checkpoint_exists(tmp_path / name)
    assert all(
        ckptfmt.tf.checkpoint_exists(tmp_path / other) for other in ("m1", "mm", "a", "b", "x")
    )


def test_get_checkpoint_mtimes(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / f"m-{number}")
        os.utime(tmp_path / f"m-{number}.index", ns=(1, 10**18 + number * 10**9 + 500_000_000))
    (tmp_path / "old").touch()
    os.utime(tmp_path / "old", ns=(1, 7 * 10**9))
    found = ckptfmt.tf.get_checkpoint_mtimes(
        [tmp_path / name for name in ("m-2", "none", "m-0", "old", "m-?", "m-1")]
    )
    assert found == [1000000002.0, 1000000000.0, 7.0, 1000000001.0], "whole seconds"
    assert ckptfmt.tf.get_checkpoint_mtimes([]) == []
    with pytest.raises(
        ckptfmt.InvalidError, match="checkpoint_prefixes must be a list of prefixes"
    ):
        ckptfmt.tf.get_checkpoint_mtimes("m-1")


# ---- remove_checkpoint ---------------------------------------------------------------------------


def put(directory: Path, *found: str) -> None:
    for name in found:
        (directory / name).write_bytes(b"x")


GONE = [
    *("m.index", "m.data-00000-of-00002", "m.data-00001-of-00002", "m.data-00000-of-00001"),
    *("m.data-100000-of-123456", "m.meta"),
]
KEPT = [
    *("m", "m.index.tmp", "m.data-0000-of-0001", "m.data-00000-of-00001.tmp", "m.data-x-of-00001"),
    *("m.data-000001-of-00002", "m-1.index", "m-1.data-00000-of-00001", "m-1.meta", "M.index"),
    *("mm.index", "m.data", "checkpoint", "am.index", "m.data-00000-of-00001\n", "m.metax"),
]


def test_remove_checkpoint(tmp_path: Path) -> None:
    put(tmp_path, *GONE, *KEPT)
    ckptfmt.tf.remove_checkpoint(tmp_path / "m")
    assert sorted(os.listdir(tmp_path)) == sorted(KEPT)
    ckptfmt.tf.remove_checkpoint(tmp_path / "m")  # no error
    ckptfmt.tf.remove_checkpoint(tmp_path / "none" / "m")
    assert sorted(os.listdir(tmp_path)) == sorted(KEPT)


def test_remove_checkpoint_here(here: Path) -> None:
    put(here, *GONE, "m.graph")
    ckptfmt.tf.remove_checkpoint("m", 2, meta_graph_suffix="graph")
    assert os.listdir(here) == ["m.meta"]


@pytest.mark.parametrize("base", ["m-?????-of-00002", "m-00001-of-00002", "m"])
def test_the_graph_of_a_sharded_name(tmp_path: Path, base: str) -> None:
    put(tmp_path, "m.meta", f"{base}.index")
    ckptfmt.tf.remove_checkpoint(tmp_path / base)
    assert os.listdir(tmp_path) == []


@contextlib.contextmanager
def removals(monkeypatch: pytest.MonkeyPatch, fail_at: int | None = None) -> Iterator[list[str]]:
    calls: list[str] = []
    real_unlink, real_sync = os.unlink, os.fsync

    def unlink(name: str, *, dir_fd: int) -> None:
        assert "/" not in name
        calls.append(name)
        if len(calls) - 1 == fail_at:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        real_unlink(name, dir_fd=dir_fd)

    def sync(descriptor: int) -> None:
        calls.append("sync")
        real_sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        patch.setattr(os, "fsync", sync)
        yield calls


def test_the_index_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, *GONE)
    with removals(monkeypatch) as calls:
        ckptfmt.tf.remove_checkpoint(tmp_path / "m")
    assert calls[0] == "sync" and {*calls[1:]} >= {*GONE[1:]}


@pytest.mark.parametrize("fail_at", [1, 3, 5])
def test_a_removal_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    put(tmp_path, *GONE)
    with removals(monkeypatch, fail_at) as calls, pytest.raises(ckptfmt.StorageError) as caught:
        ckptfmt.tf.remove_checkpoint(tmp_path / "m")
    assert (caught.value.errno, caught.value.path) == (errno.EBUSY, f"{tmp_path}/{calls[fail_at]}")
    assert not ckptfmt.tf.checkpoint_exists(tmp_path / "m")
    ckptfmt.tf.remove_checkpoint(tmp_path / "m")
    assert os.listdir(tmp_path) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    save(tmp_path / "mine")
    (tmp_path / "d").mkdir()
    for suffix in (".index", ".data-00000-of-00001"):
        (tmp_path / "d" / f"m{suffix}").symlink_to(tmp_path / f"mine{suffix}")
    ckptfmt.tf.remove_checkpoint(tmp_path / "d" / "m")
    assert os.listdir(tmp_path / "d") == []
    assert ckptfmt.load(tmp_path / "mine")["x"].tolist() == [0, 1, 2, 3]


def test_a_directory_of_such_a_name_stays(tmp_path: Path) -> None:
    (tmp_path / "m.index").mkdir()
    put(tmp_path, "m.data-00000-of-00001")
    ckptfmt.tf.remove_checkpoint(tmp_path / "m")
    assert os.listdir(tmp_path) == ["m.index"]


@pytest.mark.parametrize("suffix", ["", "/", "a/b", "\0", None])
def test_a_suffix_that_names_no_file(tmp_path: Path, suffix: Any) -> None:
    put(tmp_path, "m.index")
    with pytest.raises(ckptfmt.InvalidError, match="meta_graph_suffix"):
        ckptfmt.tf.remove_checkpoint(tmp_path / "m", meta_graph_suffix=suffix)
    assert os.listdir(tmp_path) == ["m.index"]


def test_other_removals_refused(tmp_path: Path) -> None:
    put(tmp_path, "m", ".index")
    with pytest.raises(ckptfmt.UnsupportedError, match="format version 1; only V2"):
        ckptfmt.tf.remove_checkpoint(tmp_path / "m", 1)
    with pytest.raises(ckptfmt.InvalidError, match="has no file name"):
        ckptfmt.tf.remove_checkpoint(f"{tmp_path}/")
    assert sorted(os.listdir(tmp_path)) == [".index", "m"]
