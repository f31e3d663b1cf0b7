# SPDX-License-Identifier: Apache-2.0
"""The data of a report."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import ckptfmt
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.report import collect, measuring, report
from ckptfmt.report.layers import Layers


def parsed(text: str) -> dict[str, Any]:
    """The data of a page."""
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    document: dict[str, Any] = json.loads(found)
    return document


def data_of(file: Path) -> dict[str, Any]:
    """The data of a file."""
    return parsed(file.read_text(encoding="utf-8"))


def reported(path: Path, **options: Any) -> dict[str, Any]:
    """The data of a report of a checkpoint."""
    out = io.BytesIO()
    report(path, out, **options)
    return parsed(out.getvalue().decode())


def measured(path: Path, budget: measuring.Budget) -> dict[str, Any]:
    """The data of a checkpoint, read within a budget."""
    with ckptfmt.open(path) as reader:
        return collect.checkpoint_data(Layers(TensorNames(reader)), budget)
