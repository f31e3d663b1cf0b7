# SPDX-License-Identifier: Apache-2.0
"""A sweep makes the temporary name of an index durable before it removes the data: a power cut must
not bring back an index whose data are gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import ckptfmt
from ckptfmt.manager.directory import CheckpointDirectory


@pytest.mark.parametrize(
    ("durability", "syncs"), [("full", ["sync"]), ("rename", []), ("none", [])]
)
def test_data_go_after_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Any, syncs: list[str]
) -> None:
    ckptfmt.save(tmp_path / "ckpt-1", {"x": [1]}, durability="none")
    index, data = "ckpt-1.index.tempstatea123456789abcdef", "ckpt-1.data-00000-of-00001"
    (tmp_path / "ckpt-1.index").rename(tmp_path / index)
    calls: list[str] = []
    fsync, unlink = os.fsync, os.unlink

    def synced(descriptor: int) -> None:
        calls.append("sync")
        fsync(descriptor)

    def unlinked(path: str, *, dir_fd: int | None = None) -> None:
        calls.append(path)
        unlink(path, dir_fd=dir_fd)

    with CheckpointDirectory(str(tmp_path), durability=durability) as directory:
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "unlink", unlinked)
        assert sorted(directory.sweep()) == [data, index]
    assert calls == [*syncs, data, index]
