# SPDX-License-Identifier: Apache-2.0
"""A filter that is text: `/REGEX/` matches anywhere in a name, a glob the whole of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckptfmt

NAMES = ["a/bias", "a/kernel", "b/kernel", "step"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/kernel/", ["a/kernel", "b/kernel"]),
        ("/^b/", ["b/kernel"]),
        ("/s$/", ["a/bias"]),
        ("/.b/", ["a/bias"]),
        ("/", []),
        ("a/k", []),
        ("kernel", []),
        ("?/kernel", ["a/kernel", "b/kernel"]),
        ("ste", []),
    ],
)
def test_which_tensors_pass(tmp_path: Path, text: str, expected: list[str]) -> None:
    saved = {name: np.array(at) for at, name in enumerate(NAMES)}
    ckptfmt.save(tmp_path / "ck", saved, durability="none")
    arrays = {name: np.array(-1) for name in NAMES}
    if not expected:
        with pytest.raises(ckptfmt.TensorNotFoundError):
            ckptfmt.load_into(tmp_path / "ck", arrays, filter=text, strict=False)
        return
    ckptfmt.load_into(tmp_path / "ck", arrays, filter=text, strict=False)
    assert [name for name in NAMES if arrays[name] >= 0] == expected
