# SPDX-License-Identifier: Apache-2.0
"""Values of arrays as text and as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.names import printable


def quoted(value: bytes, limit: int | None = None) -> str:
    """Return a string as text; a longer one than `limit` is cut."""
    shown = printable(value[:limit].decode("utf-8", "surrogateescape"))
    shown = "'" + shown.replace("'", "\\'") + "'"
    return shown if limit is None or len(value) <= limit else f"{shown}... ({len(value):,} bytes)"


def few_as_text(values: NDArray[Any], limit: int) -> str:
    """Return a few values on one line, in row-major order; longer strings than `limit` are cut."""
    flat = values.reshape(-1)
    shown = ", ".join(quoted(one, limit) if isinstance(one, bytes) else str(one) for one in flat)
    return f"[{shown}]" if values.ndim else shown


def as_json(values: NDArray[Any]) -> Any:
    """Convert to nested lists of JSON values."""
    kind = values.dtype.kind
    if kind == "O":
        return _mapped(values.tolist(), lambda one: one.decode("utf-8", "surrogateescape"))
    if kind == "c":
        return _mapped(values.tolist(), lambda one: [one.real, one.imag])
    if kind in "biu":
        return values.tolist()
    if values.dtype.name.startswith(("int", "uint")):  # the narrow ones of ml_dtypes
        return values.astype(np.int64).tolist()
    return values.astype(np.float64).tolist()


def _mapped(values: Any, change: Any) -> Any:
    return [_mapped(one, change) for one in values] if isinstance(values, list) else change(values)
