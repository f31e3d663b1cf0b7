# SPDX-License-Identifier: Apache-2.0
"""Converting between levels: the same tensors, the bytes that a plain save has, all or nothing."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index as ix
from support.arrays import CODES, NAMES, random_array
from support.files import flip

import ckptfmt
from ckptfmt import CorruptError, InvalidError, UnsupportedError
from ckptfmt.cli import main
from ckptfmt.recipe import values as rewriting

LEVELS = ("v2", "v2+", "ckptfmt")


def tensors(seed: int) -> dict[str, Any]:
    """A tensor of every dtype, and some that are worth compressing."""
    chance = random.Random(seed)
    found: dict[str, Any] = {
        f"d/{NAMES[code]}": random_array(chance, code, (3, 5)) for code in CODES
    }
    numbers = np.random.default_rng(seed)
    found["w"] = numbers.normal(0, 0.02, (700, 600)).astype("f4")
    found["zeros"] = np.zeros((300, 300), "i8")
    found["empty"] = np.zeros((0, 4), "f4")
    found["words"] = np.array([b"layer", b"norm", b""] * 4000, object)
    return found


def files(prefix: Path) -> dict[str, bytes]:
    size = len(prefix.name)
    return {path.name[size:]: path.read_bytes() for path in prefix.parent.glob(f"{prefix.name}.*")}


def save_plain(prefix: Path, values: dict[str, Any]) -> None:
    """As `save_v2` of these in the order of their names."""
    with ckptfmt.Writer(prefix, level="v2") as writer:
        for name in sorted(values):
            code = name.removeprefix("d/") if name.startswith("d/") else None
            writer.add(name, values[name], code)
        add_slices(writer)


def add_slices(writer: ckptfmt.Writer) -> None:
    """Add partitioned tensors, whose slices stay."""
    parts = np.random.default_rng(1).normal(0, 0.02, (400, 300)).astype("f4")
    words = np.array([b"a", b"bc"] * 5000, object)
    for name, whole in (("zz/p", parts), ("zz/s", words)):
        for begin, end in ((0, 150), (150, len(whole))):
            start = (begin, *[0] * (whole.ndim - 1))
            writer.add_slice(name, whole[begin:end], whole.shape, start)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("source", LEVELS)
def test_levels(tmp_path: Path, source: str, level: str, seed: int) -> None:
    values = tensors(seed)
    with ckptfmt.Writer(tmp_path / "a", level=source) as writer:
        for name, value in random.Random(seed).sample(list(values.items()), len(values)):
            code = name.removeprefix("d/") if name.startswith("d/") else None
            writer.add(name, value, code)
        add_slices(writer)
    ckptfmt.convert(tmp_path / "a", tmp_path / "b", level=level)
    save_plain(tmp_path / "plain", values)
    if level == "v2":
        assert files(tmp_path / "b") == files(tmp_path / "plain")
    with ckptfmt.open(tmp_path / "b") as reader, ckptfmt.open(tmp_path / "plain") as plain:
        assert reader.level == level
        assert reader.digest() == plain.digest()
        assert reader["w"].compressed == (level == "ckptfmt")
    assert sorted(path.name.split(".")[0] for path in tmp_path.iterdir() if path.is_dir()) == []


def test_a_damaged_source_changes_nothing(tmp_path: Path, seed: int) -> None:
    ckptfmt.save(tmp_path / "a", tensors(seed), compression="zstd")
    ckptfmt.save(tmp_path / "b", {"x": np.ones(3)})
    with ckptfmt.open(tmp_path / "a") as reader:
        where = (reader["w"].offset or 0) + 5000
    flip(tmp_path / "a.data-00000-of-00001", where)
    before = files(tmp_path / "b")
    with pytest.raises(CorruptError, match="CMP-11") as caught:
        ckptfmt.convert(tmp_path / "a", tmp_path / "b", level="v2")
    assert caught.value.tensor == "w"
    assert files(tmp_path / "b") == before
    assert len(list(tmp_path.iterdir())) == 4


def test_a_result_that_is_not_right_does_not_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckptfmt.save(tmp_path / "a", {"x": np.arange(100_000)})
    read = rewriting.Piece.read
    monkeypatch.setattr(rewriting.Piece, "read", lambda *piece: read(*piece) + 1)
    with pytest.raises(CorruptError, match="the result does not hold what the source does"):
        ckptfmt.convert(tmp_path / "a", tmp_path / "b")
    assert not files(tmp_path / "b")


@pytest.mark.parametrize(
    ("code", "dims", "message"),
    [
        (77, [2], "the elements of dtype 77 are not known"),
        (1, [1] * 64 + [2], "65 dimensions are more than the 64 of numpy arrays"),
    ],
)
def test_what_numpy_cannot_hold_is_refused_before_anything_is_written(
    tmp_path: Path, code: int, dims: list[int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = b"x", ix.stored_entry(code, dims, b"12345678")
    ix.write(tmp_path / "a", ix.index_of([(b"", ix.header()), row]), b"12345678")
    monkeypatch.setattr(rewriting, "staged", lambda *_: None)
    with pytest.raises(UnsupportedError, match=message) as caught:
        ckptfmt.convert(tmp_path / "a", tmp_path / "b")
    assert caught.value.tensor == "x"
    assert not files(tmp_path / "b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "v3"}, "level must be one of"),
        ({"level": "v2", "compression": "zstd"}, "level 'v2' has no place for compressed values"),
        ({"check_result": "auto"}, "check_result must be True or False, not str"),
        ({"progress": 1}, "progress must be a function of two numbers"),
    ],
)
def test_arguments(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    ckptfmt.save(tmp_path / "a", {"x": np.ones(3)})
    with pytest.raises(InvalidError, match=message):
        ckptfmt.convert(tmp_path / "a", tmp_path / "b", **options)


def test_command(tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    ckptfmt.save(tmp_path / "a", tensors(seed), metadata={"step": 1})
    source, target = os.fspath(tmp_path / "a"), os.fspath(tmp_path / "b")
    assert main(["convert", "--level", "ckptfmt", source, target]) == 0
    assert capsys.readouterr().out.startswith(f"converted {source} into {target}")
    with ckptfmt.open(target) as reader:
        assert reader.level == "ckptfmt"
    assert main(["convert", "-q", "--overwrite", "--level", "v2", target, source]) == 2
    assert "has no place for the metadata" in capsys.readouterr().err
    arguments = ["--overwrite", "--level", "v2", "--drop-metadata", "--no-verify"]
    assert main(["convert", "-q", *arguments, target, source]) == 0
    out, err = capsys.readouterr()
    assert not out and "the metadata" in err
    with ckptfmt.open(source) as reader:
        assert reader.level == "v2"
