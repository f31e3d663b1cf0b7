# SPDX-License-Identifier: Apache-2.0
"""Conversions to other names and layouts."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support.hostile import dcp, zip_tensor

import ckptfmt
from ckptfmt.cli import main
from ckptfmt.recipe import values
from ckptfmt.safetensors import load_file

KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """Some tensors of BERT, one of them partitioned."""
    path = tmp_path / "bert_model.ckpt"
    with ckptfmt.Writer(path, durability="none", metadata={"step": 1}) as writer:
        writer.add_slice("bert/pooler/dense/kernel", KERNEL[:1], shape=(2, 3), offset=(0, 0))
        writer.add_slice("bert/pooler/dense/kernel", KERNEL[1:], shape=(2, 3), offset=(1, 0))
        writer.add("bert/pooler/dense/bias", KERNEL[0])
        writer.add("bert/pooler/dense/bias/adam_m", KERNEL[0])
        writer.add("global_step", np.array(3))
    return path


@pytest.mark.parametrize("name", ["model.safetensors", "model.npz", "model"])
def test_convert_with_transforms(bert: Path, tmp_path: Path, name: str) -> None:
    result = tmp_path / name
    assert main(["convert", "--quiet", "--rename", "bert", str(bert), str(result)]) == 0
    if name == "model":
        loaded = ckptfmt.load(result)
        with ckptfmt.open(result) as reader:
            assert reader.metadata == {"step": 1}
    else:
        loaded = load_file(result) if name.endswith("safetensors") else dict(np.load(result))
    assert sorted(loaded) == ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]
    assert loaded["bert.pooler.dense.weight"].tolist() == KERNEL.T.tolist()
    assert loaded["bert.pooler.dense.bias"].tolist() == KERNEL[0].tolist()


RULES = ["--keep", "model.*", "--rename", "model.*=*"]


@pytest.mark.parametrize("source", ["checkpoint", "npz", "dcp"])
def test_selection(tmp_path: Path, source: str) -> None:
    """The weights alone under plain names, by one command."""
    tensors = dict.fromkeys(("model.w", "model.b", "optim.m"), KERNEL)
    path = tmp_path / "source"
    if source == "dcp":
        data = zip_tensor(KERNEL.shape, KERNEL.tobytes())
        path = dcp(tmp_path, data, KERNEL.shape, names=tuple(tensors))
    elif source == "npz":
        path = path.with_suffix(".npz")
        np.savez(path, **tensors)
    else:
        ckptfmt.save(path, tensors)
    for result in ("plain", "plain.safetensors"):
        assert main(["convert", "-q", str(path), str(tmp_path / result), *RULES]) == 0
    for found in (ckptfmt.load(tmp_path / "plain"), load_file(tmp_path / "plain.safetensors")):
        assert found.keys() == {"w", "b"} and np.array_equal(found["w"], KERNEL)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("x.npz", ["--rename", "brt"], "tables albert, bert, electra, electra-generator, t5"),
        ("x.npz", ["--rename", "bert", "--rename", "a=b"], "a table"),
        ("x.npz", ["--rename", "nothing=b"], "matches none of the 4 tensors"),
        ("x.npz", ["--keep", "nothing"], "matches none of the 4 tensors"),
    ],
)
def test_refused_selection(
    bert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    words: list[str],
    message: str,
) -> None:
    assert main(["convert", str(bert), str(tmp_path / name), *words]) == 2
    found = capsys.readouterr().err
    assert message in found and words[0] in found and not [*tmp_path.glob("x*")]


@pytest.mark.parametrize(("count", "length"), [(16, 16 << 10), (4096, 4)])
def test_memory_of_strings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, length: int
) -> None:
    """They count with what they take in memory, not with that of their references."""
    monkeypatch.setattr(values, "BATCH_BYTES", 1 << 20)
    tensors = {
        f"t{number}": np.array([b"%0*d" % (length, at) for at in range(count)], object)
        for number in range(24)
    }
    ckptfmt.save(tmp_path / "ck", tensors, durability="none")

    def convert() -> None:
        ckptfmt.convert(tmp_path / "ck", tmp_path / "x", rename=[("t", "u")], durability="none")

    convert()  # imports what is needed
    tracemalloc.start()
    convert()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20
    loaded = ckptfmt.load(tmp_path / "x")
    assert all(loaded[f"u{name[1:]}"].tolist() == one.tolist() for name, one in tensors.items())
