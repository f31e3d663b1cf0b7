# SPDX-License-Identifier: Apache-2.0
"""Large saves write several data files, each by its own thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrays import assert_same
from support.files import contents, file_size_limit

import ckptfmt
from ckptfmt import InvalidError, Saver, SaveSpec, StorageError, Writer
from ckptfmt.bundle import writer as writing
from ckptfmt.tf import CheckpointOptions

MIB = 1 << 20


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine of four processors where a MiB is much."""
    monkeypatch.setattr(writing, "SHARD_BYTES", MIB)
    monkeypatch.setattr(writing, "thread_count", lambda most: min(4, most))


def arrays(*sizes: float) -> dict[str, Any]:
    """Arrays of these sizes in MiB, named in the order given."""
    random = np.random.default_rng(len(sizes))
    return {f"w{i:02}": random.random(int(size * MIB / 8)) for i, size in enumerate(sizes)}


def check(prefix: Path, tensors: dict[str, Any], count: int) -> None:
    files = sorted(path.name for path in prefix.parent.glob(f"{prefix.name}.data-*"))
    assert files == [f"{prefix.name}.data-{i:05}-of-{count:05}" for i in range(count)]
    assert not ckptfmt.verify(prefix).problems
    found = ckptfmt.load(prefix)
    assert list(found) == list(tensors)
    for name, array in tensors.items():
        assert_same(found[name], array)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([0.5, 0.5], 1),  # too little
        ([1, 1], 2),
        ([1, 1.5, 0.4], 2),
        ([8], 1),  # an array is not divided
        ([8, 0.01], 2),  # the total divided by the largest, rounded up
        ([1] * 9, 4),  # the processors
        ([0.1] * 50, 4),
    ],
)
def test_the_number_follows_from_sizes_and_processors(
    tmp_path: Path, sizes: list[float], count: int
) -> None:
    tensors = arrays(*sizes)
    ckptfmt.save(tmp_path / "x", tensors, durability="none")
    check(tmp_path / "x", tensors, count)


def test_the_bytes_do_not_depend_on_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = arrays(3, 0.1, 2, 5, 1, 0.3, 4, 4)
    for folder in "abc":
        (tmp_path / folder).mkdir()
    ckptfmt.save(tmp_path / "a" / "x", tensors)
    monkeypatch.setattr(writing, "WATCHED_BATCH_BYTES", MIB)
    calls = []
    ckptfmt.save(tmp_path / "b" / "x", tensors, progress=lambda *done: calls.append(done))
    assert calls[-1][0] == calls[-1][1]
    assert len(ckptfmt.save_async(tmp_path / "c" / "x", tensors).result()) > 0
    check(tmp_path / "a" / "x", tensors, 4)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == contents(tmp_path / "c")


def test_one_file_on_request(tmp_path: Path) -> None:
    tensors = arrays(1, 2, 3)
    ckptfmt.save(tmp_path / "one", tensors, shards=1)
    check(tmp_path / "one", tensors, 1)
    with Writer(tmp_path / "writer") as writer:
        for name, array in tensors.items():
            writer.add(name, array)
    assert (tmp_path / "one.index").read_bytes() == (tmp_path / "writer.index").read_bytes()
    ckptfmt.save_v2(tmp_path / "v2", list(tensors), [""] * 3, list(tensors.values()))
    check(tmp_path / "v2", tensors, 1)
    ckptfmt.save(tmp_path / "zstd", tensors, compression="zstd")
    check(tmp_path / "zstd", tensors, 1)


def test_more_files_on_request(tmp_path: Path) -> None:
    tensors = arrays(0.1, 0.2)
    ckptfmt.save(tmp_path / "x", tensors, shards=3)
    check(tmp_path / "x", tensors, 3)
    with Writer(tmp_path / "y", shards=2) as writer:
        for name, array in tensors.items():
            writer.add(name, array)
    check(tmp_path / "y", tensors, 2)
    for wrong in (0, 1025, "two", 1.5):
        for save in (
            ckptfmt.save,
            ckptfmt.save_async,
            lambda path, _, **more: Writer(path, **more),
        ):
            with pytest.raises(InvalidError, match="shards"):
                save(tmp_path / "z", tensors, shards=wrong)
    assert not list(tmp_path.glob("z*"))


def test_overwrites_take_another_number(tmp_path: Path) -> None:
    first, second = arrays(1, 1), arrays(1, 1, 1)
    ckptfmt.save(tmp_path / "x", first)
    check(tmp_path / "x", first, 2)
    ckptfmt.save(tmp_path / "x", first)
    check(tmp_path / "x", first, 3)
    ckptfmt.save(tmp_path / "x", second)
    check(tmp_path / "x", second, 4)


def test_a_saver_of_one_shard(tmp_path: Path) -> None:
    tensors = arrays(1, 1, 1)
    specs = {name: SaveSpec(array, "", name) for name, array in tensors.items()}
    Saver({"all": specs}).save(tmp_path / "x", CheckpointOptions(durability="none"))
    check(tmp_path / "x", tensors, 3)


@file_size_limit(2 * MIB)
def test_a_failure_in_one_file_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    older = arrays(1, 1)
    ckptfmt.save(tmp_path / "x", older)
    before = contents(tmp_path)
    with pytest.raises(StorageError) as caught:
        ckptfmt.save(tmp_path / "x", arrays(1, 6, 1, 2, 2, 1, 1), shards=4)
    assert caught.value.tensor == "w01"
    assert contents(tmp_path) == before
    check(tmp_path / "x", older, 2)
