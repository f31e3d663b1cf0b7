# SPDX-License-Identifier: Apache-2.0
"""Files, directories and names of other formats: errors say which call reads or writes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign import CONVERT, FOREIGN, POINTER, check_refusal

import ckptfmt
from ckptfmt.cli import main
from ckptfmt.recipe.convert import format_of
from ckptfmt.safetensors import load_file, safe_open

READ: dict[str, Callable[[Path, Path], Any]] = {
    "open": lambda path, to: ckptfmt.open(path),
    "load": lambda path, to: ckptfmt.load(path),
    "load_into": lambda path, to: ckptfmt.load_into(path, {"x": np.zeros(3)}),
    "load_tree": lambda path, to: ckptfmt.load_tree(path),
    "Checkpoint.restore": lambda path, to: ckptfmt.Checkpoint().restore(path),
    "verify": lambda path, to: ckptfmt.verify(path),
    "merge": lambda path, to: ckptfmt.merge([path], to),
    "edit": lambda path, to: ckptfmt.editing.edit(path, to, metadata={}),
}
COMMANDS = [
    *(["inspect", "PATH"], ["show", "PATH", "x"], ["verify", "PATH"], ["digest", "PATH"]),
    *(["merge", "PATH", "TO"], ["cp", "PATH", "TO"], ["edit", "PATH", "TO", "--drop", "x"]),
]
# These take files of the formats that `convert` reads.
READERS = ("inspect", "show", "verify")


@pytest.mark.parametrize("name", FOREIGN)
def test_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Every call that opens a checkpoint, and every command, names the format and what reads it."""
    made = FOREIGN[name]
    path, to = made.make(tmp_path), tmp_path / "result"
    for read in READ.values():
        with pytest.raises(ckptfmt.CkptfmtError) as caught:
            read(path, to)
        check_refusal(caught.value, made, name)
    for words in COMMANDS:
        if words[0] == "cp" and name in ("steps of Orbax", "V1 directory"):
            continue  # takes no directories of checkpoints
        if words[0] in READERS and format_of(str(path), exists=True) != "tensorflow":
            continue
        command = [{"PATH": str(path), "TO": str(to)}.get(word, word) for word in words]
        assert main(command) == 2, command
        printed = capsys.readouterr().err
        assert made.what in printed, command
        assert made.pointer in printed, command
    assert not list(tmp_path.glob("result*"))


@pytest.mark.parametrize("name", FOREIGN)
def test_pointers_to_our_own_calls(tmp_path: Path, name: str) -> None:
    """`convert`, `diff` and `load_file` read what the errors say they read, under any name; of
    the rest they say what it is."""
    made = FOREIGN[name]
    path = made.make(tmp_path)
    if made.converts:
        assert main(["convert", "-q", str(path), str(tmp_path / "result")]) == 0
        assert main(["diff", "-q", str(path), str(tmp_path / "result")]) == 0
        assert main(["convert", "-q", "--drop-metadata", str(path), str(tmp_path / "plain")]) == 0
        name = next(iter(ckptfmt.load(tmp_path / "plain")))
        for words in (["inspect"], ["verify"], ["report", "-q", "-o", str(tmp_path / "x.html")]):
            assert main([*words, str(path)]) == 0
        assert main(["show", str(path), name]) == 0
    elif made.pointer != CONVERT and "weights" not in made.pointer:
        with pytest.raises(ckptfmt.CkptfmtError) as caught:
            ckptfmt.convert(path, tmp_path / "result")
        check_refusal(caught.value, made, name)
    if "safetensors" in made.what:
        assert load_file(path)["x"].size
    else:
        with pytest.raises(ckptfmt.CkptfmtError) as caught:
            safe_open(path)
        check_refusal(caught.value, made, name)


def test_a_checkpoint_beside_other_files(tmp_path: Path) -> None:
    """A checkpoint is found first, in a directory with others and under another format's name."""
    FOREIGN["safetensors"].make(tmp_path)
    ckptfmt.save_v2(tmp_path / "x.npz", ["a"], [""], [np.arange(2)])
    assert list(ckptfmt.open(tmp_path)) == ["a"]
    assert list(ckptfmt.open(tmp_path / "x.npz")) == ["a"]
    ckptfmt.convert(tmp_path / "x.npz", tmp_path / "result")
    assert list(ckptfmt.load(tmp_path / "result")) == ["a"]


def test_a_directory_with_one_safetensors_file(tmp_path: Path) -> None:
    """`convert` and `load_file` read it beside any other files; `open` lists it."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/vocab.npy").touch()
    path = FOREIGN["safetensors"].make(tmp_path / "d").parent
    ckptfmt.convert(path, tmp_path / "result")
    assert list(ckptfmt.load(tmp_path / "result")) == list(load_file(path)) == ["x"]
    with pytest.raises(ckptfmt.CheckpointNotFoundError, match=r"it holds 'vocab.npy', 'x\.safe"):
        ckptfmt.open(path)


def test_a_shard_that_was_not_fetched(tmp_path: Path) -> None:
    """The index of a safetensors model is there, and its files are Git LFS pointers."""
    path = FOREIGN["safetensors index"].make(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(POINTER)
    for read in (load_file, lambda path: ckptfmt.convert(path, tmp_path / "result")):
        with pytest.raises(ckptfmt.CorruptError, match=r"it looks like a Git LFS.*git lfs pull"):
            read(path)


# ---- names ---------------------------------------------------------------------------------------


NAMES = {
    "x.safetensors": "ckptfmt.safetensors.save_file",
    "X.SafeTensors": "ckptfmt.convert",
    "x.safetensors.index.json": "max_shard_bytes",
    "x.bin.index.json": "max_shard_bytes",
    "x.npz": "numpy.savez",
    "x.npy": "numpy.save",
    "x.h5": "ckptfmt.convert",
    "x.hdf5": "ckptfmt.convert",
    "x.weights.h5": "ckptfmt.keras.save_weights",
    "x.keras": "keras.Model.save",
    "x.pt": "torch.save",
    "x.pth": "torch.save",
    "x.gguf": "ckptfmt does not write",
    "x.zip": "archive",
    "x.tar": "archive",
}
X = {"x": np.arange(3)}


def _write(prefix: str) -> None:
    with ckptfmt.Writer(prefix) as writer:
        writer.add("x", X["x"])


WRITE: dict[str, Callable[[str, str], Any]] = {
    "save": lambda name, source: ckptfmt.save(name, X),
    "save_async": lambda name, source: ckptfmt.save_async(name, X),
    "Writer": lambda name, source: _write(name),
    "Saver": lambda name, source: ckptfmt.Saver({None: X}).save(name),
    "save_tree": lambda name, source: ckptfmt.save_tree(name, X),
    "save_tree_async": lambda name, source: ckptfmt.save_tree_async(name, X),
    "Checkpoint.save": lambda name, source: ckptfmt.Checkpoint(**X).save(name),
    "Checkpoint.write": lambda name, source: ckptfmt.Checkpoint(**X).write(name),
    "sharded_save": lambda name, source: ckptfmt.sharded.save(
        name, {}, {}, ckptfmt.sharded.SingleProcess()
    ),
    "merge": lambda name, source: ckptfmt.merge([source], name),
    "edit": lambda name, source: ckptfmt.editing.edit(source, name, metadata={}),
    "convert": lambda name, source: ckptfmt.convert(source, name, to="tensorflow"),
}
WRITING_COMMANDS = [
    *(["merge", "FROM", "TO"], ["cp", "FROM", "TO"], ["mv", "FROM", "TO"]),
    ["edit", "FROM", "TO", "--drop", "y"],
    ["convert", "FROM", "TO", "--to", "tensorflow"],
]


@pytest.mark.parametrize("call", WRITE)
def test_names_of_other_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Nothing is written under them; the error says which call writes the format."""
    monkeypatch.chdir(tmp_path)
    ckptfmt.save("from", {**X, "y": np.ones(2)})
    before = sorted(os.listdir())
    for name, pointer in NAMES.items():
        with pytest.raises(ckptfmt.InvalidError) as caught:
            WRITE[call](name, "from")
        assert caught.value.failure == "BAD_PATH"
        assert f"prefix '{name}'" in caught.value.message
        assert pointer in caught.value.message
        assert sorted(os.listdir()) == before


@pytest.mark.parametrize("words", WRITING_COMMANDS, ids=lambda words: words[0])
def test_names_of_other_formats_in_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    source = str(tmp_path / "from")
    ckptfmt.save(source, {**X, "y": np.ones(2)})
    for name, pointer in NAMES.items():
        given = {"FROM": source, "TO": str(tmp_path / name)}
        assert main([given.get(word, word) for word in words]) == 2
        assert pointer in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["from.data-00000-of-00001", "from.index"]


@pytest.mark.parametrize("name", ["model.ckpt", "model.bin", "x.pt-1000", "h5", "zip", "a.keras/b"])
def test_names_that_stay(tmp_path: Path, name: str) -> None:
    """TensorFlow's own, those that say nothing, and parts of names."""
    ckptfmt.save(tmp_path / name, X)
    assert list(ckptfmt.open(tmp_path / name)) == ["x"]


def test_the_operations_take_any_prefix(tmp_path: Path) -> None:
    """As in TensorFlow, which knows no other formats' names."""
    for at, name in enumerate(NAMES):
        part = tmp_path / f"part{at}.pt"
        ckptfmt.save_v2(part, ["x"], [""], [X["x"]])
        ckptfmt.merge_v2_checkpoints([part], tmp_path / name)
        assert ckptfmt.restore_v2(tmp_path / name, ["x"], [""])[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["x.pt", "x.keras", "x.gguf", "x.npy", "x.zip"])
def test_convert_writes_what_it_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    ckptfmt.save(tmp_path / "from", X)
    assert main(["convert", str(tmp_path / "from"), str(tmp_path / name)]) == 2
    assert NAMES[name] in capsys.readouterr().err
    assert not list(tmp_path.glob(f"{name}*"))
