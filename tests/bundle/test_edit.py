# SPDX-License-Identifier: Apache-2.0
"""Edits: what is written, what is linked, and what is refused. The object graph is in
tests/objects/test_edited_graphs.py."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrays import CODES, NAMES, random_array
from support.files import contents, flip

import ckptfmt
from ckptfmt import CorruptError, InvalidError, TensorNotFoundError
from ckptfmt.editing import edit
from ckptfmt.naming.roles import model_roles

LEVELS = ("v2", "v2+", "ckptfmt")
MiB = 1 << 20


def tensors(seed: int) -> dict[str, Any]:
    """A tensor of every dtype, one that is worth compressing, one without elements."""
    chance = random.Random(seed)
    found: dict[str, Any] = {
        f"d/{NAMES[code]}": random_array(chance, code, (3, 5)) for code in CODES
    }
    found["w"] = np.random.default_rng(seed).normal(0, 0.02, (700, 600)).astype("f4")
    found["empty"] = np.zeros((0, 4), "f4")
    return found


def save(prefix: Path, seed: int, level: Any) -> dict[str, Any]:
    """Save these, and a partitioned tensor."""
    values = tensors(seed)
    with ckptfmt.Writer(
        prefix, level=level, metadata=None if level == "v2" else {"step": 3}, shards=2
    ) as writer:
        for name, value in values.items():
            writer.add(name, value, name.removeprefix("d/") if name[:2] == "d/" else None)
        part = values["p"] = np.arange(40_000.0).reshape(200, 200)
        writer.add_slice("p", part[120:], part.shape, (120, 0))
        writer.add_slice("p", part[:120], part.shape, (0, 0))
    return values


def data_files(prefix: Path) -> list[Path]:
    return sorted(prefix.parent.glob(f"{prefix.name}.data-*"))


def inodes(prefix: Path) -> list[int]:
    return [path.stat().st_ino for path in data_files(prefix)]


@pytest.mark.parametrize("level", LEVELS)
def test_renaming_writes_an_index_only(tmp_path: Path, level: str, seed: int) -> None:
    """Of every dtype; the same names again are the same bytes."""
    save(tmp_path / "a", seed, level)
    done = edit(tmp_path / "a", tmp_path / "b", rename=[("^d/", "kinds/"), ("p", "q")])
    assert inodes(tmp_path / "b") == inodes(tmp_path / "a")
    back = {new: old for old, new in done.renamed.items()}
    edit(tmp_path / "b", tmp_path / "c", rename=back)
    assert (tmp_path / "c.index").read_bytes() == (tmp_path / "a.index").read_bytes()


def test_what_is_dropped_frees_its_space(tmp_path: Path) -> None:
    values = {"w": np.ones(MiB // 8), "w/Adam": np.ones(MiB // 8), "step": np.int64(1)}
    ckptfmt.save(tmp_path / "a", values)
    assert edit(tmp_path / "a", tmp_path / "b", drop="*/Adam").copied_nbytes == MiB + 8
    assert sum(path.stat().st_size for path in data_files(tmp_path / "b")) < MiB + 4096
    # Not worth copying the others, unless it is asked for.
    done = edit(tmp_path / "a", tmp_path / "c", drop=["step"])
    assert done.copied_nbytes == 0 and inodes(tmp_path / "c") == inodes(tmp_path / "a")
    done = edit(tmp_path / "a", tmp_path / "d", drop=["step"], compact=True)
    assert done.copied_nbytes == 2 * MiB
    for name in "cd":
        assert set(ckptfmt.load(tmp_path / name)) == {"w", "w/Adam"}
        assert not ckptfmt.verify(tmp_path / name).problems


def test_only_files_that_lose_much_are_copied(tmp_path: Path) -> None:
    with ckptfmt.Writer(tmp_path / "a", shards=2) as writer:
        for name in ("w", "w/Adam", "v", "v/Adam"):
            writer.add(name, np.ones(5000))
    done = edit(tmp_path / "a", tmp_path / "b", drop="w/Adam")
    assert done.copied_nbytes == 40_000
    assert len(set(inodes(tmp_path / "b")) & set(inodes(tmp_path / "a"))) == 1
    assert set(ckptfmt.load(tmp_path / "b")) == {"w", "v", "v/Adam"}


def test_the_place_of_a_loss_is_that_in_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptfmt.recipe.values.STEP_BYTES", 16)
    rows = np.arange(24.0).reshape(4, 6)
    rows[2, 5] = 1e30
    with ckptfmt.Writer(tmp_path / "a") as writer:
        writer.add_slice("p", rows[:1], rows.shape, (0, 0))
        writer.add_slice("p", rows[1:], rows.shape, (1, 0))
    with pytest.raises(InvalidError, match=r"at least 1 element .*at \[2, 5\]"):
        edit(tmp_path / "a", tmp_path / "b", cast="float16")


@pytest.mark.parametrize("folder", ["{}", "memory://edit"])
def test_into_a_store(tmp_path: Path, folder: str) -> None:
    source = f"{folder.format(tmp_path)}/a"
    ckptfmt.save(source, {"w": np.ones(3)}, metadata={"step": 1})
    assert edit(source, "memory://edit-2/b", rename={"w": "v"}).copied_nbytes == 24
    with ckptfmt.open("memory://edit-2/b") as reader:
        assert (list(reader), reader.metadata) == (["v"], {"step": 1})


def of_values(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A transform whose dtype depends on the values."""
    return array if array.any() else array.astype("i4")


MISTAKES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, InvalidError, "nothing to edit"),
    ({"drop": []}, InvalidError, "drop is empty"),
    ({"rename": {"w": ""}}, InvalidError, "TAB-12"),
    ({"rename": {"w": "_CKPTFMT_x"}}, InvalidError, "reserved"),
    ({"rename": [("w", "x", bytes)]}, InvalidError, "a numpy array"),
    ({"rename": [("w", "x", of_values)]}, InvalidError, "for zeros, and float32"),
    ({"level": ""}, InvalidError, "level"),
    ({"cast": "string"}, InvalidError, "not a dtype of numbers"),
    ({"cast": 3}, InvalidError, "cast"),
    ({"metadata": {"a": None}}, InvalidError, "metadata 'a' cannot be stored"),
    ({"drop": "w"}, InvalidError, "1 of the 1 tensors that would be dropped are weights"),
    ({"rename": [("^w$", None)]}, InvalidError, "are weights, or may be: 'w'"),
    ({"strip_optimizer": True}, TensorNotFoundError, "no tensor is known to be the state"),
]


@pytest.mark.parametrize(("options", "error", "message"), MISTAKES)
def test_mistakes(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    ckptfmt.save(
        tmp_path / "a",
        {"w": np.ones(3, "f4"), "v": np.ones(3, "f4"), "s": np.array([b"x"], object)},
    )
    before = contents(tmp_path)
    with pytest.raises(error, match=message):
        edit(tmp_path / "a", tmp_path / "b", **options)
    assert contents(tmp_path) == before


def test_what_may_be_a_weight_is_dropped_only_on_demand(tmp_path: Path) -> None:
    arrays = {"w": np.ones(3), "optimizer/scale": np.ones(2), "w/Momentum": np.ones(3)}
    ckptfmt.save(tmp_path / "a", arrays)
    with ckptfmt.open(tmp_path / "a") as reader:
        roles = model_roles(reader)
    assert roles == {"w": "weight", "optimizer/scale": "unknown", "w/Momentum": "optimizer"}
    for name in ("w", "optimizer/scale"):
        with pytest.raises(InvalidError, match="are weights"):
            edit(tmp_path / "a", tmp_path / "b", drop=name)
        assert not (tmp_path / "b.index").exists()
    edit(tmp_path / "a", tmp_path / "b", drop="w/Momentum")
    assert sorted(ckptfmt.load(tmp_path / "b")) == ["optimizer/scale", "w"]
    edit(tmp_path / "a", tmp_path / "c", drop="optimizer/scale", drop_weights=True)
    assert sorted(ckptfmt.load(tmp_path / "c")) == ["w", "w/Momentum"]


@pytest.mark.parametrize(
    ("names", "glob"),
    [
        (["w", "opt_state/0/mu/w", "opt_state/0/nu/w"], "opt_state/*"),
        (["m/w", "m/opt_state/0/mu/w"], "FILTER"),
        (["w", "opt_state/0/mu/w", "other/opt_state/0/mu/w"], "FILTER"),
        (["opt_state/0/mu/w"], "FILTER"),
        (["w", "[a]/opt_state/0/mu/w"], "FILTER"),
    ],
)
def test_how_to_drop_what_is_undecided(tmp_path: Path, names: list[str], glob: str) -> None:
    """The refusal to strip names the arguments that do it."""
    ckptfmt.save(tmp_path / "a", {name: np.ones(3) for name in names})
    with pytest.raises(TensorNotFoundError) as caught:
        edit(tmp_path / "a", tmp_path / "b", strip_optimizer=True)
    assert f"drop={glob!r}, drop_weights=True drops" in str(caught.value)
    if glob != "FILTER":
        done = edit(tmp_path / "a", tmp_path / "b", drop=glob, drop_weights=True)
        assert done.tensors == 1 and list(ckptfmt.load(tmp_path / "b")) == ["w"]


def test_damage_is_found_in_what_is_copied(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "a", {"w": np.ones(3), "v": np.ones(3)})
    flip(data_files(tmp_path / "a")[0], 70)
    before = contents(tmp_path)
    with pytest.raises(CorruptError, match=r"DAT-3|ENT-6|EXT-2|Checksum"):
        edit(tmp_path / "a", tmp_path / "b", cast="float32")
    assert contents(tmp_path) == before
    # Links are not read: what is damaged stays so, and is found as before.
    edit(tmp_path / "a", tmp_path / "b", rename=[("$", "2")])
    assert len(ckptfmt.verify(tmp_path / "b").problems) == 1


def test_the_metadata_of_a_checkpoint_without_tensors(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "none", {})
    edit(tmp_path / "none", tmp_path / "told", metadata={"a": 1})
    with ckptfmt.open(tmp_path / "told") as reader:
        assert reader.metadata == {"a": 1} and not list(reader)
