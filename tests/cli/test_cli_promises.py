# SPDX-License-Identifier: Apache-2.0
"""What a dry run, an exit status and the last line of an error promise."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.files import contents
from support.forking import in_child
from support.process import obey_modes

import ckptfmt
from ckptfmt.cli import main
from cli.commands import Command


def make(*prefixes: Path) -> None:
    for prefix in prefixes:
        ckptfmt.save(prefix, {prefix.name: np.arange(5.0)})


def run_as_user(*arguments: object) -> int:
    """Run in a child that only does what modes allow; return the exit status."""

    def run() -> None:
        obey_modes()
        os._exit(main([str(one) for one in arguments]))

    return in_child(run)


# ---- what cannot be read is not called damaged ---------------------------------------------------

READING = ["inspect a", "inspect --json a", "verify a", "verify -r .", "show a a", "diff a b"]
READING += ["digest a", "convert a c", "convert a c.safetensors", "edit --rename a=x a c"]
READING += ["average a b c", "rescue a c", "latest --verify .", "cp a c"]


@pytest.mark.parametrize("linked", [False, True], ids=["file", "link into a closed directory"])
@pytest.mark.parametrize("line", READING)
def test_a_file_that_may_not_be_read(
    line: str, linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        ckptfmt.save(tmp_path / name, {"a": np.arange(5.0)}, metadata={"from": name})
    (tmp_path / "b.index").chmod(0 if "latest" in line else 0o600)
    closed, data = tmp_path / "closed", tmp_path / "a.data-00000-of-00001"
    closed.mkdir()
    if linked:
        data.symlink_to(data.rename(closed / "data"))
    (closed if linked else data).chmod(0)
    monkeypatch.chdir(tmp_path)
    assert run_as_user(*line.split()) == 2
    closed.chmod(0o700)


# ---- merges whose inputs could not all be removed ------------------------------------------------


@pytest.fixture
def half_removed(tmp_path: Path) -> list[Path]:
    """Inputs of a merge to out/m: the first was moved, the others could not be."""
    inputs = [tmp_path / "two" / "c", tmp_path / "one" / "a", tmp_path / "one" / "b"]
    make(*inputs)
    inputs[1].parent.chmod(0o500)
    assert run_as_user("merge", "--consume", *inputs, tmp_path / "out" / "m") == 2
    inputs[1].parent.chmod(0o700)
    assert not Path(f"{inputs[0]}.index").exists() and Path(f"{inputs[1]}.index").exists()
    return inputs


@pytest.mark.parametrize("allow", [[], ["--allow-missing"]])
def test_such_a_merge_again(
    half_removed: list[Path], command: Command, tmp_path: Path, allow: list[str]
) -> None:
    """It is finished; a merge that would lose what was moved is refused."""
    target = tmp_path / "out" / "m"
    before = contents(tmp_path)
    for arguments in (half_removed, half_removed[::-1]):
        ran = command("merge", *allow, "--overwrite", *arguments, target)
        assert ran.status in (1, 2) and contents(tmp_path) == before
    ran = command("merge", "--consume", *allow, "--overwrite", *half_removed, target)
    assert (ran.status, ran.err) == (0, "") and ran.out.startswith("finished a merge into")
    assert sorted(ckptfmt.load(target)) == ["a", "b", "c"]
    assert [path.name for path in sorted(target.parent.iterdir())] == [
        *(f"m.data-0000{number}-of-00003" for number in range(3)),
        "m.index",
    ]
    assert not list((tmp_path / "one").iterdir())


@pytest.mark.parametrize("words", [["mv"], ["merge", "--consume"]])
def test_the_error_says_how_to_finish(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in" / "a", tmp_path / "out" / "m"
    make(source)
    source.parent.chmod(0o500)
    assert run_as_user(*words, source, target) == 2
    assert "--overwrite" in capfd.readouterr().err
    source.parent.chmod(0o700)
    assert main([*words, "--overwrite", str(source), str(target)]) == 0
    assert not list(source.parent.iterdir())


def test_the_intent_goes_with_the_checkpoint(tmp_path: Path, command: Command) -> None:
    source, target = tmp_path / "in" / "a", tmp_path / "out" / "m"
    make(source)
    source.parent.chmod(0o500)
    assert run_as_user("mv", source, target) == 2
    assert command("rm", target).status == 0
    assert not list(target.parent.iterdir())


# ---- dry runs ------------------------------------------------------------------------------------


def cut(prefix: Path) -> None:
    file = Path(f"{prefix}.data-00000-of-00001")
    file.write_bytes(file.read_bytes()[:8])


def remove(prefix: Path) -> None:
    Path(f"{prefix}.data-00000-of-00001").unlink()


@pytest.mark.parametrize("damage", [cut, remove, None])
@pytest.mark.parametrize(
    "words",
    [["mv", "A", "B"], ["edit", "A", "B", "--rename", "a=x"], ["average", "A", "A2", "B"]],
    ids=lambda words: words[0],
)
def test_a_dry_run_has_the_status_of_the_real_one(
    words: list[str], damage: Callable[[Path], None] | None, tmp_path: Path, command: Command
) -> None:
    make(tmp_path / "a")
    ckptfmt.save(tmp_path / "a2", {"a": np.arange(5.0)})
    if damage is not None:
        damage(tmp_path / "a")
    given = [str(tmp_path / one.lower()) if one.isupper() or one == "A2" else one for one in words]
    before = contents(tmp_path)
    dry = command(*given, "--dry-run")
    assert contents(tmp_path) == before
    assert dry.status == command(*given).status == (damage is not None)
    assert ("would" in dry.out) == (damage is None)


def test_a_dry_edit_of_what_can_be_saved(tmp_path: Path, command: Command) -> None:
    """The data file that is missing has only what is dropped."""
    values = {name: np.full(1000, float(ord(name))) for name in "abc"}
    ckptfmt.save(tmp_path / "s", values, shards=3)
    with ckptfmt.open(tmp_path / "s") as reader:
        shards = dict(zip(values, reader.table()["shard"].tolist(), strict=True))
    Path(f"{tmp_path}/s.data-0000{shards['b']}-of-00003").unlink()
    words = ["edit", tmp_path / "s", tmp_path / "d", "--drop-weights", "--drop"]
    assert command(*words, "a", "--dry-run").status == command(*words, "a").status == 1
    assert command(*words, "b", "--dry-run").status == command(*words, "b").status == 0
    assert sorted(ckptfmt.load(tmp_path / "d")) == ["a", "c"]


def test_rm_removes_nothing_if_one_cannot_be_removed(tmp_path: Path, command: Command) -> None:
    make(tmp_path / "a", tmp_path / "b")
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        for file in tmp_path.glob("b.*"):
            if file.suffix != ".tar":
                archive.add(file, file.name)
    before = contents(tmp_path)
    for dry in ([], ["-n"]):
        ran = command("rm", *dry, tmp_path / "a", f"{tmp_path}/b.tar!/b")
        assert ran.status == 2 and not ran.out
        assert contents(tmp_path) == before


# ---- what is equal, lost or removed --------------------------------------------------------------


def test_diff_of_metadata_that_python_takes_for_equal(tmp_path: Path, command: Command) -> None:
    values = [1, True, 1.0, [1, 0.0], [1.0, -0.0], [True, 0.0]]
    for number, value in enumerate(values):
        ckptfmt.save(tmp_path / f"{number}", {"x": np.ones(2)}, metadata={"e": value, "a": "b"})
    for one in range(len(values)):
        for other in range(len(values)):
            paths = tmp_path / f"{one}", tmp_path / f"{other}"
            same = len({line.split()[0] for line in command("digest", *paths).out.split("\n")[:2]})
            assert command("diff", "-q", *paths).status == (same != 1) == (one != other)


def test_prune_names_what_it_removed_and_what_it_could_not(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(x=np.ones(2)), tmp_path, max_to_keep=9)
    prefixes = [manager.save() for _ in range(5)]

    def failing(function: Callable[..., None]) -> Callable[..., None]:
        def call(name: Path, *rest: object, **named: object) -> None:
            if str(name) in ("ckpt-1.index", "ckpt-3.index"):
                raise PermissionError(1, os.strerror(1))
            function(name, *rest, **named)

        return call

    for name in ("rename", "unlink"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    ran = command("prune", "--keep", 1, "-q", tmp_path)
    monkeypatch.undo()
    assert ran.status == 2
    assert ran.out.split() == [prefixes[1], prefixes[3]]
    assert all(f"ckpt-{number}.index" in ran.err for number in (1, 3))
    assert command("prune", "--keep", 1, "-q", tmp_path).out.split() == prefixes[0:4:2]
