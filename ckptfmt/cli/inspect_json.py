# SPDX-License-Identifier: Apache-2.0
"""The JSON document of `inspect --json`.

    {"schema": 2, "path": "...", "prefix": "...", "format": "tensorflow", "level": "v2+",
     "header": {"num_shards", "big_endian", "producer", "min_consumer", "index_size",
                "block_count"},
     "metadata": {...},
     "tensors": [{"name", "display", "dtype", "shape", "nbytes", "stored_nbytes", "shard",
                  "offset", "crc32c",
                  "slices": [{"start", "shape", "nbytes", "raw_nbytes", "shard", "offset",
                              "crc32c", "missing"}, ...]}, ...],
     "totals": {"tensors", "elements", "nbytes", "by_dtype": {"float32": {...}, ...},
                "index_bytes", "data_bytes", "files": [{"path", "shard", "size"}, ...]},
     "problems": [{"severity", "status", "failure", "message", "path", "offset", "tensor"}, ...]}

Keys may be added within a schema. `name` is the stored name, `display` the one that the table
shows, not escaped. `shard`, `offset` and `crc32c` of a partitioned tensor are null,
and of a tensor of another format these and `stored_nbytes`. Unknown values are null: `level`,
`tensors` and the totals of a checkpoint that cannot be listed, the `size` of a missing file, and
`header` of an index that cannot be opened. --filter applies to `tensors` and `totals`, --limit to
`tensors`. The document is one line of ASCII; a byte of a name that is not UTF-8 is a lone surrogate
(\\udc80 to \\udcff).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ckptfmt.bundle.findings import fields_of
from ckptfmt.cli.contents import Contents, Tensors
from ckptfmt.cli.output import Output
from ckptfmt.errors import masked


def show(
    out: Output,
    path: str,
    contents: Contents,
    chosen: Tensors | None,
    limit: int | None,
    display: Callable[[str], str],
) -> None:
    """Print the document; `display` returns the name of a tensor for people."""
    shown = chosen
    if chosen is not None and limit is not None:
        shown = chosen.pick(range(min(limit, len(chosen))))
    document: dict[str, Any] = {
        "path": masked(path),
        "prefix": masked(contents.prefix),
        "format": contents.format,
        "level": contents.level,
        "header": None if contents.header is None else asdict(contents.header),
        "metadata": contents.metadata,
        "tensors": None
        if shown is None
        else [_tensor(shown, row, display) for row in range(len(shown))],
        "totals": _totals(contents, chosen),
        "problems": [fields_of(problem) for problem in contents.problems],
    }
    out.document(document)


def _tensor(tensors: Tensors, row: int, display: Callable[[str], str]) -> dict[str, Any]:
    partitioned = tensors.slice_counts[row] > 0
    unplaced = partitioned or not tensors.in_checkpoint
    return {
        "name": tensors.names[row],
        "display": display(tensors.names[row]),
        "dtype": tensors.dtypes[row],
        "shape": tensors.shapes[row],
        "nbytes": tensors.nbytes[row],
        "stored_nbytes": tensors.stored_nbytes[row] if tensors.in_checkpoint else None,
        "shard": None if unplaced else tensors.shards[row],
        "offset": None if unplaced else tensors.offsets[row],
        "crc32c": None if unplaced else tensors.crcs[row],
        "slices": _slices(tensors, row) if partitioned else [],
    }


def _slices(tensors: Tensors, row: int) -> list[dict[str, Any]]:
    return [
        {
            "start": part.start,
            "shape": part.shape,
            "nbytes": part.nbytes,
            "raw_nbytes": part.raw_nbytes,
            "shard": None if part.missing else part.shard,
            "offset": None if part.missing else part.offset,
            "crc32c": None if part.missing else part.crc32c,
            "missing": part.missing,
        }
        for part in tensors.slices(row)
    ]


def _totals(contents: Contents, chosen: Tensors | None) -> dict[str, Any]:
    sums: dict[str, Any] = {"tensors": None, "elements": None, "nbytes": None, "by_dtype": None}
    if chosen is not None:
        total, by_dtype = chosen.totals()
        sums = asdict(total)
        sums["by_dtype"] = {dtype: asdict(part) for dtype, part in by_dtype.items()}
    sums["index_bytes"] = contents.index_size
    sums["data_bytes"] = sum(file.size or 0 for file in contents.files)
    sums["files"] = [
        {"path": masked(file.path), "shard": file.shard, "size": file.size}
        for file in contents.files
    ]
    return sums
