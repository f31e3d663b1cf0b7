# SPDX-License-Identifier: Apache-2.0
"""Conversions from and to other formats: casts, what is left out, all or nothing."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.cli import main
from ckptfmt.recipe.export import Export
from ckptfmt.safetensors import load_file, save_file


def test_npz_of_others(tmp_path: Path) -> None:
    """Compressed members, columns first, the other byte order; objects are refused."""
    array = np.arange(12.0).reshape(3, 4)
    np.savez_compressed(
        tmp_path / "x.npz", columns=np.asfortranarray(array), big=array.astype(">f8")
    )
    ckptfmt.convert(tmp_path / "x.npz", tmp_path / "ck")
    loaded = ckptfmt.load(tmp_path / "ck")
    assert all(np.array_equal(one, array) for one in loaded.values())
    np.savez(tmp_path / "o.npz", o=np.array([{}], object))
    with pytest.raises(ckptfmt.UnsupportedError, match="pickle"):
        ckptfmt.convert(tmp_path / "o.npz", tmp_path / "o")
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("README.txt", "about the arrays")
    with pytest.raises(ckptfmt.UnsupportedError, match="not an array"):
        ckptfmt.convert(tmp_path / "x.npz", tmp_path / "o")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(ckptfmt.CorruptError, match="zip"):
        ckptfmt.convert(tmp_path / "bad.npz", tmp_path / "o")
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", noise=np.random.default_rng(1).normal(size=1000))
        raw = bytearray((tmp_path / "x.npz").read_bytes())
        raw[len(raw) // 2] ^= 1
        (tmp_path / "x.npz").write_bytes(raw)
        with pytest.raises(ckptfmt.CorruptError, match="damaged"):
            ckptfmt.convert(tmp_path / "x.npz", tmp_path / "o")
    assert not (tmp_path / "o.index").exists()


def test_quantized_numbers_are_cast(tmp_path: Path) -> None:
    with ckptfmt.Writer(tmp_path / "ck") as writer:
        writer.add("quantized", np.arange(-1, 2, dtype=np.int8), dtype="qint8")
    file = tmp_path / "x.safetensors"
    done = ckptfmt.convert(tmp_path / "ck", file, cast={"quantized": "int8"})
    assert done.casts["quantized"] == ("qint8", "int8")
    assert load_file(file)["quantized"].tolist() == [-1, 0, 1]
    ckptfmt.convert(file, tmp_path / "back", cast={"quantized": "qint8"})
    with ckptfmt.open(tmp_path / "back") as reader:
        assert reader["quantized"].dtype_name == "qint8"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_texts_of_npz(tmp_path: Path, save: Any) -> None:
    arrays = {
        "u": np.array([["x", "größe"], ["", "a"]], order="F"),
        "s": np.array([b"ab", b"c"]),
        "z": np.array("one"),
    }
    save(tmp_path / "a.npz", **arrays)
    ckptfmt.save(tmp_path / "b", arrays)
    ckptfmt.convert(tmp_path / "a.npz", tmp_path / "a")
    with ckptfmt.open(tmp_path / "a") as found, ckptfmt.open(tmp_path / "b") as wanted:
        assert found.digest() == wanted.digest()
    save(tmp_path / "c.npz", x=np.frombuffer(b"\xff" * 8, "<U2"))
    with pytest.raises(ckptfmt.CorruptError, match="no text"):
        ckptfmt.convert(tmp_path / "c.npz", tmp_path / "c")


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that differs from its source does not replace the old file."""
    ckptfmt.save(tmp_path / "ck", {"a": np.arange(100)})
    save_file({"old": np.arange(3)}, tmp_path / "x.safetensors")
    before = (tmp_path / "x.safetensors").read_bytes()
    written = Export._check

    def damage(self: Any, path: str, *rest: Any) -> None:
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
        written(self, path, *rest)

    monkeypatch.setattr(Export, "_check", damage)
    with pytest.raises(ckptfmt.CorruptError, match="does not hold"):
        ckptfmt.convert(tmp_path / "ck", tmp_path / "x.safetensors")
    assert (tmp_path / "x.safetensors").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["ck.data-00000-of-00001", "ck.index", "x.safetensors"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "gguf"}, "to"),
        ({"to": "dcp"}, "only read"),
        ({"cast": 3}, "cast"),
        ({"cast": "nosuch"}, "nosuch"),
        ({"cast": "string"}, "numbers"),
        ({"max_shard_bytes": 10}, "max_shard_bytes"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: Any, message: str) -> None:
    ckptfmt.save(tmp_path / "ck", {"a": np.arange(3)})
    with pytest.raises(ckptfmt.InvalidError, match=message):
        ckptfmt.convert(tmp_path / "ck", tmp_path / "other", **options)
    assert not (tmp_path / "other.index").exists()


@pytest.mark.parametrize(
    ("name", "formats"),
    [
        ("\udcff", ["npz", "safetensors"]),
        ("x" * 65_531, []),
        ("x" * 65_532, ["npz"]),
        ("é" * 33_000, ["npz"]),
        ("a\0b", ["npz"]),
    ],
)
def test_names_that_a_format_lacks(tmp_path: Path, name: str, formats: list[str]) -> None:
    """The error names the tensor, and nothing is left."""
    ckptfmt.save(tmp_path / "ck", {name: np.ones(3)})
    before = sorted(os.listdir(tmp_path))
    for end in ("npz", "safetensors"):
        result = tmp_path / f"x.{end}"
        if end not in formats:
            ckptfmt.convert(tmp_path / "ck", result)
            os.unlink(result)
            continue
        with pytest.raises(ckptfmt.InvalidError) as caught:
            ckptfmt.convert(tmp_path / "ck", result)
        assert caught.value.tensor == name
        assert "temp" not in str(caught.value.path)
    assert sorted(os.listdir(tmp_path)) == before


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ckptfmt.save(tmp_path / "ck", {"a": np.arange(300), "b": np.arange(3).astype(ml_dtypes.int4)})
    source, result = str(tmp_path / "ck"), str(tmp_path / "x.safetensors")
    assert main(["convert", source, result]) == 2
    assert "int4" in capsys.readouterr().err
    assert main(["convert", source, result, "--cast", "b=int8"]) == 0
    sharded = str(tmp_path / "s.safetensors")
    words = ["convert", source, sharded, "--cast", "b=int8", "--max-shard-size", "1kB"]
    assert main(words) == 0
    assert (tmp_path / "s.safetensors.index.json").exists()
    assert main(["convert", sharded + ".index.json", str(tmp_path / "back")]) == 0
    assert ckptfmt.load(tmp_path / "back")["a"].tolist() == list(range(300))
    capsys.readouterr()
    assert main(["convert", source, sharded, "--overwrite", "--max-shard-size", "many"]) == 2
    assert "5GB" in capsys.readouterr().err
    assert main(["convert", source, sharded, "--cast", "int8", "--cast", "a=int8"]) == 2
    assert main(["convert", source, str(tmp_path / "file"), "--to", "npz", "--cast", "b=int8"]) == 0
    assert main(["convert", str(tmp_path / "x.npz"), str(tmp_path / "q")]) == 2
