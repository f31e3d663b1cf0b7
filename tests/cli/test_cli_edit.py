# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt edit`, `average`, `split`, `cp`, `mv` and `rm`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files import contents, flip

import ckptfmt
from ckptfmt.cli import main


def save(prefix: Path, factor: float = 1, **options: Any) -> None:
    values = {
        "bert/layer_0/w": np.full((4, 3), factor, "f4"),
        "bert/layer_0/w/Adam": np.full((4, 3), factor, "f4"),
        "bert/layer_1/w": np.full(3, factor, "f4"),
        "beta1_power": np.float32(0.5),
        "step": np.int64(10 * factor),
    }
    ckptfmt.save(prefix, values, **options)


DROP = "--drop-weights"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rename", "step=global_step"], {"global_step"}),
        (["--rename", "bert/*=encoder/*", "--keep", "bert/layer_1/*", DROP], {"encoder/layer_1/w"}),
        (["--rename", "*/layer_*=*.*", "--keep", "*1/w", DROP], {"bert.1/w"}),
        (["--rename", r"/layer_(\d)/=l\1", "--keep", "*/w"], {"bert/l0/w", "bert/l1/w"}),
        (["--rename", "step=y=z", "--keep", "step", DROP], {"y=z"}),
        (["--rename", "/p$/=", "--keep", "step", DROP], {"ste"}),
        (["--strip-optimizer", "--drop", "step"], {"bert/layer_0/w", "bert/layer_1/w"}),
        (["--drop", "/^bert/", "--drop", "beta*", DROP], {"step"}),
    ],
)
def test_names(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: set[str]
) -> None:
    assert main(["edit", "a", "b", *words]) == 0
    out, err = capsys.readouterr()
    found = set(ckptfmt.load("b"))
    assert expected <= found and (len(expected) == 1 or expected == found)
    assert out.splitlines()[-1].startswith("wrote ") and err == ""


def test_what_was_done(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--rename", "step=n", "--drop", "*/Adam", "--cast", "*layer_1*=bfloat16"]
    assert main(["edit", "a", "b", *words]) == 0
    assert capsys.readouterr().out == (
        "weights: kept 2 (60 B)\n"
        "state of optimizers: kept 1 (4 B), dropped 1 (48 B)\n"
        "other tensors: kept 1 (8 B)\n"
        "renamed 1 tensor\n"
        "  step to n\n"
        "dropped 1 tensor\n"
        "  bert/layer_0/w/Adam\n"
        "cast 1 tensor\n"
        "  bert/layer_1/w from float32 to bfloat16\n"
        "wrote 4 tensors to b\n"
    )
    assert main(["edit", "a", "c", *words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "schema": 2,
        "path": "c",
        "tensors": 4,
        "renamed": {"step": "n"},
        "dropped": ["bert/layer_0/w/Adam"],
        "casts": {"bert/layer_1/w": ["float32", "bfloat16"]},
        "copied_nbytes": 72,
        "losses": {},
        "zeros": {},
        "kept": {"weight": [2, 60], "optimizer": [1, 4], "other": [1, 8]},
        "lost": {"optimizer": [1, 48]},
        "undecided": [],
        "missing": [],
        "uncast": [],
    }
    assert main(["edit", "a", "d", *words, "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_swap(place: Path) -> None:
    assert main(["edit", "a", "b", "--rename", "step=beta1_power", "--rename", "beta1*=step"]) == 0
    before, after = ckptfmt.load("a"), ckptfmt.load("b")
    assert before["step"] == after["beta1_power"] and before["beta1_power"] == after["step"]
    assert main(["edit", "a", "c", "--rename", "step=zz", "--rename", "zz=yy"]) == 2


def test_a_dry_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(place)
    words = ["--rename", "step=n", "--drop", "*/Adam", "--cast", "*layer_1*=bfloat16"]
    assert main(["edit", "a", "b", *words, "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("would write 4 tensors to b\n")
    assert main(["edit", "a", "b", *words, "-n", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert contents(place) == before
    assert main(["edit", "a", "b", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == planned | {"copied_nbytes": 72}


def test_metadata(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["step=7", "by=me", "rate=0.5", "ok=true", "ids=[1, 2]", "url=http://x?a=b"]
    options = [part for word in words for part in ("--set-metadata", word)]
    assert main(["edit", "a", "b", *options]) == 0
    expected = {"step": 7, "by": "me", "rate": 0.5, "ok": True, "ids": [1, 2]}
    with ckptfmt.open("b") as reader:
        assert reader.metadata == {**expected, "url": "http://x?a=b"}
    assert main(["edit", "b", "b", "--overwrite", "--set-metadata", "url="]) == 0
    with ckptfmt.open("b") as reader:
        assert reader.metadata == expected
    assert main(["edit", "b", "c", "--set-metadata", "x="]) == 2
    assert "the metadata has no 'x'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rename", "stop=x"], "--rename 'stop=x' matches none of the 5 tensors; the nearest"),
        (["--rename", "step"], "expected OLD=NEW"),
        (["--rename", "step=*"], "NEW has a *"),
        (["--rename", "/(/=x"], "unterminated"),
        (["--rename", "step=x", "--rename", "s*=y"], "each tensor is renamed once"),
        (["--drop", "x"], "'x' matches none"),
        (["--drop", "bert/*"], "2 of the 3 tensors that would be dropped are weights"),
        (["--keep", "step"], "2 of the 4 tensors that would be dropped are weights"),
        (["--cast", "int8"], "and only 0-d ones match: --cast 'step=int8' casts one"),
        (["--cast", "nope"], "'nope'"),
        (["--cast", "*w=half", "--cast", "*w=bfloat16"], "--cast '*w=...' is given twice"),
        (["--cast", "*w=half", "--cast", "*w=half"], "--cast '*w=...' is given twice"),
        (["--cast", "half", "--cast", "bfloat16"], "--cast DTYPE can be given once"),
        (["--cast", "half", "--cast", "*w=half"], "--cast DTYPE can be given once"),
        (["--cast", "=half"], "--cast '=half': expected [FILTER=]DTYPE"),
        (["--cast", "*w="], "--cast '*w=': expected [FILTER=]DTYPE"),
        (["--cast", "*=half", "--cast", "step=int8"], "an earlier filter matches all"),
        (["--set-metadata", "a=1", "--set-metadata", "a=2"], "'a=2': 'a' is given twice"),
        (["--set-metadata", "a=1", "--set-metadata", "a="], "'a=': 'a' is given twice"),
        (["--set-metadata", "x"], "expected KEY=VALUE"),
        ([], "nothing to edit"),
    ],
)
def test_mistakes(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    before = contents(place)
    assert main(["edit", "a", "b", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1
    assert main(["edit", "a", "b", "--json", *words]) == 2
    assert message in json.loads(capsys.readouterr().out)["error"]["message"]
    assert contents(place) == before


def test_average(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(place / "b", 3)
    assert main(["average", "a", "b", "m"]) == 0
    assert capsys.readouterr().out == (
        "took 1 tensor from the first checkpoint\n  step\n"
        "averaged 4 tensors of 2 checkpoints into m\n"
    )
    assert np.array_equal(ckptfmt.load("m")["bert/layer_1/w"], [2, 2, 2])
    assert main(["average", "--json", "--overwrite", "a", "b", "m"]) == 0
    document = json.loads(capsys.readouterr().out)
    more = {"missing": [], "losses": {}, "zeros": {}, "uncast": [], "dropped": []}
    assert document == {"schema": 2, "path": "m", "averaged": 4, "taken": ["step"], **more}
    assert main(["average", "a", "b"]) == 2  # DESTINATION is forgotten
    assert "DESTINATION already holds a checkpoint" in capsys.readouterr().err


def test_average_of_files(place: Path) -> None:
    """Of what is kept, into another format, cast after the mean."""
    save(place / "b", 3)
    assert main(["convert", "-q", "a", "a.safetensors", "--drop", "step"]) == 0
    words = ["--keep", "bert/*", "--rename", "bert/*=*", "--cast", "float16"]
    for more, name in ((["a.safetensors", "b"], "m.npz"), (["a", "b"], "m")):
        assert main(["average", "-q", *more, name, *words]) == 0
    with np.load("m.npz") as file:
        found = dict(file)
    assert found.keys() == ckptfmt.load("m").keys()
    for name, array in ckptfmt.load("m").items():
        assert array.dtype == np.float16 and np.array_equal(found[name], array)
    assert np.array_equal(found["layer_1/w"], [2, 2, 2])
    assert main(["average", "-q", "a.safetensors", "b", "m.npz"]) == 2


def test_a_dry_run_of_average(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(place / "b", 3)
    before = contents(place)
    assert main(["average", "-n", "a", "b", "new/m"]) == 0
    assert capsys.readouterr() == (
        "took 1 tensor from the first checkpoint\n  step\n"
        "would average 4 tensors of 2 checkpoints into new/m\n",
        "",
    )
    assert main(["average", "--dry-run", "--json", "a", "b", "m"]) == 0
    planned = capsys.readouterr().out
    assert main(["average", "--dry-run", "a", "b"]) == 2
    assert main(["average", "--dry-run", "a", "nothing", "m"]) == 2
    assert "nothing" in capsys.readouterr().err
    assert contents(place) == before and not Path("new").exists()
    assert main(["average", "--json", "a", "b", "m"]) == 0
    assert capsys.readouterr().out == planned


def test_convert_into_several_data_files(tmp_path: Path) -> None:
    values = {str(number): np.ones((64, 64), "f4") for number in range(6)}
    ckptfmt.save(tmp_path / "a", values, metadata={"step": 1})
    for count in (3, 1):
        prefix = str(tmp_path / f"b{count}")
        assert main(["convert", "--shards", str(count), str(tmp_path / "a"), prefix]) == 0
        with ckptfmt.open(prefix) as reader, ckptfmt.open(tmp_path / "a") as before:
            assert reader.digest() == before.digest() and reader.metadata == before.metadata
            assert set(reader.table()["shard"]) == set(range(count))
    for refused in (["0", str(tmp_path / "c")], ["2", str(tmp_path / "c.npz")]):
        assert main(["convert", "--shards", refused[0], str(tmp_path / "a"), refused[1]]) == 2


def test_cp_and_mv(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = ckptfmt.load("a")
    (place / "best").mkdir()
    (place / "checkpoint").write_text('model_checkpoint_path: "a"\n')
    assert main(["cp", "a", "b"]) == 0
    assert main(["cp", "a.index", "best/"]) == 0
    inode = (place / "a.data-00000-of-00001").stat().st_ino
    assert (place / "best" / "a.data-00000-of-00001").stat().st_ino == inode
    assert main(["mv", "b", "c"]) == 0
    assert not list(place.glob("b.*"))
    for prefix in ("a", "best/a", "c"):
        assert {name: array.tolist() for name, array in ckptfmt.load(prefix).items()} == {
            name: array.tolist() for name, array in values.items()
        }
    assert capsys.readouterr().out == "copied a to b\ncopied a to best/a\nmoved b to c\n"
    assert main(["mv", "a", "c"]) == 2
    assert main(["mv", "a", "a"]) == 2
    assert main(["cp", "a", "best"]) == 2, "best/a is there"
    assert main(["cp", "a", "best", "--overwrite"]) == 0
    assert main(["mv", "--overwrite", "a", "c"]) == 0
    assert (place / "checkpoint").read_text() == 'model_checkpoint_path: "a"\n'
    assert not list(place.glob("a.*"))


def test_cp_to_a_store(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = "memory://cp/run/model"
    assert main(["cp", "a", url]) == 0
    assert main(["mv", url, f"{url}-2"]) == 0
    assert main(["cp", f"{url}-2", "b"]) == 0
    with ckptfmt.open("a") as one, ckptfmt.open("b") as other:
        assert (one.digest(), one.level) == (other.digest(), other.level)
    assert main(["mv", "a", url]) == 2
    assert "must be in one store" in capsys.readouterr().err


def test_rm(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a-1", "a.b", "aa"):
        save(place / name)
    (place / "a.txt").write_text("mine")
    (place / "checkpoint").write_text('model_checkpoint_path: "a"\n')
    everything = contents(place)
    assert main(["rm", "--dry-run", "a"]) == 0
    assert main(["rm", "a", "nowhere"]) == 2
    assert main(["rm", "."]) == 2
    assert contents(place) == everything
    assert main(["rm", "./a", "aa.index", "a.index"]) == 0
    out = capsys.readouterr().out
    assert out == "would remove a\nremoved a\nremoved aa\n"
    gone = {name for name in everything if name.split(".")[0] in ("a", "aa")}
    gone -= {"a.txt"} | {name for name in everything if name.startswith("a.b.")}
    assert contents(place) == {name: everything[name] for name in everything.keys() - gone}


def test_rm_of_what_is_no_checkpoint(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "notes.index").write_text("see page 3\n")
    (place / "book.index").write_text("see page 3\n" * 100)
    for name in ("notes", "book"):
        assert main(["rm", name]) == 1
        assert (place / f"{name}.index").exists()
    # A damaged one can be removed.
    flip(place / "a.index", 10)
    assert main(["verify", "a"]) == 1
    assert main(["mv", "a", "b"]) == 1
    assert main(["rm", "a"]) == 0
    assert not list(place.glob("a.*"))
