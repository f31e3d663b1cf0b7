# SPDX-License-Identifier: Apache-2.0
"""`inspect` of a checkpoint whose index cannot be opened: files and sizes.

The JSON document has the keys of inspect_json.py; unknown values are null.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

from ckptfmt import Finding
from ckptfmt.cli import text
from ckptfmt.cli.contents import DataFile
from ckptfmt.cli.inspect_json import SCHEMA
from ckptfmt.cli.output import Output
from ckptfmt.names import index_name, parse_data_name

__all__ = ["Unopened", "look", "show"]


@dataclass(frozen=True, slots=True)
class Unopened:
    """The files of a checkpoint, and the error of opening it.

    Attributes:
        index_size: bytes; None if the file cannot be asked for its size.
        files: all data files of the prefix, whatever number of files their names claim.
        problem: what is wrong.
    """

    prefix: str
    index_size: int | None
    files: list[DataFile]
    problem: Finding


def look(prefix: str, problem: Finding) -> Unopened:
    """Return the sizes of the files; opens none of them."""
    directory, stem = os.path.split(prefix)
    found = []
    try:
        entries = os.listdir(directory or ".")
    except OSError:
        entries = []
    for entry in entries:
        data = parse_data_name(entry)
        if data is not None and data.prefix == stem:
            path = os.path.join(directory, entry)
            found.append((data.num_shards, DataFile(data.shard, path, _size(path))))
    found.sort(key=lambda item: (item[0], item[1].shard))
    return Unopened(prefix, _size(index_name(prefix)), [file for _, file in found], problem)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def show(out: Output, path: str, unopened: Unopened, *, as_json: bool) -> None:
    """Print files, sizes and the problem; `path` is the argument of the command."""
    if as_json:
        _show_json(out, path, unopened)
    else:
        _show_text(out, unopened)


def _show_text(out: Output, unopened: Unopened) -> None:
    prefix, files = text.printable(unopened.prefix), unopened.files
    out.line(out.paint(prefix, "bold"))
    out.line(f"  format    unknown, {out.paint('the index cannot be opened', 'red')}")
    out.line(f"  index     {_size_text(unopened.index_size)}")
    sizes = sum(file.size or 0 for file in files)
    out.line(f"  data      {text.size(sizes)} in {text.plural(len(files), 'file')}")
    out.line()
    if files:
        columns = [
            text.Column("data file", [text.printable(file.path) for file in files]),
            text.Column("bytes", [_size_text(file.size) for file in files], right=True),
        ]
        for piece in text.table(columns):
            out.write(piece)
        out.line()
    out.line("`ckptfmt verify` lists all problems.")


def _size_text(size: int | None) -> str:
    return "unknown" if size is None else text.size(size)


def _show_json(out: Output, path: str, unopened: Unopened) -> None:
    files = unopened.files
    unknown = dict.fromkeys(("tensors", "elements", "nbytes", "by_dtype"))
    document = {
        "schema": SCHEMA,
        "path": path,
        "prefix": unopened.prefix,
        "level": None,
        "header": None,
        "metadata": {},
        "tensors": None,
        "totals": {
            **unknown,
            "index_bytes": unopened.index_size,
            "data_bytes": sum(file.size or 0 for file in files),
            "files": [
                {"path": file.path, "shard": file.shard, "size": file.size} for file in files
            ],
        },
        "problems": [asdict(unopened.problem)],
    }
    out.document(document)
