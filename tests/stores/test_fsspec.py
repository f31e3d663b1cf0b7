# SPDX-License-Identifier: Apache-2.0
"""File systems of fsspec: which object an answer is from, answers that are too long, and links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

import ckptfmt
from ckptfmt import StorageError
from ckptfmt.errors import GenerationGoneError, UnsupportedError
from ckptfmt.stores import waiting
from ckptfmt.stores.fsspec_client import _info
from ckptfmt.stores.leftovers import leftovers, remove_leftovers


class Owned(LocalFileSystem):
    """All files are of one user, who is not root; what else `info` says is chosen."""

    said: tuple[str, ...] = ("uid", "mtime", "ino")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found = super().info(path, **options) | {"uid": 1000}
        if "blob_id" in self.said and found["type"] == "file":
            found["blob_id"] = f"{hash(Path(found['name']).read_bytes()):x}"
        return {
            name: value
            for name, value in found.items()
            if name in ("name", "type", "size", *self.said)
        }

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        return bytes(super().cat_file(path, start, end, **options))


class Whole(LocalFileSystem):
    """It ignores ranges, as some servers do."""

    calls = 0

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        Whole.calls += 1
        return Path(path).read_bytes()


@pytest.mark.parametrize("url", ["mystery://x/m", "dir:///m", "cached://x", "reference://x"])
def test_urls_that_no_file_system_takes(url: str) -> None:
    with pytest.raises(ckptfmt.InvalidError):
        ckptfmt.load(url)


@pytest.fixture(params=[("uid", "mtime", "ino"), ("uid", "blob_id")], ids=["local", "hub"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    files = Owned(skip_instance_cache=True)
    files.said = request.param
    ckptfmt.stores.mount("own://x", files)
    yield f"own://x{tmp_path}"
    ckptfmt.stores.mount("own://x", None)


@pytest.mark.parametrize("verify", ["auto", "off"])
def test_a_checkpoint_replaced_after_it_was_opened(place: str, tmp_path: Path, verify: Any) -> None:
    ckptfmt.save(tmp_path / "m", {"w": np.full(1000, 1.0)})
    with ckptfmt.open(f"{place}/m", verify=verify) as reader:
        for value in (2.0, 3.0):
            ckptfmt.save(tmp_path / "m", {"w": np.full(1000, value)})
        with pytest.raises(GenerationGoneError):
            reader["w"].read()


def test_links_to_a_file_do_not_replace_it(tmp_path: Path) -> None:
    """They change times of local files that are not those of the content."""
    ckptfmt.save(tmp_path / "m", {"w": np.full(1000, 1.0)})
    ckptfmt.stores.mount("links://x", LocalFileSystem(skip_instance_cache=True))
    try:
        with ckptfmt.open(f"links://x{tmp_path}/m") as reader:
            ckptfmt.merge([tmp_path / "m"], tmp_path / "linked")
            for file in tmp_path.glob("m.*"):
                file.chmod(0o600)
            assert reader["w"].read()[0] == 1
    finally:
        ckptfmt.stores.mount("links://x", None)


def test_what_the_hub_says_of_a_file_identifies_it() -> None:
    """As huggingface_hub describes one: no checksum of the usual names, and no time."""
    said = {"name": "m", "type": "file", "size": 5, "lfs": None, "xet_hash": None}
    one, other = (_info({**said, "blob_id": text}, "m") for text in ("2ff7", "9e10"))
    assert one.identity and one.identity != other.identity


def test_a_file_system_that_ignores_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error in time, not asked again for ever."""
    ckptfmt.save(tmp_path / "m", {"a": np.ones(100_000), "b": np.ones(100_000)})
    monkeypatch.setenv(waiting.STALL_VARIABLE, "0.5")
    Whole.calls = 0
    ckptfmt.stores.mount("whole://x", Whole(skip_instance_cache=True))
    try:
        with pytest.raises(StorageError):
            ckptfmt.load(f"whole://x{tmp_path}/m", ["b"])
    finally:
        ckptfmt.stores.mount("whole://x", None)
    assert Whole.calls < 50


def test_links_in_a_listing_are_files(place: str, tmp_path: Path) -> None:
    manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(w=np.ones(3)), tmp_path / "run", 3)
    manager.save()
    (tmp_path / "ln").mkdir()
    for file in (tmp_path / "run").iterdir():
        (tmp_path / "ln" / file.name).symlink_to(file)
    assert ckptfmt.latest_checkpoint(f"{place}/ln") == f"{place}/ln/ckpt-1"
    weights = np.zeros(3)
    again = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(w=weights), f"{place}/ln", 3)
    assert again.all_steps() == [1]
    assert again.restore_or_initialize() == f"{place}/ln/ckpt-1" and weights.tolist() == [1, 1, 1]


@pytest.mark.parametrize("said", [("mtime",), ("mtime", "created"), ("blob_id",), ()])
def test_what_killed_writers_left(said: tuple[str, ...], tmp_path: Path) -> None:
    """A copy may keep the time of its source; a file system that says no time is refused."""
    files = Owned(skip_instance_cache=True)
    files.said = said
    names = ["m.data-00000-of-00002", "n_temp_0123456789abcdef/part-00000-of-00001.index"]
    ckptfmt.save(tmp_path / "m", {"w": np.ones(3)})
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "new.data-00000-of-00001").touch()
    ckptfmt.stores.mount("own://x", files)
    try:
        url = f"own://x{tmp_path}"
        if "mtime" not in said:
            with pytest.raises(UnsupportedError):
                leftovers(url, 60.0)
            return
        found = [] if "created" in said else [f"{url}/{name}" for name in names]
        assert [one.url for one in leftovers(url, 60.0)] == found
        assert [one.url for one in remove_leftovers(url, 60.0)] == found
        assert (
            leftovers(url, 60.0) == []
            and [(tmp_path / name).exists() for name in names] == [not found] * 2
        )
        assert ckptfmt.verify(f"{url}/m").ok
    finally:
        ckptfmt.stores.mount("own://x", None)
