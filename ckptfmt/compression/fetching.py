# SPDX-License-Identifier: Apache-2.0
"""Reading values whether they are compressed or not; zstd is loaded when one is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core, dtypes
from ckptfmt.errors import CkptfmtError, LimitError

__all__ = ["check_values", "fetch", "fetch_one", "fetch_strings", "is_compressed"]


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


def fetch_one(
    handle: _core.ReaderHandle,
    selection: _core.Selection,
    row: int,
    box: NDArray[np.int64] | None,
    array: NDArray[Any],
    verify: int,
) -> None:
    """Reads one tensor, or a box of it, into a C-contiguous array."""
    if handle.read_one(selection, row, box, array, verify):
        return
    request = np.zeros(1, _core.REQUEST)
    request["row"] = row
    request["box"] = 0 if box is None else _core.address(box)
    request["destination"] = _core.address(array)
    request["destination_size"] = array.nbytes
    fetch(handle, selection, request, verify)


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
    handle: _core.ReaderHandle,
    known: Collection[tuple[str | None, str]],
    again: int,
    names: Callable[[], Sequence[bytes]],
    tell: Callable[[int], None],
) -> list[CkptfmtError]:
    """What verifying adds for compressed values: that they decode, and to what was saved. Each
    value is looked at, whatever is wrong with others of its tensor.

    Args:
        handle: a checkpoint of which the C core has checked all that needs no decoder.
        known: tensor (None: not told) and rule of the problems that the C core found.
        again: stored bytes that are decoded, at most, of tensors whose values overlap others.
        names: gives those of all tensors, where they cannot be listed.
        tell: called with the stored bytes of each compressed tensor once it is done.

    Returns:
        What is wrong beyond that, one error a value.
    """
    found: list[CkptfmtError] = []
    for selection in _selections(handle, names):
        for row, name in _compressed(selection):
            size = sum(int(stored["size"]) for stored in stored_values(selection, row))
            overlaps = (name, "DAT-8") in known
            if not overlaps or size <= again:
                again -= size if overlaps else 0
                found += _check_tensor(handle, selection, row, name, known)
            tell(size)
    return found


def _selections(
    handle: _core.ReaderHandle, names: Callable[[], Sequence[bytes]]
) -> Iterator[_core.Selection]:
    """All tensors; one by one those that can be looked up, where an entry is broken."""
    try:
        yield handle.list_all()
        return
    except CkptfmtError:
        pass
    for name in names():
        with contextlib.suppress(CkptfmtError):
            yield handle.select([name])


def _compressed(selection: _core.Selection) -> Iterator[tuple[int, str]]:
    """Row and name of each tensor that has a compressed value to decode."""
    flags, cut = selection.rows["stored"]["flags"], selection.rows["slice_count"] > 0
    likely = np.flatnonzero(cut | (flags & _core.STORED_COMPRESSED != 0)).tolist()
    names = selection.names() if likely else []
    for row in likely:
        # A type that is not known is no problem, and nothing can be said of what it decodes to.
        known_type = dtypes.info_of(int(selection.rows[row]["dtype"])) is not None
        if known_type and is_compressed(selection, row):
            yield row, names[row]


def _check_tensor(
    handle: _core.ReaderHandle,
    selection: _core.Selection,
    row: int,
    name: str,
    known: Collection[tuple[str | None, str]],
) -> list[CkptfmtError]:
    """The problems of the compressed values of a tensor that are not known."""
    from ckptfmt.compression import decoding  # noqa: PLC0415 (most checkpoints need none)

    found: list[CkptfmtError] = []
    whole = not selection.rows[row]["slice_count"]
    done: set[tuple[int, ...]] = set()
    for number, stored in enumerate(stored_values(selection, row)):
        # A slice that is listed twice is one value.
        value = tuple(int(stored[field]) for field in ("shard", "offset", "size", "raw_crc32c"))
        if not int(stored["flags"]) & _core.STORED_COMPRESSED or value in done:
            continue
        done.add(value)
        planned = False
        try:
            runs = decoding.plan(handle, selection, row, _core.WHOLE if whole else number)
            planned = True
            decoding.check(handle, selection, row, runs)
        except CkptfmtError as error:
            rule = error.message.partition(":")[0]
            # The C core has looked at all that comes before the decoding, at each value.
            told = not planned or rule in ("CMP-11", "DAT-2", "NAM-5")
            if not told or not ((name, rule) in known or (None, rule) in known):
                found.append(error)
        except MemoryError:
            message = "there is no memory to check a compressed value"
            found.append(LimitError(message, tensor=name, path=handle.path))
    return found


def stored_values(selection: _core.Selection, row: int) -> list[Any]:
    """The stored values of a tensor, as the columns have them."""
    record = selection.rows[row]
    if not record["slice_count"]:
        return [record["stored"]]
    first = int(record["slices_first"])
    return list(selection.slice_rows[first : first + int(record["slice_count"])]["stored"])
