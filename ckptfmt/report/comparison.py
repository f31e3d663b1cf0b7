# SPDX-License-Identifier: Apache-2.0
"""What a report shows of two checkpoints, as JSON values. Nothing is formatted here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ckptfmt._base.names import printable
from ckptfmt.bundle.comparing import (
    Difference,
    changed_metadata,
    checksums_equal,
    difference,
    pairs,
)
from ckptfmt.bundle.meanings import alike
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import CkptfmtError, masked
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.report.about import TEXT_MAX
from ckptfmt.report.collect import NAMES_MAX, ROWS_MAX, Progress
from ckptfmt.report.measuring import Budget, OutOfBudget
from ckptfmt.report.statistics import json_number

CHANGES = {"only in A": "removed", "only in B": "added", "values": "changed"}
# What a training step does not do comes first.
ORDER = ("unreadable", "removed", "added", "retyped", "changed", "not compared")


def comparison_data(
    a: Reader, b: Reader, budget: Budget, progress: Progress | None = None
) -> dict[str, Any]:
    """Return what became of the tensors from A to B: how many are the "same", and a row for each of
    the others: "changed", "added", "removed", "retyped" (another dtype or shape), "unreadable" or,
    when the budget is used up, "not compared". Values are compared whole, in pieces; tensors that
    are stored with the same checksum are the same, and "unread"."""
    every = len({*a, *b})
    before, after = TensorNames(a), TensorNames(b)

    def shown(name: str) -> str:
        return (after if name in b else before).shown(name)

    counts: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    unread, by_checksum = 0, a.header.big_endian == b.header.big_endian
    for done, (one, other) in enumerate(pairs(a, b), 1):
        row = _compared(one, other, budget, shown, by_checksum=by_checksum)
        counts[row["change"]] += 1
        unread += "unread" in row
        if row["change"] != "same":
            rows.append(row)
        if progress is not None:
            progress(done, every)
    rows.sort(key=lambda row: (ORDER.index(row["change"]), -float(row.get("relative") or 0)))
    return {
        "before": printable(masked(a.prefix)),
        "metadata": _changed_metadata(a, b),
        "counts": dict(counts),
        "unread": unread,
        "rows": list(_listed(rows)),
    }


def _listed(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows, of each kind as many as one checkpoint would have."""
    count, names = Counter[str](), Counter[str]()
    for row in rows:
        change = row["change"]
        count[change] += 1
        names[change] += len(row["name"])
        if count[change] <= ROWS_MAX and names[change] <= NAMES_MAX:
            yield row


def _compared(
    one: TensorHandle | None,
    other: TensorHandle | None,
    budget: Budget,
    shown: Callable[[str], str],
    *,
    by_checksum: bool,
) -> dict[str, Any]:
    def check(nbytes: int) -> None:
        if not budget.allows(nbytes):
            raise OutOfBudget

    there = other if other is not None else one
    assert there is not None
    row: dict[str, Any] = {"name": printable(shown(there.name))}
    for place, handle in (("before", one), ("after", other)):
        if handle is not None:
            row[place] = [handle.dtype_name, list(handle.shape)]
    try:
        if one and other and one.shape == other.shape and alike(one, other):
            if by_checksum and checksums_equal(one, other):
                return {"change": "same", "unread": True}
            check(2 * one.nbytes)  # before the first piece is read
        found = difference(one, other, lambda _: check(0))
    except OutOfBudget:
        return row | {"change": "not compared"}
    except CkptfmtError as error:
        return row | {"change": "unreadable", "error": _cut(str(error))}
    return row | ({"change": "same"} if found is None else _change(found))


def _change(found: Difference) -> dict[str, Any]:
    row: dict[str, Any] = {"change": CHANGES.get(found.kind, "retyped")}
    if found.kind == "values":
        row |= {"elements": found.elements, "nans": list(found.nans)}
        row |= {"largest": json_number(found.largest), "relative": json_number(found.relative)}
    return row


def _changed_metadata(a: Reader, b: Reader) -> list[list[str | None]]:
    """Return the names of the members that differ, and their values before and after as text."""
    try:
        before, after = a.metadata, b.metadata
    except CkptfmtError:
        return []
    changed = changed_metadata(before, after).items()
    return [[printable(name), _cut(old), _cut(new)] for name, (old, new) in changed][:ROWS_MAX]


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
