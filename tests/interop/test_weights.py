# SPDX-License-Identifier: Apache-2.0
"""TensorFlow restores what `ckptfmt.keras` saves, which loads what TensorFlow saves."""

from __future__ import annotations

from pathlib import Path

from .workers import ask


def test_weights_of_keras_models_go_both_ways(tmp_path: Path) -> None:
    assert ask("tf_weights.py", tmp_path) == []
