# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/migration.md."""

from __future__ import annotations

from pathlib import Path

from support.pages import run_page


def test_torch_save(tmp_path: Path) -> None:
    run_page("docs/migration.md", tmp_path, "torch_save.py")


def test_safetensors(tmp_path: Path) -> None:
    run_page("docs/migration.md", tmp_path, "move_safetensors.py")


def test_dcp(tmp_path: Path) -> None:
    run_page("docs/migration.md", tmp_path, "move_dcp.py")


def test_orbax(tmp_path: Path) -> None:
    run_page("docs/migration.md", tmp_path, "move_orbax.py")


def test_h5py(tmp_path: Path) -> None:
    run_page("docs/migration.md", tmp_path, "move_h5py.py")
