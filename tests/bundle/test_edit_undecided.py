# SPDX-License-Identifier: Apache-2.0
"""An edit that drops tensors which may be weights needs to be told so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt import errors
from ckptfmt.objects.roles import model_roles

ARRAYS = {"w": np.arange(3.0), "optimizer/scale": np.arange(2.0), "w/Momentum": np.arange(3.0)}


def test_what_may_be_a_weight_is_dropped_only_on_demand(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "a", ARRAYS)
    with ckptfmt.open(tmp_path / "a") as reader:
        roles = model_roles(reader)
    assert roles == {"w": "weight", "optimizer/scale": "unknown", "w/Momentum": "optimizer"}
    for name in ("w", "optimizer/scale"):
        with pytest.raises(errors.InvalidError, match="are weights"):
            ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", drop=name)
        assert not (tmp_path / "b.index").exists()
    ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", drop="w/Momentum")
    assert sorted(ckptfmt.load(tmp_path / "b")) == ["optimizer/scale", "w"]
    ckptfmt.editing.edit(tmp_path / "a", tmp_path / "c", drop="optimizer/scale", drop_weights=True)
    assert sorted(ckptfmt.load(tmp_path / "c")) == ["w", "w/Momentum"]
