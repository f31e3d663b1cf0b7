# SPDX-License-Identifier: Apache-2.0
"""Calls that run out of descriptors or of luck with a store, at any moment: they replace the old
checkpoint or leave it, and no other file beside it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.dict_client import mount
from support.files import listing
from support.process import descriptors

import ckptfmt
from ckptfmt import StorageError
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.sharded.coordinator import SingleProcess
from ckptfmt.tf import CheckpointOptions, MaxShardSizePolicy


def save_sharded(folder: Path) -> None:
    """On two devices of this process, in parts that are merged."""
    mesh = Mesh({"x": 2})
    halves = {device: np.ones(2) for device in mesh.devices}
    ckptfmt.sharded.save(folder / "m", {"x": halves}, {"x": Layout(["x"], mesh)}, SingleProcess())


CALLS: dict[str, Callable[[Path], object]] = {
    "save": lambda folder: ckptfmt.save(folder / "m", {"x": np.ones(4)}),
    "save_async": lambda folder: ckptfmt.save_async(folder / "m", {"x": np.ones(4)}).result(),
    "save of a tree": lambda folder: ckptfmt.save_tree(folder / "m", {"x": [np.ones(4)]}),
    "save with a base": lambda folder: ckptfmt.save(
        folder / "m", {"x": np.ones(9)}, base=folder / "part"
    ),
    "save in shards": lambda folder: ckptfmt.Checkpoint(x=np.ones(4), y=np.ones(4)).write(
        folder / "m", CheckpointOptions(experimental_sharding_callback=MaxShardSizePolicy(32))
    ),
    "sharded save": save_sharded,
    "edit": lambda folder: ckptfmt.editing.edit(folder / "m", folder / "m", metadata={"step": 1}),
    "merge": lambda folder: ckptfmt.merge([folder / "part"], folder / "m"),
    "convert": lambda folder: ckptfmt.convert(folder / "part", folder / "m"),
}


def prepare(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    ckptfmt.save(folder / "m", {"x": np.zeros(3)})
    ckptfmt.save(folder / "part", {"x": np.zeros(9)})


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_left_without_descriptors(tmp_path: Path, name: str) -> None:
    prepare(tmp_path / "warm")
    CALLS[name](tmp_path / "warm")  # imports what it needs
    done = []
    for free in range(16):
        folder = tmp_path / str(free)
        prepare(folder)
        try:
            with descriptors(free):
                CALLS[name](folder)
            done.append(free)
        except StorageError as error:
            assert error.errno == errno.EMFILE
        with ckptfmt.open(folder / "m") as reader:
            count = reader.header.num_shards
        data = [f"m.data-{number:05}-of-{count:05}" for number in range(count)]
        assert [one for one in listing(folder) if one[0] == "m"] == [*data, "m.index"], free
    assert 0 < len(done) < 16


def test_an_error_of_reading_back_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request of a conversion to a store fails in turn."""
    client = mount(monkeypatch)
    ckptfmt.save(tmp_path / "m", {"x": np.arange(9)})
    ckptfmt.convert(tmp_path / "m", "dict://bucket/m")
    failed = 0
    for number in range(len(client.requests)):
        left = [number]

        def before(method: str, key: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.EIO, "failed", key)

        client.before = before
        try:
            ckptfmt.convert(tmp_path / "m", "dict://bucket/m")
        except StorageError:
            failed += 1
    assert failed > 3
