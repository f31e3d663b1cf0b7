# SPDX-License-Identifier: Apache-2.0
"""What a report says a checkpoint is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.reports import reported

import ckptfmt
from ckptfmt.bundle import state_tree
from ckptfmt.bundle.meanings import PRNG_KEYS
from ckptfmt.report import about

CORPUS = os.environ.get("CKPTFMT_CORPUS", "")


def about_of(path: Path, metadata: dict[str, Any], **options: Any) -> dict[str, Any]:
    ckptfmt.save(path, {"w": np.ones(3, np.float32)}, metadata=metadata)
    found: dict[str, Any] = reported(path, **options)["about"]
    return found


def test_a_state_is_shown_as_values(tmp_path: Path) -> None:
    group = {"lr": 0.001, "betas": [0.9, 0.95], "amsgrad": False, "params": [0]}
    state = {
        "model": {"w": {"$tensor": True}},
        "optimizer": {"state": {}, "param_groups": [group]},
        "step": 7,
        "rng": {"python": [3, [1, 2, 3], None]},
        "many": {str(number): "x" * 900 for number in range(250)},
    }
    metadata = {state_tree.KEY: state_tree.text_of(state=state), "run": [1], "note": "x" * 900}
    found = about_of(tmp_path / "m", metadata)
    assert found["framework"] == "PyTorch"
    values = dict(found["values"])
    assert values["step"] == "7" and next(iter(values)) == "step"
    assert found["values_count"] == 254 and len(values) == about.LINES_MAX
    assert all(len(text) <= about.TEXT_MAX + 3 for text in values.values())
    assert found["random"] == ["rng"]
    assert found["metadata"][1] == ["run", "[1]"]
    assert [key for key, _ in found["metadata"]] == ["note", "run"]
    del state["many"]
    metadata[state_tree.KEY] = state_tree.text_of(state=state)
    values = dict(about_of(tmp_path / "m", metadata)["values"])
    assert values.pop("step") == "7"
    path = "optimizer.param_groups.0."
    assert values == {
        f"{path}lr": "0.001",
        f"{path}betas": "[0.9, 0.95]",
        f"{path}amsgrad": "False",
    }


@pytest.mark.parametrize("state", ["{", "[]", '{"version": 99, "state": {}}'])
def test_a_state_that_cannot_be_read_is_not_shown(state: str, tmp_path: Path) -> None:
    found = about_of(tmp_path / "m", {state_tree.KEY: state})
    assert found["framework"] == "PyTorch"
    assert found["values"] == found["metadata"] == found["random"] == []


def test_version_date_and_digest(tmp_path: Path) -> None:
    found = about_of(tmp_path / "m", {PRNG_KEYS: [["w", "x"]]})
    assert (found["framework"], found["version"]) == ("JAX", ckptfmt.__version__)
    assert found["digest"] is None
    os.utime(f"{tmp_path}/m.index", (86400 * 366, 86400 * 366))
    found = reported(tmp_path / "m", seconds=None)["about"]
    assert found["written"] == "1971-01-02T00:00:00Z"
    with ckptfmt.open(tmp_path / "m") as reader:
        assert found["digest"] == reader.digest()
    np.savez(tmp_path / "n.npz", w=np.ones(3))
    found = reported(tmp_path / "n.npz", seconds=None)["about"]
    assert found["framework"] is found["written"] is found["digest"] is None


@pytest.mark.skipif(not CORPUS, reason="CKPTFMT_CORPUS is not set")
def test_checkpoints_of_others() -> None:
    frameworks = set()
    for description in sorted(Path(CORPUS).glob("*/expected.json")):
        for index in sorted(description.parent.glob("**/*.index")):
            data = reported(index)
            frameworks.add(data["about"]["framework"])
            rows = [one for one in data["tensors"] if one["layer"] is not None]
            for field in ("elements", "bytes"):
                layers = sum(one[field] for one in data["layers"])
                parts = {"elements": 2, "bytes": 3}[field]
                graph = [one for one in data["tensors"] if one["layer"] is None]
                left = sum(one["bytes"] if field == "bytes" else 1 for one in graph)
                assert layers == sum(one[parts] for one in data["parts"]) - left
            assert {one["layer"] for one in rows} == {*range(len(data["layers"]))}
            for one in rows:
                assert data["layers"][one["layer"]]["role"] == one["role"]
    assert frameworks == {"Keras", None}
