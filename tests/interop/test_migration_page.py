# SPDX-License-Identifier: Apache-2.0
"""docs/migration.md: its program for TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.pages import run_page

from .oracle import interpreter


def test_tf_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", interpreter())
    run_page("docs/migration.md", tmp_path, "move_tf_train.py")
