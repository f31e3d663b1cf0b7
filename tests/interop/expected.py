# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that come with an expected.json: what TensorFlow read from them.

The form is that of the corpus: {"prefix", "n_tensors", "tensors": [{"name", "dtype", "shape",
"nbytes", "sha256"}, ...]}. The prefix is relative to the folder of all. The digest is of the
row-major little-endian bytes; of strings, of each element's uint64 little-endian size followed by
its bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .values import KINDS, Value

# TensorFlow's Python names, where the format's differ.
NAMES = {1: "float32", 2: "float64", 19: "float16"}
DTYPES = {NAMES.get(code, kind.name): code for code, kind in KINDS.items()}


def dtype_name(code: int) -> str:
    return NAMES.get(code, KINDS[code].name)


def describe(name: bytes, value: Value) -> dict[str, Any]:
    return {
        "name": name.decode("utf-8", "surrogateescape"),
        "dtype": dtype_name(value.code),
        "shape": list(value.shape),
        "nbytes": len(value.packed()),
        "sha256": value.digest(),
        "error": None,
    }


def load(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "expected.json").read_text("utf-8"))
    return found
