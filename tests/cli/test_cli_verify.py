# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt verify` of many checkpoints, of many findings, and of Git LFS pointers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files import flip

import ckptfmt
from ckptfmt.files.locate import locate_all
from cli.commands import Command, data_file, index_file, small

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three checkpoints, the one of a.b damaged, and files that are not checkpoints."""
    root = tmp_path / "runs"
    for name in ("a.b", "c/d"):
        (root / name).mkdir(parents=True)
    small(root)
    flip(data_file(small(root / "a.b")), 3)
    ckptfmt.save(root / "c/d/large", {"w": np.ones((40, 40))})
    (root / "c/faiss.index").write_bytes(b"IxF2" + bytes(100))
    (root / "again").symlink_to(root / "c")
    unfinished = root / "c/model_temp_0123456789abcdef"
    unfinished.mkdir()
    ckptfmt.save(unfinished / "part-00000-of-00002", {"w": np.ones(3)})
    return root


def test_locate_all(tree: Path) -> None:
    found = [str(Path(prefix).relative_to(tree)) for prefix in locate_all(tree)]
    assert found == ["small", "a.b/small", "c/d/large"]


def test_a_tree(command: Command, tree: Path) -> None:
    ran = command("verify", "-r", tree)
    assert (ran.status, ran.err) == (1, "")
    lines = ran.out.splitlines()
    verdicts = [line.split("  ")[0] for line in lines if not line.startswith("  ")]
    assert verdicts[:3] == ["sound", "not sound", "sound"]
    assert "problem: " in lines[2] and "DAT-6" in lines[2]
    assert lines[1].endswith(str(tree / "a.b/small")) and "5 tensors" in lines[1]
    assert lines[-1].startswith("3 checkpoints: 2 sound, 1 not sound; ")
    quiet = command("verify", "-r", "-q", tree)
    assert (quiet.status, quiet.out.splitlines()) == (1, lines[1:3])


def test_several_paths(command: Command, tree: Path) -> None:
    ran = command("verify", tree / "small", tree / "nothing", tree / "a.b")
    assert ran.status == 2, "one was not there"
    lines = ran.out.splitlines()
    assert lines[1].startswith("unreadable") and "Failed to find" in lines[2]
    assert lines[-1].startswith("3 checkpoints: 1 sound, 1 not sound, 1 unreadable; ")
    empty = tree / "c/model_temp_0123456789abcdef"
    ran = command("verify", "-r", empty)
    assert ran.status == 2 and "no checkpoint in this directory" in ran.out


def test_a_tree_with_a_lost_checkpoint(command: Command, tmp_path: Path) -> None:
    """The newest one of a state file is not there, and restoring it would fail; or the state file
    is damaged, and nothing would be restored."""
    for step in range(3):
        ckptfmt.save(tmp_path / f"ckpt-{step}", {"w": np.ones(2)})
    ckptfmt.tf.update_checkpoint_state(tmp_path, "ckpt-2")
    assert command("verify", "-r", tmp_path).status == 0
    (tmp_path / "ckpt-2.index").unlink()
    ran = command("verify", "-r", tmp_path)
    assert ran.status == 2 and f"{tmp_path / 'ckpt-2'}\n" in ran.out
    assert "3 checkpoints: 2 sound, 1 unreadable; " in ran.out
    (tmp_path / "checkpoint").write_bytes(b"\xff")
    ran = command("verify", "-r", "--json", tmp_path)
    assert ran.status == 1
    assert json.loads(ran.out.splitlines()[-2])["error"]["status"] == "CORRUPT"
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/moved/ckpt-2"\n')
    assert command("verify", "-r", tmp_path).status == 0


def test_a_tree_that_a_training_changes_meanwhile(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = ckptfmt.Checkpoint(w=np.ones(100_000))
    manager = ckptfmt.CheckpointManager(saved, tmp_path, max_to_keep=3)
    for _ in range(3):
        manager.save()
    usual, seen = ckptfmt.verify, list[str]()

    def verify(path: str, *, progress: Any, **more: Any) -> Any:
        seen.append(path.rpartition("-")[2])
        if seen == ["1"]:
            manager.save()  # which removes it

        def tell(done: int, total: int) -> None:
            progress(done, total)
            if seen == ["1", "2"]:
                saved.write(path)

        return usual(path, progress=tell, **more)

    monkeypatch.setattr(ckptfmt, "verify", verify)
    ran = command("verify", "-r", tmp_path)
    assert seen == ["1", "2", "2", "3"], "the one that was replaced is checked again"
    assert (ran.status, "2 checkpoints: 2 sound; " in ran.out) == (0, True)
    assert command("verify", tmp_path / "ckpt-1").status == 2


def test_a_document_per_checkpoint(command: Command, tree: Path) -> None:
    ran = command("verify", "-r", "--json", tree, tree / "nothing")
    assert (ran.status, ran.err) == (2, "")
    documents = [json.loads(line) for line in ran.out.splitlines()]
    assert all(document["schema"] == 2 for document in documents)
    assert [document["ok"] for document in documents[:3]] == [True, False, True]
    assert documents[-2]["path"] == str(tree / "nothing")
    assert documents[-2]["error"]["status"] == "NOT_FOUND"
    totals = documents[-1]["totals"]
    assert totals.pop("seconds") > 0
    assert totals == {
        "checkpoints": 4,
        "sound": 2,
        "not_sound": 1,
        "unreadable": 1,
        "tensors": sum(document["checked"]["tensors"] for document in documents[:3]),
        "bytes": sum(document["checked"]["bytes"] for document in documents[:3]),
    }


def test_a_store(command: Command) -> None:
    pytest.importorskip("obstore")
    for name in ("a", "b/c"):
        ckptfmt.save(f"memory://tree/{name}", {"w": np.ones(3)})
    ran = command("verify", "-r", "memory://tree")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert [line.split("  ")[-1] for line in lines[:2]] == ["memory://tree/a", "memory://tree/b/c"]


def cut(directory: Path, count: int = 1152) -> Path:
    """A checkpoint of many tensors whose data file ends early."""
    prefix = directory / "cut"
    ckptfmt.save(prefix, {f"{number:04}": np.ones(4) for number in range(count)}, level="v2")
    data = data_file(prefix)
    data.write_bytes(data.read_bytes()[:64])
    return prefix


def test_findings_that_are_alike_are_one(command: Command, tmp_path: Path) -> None:
    prefix = cut(tmp_path)
    ran = command("verify", prefix)
    assert ran.status == 1
    first, last = ran.out.splitlines()
    assert first.startswith("problem: 1,150 tensors like this one: ")
    assert "DAT-2: 32 bytes at 64" in first and "'0002'" in first
    assert last.startswith("not sound: 1,150 problems; ")
    assert len(command("verify", "--max-findings", "0", prefix).out.splitlines()) == 1151
    assert len(command("verify", "--max-findings", "1150", prefix).out.splitlines()) == 1151
    (finding,) = json.loads(command("verify", "--json", prefix).out)["findings"]
    assert finding["count"] == 1150 and finding["tensor"] == "0002"


def test_git_lfs_pointers(command: Command, tmp_path: Path) -> None:
    prefix = tmp_path / "large"
    ckptfmt.save(prefix, {"w": np.ones((40, 40))})
    data_file(prefix).write_text(POINTER)
    with pytest.raises(ckptfmt.CorruptError, match=r"the data file is a Git LFS pointer.*lfs pull"):
        ckptfmt.load(prefix)
    ran = command("verify", prefix)
    assert ran.status == 1
    assert "Git LFS pointer" in ran.out.splitlines()[0] and ran.out.count("problem") == 2
    index_file(prefix).write_text(POINTER)
    assert list(locate_all(tmp_path)) == [str(prefix)]
    data_file(prefix).unlink()
    assert list(locate_all(tmp_path)) == [str(prefix)], "no data file, but still a checkpoint"
    ran = command("verify", prefix)
    assert ran.status == 1
    assert "this is a Git LFS pointer" in ran.out.splitlines()[0]
    with pytest.raises(ckptfmt.CorruptError, match=r"Git LFS pointer.*lfs pull"):
        ckptfmt.open(prefix)


def test_a_file_that_cannot_be_read_beside_damage(command: Command, tmp_path: Path) -> None:
    """What is proven counts."""
    ckptfmt.save(tmp_path / "m", {"a": np.ones(9), "b": np.ones(9)}, shards=2)
    first, second = (tmp_path / f"m.data-0000{n}-of-00002" for n in range(2))
    second.unlink()
    second.mkdir()
    assert command("verify", tmp_path / "m").status == 2
    flip(first, 3)
    assert command("verify", tmp_path / "m").status == 1
