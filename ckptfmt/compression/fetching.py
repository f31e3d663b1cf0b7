# SPDX-License-Identifier: Apache-2.0
"""Reading values whether they are compressed or not; zstd is loaded when one is."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core, dtypes
from ckptfmt.errors import CkptfmtError

__all__ = ["check_values", "fetch", "fetch_strings", "is_compressed"]


def is_compressed(selection: _core.Selection, row: int) -> bool:
    """Whether a stored value of this tensor is."""
    stored = stored_values(selection, row)
    return any(int(value["flags"]) & _core.STORED_COMPRESSED for value in stored)


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


def check_values(
    handle: _core.ReaderHandle, damaged: Collection[str | None], tell: Callable[[int], None]
) -> list[CkptfmtError]:
    """What verifying adds for compressed values: that they decode, and to what was saved.

    Args:
        handle: a checkpoint of which the C core has checked all that needs no decoder.
        damaged: names of tensors that are known to be damaged; they are left out.
        tell: called with the stored bytes of each compressed tensor once it is done.

    Returns:
        What is wrong, one error a tensor.
    """
    selection = handle.list_all()
    found: list[CkptfmtError] = []
    flags, cut = selection.rows["stored"]["flags"], selection.rows["slice_count"] > 0
    likely = np.flatnonzero(cut | (flags & _core.STORED_COMPRESSED != 0)).tolist()
    names = selection.names() if likely else []
    for row in likely:
        name = names[row]
        # A type that is not known is no problem, and nothing can be said of what it decodes to.
        known = dtypes.info_of(int(selection.rows[row]["dtype"])) is not None
        if not known or not is_compressed(selection, row):
            continue
        from ckptfmt.compression import decoding  # noqa: PLC0415 (as above)

        if name not in damaged:
            try:
                decoding.check(handle, selection, row)
            except CkptfmtError as error:
                found.append(error)
        tell(sum(int(stored["size"]) for stored in stored_values(selection, row)))
    return found


def stored_values(selection: _core.Selection, row: int) -> list[Any]:
    """The stored values of a tensor, as the columns have them."""
    record = selection.rows[row]
    if not record["slice_count"]:
        return [record["stored"]]
    first = int(record["slices_first"])
    return list(selection.slice_rows[first : first + int(record["slice_count"])]["stored"])
