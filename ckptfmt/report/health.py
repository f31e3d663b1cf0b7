# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a checkpoint, the most serious first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.names import natural_key
from ckptfmt.bundle.findings import grouped
from ckptfmt.report.layers import Layers
from ckptfmt.report.measuring import Budget, Measurements

# The kinds of items in their order, and how many items there are, and of one kind.
KINDS = ("damaged", "nan", "infinite", "rows", "columns", "outlier", "zero")
ITEMS_MAX, KIND_MAX = 200, 100
# Findings that are alike become one if there are more; errors that are findings.
ALIKE_MAX, WARNED_MAX = 5, 200
# An outlier is so many times the median of at least so many.
OUTLIER, PEERS_MIN = 100.0, 4


def outliers(
    rms: NDArray[np.float64], shapes: Sequence[tuple[int, ...]], layers: Layers
) -> dict[int, str]:
    """Return what is said of tensors whose values are far larger than those of their peers, which
    have the same last part of the name and as many dimensions.

    Args:
        rms: the roots of the mean squares of weights; NaN of other tensors.
        shapes: the shapes.
        layers: of the checkpoint.
    """
    positive = rms[rms > 0]
    # A median that is not 0 is at least half of the smallest.
    if not positive.size or positive.max() <= OUTLIER / 2 * positive.min():
        return {}
    peers: dict[tuple[str, int], list[int]] = {}
    for row in np.flatnonzero(rms >= 0).tolist():
        last = layers.shown[row].rpartition(layers.mark)[2]
        peers.setdefault((last, len(shapes[row])), []).append(row)
    found: dict[int, str] = {}
    for rows in peers.values():
        median = float(np.median(rms[rows])) if len(rows) >= PEERS_MIN else 0.0
        for row in rows if median else ():
            if rms[row] > OUTLIER * median:
                times = float(rms[row]) / median
                found[row] = f"norm is {times:,.0f} times the median of its peers"
    return found


def health_data(
    results: Measurements,
    budget: Budget,
    layers: Layers,
    errors: Mapping[int, str],
    tall: Mapping[int, str],
    findings: list[str],
) -> dict[str, Any]:
    """Return what is wrong, and how much was looked at.

    Args:
        results: what was read.
        budget: how much may be read.
        layers: of the checkpoint.
        errors: what is wrong with the stored bytes of tensors.
        tall: what is said of outliers.
        findings: what is wrong with the checkpoint.
    """
    report = results.report
    if report is not None:
        found = [
            str(group).removeprefix("problem: ") for group in grouped(report.problems, ALIKE_MAX)
        ]
        findings = found or findings
    else:
        findings += list(results.errors.values())[:WARNED_MAX]
    kinds: dict[str, list[tuple[int, str]]] = {kind: [] for kind in KINDS}
    kinds["damaged"] += errors.items()
    kinds["outlier"] += tall.items()
    zero_slots = 0
    for row, warnings in results.warnings.items():
        for kind, text in warnings:
            if kind == "zero" and layers.roles[row] == "optimizer":
                zero_slots += 1
            else:
                kinds[kind].append((row, text))
    items, shown = [], layers.shown
    for kind, several in kinds.items():
        for row, text in nsmallest(KIND_MAX, several, key=lambda one: natural_key(shown[one[0]])):
            place = results.found.get(row, {}).get("first", {}).get(kind)
            items.append({"kind": kind, "name": shown[row], "text": text, "place": place})
    return {
        "findings": findings,
        "damaged": results.damaged,
        "complete": report is not None,
        "verified": report.tensors_checked if report is not None else results.verified,
        "numbers": results.numbers,
        "whole": results.whole,
        "sampled": len(results.sampled),
        "seconds": budget.seconds,
        "limit": budget.nbytes,
        "items": items[:ITEMS_MAX],
        "kinds": [[kind, len(several)] for kind, several in kinds.items() if several],
        "zero_slots": zero_slots,
    }
