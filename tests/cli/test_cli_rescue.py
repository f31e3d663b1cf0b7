# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt rescue` and `show --unverified`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.files import flip, listing

import ckptfmt
from ckptfmt.cli import main
from ckptfmt.editing import rescue


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first tensor, of four chunks, has a flipped bit in the second; the last is cut off."""
    monkeypatch.chdir(tmp_path)
    tensors = {"a": np.zeros((1024, 128)), "b": np.ones(3), "c": np.ones(999)}
    ckptfmt.save("ck", tensors, metadata={"step": 3})
    data = tmp_path / "ck.data-00000-of-00001"
    flip(data, 64 + (300 << 10))
    os.truncate(data, data.stat().st_size - 64)
    return tmp_path


def test_rescue(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = listing(damaged)
    assert main(["rescue", "--unproven", "ck", "out"]) == 1
    lost_a, lost_c, kept, unproven = capsys.readouterr().out.splitlines()
    assert lost_a.startswith("lost: a: CHECKSUM") and lost_a.endswith(
        "rows 0:256, 512:1024 are sound"
    )
    assert lost_c.startswith("lost: c: TRUNCATED")
    assert (kept, unproven) == (
        "rescued 1 tensor to out",
        "wrote 1 unproven tensor to out-unproven",
    )
    assert {*before} <= {*listing(damaged)}
    with ckptfmt.open("out") as reader:
        assert list(reader) == ["b"] and reader.metadata == {"step": 3}
    assert ckptfmt.load("out-unproven")["a"].shape == (1024, 128)
    assert main(["rescue", "ck", "out"]) == 2  # it is there
    (damaged / "here").symlink_to(".")
    for same in ("ck", "./ck", "here/ck", "../" + damaged.name + "/ck"):
        assert main(["rescue", "ck", same, "--overwrite"]) == 2
    assert main(["rescue", "out-unproven", "out", "--unproven", "--overwrite"]) == 2
    assert main(["rescue", "nothing", "new"]) == 2
    assert main(["rescue", "-q", "out", "whole"]) == 0
    (damaged / "out.data-00000-of-00001").unlink()
    (damaged / "cut.safetensors").write_bytes(b"cut")
    capsys.readouterr()
    assert main(["rescue", "--unproven", "cut.safetensors", "none"]) == 2
    assert "--unproven" in capsys.readouterr().err
    for source in ("out", "cut.safetensors"):
        assert main(["rescue", source, "none"]) == 1
        assert "rescue`" not in capsys.readouterr().err and not [*damaged.glob("none*")]
    capsys.readouterr()
    assert main(["rescue", "--json", "--overwrite", "ck", "out"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert {*document.pop("lost")} == {"a", "c"}
    more = {"index": [], "unproven": {}, "structure": "none", "metadata": "whole"}
    assert document == {"schema": 2, "path": "out", "kept": ["b"], **more}


def test_show_unverified(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "ck", "a"]) == 1
    assert "`ckptfmt rescue`" in capsys.readouterr().err
    assert main(["show", "--unverified", "--stats", "ck", "a"]) == 0
    assert "float64 [1024, 128]" in capsys.readouterr().out
    np.save("a.npy", np.ones(3))
    np.savez("a.npz", a=np.ones(3))
    assert main(["show", "--unverified", "a.npz", "a"]) == 2


def test_safetensors_files_without_an_index(tmp_path: Path) -> None:
    """One without a header may have had any names, and more slices of any tensor."""
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    (tmp_path / "dir").mkdir()
    for number, name in enumerate(names):
        ckptfmt.safetensors.save_file({f"t{number}": np.full(3, number)}, tmp_path / "dir" / name)
    head = {"s": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}
    notes = {"DCP_SHARDING_INFO": json.dumps({"s": {"saved_offsets": [0]}})}
    header = json.dumps({**head, "__metadata__": notes}).encode()
    (tmp_path / "dir/shard-00001-model-00001-of-00001.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + b"ab"
    )
    done = rescue(tmp_path / "dir", tmp_path / "whole")
    assert done.kept == ("t0", "t1", "t2", "s") and not done.lost and not done.index
    index = tmp_path / "dir/model.safetensors.index.json"
    for text in ("", '{"weight_map": {"t0', "{}"):
        index.write_text(text)
        done = rescue(tmp_path / "dir", tmp_path / "out")
        assert done.kept == ("t0", "t1", "t2", "s") and not done.lost
        assert len(done.index) == 1 and str(index) in done.index[0]
    index.unlink()
    damaged = tmp_path / "dir" / names[1]
    for damage in (damaged.unlink, damaged.touch):
        damage()
        done = rescue(tmp_path / "dir", tmp_path / "out")
        assert done.kept == ("t0", "t2") and {*done.lost} == {"s", "..."}


def test_hdf5_that_is_cut_in_a_heap_of_texts(tmp_path: Path) -> None:
    """In a heap of texts that ends with zeros HDF5 looks for the end of the heap forever."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(3.0)
        group = file.create_group("b/vars")
        group.attrs["name"] = "dense"
        group["c"] = np.ones(9)
    content = path.read_bytes()
    os.truncate(path, content.index(b"GCOL") + 100)
    command = [sys.executable, "-m", "ckptfmt", "rescue", path, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "lost: b/vars/...: " in done.stdout, done
    assert ckptfmt.load(tmp_path / "out")["a"].tolist() == [0, 1, 2]


def test_rows_of_slices_that_are_left(tmp_path: Path) -> None:
    for part in range(4):
        with ckptfmt.Writer(tmp_path / f"{part}", level="v2") as writer:
            writer.add_slice("t", np.full((3, 50_000), part), (12, 50_000), (3 * part, 0))
            writer.add(f"{part}", part)
    ckptfmt.merge([tmp_path / f"{part}" for part in range(4)], tmp_path / "ck")
    (tmp_path / "ck.data-00001-of-00004").unlink()
    lost = rescue(tmp_path / "ck", tmp_path / "out").lost
    assert {*lost} == {"1", "t"} and lost["t"].endswith("rows 0:3, 6:12 are sound")


def test_slices_whose_tensor_is_lost(tmp_path: Path) -> None:
    """Their entries are in another block of the index than that of the tensor."""
    with ckptfmt.Writer(tmp_path / "ck") as writer:
        for row in range(3):
            writer.add_slice("t/9", np.full((1, 4), row), (3, 4), (row, 0))
        for number in range(6_000):  # of long names: several blocks
            digits = hashlib.sha256(b"%d" % number).hexdigest().replace("9", "g")
            writer.add(f"t/{number % 8}/{number}/{digits}", np.float32(number))
    index = tmp_path / "ck.index"
    content = bytearray(index.read_bytes())
    at = content.rindex(b"9", 0, len(content) - 400)
    for place in (at, at + 9, at - 40):
        content[place] ^= 0x55
    index.write_bytes(content)
    done = rescue(tmp_path / "ck", tmp_path / "out")
    assert ckptfmt.verify(tmp_path / "out").ok
    loaded = ckptfmt.load(tmp_path / "out")
    assert 2_400 < len(done.kept) == len(loaded) and not any("\0" in name for name in loaded)
    assert "t/9" not in loaded and "..." in done.lost and not any("\0" in one for one in done.lost)
    assert all(loaded[name] == int(name.split("/")[2]) for name in loaded)
    # A name can begin as theirs do.
    ckptfmt.save(tmp_path / "zero", {"\0a": np.ones(2)})
    assert rescue(tmp_path / "zero", tmp_path / "copy").kept == ("\0a",)


def test_metadata_alone(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {}, metadata={"step": 3})
    flip(tmp_path / "ck.index", 7)
    assert main(["rescue", str(tmp_path / "ck"), str(tmp_path / "out")]) == 0
    with ckptfmt.open(tmp_path / "out") as reader:
        assert reader.metadata == {"step": 3} and not len(reader)
