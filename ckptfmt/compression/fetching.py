# SPDX-License-Identifier: Apache-2.0
"""Reading values whether they are compressed or not; zstd is loaded when one is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core

__all__ = ["fetch", "fetch_strings", "is_compressed"]


def is_compressed(selection: _core.Selection, row: int) -> bool:
    """Whether a stored value of this tensor is."""
    record = selection.rows[row]
    flags = record["stored"]["flags"]
    if record["slice_count"]:
        first = int(record["slices_first"])
        parts = selection.slice_rows[first : first + int(record["slice_count"])]
        flags = np.bitwise_or.reduce(parts["stored"]["flags"])
    return bool(flags & _core.STORED_COMPRESSED)


def fetch(
    handle: _core.ReaderHandle, selection: _core.Selection, requests: NDArray[Any], verify: int
) -> None:
    """Serves an array of REQUEST; the caller keeps alive what its addresses point to."""
    requests["compressed"] = 1
    handle.read(selection, requests, verify)
    left = requests["compressed"] != 0
    if left.any():
        from ckptfmt.compression import decoding  # noqa: PLC0415 (most checkpoints need none)

        decoding.finish(handle, selection, requests[left], verify)


def fetch_strings(
    handle: _core.ReaderHandle,
    selection: _core.Selection,
    row: int,
    box: NDArray[np.int64] | None,
    verify: int,
) -> list[bytes]:
    """The elements of a string or variant tensor, or of a box of it."""
    if not is_compressed(selection, row):
        return handle.read_strings(selection, row, box, verify)
    from ckptfmt.compression import decoding  # noqa: PLC0415 (as above)

    return decoding.read_strings(handle, selection, row, box, verify)
