# SPDX-License-Identifier: Apache-2.0
"""The data of reports."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

from ckptfmt.report import report


def parsed(text: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    document: dict[str, Any] = json.loads(found)
    return document


def data_of(file: Path) -> dict[str, Any]:
    return parsed(file.read_text(encoding="utf-8"))


def reported(path: Path, **options: Any) -> dict[str, Any]:
    out = io.BytesIO()
    report(path, out, **options)
    return parsed(out.getvalue().decode())
