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
from ckptfmt.bundle import comparing
from ckptfmt.cli import main
from ckptfmt.recipe import values
from ckptfmt.recipe.export import Export
from ckptfmt.safetensors import load_file, save_file


def test_npz(tmp_path: Path) -> None:
    tensors = {
        "a/b": np.arange(12, dtype=np.float32).reshape(3, 4),
        "scalar": np.array(7),
        "none": np.zeros((0, 2), np.int8),
        "flags": np.array([True, False]),
        "waves": np.ones(2, np.complex128),
    }
    ckptfmt.save(tmp_path / "ck", tensors, metadata={"step": 1})
    done = ckptfmt.convert(tmp_path / "ck", tmp_path / "x.npz")
    assert done.dropped == ("the metadata",)
    with np.load(tmp_path / "x.npz") as loaded:
        assert set(loaded) == set(tensors)
        for name, array in tensors.items():
            assert loaded[name].dtype == array.dtype
            assert np.array_equal(loaded[name], array)
    ckptfmt.convert(tmp_path / "x.npz", tmp_path / "back")
    assert {name: one.tolist() for name, one in ckptfmt.load(tmp_path / "back").items()} == {
        name: one.tolist() for name, one in tensors.items()
    }


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


def test_casts(tmp_path: Path) -> None:
    tensors = {
        "narrow": np.arange(3).astype(ml_dtypes.int4),
        "wide": np.arange(3.0),
        "half": np.arange(3).astype(ml_dtypes.bfloat16),
    }
    ckptfmt.save(tmp_path / "ck", tensors)
    with pytest.raises(ckptfmt.InvalidError, match=r"safetensors cannot hold int4.*cast") as found:
        ckptfmt.convert(tmp_path / "ck", tmp_path / "x.safetensors")
    assert found.value.tensor == "narrow"
    done = ckptfmt.convert(tmp_path / "ck", tmp_path / "x.safetensors", cast="int8")
    assert done.casts == {"narrow": ("int4", "int8")}
    done = ckptfmt.convert(
        tmp_path / "ck",
        tmp_path / "x.safetensors",
        cast={"n*": "uint8", "wide": "float16", "*": "float32"},
    )
    assert done.casts == {
        "narrow": ("int4", "uint8"),
        "wide": ("float64", "float16"),
        "half": ("bfloat16", "float32"),
    }
    loaded = load_file(tmp_path / "x.safetensors")
    assert [loaded[name].dtype.name for name in ("narrow", "wide", "half")] == [
        "uint8",
        "float16",
        "float32",
    ]
    assert all(one.tolist() == [0, 1, 2] for one in loaded.values())


def test_what_casts_lose(tmp_path: Path) -> None:
    with ckptfmt.Writer(tmp_path / "ck") as writer:
        writer.add("waves", np.array([1, 1 + 1e-3j], np.complex128))
        writer.add("large", np.array([1e300, np.nan, -1.0]))
        writer.add("quantized", np.arange(-1, 2, dtype=np.int8), dtype="qint8")
    casts = {"waves": "float32", "large": "float16", "quantized": "int8"}
    for other in ({}, {"waves": "complex64"}):
        with pytest.raises(ckptfmt.InvalidError, match="changes 1 element") as caught:
            ckptfmt.convert(tmp_path / "ck", tmp_path / "x.safetensors", cast=casts | other)
        assert caught.value.tensor in ({"large"} if other else {"large", "waves"})
        assert not (tmp_path / "x.safetensors").exists()
    with pytest.raises(ckptfmt.TensorNotFoundError, match=r"'waves\?' matches none"):
        ckptfmt.convert(tmp_path / "ck", tmp_path / "x.safetensors", cast={"waves?": "float32"})
    done = ckptfmt.convert(tmp_path / "ck", tmp_path / "x.safetensors", cast=casts, allow_loss=True)
    assert done.casts["quantized"] == ("qint8", "int8")
    assert done.losses == {"waves": 1, "large": 1}
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded["waves"].tolist() == [1, 1]
    assert loaded["quantized"].tolist() == [-1, 0, 1]
    assert str(loaded["large"].tolist()) == "[inf, nan, -1.0]"
    ckptfmt.convert(tmp_path / "x.safetensors", tmp_path / "back", cast={"quantized": "qint8"})
    with ckptfmt.open(tmp_path / "back") as reader:
        assert reader["quantized"].dtype_name == "qint8"


def test_strings_and_objects(tmp_path: Path) -> None:
    """The object graph is left out; other strings are refused by name."""
    ckptfmt.Checkpoint(v=ckptfmt.types.TreeNode({})).save(tmp_path / "empty")
    ckptfmt.save_tree(tmp_path / "tree", {"layer": {"kernel": np.arange(4.0)}})
    done = ckptfmt.convert(tmp_path / "tree", tmp_path / "x.safetensors")
    assert done.dropped == ("TensorFlow's object graph",)
    assert [one.tolist() for one in load_file(tmp_path / "x.safetensors").values()] == [
        [0, 1, 2, 3]
    ]
    ckptfmt.save(tmp_path / "words", {"vocabulary": np.array([b"a"], object)})
    with pytest.raises(ckptfmt.InvalidError, match="cannot hold strings") as found:
        ckptfmt.convert(tmp_path / "words", tmp_path / "y.safetensors")
    assert found.value.tensor == "vocabulary"
    assert not (tmp_path / "y.safetensors").exists()


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


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_large_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Any) -> None:
    """Those that go through a temporary file, in pieces; and partitioned ones."""
    monkeypatch.setattr(values, "HELD_MAX", 1000)
    monkeypatch.setattr(comparing, "PIECE_BYTES", 4096)
    big = np.random.default_rng(1).normal(size=(900, 301))
    with ckptfmt.Writer(tmp_path / "ck", level=level) as writer:
        writer.add("whole", big)
        writer.add_slice("parts", big[:500], shape=big.shape, offset=(0, 0))
        writer.add_slice("parts", big[500:], shape=big.shape, offset=(500, 0))
    done: list[tuple[int, int]] = []
    ckptfmt.convert(
        tmp_path / "ck", tmp_path / "x.safetensors", progress=lambda *both: done.append(both)
    )
    assert done[-1] == (2 * big.nbytes, 2 * big.nbytes)
    ckptfmt.convert(tmp_path / "x.safetensors", tmp_path / "back", level=level)
    assert all(np.array_equal(one, big) for one in ckptfmt.load(tmp_path / "back").values())


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
        ({"cast": "int8"}, "edit"),
        ({"drop": "a"}, "edit"),
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


@pytest.mark.parametrize("source", ["ck", "a.npz", "a.safetensors"])
@pytest.mark.parametrize("to", ["out", "b.safetensors", "b.npz"])
def test_names_that_are_not_there(tmp_path: Path, source: str, to: str) -> None:
    """Refused as by loads and edits; so are names that are given twice."""
    ckptfmt.save(tmp_path / "ck", {"a/w": np.arange(3.0), "a/b": np.ones(2), "c": np.zeros(2)})
    if source != "ck":
        ckptfmt.convert(tmp_path / "ck", tmp_path / source)
    options: list[dict[str, Any]] = [{"rename": {"a/w": "w", "d": "e"}}]
    if source != "ck" or to != "out":
        options += [{"drop": "d*"}, {"drop": ["a/*", "d"]}, {"drop": []}, {"cast": {"d": "f2"}}]
        options += [{"drop": "*"}, {"cast": {b"c": "f2", "c": "f4"}}]
    for given in options:
        with pytest.raises((ckptfmt.TensorNotFoundError, ckptfmt.InvalidError)) as caught:
            ckptfmt.convert(tmp_path / source, tmp_path / to, **given)
        assert caught.value.argument in given
        assert not list(tmp_path.glob(f"{to}*"))
    if source != "ck" or to != "out":
        done = ckptfmt.convert(tmp_path / source, tmp_path / to, drop=["a/*"], rename=[("c", "d")])
        assert done.tensors == 1
        assert ckptfmt.convert(tmp_path / to, tmp_path / "again.npz").tensors == 1
        assert list(np.load(tmp_path / "again.npz")) == ["d"]


def test_what_a_format_cannot_hold_is_left_out_by_name(tmp_path: Path) -> None:
    ckptfmt.save(
        tmp_path / "ck", {"t": np.array([b"x"], object), "w": np.ones(2)}, metadata={"epoch": 3}
    )
    with pytest.raises(ckptfmt.InvalidError, match="drop='t'"):
        ckptfmt.convert(tmp_path / "ck", tmp_path / "a.safetensors")
    done = ckptfmt.convert(tmp_path / "ck", tmp_path / "a.safetensors", drop="t")
    assert done.tensors == 1 and "epoch" in done.dropped[0]


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
