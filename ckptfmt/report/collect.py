# SPDX-License-Identifier: Apache-2.0
"""What a report shows of a checkpoint, as JSON values. Nothing is formatted here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ckptfmt._base.names import printable
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import CkptfmtError, masked
from ckptfmt.report.about import about_data
from ckptfmt.report.health import health_data, outliers
from ckptfmt.report.layers import Layers, LayerSum, runs
from ckptfmt.report.measuring import Budget, Measurements, Progress, measure
from ckptfmt.report.statistics import Statistics

# More tensors than this, or names of more bytes, are shown as groups.
ROWS_MAX, NAMES_MAX = 20_000, 4 << 20
# Slices of one tensor in its map.
SLICES_MAX = 2000


def checkpoint_data(
    layers: Layers, budget: Budget, progress: Progress | None = None
) -> dict[str, Any]:
    """Return the data of a checkpoint.

    Args:
        layers: of the checkpoint.
        budget: how much of its values may be read.
        progress: called with the parts done, and of all.
    """
    reader = layers.people.reader
    table = reader.table()
    stored, shown, roles, shapes = (
        layers.stored,
        layers.shown,
        layers.roles,
        table["shape"].tolist(),
    )
    findings = [] if layers.damage is None else [layers.damage]
    metadata = _metadata(reader, findings)
    sums = [LayerSum(name, role) for name, role in layers.layers]
    groups = group_names(shown)
    rms = np.full(len(stored), np.nan)

    def total(row: int, found: Statistics, elements: int) -> None:
        layer = layers.of[row]
        if layer is not None and not found.is_exact:
            sums[layer].add(found, elements)
            if roles[row] == "weight":
                rms[row] = found.rms

    results = measure(reader, budget, total, progress, keep=groups is None)
    tall = outliers(rms, shapes, layers)
    errors = _damage(results, stored)
    fields = ("dtype", "nbytes", "stored_nbytes", "shard")
    columns = zip(
        shown, stored, roles, shapes, *(table[one].tolist() for one in fields), strict=True
    )
    rows, modules = list[dict[str, Any]](), dict[str, dict[str, Any]]()
    parts: dict[str, list[int]] = {}
    for row, (name, key, role, shape, dtype, nbytes, size, shard) in enumerate(columns):
        if (values := results.meant.get(row)) is not None:
            dtype, shape, nbytes = values.dtype_name, values.shape, values.nbytes  # noqa: PLW2901
        elements = math.prod(shape)
        part = parts.setdefault(role, [0, 0, 0])
        for place, more in enumerate((1, elements, nbytes)):
            part[place] += more
        if (layer := layers.of[row]) is not None:
            sums[layer].count(dtype, elements, nbytes)
        if groups is not None:
            _count(modules, groups[row], role, elements, nbytes)
            continue
        data: dict[str, Any] = {
            "name": name,
            "dtype": dtype,
            "shape": list(shape),
            "bytes": nbytes,
            "stored": size,
            "shard": shard if shard >= 0 else None,
            "role": role,
            "layer": layer,
        }
        if row in layers.parameters:
            data["parameter"] = layers.parameters[row]
        if printable(key) != name:
            data["key"] = printable(key)
        if shard < 0:
            data |= _slices(reader[key])
        data |= results.found.get(row, {})
        if row in tall:
            data.setdefault("warnings", []).append(tall[row])
        if row in errors:
            data["error"] = errors[row]
        rows.append(data)
    return {
        "path": printable(masked(reader.prefix)),
        "format": "tensorflow",
        "level": reader.level,
        "files": reader.header.num_shards,
        "about": about_data(layers.people, metadata),
        "count": len(stored),
        "parts": [[role, *numbers] for role, numbers in parts.items()],
        "layers": [one.data() for one in sums],
        "grouped": groups is not None,
        "tensors": rows if groups is None else [*modules.values()],
        "health": health_data(results, budget, layers, errors, tall, findings),
    }


def _damage(results: Measurements, stored: list[str]) -> dict[int, str]:
    """Return what is wrong with the stored bytes of tensors, by their place in the index."""
    if results.report is None:
        return results.errors
    places = {name: row for row, name in enumerate(stored)}
    found = [one for one in results.report.problems if one.tensor in places]
    damage = {places[str(one.tensor)]: str(one).removeprefix("problem: ") for one in found}
    return damage | results.errors


def _metadata(reader: Reader, findings: list[str]) -> Mapping[str, Any]:
    try:
        return reader.metadata
    except CkptfmtError as error:
        findings.append(str(error))
        return {}


def _slices(handle: TensorHandle) -> dict[str, Any]:
    slices = handle.slices
    return {
        "slices": [[list(one.start), list(one.shape), one.shard] for one in slices[:SLICES_MAX]],
        "slice_count": len(slices),
    }


# ---- groups --------------------------------------------------------------------------------------


def group_names(names: Sequence[str]) -> list[str] | None:
    """Return the group of every name if there are too many for one page; None if there are not. A
    group is a module, at the greatest depth at which there are few enough; or some names that
    follow each other, where already the first parts are too many."""
    if len(names) <= ROWS_MAX and sum(map(len, names)) <= NAMES_MAX:
        return None
    found: list[str] | None = None
    for depth in range(1, 2 + max(name.count("/") for name in names)):
        groups = [_module(name, depth) for name in names]
        distinct = set(groups)
        if len(distinct) > ROWS_MAX or sum(map(len, distinct)) > NAMES_MAX:
            break
        found = groups
    if found is not None:
        return found
    return runs(names, ROWS_MAX // 10)


def _module(name: str, depth: int) -> str:
    """Return the first parts of a name; with a slash if there are more."""
    parts = name.split("/", depth)
    return name.removesuffix(parts[depth]) if len(parts) > depth else name


def _count(
    modules: dict[str, dict[str, Any]], name: str, role: str, elements: int, nbytes: int
) -> None:
    """Count a tensor in its group."""
    if name not in modules:
        modules[name] = {"name": name, "tensors": 0, "elements": 0, "bytes": 0, "roles": {}}
    data = modules[name]
    data["tensors"] += 1
    data["elements"] += elements
    data["bytes"] += nbytes
    data["roles"][role] = data["roles"].get(role, 0) + nbytes
