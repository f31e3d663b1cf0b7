# SPDX-License-Identifier: Apache-2.0
"""What is overwritten keeps its permissions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from support.manager import manager_of

import ckptfmt
from ckptfmt.report import report


def save(path: Path, **options: Any) -> None:
    ckptfmt.save(path, {"x": np.arange(4), "y": np.ones(3)}, **options)


def merge(path: Path) -> None:
    save(path.with_name("part"))
    ckptfmt.merge([path.with_name("part")], path)


def sharded(path: Path) -> None:
    checkpoint = ckptfmt.Checkpoint(x=np.arange(4), y=np.ones(3))
    options = ckptfmt.tf.CheckpointOptions(
        experimental_sharding_callback=ckptfmt.tf.MaxShardSizePolicy(40)
    )
    checkpoint.write(path, options=options)


def exported(path: Path, kind: Literal["npz", "safetensors"]) -> None:
    save(path.with_name("source"))
    ckptfmt.convert(path.with_name("source"), path, to=kind)


def reported(path: Path) -> None:
    save(path.with_name("source"))
    report(path.with_name("source"), path)


WAYS: dict[str, Callable[[Path], object]] = {
    "save": save,
    "compressed": lambda path: save(path, compression="zstd"),
    "shards": lambda path: save(path, shards=3),
    "async": lambda path: ckptfmt.save_async(path, {"x": np.ones(3)}).result(),
    "merge": merge,
    "sharded": sharded,
    "npz": lambda path: exported(path, "npz"),
    "safetensors": lambda path: exported(path, "safetensors"),
    "report": reported,
    "manager": lambda path: manager_of(path.parent).save(7, metrics={"loss": 1}),
}


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    """Of files that a save makes, not of its sources."""
    found = {path.name: path.stat().st_mode & 0o7777 for path in directory.iterdir()}
    return {name: mode for name, mode in found.items() if not name.startswith(("part", "source"))}


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o440])
@pytest.mark.parametrize("way", WAYS)
def test_an_overwrite_keeps_permissions(tmp_path: Path, way: str, mode: int) -> None:
    suffix = {"npz": ".npz", "safetensors": ".safetensors", "report": ".html"}.get(way, "")
    path = tmp_path / f"m{suffix}"
    WAYS[way](path)
    assert set(modes(tmp_path).values()) == {0o644}
    for name in modes(tmp_path):
        (tmp_path / name).chmod(mode)
    WAYS[way](path)
    # The data files of a merge are those of its inputs.
    made = [name for name in modes(tmp_path) if way != "merge" or name.endswith(".index")]
    assert {modes(tmp_path)[name] for name in made} == {mode}


def test_linked_files_keep_theirs(tmp_path: Path) -> None:
    """The data file of the base is one file with that of the checkpoint upon it."""
    values = {"x": np.arange(40_000), "y": np.ones(40_000)}
    ckptfmt.save(tmp_path / "a", values)
    ckptfmt.save(tmp_path / "b", {"z": np.ones(3)})
    for path in tmp_path.glob("b.*"):
        path.chmod(0o600)
    values["y"] = values["y"] + 1
    ckptfmt.save(tmp_path / "b", values, base=tmp_path / "a")
    shared = [path for path in tmp_path.glob("b.data*") if path.stat().st_nlink > 1]
    assert shared and {path.stat().st_mode & 0o777 for path in shared} == {0o644}
    own = set(tmp_path.glob("b.*")) - set(shared)
    assert {path.stat().st_mode & 0o777 for path in own} == {0o600}
