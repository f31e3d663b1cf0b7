# SPDX-License-Identifier: Apache-2.0
"""Where commands write: never over a file of a checkpoint, a prefix only with --overwrite."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.files import contents

import ckptfmt
import ckptfmt.report
from ckptfmt._base.names import prefix_text
from ckptfmt.cli import main
from ckptfmt.files.outputs import checkpoint_files, output_path
from cli.commands import Command, child, data_file

VALUES = {"w": np.arange(6.0, dtype=np.float32).reshape(2, 3)}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two checkpoints, the state file of `model`, and links to its files."""
    monkeypatch.chdir(tmp_path)
    ckptfmt.save("model", VALUES)
    ckptfmt.save("other", {"w": np.ones(3)})
    ckptfmt.tf.update_checkpoint_state(".", "model")
    Path("folder").mkdir()
    Path("link.html").symlink_to("model.index")
    Path("link2.html").symlink_to("link.html")
    Path("dangling.html").symlink_to("new.index")
    Path("hard.html").hardlink_to("model.data-00000-of-00001")
    Path("elsewhere").symlink_to(tmp_path)
    return tmp_path


# ---- plain files

PLAIN: dict[str, list[str]] = {
    "report": ["report", "model", "-o", "FILE"],
    "report before": ["report", "other", "--before", "model", "-o", "FILE"],
    "show": ["show", "model", "w", "--npy", "FILE"],
    "convert npz": ["convert", "model", "FILE", "--to", "npz", "--overwrite"],
    "convert safetensors": ["convert", "model", "FILE", "--to", "safetensors", "--overwrite"],
}
FORBIDDEN = [
    *("model.index", "./model.index", "elsewhere/model.index", "other.index", "new.index"),
    *("folder/../model.data-00000-of-00001", "other.data-00000-of-00001"),
    *("new.data-00001-of-00002", "checkpoint", "folder/checkpoint", "checkpoint.ckptfmt"),
    *("link.html", "link2.html", "dangling.html", "hard.html", "folder", "folder/", ""),
]


def test_no_path_of_a_checkpoint(place: Path) -> None:
    for output in FORBIDDEN:
        reading = [] if output != "hard.html" else checkpoint_files("model")
        with pytest.raises(ckptfmt.InvalidError):
            output_path(output, reading)


@pytest.mark.parametrize("words", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("output", ["link2.html", "hard.html"])
def test_no_file_of_a_checkpoint(
    words: list[str], output: str, place: Path, command: Command
) -> None:
    before = contents(place)
    links = sorted(path.name for path in place.iterdir() if path.is_symlink())
    ran = command(*[output if word == "FILE" else word for word in words])
    assert (ran.status, ran.out) == (2, ""), ran.err
    assert contents(place) == before
    assert sorted(path.name for path in place.iterdir() if path.is_symlink()) == links


def _zip(path: str, *members: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for member in members:
            archive.writestr(member, b"values")


def _tar(path: str) -> None:
    with tarfile.open(path, "w") as archive:
        archive.add("other.index")


def _dcp(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(path).write_bytes(pickle.dumps({"state": 1}))


# Checkpoints of other kinds, each written to a path.
OTHER: dict[str, Callable[[str], object]] = {
    "zip of a checkpoint": lambda path: _zip(path, "m.index", "m.data-00000-of-00001"),
    "tar of a checkpoint": _tar,
    "safetensors": lambda path: ckptfmt.convert("other", path, to="safetensors"),
    "npz": lambda path: ckptfmt.convert("other", path, to="npz"),
    "hdf5": lambda path: Path(path).write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100)),
    "keras": lambda path: _zip(path, "metadata.json", "model.weights.h5"),
    "torch": lambda path: _zip(path, "archive/data.pkl", "archive/data/0"),
    "pickle": lambda path: Path(path).write_bytes(pickle.dumps([1.0, 2.0])),
    "gguf": lambda path: Path(path).write_bytes(b"GGUF" + bytes(100)),
    "table": lambda path: shutil.copy("other.index", path),
    "raw values": lambda path: Path(path).write_bytes(bytes(range(256))),
    "text": lambda path: Path(path).write_text('{"weight_map": {}}'),
    "compressed": lambda path: Path(path).write_bytes(gzip.compress(b"values")),
}


@pytest.mark.parametrize("kind", OTHER)
def test_no_checkpoint_of_another_kind(kind: str, place: Path) -> None:
    """By content, so that neither its name nor a link to it matters."""
    OTHER[kind]("x")
    Path("x.html").hardlink_to("x")
    Path("x.npy").symlink_to("x")
    for output in ("x", "x.html", "x.npy"):
        for written in ("html", "npy"):
            with pytest.raises(ckptfmt.InvalidError, match="is replaced: choose another name, or"):
                output_path(output, kind=written)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_no_file_of_a_dcp_directory(name: str, place: Path, command: Command) -> None:
    _dcp(f"dcp/{name}")
    before = contents(place)
    for words in (PLAIN["report"], PLAIN["show"]):
        ran = command(*[f"dcp/{name}" if word == "FILE" else word for word in words])
        assert (ran.status, ran.out) == (2, ""), ran.err
    assert contents(place) == before


def test_outputs_replace_their_own_kind_and_empty_files(place: Path, command: Command) -> None:
    for name, other in (("report", "show"), ("show", "report")):
        words = ["a.out" if word == "FILE" else word for word in PLAIN[name]]
        Path("a.out").write_bytes(b"")
        for _ in range(2):
            assert command(*words).status == 0
        again = ["a.out" if word == "FILE" else word for word in PLAIN[other]]
        assert command(*again).status == 2
        with pytest.raises(ckptfmt.InvalidError, match="exists and is a zip archive"):
            _zip("a.zip", "m.index")
            ckptfmt.report.report("model", "a.zip")


OLD = {"report": b"<!DOCTYPE html>old", "report before": b"<html>", "show": b"\x93NUMPY"}


@pytest.mark.parametrize("name", PLAIN)
def test_other_files_are_replaced(name: str, place: Path, command: Command) -> None:
    words, old = PLAIN[name], OLD.get(name, b"old")
    Path("a.out").write_bytes(old)
    Path("also.out").hardlink_to("a.out")
    ran = command(*["a.out" if word == "FILE" else word for word in words])
    assert ran.status == 0, ran.err
    assert len(Path("a.out").read_bytes()) > 3
    assert Path("also.out").read_bytes() == old, "renamed, not written in place"
    assert not list(place.glob("*tempstate*"))
    assert ckptfmt.verify("model").ok and ckptfmt.verify("other").ok


def test_a_source_of_several_files(place: Path, command: Command) -> None:
    ckptfmt.save("model", {"a": np.ones(300), "b": np.ones(300)})
    ckptfmt.convert("model", "m.safetensors", max_shard_bytes=3000)
    shard = "m-00002-of-00002.safetensors"
    before = contents(place)
    ran = command("convert", "m.safetensors.index.json", shard, "--overwrite")
    assert ran.status == 2 and "is being read" in ran.err
    assert contents(place) == before
    assert command("convert", shard, shard, "--overwrite").status == 0, "a source in one file"


@pytest.mark.parametrize("output", ["m", "m.safetensors", "m.safetensors.index.json"])
@pytest.mark.parametrize(
    "existing",
    ["m.safetensors.index.json", "m-00001-of-00002.safetensors", "m-00009-of-00123.safetensors"],
)
def test_a_result_in_several_files(
    output: str, existing: str, place: Path, command: Command
) -> None:
    """A file of another model of the same name is only replaced with --overwrite."""
    ckptfmt.save("model", {"a": np.ones(300), "b": np.ones(300)})
    Path(existing).write_text("old")
    before = contents(place)
    words = ["convert", "model", output, "--to", "safetensors", "--max-shard-size", "3000"]
    ran = command(*words)
    assert ran.status == 2 and "DESTINATION exists (--overwrite replaces it)" in ran.err
    assert existing in ran.err
    assert contents(place) == before
    assert command(*words, "--overwrite").status == 0


def test_standard_output(place: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["show", "model", "w", "--npy", "-"]) == 0
    out, err = capfdbinary.readouterr()
    assert np.array_equal(np.load(io.BytesIO(out)), VALUES["w"]) and err == b""
    assert main(["report", "model", "-o", "-"]) == 0
    out, err = capfdbinary.readouterr()
    assert out.startswith(b"<!DOCTYPE html>") and out.rstrip().endswith(b"</html>") and err == b""
    assert not Path("-").exists()
    assert main(["show", "model", "w", "--npy", "-", "--json"]) == 2


@pytest.mark.parametrize("words", [PLAIN["report"], PLAIN["show"]], ids=["report", "show"])
def test_fifos_and_devices(words: list[str], place: Path, command: Command) -> None:
    def words_to(output: str) -> list[str]:
        return [output if word == "FILE" else word for word in words]

    command(*words_to("a.out"))
    expected = Path("a.out").read_bytes()
    os.mkfifo("fifo")
    with subprocess.Popen(["cat", "fifo"], stdout=subprocess.PIPE) as reader:
        assert command(*words_to("fifo")).status == 0
        assert reader.communicate()[0] == expected
    assert Path("fifo").is_fifo()
    assert command(*words_to("/dev/null")).status == 0
    assert Path("/dev/null").is_char_device()
    with open("b.out", "wb") as out, child(*words_to("/dev/stdout"), stdout=out) as process:
        assert process.communicate() == (None, b"")
    assert Path("b.out").read_bytes() == expected
    ran = command(*words_to("/dev/full"))
    assert ran.status == 2 and "No space left" in ran.err


def test_convert_needs_a_regular_file(place: Path, command: Command) -> None:
    os.mkfifo("fifo")
    for output in ("fifo", "/dev/null"):
        assert command("convert", "model", output, "--to", "npz", "--overwrite").status == 2
    assert Path("fifo").is_fifo()
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_leaves_the_old_file(
    place: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fails)
    for name in ("report", "show"):
        Path("a.out").write_bytes(OLD[name])
        ran = command(*["a.out" if word == "FILE" else word for word in PLAIN[name]])
        assert ran.status == 2 and "No space left" in ran.err
        assert Path("a.out").read_bytes() == OLD[name]
    assert not list(place.glob("*tempstate*"))


# ---- prefixes

PREFIX: dict[str, list[str]] = {
    "cp": ["cp", "model", "PREFIX"],
    "mv": ["mv", "model", "PREFIX"],
    "merge": ["merge", "model", "PREFIX"],
    "convert": ["convert", "model", "PREFIX"],
    "edit": ["edit", "model", "PREFIX", "--rename", "w=v"],
}
NO_PREFIX = [
    *("model.index", "model.data-00000-of-00001", "new.index", "new.data-00000-of-00001"),
    *("folder/new.index", "new.npz", "new.safetensors", "", "folder/.", ".."),
]


def _prefix_words(name: str, prefix: str) -> list[str]:
    words = [prefix if word == "PREFIX" else word for word in PREFIX[name]]
    return [*words, *["--to", "tensorflow"] * (name == "convert")]


def test_prefixes_are_checked_as_save_checks_them() -> None:
    for prefix in NO_PREFIX:
        for check in (prefix_text, lambda prefix: ckptfmt.save(prefix, VALUES)):
            with pytest.raises(ckptfmt.InvalidError):
                check(prefix)


@pytest.mark.parametrize("name", PREFIX)
@pytest.mark.parametrize("words", [["new.npz"], ["folder/new.index", "--overwrite"]])
def test_commands_check_prefixes(
    name: str, words: list[str], place: Path, command: Command
) -> None:
    before = contents(place)
    ran = command(*_prefix_words(name, words[0]), *words[1:])
    assert (ran.status, ran.out) == (2, ""), ran.err
    assert contents(place) == before


def _link_to_other() -> str:
    Path("to-other.index").symlink_to("other.index")
    return "to-other"


def _dangling() -> str:
    Path("gone.index").symlink_to("nothing.index")
    return "gone"


EXISTING: dict[str, Callable[[], str]] = {
    "another": lambda: "other",
    "another spelling": lambda: "folder/../other",
    "link": _link_to_other,
    "dangling link": _dangling,
}


@pytest.mark.parametrize("name", PREFIX)
@pytest.mark.parametrize("existing", EXISTING)
def test_a_prefix_is_replaced_with_overwrite_only(
    name: str, existing: str, place: Path, command: Command
) -> None:
    prefix = EXISTING[existing]()
    before = contents(place)
    ran = command(*_prefix_words(name, prefix))
    assert (ran.status, ran.out) == (2, "") and "--overwrite" in ran.err
    assert contents(place) == before
    ran = command(*_prefix_words(name, prefix), "--overwrite")
    assert ran.status == 0, ran.err
    (array,) = ckptfmt.load(prefix).values()
    assert np.array_equal(array, VALUES["w"])
    assert ckptfmt.verify(prefix).ok
    if "link" in existing:
        assert not Path(f"{prefix}.index").is_symlink(), "the link is replaced"
        assert np.array_equal(ckptfmt.load("other")["w"], np.ones(3)), "not what it names"


@pytest.mark.parametrize("name", PREFIX)
def test_an_index_that_is_a_directory(name: str, place: Path, command: Command) -> None:
    Path("d.index").mkdir()
    for more in ([], ["--overwrite"]):
        assert command(*_prefix_words(name, "d"), *more).status == 2
    assert ckptfmt.verify("model").ok


@pytest.mark.parametrize("name", ["cp", "mv", "merge"])
def test_a_source_is_never_its_own_destination(name: str, place: Path, command: Command) -> None:
    before = contents(place)
    for prefix in ("model", "./model", str(place / "model"), "elsewhere/model"):
        ran = command(*_prefix_words(name, prefix), "--overwrite")
        assert ran.status == 2, prefix
        assert contents(place) == before


# ---- sources that are removed

LINKED = [("index",), ("data-00000-of-00001",), ("index", "data-00000-of-00001")]


@pytest.mark.parametrize("words", [["mv"], ["merge", "--consume"]])
@pytest.mark.parametrize("linked", LINKED)
def test_a_destination_with_links_to_the_source(
    words: list[str], linked: tuple[str, ...], place: Path, command: Command
) -> None:
    """The move would take the link for its own file, and remove what it names."""
    for end in linked:
        Path(f"l.{end}").symlink_to(f"model.{end}")
    before = contents(place)
    ran = command(*words, "model", "l", "--overwrite")
    assert (ran.status, ran.out) == (2, "") and "symbolic link" in ran.err
    assert contents(place) == before
    if "index" not in linked:
        assert command("cp", "model", "l", "--overwrite").status == 0, "nothing is removed"
        assert ckptfmt.verify("model").ok and ckptfmt.verify("l").ok


def test_dry_run_of_mv(place: Path, command: Command) -> None:
    before = contents(place)
    ran = command("mv", "-n", "model", "folder")
    assert (ran.status, ran.out, ran.err) == (0, "would move model to folder/model\n", "")
    assert contents(place) == before
    data_file(Path("other")).unlink()
    before = contents(place)
    for words in (
        ["model", "other"],
        ["model", "model"],
        ["model", "./model"],
        ["model", "new.index"],
        ["model", "memory://x/model"],
        ["nothing", "new"],
        ["other", "new"],
    ):
        dry = command("mv", "--dry-run", *words)
        assert contents(place) == before
        real = command("mv", *words)
        assert contents(place) == before
        assert (dry.status, dry.out) == (real.status, real.out), words
        assert dry.status in (1, 2), words
